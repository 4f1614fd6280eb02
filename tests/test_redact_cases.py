"""Redaction, dialect by dialect: what people write around a secret, and what only looks like one."""

import base64
import random
import string
from pathlib import Path

import pytest

from merlin.hashes import HashFile, LiveSecrets, secret_hash
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
""".strip().splitlines()


@pytest.mark.parametrize('line', HEADERS)
def test_a_secret_known_by_its_place_is_found(line):
    rng = random.Random(line)
    for size in (20, 32, 44):
        token, basic = drawn(rng, size), user_and(rng)
        done = REDACTOR.redact(line.replace('<t>', token).replace('<b>', basic)).text
        assert token not in done and basic not in done


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
