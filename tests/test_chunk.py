"""Cutting a page into sections: fences, headings, repairs, long sections, lines."""

import os
import re
import subprocess
from collections import Counter
from datetime import date
from pathlib import Path
from time import process_time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from merlin import blocks
from merlin.blocks import split_lines
from merlin.chunk import Chunk, chunk_markdown, estimate_tokens, quarters
from merlin.document import decode, front_matter, parse_document
from merlin.hosts import HostIndex, HostRecord
from merlin.layout import read_layout
from merlin.outline import outline

CORPUS = Path(__file__).parent / 'fixtures' / 'corpus'
JUDGE = MarkdownIt('commonmark', {'maxNesting': 200})


def headings(text: str) -> list[str]:
    "The headings of a page, in order."
    return [h.text for h in outline(split_lines(text)).headings]


def fences(text: str) -> list[tuple[int, str]]:
    "Fences that did not close by themselves, and how they ended."
    return [(f.first, f.end) for f in outline(split_lines(text)).fences if f.end != 'closer']


def page(text: str, **kw) -> tuple[list[Chunk], list[str]]:
    "Chunks, and kinds of warnings."
    chunks, warnings = chunk_markdown(text, 'p.md', **kw)
    return chunks, [w.kind for w in warnings]


def hold(text: str, chunks: list[Chunk], max_tokens: int = 1500) -> None:
    "What is true of the chunks of any page."
    lines = split_lines(text.removeprefix('\ufeff'))
    first = front_matter(lines).body_line
    full = [n for n in range(first, len(lines) + 1) if lines[n - 1].strip()]
    if not full:
        assert chunks == []
        return
    assert (chunks[0].first_line, chunks[-1].last_line) == (full[0], len(lines))
    for above, below in zip(chunks, chunks[1:], strict=False):
        if below.first_line == above.last_line:  # a line that was cut inside
            assert quarters(lines[below.first_line - 1]) > max_tokens * 4
        else:
            assert below.first_line == above.last_line + 1
    closed = outline(lines, first).fences
    inner = {n for fence in closed for n in range(fence.first + 1, fence.last + 1)}
    assert not inner & {chunk.first_line for chunk in chunks if len(lines[chunk.first_line - 1]) <= max_tokens * 4}
    titles = {h.line for h in outline(lines, first).headings if h.level <= 3 and len(h.text) <= 500}
    for chunk in chunks:
        own = [lines[n - 1] for n in range(chunk.first_line, chunk.last_line + 1) if n not in titles]
        wanted = [line for line in own if line.strip()]
        body = [line for line in chunk.body.split('\n') if line.strip()]
        assert chunk.last_line >= chunk.first_line and '\r' not in chunk.body
        if quarters('\n'.join(own)) <= max_tokens * 4 and '|' not in chunk.body:
            assert body == wanted
        else:
            assert all(line in '\n'.join(lines) for line in body)
        assert chunk.embed_text.startswith('[page] p.md')
        assert quarters(chunk.embed_text) <= max_tokens * 4 + 4 * 3000


# ---- what is a heading, what is a fence


def test_atx_headings_by_commonmark():
    text = '# A\n##\tTab\n   ### Indented ###\n## Build C#\n#\n####### seven\n#none\n'
    text += '    # code\n\t# code\n> # quote\n- # item\n\\# no\n'
    assert headings(text) == ['A', 'Tab', 'Indented', 'Build C#', '']


def test_underlined_titles_are_no_sections():
    chunks, _ = page('Title\n=====\n\nPart\n----\n\ntext\n')
    assert [(c.heading_path, c.first_line, c.last_line) for c in chunks] == [((), 1, 7)]


@pytest.mark.parametrize(
    'text',
    [
        '```\n# no\n```\n# yes',
        '```sh\n# no\n````\n# yes',
        '~~~\n# no\n```\n# no\n~~~\n# yes',
        '````\n```\n# no\n```\n````\n# yes',
        '```\n# no\n```sh\n# no\n```\n# yes',
        '```\n# no\n    ```\n# no\n   ```\n# yes',
        '``` a`b\n# yes',
        '~~~ a`b\n# no\n~~~\n# yes',
        '> ```\n> # no\n\n# yes',
        '- ```\n  # no\n\n# yes',
        '- a\n\n  ```\n  # no\n  ```\n# yes',
        '1. a\n   ```\n# no\nb\n   ```\n# yes',
        '1. a\n    ```\n    b\n```\n# yes',
        '    ```\n# yes',
        'text\n    ```\n# yes',
        '<!--\n# no\n```\n-->\n# yes',
        '<pre>\n# no\n\n# no\n</pre>\n# yes',
        'a\u2028# no\x0b# no\x85# no\n# yes',
        '\\```\n# yes',
        '```\r\n# no\r\n```\r\n# yes\r\n',
        '```\r# no\r```\r# yes\r',
    ],
)
def test_only_what_is_a_heading_counts(text):
    assert set(headings(text)) == {'yes'}


PREFIXES = ['', '', '', ' ', '   ', '    ', '\t', '- ', '* ', '1. ', '2) ', '10. ', '> ', '>', '-\t', '-     ']
CONTENTS = (
    ['', '', 'text', 'more text', '# A', '## B', '### C ##', '#', '#nope', '```', '```', '```sh', '````', '~~~', '~~~ x']
    + ['---', '***', '===', '-', '- - -', 'a | b', '``` a`b', '+', '1.', '\tcode', 'x' * 30, '|---|---|']
)  # fmt: skip
LINES = st.lists(st.tuples(st.lists(st.sampled_from(PREFIXES), max_size=3), st.sampled_from(CONTENTS)), max_size=14)
PAGES = LINES.map(lambda drawn: [''.join([*prefixes, content]) for prefixes, content in drawn])


@settings(derandomize=True, deadline=None, max_examples=500)
@given(PAGES)
def test_headings_and_fences_are_those_of_markdown_it(lines):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, 'meant_inside', lambda *_: False)  # the two sloppy habits that are read kindly
        scan = blocks.read_lines(lines, 1)
    if any(fence.end == 'file' for fence in scan.fences):
        return  # repaired, so no longer CommonMark's reading
    tokens = [token for token in JUDGE.parse('\n'.join(lines) + '\n') if token.level == 0]
    judged = [(t.map[0] + 1, len(t.markup)) for t in tokens if t.type == 'heading_open' and t.markup[0] == '#']
    assert [(h.line, h.level) for h in scan.headings] == judged
    assert {(t.map[0] + 1, t.map[1]) for t in tokens if t.type == 'fence'} <= {(f.first, f.last) for f in scan.fences}


# ---- fences that nobody closed


@pytest.mark.parametrize(
    ('text', 'seen', 'ends'),
    [
        # the rest pairs up once the first is closed
        ('## A\n```\na\n## B\n```\nb\n```\n## C\n', 'ABC', [(2, 'repair')]),
        ('## A\n```\na\n## B\n```\nb\n```\n## C\n```\nc\n```\n', 'ABC', [(2, 'repair')]),
        ('## A\n```sh\na\n## B\nb\n```sh\nc\n```\n## C\n', 'ABC', [(2, 'repair')]),
        ('## A\n~~~\na\n## B\n```\nb\n```\n## C\n', 'ABC', [(2, 'repair')]),
        ('## A\n```sh\na\n# comment\nb\n## B\nc\n', 'AB', [(2, 'repair')]),
        ('## A\n```sh\na\n\n## B\n\nb\n\n### C\n', 'ABC', [(2, 'repair')]),
        ('## A\n````\n```\na\n```\n## B\nb\n', 'AB', [(2, 'repair')]),
        # several are open
        ('## A\n```sh\na\n## B\n```sh\nb\n## C\n```sh\nc\n```\n## D\n', 'ABCD', [(2, 'repair'), (5, 'repair')]),
        # a sound fence that shows a heading is left alone
        ('## A\n```\n## no\n```\n## B\n', 'AB', []),
        ('## A\n```\nx\n## no\n## no\n```\n## B\n```\nb\n```\n', 'AB', []),
        ('## A\n```md\n## no\n```\n## B\n```sh\nb\n## C\n', 'ABC', [(6, 'repair')]),
        ('## A\n```\n## no\n```\n## B\n```\nb\n## C\n', 'ABC', [(6, 'repair')]),
        ('## A\n```\nx\n## no\n```\n## B\n```\nb\n## C\n', 'ABC', [(7, 'repair')]),
        ('## A\n````md\n## no\n```sh\nx\n```\n````\n## B\n', 'AB', []),
        ('## A\n```md\n## no\n```sh\nx\n```\n## B\n', 'AB', []),
        # a stray fence line, and nothing to close it before
        ('## A\n```\na\n```\n```\n## B\nb\n', 'AB', [(5, 'repair')]),
        ('## A\n```sh\na\n# comment\n', 'A', [(2, 'file')]),
        ('## A\n```\n', 'A', [(2, 'file')]),
        ('# A\n```\na\n# B\nb\n', 'AB', [(2, 'repair')]),
        # ends with its list item
        ('## A\n- x\n  ```\n  a\n\n## B\n', 'AB', [(3, 'container')]),
    ],
)
def test_repairs_change_as_little_as_possible(text, seen, ends):
    assert ''.join(headings(text)) == seen
    assert fences(text) == ends


def test_a_repair_is_named_with_the_line_of_the_fence():
    _, [warning] = chunk_markdown('## A\n\n```sh\nls\n\n## B\n\ntext\n', 'notes/x.md')
    assert str(warning) == 'notes/x.md:3: code fence is never closed; read as closed before line 6'


def test_an_unclosed_fence_early_in_a_long_journal_costs_nothing_behind_it():
    days = [f'## Day {n}\n\ntext {n}\n\n```sh\nrun {n}\n```\n' for n in range(200)]
    broken = days.copy()
    broken[3] = broken[3].replace('run 3\n```', 'run 3')
    assert headings('\n'.join(broken)) == headings('\n'.join(days))
    bare = [day.replace('```sh', '```') for day in days]
    bare[3] = bare[3].replace('run 3\n```', 'run 3')
    assert headings('\n'.join(bare)) == headings('\n'.join(days))


@pytest.mark.parametrize('bare', [True, False])
@pytest.mark.parametrize('gone', range(6))
def test_any_one_forgotten_closing_line_is_found(bare, gone):
    parts = [f'## S{n}\n\ntext\n\n```{"" if bare else "sh"}\nrun\n```\n\nmore\n' for n in range(6)]
    parts[gone] = parts[gone].replace('run\n```', 'run')
    text = '# Log\n\n' + '\n'.join(parts)
    assert headings(text) == ['Log', *(f'S{n}' for n in range(6))]
    assert fences(text) == [(7 + 10 * gone, 'repair' if gone < 5 else 'file')]


# ---- sections


def test_one_chunk_for_each_section():
    text = 'lead\n# T\nown\n## A\na\n#### deep\nd\n### B\nb\n##### deeper\n## A\nagain\n# U\nu\n### C\nc\n'
    chunks, kinds = page(text)
    chains = [c.heading for c in chunks]
    assert chains == ['', 'T', 'T > A', 'T > A > B', 'T > A', 'U', 'U > C'] and kinds == []
    assert chunks[2].body == 'a\n#### deep\nd' and chunks[3].body == 'b\n##### deeper'
    hold(text, chunks)


def test_an_empty_heading_joins_its_first_child_only():
    chunks, kinds = page('# T\n\n## A\n\n### B\n\nb\n\n## C\n\n## D\n\nd\n\n### E\n')
    assert [(c.heading, c.first_line, c.last_line) for c in chunks] == [
        ('T > A > B', 1, 8),
        ('T > C', 9, 10),
        ('T > D', 11, 14),
        ('T > D > E', 15, 15),
    ]
    assert kinds == []


def test_line_numbers_count_front_matter_and_crlf():
    chunks, _ = page(
        '\ufeff---\r\ntitle: x\r\n# comment\r\n## comment\r\n---\r\n\r\n# A\r\n\r\na\u2028b\r\n\r\n## B\r\nb\r\n'
    )
    assert [(c.heading, c.first_line, c.last_line, c.body) for c in chunks] == [
        ('A', 7, 10, 'a\u2028b'),
        ('A > B', 11, 12, 'b'),
    ]


def test_the_context_line_names_type_path_and_chain():
    [_, b], _ = chunk_markdown('# T\n\nt\n\n## V\n\nv\n', 'a/b.md', type='runbook', title='Other')
    assert b.embed_text == '[runbook] a/b.md > T > V\n\nv'
    [c], _ = chunk_markdown('## V\n\nv\n', 'a/b.md', title='Title')
    assert c.embed_text == '[page] a/b.md > Title > V\n\nv' and c.heading_path == ('V',)
    [d], _ = chunk_markdown('## V\n\nv\n', 'a/b.md', title='b')  # the file's name is in the path already
    assert d.embed_text == '[page] a/b.md > V\n\nv'


def test_pages_without_text():
    for text in ['', '\n \n', '---\ntitle: x\n---\n', '---\ntitle: x\n---\n\n\n']:
        assert page(text) == ([], ['empty'])
    chunks, kinds = page('# T\n## A\n## B\n')
    assert [c.heading for c in chunks] == ['T > A', 'T > B'] and kinds == ['heading-only']


def test_the_nearest_dated_heading_counts():
    text = '# Log 2030-01-01\na\n## No date\na\n### On 2030/01/03, and 2030-01-04\na\n## 2030-02-30\na\n'
    chunks, warnings = chunk_markdown(text, 'p.md', date=date(2029, 1, 1))
    assert [c.date and c.date.day for c in chunks] == [1, 1, 3, 1] and [w.line for w in warnings] == [7]
    assert page('## A\na\n', date=date(2029, 1, 1))[0][0].date == date(2029, 1, 1)
    assert page('## 12030-01-01 CVE-2030-0101\na\n')[0][0].date is None


def test_hosts_are_those_of_the_section():
    index = HostIndex([HostRecord('alpha', ('nas',), (), 'a.md'), HostRecord('beta', (), (), 'b.md')])
    text = '# About alpha\n\n## One\nx\n## Two\nbeta\n'
    assert [c.hosts for c in page(text, hosts=index)[0]] == [('alpha',), ('alpha', 'beta')]
    assert [c.hosts for c in page('a\n', hosts=index, host='NAS')[0]] == [('alpha',)]
    assert [c.hosts for c in page('a\n', host='gamma')[0]] == [('gamma',)]


@pytest.mark.parametrize(
    ('text', 'stale'),
    [
        ('## A\n(superseded 2030-01-01: see § B)\n## B\nb\n', True),
        ('## A\n\n> **Superseded**, see § B\n## B\nb\n', True),
        ('## Old way (obsolete)\na\n', True),
        ('## Why the plan was superseded\na\n', True),
        ('## A\nThis was superseded.\n', False),
        ('## A\na\n\n(superseded)\n', False),
        ('## A\nsupersededness\n', False),
        ('## A\n' + 'x' * 300 + ' superseded\n', False),
    ],
)
def test_a_section_is_stale_at_two_places_only(text, stale):
    assert page(text)[0][0].stale is stale


def test_all_parts_of_a_stale_section_are_stale():
    chunks, _ = page('## A\n(superseded)\n\n' + 'word word word\n\n' * 600)
    assert len(chunks) > 1 and all(c.stale for c in chunks)


@pytest.mark.parametrize(
    ('lead', 'kinds'),
    [
        ('(superseded 2030-01-01: see § New way)', []),
        ('(superseded: see § The new way (2030-01-02))', []),
        ('superseded, see §new WAY.', []),
        ('(superseded: see § Page > The new way)', []),
        ('(superseded: see other.md § Nowhere)', []),
        ('(superseded: see [there](x.md) § Nowhere)', []),
        ('(superseded)', []),
        ('(superseded: see § Nowhere)', ['pointer']),
        ('a passing remark: see § Nowhere', []),
    ],
)
def test_a_superseded_pointer_leads_somewhere_or_warns(lead, kinds):
    assert page(f'# Page\n\n## Old\n\n{lead}\n\n## The new way (2030-01-02)\n\ntext\n')[1] == kinds


# ---- long sections


def test_long_sections_are_cut_at_the_softest_place():
    paragraphs = '## A\n\n' + 'one two three four five\n\n' * 400
    items = '## A\n\n' + '- one two three four\n  five\n' * 400
    rows = '## A\n\n| a | b |\n| --- | --- |\n' + '| one two three | four |\n' * 400
    for text in (paragraphs, items, rows):
        chunks, kinds = page(text)
        assert len(chunks) > 1 and kinds == ['section-size']
        assert all(estimate_tokens(c.body) <= 1500 for c in chunks)
        hold(text, chunks)
    assert all(c.body.startswith('- one') for c in page(items)[0])
    assert all(c.body.startswith('| a | b |\n| --- | --- |\n| one') for c in page(rows)[0])


def test_a_fence_is_never_cut():
    code = '```\n' + 'line\n\n' * 300 + '```\n'
    chunks, kinds = page('## A\n\n' + f'{code}\ntext\n\n' * 6)
    assert len(chunks) > 1 and all(c.body.count('```') % 2 == 0 for c in chunks) and kinds == ['section-size']
    nested = '## A\n\n' + '- item\n\n  ```\n  code\n\n  - code\n  ```\n\n' * 400
    assert all(c.body.count('```') % 2 == 0 for c in page(nested)[0])


def test_an_oversize_fence_stays_whole_and_warns():
    text = '## A\n\n```\n' + 'a line of a log\n' * 2500 + '```\n'
    chunks, kinds = page(text)
    assert len(chunks) == 1 and chunks[0].body.count('log') == 2500 and kinds == ['fence-size']
    assert estimate_tokens(chunks[0].embed_text) < 1520


def test_ten_thousand_cjk_characters_are_not_2500_tokens():
    for text in ('磁盘空间不足。' * 1500, '磁' * 10_000, '磁盘\n' * 4000):
        chunks, _ = page('## A\n\n' + text)
        assert len(chunks) >= 6 and all(estimate_tokens(c.body) <= 1500 for c in chunks)
        assert ''.join(c.body for c in chunks).replace('\n', '') == text.replace('\n', '')


def test_a_line_of_300_kb_is_cut_inside():
    for line in ('word ' * 60_000, 'x' * 300_000, 'A sentence, no more. ' * 15_000):
        text = f'# T\n\nlead\n\n{line}\nafter\n\n## Next\n\ntext\n'
        chunks, kinds = page(text)
        assert 50 <= len(chunks) < 120 and kinds == ['section-size']
        assert {c.first_line for c in chunks[1:-1]} <= {5, 6}
        assert re.sub(r'\s', '', ''.join(c.body for c in chunks[:-1])) == re.sub(r'\s', '', 'lead' + line + 'after')


def test_a_huge_heading_loses_nothing():
    [chunk], _ = page('## ' + 'w ' * 2000 + '\n\ntext\n')
    assert len(chunk.heading) == 500 and chunk.body.count('w ') > 1990 and chunk.body.endswith('text')


@settings(derandomize=True, deadline=None, max_examples=250)
@given(PAGES, st.sampled_from(['\n', '\r\n', '\r']), st.booleans(), st.sampled_from([4, 12, 1500]))
def test_every_line_is_in_exactly_one_chunk(lines, end, front, max_tokens):
    head = ['---', 'title: x', '---'] if front else []
    text = end.join([*head, *lines])
    chunks, warnings = chunk_markdown(text, 'p.md', max_tokens=max_tokens)
    hold(text, chunks, max_tokens)
    assert chunk_markdown(text, 'p.md', max_tokens=max_tokens) == (chunks, warnings)


@settings(derandomize=True, deadline=None, max_examples=200)
@given(st.text(max_size=300), st.sampled_from([1, 50]))
def test_any_text_can_be_cut(text, max_tokens):
    hold(text, chunk_markdown(text, 'p.md', max_tokens=max_tokens)[0], max_tokens)


# ---- time

LONG = {
    'lines': 'some text here\n',
    'sections': '## Head\n\nsome text\n\n```sh\ncode\n```\n\n',
    'open fences': '```sh\n## x\n',
    'bare fences': '```\nx\n## x\n```\n```\n',
    'list fences': '- a\n  ```\nx\n',
    'html': '<pre>\n<!--\n',
    'items': '- some words\n  more\n',
    'rows': '| a | b |\n|---|---|\n',
    'pointers': '## a\n(superseded: see § b)\n',
    'dated': '### 2030-02-30 x\ny\n',
    'quotes': '> - > - 1. x\n',
}


@pytest.mark.parametrize('unit', LONG)
def test_time_grows_with_the_page_and_not_faster(unit):
    def seconds(times: int) -> float:
        start = process_time()
        chunk_markdown(LONG[unit] * times, 'p.md')
        return process_time() - start

    seconds(100)
    small = min(seconds(1000) for _ in range(3))
    assert any(seconds(8000) < 8 * small * 3 + 0.1 for _ in range(3))  # a busy machine is slow now and then


@pytest.mark.parametrize(
    'line',
    [
        '`' * 500_000,
        '#' * 500_000,
        '- ' * 200_000,
        '> ' * 200_000,
        '* ' * 200_000 + 'x',
        '|-' * 200_000,
        '. ' * 200_000,
        ' ' * 500_000,
    ],
)
def test_hostile_lines_take_linear_time(line):
    start = process_time()
    chunk_markdown(f'{line}\n{line}x\n\ntext\n', 'p.md')
    chunk_markdown(f'---\na{line}\n---\n## {line}\n', 'p.md')
    assert process_time() - start < 6


# ---- the fixture record, and real ones


def judge(text: str) -> None:
    "The headings of a page are those that markdown-it finds, unless a fence had to be repaired."
    lines = split_lines(text)
    first = front_matter(lines).body_line
    shape = outline(lines, first)
    if any(fence.end in ('repair', 'file') for fence in shape.fences):
        return
    tokens = JUDGE.parse('\n'.join(lines[first - 1 :]) + '\n')
    judged = [t.map[0] + first for t in tokens if t.type == 'heading_open' and t.level == 0 and t.markup[0] == '#']
    assert [h.line for h in shape.headings] == judged


def record(folder: Path) -> tuple[Counter, int, int]:
    "Kinds of warnings, chunks and files of a folder; every page holds what is true of any."
    layout, kinds, chunks, files = read_layout(None, {}).layout, Counter(), 0, 0
    for path in sorted(folder.rglob('*.md')):
        if '.git' in path.parts or path.is_symlink():
            continue
        text, said = decode(path.read_bytes(), str(path), path.stat().st_size)
        document, more = parse_document(text, path.relative_to(folder).as_posix(), layout, None)
        found, warnings = chunk_markdown(text, 'p.md', title=document.title, date=document.date)
        hold(text, found)
        judge(text)
        kinds.update(w.kind for w in (*said, *more, *warnings))
        chunks, files = chunks + len(found), files + 1
    return kinds, chunks, files


def test_the_fixture_record_shows_every_warning():
    kinds, _, _ = record(CORPUS)
    shown = 'date duplicate-key empty encoding fence fence-size front-matter heading-only nul pointer section-size'
    assert set(kinds) == set(shown.split())


@pytest.mark.skipif('CORPUS_DIR' not in os.environ, reason='CORPUS_DIR names no record')
def test_a_record_of_your_own():
    kinds, chunks, files = record(Path(os.environ['CORPUS_DIR']))
    print(f'{files} files, {chunks} chunks, {dict(kinds)}')
    assert files


RECORDS = os.environ.get('MERLIN_TEST_RECORDS')
BUNDLES = {
    'openshift-runbooks': ({'fence', 'section-size'}, 274),
    'prometheus-operator-runbooks': ({'fence', 'front-matter', 'empty'}, 121),
    'jbranchaud-til': ({'section-size'}, 1873),
}


@pytest.mark.records
@pytest.mark.skipif(not RECORDS, reason='MERLIN_TEST_RECORDS is not set: real records are not there')
@pytest.mark.parametrize('name', BUNDLES)
def test_real_records(name, tmp_path):
    bundle = Path(RECORDS) / 'corpora' / f'{name}.bundle'
    subprocess.run(['git', 'clone', '-q', '-c', 'advice.detachedHead=false', bundle, tmp_path / 'r'], check=True)
    kinds, chunks, files = record(tmp_path / 'r')
    print(f'{name}: {files} files, {chunks} chunks, {dict(kinds)}')
    assert (set(kinds), files) == BUNDLES[name]
