"""A Messages API on loopback that says what a test tells it to: Claude Code works against it without an account.

`MessagesApi` gives one scripted answer to each request of the conversation, in order, and `Done.` when none is left;
requests that Claude Code makes for itself (a title, a probe) carry no tools and get a short text. What it was sent is in
`requests`. Only what Claude Code uses is there: streamed and whole messages, text and tool calls.

    with MessagesApi() as api:
        api.answers = [use('mcp__merlin__search', query='disk'), 'Found it.']
        subprocess.run(['claude', '-p', 'look it up'], env=api.env(home))
        api.results()   # what the tools said to the model
"""

import json
import os
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

Answer = str | dict[str, Any]  # text, or a tool call
USAGE = {'input_tokens': 1, 'output_tokens': 1, 'cache_creation_input_tokens': 0, 'cache_read_input_tokens': 0}


def use(tool: str, **arguments: Any) -> dict[str, Any]:
    "A tool call, as an answer of the model."
    return {'type': 'tool_use', 'name': tool, 'input': arguments}


def message_of(answer: Answer, number: int, model: str) -> dict[str, Any]:
    "The whole message of an answer."
    block = {'type': 'text', 'text': answer} if isinstance(answer, str) else answer | {'id': f'toolu_{number}'}
    stop = 'end_turn' if isinstance(answer, str) else 'tool_use'
    head = {'id': f'msg_{number}', 'type': 'message', 'role': 'assistant', 'model': model, 'content': [block]}
    return head | {'stop_reason': stop, 'stop_sequence': None, 'usage': USAGE}


def events_of(message: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    "The same message as a stream."
    [block] = message['content']
    yield {'type': 'message_start', 'message': {**message, 'content': [], 'stop_reason': None}}
    if block['type'] == 'text':
        empty, delta = block | {'text': ''}, {'type': 'text_delta', 'text': block['text']}
    else:
        empty, delta = block | {'input': {}}, {'type': 'input_json_delta', 'partial_json': json.dumps(block['input'])}
    yield {'type': 'content_block_start', 'index': 0, 'content_block': empty}
    yield {'type': 'content_block_delta', 'index': 0, 'delta': delta}
    yield {'type': 'content_block_stop', 'index': 0}
    ended = {'stop_reason': message['stop_reason'], 'stop_sequence': None}
    yield {'type': 'message_delta', 'delta': ended, 'usage': message['usage']}
    yield {'type': 'message_stop'}


class MessagesApi:
    "The service, for the length of a `with`."

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.requests: list[dict[str, Any]] = []  # bodies of the conversation's requests
        self.lock = threading.Lock()
        self._server = ThreadingHTTPServer(('127.0.0.1', 0), type('Handler', (_Handler,), {'api': self}))
        self._server.daemon_threads = True
        self.url = f'http://127.0.0.1:{self._server.server_port}'

    def __enter__(self) -> 'MessagesApi':
        threading.Thread(target=self._server.serve_forever, kwargs={'poll_interval': 0.02}, daemon=True).start()
        return self

    def __exit__(self, *args: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def env(self, home: Path, **more: str) -> dict[str, str]:
        "The whole environment of a Claude Code that knows this service, a home of its own, and nothing else."
        quiet = ('CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC', 'DISABLE_AUTOUPDATER', 'DISABLE_TELEMETRY')
        key = {'ANTHROPIC_BASE_URL': self.url, 'ANTHROPIC_API_KEY': 'none-is-needed'}
        own = {'PATH': os.environ['PATH'], 'HOME': str(home), 'TMPDIR': str(home), 'LANG': 'C.UTF-8', 'TERM': 'dumb'}
        return {**own, **key, **dict.fromkeys(quiet, '1'), **more}

    def answer(self, body: dict[str, Any]) -> tuple[Answer, int]:
        "What the model says to a request, and the number of that message."
        with self.lock:
            if not body.get('tools'):
                return 'ok', 0
            self.requests.append(body)
            return (self.answers.pop(0) if self.answers else 'Done.'), len(self.requests)

    def tools(self) -> set[str]:
        "The names of all tools the model was offered."
        return {tool['name'] for body in self.requests for tool in body['tools']}

    def results(self) -> list[tuple[bool, str]]:
        "Whether each tool call failed, and its text, in the order in which the model got to see them."
        found = []
        for message in self.requests[-1]['messages']:
            for part in message['content'] if isinstance(message['content'], list) else ():
                if part['type'] == 'tool_result':
                    content = part['content']
                    text = content if isinstance(content, str) else ''.join(c['text'] for c in content)
                    found.append((bool(part.get('is_error')), text))
        return found


class _Handler(BaseHTTPRequestHandler):
    api: MessagesApi
    protocol_version = 'HTTP/1.1'

    def log_message(self, *args: object) -> None:
        "Nothing."

    def reply(self, status: int, data: bytes, kind: str = 'application/json') -> None:
        self.send_response(status)
        self.send_header('content-type', kind)
        self.send_header('content-length', str(len(data)))
        self.end_headers()
        if self.command != 'HEAD':
            self.wfile.write(data)

    def do_HEAD(self) -> None:
        self.reply(200, b'')

    def do_GET(self) -> None:
        error = {'type': 'error', 'error': {'type': 'not_found_error', 'message': 'not here'}}
        self.reply(404, json.dumps(error).encode())

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get('content-length') or 0)) or b'{}')
        path = self.path.partition('?')[0]
        if path != '/v1/messages':
            return self.reply(200, json.dumps({'input_tokens': 1} if path.endswith('count_tokens') else {}).encode())
        message = message_of(*self.api.answer(body), str(body.get('model')))
        if not body.get('stream'):
            return self.reply(200, json.dumps(message).encode())
        stream = ''.join(f'event: {event["type"]}\ndata: {json.dumps(event)}\n\n' for event in events_of(message))
        self.reply(200, stream.encode(), 'text/event-stream')
