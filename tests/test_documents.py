"""Pages and lists against a real index: lines as in the file, every character reachable, exact paths, strict filters."""

import builtins
import os
import pathlib
import time
from contextlib import contextmanager
from dataclasses import replace
from datetime import date

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from merlin.blocks import split_lines
from merlin.chunk import estimate_tokens
from merlin.config import RepoConfig, load_config
from merlin.database import connect
from merlin.documents import (
    MAX_PATH,
    Place,
    Span,
    cut_page,
    find_section,
    get_document,
    list_documents,
    parse_lines,
    uncite,
)
from merlin.errors import ConfigError
from merlin.hashes import secret_hash
from merlin.ingest import ingest
from merlin.passage import shown, shown_path
from merlin.redact import MARK, Redactor
from merlin.render import render_page
from merlin.testing import DAY, START, WordEmbedder, commit_all, fixture_record, run_git

SECRET = 'ghp_' + 'aB3' * 12
STEPS = '# Upgrade\n\n## Alpha\n\nstop\n\n### Verify\n\nping alpha\n\n## Beta\n\n### Verify\n\ncurl beta\n'
NOTES = {
    'hosts/alpha.md': '---\nhost: alpha\naliases: [box]\nupdated: 2030-01-05\n---\n# alpha\n\n## Disks\n\nTwo.\n',
    'journal/2030-01-02.md': '# 2030-01-02\n\nalpha failed.\n',
    'journal/2030-01-04.md': '# 2030-01-04\n\n## Quiet\n\nNothing.\n',
    'runbooks/upgrade.md': STEPS,
    'long.md': '# Long\n\n' + 'x' * 50_000 + '\n\n## After\n\nend\n',
    'odd §\u202e·.md': '# Odd\n\nfound.\n',
    'empty.md': '',
    'blank.md': '\n\n',
    f'token-{SECRET}.md': '# Named after a secret\n\ntext\n',
}
WORK = {'upgrade.md': '# Work\n\nanother upgrade\n', 'runbooks/dns.md': '# DNS\n\nzones\n'}


def make_repo(folder, pages, when=START):
    folder.mkdir()
    run_git(folder, 'init', '--quiet')
    for path, text in pages.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    commit_all(folder, 'pages', when)
    return folder


@pytest.fixture
def config(database, tmp_path):
    repos = (
        RepoConfig('notes', make_repo(tmp_path / 'notes', NOTES)),
        RepoConfig('work', make_repo(tmp_path / 'work', WORK, START + 9 * DAY)),
    )
    layout = tmp_path / 'merlin.toml'
    rules = ', '.join(
        f'{{ glob = "*/{g}", type = "{t}" }}'
        for g, t in (('hosts/**', 'host'), ('journal/**', 'journal'), ('**', 'page'))
    )
    layout.write_text(f'[layout]\nrules = [{rules}]\n')
    config = replace(load_config({'MERLIN_CONFIG': str(layout)}), repos=repos, database=database)
    ingest(config, embed=WordEmbedder())
    return config


@pytest.fixture
def get(conn, config):
    return lambda path, *args, **kwargs: get_document(conn, path, *args, config=config, **kwargs)


@pytest.fixture
def listed(conn, config):
    return lambda *args, **kwargs: list_documents(conn, *args, config=config, **kwargs)


def test_a_page_has_the_lines_of_the_file_whatever_ends_them(database, tmp_path):
    record = fixture_record(tmp_path / 'record')
    config = replace(load_config({}), repos=(RepoConfig('', record),), database=database)
    ingest(config, embed=WordEmbedder())
    with connect(database) as conn:
        rows = conn.execute(
            'select d.path, c.first_line, c.last_line, c.heading_path from chunks c join documents d on d.id = c.document_id'
        ).fetchall()
        texts = {
            e.path: get_document(conn, e.path, config=config, budget=10**6)
            for e in list_documents(conn, limit=200, config=config)
        }
    assert len(texts) > 40
    for path, page in texts.items():
        raw = (record / path).read_bytes().decode('utf-8-sig', 'replace').replace('\0', '')
        same = [a == b or MARK.search(b) for a, b in zip(split_lines(raw), page.text.split('\n'), strict=bool(raw))]
        assert all(same) and (page.lines, page.next_lines) == (len(split_lines(raw)), None)
    for path, first, last, headings in rows:
        page = texts[path].text.split('\n')[first - 1 : last]
        assert len(page) == last - first + 1
        assert not headings or any(headings[-1] in line for line in page[:5]) or headings[-1] in texts[path].text


pieces = st.lists(st.sampled_from(['[REDACTED:key_value]', 'word ', '復旧', '\u202e', 'x' * 60]), max_size=12).map(
    ''.join
)


@settings(derandomize=True, deadline=None, max_examples=150)
@given(st.lists(pieces, min_size=1, max_size=12), st.integers(1, 60))
def test_page_after_page_shows_everything_once_and_tears_no_mark(lines, budget):
    span, text = Span(1, len(lines)), ''
    for _ in range(5000):
        part, last, following = cut_page(lines, span, budget)
        assert estimate_tokens(shown(part)) <= budget + 6 and part.count('[REDACTED:') == len(MARK.findall(part))
        text += part
        if following is None:
            break
        following_span = parse_lines(following, len(lines))
        text += '' if following_span.column > 1 else '\n'
        assert (following_span.first, following_span.column) > (
            span.first,
            span.column,
        ) and following_span.first >= last
        span = following_span
    assert text == '\n'.join(lines)


def test_a_line_longer_than_a_page_is_read_piece_by_piece(get):
    page = get('notes/long.md', budget=2_000)
    parts = [page]
    while parts[-1].next_lines:
        parts.append(get('notes/long.md', lines=parts[-1].next_lines, budget=2_000))
    assert page.next_lines == '3:7993-7' and len(parts) == 7
    assert ''.join(p.text for p in parts).count('x') == 50_000 and parts[-1].text.endswith('\n\n## After\n\nend')
    said = render_page(page, 'fresh', Redactor())
    assert said.endswith('next: get_document path="notes/long.md" lines="3:7993-7"') and estimate_tokens(said) < 2_200


def test_a_heading_that_begins_with_a_section_mark_is_found_as_it_stands_and_as_it_is_cited():
    for asked in ('§ Disk', '§ § Disk', ' §  § disk\n'):
        assert find_section(['# § Disk', 'x'], asked, 'p.md') == (Place(('§ Disk',), 1, 2), None)


def test_a_section_reaches_to_the_next_of_its_level_and_repeated_names_are_told(get):
    page = get('notes/runbooks/upgrade.md', section='§ verify')
    assert (page.section, page.first_line, page.text) == ('Upgrade > Alpha > Verify', 7, '### Verify\n\nping alpha\n')
    assert page.note == '2 sections fit, the first is shown; the others: line 13 § Upgrade > Beta > Verify'
    page = get('notes/runbooks/upgrade.md', section='beta > Verify')
    assert (page.first_line, page.last_line, page.note) == (13, 15, None)
    page = get('notes/runbooks/upgrade.md', section='Upgrade > Alpha')
    assert (page.first_line, page.last_line) == (3, 10)
    assert get('notes/runbooks/upgrade.md', section='Upgr…').first_line == 1
    assert get('notes/runbooks/upgrade.md', section='alpha', offset=4, budget=3).text == '### Verify\n'
    assert get('notes/runbooks/upgrade.md', section='alpha', offset=4, budget=3).next_lines == '9-10'


def test_what_a_hit_calls_its_heading_is_a_section_that_is_found(get, conn):
    for path, heading, last in conn.execute(
        "select d.path, array_to_string(heading_path, ' > '), last_line from chunks c join documents d on d.id = document_id "
        "where heading_path <> '{}' and d.path not like '%odd%'"
    ).fetchall():
        page = get(path, section=heading, budget=99_999)
        assert page.section == heading and page.first_line <= last <= page.last_line


WRONG_PLACES = [
    ({'section': 'Verifi'}, "upgrade.md: no section 'Verifi'; did you mean 'Verify'"), ({'section': ' '}, 'the section is empty'),
    ({'section': 'x' * 9000}, "known: 'Alpha', 'Beta', 'Upgrade', 'Verify'"), ({'section': 'a\n\ud800\0'}, 'no section'),
    ({'lines': '99'}, 'the document has 15'), ({'lines': 'all'}, 'write them as 40-80'), ({'lines': '9-3'}, 'smaller number first'),
    ({'lines': '1:99'}, 'line 1 has no character 99; it has 9'), ({'lines': '1', 'section': 'Alpha'}, 'lines stands alone'),
    ({'lines': '1', 'offset': 2}, 'lines stands alone'), ({'offset': -1}, 'use 0 to 14'), ({'offset': 15}, 'use 0 to 14'),
]  # fmt: skip


def test_what_is_not_in_the_document_is_refused_with_what_is(get):
    for kwargs, says in WRONG_PLACES:
        with pytest.raises(ConfigError) as refused:
            get('notes/runbooks/upgrade.md', **kwargs)
        text = str(refused.value)
        assert says in text and text.isprintable() and len(text) < 300


def test_an_empty_document_is_a_page_that_says_so(get):
    page = get('notes/empty.md')
    assert (page.text, page.lines, page.next_lines, page.note) == ('', 0, None, 'the document is empty')
    assert 'no lines\nnote: the document is empty' in render_page(page, 'fresh', Redactor())
    assert get('notes/blank.md').lines == 2
    with pytest.raises(ConfigError, match='it has no headings'):
        get('notes/empty.md', section='Any')


def test_a_file_that_was_too_large_says_so(get, conn):
    conn.execute(
        """update documents set warnings = '[[null, "size", "9.0 MB, more than"]]' where path = 'notes/long.md'"""
    )
    assert get('notes/long.md', lines='1').note == '9.0 MB, more than'


def test_a_path_stands_alone_or_inside_its_repo(get):
    assert get('work/upgrade.md').document.repo == 'work'
    assert get('upgrade.md', 'work').document.path == 'work/upgrade.md' == get('work/upgrade.md', 'work').document.path
    for path, repo in (('upgrade.md', None), ('upgrade.md', 'notes'), ('work/upgrade.md', 'notes')):
        with pytest.raises(ConfigError, match='no document'):
            get(path, repo)
    with pytest.raises(ConfigError, match="no repo 'wrok' in the index; did you mean 'work'"):
        get('upgrade.md', 'wrok')


NO_PATHS = [
    '', '.', '/', './notes/long.md', 'notes/../notes/long.md', 'notes//long.md', '/notes/long.md', '../../etc/passwd', '/etc/passwd',
    '%2e%2e/etc/passwd', 'C:\\x', 'notes/long.md\0', '\ud800', 'a' * 1_000_000, "'; drop table documents; --", '%s', '{}', 'NOTES/LONG.MD', '*',
]  # fmt: skip


def test_only_exact_paths_of_the_index_exist_and_no_file_is_opened(get, monkeypatch):
    get('notes/long.md', lines='1')  # whatever loads at first use is loaded

    def forbidden(*args, **kwargs):
        raise AssertionError(f'opened {args}')

    with monkeypatch.context() as patch:
        for place, name in ((builtins, 'open'), (os, 'open'), (pathlib.Path, 'open')):
            patch.setattr(place, name, forbidden)
        for path in NO_PATHS:
            with pytest.raises(ConfigError, match='no document') as refused:
                get(path)
            assert str(refused.value).isprintable() and len(str(refused.value)) < 800
        assert get('notes/long.md', lines='1').text == '# Long'


def test_a_path_is_taken_as_it_was_shown(get, listed):
    odd, secret = 'notes/odd §\u202e·.md', 'notes/token-[REDACTED:vendor_token].md'
    assert get(odd).text == get(shown_path(odd)).text == '# Odd\n\nfound.'
    assert (
        get(shown_path(odd), 'notes').document.path == get('odd \\u00a7\\u202e\\u00b7.md', 'notes').document.path == odd
    )
    assert get(secret).document.path == secret and secret in {e.path for e in listed()}
    with pytest.raises(ConfigError) as refused:
        get(f'notes/token-{SECRET}.md')
    assert SECRET not in str(refused.value) and repr(secret) in str(refused.value)


def test_a_file_of_that_name_in_another_folder_is_meant_first(get):
    with pytest.raises(ConfigError, match="did you mean 'notes/runbooks/upgrade.md' or 'work/upgrade.md'"):
        get('docs/upgrade.md')
    with pytest.raises(ConfigError, match="did you mean 'work/runbooks/dns.md'"):
        get('work/runbook/dsn.md')


def test_a_secret_declared_after_the_ingest_is_redacted_before_the_cut(config, conn, get, tmp_path):
    value, salt = 'Herbst-und-' + 'Winter-2031', '00' * 16
    conn.execute('update documents set text = %s where path = %s', (f'{"x" * 30} {value} end', 'notes/long.md'))
    hashes = tmp_path / 'hashes'
    hashes.touch(0o600)
    hashes.write_text(f'salt {salt}\n{secret_hash(salt, value).hex()}\tnas\n')
    redactor = Redactor(secret_hashes=hashes)
    assert value in get('notes/long.md').text
    for budget in range(1, 20):
        page = get('notes/long.md', redactor=redactor, budget=budget)
        assert 'Herbst' not in page.text and page.text.count('[') == page.text.count('[REDACTED:nas]')


def test_the_newest_come_first_and_pages_fit_together(listed):
    everything = listed(limit=200)
    assert len(everything) == everything.total == len(NOTES) + len(WORK) and everything.next_offset is None
    keys = [(-(e.date or date.min).toordinal(), e.path) for e in everything]
    assert keys == sorted(keys) and everything[0].path == 'work/runbooks/dns.md'
    seen, offset = [], 0
    while offset is not None:
        page = listed(limit=3, offset=offset)
        seen += page.entries
        offset = page.next_offset
    assert tuple(seen) == everything.entries
    assert (len(listed(offset=99)), listed(offset=99).total, listed(offset=99).next_offset) == (
        0,
        everything.total,
        None,
    )


def test_filters_narrow_the_list(listed):
    def paths(*args, **kwargs):
        return sorted(e.path for e in listed(*args, **kwargs))

    assert paths('journal') == ['notes/journal/2030-01-02.md', 'notes/journal/2030-01-04.md']
    assert paths(['journal', 'host'], host='BOX') == ['notes/hosts/alpha.md', 'notes/journal/2030-01-02.md', ]  # fmt: skip
    assert paths(repo='work') == ['work/runbooks/dns.md', 'work/upgrade.md']
    assert paths(since='2030-01-04', until=date(2030, 1, 5)) == ['notes/hosts/alpha.md', 'notes/journal/2030-01-04.md']
    assert paths(path='*/runbooks/*.md') == ['notes/runbooks/upgrade.md', 'work/runbooks/dns.md']
    assert paths(path='**/upgrade.md', repo='work') == ['work/upgrade.md']
    assert paths(path='nothing/**') == []
    (entry,) = listed(path='notes/hosts/*', limit=1)
    assert entry.as_json() == {
        'path': 'notes/hosts/alpha.md', 'repo': 'notes', 'type': 'host', 'date': '2030-01-05', 'title': 'alpha',
    }  # fmt: skip


WRONG_FILTERS = [
    ({'type': 'jurnal'}, "did you mean 'journal'"), ({'type': ''}, 'the type is empty'), ({'repo': 'wrk'}, "did you mean 'work'"), ({'repo': ''}, 'no repo'),
    ({'host': 'alhpa'}, "did you mean 'alpha'"), ({'host': ''}, 'the host is empty'), ({'since': 'monday'}, '2030-01-31'),
    ({'since': '2030-02-01', 'until': '2030-01-01'}, 'swap them'), ({'path': ''}, 'is empty'), ({'path': 'notes/'}, "write 'notes/**'"),
    ({'path': '{a,b}'}, 'braces'), ({'path': '\0'}, 'cannot be shown'), ({'path': '[a'}, 'without ]'), ({'limit': 0}, '1 to 200'), ({'limit': 201}, '1 to 200'),
    ({'offset': -1}, '0 or more'), ({'offset': 2**63}, '0 or more'), ({'type': "'; drop table chunks; --"}, 'no type'),
]  # fmt: skip


def test_a_filter_that_cannot_be_applied_is_refused(listed):
    for wrong, says in WRONG_FILTERS:
        with pytest.raises(ConfigError) as refused:
            listed(**wrong)
        assert says in str(refused.value) and '\n' not in str(refused.value)


def test_without_an_index_both_say_what_to_run(database):
    config = replace(load_config({}), database=database)
    with connect(database) as conn:
        for ask in (lambda: get_document(conn, 'a.md', config=config), lambda: list_documents(conn, config=config)):
            with pytest.raises(ConfigError, match='run merlin ingest'):
                ask()


def test_nothing_is_written_and_the_connection_can_write_again(conn, get, listed, monkeypatch):
    from merlin import documents

    inside = []

    @contextmanager
    def watched(conn):
        with documents_snapshot(conn):
            yield
            inside.append(conn.execute("select current_setting('transaction_read_only')").fetchone()[0])

    documents_snapshot = documents.in_snapshot
    monkeypatch.setattr(documents, 'in_snapshot', watched)
    get('notes/long.md')
    listed()
    conn.execute("insert into meta values ('after', '1')")
    assert inside == ['on', 'on']


MANY = """
insert into documents (repo, path, type, title, date, blob_sha, fingerprint, text, redactions, warnings)
select 'notes', 'notes/many/' || n % 97 || '/' || n || '-note.md', 'page', 'n', date '2020-01-01' + n % 3000, 'x', 'x', 'text', '{}', '[]'
from generate_series(1, 30000) n
"""


def test_thirty_thousand_documents_are_listed_and_missed_quickly(conn, get, listed):
    conn.execute(MANY)
    asks = (
        lambda: listed('page', host='alpha'),
        lambda: listed(path='notes/many/7/*', limit=200),
        lambda: get('notes/many/7/xx-nte.md'),
    )
    for ask in asks:
        begin = time.perf_counter()
        try:
            assert ask().total
        except ConfigError as e:
            assert "did you mean 'notes/many/7/" in str(e)
        assert time.perf_counter() - begin < 3


def test_a_path_longer_than_any_is_no_key(get):
    with pytest.raises(ConfigError, match='no document'):
        get('x' * (MAX_PATH + 1))


@pytest.mark.parametrize(
    'path, expected',
    [
        ('a/b.md', ('a/b.md', None, None)), ('a/b.md:14', ('a/b.md', None, 14)), ('a/b.md:14 § A > B', ('a/b.md', 'A > B', 14)),
        (' a/b.md:14§A ', ('a/b.md', 'A', 14)), ('a/b.md:', ('a/b.md:', None, None)), ('a.md:1/b.md', ('a.md:1/b.md', None, None)),
        ('a.md:1/b.md:2', ('a.md:1/b.md', None, 2)), ('', ('', None, None)),
    ],
)  # fmt: skip
def test_a_citation_is_a_path_with_a_place(path, expected):
    assert uncite(path) == expected


def test_a_citation_tells_sections_of_one_name_apart():
    lines = split_lines('# P\n\n## Notes\n\na\n\n## Notes\n\nb\n\n## Other\n\nc\n')
    assert [find_section(lines, 'P > Notes', 'a.md', line)[0].first for line in (3, 5, 7, 9)] == [3, 3, 7, 7]
    assert find_section(lines, 'P > Notes', 'a.md', 1)[0].first == 3  # cited where its parent begins
    assert find_section(lines, 'P > Notes', 'a.md')[1].startswith('2 sections fit')
