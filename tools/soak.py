"""Ten minutes of five MCP servers and an ingest that never rests: no error, no growth.

    bin/soak [MINUTES]            # 10, on a copy of the fixture record, in a MERLIN_HOME of its own

The servers are asked one question after the other over stdio, all five tools in turn; the ingest takes in a commit
every second. It ends with 1 where an answer was an error, a process died, or memory or connections went on growing.
"""

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from merlin.testing import commit_all, fixture_record

ROOT = Path(__file__).resolve().parents[1]
SERVERS = 5
CALLS = (
    ('search', {'query': 'disk full on beta', 'k': 5}),
    ('search', {'query': 'restore', 'exact': True}),
    ('host_history', {'host': 'beta', 'k': 5}),
    ('get_document', {'path': 'hosts/beta.md'}),
    ('list_documents', {'limit': 10}),
    ('index_status', {}),
)
GROWTH = 1.15  # of the memory after the first tenth of the time


def memory(pid: int) -> int:
    "Resident memory, kB."
    for line in Path(f'/proc/{pid}/status').read_text().splitlines():
        if line.startswith('VmRSS'):
            return int(line.split()[1])
    return 0


class Server:
    "One server, asked in a thread until the time is over."

    def __init__(self, env: dict[str, str], end: float):
        self.process = subprocess.Popen(
            [sys.executable, '-m', 'merlin.mcp_server'], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        self.end, self.times, self.errors, self.sizes = end, [], [], []
        self.thread = threading.Thread(target=self.work)
        self.thread.start()

    def ask(self, number: int, method: str, params: dict) -> dict:
        line = json.dumps({'jsonrpc': '2.0', 'id': number, 'method': method, 'params': params})
        self.process.stdin.write(line.encode() + b'\n')
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def work(self) -> None:
        client = {'protocolVersion': '2025-06-18', 'capabilities': {}, 'clientInfo': {'name': 'soak', 'version': '1'}}
        self.ask(0, 'initialize', client)
        self.process.stdin.write(b'{"jsonrpc": "2.0", "method": "notifications/initialized"}\n')
        number, rnd = 0, random.Random(self.process.pid)
        while time.monotonic() < self.end:
            number += 1
            name, arguments = rnd.choice(CALLS)
            begin = time.perf_counter()
            answer = self.ask(number, 'tools/call', {'name': name, 'arguments': arguments})
            self.times.append(time.perf_counter() - begin)
            if 'error' in answer or answer['result'].get('isError'):
                self.errors.append(json.dumps(answer)[:300])
            if number % 50 == 0:
                self.sizes.append(memory(self.process.pid))
            time.sleep(0.05)
        self.process.stdin.close()
        self.process.wait(10)


def ingest_forever(env: dict[str, str], record: Path, end: float) -> list[str]:
    "A commit and a run, again and again; what went wrong."
    page, wrong, n = record / 'journal/2030-03-01.md', [], 0
    while time.monotonic() < end:
        n += 1
        page.write_text(f'# 2030-03-01\n\n## Round {n}\n\nThe disk of beta was full for the {n}th time.\n')
        commit_all(record, f'round {n}')
        run = subprocess.run(
            [sys.executable, '-m', 'merlin.ingest', '--quiet'], env=env, capture_output=True, text=True
        )
        if run.returncode:
            wrong.append(run.stderr.strip()[-300:])
        time.sleep(1)
    print(f'{n} commits ingested')
    return wrong


def main(minutes: float) -> int:
    "Soak; the exit code."
    home = Path(tempfile.mkdtemp(prefix='merlin-soak-'))
    record = fixture_record(home / 'record')
    env = {k: v for k, v in os.environ.items() if not k.startswith(('MERLIN_', 'EMBED_', 'PG')) and k != 'DATABASE_URL'}
    env |= {'MERLIN_HOME': str(home / 'merlin'), 'REPO_DIR': str(record), 'PYTHONPATH': str(ROOT)}
    try:
        subprocess.run([sys.executable, '-m', 'merlin.ingest', '--quiet'], env=env, check=True, capture_output=True)
        end = time.monotonic() + 60 * minutes
        servers = [Server(env, end) for _ in range(SERVERS)]
        wrong = ingest_forever(env, record, end)
        for server in servers:
            server.thread.join(60)
        times = sorted(t for s in servers for t in s.times)
        errors = [e for s in servers for e in s.errors] + wrong
        growth = max((s.sizes[-1] / s.sizes[len(s.sizes) // 10] for s in servers if len(s.sizes) > 10), default=1.0)
        print(f'{len(times):,} answers, p50 {1000 * times[len(times) // 2]:.0f} ms, '
              f'p95 {1000 * times[int(len(times) * 0.95)]:.0f} ms, {len(errors)} errors, memory × {growth:.2f}')  # fmt: skip
        print(*errors[:5], sep='\n')
        return int(bool(errors) or growth > GROWTH or any(s.process.returncode for s in servers))
    finally:
        subprocess.run([sys.executable, '-m', 'merlin.database', 'stop'], env=env, capture_output=True)
        shutil.rmtree(home, ignore_errors=True)


if __name__ == '__main__':
    raise SystemExit(main(float(sys.argv[1]) if len(sys.argv) > 1 else 10.0))
