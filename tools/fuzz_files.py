"""Fuzzing what reads files and the output of git: layouts, case files, hash files, connection strings, listings."""

import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from fuzz_parts import ODD, Target, any_text, broken, glued, mutated, odd, one_line, paths, refused, sentence, word
from hypothesis import strategies as st

from merlin.cases import load_cases
from merlin.config import VARIABLES, load_config
from merlin.dsn import one_line as dsn_line
from merlin.dsn import parse_dsn, without_secrets
from merlin.errors import ConfigError, printable
from merlin.git import Output
from merlin.gitrepo import GitRepo, last_commits, read_tree
from merlin.globs import Globs
from merlin.hashes import LiveSecrets, parse_hash_file
from merlin.layout import SHIPPED, expand, read_layout
from merlin.redact import Redactor
from merlin.secrets import forms, hash_file, read_entries

EXAMPLE = (Path(__file__).resolve().parents[1] / 'merlin.example.toml').read_text(encoding='utf-8')


@contextmanager
def folder() -> Iterator[Path]:
    "A folder for the file that is read."
    with tempfile.TemporaryDirectory(prefix='merlin-fuzz-') as name:
        yield Path(name)


# ---- layouts

TOML = (
    'true|1|-1|0|1e400|-0.0|nan|inf|-inf|0x|0xff|1_0|1e5|""|"a"|[]|[1]|["a"]|[["a"]]|[""]|{}|{ a = 1 }|2030-01-31|12:00:00|"""|'
    "'''|\"\\u0000\"|\"\\ud800\"|\"~x\"|\"~\"|\"**\"|\"[a\"|\"[z-a]\"|\"!x\"|\"a**\"|\"[!]]*/?.md\"|\"(?i)x\"|\"(a\"|\"(?=a)\"|\"a{1,1001}\"|\"\\\\C\"|"
    '[{ glob = "**", type = "page" }]|[{ glob = "[", type = "page" }]|[{ glob = "a" }]|["host", "journal"]|"host"|"é"|"\\t"'
).split('|') + ['9' * 30, '9' * 400, '9' * 5000, '0x' + 'f' * 5000, '[' * 300 + ']' * 300, '"' + '*/' * 300 + '*"', '"' + 'x' * 5000 + '"',
                '"' + '(' * 900 + ')' * 900 + '"', '"(?:' + 'a|' * 3000 + 'a)"', '"[' + 'é-ü' * 40 + ']"']  # fmt: skip
LINES = (
    '[layout]|[search]|[[repos]]|[repos]|[boost]|[weights]|[stale]|[redact]|[chunk]|[recency]|[layout.rules]|[x]|[[layout]]|name = "a"|dir = "."|'
    'dir = "~nobody-here/x"|name = ".."|rules = []|skip = ["**"]|page = 2|nothing = 1|heading = ""|lead = "x*"|factor = 2|secret_hashes = ""|'
    'secret_hashes = "h"|disable = ["jwt"]|disable = ["x"]|max_tokens = 50|text_config = "x; drop"|vector = 0|fulltext = 0|rrf_k = 1.5|= 1|x|a.b = 1'
).split('|')
pieces = st.one_of(
    st.sampled_from(TOML),
    st.sampled_from(TOML),
    st.sampled_from(LINES),
    odd,
    glued,
    st.floats().map(str),
    st.integers().map(str),
)
layouts = mutated(st.sampled_from([EXAMPLE, SHIPPED.read_text(encoding='utf-8')]), pieces)
made = st.lists(st.one_of(st.sampled_from(LINES), st.builds('{} = {}'.format, word, pieces)), max_size=8).map('\n'.join)


def layout_holds(text: str, tail: bytes, names: list[str], lab: Path) -> None:
    "A layout, or one line that says which file and what to do."
    file = lab / 'merlin.toml'
    file.write_bytes(text.encode('utf-8', 'surrogatepass') + tail)
    try:
        found = refused(read_layout, file, {'HOME': str(lab)}, codes=(2, 3))
    except ConfigError as error:
        raise AssertionError(str(error)) from None
    if found is None:
        return
    assert len(found.layout_fingerprint) == 64
    known = {rule.type for rule in found.layout.rules}
    for name in names:
        assert found.layout.type_of(name) in known | {None}
    for pattern in (found.stale.heading, found.stale.lead):
        assert pattern is None or not pattern.search('')
    for warning in found.warnings:
        one_line(warning)
    refused(Redactor, found.redact.disable)


def glob_holds(glob: str, names: list[str]) -> None:
    "A glob that is taken matches without a word, and one that is not is refused in a line."
    from merlin.globs import translate

    if refused(translate, glob, 'here') is None:
        return
    for name in names:
        assert Globs((glob,)).first(name) in (0, None)
        assert Globs(('*/' * 200 + 'x', glob)).first(name) in (0, 1, None)
    if not any(c in glob for c in '*?['):
        assert Globs((glob,)).first(glob) == 0


GLOBS = st.one_of(
    st.lists(st.sampled_from(['*', '**', '?', '/', 'a', '.md', '[a-z]', '[!a]', '[]]', '[', ']', '[^/]', '[/]', '-', '{a}', '.', '..', '\\', 'é', '💥', '[é-ü]', '[!-~]']),
             max_size=8).map(''.join), glued, sentence,
)  # fmt: skip

# ---- cases

CASES = """cases:
- q: how do I restore the disk of alpha?
  expect: &a
  - path: runbooks/restore.md
    heading: Restore
  kind: words
- q: what is beta?
  holdout: true
  expect: [{path: hosts/beta.md}]
- {q: nothing of it, expect: []}
"""
CASE_PARTS = (
    '*a|*b|&a|<<: *a|- q: x|- q:|  expect: []|  expect: *a|  expect: {}|null|~|!!int x|!!binary aGk=|!!set {a}|? a|? [a]|"\\0"|"\\ud800"|"\\x85"|'
    '[|]|{|}|---|...|%YAML 9|cases: []|cases:|# x|: |\t|- - - - - - - - - - - -|q: q: q|holdout: maybe|kind: [a]|2030-01-31|.inf|0x'
).split('|')
cases = st.one_of(
    mutated(st.just(CASES), st.one_of(st.sampled_from(CASE_PARTS), st.sampled_from(CASE_PARTS), glued, odd)),
    st.lists(st.sampled_from(CASE_PARTS), max_size=8).map('\n'.join), any_text,
)  # fmt: skip


def cases_hold(data: bytes, lab: Path) -> None:
    "Cases, or one line that says where."
    file = lab / 'cases.yaml'
    file.write_bytes(data)
    for case in refused(load_cases, file) or ():
        assert case.q.strip() and '\0' not in case.q and case.line > 0
        case.q.encode()
        assert all(a.path and '\0' not in a.path + a.heading and (a.path + a.heading).encode() for a in case.expect)


# ---- hash files and their making

ROW = '0' * 64 + '\tname'
HASHES = f'salt {"00" * 16}\n{"ab" * 32}\tipmi\n{"cd" * 32}\tnas\n'
hash_lines = st.sampled_from(
    [
        ROW,
        ROW.upper(),
        ROW + ' ',
        ROW[1:],
        ROW + '\tx',
        '',
        ' ',
        'salt ' + '00' * 16,
        'salt 00',
        '#',
        ROW[:-4] + 'ä',
        ROW[:64],
    ]
)
VALUES = st.one_of(
    glued,
    sentence,
    st.text(max_size=30),
    st.sampled_from(['Sommernacht&traum-7', 'pässwörd <x>', "it's \"so\"", '漢字漢字-1', 'a b c d']),
)


def hashes_hold(data: bytes, names: list[str], value: str, around: tuple[str, str]) -> None:
    "A hash file or a refusal that quotes nothing; what is hashed is found again, in each of its forms."
    try:
        assert parse_hash_file(data, 'h').names
    except Exception as error:
        assert getattr(error, 'exit_code', 0) == 3, repr(error)
        one_line(str(error))
        assert not any(part in str(error) for part in data.decode('utf-8', 'replace').split() if len(part) > 30)
    text = ''.join(f'{n}={v}\n' for n, v in zip(names, [value, 'x' + value], strict=False))
    for name, entry in refused(read_entries, text, 'in') or ():
        assert 0 < len(name) <= 64 and entry
    whole = around == ('', '') and value.isprintable() and len(value.split()) == 1
    value = value if whole else value.strip()
    joined = re.fullmatch(r'[A-Za-z0-9]+([._&$-][A-Za-z0-9]+){0,5}', value)
    if len(value.strip()) < 4 or not any(map(str.isalnum, value)) or not (whole or joined):
        return
    found = LiveSecrets(parse_hash_file(hash_file([('nas', value)], '5a' * 16).encode(), 'h'))
    for form in forms(value) if whole else (value,):
        assert found.find(around[0] + form.strip() + around[1]), f'{form!r} is not found as a form of {value!r}'


# ---- connection strings

SECRET = 'Zq9xK2vW'
DSN = st.lists(
    st.one_of(
        st.sampled_from(['postgresql://', 'postgres://', 'mysql://', '://', 'user', ':', f':{SECRET}@', '@', 'host', ':5432', '/', 'db', '?', 'sslmode=require', '&',
                         f'password={SECRET}', ' ', 'host=', 'port=', '5432', '99999', 'x', '%', '%40', '%zz', '%ff', "'", '"', '\\', '[::1]', '[', '=', '\0', 'dbname=x',
                         f" password='{SECRET} x'", 'service=x', 'options=-c a=b', 'hostaddr=1', ',']), odd, st.text(max_size=2),
    ), max_size=9,
).map(''.join)  # fmt: skip


def dsn_holds(url: str) -> None:
    "Parts, or a refusal without the password."
    try:
        parts = parse_dsn(url)
    except ConfigError as error:
        one_line(str(error))
        assert SECRET not in str(error), 'the refusal tells the password'
        return
    told = without_secrets(parts)
    passwords = [v for k, v in parts.items() if 'password' in k]
    assert not any(p and len(p) > 5 and p in told for p in passwords) or SECRET not in told, 'the password is told'
    assert '\n' not in dsn_line(f'x {url} y', passwords)


# ---- settings

SETTINGS = st.dictionaries(
    st.sampled_from([*VARIABLES, 'XDG_DATA_HOME', 'OPENAI_API_KEY', 'MERLIN_X', 'EMBED_', 'HOME']),
    st.one_of(
        st.sampled_from(['1', '0', '-1', '1e400', 'nan', '9' * 400, '9' * 5000, '0x10', '٣', '1_0', 'yes', 'true', '.', '/', '~', '~nobody-here/x', '/dev/null', 'local',
                         'tei', 'openai', 'http://h', 'http://', 'https://u:p@h:99999/x', 'http://[::1', 'ftp://x', 'http://é.example/', 'public', 'pg_x', 'a"b', SECRET]),
        DSN, glued, odd, st.floats().map(str), st.integers().map(str),
    ).map(lambda text: text.replace('\0', '')),  # no environment holds one
    max_size=5,
)  # fmt: skip


def settings_hold(env: dict[str, str], lab: Path) -> None:
    "A configuration, or a refusal in one line, whatever the environment says."
    found = refused(load_config, {'HOME': str(lab), 'MERLIN_HOME': str(lab), **env}, codes=(2, 3))
    for warning in found.warnings if found else ():
        assert '\n' not in printable(warning) and SECRET not in warning


# ---- git

MODES = [b'100644', b'100755', b'120000', b'160000', b'040000', b'000000', b'', b'1']
SHA = st.sampled_from([b'a' * 40, b'0' * 40, b'f' * 64, b'', b'zz'])
raw_paths = st.one_of(
    paths.map(lambda p: p.encode('utf-8', 'surrogatepass')),
    st.binary(max_size=12),
    st.sampled_from([b'a\xff.md', b'a\tb.md', b'a\nb.md', b'', b' ', b'\xff']),
)
tree_items = st.builds(lambda mode, kind, sha, path: b'%s %s %s\t%s\0' % (mode, kind, sha, path), st.sampled_from(MODES), st.sampled_from([b'blob', b'commit', b'tree', b'']),
                       SHA, raw_paths)  # fmt: skip
diff_items = st.builds(lambda a, b, sha, kind, path: b':%s %s %s %s %s\0%s\0' % (a, b, sha, sha, kind, path), st.sampled_from(MODES), st.sampled_from(MODES), SHA,
                       st.sampled_from([b'A', b'M', b'D', b'T', b'']), raw_paths)  # fmt: skip
log_items = st.one_of(
    st.integers(-(10**12), 10**12).map(lambda n: b'\0%d\0' % n),
    st.builds(
        lambda kind, path: b'\n%s\0%s\0' % (kind, path),
        st.sampled_from([b'A', b'M', b'MM', b'D', b'', b'1']),
        raw_paths,
    ),
)


def listings(items: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    "What git says, mostly; some of it cut off, or with bytes of another sort in it."
    whole = st.lists(items, max_size=5).map(b''.join)
    cut = st.builds(
        lambda data, at, more: data[: at % (len(data) + 1)] + more,
        whole,
        st.integers(0, 999),
        st.one_of(st.just(b''), st.binary(max_size=9)),
    )
    return st.one_of(whole, whole, cut, st.binary(max_size=60))


def sane(path: str) -> None:
    "Assert that a path is text that git gave as UTF-8."
    path.encode()


def git_holds(tree: bytes, diff: bytes, log: bytes) -> None:
    "Entries and warnings, or a refusal; never another exception, whatever git says."
    for entry in (refused(read_tree, tree, lambda p: p, codes=(1, 2)) or ([], []))[0]:
        sane(entry.path)
    for warning in (refused(read_tree, tree, lambda p: p, codes=(1, 2)) or ([], []))[1]:
        one_line(str(warning))
    repo = GitRepo(Path('/nowhere'), '')
    repo._git = Said(diff)
    entries, _, touched = refused(repo.changes, 'a' * 40, 'b' * 40, codes=(1, 2)) or ([], [], set())
    assert {e.path for e in entries} <= touched
    reading, writing = os.pipe()
    with os.fdopen(reading, 'rb', buffering=0) as source:
        os.write(writing, log[:60_000])
        os.close(writing)
        try:
            dates = last_commits(Output(source, 1.0))
        except EOFError:  # what `stream` turns into the refusal of a git that ended too early
            return
    assert all(isinstance(stamp, int) and isinstance(path, str) for path, stamp in dates.items())


class Said:
    "A git that says these bytes."

    def __init__(self, out: bytes):
        self.out, self.dir = out, Path('/nowhere')

    def run(self, *args: str, **named: object) -> tuple[int, bytes]:
        return 0, self.out


def expand_holds(text: str, lab: Path) -> None:
    "A path, or a refusal."
    text = ''.join(c for c in text if c >= ' ' and c != '\x7f')  # as the layout and the environment take it
    found = refused(expand, text, lab, {'HOME': str(lab)})
    assert found is None or found.is_absolute()


ready: Callable[[], contextmanager] = folder
FILES: Mapping[str, Target] = {
    'layout': Target(
        'any text as a layout is taken, or refused in one line', layout_holds,
        {'text': st.one_of(layouts, layouts, made, any_text), 'tail': st.sampled_from([b'', b'', b'', b'\xff', b'\0']), 'names': st.lists(paths, max_size=3)}, 25, folder,
    ),
    'globs': Target('a glob that is taken can be matched', glob_holds, {'glob': GLOBS, 'names': st.lists(paths, max_size=3)}, 30),
    'expand': Target('any text is a path, or refused', expand_holds, {'text': st.one_of(glued, st.builds('~{}'.format, glued), st.sampled_from(ODD))}, 30, folder),
    'cases': Target('any bytes are cases, or refused with the line', cases_hold, {'data': broken(cases)}, 40, folder),
    'hashfile': Target(
        'a hash file or a refusal that quotes nothing; what is hashed is found', hashes_hold,
        {'data': broken(st.one_of(mutated(st.just(HASHES), hash_lines), st.lists(hash_lines, max_size=4).map('\n'.join))),
         'names': st.lists(st.sampled_from(['wifi', 'a b', '', 'x' * 65, '#c']), max_size=2), 'value': VALUES,
         'around': st.sampled_from([('', ''), ('"', '"'), ('x=', ' '), ('(', ')'), ('is ', ', ok'), ('`', '`')])}, 40,
    ),
    'dsn': Target('any text is a connection string, or refused without its password', dsn_holds, {'url': DSN}, 50),
    'settings': Target('any environment is a configuration, or refused in one line', settings_hold, {'env': SETTINGS}, 30, folder),
    'git': Target('any bytes of git are entries, or a refusal', git_holds, {'tree': listings(tree_items), 'diff': listings(diff_items), 'log': listings(log_items)}, 25),
}  # fmt: skip
