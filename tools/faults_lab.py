"""What the campaign stands on: a record with several heads, an index of it, real processes, and a server of vectors."""

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import psycopg
from faults_same import Snapshot, rows, snapshot
from psycopg import sql

from merlin.config import Config, load_config
from merlin.database import connect
from merlin.freshness import Verdict
from merlin.ingest import ingest
from merlin.postgres import Server
from merlin.secrets import hash_file
from merlin.status import current_verdict
from merlin.store import build_hnsw
from merlin.testing import DAY, START, WordEmbedder, commit_all, fixture_record, run_git

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / 'tests'))

from doubles.embed_servers import HALF, HANG, HTML, NAN, RESET, OpenAiDouble, status  # noqa: E402 (no path leads there)

OTHERS = "select count(*) from pg_stat_activity where backend_type = 'client backend' and pid <> pg_backend_pid()"
PATIENCE = 90  # seconds after which a process hangs
GRAPH = 60  # vectors for which a graph is built here: the record has a hundred and more
SALT = '00112233445566778899aabbccddeeff'
PASSWORD = 'Herbst' + '-' + '2031'  # in the record and in the file of hashes: it must never reach the index

BREAKS = {
    'reset': RESET, 'half an answer': HALF, 'no answer': HANG, 'a page': HTML, 'no numbers': NAN,
    'status 500': status(500), 'status 429': status(429), 'status 401': status(401),
}  # fmt: skip


class Words(OpenAiDouble):
    "An embedding server on loopback that can go away and come back."

    MODELS = {'words': 64}

    def _row(self, text: str, size: int) -> list[float]:
        return WordEmbedder()._embed(text).tolist()

    def down(self) -> None:
        "Refuse connections from now on."
        self._server.shutdown()
        self._server.server_close()

    def up(self) -> None:
        "Be there again, at the same address."
        handler, port = self._server.RequestHandlerClass, self._server.server_port
        self._server = ThreadingHTTPServer(('127.0.0.1', port), handler)
        self._server.daemon_threads = True
        self.__enter__()

    def heal(self) -> None:
        "Answer well."
        self.faults, self.always = [], None
        self.requests.clear()


@dataclass(frozen=True)
class Done:
    "How a process ended."

    code: int
    out: str
    err: str
    seconds: float

    @property
    def clean(self) -> bool:
        "Whether it said what it had to say in words, and not as a traceback."
        noise = ('Traceback', 'error ignored', 'Exception ignored')
        return not any(word in self.err for word in noise) and self.code in (0, 1, 2, 3, 130, -2, -9, -15)

    @property
    def said(self) -> str:
        "Its last words."
        lines = [line for line in self.err.splitlines() if not line.startswith('warning:')]
        return f'exit {self.code}: {" / ".join(lines[-3:])[-300:]}'


def write(repo: Path, path: str, text: str) -> None:
    "Write a page."
    (repo / path).parent.mkdir(parents=True, exist_ok=True)
    (repo / path).write_text(text, encoding='utf-8')


def make_record(repo: Path) -> dict[str, str]:
    "The fixture record with more commits; the heads by name."
    fixture_record(repo)
    write(repo, 'notes/door.md', f'# The door\n\nThe code of the door is {PASSWORD} until spring.\n')
    heads = {'first': commit_all(repo, 'the door', START + 30 * DAY)}
    pages = sorted(p for p in repo.rglob('*.md') if '.git' not in p.parts)
    for n, page in enumerate(pages[::5]):
        page.write_bytes(
            page.read_bytes() + f'\n\n## Round two, {n}\n\nWhat changed in round two: item {n}.\n'.encode()
        )
    for page in pages[3::17]:
        page.unlink()
    os.rename(repo / 'runbooks/dns.md', repo / 'runbooks/names.md')
    for n in range(4):
        write(
            repo, f'journal/2030-02-{n + 10}.md', f'# Day {n}\n\n## Cellar\n\nMoved the new machine, delta, step {n}.\n'
        )
    write(
        repo, 'hosts/delta.md', '---\nhost: delta\nips: [10.0.1.77]\n---\n# delta\n\nThe new machine in the cellar.\n'
    )
    heads['second'] = commit_all(repo, 'round two', START + 40 * DAY)
    write(repo, 'journal/2030-02-20.md', '# A quiet day\n\nOnly the cable of beta was changed.\n')
    (repo / 'journal/2030-02-10.md').unlink()
    heads['third'] = commit_all(repo, 'round three', START + 41 * DAY)
    tree = run_git(repo, 'rev-parse', f'{heads["third"]}^{{tree}}')
    parent = heads['first']
    heads['rewritten'] = run_git(repo, 'commit-tree', '-p', parent, '-m', 'told anew', tree, when=START + 50 * DAY)
    run_git(repo, 'update-ref', 'refs/keep/rewritten', heads['rewritten'])
    run_git(repo, 'checkout', '--quiet', '--detach')
    run_git(repo, 'gc', '--quiet')
    return heads


def make_layouts(folder: Path) -> dict[str, str]:
    "Two layouts by name: the second cuts other sections, leaves a folder out and knows no hosts."
    hashes = folder / 'hashes'
    hashes.write_text(hash_file([('door', PASSWORD)], SALT))
    hashes.chmod(0o600)
    text = (ROOT / 'merlin.example.toml').read_text(encoding='utf-8')
    plain = text.replace('# secret_hashes = "/etc/merlin/secret-hashes"', f'secret_hashes = "{hashes}"')
    other = plain
    for old, new in (
        ('max_tokens = 1500', 'max_tokens = 60'),
        ('skip = ["**/_template.md"]', 'skip = ["planning/**"]'),
        ('host_types = ["host"]', 'host_types = []'),
    ):
        assert old in other, f'{old} is not in merlin.example.toml'
        other = other.replace(old, new)
    return {'plain': plain, 'other': other}


@dataclass
class Lab:
    "One home with an index, and everything around it."

    folder: Path
    repo: Path
    heads: Mapping[str, str]
    layouts: Mapping[str, str]
    words: Words
    env: dict[str, str]
    wanted: dict[tuple[str, str], Snapshot]  # head and layout -> the index of a clean rebuild; labs may share it
    at: tuple[str, str] = ('first', 'plain')  # head and layout that are set now

    @property
    def config(self) -> Config:
        return load_config({k: v for k, v in self.env.items() if k not in ('PATH', 'HOME')})

    @property
    def server(self) -> Server:
        return Server(Path(self.env['MERLIN_HOME']))

    @property
    def data(self) -> str:
        return str(self.server.places.data)

    def set(self, head: str | None = None, layout: str | None = None) -> None:
        "Let the record's HEAD, the layout file, or both be these."
        self.at = (head or self.at[0], layout or self.at[1])
        run_git(self.repo, 'update-ref', '--no-deref', 'HEAD', self.heads[self.at[0]])
        Path(self.env['MERLIN_CONFIG']).write_text(self.layouts[self.at[1]], encoding='utf-8')

    def start(self, module: str, *args: str, order: Mapping[str, Any] | None = None, **env: str) -> subprocess.Popen:
        "A process of merlin, in a session of its own."
        order = {'waits': 0.1, 'graph': GRAPH, 'data': self.data, **(order or {})}
        full = {**self.env, **env, 'FAULT_ORDER': json.dumps(order)}
        return subprocess.Popen(
            [sys.executable, '-P', '-m', module, *args], env=full, text=True, start_new_session=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def end(self, process: subprocess.Popen, since: float) -> Done:
        "Wait for it; -99 where it hangs."
        try:
            out, err = process.communicate(timeout=PATIENCE)
            return Done(process.returncode, out, err, time.monotonic() - since)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            return Done(-99, out, f'{err}\nit hangs', PATIENCE)

    def ingest(self, *args: str, order: Mapping[str, Any] | None = None, **env: str) -> Done:
        "One run of `merlin ingest`."
        begin = time.monotonic()
        return self.end(self.start('merlin.ingest', *args, order=order, **env), begin)

    def stop(self) -> None:
        "Stop the database."
        self.server.stop()

    @contextmanager
    def connected(self) -> Iterator[psycopg.Connection]:
        "A connection of our own."
        with connect(self.config.database) as conn:
            yield conn

    def rows(self) -> dict[str, list[Any]]:
        "The tables as they are."
        with self.connected() as conn:
            return rows(conn, self.config)

    def snapshot(self) -> Snapshot:
        "The index as it is."
        with self.connected() as conn:
            return snapshot(conn, self.config)

    def clean(self) -> Snapshot:
        "A clean rebuild of what is set now, in a schema of its own; made once."
        if self.at not in self.wanted:
            config = self.config
            config = replace(config, database=replace(config.database, schema='merlin_clean'))
            ingest(config)
            with connect(config.database) as conn:
                self.wanted[self.at] = snapshot(conn, config)
                conn.execute(sql.SQL('drop schema {} cascade').format(sql.Identifier('merlin_clean')))
        return self.wanted[self.at]

    def settle(self, head: str, layout: str = 'plain') -> None:
        "Set these and index them, with nothing in the way."
        self.words.heal()
        self.set(head, layout)
        self.clean()
        ingest(self.config)

    def settle_nothing(self, head: str) -> None:
        "Set a head that a clean rebuild was made of before, and index nothing."
        self.words.heal()
        self.at = (head, 'plain')
        assert self.at in self.wanted, 'the lab that this one was made from knows how it should be'
        self.set(head)

    def verdict(self) -> Verdict:
        "What a reader is told of the index now."
        with self.connected() as conn:
            return current_verdict(conn, self.config)

    def sessions(self) -> int:
        "How many others are connected."
        with self.connected() as conn:
            return conn.execute(OTHERS).fetchone()[0]

    def strays(self) -> list[str]:
        "Processes at work on the record that nobody waits for."
        found = []
        for path in Path('/proc').glob('[0-9]*/cmdline'):
            with suppress(OSError):
                command = path.read_bytes().replace(b'\0', b' ').decode(errors='replace')
                if command.startswith('git') and str(self.folder) in command:
                    found.append(command)
        return found


def drop_index(lab: Lab) -> None:
    "Drop the whole schema."
    with lab.connected() as conn:
        schema = sql.Identifier(lab.config.database.schema)
        conn.execute(sql.SQL('drop schema if exists {} cascade').format(schema))


def environment(folder: Path, repo: Path, url: str, home: Path) -> dict[str, str]:
    "What every process of the campaign gets: nothing of the person's settings, and the hook."
    hook = folder / 'hook'
    hook.mkdir(exist_ok=True)
    shutil.copyfile(Path(__file__).with_name('faults_hook.py'), hook / 'sitecustomize.py')
    kept = {k: v for k, v in os.environ.items() if k in ('PATH', 'PYTHONDONTWRITEBYTECODE', 'PYTHONPYCACHEPREFIX')}
    return {
        **kept, 'HOME': str(folder), 'PYTHONPATH': f'{hook}:{ROOT}',
        'MERLIN_HOME': str(home), 'MERLIN_CONFIG': str(folder / 'merlin.toml'), 'REPO_DIR': str(repo),
        'EMBED_PROVIDER': 'openai', 'EMBED_URL': url, 'EMBED_MODEL': 'words', 'EMBED_DIM': '64', 'EMBED_BATCH': '8',
        'EMBED_TIMEOUT': '1',
    }  # fmt: skip


def roomy_folder() -> str | None:
    "Memory, where there is enough of it; None: the usual place."
    memory = Path('/dev/shm')
    return str(memory) if os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > 2_000_000_000 else None


@contextmanager
def open_lab() -> Iterator[Lab]:
    "A lab with an index of its record; nothing is left of it."
    linger = os.environ.setdefault('MERLIN_TEST_LINGER', '120')  # seconds: a campaign that is killed leaves no server
    before, build_hnsw.__defaults__ = build_hnsw.__defaults__, (GRAPH,)
    folder = Path(tempfile.mkdtemp(prefix='merlin-faults-', dir=roomy_folder()))
    folder.chmod(0o755)  # as root the database runs as somebody else
    try:
        with Words() as words:
            repo = folder / 'record'
            heads, layouts = make_record(repo), make_layouts(folder)
            env = environment(folder, repo, words.url, folder / 'home')
            env['MERLIN_TEST_LINGER'] = linger
            lab = Lab(folder, repo, heads, layouts, words, env, {})
            try:
                lab.settle('first')
                yield lab
            finally:
                for home in {*folder.glob('*/database'), *folder.glob('*/*/database')}:
                    Server(home.parent).stop()
    finally:
        build_hnsw.__defaults__ = before
        shutil.rmtree(folder, ignore_errors=True)


def other_home(lab: Lab, name: str) -> Lab:
    "The same record in another home, which is empty."
    home = lab.folder / name
    shutil.rmtree(home, ignore_errors=True)
    return replace(lab, env={**lab.env, 'MERLIN_HOME': str(home)})


def pick(rng: random.Random, *choices: Any, weights: Sequence[int] | None = None) -> Any:
    "One of these."
    return rng.choices(choices, weights=weights)[0]
