"Questions with made-up candidates, and a report of a small sweep over them: no database, no model."

from datetime import date
from pathlib import Path

from merlin.cases import Answer, Case
from merlin.choice import Evaluation, decide
from merlin.config import load_config
from merlin.judging import Fetched
from merlin.legs import Facts, Found
from merlin.report import write_report
from merlin.search import Candidates
from merlin.settings import grid
from merlin.sweep import sweep

TODAY = date(2030, 2, 1)
CONFIG = load_config({'REPO_DIR': '/nowhere'})
COMMIT = 'c0ffee' * 6 + 'c0ff'


def fetched(n: int, *, q: str = '', kind: str = '', held: bool = False, hard: bool = False, path: str = 'hosts/1.md'):
    "A question whose answer, a host record, competes with a journal page; a hard one needs the boost to win."
    kinds = {1: 'host', 2: 'journal', 3: 'page', 4: 'doc'}
    paths = {1: path, 2: 'journal/2.md', 3: 'pages/3.md', 4: 'docs/4.md'}
    facts = {
        c: Facts(c, c, paths[c], '', type_, ('A', f'Part {c}'), 0, date(2030, 1, c), False)
        for c, type_ in kinds.items()
    }
    orders = {'vector': (2, 1, 3, 4) if hard else (1, 3, 2, 4), 'fulltext': (1,) if n % 3 else (), 'bm25': (2, 1, 3, 4)}
    legs = {name: tuple(Found(c, 1 - i / 9, 0.5) for i, c in enumerate(cs)) for name, cs in orders.items()}
    case = Case(q or f'question {n}', (Answer(path),), kind or ('how-to', 'why')[n % 2], held)
    found = Candidates(legs, facts, 80, 0.48, 'toy:1')
    return Fetched(case, case.q, found, frozenset(), frozenset(), 10, 0.02 + n / 1e4, 0.01)


def questions(hard: int = 3, tune: int = 16, held: int = 8) -> list[Fetched]:
    "So many to tune on, so many held out; of each, so many are hard."
    return [
        *(fetched(n, hard=n < hard) for n in range(tune)),
        *(fetched(100 + n, held=True, hard=n < hard) for n in range(held)),
    ]


def make(folder: Path, asked: list[Fetched], command='merlin sweep cases.yaml', config=CONFIG, **axes) -> Path:
    "A report."
    tuning, holdout = [f for f in asked if not f.case.holdout], [f for f in asked if f.case.holdout]
    frame = sweep(tuning, config, grid(config, **(axes or {'boost': [0, 1, 2], 'recency': [0, 0.05, 0.2]})), TODAY)
    choice = decide(frame, tuning, holdout, config, TODAY)
    meta = {'state': {'heads': {'': COMMIT}}, 'counts': {'documents': 4, 'chunks': 4}}
    got = Evaluation(config, TODAY, tuning, holdout, meta)
    return write_report(folder, got, frame, choice, command, '/srv/somebody/cases.yaml')
