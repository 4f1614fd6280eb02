"""Where the seconds of an ingest go: a run that finds nothing, one changed file, a rebuild; made-up vectors.

    tools/profile_ingest.py [--files 1000] [--keep FOLDER]

Prints a table for each run: what was at work, and its share of the wall clock. A profiler makes Python slower than it
is, so the shares lean towards many small calls; what is waited for is exact. The thread that reads ahead is not seen.
"""

import argparse
import cProfile
import json
import pstats
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from contextlib import ExitStack, redirect_stdout
from io import StringIO
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from bench_lab import Lab
from bench_record import change_page

PLACES = (
    ('/merlin/', 'merlin.{name}'), ('/psycopg', 'psycopg'), ('/subprocess.py', 'starting git'), ('/json/', 'json'),
    ('/http/', 'http client'), ('/socket.py', 'waiting for the embedding server'), ('/re/', 'compiling patterns'),
    ('/dataclasses.py', 'defining classes'), ('importlib', 'importing'), ('/threading.py', 'waiting for the reader'),
    ('/queue.py', 'waiting for the reader'), ('/concurrent/', 'waiting for the reader'), ('/tomllib/', 'reading TOML'),
)  # fmt: skip
BUILTIN = '~'


def place(file: str) -> str:
    "What a file belongs to."
    return next((text.format(name=Path(file).stem) for part, text in PLACES if part in file), 'other Python')


def seconds_by_place(stats: pstats.Stats) -> Counter[str]:
    "Own seconds by place; a built-in function counts for whoever called it."
    found: Counter[str] = Counter()
    for (file, _, name), (_, _, own, _, callers) in stats.stats.items():
        if name == 'wait' and '/psycopg/' in file:  # its loop is compiled: not seen as a call
            found['waiting for the database'] += own
        elif file == BUILTIN and callers:
            for (caller, *_), (_, _, share, _) in callers.items():
                found[place(caller)] += share
        else:
            found[place(file)] += own
    return found


def profiled() -> None:
    "Run an ingest of this process's environment under the profiler; its places as JSON on stdout."
    profile = cProfile.Profile()
    import psycopg  # noqa: F401 (every client of the database pays for it)

    with redirect_stdout(StringIO()), profile:
        from merlin.ingest import main

        code = main(['--json'])
    if code:
        sys.exit(code)
    print(json.dumps(seconds_by_place(pstats.Stats(profile))))


def table(title: str, found: Counter[str], rows: int = 8) -> Iterable[str]:
    "The lines of a table."
    whole = sum(found.values())
    yield f'\n### {title}: {whole:.2f} s\n'
    yield '| at work | seconds | share |\n|---|---|---|'
    for name, took in found.most_common(rows):
        yield f'| {name} | {took:.3f} | {100 * took / whole:.0f} % |'


def main() -> None:
    "Make a record and its index, then profile the three runs."
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--files', type=int, default=1_000)
    parser.add_argument('--keep', type=Path, metavar='FOLDER', help='of records and indexes, as bin/bench --keep')
    parser.add_argument('--child', action='store_true', help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        return profiled()
    with ExitStack() as stack:
        index = Lab(stack, args.keep).index(args.files)

        def run(title: str) -> None:
            command = [sys.executable, __file__, '--child']
            out = subprocess.run(command, env=index.env, capture_output=True, text=True, check=True).stdout
            print(*table(title, Counter(json.loads(out))), sep='\n', flush=True)

        run('nothing to do')
        change_page(index.repo, 'A line more.')
        run('one changed file')
        index.conn.execute("update meta set value = '0' where key = 'schema_version'")
        run('rebuild around vectors that are there')


if __name__ == '__main__':
    main()
