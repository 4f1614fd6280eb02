"""The quick start against a real database, and the scripts that lead to it."""

import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from psycopg import sql

from merlin.database import connect, public_dsn
from merlin.quickstart import main
from merlin.testing import WordEmbedder, commit_all, run_git

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def words(monkeypatch):
    "An embedder that costs nothing, in place of the model."
    monkeypatch.setattr('merlin.ingest.embedder', lambda config: WordEmbedder())
    monkeypatch.setattr('merlin.search.query_embedder', lambda config: WordEmbedder())


@pytest.fixture
def home(database, tmp_path, monkeypatch, words):
    "A MERLIN_HOME of its own on the database of the run; the working folder is somewhere else."
    monkeypatch.setenv('MERLIN_HOME', str(tmp_path / 'home'))
    monkeypatch.setenv('MERLIN_DB_SCHEMA', database.schema)
    monkeypatch.setenv('DATABASE_URL', public_dsn(database))
    elsewhere = tmp_path / 'elsewhere'
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    yield tmp_path / 'home'
    with connect(database) as conn:
        conn.execute('set client_min_messages = warning')
        conn.execute(sql.SQL('drop schema if exists {} cascade').format(sql.Identifier(f'{database.schema}_fixture')))


def record(folder: Path, **pages: str) -> Path:
    "A git repository with these pages."
    folder.mkdir()
    run_git(folder, 'init', '--quiet')
    for name, text in pages.items():
        (folder / f'{name}.md').write_text(text, encoding='utf-8')
    commit_all(folder, 'pages')
    return folder


@pytest.fixture
def notes(tmp_path):
    return record(tmp_path / 'my notes', disk='# Disk full on alpha\n\nlogs filled it\n', other='# Other\n\ntext\n')


def indexed(database, schema=None) -> list[str]:
    "The paths in the index; none where there is no index."
    with connect(replace(database, schema=schema or database.schema)) as conn:
        if not conn.execute("select to_regclass('documents')").fetchone()[0]:
            return []
        return [path for (path,) in conn.execute('select path from documents order by path')]


def test_a_record_is_indexed_asked_and_remembered_by_its_absolute_path(home, notes, database, capsys, monkeypatch):
    monkeypatch.chdir(notes.parent)
    assert main(['my notes']) == 0
    out = capsys.readouterr().out
    assert indexed(database) == ['disk.md', 'other.md']
    assert f'dir = "{notes}"' in (home / 'merlin.toml').read_text()
    assert 'asking: Disk full on alpha' in out and 'disk.md:1' in out  # the question, and its answer
    assert 'indexed: 2 documents' in out and 'what next' in out


def test_without_an_argument_the_record_of_last_time_is_taken_and_no_work_is_done(home, notes, capsys):
    main([str(notes)])
    capsys.readouterr()
    assert main([]) == 0
    out = capsys.readouterr().out
    assert f'record: {notes}\n' in out
    assert 'documents: 0 new, 0 changed, 2 unchanged, 0 removed' in out


def test_without_any_record_the_example_is_taken_with_a_schema_of_its_own(home, database, capsys):
    assert main([]) == 0
    out = capsys.readouterr().out
    assert 'the example that comes with merlin' in out
    assert f'MERLIN_DB_SCHEMA={database.schema}_fixture' in out and '/path/to/your/notes' in out
    assert len(indexed(database, f'{database.schema}_fixture')) > 10
    assert indexed(database) == []
    assert not (home / 'merlin.toml').exists()
    assert main([]) == 0
    assert ' 0 new, 0 changed' in capsys.readouterr().out


def test_the_example_leaves_the_environment_as_it_was(home):
    before = dict(os.environ)
    main([])
    assert dict(os.environ) == before


def test_another_record_is_refused_and_nothing_changes(home, notes, database, tmp_path, capsys):
    main([str(notes)])
    layout = (home / 'merlin.toml').read_text()
    other = record(tmp_path / 'other', a='# Something else\n\ntext\n')
    capsys.readouterr()
    assert main([str(other)]) == 3
    error = capsys.readouterr().err
    assert error.count('\n') == 1 and '--replace' in error and 'MERLIN_HOME' in error and str(notes) in error
    assert indexed(database) == ['disk.md', 'other.md']
    assert (home / 'merlin.toml').read_text() == layout
    assert main([]) == 0  # and the first is not worse for it


def test_replace_takes_the_other_record(home, notes, database, tmp_path):
    main([str(notes)])
    other = record(tmp_path / 'other', a='# Something else\n\ntext\n')
    assert main([str(other), '--replace']) == 0
    assert indexed(database) == ['a.md']
    assert f'dir = "{other}"' in (home / 'merlin.toml').read_text()


def test_a_link_to_the_record_and_a_second_clone_of_it_are_no_other_record(home, notes, database, tmp_path):
    main([str(notes)])
    (tmp_path / 'link').symlink_to(notes)
    assert main([str(tmp_path / 'link')]) == 0
    run_git(tmp_path, 'clone', '--quiet', '--bare', str(notes), 'mirror.git')
    assert main([str(tmp_path / 'mirror.git')]) == 0
    assert indexed(database) == ['disk.md', 'other.md']


@pytest.mark.parametrize('kind', ['missing', 'file', 'folder', 'empty repo'])
def test_what_is_no_record_is_one_line_and_exit_code_2(home, tmp_path, capsys, kind):
    place = tmp_path / 'place'
    if kind == 'file':
        place.write_text('x')
    elif kind != 'missing':
        place.mkdir()
    if kind == 'empty repo':
        run_git(place, 'init', '--quiet')
    assert main([str(place)]) == 2
    error = capsys.readouterr().err
    assert error.count('\n') == 1 and str(place) in error
    assert not (home / 'merlin.toml').exists()


def test_a_record_without_markdown_is_told_and_exit_code_1(home, tmp_path, capsys):
    folder = tmp_path / 'code'
    folder.mkdir()
    (folder / 'main.py').write_text('pass\n')
    run_git(folder, 'init', '--quiet')
    commit_all(folder, 'code')
    assert main([str(folder)]) == 1
    assert 'no markdown' in capsys.readouterr().err


def test_a_broken_layout_file_is_refused_before_a_database_is_needed(home, notes, capsys, monkeypatch):
    home.mkdir()
    (home / 'merlin.toml').write_text('[bost]\nhost = 2\n')
    monkeypatch.setenv('DATABASE_URL', 'postgresql://nobody@127.0.0.1:1/none')
    assert main([str(notes)]) == 2
    assert "did you mean 'boost'?" in capsys.readouterr().err


def test_a_password_in_the_connection_string_is_never_shown(home, notes, capsys, monkeypatch):
    word = 'correct' + '-horse'
    url = os.environ['DATABASE_URL']
    glue = ('&' if '?' in url else '?') if '://' in url else ' '
    monkeypatch.setenv('DATABASE_URL', f'{url}{glue}password={word}')
    assert main([str(notes)]) == 0
    shown = capsys.readouterr()
    assert word not in shown.out + shown.err and 'DATABASE_URL' in shown.out


@pytest.fixture
def checkout(tmp_path):
    "The scripts alone, in a folder with blanks in its name, where nothing is installed."
    place = tmp_path / 'a check out'
    shutil.copytree(ROOT / 'bin', place / 'bin')
    for name in ('settings.ini', 'setup.py'):
        shutil.copy(ROOT / name, place / name)
    return place


def run(script: Path, *args: str, path: str | None = None) -> tuple[int, str, str]:
    "Exit code, output and errors of a script, called from the root folder."
    env = {**os.environ, **({'PATH': path} if path else {})}
    done = subprocess.run([script, *args], cwd='/', env=env, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize('name', ['ingest', 'merlin'])
def test_a_script_without_an_install_says_what_to_run(checkout, tmp_path, name):
    (tmp_path / 'link').symlink_to(checkout / 'bin' / name)
    for script in (checkout / 'bin' / name, tmp_path / 'link'):
        code, _, error = run(script)
        assert code == 2 and f'run {checkout}/bin/quickstart first' in error


def test_help_and_a_mistyped_folder_cost_no_install(checkout):
    assert run(checkout / 'bin/quickstart', '--help')[:2] == (0, run(ROOT / 'bin/quickstart', '--help')[1])
    code, _, error = run(checkout / 'bin/quickstart', '/no/such/folder')
    assert code == 2 and '/no/such/folder' in error
    assert not (checkout / '.venv').exists()


def tools(folder: Path, *names: str) -> str:
    "A PATH with these programs and the few that the scripts themselves need."
    folder.mkdir()
    needed = ('bash', 'dirname', 'basename', 'readlink', 'cat', 'id', 'uname', 'ls', 'awk', 'grep', 'tail')
    for name in (*needed, *names):
        (folder / name).symlink_to(shutil.which(name))
    return str(folder)


def test_what_is_missing_on_the_machine_is_named_with_the_command(checkout, tmp_path):
    code, _, error = run(checkout / 'bin/quickstart', path=tools(tmp_path / 'bare'))
    assert code == 2 and 'git' in error and 'install' in error
    path = tools(tmp_path / 'with-git', 'git')
    code, _, error = run(checkout / 'bin/quickstart', path=path)
    assert code == 2 and 'Python 3.11 or newer' in error and 'install' in error
    old = tmp_path / 'with-git' / 'python3'
    old.write_text('#!/bin/sh\necho 3.9\n')
    old.chmod(0o755)
    code, _, error = run(checkout / 'bin/quickstart', path=path)
    assert code == 2 and f'{old} is 3.9' in error


@pytest.mark.skipif(os.geteuid() == 0, reason='root may write everywhere')
def test_a_checkout_that_may_not_be_written_is_explained(checkout):
    checkout.chmod(0o555)
    code, _, error = run(checkout / 'bin/quickstart')
    checkout.chmod(0o755)
    assert code == 2 and f'cannot write to {checkout}' in error
