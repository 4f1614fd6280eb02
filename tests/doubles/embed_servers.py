"""Embedding servers on loopback that keep the real ones' contracts, and can be told to break them.

`TeiDouble` behaves like text-embeddings-inference 1.9 (or 1.8), `OpenAiDouble` and `VoyageDouble` like those services.
Limits, status codes and error bodies are those that the real servers were seen to have; vectors come from the real
local model (`real=True`) or are cheap numbers that depend on the text alone. A fault is put into `faults` (one for
each request) or into `always`:

    with TeiDouble() as server:
        server.faults = [status(429, headers={'retry-after': '1'}), None]   # busy once, then well
"""

import hashlib
import json
import math
import socket
import ssl
import struct
import subprocess
import threading
from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from merlin.embed_local import LocalEmbedder, shipped_files


@dataclass
class Reply:
    "What goes back: JSON unless `body` is text or bytes."

    status: int
    body: Any = b''
    headers: dict[str, str] = field(default_factory=dict)

    def data(self) -> tuple[bytes, str]:
        "Body and content type."
        if isinstance(self.body, bytes):
            return self.body, 'application/json'
        if isinstance(self.body, str):
            kind = 'text/html' if self.body.startswith('<') else 'text/plain; charset=utf-8'
            return self.body.encode(), kind
        return json.dumps(self.body).encode(), 'application/json'  # NaN goes out as NaN, as some servers do


@dataclass
class Fault:
    "A way to break: `reply` takes the place of the right one, `spoil` changes its vectors, `wire` breaks the line."

    reply: Reply | None = None
    spoil: Callable[[list[list[float]]], list[Any]] | None = None
    wire: str = ''  # hang, drip, reset, half, or bye: a right answer, after which the line is closed


def status(code: int, body: Any = b'', headers: dict[str, str] | None = None) -> Fault:
    "An answer with this status."
    return Fault(reply=Reply(code, body, headers or {}))


HANG, DRIP, RESET, HALF, BYE = (Fault(wire=kind) for kind in ('hang', 'drip', 'reset', 'half', 'bye'))
HTML = status(200, '<html><body>Please sign in</body></html>')
BAD_GATEWAY = status(502, '<html><body>502 Bad Gateway</body></html>')
NAN = Fault(spoil=lambda rows: [[math.nan, *rows[0][1:]], *rows[1:]])
NULL = Fault(spoil=lambda rows: [[None] * len(rows[0]), *rows[1:]])
ZEROS = Fault(spoil=lambda rows: [*rows[:-1], [0.0] * len(rows[-1])])
NARROW = Fault(spoil=lambda rows: [row[:-1] for row in rows])
SHORT = Fault(spoil=lambda rows: rows[:-1])
EXTRA = Fault(spoil=lambda rows: [*rows, rows[0]])
LONG_VECTORS = Fault(spoil=lambda rows: [[7.5 * v for v in row] for row in rows])  # not of length 1


@cache
def local_model() -> LocalEmbedder:
    "The real model, loaded once."
    return LocalEmbedder(shipped_files(), threads=1)


def cheap_vector(text: str) -> list[float]:
    "Sixteen numbers that depend on the text alone."
    return [byte - 127.5 for byte in hashlib.sha256(text.encode()).digest()[:16]]


@dataclass
class Request:
    "One request as it came."

    method: str
    path: str
    headers: dict[str, str]
    json: Any


class Double:
    "A server on a free loopback port, for the length of a `with`."

    key: str | None = None  # wanted as Bearer token

    def __init__(self, real: bool = False, key: str | None = None):
        self.real, self.key = real, key
        self.faults: list[Fault | None] = []
        self.always: Fault | None = None
        self.refuse: Callable[[Sequence[str]], Fault | None] = lambda texts: None  # a fault that depends on the texts
        self.requests: list[Request] = []
        self.lines = 0  # connections so far
        self.closing = threading.Event()
        self._server = ThreadingHTTPServer(('127.0.0.1', 0), type('Handler', (_Handler,), {'double': self}))
        self._server.daemon_threads = True
        self.url = f'http://127.0.0.1:{self._server.server_port}'

    def __enter__(self) -> 'Double':
        args = {'poll_interval': 0.01}
        threading.Thread(target=self._server.serve_forever, kwargs=args, daemon=True).start()
        return self

    def tls(self, pem: Path) -> 'Double':
        "The same server over https, as `localhost`."
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pem)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.url = f'https://localhost:{self._server.server_port}'
        return self

    def __exit__(self, *args: object) -> None:
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()

    @property
    def posts(self) -> list[Request]:
        "The requests for vectors."
        return [r for r in self.requests if r.method == 'POST']

    def vectors(self, texts: Sequence[str], prompt: str = '') -> list[list[float]]:
        "A vector for each text, with the server's own prompt in front."
        texts = [prompt + text for text in texts]
        if self.real:
            return [vector.tolist() for vector in local_model().embed_documents(texts)]
        return [cheap_vector(text) for text in texts]

    def tokens(self, text: str) -> int:
        "The tokens of a text, marks included: the model's own, or its words."
        return (local_model().count_tokens(text) if self.real else len(text.split())) + 2

    def next_fault(self, texts: Sequence[str]) -> Fault | None:
        "What goes wrong with this request."
        return (self.faults.pop(0) if self.faults else None) or self.always or self.refuse(texts)

    def get(self, path: str) -> Reply:
        "The reply to a GET."
        return Reply(404, 'not found')

    def post(self, path: str, body: Any, fault: Fault) -> Reply:
        "The reply to a POST; each kind of server has its own, so this class alone answers none."
        raise NotImplementedError


class _Handler(BaseHTTPRequestHandler):
    double: Double
    protocol_version = 'HTTP/1.1'
    disable_nagle_algorithm = True  # or every answer waits 40 ms for the client to acknowledge its first half

    def log_message(self, *args: object) -> None:
        pass

    def setup(self) -> None:
        self.double.lines += 1
        super().setup()

    def do_GET(self) -> None:
        self._note('GET', None)
        if not self._welcome() and self.path != '/health':
            return self._send(Reply(401))
        if reply := self.double.get(self.path):
            self._send(reply)

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers.get('content-length') or 0))
        try:
            body = json.loads(raw)
        except ValueError:
            body = None
        self._note('POST', body)
        texts = [t for t in (body or {}).get('input') or (body or {}).get('inputs') or [] if isinstance(t, str)]
        fault = self.double.next_fault(texts) or Fault()
        if fault.wire in ('hang', 'drip', 'reset'):
            return getattr(self, '_' + fault.wire)()
        if fault.reply:
            return self._send(fault.reply)
        if not self._welcome():
            return self._send(self.double.unwelcome())
        if len(raw) > 2_000_000 and isinstance(self.double, TeiDouble):
            return self._send(Reply(413, 'length limit exceeded'))
        self._send(self.double.post(self.path, body, fault), half=fault.wire == 'half', bye=fault.wire == 'bye')

    def _welcome(self) -> bool:
        return self.double.key is None or self.headers.get('authorization') == f'Bearer {self.double.key}'

    def _note(self, method: str, body: Any) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.double.requests.append(Request(method, self.path, headers, body))

    def _send(self, reply: Reply, half: bool = False, bye: bool = False) -> None:
        data, kind = reply.data()
        self.send_response(reply.status)
        for name, value in {'content-type': kind, 'content-length': str(len(data)), **reply.headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data[: len(data) // 2] if half else data)
        self.close_connection = self.close_connection or half or bye

    def _hang(self) -> None:
        self.double.closing.wait(30)
        self.close_connection = True

    def _drip(self) -> None:
        "A byte at a time, for ever: no step of it is slow."
        self.close_connection = True
        for byte in b'HTTP/1.1 200 OK\r\nx-slow: ' + b'.' * 10_000:
            if self.double.closing.wait(0.02):
                return
            try:
                self.wfile.write(bytes([byte]))
            except OSError:
                return

    def _reset(self) -> None:
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))
        self.connection.close()
        self.close_connection = True


class TeiDouble(Double):
    "text-embeddings-inference: /info and /embed."

    CODES = {'Unhealthy': 503, 'Backend': 424, 'Overloaded': 429, 'Tokenizer': 422, 'Validation': 422, 'Empty': 400}

    def __init__(self, version: str = '1.9.3', model: str = 'sentence-transformers/all-MiniLM-L6-v2', **kw: Any):
        super().__init__(**kw)
        self.info: dict[str, Any] = {
            'model_id': model,
            'model_sha': None,
            'model_dtype': 'float32',
            'model_type': {'embedding': {'pooling': 'mean'}},
            'max_concurrent_requests': 512,
            'max_input_length': 256,
            'max_batch_tokens': 16384,
            'max_batch_requests': None,
            'max_client_batch_size': 32,
            'auto_truncate': version >= '1.9',
            'tokenization_workers': 2,
            'version': version,
            'sha': None,
            'docker_label': None,
        }
        if version >= '1.9':
            self.info['served_model_name'] = model

    def get(self, path: str) -> Reply:
        return Reply(200, self.info) if path == '/info' else Reply(200 if path == '/health' else 404, '')

    def unwelcome(self) -> Reply:
        return Reply(401)

    def _error(self, kind: str, message: str) -> Reply:
        old = kind == 'Validation' and self.info['version'] < '1.9'
        return Reply(413 if old else self.CODES[kind], {'error': message, 'error_type': kind})

    def post(self, path: str, body: Any, fault: Fault) -> Reply:
        if path != '/embed':
            return Reply(404, '')
        if body is None:
            return Reply(400, 'Failed to parse the request body as JSON')
        texts = body.get('inputs')
        texts = [texts] if isinstance(texts, str) else texts
        if not isinstance(texts, list) or not all(isinstance(t, str) for t in texts):
            return Reply(422, 'Failed to deserialize the JSON body into the target type')
        if refusal := self._refusal(texts, body):
            return refusal
        rows = self.vectors(texts)
        if size := body.get('dimensions'):
            rows = [row[:size] for row in rows]
        if fault.spoil is None and body.get('normalize', True):
            rows = [[v / math.hypot(*row) for v in row] for row in rows]
        return Reply(200, fault.spoil(rows) if fault.spoil else rows)

    def _refusal(self, texts: list[str], body: dict[str, Any]) -> Reply | None:
        most, longest = self.info['max_client_batch_size'], self.info['max_input_length']
        if not texts or '' in texts:
            return self._error('Empty', '`inputs` cannot be empty')
        if len(texts) > most:
            return self._error('Validation', f'batch size {len(texts)} > maximum allowed batch size {most}')
        if self.info['version'] >= '1.9' and len(texts) > self.info['max_concurrent_requests']:
            return self._error('Overloaded', 'Model is overloaded')
        if body.get('prompt_name'):
            return self._error('Validation', 'no prompts in the model configuration')
        truncate = body.get('truncate')
        if not (self.info['auto_truncate'] if truncate is None else truncate):
            for count in map(self.tokens, texts):
                if count > longest:
                    message = f'`inputs` must have less than {longest} tokens. Given: {count}'
                    return self._error('Validation', message)
        return None


def _openai_error(code: int, message: str, kind: str = 'invalid_request_error', name: str | None = None) -> Reply:
    return Reply(code, {'error': {'message': message, 'type': kind, 'param': None, 'code': name}})


QUOTA = Fault(reply=_openai_error(429, 'You exceeded your current quota.', 'insufficient_quota', 'insufficient_quota'))


class OpenAiDouble(Double):
    "The embeddings service of OpenAI."

    MODELS = {
        'text-embedding-3-small': 1536,
        'text-embedding-3-large': 3072,
        'text-embedding-ada-002': 1536,
        'other': 16,
    }
    FIELDS = {'input', 'model', 'encoding_format', 'dimensions', 'user'}
    served: str | None = None  # the model's name in a reply, where it isn't the one that was asked for
    base64 = False  # answer in base64 whatever was asked
    shuffle = False

    def unwelcome(self) -> Reply:
        return _openai_error(401, f'Incorrect API key provided: {self.key}', name='invalid_api_key')

    def post(self, path: str, body: Any, fault: Fault) -> Reply:
        if path != '/v1/embeddings':
            return _openai_error(404, f'Invalid URL (POST {path})')
        texts = [body['input']] if isinstance(body.get('input'), str) else body.get('input')
        if refusal := self._refusal(texts, body):
            return refusal
        size = body.get('dimensions') or self.MODELS[body['model']]
        rows = [self._row(text, size) for text in texts]
        rows = fault.spoil(rows) if fault.spoil else rows
        packed = self.base64 or body.get('encoding_format') == 'base64'
        data = [
            {'object': 'embedding', 'index': n, 'embedding': self._pack(row) if packed else row}
            for n, row in enumerate(rows)
        ]
        used = sum(map(self.tokens, texts))
        return Reply(200, {
            'object': 'list', 'data': data[::-1] if self.shuffle else data, 'model': self.served or body['model'],
            'usage': {'prompt_tokens': used, 'total_tokens': used},
        })  # fmt: skip

    def _row(self, text: str, size: int) -> list[float]:
        row = (cheap_vector(text) * (size // 16 + 1))[:size]
        return [v / math.hypot(*row) for v in row]

    def _pack(self, row: Sequence[float]) -> str:
        return b64encode(struct.pack(f'<{len(row)}f', *row)).decode()

    def _refusal(self, texts: Any, body: dict[str, Any]) -> Reply | None:
        if unknown := set(body) - self.FIELDS:
            return _openai_error(400, f'Unrecognized request argument supplied: {min(unknown)}')
        if body.get('model') not in self.MODELS:
            message = f'The model `{body.get("model")}` does not exist or you do not have access to it.'
            return _openai_error(404, message, name='model_not_found')
        if not isinstance(texts, list) or not texts or not all(isinstance(t, str) and t for t in texts):
            return _openai_error(400, "'$.input' is invalid.")
        if len(texts) > 2048:
            return _openai_error(400, f"Invalid 'input': array too long. Expected at most 2048, got {len(texts)}.")
        counts = list(map(self.tokens, texts))
        if max(counts) > 8192:
            message = f"This model's maximum context length is 8192 tokens, however you requested {max(counts)} tokens."
            return _openai_error(400, message)
        if sum(counts) > 300_000:
            message = f'Requested {sum(counts)} tokens, max 300000 tokens per request'
            return _openai_error(400, message, 'max_tokens_per_request', 'max_tokens_per_request')
        if 'dimensions' in body and not body['model'].startswith('text-embedding-3-'):
            return _openai_error(400, 'This model does not support specifying dimensions.')
        return None


class VoyageDouble(Double):
    "The embeddings service of Voyage: a prompt for documents, another for queries."

    MODELS = {'voyage-4': (256, 512, 1024, 2048), 'voyage-4-large': (256, 512, 1024, 2048), 'voyage-law-2': (1024,)}
    PROMPTS = {
        None: '',
        'query': 'Represent the query for retrieving supporting documents: ',
        'document': 'Represent the document for retrieval: ',
    }

    def unwelcome(self) -> Reply:
        return Reply(401, {'detail': 'Provided API key is invalid.'})

    def post(self, path: str, body: Any, fault: Fault) -> Reply:
        if path != '/v1/embeddings':
            return Reply(404, {'detail': 'Not Found'})
        texts = [body['input']] if isinstance(body.get('input'), str) else body.get('input')
        if refusal := self._refusal(texts, body):
            return refusal
        size = body.get('output_dimension') or 1024
        prompted = self.vectors(texts, self.PROMPTS[body.get('input_type')])
        rows = [(row * (size // len(row) + 1))[:size] for row in prompted]
        rows = fault.spoil(rows) if fault.spoil else rows
        data = [{'object': 'embedding', 'index': n, 'embedding': row} for n, row in enumerate(rows)]
        usage = {'total_tokens': sum(map(self.tokens, texts))}
        return Reply(200, {'object': 'list', 'data': data, 'model': body['model'], 'usage': usage})

    def _refusal(self, texts: Any, body: dict[str, Any]) -> Reply | None:
        def bad(message: str) -> Reply:
            return Reply(400, {'detail': message})

        sizes = self.MODELS.get(body.get('model'))
        if sizes is None:
            return bad(f"Model {body.get('model')} is not supported.")
        if not isinstance(texts, list) or not texts or not all(isinstance(t, str) and t for t in texts):
            return bad('Input cannot contain empty strings or empty lists.')
        if len(texts) > 1000:
            return bad(f'The batch size limit is 1000. Your batch size is {len(texts)}.')
        if body.get('input_type') not in self.PROMPTS:
            return bad("Value of 'input_type' is not valid.")
        if 'output_dimension' in body and (len(sizes) == 1 or body['output_dimension'] not in sizes):
            return bad("Value of 'output_dimension' is not valid.")
        counts = list(map(self.tokens, texts))
        if not body.get('truncation', True) and max(counts) > 32_000:
            return bad(f'An input has {max(counts)} tokens, over the context length of 32000 tokens.')
        if sum(counts) > 120_000:
            return bad(f'The max allowed tokens per submitted batch is 120000. Your batch has {sum(counts)} tokens.')
        return None


def certificate(folder: Path) -> Path:
    "A file with a certificate of its own for `localhost`, and its key."
    key, cert, both = folder / 'key.pem', folder / 'cert.pem', folder / 'both.pem'
    args = '-x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost'.split()
    names = ['-addext', 'subjectAltName=DNS:localhost,DNS:embed.invalid']
    command = ['openssl', 'req', *args, *names, '-keyout', str(key), '-out', str(cert)]
    subprocess.run(command, check=True, capture_output=True, timeout=30)
    both.write_text(key.read_text() + cert.read_text())
    return both


@contextmanager
def tunnel(port: int, asked: list[str]) -> Iterator[str]:
    "A proxy that leads every CONNECT to one port of this machine; its address, and in `asked` what it was sent."
    listener = socket.create_server(('127.0.0.1', 0))

    def pass_on(source: socket.socket, to: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                to.sendall(data)
            to.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # the other direction has ended it

    def run() -> None:
        conn, _ = listener.accept()
        with conn, socket.create_connection(('127.0.0.1', port)) as there:
            asked.append(conn.recv(65536).decode())
            conn.sendall(b'HTTP/1.1 200 Connection established\r\n\r\n')
            back = threading.Thread(target=pass_on, args=(there, conn), daemon=True)
            back.start()
            pass_on(conn, there)
            back.join(10)

    with listener:
        threading.Thread(target=run, daemon=True).start()
        yield f'127.0.0.1:{listener.getsockname()[1]}'
