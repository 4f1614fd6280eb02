"""What is shipped to run merlin somewhere: units, containers, the line for Claude Code. Whatever they name exists."""

import contextlib
import io
import json
import os
import plistlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path, PurePosixPath

import pytest
import yaml

from merlin import cli, ingest, mcp_install
from merlin.config import VARIABLES
from merlin.errors import ConfigError
from merlin.launcher import Places

ROOT = Path(__file__).resolve().parents[1]
DEPLOY = ROOT / 'deploy'
PAGES = [ROOT / 'docs/claude-code.md', *sorted((ROOT / 'docs').glob('deploy-*.md'))]
UNITS = sorted([*DEPLOY.glob('*.service'), *DEPLOY.glob('*.timer')])
CHECKOUT = '/srv/merlin/'  # where the units expect it
ELSEWHERE = {*VARIABLES, 'PGPASSWORD', 'TZ'}


def check_command(words: list[str]) -> None:
    "AssertionError or SystemExit where merlin has no such command, or the command no such option."
    program, *rest = words
    name = PurePosixPath(program).name
    if name == 'merlin':
        assert rest and rest[0] in cli.COMMANDS, words
        name, *rest = rest
    if name == 'merlin-loop':
        assert rest[0].isdigit()
        name, rest = 'ingest', rest[1:]
    if name == 'ingest':
        ingest.parser().parse_args(rest)
    elif name == 'mcp' and rest[:1] == ['install']:
        mcp_install.parser().parse_args(rest[1:])
    elif name == 'mcp':
        from merlin.mcp_server import parser

        parser().parse_args(rest)
    elif name == 'db':
        assert rest[0] in verbs()
    else:
        assert name in cli.COMMANDS, words


def verbs() -> list[str]:
    "What `merlin db` can do."
    with contextlib.redirect_stdout(io.StringIO()) as out, pytest.raises(SystemExit):
        cli.main(['db', '--help'])
    return re.search(r'\{([\w,]+)\}', out.getvalue())[1].split(',')


# --- the pages ---


def commands_of(page: Path) -> list[list[str]]:
    "Every command of merlin that a page shows, as words."
    text = page.read_text(encoding='utf-8')
    shown = [line.strip() for line in text.splitlines() if line.startswith('    ')]
    shown += re.findall(r'(?<!`)`([^`\n]+)`(?!`)', text)
    out = []
    for line in shown:
        line = re.split(r'\s+#|…| OPTION| \(', line)[0]
        if found := re.search(r'(?<![\w-])(?:\S*bin/(?:merlin|ingest|mcp)|merlin)(?= |$)(?: [^&|;>\'"]+)?', line):
            words = found[0].split()
            if len(words) > 1 and (words[0] != 'merlin' or words[1] in cli.COMMANDS or words[1] == 'mcp'):
                out.append(words)
    return out


@pytest.mark.parametrize('page', PAGES, ids=lambda p: p.name)
def test_every_command_of_merlin_on_a_page_exists_with_its_options(page):
    found = [words for words in commands_of(page) if words[0] != 'merlin' or words[1] not in ('--scope', 'http')]
    assert found
    for words in found:
        check_command(words)


@pytest.mark.parametrize('page', PAGES, ids=lambda p: p.name)
def test_every_page_says_what_was_tried_and_what_not(page):
    assert '\n## What was tried, and what not\n' in page.read_text(encoding='utf-8')


def test_every_file_for_deployment_is_explained_on_a_page():
    text = ''.join(page.read_text(encoding='utf-8') for page in (*PAGES, ROOT / 'docs/lint.md'))
    assert (
        sorted(p.name for p in [*DEPLOY.iterdir(), ROOT / 'compose.yaml', ROOT / 'Dockerfile'] if p.name not in text)
        == []
    )


# --- systemd ---


def unit(path: Path) -> dict[str, list[tuple[str, str]]]:
    "Section → its lines; a key may come twice."
    out, section = {}, ''
    for line in path.read_text(encoding='utf-8').splitlines():
        if line.startswith('['):
            section = line.strip('[]')
            out[section] = []
        elif line and line[0] not in '#;':
            key, _, value = line.partition('=')
            out[section].append((key, value))
    return out


@pytest.mark.parametrize('path', UNITS, ids=lambda p: p.name)
def test_what_a_unit_runs_exists_with_its_options(path):
    lines = [(k, v) for k, v in unit(path).get('Service', []) if k.startswith('Exec')]
    assert lines or path.suffix == '.timer'
    for _, value in lines:
        program, *rest = value.split()
        assert program.startswith(CHECKOUT) and os.access(ROOT / program.removeprefix(CHECKOUT), os.X_OK)
        check_command([program, *rest])


def test_a_timer_has_its_service_and_units_name_only_units_that_exist():
    names = {p.name for p in UNITS}
    assert all(p.with_suffix('.service').name in names for p in UNITS if p.suffix == '.timer')
    named = {n for p in UNITS for k, v in unit(p).get('Unit', []) if k in ('Wants', 'After') for n in v.split()}
    assert {n for n in named if n.startswith('merlin')} <= names


def test_the_unit_of_the_database_watches_the_file_that_the_server_writes():
    facts = dict(unit(DEPLOY / 'merlin-db.service')['Service'])
    home = Path(facts['Environment'].removeprefix('MERLIN_HOME='))
    assert facts['PIDFile'] == f'{home}/{Places(home).data.relative_to(home)}/postmaster.pid'
    assert home == Path('/var/lib') / facts['StateDirectory']
    assert facts['User'] == dict(unit(DEPLOY / 'merlin-ingest.service')['Service'])['User']


def verify(folder: Path, *options: str) -> None:
    if not shutil.which('systemd-analyze'):
        pytest.skip('systemd-analyze is not installed')
    files = sorted(str(p) for p in folder.iterdir())
    done = subprocess.run(
        ['systemd-analyze', *options, 'verify', *files],
        capture_output=True,
        text=True,
        env={**os.environ, 'HOME': str(folder), 'XDG_RUNTIME_DIR': str(folder.parent)},
    )
    # a machine without a session manager says so, and checks the files all the same
    said = [line for line in done.stderr.splitlines() if re.search(r'merlin-(db|ingest)\.(service|timer)', line)]
    assert (done.returncode, said) == (0, []), done.stderr


def test_systemd_accepts_the_units(tmp_path):
    for path in UNITS:
        text = path.read_text(encoding='utf-8').replace(CHECKOUT, f'{ROOT}/')
        (tmp_path / path.name).write_text(text)
    verify(tmp_path)


def block(page: Path, first: str, last: str) -> str:
    "The indented lines of a page from one to another."
    lines = page.read_text(encoding='utf-8').splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(f'    {first}'))
    end = next(i for i in range(start, len(lines)) if lines[i].startswith(f'    {last}'))
    return '\n'.join(line[4:] for line in lines[start : end + 1])


def test_systemd_accepts_the_units_that_the_page_makes_for_a_user(tmp_path):
    script = block(ROOT / 'docs/deploy-systemd.md', 'mkdir -p ~/.config', 'done')
    env = {'HOME': str(tmp_path), 'PATH': os.environ['PATH']}
    subprocess.run(['sh', '-eu', '-c', script], cwd=ROOT, env=env, check=True)
    made = tmp_path / '.config/systemd/user'
    assert sorted(p.name for p in made.iterdir()) == [p.name for p in sorted(UNITS, key=lambda p: p.name)]
    text = ''.join(p.read_text() for p in made.iterdir())
    lines = [line for line in text.splitlines() if not line.startswith('#')]
    left = ('User=', '/srv/merlin', '/var/lib', '/etc/', 'multi-user', 'network-online')
    assert [line for line in lines if any(word in line for word in left)] == []
    verify(made, '--user')


# --- launchd ---


def test_the_plist_names_a_program_and_options_that_exist(tmp_path):
    script = block(ROOT / 'docs/deploy-launchd.md', 'sed -e', '  > ~/Library')
    agents = tmp_path / 'Library/LaunchAgents'
    agents.mkdir(parents=True)
    env = {'HOME': str(tmp_path), 'PATH': os.environ['PATH']}
    subprocess.run(['sh', '-eu', '-c', script], cwd=ROOT, env=env, check=True)
    made = (agents / 'org.merlin.ingest.plist').read_bytes()
    facts = plistlib.loads(made)
    assert facts['Label'] == 'org.merlin.ingest' and b'YOU' not in made
    program, *rest = facts['ProgramArguments']
    assert Path(program) == ROOT / 'bin/ingest'
    check_command([program, *rest])
    assert facts['AbandonProcessGroup'] is True and facts['StartInterval'] == 300
    assert facts['StandardErrorPath'] == f'{tmp_path}/Library/Logs/merlin-ingest.log'
    assert set(facts['EnvironmentVariables']) <= {*ELSEWHERE, 'PATH'}


# --- containers ---

COMPOSE = yaml.safe_load((ROOT / 'compose.yaml').read_text(encoding='utf-8'))
DOCKERFILE = (ROOT / 'Dockerfile').read_text(encoding='utf-8')


def instructions(name: str) -> list[str]:
    "The arguments of each instruction of that name."
    joined = re.sub(r'\\\n', ' ', re.sub(r'(?m)^#.*\n', '', DOCKERFILE))
    return re.findall(rf'(?m)^{name} (.*)$', joined)


def test_the_compose_file_has_the_database_the_embedder_and_merlin():
    services = COMPOSE['services']
    assert set(services) == {'db', 'embed', 'app'}
    assert all(':' in s['image'] and not s['image'].endswith(':latest') for s in services.values() if 'build' not in s)
    ports = [p for s in services.values() for p in s.get('ports', [])]
    assert ports and all(p.startswith('127.0.0.1:') for p in ports)
    used = {v.split(':')[0] for s in services.values() for v in s.get('volumes', []) if isinstance(v, str)}
    assert used == set(COMPOSE['volumes'])


def test_the_app_of_the_compose_file_runs_what_the_image_has():
    app = COMPOSE['services']['app']
    assert app['profiles'] == ['app'] and app['init'] is True
    assert set(app['environment']) <= ELSEWHERE
    assert set(app['depends_on']) == {'db', 'embed'}
    for command in (app['command'], json.loads(instructions('CMD')[0])):
        assert command[0] == 'merlin-loop'
        check_command(command)
    assert app['environment']['EMBED_MODEL'] == COMPOSE['services']['embed']['command'][1]
    assert [v['target'] for v in app['volumes'] if isinstance(v, dict)] == ['/repo']
    assert 'REPO_DIR=/repo' in instructions('ENV')[0]


def test_no_password_stands_in_the_files_of_the_containers():
    text = (ROOT / 'compose.yaml').read_text(encoding='utf-8') + DOCKERFILE
    values = re.findall(r'PASSWORD\w*\s*[:=]\s*(\S+)', text)
    assert values and all(v.startswith('${POSTGRES_PASSWORD:?') or v == '...' for v in values)


def test_what_the_dockerfile_copies_exists_and_is_let_through():
    let = {line[1:] for line in (ROOT / '.dockerignore').read_text().splitlines() if line.startswith('!')}
    copied = {w for line in instructions('COPY') if '--from' not in line for w in line.split()[:-1] if w[0] != '-'}
    assert copied == let
    assert [name for name in copied if not (ROOT / name).exists()] == []


def test_the_dockerfile_copies_what_the_installation_reads():
    copied = ' '.join(instructions('COPY')).split()
    read = re.findall(r"ROOT / '([^']+)'", (ROOT / 'setup.py').read_text(encoding='utf-8'))
    assert read and set(read) <= set(copied)
    (locked,) = re.findall(r'--require-hashes[\s\\]+-r (\S+)', DOCKERFILE)
    assert (ROOT / locked).is_file() and locked.split('/')[0] in copied


def test_the_container_does_not_run_as_root():
    assert instructions('USER') == ['${UID}:${UID}'] and instructions('ARG') == ['UID=10001']
    assert DOCKERFILE.index('\nUSER ') > DOCKERFILE.index('\nRUN apt-get')


FAKE = """#!/bin/sh
echo "$@" >> "$LOG"
case $1 in ingest) [ "${SLOW:-}" ] && exec sleep 30; exit 3 ;; esac
"""


# a shell cannot trap what was ignored when it began, and a test run in the background inherits that
HEARING = 'import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); os.execv(sys.argv[1], sys.argv[1:])'


def loop(tmp_path: Path, *argv: str, **env: str) -> tuple[subprocess.Popen, Path]:
    "The loop of the container with a merlin that writes down what it was asked."
    fake, log = tmp_path / 'bin' / 'merlin', tmp_path / 'log'
    fake.parent.mkdir()
    fake.write_text(FAKE)
    fake.chmod(0o755)
    log.touch()
    given = {'PATH': f'{fake.parent}:{os.environ["PATH"]}', 'LOG': str(log), **env}
    command = [sys.executable, '-c', HEARING, DEPLOY / 'merlin-loop', *argv]
    return subprocess.Popen(command, env=given, start_new_session=True), log


def wait_for(condition) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.parametrize('number', [signal.SIGTERM, signal.SIGINT])
def test_the_loop_goes_on_after_a_failure_and_stops_the_database_of_its_own_at_the_end(tmp_path, number):
    process, log = loop(tmp_path, '0', '--pull', '--quiet')
    wait_for(lambda: log.read_text().count('\n') >= 2)
    process.send_signal(number)
    assert process.wait(20) == 0
    *runs, last = log.read_text().splitlines()
    assert set(runs) == {'ingest --pull --quiet'} and last == 'db stop'


def test_the_loop_ends_in_the_middle_of_a_run_and_leaves_another_database_alone(tmp_path):
    process, log = loop(tmp_path, '300', SLOW='1', DATABASE_URL='postgresql://db/merlin')
    wait_for(lambda: log.read_text())
    begin = time.monotonic()
    process.terminate()
    assert process.wait(20) == 0 and time.monotonic() - begin < 5
    assert log.read_text().splitlines() == ['ingest']
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)


@pytest.mark.parametrize('argv', [[], ['--quiet'], ['5m'], ['']])
def test_the_loop_wants_a_number_of_seconds(tmp_path, argv):
    process, log = loop(tmp_path, *argv)
    assert process.wait(20) == 2 and log.read_text() == ''


# --- the line for Claude Code ---


def put(folder: Path, name: str, text: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(text)
    (folder / name).chmod(0o755)


# What Claude Code does with a line: -e becomes the server's environment, what is behind -- is started without a shell.
CLAUDE = f"""#!{sys.executable} -IS
import os, sys
words = sys.argv[1:]
with open(os.environ['SEEN'], 'w') as file:
    file.write('\\n'.join(words))
if words[:3] != ['mcp', 'add', '--transport'] or os.environ.get('REFUSE'):
    sys.exit(1)
if words[3] == 'stdio':
    at = words.index('--')
    given = dict(w.split('=', 1) for before, w in zip(words[:at], words[1:at]) if before == '-e')
    os.execvpe(words[at + 1], words[at + 1:], dict(os.environ, **given))
"""

# What ssh does: it joins the words behind the host, and a shell at the other end splits them again.
SSH = """#!/bin/sh
[ "$1 $2 $3 $4" = "-T -o BatchMode=yes me@cellar" ] || exit 255
shift 4
exec env -i HOME=/ PATH=/usr/bin:/bin sh -c "$*"
"""

HELLO = {
    'jsonrpc': '2.0',
    'id': 1,
    'method': 'initialize',
    'params': {'protocolVersion': '2025-11-25', 'capabilities': {}, 'clientInfo': {'name': 'x', 'version': '1'}},
}


@pytest.fixture
def world(tmp_path, monkeypatch) -> Path:
    "A machine with a claude and an ssh, and a MERLIN_HOME that must be quoted."
    put(tmp_path / 'bin', 'claude', CLAUDE)
    put(tmp_path / 'bin', 'ssh', SSH)
    for name in (*VARIABLES, 'PGPASSWORD'):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv('PATH', f'{tmp_path / "bin"}:/usr/bin:/bin')
    monkeypatch.setenv('MERLIN_HOME', str(tmp_path / "it's a $home"))
    monkeypatch.setenv('SEEN', str(tmp_path / 'seen'))
    return tmp_path


def printed(capsys, *argv: str) -> tuple[str, str]:
    assert mcp_install.main(argv) == 0
    said = capsys.readouterr()
    assert said.out.count('\n') == 1
    return said.out, said.err


@pytest.mark.parametrize('way', [['checkout'], ['ssh', 'me@cellar']], ids=lambda w: w[0])
def test_the_printed_line_starts_a_server_that_answers_through_every_shell_on_the_way(world, capsys, way):
    if not (ROOT / '.venv').exists():
        pytest.skip('bin/mcp runs what is installed in .venv')
    line, _ = printed(capsys, '--way', *way)
    done = subprocess.run(
        ['sh', '-c', line], input=json.dumps(HELLO) + '\n', cwd=world, capture_output=True, text=True, timeout=60
    )
    assert json.loads(done.stdout)['result']['serverInfo']['name'] == 'merlin', done.stderr
    seen = (world / 'seen').read_text()
    assert str(world / "it's a $home") in (seen if way == ['checkout'] else shlex.split(seen.splitlines()[-1])[2])


def test_run_runs_the_line_that_would_be_printed(world, capsys):
    line, _ = printed(capsys, '--scope', 'local', '--way', 'docker', 'merlin-app-1')
    put(world / 'bin', 'docker', '#!/bin/sh\nexit 0\n')
    assert mcp_install.main(['--scope', 'local', '--way', 'docker', 'merlin-app-1', '--run']) == 0
    assert ['claude', *(world / 'seen').read_text().splitlines()] == shlex.split(line)


def test_run_over_http_gives_the_token_and_prints_it_nowhere(world, capfd):
    assert mcp_install.main(['--way', 'http', '9000', '--run']) == 0
    token = (world / "it's a $home" / 'mcp-token').read_text().strip()
    seen = (world / 'seen').read_text()
    assert seen.endswith(f'--header\nAuthorization: Bearer {token}') and 'http://127.0.0.1:9000/mcp' in seen
    assert mcp_install.main(['--way', 'http', '9000']) == 0
    said = capfd.readouterr()
    assert token not in said.out + said.err
    subprocess.run(['sh', '-c', said.out], check=True)
    assert (world / 'seen').read_text() == seen, 'what is pasted is what was run'


def test_a_setting_that_may_hold_a_password_is_named_and_not_shown(world, capsys, monkeypatch):
    word = 'pass' + 'w0rd'
    for name in mcp_install.PRIVATE:
        monkeypatch.setenv(name, f'scheme://user:{word}@host')
    for way in (['checkout'], ['ssh', 'me@cellar'], ['docker', 'c'], ['http']):
        out, err = printed(capsys, '--way', *way)
        assert word not in out + err
        assert ('DATABASE_URL' in err) == (way[0] in ('checkout', 'ssh'))


@pytest.mark.parametrize(
    ('argv', 'code', 'said'),
    [
        (['--way', 'ssh'], 2, 'write: --way ssh HOST'),
        (['--way', 'docker', ''], 2, 'write: --way docker CONTAINER'),
        (['--way', 'checkout', 'x'], 2, 'takes nothing more'),
        (['--way', 'http', '99999'], 2, 'write: --way http 8766'),
        (['--way', 'dokcer', 'x'], 2, "did you mean 'docker'?"),
        (['--way', 'http', '--scope', 'project'], 3, 'use --scope user'),
    ],
)
def test_a_wrong_use_is_one_line_with_the_right_one(world, capsys, argv, code, said):
    assert mcp_install.main(argv) == code
    out, err = capsys.readouterr()
    assert out == '' and said in err and err.count('\n') == 1


def test_without_claude_run_says_what_to_do(world, capsys, monkeypatch):
    (world / 'bin' / 'claude').unlink()
    assert mcp_install.main(['--run']) == 2
    assert 'put claude on the PATH' in capsys.readouterr().err
    with pytest.raises(ConfigError):
        mcp_install.run_plan(mcp_install.Plan(('no-such-program',), ''))


def test_a_claude_that_refuses_is_a_failure_with_the_next_step(world, capsys, monkeypatch):
    monkeypatch.setenv('REFUSE', '1')
    assert mcp_install.main(['--run']) == 1
    assert 'claude mcp remove merlin' in capsys.readouterr().err


def test_the_lines_on_the_pages_are_those_that_are_printed(world, capsys, monkeypatch):
    docker, _ = printed(capsys, '--way', 'docker', 'merlin-app-1')
    assert f'    {docker}' in (ROOT / 'docs/deploy-docker.md').read_text(encoding='utf-8')
    assert docker.strip() in (ROOT / 'compose.yaml').read_text(encoding='utf-8')
    monkeypatch.setenv('MERLIN_HOME', '/srv/merlin-data')
    ssh, _ = printed(capsys, '--way', 'ssh', 'me@cellar')
    assert f'    {ssh.replace(str(ROOT), "/srv/merlin")}' in (ROOT / 'docs/deploy-ssh.md').read_text(encoding='utf-8')
