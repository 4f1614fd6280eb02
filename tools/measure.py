"""The figures in docs/measurements.md, measured on this machine.

    python tools/measure.py install                 # size and seconds of a fresh quickstart environment
    python tools/measure.py records RECORD...       # first ingest, no-op, query latency, peak memory of each record
    python tools/measure.py throughput RECORD       # full ingest against the bare embedder on the same texts
    python tools/measure.py noop RECORD             # a run without work against connect + `git rev-parse`

A RECORD is a git checkout or bare mirror. Each measurement has a MERLIN_HOME of its own, which goes at the end.
Machines are noisy: what is compared runs interleaved, and the ratio is the median of the pairs.
"""

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
QUESTIONS = [
    'what to do when a disk is full',
    'certificate expired',
    'how do I find out which pod restarts',
    'undo the last commit',
]

TEXTS = """
import json, sys
from dataclasses import replace
from merlin.config import load_config
from merlin.hosts import HostIndex
from merlin.corpus import Rules, list_all, make_record, read_blobs
from merlin.ingest import open_repos
from merlin.redact import Redactor
config = load_config()
repos, redactor = open_repos(config), Redactor()
listing = list_all(repos, {n: r.head() for n, r in repos.items()}, config, redactor, {}, {})
rules = Rules(config, redactor, HostIndex(()), '')
records = [make_record(*b, rules) for b in read_blobs(list(listing.sources.values()), repos)]
json.dump(sorted({c.embed_text for r in records for c in r.chunks}), open(sys.argv[1], 'w'))
"""
BARE = """
import json, sys, time
from merlin.config import load_config
from merlin.embed import embedder
texts = json.load(open(sys.argv[1]))
embed = embedder(load_config().embed)
embed.embed_query('warm')
begin = time.perf_counter()
embed.embed_documents(texts)
print(json.dumps({'texts': len(texts), 'seconds': time.perf_counter() - begin}))
"""
FLOOR = """
import subprocess, sys, psycopg
psycopg.connect(sys.argv[1]).execute('select 1')
subprocess.run(['git', '-C', sys.argv[2], 'rev-parse', 'HEAD'], capture_output=True)
"""
LATENCY = """
import json, sys, time
from merlin.config import load_config
from merlin.database import connect
from merlin.search import search
config = load_config()
conn = connect(config.database)
times = []
for n in range(int(sys.argv[2])):
    for q in json.loads(sys.argv[1]):
        begin = time.perf_counter()
        search(conn, q, config=config)
        times.append(time.perf_counter() - begin)
print(json.dumps(sorted(times)))
"""


@contextmanager
def home(record: str = ''):
    "An environment with a MERLIN_HOME of its own; its server is stopped and the folder removed at the end."
    folder = tempfile.mkdtemp(prefix='merlin-measure-')
    foreign = (
        'DATABASE_URL',
        'PYTHONDONTWRITEBYTECODE',
    )  # without the latter Python would compile merlin at each start
    env = {k: v for k, v in os.environ.items() if not k.startswith(('MERLIN_', 'EMBED_')) and k not in foreign}
    env |= {'MERLIN_HOME': folder, 'REPO_DIR': record, 'PYTHONPATH': str(ROOT)}
    try:
        yield env
    finally:
        subprocess.run([sys.executable, '-m', 'merlin.database', 'stop'], env=env, capture_output=True)
        shutil.rmtree(folder, ignore_errors=True)


def python(*args: str, env: dict) -> tuple[str, float, float]:
    "Run Python; its stdout, wall seconds and peak memory in MB."
    begin = time.perf_counter()
    with subprocess.Popen([sys.executable, *args], env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as p:
        out = p.stdout.read().decode()
        _, status, usage = os.wait4(p.pid, 0)
        p.returncode = os.waitstatus_to_exitcode(status)
    if p.returncode:
        raise SystemExit(f'{args[:3]} ended with {p.returncode}: {out}')
    return out, time.perf_counter() - begin, usage.ru_maxrss / 1024


def records(paths: list[str]) -> None:
    "First ingest, no-op and query latency of each record."
    print(
        '| record | documents | sections | first ingest s | sections/s | peak MB | no-op s | query p50 ms | p95 ms | index MB |'
    )
    print('|---|---|---|---|---|---|---|---|---|---|')
    for path in paths:
        with home(path) as env:
            out, first, peak = python('-m', 'merlin.ingest', '--json', env=env)
            report = json.loads(out)
            noop = statistics.median(python('-m', 'merlin.ingest', env=env)[1] for _ in range(5))
            times = json.loads(python('-c', LATENCY, json.dumps(QUESTIONS), '10', env=env)[0])
            size = python('-c', SIZE, env=env)[0].strip()
            print(
                f'| {Path(path).name} | {report["documents"]["new"]:,} | {report["chunks"]:,} | {first:.0f} | '
                f'{report["embedded"] / report["seconds"]["embed"]:.1f} | {peak:.0f} | {noop:.2f} | '
                f'{1000 * statistics.median(times):.0f} | {1000 * times[int(len(times) * 0.95)]:.0f} | {size} |'
            )


SIZE = """
from merlin.config import load_config
from merlin.database import connect
c = load_config()
q = 'select round(sum(pg_total_relation_size(c.oid)) / 1e6) from pg_class c where relkind = %s and relnamespace = %s::regnamespace'
print(connect(c.database).execute(q, ('r', c.database.schema)).fetchone()[0])
"""


def throughput(path: str, rounds: int = 3) -> None:
    "Full ingest against the bare embedder, interleaved."
    ratios, memory = [], []
    for n in range(rounds):
        with home(path) as env:
            texts = f'{env["MERLIN_HOME"]}-texts.json'
            python('-c', TEXTS, texts, env=env)
            python('-m', 'merlin.database', 'start', env=env)
            out, _, bare_mb = python('-c', BARE, texts, env=env)
            bare = json.loads(out)
            _, wall, mb = python('-m', 'merlin.ingest', '--json', env=env)
            os.unlink(texts)
            ratios.append(bare['seconds'] / wall)
            memory.append(mb - bare_mb)
            print(f'round {n + 1}: {bare["texts"]} texts, bare {bare["seconds"]:.1f} s, ingest {wall:.1f} s, '
                  f'ratio {ratios[-1]:.2f}; memory {bare_mb:.0f} MB bare, {mb:.0f} MB ingest')  # fmt: skip
    print(
        f'throughput ratio {statistics.median(ratios):.2f}; memory above the bare embedder {statistics.median(memory):.0f} MB'
    )


def noop(path: str, rounds: int = 9) -> None:
    "A run without work against its floor, interleaved."
    with home(path) as env:
        python('-m', 'merlin.ingest', env=env)
        dsn = python('-m', 'merlin.database', 'path', env=env)[0].strip()
        pairs = []
        for _ in range(rounds):
            floor = python('-c', FLOOR, dsn, path, env=env)[1]
            pairs.append((python('-m', 'merlin.ingest', env=env)[1], floor))
        ours, floors = (statistics.median(p[n] for p in pairs) for n in (0, 1))
        ratio = statistics.median(a / b for a, b in pairs)
        print(f'no-op {ours:.3f} s, connect + rev-parse {floors:.3f} s, ratio {ratio:.2f} (median of {rounds} pairs)')


def install() -> None:
    "A fresh checkout's environment: seconds and size."
    with tempfile.TemporaryDirectory(prefix='merlin-install-') as folder, home() as env:
        clone = Path(folder) / 'merlin'
        subprocess.run(['git', 'clone', '--quiet', str(ROOT), str(clone)], check=True)
        del env['PYTHONPATH'], env['REPO_DIR']
        begin = time.perf_counter()
        subprocess.run(
            [clone / 'bin/quickstart'], env=env, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        first = time.perf_counter() - begin
        begin = time.perf_counter()
        subprocess.run(
            [clone / 'bin/quickstart'], env=env, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        again = time.perf_counter() - begin
        size = sum(p.lstat().st_size for p in (clone / '.venv').rglob('*')) / 1e6
        print(f'bin/quickstart: first {first:.0f} s, again {again:.1f} s, environment {size:.0f} MB')
        subprocess.run([clone / '.venv/bin/python', '-m', 'merlin.database', 'stop'], env=env, capture_output=True)


def main() -> None:
    "Run one measurement."
    verbs = {
        'records': records,
        'throughput': lambda a: throughput(*a),
        'noop': lambda a: noop(*a),
        'install': lambda a: install(),
    }
    if len(sys.argv) < 2 or sys.argv[1] not in verbs:
        raise SystemExit(__doc__)
    verbs[sys.argv[1]](sys.argv[2:])


if __name__ == '__main__':
    main()
