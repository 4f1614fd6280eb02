"""The diagnosis of a record made for it: counted from the index, read only, and fit for a terminal."""

import json
import os
import subprocess
import sys
from collections import Counter
from datetime import date
from pathlib import Path

import pytest

from merlin.charts import ages, counts_in, sizes, types
from merlin.database import connect
from merlin.diagnose import as_json, diagnose, fetch_records, main, text_lines
from merlin.errors import ConfigError
from merlin.ingest import ingest
from merlin.lint import lint
from merlin.store import count_index
from merlin.testing import WordEmbedder, commit_all, fixture_record, run_git, scratch

ROOT = Path(__file__).resolve().parents[1]
TODAY = date(2030, 2, 1)
CASES = 'cases:\n- q: how did the nightly backup fail\n  expect: [{path: hosts/alpha.md}]\n'


@pytest.fixture(scope='module')
def config(tmp_path_factory, merlin_home):
    "The fixture record with one page more, indexed."
    record = fixture_record(tmp_path_factory.mktemp('diagnose') / 'record')
    token = 'ghp' + '_' + 'Ab1dEf2hIj3lMn4pQr5tUv6xYz7bCd8fGh9j'
    (record / 'notes/made.md').write_text(f'# Made\n\nkey {token}\n\n\x1b[31mred\x1b[0m `ssh delta`\n')
    (record / 'notes/more.md').write_text('# More\n\n`ssh delta` again.\n')
    commit_all(record, 'more')
    with scratch(record, MERLIN_HOME=str(merlin_home)) as config:
        ingest(config, embed=WordEmbedder())
        yield config


@pytest.fixture
def found(conn, config):
    return diagnose(conn, config, today=TODAY)


def test_the_figures_are_those_of_the_index(conn, config, found):
    counts = count_index(conn)
    assert (len(found.pages), len(found.tokens())) == (counts['documents'], counts['chunks'])
    assert {kind: pages for kind, (pages, _) in found.types().items()} == counts['types']
    assert dict(found.redactions) == counts['redactions']
    kinds = Counter(f.kind for f in found.findings)
    assert {kind: kinds[kind] for kind in counts['warnings']} == counts['warnings']


def test_the_index_tells_the_same_findings_as_the_repository(config, found):
    assert found.findings == lint(config).findings


def test_what_was_redacted_appears_nowhere(found):
    assert found.redactions == {'vendor_token': 1}
    assert 'ghp_' not in json.dumps(as_json(found)) and 'ghp_' not in '\n'.join(text_lines(found))


def test_a_host_without_a_record_is_named_with_its_places(found):
    (delta,) = found.unclaimed
    assert (delta.name, delta.how) == ('delta', 'ssh')
    assert delta.places == (('notes/made.md', 5), ('notes/more.md', 3))


def test_every_section_is_dated_by_exactly_one_thing(found):
    assert sum(found.dated_by().values()) == len(found.tokens())
    assert found.dated_by()['nothing'] == 0 and found.dated_by()['heading'] > 0


def test_a_section_counts_by_its_own_date(found):
    page = next(p for p in found.pages if p.path == 'journal/2030-01-12.md')
    assert page.date == date(2030, 1, 12) and all(day for day in page.days)
    assert date(2030, 1, 12) in page.days and 20 in found.ages()


def test_a_session_that_may_only_read_is_enough(conn, config, found):
    conn.execute('set default_transaction_read_only = on')
    assert diagnose(conn, config, today=TODAY) == found


def test_pages_that_no_question_brings_up_are_counted_with_a_case_file(conn, config, tmp_path):
    from merlin.cases import load_cases
    from merlin.judging import fetch_cases

    (tmp_path / 'cases.yaml').write_text(CASES)
    fetched = fetch_cases(conn, load_cases(tmp_path / 'cases.yaml'), config, WordEmbedder(), 5)
    found = diagnose(conn, config, fetched, TODAY)
    assert found.questions == 1 and 1 <= len(found.asked) <= 5
    assert set(found.unreached) == set(found.unnamed) - set(found.asked)
    assert len(found.silent) == len(found.pages) - len(found.asked)
    assert any('results of none of the 1 questions' in line for line in text_lines(found))


def test_the_text_of_a_page_reaches_no_terminal_unescaped(found):
    assert all(line.isprintable() for line in text_lines(found))


def test_all_that_was_stored_comes_back(conn, config):
    records = fetch_records(conn)
    stored = conn.execute('select path, text from documents').fetchall()
    assert {r.path: r.text for r in records} == dict(stored)
    assert all(a.first_line <= b.first_line for r in records for a, b in zip(r.chunks, r.chunks[1:], strict=False))


def test_an_index_that_is_not_there_is_refused_with_the_next_step(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv('MERLIN_HOME', str(tmp_path))
    assert main([]) == 2
    assert 'run merlin ingest' in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []  # asking makes no database


def test_an_empty_schema_is_refused(config, conn):
    from dataclasses import replace

    with connect(replace(config.database, schema='merlin_test_nothing')) as empty, pytest.raises(ConfigError):
        diagnose(empty, config)


def test_the_command_prints_text_or_json(config, monkeypatch, capsys):
    for name, value in {'MERLIN_HOME': config.home, 'MERLIN_DB_SCHEMA': config.database.schema}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv('REPO_DIR', str(config.repos[0].dir))
    if config.database.url:
        monkeypatch.setenv('DATABASE_URL', config.database.url)
    assert main([]) == 0
    assert capsys.readouterr().out.startswith('pages: 53, sections: ')
    assert main(['--json']) == 0
    got = json.loads(capsys.readouterr().out)
    assert len(got['pages']) == 53 and got['unclaimed'][0]['places'] == ['notes/made.md:5', 'notes/more.md:3']
    assert main(['nowhere.yaml']) == 2


def test_an_empty_record_can_be_diagnosed_and_drawn(tmp_path, merlin_home):
    record = tmp_path / 'record'
    record.mkdir()
    run_git(record, 'init', '--quiet')
    commit_all(record, 'nothing yet')
    with scratch(record, MERLIN_HOME=str(merlin_home)) as config, connect(config.database) as conn:
        ingest(config, embed=WordEmbedder())
        found = diagnose(conn, config, today=TODAY)
        assert text_lines(found)[0] == 'pages: 0, sections: 0'
        for draw in (sizes, ages, types):
            draw(found).canvas.draw()


def test_the_bars_hold_every_section_once(found):
    assert sum(bar.get_height() for bar in sizes(found).axes[0].patches) == len(found.tokens())
    assert sum(bar.get_height() for bar in ages(found).axes[0].patches) == len(found.ages())
    assert sum(bar.get_width() for bar in types(found).axes[0].patches) == len(found.pages) + len(found.tokens())


def test_a_picture_is_the_same_whatever_style_a_person_has(found):
    import matplotlib

    from merlin.plots import svg_text

    drawn = [svg_text(draw(found)) for draw in (sizes, ages, types)]
    theirs = {'axes.facecolor': 'red', 'font.size': 31, 'xtick.labelsize': 3, 'axes.grid': True, 'legend.loc': 'center'}
    with matplotlib.rc_context(theirs):
        assert [svg_text(draw(found)) for draw in (sizes, ages, types)] == drawn


def test_what_a_diagnosis_shows_and_what_its_findings_rest_on_is_worked_out_once(conn, config, monkeypatch):
    from merlin import diagnose as diagnosing
    from merlin import findings

    calls: Counter[str] = Counter()

    def counted(name: str):
        made = getattr(findings, name)

        def call(*args, **named):
            calls[name] += 1
            return made(*args, **named)

        return call

    for name in ('host_use', 'unclaimed_hosts', 'named_by', 'linkable', 'dated_by', 'find_copies'):
        monkeypatch.setattr(findings, name, call := counted(name))
        if hasattr(diagnosing, name):
            monkeypatch.setattr(diagnosing, name, call)
    pages = len(diagnose(conn, config, today=TODAY).pages)
    assert calls == {
        'host_use': 1, 'unclaimed_hosts': 1, 'named_by': 1, 'linkable': 1, 'find_copies': 1, 'dated_by': pages
    }  # fmt: skip


def test_the_answers_and_the_pages_of_a_diagnosis_are_of_one_moment(tmp_path, merlin_home, monkeypatch):
    from merlin import judging
    from merlin.diagnose import parser, run

    record = tmp_path / 'record'
    record.mkdir()
    run_git(record, 'init', '--quiet')
    for name in ('one', 'two'):
        (record / f'{name}.md').write_text(f'# {name}\n\nThe nightly backup failed, {name}.\n')
    commit_all(record, 'pages')
    (tmp_path / 'cases.yaml').write_text('cases:\n- q: the nightly backup\n  expect: [{path: one.md}]\n')
    with scratch(record, MERLIN_HOME=str(merlin_home)) as config:
        ingest(config, embed=WordEmbedder())
        asked = []

        def at_work(text, meta, settings, embed=None):
            "Between two statements of the diagnosis, an ingest takes a page away."
            if not asked:
                with connect(config.database) as other:
                    other.execute("delete from documents where path = 'two.md'")
            asked.append(text)
            return WordEmbedder().embed_query(text), ''

        monkeypatch.setattr(judging, 'query_vector', at_work)
        found = run(parser().parse_args([str(tmp_path / 'cases.yaml')]), config)
        assert asked and [p.path for p in found.pages] == ['one.md', 'two.md']
        assert set(found.asked) == {'one.md', 'two.md'}
        with connect(config.database) as conn:
            assert [p.path for p in diagnose(conn, config, today=TODAY).pages] == ['one.md']


def test_steps_meet_without_a_gap():
    assert counts_in(range(-5, 2000), (0, 7, 31)) == [5, 7, 24, 1969]


def test_a_diagnosis_needs_no_matplotlib_and_says_so_where_a_picture_does():
    code = (
        'import sys; sys.modules["matplotlib"] = sys.modules["matplotlib.figure"] = None\n'
        'import merlin.diagnose, merlin.charts\n'
        'try: merlin.charts.drawing("x").__enter__()\n'
        'except merlin.errors.ConfigError as e: print(e)'
    )
    env = {'PATH': os.environ['PATH'], 'PYTHONPATH': str(ROOT)}
    done = subprocess.run([sys.executable, '-c', code], env=env, capture_output=True, text=True)
    assert done.stdout.startswith('not installed: matplotlib; run: ') and "'matplotlib>=" in done.stdout
