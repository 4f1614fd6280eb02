"""What the docs say about settings, commands, tools and warnings is all there is, and nothing that is not."""

import ast
import re
import sys
from pathlib import Path

import pytest

from merlin.cli import COMMANDS
from merlin.config import VARIABLES
from merlin.layout import BY_TYPE, KEYS
from merlin.tools import make_tools

ROOT = Path(__file__).resolve().parents[1]
CONFIGURATION = (ROOT / 'docs/configuration.md').read_text(encoding='utf-8')
OUTSIDE = {'TZ', 'XDG_DATA_HOME', 'PGPASSWORD', 'OPENAI_API_KEY', 'VOYAGE_API_KEY'}  # not merlin's own, but they count


def test_every_variable_of_the_environment_has_a_row():
    rows = set(re.findall(r'^\| `([A-Z_]+)` \|', CONFIGURATION, re.M))
    assert rows == {*VARIABLES, 'TZ'}


def test_every_key_of_the_layout_has_a_row():
    named = {f'{table}.{key}' for table, keys in KEYS.items() for key in keys} | {f'[{table}]' for table in BY_TYPE}
    assert sorted(n for n in named if f'`{n}`' not in CONFIGURATION) == []


def test_every_key_in_a_row_exists():
    rows = [line.split(' | ')[0] for line in CONFIGURATION.splitlines() if line.startswith('| `')]
    shown = {name for row in rows for name in re.findall(r'`([a-z_]+\.[a-z0-9_]+)`', row)}
    assert shown == {f'{table}.{key}' for table, keys in KEYS.items() for key in keys}


def test_the_example_layout_shows_every_key():
    text = (ROOT / 'merlin.example.toml').read_text(encoding='utf-8')
    assert text == (ROOT / 'merlin/data/merlin.toml').read_text(encoding='utf-8')
    shown = {key for table in KEYS.values() for key in table}
    assert sorted(key for key in shown if not re.search(rf'^(?:# )?{key} = ', text, re.M)) == []
    assert sorted(table for table in (*KEYS, *BY_TYPE) if f'\n[{table}]\n' not in text) == []


PAGES = sorted([*ROOT.glob('*.md'), *ROOT.glob('docs/*.md')])


@pytest.mark.parametrize('page', PAGES, ids=lambda p: p.name)
def test_every_variable_that_a_page_names_exists(page):
    named = set(re.findall(r'\b((?:MERLIN|EMBED)_[A-Z_]*[A-Z])\b', page.read_text(encoding='utf-8')))
    ours = {n for n in named if not n.startswith('MERLIN_TEST_')}
    assert ours <= {*VARIABLES, *OUTSIDE}


@pytest.mark.parametrize('page', PAGES, ids=lambda p: p.name)
def test_every_file_that_a_page_links_to_exists(page):
    targets = re.findall(r'\]\((?!https?:|#)([^)#\s]+)', page.read_text(encoding='utf-8'))
    assert [t for t in targets if not (page.parent / t).exists()] == []


@pytest.mark.parametrize('page', PAGES, ids=lambda p: p.name)
def test_every_command_that_a_page_names_exists(page):
    named = set(re.findall(r'(?<![\w/.])((?:bin|tools)/[\w.]+)', page.read_text(encoding='utf-8')))
    assert sorted(n for n in named if not (ROOT / n).exists()) == []


TOOLS = ROOT / 'tools'
COMMAND = re.compile(
    r'(?:merlin/)?bin/(quickstart|ingest|mcp)\b([^`\n]*)|(?<![\w./-])(?:bin/)?merlin ([a-z]+)\b([^`\n]*)'
)
FLAG = re.compile(r'(?<![\w-])(--[a-z][a-z-]*|-k)\b')


@pytest.fixture
def command_docs(monkeypatch):
    "The tool that makes docs/commands.md."
    monkeypatch.setattr(sys, 'path', [str(TOOLS), *sys.path])
    import command_docs

    return command_docs


def test_the_page_of_commands_is_what_their_parsers_read(command_docs):
    assert command_docs.page() == command_docs.PAGE.read_text(encoding='utf-8'), 'tools/command_docs.py --write'


def test_every_command_with_every_flag_and_its_meaning_is_on_the_page(command_docs):
    text = command_docs.PAGE.read_text(encoding='utf-8')
    assert {name.split()[0] for name, _ in command_docs.parsers()} == set(COMMANDS)
    for name, parser in command_docs.parsers():
        part = text.partition(f'\n## merlin {name}\n')[2].partition('\n## ')[0]
        for action in parser._actions:
            assert all(f'`{flag}' in part for flag in action.option_strings if flag not in ('-h', '--help')), name
            assert action.help or not action.option_strings, f'{name}: {action.option_strings} has no help'


@pytest.mark.parametrize('page', PAGES, ids=lambda p: p.name)
def test_every_flag_that_a_page_gives_to_a_command_exists(page, command_docs):
    flags = {name: {f for a in parser._actions for f in a.option_strings} for name, parser in command_docs.parsers()}
    wrong = []
    for script, given, command, more in COMMAND.findall(page.read_text(encoding='utf-8')):
        name, rest = script or command, re.split(r' -- |[;|#&)]', given or more)[0]
        if name not in COMMANDS:
            continue
        longer = f'{name} {rest.split()[0]}' if rest.split() else name
        wrong += [f'{name} {f}' for f in FLAG.findall(rest) if f not in flags.get(longer, flags[name])]
    assert wrong == []


def test_every_tool_and_every_parameter_is_described_and_no_other():
    text = (ROOT / 'docs/tools.md').read_text(encoding='utf-8')
    shown = re.sub(r'^~~~~~text$.*?^~~~~~$', '', text, flags=re.M | re.S)  # the answers have headings of their own
    parts = {part.split('\n')[0]: part for part in re.split(r'^## ', shown, flags=re.M)[1:]}
    tools = {tool.name: tool.described() for tool in make_tools(lambda name, asked: '')}
    assert set(parts) == {*tools, 'Instructions'}
    for name, tool in tools.items():
        assert tool['description'] in parts[name]
        rows = re.findall(r'^\| `(\w+)`.*\| (.+?) \|', parts[name].split('For example')[0], re.M)
        assert {row[0] for row in rows} == set(tool['inputSchema']['properties'])


def first_texts(node: ast.AST) -> set[str]:
    "The texts that a value may be, or that the first of a tuple may be."
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return {node.value}
    if isinstance(node, ast.Tuple) and node.elts:
        return first_texts(node.elts[0])
    return first_texts(node.body) | first_texts(node.orelse) if isinstance(node, ast.IfExp) else set()


def warning_kinds(tree: ast.AST) -> tuple[set[str], list[int]]:
    "The kinds of warning that a module gives, and the lines where they can't be told from the source."
    kinds, unclear, assigned = set(), [], {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                name = target.elts[0] if isinstance(target, ast.Tuple) else target
                if isinstance(name, ast.Name):
                    assigned.setdefault(name.id, set()).update(first_texts(node.value))
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == 'IngestWarning':
            if any(isinstance(arg, ast.Starred) for arg in node.args):
                continue  # one that was made before, as read from the index
            kind = node.args[2]
            found = assigned.get(kind.id, set()) if isinstance(kind, ast.Name) else first_texts(kind)
            kinds |= found
            unclear += [] if found else [node.lineno]
        elif isinstance(node, ast.ListComp) and isinstance(node.elt, ast.Tuple) and len(node.elt.elts) == 3:
            line, kind, _ = node.elt.elts  # as an index row holds one: line, kind, text
            if isinstance(line, ast.Attribute) and line.attr == 'first_line':
                kinds |= first_texts(kind)
    return kinds, unclear


def used_by(module: str) -> dict[str, ast.AST]:
    "A module of merlin and all that it imports, parsed."
    found, waiting = {}, [module]
    while waiting:
        name = waiting.pop()
        path = ROOT / f'merlin/{name}.py'
        if name in found or not path.exists():
            continue
        found[name] = ast.parse(path.read_text(encoding='utf-8'))
        names = [n.module or '' for n in ast.walk(found[name]) if isinstance(n, ast.ImportFrom)]
        waiting += [n.removeprefix('merlin.') for n in names]
    return found


def test_every_kind_of_warning_of_an_ingest_is_explained_and_no_other():
    found = {name: warning_kinds(tree) for name, tree in used_by('ingest').items()}
    assert {'chunk', 'document', 'gitrepo', 'hosts', 'indexing'} <= {
        name for name, (kinds, _) in found.items() if kinds
    }
    assert {name: lines for name, (_, lines) in found.items() if lines} == {}
    text = (ROOT / 'docs/warnings.md').read_text(encoding='utf-8')
    rows = [row.split(' | ')[0] for row in text.splitlines() if row.startswith('| `')]
    explained = {kind for row in rows for kind in re.findall(r'`([a-z-]+)`', row)}
    assert explained == set().union(*(kinds for kinds, _ in found.values()))
