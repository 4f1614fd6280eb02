"""A slice of every fuzz target, the same each time; and how bin/fuzz tells what it finds. What it found is in the tests of the part."""

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import strategies as st

TOOLS = Path(__file__).resolve().parents[1] / 'tools'
sys.path.insert(0, str(TOOLS))

import fuzz  # noqa: E402
from fuzz_parts import Target  # noqa: E402


@pytest.mark.parametrize('name', fuzz.TARGETS)
def test_a_slice_of_each_target_finds_nothing(name):
    target = fuzz.TARGETS[name]
    with target.ready() as lab:
        fuzz.slice_of(target, lab)


def small(number: int) -> None:
    "A property that does not hold."
    assert number < 1000, 'too large'


def test_a_find_is_shown_smallest_with_the_line_that_replays_it(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path))
    monkeypatch.setattr(fuzz, 'TARGETS', {'small': Target('numbers are small', small, {'number': st.integers()})})
    assert fuzz.main(['small', '--minutes', '0.05', '--seed', '7']) == 1
    said = capsys.readouterr().out
    assert 'seed 7' in said and 'number = 1000\n' in said and 'too large' in said and '1 finds' in said
    (line,) = [line for line in said.splitlines() if line.startswith('again: ')]
    assert fuzz.main(line.removeprefix('again: bin/fuzz ').split()) == 1
    assert 'number = 1000\n' in capsys.readouterr().out
    assert fuzz.main(['small', '--minutes', '0.02']) == 1  # it was kept, and is tried first
    assert 'number = 1000\n' in capsys.readouterr().out
    monkeypatch.setattr(fuzz, 'TARGETS', {'small': Target('numbers', lambda number: None, {'number': st.integers()})})
    assert fuzz.main(line.removeprefix('again: bin/fuzz ').split()) == 0
    assert fuzz.main(['small', '--minutes', '0.005']) == 0 and not [p for p in tmp_path.rglob('*') if p.is_file()]


def test_a_target_that_there_is_not_is_refused_and_targets_are_listed(capsys):
    with pytest.raises(SystemExit) as refused:
        fuzz.main(['chunks'])
    assert refused.value.code == 2 and "no target 'chunks'" in capsys.readouterr().err
    assert fuzz.main(['--list']) == 0
    assert capsys.readouterr().out.count('\n') == len(fuzz.TARGETS)


def test_every_property_has_a_name_of_its_own_by_which_its_finds_are_kept():
    names = [(t.holds.__module__, t.holds.__name__) for t in fuzz.TARGETS.values()]
    assert len(set(names)) == len(names)


def test_the_script_runs_from_any_folder_and_leaves_nothing_in_it(tmp_path):
    run = subprocess.run([TOOLS.parent / 'bin/fuzz', '--list', 'wire'], cwd=tmp_path, capture_output=True, text=True)
    assert (run.returncode, run.stdout.split()[0]) == (0, 'wire'), run.stderr
    assert not list(tmp_path.iterdir())
