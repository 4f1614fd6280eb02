"""Rows about search: the whole of it beside its legs, filters, recall, the text itself, and what the graph takes."""

from array import array
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from random import Random
from statistics import quantiles
from typing import Any

import psycopg
from bench_lab import Index, Lab
from bench_rounds import Side, Skipped, Times, Trial
from bench_sections import DIM, HOSTS, Asked, Question, Sections, questions

from merlin.legs import Filters, bm25_leg, fulltext_leg, like_pattern, literal_leg, vector_leg
from merlin.search import ONE_SNAPSHOT, leg_limit, search
from merlin.store import vector_text

K = 10
WANTED, ASKED = 50, 20  # rows of a leg; questions of a round
WARM = 10  # questions that go before


STORED = """
select pg_total_relation_size('lexical_postings') + pg_total_relation_size('lexical_chunks'),
       (select sum(pg_column_size(tsv)) from chunks) + pg_relation_size('chunks_tsv')
"""


def p95(values: Sequence[float]) -> float:
    "Nineteen of twenty are below it."
    return quantiles(values, n=20, method='inclusive')[-1] if len(values) > 1 else values[0]


def whole_search(lab: Lab, sections: int) -> Trial:
    "A question a round, the embedder's answer given, beside its own legs' SQL and nothing else."
    index = lab.sections(sections)
    conn, config = index.conn, lab.config(index)
    asked = questions(conn, 400)
    for question in asked[-WARM:]:
        search(conn, question.query, K, config=config, embed=Asked(question.vector))
    mine, bare = iter(asked), iter(asked)

    def ours() -> None:
        question = next(mine)
        search(conn, question.query, K, config=config, embed=Asked(question.vector))

    def counters(ours: Times, floor: Times) -> dict[str, Any]:
        slow, least = p95(ours.wall), p95(floor.wall)
        lexical, fulltext = conn.execute(STORED).fetchone()
        return {
            'p95_ms': round(1000 * slow, 1), 'p95_floor_ms': round(1000 * least, 1), 'p95_ratio': round(slow / least, 2),
            'stored_bm25': round(lexical / float(fulltext), 2),  # by what full text keeps
        }  # fmt: skip

    return Trial(Side(ours), Side(lambda: legs(conn, next(bare))), counters, (index.server,))


def legs(conn: psycopg.Connection, question: Question) -> None:
    "The legs' SQL, as search asks them."
    with conn.transaction():
        conn.execute(ONE_SNAPSHOT)
        vector_leg(conn, question.vector, Filters(), leg_limit(K))
        fulltext_leg(conn, question.query, Filters(), leg_limit(K))
        bm25_leg(conn, question.query, Filters(), leg_limit(K))


def share_found(found: Sequence[Sequence[int]], right: Sequence[Sequence[int]]) -> float:
    "recall@10."
    hits = sum(len(set(f[:K]) & set(r[:K])) for f, r in zip(found, right, strict=True))
    return round(hits / sum(len(r[:K]) for r in right), 4)


def rows(conn: psycopg.Connection, statement: str, vector: array, filters: Filters) -> list[tuple]:
    "What a statement over vectors finds."
    return conn.execute(statement, filters.params() | {'vector': vector_text(vector), 'limit': WANTED}).fetchall()


def ids(found: Sequence[tuple]) -> list[int]:
    return [row[0] for row in found]


def exactly(conn: psycopg.Connection, asked: Sequence[tuple[array, Filters]]) -> list[list[int]]:
    "The right answers."
    return [ids(rows(conn, EXACT.format(where=filters.where()), vector, filters)) for vector, filters in asked]


EXACT = """
select c.id from vectors v join chunks c on c.vector_id = v.id
where true {where} order by (v.embedding <=> %(vector)s::vector) + 0 limit %(limit)s
"""
FORCED = """
set local enable_seqscan = off; set local enable_bitmapscan = off; set local enable_sort = off;
set local hnsw.ef_search = {ef}; set local hnsw.iterative_scan = 'relaxed_order'
"""
GRAPH = """
select c.id from vectors v join chunks c on c.vector_id = v.id
where true {where} order by {distance} limit %(limit)s
"""
FULL = 'v.embedding <=> %(vector)s::vector'
HALF = f'(v.embedding::halfvec({DIM})) <=> %(vector)s::halfvec({DIM})'


def distance(conn: psycopg.Connection) -> str:
    "The expression that merlin's own graph is over."
    found = conn.execute("select pg_get_indexdef(to_regclass('vectors_hnsw'))").fetchone()[0]
    if not found:
        raise Skipped('there is no graph; it is built from some thousands of sections on')
    return HALF if 'halfvec' in found else FULL


def graph_rows(
    conn: psycopg.Connection, asked: Sequence[tuple[array, Filters]], distance: str, ef: int = 100, first: str = ''
) -> list[list[Any]]:
    "What the graph finds for each, its use forced."
    with conn.transaction():
        conn.execute(FORCED.format(ef=ef))
        return [
            ids(rows(conn, first + GRAPH.format(where=filters.where(), distance=distance), vector, filters))
            for vector, filters in asked
        ]


def check_plan(conn: psycopg.Connection, asked: Sequence[tuple[array, Filters]], distance: str, index: str) -> None:
    "Raises SystemExit where Postgres does not use the graph."
    if not any(index in line for plan in graph_rows(conn, asked[:1], distance, first='explain ') for line in plan):
        raise SystemExit(f'Postgres answers without {index}')


def asked_vectors(index: Index, filters: Callable[[Random], Filters]) -> list[tuple[array, Filters]]:
    "Questions of a round, the same for the same index."
    maker = Sections(31)
    return [(maker.vector(), filters(maker.rnd)) for _ in range(ASKED)]


def filtered(lab: Lab, sections: int) -> Trial:
    "The vector leg under a filter that one section in a hundred passes, against the graph with the same filter."
    index = lab.sections(sections)
    conn, graph = index.conn, distance(index.conn)
    asked = asked_vectors(index, lambda rnd: Filters(hosts=(f'host{rnd.randrange(HOSTS)}',)))
    check_plan(conn, asked, graph, 'vectors_hnsw')

    def ours() -> list[list[int]]:
        return [[f.chunk for f in vector_leg(conn, *question, WANTED)] for question in asked]

    def counters(*times: Times) -> dict[str, Any]:
        right, found, other = exactly(conn, asked), ours(), graph_rows(conn, asked, graph)
        missing = sum(max(0, len(r) - len(f)) for f, r in zip(found, right, strict=True))
        return {
            'recall': share_found(found, right), 'recall_floor': share_found(other, right), 'missing': missing,
            'rows_floor': min(map(len, other)), 'matching': min(map(len, right)),
        }  # fmt: skip

    return Trial(Side(ours), Side(lambda: graph_rows(conn, asked, graph)), counters, (index.server,))


def recall(lab: Lab, sections: int) -> Trial:
    "The vector leg without a filter, against the exact scan."
    index = lab.sections(sections)
    conn, asked = index.conn, asked_vectors(index, lambda rnd: Filters())

    def ours() -> list[list[int]]:
        return [[f.chunk for f in vector_leg(conn, *question, WANTED)] for question in asked]

    def counters(*times: Times) -> dict[str, Any]:
        return {'recall': share_found(ours(), exactly(conn, asked))}

    return Trial(Side(ours), Side(lambda: exactly(conn, asked)), counters, (index.server,))


FULL_GRAPH = """
drop table if exists bench_full_graph;
create table bench_full_graph (id bigint, embedding vector({dim}));
alter table bench_full_graph alter embedding set storage plain;
insert into bench_full_graph select id, embedding from vectors order by id;
set maintenance_work_mem = '1GB';
create index bench_full_hnsw on bench_full_graph using hnsw (embedding vector_cosine_ops);
reset maintenance_work_mem; vacuum analyze bench_full_graph
"""
NEAREST = 'select v.id from {table} v order by {distance} limit %(limit)s'


@contextmanager
def full_graph(conn: psycopg.Connection):
    "A table with the same vectors and a graph of full precision, for the length of the block."
    for statement in FULL_GRAPH.format(dim=DIM).split(';'):
        conn.execute(statement)
    try:
        yield 'bench_full_graph'
    finally:
        conn.execute('drop table bench_full_graph')


def nearest(conn: psycopg.Connection, table: str, distance: str, asked: Sequence[array], ef: int) -> list[list[int]]:
    "Vectors by the graph of a table; by a scan where `ef` is 0."
    how = FORCED.format(ef=ef) if ef else 'set local enable_indexscan = off'
    with conn.transaction():
        conn.execute(how)
        return [ids(rows(conn, NEAREST.format(table=table, distance=distance), vector, Filters())) for vector in asked]


def index_size(lab: Lab, sections: int) -> Trial:
    "Bytes of the graph beside those of the vectors, and what recall its precision costs."
    conn = lab.sections(sections).conn
    ours, maker = distance(conn), Sections(37)
    asked = [maker.vector() for _ in range(10 * ASKED)]
    right = nearest(conn, 'vectors', FULL, asked, 0)
    found = share_found(nearest(conn, 'vectors', ours, asked, 200), right)
    with full_graph(conn) as table:
        best = share_found(nearest(conn, table, FULL, asked, 200), right)

    def megabytes(statement: str) -> float:
        return float(conn.execute(statement).fetchone()[0]) / 1e6

    size = Side(lambda: megabytes("select pg_relation_size('vectors_hnsw')"))
    raw = Side(lambda: megabytes(f'select count(*) * {4 * DIM} from vectors'))
    return Trial(
        size, raw, lambda *times: {'recall': found, 'recall_full': best, 'recall_loss': round(best - found, 4)}
    )


ILIKE = r"select c.id from chunks c where (c.heading || E'\n' || c.names || E'\n' || c.body) ilike %s"
NO_INDEX = 'set local enable_bitmapscan = off; set local enable_indexscan = off'
LENGTHS = (3, 5, 9, 24)


def patterns(conn: psycopg.Connection, rnd: Random) -> list[str]:
    "What people paste, from 3 to 24 characters of a line; none is blank at its ends."
    sample = 'select body from chunks where length(body) > 60 order by id limit 2000'
    bodies, out = [body for (body,) in conn.execute(sample)], []
    while len(out) < ASKED:
        size, body = LENGTHS[len(out) % len(LENGTHS)], rnd.choice(bodies)
        at = rnd.randrange(len(body) - size)
        text = body[at : at + size]
        if text == text.strip() and '\n' not in text:
            out.append(text)
    return out


def exact(lab: Lab, files: int) -> Trial:
    "The literal leg against a sequential scan, each for all texts in a transaction."
    index = lab.index(files)
    conn = index.conn
    conn.execute('vacuum analyze chunks')  # as the server does by itself some minutes after a whole ingest
    asked = patterns(conn, Random(17))

    def scan() -> list[set[int]]:
        with conn.transaction():
            conn.execute(NO_INDEX)
            return [{row[0] for row in conn.execute(ILIKE, (like_pattern(p),))} for p in asked]

    def leg(limit: int = WANTED) -> list[set[int]]:
        with conn.transaction():  # as search asks its legs
            return [{found.chunk for found in literal_leg(conn, p, Filters(), limit)} for p in asked]

    def counters(*times: Times) -> dict[str, Any]:
        found, few, right = leg(1_000_000), leg(), scan()
        same = found == right and all(f <= r and len(f) == min(WANTED, len(r)) for f, r in zip(few, right, strict=True))
        sizes = {n: sum(len(r) for p, r in zip(asked, right, strict=True) if len(p) == n) for n in LENGTHS}
        return {'same_rows': int(same), **{f'rows_{n}': rows for n, rows in sizes.items()}}

    return Trial(Side(leg), Side(scan), counters, (index.server,))
