"""The role that only reads: who makes it, what it may do, and whom the server refuses to read as."""

import secrets
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import date
from types import SimpleNamespace

import psycopg
import pytest
from psycopg import errors, sql

from merlin.config import RepoConfig, load_config
from merlin.database import connect
from merlin.errors import ConfigError, RefusedError
from merlin.history import host_history
from merlin.ingest import ingest
from merlin.role import ensure_role, fetch_rights, quoted, read_only, role_sql, role_sql_for, role_state
from merlin.search import search
from merlin.store import ALL_TABLES, build_hnsw, create_schema, create_tables, drop_tables, has_hnsw, read_meta
from merlin.testing import WordEmbedder, commit_all, run_git

PAGES = {
    'hosts/alpha.md': '---\nhost: alpha\naliases: [box]\n---\n# alpha\n\nThe database lives here.\n',
    'journal/2030-01-15.md': '# 2030-01-15\n\n## Dump failed\n\nThe nightly dump on alpha stopped: no space left.\n',
    'runbooks/restore.md': '# Restore\n\n## Database\n\nRestore the nightly dump, then run the checks.\n',
}  # fmt: skip
WRITES = [
    'insert into meta values (\'x\', \'1\')', "update meta set value = '1'", 'delete from chunks', 'truncate vectors',
    'create table {}.t ()', 'create temp table t ()', 'drop table meta', 'create schema merlin_test_never',
    'alter table meta add x int', 'select * from meta for update', "select nextval('documents_id_seq')",
    "select setval('documents_id_seq', 9)", 'create index on chunks (body)', "copy meta from stdin", 'analyze meta',
    "comment on table meta is 'x'", 'grant all on meta to public', 'with x as (delete from meta returning *) select * from x',
    'refresh materialized view meta', "select lo_create(0)", "do $$ begin delete from meta; end $$",
]  # fmt: skip
REFUSED = (errors.ReadOnlySqlTransaction, errors.InsufficientPrivilege, errors.WrongObjectType)
ACCESS = 'select relname, relacl::text from pg_class where relnamespace = to_regnamespace(%s) order by 1'
COUNTERS = """
select relname, n_tup_ins, n_tup_upd, n_tup_del from pg_stat_all_tables
where schemaname = %s order by 1
"""


@contextmanager
def account(config, options: str = 'nologin') -> Iterator[str]:
    "A role of the server for the block, gone afterwards with all that it owns and was granted."
    name = f'merlin_test_{secrets.token_hex(6)}'
    with connect(config) as conn:
        conn.execute(f'create role {quoted(name)} {options}')
    try:
        yield name
    finally:
        forget(config, name)


def forget(config, name: str) -> None:
    with connect(config) as conn:
        if conn.execute('select 1 from pg_roles where rolname = %s', [name]).fetchone():
            conn.execute(f'drop owned by {quoted(name)} cascade')
            conn.execute(f'drop role {quoted(name)}')


def own(config, name: str) -> None:
    "Make this user the owner of the index, as if it had ingested."
    with connect(config) as conn:
        schema = quoted(config.schema)
        conn.execute(f'alter schema {schema} owner to {quoted(name)}')
        for table in ALL_TABLES:
            conn.execute(f'alter table {schema}.{table} owner to {quoted(name)}')


def make_index(config) -> None:
    "An empty index; its schema may be called anything."
    with connect(config) as conn:
        create_schema(conn, config.schema)
        conn.execute(sql.SQL('set search_path to {}, public').format(sql.Identifier(config.schema)))
        create_tables(conn, 'test:words:64', 64)


@pytest.fixture
def role(backend):
    name = f'merlin_test_{secrets.token_hex(6)}'
    yield name
    forget(backend, name)


@pytest.fixture
def config(database, tmp_path):
    repo = tmp_path / 'record'
    repo.mkdir()
    run_git(repo, 'init', '--quiet')
    for path, text in PAGES.items():
        (repo / path).parent.mkdir(exist_ok=True)
        (repo / path).write_text(text)
    commit_all(repo, 'all')
    config = replace(load_config({}), repos=(RepoConfig('', repo),), database=database)
    ingest(config, embed=WordEmbedder())
    return config


def ensured(config, role: str) -> None:
    with connect(config) as conn:
        assert ensure_role(conn, config.schema, role) is None


def ask(conn, config, query='restore the nightly dump', **kwargs):
    return search(conn, query, config=config, embed=WordEmbedder(), today=date(2030, 3, 1), **kwargs)


def test_search_history_and_meta_work_as_the_role(config, role):
    database = config.database
    ensured(database, role)
    with connect(database) as conn:
        assert read_only(conn, database, role) == role
        assert conn.execute('select current_user').fetchone() == (role,)
        assert ask(conn, config)[0].path == 'runbooks/restore.md'
        assert ask(conn, config, 'no space left', exact=True)[0].path == 'journal/2030-01-15.md'
        history = host_history(conn, 'box', None, config=config, embed=WordEmbedder(), today=date(2030, 3, 1))
        assert 'journal/2030-01-15.md' in str(history)
        assert read_meta(conn)['counts']['documents'] == 3


def test_the_vector_graph_answers_as_the_role(config, role, monkeypatch):
    with connect(config.database) as conn:
        assert build_hnsw(conn, 64, parallel=False, minimum=1)
    ensured(config.database, role)
    with connect(config.database) as conn:
        read_only(conn, config.database, role)
        assert has_hnsw(conn)
        monkeypatch.setattr('merlin.legs.vector_leg.__defaults__', (0,))  # never an exact scan
        assert 'vector' in ask(conn, config)[0].reasons['legs']


@pytest.mark.parametrize('transactions', ['read only', 'read write'])
def test_nothing_can_be_written_as_the_role_not_even_in_writing_transactions(config, role, transactions):
    database = config.database
    ensured(database, role)
    beyond = ('create temp table', 'select lo_create') if transactions == 'read write' else ()  # PUBLIC may
    with connect(database) as conn:
        read_only(conn, database, role)
        conn.execute(f'set session characteristics as transaction {transactions}')
        before = conn.execute(ACCESS, [database.schema]).fetchall()
        for statement in WRITES:
            if statement.startswith(beyond or '-'):
                continue
            try:
                conn.execute(statement.format(quoted(database.schema)))
            except REFUSED:
                continue
            assert statement.startswith(('analyze', 'grant')), statement  # a mere warning
        assert conn.execute(ACCESS, [database.schema]).fetchall() == before


def settled(conn, schema: str) -> list[tuple]:
    "The counters, once the session that ingested has reported all of its own."
    deadline, last = time.monotonic() + 10, None
    while time.monotonic() < deadline:
        found = conn.execute(COUNTERS, [schema]).fetchall()
        if found == last and {row[0]: row[1] for row in found}['documents'] == len(PAGES):
            return found
        last = found
        time.sleep(0.1)
    raise AssertionError(last)


def test_answers_leave_the_counters_of_every_table_as_they_were(config, role):
    database = config.database
    ensured(database, role)
    with connect(database) as watcher, connect(database) as conn:
        before = settled(watcher, database.schema)
        read_only(conn, database, role)
        ask(conn, config)
        host_history(conn, 'alpha', 'dump', config=config, embed=WordEmbedder(), today=date(2030, 3, 1))
        conn.execute('select pg_stat_force_next_flush()')
        conn.execute('select 1')
        assert watcher.execute(COUNTERS, [database.schema]).fetchall() == before


def test_a_session_that_reads_is_bounded_in_time(config, role):
    ensured(config.database, role)
    with connect(config.database) as conn:
        read_only(conn, config.database, role)
        shown = [conn.execute(f'show {name}').fetchone()[0] for name in (
            'default_transaction_read_only', 'statement_timeout', 'idle_in_transaction_session_timeout')]  # fmt: skip
        assert shown == ['on', '5s', '1min']


def test_an_owner_without_the_role_is_refused_unless_told_otherwise(config, role):
    database = config.database
    with account(database, 'login') as owner:
        own(database, owner)
        with connect(database, user=owner) as conn, pytest.raises(RefusedError) as refused:
            read_only(conn, database, role)
        assert refused.value.exit_code == 3
        assert all(word in str(refused.value) for word in ('merlin db role', 'MERLIN_ALLOW_OWNER=1', owner))
        with connect(database, user=owner) as conn:
            assert read_only(conn, replace(database, allow_owner=True), role) == owner
            assert ask(conn, config)
            with pytest.raises(errors.ReadOnlySqlTransaction):
                conn.execute('delete from chunks')


def test_an_owner_who_may_make_no_role_is_told_how_and_an_administrator_makes_it(config, role):
    database = config.database
    with account(database, 'login') as owner:
        own(database, owner)
        with connect(database, user=owner) as conn, connect(database) as boss:
            note = ensure_role(conn, database.schema, role)
            assert note and 'is missing: see merlin db role' in note and '\n' not in note
            assert not role_state(boss, database.schema, role).made
            statements = role_sql_for(conn, database.schema, role)
            assert boss.execute(statements) and boss.execute(statements)  # twice does no harm
            assert ensure_role(conn, database.schema, role) is None
            assert read_only(conn, database, role) == role
            assert ask(conn, config)


def test_an_owner_who_may_make_roles_makes_it_alone(config, role):
    database = config.database
    with account(database, 'login createrole') as owner:
        own(database, owner)
        with connect(database, user=owner) as conn:
            assert ensure_role(conn, database.schema, role) is None
            assert read_only(conn, database, role) == role
            assert ask(conn, config)
        with connect(database) as boss:  # made by the owner, it would keep it alive
            boss.execute(f'drop owned by {quoted(role)}; drop role {quoted(role)}')


def test_a_role_that_others_made_is_granted_the_schema_but_not_to_oneself(config):
    database = config.database
    with account(database, 'login') as owner, account(database) as role:
        own(database, owner)
        with connect(database, user=owner) as conn:
            assert 'is not complete' in ensure_role(conn, database.schema, role)
            state = role_state(conn, database.schema, role)
            assert state.granted and not state.member
            with pytest.raises(RefusedError, match=f'role {role} is not granted to it'):
                read_only(conn, database, role)


def test_who_only_reads_needs_no_role(config, role):
    database = config.database
    with account(database, 'login') as reader:
        with connect(database) as conn:
            conn.execute(f'grant usage on schema {quoted(database.schema)} to {quoted(reader)}')
            conn.execute(f'grant select on all tables in schema {quoted(database.schema)} to {quoted(reader)}')
        with connect(database, user=reader) as conn:
            assert read_only(conn, database, role) == reader
            assert ask(conn, config)


@pytest.mark.parametrize('inherits', ['inherit', 'noinherit'])
def test_a_reader_with_a_login_reads_after_the_sql_was_run_for_it(config, role, inherits):
    database = config.database
    with account(database, f'login {inherits}') as reader, connect(database) as boss:
        with connect(database, user=reader) as conn:
            with pytest.raises(ConfigError, match=f'{reader} cannot read .*; have an administrator run'):
                read_only(conn, database, role)
            boss.execute(role_sql_for(conn, database.schema, role))
        with connect(database, user=reader) as conn:
            assert read_only(conn, database, role) == role
            assert ask(conn, config)
        assert role_state(boss, database.schema, role).granted  # tables to come are those of the owner


def test_a_rebuild_stays_readable_in_a_session_that_was_there_before(config, role):
    database = config.database
    ensured(database, role)
    with connect(database) as conn:
        read_only(conn, database, role)
        ingest(config, embed=WordEmbedder(), reembed_all=True)
        assert ask(conn, config)[0].path == 'runbooks/restore.md'
    with account(database, 'login') as owner:
        own(database, owner)
        with connect(database) as boss, connect(database, user=owner) as conn, connect(database, user=owner) as reader:
            boss.execute(role_sql(database.schema, role, owner))
            assert read_only(reader, database, role) == role
            with conn.transaction():
                drop_tables(conn, database.schema, ALL_TABLES)
                create_tables(conn, 'test:words:64', 64)
            assert read_meta(reader)['embed_dim'] == 64
            assert ensure_role(conn, database.schema, role) is None


def test_two_records_share_the_role_and_are_granted_one_by_one(database, role):
    other = replace(database, schema=database.schema + '_b')
    try:
        for config in (database, other):
            make_index(config)
        ensured(database, role)
        with connect(other) as conn, pytest.raises(RefusedError, match=f'{role} cannot read'):
            read_only(conn, other, role)
        ensured(other, role)
        for config in (database, other):
            with connect(config) as conn:
                assert read_only(conn, config, role) == role
                assert read_only(conn, config, role) == role  # asked again, it is the same
                assert read_meta(conn)
    finally:
        with connect(database) as conn:
            conn.execute(f'drop schema {quoted(other.schema)} cascade')


def test_runs_that_make_the_role_at_the_same_time_all_succeed(database, role):
    places = [replace(database, schema=f'{database.schema}_{n}') for n in range(4)]
    try:
        for config in places:
            make_index(config)
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda config: ensured(config, role), places))
    finally:
        with connect(database) as conn:
            for config in places:
                conn.execute(f'drop schema if exists {quoted(config.schema)} cascade')


def test_when_all_is_in_place_one_query_is_all(database, role):
    make_index(database)
    ensured(database, role)
    asked = []

    class Counting(psycopg.Cursor):
        def execute(self, query, *args, **kwargs):
            asked.append(query)
            return super().execute(query, *args, **kwargs)

    with connect(database) as conn:
        conn.cursor_factory = Counting
        assert ensure_role(conn, database.schema, role) is None
    assert len(asked) == 1


@pytest.mark.parametrize('name', ['we"ird', 'with spaces; drop', 'ümlaut $merlin$', "it's %s {x}", 'a\nb'])
def test_a_schema_and_a_role_may_be_called_anything(database, role, name):
    odd, reader = replace(database, schema=f'{name} {database.schema}'), f'{role} {name}'
    try:
        with connect(database) as conn:
            create_schema(conn, odd.schema)
            conn.execute(f'create table {quoted(odd.schema)}.meta (key text)')
            assert ensure_role(conn, odd.schema, reader) is None
            conn.execute(role_sql_for(conn, odd.schema, reader))
            assert read_only(conn, odd, reader) == reader
            assert conn.execute(f'select count(*) from {quoted(odd.schema)}.meta').fetchone() == (0,)
            conn.execute('reset role')
            conn.execute('set default_transaction_read_only = off')
            with pytest.raises(RefusedError) as refused:
                read_only(conn, odd, f'no\n{role}')
            assert '\n' not in str(refused.value)
    finally:
        with connect(database) as conn:
            conn.execute(f'drop schema if exists {quoted(odd.schema)} cascade')
        forget(database, reader)


@pytest.mark.parametrize(
    'mistake',
    [
        'grant delete on {schema}.chunks to public',
        'grant update (body) on {schema}.chunks to {role}',
        'grant usage on sequence {schema}.chunks_id_seq to {role}',
        'grant create on schema {schema} to {role}',
        'grant pg_write_all_data to {role}',
        'alter table {schema}.meta owner to {role}',
        'alter role {role} superuser',
        'alter role {role} createrole',
    ],
)
def test_a_role_that_could_write_after_all_is_refused(database, role, mistake):
    make_index(database)
    ensured(database, role)
    with connect(database) as conn:
        conn.execute(mistake.format(schema=quoted(database.schema), role=quoted(role)))
        with pytest.raises(RefusedError, match=f'and {role} (can|is|has)'):
            read_only(conn, database, role)
        assert conn.execute('select current_user <> %s', [role]).fetchone() == (True,)


def test_where_nothing_is_indexed_the_next_step_is_ingest(database, role):
    with connect(database) as conn:
        with pytest.raises(ConfigError, match='nothing is indexed yet; run merlin ingest'):
            read_only(conn, database, role)


def test_the_role_is_let_into_a_schema_of_extensions_that_is_not_open_to_all(backend, role):
    place = f'merlin_test_{secrets.token_hex(6)}'
    config = replace(backend, schema='merlin_test_index')
    with connect(backend) as boss:
        boss.execute(f'create database {place}')
    try:
        with connect(config, dbname=place) as conn:
            conn.execute('create schema extensions; create extension vector schema extensions')
            create_schema(conn, config.schema)
            create_tables(conn, 'test:words:64', 64)
            assert 'grant usage on schema "extensions"' in role_sql_for(conn, config.schema, role)
            assert ensure_role(conn, config.schema, role) is None
            assert read_only(conn, config, role) == role
            assert conn.execute("select '[1]'::vector <=> '[1]'").fetchone() == (0.0,)
            assert fetch_rights(conn, config.schema).unreadable == ()
            conn.execute('reset role')
            conn.execute('set default_transaction_read_only = off')
            conn.execute(f'revoke usage on schema extensions from {role}')
            with pytest.raises(RefusedError, match='cannot read schema extensions'):
                read_only(conn, config, role)
    finally:
        with connect(backend) as boss:
            boss.execute(f'drop database {place} with (force)')


def test_behind_a_pooler_nothing_is_set_that_another_client_would_get(database, role):
    class Pooled(psycopg.Connection):  # what PgBouncer does: it tells a number of its own
        @property
        def info(self):
            real = super().info
            return SimpleNamespace(backend_pid=real.backend_pid + 1, server_version=real.server_version)

    make_index(database)
    ensured(database, role)
    with (
        connect(database) as conn,
        Pooled.connect(conn.info.dsn, password=conn.info.password, autocommit=True) as pooled,
    ):
        pooled.execute(f'set search_path to {quoted(database.schema)}, public')
        with pytest.raises(RefusedError, match='a pooler stands before that server'):
            read_only(pooled, database, role)
        assert pooled.execute('show default_transaction_read_only').fetchone() == ('off',)
        assert read_only(pooled, replace(database, allow_owner=True), role) == role
