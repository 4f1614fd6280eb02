"""docs/tools.md: what each tool of the MCP server says on the fixture record.

    python tools/tool_docs.py            # print it
    python tools/tool_docs.py --write    # write docs/tools.md

The record is indexed with the local model in a throwaway schema; the random digits of the marks are fixed, so the page
is the same on every machine. tests/test_tool_docs.py fails where the page in the tree is not what this makes.
"""

import json
import sys
import tempfile
from pathlib import Path
from unittest.mock import patch

from merlin.ingest import ingest
from merlin.service import Service
from merlin.testing import fixture_record, scratch
from merlin.tools import make_instructions, make_tools

PAGE = Path(__file__).resolve().parents[1] / 'docs/tools.md'
CALLS = (
    ('search', {'query': 'what is it called when the disk of beta is full, and what helps', 'k': 2, 'exact': False}),
    ('host_history', {'host': 'beta', 'topic': 'restore', 'k': 2}),
    ('get_document', {'path': 'runbooks/disk-full.md', 'section': 'Make room at once', 'offset': 0}),
    ('list_documents', {'type': ['runbook'], 'limit': 3, 'offset': 0}),
    ('index_status', {}),
)
HEAD = """# The tools that Claude sees

`bin/mcp` offers five, all of them read-only. This page shows what each answers on the example record, as the model gets it; it is made by `python tools/tool_docs.py --write`, and a test holds it to the code.

Every answer begins with the verdict on the index. What is quoted from the record stands between two marks with random digits, new ones for every answer, so no document can end the quotation or add a line of its own. Control, bidirectional and invisible characters are shown escaped, and secrets are taken out once more. An answer has room for about 8,000 tokens; what was cut is said, with the call that gets it.

The list of the tools takes {size:,} bytes, the instructions {said:,}.

## Instructions

```text
{instructions}
```
"""


def stable(text: str) -> str:
    "Without what differs from machine to machine and from run to run."
    changing = ('last ingest:', 'database:', 'layout:', 'repo (unnamed):')
    lines = [line for line in text.split('\n') if not line.startswith('note: pgvector')]  # the server's, not merlin's
    return '\n'.join(f'{line.split(":")[0]}: …' if line.startswith(changing) else line for line in lines)


def bounds(takes: dict) -> str:
    "What a parameter may be."
    if takes['type'] == 'integer':
        return f'{takes["minimum"]} to {takes["maximum"]:,}, else {takes["default"]}'
    if takes['type'] == 'array':
        return f'a list of up to {takes["maxItems"]}'
    return 'true or false, else false' if takes['type'] == 'boolean' else f'up to {takes["maxLength"]:,} characters'


def parameters(takes: dict) -> str:
    "The parameters of a tool as a table."
    if not takes['properties']:
        return 'It takes no parameters.'
    rows = [
        f'| `{name}`{" (required)" if name in takes.get("required", ()) else ""} | {what["description"]} | {bounds(what)} |'
        for name, what in takes['properties'].items()
    ]
    return '\n'.join(['| parameter | meaning | what it may be |', '|---|---|---|', *rows])


def page() -> str:
    "The page."
    with tempfile.TemporaryDirectory() as folder, scratch(fixture_record(Path(folder) / 'record')) as config:
        ingest(config)
        service = Service(lambda: config)
        with patch('secrets.token_hex', lambda n: 'c0ffee42'):
            answers = [(name, asked, service.answer(name, asked)) for name, asked in CALLS]
        service.drop()
    tools = make_tools(lambda name, asked: '')
    instructions = make_instructions(config.weights, (rule.type for rule in config.layout.rules))
    size = len(json.dumps({'tools': [t.described() for t in tools]}))
    parts = [HEAD.format(size=size, said=len(instructions.encode()), instructions=instructions)]
    described = {t.name: t for t in tools}
    for name, asked, text in answers:
        call = json.dumps({k: v for k, v in asked.items() if v not in (0, False)}, ensure_ascii=False)
        tool = described[name]
        told = f'## {name}\n\n{tool.description}\n\n{parameters(tool.described()["inputSchema"])}\n\n'
        parts.append(f'{told}For example:\n\n    {call}\n\n~~~~~text\n{stable(text)}\n~~~~~\n')
    return '\n'.join(parts)


if __name__ == '__main__':
    made = page()
    if sys.argv[1:] == ['--write']:
        PAGE.write_text(made, encoding='utf-8')
    elif sys.argv[1:]:
        raise SystemExit(__doc__)
    else:
        print(made)
