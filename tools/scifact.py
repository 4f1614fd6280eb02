"""Search quality on SciFact (BEIR's test split), with its 95 % intervals.

    python tools/scifact.py FOLDER          # holds corpus.jsonl, queries.jsonl, qrels.tsv

Each abstract becomes a page with one section, the whole is ingested with the configured model (minutes), and the 300
claims go through the production search. nDCG@10 is that of trec_eval (gain = relevance). Intervals are percentile
bootstraps over the claims, differences are paired. MERLIN_HOME is a throwaway unless SCIFACT_HOME names one to keep.
"""

import json
import math
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from datetime import date
from pathlib import Path

from merlin.config import RepoConfig, load_config
from merlin.filters import make_filters
from merlin.ingest import ingest
from merlin.search import in_snapshot, prepare_question, rank_candidates
from merlin.store import session
from merlin.testing import START, commit_all, run_git

K = 10
TODAY = date(2030, 1, 1)


def read_lines(path: Path) -> list[dict]:
    "A file of JSON lines."
    return [json.loads(line) for line in path.read_text().splitlines() if line.strip()]


def make_record(folder: Path, record: Path) -> None:
    "The corpus as a git record of pages."
    if record.exists():
        return
    (record / 'notes').mkdir(parents=True)
    run_git(record, 'init', '--quiet')
    for doc in read_lines(folder / 'corpus.jsonl'):
        text = f'# {doc["title"]}\n\n{doc["text"]}\n'
        (record / 'notes' / f'{doc["_id"]}.md').write_text(text)
    commit_all(record, 'corpus', START)


def read_qrels(folder: Path) -> dict[str, dict[str, int]]:
    "Claim -> abstract -> relevance."
    qrels: dict[str, dict[str, int]] = defaultdict(dict)
    for line in (folder / 'qrels.tsv').read_text().splitlines()[1:]:
        query, doc, score = line.split('\t')
        qrels[query][doc] = int(score)
    return qrels


def ndcg(ranked: list[str], relevant: dict[str, int]) -> float:
    "nDCG@10 of one claim."
    gain = [relevant.get(doc, 0) / math.log2(n + 2) for n, doc in enumerate(ranked[:K])]
    ideal = [g / math.log2(n + 2) for n, g in enumerate(sorted(relevant.values(), reverse=True)[:K])]
    return sum(gain) / sum(ideal)


def interval(values: list[float], rounds: int = 4000) -> tuple[float, float]:
    "95 % percentile bootstrap of the mean."
    rnd = random.Random(1)
    means = sorted(sum(rnd.choices(values, k=len(values))) / len(values) for _ in range(rounds))
    return means[round(0.025 * rounds)], means[round(0.975 * rounds)]


def settings(config) -> dict[str, Callable]:
    "Name -> configuration of each row."
    only = {'vector': 0.0, 'fulltext': 0.0, 'bm25': 0.0, 'margin': 0.0}
    rows = {
        'vectors alone': {**only, 'vector': 1.0},
        'BM25 alone': {**only, 'bm25': 1.0},
        'ranks: vectors + all words': {**only, 'vector': 1.0, 'fulltext': 1.0},
        'ranks: vectors + BM25': {**only, 'vector': 1.0, 'bm25': 1.0},
        'ranks: all three legs': {'margin': 0.0},
        'as shipped (three legs, margin)': {},
    }
    return {name: replace(config, search=replace(config.search, **changes)) for name, changes in rows.items()}


def main(folder: Path) -> None:
    "Build, ask, print."
    kept = os.environ.get('SCIFACT_HOME')
    home = Path(kept or tempfile.mkdtemp(prefix='merlin-scifact-'))
    record = home / 'record'
    make_record(folder, record)
    config = load_config({'MERLIN_HOME': str(home / 'merlin'), 'HOME': str(home)})
    config = replace(config, repos=(RepoConfig('', record),))
    ingest(config)
    qrels = read_qrels(folder)
    queries = [(q['_id'], q['text']) for q in read_lines(folder / 'queries.jsonl') if q['_id'] in qrels]
    rows = settings(config)
    scores: dict[str, list[float]] = {name: [] for name in rows}
    with session(config.database) as conn:
        filters = make_filters(conn)
        for claim, text in queries:
            question = prepare_question(conn, text, K, False, config).embedded(config, None)
            with in_snapshot(conn):
                found = question.candidates(conn, filters)
            for name, how in rows.items():
                ranking = rank_candidates(found, how, TODAY)
                ranked = [Path(found.facts[r.chunk].path).stem for r in ranking.ranked if ranking.fused[r.chunk] > 0]
                scores[name].append(ndcg(ranked, qrels[claim]))
    base = scores['ranks: vectors + all words']
    print('| ranking | nDCG@10 [95 %] | minus vectors + all words [95 %] |\n|---|---|---|')
    for name, values in scores.items():
        low, high = interval(values)
        difference = [a - b for a, b in zip(values, base, strict=True)]
        below, above = interval(difference)
        mean, gain = sum(values) / len(values), sum(difference) / len(difference)
        print(f'| {name} | {mean:.4f} [{low:.3f}, {high:.3f}] | {gain:+.4f} [{below:+.3f}, {above:+.3f}] |')
    env = {**os.environ, 'MERLIN_HOME': str(home / 'merlin')}
    subprocess.run([sys.executable, '-m', 'merlin.database', 'stop'], env=env, capture_output=True)
    if not kept:
        shutil.rmtree(home)


if __name__ == '__main__':
    if len(sys.argv) != 2 or not Path(sys.argv[1]).is_dir():
        raise SystemExit(__doc__)
    main(Path(sys.argv[1]))
