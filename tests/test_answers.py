"""Answers as a whole: words found in every spelling, exact filters at scale, weak and superseded marks, reasons."""

from dataclasses import replace
from datetime import date

import psycopg
import pytest

from merlin import ingest as ingest_module
from merlin import legs as legs_module
from merlin import rank
from merlin import search as search_module
from merlin.config import RepoConfig, load_config
from merlin.database import connect
from merlin.errors import ConfigError, FailedError
from merlin.history import host_history
from merlin.ingest import ingest
from merlin.legs import Filters, bm25_leg, limited, literal_leg, vector_leg
from merlin.lexical import EMPTY_LEXICAL, refresh_lexical
from merlin.reasons import why
from merlin.search import in_snapshot, prepare_question, search
from merlin.store import create_schema, create_tables, has_hnsw
from merlin.testing import START, WordEmbedder, commit_all, run_git
from merlin.vectors import unit

STEP = 'Stop the application, drop the database, load the dump of last night with psql and start it all again.'
PAGES = {
    'alerts.md': '# Alerts\n\n## etcdDatabaseQuotaLowSpace\n\nCompact it. See node_filesystem_avail_bytes.\n',
    'config.md': '# Config\n\nStart node with --max-old-space-size=4096; the proxy reads /etc/nginx/conf.d/x.conf.\n',
    'network.md': '# Network\n\n10.0.0.12 is decided in DEC-0054; restart nginx.service on ERR_CONNECTION_RESET.\n',
    'deutsch.md': '# Heizung\n\nDie Größe des Kessels; Müller hat im Café die Straße gesperrt.\n',
    'japanese.md': '# メモ\n\nサーバーの設定を変更した。\n',
    'chinese.md': '# 备忘录\n\n重启数据库之前请先备份。\n',
    'book.md': f'# Restore\n\nHow to.\n\n## By hand\n\n(superseded 2030-01-20: see § With the tool)\n\n{STEP}\n\n'
    '## With the tool\n\nRun the new restore tool, it asks for the night.\n',
    'diary.md': f'# Tuesday\n\nThe disk died, and so did we. {STEP}\n',
}


class Down(WordEmbedder):
    "Words alone have to answer."

    def embed_query(self, text):
        raise FailedError('the embedding server does not answer')


def record(tmp_path, pages):
    "A git record with these pages."
    repo = tmp_path / 'record'
    repo.mkdir()
    run_git(repo, 'init', '--quiet')
    for path, text in pages.items():
        (repo / path).write_text(text)
    commit_all(repo, 'all', START)
    return repo


@pytest.fixture
def config(database, tmp_path):
    config = replace(load_config({}), repos=(RepoConfig('', record(tmp_path, PAGES)),), database=database)
    ingest(config, embed=WordEmbedder())
    return config


FOUND = {
    'alerts.md': (
        'etcdDatabaseQuotaLowSpace', 'etcddatabasequotalowspace', 'database quota', 'QUOTA', 'etcd_database_quota_low_space',
        'node_filesystem_avail_bytes', 'filesystem', 'nodeFilesystemAvailBytes',
    ),
    'config.md': (
        '--max-old-space-size', 'max-old-space-size', 'maxOldSpaceSize', 'MAX_OLD_SPACE_SIZE', '/etc/nginx/conf.d/x.conf',
        'x.conf', 'conf.d',
    ),
    'network.md': (
        '10.0.0.12', '10.0.0', 'DEC-0054', 'dec-0054', '0054', 'nginx.service', 'NGINX.SERVICE', 'ERR_CONNECTION_RESET',
        'err_connection_reset', 'connection reset',
    ),
    'deutsch.md': ('Größe', 'grosse', 'groesse', 'Muller', 'MUELLER', 'müller', 'cafe', 'Café', 'strasse'),
    'japanese.md': ('設定', 'サーバー', '設定を変更'),
    'chinese.md': ('数据库', '备份', '重启数据库'),
}  # fmt: skip


def test_identifiers_accents_and_other_scripts_are_found_by_their_words(conn, config):
    asked = {query: path for path, queries in FOUND.items() for query in queries}
    assert {query: search(conn, query, config=config, embed=Down())[0].path for query in asked} == asked


def test_exact_finds_any_substring_in_any_case(conn, config):
    for query in ('設定', 'GRÖßE DES', 'conf.d/x', 'ERR_connection', '0.0.12', 'quotalow', '数据库之前'):
        found = search(conn, query, exact=True, config=config)
        assert found and 'literal' in found[0].reasons['legs'] and 'bm25' not in found[0].reasons['legs'], query


def test_a_superseded_section_names_the_newer_and_its_copy_is_flagged(conn, config):
    found = {h.heading: h for h in search(conn, 'drop the database and load the dump', k=20, config=per_section(config),
                                          embed=WordEmbedder())}  # fmt: skip
    old, copy, new = found['Restore > By hand'], found['Tuesday'], found['Restore > With the tool']
    assert (old.stale, old.copy_of, old.newer) == (True, None, 'book.md:11 § Restore > With the tool')
    assert (copy.stale, copy.copy_of, copy.newer) == (False, 'book.md:5 § Restore > By hand', old.newer)
    assert (new.stale, new.copy_of, new.newer) == (False, None, None)
    assert copy.as_json()['copy_of'] == copy.copy_of


@pytest.mark.parametrize('narrow', [{'type': 'doc', 'since': '2030-01-01'}, {'exact': True}])
def test_a_copy_is_flagged_whatever_shuts_the_superseded_section_out(database, tmp_path, narrow):
    pages = {**PAGES, 'diary.md': PAGES['diary.md'].replace('# Tuesday', '# Tuesday (2030-02-01)')}
    pages['box.md'] = '---\nhost: box\n---\n# box\n\nA machine.\n'
    pages['diary.md'] += '\nSeen on box.\n'
    config = replace(load_config({}), repos=(RepoConfig('', record(tmp_path, pages)),), database=database)
    layout = replace(config.layout, host_types=('doc',), history_types=('doc',))
    config = replace(config, layout=layout)
    ingest(config, embed=WordEmbedder())
    with connect(database) as conn:
        found = search(conn, 'The disk died, and so did we', config=config, embed=WordEmbedder(), **narrow)
        (copy,) = [h for h in found if h.path == 'diary.md']
        (told,) = [h for h in host_history(conn, 'box', config=config) if h.path == 'diary.md']
    for hit in (copy, told):
        assert (hit.copy_of, hit.newer) == ('book.md:5 § Restore > By hand', 'book.md:11 § Restore > With the tool')


@pytest.mark.parametrize(
    'lead, newer',
    [
        ('(superseded: see § New way below)', 'p.md:7 § P > New way'),
        ('> Superseded by [New way](#new-way).', 'p.md:7 § P > New way'),
        ('(superseded: see § New way over TLS)', None), ('(superseded 2030-01-01)', None),
    ],
)  # fmt: skip
def test_a_pointer_names_a_section_or_nothing(database, tmp_path, lead, newer):
    page = f'# P\n\n## Old way\n\n{lead}\n\n## New way\n\nDo it.\n'
    config = replace(load_config({}), repos=(RepoConfig('', record(tmp_path, {'p.md': page})),), database=database)
    ingest(config, embed=WordEmbedder())
    with connect(database) as conn:
        found = search(conn, 'way', config=per_section(config), embed=WordEmbedder())
    assert [h.newer for h in found if h.stale] == [newer]


def per_section(config):
    "The configuration with a result for each section."
    return replace(config, search=replace(config.search, per_document=False))


def test_weak_hits_are_marked_only_for_a_calibrated_model(conn, config, monkeypatch):
    ask = lambda **kw: search(conn, 'anything at all', config=config, embed=kw.pop('embed', WordEmbedder()), **kw)  # noqa: E731
    assert not any(h.weak for h in ask()) and ask().note is None
    monkeypatch.setitem(rank.WEAK, 'test:words:64', 2.0)
    assert all(h.weak for h in ask()) and 'no good match' in ask().note
    assert not any(h.weak for h in ask(embed=Down())), 'without vectors nothing is said'
    monkeypatch.setitem(rank.WEAK, 'test:words:64', -2.0)
    assert not any(h.weak for h in ask())
    assert 'no proof' in search(conn, 'no such words zzz', exact=True, config=config).note


def test_why_tells_what_became_of_a_document(conn, config):
    def said(path, query='drop the database', **kw):
        return why(conn, query, path, config=config, embed=WordEmbedder(), today=date(2030, 1, 31), **kw)

    assert said('book.md').state == 'shown'
    assert said('japanese.md', k=1).state == 'outranked' and 'place ' in said('japanese.md', k=1).lines[0]
    assert said('book.md', since='2031-01-01').lines == ('none of its sections passes since',)
    missing = said('japanese.md', exact=True)
    assert missing.state == 'no leg' and 'literal: nothing in common' in missing.lines[1] and len(missing.lines) == 2
    with pytest.raises(ConfigError, match="did you mean 'book.md'"):
        said('bok.md')


def test_why_says_which_leg_could_not_be_asked(conn, config):
    missing = why(conn, '設定', 'book.md', config=config, embed=Down())
    assert missing.state == 'no leg' and 'does not answer' in missing.lines[-1]


def test_a_leg_of_weight_0_has_no_say(conn, config):
    words = replace(config, search=replace(config.search, vector=0.0, fulltext=0.0))
    found = search(conn, 'database quota low space', config=words, embed=WordEmbedder())
    assert [h.path for h in found][0] == 'alerts.md'
    assert {h.path for h in found} <= {
        h.path for h in search(conn, 'database quota low space', config=words, embed=Down())
    }


def test_weak_is_never_said_where_the_words_were_not_asked(conn, config, monkeypatch):
    def late(*args):
        raise FailedError('BM25 took longer than 2 s on this question')

    monkeypatch.setitem(rank.WEAK, 'test:words:64', 2.0)
    monkeypatch.setattr(search_module, 'bm25_leg', late)
    found = search(conn, 'anything', config=config, embed=WordEmbedder())
    assert found and not any(h.weak for h in found) and 'took longer' in found.degraded


def test_no_leg_in_time_is_a_refusal_with_a_next_step(conn, config, monkeypatch):
    def late(*args):
        raise FailedError('it took longer than 2 s')

    for leg in ('vector_leg', 'fulltext_leg', 'bm25_leg'):
        monkeypatch.setattr(search_module, leg, late)
    with pytest.raises(FailedError, match='ask with other words'):
        search(conn, 'anything', config=config, embed=WordEmbedder())


def test_a_leg_that_ran_out_of_time_leaves_the_limits_as_they_were(conn, monkeypatch):
    with in_snapshot(conn):
        with pytest.raises(FailedError, match='took longer'), limited(conn, 'sleeping'):
            conn.execute("set local statement_timeout = '20ms'")
            conn.execute('select pg_sleep(5)')
        bm25_leg(conn, 'database', Filters(), 5)
        assert conn.execute('show statement_timeout').fetchone() == ('5s',)


def test_legs_inside_a_transaction_and_outside_of_one_leave_its_limit_as_it_was(conn):
    bm25_leg(conn, 'database', Filters(), 5)
    assert conn.execute('show statement_timeout').fetchone() == ('0',)
    with conn.transaction():
        conn.execute("set local statement_timeout = '77ms'")
        with limited(conn, 'outer'), limited(conn, 'inner'):
            assert conn.execute('show statement_timeout').fetchone() == ('2s',)
        with pytest.raises(FailedError, match='no reason'), limited(conn, 'any'):
            raise FailedError('no reason')
        with pytest.raises(psycopg.errors.DivisionByZero), limited(conn, 'any'):
            conn.execute('select 1 / 0')
        assert conn.execute('show statement_timeout').fetchone() == ('77ms',)
    assert conn.execute('show statement_timeout').fetchone() == ('0',)


def test_of_many_sections_that_hold_a_text_the_shortest_are_weighed_by_how_often_they_do(conn, monkeypatch):
    whole = literal_leg(conn, 'e', Filters(), 1_000)
    sizes = dict(conn.execute('select id, octet_length(body) from chunks').fetchall())
    assert len(whole) > 4 and [f.score for f in whole] == sorted((f.score for f in whole), reverse=True)
    monkeypatch.setattr(legs_module, 'WEIGHED', 3)
    few = literal_leg(conn, 'e', Filters(), 3)
    longest = sorted(sizes[f.chunk] for f in whole)[2]
    assert few == [f for f in whole if sizes[f.chunk] <= longest][:3]
    assert literal_leg(conn, 'e', Filters(), 1_000) == whole  # who asks for more gets more


MANY = """
insert into chunks (document_id, ordinal, repo, type, heading_path, heading, names, body, first_line, last_line, hosts, stale,
                    vector_id, tsv)
select (select min(id) from documents), 1000 + n, '', case when n % 3 = 0 then 'odd' else 'page' end, array['H'], 'H', '',
       'w' || n % 97 || repeat(' xyz' || n % 7, n * 7919 % 60), 1, 2, '{}', false, (select min(id) from vectors), ''
from generate_series(1, 3000) n; analyze chunks
"""


@pytest.mark.parametrize('filters', (Filters(), Filters(types=('odd',))))
def test_a_sample_decides_what_a_common_text_costs_and_not_what_is_found(conn, monkeypatch, filters):
    for statement in MANY.split(';'):
        conn.execute(statement)
    texts = ('xyz', 'xyz3', 'w5', 'w96', 'z', 'no such')
    monkeypatch.setattr(legs_module, 'MAY_BE_COMMON', 0)
    monkeypatch.setattr(legs_module, 'WEIGHED', 20)
    right = {text: literal_leg(conn, text, filters, 20) for text in texts}
    monkeypatch.setattr(legs_module, 'MAY_BE_COMMON', 8)
    assert {text: literal_leg(conn, text, filters, 20) for text in texts} == right
    brief = f'with {legs_module.FOUND_COMMON.strip().removesuffix(",")} select count(*) from brief'
    known = {'pattern': '%xyz%', 'weighed': 20} | filters.params()
    (read,) = conn.execute(brief.format(where=filters.where()), known).fetchone()
    assert 20 <= read < 300  # of thousands; the sample did save reading


def test_an_index_that_was_built_anew_in_between_is_noticed(conn, config):
    question = prepare_question(conn, 'database', 10, False, config).embedded(config, WordEmbedder())
    conn.execute("update meta set value = '\"test:another:64\"' where key = 'embed_model_id'")
    conn.commit()
    with pytest.raises(FailedError, match='ask again'), in_snapshot(conn):
        question.candidates(conn, Filters())


def test_a_search_that_began_before_a_rebuild_of_the_postings_sees_the_old_ones(conn, config):
    with connect(config.database, autocommit=True) as other, in_snapshot(conn):
        before = [f.chunk for f in bm25_leg(conn, 'database', Filters(), 5)]
        for statement in EMPTY_LEXICAL.split(';'):
            other.execute(statement)
        assert [f.chunk for f in bm25_leg(conn, 'database', Filters(), 5)] == before != []
        refresh_lexical(other)


def test_a_pointer_to_itself_or_to_a_superseded_section_names_nothing(database, tmp_path):
    page = (
        f'# P\n\n## Restore\n\n(superseded: see § Restore in other.md)\n\n{STEP}\n\n'
        '## Disk (2030-01-01)\n\n(superseded: see § Restore)\n\nold\n'
    )
    config = replace(load_config({}), repos=(RepoConfig('', record(tmp_path, {'p.md': page})),), database=database)
    ingest(config, embed=WordEmbedder())
    with connect(database) as conn:
        found = search(conn, 'restore disk', config=per_section(config), embed=WordEmbedder())
    assert [h.newer for h in found if h.stale] == [None, None]


def test_more_superseded_candidates_than_are_compared_lose_no_mark_of_what_is_shown(database, tmp_path):
    sections = ''.join(f'## Plan {n}\n\n(superseded: see § Now)\n\nplan number{n}\n\n' for n in range(70))
    pages = {'p.md': f'# P\n\n{sections}## Now\n\nDone.\n'}
    config = replace(load_config({}), repos=(RepoConfig('', record(tmp_path, pages)),), database=database)
    ingest(config, embed=WordEmbedder())
    with connect(database) as conn:
        found = search(conn, 'plan', k=50, config=per_section(config), embed=WordEmbedder())
    assert len([h for h in found if h.stale]) >= 49 and all(h.newer for h in found if h.stale)


def test_every_hit_says_what_placed_it(conn, config):
    found = search(conn, 'database quota low space', config=config, embed=WordEmbedder())
    assert found[0].reasons['margin'] == 1
    for hit in found:
        assert hit.score == pytest.approx(hit.reasons['fused'] * hit.reasons['factors'].product)
    (alert,) = [hit for hit in found if hit.path == 'alerts.md']
    assert alert.reasons['legs']['bm25'][0] == 1 and 'fulltext' not in alert.reasons['legs']
    assert sorted(hit.reasons['before'] for hit in found) == list(range(1, len(found) + 1))


def test_a_long_first_run_can_be_asked_before_it_ends(database, tmp_path, monkeypatch):
    class Tired(WordEmbedder):
        def embed_documents(self, texts):
            if len(self.calls) > 200:
                raise FailedError('the embedding server went away')
            return super().embed_documents(texts)

    monkeypatch.setattr(ingest_module, 'LISTED', 0.0)
    pages = {f'page{n}.md': f'# Page {n}\n\nsays marker{n} and more\n' for n in range(400)}
    config = replace(load_config({}), repos=(RepoConfig('', record(tmp_path, pages)),), database=database)
    with pytest.raises(FailedError):
        ingest(config, embed=Tired())
    with connect(database) as conn:
        written = [p for (p,) in conn.execute('select path from documents order by path').fetchall()]
        found = [
            p for p in written if bm25_leg(conn, 'marker' + p.removeprefix('page').removesuffix('.md'), Filters(), 5)
        ]
    assert 64 <= len(found) < 400
    ingest(config, embed=WordEmbedder())
    with connect(database) as conn:
        assert search(conn, 'marker399', config=config, embed=Down())[0].path == 'page399.md'
        assert conn.execute('select chunks from lexical_totals').fetchone() == (400,)


def test_the_postings_follow_every_edit(database, tmp_path):
    repo = record(tmp_path, {'a.md': '# A\n\nyellow\n', 'b.md': '# B\n\nyellow green\n'})
    config = replace(load_config({}), repos=(RepoConfig('', repo),), database=database)
    ingest(config, embed=WordEmbedder())
    (repo / 'a.md').write_text('# A\n\npurple\n')
    (repo / 'b.md').unlink()
    commit_all(repo, 'edit')
    ingest(config, embed=WordEmbedder())
    with connect(database) as conn:
        asked = {w: [f.chunk for f in bm25_leg(conn, w, Filters(), 5)] for w in ('yellow', 'green', 'purple')}
        assert (len(asked['yellow']), len(asked['green']), len(asked['purple'])) == (0, 0, 1)
        assert conn.execute('select count(*) from lexical_chunks').fetchone() == (1,)


BIG = 20_000
DIM = 16
FILL = """
insert into documents (repo, path, type, title, date, blob_sha, fingerprint, text, redactions, warnings)
select '', 'p' || n || '.md', case when n %% 100 = 0 then 'rare' else 'page' end, '', '2030-01-01', '', '', '', '{{}}', '[]'
from generate_series(0, %(big)s - 1) n order by n;
insert into vectors (text_sha, embedding) select int8send(n), array(
    select (hashtext(n || ':' || i) / 2147483648.0)::real from generate_series(1, {dim}) i)::vector
from generate_series(0, %(big)s - 1) n order by n;
insert into chunks (document_id, ordinal, repo, type, heading_path, heading, names, body, first_line, last_line, date, hosts,
                    stale, vector_id, tsv)
select d.id, 0, '', d.type, array['H'], 'H', '', 'w' || d.id %% 97 || 'x w' || d.id %% 1009 || 'y w' || d.id %% 7 || 'z', 1, 2, d.date,
       array['h' || d.id %% 50], false, d.id, to_tsvector('simple', '') from documents d
"""
FAR = """
update chunks set repo = 'far' where vector_id in (select id from vectors order by embedding <=> %(q)s::vector desc limit 4800)
"""
GRAPH = (
    f'create index vectors_hnsw on vectors using hnsw ((embedding::halfvec({DIM})) halfvec_cosine_ops) '
    'with (m = 4, ef_construction = 16)'
)


@pytest.mark.slow
def test_a_filter_of_one_percent_among_20_000_starves_no_leg(database):
    if database.url:
        pytest.skip('half a minute, and no different there: the embedded server shows it')
    with connect(database, autocommit=True) as conn:
        create_schema(conn, database.schema)
        create_tables(conn, 'test:hash:16', DIM)
        for statement in FILL.format(dim=DIM).split(';\n'):
            psycopg.ClientCursor(conn).execute(statement, {'big': BIG})
        refresh_lexical(conn)
        conn.execute(GRAPH)  # coarse, because building the real one takes minutes
        assert has_hnsw(conn)
        conn.execute('analyze')
        query = unit([1.0, -0.5] * (DIM // 2))
        conn.execute(FAR, {'q': str(list(query))})
        for filters in (
            Filters(types=('rare',)),
            Filters(hosts=('h7',)),
            Filters(types=('rare',), hosts=('h1', 'h0')),
        ):
            exact = true_nearest(conn, query, filters, 80)
            assert [f.chunk for f in vector_leg(conn, query, filters, 80)] == exact
            graph = vector_leg(conn, query, filters, 80, exact_limit=0)
            assert len(graph) == len(exact)
            best = bm25_leg(conn, 'w5x w77y w3z', filters, 80)
            wide = bm25_leg(conn, 'w5x w77y w3z', Filters(), 20_000)
            allowed = set(true_nearest(conn, query, filters, BIG))
            assert [round(f.score, 4) for f in best] == [round(f.score, 4) for f in wide if f.chunk in allowed][:80]
        far = Filters(repos=('far',))  # all that passes lies on the other side, where no walk from the question comes
        assert [f.chunk for f in vector_leg(conn, query, far, 80)] == true_nearest(conn, query, far, 80)
        assert len(vector_leg(conn, query, far, 80, exact_limit=0)) == 80


def true_nearest(conn, query, filters, limit):
    "The nearest by a scan, index switched off."
    with conn.transaction():
        conn.execute('set local enable_indexscan = off')
        rows = conn.execute(
            f'select c.id from chunks c join vectors v on v.id = c.vector_id join documents d on d.id = c.document_id '
            f'where true {filters.where()} order by v.embedding <=> %(q)s::vector, d.path limit %(limit)s',
            filters.params() | {'q': str(list(query)), 'limit': limit},
        )
        return [i for (i,) in rows.fetchall()]
