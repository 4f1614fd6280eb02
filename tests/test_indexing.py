"What a run lets the database do beside it: nothing is lost where that is not to be had, fails, or outlives the run."

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import psycopg
import pytest

from merlin import indexing
from merlin import ingest as running
from merlin.config import RepoConfig, load_config
from merlin.database import connect
from merlin.errors import FailedError
from merlin.indexing import beside
from merlin.ingest import ingest
from merlin.store import build_text_indexes
from merlin.testing import WordEmbedder, fixture_record

BUILT = "select indexname from pg_indexes where schemaname = current_schema() and indexname in ('chunks_tsv', 'chunks_trgm')"
KNOWN = "select count(*) from pg_stats where schemaname = current_schema() and tablename in ('documents', 'chunks')"


@pytest.fixture
def config(database, tmp_path):
    return replace(load_config({}), repos=(RepoConfig('', fixture_record(tmp_path / 'record')),), database=database)


def built(config):
    with connect(config.database) as conn:
        return sorted(name for (name,) in conn.execute(BUILT)), conn.execute(KNOWN).fetchone()[0] > 20


BOTH = (['chunks_trgm', 'chunks_tsv'], True)


def test_a_large_run_has_its_text_indexes_made_on_a_second_connection(config, monkeypatch):
    opened = []
    monkeypatch.setattr(running, 'APART', 0)
    monkeypatch.setattr(indexing, 'connect', lambda *args: opened.append(connect(*args)) or opened[-1])
    ingest(config, embed=WordEmbedder())
    assert len(opened) == 1 and opened[0].closed
    assert built(config) == BOTH


def refused(config):
    raise FailedError('too many connections')


def test_without_a_second_connection_the_run_makes_them_itself(config, monkeypatch):
    monkeypatch.setattr(running, 'APART', 0)
    monkeypatch.setattr(indexing, 'connect', refused)
    ingest(config, embed=WordEmbedder())
    assert built(config) == BOTH


def test_where_the_second_connection_is_lost_the_run_makes_them_itself(config, monkeypatch):
    def lost(conn, trigrams):
        if conn.info.backend_pid in seconds:
            conn.execute('select pg_terminate_backend(pg_backend_pid())')
        return build_text_indexes(conn, trigrams)

    def second(*args):
        conn = connect(*args)
        seconds.add(conn.info.backend_pid)
        return conn

    seconds: set[int] = set()
    monkeypatch.setattr(running, 'APART', 0)
    monkeypatch.setattr(running, 'build_text_indexes', lost)
    monkeypatch.setattr(indexing, 'connect', second)
    ingest(config, embed=WordEmbedder())
    assert seconds and built(config) == BOTH


def test_a_run_that_fails_does_not_wait_for_what_is_done_beside_it(database):
    begun = time.monotonic()
    with (
        pytest.raises(FailedError, match='by itself'),
        beside(database, lambda conn: conn.execute('select pg_sleep(60)')),
    ):
        raise FailedError('by itself')
    assert time.monotonic() - begun < 20


def test_what_is_wrong_in_our_own_code_comes_out(database):
    with pytest.raises(ZeroDivisionError), beside(database, lambda conn: 1 / 0):
        pass


def test_who_builds_after_a_run_that_was_killed_waits_for_its_builder(config):
    ingest(config, embed=WordEmbedder())
    with connect(config.database) as killed, connect(config.database) as conn, ThreadPoolExecutor(1) as thread:
        killed.execute('drop index chunks_tsv')
        with killed.transaction():
            assert build_text_indexes(killed, True)
            later = thread.submit(build_text_indexes, conn, True)
            with pytest.raises(TimeoutError):
                later.result(timeout=0.3)
        assert later.result(timeout=20) is False
    with pytest.raises(psycopg.errors.DuplicateTable), connect(config.database) as conn:
        conn.execute('create index chunks_tsv on chunks using gin (tsv)')
