"""Rows about a sweep: many settings beside one evaluation pass over the same questions."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import date, datetime
from typing import Any

from bench_lab import ROOT, Lab
from bench_rounds import Side, Times, Trial

from merlin.cases import load_cases
from merlin.judging import Fetched, fetch_cases, judge, summary
from merlin.settings import grid, rejudge
from merlin.sweep import sweep

CASES = ROOT / 'nbs/eval/cases/fixture.yaml'
LEGS = {'vector': (0.5, 1, 2), 'fulltext': (0.5, 1, 2), 'bm25': (0, 0.5, 1), 'recency': (0, 0.05)}  # 27 fusions


def trial(lab: Lab, settings: int, tried: dict[str, Sequence[float]]) -> Trial:
    "A sweep, fetching included, beside fetching and judging once."
    index = lab.fixture()
    config, conn, today = lab.config(index), index.conn, datetime.now().date()
    cases = [case for case in load_cases(str(CASES)) if case.expect and not case.holdout]
    table = grid(config, **tried)[:settings]

    def fetched() -> list[Fetched]:
        return fetch_cases(conn, cases, config)

    def once() -> None:
        summary(judge(fetched(), config, today))

    def counters(ours: Times, floor: Times) -> dict[str, Any]:
        return {'questions': len(cases), 'settings': len(table), 'same': int(same(fetched(), table, config, today))}

    return Trial(Side(lambda: sweep(fetched(), config, table, today)), Side(once), counters, (index.server,))


def same(fetched: Sequence[Fetched], table: Sequence[Any], config: Any, today: date) -> bool:
    "Whether a sweep over all of it says what judging says, for the setting in the middle."
    some = table[len(table) // 2]
    row = sweep(fetched, config, table, today).iloc[len(table) // 2]
    fresh = [replace(f, candidates=replace(f.candidates)) for f in fetched]  # without what the sweep kept
    return abs(row['mrr'] - summary(rejudge(fresh, config, some, today))['mrr']) < 1e-9


def standard(lab: Lab, settings: int) -> Trial:
    "Boost, recency, the stale factor: a question is fused once."
    return trial(lab, settings, {})


def with_legs(lab: Lab, settings: int) -> Trial:
    "Leg weights among them: a question is fused anew for each."
    return trial(lab, settings, LEGS)
