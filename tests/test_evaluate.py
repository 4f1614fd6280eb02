"""Evaluation against a real index: figures that equal search's own, quotes, secrets, and case files of every kind."""

import json
import os
import secrets
import subprocess
import sys
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from merlin.cases import Answer, Case, load_cases, lost_answers
from merlin.config import RepoConfig, load_config
from merlin.database import connect
from merlin.errors import ConfigError, FailedError, MerlinError, RefusedError
from merlin.evaluate import case_lines, evaluate, main, parser, with_weights
from merlin.figures import DRAWS, bootstrap
from merlin.ingest import ingest
from merlin.judging import Outcome, fetch_cases, judge, rank_of, read_run, summary
from merlin.rank import WEAK
from merlin.search import search
from merlin.status import not_fresh
from merlin.testing import WordEmbedder, commit_all, drop_schema, fixture_record

ROOT = Path(__file__).resolve().parents[1]
CASES = ROOT / 'nbs/eval/cases'
TODAY = date(2030, 3, 1)
ASKED = 'why does (the) 50% rule\\s* of beta_1 stop the fan?'
PASTED = f'# 2030-02-20\n\n## Asked\n\n> {ASKED.replace(" rule", chr(10) + "rule")}\n\nNobody knew.\n'
ANSWER = f'# Fan\n\n## Rule\n\n{ASKED} Because the fan of beta stops at half load.\n'


@pytest.fixture(scope='module')
def config(backend, tmp_path_factory):
    "The fixture record, with a page that quotes a question, and one that quotes and answers it."
    record = fixture_record(tmp_path_factory.mktemp('evaluate') / 'record')
    (record / 'journal/2030-02-20.md').write_text(PASTED)
    (record / 'notes/fan.md').write_text(ANSWER)
    commit_all(record, 'quotes')
    database = replace(backend, schema=f'merlin_test_{secrets.token_hex(6)}')
    config = replace(load_config({}), repos=(RepoConfig('', record),), database=database)
    ingest(config, embed=WordEmbedder())
    yield config
    drop_schema(config)


@pytest.fixture
def conn(config):
    with connect(config.database) as conn:
        yield conn


@pytest.fixture
def command(config, monkeypatch, capsys):
    "merlin eval in this process, with the embedder that counts words: (exit code, stdout, stderr)."
    monkeypatch.setenv('MERLIN_HOME', str(config.database.home))
    monkeypatch.setenv('MERLIN_DB_SCHEMA', config.database.schema)
    if config.database.url:
        monkeypatch.setenv('DATABASE_URL', config.database.url)
    monkeypatch.setattr('merlin.search.query_embedder', lambda _: WordEmbedder())
    monkeypatch.setattr(
        'merlin.evaluate.not_fresh', lambda *_: []
    )  # of another embedder, and of a repo that is not configured

    def run(*argv):
        code = main([str(a) for a in argv])
        return code, *capsys.readouterr()

    return run


def write(path, *cases):
    "A case file."
    path.write_text(json.dumps({'cases': cases}))  # JSON is YAML
    return path


SETTINGS = [
    {},
    {'boost': '{}', 'recency': 0.0, 'stale': 1.0},
    {'boost': '{"host": 2, "journal": 1.5}', 'recency': 1.0},
    {'stale': 0.0},
]


def test_judging_one_fetch_says_what_separate_searches_say(conn, config):
    cases = load_cases(CASES / 'fixture.yaml')
    fetched = fetch_cases(conn, cases, config, WordEmbedder(), k=5)
    moved = set()
    for weights in (with_weights(config, **s) for s in SETTINGS):
        run = judge(fetched, weights, TODAY)
        for case, outcome in zip(cases, run.outcomes, strict=True):
            hits = search(conn, case.q, 5, config=weights, embed=WordEmbedder(), today=TODAY)
            assert outcome.rank == rank_of(case, [(h.path, h.heading) for h in hits])
            assert outcome.top == tuple((h.path, h.heading) for h in hits[:3])
            assert outcome.weak == tuple(h.weak for h in hits)
        moved.add(summary(run)['mrr'])
    assert len(moved) > 1


def test_weak_marks_are_told_where_the_model_was_calibrated(conn, config, monkeypatch):
    cases = load_cases(CASES / 'fixture.yaml')
    unknown = summary(judge(fetch_cases(conn, cases, config, WordEmbedder()), config, TODAY))
    assert unknown['no_answer'] == {'cases': 10, 'weak': None} and unknown['cases'] == 30
    monkeypatch.setitem(WEAK, WordEmbedder.identity, 99.0)
    known = summary(judge(fetch_cases(conn, cases, config, WordEmbedder()), config, TODAY))
    assert (known['no_answer']['weak'], known['right_first']['weak']) == (1.0, 1.0)
    assert {name: known[name] for name in ('hit@1', 'mrr')} == {name: unknown[name] for name in ('hit@1', 'mrr')}


def test_a_page_that_quotes_the_question_is_flagged_and_left_out_of_the_clean_figures(command, tmp_path):
    path = write(tmp_path / 'c.yaml', {'q': ASKED, 'expect': [{'path': 'hosts/beta.md'}]})
    code, out, _ = command(path)
    report = json.loads(command(path, '--json')[1])
    case = report['cases'][0]
    assert code == 0 and case['clean_rank'] == case['rank'] - 2 and case['quotes'] == [1, 2]
    flags = [line for line in out.splitlines() if '⚑' in line]
    assert [line.split()[1] for line in flags] == ['#1', '#2'] and len(flags) == 2
    paths = {line.split()[2] for line in flags}
    assert paths == {'journal/2030-02-20.md', 'notes/fan.md'}
    assert all(
        line.endswith(f'quotes the question verbatim — not an answer; clean rank {case["clean_rank"]}')
        for line in flags
    )
    assert report['summary']['clean']['mrr'] > report['summary']['mrr']


def test_an_answer_that_quotes_its_question_stays(command, tmp_path):
    expect = [{'path': 'notes/fan.md', 'heading': 'rULE'}]
    case = json.loads(command(write(tmp_path / 'c.yaml', {'q': ASKED, 'expect': expect}), '--json')[1])['cases'][0]
    assert case['clean_rank'] == 1 and 'notes/fan.md' not in [case['top'][n - 1]['path'] for n in case['quotes']]


def test_the_last_two_lines_are_the_summary_and_every_miss_shows_what_came_instead(command):
    code, out, err = command(CASES / 'fixture.yaml')
    lines = out.splitlines()
    report = json.loads(command(CASES / 'fixture.yaml', '--json')[1])
    figures = report['summary']
    text = f'hit@1 {figures["hit@1"]:.0%} · hit@3 {figures["hit@3"]:.0%} · MRR {figures["mrr"]:.3f}'
    assert (code, err) == (0, '') and lines[-2] == f'cases 30 · {text}'
    assert lines[-1].startswith('cases 30 · hit@1 ') and lines[-3].startswith('95% intervals: ')
    marks = {'✅': 0, '⚠': 0, '⛔': 0, '∅': 0}
    for n, line in enumerate(lines):
        if line[:1] in marks:
            marks[line[0]] += 1
        if line[:1] in '⚠⛔' and line:
            assert [shown[:6].strip() for shown in lines[n + 1 : n + 4]] == ['1.', '2.', '3.']
            assert all('.md' in shown for shown in lines[n + 1 : n + 4])
    ranks = [c['rank'] for c in report['cases'] if c['answerable']]
    assert marks['✅'] == ranks.count(1) and marks['⚠'] == ranks.count(2) + ranks.count(3)
    assert marks['∅'] == 10 and sum(marks.values()) == 40 and marks['⛔'] > 0
    assert all(len(c['top']) == 3 and set(c['top'][0]) == {'path', 'heading'} for c in report['cases'])
    assert 0 <= figures['intervals']['mrr'][0] <= figures['mrr'] <= figures['intervals']['mrr'][1] <= 1


def test_a_run_is_the_same_when_it_is_made_twice_apart_from_its_times(command):
    runs = [json.loads(command(CASES / 'fixture.yaml', '--json', '-k', 3)[1]) for _ in range(2)]
    for run in runs:
        times = run.pop('latency')
        assert times['search']['p50'] >= times['without_embedder']['p50'] > 0
    assert runs[0] == runs[1] and all((c['rank'] or 1) <= 3 for c in runs[0]['cases'])


def test_against_an_earlier_run_only_what_moved_is_listed(command, tmp_path):
    before = tmp_path / 'before.json'
    before.write_text(command(CASES / 'fixture.yaml', '--json')[1])
    same = json.loads(command(CASES / 'fixture.yaml', '--json', '--against', before)[1])['against']
    assert (same['better'], same['worse'], same['same'], same['p'], same['moved']) == (0, 0, 30, 1.0, [])
    args = (CASES / 'fixture.yaml', '--boost', '{}', '--against', before)
    moved = json.loads(command(*args, '--json')[1])['against']
    lines = command(*args)[1].splitlines()
    assert moved['better'] + moved['worse'] == len(moved['moved']) == sum(line[:1] in ('↑', '↓') for line in lines) > 0
    assert lines[-4].startswith(f'against {before}: {moved["better"]} better · {moved["worse"]} worse · ')
    half = json.loads(command(*args, '--json', '--half', 'tune')[1])['against']
    assert half['only_then'] == 19 and half['only_now'] == 0
    code, out, err = command(*args, '-k', 5)
    assert (code, out) == (2, '') and 'use -k 10' in err


@pytest.mark.parametrize(
    'text', ['', '{', '[]', '{"cases": [{"q": 1}]}', '{"cases": [{"q": "a", "rank": true}]}', '[' * 99999]
)
def test_a_file_that_is_no_run_is_refused(command, tmp_path, text):
    (path := tmp_path / 'before.json').write_text(text)
    code, out, err = command(CASES / 'fixture.yaml', '--against', path)
    assert (code, out) == (2, '') and err.startswith(f'merlin eval: {path}: is no') and err.count('\n') == 1


def test_the_two_halves_are_the_whole(command):
    def questions(half):
        return {c['q'] for c in json.loads(command(CASES / 'fixture.yaml', '--json', '--half', half)[1])['cases']}

    tune, holdout = questions('tune'), questions('holdout')
    assert tune and holdout and not tune & holdout and tune | holdout == questions('all')


def test_answers_that_the_index_cannot_give_are_named_before_they_are_missed(command, tmp_path):
    expect = [{'path': 'runbooks/restore.md'}, {'path': 'hosts/alpha.md', 'heading': 'Zebra'}]
    path = write(tmp_path / 'c.yaml', {'q': 'restore?', 'expect': expect})
    code, out, err = command(path)
    assert code == 0 and err.count('\n') == 2 and 'cases 1 · hit@1 0%' in out
    assert f"{path}:1: runbooks/restore.md is not in the index; did you mean 'runbooks/postgres/restore.md'?" in err
    assert "no section of hosts/alpha.md has 'Zebra' in its heading" in err
    many = [{'path': f'{n}.md'} for n in range(40)]
    assert '30 more answers' in command(write(path, {'q': 'restore?', 'expect': many}))[2]


def test_the_shipped_cases_of_the_fixture_record_name_only_answers_that_it_holds(conn):
    assert lost_answers(conn, load_cases(CASES / 'fixture.yaml'), 'fixture.yaml') == []


@pytest.mark.parametrize('path', sorted(CASES.glob('*.yaml')), ids=lambda p: p.stem)
def test_the_shipped_case_files_can_be_read(path):
    cases = load_cases(path)
    assert len(cases) >= 8 and len({case.q for case in cases}) == len(cases)


def test_a_secret_in_a_question_is_neither_sent_nor_shown(command, monkeypatch, tmp_path):
    token = 'ghp_' + 'aB3' * 12
    embed = WordEmbedder()
    embed.embed_query = lambda text: embed.embed_documents([text])[0]
    monkeypatch.setattr('merlin.search.query_embedder', lambda _: embed)
    path = write(tmp_path / 'c.yaml', {'q': f'what is {token} for?', 'expect': [{'path': f'{token}.md'}]})
    for argv in ((path,), (path, '--json')):
        code, out, err = command(*argv)
        assert code == 0 and token not in out + err and 'REDACTED' in out and 'REDACTED' in err
    assert embed.calls and not any(token in text for text in embed.calls)


def test_nothing_of_a_case_or_of_the_record_can_forge_a_line(command, tmp_path):
    case = {'q': 'fan?\n✅ #1 forged\x1b[31m\u202e', 'kind': 'a\nb', 'expect': [{'path': 'a\nwarning: b.md'}]}
    code, out, err = command(write(tmp_path / 'c\nx.yaml', case))
    assert code == 0 and err.count('\n') == 1 and not any(line.startswith('✅') for line in out.splitlines())
    assert all(c.isprintable() or c == '\n' for c in out + err)
    assert 'Because the fan' not in out and 'Nobody knew' not in out


def test_an_embedder_that_is_down_ends_the_run(conn, config):
    class Down(WordEmbedder):
        def embed_query(self, text):
            raise FailedError('the embedding server does not answer')

    with pytest.raises(FailedError, match='would measure another search'):
        fetch_cases(conn, [Case('fan?', ())], config, Down())


def test_an_embedder_that_fails_later_is_told(conn, config, tmp_path):
    class Once(WordEmbedder):
        def embed_query(self, text):
            self.calls.append(text)
            if len(self.calls) == 3:
                raise FailedError('the embedding server does not answer')
            return super().embed_query(text)

    path = write(tmp_path / 'c.yaml', {'q': 'fan?', 'expect': []}, {'q': 'disk?', 'expect': []})
    text = evaluate(parser().parse_args([str(path)]), config, Once(), TODAY)
    assert 'degraded: 1 of 2 questions, without the vector leg: the embedding server does not answer' in text
    assert 'cases 0 · hit@1 – · hit@3 – · MRR –' in text.splitlines()[-2]


def test_the_index_of_another_model_is_refused(conn, config):
    class Other(WordEmbedder):
        identity = 'test:other:64'

    with pytest.raises(RefusedError):
        fetch_cases(conn, [Case('fan?', ())], config, Other())


def test_an_empty_schema_is_explained(config, tmp_path):
    other = replace(config, database=replace(config.database, schema='merlin_test_nothing'))
    path = write(tmp_path / 'c.yaml', {'q': 'fan?', 'expect': []})
    with pytest.raises(ConfigError, match='nothing is indexed yet'):
        evaluate(parser().parse_args([str(path)]), other, WordEmbedder())


def test_a_wrong_weight_is_refused_and_a_type_that_no_document_has_is_named(command):
    cases = CASES / 'fixture.yaml'
    for argv in (['--boost', '{"host": NaN}'], ['--boost', '[]'], ['--recency', '-1'], ['--stale', '2'], ['-k', '0']):
        code, out, err = command(cases, *argv)
        assert (code, out) == (2, '') and err.startswith('merlin eval: ') and err.count('\n') == 1
    code, out, err = command(cases, '--boost', '{"hots": 1.5}')
    assert code == 0 and err == "warning: --boost: no rule gives the type 'hots'; did you mean 'host'?\n"


BAD = {
    'nothing': (b'', 'is empty'), 'comment': (b'# later\n', 'is empty'), 'null': (b'cases:\n', 'is not a list'),
    'text': (b'just words', ':1: is not a mapping'), 'tab': (b'cases:\n\t- q: a\n', ':2: is no valid YAML'),
    'colon': (b'cases:\n  - q: why: because\n', ':2: is no valid YAML'),
    'two documents': (b'cases: []\n---\ncases: []\n', 'is no valid YAML'),
    'alias': (b'cases: *nowhere\n', 'is no valid YAML'), 'control': (b'cases:\n- q: "\x01"\n', 'is no valid YAML'),
    'object': (b'cases:\n- !!python/object/apply:os.system [x]\n', ':2: is not a mapping'),
    'loop': (b'cases: &a\n- *a\n', 'is not a mapping'), 'latin': (b'cases:\n- q: stra\xdfe\n', ':2: is not UTF-8'),
    'deep': (b'[' * 50, 'more than 10 levels'), 'deeper': (b'[' * 100_000, 'c.yaml:1: '), 'huge': (b'#' * 2_000_001, 'is larger than 2,000,000 bytes'),
    'top key': (b'case: []\n', "unknown key 'case'; did you mean 'cases'?"),
    'list as key': (b'cases:\n- [a]: b\n', "unknown key '(sequence)'"),
    'empty path': (b'cases:\n- q: a\n  expect: [{path: ""}]\n', ':3: path is not a text'),
}  # fmt: skip


@pytest.mark.parametrize('name', BAD)
def test_a_bad_case_file_is_explained_with_its_line(tmp_path, name):
    data, says = BAD[name]
    (path := tmp_path / 'c.yaml').write_bytes(data)
    with pytest.raises(ConfigError) as refused:
        load_cases(path)
    assert says in str(refused.value) and str(refused.value).startswith(str(path))


@settings(derandomize=True, deadline=None, max_examples=300)
@given(st.text(alphabet='casesqpathxpect:-[]{},&*!|>#"\' \n\t0~', max_size=80))
def test_any_text_is_cases_or_a_refusal(tmp_path_factory, text):
    path = tmp_path_factory.getbasetemp() / 'fuzz.yaml'
    for prefix in ('', 'cases:\n- q: a\n  expect:\n  - path: '):
        path.write_text(prefix + text)
        try:
            assert load_cases(path)
        except MerlinError as e:
            assert e.exit_code == 2


def test_yaml_that_people_write_is_read(tmp_path):
    text = '\ufeffcases:\r\n  - q: >\r\n      how do I\r\n      restore?\r\n    expect: &a\r\n      - path: 2030.md\r\n        heading: no\r\n  - {q: 12, expect: *a, holdout: yes}\r\n'
    (path := tmp_path / 'c.yaml').write_text(text, encoding='utf-8', newline='')
    first, second = load_cases(path)
    assert (first.q, second.q, second.holdout) == ('how do I restore?', '12', True)
    assert first.expect == second.expect == (Answer('2030.md', 'no', 6),)


def test_the_command_says_what_is_wrong_without_a_traceback(tmp_path):
    env = {'PATH': os.environ['PATH'], 'MERLIN_HOME': str(tmp_path / 'home'), 'PYTHONIOENCODING': 'ascii'}
    command = [sys.executable, '-m', 'merlin.evaluate', str(tmp_path / 'nöne.yaml')]
    done = subprocess.run(command, cwd=tmp_path, env=env | {'PYTHONPATH': str(ROOT)}, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, '') and 'cannot be read: No such file' in done.stderr
    assert done.stderr.count('\n') == 1 and not (tmp_path / 'home').exists()


def test_intervals_do_not_depend_on_the_process():
    values = [1.0, 0.5, 0.0, 1 / 3] * 5
    code = f'from merlin.figures import bootstrap; print(bootstrap({values}))'
    env = {'PATH': os.environ['PATH'], 'PYTHONPATH': str(ROOT), 'PYTHONHASHSEED': '7'}
    done = subprocess.run([sys.executable, '-c', code], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(bootstrap(values)) and DRAWS == 2_000


def test_a_run_to_compare_with_that_is_no_file_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / 'pipe')
    with pytest.raises(ConfigError, match='is no file that a run was printed to'):
        read_run(tmp_path / 'pipe', 10)


def test_an_index_that_is_not_fresh_is_told(command, monkeypatch, tmp_path):
    monkeypatch.setattr('merlin.evaluate.not_fresh', not_fresh)
    case = {'q': 'restore the dump', 'expect': [{'path': 'runbooks/postgres/restore.md'}]}
    (tmp_path / 'cases.yaml').write_text(json.dumps({'cases': [case]}))
    code, _, err = command(tmp_path / 'cases.yaml')
    assert code == 0 and 'warning: what is measured is the index as it is: STALE' in err


def test_a_right_page_that_shows_another_section_is_named():
    case = Case('q', (Answer('a.md', 'Restore'), Answer('b.md')))
    lines = case_lines(Outcome(case, 'q', None, None, (('c.md', 'X'), ('a.md', 'Other')), (), (False, False)))
    assert lines[-1] == '    → a.md is #2, but shows another section than any expected'
