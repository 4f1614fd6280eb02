"""Ingest against a real database: what is done, what is not done again, what a killed or refused run leaves behind."""

import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from merlin import indexing
from merlin.config import RepoConfig, load_config
from merlin.database import connect
from merlin.errors import ConfigError, FailedError, RefusedError
from merlin.ingest import ingest
from merlin.redact import Redactor
from merlin.search import search
from merlin.secrets import hash_file
from merlin.status import rules_changed
from merlin.store import build_hnsw, lock_key, read_meta
from merlin.testing import START, WordEmbedder, commit_all, fixture_record, run_git
from merlin.vectors import TextRefused

ROWS = """
select d.path, d.repo, d.type, d.title, d.date, d.committed, d.blob_sha, d.host, d.text, d.redactions, d.warnings,
       c.ordinal, c.heading_path, c.body, c.first_line, c.last_line, c.date, c.hosts, c.stale, encode(v.text_sha, 'hex'),
       v.embedding::text, c.tsv::text
from documents d left join chunks c on c.document_id = d.id left join vectors v on v.id = c.vector_id
order by d.path, c.ordinal
"""


@pytest.fixture
def record(tmp_path):
    return fixture_record(tmp_path / 'record')


@pytest.fixture
def config(database, record):
    return replace(load_config({}), repos=(RepoConfig('', record),), database=database)


def query(config, statement, *params):
    with connect(config.database) as conn:
        return conn.execute(statement, params).fetchall()


def paths(config):
    return [p for (p,) in query(config, 'select path from documents order by path')]


def small(tmp_path, **files) -> Path:
    "A record of a few files."
    repo = tmp_path / f'small-{len(list(tmp_path.iterdir()))}'
    repo.mkdir()
    run_git(repo, 'init', '--quiet')
    return write(repo, **files)


def write(repo: Path, when: int = START, **files) -> Path:
    for name, text in files.items():
        path = repo / name.replace('__', '/')
        path = path.with_name(path.name + '.md')
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding='utf-8')
    commit_all(repo, 'write', when)
    return repo


def on(config, *repos) -> object:
    named = len(repos) > 1
    return replace(config, repos=tuple(RepoConfig(r.name if named else '', r) for r in repos))


def test_the_fixture_record_is_indexed_whole_and_a_second_run_does_no_work(config):
    embed = WordEmbedder()
    first = ingest(config, embed=embed)
    assert first.documents['new'] == len(paths(config)) > 25
    assert first.embedded == len(sections(embed)) > 50
    embed.calls.clear()
    second = ingest(config, embed=embed)
    assert second.documents == {'new': 0, 'changed': 0, 'unchanged': first.documents['new'], 'removed': 0}
    assert (embed.calls, second.chunks, second.warnings) == ([], 0, [])


def test_an_edited_section_embeds_only_itself(config, tmp_path):
    repo = small(tmp_path, a='# A\n\n## One\n\nfirst\n\n## Two\n\nsecond\n')
    embed = WordEmbedder()
    ingest(on(config, repo), embed=embed)
    write(repo, a='# A\n\nnew opening\n\n## One\n\nfirst\n\n## Two\n\nsecond, changed\n')
    embed.calls.clear()
    report = ingest(on(config, repo), embed=embed)
    assert report.documents['changed'] == 1
    assert sorted(t for t in embed.calls if 'changed' in t or 'opening' in t) == sorted(sections(embed))
    assert report.reused == 1


def sections(embed):
    "What was embedded, without the canary."
    return [t for t in embed.calls if t.startswith('[')]


def test_a_renamed_file_embeds_its_own_sections_and_nothing_else(config, record):
    embed = WordEmbedder()
    ingest(config, embed=embed)
    old = next(p for p in paths(config) if p.startswith('runbooks/'))
    new = 'runbooks/renamed-by-test.md'
    run_git(record, 'mv', old, new)
    commit_all(record, 'rename')
    embed.calls.clear()
    report = ingest(config, embed=embed)
    assert report.documents['new'] == report.documents['removed'] == 1
    assert sections(embed) and all(f'] {new}' in t.split('\n')[0] for t in sections(embed))
    assert old not in paths(config) and new in paths(config)


def test_a_deleted_file_is_gone_with_its_sections_and_vectors(config, tmp_path):
    repo = small(tmp_path, a='# A\n\nalpha\n', b='# B\n\nbeta\n')
    ingest(on(config, repo), embed=WordEmbedder())
    (repo / 'b.md').unlink()
    commit_all(repo, 'drop b')
    assert ingest(on(config, repo), embed=WordEmbedder()).documents['removed'] == 1
    assert paths(config) == ['a.md']
    assert query(config, 'select (select count(*) from chunks), (select count(*) from vectors)') == [(1, 1)]


def test_several_repos_are_one_record_and_hosts_in_one_tag_mentions_in_the_other(config, tmp_path):
    notes = small(tmp_path, journal='# Day\n\nsaw gamma fail\n')
    infra = small(tmp_path, hosts__gamma='---\nhost: gamma\n---\n# gamma\n\nrole: test\n')
    rules = replace(config.layout, rules=(*(type(r)(f'*/{r.glob}', r.type) for r in config.layout.rules),))
    both = replace(on(config, notes, infra), layout=rules)
    ingest(both, embed=WordEmbedder())
    assert paths(both) == sorted([f'{notes.name}/journal.md', f'{infra.name}/hosts/gamma.md'])
    assert query(both, "select hosts from chunks where repo = %s", notes.name) == [(['gamma'],)]


def test_a_repo_that_cannot_be_read_stops_the_run_before_anything_is_written(config, tmp_path):
    notes, infra = small(tmp_path, a='# A\n\ntext\n'), small(tmp_path, b='# B\n\ntext\n')
    both = on(config, notes, infra)
    ingest(both, embed=WordEmbedder())
    before = query(both, ROWS)
    write(notes, a='# A\n\nchanged\n')
    shutil.rmtree(infra)
    with pytest.raises(ConfigError):
        ingest(both, embed=WordEmbedder())
    assert query(both, ROWS) == before


def test_a_secret_added_to_the_hash_file_cleans_old_text_and_embeds_only_what_changed(config, tmp_path):
    import hashlib

    secret = 'Herbst' + '-' + '2031'
    repo = small(tmp_path, a=f'# A\n\nthe login is {secret}\n', b='# B\n\nnothing here\n')
    embed = WordEmbedder()
    ingest(on(config, repo), embed=embed)
    assert query(config, 'select count(*) from documents where text like %s', f'%{secret}%') == [(1,)]
    salt = '00112233445566778899aabbccddeeff'
    file = tmp_path / 'hashes'
    file.write_text(f'salt {salt}\n{hashlib.sha256((salt + secret).encode()).hexdigest()}\tipmi\n')
    file.chmod(0o600)
    guarded = replace(on(config, repo), redact=config.redact._replace(secret_hashes=str(file)))
    embed.calls.clear()
    report = ingest(guarded, embed=embed)
    assert report.redactions == {'ipmi': 1}
    assert [note for note in report.notes if note.startswith(f'{file}: nothing says how many hashes')]
    assert len(sections(embed)) == 1
    everything = str(query(config, ROWS)) + str(query(config, 'select * from meta'))
    assert secret not in everything and '[REDACTED:ipmi]' in everything


def test_hashes_that_are_not_named_any_more_refuse_until_told(config, tmp_path):
    file = tmp_path / 'hashes'
    file.write_text(hash_file([('door', 'Herbst' + '-' + '2031')], '00112233445566778899aabbccddeeff'))
    file.chmod(0o600)
    guarded = replace(config, redact=config.redact._replace(secret_hashes=str(file)))
    assert not any('how many hashes' in note for note in ingest(guarded, embed=WordEmbedder()).notes)  # it is sealed
    with pytest.raises(RefusedError, match='none is named now.*--without-hashes'):
        ingest(config, embed=WordEmbedder())
    ingest(guarded, embed=WordEmbedder())
    ingest(config, embed=WordEmbedder(), without_hashes=True)
    ingest(config, embed=WordEmbedder())


def test_a_broken_hash_file_refuses_and_is_recorded(config, tmp_path):
    ingest(config, embed=WordEmbedder())
    guarded = replace(config, redact=config.redact._replace(secret_hashes=str(tmp_path / 'missing')))
    with pytest.raises(RefusedError) as refused:
        ingest(guarded, embed=WordEmbedder())
    assert refused.value.exit_code == 3
    with connect(config.database) as conn:
        assert read_meta(conn)['last_ingest_error']['exit_code'] == 3


def test_a_new_host_record_tags_older_documents_without_embedding_them_again(config, tmp_path):
    repo = small(tmp_path, journal__2030_01_15='# Day\n\nrebooted delta twice\n')
    embed = WordEmbedder()
    ingest(on(config, repo), embed=embed)
    write(repo, hosts__delta='---\nhost: delta\n---\n# delta\n\na box\n')
    embed.calls.clear()
    ingest(on(config, repo), embed=embed)
    assert query(
        config,
        "select hosts from chunks where path_of(document_id) like 'journal%%'".replace(
            'path_of(document_id)', '(select path from documents d where d.id = document_id)'
        ),
    ) == [(['delta'],)]
    assert all('delta.md' in t for t in sections(embed))


def test_another_model_is_refused_until_everything_is_embedded_again(config, record):
    class Other(WordEmbedder):
        identity = 'test:other:64'

    ingest(config, embed=WordEmbedder())
    write(record, note='# Note\n\nmore\n')
    with pytest.raises(RefusedError, match='index was built with test:words:64; configured test:other:64'):
        ingest(config, embed=Other())
    embed = Other()
    report = ingest(config, embed=embed, reembed_all=True)
    assert report.embedded == len(sections(embed)) > 50
    with connect(config.database) as conn:
        assert read_meta(conn)['embed_model_id'] == 'test:other:64'


def test_a_model_of_the_same_name_with_other_vectors_is_refused(config, record):
    class Drifted(WordEmbedder):
        def _embed(self, text):
            vector = super()._embed(text)
            return type(vector)('f', [-x if n % 3 else x for n, x in enumerate(vector)])

    ingest(config, embed=WordEmbedder())
    write(record, note='# Note\n\nmore\n')
    with pytest.raises(RefusedError, match='no longer gives the vectors'):
        ingest(config, embed=Drifted())


def test_another_record_is_refused_and_a_second_clone_of_the_same_is_not(config, record, tmp_path):
    ingest(config, embed=WordEmbedder())
    other = small(tmp_path, a='# Other\n\nrecord\n')
    with pytest.raises(RefusedError, match='--replace'):
        ingest(on(config, other), embed=WordEmbedder())
    clone = tmp_path / 'clone'
    run_git(tmp_path, 'clone', '--quiet', str(record), str(clone))
    assert ingest(on(config, clone), embed=WordEmbedder()).documents['new'] == 0
    report = ingest(on(config, other), embed=WordEmbedder(), replace_record=True)
    assert (report.documents['new'], paths(config)) == (1, ['a.md'])


def test_two_at_once_the_second_says_so_and_does_nothing(config):
    class Nested(WordEmbedder):
        inner = None

        def embed_documents(self, texts):
            if self.inner is None:
                self.inner = ingest(config, embed=WordEmbedder())
            return super().embed_documents(texts)

    embed = Nested()
    outer = ingest(config, embed=embed)
    assert outer.documents['new'] > 0
    assert embed.inner.documents['new'] == 0 and 'another ingest' in embed.inner.notes[0]


def test_an_embedder_that_goes_down_keeps_what_was_done_and_the_next_run_ends_it(config):
    class Dying(WordEmbedder):
        def embed_documents(self, texts):
            if len(self.calls) > 40:
                raise FailedError('the embedding server is down', hint='start it')
            return super().embed_documents(texts)

    with pytest.raises(FailedError):
        ingest(config, embed=Dying())
    done = len(paths(config))
    with connect(config.database) as conn:
        meta = read_meta(conn)
    assert done > 0 and 'down' in meta['last_ingest_error']['text'] and not meta.get('state')
    report = ingest(config, embed=WordEmbedder())
    assert report.documents['unchanged'] == done and report.documents['new'] > 0


def test_a_lost_database_is_one_clear_failure(config, database):
    class Cutting(WordEmbedder):
        def embed_documents(self, texts):
            if texts and texts[0].startswith('['):
                with connect(database) as other:
                    high, low = divmod(lock_key(database.schema) % 2**64, 2**32)
                    other.execute(
                        'select pg_terminate_backend(pid) from pg_locks where locktype = %s and classid = %s and objid = %s',
                        ('advisory', high, low),
                    )
            return super().embed_documents(texts)

    with pytest.raises(FailedError) as failed:
        ingest(config, embed=Cutting())
    assert failed.value.exit_code == 1 and '\n' not in str(failed.value)
    assert ingest(config, embed=WordEmbedder()).documents['new'] > 0


KILLED = """
import os, signal, sys
from dataclasses import replace
from pathlib import Path
from merlin.config import RepoConfig, DatabaseConfig, load_config
from merlin import indexing as module
from merlin import ingest as running
from merlin.ingest import ingest
from merlin.testing import WordEmbedder
url, schema, home, repo, after = sys.argv[1:]
config = replace(load_config({}), repos=(RepoConfig('', Path(repo)),),
                 database=DatabaseConfig(url=url or None, schema=schema, home=Path(home)))
left = int(after)
def write(conn, *args):
    global left
    left -= 1
    if left < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return original(conn, *args)
original = module.write_documents
module.write_documents = write
running.WINDOW = 1  # each document in a transaction of its own
embed = WordEmbedder()
embed.batch = 0
ingest(config, embed=embed)
"""


LATER = START + 10_000_000  # after every commit of the example record


class Leaving(WordEmbedder):
    "An embedder that goes away after some windows of sections."

    left = 1

    def embed_documents(self, texts):
        if texts[0].startswith('['):  # a section's header
            self.left -= 1
            if self.left < 0:
                raise FailedError('the embedding server went away')
        return super().embed_documents(texts)


def test_a_run_by_other_rules_that_failed_half_way_leaves_nothing_to_trust(config):
    ingest(config, embed=WordEmbedder())
    clean = query(config, ROWS)
    layout, chunk = replace(config.layout, host_types=()), config.chunk._replace(max_tokens=60)
    with pytest.raises(FailedError, match='went away'):
        ingest(replace(config, layout=layout, chunk=chunk), embed=Leaving())
    assert query(config, ROWS) != clean
    ingest(config, embed=WordEmbedder())
    assert query(config, ROWS) == clean


def test_while_weaker_rules_are_half_way_in_the_key_does_not_come_out(config, record):
    lines = '\n'.join(f'{n:02}' + 'k3Y' * 20 for n in range(90))
    sections = '\n\n'.join(f'## Part {n}\n\n{lines}' for n in range(3))
    key = f'-----BEGIN {"PRIVATE"} KEY-----\n{sections}\n-----END {"PRIVATE"} KEY-----'
    (record / 'runbooks/key.md').write_text(f'# Key\n\n{key}\n')
    commit_all(record, 'key', LATER)
    ingest(config, embed=WordEmbedder())
    leaving = Leaving()
    weaker = replace(
        config, redact=config.redact._replace(disable=('private_key',)), chunk=config.chunk._replace(max_tokens=60)
    )
    with pytest.raises(FailedError, match='went away'):
        ingest(weaker, embed=leaving)
    assert query(config, "select count(*) from chunks where body like '%%k3Yk3Y%%'") != [(0,)]
    redactor = Redactor()
    with connect(config.database) as conn:
        assert rules_changed(read_meta(conn), config, redactor), 'so that the server redacts whole documents anew'
    ingest(config, embed=WordEmbedder())
    with connect(config.database) as conn:
        assert not rules_changed(read_meta(conn), config, redactor)
    assert query(config, "select count(*) from chunks where body like '%%k3Yk3Y%%'") == [(0,)]


def test_a_page_that_cannot_be_stored_is_tried_again_and_does_not_stay_as_it_was(config, record, monkeypatch):
    def write(conn, records, *args):
        if any('refuse me' in r.text for r in records):
            raise psycopg.DataError('no')
        return original(conn, records, *args)

    ingest(config, embed=WordEmbedder())
    original = indexing.write_documents
    monkeypatch.setattr(indexing, 'write_documents', write)
    page = record / 'hosts/beta.md'
    page.write_text('# Beta\n\nrefuse me\n')
    commit_all(record, 'refused', LATER)
    report = ingest(config, embed=WordEmbedder())
    assert 'not-stored' in [w.kind for w in report.warnings if w.path == 'hosts/beta.md']
    assert 'hosts/beta.md' not in paths(config)
    (record / 'hosts/alpha.md').write_text('# Alpha\n')
    commit_all(record, 'another', LATER + 1)
    assert 'not-stored' in {w.kind for w in ingest(config, embed=WordEmbedder()).warnings}, 'tried again, told again'
    monkeypatch.undo()
    (record / 'hosts/alpha.md').write_text('# Alpha, again\n')
    commit_all(record, 'a third', LATER + 2)
    ingest(config, embed=WordEmbedder())
    assert 'hosts/beta.md' in paths(config)


def test_vectors_that_a_failed_rebuild_left_behind_are_swept_by_the_next_run(config, record):
    ingest(config, embed=WordEmbedder())
    with connect(config.database) as conn:
        conn.execute("update meta set value = '0' where key = 'schema_version'")
    for page in ('hosts/beta.md', 'journal/2030-01-15.md'):
        (record / page).write_text('# Changed\n\nall of it\n')
    commit_all(record, 'change')
    leaving = Leaving()
    leaving.left = 0
    with pytest.raises(FailedError):
        ingest(config, embed=leaving)
    ingest(config, embed=WordEmbedder())
    unused = 'select count(*) from vectors v where not exists (select from chunks c where c.vector_id = v.id)'
    assert query(config, unused) == [(0,)]


POSTINGS = """
select p.term, d.path, c.ordinal, e & ((1 << 21) - 1) from lexical_postings p cross join unnest(p.entries) e
join chunks c on c.id = p.block::bigint * 1024 + (e >> 21) join documents d on d.id = c.document_id order by 1, 2, 3
"""


def whole_state(config) -> tuple:
    "Rows, postings, counts and warnings; what ids and times there are does not count."
    with connect(config.database) as conn:
        meta = read_meta(conn)
        return (
            query(config, ROWS), query(config, 'select count(*) from vectors'), conn.execute(POSTINGS).fetchall(),
            conn.execute('select chunks, length from lexical_totals').fetchone(), meta['counts'],
            sorted(map(tuple, meta['warnings']), key=str), meta['fingerprint'],
        )  # fmt: skip


def edits(repo: Path):
    "One edit after another, each of a kind of its own; whoever asks for the next one commits the last."
    page, host = repo / 'runbooks/one.md', repo / 'hosts/alpha.md'
    yield page.write_text('# One\n\nfirst on alpha\n')
    before = page.read_text()
    yield page.write_text('# One\n\nsecond, password = hunter2hunter2\n')
    page.write_text('third')
    commit_all(repo, 'there', LATER)
    yield page.write_text('# One\n\nsecond, password = hunter2hunter2\n')  # and back: only its date is new
    yield page.rename(repo / 'runbooks/two.md')
    yield host.write_text(host.read_text() + '\nNothing of its names has changed.\n')
    yield host.write_text(host.read_text().replace('alpha', 'omega'))  # all documents are tagged anew
    yield (repo / 'runbooks/link.md').symlink_to('two.md')
    (repo / 'runbooks/link.md').unlink()
    commit_all(repo, 'without', LATER)
    yield (repo / 'runbooks/link.md').symlink_to('two.md')  # there and back: its warning stays
    yield (repo / 'runbooks/two.md').write_text('# Two\n\n```\nnever closed\n')
    (repo / 'runbooks/link.md').unlink()
    yield (repo / 'runbooks/link.md').write_text(before)  # no link any more
    (repo / 'runbooks/two.md').unlink()
    yield (repo / 'runbooks/two.md').symlink_to('link.md')  # a page no more
    run_git(repo, 'checkout', '--quiet', '-b', 'side', 'HEAD~2')
    (repo / 'memory').mkdir(exist_ok=True)
    (repo / 'memory/side.md').write_text('# Side\n\nwritten beside\n')
    commit_all(repo, 'side', LATER)
    run_git(repo, 'checkout', '--quiet', '-')
    yield run_git(repo, 'merge', '--quiet', '-m', 'merge', 'side', when=LATER)
    yield (repo / f'memory/ghp_{"a1B2" * 9}.md').write_text('# Named\n\nafter a secret\n')
    yield (repo / 'memory/side.md').write_text('# Side\n\nagain\n')
    run_git(repo, 'rm', '--quiet', '-r', 'memory')
    yield None


def test_a_look_at_what_was_touched_finds_what_a_look_at_everything_finds(config, record, database):
    if database.url:
        pytest.skip('a quarter of a minute, and no different there')
    ingest(config, embed=WordEmbedder())
    other = replace(config, database=replace(config.database, schema=f'{config.database.schema}_b'))
    short = 0
    try:
        for n, _ in enumerate(edits(record)):
            commit_all(record, f'edit {n}', LATER + 1000 * n)
            report = ingest(config, embed=WordEmbedder())
            short += report.documents['unchanged'] > 20 and report.documents['changed'] < 20
            ingest(other, embed=WordEmbedder(), reembed_all=True)
            assert whole_state(config) == whole_state(other), n
            assert sum(report.documents.values()) - report.documents['removed'] == len(paths(config))
    finally:
        with connect(config.database) as conn:
            conn.execute(f'drop schema if exists "{other.database.schema}" cascade')
    assert short > 8


@pytest.mark.parametrize('after', [0, 1, 17])
def test_a_killed_ingest_then_another_equals_a_clean_rebuild(config, record, database, after):
    args = [database.url or '', database.schema, str(database.home), str(record), str(after)]
    killed = subprocess.run([sys.executable, '-c', textwrap.dedent(KILLED), *args], capture_output=True, text=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert len(paths(config)) == after
    with connect(config.database) as conn:
        assert read_meta(conn)['running']
    ingest(config, embed=WordEmbedder())
    continued = query(config, ROWS)
    ingest(config, embed=WordEmbedder(), reembed_all=True)
    assert continued == query(config, ROWS)


def test_an_index_of_an_older_schema_is_rebuilt_and_its_vectors_are_kept(config):
    ingest(config, embed=WordEmbedder())
    before = query(config, ROWS)
    with connect(config.database) as conn:
        conn.execute("update meta set value = '0' where key = 'schema_version'")
    embed = WordEmbedder()
    report = ingest(config, embed=embed)
    assert sections(embed) == [] and any('schema version 0' in note for note in report.notes)
    assert query(config, ROWS) == before


def test_secrets_links_and_submodules_in_the_tree_are_warned_about(config, tmp_path):
    token = 'ghp_' + 'aB3' * 12
    repo = small(tmp_path, **{f'notes__{token}': '# N\n\ntext\n'})
    os.symlink('/etc/passwd', repo / 'link.md')
    head = commit_all(repo, 'link')
    run_git(repo, 'update-index', '--add', '--cacheinfo', f'160000,{head},module')
    run_git(repo, 'commit', '--quiet', '-m', 'module')
    report = ingest(on(config, repo), embed=WordEmbedder())
    kinds = {w.kind for w in report.warnings}
    assert {'secret-in-path', 'symlink', 'submodule'} <= kinds
    assert len(paths(config)) == 1
    everything = str(query(config, ROWS)) + str(query(config, 'select * from meta')) + str(report)
    assert token not in everything and 'root:' not in everything


def test_nothing_is_ever_written_to_the_record(config, record):
    def state():
        files = {p: (p.stat().st_mtime_ns, p.stat().st_size) for p in sorted(record.rglob('*')) if p.is_file()}
        return files, run_git(record, 'for-each-ref')

    before = state()
    ingest(config, embed=WordEmbedder())
    ingest(config, embed=WordEmbedder())
    assert state() == before


def test_a_run_without_work_asks_git_once_and_loads_no_model(config, record, tmp_path):
    ingest(config, embed=WordEmbedder())
    traced = tmp_path / 'git.trace'
    code = textwrap.dedent(f"""
        import sys
        from dataclasses import replace
        from pathlib import Path
        from merlin.config import RepoConfig, DatabaseConfig, load_config
        from merlin.ingest import ingest
        config = replace(load_config({{}}), repos=(RepoConfig('', Path({str(record)!r})),),
                         database=DatabaseConfig(url={config.database.url!r}, schema={config.database.schema!r}, home=Path({str(config.database.home)!r})))
        report = ingest(config)
        assert report.chunks == 0 and report.documents['new'] == 0, report
        heavy = {{'numpy', 'onnxruntime', 'tokenizers', 'httpx', 'yaml', 'pandas', 'matplotlib'}} & set(sys.modules)
        assert not heavy, heavy
    """)
    shim = tmp_path / 'bin'
    shim.mkdir()
    (shim / 'git').write_text(f'#!/bin/sh\necho "$@" >> {traced}\nexec {shutil.which("git")} "$@"\n')
    (shim / 'git').chmod(0o755)
    env = {**os.environ, 'PATH': f'{shim}:{os.environ["PATH"]}'}
    done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    assert len(traced.read_text().splitlines()) == 1


def test_every_warning_of_a_document_is_stored_with_it_and_counted(config):
    report = ingest(config, embed=WordEmbedder())
    kinds = {w.kind for w in report.warnings}
    assert len(kinds) >= 10, sorted(kinds)
    with connect(config.database) as conn:
        counted = read_meta(conn)['counts']['warnings']
        general = read_meta(conn)['warnings']
    stored = sum(n for (n,) in query(config, 'select jsonb_array_length(warnings) from documents'))
    assert sum(counted.values()) == stored + len(general) == len(report.warnings)
    assert 'host-claim' in counted
    assert all(re.fullmatch(r'[a-z][a-z0-9-]+', kind) for kind in kinds)


def test_pull_brings_new_commits_and_a_rewritten_history_is_refused_until_reset(config, tmp_path):
    origin = small(tmp_path, a='# A\n\nfirst\n')
    mirror = tmp_path / 'mirror.git'
    run_git(tmp_path, 'clone', '--quiet', '--mirror', str(origin), str(mirror))
    here = on(config, mirror)
    ingest(here, embed=WordEmbedder(), pull=True)
    write(origin, when=START + 60, a='# A\n\nsecond\n')
    assert ingest(here, embed=WordEmbedder(), pull=True).documents['changed'] == 1
    write(origin, when=START + 90, a='# A\n\nother\n')
    run_git(origin, 'reset', '--quiet', '--hard', 'HEAD~2')
    write(origin, when=START + 120, a='# A\n\nthird\n')
    with pytest.raises(FailedError, match='--reset'):
        ingest(here, embed=WordEmbedder(), pull=True)
    assert 'second' in query(config, 'select text from documents')[0][0]
    ingest(here, embed=WordEmbedder(), pull=True, reset=True)
    assert 'third' in query(config, 'select text from documents')[0][0]
    with connect(config.database) as conn:
        assert read_meta(conn)['fetched']['']


def test_a_database_that_was_never_ingested_says_what_to_run(config):
    with connect(config.database) as conn, pytest.raises(ConfigError, match='run merlin ingest'):
        search(conn, 'anything', config=config, embed=WordEmbedder())


def test_tables_of_other_programs_in_public_are_left_alone(config, database):
    with connect(database) as conn:
        conn.execute('create schema if not exists public')
        conn.execute('create table if not exists public.meta (key text primary key, value jsonb not null)')
        conn.execute('create table if not exists public.documents (foreign_to_us int)')
        conn.execute("insert into public.meta values ('schema_version', '7') on conflict do nothing")
    try:
        assert ingest(config, embed=WordEmbedder()).documents['new'] > 25
        ingest(config, embed=WordEmbedder(), reembed_all=True)
        with connect(database) as conn:
            assert conn.execute('select count(*) from public.meta').fetchone() == (1,)
            assert conn.execute("select to_regclass('public.documents') is not null").fetchone() == (True,)
    finally:
        with connect(database) as conn:
            conn.execute('drop table if exists public.meta, public.documents')


class Down(WordEmbedder):
    def embed_documents(self, texts):
        raise FailedError('the embedding server is down')


def test_a_rebuild_that_cannot_begin_leaves_the_index_as_it_is(config):
    ingest(config, embed=WordEmbedder())
    before = query(config, ROWS)
    with pytest.raises(FailedError):
        ingest(config, embed=Down(), reembed_all=True)
    assert query(config, ROWS) == before
    with connect(config.database) as conn:
        assert 'down' in read_meta(conn)['last_ingest_error']['text']


def test_a_schema_upgrade_that_is_interrupted_is_made_good_by_the_next_run(config):
    ingest(config, embed=WordEmbedder())
    before = query(config, ROWS)
    with connect(config.database) as conn:
        conn.execute("update meta set value = '0' where key = 'schema_version'")

    class Stopped(WordEmbedder):
        def embed_documents(self, texts):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ingest(config, embed=Stopped())
    assert query(config, ROWS) == before  # nothing was dropped before the embedder answered
    embed = WordEmbedder()
    ingest(config, embed=embed)
    assert query(config, ROWS) == before and sections(embed) == []


def test_an_upgrade_does_not_let_another_model_in(config):
    class Other(WordEmbedder):
        identity = 'test:other:64'

    ingest(config, embed=WordEmbedder())
    with connect(config.database) as conn:
        conn.execute("update meta set value = '0' where key = 'schema_version'")
    with pytest.raises(RefusedError):
        ingest(config, embed=Other())
    ingest(config, embed=WordEmbedder())


def test_a_text_that_the_embedder_refuses_is_a_warning_and_is_found_by_its_words(config, tmp_path):
    class Picky(WordEmbedder):
        def embed_documents(self, texts):
            for n, text in enumerate(texts):
                if 'poison' in text:
                    raise TextRefused('the server chokes on it').at(n)
            return super().embed_documents(texts)

    repo = small(tmp_path, a='# A\n\n## One\n\nbread\n\n## Two\n\npoison ivy\n', b='# B\n\nsalt\n')
    here = on(config, repo)
    report = ingest(here, embed=Picky())
    assert [(w.path, w.line, w.kind) for w in report.warnings] == [('a.md', 7, 'embedding')]
    assert query(here, 'select count(*), count(vector_id) from chunks') == [(3, 2)]
    with connect(here.database) as conn:
        assert search(conn, 'poison ivy', config=here, embed=WordEmbedder())[0].path == 'a.md'
    assert ingest(here, embed=Picky()).documents['unchanged'] == 2


def test_a_nul_or_a_secret_that_yaml_puts_together_does_not_reach_the_index(config, tmp_path):
    token = 'ghp_' + 'aB3' * 12
    hidden = token.replace('ghp', 'gh\\x70')
    repo = small(tmp_path, a=f'---\ntitle: "{hidden}"\n---\n# A\n\ntext\n', b='---\ntitle: "x\\0y"\n---\n# B\n\ntext\n')
    ingest(on(config, repo), embed=WordEmbedder())
    assert token not in str(query(config, ROWS))
    assert query(config, "select title from documents where path = 'b.md'") == [('x y',)]


def test_dates_of_a_merged_branch_are_the_same_as_in_a_rebuild(config, tmp_path):
    repo = small(tmp_path, a='# A\n\none\n')
    ingest(on(config, repo), embed=WordEmbedder())
    run_git(repo, 'checkout', '--quiet', '-b', 'side')
    write(repo, when=START + 100, a='# A\n\none\n\ntwo\n')
    run_git(repo, 'checkout', '--quiet', 'main')
    write(repo, when=START + 500, a='# A\n\nzero\n\none\n')
    ingest(on(config, repo), embed=WordEmbedder())
    run_git(repo, 'merge', '--quiet', '-s', 'ours', '-m', 'merge', 'side', when=START + 600)
    ingest(on(config, repo), embed=WordEmbedder())
    merged = query(config, 'select committed from documents')
    ingest(on(config, repo), embed=WordEmbedder(), reembed_all=True)
    assert merged == query(config, 'select committed from documents') == [(START + 500,)]


def test_hosts_of_a_run_that_was_killed_under_other_rules_are_not_trusted(config, tmp_path):
    repo = small(tmp_path, hosts__beta='---\nhost: beta\n---\n# beta\n\na box\n', n='# N\n\nsaw beta\n')
    here = on(config, repo)
    ingest(here, embed=WordEmbedder())
    right = query(here, ROWS)

    class Stopped(WordEmbedder):
        def embed_documents(self, texts):
            if sections(self) or any(t.startswith('[') for t in texts):
                raise KeyboardInterrupt
            return super().embed_documents(texts)

    write(repo, m='# M\n\nnew\n')
    other = replace(here, layout=replace(here.layout, host_types=()))
    with pytest.raises(KeyboardInterrupt):
        ingest(other, embed=Stopped())
    (repo / 'm.md').unlink()
    commit_all(repo, 'away')
    ingest(here, embed=WordEmbedder())
    assert [r[:5] for r in query(here, ROWS)] == [r[:5] for r in right]
    assert query(here, "select hosts from chunks c join documents d on d.id = document_id where path = 'n.md'") == [
        (['beta'],)
    ]


def test_a_password_in_an_address_is_not_kept(config):
    from merlin.ingest import model_settings

    secret = 'hunter' + '2pw'
    settings = load_config(
        {'EMBED_PROVIDER': 'openai', 'EMBED_URL': f'http://user:{secret}@127.0.0.1:9', 'EMBED_MODEL': 'm'}
    )
    assert secret not in model_settings(settings)
    assert model_settings(settings) != model_settings(config)


def test_a_mistyped_repo_says_nothing_about_the_index(config, tmp_path):
    ingest(config, embed=WordEmbedder())
    with pytest.raises(ConfigError):
        ingest(on(config, tmp_path / 'mistyped'), embed=WordEmbedder())
    with pytest.raises(RefusedError):
        ingest(on(config, small(tmp_path, a='# A\n\nb\n')), embed=WordEmbedder())
    with connect(config.database) as conn:
        assert not read_meta(conn)['last_ingest_error']


def test_the_newest_page_of_several_repos_is_embedded_first(config, tmp_path):
    old, new = small(tmp_path, a='# A\n\nold\n'), small(tmp_path)
    write(new, when=START + 1000, b='# B\n\nnew\n')
    embed = WordEmbedder()
    ingest(on(config, old, new), embed=embed)
    assert [t.rsplit('\n', 1)[-1] for t in sections(embed)] == ['new', 'old']


def test_a_large_load_drops_the_graph_and_builds_it_again(config, tmp_path, monkeypatch):
    from merlin import ingest as module
    from merlin.store import has_hnsw

    monkeypatch.setattr(module, 'build_hnsw', lambda conn, dim, parallel: build_hnsw(conn, dim, parallel, minimum=1))
    repo = small(tmp_path, a='# A\n\none\n')
    ingest(on(config, repo), embed=WordEmbedder())
    seen = []

    class Looking(WordEmbedder):
        def embed_documents(self, texts):
            with connect(config.database) as conn:
                seen.append(has_hnsw(conn))
            return super().embed_documents(texts)

    write(repo, **{f'page{n}': f'# P\n\ntext {n}\n' for n in range(100)})
    ingest(on(config, repo), embed=Looking())
    assert seen == [True, True, False]  # the canary, the first window, the second
    with connect(config.database) as conn:
        assert has_hnsw(conn)


def test_a_repo_whose_tree_is_damaged_stops_even_a_rebuild_before_anything_is_dropped(config, tmp_path):
    repo = small(tmp_path, a='# A\n\ntext\n', notes__b='# B\n\ntext\n')
    here = on(config, repo)
    ingest(here, embed=WordEmbedder())
    before = query(here, ROWS)
    write(repo, notes__c='# C\n\ntext\n')
    tree = run_git(repo, 'rev-parse', 'HEAD:notes')
    (repo / '.git/objects' / tree[:2] / tree[2:]).unlink()
    for anew in (False, True):
        with pytest.raises(FailedError):
            ingest(here, embed=WordEmbedder(), reembed_all=anew)
        assert query(here, ROWS) == before
