"""How a row of the benchmark is measured: an operation and its floor take turns, and what counts is their ratio.

Both sides run once in each round, and who goes first changes from round to round, because the second finds the caches
warm. The ratio is the median over the rounds: a machine that is busy for a while slows both sides of a round alike.
"""

import math
import resource
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Side:
    "What is timed, and what has to be done before each time, untimed."

    run: Callable[[], object]
    ready: Callable[[], object] = lambda: None


@dataclass(frozen=True)
class Trial:
    "An operation of merlin beside its floor, both ready to run again and again."

    ours: Side
    floor: Side
    counters: Callable[[Sequence[float]], Mapping[str, Any]] = lambda seconds: {}  # of ours, by round; after the rounds


@dataclass(frozen=True)
class Row:
    "One line of the table."

    name: str
    operation: str
    floor: str
    most: float  # the ratio of ours to the floor that is the goal
    unit: str  # of the sizes
    sizes: tuple[int, ...]
    quick: int  # a size that takes a second or two
    trial: Callable[[Any, int], Trial]  # the lab and the size
    rounds: int = 9
    slope: float | None = None  # the most that the time may grow: exponent of the size
    at_least: Mapping[str, float] = field(default_factory=dict)  # counters that have a goal too


@dataclass(frozen=True)
class Result:
    "What a row came to at one size."

    row: str
    size: int
    ours: float  # seconds, median
    floor: float  # seconds, median
    ratio: float  # median of the rounds' ratios
    low: float  # lower quartile of the rounds' ratios
    high: float  # upper quartile
    cpu: float  # the same ratio of processor time, of this process and those it started; the database's is not in it
    rounds: int
    held: bool
    counters: Mapping[str, Any]


@dataclass
class Times:
    "Wall and processor seconds of one side, a value a round."

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    @contextmanager
    def taken(self) -> Iterator[None]:
        "Add the time of this block."
        wall, cpu = time.perf_counter(), processor()
        yield
        self.wall.append(time.perf_counter() - wall)
        self.cpu.append(processor() - cpu)


def processor() -> float:
    "Processor seconds so far, of this process and of those that it started and that ended."
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in used)


def take_turns(trial: Trial, rounds: int) -> tuple[Times, Times]:
    "The times of both sides, after a round that only warms up."
    ours, floor = Times(), Times()
    for n in range(rounds + 1):
        turns = [(trial.ours, ours), (trial.floor, floor)]
        for side, times in turns if n % 2 else turns[::-1]:
            side.ready()
            with times.taken():
                side.run()
    for times in (ours, floor):
        del times.wall[0], times.cpu[0]
    return ours, floor


def ratios(ours: Sequence[float], floor: Sequence[float]) -> list[float]:
    "Round by round, smallest first; a time below the clock's grain counts as one grain."
    return sorted(max(a, 1e-6) / max(b, 1e-6) for a, b in zip(ours, floor, strict=True))


def measure(row: Row, lab: Any, size: int, rounds: int | None = None) -> Result:
    "One size of one row."
    trial, rounds = row.trial(lab, size), rounds or row.rounds
    ours, floor = take_turns(trial, rounds)
    each, counters = ratios(ours.wall, floor.wall), dict(trial.counters(ours.wall))
    ratio = statistics.median(each)
    good = ratio <= row.most and all(counters.get(name, 0) >= least for name, least in row.at_least.items())
    return Result(
        row.name, size, statistics.median(ours.wall), statistics.median(floor.wall), ratio, each[rounds // 4],
        each[-1 - rounds // 4], statistics.median(ratios(ours.cpu, floor.cpu)), rounds, good, counters,
    )  # fmt: skip


def growth(results: Sequence[Result]) -> float | None:
    "How ours grows with the size, from the smallest to the largest: 0 not at all, 1 in step. None for a single size."
    first, last = min(results, key=lambda r: r.size), max(results, key=lambda r: r.size)
    return math.log(last.ours / first.ours) / math.log(last.size / first.size) if first.size < last.size else None
