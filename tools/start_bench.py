"""What a window of Claude Code waits for and holds: merlin's start and memory beside those of a bare SDK server.

    python tools/start_bench.py [--rounds 9]       # needs mcp 2.x; the fixture record, an embedded database of its own

Each round starts both servers in turn. Times are from the spawn to an answer: to `initialize`, and to the first tool
call, which for merlin is a search with both legs on a running database, for the bare server an echo. Memory is the peak
of the process (VmHWM, Linux only) after that call, beside the bare server's and that of a process that only embeds one
question. Times are medians; the machine should have nothing else to do, and the load is printed.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from merlin.config import Config
from merlin.database import connect
from merlin.ingest import ingest
from merlin.role import ensure_role
from merlin.testing import fixture_record, scratch

ECHO = """
from mcp.server.mcpserver import MCPServer

server = MCPServer('echo')

@server.tool(structured_output=False)
def echo(text: str) -> str:
    return text

server.run('stdio')
"""
MODEL = """
from merlin.config import load_config
from merlin.embed import embedder

assert len(embedder(load_config().embed, query=True).embed_query('what to do when a disk runs full')) == 384
print(next(line for line in open('/proc/self/status') if line.startswith('VmHWM')).split()[1])
"""
MERLIN = ('-P', '-m', 'merlin.mcp_server')
CLIENT = {'protocolVersion': '2025-11-25', 'capabilities': {}, 'clientInfo': {'name': 'bench', 'version': '1'}}
SEARCH = {'name': 'search', 'arguments': {'query': 'what to do when a disk runs full'}}
SAY = {'name': 'echo', 'arguments': {'text': 'hello'}}


@dataclass(frozen=True)
class Start:
    "One start of a server."

    greeted: float  # seconds from the spawn to the answer to initialize
    answered: float  # seconds from the spawn to the answer of the first call
    peak: int  # KiB; 0 where the system does not tell


def peak_of(pid: int) -> int:
    "The most memory a process ever held, in KiB."
    status = Path(f'/proc/{pid}/status')
    if not status.exists():
        return 0
    return int(next(line for line in status.read_text().splitlines() if line.startswith('VmHWM')).split()[1])


def ask(server: subprocess.Popen[bytes], id: int, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
    "The result of a request."
    server.stdin.write(json.dumps({'jsonrpc': '2.0', 'id': id, 'method': method, 'params': params}).encode() + b'\n')
    server.stdin.flush()
    return json.loads(server.stdout.readline())['result']


def start(argv: Sequence[str], call: Mapping[str, Any], env: Mapping[str, str]) -> Start:
    "Start a server, ask it once, end it."
    began = time.perf_counter()
    server = subprocess.Popen(
        [sys.executable, *argv],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=env,
        cwd='/',
    )
    with server:
        ask(server, 0, 'initialize', CLIENT)
        greeted = time.perf_counter() - began
        server.stdin.write(b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n')
        result = ask(server, 1, 'tools/call', call)
        answered = time.perf_counter() - began
        text = result['content'][0]['text']
        if result['isError'] or 'degraded: ' in text or (call is SEARCH and 'runbooks/disk-full.md' not in text):
            raise SystemExit(f'not the answer to measure: {text[:300]}')
        peak = peak_of(server.pid)
        server.stdin.close()
    return Start(greeted, answered, peak)


def environment(config: Config, repo: Path) -> dict[str, str]:
    "What the servers get: byte code is kept, as on a person's machine."
    kept = {name: os.environ[name] for name in ('PATH', 'HOME', 'TMPDIR', 'LANG') if name in os.environ}
    return kept | {
        'MERLIN_HOME': str(config.database.home),
        'MERLIN_DB_SCHEMA': config.database.schema,
        'REPO_DIR': str(repo),
    }


def report(ours: Sequence[Start], bare: Sequence[Start], model: int) -> None:
    "The figures, with the limits they are held to."

    def median(starts: Sequence[Start], name: str) -> float:
        return statistics.median(getattr(start, name) for start in starts)

    hello = median(bare, 'greeted')
    print(f'{"":24}{"merlin":>10}{"bare":>10}{"ratio":>8}  limit')
    for title, ms, of, limit in (
        ('spawn to initialize', median(ours, 'greeted'), hello, 0.25),
        ('spawn to first search', median(ours, 'answered'), hello, 1.0),
    ):
        verdict = 'held' if ms <= limit * of else 'MISSED'
        print(f'{title:24}{1000 * ms:7.0f} ms{1000 * of:7.0f} ms{ms / of:8.2f}  {limit:.2f} {verdict}')
    echoed = median(bare, 'answered')
    print(f'{"spawn to first echo":24}{"":10}{1000 * echoed:7.0f} ms')
    if model:
        peak, least = median(ours, 'peak') / 1024, median(bare, 'peak') / 1024
        room = least + model / 1024
        verdict = 'held' if peak <= room else 'MISSED'
        print(
            f'peak memory: merlin {peak:.0f} MiB; bare {least:.0f} + model alone {model / 1024:.0f} = {room:.0f} MiB: {verdict}'
        )


def model_alone(env: Mapping[str, str]) -> int:
    "Peak memory in KiB of a process that embeds one question; 0 where the system does not tell."
    if not Path('/proc/self/status').exists():
        return 0
    done = subprocess.run(
        [sys.executable, '-P', '-c', MODEL], env=env, cwd='/', capture_output=True, text=True, check=True
    )
    return int(done.stdout)


def main(argv: Sequence[str] | None = None) -> int:
    "Measure and print."
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--rounds', type=int, default=9)
    rounds = parser.parse_args(argv).rounds
    os.environ.pop('MERLIN_TEST_DATABASE_URL', None)  # the embedded database is what a window starts beside
    with tempfile.TemporaryDirectory(prefix='merlin-bench-') as folder:
        repo = fixture_record(Path(folder) / 'record')
        with scratch(repo) as config:
            ingest(config)
            with connect(config.database) as conn:  # held: the database runs all the time
                ensure_role(conn, config.database.schema)
                env = environment(config, repo)
                ours, bare = [], []
                for _ in range(rounds + 1):
                    ours.append(start(MERLIN, SEARCH, env))
                    bare.append(start(('-P', '-c', ECHO), SAY, env))
                report(ours[1:], bare[1:], model_alone(env))  # the first round warms the disk's cache
    print(f'{rounds} rounds; load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores')
    return 0


if __name__ == '__main__':
    sys.exit(main())
