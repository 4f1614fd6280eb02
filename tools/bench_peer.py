"""A search library that people use instead, as a process of its own; runs in an environment that merlin is not in.

    python bench_peer.py NAME index FOLDER REPO      # FOLDER/texts.json and vectors.f32 into FOLDER/NAME
    python bench_peer.py NAME again FOLDER REPO      # the run that finds nothing new: open it, ask git for the head
    python bench_peer.py NAME serve FOLDER           # a question a line, an answer a line, then the most memory held

NAME is fts5 (SQLite's), bm25s, lancedb, or merlin itself, which has its index already: it is asked through the same lines.
Each gives the numbers of the ten best texts. A question is {"query": words, "vector": numbers}; libraries of words leave
the vector alone.
"""

import json
import re
import sqlite3
import subprocess
import sys
import time
from array import array
from pathlib import Path
from typing import Any

K, LEG, RRF = 10, 80, 60  # answers; rows of a leg; the constant of reciprocal rank fusion
PLAIN = re.compile(r'\w+')


def head_of(repo: str) -> str:
    return subprocess.run(['git', '-C', repo, 'rev-parse', 'HEAD'], capture_output=True, text=True, check=True).stdout


class Fts5:
    "A virtual table; any of the words, best BM25 first."

    def __init__(self, folder: Path) -> None:
        self.db = sqlite3.connect(folder / 'index.db')

    def build(self, texts: list[str], vectors: array) -> None:
        with self.db:
            self.db.execute("create virtual table texts using fts5(body, tokenize = 'porter unicode61')")
            self.db.executemany('insert into texts (rowid, body) values (?, ?)', enumerate(texts))
            self.db.execute("insert into texts (texts) values ('optimize')")

    def ask(self, query: str, vector: list[float]) -> list[int]:
        words = ' OR '.join(f'"{word}"' for word in PLAIN.findall(query))
        found = self.db.execute('select rowid from texts where texts match ? order by rank limit ?', (words, K))
        return [row[0] for row in found]


class Bm25s:
    "Scores computed at indexing time, in sparse matrices."

    def __init__(self, folder: Path) -> None:
        import bm25s

        self.folder, self.library = folder / 'index', bm25s
        self.index = bm25s.BM25.load(self.folder) if self.folder.exists() else None

    def tokens(self, texts: list[str]) -> Any:
        return self.library.tokenize(texts, stopwords='en', show_progress=False)

    def build(self, texts: list[str], vectors: array) -> None:
        index = self.library.BM25()
        index.index(self.tokens(texts), show_progress=False)
        index.save(self.folder)

    def ask(self, query: str, vector: list[float]) -> list[int]:
        found, _ = self.index.retrieve(self.tokens([query]), k=K, show_progress=False)
        return [int(n) for n in found[0]]


class Lancedb:
    "Words and vectors, fused by rank."

    def __init__(self, folder: Path) -> None:
        import lancedb

        self.db = lancedb.connect(folder)
        self.table = self.db.open_table('texts') if (folder / 'texts.lance').exists() else None

    def build(self, texts: list[str], vectors: array) -> None:
        import pyarrow as pa

        dim = len(vectors) // len(texts)
        columns = {
            'n': pa.array(range(len(texts))),
            'body': pa.array(texts),
            'vector': pa.FixedSizeListArray.from_arrays(pa.array(vectors, pa.float32()), dim),
        }
        table = self.db.create_table('texts', pa.table(columns))
        table.create_fts_index('body')
        if len(texts) >= 5_000:  # as merlin: below it a scan is as quick
            table.create_index(metric='cosine', index_type='IVF_HNSW_SQ')

    def ask(self, query: str, vector: list[float]) -> list[int]:
        near = self.table.search(vector).distance_type('cosine').select(['n', '_distance']).limit(LEG).to_list()
        said = (
            self.table.search(' '.join(PLAIN.findall(query)), query_type='fts')
            .select(['n', '_score'])
            .limit(LEG)
            .to_list()
        )
        scores: dict[int, float] = {}
        for leg in (near, said):
            for place, row in enumerate(leg, 1):
                scores[row['n']] = scores.get(row['n'], 0) + 1 / (RRF + place)
        return sorted(scores, key=scores.__getitem__, reverse=True)[:K]


class Merlin:
    "The whole search with a vector that is given; without one, words alone."

    def __init__(self, folder: Path) -> None:
        from merlin.config import load_config
        from merlin.database import connect

        self.config = load_config()
        self.conn = connect(self.config.database)
        (self.identity,) = self.conn.execute("select value from meta where key = 'embed_model_id'").fetchone()

    def ask(self, query: str, vector: list[float]) -> list[int]:
        from merlin.errors import FailedError
        from merlin.search import search

        class Given:
            identity = self.identity

            def embed_query(self, text: str) -> array:
                if not vector:
                    raise FailedError('words alone')
                return array('f', vector)

        return [hit.first_line for hit in search(self.conn, query, K, config=self.config, embed=Given())]


PEERS = {'fts5': Fts5, 'bm25s': Bm25s, 'lancedb': Lancedb, 'merlin': Merlin}


def index(name: str, folder: Path, repo: str) -> None:
    "Build it anew."
    (folder / name).mkdir()
    texts, vectors = json.loads((folder / 'texts.json').read_text()), array('f')
    vectors.frombytes((folder / 'vectors.f32').read_bytes())
    PEERS[name](folder / name).build(texts, vectors)
    (folder / name / 'head').write_text(head_of(repo))


def again(name: str, folder: Path, repo: str) -> None:
    "Open it and see that nothing is new."
    PEERS[name](folder / name)
    if (folder / name / 'head').read_text() != head_of(repo):
        sys.exit('something is new')


def serve(name: str, folder: Path) -> None:
    "Answer until the questions end."
    peer = PEERS[name](folder / name)
    for line in sys.stdin:
        asked, begun = json.loads(line), time.perf_counter()
        found = peer.ask(**asked)
        print(json.dumps({'seconds': time.perf_counter() - begun, 'found': found}), flush=True)


if __name__ == '__main__':
    name, verb, folder, *rest = sys.argv[1:]
    {'index': index, 'again': again, 'serve': serve}[verb](name, Path(folder), *rest)
