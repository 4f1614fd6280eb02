"The benchmark works: its record is the same for the same seed and shaped as it says, and the cheap rows run at a tiny size."

import json
import statistics
import sys
from collections import Counter
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / 'tools'))

import bench
import bench_record
from bench_lab import LEAN, LEAN_FROM, Lab
from bench_peer import Fts5
from bench_record import AREA, LONG, Pages, change_page, generator, make_record
from bench_rounds import Goal, Result, Row, Side, Skipped, Trial, family, growth, measure, server_processor, take_turns
from bench_rows import JUDGED, ROWS
from bench_sections import DIM, Sections

from merlin.testing import run_git

TINY = {'redaction': 5, 'redaction-hostile': 1}
TRIED = ('noop', 'one-changed', 'rebuild', 'exact', 'commit-dates', 'redaction', 'redaction-hostile', 'host-tags')


@pytest.fixture(scope='module')
def lab(tmp_path_factory):
    "One for all rows of a worker; its database is the embedded one of merlin, and goes with it."
    with ExitStack() as stack:
        yield Lab(stack)


def trial(ours=lambda: sum(range(20_000)), floor=lambda: sum(range(20_000)), **counters):
    return Trial(Side(ours), Side(floor), lambda *times: counters)


def row(most=50.0, made=None, **how):
    return Row('r', 'o', 'f', most, 'things', (1,), 1, lambda lab, size: made or trial(right=1), **how)


def test_the_same_seed_gives_the_same_commit_and_another_seed_another(tmp_path):
    first, again, other = (make_record(tmp_path / str(n), 15, seed=seed) for n, seed in enumerate((7, 7, 8)))
    assert first == again != other
    assert first == '2fdd8fe971a87341710fa71cf717bf071195f8b7', (
        'a change of the generator makes older figures incomparable: say so in docs'
    )
    assert generator() == first[:8]  # what a kept record is known by
    large = (bench_record.LATER, bench_record.CUT, bench_record.AREA)
    assert large == (20_000, 1_040, 800), 'shapes large records alone: another name for the generator is due as well'


def test_a_record_has_its_files_and_a_deep_history(tmp_path):
    make_record(tmp_path / 'r', 25, depth=3)
    paths = run_git(tmp_path / 'r', 'ls-tree', '-r', '--name-only', 'HEAD').splitlines()
    assert len(paths) == 25 and all(path.endswith('.md') for path in paths)
    assert run_git(tmp_path / 'r', 'rev-list', '--count', 'HEAD') == str(3 + 3 * 25)
    assert run_git(tmp_path / 'r', 'fsck', '--strict') == ''


def test_in_a_large_record_a_commit_writes_on_several_pages_of_a_folder_and_cut_ones_get_no_heading(monkeypatch):
    monkeypatch.setattr(bench_record, 'LATER', 10)
    made = list(bench_record.commits(30, 2, 7, LEAN))
    later = made[3:]
    assert len(later) == 10 and max(map(len, later)) == 6
    first = {path: text for commit in made[:3] for path, text in commit.items()}
    assert all(
        text.startswith(first[path]) and text.count('\n## ') == first[path].count('\n## ')
        for path, text in later[0].items()
    )


def test_no_folder_gets_wide():
    made = Pages()
    folders = Counter(made.name('runbooks', n)[0].rpartition('/')[0] for n in range(0, 50_000, 4))
    assert max(folders.values()) == AREA // 4 and len(folders) == 63


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


def test_pages_of_a_large_record_are_cut():
    made = Pages(most=LEAN)
    texts = [made.page(n)[1] for n in range(200)]
    assert max(map(len, texts)) < 2 * LEAN and 1 <= statistics.fmean(text.count('\n## ') for text in texts) < 2
    assert LEAN_FROM <= 50_000


def test_made_up_vectors_are_spread_as_real_ones_are():
    np = pytest.importorskip('numpy')
    maker, again = Sections(), Sections()
    vectors = np.array([maker.vector() for _ in range(600)])
    assert vectors.shape == (600, DIM) and np.allclose(vectors @ vectors.T, (vectors @ vectors.T).T)
    assert np.array_equal(vectors[0], np.array(again.vector()))
    variance = np.linalg.eigvalsh(np.cov(vectors.T))
    assert 40 < variance.sum() ** 2 / (variance**2).sum() < 80  # effective dimensions; 68 in a public record
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)


def test_the_sides_take_turns_and_change_places():
    told = []
    both = Trial(Side(lambda: told.append('a'), lambda: told.append('ready')), Side(lambda: told.append('b')))
    ours, floor = take_turns(both, 2)
    assert told == ['b', 'ready', 'a', 'ready', 'a', 'b', 'b', 'ready', 'a']  # the first round only warms up
    assert len(ours.wall) == len(floor.wall) == len(ours.cpu) == 2


def test_a_row_is_held_only_with_its_ratio_and_its_counters():
    goals = (Goal('right', least=1),)
    assert measure(row(goals=goals), None, 1).held is True
    assert measure(row(made=trial(right=0), goals=goals), None, 1).held is False
    assert measure(row(most=0.001, goals=goals), None, 1).held is False
    assert measure(row(most=None), None, 1).held is None
    assert measure(row(most=None, goals=goals), None, 1).held is True


def test_a_goal_may_end_at_a_size_and_says_itself_in_words():
    goal = Goal('p95_ms', most=100, up_to=50)
    assert row(most=None, goals=(goal,)).goal(50) == 'p95_ms ≤ 100' and row(most=None, goals=(goal,)).goal(51) == ''
    assert measure(row(most=None, made=trial(p95_ms=200), goals=(goal,)), None, 51).held is None
    assert str(Goal('n', least=1, most=1)) == 'n 1'


def test_a_row_that_tells_its_own_figure_is_judged_by_that():
    memory = {'told': 'MiB', 'plus': 100, 'warm': False, 'rounds': 1}
    result = measure(row(1.0, trial(lambda: 350, lambda: 260), **memory), None, 1)
    assert (result.unit, result.ours, result.floor, result.held, result.cpu) == ('MiB', 350, 260, True, None)
    assert measure(row(1.0, trial(lambda: 361, lambda: 260), **memory), None, 1).held is False
    assert row(1.0, **memory).goal(1) == '≤ 1.00 + 100 MiB'


def test_the_processor_time_of_a_database_server_is_counted(lab):
    if sys.platform != 'linux':
        pytest.skip('read from /proc')
    index = lab.index(12)
    before = server_processor(index.server)
    index.conn.execute('select count(*) from generate_series(1, 1000000)')
    assert server_processor(index.server) > before + 0.02
    assert index.server in family(index.server) and len(family(index.server)) > 1


@pytest.mark.parametrize('row', [row for row in ROWS if row.name in TRIED], ids=lambda row: row.name)
def test_a_row_runs_at_a_tiny_size(row, lab):
    result = measure(replace(row, warm=False), lab, TINY.get(row.name, 12), rounds=1)
    assert result.ours > 0 and result.floor > 0 and result.low <= result.ratio <= result.high
    for goal in row.goals:
        assert goal.counter == 'MB_per_cpu_s' or goal.held(result.size, result.counters)


def test_a_kept_folder_is_used_again_and_its_record_set_back(tmp_path, lab):
    kept, folder = lab.record(12), tmp_path / 'kept'
    with ExitStack() as stack:
        first = Lab(stack, folder).copy(kept, 'own')
        with pytest.raises(SystemExit, match='another run works in'):
            Lab(stack, folder).copy(kept, 'own')
    change_page(first, '## More\n\nText.')
    with ExitStack() as stack:
        again = Lab(stack, folder).copy(kept, 'own')
    assert again == first and run_git(again, 'rev-parse', 'HEAD') == run_git(kept, 'rev-parse', 'HEAD')


def test_results_go_into_a_folder_as_json_and_as_a_table(tmp_path, capsys):
    assert bench.main(['host-tags', '--quick', '--sizes', '10', '40', '--into', str(tmp_path / 'out')]) == 0
    data = json.loads((tmp_path / 'out/results.json').read_text())
    assert [r['size'] for r in data['results']] == [10, 40]
    assert {'cpu', 'cores', 'load_at_start', 'load_at_end', 'python', 'postgres'} <= set(data['machine'])
    text = (tmp_path / 'out/README.md').read_text()
    assert '| host-tags | 40 names |' in text and 'grows with size^' in text
    assert '| host-tags | 10 names |' in capsys.readouterr().out


def test_a_row_that_cannot_run_or_breaks_is_named_with_its_reason_and_the_others_go_on(tmp_path, capsys):
    def made(lab, size):
        raise Skipped('no network') if size == 1 else SystemExit('not the answer')

    run = bench.Run(tmp_path, [Row('r', 'o', 'f', 1.0, 'things', (1,), 1, made)], {})
    run.measure(run.rows[0], None, 1, None)
    run.measure(run.rows[0], None, 2_000, None)
    assert run.results == [] and capsys.readouterr().out == 'r is left out: no network\nr broke: not the answer\n'
    text = (tmp_path / 'README.md').read_text()
    assert '**r** was left out: no network' in text and '**r 2,000 broke**: SystemExit: not the answer' in text


def test_a_peer_finds_a_text_by_its_words(tmp_path):
    Fts5(tmp_path).build(['the disk is full', 'renew the certificate'], [])
    assert Fts5(tmp_path).ask('certificates', []) == [1]


def at(size, ours):
    return Result('r', size, 's', ours, 1.0, 1.0, 1.0, 1.0, 1.0, 1, '', True, {}, 0.0, 0.0)


def test_growth_is_the_exponent_of_the_size_up_to_a_size():
    assert growth([at(10, 1.0)]) is None
    assert growth([at(10, 1.0), at(1000, 10.0)]) == 0.5
    assert growth([at(10, 1.0), at(1000, 10.0), at(10_000, 10_000.0)], up_to=1000) == 0.5


def test_a_row_that_grows_too_much_is_missed_though_every_ratio_is_held(tmp_path):
    run = bench.Run(tmp_path, [row(most=None, slope=0.1), replace(row(most=None), name='other')], {})
    run.results += [replace(at(10, 1.0), held=None), replace(at(1000, 10.0), held=None)]
    assert run.missed() == ['r grows with size^0.50']


def test_the_rows_are_listed_and_a_wrong_name_gets_the_nearest(capsys):
    assert bench.main(['--list']) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == [row.name for row in ROWS]
    assert bench.chosen(['peers']) == [row for row in ROWS if row not in JUDGED]
    with pytest.raises(SystemExit, match="did you mean 'noop'"):
        bench.main(['nop'])
