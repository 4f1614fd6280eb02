"""The reports in eval_reports/, made again: a sweep over boost, recency and the stale factor on each shipped case file.

    python tools/reports.py                        # all of them
    python tools/reports.py fixture                # one of them
    python tools/reports.py --into FOLDER fixture  # somewhere else, to compare

`fixture` is the example record. The others read real records: MERLIN_TEST_RECORDS names a folder whose corpora/ holds
their bundles; the case files name the commits. Each is indexed with the local model in a throwaway schema. The same
index on the same machine gives the same bytes; another processor may round a vector differently.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date
from pathlib import Path

from merlin.cases import load_cases
from merlin.choice import decide
from merlin.config import Config
from merlin.errors import ConfigError, MerlinError
from merlin.ingest import ingest
from merlin.report import write_report
from merlin.settings import STANDARD, grid
from merlin.shelf import write_index
from merlin.store import session
from merlin.sweep import fetch_halves, sweep
from merlin.testing import fixture_record, scratch

ROOT = Path(__file__).resolve().parents[1]
REPORTS = ROOT / 'eval_reports'
FIXTURE = 'fixture'
TODAY = {  # the day that recency counts from; the example record lives in 2030
    FIXTURE: date(2030, 2, 1),
    'openshift-runbooks': date(2026, 11, 30),
    'prometheus-operator-runbooks': date(2026, 11, 30),
}


LEGS = {'vector': (0.5, 1, 2), 'bm25': (0, 0.5, 1, 2)}
AXES = {  # elsewhere than in the example record, boost, recency and stale have little to act on: the legs are swept too
    FIXTURE: STANDARD,
    'openshift-runbooks': {'boost': (0, 1, 2), 'recency': (0, 0.05, 0.2), 'stale': (0.5, 1), **LEGS},
    'prometheus-operator-runbooks': {'boost': (0, 1, 2), 'recency': (0, 0.05, 0.2), 'stale': (0.5, 1), **LEGS},
}


def cases_of(name: str) -> Path:
    "The case file of a record."
    return ROOT / f'nbs/eval/cases/{name}.yaml'


def commit_of(name: str) -> str:
    "The commit that the case file was written for."
    lines = cases_of(name).read_text(encoding='utf-8').splitlines()
    return next(line.split()[2] for line in lines if line.startswith('# commit:'))


def record_of(name: str, folder: Path) -> Path:
    "The record as a repository below the folder. Raises ConfigError where it is not there."
    if name == FIXTURE:
        return fixture_record(folder / name)
    records = os.environ.get('MERLIN_TEST_RECORDS')
    bundle = Path(records or '.') / f'corpora/{name}.bundle'
    if not records or not bundle.is_file():
        raise ConfigError(
            f'the record {name} is not there', 'MERLIN_TEST_RECORDS', f'name a folder with corpora/{name}.bundle'
        )
    subprocess.run(['git', '-c', 'advice.detachedHead=false', 'clone', '--quiet', bundle, folder / name], check=True)
    subprocess.run(['git', '-C', folder / name, 'checkout', '--quiet', '--detach', commit_of(name)], check=True)
    return folder / name


@contextmanager
def indexed(name: str) -> Iterator[Config]:
    "The record, indexed with the local model."
    with tempfile.TemporaryDirectory() as folder, scratch(record_of(name, Path(folder))) as config:
        ingest(config)
        yield config


def make_report(name: str, shelf: Path) -> Path:
    "Index, sweep, choose, write."
    today = TODAY[name]
    with indexed(name) as config, session(config.database) as conn:
        got = fetch_halves(conn, config, load_cases(cases_of(name)), None, 10, today)
    frame = sweep(got.tuning, config, grid(config, **AXES[name]), today)
    choice = decide(frame, got.tuning, got.holdout, config, today)
    command = f'python tools/reports.py {name}'
    return write_report(shelf / name, got, frame, choice, command, cases_of(name))


def main() -> int:
    "Make the reports, then the page that lists them."
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument('names', nargs='*', metavar='NAME', help=f'{", ".join(TODAY)}; all, if none is named')
    p.add_argument('--into', type=Path, default=REPORTS, metavar='FOLDER', help='where the reports go (eval_reports)')
    args = p.parse_args()
    try:
        for name in args.names or TODAY:
            if name not in TODAY:
                raise ConfigError(f'no report {name!r}', hint=f'known: {", ".join(TODAY)}')
            print(make_report(name, args.into))
        print(write_index(args.into))
    except MerlinError as e:
        print(f'tools/reports.py: {e}', file=sys.stderr)
        return e.exit_code
    return 0


if __name__ == '__main__':
    sys.exit(main())
