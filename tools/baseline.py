"""The ranking of the fixture record, question by question, as eval_reports/baseline.json holds it.

    python tools/baseline.py            # how the present ranking differs
    python tools/baseline.py --write    # make the present ranking the baseline

It indexes the fixture record with the local model in a throwaway schema and asks nbs/eval/cases/fixture.yaml as
`merlin eval` does. tests/test_baseline.py fails where the present ranking is worse than the baseline beyond noise.
"""

import json
import sys
import tempfile
from datetime import date
from pathlib import Path

from merlin.cases import load_cases
from merlin.ingest import ingest
from merlin.judging import Run, compare, fetch_cases, judge, read_run, summary
from merlin.store import session
from merlin.testing import fixture_record, scratch

ROOT = Path(__file__).resolve().parents[1]
CASES = ROOT / 'nbs/eval/cases/fixture.yaml'
BASELINE = ROOT / 'eval_reports/baseline.json'
TODAY = date(2030, 2, 1)
K = 10


def current() -> Run:
    "The present ranking of the fixture record."
    with tempfile.TemporaryDirectory() as folder, scratch(fixture_record(Path(folder) / 'record')) as config:
        ingest(config)
        with session(config.database) as conn:
            return judge(fetch_cases(conn, load_cases(CASES), config, k=K), config, TODAY)


def as_json(run: Run) -> dict:
    "A run as the baseline keeps it."
    figures = {name: round(value, 4) for name, value in summary(run).items() if isinstance(value, (int, float))}
    return {'k': K, 'summary': figures, 'cases': [{'q': o.q, 'rank': o.rank} for o in run.outcomes]}


def main() -> None:
    "Compare, or write."
    run = current()
    if sys.argv[1:] == ['--write']:
        BASELINE.write_text(json.dumps(as_json(run), indent=1, ensure_ascii=False) + '\n')
    elif sys.argv[1:]:
        raise SystemExit(__doc__)
    print(json.dumps(as_json(run)['summary']))
    for moved in compare(run, read_run(BASELINE, K))['moved']:
        print(f'{moved["before"]} → {moved["after"]}: {moved["q"]}')


if __name__ == '__main__':
    main()
