"""What rows stand on: made-up records, indexes of them in one throwaway database, an embedding server on loopback.

Everything lies in one folder, which goes at the end, or stays and is used again (`--keep FOLDER`): a record of the same
seed, size and generator is not made twice, and a kept index is brought up to the code of today by one ingest before
anything is measured. Its copy of the record is set back to the commit that was made, so it does not grow with each run.
"""

import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from random import Random
from typing import Any

import psycopg
from bench_record import LARGEST, generator, make_record
from bench_rounds import Skipped
from bench_sections import DIM, write_sections
from measure import python

from merlin.config import Config, load_config
from merlin.database import connect
from merlin.postgres import Server
from merlin.store import read_meta
from merlin.testing import fixture_record, run_git

ROOT = Path(__file__).resolve().parents[1]
CHILD = str(ROOT / 'tools/bench_child.py')
SEED = 7
LEAN_FROM, LEAN = 20_000, 700  # files from which on pages are cut, and at how many bytes: one or two sections each
FOREIGN = ('DATABASE_URL', 'SECRET_HASHES', 'PYTHONDONTWRITEBYTECODE')  # the last would compile merlin at every start


@dataclass(frozen=True)
class Index:
    "A record that was ingested."

    repo: Path  # a copy of the record that may be written to
    env: Mapping[str, str]  # of a process that works on it
    conn: psycopg.Connection  # held, so that the database stays up
    schema: str
    server: int  # process id of the database server
    dsn: str
    peak_MiB: float  # of the ingest that made it or brought it up


def child(*arguments: str, env: Mapping[str, str]) -> dict[str, Any]:
    "What bench_child.py found out."
    return json.loads(python(CHILD, *arguments, env=env)[0].splitlines()[-1])


@dataclass
class Lab:
    "Records and indexes, made when first wanted."

    stack: ExitStack
    keep: Path | None = None
    made: dict[str, Any] = field(default_factory=dict)

    def once(self, name: str, make: Callable[[], Any]) -> Any:
        "The thing of this name."
        if name not in self.made:
            self.made[name] = make()
        return self.made[name]

    @cached_property
    def folder(self) -> Path:
        "Where everything lies; open to the user that Postgres runs as, where that is another."
        if self.keep:
            return self.held(self.keep)
        return Path(self.stack.enter_context(tempfile.TemporaryDirectory('-bench')))

    def held(self, folder: Path) -> Path:
        "A kept folder, for this run alone: its database stops at the end."
        folder.mkdir(parents=True, exist_ok=True)
        lock = self.stack.enter_context(open(folder / 'lock', 'w'))
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SystemExit(f'bench: another run works in {folder}; name another folder, or wait') from None
        return folder.resolve()

    @cached_property
    def home(self) -> Path:
        "The MERLIN_HOME of all indexes; its server stops at the end."
        home = self.folder / 'home'
        home.mkdir(exist_ok=True)
        self.stack.callback(Server(home).stop)
        return home

    @cached_property
    def generator(self) -> str:
        return generator()

    def record(self, files: int, lean: bool = False) -> Path:
        "A record of so many files; nobody writes to it."
        most = LEAN if lean or files >= LEAN_FROM else LARGEST
        name = f'record-{files}-most-{most}-seed-{SEED}'
        path = self.folder / f'{name}-{self.generator}'
        if not path.exists():
            self.sweep(f'{name}-*', path)
            self.make_whole(path, lambda fresh: make_record(fresh, files, seed=SEED, most=most))
        return path

    def make_whole(self, path: Path, make: Callable[[Path], object]) -> None:
        "Make a folder that is there whole or not at all."
        fresh = path.with_name(f'{path.name}.new')
        shutil.rmtree(fresh, ignore_errors=True)
        make(fresh)
        fresh.rename(path)

    def copy(self, source: Path, name: str) -> Path:
        "A bare copy of a record that may be written to, at the commit of its source."
        path = self.folder / name
        if not path.exists():
            command = ['git', 'clone', '--quiet', '--bare', str(source)]
            self.make_whole(path, lambda fresh: subprocess.run([*command, str(fresh)], check=True))
        run_git(path, 'update-ref', 'refs/heads/main', run_git(source, 'rev-parse', 'HEAD'))
        return path

    def env(self, repo: Path, schema: str, **more: str) -> dict[str, str]:
        "The environment of merlin's processes."
        kept = {
            k: v for k, v in os.environ.items() if k not in FOREIGN and not k.startswith(('MERLIN_', 'EMBED_', 'PG'))
        }
        ours = {'MERLIN_HOME': str(self.home), 'MERLIN_DB_SCHEMA': schema, 'REPO_DIR': str(repo)}
        return kept | ours | {'PYTHONPATH': f'{ROOT}{os.pathsep}{ROOT / "tools"}'} | more

    def embedder(self, dim: int = 16) -> Any:
        "A server of made-up vectors, as far as a client can tell text-embeddings-inference."
        return self.once(f'embedder {dim}', lambda: self.stack.enter_context(made_up_server(dim)))

    def index(self, files: int) -> Index:
        "An index of a record of so many files, with vectors from loopback."
        more = {'EMBED_URL': self.embedder().url}
        return self.once(f'files_{files}', lambda: self.ingested(self.record(files), f'files_{files}', more))

    def wide_index(self, files: int) -> Index:
        "The same with vectors as wide as real ones."
        more = {'EMBED_URL': self.embedder(DIM).url}
        return self.once(f'wide_{files}', lambda: self.ingested(self.record(files), f'wide_{files}', more))

    def real_index(self, files: int) -> Index:
        "The same with cut pages and the vectors of the model that pip brings. Raises Skipped."
        need_model()
        return self.once(f'real_{files}', lambda: self.ingested(self.record(files, lean=True), f'real_{files}', {}))

    def fixture(self) -> Index:
        "The example record with real vectors. Raises Skipped."
        need_model()
        path = self.folder / 'fixture'
        if not path.exists():
            self.make_whole(path, fixture_record)
        return self.once('fixture', lambda: self.opened(path, 'fixture', {}))

    def ingested(self, record: Path, name: str, more: Mapping[str, str]) -> Index:
        "An index of a copy of a record."
        return self.opened(self.copy(record, f'own-{name}-{record.name.partition("-most-")[2]}'), name, more)

    def opened(self, repo: Path, name: str, more: Mapping[str, str]) -> Index:
        "An index brought up to date; how much memory a whole ingest took stays beside it, and says that one was finished."
        env, note = self.env(repo, f'bench_{name}', **more), self.folder / f'{repo.name}.peak'
        if not note.exists():  # stopped half-way, or an index of the record as an older generator made it
            self.clear(name, env)
        found = python(CHILD, 'ingest', '--json', env=env)[0].splitlines()
        documents = json.loads(found[-2])['documents']
        if not note.exists() or documents['unchanged'] < documents['new'] + documents['changed']:
            note.write_text(str(json.loads(found[-1])['peak_MiB']))
        return self.connected(repo, env, float(note.read_text()))

    def clear(self, name: str, env: Mapping[str, str]) -> None:
        "Drop what there is of an index, and the copies of its record that older generators made."
        config = load_config(env)
        with connect(config.database) as conn:
            self.drop(conn, config.database.schema)
        self.sweep(f'own-{name}-*', Path(env['REPO_DIR']))

    def sweep(self, pattern: str, but: Path) -> None:
        "Remove what older generators left of a thing."
        for old in self.folder.glob(pattern):
            if old != but:
                shutil.rmtree(old) if old.is_dir() else old.unlink()

    def connected(self, repo: Path, env: Mapping[str, str], peak: float = 0.0) -> Index:
        "With a connection that is held."
        config = load_config(env)
        conn = self.stack.enter_context(connect(config.database))
        server = Server(self.home)
        return Index(repo, env, conn, config.database.schema, server.status().pid, server.places.dsn, peak)

    def sections(self, count: int) -> Index:
        "An index of so many made-up sections."
        return self.once(f'sections_{count}', lambda: self.filled(count))

    def filled(self, count: int) -> Index:
        "The same, made where no whole one is there."
        index = self.connected(self.folder, self.env(self.folder, f'bench_sections_{count}'))
        if read_meta(index.conn).get('sections') != count:
            self.drop(index.conn, index.schema)
            write_sections(index.conn, self.config(index), count)
        return index

    def config(self, index: Index) -> Config:
        "The configuration of an index."
        return load_config(index.env)

    def drop(self, conn: psycopg.Connection, schema: str) -> None:
        "A schema, if it is there."
        conn.execute(f'drop schema if exists {schema} cascade')


def need_model() -> None:
    "Raises Skipped where pip did not bring the local model."
    from merlin.embed_local import shipped_files
    from merlin.errors import MerlinError

    try:
        shipped_files()
    except MerlinError as e:
        raise Skipped(str(e)) from None


@contextmanager
def made_up_server(dim: int) -> Iterator[Any]:
    "The double of the tests, for pages of any length; `asked` is every text since it was last cleared."
    sys.path.insert(0, str(ROOT / 'tests'))
    from doubles.embed_servers import TeiDouble

    class MadeUp(TeiDouble):
        def __init__(self) -> None:
            super().__init__(model=f'made-up-{dim}')
            self.info |= {'max_input_length': 100_000, 'max_batch_tokens': 10_000_000}
            self.requests, self.asked = deque(maxlen=1), []
            self._server.RequestHandlerClass.disable_nagle_algorithm = True  # or each answer takes 40 ms

        def vectors(self, texts: Sequence[str], prompt: str = '') -> list[list[float]]:
            self.asked += texts
            return [[rnd.random() - 0.5 for _ in range(dim)] for rnd in map(Random, texts)]

    with MadeUp() as server:
        yield server
