"""Bytes of a file to a document: no file vanishes, whatever is wrong with it."""

import subprocess
import sys
from datetime import UTC, date, timedelta, timezone
from pathlib import Path
from time import process_time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from merlin.blocks import split_lines
from merlin.document import Document, decode, file_date, front_matter, parse_document
from merlin.errors import IngestWarning
from merlin.layout import read_layout

CORPUS = Path(__file__).parent / 'fixtures' / 'corpus'
LAYOUT = read_layout(None, {}).layout


def parse(
    text: str, path: str = 'notes/p.md', commit: int | None = None, tz=UTC
) -> tuple[Document, list[IngestWarning]]:
    "A document of the shipped layout."
    return parse_document(text, path, LAYOUT, commit, tz)


@pytest.mark.parametrize(
    ('blob', 'text', 'kinds'),
    [
        (b'', '', []),
        (b'\xef\xbb\xbf', '', []),
        (b'\xef\xbb\xbf---\r\n', '---\r\n', []),
        (b'a\r\nb\rc\n', 'a\r\nb\rc\n', []),
        (b'\xff\xfeA\x00\n\x00', 'A\n', ['encoding']),
        (b'\xfe\xff\x00A', 'A', ['encoding']),
        (b'\xff\xfeodd', None, ['encoding']),
        (b'ok\xed\xa0\x80', None, ['encoding']),  # an encoded surrogate
        (b'\xc3', '\ufffd', ['encoding']),
        (b'a\0\0b\xff', 'ab\ufffd', ['encoding', 'nul']),
    ],
)
def test_any_bytes_become_text_without_nul_and_surrogates(blob, text, kinds):
    found, warnings = decode(blob, 'p.md', len(blob))
    assert text is None or found == text
    assert [w.kind for w in warnings] == kinds
    assert '\0' not in found and found.encode().decode() == found


@settings(derandomize=True, deadline=None, max_examples=200)
@given(st.binary(max_size=200), st.sampled_from([0, 1, 10**8]))
def test_decoding_never_fails(blob, more):
    text, warnings = decode(blob, 'p.md', len(blob) + more)
    assert '\0' not in text and text.encode().decode() == text
    assert ('size' in {w.kind for w in warnings}) == bool(more)


def test_the_head_of_an_oversize_file_ends_at_a_line():
    line = 'Zeile mit Ümläuten\n'.encode()
    blob = (line * 300_000)[:5_000_000]
    text, [warning] = decode(blob, 'big.md', 50_000_000)
    assert text.endswith('Ümläuten\n') and len(text.encode()) > 4_999_900
    assert str(warning) == 'big.md: 50.0 MB, more than the 5.0 MB that are read; the rest of the file is not indexed'


@pytest.mark.parametrize('end', ['\n', '\r\n', '\r'])
@pytest.mark.parametrize('mark', ['', '\ufeff'])
@pytest.mark.parametrize('close', ['---', '...', '---  '])
def test_front_matter_is_read_with_any_line_end_and_closing(end, mark, close):
    text = mark + end.join(['---', 'title: Backup', 'ips: [10.0.0.1]', close, '# Other', ''])
    document, warnings = parse(text)
    assert (document.title, document.body_line, warnings) == ('Backup', 5, [])
    assert document.front == {'title': 'Backup', 'ips': ('10.0.0.1',)}


@pytest.mark.parametrize(
    ('front', 'said'),
    [
        ('description: fix: restart', 'invalid front matter'),
        ('a: [1, 2', 'invalid front matter'),
        ('a: "open', 'invalid front matter'),
        ('a: @x', 'invalid front matter'),
        ('a: b\n\tc: d', 'invalid front matter'),
        ('a: *nobody', ''),
        ('- a\n- b', ''),
        ('just text', ''),
        ('just text\nwith: a key', 'no front matter'),
        ('a sentence, and so on: more', ''),
        ('a: ' + '[' * 60_000, 'invalid front matter'),
        ('a: ' + '- ' * 30_000, 'invalid front matter'),
        ('{' * 30_000, 'invalid front matter'),
        ('a: !!python/object/apply:os.system [echo]', ''),
        ('a: &a [*a]', ''),
        ('? [complex]\n: key', ''),
        ('a: \x1b', 'invalid front matter'),
        ('a: 1' + '\nx: ' + 'y' * 70_000, 'longer than 64 KB'),
    ],
)
def test_broken_front_matter_warns_and_the_page_stays(front, said):
    start = process_time()
    document, warnings = parse(f'---\n{front}\n---\n# Page\n')
    assert process_time() - start < 2
    assert any(said in w.text and w.kind == 'front-matter' for w in warnings) == bool(said)
    assert document.title == 'Page'
    assert not said or document.front == {}


def test_front_matter_without_an_end_is_text():
    document, [warning] = parse('---\nhost: alpha\n\n# Alpha\n\ntext\n', 'hosts/alpha.md')
    assert (document.body_line, document.title, document.front) == (1, 'Alpha', {})
    assert 'never closed' in warning.text


def test_a_page_that_begins_with_a_rule_keeps_its_first_paragraph():
    for text, kinds in {
        '---\n\nIt rained.\n\n---\n\nMore.\n': [],
        '---\n\nIt rained,\nand in the end: it did not.\n\n---\n\nMore.\n': [],
        '---\nA rule, then text.\n': [],
        '---\n\nNote: rain.\n\nSnow later.\n\n---\n': ['front-matter'],
    }.items():
        document, warnings = parse(text)
        assert (document.body_line, [w.kind for w in warnings]) == (1, kinds)


def test_the_page_of_the_fixture_record_that_begins_with_a_rule_gives_no_warning():
    assert parse((CORPUS / 'notes/horizontal-rule.md').read_text(encoding='utf-8'))[1] == []


def test_values_stay_the_text_that_was_written():
    values = ['52:54:00:12:34:56', '22:22', 'no', '1.10', '0x1f', '010', '1e3', '~', 'null', '2030-01-15', '=', '.inf']
    text = '---\n' + ''.join(f'k{n}: {value}\n' for n, value in enumerate(values)) + '---\n'
    assert list(parse(text)[0].front.values()) == values


def test_an_escape_puts_no_character_into_a_title_that_the_index_cannot_hold():
    document, warnings = parse('---\ntitle: "a\\0b"\n"k\\0": [x, "\\0"]\n---\n# x\n\ntext\n')
    assert (document.title, dict(document.front), warnings) == ('a b', {'title': 'a b', 'k': ('x', '')}, [])


def test_a_file_whose_name_is_nothing_but_blanks_has_a_title():
    assert parse('', 'notes/\u2028.md')[0].title == '\u2028.md'


def test_a_bomb_of_anchors_costs_nothing():
    lines = ['a0: &a0 [lol, lol]', *(f'a{n}: &a{n} [{", ".join([f"*a{n - 1}"] * 9)}]' for n in range(1, 40))]
    start = process_time()
    document, warnings = parse('---\n' + '\n'.join(lines) + '\n---\n')
    assert process_time() - start < 1 and warnings == []
    assert sum(len(value) for value in document.front.values()) < 100


def test_redaction_marks_in_front_matter_stay_text():
    document, warnings = parse('---\ntoken: [REDACTED:deploy]x\nkeys: ["[REDACTED:a]", b]\n---\n')
    assert document.front == {'token': '[REDACTED:deploy]x', 'keys': ('[REDACTED:a]', 'b')} and warnings == []


@pytest.mark.parametrize(
    ('text', 'title'),
    [
        ('---\ntitle: Front\n---\n# Heading\n', 'Front'),
        ('---\ntitle: "  two\n  lines  "\n---\n', 'two lines'),
        ('---\ntitle:\n---\n# Heading\n', 'Heading'),
        ('---\ntitle: [a, b]\n---\n# Heading\n', 'Heading'),
        ('## Sub\n# First\n# Second\n', 'First'),
        ('```\n# comment\n```\n# Real #\n', 'Real'),
        ('#\n# Not empty\n', 'Not empty'),
        ('text\n', 'p'),
        ('', 'p'),
    ],
)
def test_the_title_is_the_front_matters_else_the_first_h1_else_the_files_name(text, title):
    assert parse(text)[0].title == title


@pytest.mark.parametrize(
    ('name', 'day'),
    [
        ('journal/2030-01-15.md', date(2030, 1, 15)),
        ('journal/2030/01/15-visit.md', date(2030, 1, 15)),
        ('journal/2030/2030-01-15.md', date(2030, 1, 15)),
        ('journal/2029-12-31/2030-01-15 late.md', date(2030, 1, 15)),
        ('journal/2030.1.5.md', date(2030, 1, 5)),
        ('notes-infra/journal/20300115.md', date(2030, 1, 15)),
        ('journal/12345678.md', None),
        ('journal/99999999.md', None),
        ('journal/v2030-01-155.md', None),
    ],
)
def test_the_date_in_a_files_name(name, day):
    assert file_date(name) == (day, [])


def test_where_a_documents_date_comes_from():
    front = '---\nupdated: 2030-01-16\ncreated: 2030-01-01\n---\n'
    assert parse(front, 'journal/2030-01-15.md')[0].date == date(2030, 1, 15)
    assert parse(front, 'journal/ideas.md')[0].date == date(2030, 1, 16)
    assert parse(front, 'notes/2030-01-15.md')[0].date == date(2030, 1, 16)  # no journal: the name does not count
    midnight = 1_894_665_600  # 2030-01-15 00:00 UTC
    assert parse('', commit=midnight)[0].date == date(2030, 1, 15)
    assert parse('', commit=midnight, tz=timezone(timedelta(hours=-3)))[0].date == date(2030, 1, 14)
    assert parse('')[0].date is None
    assert parse('', commit=2**62)[0].date is None


def test_a_date_that_is_no_date_warns_and_the_next_source_counts():
    document, warnings = parse('---\ndate: 2030-02-30\nupdated: {{ now }}\ncreated: 2030-01-02 10:00\n---\n')
    assert document.date == date(2030, 1, 2)
    assert [(w.line, w.kind) for w in warnings] == [(2, 'date')]
    document, [warning] = parse('', 'journal/2030-13-01.md', 1_894_665_600)
    assert document.date == date(2030, 1, 15) and warning.kind == 'date'


def test_front_matter_never_hides_more_than_itself():
    for path in sorted(CORPUS.rglob('*.md')):
        text, _ = decode(path.read_bytes(), path.name, path.stat().st_size)
        lines = split_lines(text)
        front = front_matter(lines)
        assert front.body_line == 1 or lines[front.body_line - 2] in ('---', '...')


def test_a_page_without_front_matter_loads_no_yaml():
    code = (
        'import sys; from merlin.document import parse_document; from merlin.layout import read_layout;'
        'parse_document("# A\\n", "a.md", read_layout(None, {}).layout, None); sys.exit("yaml" in sys.modules)'
    )
    assert subprocess.run([sys.executable, '-c', code], check=False).returncode == 0
