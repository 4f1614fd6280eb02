"""The rows of the benchmark: what merlin does, and beside it the least that could do the same."""

import json
import random
import re
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import psycopg
from bench_record import Pages, change_page, make_record
from bench_rounds import Row, Side, Trial
from latency import write_index
from measure import FLOOR, home, python

from merlin.config import load_config
from merlin.database import connect
from merlin.gitrepo import GitRepo
from merlin.hosts import HostIndex, HostRecord
from merlin.legs import EXACT, GRAPH, Filters, like_pattern, literal_leg, vector_leg
from merlin.redact import Redactor
from merlin.secrets import hash_file
from merlin.store import vector_text

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Index:
    "A made-up record that was ingested, in a database of its own."

    repo: Path
    env: Mapping[str, str]  # of a process that works on it
    dsn: str
    conn: psycopg.Connection  # held, so that the database stays up
    server: Any  # the embedding server on loopback; it keeps what it was asked


@dataclass
class Lab:
    "What rows stand on, made when first wanted, gone at the end."

    stack: ExitStack
    made: dict[tuple[str, int], Any] = field(default_factory=dict)

    def once(self, kind: str, size: int, make: Callable[[], Any]) -> Any:
        "The thing of this kind and size."
        if (kind, size) not in self.made:
            self.made[kind, size] = make()
        return self.made[kind, size]

    def folder(self) -> Path:
        "A folder for this run."
        return Path(self.once('folder', 0, lambda: self.stack.enter_context(tempfile.TemporaryDirectory('-bench'))))

    def record(self, files: int) -> Path:
        "A record of so many files; nobody writes to it."
        path = self.folder() / f'record-{files}'
        self.once('record', files, lambda: make_record(path, files))
        return path

    def embedder(self) -> Any:
        "A server of made-up vectors, as far as a client can tell text-embeddings-inference."
        return self.once('embedder', 0, lambda: self.stack.enter_context(made_up_server()))

    def index(self, files: int) -> Index:
        "An index of a record of so many files, with a copy of the record that may be written to."
        return self.once('index', files, lambda: self.ingest(files))

    def ingest(self, files: int) -> Index:
        "The same, made."
        repo, server = self.folder() / f'own-{files}', self.embedder()
        subprocess.run(['git', 'clone', '--quiet', '--bare', str(self.record(files)), str(repo)], check=True)
        env = self.stack.enter_context(home(str(repo)))
        env['EMBED_URL'] = server.url
        python('-m', 'merlin.ingest', env=env)
        dsn = python('-m', 'merlin.database', 'path', env=env)[0].strip()
        conn = self.stack.enter_context(connect(load_config(env).database))
        return Index(repo, env, dsn, conn, server)

    def sections(self, count: int) -> tuple[psycopg.Connection, Any]:
        "A connection to an index of so many made-up sections, and their maker."
        return self.once('sections', count, lambda: self.write_sections(count))

    def write_sections(self, count: int) -> tuple[psycopg.Connection, Any]:
        "The same, made."
        config = load_config(self.stack.enter_context(home(str(self.folder()))))
        conn = self.stack.enter_context(connect(config.database))
        return conn, write_index(conn, config, count)


def made_up_server() -> Any:
    "The double of the tests, for pages of any length."
    sys.path.insert(0, str(ROOT / 'tests'))
    from doubles.embed_servers import TeiDouble

    server = TeiDouble()
    server.info |= {'max_input_length': 100_000, 'max_batch_tokens': 10_000_000}
    return server


def ingest_again(index: Index, most: int = 0) -> Side:
    "The whole process of an ingest, which finds so many new or changed files at most."

    def run() -> None:
        found = json.loads(python('-m', 'merlin.ingest', '--json', env=index.env)[0])['documents']
        if (worked := found['new'] + found['changed'] + found['removed']) > most:
            raise SystemExit(f'an ingest had {worked:,} files to do, not {most}: was the code changed meanwhile?')

    return Side(run)


def embedded(index: Index, before: int) -> list[str]:
    "Every text that was embedded after so many requests; an ingest that works tests its embedder with a few of its own."
    return [text for request in index.server.posts[before:] for text in request.json['inputs']]


def noop(lab: Lab, files: int) -> Trial:
    "An ingest that finds nothing new."
    index = lab.index(files)
    before = len(index.server.posts)
    floor = Side(lambda: python('-c', FLOOR, index.dsn, str(index.repo), env=index.env))
    return Trial(ingest_again(index), floor, lambda _: {'embed_calls': len(index.server.posts) - before})


def one_changed(lab: Lab, files: int) -> Trial:
    "An ingest after one page was written on, beside one that finds nothing new."
    index, turn = lab.index(files), iter(range(1_000_000))
    before = len(index.server.posts)

    def change() -> None:
        change_page(index.repo, f'## Change {next(turn)}\n\nSeen at {secrets.token_hex(8)}.')

    def counters(seconds: Sequence[float]) -> dict[str, Any]:
        asked, runs = embedded(index, before), next(turn)
        changed = sum('Seen at' in text for text in asked)
        return {'changed_texts': changed / runs, 'other_texts': (len(asked) - changed) / runs}

    return Trial(Side(ingest_again(index, most=1).run, change), ingest_again(index), counters)


def commit_dates(lab: Lab, files: int) -> Trial:
    "The date of each file's last commit, from all of history."
    repo = GitRepo(lab.record(files))
    head = repo.head()
    log = ['git', '-C', str(repo.dir), 'log', '--format=%ct', '--name-only', '-z', head]
    floor = Side(lambda: subprocess.run(log, stdout=subprocess.DEVNULL, check=True))
    dates = repo.commit_dates(head)
    return Trial(Side(lambda: repo.commit_dates(head)), floor, lambda _: {'dated': len(dates)})


NAIVE = tuple(
    re.compile(pattern)
    for pattern in (
        r'-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?-----END [A-Z ]*PRIVATE KEY-----',
        r'[a-z][a-z0-9+.-]*://[^\s:/@]+:([^\s@]+)@',
        r'\bsk-[A-Za-z0-9_-]{20,}',
        r'\b(?:gh[pousr]_[A-Za-z0-9]{36}|AKIA[0-9A-Z]{16}|xox[abprs]-[A-Za-z0-9-]{10,}|glpat-[\w-]{20})',
        r'\beyJ[\w-]+\.[\w-]+\.[\w-]+',
        r'(?i)\b(?:bearer|basic)\s+[A-Za-z0-9._~+/=-]{8,}',
        r'''(?i)[\w.-]*(?:password|passwd|secret|token|api[_-]?key)[\w.-]*["']?\s*[:=]\s*["']?([^\s"',;]{6,})''',
        r'\b[0-9a-fA-F]{32,}\b',
    )
)


def spoiled_pages(size: int) -> list[str]:
    "Pages of at least so many bytes together; every 20th holds something to take out."
    pages, rnd, texts, left = Pages(11), random.Random(11), [], size
    while left > 0:
        text = pages.page(len(texts))[1]
        if len(texts) % 20 == 0:
            text += f'\npassword = {rnd.randbytes(12).hex()}x\n\ncurl -H "Authorization: Bearer {rnd.randbytes(24).hex()}"\n'
        texts.append(text)
        left -= len(text)
    return texts


def redaction(lab: Lab, kilobytes: int) -> Trial:
    "All families and 50 live secrets, against eight passes of `re` and a hash for each word."
    texts, salt, holder = spoiled_pages(1000 * kilobytes), secrets.token_hex(16), []
    path = lab.folder() / f'hashes-{kilobytes}'
    path.write_text(hash_file([(f'secret-{n}', secrets.token_urlsafe(18)) for n in range(50)], salt))
    path.chmod(0o600)
    digests = frozenset(secrets.token_bytes(32) for _ in range(50))

    def ready() -> None:
        holder[:] = [Redactor(secret_hashes=path)]  # as a run begins: without anything remembered

    def naive() -> None:
        for text in texts:
            for pattern in NAIVE:
                text = pattern.sub('[REDACTED]', text)
            for token in re.findall(r'[^\s"\'`=:,()<>]+', text):
                if sha256((salt + token).encode()).digest() in digests:
                    raise SystemExit('a random secret was found in a made-up page')

    def counters(seconds: Sequence[float]) -> dict[str, Any]:
        spent, size = sorted(seconds)[len(seconds) // 2], sum(map(len, texts))
        return {'MB_per_s': round(size / spent / 1e6, 2), 'pages': len(texts)}

    ours = Side(lambda: [holder[0].redact(text) for text in texts], ready)
    return Trial(ours, Side(naive), counters)


FORCED = """
set local enable_seqscan = off; set local enable_bitmapscan = off; set local enable_sort = off;
set local hnsw.ef_search = 100; set local hnsw.iterative_scan = 'relaxed_order'
"""
WANTED, ASKED = 50, 20  # rows of a leg; questions of a round


def share_found(found: Sequence[Sequence[int]], right: Sequence[Sequence[int]]) -> float:
    "recall@10."
    hits = sum(len(set(f[:10]) & set(r[:10])) for f, r in zip(found, right, strict=True))
    return round(hits / sum(len(r[:10]) for r in right), 3)


def filtered(lab: Lab, sections: int) -> Trial:
    "The vector leg under a filter that one section in a hundred passes, against the graph with the same filter."
    conn, maker = lab.sections(sections)
    asked = [(maker.vector(), Filters(hosts=(f'host{maker.rnd.randrange(100)}',))) for _ in range(ASKED)]
    graph = GRAPH.format(where=asked[0][1].where(), distance='v.embedding <=> %(vector)s::vector')

    def rows(statement: str, vector: Any, filters: Filters) -> list[tuple]:
        return conn.execute(statement, filters.params() | {'vector': vector_text(vector), 'limit': WANTED}).fetchall()

    def by_graph(statement: str = graph) -> list[list]:
        with conn.transaction():
            conn.execute(FORCED)
            return [[row[0] for row in rows(statement, *question)] for question in asked]

    def ours() -> list[list[int]]:
        return [[f.chunk for f in vector_leg(conn, *question, WANTED)] for question in asked]

    def counters(seconds: Sequence[float]) -> dict[str, Any]:
        right = [[r[0] for r in rows(EXACT.format(where=q[1].where()), *q)] for q in asked]
        return {
            'recall': share_found(ours(), right), 'recall_floor': share_found(by_graph(), right),
            'rows': min(map(len, ours())), 'rows_floor': min(map(len, by_graph())), 'matching': min(map(len, right)),
        }  # fmt: skip

    if not any('vectors_hnsw' in line for plan in by_graph('explain ' + graph) for line in plan):
        raise SystemExit(f'{sections} sections have no graph that Postgres would use')
    return Trial(Side(ours), Side(by_graph), counters)


ILIKE = r"select c.id from chunks c where (c.heading || E'\n' || c.names || E'\n' || c.body) ilike %s"
NO_INDEX = 'set local enable_bitmapscan = off; set local enable_indexscan = off'


def patterns(conn: psycopg.Connection, rnd: random.Random) -> list[str]:
    "What people paste, from 3 to 24 characters of a line; none is blank at its ends."
    bodies = [
        body for (body,) in conn.execute('select body from chunks where length(body) > 60 order by id limit 2000')
    ]
    out = []
    while len(out) < ASKED:
        size, body = (3, 5, 9, 24)[len(out) % 4], rnd.choice(bodies)
        at = rnd.randrange(len(body) - size)
        text = body[at : at + size]
        if text == text.strip() and '\n' not in text:
            out.append(text)
    return out


def exact(lab: Lab, files: int) -> Trial:
    "The literal leg against a sequential scan."
    conn, rnd = lab.index(files).conn, random.Random(17)
    asked = patterns(conn, rnd)

    def scan() -> list[set[int]]:
        with conn.transaction():
            conn.execute(NO_INDEX)
            return [{row[0] for row in conn.execute(ILIKE, (like_pattern(p),))} for p in asked]

    def leg(limit: int = WANTED) -> list[set[int]]:
        return [{found.chunk for found in literal_leg(conn, p, Filters(), limit)} for p in asked]

    def counters(seconds: Sequence[float]) -> dict[str, Any]:
        found, right = leg(1_000_000), scan()
        by_size = {
            n: sum(len(rows) for p, rows in zip(asked, right, strict=True) if len(p) == n) for n in (3, 5, 9, 24)
        }
        return {'same_rows': int(found == right), **{f'rows_{n}': rows for n, rows in by_size.items()}}

    return Trial(Side(leg), Side(scan), counters)


TOKEN = re.compile(r'[\w.-]+')


def host_tags(lab: Lab, names: int) -> Trial:
    "Which hosts a page mentions, against cutting the page into words."
    pages = Pages(13)
    texts = [pages.page(n)[1] for n in range(200)]
    words = [f'{pages.words[500 + n % 5000]}{n // 5000:02}' for n in range(names)]
    index = HostIndex(HostRecord(w, (f'{w}.lan',), (), f'hosts/{w}.md') for w in words)

    def counters(seconds: Sequence[float]) -> dict[str, Any]:
        return {'pages': len(texts), 'tags': sum(len(index.find(text)) for text in texts)}

    ours = Side(lambda: [index.find(text) for text in texts])
    return Trial(ours, Side(lambda: [TOKEN.findall(text) for text in texts]), counters)


DUMP = """
copy (select id, document_id, ordinal, repo, type, heading_path, heading, names, body, first_line, last_line, date, hosts,
             stale, vector_id from merlin.chunks) to stdout (format binary)
"""
BARE_TABLES = """
drop schema if exists bench_floor cascade; create schema bench_floor;
create table bench_floor.documents (like merlin.documents);
create table bench_floor.chunks (like merlin.chunks);
alter table bench_floor.chunks drop column tsv;
alter table bench_floor.chunks add column tsv tsvector generated always as
    (setweight(to_tsvector('english', left(heading || ' ' || names, 2000)), 'A') ||
     setweight(to_tsvector('english', left(body, 60000)), 'B')) stored
"""
BARE_CHUNKS = """
copy bench_floor.chunks (id, document_id, ordinal, repo, type, heading_path, heading, names, body, first_line, last_line,
                         date, hosts, stale, vector_id) from stdin (format binary)
"""
BARE_INDEXES = r"""
set search_path = bench_floor, public;
alter table documents add primary key (id), add unique (path);
create index on documents (date);
alter table chunks add primary key (id), add unique (document_id, ordinal);
create index on chunks using gin (tsv); create index on chunks using gin (hosts);
create index on chunks (type); create index on chunks (date); create index on chunks (vector_id);
create index on chunks (document_id) where stale;
create index on chunks using gin ((heading || E'\n' || names || E'\n' || body) gin_trgm_ops);
analyze documents, chunks;
set search_path = merlin, public
"""


def dumped(conn: psycopg.Connection, statement: str) -> list[bytes]:
    "What COPY gives out."
    with conn.cursor().copy(statement) as copy:
        return [bytes(piece) for piece in copy]


def loaded(conn: psycopg.Connection, statement: str, pieces: Iterable[bytes]) -> None:
    "Give it back to COPY."
    with conn.cursor().copy(statement) as copy:
        for piece in pieces:
            copy.write(piece)


def rebuild(lab: Lab, files: int) -> Trial:
    "Every document made anew around vectors that are there, against its bare rows copied and indexed."
    index = lab.index(files)
    conn, before = index.conn, len(index.server.posts)
    chunks, documents = dumped(conn, DUMP), dumped(conn, 'copy merlin.documents to stdout (format binary)')
    listing = subprocess.run(
        ['git', '-C', str(index.repo), 'ls-tree', '-r', 'HEAD'], capture_output=True, text=True, check=True
    ).stdout
    shas = ''.join(line.split()[2] + '\n' for line in listing.splitlines()).encode()

    def floor() -> None:
        read = ['git', '-C', str(index.repo), 'cat-file', '--batch', '--buffer']
        subprocess.run(read, input=shas, stdout=subprocess.DEVNULL, check=True)
        with conn.transaction():
            conn.execute(BARE_TABLES)
            loaded(conn, 'copy bench_floor.documents from stdin (format binary)', documents)
            loaded(conn, BARE_CHUNKS, chunks)
            conn.execute(BARE_INDEXES)

    def outdate() -> None:
        conn.execute("update merlin.meta set value = '0' where key = 'schema_version'")

    def counters(seconds: Sequence[float]) -> dict[str, Any]:
        (rows,) = conn.execute('select count(*) from merlin.chunks').fetchone()
        return {'sections': rows, 'texts_embedded': len(embedded(index, before)) / (len(seconds) + 1)}

    return Trial(Side(ingest_again(index, most=files).run, outdate), Side(floor), counters)


ROWS = (
    Row('noop', 'ingest that finds nothing new, whole process', 'connect, `select 1`, `git rev-parse` in a process',
        1.3, 'files', (1_000, 10_000), 30, noop, slope=0.1),
    Row('one-changed', 'ingest of one changed file, whole process', 'the ingest that finds nothing new',
        1.5, 'files', (1_000, 10_000), 30, one_changed, slope=0.15),
    Row('commit-dates', 'last commit of every file, first pass', '`git log --name-only` to nowhere',
        1.5, 'files', (1_000, 10_000), 30, commit_dates),
    Row('redaction', '8 families and 50 hashes', 'eight naive `re` passes and a hash per word',
        1 / 3, 'KB', (500, 2_000), 20, redaction, at_least={'MB_per_s': 3}),
    Row('filtered', 'vector leg, 1 % of the rows', 'the graph, relaxed_order, ef 100',
        0.5, 'sections', (10_000, 50_000), 5_500, filtered, at_least={'recall': 0.99}),
    Row('exact', 'sections that hold a text itself', 'ILIKE, sequential scan',
        0.25, 'files', (1_000, 5_000), 30, exact, at_least={'same_rows': 1}),
    Row('host-tags', 'hosts that a page mentions', 'the page cut into words',
        1.6, 'names', (100, 2_000), 50, host_tags, slope=0.1),
    Row('rebuild', 'every document anew, vectors kept, whole process',
        '`cat-file --batch`, binary COPY, index builds', 1.7, 'files', (1_000, 5_000), 30, rebuild, rounds=3),
)  # fmt: skip
