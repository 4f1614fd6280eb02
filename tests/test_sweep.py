"""A sweep says what separate evaluations say, changes nothing without a reason, and writes lines that a layout takes."""

import json
import random
import re
import secrets
import sys
from dataclasses import astuple, replace
from datetime import date
from pathlib import Path
from time import perf_counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from merlin.cases import Answer, Case, load_cases
from merlin.choice import best, choose, decide, fragment, idle_axes, noise_warning, setting_of, verdict
from merlin.config import RepoConfig, load_config
from merlin.errors import ConfigError, FailedError
from merlin.evaluate import evaluate
from merlin.evaluate import parser as eval_parser
from merlin.figures import FIGURES, interval, worth
from merlin.ingest import ingest
from merlin.judging import Fetched, Outcome, Run, fetch_cases, judge, summary
from merlin.legs import Facts, Found
from merlin.rank import NEAR_TIE
from merlin.search import Candidates, rank_candidates
from merlin.settings import AXES, Setting, apply, grid, left_out, rejudge, shipped
from merlin.status import not_fresh
from merlin.store import read_meta, session, try_lock, write_meta
from merlin.sweep import fetch_halves, main, sweep
from merlin.testing import WordEmbedder, drop_schema, fixture_record, scratch

ROOT = Path(__file__).resolve().parents[1]
CASES = ROOT / 'nbs/eval/cases/fixture.yaml'
TODAY = date(2030, 2, 1)
PLAIN = load_config({})
PRESENT = shipped(PLAIN)
TOY = Fetched(Case('a question', (Answer('a.md'),)), 'a question', None, frozenset(), frozenset(), 10, 0.1, 0.1)


@pytest.fixture(scope='module')
def config(backend, tmp_path_factory):
    "The fixture record."
    record = fixture_record(tmp_path_factory.mktemp('sweep') / 'record')
    database = replace(backend, schema=f'merlin_test_{secrets.token_hex(6)}')
    config = replace(load_config({}), repos=(RepoConfig('', record),), database=database)
    ingest(config, embed=WordEmbedder())
    yield config
    drop_schema(config)


@pytest.fixture(scope='module')
def halves(config):
    with session(config.database) as conn:
        return fetch_halves(conn, config, load_cases(CASES), WordEmbedder(), 10, TODAY)


@pytest.fixture
def command(config, monkeypatch, capsys):
    "merlin sweep in this process, with the embedder that counts words: (exit code, stdout, stderr)."
    monkeypatch.setenv('MERLIN_HOME', str(config.database.home))
    monkeypatch.setenv('MERLIN_DB_SCHEMA', config.database.schema)
    if config.database.url:
        monkeypatch.setenv('DATABASE_URL', config.database.url)
    monkeypatch.setattr('merlin.search.query_embedder', lambda _: WordEmbedder())
    monkeypatch.setattr(
        'merlin.sweep.not_fresh', lambda *_: []
    )  # of another embedder, and of a repo that is not configured

    def run(*argv):
        code = main([str(a) for a in argv])
        return code, *capsys.readouterr()

    return run


def layout_text(setting: Setting) -> str:
    "A setting as a layout file."
    boost = {kind: round(factor**setting.boost, 4) for kind, factor in PLAIN.boost.items()}
    legs = [f'{leg} = {getattr(setting, leg)}' for leg in ('vector', 'fulltext', 'bm25')]
    rows = ['[boost]', *(f'{kind} = {factor}' for kind, factor in boost.items()), '[search]', *legs]
    return '\n'.join([*rows, '[recency]', f'weight = {setting.recency}', '[stale]', f'factor = {setting.stale}', ''])


OTHERS = [
    replace(PRESENT, boost=0.0, recency=0.0, stale=1.0),
    replace(PRESENT, boost=2.0, recency=0.5),
    replace(PRESENT, stale=0.0, bm25=0.0),
    replace(PRESENT, vector=0.0, boost=1.5),
    replace(PRESENT, fulltext=0.0, bm25=2.0, recency=1.0),
    replace(PRESENT, vector=0.0, bm25=0.0),
]


def test_every_row_is_what_a_separate_evaluation_says_under_that_layout(config, halves, tmp_path):
    tried = [PRESENT, *OTHERS, OTHERS[0]]
    frame = sweep(halves.tuning, config, tried, TODAY)
    for n, setting in enumerate(tried):
        (path := tmp_path / f'{n}.toml').write_text(layout_text(setting))
        read = load_config({'MERLIN_CONFIG': str(path), 'MERLIN_HOME': str(tmp_path)})
        same = replace(read, repos=config.repos, database=config.database)
        args = eval_parser().parse_args([str(CASES), '--half', 'tune', '--json'])
        run = json.loads(evaluate(args, same, WordEmbedder(), TODAY))
        assert frame['cases'][n] == run['summary']['cases']
        for name in FIGURES:
            assert frame[name][n] == run['summary'][name], (setting, name)
            ends = (frame[f'{name} low'][n], frame[f'{name} high'][n])
            assert ends == pytest.approx(run['summary']['intervals'][name])
        ranks = [o.rank for o in rejudge(halves.tuning, config, setting, TODAY).outcomes]
        assert ranks == [case['rank'] for case in run['cases']]
    assert frame['mrr'].nunique() >= 4 and frame['mrr'][1] == frame['mrr'][len(tried) - 1]


def test_the_table_has_its_columns_and_the_present_setting_first(config, halves):
    frame = sweep(halves.tuning, config, grid(config), TODAY)
    ends = [f'{name} {end}' for name in FIGURES for end in ('low', 'high')]
    more = ['better', 'worse', 'p', 'gain', 'gain low', 'gain high', 'p all', 'outcome']
    assert list(frame.columns) == [*AXES, 'cases', *FIGURES, *ends, *more]
    assert list(frame.index) == list(range(60)) and setting_of(frame, 0) == shipped(config)
    assert list(frame.loc[0, ['better', 'worse', 'p', 'gain', 'gain low', 'gain high']]) == [0, 0, 1, 0, 0, 0]
    for name in FIGURES:
        assert (frame[f'{name} low'] <= frame[name]).all() and (frame[name] <= frame[f'{name} high']).all()


def test_near_tie_reaches_which_section_is_shown(config, halves):
    shown = []
    for near_tie in (0.0, NEAR_TIE, 0.9):
        other = replace(config, search=replace(config.search, near_tie=near_tie))
        rankings = [rank_candidates(f.candidates, other, TODAY) for f in halves.tuning]
        shown.append([[r.chunk for r in ranking.ranked] for ranking in rankings])
    assert shown[0] != shown[1] != shown[2]
    assert shown[1] == [[r.chunk for r in rank_candidates(f.candidates, config, TODAY).ranked] for f in halves.tuning]
    wide = rejudge(halves.tuning, config, replace(PRESENT, near_tie=0.9), TODAY)
    assert wide == judge(halves.tuning, other, TODAY)


FACTS = st.builds(
    lambda document, kind, when, stale: (document, kind, when, stale),
    st.integers(0, 6),
    st.sampled_from(['host', 'journal', 'page']),
    st.none() | st.dates(date(2029, 1, 1), date(2030, 3, 1)),
    st.booleans(),
)
SCORES = st.lists(st.floats(0.01, 1), max_size=12)
WEIGHT = st.sampled_from([0.0, 0.5, 1.0, 2.0])
TRIED = st.lists(
    st.builds(Setting, WEIGHT, WEIGHT, st.sampled_from([0.0, 0.5, 1.0]), WEIGHT, WEIGHT, WEIGHT, st.just(0.1)),
    min_size=2,
    max_size=8,
)


@settings(derandomize=True, deadline=None, max_examples=60)
@given(st.lists(FACTS, min_size=12, max_size=12), st.lists(SCORES, min_size=3, max_size=3), TRIED, st.integers(1, 9))
def test_what_candidates_keep_and_a_limit_change_no_ranking(rows, scores, tried, k):
    facts = {
        n: Facts(n, doc, f'{kind}/{doc}.md', '', kind, ('Page', f'Part {n % 5}'), n, when, stale)
        for n, (doc, kind, when, stale) in enumerate(rows)
    }
    legs = {
        name: tuple(Found((n * 5 + shift) % 12, score) for n, score in enumerate(sorted(found, reverse=True)))
        for shift, (name, found) in enumerate(zip(('vector', 'fulltext', 'bm25'), scores, strict=True))
    }
    base = replace(PLAIN, stale=replace(PLAIN.stale, inherit=('journal',)))
    kept = Candidates(legs, facts, 12, 0.3, 'test')
    for setting in [*tried, *tried]:
        config = apply(base, setting)
        fresh = rank_candidates(Candidates(legs, facts, 12, 0.3, 'test'), config, TODAY)
        assert rank_candidates(kept, config, TODAY) == fresh
        assert rank_candidates(kept, config, TODAY, k=k).ranked == fresh.ranked[:k]


def test_other_legs_forget_what_was_kept():
    facts = {n: Facts(n, n, f'{n}.md', '', 'page', ('A',), 0, None, False) for n in (1, 2)}
    first = Candidates({'vector': (Found(1, 0.9), Found(2, 0.1))}, facts, 50, 0.3, 'test')
    rank_candidates(first, PLAIN, TODAY)
    turned = replace(first, legs={'vector': (Found(2, 0.9), Found(1, 0.1))})
    assert rank_candidates(turned, PLAIN, TODAY).ranked[0].chunk == 2 and first == replace(first)


def test_the_holdout_never_reaches_the_table(config, halves):
    tried = [PRESENT, *OTHERS]
    with pytest.raises(ConfigError, match='holdout'):
        sweep([*halves.tuning, halves.holdout[0]], config, tried, TODAY)
    frame = sweep(halves.tuning, config, tried, TODAY)
    broken = [replace(f, case=replace(f.case, expect=(Answer('no/such.md'),))) for f in halves.holdout]
    seen, blind = (decide(frame, halves.tuning, h, config, TODAY) for h in (halves.holdout, broken))
    assert seen.setting == blind.setting and seen.tune == blind.tune and blind.holdout['chosen']['mrr'] == 0


def test_questions_without_an_answer_are_left_out_and_alone_they_are_refused(config, halves):
    frame = sweep(halves.tuning, config, [PRESENT], TODAY)
    assert frame['cases'][0] == sum(bool(f.case.expect) for f in halves.tuning) < len(halves.tuning)
    with pytest.raises(ConfigError, match='no case to tune on; a sweep needs questions with an answer'):
        sweep([f for f in halves.tuning if not f.case.expect], config, [PRESENT], TODAY)


def spoiled(config):
    "A layout that puts the wrong things first."
    types = {'host': 0.1, 'runbook': 0.1, 'memory': 0.1, 'page': 0.1, 'planning': 0.1, 'doc': 4.0, 'skill': 4.0}
    return replace(config, boost=types | {'memory-index': 4.0})


def test_a_layout_that_harms_is_found_and_its_repair_is_written_down(config, halves, tmp_path):
    bad = spoiled(config)
    frame = sweep(halves.tuning, bad, grid(bad, boost=[0, 0.5, 1], recency=[0.05, 0.1]), TODAY)
    choice = decide(frame, halves.tuning, halves.holdout, bad, TODAY)
    row = choose(frame)
    assert row == best(frame) and frame['p'][row] <= 0.05 and frame['gain low'][row] > 0
    assert choice.setting.boost < 1 and choice.present.boost == 1 and not choice.noise
    assert choice.tune['chosen']['mrr'] == frame['mrr'][row] > choice.tune['present']['mrr']
    assert choice.holdout['chosen']['mrr'] > choice.holdout['present']['mrr']
    assert not any(text.startswith(('within noise', 'contradicted')) for text in choice.warnings)
    (path := tmp_path / 'merlin.toml').write_text(fragment(choice, bad))
    read = load_config({'MERLIN_CONFIG': str(path), 'MERLIN_HOME': str(tmp_path)})
    repaired = replace(bad, boost=read.boost, recency=read.recency, stale=read.stale, search=read.search)
    assert repaired == apply(bad, choice.setting)
    assert summary(judge(halves.tuning, repaired, TODAY)) == choice.tune['chosen']


def test_a_gain_that_is_noise_changes_nothing_and_says_so(config, halves):
    frame = sweep(halves.tuning, config, grid(config, boost=[0, 0.25, 0.5, 1, 2], bm25=[0, 1, 2]), TODAY)
    assert best(frame) != 0 and frame['p'][best(frame)] > 0.05, 'the premise of this test'
    choice = decide(frame, halves.tuning, [], config, TODAY)
    assert choice.noise and choice.setting == choice.present and choice.holdout is None
    kinds = [text.partition(':')[0] for text in choice.warnings]
    assert kinds == ['within noise', 'few cases', 'no holdout']
    assert '[' not in fragment(choice, config)


def test_what_the_holdout_says_against_a_choice_is_told(config, halves):
    bad = spoiled(config)
    frame = sweep(halves.tuning, bad, grid(bad, boost=[0, 1]), TODAY)
    firsts = [o.top[0][0] for o in rejudge(halves.holdout, bad, setting_of(frame, 0), TODAY).outcomes]
    contrary = [
        replace(f, case=replace(f.case, expect=(Answer(path),))) for f, path in zip(halves.holdout, firsts, strict=True)
    ]
    blank = [replace(f, case=replace(f.case, expect=(Answer('no/such.md'),))) for f in halves.holdout]
    for held, says in ((halves.holdout, 'confirmed'), (contrary, 'contradicted'), (blank, 'unclear')):
        choice = decide(frame, halves.tuning, held, bad, TODAY)
        assert choice.holdout['verdict'] == verdict(choice.holdout) == says
        told = [w for w in choice.warnings if w.startswith(('contradicted', 'unclear'))]
        assert [w.split(':')[0] for w in told] == ([] if says == 'confirmed' else [says])


def test_a_near_tie_that_wins_is_a_line_of_the_layout(config, halves, tmp_path):
    chosen = replace(PRESENT, near_tie=0.2, stale=0.25)
    frame = sweep(halves.tuning, config, [PRESENT, chosen], TODAY)
    choice = replace(decide(frame, halves.tuning, [], config, TODAY), setting=chosen)
    (path := tmp_path / 'merlin.toml').write_text(text := fragment(choice, config))
    assert '\n[search]\nnear_tie = 0.2\n' in text and '\n[boost]' not in text
    written = load_config({'MERLIN_CONFIG': str(path)})
    assert (written.stale.factor, written.search.near_tie) == (0.25, 0.2)


def test_the_command_prints_table_choice_doubts_and_lines(command):
    code, out, err = command(CASES)
    lines = out.splitlines()
    head = r'60 settings, \d+ outcomes other than the present one, 16 cases to tune on'
    assert (code, err) == (0, '') and re.fullmatch(head, lines[0])
    assert lines[1].split()[:3] == ['boost', 'recency', 'stale'] and sum(line[1:2] == '→' for line in lines) == 1
    assert any(line.startswith('holdout: 14 cases') for line in lines)
    assert any(line.startswith('warning: few cases: 16') for line in lines) and lines[-1].startswith(('#', 'weight'))
    code, out, _ = command(CASES, '--json', '--bm25', '0,1,2')
    report = json.loads(out)
    assert code == 0 and [row['bm25'] for row in report['rows']] == [1, 0, 2]
    assert report['choice']['present'] == dict(zip(AXES, astuple(PRESENT), strict=True))
    assert report['choice']['tune']['present']['mrr'] == report['rows'][0]['mrr']


def test_a_report_is_written_with_what_was_found(command, monkeypatch, tmp_path):
    code, _, err = command(CASES, '--boost', '1,2', '--today', '2030-02-01', '--out', tmp_path / 'first')
    page = (tmp_path / 'first/report.md').read_text()
    assert (code, err) == (0, '') and 'merlin sweep CASES.yaml --boost 1,2 --today 2030-02-01 --out FOLDER' in page
    seen = []
    monkeypatch.setattr('merlin.report.write_report', lambda *args: seen.append(args))
    assert command(CASES, '--boost', '1,2', '--out', tmp_path / 'second')[0] == 0
    folder, got, frame, choice, words, cases = seen[0]
    assert folder == tmp_path / 'second' and (len(got.tuning), len(got.holdout), len(frame)) == (21, 19, 2)
    assert words[-2:] == ['--today', date.today().isoformat()] and cases == CASES and choice.setting
    assert got.meta['counts'] and got.today == date.today()


def test_the_printed_command_makes_the_same_report_on_another_day(command, tmp_path):
    made = []
    for name in ('first', 'second'):
        argv = [CASES, '--recency', '0,1', '--today', '2030-01-20', '--out', tmp_path / name / 'report']
        assert command(*argv)[0] == 0
        made.append({p.name: p.read_bytes() for p in sorted((tmp_path / name / 'report').iterdir())})
    assert made[0] == made[1]


def test_a_folder_for_the_report_is_looked_at_before_the_work(command, monkeypatch, tmp_path):
    monkeypatch.setattr('merlin.sweep.ask', lambda *_: pytest.fail('asked first'))
    (tmp_path / 'notes').write_text('mine')
    code, out, err = command(CASES, '--boost', '0,1', '--out', tmp_path)
    assert (code, out) == (3, '') and 'holds other things than a report' in err
    code, out, err = command(CASES, '--boost', '0,1', '--out', tmp_path / 'notes/report')
    assert (code, out) == (1, '') and 'cannot be written: Not a directory; name another folder' in err


@pytest.mark.parametrize(
    ('argv', 'says'),
    [
        (['--stale', '0.5,1.5'], '--stale: 1.5 is out of range; 0 to 1'),
        (['--near-tie', '-1'], '--near-tie: -1.0 is out of range; 0 to 1'),
        (['--boost', 'nan'], '--boost: nan is out of range; 0 to 10'),
        (['--boost', '10'], 'boost to the power of 10: boost.host: 13.7858 is out of range; 0 to 10'),
        (['--recency', '0,a'], "--recency: '0,a' is no list of numbers; write it like --recency 0,0.5,1"),
        (['--recency', ','], '--recency: no value to try; write it like --recency 0,0.5,1'),
        (['-k', '51'], 'k is 51; use 1 to 50'),
        (['--today', 'monday'], "--today: 'monday' is no day; write it like 2030-02-01"),
        (
            ['--vector', '0', '--fulltext', '0', '--bm25', '1,2'],
            'every combination has vector 0 and fulltext 0; an exact search would find nothing; '
            'try another value of --vector or --fulltext than 0',
        ),
        (
            ['--boost', ','.join(str(n / 50) for n in range(50)), '--bm25', ','.join(str(n / 50) for n in range(50))],
            '2,500 settings; try at most 2,000: leave out values or axes',
        ),
    ],
)
def test_a_wrong_argument_is_explained_in_one_line(command, argv, says):
    assert command(CASES, *argv) == (2, '', f'merlin sweep: {says}\n')


def test_halves_that_are_empty_are_explained(command, tmp_path):
    path = tmp_path / 'cases.yaml'
    case = {'q': 'restore the dump', 'expect': [{'path': 'runbooks/postgres/restore.md'}]}
    path.write_text(json.dumps({'cases': [case | {'holdout': True}]}))
    code, out, err = command(path, '--boost', '0,1')
    assert (code, out) == (2, '') and err.count('\n') == 1 and "no case is in the half 'tune'" in err
    path.write_text(json.dumps({'cases': [case | {'expect': []}]}))
    code, out, err = command(path, '--boost', '0,1')
    assert (code, out) == (2, '') and err.count('\n') == 1 and 'no case to tune on' in err
    path.write_text(json.dumps({'cases': [case]}))
    code, out, err = command(path, '--boost', '0,1')
    assert (code, err) == (0, '') and 'holdout: none' in out and 'warning: no holdout: ' in out


def test_an_index_or_a_pandas_that_is_missing_is_explained(command, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, 'pandas', None)
        code, out, err = command(CASES, '--boost', '0,1')
    assert (code, out) == (2, '') and err.startswith('merlin sweep: not installed: pandas; run: ')
    assert "-m pip install 'pandas>=" in err and err.count('\n') == 1
    monkeypatch.setenv('MERLIN_DB_SCHEMA', 'merlin_test_nothing')
    assert 'nothing is indexed yet' in command(CASES)[2]


def test_a_secret_in_a_question_is_not_shown(command, tmp_path):
    token = 'ghp_' + 'aB3' * 12
    path = tmp_path / 'cases.yaml'
    path.write_text(json.dumps({'cases': [{'q': f'what is {token}?', 'expect': [{'path': f'{token}.md'}]}]}))
    for more in ((), ('--json',)):
        code, out, err = command(path, '--boost', '0,1', *more)
        assert code == 0 and token not in out + err


def test_questions_that_lost_a_leg_are_told(command, monkeypatch):
    class Once(WordEmbedder):
        def embed_query(self, text):
            self.calls.append(text)
            if len(self.calls) == 3:
                raise FailedError('the embedding server does not answer')
            return super().embed_query(text)

    embed = Once()
    monkeypatch.setattr('merlin.search.query_embedder', lambda _: embed)
    code, _, err = command(CASES, '--boost', '0,1')
    said = 'without the vector leg: the embedding server does not answer'
    assert (code, err) == (0, f'warning: degraded: 1 of 40 questions, {said}\n')


def test_combinations_that_no_layout_may_hold_are_counted(command):
    assert left_out(PLAIN, vector=[0, 1], fulltext=[0, 1], bm25=[1, 2]) == 2 and left_out(PLAIN) == 0
    code, out, err = command(CASES, '--vector', '0,1', '--fulltext', '0,1', '--bm25', '1,2')
    said = 'warning: 2 combinations left out: vector 0 with fulltext 0, an exact search would find nothing\n'
    assert (code, err) == (0, said) and out.startswith('6 settings, ')


def made_up(*rows):
    "The frame of made-up ranks, the present ones first: a sweep over fetched questions of which only the rank is known."
    questions = [replace(TOY, case=replace(TOY.case, q=f'question {n}')) for n in range(len(rows[0]))]
    tried = [replace(PRESENT, boost=float(n)) for n in range(len(rows))]

    def ranks(fetched, config, setting, today):
        outcomes = zip(fetched, rows[int(setting.boost)], strict=True)
        return Run(tuple(Outcome(f.case, f.q, r, r, (), (), ()) for f, r in outcomes), False)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr('merlin.sweep.rejudge', ranks)
        return sweep(questions, PLAIN, tried, TODAY)


def test_a_setting_that_makes_more_cases_worse_than_better_is_not_chosen():
    frame = made_up([None] * 8 + [9] * 22, [1] * 8 + [10] * 22)
    assert (frame['better'][1], frame['worse'][1]) == (8, 22) and frame['p'][1] < 0.02 and frame['gain low'][1] > 0.05
    assert choose(frame) == 0 and best(frame) == 1 and 'within noise' in noise_warning(frame)


def test_sweeps_of_pure_chance_choose_at_most_once_in_twenty():
    alone, chosen, pool = 0, 0, (1, 1, 1, 2, 3, None)
    for seed in range(40):
        rng = random.Random(seed)
        base = [rng.choice(pool) for _ in range(50)]
        frame = made_up(*([r if rng.random() < 0.7 else rng.choice(pool) for r in base] for _ in range(60)))
        passed = (frame['p'] <= 0.05) & (frame['gain low'] > 0) & (frame['better'] > frame['worse'])
        alone, chosen = alone + passed.any(), chosen + (choose(frame) != 0)
    assert alone >= 8, 'the premise: taken alone, rows of chance pass'
    assert chosen <= 5


def test_a_gain_that_is_real_is_chosen_among_many_that_are_not():
    rng = random.Random(3)
    base = [rng.choice((1, 1, 2, 3)) for _ in range(60)]
    noise = [[r if rng.random() < 0.8 else rng.choice((1, 1, 2, 3)) for r in base] for _ in range(40)]
    real = [1 if n % 2 else r for n, r in enumerate(base)]
    frame = made_up(base, *noise, real, real, real)
    assert choose(frame) == 41 and frame['p all'][41] < 0.01
    assert list(frame['outcome'][41:]) == [41] * 3 and frame['outcome'].nunique() == 42


def test_a_share_has_one_interval_wherever_it_is_told(config, halves):
    frame = sweep(halves.tuning, config, [PRESENT], TODAY)
    run = rejudge([f for f in halves.tuning if f.case.expect], config, PRESENT, TODAY)
    for name in FIGURES:
        ends = interval(name, [worth(o.rank)[name] for o in run.outcomes])
        assert (frame[f'{name} low'][0], frame[f'{name} high'][0]) == pytest.approx(ends)
        assert summary(run)['intervals'][name] == ends


class Writing(WordEmbedder):
    "An embedder under which an ingest ends while questions are asked, so many times."

    def __init__(self, config, times):
        super().__init__()
        self.config, self.times = config, times

    def embed_query(self, text):
        if self.times and len(self.calls) % 40 == 5:
            self.times -= 1
            with session(self.config.database) as conn:
                write_meta(conn, {'state': {'heads': {'': f'commit {self.times}'}}})
        self.calls.append(text)
        return super().embed_query(text)


@pytest.fixture
def restored(config):
    "The facts of the index, as they were afterwards."
    with session(config.database) as conn:
        kept = read_meta(conn)
        yield
        write_meta(conn, kept | {'running': kept.get('running')})


@pytest.mark.usefixtures('restored')
def test_questions_are_asked_about_one_state_of_the_index(config):
    cases = load_cases(CASES)
    with session(config.database) as conn:
        embed = Writing(config, 1)
        got = fetch_halves(conn, config, cases, embed, 10, TODAY)
        assert got.meta['state'] == {'heads': {'': 'commit 0'}} and len(embed.calls) >= 2 * len(cases)
        with pytest.raises(FailedError, match='written to while the questions were asked, 3 times; run merlin status'):
            fetch_halves(conn, config, cases, Writing(config, 9), 10, TODAY)


@pytest.mark.usefixtures('restored')
def test_an_ingest_at_work_is_waited_for_by_the_person(config):
    with session(config.database) as conn, session(config.database) as other:
        write_meta(conn, {'running': '2030-01-01T00:00:00+00:00'})
        fetch_halves(conn, config, load_cases(CASES)[:2], WordEmbedder(), 10, TODAY)  # it died long ago
        assert try_lock(other, config.database.schema)
        with pytest.raises(FailedError, match='no ingest is at work'):
            fetch_halves(conn, config, load_cases(CASES)[:2], WordEmbedder(), 10, TODAY)


@pytest.mark.slow
def test_fifty_settings_cost_at_most_two_passes_with_leg_weights_among_them_too(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, 'path', [str(ROOT / 'tools'), *sys.path])
    from bench_sweep import LEGS

    passes, sweeps = [], {'standard': [], 'legs': []}
    with scratch(fixture_record(tmp_path / 'record')) as config:
        ingest(config)
        cases = [c for c in load_cases(CASES) if c.expect and not c.holdout]
        grids = {'standard': grid(config)[:50], 'legs': grid(config, **LEGS)[:50]}
        with session(config.database) as conn:
            sweep(fetch_cases(conn, cases, config), config, grids['legs'][:2], TODAY)  # loads the model and pandas
            for _ in range(2):
                begun = perf_counter()
                fetched = fetch_cases(conn, cases, config)
                summary(judge(fetched, config, TODAY))
                passes.append(perf_counter() - begun)
                for name, tried in grids.items():
                    fresh = [replace(f, candidates=replace(f.candidates)) for f in fetched]  # without what they keep
                    begun = perf_counter()
                    sweep(fresh, config, tried, TODAY)
                    sweeps[name].append(perf_counter() - begun)
    assert max(map(min, sweeps.values())) <= 2 * min(passes), (sweeps, passes)


def test_an_index_that_is_not_fresh_is_told(command, monkeypatch, tmp_path):
    monkeypatch.setattr('merlin.sweep.not_fresh', not_fresh)
    case = {'q': 'restore the dump', 'expect': [{'path': 'runbooks/postgres/restore.md'}]}
    (tmp_path / 'cases.yaml').write_text(json.dumps({'cases': [case]}))
    code, _, err = command(tmp_path / 'cases.yaml')
    assert code == 0 and 'warning: what is measured is the index as it is: STALE' in err


def test_what_can_move_nothing_is_said_with_the_reason(halves, config):
    page = halves.tuning[0]
    facts = {c: replace(f, type='page', stale=False, date=date(2020, 1, 1)) for c, f in page.candidates.facts.items()}
    plain = replace(page, candidates=replace(page.candidates, facts=facts))
    said = idle_axes([plain], config, TODAY)
    assert [line.split()[0] for line in said] == ['boost', 'recency', 'stale']
    assert 'of type page, see layout.rules' in said[0] and f'{(TODAY - date(2020, 1, 1)).days} days old' in said[1]
    assert idle_axes(halves.tuning, config, TODAY) == []
