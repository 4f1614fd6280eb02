"""Read, edit and run notebooks as plain text, so that nobody has to touch their JSON.

    python tools/nb.py dump nbs/13_chunk.ipynb > chunk.txt
    python tools/nb.py load nbs/13_chunk.ipynb < chunk.txt    # the notebook, then its module
    python tools/nb.py run  nbs/13_chunk.ipynb                # execute top to bottom, keep the outputs

A cell starts with a line `# %% [code|md|raw] ID`; the ID may be left out. A cell keeps its id when its text is
unchanged, or when it stands where one old cell was replaced, so an edit never churns the ids around it. `load` exports
the one module afterwards; `nbdev_export` remains the command that exports them all.
"""

import os
import re
import subprocess
import sys
from difflib import SequenceMatcher
from pathlib import Path

from execnb.nbio import mk_cell, new_nb, read_nb, write_nb

ROOT = Path(__file__).resolve().parents[1]
KINDS = {'code': 'code', 'md': 'markdown', 'raw': 'raw'}
KERNEL = {'display_name': 'python3', 'language': 'python', 'name': 'python3'}
HEAD = re.compile(r'^# %% \[(code|md|raw)\] ?([\w-]*)$', re.M)


def dump(path: Path) -> str:
    "The notebook as text."
    short = {v: k for k, v in KINDS.items()}
    return ''.join(f'# %% [{short[c.cell_type]}] {c.id}\n{c.source}\n\n' for c in read_nb(path).cells)


def parse(text: str) -> list[tuple[str, str, str]]:
    "The cells of a text: (cell type, id or '', source)."
    first, *parts = HEAD.split(text)
    if first.strip():
        raise SystemExit('text before the first cell header')
    triples = zip(parts[0::3], parts[1::3], parts[2::3], strict=True)
    return [(KINDS[kind], cid, body.strip('\n')) for kind, cid, body in triples]


def heirs(old: list, new: list[tuple[str, str, str]]) -> dict[int, int]:
    "For each new cell that continues an old one: its index there."
    before = [(c.cell_type, c.source) for c in old]
    after = [(kind, source) for kind, _, source in new]
    out = {}
    for op, a, b, c, d in SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if op == 'equal' or (op == 'replace' and b - a == d - c):
            out.update(zip(range(c, d), range(a, b), strict=True))
    return out


def load(path: Path, text: str) -> None:
    "Write the notebook that the text describes."
    nb = read_nb(path) if path.exists() else new_nb([], meta={'kernelspec': KERNEL})
    old, new = list(nb.cells), parse(text)
    by_id = {c.id: c for c in old}
    matched = heirs(old, new)
    cells = []
    for n, (kind, cid, source) in enumerate(new):
        before = by_id.get(cid) or (old[matched[n]] if n in matched else None)
        if before is not None and (before.cell_type, before.source) == (kind, source):
            cells.append(before)
            continue
        cell = mk_cell(source, kind)
        if kind == 'code':
            cell.execution_count = None
        if cid or before is not None:
            cell.id = cid or before.id
        cells.append(cell)
    if len({c.id for c in cells}) != len(cells):
        raise SystemExit('a cell id appears twice')
    nb.cells = cells
    write_nb(nb, path)


def export(path: Path) -> None:
    "The module of this one notebook."
    from nbdev.export import nb_export

    nb_export(path, lib_path=ROOT / 'merlin')


def run(path: Path) -> None:
    "Execute the notebook in a fresh process, in its own folder, and keep its outputs."
    env = {**os.environ, 'PYTHONPATH': str(ROOT), 'IN_TEST': '1'}
    tools = Path(sys.executable).parent
    for command in ([tools / 'exec_nb', path.name, '--dest', path.name], [tools / 'nbdev_clean', '--fname', path.name]):
        subprocess.run(command, cwd=path.parent, env=env, check=True)


def main() -> None:
    "dump, load or run one notebook."
    if len(sys.argv) != 3 or sys.argv[1] not in ('dump', 'load', 'run'):
        raise SystemExit(__doc__)
    verb, path = sys.argv[1], Path(sys.argv[2])
    if verb == 'dump':
        print(dump(path), end='')
    elif verb == 'load':
        load(path, sys.stdin.read())
        export(path)
    else:
        run(path)


if __name__ == '__main__':
    main()
