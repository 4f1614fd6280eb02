"""A made-up record of any size, with the shape of a real one; the same seed gives the same commit.

    python tools/bench_record.py FOLDER FILES [--depth 2] [--seed 7] [--most 400000]     # bare, through git fast-import

Pages of five kinds (journal, runbook, host, memory, planning). Sizes are log-normal: half below 2.7 KB, nine of ten
below 12.6, 99 of 100 below 44; a section every 520 bytes, so about 11 a page. Seven of ten long journal pages repeat
their headings, as logs do. Ten pages come in a commit, then each page is written on `depth` times, newer pages more
often than older ones: by a commit each up to 20,000 commits, in a larger record by as many with several pages each, most
of one folder. So 10,000 files have 21,000 commits and 50,000 files 25,000. A commit writes the folders of its pages
anew, which is why a folder holds a month or an area rather than thousands of pages; hosts lie in one, where the shipped
layout looks for them, and memory in areas counts as pages. Words follow a Zipf law; hosts, commands, tables and front
matter are among them, secrets are not.
"""

import argparse
import math
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from itertools import accumulate
from pathlib import Path

from merlin.testing import DAY, START, run_git

MEDIAN, SPREAD = 2_700, 1.202  # bytes; (ln 12,600 - ln 2,700) / 1.2816, which puts the 99th percentile at 44 KB
SMALLEST, LARGEST = 150, 400_000  # bytes
SECTION = 520  # bytes a section, on average
LONG, REPEATING = 8, 0.7  # sections of a long log; share of those that repeat their headings
KINDS = ('journal',) * 9 + ('runbooks',) * 5 + ('memory',) * 3 + ('planning',) * 2 + ('hosts',)
TOGETHER = 10  # new pages in a commit
LATER = 20_000  # commits at most that write on pages; a larger record has several pages in each
CUT = 2 * SECTION  # bytes; pages kept below it are written on without a heading, and stay at one or two sections
AREA = 800  # pages, of which each kind but journal and hosts puts its own into one folder; no folder gets wide
VOCABULARY = 20_000
ONSETS, VOWELS, ENDS = (
    'b bl c ch d f g gr h j l m n p pr qu r s sh st t tr v w'.split(),
    'a e i o u ea ou y'.split(),
    ' d l n r s t x'.split(' '),
)
SYLLABLES = [onset + vowel + end for end in ENDS for vowel in VOWELS for onset in ONSETS]
LOG_HEADINGS = ('What happened', 'Checked', 'Done', 'Open', 'Follow-up')
COMMANDS = ('systemctl status', 'journalctl -u', 'df -h', 'ip addr show', 'tail -f', 'rsync -a')


def word(n: int) -> str:
    "The n-th word of the made-up language; the common ones are short."
    out, n = '', n + 1
    while n:
        out, n = out + SYLLABLES[n * 389 % len(SYLLABLES)], n // 64
    return out


class Pages:
    "Pages without end, the same for the same seed."

    def __init__(self, seed: int = 7, most: int = LARGEST, vocabulary: int = VOCABULARY) -> None:
        self.rnd, self.most = random.Random(seed), most
        self.words = [word(n) for n in range(vocabulary)]
        self.weights = list(accumulate(1 / (n + 6) ** 1.05 for n in range(vocabulary)))

    def say(self, count: int) -> str:
        "So many words."
        return ' '.join(self.rnd.choices(self.words, cum_weights=self.weights, k=count))

    def host(self) -> str:
        "The name of one of 100 hosts."
        return f'{self.words[self.rnd.randrange(100) + 500]}{self.rnd.randrange(100) // 10:02}'

    def block(self, size: int) -> str:
        "A paragraph, a list, a table or a listing of about so many bytes, naming a host now and then."
        some = max(4, size * 9 // 70)  # words; one has six letters and a space
        kind = self.rnd.random()
        if kind < 0.6:
            words = self.say(some).split(' ')
            if self.rnd.random() < 0.3:
                words[self.rnd.randrange(len(words))] = self.host()
            lines = [' '.join(words[n : n + 14]) for n in range(0, len(words), 14)]
            return '\n'.join(lines).capitalize() + '.\n'
        if kind < 0.8:
            return ''.join(f'- {self.say(7)}\n' for _ in range(max(1, some // 7)))
        if kind < 0.9:
            rows = ''.join(f'| {self.say(1)} | {self.say(4)} |\n' for _ in range(max(1, some // 6)))
            return f'| name | value |\n|---|---|\n{rows}'
        listing = ''.join(f'{self.rnd.choice(COMMANDS)} {self.say(4)}\n' for _ in range(max(1, some // 6)))
        return f'```sh\n{listing}```\n'

    def section(self, heading: str, size: int) -> str:
        "One section of about so many bytes."
        parts, left = [], size
        while left > 0:
            parts.append(self.block(min(left, 400)))
            left -= len(parts[-1])
        return f'\n## {heading}\n\n' + '\n'.join(parts)

    def page(self, n: int) -> tuple[str, str]:
        "Path and text of the n-th page."
        kind = self.rnd.choice(KINDS)
        size = min(self.most, max(SMALLEST, int(self.rnd.lognormvariate(math.log(MEDIAN), SPREAD))))
        count = max(1, round(size / SECTION * self.rnd.uniform(0.6, 1.4)))
        repeats = kind == 'journal' and count >= LONG and self.rnd.random() < REPEATING
        headings = [LOG_HEADINGS[i % len(LOG_HEADINGS)] if repeats else self.say(3).capitalize() for i in range(count)]
        shares = [self.rnd.lognormvariate(0, 0.6) for _ in range(count)]
        room = max(0, size - 20 * count - 40) / sum(shares)
        body = ''.join(self.section(h, max(20, int(room * s))) for h, s in zip(headings, shares, strict=True))
        path, front, title = self.name(kind, n)
        return path, f'{front}# {title}\n{body}'

    def name(self, kind: str, n: int) -> tuple[str, str, str]:
        "Path, front matter and title of a page of this kind."
        if kind == 'journal':
            day = date(2010, 1, 1) + timedelta(days=n % 7_000)
            return f'journal/{day.year}/{day.month:02}/{day}-{n}.md', '', f'{day}'
        if kind == 'hosts':
            name = f'{self.words[500 + n % 5000]}{n // 5000:02}'
            address = f'10.{n >> 16 & 255}.{n >> 8 & 255}.{n & 255}'
            return f'hosts/{name}-{n}.md', f'---\nhost: {name}\naliases: [{name}.lan]\nips: [{address}]\n---\n', name
        front = f'---\ntags: [{self.say(1)}, {self.say(1)}]\n---\n' if self.rnd.random() < 0.5 else ''
        area = f'{self.words[300 + n // AREA]}/' if n >= AREA else ''
        return f'{kind}/{area}{self.words[n % VOCABULARY]}-{n}.md', front, self.say(4).capitalize()


def commits(files: int, depth: int, seed: int, most: int) -> Iterator[dict[str, str]]:
    "The changes of each commit: path -> its whole text."
    pages, texts = Pages(seed, most), {}
    for n in range(0, files, TOGETHER):
        fresh = dict(pages.page(i) for i in range(n, min(files, n + TOGETHER)))
        texts |= fresh
        yield fresh
    each, cut, paths, shelf = max(1, files * depth // LATER), most < CUT, list(texts), sorted(texts)
    place = {path: n for n, path in enumerate(shelf)}
    for n in range(0, files * depth, each):
        first = place[paths[int(len(paths) * max(pages.rnd.random(), pages.rnd.random()))]]
        changed = shelf[first : first + min(each, files * depth - n)]  # neighbours, most of one folder
        for path in changed:
            size = pages.rnd.randint(40, 300)
            texts[path] += f'\n{pages.block(size)}' if cut else pages.section(pages.say(2).capitalize(), size)
        yield {path: texts[path] for path in changed}


def stream(files: int, depth: int, seed: int, most: int) -> Iterator[bytes]:
    "The record as `git fast-import` reads it."
    for n, changes in enumerate(commits(files, depth, seed, most)):
        when = START - DAY * 3_000 + n * 600
        message = f'{datetime.fromtimestamp(when, UTC):%Y-%m-%d %H:%M}, {len(changes)} pages'.encode()
        who = b'merlin <merlin@example.invalid> %d +0000' % when
        yield b'commit refs/heads/main\ncommitter %s\ndata %d\n%s\n' % (who, len(message), message)
        for path, text in changes.items():
            data = text.encode()
            yield b'M 100644 inline %s\ndata %d\n%s\n' % (path.encode(), len(data), data)


def make_record(folder: Path, files: int, depth: int = 2, seed: int = 7, most: int = LARGEST) -> str:
    "A bare repository in a folder that is not there yet; its head."
    folder.mkdir(parents=True)
    run_git(folder, 'init', '--quiet', '--bare', '--object-format=sha1')
    quick = ('-c', 'core.compression=1')  # a fifth faster
    command = ['git', *quick, '-C', str(folder), 'fast-import', '--quiet', '--done']
    with subprocess.Popen(command, stdin=subprocess.PIPE) as git:
        git.stdin.writelines(stream(files, depth, seed, most))
        git.stdin.write(b'done\n')
    if git.returncode:
        raise SystemExit(f'git fast-import ended with {git.returncode}')
    return run_git(folder, 'rev-parse', 'HEAD')


def change_page(folder: Path, text: str) -> str:
    "One more commit, which adds a section to the page that comes first in the tree; its path."
    path = run_git(folder, 'ls-tree', '-r', '--name-only', 'HEAD').partition('\n')[0]
    old = run_git(folder, 'cat-file', 'blob', f'HEAD:{path}')
    data, when = f'{old}\n\n{text}'.encode(), int(run_git(folder, 'log', '-1', '--format=%ct')) + 600
    who = b'merlin <merlin@example.invalid> %d +0000' % when
    commit = b'commit refs/heads/main\ncommitter %s\ndata 1\n.\nfrom refs/heads/main^0\n' % who
    change = b'M 100644 inline %s\ndata %d\n%s\ndone\n' % (path.encode(), len(data), data)
    command = ['git', '-C', str(folder), 'fast-import', '--quiet', '--done']
    subprocess.run(command, input=commit + change, check=True)
    return path


VERSION_FILES = 15


def generator() -> str:
    "What tells this generator from an older one: the head of a small record."
    with tempfile.TemporaryDirectory('-bench') as folder:
        return make_record(Path(folder) / 'r', VERSION_FILES)[:8]


def main(argv: Sequence[str] | None = None) -> int:
    "Make a record and say what it is."
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('folder', type=Path)
    parser.add_argument('files', type=int)
    parser.add_argument('--depth', type=int, default=2, help='later commits for each page')
    parser.add_argument('--seed', type=int, default=7)
    parser.add_argument('--most', type=int, default=LARGEST, help='bytes of the largest page, as it comes in')
    args = parser.parse_args(argv)
    print(make_record(args.folder, args.files, args.depth, args.seed, args.most))
    return 0


if __name__ == '__main__':
    sys.exit(main())
