"""What the benchmark starts as processes of their own; each says on stdout what it found, as one line of JSON.

python tools/bench_child.py ingest [ARGUMENT...]     # merlin ingest, and the most memory it held
python tools/bench_child.py one                      # the bare embedder, loaded for one question
python tools/bench_child.py texts FILE               # every distinct text that the record would embed
python tools/bench_child.py batch FILE               # which batch the bare embedder is fastest with
python tools/bench_child.py embed FILE SIZE          # the bare embedder on these texts, SIZE windows at a time
python tools/bench_child.py feed FILE                # the configured embedder on these texts, a window at a time
"""

import json
import sys
import time
from pathlib import Path

QUESTION = 'what to do when a disk runs full'
TRIED = (1, 4, 8)  # windows in one run of the model
SAMPLE, TRIES = 24, 2  # texts to try them on, and how often; the least time counts, other work only adds


def peak_MiB(pid: int | str = 'self') -> float:
    "The most memory that a process held; 0 where the system does not tell. A new program starts at 0, unlike ru_maxrss."
    status = Path(f'/proc/{pid}/status')
    lines = status.read_text().splitlines() if status.exists() else []
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith('VmHWM')), 0.0)


def ingest(*arguments: str) -> dict[str, float]:
    "Run merlin ingest; what it prints goes before."
    from merlin.ingest import main

    if code := main(arguments):
        sys.exit(code)
    return {'peak_MiB': peak_MiB()}


def one() -> dict[str, float]:
    "Embed one question."
    from merlin.config import load_config
    from merlin.embed import embedder

    embedder(load_config().embed, query=True).embed_query(QUESTION)
    return {'peak_MiB': peak_MiB()}


def texts(file: str) -> dict[str, float]:
    "Write the texts of the configured record."
    from merlin.config import load_config
    from merlin.corpus import Rules, list_all, make_record, read_blobs
    from merlin.hosts import HostIndex
    from merlin.ingest import open_repos
    from merlin.redact import Redactor

    config = load_config()
    repos, redactor = open_repos(config), Redactor()
    listing = list_all(repos, {name: repo.head() for name, repo in repos.items()}, config, redactor, {}, {})
    rules = Rules(config, redactor, HostIndex(()), '')
    records = [make_record(*blob, rules) for blob in read_blobs(list(listing.sources.values()), repos)]
    found = sorted({chunk.embed_text for record in records for chunk in record.chunks})
    Path(file).write_text(json.dumps(found))
    return {'texts': len(found)}


def seconds(found: list[str], size: int, tries: int = 1) -> float:
    "How long the bare embedder takes, loading left out; the least of some tries."
    from merlin.embed_local import LocalEmbedder, shipped_files

    embed = LocalEmbedder(shipped_files(), size)
    embed.embed_query('warm')
    least = float('inf')
    for _ in range(tries):
        begun = time.perf_counter()
        embed.embed_documents(found)
        least = min(least, time.perf_counter() - begun)
    return least


def batch(file: str) -> dict[str, float]:
    "The fastest batch on a sample."
    found = json.loads(Path(file).read_text())
    sample = found[:: max(1, len(found) // SAMPLE)]
    return {'batch': min(TRIED, key=lambda size: seconds(sample, size, TRIES))}


def embed(file: str, size: str) -> dict[str, float]:
    "All of them."
    return {'seconds': seconds(json.loads(Path(file).read_text()), int(size)), 'peak_MiB': peak_MiB()}


def feed(file: str) -> dict[str, float]:
    "All of them through the configured embedder, as many at a time as ingest hands over, no vector kept."
    from merlin.config import load_config
    from merlin.embed import embedder
    from merlin.indexing import WINDOW

    embed = embedder(load_config().embed)
    size = max(WINDOW, 2 * embed.batch)
    with open(file) as lines:
        window = []
        for line in lines:
            window.append(json.loads(line))
            if len(window) == size:
                embed.embed_documents(window)
                window = []
        if window:
            embed.embed_documents(window)
    return {'peak_MiB': peak_MiB()}


if __name__ == '__main__':
    verb, *arguments = sys.argv[1:]
    print(json.dumps({f.__name__: f for f in (ingest, one, texts, batch, embed, feed)}[verb](*arguments)))
