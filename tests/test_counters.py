"""What merlin does, counted: git processes, SQL, rows, embedding requests, modules and bytes; a regression needs no clock.

SQL is read from libpq's own protocol trace, so that `begin`, a second trip for `prepare` and all that a driver adds is in
it. Commands are processes of their own; where the modules do not matter, the same call is counted inside this process.
The counts are the same on every machine. What is above its limit is a regression, or its row gets a new number and a
reason; what is below must lower the limit, or the next regression would hide in the room.
"""

import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
from doubles.embed_servers import TeiDouble
from test_mcp_server import CALLS, serve, settings
from test_protocol import ask, hello

from merlin.config import DatabaseConfig, load_config
from merlin.database import connect
from merlin.ingest import ingest
from merlin.protocol import Tool, run_tool
from merlin.role import ensure_role
from merlin.service import Service
from merlin.testing import commit_all, fixture_record, run_git
from merlin.tools import make_tools
from merlin.wire import encode

pytestmark = pytest.mark.skipif(sys.platform != 'linux', reason='psycopg traces the protocol on Linux alone')


@dataclass(frozen=True)
class Counts:
    "What one run did."

    git: int = 0  # processes; merlin starts no others
    connections: int = 0  # to the database; a stand-alone one is sent one statement more on each
    statements: int = 0  # SQL, `begin` and `commit` among it
    trips: int = 0  # to the database and back, once the connection stands
    rows: int = 0  # written, as the database says; what goes along with a deleted row is not in it
    fetched: int = 0  # rows that came back
    requests: int = 0  # to the embedding server
    texts: int = 0  # in them
    modules: int = 0  # of merlin
    others: int = 0  # other modules; at most, since Python's own differ from version to version
    stdout: int = 0  # bytes; at most, since seconds or a folder's name may be among them


LIMITS = {
    # 51 documents with 115 sections, in two windows. git: HEAD twice, root commits, dates, tree, hosts, texts. SQL: 9
    # statements for a window (the whole of it travels as JSON), about 50 for the run. Rows: 51 + 115 + 115 vectors, 115
    # lengths and 1,434 postings, the rest is meta. Requests: 1 for the canary, 7 for the gap between right and wrong
    # answers, and 19 for the sections, where the double refuses one that is longer than its
    # window: the batch around it is halved until that one is alone, and its texts are sent again.
    'first ingest': Counts(
        git=7, connections=1, statements=72, trips=75, rows=1856, fetched=1479, requests=27, texts=203,
        modules=37, others=400, stdout=600,
    ),
    # HEAD; search path, lock, is there a meta, meta, its two times in one trip, may the role read. `--quiet` says nothing.
    'no-op ingest': Counts(
        git=1, connections=1, statements=7, trips=7, rows=2, fetched=21, modules=28, others=280,
    ),
    # The same for a record of 12, 48 and 192 files. git: HEAD, whether the commit of the record is an ancestor, what
    # differs, new commits, text. Rows: the document, gone and come, what went with it, three sections, a vector, seventeen
    # facts of meta, and the postings of the three, gone and come. Requests: the canary, and the section that changed.
    'one changed file': Counts(git=5, connections=1, statements=55, trips=56, rows=53, fetched=57, requests=2, texts=2),
    # As above; a path is part of what is embedded, so the three sections are new. The old document is one row that goes.
    'renamed file': Counts(git=5, connections=1, statements=56, trips=57, rows=56, fetched=57, requests=2, texts=4),
    # No text to read or to embed, and nothing to write but postings and meta.
    'removed file': Counts(git=4, connections=1, statements=40, trips=40, rows=38, fetched=40, requests=1, texts=1),
    # 3 statements and git for the verdict; 3 for the connection and the meta, 4 for the transaction, 3 for each of three
    # legs (savepoint and time limit in one, and taken back in one) and one more, 3 for the hits. Requests: the canary, to
    # learn the model's dimensions, and the question.
    'search': Counts(
        git=1, connections=1, statements=23, trips=23, fetched=251, requests=2, texts=2, modules=46, others=380, stdout=3_400,
    ),
    'status': Counts(git=1, connections=1, statements=5, trips=5, fetched=22, modules=31, others=280, stdout=1_000),
    # HEAD, tree, the pages that define hosts, all pages.
    'lint': Counts(git=4, modules=32, others=300, stdout=2_100),
    # initialize and tools/list: what every window of Claude Code waits for, and what its model reads.
    'greeting': Counts(modules=12, others=70, stdout=5_700),
    # A tool call in a server that has answered each tool once. meta is read before, and three of its facts after, to see
    # whether a run began or ended meanwhile. The odd trips: psycopg prepares what it was given five times.
    'tool search': Counts(git=1, statements=21, trips=25, fetched=172, requests=1, texts=1, stdout=1_400),
    'tool host_history': Counts(git=1, statements=15, trips=15, fetched=74, stdout=4_700),
    'tool get_document': Counts(git=1, statements=8, trips=8, fetched=24, stdout=900),
    'tool list_documents': Counts(git=1, statements=9, trips=9, fetched=74, stdout=4_900),
    'tool index_status': Counts(git=1, statements=5, trips=5, fetched=25, stdout=1_000),
}  # fmt: skip
EXACT = ('git', 'connections', 'statements', 'trips', 'rows', 'fetched', 'requests', 'texts')

PROBE = """
import os, runpy, sys
before = set(sys.modules)
notes, trace = (os.open(sys.argv[1] + end, os.O_WRONLY | os.O_CREAT | os.O_APPEND) for end in ('.notes', '.sql'))
exit_now = os._exit

def note(text):
    os.write(notes, f'{text}\\n'.encode())

def heard(event, args):
    if event == 'subprocess.Popen':
        note('process ' + os.path.basename(os.fsdecode(args[1][0])))

def finished(code=None):
    for name in set(sys.modules) - before:
        note('module ' + name)
    if code is not None:
        exit_now(code)

def watched(psycopg):
    real, flags = psycopg.connect, psycopg.pq.Trace.SUPPRESS_TIMESTAMPS | psycopg.pq.Trace.REGRESS_MODE

    def connect(*args, **kw):
        conn = real(*args, **kw)
        note('connection 1')
        conn.pgconn.trace(trace)  # flushed when the process ends
        conn.pgconn.set_trace_flags(flags)
        return conn

    psycopg.connect = connect

class Finder:  # psycopg is imported when merlin wants it, and not before
    def find_spec(self, name, path=None, target=None):
        if name == 'psycopg':
            sys.meta_path.remove(self)
            spec = sys.modules['_frozen_importlib_external'].PathFinder.find_spec(name, path)
            run = spec.loader.exec_module
            spec.loader.exec_module = lambda module: (run(module), watched(module))
            return spec

os._exit = finished  # the MCP server ends with it
sys.addaudithook(heard)
sys.meta_path.insert(0, Finder())
code, sys.argv = sys.argv[2], sys.argv[2:]
try:
    exec(code)
finally:
    finished()
"""
COMMAND = "runpy.run_module('merlin.cli', run_name='__main__', alter_sys=True)"
GREETING = """
import merlin.mcp_server
merlin.mcp_server.Late.warm = lambda late: None  # it begins while the greeting is still on its way
merlin.mcp_server.main([])
"""
MESSAGE = re.compile(rb'^[FB]\t\d+\t(\w+)', re.M)
WROTE = re.compile(rb'^B\t\d+\tCommandComplete\t "(?:INSERT 0|UPDATE|DELETE|COPY) (\d+)"', re.M)
FLAGS = psycopg.pq.Trace.SUPPRESS_TIMESTAMPS | psycopg.pq.Trace.REGRESS_MODE


@dataclass
class Lab:
    "A record, its environment, and everything that is counted there."

    repo: Path
    env: dict[str, str]
    server: TeiDouble
    log: Path  # without its ending
    open: list[psycopg.Connection[Any]] = field(default_factory=list)  # of this process

    def file(self, end: str) -> Path:
        "One of the two logs; the folder has no others."
        path = self.log.with_suffix(end)
        path.touch()
        return path

    def note(self, text: str) -> None:
        "What the probe would write."
        with self.file('.notes').open('a') as file:
            file.write(text + '\n')

    def trace(self, conn: psycopg.Connection[Any]) -> None:
        "Trace a connection of this process."
        with self.file('.sql').open('ab') as file:
            conn.pgconn.trace(os.dup(file.fileno()))
        conn.pgconn.set_trace_flags(FLAGS)

    def take(self, stdout: int = 0) -> Counts:
        "What was counted since the last time."
        for conn in self.open:
            conn.pgconn.untrace()  # which flushes
        sql, notes = self.file('.sql').read_bytes(), self.file('.notes').read_text().split('\n')[:-1]
        posts = self.server.posts
        self.server.requests = []
        for end in ('.sql', '.notes'):
            self.file(end).write_bytes(b'')
        for conn in self.open:
            self.trace(conn)
        return read(sql, [tuple(line.split(' ', 1)) for line in notes], posts, stdout)

    def counted(self, call: Callable[[], int | None]) -> Counts:
        "A call in this process, which may give the size of its answer."
        self.take()
        return self.take(call() or 0)

    def command(self, code: str) -> list[str]:
        "A process that runs this code and counts."
        return [sys.executable, '-P', '-c', PROBE, str(self.log), code]

    def run(self, *args: str) -> Counts:
        "One run of `merlin …`."
        self.take()
        done = subprocess.run([*self.command(COMMAND), *args], env=self.env, capture_output=True, cwd='/', timeout=60)
        assert done.returncode == 0, done.stderr.decode()
        return self.take(len(done.stdout))

    def ingest(self) -> None:
        "Bring the index up to date, in this process."
        ingest(load_config(self.env))


def read(sql: bytes, notes: list[tuple[str, str]], posts: list[Any], stdout: int) -> Counts:
    "The counts of a log."
    of, kinds = Counter(MESSAGE.findall(sql)), Counter(kind for kind, _ in notes)
    processes = [name for kind, name in notes if kind == 'process']
    assert set(processes) <= {'git'}, processes
    ours = sum(kind == 'module' and name.split('.')[0] == 'merlin' for kind, name in notes)
    return Counts(
        git=len(processes), connections=kinds['connection'],
        statements=of[b'Query'] + of[b'Execute'], trips=of[b'ReadyForQuery'] + of[b'CopyInResponse'],
        rows=sum(map(int, WROTE.findall(sql))), fetched=of[b'DataRow'],
        requests=len(posts), texts=sum(len(request.json['inputs']) for request in posts),
        modules=ours, others=kinds['module'] - ours, stdout=stdout,
    )  # fmt: skip


def check(lab: Lab, name: str, counted: Counts) -> None:
    "Compare with the table."
    limit, more = LIMITS[name], counted.connections if 'DATABASE_URL' in lab.env else 0  # `set jit = off`
    limit = replace(limit, statements=limit.statements + more, trips=limit.trips + more)
    whole = counted.modules > 0  # a process of its own
    exact = (*EXACT, 'modules') if whole else EXACT
    at_most = ('others', 'stdout') if whole else ('stdout',)
    found = [(what, getattr(counted, what), getattr(limit, what)) for what in (*exact, *at_most)]
    wrong = [f'{what} {n}, limit {most}' for what, n, most in found if n > most or (n < most and what in exact)]
    assert not wrong, f'{name}: {"; ".join(wrong)}'


@pytest.fixture
def lab(database: DatabaseConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    "A record without files, and the role that reads, which another test may have made or not."
    repo = tmp_path / 'record'
    repo.mkdir()
    run_git(repo, 'init', '--quiet')
    with connect(database) as conn:
        conn.execute(f'create schema "{database.schema}"')
        if note := ensure_role(conn, database.schema):
            pytest.skip(note)
        with TeiDouble() as server:
            made = Lab(repo, settings(database, repo, EMBED_URL=server.url), server, tmp_path / 'counts')
            watch(made, monkeypatch)
            yield made


def watch(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    "Count what this process does."
    real_connect, real_popen = psycopg.connect, subprocess.Popen

    def watched(*args: Any, **kw: Any) -> psycopg.Connection[Any]:
        conn = real_connect(*args, **kw)
        lab.note('connection 1')
        lab.trace(conn)
        lab.open.append(conn)
        close = conn.close

        def closed() -> None:
            if conn in lab.open:
                lab.open.remove(conn)
                conn.pgconn.untrace()  # else what it still holds is lost
            close()

        conn.close = closed
        return conn

    def popen(argv: list[str], *args: Any, **kw: Any) -> 'subprocess.Popen[Any]':
        if PROBE not in argv:  # that one counts itself
            lab.note(f'process {os.path.basename(argv[0])}')
        return real_popen(argv, *args, **kw)

    monkeypatch.setattr(psycopg, 'connect', watched)
    monkeypatch.setattr(subprocess, 'Popen', popen)


@pytest.fixture
def still(tmp_path: Path) -> Iterator[Lab]:
    "The fixture record, for what needs no index."
    with TeiDouble() as server:
        repo = fixture_record(tmp_path / 'record')
        env = settings(DatabaseConfig(home=tmp_path / 'home'), repo, EMBED_URL=server.url)
        yield Lab(repo, env, server, tmp_path / 'counts')


def test_commands_from_the_shell_do_no_more_than_they_must(lab):
    fixture_record(lab.repo)
    check(lab, 'first ingest', lab.run('ingest'))
    check(lab, 'no-op ingest', lab.run('ingest', '--quiet'))
    check(lab, 'search', lab.run('search', 'what to do when a disk runs full'))
    check(lab, 'status', lab.run('status'))


def write(repo: Path, numbers: range, second: str = 'second') -> None:
    "Pages of three sections."
    for n in numbers:
        text = f'# Page {n}\n\nnumber {n}\n\n## Two\n\n{second} {n}\n\n## Three\n\nthird {n}\n'
        (repo / f'page{n:03}.md').write_text(text)
    commit_all(repo, 'pages')


def test_a_count_that_is_not_its_limit_fails_and_so_does_one_with_room(still):
    right = LIMITS['lint']
    check(still, 'lint', replace(right, others=1, stdout=1))
    for wrong in (
        {'git': right.git + 1},
        {'git': right.git - 1},
        {'modules': 31},
        {'statements': 1},
        {'stdout': 9_999},
    ):
        with pytest.raises(AssertionError, match=f'lint: {next(iter(wrong))} '):
            check(still, 'lint', replace(right, **wrong))


CHANGED = range(7, 8)


def test_an_ingest_costs_what_has_changed_whatever_the_size_of_the_record(lab):
    have = 0
    for files, word in ((12, 'apple'), (48, 'pear'), (192, 'plum')):  # a new word comes and an old one goes, each time
        write(lab.repo, range(have, files))
        have = files
        if word == 'apple':
            write(lab.repo, CHANGED, 'quince')
        lab.ingest()
        write(lab.repo, CHANGED, word)
        check(lab, 'one changed file', lab.counted(lab.ingest))
        check(lab, 'no-op ingest', lab.counted(lab.ingest))
    run_git(lab.repo, 'mv', 'page009.md', 'page900.md')
    commit_all(lab.repo, 'rename')
    check(lab, 'renamed file', lab.counted(lab.ingest))
    run_git(lab.repo, 'rm', '--quiet', 'page010.md')
    commit_all(lab.repo, 'remove')
    check(lab, 'removed file', lab.counted(lab.ingest))


def test_a_warm_tool_call_does_no_more_than_it_must(lab):
    fixture_record(lab.repo)
    lab.ingest()
    service = Service(lambda: load_config(lab.env), stamp=lambda: None)

    def answer(tool: Tool) -> int:
        result = run_tool(tool, CALLS[tool.name])
        assert not result['isError'], result
        return len(encode({'jsonrpc': '2.0', 'id': 1, 'result': result}))

    tools = make_tools(service.answer)
    try:
        for tool in tools:
            answer(tool)
        for tool in tools:
            check(lab, f'tool {tool.name}', lab.counted(partial(answer, tool)))
    finally:
        service.drop()


def test_the_linter_reads_the_record_with_few_processes_and_without_a_database(still):
    check(still, 'lint', still.run('lint'))


def test_the_greeting_of_the_server_is_small_and_asks_nobody(still):
    with serve(still.env, *still.command(GREETING), greeted=False) as client:
        client.send(hello(), ask(1, 'tools/list'))
        size = sum(len(client.lines.get(timeout=20)) for _ in range(2))
        client.end()
        check(still, 'greeting', still.take(size))
