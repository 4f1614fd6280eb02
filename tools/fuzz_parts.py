"""What the fuzzers are fed: pages shaped like markdown, odd characters, bytes, YAML and TOML that is nearly right."""

import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from merlin.errors import MerlinError

sys.path.insert(1, str(Path(__file__).resolve().parents[1] / 'tests'))  # their slow references are used here too


@dataclass(frozen=True)
class Target:
    "One property, and what it is asked about."

    text: str  # what must hold, in a few words
    holds: Callable[..., None]  # takes what is drawn, by name; raises AssertionError, or lets through what it meets
    drawn: Mapping[str, st.SearchStrategy]
    slice: int = 20  # examples in the test suite, which is in a hurry
    ready: Callable[[], AbstractContextManager[Any]] = field(default=nullcontext)  # made once; passed as `lab`
    seconds: float = 8.0  # of a turn


def refused(call: Callable[..., Any], *args: Any, codes: tuple[int, ...] = (2,), **named: Any) -> Any:
    "What a call gives; None where it refuses in one line, as it should."
    try:
        return call(*args, **named)
    except MerlinError as error:
        assert error.exit_code in codes, f'exit code {error.exit_code}: {error}'
        one_line(str(error))
        return None


def one_line(text: str, most: int = 6_000) -> None:
    "Assert that a message is one line that says something."
    assert text.strip() and '\n' not in text and '\r' not in text and len(text) < most, repr(text)


def storable(text: str) -> bool:
    "Whether a database takes this text."
    return '\0' not in text and not any('\ud800' <= c <= '\udfff' for c in text)


# ---- characters, words and lines

ODD = (
    '\0 \ufeff \u2028 \u2029 \x85 \x0b \x0c \x1c \u202e \u200b \u200d \u00ad \xa0 \u3000 \t \x1b[2J \x7f é e\u0301 İ ı ß ẞ ﬁ Å '
    '漢字 復旧 ｆｕｌｌ 한글 ไทย می\u200cخواهم 💥 👩\u200d💻 \U000e0041 \ufe0f \u0345 ͺ \u0300 ª ² ½ Ⅷ ٣ 𝟛 ⑨ ŉ ǆ \uffff \U0010ffff'
).split(' ')
HALVES = ['\ud800', '\udfff', '\udc80']  # half characters: only where the API takes any `str`
WORDS = (
    'disk restore alpha beta.lan 10.0.0.12 fe80::1 DEC-0054 node_filesystem_avail_bytes --max-old-space-size=4096 nginx.service '
    '/etc/nginx/conf.d/x.conf ERR_CONNECTION_RESET a b.c 2030-01-31 2030-02-30 see § x (superseded: `code` **bold** [a](b.md) <b>'
).split(' ')
odd = st.sampled_from(ODD)
word = st.one_of(st.sampled_from(WORDS), st.sampled_from(WORDS), odd, st.text(max_size=4))
sentence = st.lists(word, max_size=9).map(' '.join)
glued = st.lists(st.one_of(word, st.sampled_from('.-_/:@+\\,;|=\'"`()[]{}<>#*~!?&%$')), max_size=9).map(''.join)

PREFIXES = ['', '', '', ' ', '    ', '\t', '- ', '* ', '1. ', '10) ', '> ', '>', '- > ', '-     ']
BLOCKS = (
    '|# |## |### |#### |###### |# # |#|```|```|```sh|````|~~~|~~~ x|---|***|===|- - -|| a | b |||---|---|||a | b|<!--|-->|<pre>|'
    '</pre>|<details>|``` a`b|[^1]: note|\\# no|## Closed ##|## 2030-01-31 done|## Old (superseded)|superseded: see § Disk|### |## '
).split('|')
line = st.builds(
    lambda prefixes, block, rest: ''.join([*prefixes, block, rest]),
    st.lists(st.sampled_from(PREFIXES), max_size=2),
    st.sampled_from([*BLOCKS, *['| a | b |', '|---|---|', '']]),
    st.one_of(sentence, sentence, glued),
)
ends = st.sampled_from(['\n', '\n', '\r\n', '\r'])

# ---- front matter and pages

KEYS = 'title date updated created host aliases alias ip ips status tags x "a b" ? - <<'.split(' ')
YAML = (
    '2030-01-31|2030-02-30|20300131|alpha|[alpha, beta.lan]|[10.0.0.1, fe80::1/64]|"a: b"|"\\0"|"\\ud800"|"\\uDFFF\\u0041"|"\\x1b[2J"|'
    '\'it\'\'s\'|&a x|*a|*b|!!binary aGk=|!x y|{a: b}|[[1], {a: 2}]|>|\\||- a|null|~|true|a: b|@x|`x|%x|"open|[open|? x|# c|'
    '[REDACTED:jwt]|[REDACTED:|\t|…|- [x]|"\\u2028"|"\\n\\n"|<<: *a'
)
VALUES = [v.replace('\\|', '|') for v in YAML.replace('\\|', '\x01').split('|')] + ['|']
VALUES = [v.replace('\x01', '|') for v in VALUES]
yaml_line = st.one_of(
    st.builds('{}: {}'.format, st.sampled_from(KEYS), st.one_of(st.sampled_from(VALUES), sentence)),
    st.builds('{}{}'.format, st.sampled_from(['  ', '- ', '  - ', '']), st.one_of(st.sampled_from(VALUES), sentence)),
)
front = st.builds(
    lambda opening, lines, closing: [*opening, *lines, *closing],
    st.sampled_from([['---'], ['---'], ['\ufeff---'], ['--- '], ['----']]),
    st.lists(yaml_line, max_size=6),
    st.sampled_from([['---'], ['---'], ['...'], [], ['-- -']]),
)
pages = st.builds(
    lambda head, lines, end, last: end.join([*head, *lines]) + last,
    st.one_of(st.just([]), st.just([]), front),
    st.lists(line, max_size=20),
    ends,
    st.sampled_from(['', '\n', '\r\n', '\n\n']),
)
halves = st.builds(lambda text, half: text + half + text[:3], glued, st.sampled_from(HALVES))
whole_text = st.one_of(pages, pages, sentence, glued, st.text(max_size=60))
any_text = st.one_of(whole_text, whole_text, whole_text, halves)
paths = st.one_of(
    st.sampled_from(
        ['hosts/alpha.md', 'journal/2030-01-12.md', 'notes/2030/02-30 x.md', 'a.md', 'plans/20301301-x.md']
    ),
    glued.map(lambda t: f'notes/{t}.md'.replace('\0', '')),
)


def broken(texts: st.SearchStrategy[str]) -> st.SearchStrategy[bytes]:
    "The bytes of a text, some with a mark, in another encoding, or with a few bytes changed."
    encoded = texts.map(lambda t: t.encode('utf-8', 'surrogatepass'))
    cut = st.builds(
        lambda data, at, more, gone: data[: at % (len(data) + 1)] + more + data[at % (len(data) + 1) + gone :],
        encoded, st.integers(0, 4000), st.one_of(st.binary(max_size=4), st.sampled_from([b'\xff\xfe', b'\xef\xbb\xbf', b'\0', b'\x80'])),
        st.integers(0, 9),
    )  # fmt: skip
    wide = texts.map(lambda t: t.encode('utf-16', 'surrogatepass'))
    return st.one_of(encoded, cut, cut, wide, st.binary(max_size=80))


def mutated(texts: st.SearchStrategy[str], pieces: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    "A text with up to four lines dropped, doubled, moved, or with something else in place of what stands behind `=`."

    def change(text: str, changes: list[tuple[str, int, int, str]]) -> str:
        lines = text.split('\n')
        for kind, at, to, piece in changes:
            at, to = at % len(lines), to % len(lines)
            if kind == 'value':
                lines[at] = lines[at].partition('=')[0] + '= ' + piece
            elif kind == 'insert':
                lines.insert(at, piece)
            elif kind == 'glue':
                lines[at] = lines[at][: to * 3] + piece + lines[at][to * 3 :]
            else:
                lines.insert(to, lines[at] if kind == 'double' else lines.pop(at))
        return '\n'.join(lines)

    kinds = st.sampled_from(['value', 'value', 'insert', 'glue', 'double', 'move'])
    each = st.tuples(kinds, st.integers(0, 999), st.integers(0, 999), pieces)
    return st.builds(change, texts, st.lists(each, min_size=1, max_size=4))
