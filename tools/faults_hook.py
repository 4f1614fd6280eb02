"""What a process of the campaign starts with: its clock, short waits, and the moment at which a fault strikes.

`faults_lab` copies this file into a folder of its own as `sitecustomize.py` and puts that folder on the PYTHONPATH of
the processes that it starts, so that nothing of it is in the package. FAULT_ORDER says what to do, as JSON:

    {"at": 17, "when": "during", "do": "kill", "data": "…/database/pg/data"}     the 17th exchange with the database
    {"git": 3, "after": 0.01}                                                     the third git is killed
    {"clock": -3600, "waits": 0.1, "count": "…/file"}                             seconds; a factor; where to count
"""

import atexit
import datetime
import json
import os
import signal
import threading
import time
import warnings
from pathlib import Path
from typing import Any


def move_clock(seconds: float) -> None:
    "Let time.time and datetime.now tell another time. The database, git and files keep the machine's."
    warnings.filterwarnings('ignore', 'datetime.datetime size changed')
    real_time, real = time.time, datetime.datetime

    class Kind(type):
        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, real)

    class Moved(real, metaclass=Kind):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> real:
            return real.now(tz) + datetime.timedelta(seconds=seconds)

    time.time = lambda: real_time() + seconds
    datetime.datetime = Moved


def shorten_waits(factor: float) -> None:
    "Sleep a part of what was asked for."
    sleep = time.sleep
    time.sleep = lambda seconds: sleep(seconds * factor)


def server_pids(data: str) -> list[int]:
    "The processes of the database, by their working folder."
    from merlin.keeper import server_pids as find

    return find(data)


def fill(path: str) -> None:
    "Write until the disk is full."
    with open(path, 'ab', buffering=0) as file:
        size = 1 << 20
        while size:
            try:
                file.write(bytes(size))
            except OSError:
                size //= 2


def limit(pids: list[int], size: int) -> None:
    "Let these processes write no file beyond `size` bytes; only their own user may say so, so a child becomes it."
    import resource

    for pid in pids:
        if child := os.fork():
            os.waitpid(child, 0)
            continue
        try:
            owner = os.stat(f'/proc/{pid}')
            if os.geteuid() == 0:
                os.setgroups([])
                os.setgid(owner.st_gid)
                os.setuid(owner.st_uid)
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
        finally:
            os._exit(0)


def signal_all(pids: list[int], number: int) -> None:
    "Send a signal to each that is still there."
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


def strike(order: dict[str, Any], conn: Any) -> None:
    "Do what was ordered."
    do, data = order['do'], order['data']
    if do in ('kill', 'term', 'int', 'stop'):
        os.kill(os.getpid(), {'kill': 9, 'term': 15, 'int': 2, 'stop': 19}[do])
    elif do == 'backend':
        os.kill(conn.info.backend_pid, signal.SIGKILL)
    elif do == 'terminate':
        os.kill(conn.info.backend_pid, signal.SIGTERM)
    elif do == 'postmaster':
        os.kill(int(Path(data, 'postmaster.pid').read_text().split()[0]), signal.SIGKILL)
    elif do == 'server':
        signal_all(server_pids(data), signal.SIGKILL)
    elif do == 'power':  # the machine goes off: everything at once
        signal_all([*server_pids(data), os.getpid()], signal.SIGKILL)
    elif do == 'fill':
        fill(order['ballast'])
    elif do == 'limit':
        limit(server_pids(data), order['size'])


def watch_exchanges(order: dict[str, Any]) -> None:
    "Count the exchanges with the database, and strike at the ordered one."
    import psycopg

    wait, seen = psycopg.Connection.wait, 0

    def counted(self: Any, *args: Any, **kw: Any) -> Any:
        nonlocal seen
        seen += 1
        here, when = seen == order.get('at'), order.get('when')
        if here and when == 'before':
            strike(order, self)
        elif here and when == 'during':
            threading.Timer(order.get('delay', 0.0), strike, (order, self)).start()
        try:
            return wait(self, *args, **kw)
        finally:
            if here and when == 'after':
                strike(order, self)

    psycopg.Connection.wait = counted
    if path := order.get('count'):
        atexit.register(lambda: Path(path).write_text(str(seen)))


def watch_git(number: int, after: float | None) -> None:
    "Let one git die: before it does anything, or some seconds after its start."
    import subprocess

    start, seen, struck = subprocess.Popen.__init__, 0, []

    def counted(self: Any, args: Any, *rest: Any, **kw: Any) -> None:
        nonlocal seen
        seen += not isinstance(args, str) and os.path.basename(str(args[0])) == 'git'
        if here := seen == number and not struck:
            struck.append(number)
        if here and after is None:
            args = ['/bin/sh', '-c', 'kill -9 $$']
        start(self, args, *rest, **kw)
        if here and after is not None:
            threading.Timer(after, self.kill).start()

    subprocess.Popen.__init__ = counted


def small_graphs(minimum: int) -> None:
    "Build the graph over the vectors of a small record too, so that a fault can meet it."
    from merlin import store

    store.build_hnsw.__defaults__ = (minimum,)


def obey(order: dict[str, Any]) -> None:
    "Prepare this process."
    if 'clock' in order:
        move_clock(order['clock'])
    if 'waits' in order:
        shorten_waits(order['waits'])
    if 'git' in order:
        watch_git(order['git'], order.get('after'))
    if 'at' in order or 'count' in order:
        watch_exchanges(order)
    if 'graph' in order:
        small_graphs(order['graph'])


if found := os.environ.pop('FAULT_ORDER', ''):  # no process that this one starts shall find it
    obey(json.loads(found))
