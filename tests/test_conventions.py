"""What docs/conventions.md claims about its examples is what merlin does with them."""

import re
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest

from merlin.chunk import chunk_markdown
from merlin.config import RepoConfig, load_config
from merlin.document import parse_document
from merlin.hosts import HostIndex, host_record
from merlin.ingest import ingest
from merlin.search import search
from merlin.testing import WordEmbedder, commit_all, run_git

PAGE = (Path(__file__).resolve().parents[1] / 'docs/conventions.md').read_text(encoding='utf-8')
EXAMPLES = {name: text for _, name, text in re.findall(r'^(`{3,})markdown ([\w-]+)\n(.*?)^\1$', PAGE, re.M | re.S)}
LAYOUT = load_config({}).layout
PATHS = {  # example -> where it stands in the record of this test; each comparison has paths of one type
    'superseded-before': 'notes/before/backups.md',
    'superseded-after': 'notes/after/backups.md',
    'host-record': 'hosts/db1.md',
    'host-mention': 'journal/2030-01-15.md',
    'heading-before': 'notes/postgres-a.md',
    'heading-after': 'notes/postgres-b.md',
    'summary': 'hosts/beta.md',
    'dated': 'runbooks/disk-full.md',
}


def cut(name: str, path: str = 'notes/x.md') -> tuple[dict, list[str]]:
    "The sections of an example by their headings, and the kinds of its warnings."
    chunks, warnings = chunk_markdown(EXAMPLES[name], path)
    return {c.heading_path[-1]: c for c in chunks}, [w.kind for w in warnings]


@pytest.fixture
def config(database, tmp_path):
    "The examples as a record, indexed."
    repo = tmp_path / 'record'
    repo.mkdir()
    run_git(repo, 'init', '--quiet')
    for name, path in PATHS.items():
        (repo / path).parent.mkdir(parents=True, exist_ok=True)
        (repo / path).write_text(EXAMPLES[name])
    commit_all(repo, 'all')
    config = replace(load_config({}), repos=(RepoConfig('', repo),), database=database)
    ingest(config, embed=WordEmbedder())
    return config


def ask(conn, config, query, **filters):
    "The hits by path and heading, every section for itself."
    each = replace(config, search=replace(config.search, per_document=False))
    return search(conn, query, config=each, embed=WordEmbedder(), today=date(2030, 3, 1), k=50, **filters)


def test_every_example_is_looked_at_here():
    assert set(EXAMPLES) == {*PATHS, 'front-before', 'front-after', 'fence-before', 'fence-after'}


def test_a_section_is_superseded_by_its_first_words_or_its_heading_and_by_nothing_further_down():
    before, after = cut('superseded-before')[0], cut('superseded-after')[0]
    assert [before['Nightly dump'].stale, after['Nightly dump'].stale, after['Dump to the shed'].stale] == [
        False,
        True,
        False,
    ]
    for heading in ('Nightly dump (obsolete)', 'Why the old plan was superseded'):
        assert chunk_markdown(f'# A\n\n## {heading}\n\nText.\n', 'x.md')[0][-1].stale


def test_a_pointer_that_leads_nowhere_gets_a_warning():
    assert cut('superseded-after')[1] == []
    lost = EXAMPLES['superseded-after'].replace('## Dump to the shed', '## Something else')
    assert [w.kind for w in chunk_markdown(lost, 'x.md')[1]] == ['pointer']


def test_a_superseded_section_counts_half_and_names_the_newer_one(conn, config):
    found = {(h.path, h.heading.split(' > ')[-1]): h for h in ask(conn, config, 'nightly dump')}
    old = found[PATHS['superseded-after'], 'Nightly dump']
    assert old.stale and old.newer.endswith('Dump to the shed') and old.reasons['factors'].stale == 0.5
    assert found[PATHS['superseded-before'], 'Nightly dump'].reasons['factors'].stale == 1.0


def test_a_colon_that_is_not_quoted_costs_a_host_its_aliases():
    hosts = []
    for name, kinds in (('front-before', ['front-matter']), ('front-after', [])):
        document, warnings = parse_document(EXAMPLES[name], 'hosts/db1.md', LAYOUT, None)
        assert [w.kind for w in warnings] == kinds and all(w.line for w in warnings)
        hosts.append(HostIndex([host_record(document)[0]]).find('see postgres-main'))
    assert [sorted(found) for found in hosts] == [[], ['db1']]


def test_a_mention_by_alias_or_address_is_found_under_the_host(conn, config):
    for name in ('db1', '10.0.0.12', 'postgres-main'):
        assert {h.path for h in ask(conn, config, 'restarted', host=name)} == {
            PATHS['host-record'],
            PATHS['host-mention'],
        }


def test_a_name_that_is_not_one_word_gets_a_warning():
    document, _ = parse_document('---\nhost: the new box\n---\n# x\n', 'hosts/x.md', LAYOUT, None)
    assert [w.kind for w in host_record(document)[1]] == ['host-name']


def test_an_open_fence_is_closed_where_the_page_comes_out_right_with_a_warning():
    (before, said), (after, nothing) = cut('fence-before'), cut('fence-after')
    assert list(before) == list(after) == ['Look', 'Make room'] and said == ['fence'] and nothing == []
    assert before['Make room'].body == after['Make room'].body


def test_the_words_of_a_heading_weigh_more_than_those_of_the_text(conn, config):
    found = [h.path for h in ask(conn, config, 'restore a dump')]
    assert found.index(PATHS['heading-after']) < found.index(PATHS['heading-before'])
    assert 'Restore a dump' in cut('heading-after')[0]['Restore a dump'].embed_text


def test_the_summary_is_the_first_section_of_its_record():
    sections = list(cut('summary', 'hosts/beta.md')[0].values())
    assert 'gallery' in sections[0].body and sections[0].first_line == 1


def test_a_date_in_a_heading_dates_its_section_and_filters_go_by_it(conn, config):
    chunks, _ = chunk_markdown(EXAMPLES['dated'], 'x.md', date=date(2029, 1, 1))
    assert [c.date for c in chunks] == [date(2029, 1, 1), date(2030, 1, 15)]
    days = {'since': '2030-01-15', 'until': '2030-01-15'}
    found = {h.heading for h in ask(conn, config, 'thumbnails', type='runbook', **days)}
    assert found == {'Disk full > Made room (2030-01-15)'}
    assert [w.kind for w in chunk_markdown('# A\n\n## B (2030-02-30)\n\nText.\n', 'x.md')[1]] == ['date']


def test_a_page_is_dated_by_its_name_if_a_journal_then_by_its_front_matter_then_by_its_commit():
    front = '---\ncreated: 2030-01-01\nupdated: 2030-01-02\n---\n# A\n\nText.\n'
    commit = 1_900_000_000  # 2030-03-17
    days = [
        parse_document(text, path, LAYOUT, commit)[0].date
        for path, text in (('journal/2030-01-15.md', front), ('notes/2030-01-15.md', front), ('notes/a.md', '# A\n'))
    ]
    assert [day.isoformat() for day in days] == ['2030-01-15', '2030-01-02', '2030-03-17']
