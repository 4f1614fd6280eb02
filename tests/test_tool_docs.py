"The page that shows what the tools answer is what they answer."

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.slow
def test_the_page_of_the_tools_is_what_they_answer(monkeypatch):
    monkeypatch.setattr(sys, 'path', [str(ROOT / 'tools'), *sys.path])
    import tool_docs

    assert tool_docs.page() == tool_docs.PAGE.read_text(encoding='utf-8'), 'python tools/tool_docs.py --write'
