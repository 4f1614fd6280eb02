"""The command as people and programs call it: exit codes, one-line refusals, JSON alone on stdout, an honest verdict."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from merlin.config import RepoConfig, load_config
from merlin.database import connect
from merlin.ingest import ingest
from merlin.store import write_meta
from merlin.testing import WordEmbedder, commit_all, run_git

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def repo(tmp_path):
    repo = tmp_path / 'a record'
    repo.mkdir()
    run_git(repo, 'init', '--quiet')
    (repo / 'a.md').write_text('# Disk\n\nThe disk of alpha was full.\n')
    commit_all(repo, 'first')
    return repo


@pytest.fixture
def config(database, repo):
    return replace(load_config({}), repos=(RepoConfig('', repo),), database=database)


@pytest.fixture
def run(database, repo):
    "Runs `merlin …` in a process, on this database and record."

    def call(*args, stdout=subprocess.PIPE, **env):
        settings = {
            'MERLIN_HOME': str(database.home), 'MERLIN_DB_SCHEMA': database.schema, 'REPO_DIR': str(repo),
            'PYTHONPATH': str(ROOT), **({'DATABASE_URL': database.url} if database.url else {}), **env,
        }  # fmt: skip
        done = subprocess.run(
            [sys.executable, '-m', 'merlin.cli', *args], env={**os.environ, **settings}, stdout=stdout, stderr=subprocess.PIPE,
            text=True, timeout=120,
        )  # fmt: skip
        assert 'Traceback' not in done.stderr, done.stderr
        return done

    return call


def test_status_and_search_print_json_alone_on_stdout(run, config):
    ingest(config, embed=WordEmbedder())
    status = json.loads(run('status', '--json').stdout)
    assert status['verdict']['state'] == 'stale'  # another model is configured than the one that built it
    assert status['counts']['documents'] == 1
    found = json.loads(run('search', 'nothing like it', '--exact', '--json').stdout)
    assert found['verdict']['state'] == 'stale' and found['hits'] == []
    hit = json.loads(run('search', 'was FULL', '--exact', '--json').stdout)['hits'][0]
    assert (hit['path'], hit['first_line'], hit['type'], hit['repo']) == ('a.md', 1, 'doc', '')


@pytest.mark.parametrize(
    'args, env, code',
    [
        (['serach'], {}, 2), ([], {}, 2), (['search', 'x', '-k', '0', '--exact'], {}, 2), (['search', 'x', '--host', ''], {}, 2),
        (['search', ''], {}, 2), (['ingest'], {'REPO_DIR': '/nowhere/at/all'}, 2), (['ingest'], {'SECRET_HASHES': ''}, 3),
        (['ingest'], {'SECRET_HASHES': '/etc'}, 3), (['ingest'], {'MERLIN_CONFIG': '/nowhere.toml'}, 2),
        (['status'], {'DATABASE_URL': 'postgresql://u:hunter%ZZ@h/d'}, 2), (['ingest'], {'EMBED_PROVIDER': 'lokal'}, 2),
        (['status'], {'DATABASE_URL': 'postgresql://u:hunter2@127.0.0.1:1/d'}, 1), (['status'], {'MERLIN_HOME': '~no-such-user/x'}, 2),
    ],
)  # fmt: skip
def test_a_refusal_is_one_line_with_the_right_code_and_no_password(run, config, args, env, code):
    ingest(config, embed=WordEmbedder())
    done = run(*args, **env)
    assert done.returncode == code, done.stderr
    assert 'hunter' not in done.stderr + done.stdout
    if args and 'serach' not in args:
        assert len(done.stderr.strip().splitlines()) == 1


def test_a_setting_that_does_nothing_is_named(run, config):
    ingest(config, embed=WordEmbedder())
    assert 'EMBED_BATCH' in run('status', EMBED_BACH='3').stderr


def test_the_database_can_be_stopped_whatever_the_settings_say(run):
    assert run('db', 'status', SECRET_HASHES='').returncode == 0


def test_foreign_postgres_variables_do_not_divert_the_embedded_server(run, config):
    ingest(config, embed=WordEmbedder())
    if config.database.url:
        pytest.skip('they are meant for a server of your own')
    assert run('status', PGHOSTADDR='127.0.0.9', PGSERVICE='nope', PGTZ='bogus', PGPORT='1').returncode == 0


def test_a_closed_pipe_and_a_full_output_end_without_a_traceback(run, config):
    ingest(config, embed=WordEmbedder())
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, 'w') as closed:
        assert run('status', stdout=closed).returncode == 0
    if os.path.exists('/dev/full'):
        with open('/dev/full', 'w') as full:
            done = run('status', stdout=full)
        assert done.returncode == 1 and 'No space' in done.stderr
    assert '\\xa7' in run('search', 'was full', '--exact', PYTHONIOENCODING='ascii').stdout


def test_an_index_that_no_run_finished_says_so(run, config):
    ingest(config, embed=WordEmbedder())
    with connect(config.database) as conn:
        write_meta(
            conn,
            {'state': None, 'last_ingest_at': None, 'last_started_at': None, 'running': '2030-01-01T00:00:00+00:00'},
        )
    done = run('status')
    assert done.returncode == 0 and 'never finished' in done.stdout


def verdict_of(config):
    from merlin.freshness import verdict
    from merlin.store import read_meta

    with connect(config.database) as conn:
        return verdict(config, read_meta(conn))


def test_a_checkout_with_unpushed_commits_is_judged_by_its_head(config, repo, tmp_path):
    clone = tmp_path / 'clone'
    run_git(tmp_path, 'clone', '--quiet', str(repo), str(clone))
    here = replace(config, repos=(RepoConfig('', clone),))
    ingest(here, embed=WordEmbedder())
    assert verdict_of(here).line == 'fresh: upstream not watched'
    (clone / 'b.md').write_text('# B\n\nlocal\n')
    commit_all(clone, 'local')
    assert verdict_of(here).state == 'behind'
    ingest(here, embed=WordEmbedder())
    assert verdict_of(here).line == 'fresh: upstream not watched'


def test_a_repo_that_vanished_or_was_swapped_is_stale(config, repo, tmp_path):
    ingest(config, embed=WordEmbedder())
    repo.rename(tmp_path / 'elsewhere')
    assert verdict_of(config).state == 'stale'
    repo.mkdir()
    run_git(repo, 'init', '--quiet')
    (repo / 'a.md').write_text('# Other\n\nrecord\n')
    commit_all(repo, 'first of another')
    assert 'commit is gone' in verdict_of(config).line


def test_a_question_that_full_text_cannot_afford_is_answered_by_the_rest(database, tmp_path):
    from merlin.search import search

    repo = tmp_path / 'many'
    repo.mkdir()
    run_git(repo, 'init', '--quiet')
    for n in range(60):
        (repo / f'{n}.md').write_text(f'# Page {n}\n\n' + 'a lot of words about x and y and z\n\n' * 40)
    commit_all(repo, 'all')
    config = replace(load_config({}), repos=(RepoConfig('', repo),), database=database)
    ingest(config, embed=WordEmbedder())
    with connect(database) as conn:
        for query in ('x -y ' * 330, '(' * 2000, '"x y" or ' * 200):
            assert len(search(conn, query.strip(), config=config, embed=WordEmbedder())) > 0


@pytest.mark.parametrize('args', [['status'], ['search', 'x'], ['get', 'a.md'], ['eval', 'cases.yaml']])
def test_a_mistyped_home_makes_no_database(run, tmp_path, args):
    (tmp_path / 'cases.yaml').write_text('cases: [{q: x, expect: [{path: a.md}]}]')
    args = [str(tmp_path / a) if a.endswith('.yaml') else a for a in args]
    done = run(*args, MERLIN_HOME=str(tmp_path / 'hoem'), DATABASE_URL='')
    assert done.returncode == 2 and 'nothing is indexed yet; run merlin ingest, or correct MERLIN_HOME' in done.stderr
    assert not (tmp_path / 'hoem').exists()


@pytest.mark.parametrize(
    'args, said',
    [(['mcp', '--port', '9'], '--port goes with --http'), (['ingest', '--reset'], '--reset goes with --pull')],
)
def test_an_option_without_the_one_it_belongs_to_is_refused(run, args, said):
    done = run(*args)
    assert done.returncode == 2 and said in done.stderr
