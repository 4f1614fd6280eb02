"""Known hosts and where a text mentions them."""

import random
import re
from pathlib import Path
from time import process_time
from types import MappingProxyType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from merlin.document import Document, decode, parse_document
from merlin.hosts import HostIndex, HostRecord, host_record
from merlin.layout import read_layout

CORPUS = Path(__file__).parent / 'fixtures' / 'corpus'
ALPHA = HostRecord('alpha', ('alpha.lan', 'nas'), ('10.0.0.11', '2001:db8::11'), 'hosts/alpha.md')
BETA = HostRecord('beta.lan', ('appbox',), ('10.0.0.12',), 'hosts/beta.md')
INDEX = HostIndex([ALPHA, BETA])


@pytest.mark.parametrize(
    'text',
    [
        'alpha', 'Alpha.', 'ALPHA!', '(alpha)', '`alpha`', '**alpha**', '_alpha_', '__alpha__', 'alpha:22',
        'root@alpha', 'alpha/share', '//alpha/share', 'alpha…', 'alpha...', 'alpha—then', 'alpha--then',
        'alpha-', 'alpha, beta', "alpha's", '[alpha](hosts/x.md)', '|alpha|', 'alpha.lan', 'alpha.lan.',
        'ALPHA.LAN:445', 'alpha.home.arpa', 'alpha.example.com', 'nas', 'nas.local', '10.0.0.11', '10.0.0.11.',
        '10.0.0.11:22', '10.0.0.11/24', 'http://10.0.0.11/', '"10.0.0.11"', '2001:db8::11',
        '2001:DB8:0:0:0:0:0:11', '[2001:db8::11]:22', '2001:db8::11/64', '在alpha上', 'à alpha', 'x=alpha;',
    ],
)  # fmt: skip
def test_a_host_is_found_as_a_word(text):
    assert INDEX.find(text) == ('alpha',) or INDEX.find(text) == ('alpha', 'beta.lan')
    assert 'alpha' in INDEX.find(f'before {text} after')


@pytest.mark.parametrize(
    'text',
    [
        'alphabet', 'alpha2', '2alpha', 'alpha_old', 'old_alpha', 'alpha-2', 'my-alpha', '-alpha', '.alpha',
        '_alpha', 'alpha_', 'my.alpha', 'alpha.py', 'alpha.md', 'alpha.service', 'alpha.tar.gz', 'alpha.1',
        'alpha.lan2', 'nasal', '110.0.0.11', '10.0.0.110', '10.0.0.11.5', '1.10.0.0.11', '2001:db8::1',
        '2001:db8::111', '12001:db8::11', '', 'a:b:c', '10:30:15',
    ],
)  # fmt: skip
def test_a_part_of_a_word_is_no_mention(text):
    assert INDEX.find(text) == ()


def test_a_first_label_counts_for_its_full_name():
    assert INDEX.find('beta is down') == ('beta.lan',) and INDEX.resolve('BETA') == 'beta.lan'
    shared = HostIndex([HostRecord('www.a.org', (), (), 'a.md'), HostRecord('www.b.org', (), (), 'b.md')])
    assert shared.find('www') == () and shared.find('www.b.org') == ('www.b.org',)
    taken = HostIndex([HostRecord('web', (), (), 'a.md'), HostRecord('web.b.org', (), (), 'b.md')])
    assert taken.find('web') == ('web',) and taken.find('web.b.org') == ('web.b.org',)


def test_a_domain_that_some_host_uses_is_known_for_all():
    index = HostIndex([HostRecord('alpha', (), (), 'a.md'), HostRecord('beta.berlin.acme', (), (), 'b.md')])
    assert index.find('alpha.berlin.acme') == ('alpha',) and index.find('alpha.paris.acme') == ()


def test_an_alias_or_address_of_two_hosts_counts_for_both_and_warns():
    index = HostIndex(
        [HostRecord('b', ('nas',), ('10.0.0.1',), 'b.md'), HostRecord('a', ('NAS', 'b'), ('10.0.0.1',), 'a.md')]
    )
    assert index.find('the nas') == ('a', 'b') == index.find('10.0.0.1')
    assert index.find('b') == ('b',)  # a name beats an alias
    assert index.resolve('nas') == 'a'
    assert sorted((w.path, w.kind) for w in index.warnings) == [('a.md', 'host-claim'), *[('b.md', 'host-claim')] * 2]


def test_one_host_with_two_records_is_one_host():
    index = HostIndex(
        [HostRecord('Alpha', ('nas',), (), 'a/h.md'), HostRecord('alpha', ('nas', 'files'), (), 'b/h.md')]
    )
    assert index.warnings == () and index.names == ('Alpha',)
    assert index.find('nas') == index.find('files') == ('Alpha',)


def test_the_order_of_records_does_not_matter():
    records = [ALPHA, BETA, HostRecord('gamma', ('nas',), ('10.0.0.12',), 'hosts/gamma.md')]
    a, b = HostIndex(records), HostIndex(reversed(records))
    assert (a.warnings, a.names, a.fingerprint) == (b.warnings, b.names, b.fingerprint)
    text = 'nas 10.0.0.12 beta gamma'
    assert a.find(text) == b.find(text)
    assert (
        HostIndex([ALPHA]).fingerprint
        != HostIndex([HostRecord('alpha', ('alpha.lan',), ALPHA.ips, ALPHA.path)]).fingerprint
    )


def test_names_are_taken_literally():
    index = HostIndex([HostRecord('a.b', ('c+d', 'my box', 'é'), (), 'a.md')])
    assert index.find('axb a.b') == ('a.b',) and index.find('c+d my box é') == ()
    assert index.resolve('my box') == 'a.b'


@pytest.mark.parametrize(
    ('front', 'record', 'kinds'),
    [
        ({'host': 'x', 'aliases': 'a, b c', 'ips': '10.0.0.1; ::1'}, ('x', ('a', 'b', 'c'), ('10.0.0.1', '::1')), []),
        ({'host': ('x', 'y'), 'alias': 'z', 'ip': '10.0.0.1/8'}, ('x', ('y', 'z'), ('10.0.0.1',)), []),
        ({'host': 'x', 'aliases': ('none', '-', '')}, ('x', (), ()), []),
        ({'host': ' '}, ('p', (), ()), ['host-name']),
        ({'host': ()}, ('p', (), ()), ['host-name']),
        ({}, ('p', (), ()), ['host-name']),
        ({'host': 'x', 'ips': ('fe80::1%eth0', '[::2]', '300.1.1.1')}, ('x', (), ('fe80::1', '::2')), ['host-name']),
        ({'host': 'my box'}, ('my box', (), ()), ['host-name']),
    ],
)
def test_what_a_host_record_may_look_like(front, record, kinds):
    found, warnings = host_record(Document('hosts/p.md', 'host', 'P', None, MappingProxyType(front), '', 1))
    assert (found.name, found.aliases, found.ips) == record and [w.kind for w in warnings] == kinds


def test_the_fixture_record():
    layout = read_layout(None, {}).layout
    records, said = [], []
    for path in sorted((CORPUS / 'hosts').glob('[!_]*.md')):
        text, _ = decode(path.read_bytes(), path.name, path.stat().st_size)
        record, warnings = host_record(parse_document(text, f'hosts/{path.name}', layout, None)[0])
        records.append(record)
        said += warnings
    index = HostIndex(records)
    assert index.names == ('alpha', 'beta', 'gamma')
    assert [w.kind for w in (*said, *index.warnings)] == ['host-name', 'host-name', 'host-claim']


NAME = st.from_regex(r'[a-z0-9](?:[a-z0-9_.-]{0,6}[a-z0-9])?', fullmatch=True)


@settings(derandomize=True, deadline=None, max_examples=300)
@given(st.lists(NAME, min_size=1, max_size=8, unique=True), st.text('ab01._- \n:é', max_size=60), st.data())
def test_the_single_pass_finds_what_a_split_into_words_finds(names, noise, data):
    index = HostIndex([HostRecord(name, (), (), f'{n}.md') for n, name in enumerate(names)])
    text = noise + ' ' + data.draw(st.sampled_from(names)) + ' ' + noise
    words = set(re.findall(r'[a-z0-9_.-]+', text.lower()))
    words |= {word.rstrip('.-') for word in words}
    assert {name for name in names if name in words} <= set(index.find(text))


def test_two_thousand_names_cost_no_more_than_a_split_into_words():
    rng = random.Random(1)
    words = [''.join(rng.choices('abcdefghijklmnopqrstuvwxyz', k=rng.randint(2, 9))) for _ in range(5000)]
    texts = [' '.join(rng.choices(words, k=600)) + f'. host{n} was down.' for n in range(100)]
    split = re.compile(r'[A-Za-z0-9_.-]+')
    index = HostIndex(
        [HostRecord(f'host{n}', (f'h{n}.lan',), (f'10.1.{n // 250}.{n % 250}',), f'{n:04}') for n in range(2000)]
    )
    index.find(texts[0])
    ratios = []
    for _ in range(5):
        start = process_time()
        for text in texts:
            split.findall(text)
        middle = process_time()
        for text in texts:
            index.find(text)
        ratios.append((process_time() - middle) / (middle - start))
    assert sorted(ratios)[2] < 1.6


@pytest.mark.parametrize(
    'text', ['-' * 300_000, '.-' * 150_000, 'alpha' * 60_000, 'alpha.' * 50_000, ':' * 300_000, ':a:' * 99_999]
)
def test_hostile_text_takes_linear_time(text):
    start = process_time()
    INDEX.find(text)
    assert process_time() - start < 3
