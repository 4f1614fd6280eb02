"""How long a search takes as the record grows, beside its own legs' SQL run bare; the embedder is left out.

    python tools/latency.py SECTIONS...            # for example 10000 50000

Each size gets a throwaway index of made-up sections: words by a Zipf law over 150,000, lengths log-normal (mean about
110 words), unit vectors in clusters. Questions have 4 to 12 words drawn from the sections. Search and bare legs take
turns on the same questions, either being first on every second one. Storage compares what the BM25 leg keeps with tsvectors and their GIN index.
"""

import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from array import array
from datetime import date, timedelta
from itertools import accumulate

from merlin.chunk import Chunk
from merlin.config import load_config
from merlin.database import connect, prepare
from merlin.embed import LEAST_GAP
from merlin.legs import Filters, bm25_leg, fulltext_leg, vector_leg
from merlin.lexical import refresh_lexical
from merlin.search import ONE_SNAPSHOT, search
from merlin.store import (
    Record,
    build_hnsw,
    create_schema,
    create_tables,
    text_sha,
    write_document,
    write_meta,
)
from merlin.vectors import unit

DIM, VOCABULARY, ASKED, SECTIONS = 384, 150_000, 150, 11
SYLLABLES = 'ba ko ri ten mu sor lin dak ve pro con al net gra fi tor'.split()
STORAGE = """
select pg_total_relation_size('lexical_postings') + pg_total_relation_size('lexical_chunks'),
       (select sum(pg_column_size(tsv)) from chunks) + pg_relation_size('chunks_tsv')
"""


def word(n: int) -> str:
    "The n-th word of the made-up language."
    out, n = '', n + 1
    while n:
        out, n = out + SYLLABLES[n % 16], n // 16
    return out


class Maker:
    "Sections without end, the same for the same seed."

    def __init__(self, seed: int = 7) -> None:
        self.rnd = random.Random(seed)
        self.words = [word(n) for n in range(VOCABULARY)]
        self.weights = list(accumulate(1 / (n + 6) ** 1.05 for n in range(VOCABULARY)))
        self.centres = [self.noise() for _ in range(200)]

    def noise(self) -> list[float]:
        return [self.rnd.gauss(0, 1) for _ in range(DIM)]

    def text(self, count: int) -> str:
        return ' '.join(self.rnd.choices(self.words, cum_weights=self.weights, k=count))

    def vector(self) -> array:
        centre = self.rnd.choice(self.centres)
        return unit([0.5 * c + x for c, x in zip(centre, self.noise(), strict=True)])

    def chunk(self, n: int) -> Chunk:
        body = self.text(max(8, min(900, int(self.rnd.lognormvariate(4.5, 0.7)))))
        day = date(2026, 1, 1) + timedelta(days=self.rnd.randrange(1000))
        host = (f'host{self.rnd.randrange(100)}',)
        heading = (self.text(2), self.text(2))
        return Chunk(heading, body, n * 20 + 1, n * 20 + 20, day, host, self.rnd.random() < 0.01, body)


def write_index(conn, config, sections: int) -> Maker:
    "Fill the index."
    maker, types = Maker(), ('journal', 'host', 'runbook', 'memory', 'page')
    create_schema(conn, config.database.schema)
    create_tables(conn, f'test:made-up:{DIM}', DIM, prepare(conn).trgm)
    write_meta(conn, {'gap': max(LEAST_GAP, 0.48), 'state': None})
    for n in range(0, sections, SECTIONS):
        chunks = [maker.chunk(i) for i in range(min(SECTIONS, sections - n))]
        kind = types[n // SECTIONS % 5]
        record = Record('', f'{kind}/{n:07}.md', kind, 'T', chunks[0].date, 0, '', '', None, '', '', {}, (), chunks)
        write_document(conn, record, {text_sha(c.embed_text): maker.vector() for c in chunks}, 'english')
    refresh_lexical(conn)
    build_hnsw(conn, DIM, True)
    conn.execute('vacuum analyze')
    return maker


class Ready:
    "An embedder whose answer was made before."

    identity, dim, batch, truncated, windowed = f'test:made-up:{DIM}', DIM, 1, 0, 0

    def embed_query(self, text: str) -> array:
        return self.vector

    def ask(self, vector: array) -> 'Ready':
        self.vector = vector
        return self


def bare(conn, query: str, vector: array) -> None:
    "The legs' SQL and nothing else."
    with conn.transaction():
        conn.execute(ONE_SNAPSHOT)
        vector_leg(conn, vector, Filters(), 80)
        fulltext_leg(conn, query, Filters(), 80)
        bm25_leg(conn, query, Filters(), 80)


def timed(function, *args, **kwargs) -> float:
    "Milliseconds of one call."
    begin = time.perf_counter()
    function(*args, **kwargs)
    return 1000 * (time.perf_counter() - begin)


def measure(sections: int) -> None:
    "One row of the table."
    home = tempfile.mkdtemp(prefix='merlin-latency-')
    config = load_config({'MERLIN_HOME': home, 'REPO_DIR': home})
    embed = Ready()
    with connect(config.database) as conn:
        maker = write_index(conn, config, sections)
        bodies = [b.split() for (b,) in conn.execute('select body from chunks order by id limit 4000')]
        pool = [w for body in maker.rnd.sample(bodies, min(400, len(bodies))) for w in body]
        asked = [(' '.join(maker.rnd.choices(pool, k=maker.rnd.randint(4, 12))), maker.vector()) for _ in range(ASKED)]
        for query, vector in asked[:10]:
            search(conn, query, config=config, embed=embed.ask(vector))
        whole, legs = [], []
        for n, (query, vector) in enumerate(asked):
            own = {'config': config, 'embed': embed.ask(vector)}
            turns = [(whole, search, (conn, query), own), (legs, bare, (conn, query, vector), {})]
            for times, call, args, kwargs in turns if n % 2 else turns[::-1]:  # the second one finds the pages warm
                times.append(timed(call, *args, **kwargs))
        lexical, fulltext = conn.execute(STORAGE).fetchone()
    p95 = lambda values: sorted(values)[int(0.95 * len(values))]  # noqa: E731
    ratio = statistics.median(whole) / statistics.median(legs)
    print(
        f'| {sections:,} | {statistics.median(whole):.0f} | {p95(whole):.0f} | {statistics.median(legs):.0f} '
        f'| {p95(legs):.0f} | {ratio:.2f} | {lexical / float(fulltext):.2f} |'
    )
    env = {**os.environ, 'MERLIN_HOME': home}
    subprocess.run([sys.executable, '-m', 'merlin.database', 'stop'], env=env, capture_output=True)
    shutil.rmtree(home, ignore_errors=True)


if __name__ == '__main__':
    if len(sys.argv) < 2 or not all(a.isdigit() for a in sys.argv[1:]):
        raise SystemExit(__doc__)
    print(
        '| sections | search p50 ms | p95 ms | bare legs p50 ms | p95 ms | ratio p50 | stored, BM25 / (tsvector + GIN) |'
    )
    print('|---|---|---|---|---|---|---|')
    for size in sys.argv[1:]:
        measure(int(size))
