"""What an install brings: every package in one version and with hashes, within the ranges of settings.ini; no network."""

import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / 'tools'))

import licences  # noqa: E402
import lock  # noqa: E402

LINUX = {'sys_platform': 'linux', 'platform_machine': 'x86_64', 'implementation_name': 'cpython'}
HASH = re.compile(r' +--hash=sha256:[0-9a-f]{64}( \\)?')


def entries(extra: str) -> list[tuple[Requirement, list[str]]]:
    "Each requirement of a lock file with the lines of its hashes."
    out: list[tuple[Requirement, list[str]]] = []
    for line in (ROOT / 'requirements' / f'{extra}.txt').read_text(encoding='utf-8').splitlines():
        if line.startswith('    '):
            out[-1][1].append(line)
        elif line and line[0] != '#':
            out.append((Requirement(line.removesuffix('\\').strip()), []))
    return out


def chosen(extra: str, python: str) -> dict[str, str]:
    "The version of each package on Linux and this Python."
    there = {**LINUX, 'python_version': python, 'python_full_version': f'{python}.1'}
    found = [r for r, _ in entries(extra) if r.marker is None or r.marker.evaluate(there)]
    assert len({canonicalize_name(r.name) for r in found}) == len(found)  # pip takes no two versions of one package
    return {canonicalize_name(r.name): str(r.specifier).removeprefix('==') for r in found}


@pytest.mark.parametrize('extra', lock.EXTRAS)
def test_every_package_has_one_exact_version_and_hashes(extra):
    listed = entries(extra)
    assert len(listed) > 20
    assert [str(r) for r, _ in listed if not re.fullmatch(r'==[\w.!+]+', str(r.specifier))] == []
    assert [str(r) for r, hashes in listed if not hashes or not all(map(HASH.fullmatch, hashes))] == []


@pytest.mark.parametrize('python', lock.PYTHONS)
@pytest.mark.parametrize('extra', lock.EXTRAS)
def test_what_settings_ini_asks_for_is_there_and_in_its_range(extra, python):
    found = chosen(extra, python)
    asked = [Requirement(line) for line in lock.inputs(extra)]
    assert [str(r) for r in asked if found.get(canonicalize_name(r.name), '0') not in r.specifier] == []


@pytest.mark.parametrize('extra', lock.EXTRAS)
def test_the_lock_was_made_from_todays_settings_ini(extra):
    text = (ROOT / 'requirements' / f'{extra}.txt').read_text(encoding='utf-8')
    assert f'# made from {lock.digest(extra)}\n' in text, 'run tools/lock.py'


@pytest.mark.parametrize('python', lock.PYTHONS)
def test_users_and_developers_get_the_same_versions(python):
    local, dev = chosen('local', python), chosen('dev', python)
    assert {name: (v, dev.get(name)) for name, v in local.items() if dev.get(name) != v} == {}


def test_no_address_stands_in_the_lock():
    for extra in lock.EXTRAS:
        assert '://' not in (ROOT / 'requirements' / f'{extra}.txt').read_text(encoding='utf-8')


def test_every_install_of_the_scripts_goes_by_the_lock():
    text = (ROOT / 'bin/lib.sh').read_text(encoding='utf-8')
    calls = re.findall(r'^ *pip_in_venv (.*)', text, re.M)
    assert calls == [
        '--only-binary :all: --require-hashes -r "requirements/$1.txt" &&',
        '--no-deps --no-build-isolation -e .',
    ]
    assert text.count('pip install') == 1  # that of pip_in_venv
    extras = {e for p in (ROOT / 'bin').iterdir() for e in re.findall(r'^prepare (\w+)', p.read_text('utf-8'), re.M)}
    assert extras == set(lock.EXTRAS)


def test_a_swapped_file_is_refused_with_what_to_do(tmp_path):
    log = tmp_path / 'install.log'
    log.write_text(
        'Collecting x\nERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE. If you …\n'
        '    x==1 from an index:\n        Expected sha256 00\n             Got        11\n\n'
    )
    script = f'self=bin/quickstart; . bin/lib.sh; PROG=bin/quickstart; explain {log}'
    done = subprocess.run(['bash', '-c', script], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 3 and 'refused' in done.stderr and str(log) in done.stderr
    assert 'x==1' in done.stderr and 'Got        11' in done.stderr


def test_the_page_has_the_licence_of_every_package():
    text = (ROOT / 'docs/dependencies.md').read_text(encoding='utf-8')
    pins = licences.pinned('dev')
    for name, row in licences.rows():
        try:
            same = version(name) == pins[name][0]
        except PackageNotFoundError:
            same = False
        if same:  # of another version, the page need not know
            assert row in text, 'run tools/licences.py --write'
        assert f'| `{name}` |' in text and ' ? |' not in row
    listed = re.findall(r'^\| `([\w.-]+)` \|', text.partition(licences.START)[2].partition(licences.END)[0], re.M)
    assert listed == [name for name, _ in licences.rows()]
