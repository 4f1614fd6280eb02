"""What a sweep of 50 settings costs, in evaluation passes: it should be at most two.

    MERLIN_HOME=… python tools/sweep_bench.py CASES.yaml [ROUNDS]

A pass asks the legs every question (the embedder is loaded, not its loading) and judges the answers once. A sweep takes
what was fetched and makes the whole table, intervals included. Both are timed in turn, in one process, on whichever
index the environment names; the smaller time of each counts, since a busy machine only ever adds.
"""

import sys
from datetime import datetime
from time import perf_counter

from merlin.cases import load_cases
from merlin.config import load_config
from merlin.judging import fetch_cases, judge, summary
from merlin.store import session
from merlin.sweep import grid, pandas, sweep

SETTINGS = 50


def main() -> None:
    "Print both times and their ratio."
    if len(sys.argv) not in (2, 3):
        raise SystemExit(__doc__)
    pandas()  # a pass does not load it, and a sweep does only once
    config, today = load_config(), datetime.now().date()
    cases = [case for case in load_cases(sys.argv[1]) if case.expect and not case.holdout]
    settings, passes, sweeps = grid(config)[:SETTINGS], [], []
    with session(config.database, make=False) as conn:
        fetch_cases(conn, cases[:1], config)
        for _ in range(int(sys.argv[2]) if sys.argv[2:] else 3):
            begun = perf_counter()
            fetched = fetch_cases(conn, cases, config)
            summary(judge(fetched, config, today))
            passed = perf_counter()
            sweep(fetched, config, settings, today)
            passes.append(passed - begun)
            sweeps.append(perf_counter() - passed)
    times = f'one pass {min(passes):.2f} s · {len(settings)} settings {min(sweeps):.2f} s'
    print(f'{len(cases)} cases · {times} · ratio {min(sweeps) / min(passes):.2f}')


if __name__ == '__main__':
    main()
