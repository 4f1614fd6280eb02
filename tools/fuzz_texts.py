"""Fuzzing what reads text: pages, front matter, hosts, secrets, words, and the time that all of it takes."""

import re
import time
from collections.abc import Callable, Mapping
from datetime import UTC, date

from fuzz_parts import (
    HALVES,
    ODD,
    WORDS,
    Target,
    any_text,
    broken,
    glued,
    line,
    one_line,
    pages,
    paths,
    refused,
    sentence,
    storable,
    whole_text,
    word,
)
from hypothesis import strategies as st

from merlin.blocks import split_lines
from merlin.chunk import chunk_markdown, quarters
from merlin.document import as_date, commit_day, decode, file_date, front_date, front_matter, parse_document
from merlin.filters import parse_date
from merlin.hashes import HashFile, LiveSecrets, candidates, line_slots, phrases, places, telling
from merlin.history import names_day, record_day
from merlin.hosts import HostIndex, HostRecord, address, host_record
from merlin.layout import read_layout
from merlin.lexical import LONGEST, Word, count_terms, make_entry, pack, read, tokens
from merlin.mentions import host_use, machines_in, unclaimed_hosts
from merlin.outline import outline
from merlin.passage import shown, shown_line
from merlin.redact import FAMILIES, MARK, Places, Redactor
from merlin.shapes import SHAPES, example
from merlin.store import Record
from merlin.values import placeholder, wordy

LAYOUT = read_layout(None, {}).layout
ALL = Redactor()

# ---- pages


def chunk_holds(text: str, max_tokens: int, title: str | None) -> None:
    "Every line in exactly one section, in order; nothing lost; no section over its limit that is not named."
    found, warnings = chunk_markdown(text, 'p.md', max_tokens=max_tokens, title=title)
    lines = split_lines(text.removeprefix('\ufeff'))
    for w in warnings:
        assert w.line is None or 1 <= w.line <= len(lines)
        one_line(str(w))
    first = front_matter(lines).body_line
    full = [n for n in range(first, len(lines) + 1) if lines[n - 1].strip()]
    assert bool(full) == bool(found)
    if not full:
        return
    assert (found[0].first_line, found[-1].last_line) == (full[0], len(lines))
    for above, below in zip(found, found[1:], strict=False):
        cut = below.first_line == above.last_line
        assert cut or below.first_line == above.last_line + 1
        assert not cut or quarters(lines[above.last_line - 1]) > 4 * max_tokens - 1
    shape = outline(lines, first)
    heads = {h.line for h in shape.headings if h.level <= 3}
    said: dict[int, str] = {}
    for chunk in found:
        assert chunk.last_line >= chunk.first_line and len(chunk.heading) < 2_000 and '\r' not in chunk.body
        for n in range(chunk.first_line, chunk.last_line + 1):
            said[n] = said.get(n, '') + ''.join(chunk.body.split())
    for n in set(full) - heads:
        whole = ''.join(lines[n - 1].split())
        assert whole in said[n] or '|' in whole, f'line {n} is lost'
    long = {w.line for w in warnings if w.kind == 'fence-size'}
    for chunk in found:
        assert quarters(chunk.body) <= max(4 * max_tokens, 4) or chunk.first_line in long, 'a section over its limit'
        body = chunk.embed_text.partition('\n\n')[2]
        assert quarters(body) <= max(4 * max_tokens, 4), 'embedded over its limit'
    for fence in shape.fences:
        assert first <= fence.first <= fence.last <= len(lines)


def document_holds(data: bytes, more: int, path: str, committed: int | None) -> None:
    "Any bytes become a document that a database can hold."
    text, warnings = decode(data, path, len(data) + more)
    assert storable(text)
    document, said = parse_document(text, path, LAYOUT, committed, UTC)
    total = len(split_lines(text))
    most = max(total, len(split_lines(data.decode('latin-1'))), 1)  # a NUL that was dropped may have been the last line
    for w in (*warnings, *said):
        assert w.line is None or 1 <= w.line <= most
        one_line(str(w))
    assert document.title.strip() and len(document.title) <= 500 and storable(document.title)
    one_line(document.title)
    assert 1 <= document.body_line <= total + 1
    for key, value in document.front.items():
        assert all(isinstance(v, str) and storable(v) for v in (key, *([value] if isinstance(value, str) else value)))
    record, said = host_record(document)
    for w in said:
        one_line(str(w))
    assert all(map(storable, (record.name, *record.aliases))) and all(address(ip) == ip for ip in record.ips)
    index = HostIndex([record])
    chunks, _ = chunk_markdown(text, path, title=document.title, date=document.date, hosts=index, host=record.name)
    assert all(map(storable, (part for c in chunks for part in (c.body, c.embed_text, *c.heading_path))))


def dates_hold(path: str, front: dict, headings: list[str], committed: int | None, stored: date | None) -> None:
    "A date or none, and a warning for what looks like one and is none."
    day, said = file_date(path)
    assert day is None or isinstance(day, date)
    found, more = front_date(front, {}, path)
    assert found is None or isinstance(found, date)
    for w in (*said, *more):
        one_line(str(w))
    told = record_day(headings, stored, committed)
    assert (
        told == stored
        if names_day(headings)
        else told == max(filter(None, (stored, commit_day(committed, None))), default=None)
    )
    for text in (*headings, *(v for v in front.values() if isinstance(v, str))):
        got = refused(parse_date, text, 'since')
        assert got is None or got.isoformat() == text.strip() or re.fullmatch(r'\d{1,4}-\d{1,2}-\d{1,2}', text.strip())
    assert as_date(re.match(r'(\d+)(-)(\d+)-(\d+)', '99999-1-1')) is None


DATES = st.one_of(
    st.sampled_from('2030-01-31 2030-02-30 2030/1/2 20300131 0000-00-00 9999-12-31 ２０３０-01-31 2030-1-1x ٢٠٣٠-٠١-٠١ 2030_01.02'.split()),
    st.dates().map(str), glued,
)  # fmt: skip
SECONDS = st.one_of(st.none(), st.integers(-(10**20), 10**20), st.integers(0, 2**33))

# ---- hosts

NAMES = st.one_of(
    st.from_regex(r'[a-z0-9](?:[a-z0-9_.-]{0,6}[a-z0-9])?', fullmatch=True),
    st.sampled_from(['alpha', 'Alpha', 'nas.lan', '10.0.0.12', 'fe80::1', '::1', '_x_', '-a', 'a..b', 'İx', 'my box', '']), word, glued,
)  # fmt: skip


def page(number: int, host: dict | None, text: str) -> Record:
    "A page as it is stored."
    return Record('', f'{number}.md', 'page', 't', None, None, '', '', host, '', text, {}, [], [])


def hosts_hold(records: list[tuple[str, list[str], list[str]]], text: str, code: str) -> None:
    "Hosts of any names are found where they stand alone, and never where no name of theirs stands."
    hosts = [HostRecord(n, tuple(a), tuple(ip for i in ips if (ip := address(i))), f'{at}.md')
             for at, (n, a, ips) in enumerate(records)]  # fmt: skip
    index = HostIndex(hosts)
    for w in index.warnings:
        one_line(str(w))
    found = index.find(text)
    assert list(found) == sorted(set(found)) and set(found) <= set(index.names)
    for host in hosts:
        if re.fullmatch(r'[a-z0-9]([a-z0-9-]*[a-z0-9])?', host.name) and '--' not in host.name:
            assert host.name in {n.lower() for n in index.find(f'x {host.name}, y')}
        got = index.resolve(host.name)
        assert not host.name.strip(' .') or got is None or got in index.names
    pages = [
        page(n, {'name': h.name, 'aliases': list(h.aliases), 'ips': list(h.ips)}, text) for n, h in enumerate(hosts)
    ]
    pages += [page(98, None, code), page(99, None, code)]
    for use in host_use(pages):
        assert all(0 <= count < len(pages) for count in use.mentions.values()) and set(use.missed) <= set(use.mentions)
    for one in unclaimed_hosts(pages):
        assert len(one.places) > 1 and not index.resolve(one.name), one
    for name, how, at in machines_in(code, frozenset(('lan', 'beta.lan'))):
        assert name and how and 1 <= at <= len(split_lines(code)) + 1


COMMANDS = st.lists(
    st.one_of(
        st.sampled_from(['`', '```sh\n', '\n```\n', 'ssh ', 'ssh -p 22 -i k ', 'scp ', 'rsync -a ', 'root@', 'beta.lan', ':/x', ':22', ' \\\n',
                         '10.0.0.12', '10.0.0.255', '192.168.1.2/24', ' ; ', '\r', '\n', '--', '-o A=b ', 'x.beta.lan', '172.16.999.1']), word,
    ), max_size=14,
).map(''.join)  # fmt: skip

# ---- words


def words_hold(heading: str, body: str) -> None:
    "Terms that a table can hold and COPY does not misread, in any text."
    entries, parts = {}, [tokens(heading), tokens(body)]
    for token in {t for part in parts for t in part}:
        words = read(token)
        assert words and all(isinstance(w, Word) and w.count > 0 and 0 < w.share <= 1 for w in words)
        for term in (t for w in words for t in w.terms):
            assert 0 < len(term) <= LONGEST and storable(term), repr(term)
            assert not re.search(r'[\s\\{}"]', term) or term.isalnum(), f'COPY would misread {term!r}'
            assert not any(c in term for c in '\t\n\r\\\v\f\b'), f'COPY would misread {term!r}'
        entries[token] = make_entry(words, {})
    counts, length = count_terms(*parts, entries)
    assert 1 <= length <= 16_383 and all(n > 0 for n in counts.values())
    assert all(0 < posting < 2**31 for _, posting in pack(1023, counts, length))


# ---- secrets

TOKENS = st.builds(example, st.sampled_from(SHAPES), st.integers(0, 10**6))
DRESS = [(' ', ' '), ('[REDACTED:', ']'), ('\n', '\n'), ('`', '`'), ('"', '"'), ("'", "'"), ('(', ')'), ('| ', ' |'), ('=', '&x=1'), ('> ', '\r\n'), ('\\n', '\\n'),
         ('\x1b[0m', '\x1b[1m'), ('**', '**'), ('<b>', '</b>'), ('://', ' '), (',', ','), (': ', '.'), ('%20', '%20'), ('漢', '字'), ('é ', ' é')]  # fmt: skip
DRESSES = st.sampled_from(DRESS)


def redact_holds(before: str, token: tuple[str, str], dress: tuple[str, str], after: str) -> None:
    "A token of a known shape is gone, the lines stay, a second time changes nothing, spans do not overlap."
    whole, secret = token
    text = before + dress[0] + whole + dress[1] + after
    spans = ALL.spans(text)
    assert all(0 <= a < b <= len(text) and name in FAMILIES for a, b, name in spans)
    assert all(one[1] <= two[0] for one, two in zip(spans, spans[1:], strict=False)), 'spans overlap'
    once = ALL.redact(text)
    told = any(placeholder(secret[n:]) or wordy(secret[n:]) for n in range(0, 20)) or whole in before + after
    assert told or secret not in once.text, f'left: {secret!r}'
    again = ALL.redact(once.text)
    assert (again.text, again.counts) == (once.text, {}), 'a second time changes it'
    for end in ('\n', '\r'):
        assert once.text.count(end) == text.count(end), 'lines went'
    assert len(split_lines(once.text)) == len(split_lines(text))
    assert sum(once.counts.values()) >= len(MARK.findall(once.text)) - len(MARK.findall(text))
    assert Places(text).data.decode('utf-8', 'surrogatepass') == text


def hashes_hold(texts: list[str], picks: list[int]) -> None:
    "The search for live secrets finds what the slow one finds, whatever was read before."
    from test_redact_cases import MARKS, salted, tried

    for text in texts:
        fast = candidates(text.split()) | phrases(text, telling(text))
        assert {value for value in fast if value.strip(MARKS)} == tried(text)
    from unicodedata import normalize

    values = sorted(set().union(*map(tried, texts)))
    known = {normalize('NFC', values[n % len(values)]) for n in picks} if values else set()
    used = LiveSecrets(HashFile('c3' * 16, {salted('c3' * 16, value): 'x' for value in known}))
    for text in texts * 2:
        every = tried(text) | set(line_slots(telling(text)))
        there = {v for v in every if {v, normalize('NFC', v), normalize('NFKC', v)} & known}
        assert used.find(text) == ([(*m.span(), 'x') for m in places(there).finditer(text)] if there else [])


def cases_text() -> st.SearchStrategy[str]:
    "The texts of the tests that hold the slow reference."
    from test_redact_cases import PIECES

    part = st.one_of(
        st.sampled_from(PIECES), st.sampled_from(PIECES), st.sampled_from(ODD + HALVES), st.text(max_size=2)
    )
    return st.lists(part, max_size=14).map(''.join)


# ---- time

WORK: Mapping[str, Callable[[str], object]] = {
    'cutting a page': lambda text: chunk_markdown(text, 'p.md', max_tokens=200),
    'reading a document': lambda text: parse_document(text, 'p.md', LAYOUT, None, UTC),
    'redacting': ALL.redact,
    'looking for live secrets': lambda text: LiveSecrets(HashFile('00' * 16, {bytes(32): 'x'})).find(text),
    'looking for hosts': HostIndex([HostRecord('alpha', ('nas.lan',), ('10.0.0.12', 'fe80::1'), 'a.md')]).find,
    'looking for machines': lambda text: list(machines_in(text, frozenset(('lan', 'beta.lan')))),
    'cutting words': lambda text: [read(token) for token in tokens(text)],
    'showing': lambda text: (shown(text), shown_line(text, 200)),
}
SHORT, TIMES, NOTHING = (
    6_000,
    8,
    0.06,
)  # characters; how much longer the long text is; seconds below which time is noise


def growth_holds(unit: str, work: str) -> None:
    "Eight times the text takes about eight times as long, not sixty."

    def seconds(size: int) -> float:
        text = (unit * (size // len(unit) + 1))[:size]
        begin = time.process_time()
        WORK[work](text)
        return time.process_time() - begin

    least = float('inf')
    for _ in range(4):  # another process may steal the time of one measurement
        long = seconds(SHORT * TIMES)
        least = min(least, long / max(seconds(SHORT), 1e-4))
        if long < NOTHING or least < 2 * TIMES:
            return
    raise AssertionError(f'{work}: {TIMES} times the text, {least:.0f} times the time')


UNITS = st.one_of(
    glued.filter(bool), st.lists(line, min_size=1, max_size=3).map(lambda ls: '\n'.join(ls) + '\n'), COMMANDS.filter(bool),
    st.lists(st.sampled_from([w[:6] for w in WORDS] + ['sk-', 'eyJ', 'password=', '://', 'x:y@', 'AKIA', '-----BEGIN ', ':', ' ', '\n']),
             min_size=1, max_size=4).map(''.join),
)  # fmt: skip

TEXTS: Mapping[str, Target] = {
    'chunk': Target(
        'the sections of any text hold its lines, in order, within the limit', chunk_holds,
        {'text': whole_text, 'max_tokens': st.sampled_from([1, 4, 12, 50, 1500]), 'title': st.one_of(st.none(), sentence)}, 30,
    ),
    'document': Target(
        'any bytes are a document that a database can hold', document_holds,
        {'data': broken(pages), 'more': st.sampled_from([0, 0, 1, 10**8]), 'path': paths, 'committed': SECONDS}, 25,
    ),
    'dates': Target(
        'any text gives a date, none, or one line that says why not', dates_hold,
        {'path': st.one_of(paths, DATES.map(lambda d: f'journal/{d}.md')),
         'front': st.dictionaries(st.sampled_from(['date', 'updated', 'created', 'x']), st.one_of(DATES, st.lists(DATES, max_size=2).map(tuple)), max_size=3),
         'headings': st.lists(DATES, max_size=3), 'committed': SECONDS, 'stored': st.one_of(st.none(), st.dates())}, 30,
    ),
    'hosts': Target(
        'hosts of any names are found in any text, where they stand', hosts_hold,
        {'records': st.lists(st.tuples(NAMES, st.lists(NAMES, max_size=2), st.lists(NAMES, max_size=2)), max_size=4),
         'text': any_text, 'code': COMMANDS}, 20,
    ),
    'words': Target(
        'the terms of any text are short, and nothing in them that COPY would misread', words_hold,
        {'heading': whole_text, 'body': whole_text}, 25,
    ),
    'redact': Target(
        'a planted token is gone, lines stay, a second time changes nothing', redact_holds,
        {'before': any_text, 'token': TOKENS, 'dress': DRESSES, 'after': any_text}, 30,
    ),
    'hashes': Target(
        'live secrets are found as the slow search finds them', hashes_hold,
        {'texts': st.lists(cases_text(), min_size=1, max_size=3), 'picks': st.lists(st.integers(0, 10**4), max_size=3)}, 15,
    ),
    'growth': Target(
        'time grows with the text, not with its square', growth_holds,
        {'unit': UNITS, 'work': st.sampled_from(sorted(WORK))}, 10,
    ),
}  # fmt: skip
