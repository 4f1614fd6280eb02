"""A sweep says what separate evaluations say, changes nothing without a reason, and writes lines that a layout takes."""

import json
import secrets
import sys
from dataclasses import astuple, replace
from datetime import date
from pathlib import Path
from time import perf_counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from merlin.cases import Answer, load_cases
from merlin.config import RepoConfig, load_config
from merlin.errors import ConfigError, FailedError
from merlin.evaluate import evaluate
from merlin.evaluate import parser as eval_parser
from merlin.figures import FIGURES
from merlin.ingest import ingest
from merlin.judging import fetch_cases, judge, summary
from merlin.legs import Facts, Found
from merlin.rank import NEAR_TIE
from merlin.search import Candidates, rank_candidates
from merlin.store import session
from merlin.sweep import (
    AXES,
    Setting,
    apply,
    best,
    choose,
    decide,
    fetch_halves,
    fragment,
    grid,
    main,
    rejudge,
    setting_of,
    shipped,
    sweep,
)
from merlin.testing import WordEmbedder, drop_schema, fixture_record, scratch

ROOT = Path(__file__).resolve().parents[1]
CASES = ROOT / 'nbs/eval/cases/fixture.yaml'
TODAY = date(2030, 2, 1)
PLAIN = load_config({})
PRESENT = shipped(PLAIN)


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
    return fetch_halves(config, load_cases(CASES), WordEmbedder(), 10, TODAY)


@pytest.fixture
def command(config, monkeypatch, capsys):
    "merlin sweep in this process, with the embedder that counts words: (exit code, stdout, stderr)."
    monkeypatch.setenv('MERLIN_HOME', str(config.database.home))
    monkeypatch.setenv('MERLIN_DB_SCHEMA', config.database.schema)
    if config.database.url:
        monkeypatch.setenv('DATABASE_URL', config.database.url)
    monkeypatch.setattr('merlin.search.query_embedder', lambda _: WordEmbedder())

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
    more = ['better', 'worse', 'p', 'gain', 'gain low', 'gain high']
    assert list(frame.columns) == [*AXES, 'cases', *FIGURES, *ends, *more]
    assert list(frame.index) == list(range(60)) and setting_of(frame, 0) == shipped(config)
    assert list(frame.loc[0, ['better', 'worse', 'p', 'gain', 'gain low', 'gain high']]) == [0, 0, 1, 0, 0, 0]
    for name in FIGURES:
        assert (frame[f'{name} low'] <= frame[name]).all() and (frame[name] <= frame[f'{name} high']).all()


def test_near_tie_reaches_which_section_is_shown(config, halves):
    shown = []
    for near_tie in (0.0, NEAR_TIE, 0.9):
        rankings = [rank_candidates(f.candidates, config, TODAY, near_tie) for f in halves.tuning]
        shown.append([[r.chunk for r in ranking.ranked] for ranking in rankings])
    assert shown[0] != shown[1] != shown[2]
    assert shown[1] == [[r.chunk for r in rank_candidates(f.candidates, config, TODAY).ranked] for f in halves.tuning]
    wide = rejudge(halves.tuning, config, replace(PRESENT, near_tie=0.9), TODAY)
    assert wide == judge(halves.tuning, config, TODAY, 0.9)


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
    assert not any(text.startswith(('within noise', 'not confirmed')) for text in choice.warnings)
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


def test_what_the_holdout_does_not_confirm_is_said(config, halves):
    bad = spoiled(config)
    frame = sweep(halves.tuning, bad, grid(bad, boost=[0, 1]), TODAY)
    contrary = [replace(f, case=replace(f.case, expect=(Answer('no/such.md'),))) for f in halves.holdout]
    choice = decide(frame, halves.tuning, contrary, bad, TODAY)
    assert any(text.startswith('not confirmed: ') for text in choice.warnings)


def test_a_near_tie_that_wins_is_no_line_of_the_layout(config, halves, tmp_path):
    chosen = replace(PRESENT, near_tie=0.2, stale=0.25)
    frame = sweep(halves.tuning, config, [PRESENT, chosen], TODAY)
    choice = replace(decide(frame, halves.tuning, [], config, TODAY), setting=chosen)
    (path := tmp_path / 'merlin.toml').write_text(text := fragment(choice, config))
    assert '# near_tie is no key' in text and '\n[boost]' not in text
    assert load_config({'MERLIN_CONFIG': str(path)}).stale.factor == 0.25


def test_the_command_prints_table_choice_doubts_and_lines(command):
    code, out, err = command(CASES)
    lines = out.splitlines()
    assert (code, err) == (0, '') and lines[0] == '60 settings, 16 cases to tune on'
    assert lines[1].split()[:3] == ['boost', 'recency', 'stale'] and sum(line[1:2] == '→' for line in lines) == 1
    assert any(line.startswith('holdout: 14 cases') for line in lines)
    assert any(line.startswith('warning: few cases: 16') for line in lines) and lines[-1].startswith(('#', 'weight'))
    code, out, _ = command(CASES, '--json', '--bm25', '0,1,2')
    report = json.loads(out)
    assert code == 0 and [row['bm25'] for row in report['rows']] == [1, 0, 2]
    assert report['choice']['present'] == dict(zip(AXES, astuple(PRESENT), strict=True))
    assert report['choice']['tune']['present']['mrr'] == report['rows'][0]['mrr']


def test_a_report_is_written_with_what_was_found(command, monkeypatch, tmp_path):
    pytest.importorskip('merlin.report')
    seen = {}
    monkeypatch.setattr('merlin.report.write_report', lambda *args, **named: seen.update(named, args=args))
    assert command(CASES, '--boost', '1,2', '--out', tmp_path / 'report')[0] == 0
    folder, tuning, holdout, frame, choice, _, line = seen['args']
    assert folder == tmp_path / 'report' and (len(tuning), len(holdout), len(frame)) == (21, 19, 2)
    assert line.startswith('merlin sweep ') and seen['fragment'].startswith('# From merlin sweep')
    assert seen['rejudge'](tuning, choice.present).outcomes


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
    monkeypatch.setitem(sys.modules, 'pandas', None)
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


@pytest.mark.slow
def test_fifty_settings_cost_at_most_two_passes(tmp_path):
    passes, sweeps = [], []
    with scratch(fixture_record(tmp_path / 'record')) as config:
        ingest(config)
        tried, cases = grid(config)[:50], [c for c in load_cases(CASES) if c.expect and not c.holdout]
        with session(config.database) as conn:
            sweep(fetch_cases(conn, cases, config), config, tried[:2], TODAY)  # loads the model and pandas
            for _ in range(3):
                begun = perf_counter()
                fetched = fetch_cases(conn, cases, config)
                summary(judge(fetched, config, TODAY))
                passed = perf_counter()
                sweep(fetched, config, tried, TODAY)
                passes.append(passed - begun)
                sweeps.append(perf_counter() - passed)
    assert min(sweeps) <= 2 * min(passes), (sweeps, passes)
