"""Search against a real index: legs, filters, refusals, and an embedder that is down."""

from dataclasses import replace
from datetime import date

import pytest

from merlin.config import RepoConfig, load_config
from merlin.database import connect, features
from merlin.errors import ConfigError, FailedError, RefusedError
from merlin.ingest import ingest
from merlin.legs import Filters, vector_leg
from merlin.search import search
from merlin.store import build_hnsw, has_hnsw
from merlin.testing import WordEmbedder, commit_all, fixture_record, run_git

PAGES = {
    'runbooks/restore.md': '# Restore\n\n## Database\n\nRestore the nightly dump with pg_restore, then run the checks.\n\n## Files\n\nCopy them back.\n',
    'hosts/alpha.md': '---\nhost: alpha\naliases: [box]\nips: [10.0.0.11]\n---\n# alpha\n\nThe database lives here, 90% full.\n',
    'journal/2030-01-15.md': '# 2030-01-15\n\n## Dump failed (2030-01-15)\n\nThe nightly dump on alpha stopped: no space left.\n',
    'journal/2030-02-20.md': '# 2030-02-20\n\n## Fence\n\nPainted the fence; nothing about machines.\n',
    'memory/quotes.md': '# Quotes\n\nA line with a_b and 100% and C:\\temp\\x and node_filesystem_avail_bytes.\n',
}  # fmt: skip


@pytest.fixture
def config(database, tmp_path):
    repo = tmp_path / 'record'
    repo.mkdir()
    run_git(repo, 'init', '--quiet')
    for path, text in PAGES.items():
        (repo / path).parent.mkdir(exist_ok=True)
        (repo / path).write_text(text)
    commit_all(repo, 'all')
    config = replace(load_config({}), repos=(RepoConfig('', repo),), database=database)
    ingest(config, embed=WordEmbedder())
    return config


def ask(conn, config, query, **kwargs):
    return search(
        conn, query, config=config, embed=kwargs.pop('embed', WordEmbedder()), today=date(2030, 3, 1), **kwargs
    )


def test_the_right_section_comes_first_with_its_place_and_reasons(conn, config):
    hit = ask(conn, config, 'restore the nightly dump')[0]
    assert (hit.path, hit.heading, hit.first_line, hit.last_line) == ('runbooks/restore.md', 'Restore > Database', 1, 6)
    assert set(hit.reasons['legs']) == {'vector', 'fulltext', 'bm25'}
    assert hit.reasons['factors'].boost == 1.3


def test_one_result_per_document_and_k_cuts(conn, config):
    found = ask(conn, config, 'database restore files')
    assert len({h.path for h in found}) == len(found) == len(PAGES)
    assert len(ask(conn, config, 'database', k=2)) == 2


def test_filters_are_exact_and_combine(conn, config):
    assert {h.type for h in ask(conn, config, 'dump', type='journal')} == {'journal'}
    assert {h.path for h in ask(conn, config, 'dump', host='10.0.0.11')} == {'hosts/alpha.md', 'journal/2030-01-15.md'}
    assert [h.path for h in ask(conn, config, 'dump', since='2030-02-01', type='journal')] == ['journal/2030-02-20.md']
    assert [h.path for h in ask(conn, config, 'dump', until=date(2030, 1, 31), type='journal')] == [
        'journal/2030-01-15.md'
    ]
    assert len(ask(conn, config, 'dump', since='2031-01-01')) == 0


@pytest.mark.parametrize(
    'wrong, says',
    [
        ({'type': 'jurnal'}, "did you mean 'journal'"), ({'host': 'alhpa'}, "did you mean 'alpha'"),
        ({'repos': ['x']}, 'leave the repo out'), ({'since': 'yesterday'}, '2030-01-31'), ({'since': '2030-02-01', 'until': '2030-01-01'}, 'swap them'), ({'k': 0}, '1 to 50'), ({'k': 51}, '1 to 50'),
    ],
)  # fmt: skip
def test_a_filter_that_cannot_be_applied_is_refused_with_the_nearest(conn, config, wrong, says):
    with pytest.raises(ConfigError, match=says):
        ask(conn, config, 'dump', **wrong)


@pytest.mark.parametrize(
    'literal, hits', [('100%', 1), ('a_b', 1), ('C:\\temp\\x', 1), ('NODE_FILESYSTEM_avail', 1), ('a%b', 0), ('aXb', 0)]
)
def test_exact_finds_the_text_itself_in_any_case(conn, config, literal, hits):
    found = ask(conn, config, literal, exact=True, embed=None)
    assert len([h for h in found if 'literal' in h.reasons['legs']]) == hits
    assert all('vector' not in h.reasons['legs'] for h in found)


@pytest.mark.parametrize(
    'query',
    [
        '"',
        "'; drop table chunks; --",
        'a & | ! b',
        '-' * 2000,
        'the of and',
        '💥',
        'a\0b',
        '%s {x} \\',
        'or or -',
        '((((',
    ],
)
def test_no_query_breaks_it(conn, config, query):
    ask(conn, config, query)
    ask(conn, config, query, exact=True)
    assert conn.execute('select count(*) from documents').fetchone() == (len(PAGES),)


@pytest.mark.parametrize('query', ['', '   ', '\0', 'x' * 2001])
def test_a_question_that_cannot_be_asked_is_refused(conn, config, query):
    with pytest.raises(ConfigError):
        ask(conn, config, query)


def test_without_the_embedder_full_text_answers_and_says_so(conn, config):
    class Down(WordEmbedder):
        def embed_query(self, text):
            raise FailedError('the embedding server does not answer')

    found = ask(conn, config, 'nightly dump', embed=Down())
    assert 'does not answer' in found.degraded
    assert {h.path for h in found} == {'runbooks/restore.md', 'journal/2030-01-15.md'}


def test_another_model_is_refused(conn, config):
    class Other(WordEmbedder):
        identity = 'test:other:64'

    with pytest.raises(RefusedError, match='--reembed-all'):
        ask(conn, config, 'dump', embed=Other())


def test_a_secret_in_the_question_never_reaches_the_embedder(conn, config):
    seen = []

    class Listening(WordEmbedder):
        def embed_query(self, text):
            seen.append(text)
            return super().embed_query(text)

    token = 'ghp_' + 'aB3' * 12
    ask(conn, config, f'what is {token} for', embed=Listening())
    assert seen and token not in seen[0]


def test_the_graph_answers_like_the_exact_scan(conn, config, database):
    embed = WordEmbedder()
    exact = vector_leg(conn, embed.embed_query('restore dump'), Filters(), 50)
    assert build_hnsw(conn, 64, features(conn).parallel_build, minimum=1) and has_hnsw(conn)
    graph = vector_leg(conn, embed.embed_query('restore dump'), Filters(), 50, exact_limit=0)
    assert [f.chunk for f in graph] == [f.chunk for f in exact]
    filtered = vector_leg(conn, embed.embed_query('restore dump'), Filters(types=('journal',)), 50, exact_limit=0)
    assert len(filtered) == len(vector_leg(conn, embed.embed_query('restore dump'), Filters(types=('journal',)), 50))


def test_a_graph_of_full_precision_is_no_graph_and_the_next_build_replaces_it(conn):
    asked = WordEmbedder().embed_query('restore dump')
    exact = vector_leg(conn, asked, Filters(), 50)
    conn.execute('drop index if exists vectors_hnsw')
    conn.execute('create index vectors_hnsw on vectors using hnsw (embedding vector_cosine_ops)')
    assert not has_hnsw(conn) and vector_leg(conn, asked, Filters(), 50, exact_limit=0) == exact
    assert build_hnsw(conn, 64, features(conn).parallel_build, minimum=1) and has_hnsw(conn)
    assert not build_hnsw(conn, 64, features(conn).parallel_build, minimum=1)


@pytest.mark.slow
def test_the_local_model_answers_the_fixture_record(database, tmp_path):
    if database.url:
        pytest.skip('the model is no different there: the embedded server shows it')
    record = fixture_record(tmp_path / 'fixture')
    config = replace(load_config({}), repos=(RepoConfig('', record),), database=database)
    report = ingest(config)
    assert report.embedded > 50
    with connect(config.database) as conn:
        hit = search(conn, 'which machine runs the backups', config=config)[0]
        assert hit.score > 0 and hit.path


def test_equal_scores_keep_their_order_through_edits_and_rebuilds(database, tmp_path):
    repo = tmp_path / 'copies'
    repo.mkdir()
    run_git(repo, 'init', '--quiet')
    for name in 'cab':
        (repo / f'{name}.md').write_text('# Same\n\nthe very same words\n')
    commit_all(repo, 'all')
    config = replace(load_config({}), repos=(RepoConfig('', repo),), database=database)
    ingest(config, embed=WordEmbedder())
    for text in ('# Other\n\nwords\n', '# Same\n\nthe very same words\n'):
        (repo / 'a.md').write_text(text)
        commit_all(repo, 'edit')
        ingest(config, embed=WordEmbedder())
    with connect(database) as conn:
        assert [h.path for h in search(conn, 'very same words', config=config, exact=True)] == ['a.md', 'b.md', 'c.md']


def test_a_host_that_only_a_page_names_and_an_alias_of_two_hosts_can_be_asked_for(database, tmp_path):
    repo = tmp_path / 'hosts'
    (repo / 'hosts').mkdir(parents=True)
    run_git(repo, 'init', '--quiet')
    for name in ('b1', 'b2'):
        (repo / f'hosts/{name}.md').write_text(f'---\nhost: {name}\naliases: [web]\n---\n# {name}\n\nserves pages\n')
    (repo / 'ghost.md').write_text('---\nhost: ghost\n---\n# Ghost\n\nserves nothing\n')
    commit_all(repo, 'all')
    config = replace(load_config({}), repos=(RepoConfig('', repo),), database=database)
    ingest(config, embed=WordEmbedder())
    with connect(database) as conn:
        paths = {
            h: {r.path for r in search(conn, 'serves', host=h, config=config, embed=WordEmbedder())}
            for h in ('web', 'ghost')
        }
    assert paths == {'web': {'hosts/b1.md', 'hosts/b2.md'}, 'ghost': {'ghost.md'}}


def test_a_hostile_name_forges_no_line_on_a_terminal():
    from merlin.cli import hit_lines
    from merlin.search import Hit

    evil = 'a\x1b[31m\nfake.md:9 § Forged'
    lines = hit_lines(
        Hit(evil, '', evil, 1, 2, 'page', None, (evil,), 1.0, False, False, (evil,), 1, f'body\x1b[2J\n{evil}')
    )
    assert not any('\n' in line or '\x1b' in line for line in lines)
    assert not any(line.startswith('fake.md') for line in lines)
