"The ranking of the fixture record with the local model: no worse than the baseline that is in the tree."

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ONE_CASE = 1 / 30  # what is allowed to move: rounding differs between processors, and near ties with it


@pytest.mark.slow
def test_the_ranking_of_the_fixture_record_is_no_worse_than_its_baseline(monkeypatch):
    monkeypatch.setattr(sys, 'path', [str(ROOT / 'tools'), *sys.path])
    import baseline

    run = baseline.current()
    now, then = baseline.as_json(run), json.loads(baseline.BASELINE.read_text())
    moved = baseline.compare(run, baseline.read_run(baseline.BASELINE, baseline.K))['moved']
    assert [c['q'] for c in now['cases']] == [c['q'] for c in then['cases']], 'python tools/baseline.py --write'
    for figure in ('hit@1', 'hit@3', 'mrr'):
        assert now['summary'][figure] >= then['summary'][figure] - ONE_CASE - 1e-4, moved
