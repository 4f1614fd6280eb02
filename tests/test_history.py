"""The history of a host against a real index: order, days, names, topics, what was cut, and what is refused."""

import time
from array import array
from dataclasses import replace
from datetime import date, datetime

import psycopg
import pytest

from merlin import history
from merlin.config import RepoConfig, load_config
from merlin.database import connect
from merlin.errors import ConfigError, FailedError, RefusedError
from merlin.filters import MAX_HOST
from merlin.history import host_history
from merlin.ingest import ingest
from merlin.search import search
from merlin.testing import DAY, WordEmbedder, commit_all, run_git

RECORD = '---\nhost: {}\naliases: [{}]\nips: [{}]\n{}---\n# {}\n\nServes pages.\n'
PAGES = {
    'hosts/alpha.md': RECORD.format('alpha', 'box, web', '10.0.0.11', 'updated: 2030-01-02\n', 'alpha')
    + '\n## Disks\n\nTwo mirrors.\n\n## Disk full (2030-01-15)\n\nThe dumps.\n',
    'hosts/beta.md': RECORD.format('beta', 'web', '10.0.0.12', '', 'beta') + '\n## Link\n\nCabled to alpha.\n',
    'hosts/Gamma.lan.md': RECORD.format('Gamma.lan', 'shed', '2001:db8::7', '', 'Gamma'),
    'journal/2030-01-10.md': '# 2030-01-10\n\n## Pool\n\nalpha lost its pool.\n\n### Repair\n\nImported the pool on alpha.\n\n## Fence\n\nPainted.\n',
    'journal/2030-01-15.md': '# 2030-01-15\n\n## Dumps\n\n(superseded 2030-02-20: see § Timer)\n\nDeleted dumps on 10.0.0.11.\n',
    'journal/2030-02-20.md': '# 2030-02-20\n\n## Timer\n\nA timer on BOX deletes the dumps.\n\n## Late note (2030-02-18)\n\nalpha rebooted.\n',
    'journal/2030-01-20.md': '# 2030-01-20\n\n## Lamp\n\nThe lamp of web flickers; gamma is quiet.\n',
    'runbooks/delta.md': '---\nhost: delta\n---\n# Restart delta\n\nPull the plug, as on alpha.\n',
}  # fmt: skip
RECORDED = int(datetime(2030, 2, 20, 12).timestamp())  # noon, in whatever time zone this runs


@pytest.fixture
def record(tmp_path):
    repo = tmp_path / 'record'
    repo.mkdir()
    run_git(repo, 'init', '--quiet')
    add(repo, PAGES, RECORDED)
    return repo


@pytest.fixture
def config(database, record):
    config = replace(load_config({}), repos=(RepoConfig('', record),), database=database)
    ingest(config, embed=WordEmbedder())
    return config


def add(repo, pages, when):
    "Write pages and commit them."
    for path, text in pages.items():
        (repo / path).parent.mkdir(parents=True, exist_ok=True)
        (repo / path).write_text(text)
    commit_all(repo, 'pages', when)


def tell(conn, config, host, topic=None, **kwargs):
    embed = kwargs.pop('embed', WordEmbedder())
    return host_history(conn, host, topic, config=config, embed=embed, today=date(2030, 3, 1), **kwargs)


def told(found):
    "What a test compares: day, file and the section's own heading."
    return [(str(h.date)[5:], h.path.split('/')[1].removesuffix('.md'), h.heading.split(' > ')[-1]) for h in found]


ALPHA = [
    ('02-20', 'alpha', 'alpha'), ('02-20', 'alpha', 'Disks'), ('02-20', 'beta', 'Link'), ('02-20', '2030-02-20', 'Timer'),
    ('02-18', '2030-02-20', 'Late note (2030-02-18)'), ('01-20', '2030-01-20', 'Lamp'),
    ('01-15', 'alpha', 'Disk full (2030-01-15)'), ('01-15', '2030-01-15', 'Dumps'),
    ('01-10', '2030-01-10', 'Repair'), ('01-10', '2030-01-10', 'Pool'),
]  # fmt: skip


def test_newest_first_and_on_one_day_own_record_other_records_then_the_latest_evidence(conn, config):
    found = tell(conn, config, 'alpha')
    assert told(found) == ALPHA
    assert (found.hosts, found.total, found.note, found.degraded) == (('alpha',), len(ALPHA), None, None)
    assert (
        {h.score for h in found} == {0.0}
        and found[3].first_line < found[3].last_line
        and 'timer on BOX' in found[3].text
    )


def test_the_current_record_stands_above_evidence_that_is_newer_than_its_front_matter(conn, config, record):
    add(record, {'hosts/beta.md': PAGES['hosts/beta.md'] + '\n## Fan\n\nSilent.\n'}, RECORDED + 10 * DAY)
    ingest(config, embed=WordEmbedder())
    found = told(tell(conn, config, 'beta'))
    assert found[:3] == [('03-02', 'beta', 'beta'), ('03-02', 'beta', 'Link'), ('03-02', 'beta', 'Fan')]
    assert told(tell(conn, config, 'alpha'))[:2] == [('03-02', 'beta', 'Link'), ('02-20', 'alpha', 'alpha')]


@pytest.mark.parametrize('updated, day', [('2030-02-25', '02-25'), ('2030-01-15', '02-20'), ('2029-01-01', '02-20')])
def test_the_later_of_front_matter_and_commit_counts_and_a_dated_heading_keeps_its_day(
    conn, config, record, updated, day
):
    add(record, {'hosts/alpha.md': PAGES['hosts/alpha.md'].replace('2030-01-02', updated)}, RECORDED)
    ingest(config, embed=WordEmbedder())
    days = {heading: day for day, path, heading in told(tell(conn, config, 'alpha')) if path == 'alpha'}
    assert days == {'alpha': day, 'Disks': day, 'Disk full (2030-01-15)': '01-15'}


def test_what_has_no_day_at_all_comes_last(conn, config):
    conn.execute("update chunks set date = null where body like '%timer on BOX%' or body like '%lost its pool%'")
    found = tell(conn, config, 'alpha')
    assert [h.date for h in found][-2:] == [None, None] and len(found) == len(ALPHA)
    assert found.as_json()['sections'][-1]['date'] is None


@pytest.mark.parametrize('name', ['alpha', 'ALPHA', ' alpha ', 'box', '10.0.0.11', 'alpha.'])
def test_any_name_of_a_host_tells_the_same_history(conn, config, name):
    assert told(tell(conn, config, name)) == ALPHA


@pytest.mark.parametrize('name', ['gamma', 'Gamma.lan', 'shed', '2001:0db8:0:0::7'])
def test_a_first_label_and_any_spelling_of_an_address_find_the_host(conn, config, name):
    found = tell(conn, config, name)
    assert found.hosts == ('Gamma.lan',)
    assert told(found) == [('02-20', 'Gamma.lan', 'Gamma'), ('01-20', '2030-01-20', 'Lamp')]


def test_an_alias_of_two_hosts_tells_of_both(conn, config):
    found = tell(conn, config, 'web')
    assert found.hosts == ('alpha', 'beta') and found.as_json()['host'] == 'alpha, beta'
    assert {('02-20', 'beta', 'beta'), *ALPHA} == set(told(found))


def test_a_superseded_section_stays_and_is_marked(conn, config):
    assert [h.heading for h in tell(conn, config, 'alpha') if h.stale] == ['2030-01-15 > Dumps']


def test_other_types_stay_out_unless_the_layout_names_them(conn, config):
    layout = replace(config.layout, history_types=('runbook',))
    assert told(tell(conn, replace(config, layout=layout), 'alpha')) == [('02-20', 'delta', 'Restart delta')]


def test_since_and_until_mean_the_days_that_are_shown(conn, config):
    def between(since, until):
        return told(tell(conn, config, 'alpha', since=since, until=until))

    assert between('2030-02-19', None) == ALPHA[:4]
    assert between(None, '2030-01-15') == ALPHA[6:]  # the record's front matter says 2030-01-02
    assert between(date(2030, 1, 15), '2030-01-20') == ALPHA[5:8]


def test_a_limit_cuts_the_oldest_and_the_total_tells(conn, config):
    found = tell(conn, config, 'alpha', k=3)
    assert told(found) == ALPHA[:3] and len(found) == 3 and found.total == len(ALPHA)
    assert found.as_json()['total'] == len(ALPHA)


def test_a_topic_keeps_what_search_would_put_first_and_the_order_of_days(conn, config):
    assert told(tell(conn, config, 'alpha', 'lost its pool', k=1)) == [ALPHA[9]]
    plain = {'boost': {}, 'recency': replace(config.recency, weight=0.0), 'stale': replace(config.stale, factor=1.0)}
    sections = replace(config, search=replace(config.search, per_document=False), **plain)
    for topic in ('lost pool imported', 'dumps deleted', 'serves pages'):
        found = tell(conn, config, 'alpha', topic, k=4)
        best = search(
            conn, topic, 4, ['journal', 'host'], 'box', config=sections, embed=WordEmbedder(), today=date(2030, 3, 1)
        )
        assert {(h.path, h.first_line, h.score) for h in found} == {(h.path, h.first_line, h.score) for h in best}
        assert told(found) == [t for t in ALPHA if t in told(found)]
        assert len(found) == 4 and found.total == len(ALPHA)


def test_a_topic_leaves_other_hosts_types_and_days_out(conn, config):
    assert told(tell(conn, config, 'alpha', 'plug', k=50)) == ALPHA
    assert told(tell(conn, config, 'alpha', 'serves pages', since='2030-02-19')) == ALPHA[:4]
    assert told(tell(conn, config, 'alpha', 'serves pages', until='2030-01-15')) == ALPHA[6:]
    assert told(tell(conn, config, 'gamma', 'lost pool')) == told(tell(conn, config, 'gamma'))


class Down(WordEmbedder):
    def embed_query(self, text: str) -> array:
        raise FailedError('the embedding server does not answer')


def test_without_the_embedder_words_choose_and_the_history_says_so(conn, config):
    found = tell(conn, config, 'alpha', 'lost pool', embed=Down())
    assert 'does not answer' in found.degraded and ALPHA[9] in told(found)
    nothing = tell(conn, config, 'alpha', 'xyzzy', embed=Down())
    assert not nothing and nothing.total == len(ALPHA) and 'none of 10 sections' in nothing.note
    assert told(tell(conn, config, 'alpha', embed=Down())) == ALPHA  # no topic, no embedder


def test_another_model_is_refused_where_there_is_a_topic(conn, config):
    class Other(WordEmbedder):
        identity = 'test:other:64'

    with pytest.raises(RefusedError, match='--reembed-all'):
        tell(conn, config, 'alpha', 'dump', embed=Other())
    assert told(tell(conn, config, 'alpha', embed=Other())) == ALPHA


def test_a_secret_in_the_topic_never_reaches_the_embedder(conn, config):
    seen = []

    class Listening(WordEmbedder):
        def embed_query(self, text: str) -> array:
            seen.append(text)
            return super().embed_query(text)

    token = 'ghp_' + 'aB3' * 12
    tell(conn, config, 'alpha', f'what is {token} for', embed=Listening())
    assert seen and token not in seen[0]


def test_a_host_without_entries_says_where_it_stands_and_what_else_there_is(conn, config):
    found = tell(conn, config, 'delta')
    assert not found and found.total == 0 and found.hosts == ('delta',)
    assert 'runbook (1)' in found.note and "'beta'" in found.note
    assert tell(conn, config, 'delta', 'plug').note == found.note
    assert found.as_json() == {'host': 'delta', 'sections': [], 'total': 0, 'note': found.note}


def test_days_without_an_entry_are_told_from_a_host_without_one(conn, config):
    found = tell(conn, config, 'alpha', until='2029-12-31')
    assert found.total == 0 and 'alpha has 10 sections, none of the days … to 2029-12-31' in found.note


@pytest.mark.parametrize('name', ['alhpa', 'Alpah', 'boxx'])
def test_an_unknown_host_is_refused_with_what_is_near(conn, config, name):
    with pytest.raises(ConfigError, match="no host '.*; (did you mean 'alpha'|known: .*alpha)"):
        tell(conn, config, name)


@pytest.mark.parametrize(
    'name',
    [
        '', '   ', '\0', 'x' * 5000, 'x' * (MAX_HOST + 1), 'x' * MAX_HOST, "'; drop table chunks; --", '"a"', '%s %(days)s', '{}', 'a\x1b[2J\nb', '\ud800', '💥', '*', '\\',
    ],
)  # fmt: skip
def test_no_name_breaks_it(conn, config, name):
    with pytest.raises(ConfigError) as refused:
        tell(conn, config, name)
    assert str(refused.value).isprintable() and len(str(refused.value)) < 500
    assert told(tell(conn, config, 'alpha')) == ALPHA


def test_a_null_beside_a_known_name_is_a_blank(conn, config):
    assert told(tell(conn, config, 'alpha\0')) == ALPHA


@pytest.mark.parametrize(
    'wrong, says',
    [
        ({'since': 'yesterday'}, '2030-01-31'), ({'until': '2030-02-31'}, 'until'), ({'since': ''}, 'since'), ({'since': '2030-02-01', 'until': '2030-01-01'}, 'swap them'),
        ({'k': 0}, '1 to 50'), ({'k': 51}, '1 to 50'), ({'topic': ''}, 'empty'), ({'topic': 'x' * 2001}, 'at most'),
    ],
)  # fmt: skip
def test_an_argument_that_cannot_be_used_is_refused(conn, config, wrong, says):
    with pytest.raises(ConfigError, match=says):
        tell(conn, config, 'alpha', **wrong)


def test_a_layout_without_history_is_refused(conn, config):
    with pytest.raises(ConfigError, match='history_types'):
        tell(conn, replace(config, layout=replace(config.layout, history_types=())), 'alpha')


def test_without_an_index_it_says_what_to_run(database):
    with connect(database) as conn, pytest.raises(ConfigError, match='run merlin ingest'):
        host_history(conn, 'alpha', config=replace(load_config({}), database=database))


def test_a_type_that_no_document_has_yet_is_no_error(conn, config, record):
    run_git(record, 'rm', '-rq', 'journal')
    commit_all(record, 'no journal', RECORDED)
    ingest(config, embed=WordEmbedder())
    assert {h.type for h in tell(conn, config, 'alpha')} == {'host'}


def test_one_answer_sees_one_state_of_the_index(conn, config, monkeypatch):
    fetch = history.fetch_texts

    def late(conn, chunks):
        with connect(config.database) as other:
            other.execute('delete from documents')
        return fetch(conn, chunks)

    monkeypatch.setattr(history, 'fetch_texts', late)
    assert told(tell(conn, config, 'alpha', 'pool', k=50)) == ALPHA
    monkeypatch.undo()
    with pytest.raises(ConfigError, match='no host|index is empty'):
        tell(conn, config, 'alpha')


def test_the_connection_can_write_again_afterwards(conn, config):
    tell(conn, config, 'alpha')
    conn.execute("insert into meta values ('after', '1')")
    assert conn.info.transaction_status == psycopg.pq.TransactionStatus.IDLE


MANY_DOCUMENTS = """
insert into documents (repo, path, type, title, date, blob_sha, fingerprint, text, redactions, warnings)
select '', 'journal/many/' || n || '.md', 'journal', 'many', date '2020-01-01' + n, 'x', 'x', '', '{}', '[]'
from generate_series(1, 2500) n
"""
MANY_CHUNKS = """
insert into chunks (document_id, ordinal, repo, type, heading_path, heading, names, body, first_line, last_line, date, hosts, stale, tsv)
select d.id, n, '', 'journal', array['many', n::text], n::text, '', repeat('words of a day ', 60), n, n, d.date,
       case when n <= 8 then array['alpha'] when n = 9 then array['beta'] else array['h' || d.id % 500] end, false, ''
from documents d, generate_series(1, 20) n where d.path like 'journal/many/%'
"""


@pytest.mark.slow
def test_fifty_thousand_sections_are_told_quickly(conn, config):
    if config.database.url:
        pytest.skip('long, and no different there: the embedded server shows it')
    conn.execute(MANY_DOCUMENTS)
    conn.execute(MANY_CHUNKS)
    conn.execute('analyze documents, chunks')
    for host, total in (('alpha', 20_000), ('beta', 2_500)):
        times = []
        for _ in range(5):
            begin = time.perf_counter()
            found = tell(conn, config, host, k=50)
            times.append(time.perf_counter() - begin)
        assert total <= found.total <= total + 20 and len(found) == 50
        assert min(times) < 1.0, (host, times)
