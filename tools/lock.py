"""Write requirements/*.txt: every package that an install brings, in one version, with the hashes of its files.

    .venv/bin/python tools/lock.py                  # after a change of settings.ini: what still fits stays as it is
    .venv/bin/python tools/lock.py --upgrade        # the newest versions that the ranges of settings.ini allow
    .venv/bin/python tools/lock.py --try            # would each file install on every system and Python in SYSTEMS?

The resolver is uv, installed for this one run: it alone answers for all systems and Pythons at once, where pip knows
only the one that it runs on. It asks the index that pip is configured with; local folders of wheels are left out, so
that the hashes are those of the files that everybody gets.
"""

import argparse
import hashlib
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from configparser import ConfigParser
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RESOLVER = 'uv==0.13.9'
EXTRAS = ('local', 'dev')  # what bin/lib.sh installs; each has its file
SYSTEMS = ('x86_64-manylinux_2_28', 'aarch64-manylinux_2_28', 'aarch64-apple-darwin')
PYTHONS = ('3.11', '3.12', '3.13')
MACOS = '14.0'  # the oldest for which there is an onnxruntime
HEAD = '''# Made by tools/lock.py; bin/lib.sh installs merlin from it. Change settings.ini, then run that tool.
# made from {digest}

'''


def inputs(extra: str) -> list[str]:
    "The requirements of an install with this extra, and what builds the package."
    parser = ConfigParser(delimiters=['='], interpolation=None)
    parser.read(ROOT / 'settings.ini', encoding='utf-8')

    def lines(key: str) -> list[str]:
        return [line.strip() for line in parser['DEFAULT'][key].splitlines() if line.strip()]

    out = lines('requirements')
    for line in lines(f'{extra}_requirements'):
        own = re.fullmatch(r'merlin\[([\w,]+)\]', line)
        out += [r for e in own[1].split(',') for r in lines(f'{e}_requirements')] if own else [line]
    with open(ROOT / 'pyproject.toml', 'rb') as file:
        return out + tomllib.load(file)['build-system']['requires']


def digest(extra: str) -> str:
    "Of the inputs: a lock file carries it, so that a test can tell when settings.ini has moved on."
    return hashlib.sha256('\n'.join(inputs(extra)).encode()).hexdigest()


def project(extra: str) -> str:
    "A pyproject.toml that asks for the inputs, on the systems that merlin knows."
    listed = ',\n'.join(f'  "{r}"' for r in inputs(extra))
    systems = ', '.join(f'"sys_platform == \'{s}\'"' for s in ('linux', 'darwin'))
    return (
        f'[project]\nname = "merlin-lock"\nversion = "0"\nrequires-python = ">={PYTHONS[0]}"\n'
        f'dependencies = [\n{listed},\n]\n[tool.uv]\nenvironments = [{systems}]\n'
    )


def environment() -> dict[str, str]:
    "The environment with the index of pip's configuration, where it names one."
    asked = [sys.executable, '-m', 'pip', 'config', 'get', 'global.index-url']
    found = subprocess.run(asked, capture_output=True, text=True).stdout.strip()
    index = os.environ.get('PIP_INDEX_URL') or found
    kept = {k: v for k, v in os.environ.items() if not k.startswith('UV_')}
    return {**kept, 'MACOSX_DEPLOYMENT_TARGET': MACOS, **({'UV_DEFAULT_INDEX': index} if index else {})}


def resolver(folder: Path) -> Path:
    "The program, installed into the folder."
    pip = [sys.executable, '-m', 'pip', 'install', '--quiet', '--disable-pip-version-check', '--no-deps']
    subprocess.run([*pip, '--target', folder / 'uv', RESOLVER], check=True)
    return folder / 'uv' / 'bin' / 'uv'


def write(uv: Path, folder: Path, extra: str, upgrade: bool) -> str:
    "Make one lock file; what it holds now."
    target, made = ROOT / 'requirements' / f'{extra}.txt', folder / f'{extra}.txt'
    if target.exists() and not upgrade:
        made.write_text(target.read_text(encoding='utf-8'), encoding='utf-8')
    (folder / 'pyproject.toml').write_text(project(extra), encoding='utf-8')
    options = ['--universal', '--generate-hashes', '--no-header', '--no-annotate', '--quiet', '--output-file', made]
    subprocess.run([uv, 'pip', 'compile', *options, 'pyproject.toml'], cwd=folder, env=environment(), check=True)
    text = HEAD.format(digest=digest(extra)) + made.read_text(encoding='utf-8')
    target.write_text(text, encoding='utf-8')
    return text


def attempt(uv: Path, folder: Path, extra: str) -> list[str]:
    "The systems and Pythons for which a file of the lock is missing, with what the resolver says."
    options = ['--dry-run', '--require-hashes', '--only-binary', ':all:', '--no-config', '--target', folder / 'none']
    out = []
    for system in SYSTEMS:
        for python in PYTHONS:
            there = ['--python-platform', system, '--python-version', python]
            lock = ROOT / 'requirements' / f'{extra}.txt'
            done = subprocess.run(
                [uv, 'pip', 'install', '--python', sys.executable, *options, *there, '-r', lock],
                capture_output=True, text=True, env=environment(),
            )  # fmt: skip
            if done.returncode:
                out.append(f'{extra}, {system}, Python {python}:\n{done.stderr.strip()}')
    return out


def main(argv: Sequence[str] | None = None) -> int:
    "Write the files, or try them; the exit code."
    p = argparse.ArgumentParser(description='Pin what an install brings, with hashes.')
    p.add_argument('--upgrade', action='store_true', help='take the newest versions that settings.ini allows')
    p.add_argument('--try', dest='attempt', action='store_true', help='write nothing: would they install everywhere?')
    args = p.parse_args(argv)
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        uv = resolver(folder)
        for extra in EXTRAS if not args.attempt else ():
            text = write(uv, folder, extra, args.upgrade)
            count = len(re.findall(r'(?m)^[\w-]+.*==', text))
            print(f'requirements/{extra}.txt: {count} lines, {text.count("--hash=sha256:")} hashes')
        failed = [f for extra in EXTRAS for f in attempt(uv, folder, extra)] if args.attempt else []
    print(*failed, sep='\n\n', end='\n' if failed else '')
    return 1 if failed else 0


if __name__ == '__main__':
    sys.exit(main())
