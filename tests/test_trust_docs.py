"""The page of promises: every test and notebook that it names exists, and every promise names one."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / 'docs/trust.md').read_text(encoding='utf-8')
ROWS = re.findall(r'^\| ([STC]\d+) \| (.+?) \| (.+?) \|$', PAGE, re.M)


def test_every_promise_names_a_test_that_exists():
    assert len(ROWS) > 60
    for number, _, held in ROWS:
        tests = re.findall(r'`(tests/\w+\.py)::(\w+)`', held)
        chapters = re.findall(r'n:(\w+)', held)
        assert tests or chapters, number
        for file, name in tests:
            assert re.search(rf'^def {name}\(', (ROOT / file).read_text(encoding='utf-8'), re.M), (number, name)
        for chapter in chapters:
            assert (ROOT / f'nbs/{chapter}.ipynb').is_file(), (number, chapter)


def test_the_promises_are_numbered_without_a_gap():
    for theme in 'STC':
        numbers = [int(number[1:]) for number, _, _ in ROWS if number[0] == theme]
        assert numbers == list(range(1, len(numbers) + 1))
