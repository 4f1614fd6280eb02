"The lexical leg across its table: against BM25 added up by hand in Python, across refreshes, and under any question."

import math
import random
from collections.abc import Iterator
from time import process_time

import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from merlin.database import connect
from merlin.lexical import (
    BLOCK,
    BODY,
    EMPTY_LEXICAL,
    HEADING,
    K1,
    B,
    add_block,
    best_chunks,
    count_few,
    count_many,
    cut_segment,
    make_entry,
    question_terms,
    read,
    refresh_lexical,
    take_block,
    tokens,
    tokens_of,
)
from merlin.store import LEXICAL_TABLES
from merlin.testing import scratch

CHUNKS = '''
create table documents (id bigint primary key, path text);
insert into documents values (1, 'page.md');
create table chunks_gone (chunk bigint, vector_id bigint);
create table chunks (id bigint primary key, heading_path text[], body text, type text, names text default '', document_id bigint default 1, ordinal bigint);
'''
NUMBERS = [f'q{chr(97 + n // 26)}{chr(97 + n % 26)}x' for n in range(200)]  # words that no stemmer changes


@pytest.fixture(scope='module')
def conn() -> Iterator[psycopg.Connection]:
    "A schema with a chunks table of the columns that matter here."
    with scratch() as config, connect(config.database, autocommit=True) as connection:
        connection.execute(f'create schema "{config.database.schema}"')
        connection.execute(CHUNKS)
        connection.execute(LEXICAL_TABLES)
        yield connection


def fill(conn: psycopg.Connection, sections: dict[int, tuple[str, str, str]]) -> None:
    "Make chunks hold exactly these sections: id -> heading, body, type."
    conn.execute('truncate chunks')
    with conn.cursor() as cur:
        rows = [(i, [heading], body, kind) for i, (heading, body, kind) in sections.items()]
        cur.executemany('insert into chunks values (%s, %s, %s, %s)', rows)
    conn.execute('update chunks set ordinal = id')


def anew(conn: psycopg.Connection, sections: dict[int, tuple[str, str, str]]) -> None:
    "The same, with postings built from nothing: the tests reuse ids, which a real index never does."
    fill(conn, sections)
    conn.execute(EMPTY_LEXICAL)
    refresh_lexical(conn)


def synthetic(count: int, seed: int, first: int = 1) -> dict[int, tuple[str, str, str]]:
    "Sections of made-up words, the common ones very common."
    rnd = random.Random(seed)

    def some(low, high):
        return ' '.join(NUMBERS[min(199, int(rnd.paretovariate(0.5)) - 1)] for _ in range(rnd.randint(low, high)))

    return {i: (some(1, 3), some(3, 60), 'rare' if i % 97 == 0 else 'page') for i in range(first, first + count)}


def bm25(sections: dict[int, tuple[str, str, str]], query: str) -> list[tuple[int, float]]:
    "The formula, by the book."
    words = {i: (h.split(), b.split()) for i, (h, b, _) in sections.items()}
    lengths = {i: round(len(h) * HEADING / BODY + len(b)) for i, (h, b) in words.items()}
    mean = sum(lengths.values()) / len(lengths)
    scores = dict.fromkeys(words, 0.0)
    for term in set(query.split()):
        df = sum(term in h or term in b for h, b in words.values())
        for i, (h, b) in words.items():
            if tf := h.count(term) * HEADING / BODY + b.count(term):
                idf = math.log(1 + (len(words) - df + 0.5) / (df + 0.5))
                scores[i] += idf * tf * (K1 + 1) / (tf + K1 * (1 - B + B * lengths[i] / mean))
    return sorted(((i, s) for i, s in scores.items() if s), key=lambda t: (-t[1], t[0]))


def state(conn: psycopg.Connection) -> tuple[list, list]:
    "Postings and totals, in an order of their own."
    statement = (
        'select term, block, array(select unnest(entries) order by 1) from lexical_postings order by term, block'
    )
    return conn.execute(statement).fetchall(), conn.execute('select * from lexical_totals').fetchall()


def test_scores_are_those_of_the_formula(conn):
    sections = synthetic(2 * BLOCK + 100, 1)
    anew(conn, sections)
    for query in ('qabx qacx', 'qaax', 'qazx qbbx qagx qaax qaax', 'qhrx'):
        expected = bm25(sections, query)[:30]
        found = best_chunks(conn, query, 30)
        assert [s for _, s, _ in found] == pytest.approx([s for _, s in expected], abs=2e-5)
        assert {i for i, s, _ in found if s > found[-1][1] + 1e-3} <= {i for i, _ in expected}


def test_a_narrow_filter_is_answered_exactly(conn):
    sections = synthetic(2 * BLOCK + 100, 1)
    anew(conn, sections)
    rare = [i for i, (_, _, kind) in sections.items() if kind == 'rare']
    found = best_chunks(
        conn, 'qaax qabx qalx', 100, where=' and c.type = any(%(types)s)', params={'types': ['rare']}, wide=1, narrow=1
    )
    expected = [(i, s) for i, s in bm25(sections, 'qaax qabx qalx') if i in rare]
    assert sorted(i for i, *_ in found) == sorted(i for i, _ in expected)
    assert [s for _, s, _ in found] == pytest.approx([s for _, s in expected], abs=2e-5)


def test_refreshing_step_by_step_equals_building_anew(conn):
    rnd = random.Random(2)
    sections = synthetic(BLOCK + 300, 3)
    anew(conn, sections)
    following = 10_000
    for _ in range(4):
        for i in rnd.sample(sorted(sections), 7):
            del sections[i]
        sections |= synthetic(9, following, following)
        following += 9
        fill(conn, sections)
        assert refresh_lexical(conn, whole=True) == (9, 7)
    stepwise = state(conn)
    anew(conn, sections)
    assert state(conn) == stepwise


def test_a_run_that_died_between_blocks_is_finished_by_the_next(conn):
    sections = synthetic(BLOCK + 50, 4)
    anew(conn, sections)
    whole = state(conn)
    take_block(conn, 0, [5, 6, 7])
    add_block(conn, 0, [6], 'english', {})
    assert state(conn) != whole
    assert refresh_lexical(conn, whole=True) == (2, 0)
    assert state(conn) == whole


def test_most_of_the_index_replaced_starts_over(conn):
    anew(conn, synthetic(2 * BLOCK, 5))
    sections = synthetic(2 * BLOCK, 6, 50_001)
    fill(conn, sections)
    refresh_lexical(conn, whole=True)
    assert conn.execute('select chunks from lexical_totals').fetchone() == (2 * BLOCK,)
    assert best_chunks(conn, 'qabx', 5)[0][1] == pytest.approx(bm25(sections, 'qabx')[0][1], abs=2e-5)


def test_ties_go_by_path_and_order_every_time(conn):
    anew(conn, dict.fromkeys(range(1, 3 * BLOCK), ('same', 'words here', 'page')))
    conn.execute("insert into documents values (2, 'another.md') on conflict do nothing")
    conn.execute('update chunks set document_id = 2 where id > 2000')
    for _ in range(3):
        assert [i for i, *_ in best_chunks(conn, 'same words', 50)] == list(range(2001, 2051)), (
            'another.md before page.md'
        )


@pytest.mark.parametrize(
    'query',
    [
        'etcdDatabaseQuotaLowSpace', 'ETCDDATABASEQUOTALOWSPACE', 'quota', 'node_filesystem_avail_bytes', 'filesystem',
        '--max-old-space-size', 'maxOldSpaceSize', '/etc/nginx/conf.d/x.conf', 'x.conf', '10.0.0.12', '10.0.0',
        'DEC-0054', 'dec0054', 'NGINX.service', 'ERR_CONNECTION_RESET', 'connection reset', 'read-only', 'readonly',
        'Größe', 'groesse', 'GROSSE', 'cafe', 'CAFÉ', '全文検索', '検索', 'サーバ', '검색',
    ],
)  # fmt: skip
def test_identifiers_and_other_scripts_are_found_whole_by_part_and_in_any_case(conn, query):
    told = (
        'etcdDatabaseQuotaLowSpace and node_filesystem_avail_bytes; start with --max-old-space-size=4096 as in '
        '/etc/nginx/conf.d/x.conf on 10.0.0.12. See DEC-0054, nginx.service: ERR_CONNECTION_RESET, then read-only. '
        'Die Größe im Café. 全文検索サーバー 검색엔진'
    )
    anew(conn, {1: ('Other', 'nothing of it', 'page'), 2: ('Telling', told, 'page')})
    assert [i for i, *_ in best_chunks(conn, query, 5)] == [2]


@settings(derandomize=True, deadline=None, max_examples=80)
@given(st.text(max_size=300))
def test_no_question_breaks_it(conn, query):
    assert isinstance(best_chunks(conn, query, 5), list)


@pytest.mark.parametrize('query', ['-' * 50_000, '\0', '\ud800', '🎉🎉', 'the of and', '"', 'a OR', "it's & | !", '%s'])
def test_a_question_without_words_finds_nothing(conn, query):
    anew(conn, {1: ('Other', 'nothing of it', 'page')})
    assert best_chunks(conn, query, 5) == []


def test_the_most_that_could_be_said_bounds_every_score(conn):
    anew(conn, {1: ('qabx', 'qabx ' * 60, 'page'), 2: ('Other', 'qacx nothing', 'page')})
    (_, score, most), *_ = best_chunks(conn, 'qabx qacx', 5)
    assert 0.4 < score / most < 0.6, 'nearly all of one of two words that are equally rare'
    assert best_chunks(conn, 'qabx qzzx', 5)[0][2] > most, 'a word that nobody says counts towards the most'


def test_a_long_question_reads_only_its_rarest_words(conn):
    anew(conn, synthetic(BLOCK, 7))
    long = ' '.join(NUMBERS)
    assert len(question_terms(long)) == len(NUMBERS)
    assert 0 < len(best_chunks(conn, long, 50, budget=20)) <= 20


def test_a_long_row_of_numbers_costs_no_more_than_its_length():
    begin = process_time()
    terms, count = cut_segment('.'.join(['1'] * 40_000))  # a dump, an identifier; was 17 s and gigabytes
    assert process_time() - begin < 1 and count == 40_000 and max(map(len, terms)) == 80


SAID = 'disk-full_of/beta.lan Größe CamelCaseName v1.2.3 10.0.0.8 密码已满 the The ﬁ e\u0301 x_y__z a::b NASA \u0130x'.split(
    ' '
)
SPOKEN = st.lists(st.one_of(st.sampled_from(SAID), st.text(max_size=4)), max_size=30).map(' '.join)


@settings(derandomize=True, deadline=None, max_examples=150)
@given(st.lists(st.tuples(SPOKEN, SPOKEN, st.integers(1, 200)), min_size=1, max_size=6))
def test_many_sections_are_counted_as_a_few_are(sections):
    texts = [
        (BLOCK * 3 + n, tokens(heading), tokens(body) * often) for n, (heading, body, often) in enumerate(sections)
    ]
    entries = {token: make_entry(read(token), {'the': None}) for token in tokens_of(texts)}
    postings, lengths = count_many(texts, entries)
    assert (list(postings), lengths) == tuple(count_few(texts, entries))
