"""The faults that stay until somebody mends them: git, layout, hashes, tables, the major version of Postgres."""

import os
import random
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from faults_kinds import MOVES, Point
from faults_lab import Lab, other_home, pick
from faults_same import differences
from psycopg import sql

from merlin.ingest import ingest
from merlin.store import ALL_TABLES
from merlin.testing import run_git

OTHER_BINARIES = 'FAULTS_OTHER_POSTGRES'  # a folder with initdb and postgres of another major version, with pgvector


def refused(point: Point, codes: Sequence[int], *args: str, untouched: bool = True) -> None:
    "A run in front of a standing fault ends with a code and a reason, and leaves the index as it is."
    before = point.lab.rows()
    done = point.lab.ingest(*args)
    point.ended(done, codes, 'the run before the repair')
    if done.code and untouched:
        keep = [{k: v for k, v in rows.items() if k != 'meta'} for rows in (point.lab.rows(), before)]
        point.findings += [f'changed by a run that refused: {line}' for line in differences(*keep)]
    if done.code:
        point.check(len(done.err.strip().splitlines()) <= 3 or 'warning:' in done.err, f'many lines: {done.err[-400:]}')
    point.honest()


@contextmanager
def kept(path: Path) -> Iterator[None]:
    "What is done to a file or folder is undone."
    beside = path.with_name(f'{path.name}.kept')
    (shutil.copytree if path.is_dir() else shutil.copy2)(path, beside, **({'symlinks': True} if path.is_dir() else {}))
    try:
        yield
    finally:
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        beside.rename(path)


def move(point: Point) -> tuple[str, str]:
    "An index of one head and a record at another."
    start, head = pick(point.rng, *MOVES)
    point.lab.settle(start)
    point.lab.set(head)
    point.lab.clean()
    return start, head


def history_rewritten(point: Point) -> None:
    "HEAD is at a commit that does not contain the indexed one, in time with a new root."
    start, head = pick(point.rng, ('third', 'rewritten'), ('rewritten', 'second'), ('third', 'first'))
    point.lab.settle(start)
    point.notes.append(f'{start}→{head}')
    point.lab.set(head)
    point.lab.clean()
    point.check(point.lab.verdict().state == 'stale', 'a rewritten history is not stale')
    if point.rng.random() < 0.5:
        run_git(point.lab.repo, 'reflog', 'expire', '--expire=now', '--all')
    point.mended()


def upstream(point: Point, start: str) -> tuple[Lab, Path]:
    "A lab whose repo is a clone, checkout or mirror, of an upstream at `start`; indexed."
    lab, rng = point.lab, point.rng
    up, clone = lab.folder / f'up-{time.time_ns()}.git', lab.folder / f'clone-{time.time_ns()}'
    run_git(lab.folder, 'clone', '--quiet', '--mirror', str(lab.repo), str(up))
    run_git(up, 'update-ref', 'refs/heads/main', lab.heads[start])
    run_git(up, 'symbolic-ref', 'HEAD', 'refs/heads/main')
    bare = ('--bare',) if rng.random() < 0.5 else ()
    run_git(lab.folder, 'clone', '--quiet', *bare, str(up), str(clone))
    point.notes.append('a mirror' if bare else 'a checkout')
    pulled_lab = replace(lab, repo=clone, env={**lab.env, 'REPO_DIR': str(clone)})
    ingest(pulled_lab.config, pull=True, replace_record=True)
    return pulled_lab, up


def pulled(point: Point) -> None:
    "A pull is disturbed, or its upstream was rewritten, or is gone."
    start, head = pick(point.rng, ('first', 'second'), ('second', 'third'), ('third', 'rewritten'))
    point.lab.settle(head)
    point.lab.settle(start)
    lab, up = upstream(point, start)
    lab.at = (head, 'plain')
    inner = Point(lab, point.rng, point.notes, point.findings)
    run_git(up, 'update-ref', 'refs/heads/main', lab.heads[head])
    how, flags = pick(point.rng, 'git', 'gone', 'none'), ('--reset',) if head == 'rewritten' else ()
    point.notes.append(f'{start}→{head}, {how}')
    try:
        if how == 'git':
            order = {'git': point.rng.randint(1, 14), **pick(point.rng, {}, {'after': point.rng.random() * 0.03})}
            point.notes.append(str(order))
            inner.ended(lab.ingest('--pull', *flags, order=order), (0, 1, 2), 'the struck pull')
        elif how == 'gone':
            up.rename(f'{up}.gone')
            inner.ended(lab.ingest('--pull'), (1,), 'the pull from nowhere')
            Path(f'{up}.gone').rename(up)
        if flags and how != 'git':
            before = lab.rows()['documents']
            inner.ended(lab.ingest('--pull'), (1,), 'the pull of a rewritten history')
            inner.check(lab.rows()['documents'] == before, 'a pull that refuses changes documents')
            inner.check(lab.verdict().state == 'stale', 'a rewritten upstream is not stale')
        inner.mended('--pull', *flags)
    finally:
        shutil.rmtree(lab.repo)
        shutil.rmtree(up, ignore_errors=True)
        point.lab.set(head)
        ingest(point.lab.config, replace_record=True)


def flip(path: Path, rng: random.Random) -> str:
    "Change some bytes."
    data = bytearray(path.read_bytes())
    at = rng.randrange(len(data))
    for n in range(at, min(len(data), at + pick(rng, 1, 8, 4096))):
        data[n] ^= 0x55
    path.write_bytes(data)
    return f'bytes from {at} of {len(data)} changed'


def cut(path: Path, rng: random.Random) -> str:
    "Cut the end off."
    size = rng.randrange(path.stat().st_size)
    os.truncate(path, size)
    return f'cut to {size} bytes'


def gone(path: Path, rng: random.Random) -> str:
    "Remove it."
    path.unlink()
    return 'removed'


def empty(path: Path, rng: random.Random) -> str:
    "Leave nothing in it, as a power cut does."
    path.write_bytes(b'')
    return 'emptied'


def pack_damaged(point: Point) -> None:
    "A pack of the record, or its index, is damaged; git reads what it still can."
    start, head = move(point)
    harm = pick(point.rng, flip, flip, cut, gone, empty)
    kind = pick(point.rng, 'pack', 'pack', 'idx')
    with kept(point.lab.repo / '.git'):
        file = sorted((point.lab.repo / '.git/objects/pack').glob(f'*.{kind}'))[0]
        file.chmod(0o644)
        point.notes.append(f'{start}→{head}, the {kind} {harm(file, point.rng)}')
        refused(point, (0, 1, 2), untouched=False)
    point.mended()


HEADS: Sequence[tuple[str, Callable[[Path, random.Random], str]]] = (
    ('HEAD', empty), ('HEAD', gone), ('HEAD', cut), ('HEAD', flip), ('config', flip), ('config', cut), ('config', empty),
)  # fmt: skip


def head_damaged(point: Point) -> None:
    "HEAD or the configuration of the repo is damaged."
    start, head = move(point)
    name, harm = pick(point.rng, *HEADS)
    with kept(point.lab.repo / '.git'):
        point.notes.append(f'{start}→{head}, {name} {harm(point.lab.repo / ".git" / name, point.rng)}')
        refused(point, (0, 1, 2), untouched=False)
    point.mended()


def repo_removed(point: Point) -> None:
    "The repo is not where it was; in time an empty folder is, or a file, or a repo without a commit."
    start, head = move(point)
    repo = point.lab.repo
    beside, left = repo.with_name('record.away'), pick(point.rng, 'nothing', 'a folder', 'a file', 'a new repo')
    point.notes.append(f'{start}→{head}, {left} in its place')
    repo.rename(beside)
    if left in ('a folder', 'a new repo'):
        repo.mkdir()
    if left == 'a new repo':
        run_git(repo, 'init', '--quiet')
    if left == 'a file':
        repo.write_text('not a repo')
    refused(point, (1, 2))
    shutil.rmtree(repo) if repo.is_dir() else repo.unlink(missing_ok=True)
    beside.rename(repo)
    point.mended()


def layout_truncated(point: Point) -> None:
    "The layout ends too early: that is refused, or is a layout too, but never one without the secrets' hashes."
    move(point)
    path = Path(point.lab.env['MERLIN_CONFIG'])
    text = path.read_text(encoding='utf-8')
    at = point.rng.randrange(len(text))
    path.write_text(text[:at], encoding='utf-8')
    point.notes.append(f'cut to {at} of {len(text)} characters: …{text[max(0, at - 30) : at]!r}')
    done = point.lab.ingest()
    point.ended(done, (0, 2, 3), 'the run before the repair')
    guarded = 'secret_hashes = "' in text[:at]
    point.check(done.code != 0 or guarded, 'a layout without the hashes was taken')
    path.write_text(text, encoding='utf-8')
    point.honest()
    point.mended()


def hashes_damaged(point: Point) -> None:
    "The file of hashes is cut, removed, changed or open to all: nothing is indexed without the hashes."
    move(point)
    path = point.lab.folder / 'hashes'
    harm = pick(point.rng, cut, gone, empty, flip, None)
    with kept(path):
        if harm:
            point.notes.append(harm(path, point.rng))
        else:
            path.chmod(0o644)
            point.notes.append('open to all')
        done = point.lab.ingest()
        point.ended(done, (0, 3), 'the run before the repair')
        point.check(done.code == 3 or harm is flip, 'a damaged file of hashes was taken')
    if harm is not flip:  # a seal that is not read as one is one more hash
        point.honest()
    point.mended()


FACTS = (
    'schema_version', 'embed_model_id', 'embed_dim', 'state', 'canary', 'record', 'counts', 'gap', 'hashed', 'warnings',
)  # fmt: skip
BUILT_LAST = ('chunks_tsv', 'chunks_trgm', 'vectors_hnsw')  # of a run with work; only speed hangs on them
INDEXES = ('chunks_tsv', 'chunks_hosts', 'chunks_trgm', 'chunks_vector', 'documents_date', 'vectors_hnsw')
DAMAGES = [
    *(('table', name) for name in ALL_TABLES),
    *(('fact', name) for name in FACTS),
    *(('index', name) for name in INDEXES),
]


def index_damaged(point: Point) -> None:
    "Somebody drops a table or an index, or deletes a fact of meta; in time the record moves on as well."
    what = pick(point.rng, *DAMAGES)
    start, head = pick(point.rng, *MOVES, *(('second', 'second'),) * (3 if what[1] not in BUILT_LAST else 0))
    point.lab.settle(start)
    damage(point.lab, *what)
    point.notes.append(f'{" ".join(what)} dropped, {start}→{head}')
    point.lab.set(head)
    point.lab.clean()
    point.mended()


def damage(lab: Lab, kind: str, name: str) -> None:
    "Drop a table or an index, or delete a fact."
    with lab.connected() as conn:
        if kind == 'fact':
            conn.execute('delete from meta where key = %s', (name,))
        else:
            cascade = 'cascade' if kind == 'table' else ''
            conn.execute(sql.SQL(f'drop {kind} if exists {{}} {cascade}').format(sql.Identifier('merlin', name)))


def started(point: Point) -> None:
    "A run is killed while it makes the database for the first time."
    lab = other_home(point.lab, 'fresh')
    head = pick(point.rng, 'first', 'second')
    point.lab.settle(head)
    lab.settle_nothing(head)
    inner = Point(lab, point.rng, point.notes, point.findings)
    begin, delay = time.monotonic(), point.rng.random() * 3
    run = lab.start('merlin.ingest')
    try:
        run.wait(delay)
    except subprocess.TimeoutExpired:
        run.kill()
    point.notes.append(f'killed after {delay:.2f} s')
    inner.ended(lab.end(run, begin), (-9, 0), 'the first run')
    try:
        inner.mended()
    finally:
        lab.stop()
        shutil.rmtree(lab.env['MERLIN_HOME'], ignore_errors=True)


def major_upgraded(point: Point) -> None:
    "The data was made by another major version of Postgres: it is put aside, and the index built again."
    lab = other_home(point.lab, 'older')
    for head in ('second', 'first'):
        point.lab.settle(head)
    lab.settle_nothing('first')
    inner = Point(lab, point.rng, point.notes, point.findings)
    other = os.environ.get(OTHER_BINARIES)
    try:
        inner.ended(lab.ingest(**({'MERLIN_PG_BIN': other} if other else {})), (0,), 'the run of the older version')
        lab.stop()
        version = Path(lab.data, 'PG_VERSION')
        if not other:
            version.write_text('16\n')
        point.notes.append(f'data of version {version.read_text().strip()}{"" if other else ", by its name"}')
        if point.rng.random() < 0.5:
            lab.set('second')
        delay, begin = point.rng.random() * 3, time.monotonic()
        if point.rng.random() < 0.6:
            run = lab.start('merlin.ingest')
            try:
                run.wait(delay)
            except subprocess.TimeoutExpired:
                run.kill()
            inner.ended(lab.end(run, begin), (-9, 0), f'the run of the newer version, killed after {delay:.1f} s')
        inner.mended()
        aside = list(Path(lab.data).parent.glob('data-*'))
        point.check(len(aside) == 1, f'put aside: {[p.name for p in aside]}')
    finally:
        lab.stop()
        shutil.rmtree(lab.env['MERLIN_HOME'], ignore_errors=True)
