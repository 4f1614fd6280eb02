"""A campaign of faults: after each, the next run ends right, and the index is that of a clean rebuild.

bin/faults                          # 200 points
bin/faults --points 20 --seed 7 kill postmaster
bin/faults --only postmaster:3      # one point again, as the table names it; with the same seed
"""

import argparse
import random
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import cycle

from faults_ask import Asker
from faults_kinds import (
    Point,
    clock_moved,
    disk_full,
    embedder_lost,
    files_limited,
    git_killed,
    keeper_killed,
    server_killed,
    struck,
    two_at_once,
)
from faults_lab import Lab, drop_index, open_lab
from faults_standing import (
    hashes_damaged,
    head_damaged,
    history_rewritten,
    index_damaged,
    layout_truncated,
    major_upgraded,
    pack_damaged,
    pulled,
    repo_removed,
    started,
)


@dataclass(frozen=True)
class Kind:
    "A kind of fault."

    do: Callable[[Point], None]
    share: int  # of 200 points
    text: str
    asked: bool = False  # a server for a model lives through it


KINDS: Mapping[str, Kind] = {
    'kill': Kind(struck('kill'), 34, 'ingest killed (SIGKILL)'),
    'term': Kind(struck('term'), 4, 'ingest ended (SIGTERM)'),
    'int': Kind(struck('int'), 6, 'ingest interrupted (Ctrl-C)'),
    'git': Kind(git_killed, 6, 'a git of the ingest killed'),
    'two': Kind(two_at_once, 6, 'ingest stopped, a second one beside it'),
    'backend': Kind(struck('backend'), 14, 'a backend killed', True),
    'terminate': Kind(struck('terminate'), 6, 'a session terminated', True),
    'postmaster': Kind(struck('postmaster'), 12, 'the postmaster killed', True),
    'database': Kind(struck('server'), 10, 'every process of the database killed', True),
    'power': Kind(struck('power'), 10, 'database and ingest killed at once', True),
    'keeper': Kind(keeper_killed, 3, 'the keeper of the database killed'),
    'server': Kind(server_killed, 8, 'a server for a model killed while it answers'),
    'disk': Kind(disk_full, 8, 'the disk full (a file system of its own)'),
    'limit': Kind(files_limited, 6, 'files limited in size (RLIMIT_FSIZE on the database)'),
    'embedder': Kind(embedder_lost, 14, 'the embedder gone, or answering nonsense'),
    'clock': Kind(clock_moved, 8, 'the clock moved'),
    'history': Kind(history_rewritten, 4, 'git history rewritten'),
    'pull': Kind(pulled, 8, 'a pull disturbed, or of a rewritten history'),
    'pack': Kind(pack_damaged, 10, 'a pack damaged'),
    'head': Kind(head_damaged, 4, 'HEAD, a ref or the configuration of the repo damaged'),
    'repo': Kind(repo_removed, 3, 'the repo removed'),
    'layout': Kind(layout_truncated, 8, 'the layout truncated'),
    'hashes': Kind(hashes_damaged, 4, 'the file of secret hashes damaged'),
    'index': Kind(index_damaged, 12, 'a table, an index or a fact of meta removed by hand'),
    'start': Kind(started, 3, 'killed in its first start'),
    'major': Kind(major_upgraded, 3, 'the major version of Postgres upgraded'),
}


@dataclass
class Tally:
    "What became of a kind."

    points: int = 0
    seconds: float = 0.0
    findings: list[tuple[str, str]] = field(default_factory=list)  # point, what was wrong


def shares(points: int, kinds: Sequence[str]) -> list[str]:
    "So many points, each kind at least once where there is room, and about as often as its share says."
    whole = sum(KINDS[kind].share for kind in kinds)
    counts = {kind: max(1, round(points * KINDS[kind].share / whole)) for kind in kinds}
    order = sorted(kinds, key=lambda kind: -KINDS[kind].share)
    for kind in cycle(order):
        if (total := sum(counts.values())) == points or (total > points and all(n == 1 for n in counts.values())):
            break
        if total > points and counts[kind] > 1 or total < points:
            counts[kind] += 1 if total < points else -1
    rounds = range(max(counts.values()))
    return [f'{kind}:{n}' for n in rounds for kind in kinds if n < counts[kind]][: max(points, 1)]


def run_point(lab: Lab, name: str, seed: int, asker: Asker | None) -> Point:
    "Do one point; what goes wrong in the doing is a finding too."
    kind = KINDS[name.partition(':')[0]]
    point = Point(lab, random.Random(f'{seed} {name}'), asker=asker if kind.asked else None)
    try:
        kind.do(point)
    except Exception as error:  # whatever it is, the campaign goes on
        where = traceback.extract_tb(error.__traceback__)
        near = next((f for f in reversed(where) if '/tools/' in f.filename), where[-1])
        point.findings.append(f'{type(error).__name__} at {near.name}:{near.lineno}: {str(error)[:300]}')
    if point.findings:  # what one point left behind is not held against the next
        drop_index(lab)
    return point


def campaign(lab: Lab, names: Sequence[str], seed: int, verbose: bool) -> dict[str, Tally]:
    "Every point, or those until Ctrl-C; the tally by kind."
    tallies: dict[str, Tally] = {}
    with suppress(KeyboardInterrupt):
        do_points(lab, names, seed, verbose, tallies)
    return tallies


def do_points(lab: Lab, names: Sequence[str], seed: int, verbose: bool, tallies: dict[str, Tally]) -> None:
    "Every point, into the tallies."
    asker: Asker | None = None
    for name in names:
        kind, begin = name.partition(':')[0], time.monotonic()
        if KINDS[kind].asked and asker is None:
            asker = Asker(lab)
        elif asker and not KINDS[kind].asked:
            asker = asker.end() and None
        point = run_point(lab, name, seed, asker)
        if asker and asker.process.poll() is not None:
            point.findings.append(f'the server for a model ended: {asker.process.returncode}')
            asker = None
        tally = tallies.setdefault(kind, Tally())
        tally.points += 1
        tally.seconds += time.monotonic() - begin
        tally.findings += [(name, text) for text in point.findings]
        if verbose or point.findings:
            print(
                f'{name}: ' + '\n    '.join([*point.notes, *(f'FINDING {text}' for text in point.findings)]), flush=True
            )
    if asker:
        with suppress(OSError):
            asker.end()


def print_table(tallies: Mapping[str, Tally], seed: int) -> None:
    "Kinds, points, seconds, findings."
    print(f'{"kind":11} {"points":>6} {"seconds":>8} {"findings":>8}  what')
    for kind, tally in tallies.items():
        print(f'{kind:11} {tally.points:6} {tally.seconds:8.0f} {len(tally.findings):8}  {KINDS[kind].text}')
    points, found = sum(t.points for t in tallies.values()), sum(len(t.findings) for t in tallies.values())
    print(f'{"all":11} {points:6} {sum(t.seconds for t in tallies.values()):8.0f} {found:8}  seed {seed}')
    for tally in tallies.values():
        for name, text in tally.findings:
            print(f'bin/faults --seed {seed} --only {name}: {text[:300]}')


def parser() -> argparse.ArgumentParser:
    "The arguments."
    p = argparse.ArgumentParser(
        prog='bin/faults', description='Break things at random moments; see that the next run makes them good.',
        epilog='kinds: ' + ', '.join(KINDS), formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )  # fmt: skip
    p.add_argument('kinds', nargs='*', metavar='KIND', help='only these kinds')
    p.add_argument('--seed', type=int, default=1, help='another one chooses other moments')
    p.add_argument('--points', type=int, default=200, help='how many')
    p.add_argument('--only', action='append', metavar='KIND:N', help='one point, as the table names it')
    p.add_argument('--verbose', action='store_true', help='tell every point, not only those with a finding')
    return p


def main(argv: Sequence[str] | None = None) -> int:
    "Run the campaign; 1 where something was not as it should be."
    p = parser()
    args = p.parse_args(argv)
    asked = [*args.kinds, *(name.partition(':')[0] for name in args.only or ())]
    if unknown := sorted(set(asked) - KINDS.keys()):
        p.error(f'no kind {unknown[0]!r}; kinds are: {", ".join(KINDS)}')
    names = args.only or shares(args.points, args.kinds or list(KINDS))
    with open_lab() as lab:
        tallies = campaign(lab, names, args.seed, args.verbose)
    print_table(tallies, args.seed)
    return int(any(tally.findings for tally in tallies.values()))


if __name__ == '__main__':
    sys.exit(main())
