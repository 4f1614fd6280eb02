"""How a row of the benchmark is measured: an operation and its floor take turns, and what counts is their ratio.

Both sides run once in each round, and who goes first changes from round to round, because the second finds the caches
warm. The ratio is the median over the rounds: a machine that is busy for a while slows both sides of a round alike.
"""

import math
import os
import resource
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TICK = 1 / os.sysconf('SC_CLK_TCK')  # seconds
PARENT, ENDED = 1, slice(13, 15)  # places in `stat_of`: the parent; what children that ended had used, in ticks


class Skipped(Exception):
    "A row that can't run on this machine; the text says why."


@dataclass(frozen=True)
class Side:
    "What is measured, and what has to be done before each time, unmeasured."

    run: Callable[[], Any]  # gives its own figure where the row's `told` names a unit
    ready: Callable[[], object] = lambda: None


@dataclass
class Times:
    "What one side took, a value a round."

    wall: list[float] = field(default_factory=list)  # seconds
    cpu: list[float] = field(default_factory=list)  # processor seconds, with those of the database servers
    told: list[Any] = field(default_factory=list)  # what `run` gave

    def take(self, run: Callable[[], Any], servers: Sequence[int]) -> None:
        "Run once more."
        database = sum(map(server_processor, servers))
        cpu, wall = processor(), time.perf_counter()
        self.told.append(run())
        self.wall.append(time.perf_counter() - wall)
        cpu = processor() - cpu
        self.cpu.append(cpu + sum(map(server_processor, servers)) - database)


@dataclass(frozen=True)
class Trial:
    "An operation of merlin beside its floor, both ready to run again and again."

    ours: Side
    floor: Side
    counters: Callable[[Times, Times], Mapping[str, Any]] = lambda ours, floor: {}  # ours and the floor's; at the end
    servers: tuple[int, ...] = ()  # processes that go on running and whose processor time counts, with their children


@dataclass(frozen=True)
class Goal:
    "What a counter must be."

    counter: str
    least: float = -math.inf
    most: float = math.inf
    up_to: float = math.inf  # size; above it nothing is asked

    def held(self, size: int, counters: Mapping[str, Any]) -> bool:
        "Whether it is."
        return size > self.up_to or self.least <= counters[self.counter] <= self.most

    def __str__(self) -> str:
        if self.least == self.most:
            return f'{self.counter} {self.most:g}'
        bounds = (('≥', self.least), ('≤', self.most))
        return ', '.join(f'{self.counter} {sign} {bound:g}' for sign, bound in bounds if math.isfinite(bound))


@dataclass(frozen=True)
class Row:
    "One line of the table."

    name: str
    operation: str
    floor: str
    most: float | None  # the ratio of ours to the floor that is the goal; None: it is told, not judged
    unit: str  # of the sizes
    sizes: tuple[int, ...]
    quick: int  # a size that takes a second or two
    trial: Callable[[Any, int], Trial]  # the lab and the size; may raise Skipped
    rounds: int = 9
    told: str = ''  # unit of what the sides give: 's', 'MiB', 'MB'; '' where their time is taken
    plus: float = 0.0  # what ours may be above the floor times `most`, in that unit
    warm: bool = True  # whether a round that does not count goes before
    slope: float | None = None  # the most that ours may grow: exponent of the size
    slope_to: float = math.inf  # size; larger ones don't count for the slope
    goals: tuple[Goal, ...] = ()

    def goal(self, size: int) -> str:
        "What must hold at this size, in words."
        plus = f' + {self.plus:g} {self.told}' if self.plus else ''
        ratio = [] if self.most is None else [f'≤ {self.most:.2f}{plus}']
        return '; '.join(ratio + [str(goal) for goal in self.goals if size <= goal.up_to])


@dataclass(frozen=True)
class Result:
    "What a row came to at one size."

    row: str
    size: int
    unit: str  # of ours and floor: 's', 'MiB' or 'MB'
    ours: float  # median
    floor: float  # median
    ratio: float  # median of the rounds' ratios
    low: float  # lower quartile of the rounds' ratios
    high: float  # upper quartile
    cpu: float | None  # the same ratio of processor time; None where no time is measured
    rounds: int
    goal: str
    held: bool | None  # None: nothing is asked
    counters: Mapping[str, Any]
    prepared: float  # seconds until the first round could begin
    measured: float  # seconds of the rounds


def stat_of(pid: int | str) -> list[str]:
    "The numbers of /proc/PID/stat after the name; none where the process or /proc is not there."
    with suppress(OSError):
        return Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2].split()
    return []


def on_processor(pid: int) -> float:
    "Seconds that a running process has had a processor, to the nanosecond."
    with suppress(OSError):
        return int(Path(f'/proc/{pid}/schedstat').read_text().split()[0]) / 1e9
    return 0.0


def family(parent: int) -> list[int]:
    "A process and those that it started and that still run."
    pids = [int(name) for name in os.listdir('/proc') if name.isdigit()] if os.path.isdir('/proc') else []
    return [pid for pid in pids if pid == parent or stat_of(pid)[PARENT : PARENT + 1] == [str(parent)]]


def server_processor(postmaster: int) -> float:
    "Processor seconds of a database server: running processes to the nanosecond, ended ones to the tick."
    ended = sum(map(int, stat_of(postmaster)[ENDED])) * TICK
    return ended + sum(map(on_processor, family(postmaster)))


def processor() -> float:
    "Processor seconds so far, of this process and of those that it started and that ended."
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in used)


def take_turns(trial: Trial, rounds: int, warm: bool = True) -> tuple[Times, Times]:
    "What both sides took; a round that only warms up goes before."
    ours, floor = Times(), Times()
    for n in range(rounds + warm):
        turns = [(trial.ours, ours), (trial.floor, floor)]
        for side, times in turns if n % 2 else turns[::-1]:
            side.ready()
            times.take(side.run, trial.servers)
    if warm:
        for times in (ours, floor):
            del times.wall[0], times.cpu[0], times.told[0]
    return ours, floor


def ratios(ours: Sequence[float], floor: Sequence[float]) -> list[float]:
    "Round by round, smallest first; a figure below the clock's grain counts as one grain."
    return sorted(max(a, 1e-6) / max(b, 1e-6) for a, b in zip(ours, floor, strict=True))


@contextmanager
def stopwatch(into: dict[str, float], name: str) -> Iterator[None]:
    "Note how long the block took."
    begun = time.perf_counter()
    yield
    into[name] = time.perf_counter() - begun


def measure(row: Row, lab: Any, size: int, rounds: int | None = None) -> Result:
    "One size of one row. Raises Skipped."
    rounds, spent = rounds or row.rounds, {}
    with stopwatch(spent, 'prepared'):
        trial = row.trial(lab, size)
    with stopwatch(spent, 'measured'):
        ours, floor = take_turns(trial, rounds, row.warm)
        counters = dict(trial.counters(ours, floor))
    return result(row, size, (ours, floor), counters, spent)


def result(
    row: Row, size: int, both: tuple[Times, Times], counters: Mapping[str, Any], spent: Mapping[str, float]
) -> Result:
    "What the rounds say."
    mine, bare = ([*(times.told if row.told else times.wall)] for times in both)
    each, rounds = ratios(mine, bare), len(mine)
    medians = statistics.median(mine), statistics.median(bare)
    asked = [goal.held(size, counters) for goal in row.goals if size <= goal.up_to]
    if row.most is not None:
        near = statistics.median(a - row.most * b for a, b in zip(mine, bare, strict=True)) <= row.plus
        asked.append(near if row.plus else statistics.median(each) <= row.most)
    cpu = statistics.median(ratios(both[0].cpu, both[1].cpu)) if row.told in ('', 's') else None
    return Result(
        row.name, size, row.told or 's', *medians, statistics.median(each), each[rounds // 4], each[-1 - rounds // 4],
        cpu, rounds, row.goal(size), all(asked) if asked else None, counters, **spent,
    )  # fmt: skip


def growth(results: Sequence[Result], up_to: float = math.inf) -> float | None:
    "How ours grows with the size, from the smallest to the largest: 0 not at all, 1 in step. None for a single size."
    counted = sorted((r for r in results if r.size <= up_to), key=lambda r: r.size)
    if len({r.size for r in counted}) < 2:
        return None
    first, last = counted[0], counted[-1]
    return math.log(last.ours / first.ours) / math.log(last.size / first.size)
