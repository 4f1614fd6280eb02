"""What the docs say about settings is all there is, and nothing that is not."""

import re
from pathlib import Path

import pytest

from merlin.config import VARIABLES
from merlin.layout import BY_TYPE, KEYS

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
