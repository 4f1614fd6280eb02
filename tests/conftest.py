"""What every test may use: one throwaway database for the whole run, a clean environment, a git identity.

Without xdist there is one process; with it there is a controller and several workers. The controller makes the run's
folder and removes it, database and all, when the last worker is done; the workers find it in the environment.
"""

import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from merlin.config import DatabaseConfig

RUN = 'MERLIN_TEST_RUN'  # the folder of this run
MADE = pytest.StashKey[Path]()  # the same folder, in the process that made it
URL = 'MERLIN_TEST_DATABASE_URL'  # a second database to test against, over the network
SCHEMA = 'merlin_test_'  # schemas of tests begin with it, nothing else does

OCCUPIED = """
select n.nspname from pg_class d
join pg_class m on m.relnamespace = d.relnamespace and m.relname = 'meta' and m.relkind in ('r', 'p')
join pg_namespace n on n.oid = d.relnamespace
where d.relname = 'documents' and d.relkind in ('r', 'p') and not starts_with(n.nspname, %s)
"""

GIT = {
    'GIT_AUTHOR_NAME': 'Ann Author',
    'GIT_AUTHOR_EMAIL': 'ann@example.invalid',
    'GIT_COMMITTER_NAME': 'Ann Author',
    'GIT_COMMITTER_EMAIL': 'ann@example.invalid',
    'GIT_CONFIG_GLOBAL': '/dev/null',
    'GIT_CONFIG_NOSYSTEM': '1',
    'GIT_CONFIG_COUNT': '1',
    'GIT_CONFIG_KEY_0': 'init.defaultBranch',
    'GIT_CONFIG_VALUE_0': 'main',
}


def is_worker(config: pytest.Config) -> bool:
    "Is this one of xdist's workers?"
    return hasattr(config, 'workerinput')


def refuse_live_database() -> None:
    "End the run when the database to test against holds somebody's index."
    from merlin.database import connect
    from merlin.errors import MerlinError

    try:
        with connect(DatabaseConfig(url=os.environ[URL])) as conn:
            found = [row[0] for row in conn.execute(OCCUPIED, [SCHEMA])]
    except MerlinError as error:
        pytest.exit(f'{URL}: {error}', returncode=error.exit_code)
    if found:
        pytest.exit(f'{URL}: schema {found[0]} holds an index; tests want a database of their own', returncode=3)


def roomy_folder() -> str | None:
    "Memory, where there is enough: a database there costs a tenth of the time. None: the usual place."
    memory = Path('/dev/shm')
    return str(memory) if os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > 2_000_000_000 else None


def pytest_configure(config: pytest.Config) -> None:
    "The controller prepares the run."
    if is_worker(config):
        return
    if os.environ.get(URL):
        refuse_live_database()
    config.stash[MADE] = Path(tempfile.mkdtemp(prefix='merlin-run-', dir=roomy_folder()))
    os.environ[RUN] = str(config.stash[MADE])
    os.environ.setdefault('MERLIN_TEST_LINGER', '60')  # seconds: also a run that is killed leaves no server behind


def pytest_unconfigure(config: pytest.Config) -> None:
    "The controller cleans up, after the last worker."
    run = config.stash.get(MADE, None)
    if run is None:
        return
    for folder in (*run.glob('*/database'), *run.glob('*/*/database')):
        from merlin.postgres import Server

        Server(folder.parent).stop()
    shutil.rmtree(run, ignore_errors=True)


def is_setting(name: str) -> bool:
    "Does merlin read this variable?"
    if name.startswith('MERLIN_TEST_'):
        return False
    others = ('DATABASE_URL', 'REPO_DIR', 'SECRET_HASHES', 'OPENAI_API_KEY', 'VOYAGE_API_KEY')
    return name in others or name.startswith(('MERLIN_', 'EMBED_'))


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    "No setting of the person who runs the tests reaches them; git knows who commits."
    for name in [name for name in os.environ if is_setting(name)]:
        monkeypatch.delenv(name)
    for name, value in GIT.items():
        monkeypatch.setenv(name, value)


@pytest.fixture(scope='session')
def run_folder() -> Path:
    "A folder of this run, shared by all workers; removed at its end, servers in it stopped."
    return Path(os.environ[RUN])


@pytest.fixture(scope='session')
def merlin_home(run_folder: Path) -> Path:
    "A MERLIN_HOME for all tests of the run, whose embedded server starts with its first use."
    return run_folder / 'home'


@pytest.fixture(scope='session', params=['embedded', 'server'])
def backend(request: pytest.FixtureRequest, merlin_home: Path) -> DatabaseConfig:
    "Each database that merlin must work on: its own, and a stand-alone one where the run was given one."
    if request.param == 'embedded':
        return DatabaseConfig(url=None, home=merlin_home)
    if not os.environ.get(URL):
        pytest.skip(f'{URL} is not set')
    return DatabaseConfig(url=os.environ[URL], home=merlin_home)


@pytest.fixture
def database(backend: DatabaseConfig) -> Iterator[DatabaseConfig]:
    "A database with the extensions made and a schema name of its own, dropped afterwards."
    from psycopg import sql

    from merlin.database import connect, prepare

    config = replace(backend, schema=f'{SCHEMA}{secrets.token_hex(6)}')
    with connect(config) as conn:
        prepare(conn)
    yield config
    with connect(config) as conn:
        conn.execute('set client_min_messages = warning')
        conn.execute(sql.SQL('drop schema if exists {} cascade').format(sql.Identifier(config.schema)))


@pytest.fixture
def conn(config):
    "A connection to the index of the module's `config`."
    from merlin.database import connect

    with connect(config.database) as connection:
        yield connection


@pytest.fixture
def person(monkeypatch, tmp_path):
    "A git user without a configuration of their own."
    for name in [n for n in os.environ if n.startswith('GIT_')]:
        monkeypatch.delenv(name)
    home = tmp_path / 'home'
    home.mkdir()
    (home / '.gitconfig').write_text('[user]\nname = Ann\nemail = ann@example.org\n[protocol "file"]\nallow = always\n')
    monkeypatch.setenv('HOME', str(home))
    monkeypatch.delenv('XDG_CONFIG_HOME', raising=False)
