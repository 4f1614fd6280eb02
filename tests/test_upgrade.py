"""An index that an older merlin made, and a record with a troubled past: the next run makes of both what a clean rebuild makes."""

from dataclasses import replace

import pytest

from merlin.config import RepoConfig, load_config
from merlin.database import connect
from merlin.errors import MerlinError
from merlin.ingest import ingest
from merlin.store import read_meta
from merlin.testing import START, WordEmbedder, commit_all, fixture_record, run_git

# The tables of schema version 3, as merlin of 2026-11-30 made them; meta and vectors were what they are now.
VERSION_3 = r"""
create table documents (
    id bigint generated always as identity primary key,
    repo text not null,
    path text not null unique,
    type text not null,
    title text not null,
    date date,
    committed bigint,
    blob_sha text not null,
    fingerprint text not null,
    host jsonb,
    text text not null,
    redactions jsonb not null,
    warnings jsonb not null
);
create table chunks (
    id bigint generated always as identity primary key,
    document_id bigint not null references documents on delete cascade,
    ordinal int not null,
    repo text not null,
    type text not null,
    heading_path text[] not null,
    heading text not null,
    names text not null,
    body text not null,
    first_line int not null,
    last_line int not null,
    date date,
    hosts text[] not null,
    stale boolean not null,
    vector_id bigint references vectors,
    tsv tsvector not null,
    unique (document_id, ordinal)
);
create index chunks_tsv on chunks using gin (tsv);
create index chunks_hosts on chunks using gin (hosts);
create index chunks_type on chunks (type);
create index chunks_date on chunks (date);
create index chunks_stale on chunks (document_id) where stale;
create index chunks_vector on chunks (vector_id);
create index documents_date on documents (date);
create table lexical_postings (
    term text collate "C" not null,
    block int not null,
    entries int[] not null,
    primary key (term, block)
);
create index lexical_postings_block on lexical_postings (block);
create table lexical_chunks (chunk bigint primary key, length int not null);
create table lexical_totals (chunks bigint not null, length bigint not null, made_by text not null);
create index chunks_trgm on chunks using gin ((heading || E'\n' || names || E'\n' || body) gin_trgm_ops);
"""
TABLES = ('documents', 'chunks', 'lexical_postings', 'lexical_chunks', 'lexical_totals')
COLUMNS = """
select string_agg(quote_ident(column_name), ', ' order by ordinal_position) from information_schema.columns
where table_schema = current_schema() and table_name = %s
"""
ROWS = """
select d.path, d.repo, d.type, d.title, d.date, d.committed, d.blob_sha, d.host, d.text, d.redactions, d.warnings,
       c.ordinal, c.heading_path, c.heading, c.names, c.body, c.first_line, c.last_line, c.date, c.hosts, c.stale,
       v.embedding::text, c.tsv::text
from documents d left join chunks c on c.document_id = d.id left join vectors v on v.id = c.vector_id
order by d.path, c.ordinal
"""
SHAPE = """
select c.relname, a.attname, format_type(a.atttypid, a.atttypmod) from pg_class c
left join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
where c.relnamespace = current_schema()::regnamespace and c.relkind in ('r', 'i') order by 1, 2
"""


def made_old(conn):
    "Make an index of today one of schema version 3, with the same rows."
    with conn.transaction():
        for table in TABLES:
            conn.execute(f'create temp table old_{table} on commit drop as select * from {table}')
        conn.execute(f'drop table {", ".join(TABLES)}, chunks_gone cascade')
        conn.execute(VERSION_3)
        for table in TABLES:
            (names,) = conn.execute(COLUMNS, [table]).fetchone()
            conn.execute(f'insert into {table} ({names}) overriding system value select {names} from old_{table}')
        conn.execute("update meta set value = '3' where key = 'schema_version'")
        conn.execute("delete from meta where key = 'gap'")


@pytest.fixture
def config(database, tmp_path):
    return replace(load_config({}), repos=(RepoConfig('', fixture_record(tmp_path / 'record')),), database=database)


def test_an_index_of_schema_version_3_is_rebuilt_from_its_own_tables_and_keeps_its_vectors(config):
    ingest(config, embed=WordEmbedder())
    with connect(config.database) as conn:
        clean, shape = conn.execute(ROWS).fetchall(), conn.execute(SHAPE).fetchall()
        made_old(conn)
        assert ('chunks', 'folded', 'text') not in conn.execute(SHAPE).fetchall()
        assert conn.execute('select count(*) from chunks').fetchone()[0] > 50
    embed = WordEmbedder()
    report = ingest(config, embed=embed)
    assert [text for text in embed.calls if text.startswith('[')] == []
    assert 'index of schema version 3: rebuilt, vectors kept' in report.notes
    with connect(config.database) as conn:
        assert conn.execute(ROWS).fetchall() == clean and conn.execute(SHAPE).fetchall() == shape
        assert read_meta(conn)['schema_version'] > 3
    assert ingest(config, embed=embed).documents['unchanged'] == report.documents['new']


def test_two_records_with_merges_a_clock_that_ran_backwards_and_a_failed_pull_end_as_a_clean_rebuild(config, tmp_path):
    ours, theirs, there = tmp_path / 'ours', tmp_path / 'theirs', tmp_path / 'there'

    def write(repo, when, **pages):
        for name, text in pages.items():
            (repo / f'{name}.md').write_text(text)
        commit_all(repo, 'write', when)

    for repo in (ours, there):
        repo.mkdir()
        run_git(repo, 'init', '--quiet')
    write(ours, START, a='# A\n\none\n', b='# B\n\nsaw beta\n')
    write(there, START, c='# C\n\nthree\n', beta='---\ntype: host\nhost: beta\n---\n# beta\n\na box\n')
    run_git(tmp_path, 'clone', '--quiet', str(there), str(theirs))
    run_git(tmp_path, 'clone', '--quiet', '--bare', str(ours), str(tmp_path / 'ours.git'))
    run_git(ours, 'remote', 'add', 'origin', str(tmp_path / 'ours.git'))
    here = replace(config, repos=(RepoConfig('ours', ours), RepoConfig('theirs', theirs)))
    ingest(here, embed=WordEmbedder(), reembed_all=True)

    run_git(ours, 'checkout', '--quiet', '-b', 'side')
    write(ours, START - 900_000, a='# A\n\none\n\ntwo, written before one\n')  # the clock was ten days behind
    run_git(ours, 'checkout', '--quiet', 'main')
    write(ours, START + 50, d='# D\n\nfour\n')
    run_git(ours, 'merge', '--quiet', '-m', 'merge', 'side', when=START - 5)
    ingest(here, embed=WordEmbedder())

    write(there, START - 7, c='# C\n\nthree, and more of it\n')
    (there / 'beta.md').unlink()
    commit_all(there, 'beta is gone', START - 3)
    there.rename(tmp_path / 'away')
    with pytest.raises(MerlinError):
        ingest(here, embed=WordEmbedder(), pull=True)
    (tmp_path / 'away').rename(there)
    write(ours, START + 60, b='# B\n\nsaw gamma\n')
    ingest(here, embed=WordEmbedder(), pull=True)
    with connect(here.database) as conn:
        grown = conn.execute(ROWS).fetchall()
    ingest(here, embed=WordEmbedder(), reembed_all=True)
    with connect(here.database) as conn:
        assert grown == conn.execute(ROWS).fetchall()
        assert sorted({row[0] for row in grown}) == ['ours/a.md', 'ours/b.md', 'ours/d.md', 'theirs/c.md']
