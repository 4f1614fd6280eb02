"""The faults that strike a run at one moment: a process killed, a disk that is full, an embedder or a clock gone wrong."""

import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
from faults_ask import Asker
from faults_lab import BREAKS, PASSWORD, Done, Lab, drop_index, other_home, pick
from faults_same import compare, differences

from merlin import keeper
from merlin.database import connect
from merlin.errors import MerlinError
from merlin.ingest import ingest

MODES = ('change', 'rebuild', 'first', 'rules', 'schema')
MOVES = (('first', 'second'), ('second', 'first'), ('second', 'third'), ('third', 'rewritten'))


@dataclass
class Point:
    "One fault at one moment: what was done, and what was wrong afterwards."

    lab: Lab
    rng: random.Random
    notes: list[str] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)
    asker: Asker | None = None  # a server that goes on through all of it
    before: tuple[str, str] = ('first', 'plain')  # head and layout of the index when the run began

    def check(self, right: bool, text: str) -> None:
        "A finding where it is not right."
        if not right:
            self.findings.append(text)

    def ended(self, done: Done, codes: Sequence[int], what: str) -> None:
        "The process must have ended with one of these codes, and in words."
        self.notes.append(f'{what}: {done.said} ({done.seconds:.1f} s)')
        self.check(done.code in codes, f'{what}: {done.said}')
        self.check(done.clean, f'{what} printed a traceback, or what a library thought: {done.err[-400:]}')

    def honest(self) -> None:
        "A reader who comes now is not told that all is well where it is not, and is shown no secret."
        try:
            said = self.lab.verdict()
        except MerlinError as error:
            self.notes.append(f'a reader: {error}')
            return
        self.notes.append(f'a reader: {said.line[:160]}')
        if said.state == 'fresh':
            wrong = differences(self.lab.rows(), self.lab.clean().tables)
            self.check(not wrong, f'the verdict is {said.line}, but {wrong[:1]}')
        with self.lab.connected() as conn:
            query = 'select count(*) from documents where text like %s'
            found = conn.execute(query, (f'%{PASSWORD}%',)).fetchone() if self.exists(conn) else (0,)
        self.check(found == (0,), 'a secret is in the index')

    def exists(self, conn: psycopg.Connection) -> bool:
        "Whether there are documents to look at."
        return conn.execute("select to_regclass('documents') is not null").fetchone()[0]

    def mended(self, *args: str, **env: str) -> None:
        "The next run ends right, and the index is that of a clean rebuild."
        self.ended(self.lab.ingest(*args, **env), (0,), 'the next run')
        self.findings += compare(self.lab.snapshot(), self.lab.clean())
        said = self.lab.verdict()
        self.check(said.state == 'fresh', f'after the next run the verdict is {said.line}')
        self.check(not (stray := self.lab.strays()), f'processes left: {stray[:2]}')

    def turn_back(self) -> None:
        "In time, record and layout go back to where they were before the next run comes."
        if self.rng.random() < 0.3:
            self.lab.set(*self.before)
            self.notes.append(f'back to {" ".join(self.before)}')

    def alone(self, most: int = 0) -> None:
        "No session is left of a process that is gone."
        end = time.monotonic() + 5
        while (count := self.lab.sessions()) > most and time.monotonic() < end:
            time.sleep(0.1)
        self.check(count <= most, f'{count} sessions, {most} expected')

    def asked(self) -> None:
        "The server that went through it answers as before."
        if self.asker:
            answer = self.asker.ask('search', {'query': 'disk full on beta', 'k': 3})
            self.check('isError": true' not in answer and 'hosts/beta' in answer, f'the server says {answer[:300]}')


def prepare(lab: Lab, mode: str, head: str) -> tuple[str, ...]:
    "Bring about that a run has work of this kind; the arguments of the run."
    if mode == 'first':
        drop_index(lab)
    elif mode == 'schema':
        with lab.connected() as conn:
            conn.execute(f"update {lab.config.database.schema}.meta set value = '0' where key = 'schema_version'")
    lab.set(head, 'other' if mode == 'rules' else 'plain')
    return ('--reembed-all',) if mode == 'rebuild' else ()


@contextmanager
def counted() -> Iterator[list[int]]:
    "How many exchanges with the database the block makes."
    wait, seen = psycopg.Connection.wait, [0]

    def counting(self: Any, *args: Any, **kw: Any) -> Any:
        seen[0] += 1
        return wait(self, *args, **kw)

    psycopg.Connection.wait = counting
    try:
        yield seen
    finally:
        psycopg.Connection.wait = wait


LENGTHS: dict[tuple[str, str, str], int] = {}


def work(point: Point) -> tuple[tuple[str, ...], int, str]:
    "Some work for a run: its arguments, how many exchanges it makes undisturbed, and what it is."
    lab = point.lab
    mode, (start, head) = pick(point.rng, *MODES, weights=(5, 2, 2, 2, 1)), pick(point.rng, *MOVES)
    lab.settle(start)
    point.before = lab.at
    known = (mode, start, head) if mode == 'change' else (mode, '', '')  # elsewhere all is done, from whatever start
    if known not in LENGTHS:
        prepare(lab, mode, head)
        lab.clean()
        with counted() as seen:
            ingest(lab.config, reembed_all=mode == 'rebuild')
        LENGTHS[known] = seen[0]
        lab.settle(start)
    args = prepare(lab, mode, head)
    lab.clean()
    return args, LENGTHS[known], f'{mode} {start}→{head}'


def moment(point: Point, length: int) -> dict[str, Any]:
    "When in a run it happens."
    when = pick(point.rng, 'before', 'during', 'after')
    return {'at': point.rng.randint(1, length), 'when': when, 'delay': point.rng.random() * 0.003}


CODES = {  # what a struck run may end with; 0 where it was struck in its last breath, or could go on
    'kill': (-9, 0), 'power': (-9, 0), 'term': (-15, 0), 'int': (130, -2, 0), 'backend': (0, 1), 'terminate': (0, 1),
    'postmaster': (0, 1), 'server': (0, 1),
}  # fmt: skip


def struck(do: str) -> Callable[[Point], None]:
    "Something is done at one exchange of a run with the database."

    def strike(point: Point) -> None:
        args, length, what = work(point)
        order = {'do': do, **moment(point, length)}
        point.notes.append(f'{what}, {order["when"]} exchange {order["at"]} of {length}')
        point.ended(point.lab.ingest(*args, order=order), CODES[do], 'the struck run')
        if point.rng.random() < 0.5:
            point.honest()
        point.turn_back()
        point.mended()
        point.asked()
        point.alone(int(point.asker is not None))

    return strike


def two_at_once(point: Point) -> None:
    "A run is stopped at some moment, another comes, and the first goes on."
    args, length, what = work(point)
    wait = point.rng.random() < 0.5
    order = {'do': 'stop', **moment(point, length)}
    point.notes.append(f'{what}, stopped {order["when"]} exchange {order["at"]} of {length}{", waited for" * wait}')
    begin = time.monotonic()
    first = point.lab.start('merlin.ingest', *args, order=order)
    while first.poll() is None and not is_stopped(first.pid):
        time.sleep(0.02)
    second = point.lab.start('merlin.ingest', *('--wait',) * wait)
    if wait:
        time.sleep(1)  # it waits, or is done
    else:
        point.ended(point.lab.end(second, begin), (0,), 'the second run')
        point.honest()
    if first.poll() is None:
        os.kill(first.pid, signal.SIGCONT)
    point.ended(point.lab.end(first, begin), (0,), 'the first run')
    if wait:
        point.ended(point.lab.end(second, begin), (0,), 'the second run')
    point.mended()


def is_stopped(pid: int) -> bool:
    "Whether the process is stopped."
    try:
        return Path(f'/proc/{pid}/stat').read_text().rpartition(') ')[2][0] == 'T'
    except FileNotFoundError:
        return False


def server_killed(point: Point) -> None:
    "A server for a model is killed while it answers, beside a run."
    args, _, what = work(point)
    asker = Asker(point.lab)
    asker.ask('index_status', {})
    run = point.lab.start('merlin.ingest', *args)
    begin, delay = time.monotonic(), point.rng.random() * 1.5
    point.notes.append(f'{what}, killed after {delay:.2f} s')
    while time.monotonic() - begin < delay:
        answer = asker.ask(*pick(point.rng, ('search', {'query': 'restore'}), ('host_history', {'host': 'beta'})))
        # in a first run: no tables, tables that the role may not read yet, nothing in them
        known = (
            '"isError": false',
            'nothing is indexed yet',
            'cannot read schema',
            'the index is empty; a run is at work',
        )
        point.check(any(word in answer for word in known), f'the server says {answer[:300]}')
    asker.process.kill()
    asker.process.communicate()
    point.ended(point.lab.end(run, begin), (0,), 'the run beside it')
    point.mended()
    point.alone(int(point.asker is not None))
    asker = Asker(point.lab)
    answer = asker.ask('index_status', {})
    point.check('"isError": false' in answer and 'fresh' in answer, f'the next server says {answer[:300]}')
    point.check(asker.end() == 0, 'the next server does not end well')


def keeper_killed(point: Point) -> None:
    "The process that watches the database is killed beside a run."
    args, _, what = work(point)
    point.notes.append(what)
    begin, run = time.monotonic(), point.lab.start('merlin.ingest', *args)
    time.sleep(point.rng.random() * 1.5)
    lock = Path(point.lab.server.places.lock('keeper'))
    if lock.exists() and keeper.held(str(lock)) and lock.read_text().strip():
        keeper.signal_all([int(lock.read_text())], signal.SIGKILL)
    point.ended(point.lab.end(run, begin), (0,), 'the run beside it')
    point.mended()
    point.check(keeper.held(str(lock)), 'nobody watches the database')


def git_killed(point: Point) -> None:
    "One of the gits of a run is killed, at once or a little later."
    args, _, what = work(point)
    order = {'git': point.rng.randint(1, 9), **pick(point.rng, {}, {'after': point.rng.random() * 0.02})}
    point.notes.append(f'{what}, {order}')
    point.ended(point.lab.ingest(*args, order=order), (0, 1, 2), 'the struck run')
    point.honest()
    point.turn_back()
    point.mended()


def embedder_lost(point: Point) -> None:
    "The server of vectors goes away, for a while or for good."
    lab = point.lab
    args, _, what = work(point)
    lab.words.heal()
    how, after = pick(point.rng, 'refused', *BREAKS), point.rng.randint(0, 10)
    brief = how in ('reset', 'status 500', 'status 429', 'half an answer') and point.rng.random() < 0.4
    point.notes.append(f'{how} {"once" if brief else "for good"} after {after} requests, {what}')
    lab.words.faults = [None] * after + ([BREAKS[how]] if brief else [])
    run = None
    if how == 'refused':
        run = lab.start('merlin.ingest', *args)
        while len(lab.words.posts) < after and run.poll() is None:
            time.sleep(0.005)
        lab.words.down()
    elif not brief:
        lab.words.always = BREAKS[how]
    begin = time.monotonic()
    run = run or lab.start(
        'merlin.ingest', *args, EMBED_TIMEOUT='0.3', order={'waits': 0.0 if how == 'status 429' else 0.1}
    )
    point.ended(lab.end(run, begin), (0,) if brief else (0, 1), 'the run without an embedder')
    point.honest()
    if how == 'refused':
        lab.words.up()
    lab.words.heal()
    point.turn_back()
    point.mended()


CLOCKS = (-10 * 31_536_000, -86_400, -3_600, -90, 90, 3_600, 86_400, 400 * 86_400, 60 * 31_536_000)  # seconds


def clock_moved(point: Point) -> None:
    "A run, or every run, sees another time."
    start, head = pick(point.rng, *MOVES)
    point.lab.settle(start)
    point.lab.set(head)
    point.lab.clean()
    seconds = pick(point.rng, *CLOCKS)
    point.notes.append(f'{seconds:+,} s, {start}→{head}')
    point.ended(point.lab.ingest(order={'clock': seconds}), (0,), 'the run at another time')
    point.findings += compare(point.lab.snapshot(), point.lab.clean())
    said = point.lab.verdict().line
    point.notes.append(f'a reader: {said}')
    if seconds > 0:
        point.check('set it right' in said, f'after a run in the future the verdict is {said}')
    asker = Asker(point.lab, clock=-seconds)
    point.check('"isError": false' in (told := asker.ask('index_status', {})), f'the server says {told[:300]}')
    asker.end()
    point.mended()


def kill_some(pids: Sequence[int]) -> None:
    "Kill these."
    keeper.signal_all(list(pids), signal.SIGKILL)


def disk_full(point: Point) -> None:
    "The disk of the database fills up, in a run or before it."
    lab = point.lab
    if not (disk := mount(lab.folder / 'disk')):
        point.notes.append('no file system can be mounted here: not done')
        return
    small = other_home(lab, 'disk/home')
    inner = Point(small, point.rng, point.notes, point.findings)
    try:
        ballast = disk / 'ballast'
        args, length, what = work(inner)
        order = {'do': 'fill', 'ballast': str(ballast), **moment(inner, length)}
        point.notes.append(f'{what}, full {order["when"]} exchange {order["at"]} of {length}')
        inner.ended(small.ingest(*args, order=order), (0, 1), 'the run on a full disk')
        inner.ended(small.ingest(), (0, 1), 'another on the full disk')
        ballast.unlink(missing_ok=True)
        inner.turn_back()
        inner.mended()
    finally:
        small.stop()
        subprocess.run(['umount', '-l', str(disk)], check=False)


def mount(disk: Path) -> Path | None:
    "A small file system of its own; None: this user or machine may not."
    disk.mkdir(exist_ok=True)
    command = ['mount', '-t', 'tmpfs', '-o', 'size=160m,mode=755', 'tmpfs', str(disk)]
    return None if os.geteuid() or subprocess.run(command, capture_output=True, check=False).returncode else disk


def files_limited(point: Point) -> None:
    "No process of the database may write a file beyond a size, from some moment of a run on."
    args, length, what = work(point)
    size = pick(point.rng, 8_192, 65_536, 1_000_000, 9_000_000)
    order = {'do': 'limit', 'size': size, **moment(point, length)}
    point.notes.append(f'{what}, {size:,} bytes {order["when"]} exchange {order["at"]} of {length}')
    point.ended(point.lab.ingest(*args, order=order), (0, 1), 'the run with a limit')
    kill_some(keeper.server_pids(point.lab.data))  # the limit goes with the processes
    if point.rng.random() < 0.5:
        with connect(point.lab.config.database) as conn:
            conn.execute('select 1')
    point.turn_back()
    point.mended()
