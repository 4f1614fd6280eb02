"""Properties over made-up input, for as long as one likes: what is found is printed with the line that replays it.

bin/fuzz                                # every target in turn, ten minutes in all
bin/fuzz chunk redact --minutes 60
bin/fuzz layout --seed 81723            # the same inputs again, in the same order
bin/fuzz redact --again AXicY2RkYGBk    # one find again, as it was printed

Needs what bin/test installs. Finds are kept outside the checkout, and tried first the next time.
"""

import argparse
import hashlib
import os
import random
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from fuzz_answers import ANSWERS
from fuzz_files import FILES
from fuzz_parts import Target
from fuzz_texts import TEXTS
from hypothesis import HealthCheck, Phase, Verbosity, given, reproduce_failure, seed, settings
from hypothesis import __version__ as hypothesis_version
from hypothesis.configuration import set_hypothesis_home_dir
from hypothesis.errors import DidNotReproduce, InvalidArgument

TARGETS: Mapping[str, Target] = {**TEXTS, **FILES, **ANSWERS}
PHASES = [Phase.generate, Phase.shrink]  # to explain a find takes longer than to find it
MOST = 100_000  # inputs of a turn, which its seconds end much earlier
BLOB = re.compile(r"reproduce_failure\('[^']*', b'([^']*)'\)")


def kept_in() -> Path:
    "Where finds are kept."
    cache = os.environ.get('XDG_CACHE_HOME') or os.path.expanduser('~/.cache')
    return Path(cache) / 'merlin' / 'fuzz'


class Over(BaseException):
    "The time of a turn is over; hypothesis lets nothing but this kind through."


@dataclass
class Turn:
    "A target while it is tried: until its time is over, and then to the end where something was found."

    target: Target
    lab: Any
    until: float = float('inf')  # time.monotonic()
    tried: int = 0
    found: Mapping[str, Any] | None = None  # the input that did not hold, at last the smallest

    def __call__(self, **drawn: Any) -> None:
        "Try one input."
        if time.monotonic() > self.until and self.found is None:
            raise Over
        self.tried += self.found is None
        try:
            self.target.holds(**drawn, **({'lab': self.lab} if self.lab is not None else {}))
        except Exception:  # of any kind: each is a find, is kept with its input, and goes on to the one who asked
            self.found = drawn
            raise

    def run(self, wrap: Callable[[Callable[..., None]], Callable[..., None]], **options: Any) -> Exception | None:
        "Try many; the exception of the smallest input that does not hold."

        def test(**drawn: Any) -> None:
            self(**drawn)

        test.__name__ = test.__qualname__ = self.target.holds.__name__  # by which finds are kept
        test.__module__ = self.target.holds.__module__
        limits = settings(deadline=None, suppress_health_check=list(HealthCheck), report_multiple_bugs=False, **options)
        try:
            wrap(limits(given(**self.target.drawn)(test)))()
        except Over:
            return None
        except Exception as error:  # whatever a target raises is a find
            return error
        return None


def slice_of(target: Target, lab: Any = None) -> None:
    "The few inputs that the test suite tries, the same every time."
    options = {'derandomize': True, 'database': None, 'phases': PHASES}
    if error := Turn(target, lab).run(lambda test: test, max_examples=target.slice, **options):
        raise error


def replay(name: str, error: Exception, number: int) -> str:
    "The line that brings a find back."
    blob = BLOB.search('\n'.join(getattr(error, '__notes__', ())))
    return f'bin/fuzz {name} --again {blob[1]}' if blob else f'bin/fuzz {name} --seed {number}'


def show(name: str, turn: Turn, error: Exception, number: int) -> None:
    "A find."
    trace, places = error.__traceback__, []
    while trace is not None:
        file = Path(trace.tb_frame.f_code.co_filename)
        places += [f'{file.name}:{trace.tb_lineno}'] if file.parent.name in ('merlin', 'tools', 'tests') else []
        trace = trace.tb_next
    print(f'\nFOUND by {name}: {turn.target.text}')
    print(f'{type(error).__name__}: {str(error)[:1500]}\n  at {" > ".join(places[-5:])}')
    print(*(f'  {key} = {value!r}'[:3000] for key, value in (turn.found or {}).items()), sep='\n')
    print(f'again: {replay(name, error, number)}\n', flush=True)


def keep(name: str, error: Exception) -> None:
    "Keep a find for the next run; hypothesis itself keeps none where a seed is given."
    if blob := BLOB.search('\n'.join(getattr(error, '__notes__', ()))):
        file = kept_in() / name / hashlib.sha256(blob[1].encode()).hexdigest()[:16]
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(blob[1], encoding='ascii')


def once_more(name: str, lab: Any, blob: str) -> bool:
    "Try one find again; whether it is still one."
    turn = Turn(TARGETS[name], lab)
    error = turn.run(
        reproduce_failure(hypothesis_version, blob.encode()), database=None, print_blob=True, verbosity=Verbosity.quiet
    )
    if error is None or isinstance(error, DidNotReproduce | InvalidArgument):  # it holds, or was drawn in another way
        return False
    show(name, turn, error, 0)
    return True


def old_finds(name: str, lab: Any) -> bool:
    "Try what earlier runs found; what holds now is forgotten."
    files = sorted((kept_in() / name).glob('*'))
    left = [file for file in files if once_more(name, lab, file.read_text(encoding='ascii'))]
    for file in set(files) - set(left):
        file.unlink()
    return bool(left)


def fuzz(names: Sequence[str], minutes: float, number: int) -> int:
    "The targets in turn until the time is over; how many of them have a find."
    options = {'max_examples': MOST, 'database': None, 'print_blob': True, 'phases': PHASES}
    end, tried, spent = time.monotonic() + 60 * minutes, dict.fromkeys(names, 0), dict.fromkeys(names, 0.0)
    with ExitStack() as stack:
        labs = {name: stack.enter_context(TARGETS[name].ready()) for name in names}
        finds = {name for name in names if old_finds(name, labs[name])}
        for turns in count():
            going = [name for name in names if name not in finds]
            share = (end - time.monotonic()) / max(1, len(going))  # the first round leaves time for all
            for name in going if share > 0 else ():
                begin = time.process_time()
                turn = Turn(TARGETS[name], labs[name], time.monotonic() + min(TARGETS[name].seconds, max(0.5, share)))
                error = turn.run(seed(number + turns), **options)
                tried[name], spent[name] = tried[name] + turn.tried, spent[name] + time.process_time() - begin
                if error:
                    finds.add(name)
                    keep(name, error)
                    show(name, turn, error, number + turns)
            if not going or share <= 0:
                break
    for name in names:
        print(f'{name:10} {tried[name]:8,} inputs {spent[name]:7.1f} s of CPU{"  FOUND" if name in finds else ""}')
    print(f'seed {number}; {len(finds)} finds')
    return len(finds)


def main(argv: Sequence[str] | None = None) -> int:
    "Fuzz; the exit code."
    p = argparse.ArgumentParser(prog='bin/fuzz', description='Try properties of merlin on made-up input.')
    p.add_argument('targets', nargs='*', metavar='TARGET', help=f'{", ".join(TARGETS)} (all)')
    p.add_argument('--minutes', type=float, default=10.0, help='in all (10)')
    p.add_argument('--seed', type=int, help='the number that an earlier run printed')
    p.add_argument('--again', metavar='TEXT', help='one find, as it was printed; with its target')
    p.add_argument('--list', action='store_true', help='say what each target holds')
    args = p.parse_args(argv)
    names: Iterable[str] = args.targets or TARGETS
    if unknown := [name for name in names if name not in TARGETS]:
        p.error(f'no target {unknown[0]!r}; known: {", ".join(TARGETS)}')
    if args.list:
        print(*(f'{name:10} {TARGETS[name].text}' for name in names), sep='\n')
        return 0
    if args.again:
        if len(args.targets) != 1:
            p.error('--again takes one target')
        with TARGETS[args.targets[0]].ready() as lab:
            found = once_more(args.targets[0], lab, args.again)
        print('' if found else 'it holds now')
        return int(found)
    number = random.SystemRandom().randrange(10**6) if args.seed is None else args.seed
    print(f'seed {number}; finds are kept in {kept_in()}', flush=True)
    return int(bool(fuzz(list(dict.fromkeys(names)), args.minutes, number)))


if __name__ == '__main__':
    set_hypothesis_home_dir(kept_in().with_name('hypothesis'))  # else it makes a folder in the one it is run in
    raise SystemExit(main())
