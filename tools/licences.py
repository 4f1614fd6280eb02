"""The licences in docs/dependencies.md: of every package that bin/quickstart brings, and of what the extras ask for.

    .venv/bin/python tools/licences.py            # print the section
    .venv/bin/python tools/licences.py --write    # write it into the page

Names and versions come from requirements/*.txt and settings.ini, licences from what the installed packages say of
themselves. tests/test_supply.py fails where the page is another.
"""

import argparse
import re
import sys
from collections.abc import Iterator, Sequence
from importlib.metadata import Distribution, PackageNotFoundError, distribution

from lock import ROOT, inputs
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PAGE = ROOT / 'docs/dependencies.md'
START, END = '## Licences', '## Not from pip'
HEAD = """

What `bin/quickstart` installs, and below it what the other extras ask for. Made by `.venv/bin/python tools/licences.py --write` from what the packages say of themselves; a test holds the page to it.

| package | version | licence | asked for by |
|---|---|---|---|
"""
SHORT = {  # what a classifier or a free text means
    'Apache License, Version 2.0': 'Apache-2.0',
    'Apache License 2.0': 'Apache-2.0',
    'Apache Software License': 'Apache-2.0',
    'Apache Software License 2.0': 'Apache-2.0',
    'Apache 2.0': 'Apache-2.0',
    '3-Clause BSD License': 'BSD-3-Clause',
    'BSD License': 'BSD',
    'MIT License': 'MIT',
    'GNU Lesser General Public License v3 (LGPLv3)': 'LGPL-3.0',
    'Mozilla Public License 2.0 (MPL 2.0)': 'MPL-2.0',
    'Python Software Foundation License': 'PSF-2.0',
}


def pinned(extra: str) -> dict[str, list[str]]:
    "Versions by package, as the lock file has them."
    out: dict[str, list[str]] = {}
    for line in (ROOT / 'requirements' / f'{extra}.txt').read_text(encoding='utf-8').splitlines():
        if found := re.match(r'([\w.-]+)==(\S+)', line):
            out.setdefault(canonicalize_name(found[1]), []).append(found[2])
    return out


def licence(dist: Distribution) -> str:
    "What the package says: an SPDX expression, else its classifiers, else a short text; else a question mark."
    if said := dist.metadata.get('License-Expression'):
        return said
    listed = [c.split(' :: ')[-1] for c in dist.metadata.get_all('Classifier', []) if c.startswith('License ::')]
    names = [name for name in listed if name != 'OSI Approved']
    text = (dist.metadata.get('License') or '').strip()
    found = names or ([text] if text and '\n' not in text and len(text) < 60 else [])
    return ', '.join(SHORT.get(name, name) for name in found) or '?'


def asked_by(names: Sequence[str], direct: Sequence[str]) -> dict[str, list[str]]:
    "For each package, who among the others needs it; merlin, where settings.ini names it."
    out: dict[str, list[str]] = {name: ['merlin'] if name in direct else [] for name in names}
    for name in names:
        try:
            needs = distribution(name).requires or []
        except PackageNotFoundError:  # of another system
            continue
        # extras are left out: psycopg[binary] is asked for as such
        for need in {canonicalize_name(r.name) for r in map(Requirement, needs) if 'extra' not in str(r.marker)}:
            if need in out and 'merlin' not in out[need]:
                out[need].append(name)
    return out


def rows() -> Iterator[tuple[str, str]]:
    "Each package, and its line of the table."
    ranges = {
        canonicalize_name(r.name): ','.join(sorted(map(str, r.specifier), reverse=True))
        for r in map(Requirement, inputs('dev'))
    }
    local, everything = pinned('local'), pinned('dev')
    direct = [canonicalize_name(Requirement(r).name) for r in inputs('local')]
    users = asked_by(sorted(local), direct)
    others = sorted(name for name in ranges if name not in local)
    for name in [*sorted(local), *others]:
        versions = ' or '.join(local.get(name) or everything[name])
        asked = f'{versions}, of {ranges[name]}' if name in ranges and versions not in ranges[name] else versions
        who = ', '.join(users[name] or ['merlin']) if name in users else 'an extra of merlin'
        yield name, f'| `{name}` | {asked} | {licence(distribution(name))} | {who} |'


def section() -> str:
    "The section of the page."
    return START + HEAD + '\n'.join(row for _, row in rows()) + '\n\n'


def replaced(text: str) -> str:
    "The page with today's section."
    before, _, rest = text.partition(START)
    head, end, after = (rest or before).partition(END)
    return (before if rest else head) + section() + end + after


def main(argv: Sequence[str] | None = None) -> int:
    "Print the section, or write it; the exit code."
    p = argparse.ArgumentParser(description='The licences in docs/dependencies.md.')
    p.add_argument('--write', action='store_true', help='write them into the page')
    if p.parse_args(argv).write:
        PAGE.write_text(replaced(PAGE.read_text(encoding='utf-8')), encoding='utf-8')
    else:
        print(section(), end='')
    return 0


if __name__ == '__main__':
    sys.exit(main())
