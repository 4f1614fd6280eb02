"The benchmark works: its record is the same for the same seed and shaped as it says, and each row runs at a tiny size."

import json
import statistics
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / 'tools'))

import bench
from bench_record import LONG, Pages, change_page, make_record
from bench_rounds import Row, Side, Trial, growth, measure, take_turns
from bench_rows import ROWS, Lab

from merlin.testing import run_git

TINY = {'filtered': 5_200, 'redaction': 5}


@pytest.fixture(scope='module')
def lab(tmp_path_factory):
    "One for all rows of a worker; its databases are the embedded ones of merlin, and go with it."
    with ExitStack() as stack:
        yield Lab(stack)


def test_the_same_seed_gives_the_same_commit_and_another_seed_another(tmp_path):
    first, again, other = (make_record(tmp_path / str(n), 15, seed=seed) for n, seed in enumerate((7, 7, 8)))
    assert first == again != other
    assert first == '6ac6f412c37770c8012b3e8513cbc693ce79904d', (
        'a change of the generator makes older figures incomparable: say so in docs'
    )


def test_a_record_has_its_files_and_a_deep_history(tmp_path):
    make_record(tmp_path / 'r', 25, depth=3)
    paths = run_git(tmp_path / 'r', 'ls-tree', '-r', '--name-only', 'HEAD').splitlines()
    assert len(paths) == 25 and all(path.endswith('.md') for path in paths)
    assert run_git(tmp_path / 'r', 'rev-list', '--count', 'HEAD') == str(3 + 3 * 25)
    assert run_git(tmp_path / 'r', 'fsck', '--strict') == ''


def test_a_change_adds_one_section_to_one_file(tmp_path):
    make_record(tmp_path / 'r', 15)
    path = change_page(tmp_path / 'r', '## Change 1\n\nNew.')
    assert run_git(tmp_path / 'r', 'diff', '--numstat', 'HEAD~1', 'HEAD') == f'4\t0\t{path}'


def test_pages_have_the_sizes_and_sections_of_a_real_record():
    made = Pages()
    pages = [made.page(n) for n in range(1_200)]
    sizes = sorted(len(text) for _, text in pages)
    assert 2_400 < sizes[600] < 3_300
    assert 11_000 < sizes[1_080] < 16_000
    assert 33_000 < sizes[1_188] < 60_000
    assert 9 < statistics.fmean(text.count('\n## ') for _, text in pages) < 13
    logs = [text for path, text in pages if path.startswith('journal/') and text.count('\n## ') >= LONG]
    assert 0.6 < statistics.fmean('\n## Checked\n' in text for text in logs) < 0.8


def test_the_sides_take_turns_and_change_places():
    told = []
    trial = Trial(Side(lambda: told.append('a'), lambda: told.append('ready')), Side(lambda: told.append('b')))
    ours, floor = take_turns(trial, 2)
    assert told == ['b', 'ready', 'a', 'ready', 'a', 'b', 'b', 'ready', 'a']  # the first round only warms up
    assert len(ours.wall) == len(floor.wall) == len(ours.cpu) == 2


def test_a_row_is_held_only_with_its_ratio_and_its_counters():
    def row(most, counter):
        trial = Trial(Side(lambda: sum(range(20_000))), Side(lambda: sum(range(20_000))), lambda _: {'right': counter})
        return Row('r', 'o', 'f', most, 'things', (1,), 1, lambda lab, size: trial, at_least={'right': 1})

    assert measure(row(50, 1), None, 1).held
    assert not measure(row(50, 0), None, 1).held
    assert not measure(row(0.001, 1), None, 1).held


@pytest.mark.parametrize('row', [r for r in ROWS if r.name != 'filtered'], ids=lambda r: r.name)
def test_a_row_runs_at_a_tiny_size(row, lab):
    result = measure(row, lab, TINY.get(row.name, 12), rounds=1)
    assert result.ours > 0 and result.floor > 0 and result.low <= result.ratio <= result.high
    for name in set(row.at_least) - {'MB_per_s'}:
        assert result.counters[name] >= row.at_least[name]
    if row.name == 'noop':
        assert result.counters['embed_calls'] == 0
    if row.name == 'one-changed':
        assert result.counters['changed_texts'] == 1


@pytest.mark.slow
def test_the_filtered_row_runs_where_there_is_a_graph(lab):
    result = measure(next(r for r in ROWS if r.name == 'filtered'), lab, TINY['filtered'], rounds=1)
    assert result.counters['recall'] >= 0.99


def test_results_go_into_a_folder_as_json_and_as_a_table(tmp_path, capsys):
    assert bench.main(['host-tags', '--quick', '--sizes', '10', '40', '--into', str(tmp_path / 'out')]) == 0
    data = json.loads((tmp_path / 'out/results.json').read_text())
    assert [r['size'] for r in data['results']] == [10, 40]
    assert {'cpu', 'cores', 'load_at_start', 'load_at_end', 'python', 'postgres'} <= set(data['machine'])
    text = (tmp_path / 'out/README.md').read_text()
    assert '| host-tags | 40 names |' in text and 'grows with size^' in text
    assert '| host-tags | 10 names |' in capsys.readouterr().out


def test_growth_is_the_exponent_of_the_size():
    trial = Trial(Side(lambda: None), Side(lambda: None))
    row = Row('r', 'o', 'f', 1, 'things', (1,), 1, lambda lab, size: trial)
    one = measure(row, None, 10, rounds=1)
    assert growth([one]) is None
    assert (
        growth(
            [one.__class__(**{**vars(one), 'ours': 1.0}), one.__class__(**{**vars(one), 'size': 1000, 'ours': 10.0})]
        )
        == 0.5
    )


def test_the_rows_are_listed_and_a_wrong_name_gets_the_nearest(capsys):
    assert bench.main(['--list']) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == [row.name for row in ROWS]
    with pytest.raises(SystemExit, match="did you mean 'noop'"):
        bench.main(['nop'])
