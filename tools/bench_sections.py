"""An index of made-up sections in a throwaway schema, and questions for it: search without a record or an embedder.

Words follow a Zipf law over 150,000, lengths are log-normal (mean about 110 words), one section in a hundred names a
certain host and one is superseded. Vectors lie in 200 clusters, and their variance falls off over the dimensions as it
does in real ones: the 1,969 vectors of a public record embedded with all-MiniLM-L6-v2 have 68 effective dimensions
(the squared sum of the variances by the sum of their squares) of 384, these about 60. A graph finds its way among
vectors without that fall much worse than among real ones.
"""

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, timedelta
from itertools import islice

import numpy as np
import psycopg
from bench_record import Pages

from merlin.chunk import Chunk
from merlin.config import Config
from merlin.database import prepare
from merlin.lexical import refresh_lexical
from merlin.store import (
    Record,
    build_hnsw,
    build_text_indexes,
    create_schema,
    create_tables,
    text_sha,
    write_documents,
    write_meta,
)

DIM, VOCABULARY, CLUSTERS = 384, 150_000, 200
SPREAD = (np.arange(DIM) + 3) ** -0.5  # standard deviation of each dimension
NEAR = 1.2  # of a cluster's centre in its vectors
SECTIONS, TOGETHER = 11, 100  # of a document; documents that are written at once
TYPES = ('journal', 'host', 'runbook', 'memory', 'page')
GAP = 0.48  # that of all-MiniLM-L6-v2
HOSTS = 100  # each named by one section in a hundred


class Sections(Pages):
    "Sections without end, the same for the same seed."

    def __init__(self, seed: int = 7) -> None:
        super().__init__(seed, vocabulary=VOCABULARY)
        self.normal = np.random.default_rng(seed)
        self.centres = np.random.default_rng(CLUSTERS).standard_normal((CLUSTERS, DIM)) * SPREAD  # for every seed

    def vector(self) -> array:
        "A unit vector near one of the centres."
        there = NEAR * self.centres[self.normal.integers(CLUSTERS)]
        there = there + self.normal.standard_normal(DIM) * SPREAD
        return array('f', (there / np.linalg.norm(there)).astype('f').tobytes())

    def section_of_page(self, n: int) -> Chunk:
        "The n-th section of a page."
        body = self.say(max(8, min(900, int(self.rnd.lognormvariate(4.5, 0.7)))))
        day = date(2026, 1, 1) + timedelta(days=self.rnd.randrange(1000))
        host = (f'host{self.rnd.randrange(HOSTS)}',)
        return Chunk(
            (self.say(2), self.say(2)), body, n * 20 + 1, n * 20 + 20, day, host, self.rnd.random() < 0.01, body
        )

    def document(self, n: int, sections: int) -> Record:
        "The n-th document."
        kind, chunks = TYPES[n % len(TYPES)], [self.section_of_page(i) for i in range(sections)]
        path, dated = f'{kind}/{n:07}.md', chunks[0].date
        return Record('', path, kind, 'T', dated, 0, '', '', None, '', '', {}, (), chunks)


def documents(maker: Sections, sections: int) -> Iterator[Record]:
    "So many sections in documents."
    for n, first in enumerate(range(0, sections, SECTIONS)):
        yield maker.document(n, min(SECTIONS, sections - first))


def write_sections(conn: psycopg.Connection, config: Config, sections: int) -> None:
    "Fill the schema of this configuration."
    maker = Sections()
    create_schema(conn, config.database.schema)
    server = prepare(conn)
    create_tables(conn, f'test:made-up:{DIM}', DIM)
    write_meta(conn, {'gap': GAP, 'state': None})
    made = documents(maker, sections)
    while some := list(islice(made, TOGETHER)):
        vectors = {text_sha(c.embed_text): maker.vector() for record in some for c in record.chunks}
        write_documents(conn, some, vectors, 'english')
    refresh_lexical(conn)
    build_text_indexes(conn, server.trgm)
    build_hnsw(conn, DIM, server.parallel_build)
    conn.execute('vacuum analyze')
    write_meta(conn, {'sections': sections})


class Asked:
    "An embedder whose one answer was made before; it stands in for a model in the process that is measured."

    identity, dim, batch, truncated, windowed = f'test:made-up:{DIM}', DIM, 1, 0, 0

    def __init__(self, vector: array) -> None:
        self.vector = vector

    def embed_query(self, text: str) -> array:
        return self.vector


@dataclass(frozen=True)
class Question:
    "Words that sections hold, and a vector."

    query: str
    vector: array


def questions(conn: psycopg.Connection, count: int, seed: int = 29) -> list[Question]:
    "4 to 12 words each, drawn from the sections, so that common words come as often as they do."
    maker = Sections(seed)
    bodies = [body.split() for (body,) in conn.execute('select body from chunks order by id limit 4000')]
    pool = [word for body in maker.rnd.sample(bodies, min(400, len(bodies))) for word in body]
    return [
        Question(' '.join(maker.rnd.choices(pool, k=maker.rnd.randint(4, 12))), maker.vector()) for _ in range(count)
    ]
