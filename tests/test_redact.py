"""Redaction: every vendor's shape in every place it may stand, prose untouched, hash files strict, time linear."""

import base64
import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from merlin.errors import ConfigError, RefusedError
from merlin.hashes import HashFile, LiveSecrets, secret_hash
from merlin.redact import FAMILIES, Redacted, Redactor
from merlin.secrets import main as secrets_main
from merlin.shapes import SHAPES, example

PLAIN = Redactor(disable=('hex32',))
ALL = Redactor()

CONTEXTS = {
    'alone': '{}',
    'sentence': 'It was {} until yesterday.',
    'end of a sentence': 'It was {}.',
    'table cell': '| nas | {} | old |',
    'tight table cell': '|{}|',
    'inline code': 'use `{}` here',
    'bold': '**{}**',
    'double quotes': 'token "{}" end',
    'single quotes': "x = '{}';",
    'smart quotes': 'the key “{}” is gone',
    'guillemets': 'der Schlüssel «{}» ist weg',
    'brackets': '[{}](https://example.lan) and ({})',
    'url query': 'https://example.lan/api?k={}&page=2',
    'curl header': 'curl -H "X-Token: {}" https://example.lan',
    'yaml': 'service:\n  value: {}\n  port: 80\n',
    'json': '{{"a": 1, "b": "{}", "c": 2}}',
    'toml': 'name = "{}"\nport = 1\n',
    'env': 'export VALUE={}\n',
    'html attribute': '<a data-key="{}">x</a>',
    'entities': 'value=&quot;{}&quot;&amp;x=1',
    'cjk': '密钥{}已停用',
    'emoji': '🔑{}🔑',
    'comma list': 'one,{},two',
    'added line of a diff': '+{}\n-old',
    'removed line of a diff': '-  {}\n+ new',
    'quote': '> {}\n> more',
    'crlf': 'before\r\n{}\r\nafter',
    'tab': 'name\t{}\tnext',
}


@pytest.mark.parametrize('context', CONTEXTS)
def test_every_shape_is_found_in_this_place_with_hex32_off(context):
    missed = []
    for shape in SHAPES:
        for seed in range(2):
            text, secret = example(shape, seed)
            page = CONTEXTS[context].replace('{{', '{').replace('}}', '}').replace('{}', text)
            if secret in PLAIN.redact(page).text:
                missed.append((shape.name, page))
    assert missed == []


def test_two_tokens_side_by_side_are_both_found():
    for one, two in zip(SHAPES, SHAPES[1:] + SHAPES[:1], strict=True):
        (a, first), (b, second) = example(one, 7), example(two, 8)
        text = PLAIN.redact(f'{a} {b}').text
        assert first not in text and second not in text, (one.name, two.name)


NEGATIVES = """
To reset the password: open the console and follow restore.md.
**Password:** Argon2id with 64 MB, three rounds
Image pull secrets: see the registry page.
The token implementation moved to another package.
The secret is `web-tls`, the password field stays empty.
password: <password>
token: ${TOKEN}
token: $TOKEN
api_key: {{ vault_api_key }}
secret: xxxxxx
api_key: ****
db_password_file: /run/secrets/db
secretName: web-tls
imagePullSecrets: [regcred]
max_tokens: 200
token_count = 12
primary_key: id
const key = process.env.API_KEY
password = os.environ["DB_PASSWORD"]
password = getpass.getpass()
Authorization: Bearer $HA_TOKEN
Authorization: Bearer <token>
a classic token starts with `ghp_`, a fine-grained one with `github_pat_`
docs/risk-register-2031-second-quarter-review.md
task-sk-learn-the-whole-pipeline-in-one-day
mysql://app:${MYSQL_PASSWORD}@db2.lan/app
postgresql://reader@db2.lan:5432/metrics and git@git.lan:ops/x.git
ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAICVYKw0QnnJmgBLjhne6LQYI6NBJicK66F3RZDInYtT6 deploy@gamma
Deployed c50d2def74dd6a87f5289e5b95032546d40c4887 to beta.
docker pull app@sha256:8865977c4b3b44179e6b334079dc96e5ca1d5bed808f3bfc7bf5e15d22f9d375
disk b28e9d7d-a986-4005-ab2f-15a9c23d83b3 replaced
52:54:00:12:34:56 fd00::5054:ff:fe12:3456
"integrity": "sha512-w0OGNbWfjzYydMBbHWi062k3krS73RtG7StLQdOxxI9PzpjJ1L8TnyXAwaGwSTWVhwsPRck7SJtTCNTFBOSnJT=="
node_filesystem_avail_bytes and --max-old-space-size
password=[REDACTED:radius]
token: [REDACTED:vendor_token]
PublicKey = +gnsUJzRdMYn0yG8PVHcOou2qI3mhgpWPn4fJAuApfk=
The passphrase is asked for at boot, the key file is not.
Basic authentication is off; bearer tokens are on.
Ask for the credentials: they are in the safe.
see https://example.lan:8443/path/to/secret-rotation.html
kubectl get secret web-tls -o yaml
export PGPASSFILE=/etc/pgpass
password_hash_algorithm: argon2id
secrets: inherit
token: null
password: none
auth: true
""".strip().splitlines()


@pytest.mark.parametrize('line', NEGATIVES)
def test_prose_names_placeholders_and_public_things_stay(line):
    assert PLAIN.redact(line).text == line


def test_the_given_examples(records):
    salt, bad = '00112233445566778899aabbccddeeff', []
    for n, line in enumerate((records / 'cases/redaction-examples.jsonl').read_text().splitlines()):
        case = json.loads(line)
        file = hash_file(Path(os.environ['MERLIN_TEST_RUN']) / f'hashes-{os.getpid()}-{n}', case.get('hashes'), salt)
        text = Redactor(tuple(case['disable']), file).redact(case['text']).text
        right = all(s not in text for s in case['secret']) and all(k in text for k in case['keep'])
        right = (
            right and all(e in text for e in case.get('expect', [])) and (case['must_redact'] or text == case['text'])
        )
        bad += [] if right else [(case['id'], text)]
    assert bad == []


def hash_file(path, entries, salt='00' * 16):
    "A hash file of these names and values; None for none."
    if not entries:
        return None
    path.write_text(f'salt {salt}\n' + ''.join(f'{secret_hash(salt, v).hex()}\t{n}\n' for n, v in entries.items()))
    path.chmod(0o600)
    return path


@pytest.fixture
def records():
    folder = os.environ.get('MERLIN_TEST_RECORDS')
    if not folder:
        pytest.skip('MERLIN_TEST_RECORDS is not set')
    return Path(folder)


TOKENS = st.sampled_from(SHAPES).flatmap(lambda s: st.integers(0, 50).map(lambda seed: example(s, seed)))
PROSE = st.text(st.sampled_from('abcdefgh ABC.,;\n\r\t|`"\'()[]{}<>#*-_/=:é漢字💥'), max_size=60)


@settings(derandomize=True, deadline=None, max_examples=300)
@given(PROSE, TOKENS, PROSE)
def test_no_secret_of_a_known_shape_survives_between_blanks_and_a_second_pass_changes_nothing(before, token, after):
    text, secret = token
    once = ALL.redact(f'{before} {text} {after}')
    assert secret not in once.text
    again = ALL.redact(once.text)
    assert (again.text, again.counts) == (once.text, {})


@settings(derandomize=True, deadline=None, max_examples=300)
@given(st.text(max_size=400))
def test_any_text_keeps_its_lines_and_is_stable(text):
    once = ALL.redact(text).text
    assert ALL.redact(once).text == once
    assert once.count('\n') == text.count('\n')


@settings(derandomize=True, deadline=None, max_examples=200)
@given(
    st.lists(
        st.sampled_from('the backup of alpha failed at night because disk was full then we restored it'.split()),
        max_size=80,
    )
)
def test_text_without_secrets_is_unchanged(words):
    assert ALL.redact(' '.join(words)).text == ' '.join(words)


def test_a_key_of_many_lines_keeps_the_number_of_lines():
    body = '\n'.join('b3BlbnNzaC1rZXktdjEAAAAABG5vbmUAAAAEbm9uZQ' + 'Ab1' * 8 for _ in range(6))
    page = 'a\n-----BEGIN OPENSSH PRIVATE' + f' KEY-----\n{body}\n-----END OPENSSH PRIVATE' + ' KEY-----\nz\n'
    done = ALL.redact(page)
    assert done.text.count('\n') == page.count('\n') and 'b3BlbnNzaC1rZXk' not in done.text
    assert done.text.startswith('a\n[REDACTED:private_key]') and done.text.endswith('\nz\n')


HOSTILE = [
    'a',
    '_',
    'Zm9vYmFy',
    '漢',
    '-',
    '"',
    '-----BEGIN ',
    'eyJ',
    'password=',
    '://',
    'x:y@',
    'Bearer ',
    'sk-',
    '\\n',
    '= ',
    'AKIA',
    'mysql ',
    'htpasswd -b a ',
    'abc://d:e f',
    'WIFI:P:;',
]


def slope(work, text_of):
    "How the time of `work` grows with the size of a text: 1 is linear, 2 is quadratic; 0 where it is nothing."

    def cost(size):
        text, best = text_of(size), math.inf
        for _ in range(3):
            begin = time.process_time()
            work(text)
            best = min(best, time.process_time() - begin)
        return max(best, 1e-4)

    slopes = []
    for _ in range(4):  # another process may steal the time of one measurement, never of all
        small, large = cost(25_000), cost(200_000)
        slopes.append(0.0 if large < 0.05 else math.log(large / small) / math.log(8))
        if slopes[-1] <= 1.1:
            break
    return min(slopes)


@pytest.mark.parametrize('piece', HOSTILE)
def test_time_grows_linearly_on_hostile_lines(piece):
    assert slope(ALL.redact, lambda size: (piece * (size // len(piece) + 1))[:size]) <= 1.1


HOSTILE_TO_HASHES = [
    'a',
    '"',
    '/',
    '=',
    'a,',
    '漢a',
    r'\n',
    '%20',
    'a%',
    'a b ',
    'pass ',
    '$!a',
    'a.b/',
    '((a)). ',
    'x ',
    '"=',
    'pw= (',
    ': a|',
    '-p/',
    '\x1b[1m',
]


@pytest.mark.parametrize('piece', [*HOSTILE_TO_HASHES, 'different words', 'different marks'])
def test_time_grows_linearly_on_lines_that_are_hostile_to_the_search_for_hashes(piece):
    file = HashFile('00' * 16, {bytes(32): 'x'})

    def text_of(size):
        if piece.startswith('different'):
            between = ' ' if piece.endswith('words') else '$!'
            return between.join(f'{n * 2654435761 % 2**32:08x}' for n in range(size // 10))
        return (piece * (size // len(piece) + 1))[:size]

    # a new finder each time: one that has read the line remembers it; 1.25, because memory costs more where more is used
    assert slope(lambda text: LiveSecrets(file).find(text), text_of) <= 1.25


def test_prose_passes_at_more_than_a_megabyte_a_second(tmp_path):
    text = Path(__file__).with_name('fixtures').joinpath('corpus/README.md').read_text() * 2000
    text = text[:1_000_000]
    redactor = Redactor(secret_hashes=hash_file(tmp_path / 'h', {f'n{i}': f'Passw0rd-{i}' for i in range(50)}))
    seconds = []
    for _ in range(2):
        begin = time.process_time()
        redactor.redact(text)
        seconds.append(time.process_time() - begin)
    assert min(seconds) < 1.0, seconds


def test_a_run_that_only_asks_for_the_rules_compiles_no_pattern():
    code = (
        'import re, sys\n'
        'compiled = []\n'
        'real = re._compile\n'
        're._compile = lambda pattern, flags: compiled.append(pattern) or real(pattern, flags)\n'
        'from merlin.redact import Redactor\n'
        'from merlin import assignments, hashes, shapes, values\n'
        'del compiled[:]\n'
        'Redactor().fingerprint\n'
        'lazy = [v for m in (assignments, hashes, values) for v in vars(m).values() if isinstance(v, values.Lazy)]\n'
        'print(len(compiled), len(lazy) > 40, any("compiled" in vars(v) for v in lazy), "re2" in sys.modules)\n'
    )
    done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ['0', 'True', 'False', 'False']


def test_unknown_families_are_refused_with_the_nearest():
    assert len(FAMILIES) == 8
    with pytest.raises(ConfigError, match='key_value'):
        Redactor(disable=('key_valu',))


GOOD = f'salt {"00" * 16}\n{secret_hash("00" * 16, "Herbst-2031").hex()}\tipmi\n'


@pytest.mark.parametrize(
    'content, line',
    [
        ('', 1), (GOOD.split('\n')[1] + '\n', 1), ('salt 00\n' + GOOD.split('\n')[1] + '\n', 1), (f'salt {"00" * 16}\n', 1),
        (GOOD + 'short\tx\n', 3), (GOOD.replace('ipmi', 'ip mi'), 2), (GOOD.replace('\t', ' '), 2), (GOOD.replace('\n', '\r\n'), 1),
        ('\ufeff' + GOOD, 1), (GOOD.replace('ipmi\n', 'ipmi \n'), 2), (GOOD + GOOD.split('\n')[1].replace('ipmi', 'other') + '\n', 3),
        (GOOD.replace('salt ' + '00' * 16, 'salt ' + 'AA' * 16), 1), (GOOD + '\n\n', 3),
    ],
)  # fmt: skip
def test_a_malformed_hash_file_is_refused_by_line_and_never_quoted(tmp_path, content, line):
    path = tmp_path / 'hashes'
    path.write_text(content, newline='')
    path.chmod(0o600)
    with pytest.raises(RefusedError) as refused:
        Redactor(secret_hashes=path)
    assert f'hashes:{line}' in str(refused.value)
    assert 'ipmi' not in str(refused.value) and GOOD.split('\n')[1][:12] not in str(refused.value)


def test_a_file_of_the_maker_that_was_cut_off_or_changed_is_refused_and_another_is_taken_with_a_note(tmp_path):
    source, path = tmp_path / 'in', tmp_path / 'hashes'
    source.write_text('ipmi=Herbst-2031\ndoor=Winter-2032\n')
    assert secrets_main(['hash', str(source), '--out', str(path)]) == 0
    assert Redactor(secret_hashes=path).notes == []
    lines = path.read_text().splitlines(keepends=True)
    assert len(lines) > 8
    more = f'{"ab" * 32}\tipmi\n'
    broken = [lines[:n] for n in range(len(lines))] + [lines[:n] + lines[n + 1 :] for n in range(2, len(lines))]
    for content in (
        *broken,
        [*lines, more],
        [*lines[:2], lines[3], lines[2], *lines[4:]],
        [*lines[:-1], lines[-1][:-1]],
    ):
        path.write_text(''.join(content))
        with pytest.raises(RefusedError, match='hashes:[12]'):
            Redactor(secret_hashes=path)
    path.write_text(lines[0] + ''.join(lines[2:]))  # as somebody's own script would make it
    assert 'cut off' in Redactor(secret_hashes=path).notes[0]
    path.write_text(GOOD)
    assert Redactor(secret_hashes=path).redact('it is Herbst-2031').counts == {'ipmi': 1}


def test_a_hash_file_that_others_can_read_or_that_is_a_link_is_refused(tmp_path):
    path = tmp_path / 'hashes'
    path.write_text(GOOD)
    path.chmod(0o644)
    with pytest.raises(RefusedError, match='chmod'):
        Redactor(secret_hashes=path)
    path.chmod(0o600)
    assert Redactor(secret_hashes=path).redact('it is Herbst-2031!').counts == {'ipmi': 1}
    (tmp_path / 'link').symlink_to(path)
    for wrong in (tmp_path / 'link', tmp_path, tmp_path / 'missing', ''):
        with pytest.raises(RefusedError):
            Redactor(secret_hashes=wrong)
    if os.geteuid() == 0:
        os.chown(path, 12345, 12345)
        with pytest.raises(RefusedError, match='another user'):
            Redactor(secret_hashes=path)


def test_a_live_secret_is_found_in_any_dress(tmp_path):
    redactor = Redactor(secret_hashes=hash_file(tmp_path / 'h', {'nas': 'Drache-99', 'pad': 'QWxhZGRpbg4w=='}))
    for text in ('Drache-99', '"Drache-99"', 'user:Drache-99@host', '?k=Drache-99&x', '**Drache-99**', '/hooks/Drache-99/x',
                 'Drache-99.', '“Drache-99”', '密码：Drache-99。', 'x=QWxhZGRpbg4w==', '(Drache-99)', 'Drache-99,Drache-99'):  # fmt: skip
        done = redactor.redact(text).text
        assert 'Drache-99' not in done and 'QWxh' not in done, text
    assert redactor.redact('Drache-990 xDrache-99x').text == 'Drache-990 xDrache-99x'


def test_a_secret_that_stands_in_brackets_like_our_own_goes_all_the_same(tmp_path):
    redactor = Redactor(secret_hashes=hash_file(tmp_path / 'h', {'nas': 'Drache-99', 'odd-77x': 'odd-77x'}))
    for secret in ('Drache-99', 'ghp_' + 'aB3' * 12, example(SHAPES[5])[0]):
        once = redactor.redact(f'[REDACTED:{secret}] and [REDACTED:gone-since]')
        assert secret not in once.text and once.text.endswith('[REDACTED:gone-since]')
        assert redactor.redact(once.text) == Redacted(once.text, {})
    assert redactor.redact('x odd-77x').text == 'x [REDACTED:odd-77x]'


def test_a_text_read_before_gives_the_same_and_a_clean_chunk_beside_a_secret_is_not_read_again(tmp_path, monkeypatch):
    redactor = Redactor(FAMILIES, hash_file(tmp_path / 'h', {'nas': 'Drache-99'}))
    page = 'ask https://a.example/x?k=Drache-99&page=2 and the a-b-c of it'
    once = redactor.redact(page)
    assert once.counts == {'nas': 1} and redactor.redact(page) == once
    read = []
    monkeypatch.setattr('merlin.hashes.candidates', lambda chunks: read.extend(chunks) or set())
    redactor.redact(page)
    assert read == ['https://a.example/x?k=Drache-99&page=2']


def test_the_fingerprint_changes_with_rules_and_hashes_and_with_nothing_else(tmp_path):
    one, same = hash_file(tmp_path / 'one', {'a': 'Herbst-2031'}), hash_file(tmp_path / 'same', {'a': 'Herbst-2031'})
    two = hash_file(tmp_path / 'two', {'a': 'Herbst-2032'})
    prints = [Redactor().fingerprint, PLAIN.fingerprint, Redactor((), one).fingerprint, Redactor((), two).fingerprint]
    assert len(set(prints)) == 4
    assert Redactor((), one).fingerprint == Redactor((), same).fingerprint


def test_the_hash_maker_shows_no_value_and_makes_what_the_redactor_takes(tmp_path, capsys):
    source, out = tmp_path / 'in', tmp_path / 'out'
    value = 'Sommernacht&traum-7'
    source.write_text(f'wifi={value}\n')
    assert secrets_main(['hash', str(source), '--out', str(out)]) == 0
    assert out.stat().st_mode & 0o777 == 0o600
    redactor = Redactor(secret_hashes=out)
    for form in (value, 'Sommernacht%26traum-7', base64.b64encode(value.encode()).decode()):
        assert redactor.redact(f'is {form} there').text == 'is [REDACTED:wifi] there'
    source.write_text(f'wifi={value} \n')
    assert secrets_main(['hash', str(source), '--out', str(out)]) == 0
    assert value not in Redactor(secret_hashes=out).redact(f'is {value}, pasted with a blank').text
    source.write_text('wifi=admin\n')
    before = out.read_text()
    assert secrets_main(['hash', str(source), '--out', str(out)]) == 2
    said = capsys.readouterr()
    assert value not in said.out + said.err and 'admin' not in said.err and out.read_text() == before
