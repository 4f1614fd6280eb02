"""Rows about what a window of Claude Code waits for and holds: merlin's start and memory beside a bare SDK server's.

Each round starts both servers. Times are from the spawn to an answer: to `initialize`, or to the first tool call, which
is a search with both legs on a running database. Memory is the most that the process held (Linux only).
"""

import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from bench_child import QUESTION, peak_MiB
from bench_lab import Index, Lab, child
from bench_rounds import Side, Skipped, Times, Trial
from measure import python

from merlin.role import ensure_role

ECHO = """
from mcp.server.mcpserver import MCPServer

server = MCPServer('echo')

@server.tool(structured_output=False)
def echo(text: str) -> str:
    return text

server.run('stdio')
"""
BARE = 'from bench_child import peak_MiB; print(peak_MiB())'
MERLIN, BARE_SDK = ('-P', '-m', 'merlin.mcp_server'), ('-P', '-c', ECHO)
CLIENT = {'protocolVersion': '2025-11-25', 'capabilities': {}, 'clientInfo': {'name': 'bench', 'version': '1'}}
SEARCH = {'name': 'search', 'arguments': {'query': QUESTION}}
SAY = {'name': 'echo', 'arguments': {'text': 'hello'}}
ANSWER = 'runbooks/disk-full.md'


@dataclass(frozen=True)
class Start:
    "One start of a server."

    greeted: float  # seconds from the spawn to the answer to initialize
    answered: float  # seconds from the spawn to the answer of the first call; 0 without one
    peak: float  # MiB


def ask(server: subprocess.Popen[bytes], id: int, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
    "The result of a request."
    server.stdin.write(json.dumps({'jsonrpc': '2.0', 'id': id, 'method': method, 'params': params}).encode() + b'\n')
    server.stdin.flush()
    return json.loads(server.stdout.readline())['result']


def first_answer(server: subprocess.Popen[bytes], call: Mapping[str, Any]) -> None:
    "Call a tool. Raises SystemExit where the answer is not the one to measure."
    server.stdin.write(b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n')
    result = ask(server, 1, 'tools/call', call)
    text = result['content'][0]['text']
    if result['isError'] or 'degraded: ' in text or (call is SEARCH and ANSWER not in text):
        raise SystemExit(f'not the answer to measure: {text[:300]}')


def start(argv: Sequence[str], env: Mapping[str, str], call: Mapping[str, Any] | None = None) -> Start:
    "Start a server, ask it at most once, end it."
    begun, answered, pipe = time.perf_counter(), 0.0, subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, *argv], stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, env=env, cwd='/'
    ) as server:
        ask(server, 0, 'initialize', CLIENT)
        greeted = time.perf_counter() - begun
        if call:
            first_answer(server, call)
            answered = time.perf_counter() - begun
        peak = peak_MiB(server.pid)
        server.stdin.close()
    return Start(greeted, answered, peak)


def ready(lab: Lab) -> Index:
    "The example record, and a role that may read it. Raises Skipped without the SDK that the bare server needs."
    if find_spec('mcp') is None or find_spec('mcp.server.mcpserver') is None:
        raise Skipped("the bare server needs mcp 2: pip install 'merlin[http]'")
    index = lab.fixture()
    ensure_role(index.conn, index.schema)
    return index


def to_initialize(lab: Lab, sections: int) -> Trial:
    "Spawn to the answer to `initialize`."
    env = ready(lab).env
    return Trial(Side(lambda: start(MERLIN, env).greeted), Side(lambda: start(BARE_SDK, env).greeted))


def to_first_search(lab: Lab, sections: int) -> Trial:
    "Spawn to the first answer of search, beside the bare server's answer to `initialize`."
    index = ready(lab)
    ours = Side(lambda: start(MERLIN, index.env, SEARCH).answered)
    return Trial(ours, Side(lambda: start(BARE_SDK, index.env).greeted), servers=(index.server,))


def server_memory(lab: Lab, sections: int) -> Trial:
    "The most memory until the first answer, beside the bare server's and the model's; one interpreter is counted once."
    env = ready(lab).env

    def floor() -> float:
        interpreter = float(python('-c', BARE, env=env)[0])
        return start(BARE_SDK, env, SAY).peak + child('one', env=env)['peak_MiB'] - interpreter

    def counters(ours: Times, floor: Times) -> dict[str, Any]:
        return {'bare_MiB': round(start(BARE_SDK, env, SAY).peak)}

    return Trial(Side(lambda: start(MERLIN, env, SEARCH).peak), Side(floor), counters)
