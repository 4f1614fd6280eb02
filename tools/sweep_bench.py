"""What a sweep of 50 settings costs, in evaluation passes: it should be at most two.

    MERLIN_HOME=… python tools/sweep_bench.py CASES.yaml [ROUNDS]

A pass asks the legs every question (the embedder is loaded, not its loading) and judges the answers once. A sweep takes
what was fetched and makes the whole table, intervals and the luck of the best included. Two grids are timed: one over
boost, recency and the stale factor, where a question is fused once; and one with leg weights, where it is fused anew
for each. All are timed in turn, in one process, on whichever index the environment names; the smaller time of each
counts, since a busy machine only ever adds.
"""

import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from time import perf_counter

from merlin.cases import load_cases
from merlin.config import load_config
from merlin.judging import fetch_cases, judge, summary
from merlin.settings import grid
from merlin.store import session
from merlin.sweep import sweep

SETTINGS = 50
LEGS = {'vector': (0.5, 1, 2), 'fulltext': (0.5, 1, 2), 'bm25': (0, 0.5, 1), 'recency': (0, 0.05)}  # 27 fusions


def timed(work: Callable[[], object]) -> float:
    "Seconds."
    begun = perf_counter()
    work()
    return perf_counter() - begun


def main() -> None:
    "Print the times and their ratios."
    if len(sys.argv) not in (2, 3):
        raise SystemExit(__doc__)
    config, today = load_config(), datetime.now().date()
    cases = [case for case in load_cases(sys.argv[1]) if case.expect and not case.holdout]
    grids = {'without leg weights': grid(config)[:SETTINGS], 'with leg weights': grid(config, **LEGS)[:SETTINGS]}
    seconds: dict[str, list[float]] = {}
    with session(config.database, make=False) as conn:
        sweep(fetch_cases(conn, cases[:1], config), config, grids['with leg weights'][:2], today)  # loads what is slow
        for _ in range(int(sys.argv[2]) if sys.argv[2:] else 3):
            begun = perf_counter()
            fetched = fetch_cases(conn, cases, config)
            summary(judge(fetched, config, today))
            seconds.setdefault('one pass', []).append(perf_counter() - begun)
            for name, tried in grids.items():
                fetched = [replace(f, candidates=replace(f.candidates)) for f in fetched]  # without what they keep
                seconds.setdefault(name, []).append(timed(lambda f=fetched, s=tried: sweep(f, config, s, today)))
    least = {name: min(times) for name, times in seconds.items()}
    print(f'{len(cases)} cases · one pass {least["one pass"]:.2f} s')
    for name, tried in grids.items():
        ratio = least[name] / least['one pass']
        print(f'{len(tried)} settings {name}: {least[name]:.2f} s · ratio {ratio:.2f}')


if __name__ == '__main__':
    main()
