"""Rows beside what people use instead: SQLite's FTS5, bm25s, lancedb, on the same texts, questions and vectors.

Each is installed into an environment of its own in the benchmark's folder, where a package index answers; where not, its
rows are left out with the reason. They index texts that lie ready and are told nothing else; merlin reads git, redacts,
cuts, dates, tags and keeps a database. So the figures are told, not judged.
"""

import json
import os
import subprocess
import sys
import time
from array import array
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from shutil import rmtree
from typing import Any

from bench_child import peak_MiB
from bench_ingest import count, ingest_again
from bench_lab import ROOT, Index, Lab
from bench_rounds import Row, Side, Skipped, Trial, family
from bench_sections import questions as made_questions
from measure import python

PACKAGES = {'fts5': (), 'bm25s': ('bm25s==0.3.16',), 'lancedb': ('lancedb==0.40.0',)}
ASKED = 60
SCRIPT = str(ROOT / 'tools/bench_peer.py')
TEXTS = "select heading || E'\\n' || body, embedding::real[] from chunks c join vectors v on v.id = c.vector_id order by c.id"


@dataclass(frozen=True)
class Pair:
    "merlin and a peer on the same texts."

    name: str
    index: Index
    command: tuple[str, ...]  # of the peer
    folder: Path
    asked: list[dict[str, Any]]

    def peer(self, verb: str, *more: str) -> list[str]:
        return [*self.command, self.name, verb, str(self.folder), *more]


def environment(lab: Lab, name: str) -> tuple[str, ...]:
    "The Python that has the peer. Raises Skipped where it can't be had."
    if not PACKAGES[name]:
        return (sys.executable, '-P', SCRIPT)
    folder = lab.folder / f'venv-{name}'
    if trouble := lab.once(f'install {name}', lambda: install(folder, name)):
        raise Skipped(trouble)
    return (str(folder / 'bin/python'), '-P', SCRIPT)


def install(folder: Path, name: str) -> str:
    "Make the environment, unless a whole one is there; what went wrong."
    if (folder / 'whole').exists():
        return ''
    rmtree(folder, ignore_errors=True)
    pip = [str(folder / 'bin/python'), '-m', 'pip', 'install', '--quiet', '--disable-pip-version-check']
    wanted = ['--only-binary=:all:', '--retries', '1', *PACKAGES[name]]
    for command in ([sys.executable, '-m', 'venv', str(folder)], [*pip, *wanted]):
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            said = done.stderr.strip().splitlines() or ['it said nothing']
            return f'{" ".join(PACKAGES[name])} could not be installed: {said[-1]}'
    (folder / 'whole').touch()
    return ''


def pair(lab: Lab, name: str, files: int) -> Pair:
    "Both, with the peer's index built. Raises Skipped."
    command = environment(lab, name)
    index = lab.wide_index(files)
    folder = lab.folder / f'peers-{files}'
    asked = lab.once(f'peers {files}', lambda: prepare(folder, index))
    both = Pair(
        name, index, command, folder, [{**q, 'vector': q['vector'] if name == 'lancedb' else []} for q in asked]
    )
    lab.once(f'{name} {files}', lambda: build(both))
    return both


def prepare(folder: Path, index: Index) -> list[dict[str, Any]]:
    "Write the texts and vectors of an index for the peers; questions about them."
    folder.mkdir(exist_ok=True)
    texts = []
    with index.conn.transaction(), index.conn.cursor('texts') as rows, (folder / 'vectors.f32').open('wb') as out:
        rows.execute(TEXTS)
        for text, vector in rows:
            texts.append(text)
            out.write(array('f', vector).tobytes())
    (folder / 'texts.json').write_text(json.dumps(texts))
    return [{'query': q.query, 'vector': list(q.vector)} for q in made_questions(index.conn, ASKED)]


def build(both: Pair) -> None:
    "The peer's index, made anew."
    rmtree(both.folder / both.name, ignore_errors=True)
    run(both.peer('index', str(both.index.repo)))


def run(command: list[str]) -> None:
    "A process of a peer, which has nothing of merlin on its path."
    done = subprocess.run(command, capture_output=True, text=True, env=outside())
    if done.returncode:
        raise SystemExit(f'{command[2:5]} ended with {done.returncode}: {done.stderr[-500:]}')


def outside() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != 'PYTHONPATH'}


class Asking:
    "A process that answers questions."

    def __init__(self, command: list[str], env: Mapping[str, str] | None = None) -> None:
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, env=env, text=True)

    def ask(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        self.process.stdin.write(json.dumps(asked) + '\n')
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def __enter__(self) -> 'Asking':
        return self

    def __exit__(self, *error: object) -> None:
        self.process.stdin.close()
        self.process.wait()


def asking(both: Pair, ours: bool) -> Asking:
    "merlin's process, or the peer's."
    if ours:
        return Asking([sys.executable, '-P', SCRIPT, 'merlin', 'serve', str(both.folder)], both.index.env)
    return Asking(both.peer('serve'), outside())


def from_nothing(lab: Lab, both: Pair) -> Trial:
    "From git to an index, whole process, beside an index of texts that lie ready."
    env, conn = {**both.index.env, 'MERLIN_DB_SCHEMA': 'bench_peers'}, both.index.conn
    ours = Side(lambda: python('-m', 'merlin.ingest', env=env), lambda: lab.drop(conn, 'bench_peers'))
    floor = Side(
        lambda: run(both.peer('index', str(both.index.repo))),
        lambda: rmtree(both.folder / both.name, ignore_errors=True),
    )
    return Trial(ours, floor, lambda *times: {'texts': count(both.index)}, (both.index.server,))


def nothing_new(lab: Lab, both: Pair) -> Trial:
    "The run that finds nothing new, whole process."
    again = both.peer('again', str(both.index.repo))
    return Trial(ingest_again(both.index), Side(lambda: run(again)), servers=(both.index.server,))


def first_answer(lab: Lab, both: Pair) -> Trial:
    "Spawn to the first answer."

    def started(ours: bool) -> float:
        begun = time.perf_counter()
        with asking(both, ours) as process:
            process.ask(both.asked[0])
            return time.perf_counter() - begun

    return Trial(Side(lambda: started(True)), Side(lambda: started(False)), servers=(both.index.server,))


def warm_answer(lab: Lab, both: Pair) -> Trial:
    "A question a round, in a process that has answered before."
    mine, other = (lab.stack.enter_context(asking(both, ours)) for ours in (True, False))
    ours, floor = (cycle(both.asked) for _ in range(2))
    at_work = (both.index.server, mine.process.pid, other.process.pid)
    return Trial(
        Side(lambda: mine.ask(next(ours))['seconds']), Side(lambda: other.ask(next(floor))['seconds']), servers=at_work
    )


def memory(lab: Lab, both: Pair) -> Trial:
    "The most memory of a process that answered all the questions; merlin's database is counted beside it."

    def held(ours: bool) -> float:
        with asking(both, ours) as process:
            for asked in both.asked:
                process.ask(asked)
            return peak_MiB(process.process.pid)

    beside = lambda *times: {'database_MiB': round(sum(map(proportional_MiB, family(both.index.server))))}  # noqa: E731
    return Trial(Side(lambda: held(True)), Side(lambda: held(False)), beside)


def proportional_MiB(pid: int) -> float:
    "Memory of a process, what it shares divided by those that share it; 0 where the system does not tell."
    with suppress(OSError, StopIteration):
        rollup = Path(f'/proc/{pid}/smaps_rollup').read_text().splitlines()
        return next(int(line.split()[1]) for line in rollup if line.startswith('Pss:')) / 1024
    return 0.0


OPERATIONS: dict[str, tuple[str, Callable[[Lab, Pair], Trial], dict[str, Any]]] = {
    'index': ('from git to an index, beside one of texts that lie ready', from_nothing, {'rounds': 3, 'warm': False}),
    'noop': ('a run that finds nothing new, whole process', nothing_new, {}),
    'start': ('spawn to the first answer', first_answer, {'told': 's'}),
    'query': ('a question to a process that is warm', warm_answer, {'told': 's', 'rounds': 50}),
    'memory': (f'a process that answered {ASKED} questions', memory, {'told': 'MiB', 'rounds': 1, 'warm': False}),
}


def peer_row(name: str, operation: str) -> Row:
    "A row that is told, not judged."
    text, trial, how = OPERATIONS[operation]

    def made(lab: Lab, files: int) -> Trial:
        return trial(lab, pair(lab, name, files))

    return Row(f'{name}-{operation}', text, name, None, 'files', (1_000,), 30, made, **how)


PEERS = tuple(peer_row(name, operation) for name in PACKAGES for operation in OPERATIONS)
