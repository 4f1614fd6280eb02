"""Rows about ingest: without work, after a change, from nothing, and what git alone takes."""

import json
import subprocess
from collections.abc import Iterable
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

import psycopg
from bench_child import QUESTION
from bench_lab import Index, Lab, child, need_model
from bench_record import change_page
from bench_rounds import Side, Times, Trial
from measure import python

from merlin.gitrepo import GitRepo
from merlin.testing import run_git


def ingest_again(index: Index, most: int = 0) -> Side:
    "The whole process of an ingest, which finds so many new or changed files at most."

    def run() -> None:
        found = json.loads(python('-m', 'merlin.ingest', '--json', env=index.env)[0])['documents']
        if (worked := found['new'] + found['changed'] + found['removed']) > most:
            raise SystemExit(f'an ingest had {worked:,} files to do, not {most}: was the code changed meanwhile?')

    return Side(run)


def count(index: Index, table: str = 'chunks') -> int:
    "Rows of a table."
    return index.conn.execute(f'select count(*) from {table}').fetchone()[0]


FLOOR = """
import subprocess, sys, psycopg
psycopg.connect(sys.argv[1]).execute('select 1')
subprocess.run(['git', '-C', sys.argv[2], 'rev-parse', 'HEAD'], capture_output=True)
"""


def noop(lab: Lab, files: int) -> Trial:
    "An ingest that finds nothing new."
    index, server = lab.index(files), lab.embedder()
    server.asked.clear()

    def counters(ours: Times, floor: Times) -> dict[str, Any]:
        return {'embed_calls': len(server.asked), 'sections': count(index)}

    floor = Side(lambda: python('-c', FLOOR, index.dsn, str(index.repo), env=index.env))
    return Trial(ingest_again(index), floor, counters, (index.server,))


def changes(index: Index, seed: int) -> Side:
    "An ingest after one page was written on."
    rnd, turns = Random(seed), iter(range(1_000_000))

    def change() -> None:
        change_page(index.repo, f'## Change {next(turns)}\n\nSeen at {rnd.randbytes(8).hex()}.')

    return Side(ingest_again(index, most=1).run, change)


def one_changed(lab: Lab, files: int) -> Trial:
    "An ingest after one page was written on, beside one that finds nothing new."
    index, server, heads = lab.index(files), lab.embedder(), run_git(lab.index(files).repo, 'rev-parse', 'HEAD')
    server.asked.clear()

    def counters(ours: Times, floor: Times) -> dict[str, Any]:
        runs = int(run_git(index.repo, 'rev-list', '--count', f'{heads}..HEAD'))
        changed = sum('Seen at' in text for text in server.asked)
        other = len(server.asked) - changed
        return {'changed_texts': changed / runs, 'other_texts': other / runs, 'sections': count(index)}

    return Trial(changes(index, files), ingest_again(index), counters, (index.server,))


def one_changed_model(lab: Lab, files: int) -> Trial:
    "The same with the model that pip brings, beside a run without work and a process that embeds one text."
    index = lab.real_index(files)

    def floor() -> None:
        ingest_again(index).run()
        child('one', env=index.env)

    return Trial(changes(index, files + 1), Side(floor), servers=(index.server,))


def commit_dates(lab: Lab, files: int) -> Trial:
    "The date of each file's last commit, from all of history."
    repo = GitRepo(lab.record(files))
    head = repo.head()
    earlier = run_git(repo.dir, 'rev-parse', f'{head}~10')  # each of the last ten commits is of one page
    log = ['git', '-C', str(repo.dir), 'log', '--format=%ct', '--name-only', '-z', head]
    floor = Side(lambda: subprocess.run(log, stdout=subprocess.DEVNULL, check=True))

    def counters(ours: Times, floor: Times) -> dict[str, Any]:
        later = Times()
        for _ in ours.wall:
            later.take(lambda: repo.commit_dates(head, earlier), ())
        return {
            'dated': len(ours.told[0]), 'commits': int(run_git(repo.dir, 'rev-list', '--count', head)),
            'later_paths': len(later.told[0]), 'later_ms': round(1000 * median(later.wall), 1),
        }  # fmt: skip

    return Trial(Side(lambda: repo.commit_dates(head)), floor, counters)


def full_ingest(lab: Lab, files: int) -> Trial:
    "From nothing with the model that pip brings, beside that model alone on the same texts with its best batch."
    need_model()
    record = lab.record(files, lean=True)
    env, file = lab.env(record, 'bench_full'), str(lab.folder / f'texts-{files}.json')
    index = lab.connected(record, env)
    texts = child('texts', file, env=env)['texts']
    size = child('batch', file, env=env)['batch']
    peaks: dict[str, list[float]] = {'ours': [], 'floor': []}

    def ours() -> float:
        took = Times()
        took.take(lambda: peaks['ours'].append(child('ingest', env=env)['peak_MiB']), ())
        return took.wall[0]

    def floor() -> float:
        found = child('embed', file, str(size), env=env)
        peaks['floor'].append(found['peak_MiB'])
        return found['seconds']

    def counters(ours: Times, floor: Times) -> dict[str, Any]:
        peak = {f'peak_MiB_{side}': round(max(found)) for side, found in peaks.items()}
        return {'texts': texts, 'batch': size, 'per_s': round(texts / median(ours.told), 1), **peak}

    return Trial(Side(ours, lambda: lab.drop(index.conn, 'bench_full')), Side(floor), counters)


FED = 20_000  # texts; by then a bare embedder holds all that it ever will


def ingest_memory(lab: Lab, files: int) -> Trial:
    "The most memory of the ingest that made the index, beside a process that only embeds the same texts."
    index, file = lab.index(files), lab.folder / f'texts-{files}.lines'
    with index.conn.transaction(), index.conn.cursor('texts') as rows, file.open('w') as out:
        rows.execute("select heading || E'\n' || body from chunks limit %s", (FED,))
        out.writelines(json.dumps(text or QUESTION) + '\n' for (text,) in rows)

    def floor() -> float:
        return child('feed', str(file), env=index.env)['peak_MiB']

    return Trial(Side(lambda: index.peak_MiB), Side(floor), lambda ours, floor: {'sections': count(index)})


DUMP = """
copy (select id, document_id, ordinal, repo, type, heading_path, heading, names, body, first_line, last_line, date, hosts,
             stale, vector_id from chunks) to stdout (format binary)
"""
BARE_TABLES = """
drop schema if exists bench_floor cascade; create schema bench_floor;
create table bench_floor.documents (like documents);
create table bench_floor.chunks (like chunks);
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
alter table bench_floor.documents add primary key (id), add unique (path);
create index on bench_floor.documents (date);
alter table bench_floor.chunks add primary key (id), add unique (document_id, ordinal);
create index on bench_floor.chunks using gin (tsv); create index on bench_floor.chunks using gin (hosts);
create index on bench_floor.chunks (type); create index on bench_floor.chunks (date);
create index on bench_floor.chunks (vector_id); create index on bench_floor.chunks (document_id) where stale;
create index on bench_floor.chunks using gin ((heading || E'\n' || names || E'\n' || body) gin_trgm_ops);
analyze bench_floor.documents, bench_floor.chunks
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


def blobs_of(repo: Path) -> bytes:
    "The blobs at HEAD, as `cat-file --batch` asks for them."
    listing = run_git(repo, 'ls-tree', '-r', 'HEAD')
    return ''.join(line.split()[2] + '\n' for line in listing.splitlines()).encode()


def rebuild(lab: Lab, files: int) -> Trial:
    "Every document made anew around vectors that are there, against its bare rows copied and indexed."
    index, server = lab.index(files), lab.embedder()
    conn, shas = index.conn, blobs_of(index.repo)
    chunks, documents = dumped(conn, DUMP), dumped(conn, 'copy documents to stdout (format binary)')
    runs: list[int] = []
    server.asked.clear()

    def floor() -> None:
        read = ['git', '-C', str(index.repo), 'cat-file', '--batch', '--buffer']
        subprocess.run(read, input=shas, stdout=subprocess.DEVNULL, check=True)
        with conn.transaction():
            conn.execute(BARE_TABLES)
            loaded(conn, 'copy bench_floor.documents from stdin (format binary)', documents)
            loaded(conn, BARE_CHUNKS, chunks)
            conn.execute(BARE_INDEXES)

    def outdate() -> None:
        runs.append(len(server.asked))
        conn.execute("update meta set value = '0' where key = 'schema_version'")

    def counters(ours: Times, floor: Times) -> dict[str, Any]:
        return {'sections': count(index), 'texts_embedded': len(server.asked) / len(runs)}

    ours = Side(ingest_again(index, most=files).run, outdate)
    return Trial(ours, Side(floor), counters, (index.server,))
