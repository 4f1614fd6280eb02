"""Ten minutes of five MCP servers, an ingest that never rests and an evaluation again and again: no error, no growth.

    bin/soak [MINUTES]            # 10, on a copy of the fixture record, in a MERLIN_HOME of its own

The servers are asked over stdio, all five tools in turn, each a few times a second; first with nothing beside them,
which is the idle they are measured by, then beside an ingest that takes in a commit every second and `merlin eval`.
It ends with 1 where an answer was an error, a process died or hung, the server saw a deadlock, p95 was three times
that of the idle servers, or memory, connections, temporary files or WAL went on growing.
"""

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg

from merlin.config import load_config
from merlin.database import connect
from merlin.testing import commit_all, fixture_record

ROOT = Path(__file__).resolve().parents[1]
CASES = ROOT / 'nbs/eval/cases/fixture.yaml'
SERVERS = 5
PAUSE = 0.25  # seconds between an answer and the next question, on average
CALLS = (
    ('search', {'query': 'disk full on beta', 'k': 5}),
    ('search', {'query': 'restore', 'exact': True}),
    ('host_history', {'host': 'beta', 'k': 5}),
    ('get_document', {'path': 'hosts/beta.md'}),
    ('list_documents', {'limit': 10}),
    ('index_status', {}),
)
GROWTH = 1.15  # of the last quarter of the time over the second one
SLOWER = 3.0  # p95 beside the others' work over p95 of the idle servers
MOVING = 'the index was written to while the questions were asked'
PATIENCE = 60  # seconds after which a process hangs

FIGURES = """
select (select count(*) from pg_stat_activity where backend_type = 'client backend') connections,
       (select coalesce(sum(size), 0) from pg_ls_waldir())::float8 / 1e6 wal_mb,
       (select count(*) from pg_ls_tmpdir()) server_temp_files,
       pg_database_size(current_database())::float8 / 1e6 database_mb,
       (select count(*) from pg_stat_activity where now() - xact_start > interval '30 seconds'
        and backend_type = 'client backend' and state <> 'active') idle_transactions
"""
TROUBLE = 'select deadlocks, temp_files from pg_stat_database where datname = current_database()'
CEILING = "select setting::int from pg_settings where name = 'max_wal_size'"  # MB


def memory(pid: int) -> float:
    "Resident memory, MB; 0 where the process is gone."
    try:
        lines = Path(f'/proc/{pid}/status').read_text().splitlines()
    except FileNotFoundError:
        return 0.0
    return next((int(line.split()[1]) / 1000 for line in lines if line.startswith('VmRSS')), 0.0)


def p95(times: Sequence[float]) -> float:
    "The time that 95 of 100 stay below, in milliseconds."
    return 1000 * sorted(times)[int(len(times) * 0.95)]


class Server:
    "One server, asked in a thread until it is told to end."

    def __init__(self, env: Mapping[str, str], number: int, stop: threading.Event):
        self.process = subprocess.Popen(
            [sys.executable, '-P', '-m', 'merlin.mcp_server'], env=dict(env), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        self.number, self.stop = number, stop
        self.times: list[tuple[float, float]] = []  # when, how long
        self.errors: list[str] = []
        self.thread = threading.Thread(target=self.work, daemon=True)
        self.thread.start()

    def ask(self, number: int, method: str, params: dict[str, Any]) -> dict[str, Any]:
        "The answer to one request."
        line = json.dumps({'jsonrpc': '2.0', 'id': number, 'method': method, 'params': params})
        self.process.stdin.write(line.encode() + b'\n')
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline() or '{"error": "it hung up"}')

    def work(self) -> None:
        "Ask until told to end."
        client = {'protocolVersion': '2025-06-18', 'capabilities': {}, 'clientInfo': {'name': 'soak', 'version': '1'}}
        self.ask(0, 'initialize', client)
        self.process.stdin.write(b'{"jsonrpc": "2.0", "method": "notifications/initialized"}\n')
        number, rnd = 0, random.Random(self.number)
        while not self.stop.wait(rnd.uniform(0, 2 * PAUSE)) and self.process.poll() is None:
            number += 1
            name, arguments = rnd.choice(CALLS)
            begin = time.monotonic()
            answer = self.ask(number, 'tools/call', {'name': name, 'arguments': arguments})
            self.times.append((begin, time.monotonic() - begin))
            if 'error' in answer or answer['result'].get('isError'):
                self.errors.append(json.dumps(answer)[:300])

    def end(self) -> None:
        "Close its input, and see that it ends well."
        self.thread.join(PATIENCE)
        if self.thread.is_alive():
            self.errors.append('no answer for a minute')
            self.process.kill()
        self.process.stdin.close()
        if code := self.process.wait(PATIENCE):
            self.errors.append(f'a server ended with {code}')


@dataclass
class Loop:
    "A process that is started again and again."

    env: Mapping[str, str]
    stop: threading.Event
    wrong: list[str] = field(default_factory=list)
    rounds: int = 0
    moving: int = 0  # rounds that refused since the index moved on under them, as an evaluation should

    def run(self, *command: str) -> None:
        "Once, to its end."
        try:
            args = [sys.executable, '-P', '-m', *command]
            run = subprocess.run(args, env=dict(self.env), capture_output=True, text=True, timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            self.wrong.append(f'{command[0]} hung')
            return
        self.rounds += 1
        if MOVING in run.stderr:
            self.moving += 1
        elif run.returncode:
            self.wrong.append(f'{command[0]}: exit {run.returncode}: {run.stderr.strip()[-300:]}')

    def ingest(self, record: Path) -> None:
        "A commit and a run, with a rest of a second."
        page = record / 'journal/2030-03-01.md'
        while not self.stop.wait(1):
            n = self.rounds
            page.write_text(f'# 2030-03-01\n\n## Round {n}\n\nThe disk of beta was full for the {n}th time.\n')
            commit_all(record, f'round {n}')
            self.run('merlin.ingest', '--quiet')

    def evaluate(self) -> None:
        "The questions of the fixture record, again and again."
        while not self.stop.wait(1):
            self.run('merlin.evaluate', str(CASES))


def sample(conn: psycopg.Connection, servers: Sequence[Server], temporary: Path) -> dict[str, float]:
    "What must not grow, as it is now."
    names = ('connections', 'wal_mb', 'server_temp_files', 'database_mb', 'idle_transactions')
    figures = dict(zip(names, map(float, conn.execute(FIGURES).fetchone()), strict=True))
    sizes = [memory(server.process.pid) for server in servers]
    return {**figures, 'memory_mb': max(sizes), 'temp_files': float(sum(1 for _ in temporary.rglob('*')))}


def growth(samples: Sequence[Mapping[str, float]], name: str) -> tuple[float, float]:
    "The median of the second quarter and that of the last one; the first is for warming up."
    quarter = max(1, len(samples) // 4)
    parts = samples[quarter : 2 * quarter] or samples, samples[-quarter:]
    return tuple(statistics.median(s[name] for s in part) for part in parts)


SLACK = {'connections': 1.0, 'memory_mb': 5.0, 'temp_files': 2.0, 'server_temp_files': 1.0}  # one sample's luck


def grown(samples: Sequence[Mapping[str, float]], ceiling: float) -> list[str]:
    "What went on growing; the WAL may grow to the ceiling that the server sets itself, in MB."
    out = []
    for name, slack in SLACK.items():
        before, after = growth(samples, name)
        if after > before * GROWTH + slack:
            out.append(f'{name} went from {before:.1f} to {after:.1f}')
    if (most := max(s['wal_mb'] for s in samples)) > ceiling * 1.1:
        out.append(f'WAL reached {most:.0f} MB; the server is set to {ceiling:.0f}')
    if idle := sum(s['idle_transactions'] for s in samples):
        out.append(f'{idle:.0f} times a session sat in a transaction for half a minute')
    return out


def soak(env: dict[str, str], record: Path, temporary: Path, minutes: float) -> list[str]:
    "Idle for a fifth of the time, at most a minute; then all at once. What was wrong."
    stop, servers_stop = threading.Event(), threading.Event()
    calm = min(60.0, 12 * minutes)
    servers = [Server(env, n, servers_stop) for n in range(SERVERS)]
    begin = time.monotonic()
    while any(len(server.times) < 3 for server in servers) and time.monotonic() - begin < PATIENCE:
        time.sleep(0.2)  # until every server has loaded its model
    begin = time.monotonic()
    time.sleep(calm)
    busy = time.monotonic()
    loops = [Loop(env, stop), Loop(env, stop)]
    threads = [threading.Thread(target=loops[0].ingest, args=(record,)), threading.Thread(target=loops[1].evaluate)]
    for thread in threads:
        thread.start()
    samples = []
    with connect(load_config({'MERLIN_HOME': env['MERLIN_HOME']}).database) as conn:
        while time.monotonic() - busy < 60 * minutes:
            samples.append(sample(conn, servers, temporary))
            time.sleep(1)
        end = time.monotonic()
        stop.set()
        for thread in threads:
            thread.join(2 * PATIENCE)
        servers_stop.set()
        for server in servers:
            server.end()
        (deadlocks, spilled), (ceiling,) = conn.execute(TROUBLE).fetchone(), conn.execute(CEILING).fetchone()
    found = [e for s in servers for e in s.errors] + [e for loop in loops for e in loop.wrong]
    times = [[t for s in servers for at, t in s.times if a <= at < b] for a, b in ((begin, busy), (busy, end))]
    print_figures(times, samples, loops, deadlocks, spilled)
    if (slower := p95(times[1]) / p95(times[0])) >= SLOWER:
        found.append(f'p95 is {slower:.1f} times that of idle servers')
    if deadlocks:
        found.append(f'{deadlocks} deadlocks')
    return found + grown(samples, ceiling)


def print_figures(
    times: Sequence[Sequence[float]],  # idle, busy; seconds
    samples: Sequence[Mapping[str, float]],
    loops: Sequence[Loop],
    deadlocks: int,
    spilled: int,
) -> None:
    "What was seen."
    for name, some in zip(('idle', 'busy'), times, strict=True):
        print(f'{name}: {len(some):,} answers, p50 {1000 * statistics.median(some):.0f} ms, p95 {p95(some):.0f} ms')
    print(f'busy / idle: p95 × {p95(times[1]) / p95(times[0]):.2f}; '
          f'{loops[0].rounds} commits ingested, {loops[1].rounds} evaluations, '
          f'of which {loops[1].moving} refused an index that moved on under them')  # fmt: skip
    for name in (*SLACK, 'wal_mb', 'database_mb'):
        before, after = growth(samples, name)
        print(f'{name}: {before:.1f} → {after:.1f}, at most {max(s[name] for s in samples):.1f}')
    print(f'deadlocks {deadlocks}, queries that spilled to disk {spilled}')


def main() -> int:
    "Soak; the exit code."
    parser = argparse.ArgumentParser(prog='bin/soak', description=__doc__.splitlines()[0])
    parser.add_argument(
        'minutes', nargs='?', type=float, default=10.0, metavar='MINUTES', help='how long (%(default)g)'
    )
    minutes = parser.parse_args().minutes
    home = Path(tempfile.mkdtemp(prefix='merlin-soak-'))
    home.chmod(0o755)
    record, temporary = fixture_record(home / 'record'), home / 'tmp'
    temporary.mkdir()
    env = {k: v for k, v in os.environ.items() if not k.startswith(('MERLIN_', 'EMBED_', 'PG')) and k != 'DATABASE_URL'}
    env |= {'MERLIN_HOME': str(home / 'merlin'), 'REPO_DIR': str(record), 'PYTHONPATH': str(ROOT)}
    env |= {'TMPDIR': str(temporary), 'MERLIN_TEST_LINGER': '120'}
    os.environ['MERLIN_TEST_LINGER'] = '120'  # seconds: also a run that is killed leaves no server behind
    try:
        subprocess.run(
            [sys.executable, '-P', '-m', 'merlin.ingest', '--quiet'], env=env, check=True, capture_output=True
        )
        found = soak(env, record, temporary, minutes)
        print(f'{len(found)} findings', *found[:10], sep='\n')
        return int(bool(found))
    finally:
        subprocess.run([sys.executable, '-P', '-m', 'merlin.database', 'stop'], env=env, capture_output=True)
        shutil.rmtree(home, ignore_errors=True)


if __name__ == '__main__':
    raise SystemExit(main())
