"""The figures in docs/measurements.md, measured on this machine.

    python tools/measure.py install                 # size and seconds of a fresh quickstart environment
    python tools/measure.py records RECORD...       # first ingest, no-op, query latency, peak memory of each record

A RECORD is a git checkout or bare mirror. Each measurement has a MERLIN_HOME of its own, which goes at the end.
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
        'install': lambda a: install(),
    }
    if len(sys.argv) < 2 or sys.argv[1] not in verbs:
        raise SystemExit(__doc__)
    verbs[sys.argv[1]](sys.argv[2:])


if __name__ == '__main__':
    main()
