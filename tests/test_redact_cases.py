"""Redaction, dialect by dialect: what people write around a secret, and what only looks like one."""

import base64
import hashlib
import itertools
import random
import re
import string
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from merlin.hashes import (
    CJK,
    CLOSE,
    EMOJI,
    ESCAPES,
    GLUE,
    JOIN,
    MARKS,
    ODD,
    OPEN,
    QUERY,
    SEPARATORS,
    SLOTS,
    SLOTTED,
    SOFT,
    STRIP,
    HashFile,
    LiveSecrets,
    candidates,
    line_slots,
    phrases,
    places,
    secret_hash,
    telling,
)
from merlin.redact import Redactor
from merlin.shapes import SHAPES, example

REDACTOR = Redactor(disable=('hex32',))
ALNUM = string.ascii_letters + string.digits


def drawn(rng, size, alphabet=ALNUM):
    "Characters out of a hat, the way machines make secrets."
    return ''.join(rng.choices(alphabet, k=size))


PASSWORD_KEYS = (
    'password DB_PASSWORD bind_password adminPassword MYSQL_ROOT_PASSWORD spring.datasource.password smtp_pass db_pwd '
    'wpa_passphrase psk BORG_PASSPHRASE root-password'
).split()
SECRET_KEYS = (
    'token api_key apiKey X-Api-Key client_secret SECRET_KEY access_key aws_secret_access_key AccountKey _authToken '
    'PrivateKey PresharedKey JWT_SECRET X-Auth-Token'
).split()
DIALECTS = r"""
<k>=<v>
export <k>=<v>
<k>="<v>"
<k> = <v>
<k>: <v>
<k>: '<v>'
  - <k>: <v>
{"<k>": "<v>", "x": 1}
{"<k>":"<v>"}
\"<k>\": \"<v>\"
:<k> => "<v>"
<k> := '<v>'
-H "<k>: <v>" https://a.example
--<k>=<v> --x
--<k> <v> --x
https://a.example/x?<k>=<v>&x=1
https://a.example/?y=1&amp;<k>=<v>&amp;z=2
- **<k>:** `<v>`
**<k>**: <v>
`<k>`: `<v>`
| <k> | `<v>` |
|<k>|<v>|
<<k>><v></<k>>
<input name="<k>" value="<v>">
data-<k>="<v>"
&quot;<k>&quot;: &quot;<v>&quot;
<k>：<v>。
<k>: “<v>”
server=x;<k>=<v>;db=y
> <k>: <v>
+<k>: <v>
-<k>=<v>
(<k>: <v>)
<k>: <v>, user: x
$env:<k> = "<v>"
- name: <k>\n  value: <v>
${<k>:-<v>}
define('<k>', '<v>');
<li><k>: <code><v></code></li>
<k>: !!str <v>
<k>: |\n  <v>\n
The <k> is `<v>` now.
<k>=<v>\r\nx=1\r\n
""".strip().splitlines()


@pytest.mark.parametrize('dialect', DIALECTS)
def test_an_assigned_secret_is_found_in_this_dialect(dialect):
    rng, missed = random.Random(dialect), []
    for key in PASSWORD_KEYS + SECRET_KEYS:
        if ' is ' in dialect and key in ('psk',):
            continue
        for size in (16, 32, 40):
            value = drawn(rng, size)
            page = dialect.replace('\\n', '\n').replace('\\r', '\r').replace('<k>', key).replace('<v>', value)
            done = REDACTOR.redact(page).text
            if value in done or REDACTOR.redact(done).counts or done.count('\n') != page.count('\n'):
                missed.append(page)
    assert missed == []


CHOSEN = (
    'Sommer2031! letmein1 Drache99! Herbst-2031 qwertz123 P@ssw0rd Tr0ub4dor&3 s3cr3t! K4ffee#tasse hunter22'.split()
)
PLACES_OF_CHOSEN = r"""
password: <v>
password=<v>
DB_PASSWORD="<v>"
"password": "<v>"
- **Password:** `<v>`
pw: <v>
Passwort: <v>
--password <v> --x
<password><v></password>
| Password | `<v>` |
PGPASSWORD=<v> psql -h db
identified by '<v>'
sshpass -p '<v>' ssh root@alpha
curl -u 'ops:<v>' https://a.example
mysql://root:<v>@db.lan/app
""".strip().splitlines()


@pytest.mark.parametrize('place', PLACES_OF_CHOSEN)
def test_a_password_that_a_person_chose_is_found_here(place):
    assert [v for v in CHOSEN if v in REDACTOR.redact(place.replace('<v>', v)).text] == []


@pytest.mark.parametrize('phrase', ['pvraj rqcah hzrvx dowav', 'correct horse battery staple'])
def test_a_pass_phrase_in_quotes_is_taken_whole(phrase):
    for place in (
        "export BORG_PASSPHRASE='{}'",
        'RESTIC_PASSWORD="{}"',
        'passphrase: "{}"',
        'psk="{}"',
        'passphrase: {}',
    ):
        assert phrase.split()[-1] not in REDACTOR.redact(place.format(phrase)).text, place


def user_and(rng):
    "Base64 of a user and a password."
    return base64.b64encode(b'ops:' + drawn(rng, 12).encode()).decode()


HEADERS = """
Authorization: Bearer <t>
authorization=Bearer%20<t>
"Authorization": "Bearer <t>"
&quot;Authorization&quot;: &quot;Bearer <t>&quot;
Authorization: Token <t>
Authorization: ApiKey <t>
proxy_set_header Authorization "Basic <b>";
Proxy-Authorization: Basic <b>
| Authorization | Bearer <t> |
the call needs `Bearer <t>`.
--oauth2-bearer <t>
Cookie: session=<t>; theme=dark
machine db.lan login ops password <t>
//registry.example/:_authToken=<t>
DefaultEndpointsProtocol=https;AccountName=x;AccountKey=<t>;EndpointSuffix=core
https://x.blob.example/c?sp=r&sig=<t>&se=2031
otpauth://totp/ops?secret=<t>&issuer=x
kubectl create secret generic x --from-literal=api-key=<t>
postgres://app:<t>@db.lan/app
redis://:<t>@10.0.0.8:6379/1
smtp://ops@a.example:<t>@mail.example:587
postgresql+asyncpg://u:<t>@[::1]:5432/x
（https://u:<t>@h.example）
db.lan:5432:app:ops:<t>
密码：<t>。
mysql -uroot -p<t> shop
run `mysqldump -p<t> shop`
7z a -p<t> x.7z
redis-cli -h cache.lan -a <t> ping
ldapsearch -x -D cn=ops -w <t>
zip -P <t> x.zip
ipmitool -H bmc -U ops -P <t> power status
docker login -u ops -p <t> registry.example
mongosh -u ops -p <t> db.lan
htpasswd -bB users ops <t>
wpa_passphrase guests <t>
smbclient //nas/x -U ops%<t>
export SSHPASS=<t>
alter user ann identified with mysql_native_password by '<t>';
enable secret 5 <t>
sqlcmd -S db -U sa -P <t>
rar a -p<t> x.rar
xfreerdp /u:ann /p:<t>
lftp -u ann,<t> h.lan
mosquitto_pub -u a -P <t>
snmp-server community <t> ro
пароль: <t>
hasło: <t>
requirepass <t>
bindpw <t>
WIFI:T:WPA;S:guests;P:<t>;;
contraseña: <t>
mot de passe : <t>
""".strip().splitlines()


@pytest.mark.parametrize('line', HEADERS)
def test_a_secret_known_by_its_place_is_found(line):
    rng = random.Random(line)
    for size in (20, 32, 44):
        token, basic = drawn(rng, size), user_and(rng)
        done = REDACTOR.redact(line.replace('<t>', token).replace('<b>', basic)).text
        assert token not in done and basic not in done


ODD_PASSWORDS = '{}&{} &{} {}/{} /{} {}~{} {}"{} {}\'{} {}<{}> {}|{} {}`{} {}\\{} [{}] (({} {}@{} {}:{} {}#{}'.split()
ODD_URLS = (
    'postgres://ann:{}@db.lan/x', 'redis://:{}@cache.lan:6379/0', 'url: "amqp://u:{}@mq.lan"', '`https://ann:{}@git.lan/x.git`',
    '[x](https://u:{}@h.example)', 'jdbc:mysql://u:{}@db.lan/x', '<ftp://u:{}@10.0.0.8/>',
)  # fmt: skip


@pytest.mark.parametrize('odd', [*ODD_PASSWORDS, '{} {}', '{} and {}'])
def test_a_password_in_a_link_is_found_whatever_marks_and_blanks_it_holds(odd):
    rng = random.Random(odd)
    for url in ODD_URLS:
        parts = [drawn(rng, 9) for _ in range(odd.count('{}'))]
        done = REDACTOR.redact(f'see {url.format(odd.format(*parts))} there')
        assert (
            not any(part in done.text for part in parts)
            and done.text.startswith('see ')
            and done.text.endswith(' there')
        )


@pytest.mark.parametrize(
    'line',
    [
        'http://alpha.lan:8080 and mail ops@alpha.lan', 'see https://alpha.lan:8443/x/ab12cd34ef@v2', 'oci://registry.lan:5000/app@sha256',
        'https://a.example/x: write to ann@a.example', 'mysql -p shop2031', 'docker run -p 8080:80 web@v2', 'mysql -u root -p -h db-7x.lan',
        'ssh://git:22/ops/x9y8z7w6@main', 'cp -p x9y8z7w6 y', 'image: https://h.lan:443/a b@c', 'zip -r x.zip P2031-report',
        'unzip -p app-2.4.1.jar META-INF/MANIFEST.MF', 'ldapsearch -x -W uid=ann1', 'mysql -P x9y8z7w6 -h db', 'ipmitool -p 6230x9y8 -H bmc',
        'docker run --name mysql -p3306:3306 mysql:8', 'docker run --name mysql -p127.0.0.1:3306:3306/tcp mysql:8',
        'clone from ssh://nas:backup/2031-x9y8z7w6, then ask ann@alpha.lan', 'docker://nginx:stable-9f8e7d6c and mail ann@alpha.lan', 'http://[2001:db8::7]/d/ab12cd34ef or ann@lan',
        'git+ssh://git@github.com:acme/tools-k8s7d6.git@v1.2',
    ],
)  # fmt: skip
def test_a_link_or_command_without_a_password_stays(line):
    assert REDACTOR.redact(line).text == line


CHOSEN = ('Zebra-Tango-5591', 'Sommer2031!', 'sunshine2031', 'hunter-2-x9')
SAYINGS = (
    'admin / password: {}', 'login: admin, Passwort: {}', 'the wifi password is {}', 'wifi password: {}', 'user admin, password: {}',
    'The root password is {}.', 'log in as ops (password: {})', 'ssh ops@alpha.lan, Passwort: {}',
    'Password for root: {}', 'the password of the guest wifi is {}', 'on beta, Passwort für ops: {}',
)  # fmt: skip


@pytest.mark.parametrize('saying', SAYINGS)
def test_a_password_that_a_person_chose_is_found_within_a_sentence(saying):
    for value in CHOSEN:
        assert value.rstrip('!') not in REDACTOR.redact(f'Notes of the day.\n\n{saying.format(value)}\n').text


@pytest.mark.parametrize(
    'line',
    [
        'the password is base64-encoded', 'our password: sha256-hashed', 'the password is 2fa-protected', 'the password is PBKDF2-hashed',
        'the password is in 1password', 'old password: see INC0012345', 'root password is at p2031.md', 'password: 8-16 characters',
        'change password: done 2031-05-01', 'the password is 64bit', 'the new password is 14chars long', 'the password is SHA512/crypt',
        'the password for root is rotated every 90 days', 'password for the NAS: see page 42', 'passwords for all hosts: vault/hosts',
        'reset password: https://a.example/r2', 'wifi password: <pass2031>', 'the password is $WIFI_PASS_2',
    ],
)  # fmt: skip
def test_a_sentence_about_a_password_stays(line):
    assert REDACTOR.redact(line).text == line


DRESSES = {
    'as it is': lambda t: t,
    'indented': lambda t: '    ' + t.replace('\n', '\n    '),
    'quoted': lambda t: '> ' + t.replace('\n', '\n> '),
    'added': lambda t: '+' + t.replace('\n', '\n+'),
    'removed': lambda t: '-' + t.replace('\n', '\n-'),
    'in JSON': lambda t: '"' + t.replace('\n', '\\n') + '"',
    'in JSON in JSON': lambda t: t.replace('\n', '\\\\n'),
    'CRLF': lambda t: t.replace('\n', '\r\n'),
    'one line': lambda t: t.replace('\n', ' '),
    'entities': lambda t: t.replace('\n', '&#10;'),
    'table cell': lambda t: '| key | ' + t.replace('\n', '<br>') + ' |',
    'comment': lambda t: '# ' + t.replace('\n', '\n# '),
    'cut off': lambda t: t.rsplit('\n', 1)[0] + '\n\nand so on',
    'spread': lambda t: t.replace('\n', '\n\n'),
    'encrypted': lambda t: t.replace('\n', '\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,0123456789ABCDEF\n\n', 1),
}


@pytest.mark.parametrize('dress', DRESSES)
def test_a_private_key_is_found_however_it_is_wrapped_and_lines_stay(dress):
    rng = random.Random(dress)
    for kind in ('PRIVATE KEY', 'RSA PRIVATE KEY', 'OPENSSH PRIVATE KEY', 'PGP PRIVATE KEY BLOCK'):
        for width in (64, 76, 24):
            lines = [*(drawn(rng, width, ALNUM + '+/') for _ in range(6)), drawn(rng, 19) + '=']
            key = '\n'.join([f'-----BEGIN {kind}-----', *lines, f'-----END {kind}-----'])
            page = f'before\n{DRESSES[dress](key)}\nafter these words'
            done = REDACTOR.redact(page)
            assert not [line for line in lines if line in done.text]
            assert done.text.startswith('before\n') and done.text.endswith('\nafter these words')
            assert done.text.count('\n') == page.count('\n') and done.counts == {'private_key': 1}


def test_each_family_stands_alone():
    for shape in SHAPES:
        text, secret = example(shape, 3)
        others = {'private_key', 'url_credentials', 'sk_key', 'vendor_token', 'jwt', 'bearer', 'key_value', 'hex32'}
        redactor = Redactor(others - {shape.family})
        assert redactor.redact(f'x {text} y').counts == {shape.family: 1}, shape.name
        assert not Redactor([shape.family, 'hex32']).redact(f'x {text} y').counts or shape.family == 'sk_key', (
            shape.name
        )


NEGATIVES = Path(__file__).with_name('fixtures').joinpath('not_secrets.txt').read_text(encoding='utf-8').splitlines()
WRAPS = ('{}', '- {}\n', '> {}', '    {}\n    x: 1\n', 'text\n\n{}\n\ntext', '{} (2031)')


def filled(line):
    "A negative with its made parts in place."
    rng = random.Random(line)
    made = {f'x{n}': 'x' * n for n in (12, 20, 24, 36)} | {'X16': 'X' * 16, 'aws': drawn(rng, 9, 'ABCDEFGH234567')}
    made |= {'b64': drawn(rng, 30), 'A24': drawn(rng, 24)}
    made['header'] = base64.b64encode(b'{"alg":"HS256"}').decode().rstrip('=')
    for name, value in made.items():
        line = line.replace(f'{{{name}}}', value)
    return line.replace('\\n', '\n')


@pytest.mark.parametrize('wrap', WRAPS)
def test_what_only_looks_like_a_secret_stays_as_it_is(wrap):
    pages = [wrap.replace('{}', filled(line)) for line in NEGATIVES]
    assert [(page, REDACTOR.redact(page).text) for page in pages if REDACTOR.redact(page).counts] == []


FRAGMENTS = (
    ' |\n|\r\n|: |=|"|\'|`|-|_|.|,|@|//|://|&|?|#|password|token|secret|key|Bearer|Authorization|Basic|密|é|😀|[REDACTED:x]|'
    '[REDACTED:|a|foo|Herbst-2031|to be or not|a=b|\\n|&quot;|%3D|${|}|<|>|**|--|is|https|abc123|hunter2|user|-u ops:|'
    'name: |value: |\t|\u200b|\ud83d|-----BEGIN PRIVATE KEY-----|-----END PRIVATE KEY-----'
).split('|')


def test_glued_fragments_of_every_kind_are_stable_after_one_pass_and_keep_their_lines():
    rng, salt = random.Random(11), '0f' * 16
    redactor = Redactor()
    live = {'Herbst-2031': 'ipmi', 'to be or not': 'disk', 'a=b': 'd' * 64}
    redactor._live = LiveSecrets(HashFile(salt, {secret_hash(salt, v): n for v, n in live.items()}))
    for _ in range(1500):
        parts = [
            example(rng.choice(SHAPES), rng.randrange(50))[0] if rng.random() < 0.3 else rng.choice(FRAGMENTS)
            for _ in range(rng.randint(1, 12))
        ]
        page = ''.join(parts)
        once = redactor.redact(page)
        assert once.text.count('\n') == page.count('\n')
        assert redactor.redact(once.text) == type(once)(once.text), page


LIVE = ('Drache99!', 'a=b', 'pa:w', 'it"s', 'x(y)z9', 'a,b;c', 'Jäger-2031', 'abc=', 'to be or not', 'P-w_7')
DRESS = """
{}
is {} now
is {}.
({})
"{}",
'{}'
`{}`
**{}**
“{}”
«{}»
： {}，
x={}
key: {};
- {}
| a | {} |
{}…
""".strip().splitlines()


@pytest.mark.parametrize('value', LIVE)
def test_a_live_secret_is_found_in_every_dress_and_named(value):
    salt = 'a5' * 16
    redactor = Redactor()
    redactor._live = LiveSecrets(HashFile(salt, {secret_hash(salt, value): 'dull-name'}))
    for dress in DRESS:
        done = redactor.redact(dress.replace('{}', value)).text
        assert value not in done and '[REDACTED:dull-name]' in done, dress


SEPARATING = frozenset(chr(n) for n in range(0x10000) if re.match(f'[{SEPARATORS}]', chr(n)))


def cut_at(text, marks):
    "The text cut at every one of these characters."
    return ''.join('\n' if c in marks else c for c in text).split('\n')


def ends_stripped(token):
    "The token with up to STRIP marks taken from either end, one at a time."
    start, end = len(token) - len(token.lstrip(MARKS)), len(token.rstrip(MARKS))
    fronts, backs = range(max(0, start - STRIP), start + 1), range(end, min(len(token), end + STRIP) + 1)
    return {token} | ({token[a:b] for a in fronts for b in backs} if start < end else set())


def joined(part):
    "One to JOIN neighbouring pieces; where a mark stands as only passwords have it, also with up to two marks beside."
    kinds = ['cjk' if re.match(f'[{CJK}]', c) else 'letter' if c.isalnum() else '' for c in part]
    edges = [0, *(n for n in range(1, len(part)) if kinds[n] != kinds[n - 1]), len(part)]
    spans = [(a, b) for a, b in itertools.pairwise(edges) if a < b and kinds[a]]
    room = 2 if ODD.compiled.search(part) else 0
    found = set()
    for n, (start, _) in enumerate(spans):
        for m, (_, end) in enumerate(spans[n : n + JOIN], n):
            left = start - (spans[n - 1][1] if n else 0)
            right = (spans[m + 1][0] if m + 1 < len(spans) else len(part)) - end
            for a, b in itertools.product(range(min(room, left) + 1), range(min(room, right) + 1)):
                found.add(part[start - a : end + b])
    return found


def encoded_runs(text):
    "Up to 2 * JOIN neighbours among escapes and the runs of letters and harmless marks between them."
    found, spans = set(), [m.span() for m in re.finditer('|'.join([*ESCAPES, '[A-Za-z0-9_.~+*/-]+']), text)]
    for n, (start, end) in enumerate(spans):
        for first, last in [(end, end), *spans[n + 1 : n + 2 * JOIN]]:
            if first != end:
                break
            end = last
            found.add(text[start:end])
    return found


CLOSERS = frozenset(re.findall(f'[{CLOSE}]', ''.join(map(chr, range(0x10000)))))


def slotted(text, openers, most):
    "What stands between each opener, as far as `openers` says where, and each of the next marks that close."
    found = set()
    for start in openers:
        at = end = start
        for _ in range(most):
            end = at
            while end < min(len(text), at + SLOTTED) and text[end] not in CLOSERS:
                end += 1
            found.add(text[start:end])
            if end == len(text) or text[end] not in CLOSERS:
                break
            at = end + 1
    soft = {slot for slot in found if slot.strip(SOFT) != slot}
    return found.union(
        *({slot[:-1] if slot[-1] in SOFT else slot, slot.rstrip(SOFT), slot.strip(SOFT)} for slot in soft)
    )


def tried(text):
    "Every candidate of a short text: what the notebook says, one thing after the other, with nothing left out for speed; but for marks alone."
    found = set()
    for chunk in text.split():
        views = [chunk, *re.split(f'[{CJK}{EMOJI}]+', chunk)]
        views += [part for view in views if '\\' in view for part in re.split('|'.join(ESCAPES[1:]), view)]
        views += [part for view in views if '%' in view for part in re.split(ESCAPES[0], view)]
        for view in views:
            fields = cut_at(view, SEPARATING | set('/@&?#'))
            for token in (view, *cut_at(re.sub(r'\\[nrt]', '\n', view), SEPARATING), *fields):
                found |= ends_stripped(token)
            found.update(re.findall(f'[^{SEPARATORS}]+=+', view))
            parts = view.split('/')
            pairs = ['/'.join(pair) for pair in itertools.pairwise(parts)]
            for part in [*parts, *(p for p in pairs if QUERY & set(p))] if len(parts) > 3 else [view]:
                found |= joined(part)
            found |= encoded_runs(view) if '%' in view or '\\' in view else set()
            openers = [n for n in range(len(view)) if n == 0 or re.match(f'[{OPEN}]', view[n - 1])]
            openers += [2] if re.match('-[A-Za-z].', view) else []
            found |= slotted(
                view, openers + [n + 2 for n in range(len(view) - 2) if view[n : n + 2] in (':-', '=-')], SLOTS
            )
    lines = [*text.split('\n'), *GLUE.compiled.sub('\n', text).split('\n')]
    for line in lines:
        words = [m.span() for m in re.finditer(r'\S+', line)]
        for n, (start, _) in enumerate(words):
            for _, end in words[n + 1 : n + JOIN]:
                found |= ends_stripped(line[start:end])
    alone = [run.strip(' \t-*+>#') for run in cut_at(text, SEPARATING | {'\r'})]
    found.update(*(ends_stripped(run) for run in alone if 0 < run.count(' ') < JOIN))
    for line in text.split('\n'):
        for run in re.split('[`"\'|()]', line.strip('\r')):
            words = run.strip(' \t>*+-').split(' ')
            if JOIN < len(words) <= 32 and all(re.fullmatch('[a-z]{3,8}', word) for word in words):
                found.update(' '.join(words[n : n + JOIN]) for n in range(0, len(words) - 1, JOIN))
    return {value for value in found if value.strip(MARKS)}


PIECES = (
    'Herbst-2031|a=b|p:w|https://|a.example/|/|//|:|=|==|@|&|?|#|%20|%2F|%|\\n|\\u0022|\\|"|\'|`|**|_|!|.|,|(|)|[|]|$|ä|é|'
    'ß|密码|，|：|“|”|💥|x|foo|bar|42|-|- | | |\n|\r\n|Drache99!|\u200b|ﬁ|Ａ|e\u0301|\ud83d|&quot;|to be or not|a-1-b-2-c-3-d-4'
).split('|')
TEXT = st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=2)), max_size=14).map(''.join)


@settings(derandomize=True, deadline=None, max_examples=400)
@given(TEXT)
def test_the_fast_way_tries_what_the_slow_way_tries(text):
    fast = candidates(text.split()) | phrases(text, telling(text))  # slots of lines: tests/test_trust_secrets.py
    assert {value for value in fast if value.strip(MARKS)} == tried(text)


@settings(derandomize=True, deadline=None, max_examples=80)
@given(st.lists(TEXT, min_size=1, max_size=4), st.data())
def test_no_live_secret_is_missed_whatever_was_read_before(texts, data):
    values = sorted(set().union(*map(tried, texts)))
    slots = {text: set(line_slots(telling(text))) for text in texts}
    secrets = set(data.draw(st.lists(st.sampled_from(values), max_size=3)) if values else [])
    spelled = {unicodedata.normalize('NFC', value) for value in secrets}
    salt = 'c3' * 16
    used = LiveSecrets(HashFile(salt, {salted(salt, value): 'x' for value in spelled}))
    for text in texts * 2:
        known = {
            v
            for v in tried(text) | slots[text]
            if {v, *(unicodedata.normalize(f, v) for f in ('NFC', 'NFKC'))} & spelled
        }
        slow = [(*m.span(), 'x') for m in places(known).finditer(text)] if known else []
        assert used.find(text) == slow


def salted(salt, value):
    "The digest of a value that may hold half a character."
    return hashlib.sha256((salt + value).encode('utf-8', 'surrogatepass')).digest()
