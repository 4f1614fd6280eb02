"""The rows of the benchmark: what merlin does, the least that could do the same, and the goal."""

import bench_ingest as ingest
import bench_search as search
import bench_start as start
import bench_sweep as sweep
import bench_text as text
from bench_peers import PEERS
from bench_rounds import Goal, Row

ECHO = "a bare SDK server's answer to `initialize`"
NOOP = 'the ingest that finds nothing new'

START = (
    Row('start', 'spawn to `initialize`', ECHO, 0.25, 'sections', (115,), 115, start.to_initialize, told='s'),
    Row('first-search', 'spawn to the first answer, both legs, database warm', ECHO,
        1.0, 'sections', (115,), 115, start.to_first_search, told='s'),
    Row('server-memory', 'server after its first search', 'bare SDK server and the model',
        1.1, 'sections', (115,), 115, start.server_memory, rounds=3, told='MiB', warm=False),
)  # fmt: skip
INGEST = (
    Row('noop', 'ingest that finds nothing new, whole process', 'connect, `select 1`, `git rev-parse` in a process',
        1.3, 'files', (1_000, 10_000, 50_000), 30, ingest.noop, slope=0.1, goals=(Goal('embed_calls', most=0),)),
    Row('one-changed', 'ingest of one changed file, whole process', NOOP,
        1.5, 'files', (1_000, 10_000, 50_000), 30, ingest.one_changed, slope=0.15,
        goals=(Goal('changed_texts', least=1, most=1),)),
    Row('one-changed-model', 'the same with the local model', f'{NOOP}, then a process that embeds one text',
        1.2, 'files', (100,), 12, ingest.one_changed_model),
    Row('full-ingest', 'ingest from nothing, local model, whole process', 'the model alone, same texts, best batch',
        1 / 0.9, 'files', (300,), 12, ingest.full_ingest, rounds=3, told='s', warm=False),
    Row('ingest-memory', 'ingest from nothing', 'the same embedder alone, same batch',
        1.0, 'files', (1_000, 10_000), 30, ingest.ingest_memory, rounds=1, told='MiB', plus=100, warm=False),
    Row('rebuild', 'every document anew, vectors kept, whole process',
        '`cat-file --batch`, binary COPY, index builds', 1.7, 'files', (1_000, 5_000), 30, ingest.rebuild, rounds=3, warm=False),
    Row('commit-dates', 'last commit of every file, first pass', '`git log --name-only` to nowhere',
        1.5, 'files', (1_000, 10_000), 30, ingest.commit_dates, goals=(Goal('later_paths', most=10),)),
)  # fmt: skip
TEXT = (
    Row('redaction', '8 families and 50 hashes', 'eight naive `re` passes and a hash per word',
        1 / 3, 'KB', (500, 2_000), 20, text.redaction, goals=(Goal('MB_per_cpu_s', least=3),)),
    Row('redaction-hostile', 'lines made to be slow, 18 of this size', 'ordinary pages, as many bytes',
        None, 'KB', (100, 1_000), 20, text.hostile, rounds=3, slope=1.1),
    Row('host-tags', 'hosts that a page mentions', 'the page cut into words',
        1.6, 'names', (100, 2_000), 50, text.host_tags, slope=0.1),
)  # fmt: skip
SEARCH = (
    Row('search', 'a question, embedder left out', "its own legs' SQL",
        1.5, 'sections', (10_000, 50_000, 200_000), 5_500, search.whole_search, rounds=150, slope=0.35, slope_to=50_000,
        goals=(Goal('p95_ratio', most=1.5), Goal('p95_ms', most=100, up_to=50_000))),
    Row('filtered', 'vector leg, 1 % of the rows', 'the graph, relaxed_order, ef 100',
        0.5, 'sections', (10_000, 50_000, 200_000), 5_500, search.filtered,
        goals=(Goal('recall', least=0.99), Goal('missing', most=0))),
    Row('recall', 'vector leg, all rows', 'exact scan',
        None, 'sections', (10_000, 50_000, 200_000), 5_500, search.recall, rounds=3, goals=(Goal('recall', least=0.97),)),
    Row('exact', 'the best 50 sections that hold a text itself', 'ILIKE, sequential scan, all of them',
        0.25, 'files', (1_000, 5_000), 30, search.exact, goals=(Goal('same_rows', least=1),)),
    Row('index-size', 'graph of the vectors', 'the vectors themselves',
        0.8, 'sections', (10_000, 50_000), 5_500, search.index_size, rounds=1, told='MB', warm=False,
        goals=(Goal('recall_loss', most=0.005),)),
)  # fmt: skip
SWEEP = (
    Row('sweep', 'questions fetched and judged under so many settings', 'fetched and judged once',
        2.0, 'settings', (50,), 5, sweep.standard, rounds=5, goals=(Goal('same', least=1),)),
    Row('sweep-legs', 'the same, leg weights among the settings', 'fetched and judged once',
        2.0, 'settings', (50,), 5, sweep.with_legs, rounds=5, goals=(Goal('same', least=1),)),
)  # fmt: skip
JUDGED = (*START, *TEXT, *SWEEP, *INGEST, *SEARCH)
ROWS = (*JUDGED, *PEERS)
