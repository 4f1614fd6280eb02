"Layout file and environment: what is read, from where, and how a slip is told."

import os
import re
import stat
import subprocess
import sys
import time
from dataclasses import fields, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from merlin import config as config_module
from merlin.config import Config, RepoConfig, database_config, embed_config, load_config, shown_url, write_layout
from merlin.errors import ConfigError, MerlinError, RefusedError
from merlin.globs import Globs
from merlin.layout import BY_TYPE, KEYS, SHIPPED, read_layout

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / 'merlin.example.toml'


@pytest.fixture
def home(tmp_path) -> Path:
    "A MERLIN_HOME."
    where = tmp_path / 'home'
    where.mkdir()
    return where


def load(home: Path, text: str | bytes | None = None, **env: str) -> Config:
    "The configuration with this layout file."
    if text is not None:
        (home / 'merlin.toml').write_bytes(text if isinstance(text, bytes) else text.encode())
    return load_config({'MERLIN_HOME': str(home), **env})


# ---- the shipped layout and its documentation


def test_the_example_is_the_shipped_file():
    assert EXAMPLE.read_bytes() == SHIPPED.read_bytes()


def test_the_example_loads_and_changes_nothing(home):
    shipped, example = load(home), load(home, EXAMPLE.read_bytes())
    assert example.source == home / 'merlin.toml' and shipped.source is None
    assert replace(example, source=None) == shipped and shipped.warnings == ()


def test_the_example_shows_every_key_with_a_sentence(home):
    text = EXAMPLE.read_text()
    for table, keys in {**KEYS, **{table: {} for table in BY_TYPE}}.items():
        section = re.search(rf'^\[{table}\]\n(.*?)(?=^\[|\Z)', text, re.M | re.S)
        assert section, table
        assert '\n#' in '\n' + section[1], f'[{table}] has no sentence'
        for key in keys:
            assert re.search(rf'^(# )?{key} = ', section[1], re.M), f'{table}.{key}'
    shown = re.sub(r'^# (\[\[repos\]\]|name = |dir = |secret_hashes = )', r'\1', text, flags=re.M)
    assert shown != text
    everything = load(home, shown)
    assert everything.repos == (RepoConfig('notes', Path('/srv/merlin/git/notes.git')),)
    assert everything.redact.secret_hashes == '/etc/merlin/secret-hashes'


def test_the_shipped_numbers(home):
    config = load(home)
    high = {t: config.boost[t] for t in ('host', 'runbook', 'memory')}
    assert set(high.values()) == {1.3} and config.boost['journal'] == config.boost['page'] == 1.0
    assert [config.boost[t] for t in ('planning', 'doc', 'skill', 'memory-index')] == [0.9, 0.8, 0.7, 0.6]
    assert (config.recency.weight, config.recency.half_life_days, config.stale.factor) == (0.05, 30, 0.5)
    assert config.stale.inherit == () and config.search.per_document and config.search.rrf_k == 60
    assert (config.search.vector, config.search.fulltext, config.search.bm25) == (1, 1, 1)
    assert (config.search.margin, config.search.margin_width, config.search.gap_points) == (5, 6, 30)
    assert config.search.text_config == 'english'
    assert config.chunk.max_tokens == 1500 and config.redact.disable == () and config.redact.secret_hashes is None
    assert config.layout.host_types == ('host',) and config.layout.filename_date_types == ('journal',)
    assert config.layout.history_types == ('journal', 'host')
    assert sum(len(line) for line in config.weights.values()) < 1000


@pytest.mark.parametrize(
    ('line', 'marks'),
    [
        ('(superseded 2030-01-15: see § New plan)', True),
        ('  **Superseded** by the new plan', True),
        ('> *(obsolete)*', True),
        ('“Obsolete”: use the other', True),
        ('OBSOLETE', True),
        ('~~superseded~~', True),
        ('superseded：見', True),
        ('The plan was superseded', False),
        ('- superseded: a list item', False),
        ('* obsolete things', False),
        ('supersededness', False),
        ('', False),
    ],
)
def test_what_marks_a_section_as_superseded(home, line, marks):
    assert bool(load(home).stale.lead.match(line)) is marks


# ---- where it is looked for


def test_the_working_folder_never_configures_merlin(home, tmp_path, monkeypatch):
    project = tmp_path / 'project'
    project.mkdir()
    for name in ('merlin.toml', '.merlin.toml', 'merlin.example.toml'):
        (project / name).write_text('[boost]\nhost = 9\n')
    monkeypatch.chdir(project)
    config = load(home)
    assert config.source is None and config.boost['host'] == 1.3


def test_merlin_config_wins_and_must_exist(home, tmp_path):
    other = tmp_path / 'other.toml'
    other.write_text('[boost]\nhost = 2\n')
    config = load(home, '[boost]\nhost = 3\n', MERLIN_CONFIG=str(other))
    assert config.source == other and config.boost == {'host': 2.0}
    assert load(home, MERLIN_CONFIG=' ').boost == {'host': 3.0}
    for nowhere in (tmp_path / 'gone.toml', tmp_path):
        with pytest.raises(ConfigError, match='MERLIN_CONFIG') as caught:
            load(home, MERLIN_CONFIG=str(nowhere))
        assert str(nowhere) in str(caught.value)


def test_a_layout_file_that_is_there_and_cannot_be_read_is_never_passed_over(home):
    (home / 'merlin.toml').symlink_to(home / 'gone')
    with pytest.raises(ConfigError, match='cannot be read'):
        load(home)
    (home / 'merlin.toml').unlink()
    (home / 'merlin.toml').mkdir()
    with pytest.raises(ConfigError, match='cannot be read'):
        load(home)


def test_relative_folders_stand_beside_the_file_and_tilde_is_home(home):
    text = '[[repos]]\nname = "a"\ndir = "git/a.git"\n[[repos]]\nname = "b"\ndir = "~/b"\n[redact]\nsecret_hashes = "hashes"\n'
    config = load(home, text, HOME='/home/ann')
    assert [r.dir for r in config.repos] == [home / 'git/a.git', Path('/home/ann/b')]
    assert config.redact.secret_hashes == str(home / 'hashes')


# ---- slips in the layout file

SLIPS = {
    'layuot = 1': ('layuot: unknown key', "did you mean 'layout'?"),
    '[serach]\nrrf_k = 1': ('serach: unknown key', "did you mean 'search'?"),
    '[search]\nrrfk = 1': ('search.rrfk: unknown key', "did you mean 'rrf_k'?"),
    '[search]\nrrf_k = 60.0': ('search.rrf_k', '60.0 where a whole number belongs'),
    '[search]\nrrf_k = true': ('search.rrf_k', 'true or false where a whole number'),
    '[search]\nrrf_k = 0': ('search.rrf_k', 'out of range; 1 to 1000'),
    '[search]\nvector = -1': ('search.vector', 'out of range'),
    '[search]\nvector = inf': ('search.vector', 'out of range'),
    '[search]\nvector = 0\nfulltext = 0': ('search', 'vector and fulltext weigh 0'),
    '[search]\nper_document = 1': ('search.per_document', 'a number where true or false belongs'),
    "[search]\ntext_config = \"english'; drop\"": ('search.text_config', 'is not the name of'),
    '[recency]\nweight = "0.1"': ('recency.weight', 'text where a number belongs'),
    '[recency]\nhalf_life_days = 0': ('recency.half_life_days', 'out of range'),
    '[stale]\nfactor = 1.5': ('stale.factor', 'out of range; 0 to 1'),
    '[stale]\nheading = "(old"': ('stale.heading', 'regex refused: missing )'),
    "[stale]\nlead = '(?=x)y'": ('stale.lead', 'no look-around'),
    "[stale]\nlead = '(a)\\1'": ('stale.lead', 'regex refused'),
    "[stale]\nlead = '(x{999}){999}'": ('stale.lead', 'regex refused'),
    '[stale]\nheading = "old|"': ('stale.heading', 'matches empty text'),
    '[stale]\nheading = ["old"]': ('stale.heading', 'a list where text belongs'),
    '[stale]\ninherit = ["jurnal"]': ('stale.inherit', "no rule gives the type 'jurnal'; did you mean 'journal'?"),
    '[stale]\ninherit = "journal"': ('stale.inherit', 'text where a list belongs'),
    '[boost]\nhots = 1.2': ('boost', "no rule gives the type 'hots'; did you mean 'host'?"),
    '[boost]\nhost = 99': ('boost.host', 'out of range; 0 to 10'),
    '[boost]\nhost = nan': ('boost.host', 'out of range'),
    f'[boost]\nhost = {"9" * 400}': ('boost.host', 'a number of that size is out of range'),
    f'[chunk]\nmax_tokens = 0x{"f" * 5000}': ('chunk.max_tokens', 'a number of that size is out of range'),
    f'[search]\nrrf_k = {"9" * 5000}': ('merlin.toml', 'a number with thousands of digits'),
    '[weights]\nhots = "x"': ('weights', "no rule gives the type 'hots'"),
    '[weights]\nhost = """a\nb"""': ('weights.host', 'is not one line'),
    '[weights]\nhost = 1': ('weights.host', 'a number where text belongs'),
    '[layout]\nhost_types = ["hots"]': ('layout.host_types', "did you mean 'host'?"),
    '[layout]\nhistory_types = ["daily"]': ('layout.history_types', 'no rule gives the type'),
    '[layout]\nskip = ["/a"]': ('layout.skip[0]', 'starts with /'),
    '[layout]\nskip = ["[z-a]"]': ('layout.skip[0]', 'runs backwards'),
    '[layout]\nrules = []': ('layout.rules', 'no rule'),
    '[layout]\nrules = [{glob = "*.md", type = "a b"}]': ('layout.rules[0].type', 'is not a type name'),
    '[layout]\nrules = [{glob = "*.md", type = "a"}, {glob = "x"}]': ('layout.rules[1].type', 'missing'),
    '[layout]\nrules = [{glob = "*.md", typ = "a"}]': ('layout.rules[0].typ', "did you mean 'type'?"),
    '[layout]\nrules = {glob = "*.md"}': ('layout.rules', 'a table where a list belongs'),
    '[layout]\nrules = ["*.md"]': ('layout.rules[0]', 'text where a table belongs'),
    '[redact]\ndisable = ["hex 32"]': ('redact.disable[0]', 'is not the name of a pattern family'),
    '[redact]\nsecret_hash = "x"': ('redact.secret_hash', "did you mean 'secret_hashes'?"),
    '[chunk]\nmax_tokens = 1': ('chunk.max_tokens', 'out of range'),
    '[chunk]\nmax_tokens = 2030-01-15': ('chunk.max_tokens', 'a date or time where'),
    '[repos]\ndir = "/a"': ('repos', 'write [[repos]]'),
    '[[repos]]\nname = "a"': ('repos[0].dir', 'missing'),
    '[[repos]]\nname = "a/b"\ndir = "/a"': ('repos[0].name', "'a/b' is not a repo name"),
    '[[repos]]\nname = ""\ndir = "/a"': ('repos[0].name', 'is not a repo name'),
    '[[repos]]\nname = "-a"\ndir = "/a"': ('repos[0].name', 'is not a repo name'),
    '[[repos]]\nname = "a"\ndir = "-a"': ('repos[0].dir', 'is not the path'),
    '[[repos]]\nname = "a"\ndir = ""': ('repos[0].dir', 'is not the path'),
    '[[repos]]\nname = "a"\ndir = "/a\\u0000"': ('repos[0].dir', 'is not the path'),
    '[[repos]]\nname = "a"\ndir = "/a"\nbranch = "x"': ('repos[0].branch', 'unknown key'),
    '[[repos]]\nname = "a"\ndir = "/a"\n[[repos]]\nname = "a"\ndir = "/b"': ('repos[1].name', 'taken'),
    '[[repos]]\nname = "a"\ndir = "/a"\n[[repos]]\nname = "b"\ndir = "/a"': ('repos[1].dir', 'listed twice'),
    '[[repos]]\nname = "a"\ndir = "/a"\n[[repos]]\ndir = "/b"': ('repos[1].name', 'missing'),
    'a = 1\n\n[boost\n': ('merlin.toml:3', 'not TOML'),
    '[boost]\nhost = 1\nhost = 2': ('merlin.toml:3', 'not TOML'),
    '[boost]\nhost = "': ('merlin.toml', 'not TOML'),
    'x = ' + '[' * 100_000: ('merlin.toml', 'nested too deeply'),
}


@pytest.mark.parametrize('text', SLIPS, ids=lambda text: text[:40].replace('\n', ' '))
def test_a_slip_is_told_with_file_key_and_next_step(home, text, capfd):
    begin = time.monotonic()
    with pytest.raises(ConfigError) as caught:
        load(home, text)
    message = str(caught.value)
    assert message.startswith(str(home / 'merlin.toml')) and '\n' not in message and len(message) < 500
    for part in SLIPS[text]:
        assert part in message
    assert time.monotonic() - begin < 3
    assert capfd.readouterr() == ('', '')  # re2 prints its own complaints unless told not to


def test_a_file_that_is_not_utf_8_is_told_with_its_line(home):
    with pytest.raises(ConfigError, match=r'merlin.toml:2: not UTF-8'):
        load(home, b'# caf\xc3\xa9\n# caf\xe9\n')


def test_bom_crlf_and_an_empty_file_are_fine(home):
    assert load(home, b'\xef\xbb\xbf[boost]\r\nhost = 2\r\n').boost == {'host': 2.0}
    assert load(home, '').boost == load_config({'MERLIN_HOME': str(home / 'none')}).boost


def test_own_rules_need_no_other_table(home):
    config = load(home, '[layout]\nrules = [{ glob = "**/*.md", type = "note" }]\n')
    assert config.layout.type_of('a/b.md') == 'note' and config.layout.type_of('a/_template.md') is None
    assert config.layout.host_types == config.layout.history_types == config.layout.filename_date_types == ()
    assert dict(config.boost) == dict(config.weights) == {}


def test_a_table_is_filled_up_and_boost_is_taken_as_a_whole(home):
    config = load(home, '[search]\nrrf_k = 10\n[boost]\nhost = 2\n[weights]\nhost = "mine"\n[stale]\nlead = ""\n')
    assert (config.search.rrf_k, config.search.text_config) == (10, 'english')
    assert config.boost == {'host': 2.0} and config.weights['host'] == 'mine' and 'runbook' in config.weights
    assert config.stale.lead is None and config.stale.heading is not None


def test_a_named_repo_that_no_rule_names_is_warned_of(home):
    repo = '[[repos]]\nname = "notes"\ndir = "/a"\n'
    assert 'no rule names the repo' in load(home, repo).warnings[0]
    for glob in ('notes/hosts/*.md', '*/hosts/*.md'):
        rule = f'[layout]\nrules = [{{ glob = "{glob}", type = "host" }}, {{ glob = "**/*.md", type = "page" }}]\n'
        assert load(home, rule + repo).warnings == ()


@pytest.mark.parametrize(
    ('text', 'changes'),
    [
        ('[layout]\nskip = []', True),
        ('[layout]\nrules = [{ glob = "**/*.md", type = "page" }]', True),
        ('[layout]\nhost_types = []', True),
        ('[layout]\nfilename_date_types = ["journal", "planning"]', True),
        ('[stale]\nheading = "old"', True),
        ('[stale]\nlead = ""', True),
        ('[chunk]\nmax_tokens = 900', True),
        ('[boost]\nhost = 2', False),
        ('[weights]\nhost = "x"', False),
        ('[stale]\nfactor = 0.1\ninherit = ["journal"]', False),
        ('[layout]\nhistory_types = ["journal"]', False),
        ('[search]\nrrf_k = 10\n[recency]\nweight = 0', False),
        ('[[repos]]\ndir = "/a"', False),
    ],
)
def test_the_fingerprint_covers_what_shapes_chunks_and_nothing_else(home, text, changes):
    shipped = load_config({'MERLIN_HOME': str(home / 'none')}).layout_fingerprint
    assert re.fullmatch('[0-9a-f]{64}', shipped)
    assert (load(home, text).layout_fingerprint != shipped) is changes


# ---- the environment


@pytest.mark.parametrize(
    ('name', 'value'),
    [
        ('MERLIN_DB_SCHEMA', 'My Schema'),
        ('MERLIN_DB_SCHEMA', 'x' * 64),
        ('MERLIN_DB_SCHEMA', 'public'),
        ('MERLIN_GRACE', 'soon'),
        ('MERLIN_MAX_AGE', '0'),
        ('MERLIN_PG_USER', 'a b'),
        ('MERLIN_ALLOW_OWNER', 'perhaps'),
        ('EMBED_PROVIDER', 'voyager'),
        ('EMBED_DIM', '3.5'),
        ('EMBED_DIM', '99999'),
        ('EMBED_BATCH', '-1'),
        ('EMBED_TIMEOUT', 'nan'),
        ('EMBED_TIMEOUT', '0'),
        ('EMBED_URL', 'embed:80'),
        ('EMBED_URL_QUERY', 'http://q'),
        ('REPO_DIR', '-x'),
        ('MERLIN_HOME', '/a\nb'),
    ],
)
def test_a_wrong_value_is_told_with_its_variable(home, name, value):
    with pytest.raises(ConfigError) as caught:
        load_config({'MERLIN_HOME': str(home), name: value})
    assert name in str(caught.value) and '\n' not in str(caught.value)


def test_a_variable_set_to_nothing_is_not_set_apart_from_the_hash_file(home):
    names = [n for n in config_module.VARIABLES if n not in ('MERLIN_HOME', 'SECRET_HASHES')]
    assert load(home, **dict.fromkeys(names, '')) == load(home)
    for empty in ('', '  '):
        with pytest.raises(RefusedError, match='SECRET_HASHES'):
            load(home, SECRET_HASHES=empty)
    with pytest.raises(RefusedError, match='secret_hashes'):
        load(home, '[redact]\nsecret_hashes = ""\n')
    assert database_config({'MERLIN_HOME': str(home), 'SECRET_HASHES': ''}).home == home  # to write the failure down


def test_the_environments_hash_file_wins(home):
    text = '[redact]\nsecret_hashes = "/a"\n'
    assert load(home, text, SECRET_HASHES='/b').redact.secret_hashes == '/b'
    assert load(home, text).redact.secret_hashes == '/a'


def test_repo_dir_counts_only_where_the_layout_names_no_repo(home, tmp_path):
    assert load(home, REPO_DIR='/a').repos == (RepoConfig('', Path('/a')),)
    assert load(home).repos == ()
    config = load(home, '[[repos]]\ndir = "/b"\n', REPO_DIR='/a')
    assert config.repos == (RepoConfig('', Path('/b')),) and 'REPO_DIR is not used' in config.warnings[0]
    assert load(home, '[[repos]]\ndir = "/b"\n', REPO_DIR='/b').warnings == ()


def test_no_secret_shows_in_a_repr_or_a_message(home):
    secret = 'hunter' + '2' * 3
    env = {
        'DATABASE_URL': f'postgresql://merlin:{secret}@db/merlin',
        'EMBED_URL': f'https://ann:{secret}@embed.example/v1',
        'EMBED_URL_QUERY': f'https://ann:{secret}@query.example/v1',
        'EMBED_API_KEY': secret,
        'OPENAI_API_KEY': secret,
    }
    config = load(home, **env)
    assert secret in config.database.url and secret in config.embed.url and config.embed.api_key == secret
    assert secret not in repr(config) and secret not in ''.join(config.warnings)
    assert shown_url(config.embed.url) == 'https://embed.example/v1'
    for name in ('EMBED_URL', 'EMBED_URL_QUERY'):
        for shape in (
            'https://ann:{}@[::1',
            'ftp://ann:{}@x',
            'https://ann:{}@',
            'ann:{}@x',
            'https://a:{}@x:99999999',
            'http://{} x@y',
        ):
            with pytest.raises(ConfigError) as caught:
                load(home, **{**env, name: shape.format(secret)})
            assert secret not in str(caught.value) and name in str(caught.value)


def test_keys_go_to_their_own_provider_only():
    keys = {'OPENAI_API_KEY': 'o', 'VOYAGE_API_KEY': 'v', 'EMBED_URL': 'http://embed'}
    got = {p: embed_config({**keys, 'EMBED_PROVIDER': p}).api_key for p in ('tei', 'openai', 'voyage')}
    assert got == {'tei': None, 'openai': 'o', 'voyage': 'v'}
    assert embed_config({**keys, 'EMBED_PROVIDER': 'voyage', 'EMBED_API_KEY': 'e'}).api_key == 'e'


def test_what_the_provider_in_force_does_not_read_is_warned_of(home):
    config = load(home, EMBED_PROVIDER='local', EMBED_URL='http://embed')
    assert config.embed.provider == 'local' and 'EMBED_URL is not used' in config.warnings[0]
    assert 'EMBED_MODEL_PATH is not used' in load(home, EMBED_URL='http://e', EMBED_MODEL_PATH='/m').warnings[0]


def test_unknown_variables_are_warned_of_and_those_of_the_tests_are_not(home):
    config = load(home, EMBED_MODLE='x', MERLIN_SCHEMA='x', MERLIN_TEST_DATABASE_URL='x', EMBEDDED='x')
    assert [w.split()[1] for w in config.warnings] == ['EMBED_MODLE', 'MERLIN_SCHEMA']


# ---- writing the layout file


def test_a_record_is_remembered_and_everything_else_stays(home):
    mine = '# mine\n[boost]   # two\nhost = 2\n\n[weights]\nhost = """[[repos]] dir = 1"""\n'
    (home / 'merlin.toml').write_text(mine)
    (home / 'merlin.toml').chmod(0o640)
    write_layout(home, Path('/srv/a "b" é'))
    text = (home / 'merlin.toml').read_text()
    assert text.startswith(mine) and load(home).repos[0].dir == Path('/srv/a "b" é')
    write_layout(home, Path('/srv/b'))
    assert (home / 'merlin.toml').read_text() == text.replace(r'/srv/a \"b\" é', '/srv/b')
    assert stat.S_IMODE((home / 'merlin.toml').stat().st_mode) == 0o640 and os.listdir(home) == ['merlin.toml']


def test_the_same_record_again_does_not_touch_the_file(home, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_layout(home, Path('notes'))
    before = (home / 'merlin.toml').stat()
    write_layout(home, Path('./notes'))
    assert (home / 'merlin.toml').stat() == before and stat.S_IMODE(before.st_mode) == 0o600
    assert load(home).repos == (RepoConfig('', tmp_path / 'notes'),)


@pytest.mark.parametrize(
    'text',
    [
        '[[repos]]\nname = "a"\ndir = "/a"\n',
        '[[repos]]\nname = "a"\ndir = "/a"\n[[repos]]\nname = "b"\ndir = "/b"\n',
        'repos = [{ dir = "/a" }]\n',
        'repos = []\n',
        'not toml',
        '[weights]\nhost = """\n[[repos]]\ndir = "/x"\n"""\n[[repos]]\n"dir" = "/a"\n',
    ],
)
def test_a_file_that_names_repos_in_another_way_is_left_alone(home, text):
    (home / 'merlin.toml').write_text(text)
    with pytest.raises(ConfigError):
        write_layout(home, Path('/srv/new'))
    assert (home / 'merlin.toml').read_text() == text and os.listdir(home) == ['merlin.toml']


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(home, monkeypatch):
    write_layout(home, Path('/a'))
    before = (home / 'merlin.toml').read_bytes()

    def full(*args):
        raise OSError(28, 'No space left on device')

    monkeypatch.setattr(os, 'replace', full)
    with pytest.raises(ConfigError, match='No space left'):
        write_layout(home, Path('/b'))
    assert (home / 'merlin.toml').read_bytes() == before and os.listdir(home) == ['merlin.toml']


def test_a_link_stays_a_link(home, tmp_path):
    (tmp_path / 'dotfiles.toml').write_text('# mine\n')
    (home / 'merlin.toml').symlink_to(tmp_path / 'dotfiles.toml')
    write_layout(home, Path('/a'))
    assert (home / 'merlin.toml').is_symlink() and 'dir = "/a"' in (tmp_path / 'dotfiles.toml').read_text()


# ---- globs against a slow reading of the same rule


def slow_match(glob: list[str], path: list[str]) -> bool:
    "The rule of the globs, tried out folder by folder."
    if not glob:
        return not path
    if glob[0] == '**' and len(glob) == 1:
        return bool(path)
    if glob[0] == '**':
        return slow_match(glob[1:], path) or (bool(path) and slow_match(glob, path[1:]))
    return bool(path) and slow_name(glob[0], path[0]) and slow_match(glob[1:], path[1:])


def slow_name(glob: str, name: str) -> bool:
    "The same within one name."
    if not glob:
        return not name
    if glob[0] == '*':
        return slow_name(glob[1:], name) or (bool(name) and slow_name(glob, name[1:]))
    if glob.startswith('[!ab]'):
        return bool(name) and name[0] not in 'ab' and slow_name(glob[5:], name[1:])
    if glob.startswith('[a-b]'):
        return bool(name) and name[0] in 'ab' and slow_name(glob[5:], name[1:])
    return bool(name) and glob[0] in ('?', name[0]) and slow_name(glob[1:], name[1:])


PIECES = st.sampled_from(['a', 'b', '.', '*', '?', '[a-b]', '[!ab]', 'é', '+', '^'])
NAMES = (
    st.lists(PIECES, min_size=1, max_size=4)
    .map(''.join)
    .filter(lambda n: '**' not in n and n not in ('.', '..') and n[0] != '^')
)
GLOBS = st.lists(st.one_of(st.just('**'), NAMES), min_size=1, max_size=4)
PATHS = st.lists(st.text('ab.é+^\n', min_size=1, max_size=4), min_size=1, max_size=4)


@settings(derandomize=True, deadline=None, max_examples=400)
@given(st.lists(GLOBS, min_size=1, max_size=3), PATHS)
def test_globs_match_what_the_rule_says(globs, path):
    expected = next((n for n, glob in enumerate(globs) if slow_match(glob, path)), None)
    assert Globs(tuple('/'.join(glob) for glob in globs)).first('/'.join(path)) == expected


def test_fifty_thousand_paths_are_typed_quickly():
    layout = read_layout(None, {}).layout
    begin = time.process_time()
    types = {layout.type_of(f'notes/{n % 100}/page-{n}.md') for n in range(50_000)}
    assert types == {'page'} and time.process_time() - begin < 2


# ---- cost and shape


def test_the_configuration_imports_nothing_heavy():
    heavy = ('psycopg', 'yaml', 'httpx', 'numpy', 'onnxruntime', 'tempfile', 'tomllib', 'hashlib')
    code = f'import sys, merlin.config; print([m for m in {heavy} if m in sys.modules])'
    done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == '[]'


def test_every_value_is_frozen(home):
    config = load(home)
    for field in fields(config):
        with pytest.raises(AttributeError):
            setattr(config, field.name, None)
    with pytest.raises(TypeError):
        config.boost['host'] = 9


@settings(derandomize=True, deadline=None, max_examples=150)
@given(st.text(max_size=60))
def test_no_text_breaks_the_reader(tmp_path_factory, text):
    home = tmp_path_factory.mktemp('home')
    try:
        load(home, text.encode('utf-8', 'surrogatepass'))
    except MerlinError as error:
        assert '\n' not in str(error)
