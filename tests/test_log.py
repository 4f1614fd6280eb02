"""The log of merlin's own: many writers, every way of not being able to write, and what each command leaves in it."""

import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from merlin.log import PARTS, record
from merlin.testing import commit_all, run_git

WRITER = """
import sys
from pathlib import Path
import merlin.log
merlin.log.LIMIT = 30_000
for n in range(400):
    merlin.log.record('info', 'writer', 'line', home=Path(sys.argv[1]), who=int(sys.argv[2]), n=n)
"""
LINE = re.compile(r'\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ \d+ info writer: line who=(\d) n=(\d+)')


def modes(folder: Path) -> set[str]:
    "The modes of the files in it."
    return {oct(stat.S_IMODE(f.stat().st_mode)) for f in folder.iterdir()}


@pytest.mark.parametrize('umask', [0o000, 0o277])
def test_many_writers_lose_and_garble_nothing_while_the_file_is_turned_over(tmp_path, umask):
    home = tmp_path / 'home'
    home.mkdir()
    command = [sys.executable, '-c', WRITER, str(home)]
    writers = [subprocess.Popen([*command, str(who)], umask=umask, stderr=subprocess.PIPE) for who in range(4)]
    assert [(w.communicate()[1], w.returncode) for w in writers] == [(b'', 0)] * 4
    files = list((home / 'log').iterdir())
    assert 1 < len(files) <= PARTS
    found = [LINE.fullmatch(line) for f in files for line in f.read_text().splitlines()]
    assert sorted((int(m[1]), int(m[2])) for m in found if m) == [(who, n) for who in range(4) for n in range(400)]
    assert modes(home / 'log') == {'0o600'} and stat.S_IMODE((home / 'log').stat().st_mode) == 0o700


def test_the_oldest_part_falls_out(tmp_path, monkeypatch):
    monkeypatch.setattr('merlin.log.LIMIT', 500)
    for n in range(100):
        record('info', 'test', 'line', home=tmp_path, n=n)
    files = sorted(f.name for f in (tmp_path / 'log').iterdir())
    assert files == ['merlin.log', *(f'merlin.log.{n}' for n in range(1, PARTS))]
    assert (tmp_path / 'log/merlin.log').read_text().endswith('n=99\n')


@pytest.mark.parametrize('kind', ['a file in place of the folder', 'a link', 'a pipe', 'a home that is a file'])
def test_a_log_that_cannot_be_written_is_one_line_on_stderr(tmp_path, capsys, kind):
    home = tmp_path / 'home'
    if kind == 'a home that is a file':
        home.write_text('')
    else:
        (home / 'log').mkdir(parents=True)
    if kind == 'a link':
        (home / 'log/merlin.log').symlink_to(tmp_path / 'elsewhere')
    elif kind == 'a pipe':
        os.mkfifo(home / 'log/merlin.log')
    elif kind == 'a file in place of the folder':
        (home / 'log').rmdir()
        (home / 'log').write_text('')
    for _ in range(3):
        record('info', 'test', 'line', home=home)
    error = capsys.readouterr().err
    assert error.count('\n') == 1 and str(home / 'log') in error
    assert not (tmp_path / 'elsewhere').exists()


def test_a_lost_right_is_given_back(tmp_path):
    record('info', 'test', 'line', home=tmp_path)
    (tmp_path / 'log').chmod(0o755)
    (tmp_path / 'log/merlin.log').chmod(0o644)
    record('info', 'test', 'line', home=tmp_path)
    assert modes(tmp_path / 'log') == {'0o600'} and stat.S_IMODE((tmp_path / 'log').stat().st_mode) == 0o700


@pytest.fixture
def home(tmp_path, monkeypatch):
    "A MERLIN_HOME of its own, and a record that cannot be indexed: its database is not there."
    folder = tmp_path / 'notes'
    folder.mkdir()
    run_git(folder, 'init', '--quiet')
    (folder / 'a.md').write_text('# A\n\ntext\n')
    commit_all(folder, 'pages')
    monkeypatch.setenv('MERLIN_HOME', str(tmp_path / 'home'))
    monkeypatch.setenv('REPO_DIR', str(folder))
    password = 'pearl' * 3
    monkeypatch.setenv('DATABASE_URL', f'postgresql://merlin:{password}@127.0.0.1:9/notes?connect_timeout=2')
    return tmp_path / 'home'


def test_an_ingest_that_fails_is_logged_with_its_reason_and_no_password(home, capsys):
    from merlin.ingest import main

    assert main([]) == 1
    said = capsys.readouterr().err
    text = (home / 'log/merlin.log').read_text()
    assert text.count('\n') == 1 and ' error ingest: failed seconds=' in text and ' why=' in text
    assert 'pearl' not in text + said and said.startswith('merlin ingest: ')


def test_an_ingest_that_works_is_logged_with_its_counts(home, database, monkeypatch, capsys):
    from merlin.database import public_dsn
    from merlin.ingest import main
    from merlin.testing import WordEmbedder

    monkeypatch.setattr('merlin.ingest.embedder', lambda config: WordEmbedder())
    monkeypatch.setenv('MERLIN_DB_SCHEMA', database.schema)
    monkeypatch.setenv('DATABASE_URL', public_dsn(database))
    assert main([]) == 0 and main(['--quiet']) == 0
    first, second = (home / 'log/merlin.log').read_text().splitlines()
    assert ' info ingest: done new=1 changed=0 unchanged=0 removed=0 sections=1 embedded=1 warnings=0 seconds=' in first
    assert ' info ingest: done new=0 changed=0 unchanged=1 ' in second
    assert 'text' not in first and 'a.md' not in first


def test_a_server_logs_its_start_its_failures_and_its_end(home):
    from test_mcp_server import serve
    from test_protocol import use

    with serve(dict(os.environ)) as client:
        client.send(use(1, 'index_status'))
        client.lines.get(timeout=30)
        client.end()
    lines = (home / 'log/merlin.log').read_text().splitlines()
    assert [re.sub(r'^\S+ \d+ ', '', line).split(' why=')[0] for line in lines] == [
        'info mcp: started', 'error mcp: failed tool=index_status', 'info mcp: stopped',
    ]  # fmt: skip
    assert 'pearl' not in '\n'.join(lines)
    assert len({line.split(' ')[1] for line in lines}) == 1


def test_neither_the_log_nor_a_greeting_imports_logging():
    code = "import sys; import merlin.mcp_server, merlin.log; print('logging' in sys.modules, 'merlin.redact' in sys.modules)"
    done = subprocess.run([sys.executable, '-P', '-c', code], capture_output=True, text=True)
    assert done.stdout == 'False False\n', done.stderr
