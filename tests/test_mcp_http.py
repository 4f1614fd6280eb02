"""The HTTP server as its clients meet it: the SDK's own, ones without the token, ones that a web page sends."""

import http.client
import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

pytest.importorskip('mcp_types', reason='needs mcp 2.x')

ROOT = Path(__file__).resolve().parents[1]

TOY = """
import sys, threading, time
from merlin.mcp_http import serve_http
from merlin.protocol import Tool
from merlin.errors import FailedError, MerlinError

inside, most, threads = 0, 0, set()

class Late:
    def warm(self):
        threads.add(threading.current_thread().name)

def work(given):
    global inside, most
    inside += 1
    most = max(most, inside)
    threads.add(threading.current_thread().name)
    time.sleep(given['seconds'] / 1000)
    inside -= 1
    return f"{given['text']} {most} {len(threads)}"

def broken(given):
    if given['text'] == 'failed':
        raise FailedError('the database is gone', 'somewhere', 'start it')
    raise RuntimeError('inner detail')

TEXT = {'type': 'string', 'description': 'any', 'maxLength': 100, 'minLength': 1}
TIME = {'type': 'integer', 'description': 'milliseconds', 'minimum': 0, 'maximum': 60000, 'default': 0}
shape = lambda **p: {'type': 'object', 'properties': p, 'required': ['text'], 'additionalProperties': False}
tools = [
    Tool('echo', 'Echo', 'Gives it back', shape(text=TEXT, seconds=TIME), {'readOnlyHint': True}, work),
    Tool('broken', 'Broken', 'Never works', shape(text=TEXT), {}, broken),
]
try:
    sys.exit(serve_http(tools, 'Use echo.', Late(), int(sys.argv[1])))
except MerlinError as error:
    print(f'refused: {error}', file=sys.stderr)
    sys.exit(error.exit_code)
"""


@dataclass
class Server:
    "A server that runs."

    process: subprocess.Popen
    port: int
    line: str  # what it told its user
    home: Path

    @property
    def token(self) -> str:
        return (self.home / 'mcp-token').read_text().strip()

    @property
    def url(self) -> str:
        return f'http://127.0.0.1:{self.port}/mcp'

    def post(self, body, method: str = 'POST', path: str = '/mcp', **headers: str) -> tuple[int, str]:
        "Status and text of the answer."
        sent = {
            'Authorization': f'Bearer {self.token}',
            'Accept': 'application/json, text/event-stream',
            'Content-Type': 'application/json',
            **{name.replace('_', '-'): value for name, value in headers.items()},
        }
        link = http.client.HTTPConnection('127.0.0.1', self.port, timeout=20)
        try:
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            link.putrequest(method, path, skip_host='Host' in sent, skip_accept_encoding=True)
            for name, value in {**sent, 'Content-Length': str(len(data))}.items():
                if value:
                    link.putheader(name, value)
            link.endheaders(data)
            answer = link.getresponse()
            return answer.status, answer.read().decode()
        finally:
            link.close()

    def call(self, name: str, arguments: dict, **headers: str) -> dict:
        "The result of a tool call without the SDK."
        params = {'name': name, 'arguments': arguments}
        status, text = self.post({'jsonrpc': '2.0', 'id': 1, 'method': 'tools/call', 'params': params}, **headers)
        assert status == 200, text
        return json.loads(text)['result']


def command(*argv: str) -> list[str]:
    return [sys.executable, '-P', '-c', TOY, *argv]


def environment(home: Path) -> dict[str, str]:
    return {**os.environ, 'MERLIN_HOME': str(home), 'PYTHONPATH': str(ROOT)}


def started(home: Path, argv: list[str] | None = None) -> Server:
    "A server on a free port, once it is ready."
    process = subprocess.Popen(
        argv or command('0'), env=environment(home), stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    found, line = None, ' '
    while line and not found:
        line = process.stderr.readline()
        found = re.search(r'http://127\.0\.0\.1:(\d+)/mcp', line)
    if not found:
        process.kill()
        raise AssertionError(line + process.communicate()[1])
    return Server(process, int(found[1]), line, home)


def ended(process: subprocess.Popen) -> None:
    process.kill()
    process.communicate()


@pytest.fixture(scope='module')
def server(tmp_path_factory) -> Iterator[Server]:
    running = started(tmp_path_factory.mktemp('http') / 'home')
    yield running
    ended(running.process)


@pytest.mark.parametrize('origins', [b'Origin: http://127.0.0.1:%d\r\nOrigin: http://evil.example\r\n', b'Origin:\r\n'])
def test_an_origin_that_is_not_one_is_refused(server, origins):
    token = (server.home / 'mcp-token').read_bytes().strip()
    body = json.dumps(LIST).encode()
    head = b'POST /mcp HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n' % (
        server.port,
        token,
        len(body),
    )
    more = b'Content-Type: application/json\r\nAccept: application/json, text/event-stream\r\nConnection: close\r\n'
    with socket.create_connection(('127.0.0.1', server.port), 5) as sock:
        sock.sendall(head + more + (origins % server.port if b'%d' in origins else origins) + b'\r\n' + body)
        assert sock.recv(1000).startswith(b'HTTP/1.1 403')


def test_the_ready_line_can_be_pasted_and_does_not_hold_the_token(server):
    file = server.home / 'mcp-token'
    assert server.line.strip() == (
        f'claude mcp add --transport http merlin {server.url} --scope user --header "Authorization: Bearer $(cat {file})"'
    )
    assert server.token not in server.line
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


CLIENT = """
import asyncio, json, sys
import httpx2
from mcp.client.client import Client
from mcp.client.streamable_http import streamable_http_client

url, token, mode, name, times = sys.argv[1:]

async def main():
    async with httpx2.AsyncClient(headers={'Authorization': f'Bearer {token}'}, timeout=30) as http:
        async with Client(streamable_http_client(url, http_client=http), mode=mode) as client:
            listed = (await client.list_tools()).tools
            said = []
            for i in range(int(times)):
                answer = await client.call_tool('echo', {'text': f'{name}{i}', 'seconds': 30})
                said.append(answer.content[0].text)
            wrong = await client.call_tool('echo', {'text': ''})
            failed = await client.call_tool('broken', {'text': 'failed'})
            unknown = await client.call_tool('ecko', {})
            print(json.dumps({
                'tools': [t.name for t in listed], 'hints': listed[0].annotations.read_only_hint,
                'instructions': client.instructions, 'said': said,
                'errors': [[r.is_error, r.content[0].text] for r in (wrong, failed, unknown)],
            }))

asyncio.run(main())
"""


def client(server: Server, mode: str, name: str, times: int) -> subprocess.Popen:
    argv = [sys.executable, '-c', CLIENT, server.url, server.token, mode, name, str(times)]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_two_of_the_sdks_clients_at_once_get_their_own_answers_one_call_at_a_time(server):
    clients = {'a': client(server, 'auto', 'a', 8), 'b': client(server, 'legacy', 'b', 8)}
    for name, process in clients.items():
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
        got = json.loads(out)
        assert got['tools'] == ['echo', 'broken'] and got['hints'] is True
        assert got['instructions'] == 'Use echo.'
        assert got['said'] == [f'{name}{i} 1 1' for i in range(8)], 'never two at once, and all in the one thread'
        assert got['errors'] == [
            [True, "echo: argument 'text' is empty; give text"],
            [True, 'somewhere: the database is gone; start it'],
            [True, "Unknown tool: ecko; did you mean 'echo'?"],
        ]


def test_calls_from_many_connections_are_run_one_after_the_other(server):
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda i: server.call('echo', {'text': f't{i}', 'seconds': 20}), range(16)))
    assert [r['content'][0]['text'] for r in results] == [f't{i} 1 1' for i in range(16)]


LIST = {'jsonrpc': '2.0', 'id': 1, 'method': 'tools/list'}


@pytest.mark.parametrize('value', ['', 'Bearer', 'Bearer ', 'Bearer x', 'Basic {}', '{}', 'Bearer {}x', 'Bearer{}'])
def test_without_the_right_token_nothing_is_answered(server, value):
    status, text = server.post(LIST, Authorization=value.format(server.token))
    assert status == 401 and 'token' in text and server.token not in text
    assert server.post(LIST)[0] == 200


@pytest.mark.parametrize('path', ['/', '/mcp/', '/.well-known/oauth-protected-resource', '/docs'])
def test_without_the_token_every_path_looks_the_same(server, path):
    assert server.post(LIST, path=path, Authorization='')[0] == 401


@pytest.mark.parametrize(
    'host', ['evil.example', 'evil.example:{}', '127.0.0.1', '127.0.0.1.evil.example:{}', 'localhost:1']
)
def test_a_foreign_host_is_refused(server, host):
    assert server.post(LIST, Host=host.format(server.port))[0] == 421
    assert server.post(LIST, Host=f'localhost:{server.port}')[0] == 200


@pytest.mark.parametrize('origin', ['http://evil.example', 'http://127.0.0.1:1', 'null', 'https://localhost:{}'])
def test_a_web_page_is_refused(server, origin):
    assert server.post(LIST, Origin=origin.format(server.port))[0] == 403


@pytest.mark.parametrize('method', ['GET', 'DELETE', 'PUT', 'OPTIONS'])
def test_nothing_but_post_is_taken(server, method):
    assert server.post(b'', method=method)[0] == 405


def test_it_listens_on_this_machine_only(server):
    table = Path('/proc/net/tcp')
    if not table.exists():
        pytest.skip('reads /proc/net/tcp')
    rows = [line.split() for line in table.read_text().splitlines()[1:]]
    assert [r[1] for r in rows if r[1].endswith(f':{server.port:04X}') and r[3] == '0A'] == [
        f'0100007F:{server.port:04X}'
    ]


HOSTILE = {
    'no JSON': b'{',
    'nothing': b'',
    'a batch': b'[{"jsonrpc":"2.0","id":1,"method":"ping"}]',
    'a lone surrogate': b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":{"text":"\\ud800"}}}',
    'NUL': b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":{"text":"\\u0000"}}}',
    'deep': b'[' * 20_000,
    'a body that is too large': b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"x":"' + b'a' * 300_000 + b'"}}',
}  # fmt: skip


@pytest.mark.parametrize('body', HOSTILE.values(), ids=HOSTILE)
def test_after_a_hostile_body_the_next_call_works(server, body):
    status, text = server.post(body)
    assert status < 500 and ('error' in text or 'Error' in text or status == 413)
    assert server.call('echo', {'text': 'still here'})['content'][0]['text'] == 'still here 1 1'


def test_a_fault_inside_a_tool_shows_no_detail(server):
    result = server.call('broken', {'text': 'x'})
    assert result['isError'] and 'RuntimeError' in result['content'][0]['text']
    assert 'inner detail' not in result['content'][0]['text']


def test_who_hangs_up_does_not_stop_the_others(server):
    link = socket.create_connection(('127.0.0.1', server.port))
    params = {'name': 'echo', 'arguments': {'text': 'gone', 'seconds': 200}}
    body = json.dumps({'jsonrpc': '2.0', 'id': 1, 'method': 'tools/call', 'params': params})
    link.sendall(
        f'POST /mcp HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nAuthorization: Bearer {server.token}\r\n'
        f'Accept: application/json\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}'.encode()
    )
    link.close()
    assert server.call('echo', {'text': 'here'})['content'][0]['text'] == 'here 1 1'


@pytest.mark.parametrize(('number', 'code'), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_signal_ends_it_soon_though_a_call_runs_and_a_restart_keeps_the_token(tmp_path, number, code):
    running = started(tmp_path)
    token = running.token
    link = http.client.HTTPConnection('127.0.0.1', running.port, timeout=20)
    headers = {
        'Authorization': f'Bearer {token}',
        'Accept': 'application/json',
        'Content-Type': 'application/json',
    }
    params = {'name': 'echo', 'arguments': {'text': 'slow', 'seconds': 30_000}}
    link.request('POST', '/mcp', json.dumps({**LIST, 'method': 'tools/call', 'params': params}), headers)
    time.sleep(0.3)
    begin = time.monotonic()
    running.process.send_signal(number)
    out, err = running.process.communicate(timeout=20)
    link.close()
    assert running.process.returncode == code
    assert time.monotonic() - begin < 4
    assert (out, token in err) == ('', False) and 'Traceback' not in err, err
    assert (tmp_path / 'mcp-token').read_text().strip() == token


def refusal(home: Path, port: str) -> tuple[int, str]:
    done = subprocess.run(command(port), env=environment(home), capture_output=True, text=True, timeout=60)
    return done.returncode, done.stderr


def test_a_port_in_use_is_said_at_once(server, tmp_path):
    code, said = refusal(tmp_path, str(server.port))
    assert code == 2 and f'refused: --port {server.port}: the port is in use; ' in said


def test_bad_tokens_are_refused(tmp_path):
    from merlin.errors import FailedError, RefusedError
    from merlin.mcp_http import read_token

    file = tmp_path / 'mcp-token'
    for text in ('', 'short', 'two words ' * 9, 'é' * 50):
        file.write_text(text)
        file.chmod(0o600)
        with pytest.raises(RefusedError):
            read_token(file)
    for mode in (0o640, 0o604, 0o620):
        file.write_text('x' * 43)
        file.chmod(mode)
        with pytest.raises(RefusedError, match='others than you'):
            read_token(file)
    file.chmod(0o600)
    assert read_token(file) == 'x' * 43
    file.rename(tmp_path / 'elsewhere')
    file.symlink_to(tmp_path / 'elsewhere')
    with pytest.raises(FailedError):
        read_token(file)


def test_servers_that_start_at_once_agree_on_one_token(tmp_path):
    code = 'import sys; from pathlib import Path; from merlin.mcp_http import read_token; print(read_token(Path(sys.argv[1])))'
    argv = [sys.executable, '-c', code, str(tmp_path / 'home' / 'mcp-token')]
    processes = [subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, cwd=ROOT) for _ in range(5)]
    assert len({p.communicate()[0] for p in processes}) == 1
    assert [p.name for p in (tmp_path / 'home').iterdir()] == ['mcp-token']


def test_a_missing_sdk_is_a_refusal_that_says_what_to_install(tmp_path):
    (tmp_path / 'uvicorn.py').write_text('raise ImportError("no", name="uvicorn")')
    env = {**environment(tmp_path / 'home'), 'PYTHONPATH': f'{tmp_path}{os.pathsep}{ROOT}'}
    done = subprocess.run(command('0'), env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert f"uvicorn is missing); run: {sys.executable} -m pip install 'mcp>=2.3,<3'" in done.stderr


def test_the_five_tools_are_the_same_as_on_standard_input_also_where_the_configuration_is_broken(tmp_path):
    from merlin.tools import make_tools

    home = tmp_path / 'home'
    home.mkdir(mode=0o700)
    (home / 'merlin.toml').write_text('[serch]\n')
    running = started(home, [sys.executable, '-P', '-m', 'merlin.mcp_server', '--http', '--port', '0'])
    try:
        listed = json.loads(running.post(LIST)[1])['result']['tools']
        assert listed == [tool.described() for tool in make_tools(lambda name, asked: '')]
        answer = running.call('index_status', {})
        assert answer['isError'] and 'merlin.toml' in answer['content'][0]['text']
        wrong = running.call('search', {'query': 'x', 'k': 99})
        assert wrong['content'][0]['text'] == "search: argument 'k' is 99; give a whole number from 1 to 50"
    finally:
        ended(running.process)
