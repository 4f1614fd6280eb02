"""Messages: no password, key, token or text of a document in any error, log, traceback or table, whatever goes wrong.

Every command is run with connection strings that libpq cannot read, with keys in every variable that takes one, and over
an index that refuses a row; what it says on either stream, what a logger hears at its most talkative, and what a
traceback would print, is searched for what must not be there.
"""

import logging
import secrets
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from test_mcp_server import PAGES, drop_schema, record

from merlin.cli import main
from merlin.config import Config, DatabaseConfig, RepoConfig, load_config
from merlin.database import connect, prepare
from merlin.errors import FailedError, MerlinError
from merlin.ingest import ingest
from merlin.protocol import run_tool
from merlin.secrets import hash_file, write_private
from merlin.service import Service
from merlin.store import read_meta
from merlin.testing import WordEmbedder
from merlin.tools import make_tools

SECRET = (
    'Wolke' + '-7319-' + 'Tal'
)  # made here, so that no line of the repository holds a password in a connection string
PASSWORD = f'ann:{SECRET}'
MALFORMED = (
    f'postgresql+asyncpg://{PASSWORD}@db/notes',
    f'postgresql://{PASSWORD} x@db/notes',
    f'postgresql://{PASSWORD}%ZZ@db/notes',
    f'postgresql://{PASSWORD}@x@db/notes',
    f'postgresql://{PASSWORD}/x@db/notes',
    f'postgresql://{PASSWORD}@[::1/notes',
    f'postgresql://{PASSWORD}@db:none/notes',
    f'postgresql://ann@db/notes?pasword={SECRET}',
    f'postgresql//{PASSWORD}@db/notes',
    f'host=db user=ann password {SECRET}',
    f"host=db user=ann password='{SECRET}",
    f'host=db user=ann pasword={SECRET}',
)
UNREACHABLE = f'postgresql://{PASSWORD}@127.0.0.1:1/notes'
COMMANDS = (
    ['ingest'], ['search', 'x'], ['search', 'x', '--json'], ['history', 'alpha'], ['get', 'a.md'], ['list'], ['status'],
    ['status', '--json'], ['diagnose'], ['eval', 'cases.yaml'], ['db', 'status'], ['db', 'role'], ['lint'], ['mcp', 'install'],
)  # fmt: skip


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    "A folder to run commands in: a record, a case file, a home without a database."
    record(tmp_path / 'record', PAGES)
    (tmp_path / 'cases.yaml').write_text('cases: [{q: x, expect: [{path: a.md}]}]')
    monkeypatch.chdir(tmp_path)
    for name, value in {'MERLIN_HOME': str(tmp_path / 'home'), 'REPO_DIR': str(tmp_path / 'record')}.items():
        monkeypatch.setenv(name, value)
    return tmp_path


def said(capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, argv: list[str]) -> tuple[int, str]:
    "The exit code of a command, and all that it said or logged."
    caplog.set_level(logging.DEBUG)
    try:
        code = main(argv)
    except SystemExit as stop:
        code = int(stop.code or 0)
    out = capsys.readouterr()
    return code, f'{out.out}\n{out.err}\n{caplog.text}'


@pytest.mark.parametrize('dsn', [*MALFORMED, UNREACHABLE])
def test_no_command_repeats_a_password_of_a_connection_string(place, monkeypatch, capsys, caplog, dsn):
    monkeypatch.setenv('DATABASE_URL', dsn)
    for argv in COMMANDS:
        code, text = said(capsys, caplog, argv)
        assert SECRET not in text and 'Traceback' not in text, argv
        local = argv[0] in ('lint', 'mcp')  # they need no database
        assert code in ((0, 1, 2) if local else (1, 2)), (argv, code, text)


@pytest.mark.parametrize('dsn', [*MALFORMED, UNREACHABLE])
def test_no_tool_and_no_traceback_repeats_it_either(place, capfd, dsn):
    config = replace(load_config({}), database=DatabaseConfig(url=dsn, home=place / 'home'))
    service = Service(lambda: config)
    for tool in make_tools(service.answer):
        arguments = {'query': 'x', 'host': 'alpha', 'path': 'a.md'}
        wanted = {name: value for name, value in arguments.items() if name in tool.input_schema.get('required', ())}
        out = run_tool(tool, wanted)
        assert out['isError'] and SECRET not in str(out)
        with pytest.raises(MerlinError) as caught:
            service.answer(tool.name, {'k': 1, 'exact': False, 'limit': 1, 'offset': 0, **arguments})
        assert SECRET not in printed(caught.value)
    assert SECRET not in ''.join(capfd.readouterr())


def printed(error: BaseException) -> str:
    "What a traceback would print, values of variables apart."
    return ''.join(traceback.format_exception(error))


# ---- keys


@pytest.fixture(scope='module')
def index(merlin_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Config]:
    "A small index in the embedded database."
    folder = tmp_path_factory.mktemp('messages')
    database = DatabaseConfig(url=None, home=merlin_home, schema=f'merlin_test_{secrets.token_hex(6)}')
    config = replace(load_config({}), repos=(RepoConfig('', record(folder / 'record', PAGES)),), database=database)
    with connect(database) as conn:
        prepare(conn)
    ingest(config, embed=WordEmbedder())
    yield config
    drop_schema(database)


def settings(config: Config, provider: str) -> Mapping[str, str]:
    "An environment with something secret in every variable that may hold it."
    key = 'key-' + SECRET
    return {
        'MERLIN_HOME': str(config.database.home), 'MERLIN_DB_SCHEMA': config.database.schema,
        'REPO_DIR': str(config.repos[0].dir), 'EMBED_PROVIDER': provider, 'EMBED_API_KEY': key, 'OPENAI_API_KEY': key,
        'VOYAGE_API_KEY': key, 'EMBED_URL': f'http://{PASSWORD}@127.0.0.1:1/v1?key={SECRET}',
        'EMBED_URL_QUERY': f'http://{PASSWORD}@127.0.0.1:1/v1', 'EMBED_MODEL': 'm', 'EMBED_TIMEOUT': '1', 'EMBED_BACH': key,
    }  # fmt: skip


@pytest.mark.parametrize('provider', ['openai', 'tei'])
def test_no_command_shows_a_key_or_the_password_of_an_embedding_server(
    index, place, monkeypatch, capsys, caplog, provider
):
    for name, value in settings(index, provider).items():
        monkeypatch.setenv(name, value)
    heard = {' '.join(argv): said(capsys, caplog, argv) for argv in COMMANDS}
    assert [command for command, (_, text) in heard.items() if SECRET in text or 'Traceback' in text] == []
    with connect(index.database) as conn:
        assert SECRET not in str(read_meta(conn))


# ---- texts of documents


REFUSING = "alter table chunks add constraint refused check (body not like '%apt clean%')"


def quotes(text: str) -> bool:
    "Whether a message holds words of a page."
    return 'vacuum the journal' in text or 'apt clean' in text


def test_a_row_that_the_database_refuses_is_not_quoted(index, tmp_path, caplog):
    caplog.set_level(logging.DEBUG)
    config = replace(index, database=replace(index.database, schema=f'merlin_test_{secrets.token_hex(6)}'))
    pages = {path: text for path, text in PAGES.items() if 'apt clean' not in text}
    repo = record(tmp_path / 'record', pages)
    config = replace(config, repos=(RepoConfig('', repo),))
    try:
        ingest(config, embed=WordEmbedder())
        with connect(config.database) as conn:
            conn.execute(REFUSING)
        record_more(repo)
        with pytest.raises(FailedError) as caught:
            ingest(config, embed=WordEmbedder())
        with connect(config.database) as conn:
            kept = str(read_meta(conn))
        assert 'refused' in str(caught.value)
        assert not quotes(str(caught.value)) and not quotes(kept) and not quotes(caplog.text)
        assert not quotes(printed(caught.value))
    finally:
        drop_schema(config.database)


def record_more(repo: Path) -> None:
    "The page that is going to be refused, committed."
    from test_mcp_server import write

    write(repo, {'runbooks/disk-full.md': PAGES['runbooks/disk-full.md']})


def test_what_an_embedder_says_of_a_text_reaches_no_table_with_a_secret_in_it(index, tmp_path):
    token, live = 'ghp_' + secrets.token_hex(18), 'sesam-' + secrets.token_hex(6)

    class Talkative(WordEmbedder):
        def embed_documents(self, texts: Any) -> Any:
            if any(text.startswith('[') for text in texts):  # sections, and not the sentence that tells models apart
                raise FailedError(f'cannot embed {token} and {live}', 'the embedder')
            return super().embed_documents(texts)

    hashes = tmp_path / 'hashes'
    write_private(hashes, hash_file([('door', live)], '00112233445566778899aabbccddeeff'))
    config = replace(index, redact=index.redact._replace(secret_hashes=str(hashes)))
    repo = record(tmp_path / 'record', {'a.md': f'# A\n\nthe words {live} and {token}\n'})
    config = replace(
        config,
        repos=(RepoConfig('', repo),),
        database=replace(config.database, schema='merlin_test_' + secrets.token_hex(6)),
    )
    try:
        with pytest.raises(FailedError):
            ingest(config, embed=Talkative())
        with connect(config.database) as conn:
            kept = str(read_meta(conn)) + str(conn.execute('select * from documents').fetchall())
        assert token not in kept and live not in kept
    finally:
        drop_schema(config.database)
