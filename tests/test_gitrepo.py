"Reading and pulling repositories that are odd, damaged, hostile or somebody else's."

import os
import random
import subprocess
import time
from pathlib import Path

import pytest

from merlin.document import commit_day
from merlin.errors import ConfigError, FailedError, RefusedError
from merlin.git import Git, git_env, start_git
from merlin.gitrepo import Entry, GitRepo, read_tree

ROOT = os.geteuid() == 0
NOBODY = 65534


pytestmark = pytest.mark.usefixtures('person')


def sh(where: Path, *args: str, date: int = 1_900_000_000, text: bytes | None = None, ok: bool = True) -> str:
    "Run git as a person would."
    env = {**os.environ, 'GIT_AUTHOR_DATE': f'{date} +0000', 'GIT_COMMITTER_DATE': f'{date} +0000'}
    done = subprocess.run(['git', '-C', str(where), *args], env=env, input=text, capture_output=True)
    assert done.returncode == 0 or not ok, done.stderr.decode()
    return done.stdout.decode(errors='replace').strip()


def make(where: Path, *options: str) -> Path:
    "A new repository."
    where.mkdir(parents=True)
    sh(where, 'init', '-q', '-b', 'main', *options)
    return where


def commit(where: Path, files: dict[str, str | None], date: int = 1_900_000_000) -> str:
    "Write the files (None = delete), commit them at that time, return the commit."
    for name, content in files.items():
        path = where / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if content is None:
            path.unlink()
        else:
            path.write_text(content)
    sh(where, 'add', '-A')
    sh(where, 'commit', '-q', '-m', 'x', date=date)
    return sh(where, 'rev-parse', 'HEAD')


@pytest.fixture
def record(tmp_path) -> Path:
    "A repository with two files in one commit."
    where = make(tmp_path / 'record')
    commit(where, {'a.md': 'a\n', 'hosts/b.md': 'b\n'})
    return where


def texts(repo: GitRepo) -> dict[str, bytes]:
    "Path to content at HEAD."
    entries, _ = repo.tree(repo.head())
    contents = {sha: data for sha, data, _ in repo.blobs({e.sha for e in entries})}
    return {e.path: contents[e.sha] for e in entries}


class Counter:
    "Starts git, and keeps what was started."

    def __init__(self):
        self.calls, self.processes = [], []

    def __call__(self, argv, env, stdin, stderr):
        self.calls.append(argv)
        self.processes.append(start_git(argv, env, stdin, stderr))
        return self.processes[-1]


# ---- what a repository may be


@pytest.mark.parametrize(
    'kind', ['checkout', 'bare', 'mirror', 'worktree', 'detached', 'shallow', 'gitdir', 'bare+worktree']
)
def test_every_kind_of_repository_reads_the_same(record, tmp_path, kind):
    head = commit(record, {'a.md': 'second\n'}, 1_900_000_100)
    there = tmp_path / 'there'
    if kind in ('bare', 'mirror'):
        sh(tmp_path, 'clone', '-q', f'--{kind}', str(record), str(there))
    elif kind == 'worktree':
        sh(record, 'worktree', 'add', '-q', '-b', 'other', str(there))
    elif kind == 'bare+worktree':
        sh(tmp_path, 'clone', '-q', '--bare', str(record), str(tmp_path / 'bare.git'))
        sh(tmp_path / 'bare.git', 'worktree', 'add', '-q', '-b', 'other', str(there))
    elif kind == 'shallow':
        sh(tmp_path, 'clone', '-q', '--depth=1', f'file://{record}', str(there))
    elif kind == 'gitdir':
        there = record / '.git'
    else:
        sh(tmp_path, 'clone', '-q', str(record), str(there))
        if kind == 'detached':
            sh(there, 'checkout', '-q', '--detach')
    repo = GitRepo(there)
    assert repo.head() == head
    assert texts(repo) == {'a.md': b'second\n', 'hosts/b.md': b'b\n'}
    assert repo.commit_dates(head)['a.md'] == 1_900_000_100


def test_a_sha256_repository_reads_and_pulls(tmp_path):
    upstream = make(tmp_path / 'up', '--object-format=sha256')
    commit(upstream, {'a.md': 'a\n'})
    sh(tmp_path, 'clone', '-q', '--mirror', str(upstream), str(tmp_path / 'm.git'))
    head = commit(upstream, {'b.md': 'b\n'})
    repo = GitRepo(tmp_path / 'm.git')
    assert len(head) == 64 and repo.pull().new == head
    assert texts(repo) == {'a.md': b'a\n', 'b.md': b'b\n'}


def test_the_work_tree_is_never_read(record):
    (record / 'a.md').write_text('not committed\n')
    (record / 'new.md').write_text('not added\n')
    assert texts(GitRepo(record)) == {'a.md': b'a\n', 'hosts/b.md': b'b\n'}


def test_odd_names_links_and_submodules(tmp_path):
    where = make(tmp_path / 'odd')
    names = [
        b'new\nline.md',
        b'tab\t.md',
        b'quo"te.md',
        b'two words.md',
        'メモ.md'.encode(),
        b'-rf.md',
        b':(top)x.md',
        b'100644 blob.md',
    ]
    blob = sh(where, 'hash-object', '-w', '--stdin', text=b'text\n')
    lines = [f'100644 {blob} 0\t'.encode() + name + b'\0' for name in (*names, b'b\xe9.md', b'b\xe9.png')]
    lines += [f'120000 {blob} 0\tlink.md'.encode() + b'\0', f'160000 {"1" * 40} 0\tlib'.encode() + b'\0']
    lines += [f'100755 {blob} 0\trun.sh'.encode() + b'\0']
    sh(where, 'update-index', '-z', '--index-info', text=b''.join(lines))
    sh(where, 'commit', '-q', '-m', 'x')
    repo = GitRepo(where, 'notes')
    entries, warnings = repo.tree(repo.head())
    good = sorted([*(n.decode() for n in names), 'run.sh'])
    assert sorted(e.path for e in entries) == good
    assert sorted((w.path, w.kind) for w in warnings) == [
        ('notes/b\\xe9.md', 'path'),
        ('notes/lib', 'submodule'),
        ('notes/link.md', 'symlink'),
    ]
    dates = repo.commit_dates(repo.head())
    assert set(good) <= set(dates) and set(dates.values()) == {1_900_000_000}
    assert [data for _, data, _ in repo.blobs(e.sha for e in entries)] == [b'text\n'] * len(entries)


# ---- what is wrong with a repository


def test_what_is_no_repository_is_told_as_wrong_use(record, tmp_path):
    (tmp_path / 'file').write_text('x')
    (tmp_path / 'plain').mkdir()
    broken = record / 'inner'
    (broken / '.git').mkdir(parents=True)
    cases = {
        tmp_path / 'nowhere': 'no such folder',
        tmp_path / 'file': 'is a file',
        tmp_path / 'plain': 'not a git repository',
        record / 'hosts': 'not a git repository',  # and never the repository around it
        broken: 'not a git repository',
    }
    for where, text in cases.items():
        with pytest.raises(ConfigError, match=text) as caught:
            GitRepo(where).head()
        assert str(where) in str(caught.value) and '\n' not in str(caught.value)


def test_an_empty_repository_and_a_head_without_commit_are_told_apart(record, tmp_path):
    with pytest.raises(ConfigError, match='no commit yet'):
        GitRepo(make(tmp_path / 'empty')).head()
    sh(tmp_path, 'clone', '-q', '--bare', str(record), str(tmp_path / 'b.git'))
    sh(tmp_path / 'b.git', 'symbolic-ref', 'HEAD', 'refs/heads/master')
    with pytest.raises(ConfigError, match=r'refs/heads/master.*symbolic-ref HEAD refs/heads/main'):
        GitRepo(tmp_path / 'b.git').head()


def lose(where: Path, sha: str) -> None:
    "Delete a loose object."
    (where / '.git/objects' / sha[:2] / sha[2:]).unlink()


@pytest.mark.parametrize('what', ['HEAD', 'HEAD^{tree}', 'HEAD:a.md'])
def test_a_lost_object_is_a_failure_not_an_empty_record(record, what):
    repo, head = GitRepo(record), sh(record, 'rev-parse', 'HEAD')
    lose(record, sh(record, 'rev-parse', what))
    with pytest.raises(FailedError) as caught:
        assert repo.head() == head
        texts(repo)
    assert str(record) in str(caught.value)


def test_a_damaged_object_is_a_failure(record):
    sha = sh(record, 'rev-parse', 'HEAD:a.md')
    path = record / '.git/objects' / sha[:2] / sha[2:]
    path.chmod(0o644)
    path.write_bytes(b'not zlib')
    with pytest.raises(FailedError, match='cat-file failed|is missing'):
        texts(GitRepo(record))


def test_a_garbled_head_is_no_fresh_record(record):
    (record / '.git/refs/heads/main').write_text('garbage\n')
    with pytest.raises((FailedError, ConfigError)):
        GitRepo(record).head()


# ---- what a repository may try


def mark(tmp_path: Path) -> tuple[Path, Path]:
    "A program that leaves a mark, and the mark."
    program, seen = tmp_path / 'evil', tmp_path / 'mark'
    program.write_text(f'#!/bin/sh\ntouch {seen}\n')
    program.chmod(0o755)
    return program, seen


HOOKS = (
    'post-merge',
    'reference-transaction',
    'post-checkout',
    'post-index-change',
    'pre-auto-gc',
    'post-rewrite',
    'update',
)


def plant(where: Path, program: Path) -> None:
    "Everything that a repository can name to be run, apart from what fetching needs."
    folder = where / '.git' if (where / '.git').is_dir() else where
    (folder / 'hooks').mkdir(exist_ok=True)
    for hook in HOOKS:
        (folder / 'hooks' / hook).symlink_to(program)
    for key in (
        'core.fsmonitor',
        'core.pager',
        'core.editor',
        'core.askPass',
        'gpg.program',
        'diff.external',
        'credential.helper',
    ):
        sh(where, 'config', key, str(program))
    for alias in ('rev-parse', 'log', 'ls-tree', 'cat-file', 'fetch', 'merge'):
        sh(where, 'config', f'alias.{alias}', f'!{program}')
    sh(where, 'config', 'log.showSignature', 'true')
    sh(where, 'config', 'diff.evil.textconv', str(program))
    (folder / 'info').mkdir(exist_ok=True)
    (folder / 'info/attributes').write_text('*.md diff=evil\n')


def read_all(where: Path) -> dict[str, bytes]:
    "Every reading call there is."
    repo = GitRepo(where)
    head = repo.head()
    repo.commit_dates(head)
    repo.roots(), repo.upstream(), repo.fetched_at(), repo.has(head)
    assert repo.is_ancestor(head, head)
    return texts(repo)


def test_nothing_of_a_repository_runs_when_it_is_read_or_pulled(record, tmp_path):
    program, seen = mark(tmp_path)
    for kind in ('--mirror', '--no-bare'):
        there = tmp_path / f'there{kind}'
        sh(tmp_path, 'clone', '-q', kind.replace('--no-bare', '--quiet'), str(record), str(there))
        plant(there, program)
        seen.unlink(missing_ok=True)
        before = read_all(there)
        commit(record, {'a.md': f'news for {kind}\n'})
        result = GitRepo(there).pull()
        assert before != read_all(there) and result.old != result.new
        assert not seen.exists()


def test_a_partial_clone_fetches_nothing_behind_our_back(record, tmp_path):
    program, seen = mark(tmp_path)
    sh(record, 'config', 'uploadpack.allowFilter', 'true')
    there = tmp_path / 'partial.git'
    sh(tmp_path, 'clone', '-q', '--bare', '--filter=blob:none', f'file://{record}', str(there))
    sh(there, 'config', 'remote.origin.uploadpack', str(program))
    with pytest.raises(FailedError):
        texts(GitRepo(there))
    assert not seen.exists()


def test_a_remote_that_is_a_command_is_refused(record, tmp_path):
    program, seen = mark(tmp_path)
    sh(record, 'config', 'protocol.ext.allow', 'always')
    sh(record, 'remote', 'add', 'origin', f'ext::{program}')
    with pytest.raises(RefusedError, match='only file, https and ssh'):
        GitRepo(record).pull()
    assert not seen.exists()


@pytest.mark.parametrize('remote', ['--upload-pack=touch x', '-x', '.'])
def test_a_remote_that_is_an_option_is_no_remote(record, remote):
    sh(record, 'config', 'branch.main.remote', remote)
    sh(record, 'config', 'branch.main.merge', 'refs/heads/main')
    with pytest.raises((ConfigError, FailedError)):
        GitRepo(record).pull()
    assert not (record / 'x').exists()


def test_replaced_objects_and_grafts_are_not_believed(record):
    first = sh(record, 'rev-parse', 'HEAD')
    head = commit(record, {'a.md': 'true\n'}, 1_900_000_100)
    other = sh(record, 'hash-object', '-w', '--stdin', text=b'false\n')
    sh(record, 'replace', sh(record, 'rev-parse', 'HEAD:a.md'), other)
    (record / '.git/info').mkdir(exist_ok=True)
    (record / '.git/info/grafts').write_text(f'{head}\n')
    repo = GitRepo(record)
    assert texts(repo)['a.md'] == b'true\n'
    assert repo.roots() == {first} and repo.is_ancestor(first, head)


def test_a_configuration_made_for_confusion_changes_no_answer(record):
    head = commit(record, {'c d.md': 'c\n', 'e.md': 'a\n'}, 1_900_000_100)
    plain = GitRepo(record).commit_dates(head), texts(GitRepo(record))
    hostile = {
        'log.showRoot': 'false', 'log.follow': 'true', 'log.diffMerges': 'off', 'log.date': 'relative', 'log.decorate': 'full',
        'format.pretty': 'oneline', 'diff.renames': 'copies', 'diff.relative': 'true', 'diff.orderFile': '/nowhere',
        'color.ui': 'always', 'color.diff': 'always', 'core.quotePath': 'true', 'i18n.logOutputEncoding': 'utf-16',
        'diff.ignoreSubmodules': 'all', 'core.pager': '/nowhere', 'diff.noprefix': 'true', 'notes.displayRef': '*',
        'diff.mnemonicPrefix': 'true', 'core.ignoreCase': 'true', 'safe.bareRepository': 'explicit',
    }  # fmt: skip
    for key, value in hostile.items():
        sh(record, 'config', key, value)
    assert (GitRepo(record).commit_dates(head), texts(GitRepo(record))) == plain
    assert set(plain[0]) == {'a.md', 'hosts/b.md', 'c d.md', 'e.md'}


def test_the_environment_cannot_point_elsewhere(record, tmp_path, monkeypatch):
    other = make(tmp_path / 'other')
    commit(other, {'other.md': 'other\n'})
    for name, value in {
        'GIT_DIR': other / '.git',
        'GIT_WORK_TREE': other,
        'GIT_INDEX_FILE': '/nowhere',
        'GIT_TRACE': '1',
    }.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv('GIT_CONFIG_COUNT', '1')
    monkeypatch.setenv('GIT_CONFIG_KEY_0', 'core.bare')
    monkeypatch.setenv('GIT_CONFIG_VALUE_0', 'nonsense')
    assert set(texts(GitRepo(record))) == {'a.md', 'hosts/b.md'}


def test_nothing_but_a_full_id_reaches_git(record):
    counter = Counter()
    repo = GitRepo(record, start=counter)
    for text in ('--output=x', 'HEAD', 'main', 'abc123', 'a' * 39, 'A' * 40, f'{"a" * 40}\n', ''):
        for ask in (
            repo.tree,
            repo.has,
            repo.commit_dates,
            lambda t: repo.is_ancestor(t, t),
            lambda t: list(repo.blobs([t])),
        ):
            with pytest.raises(FailedError, match='not a full commit id'):
                ask(text)
    assert [argv for argv in counter.calls if 'cat-file' not in argv] == []


@pytest.mark.skipif(not ROOT, reason='changes owners, which needs root')
def test_another_users_repository_is_read_but_not_pulled(record, tmp_path):
    program, seen = mark(tmp_path)
    there = tmp_path / 'mirror.git'
    sh(tmp_path, 'clone', '-q', '--mirror', str(record), str(there))
    sh(there, 'config', 'remote.origin.uploadpack', str(program))
    seen.unlink(missing_ok=True)
    for path in (there, *there.rglob('*')):
        os.chown(path, NOBODY, NOBODY)
    assert set(read_all(there)) == {'a.md', 'hosts/b.md'}
    with pytest.raises(RefusedError, match=f'belongs to user {NOBODY}'):
        GitRepo(there).pull()
    os.chown(there, 0, 0)
    with pytest.raises(RefusedError, match=f'belongs to user {NOBODY}'):
        GitRepo(there).pull()
    assert not seen.exists()


# ---- blobs


def test_thousands_of_blobs_and_large_ones_come_through_one_process(tmp_path):
    where = make(tmp_path / 'big')
    rng = random.Random(1)
    sizes = [rng.randrange(200) for _ in range(3000)] + [3_000_000, 0, 70_000]
    marks = where / 'marks'
    marked = b''.join(b'blob\nmark :%d\ndata %d\n%s\n' % (i + 1, n, (b'%d ' % i * n)[:n]) for i, n in enumerate(sizes))
    sh(where, 'fast-import', '--quiet', f'--export-marks={marks}', text=marked)
    ids = {int(m[1:]): sha for m, sha in (line.split() for line in marks.read_text().splitlines())}
    wanted = [ids[i + 1] for i in range(len(sizes))]
    rng.shuffle(wanted)
    wanted += wanted[:50]  # asked twice
    counter = Counter()
    size_of = {ids[i + 1]: n for i, n in enumerate(sizes)}
    seen = 0
    for sha, (got, data, size) in zip(
        wanted, GitRepo(where, start=counter).blobs(iter(wanted), limit=100_000), strict=True
    ):
        assert got == sha and size == size_of[sha] and len(data) == min(size, 100_000)
        seen += 1
    assert seen == len(wanted) and len(counter.calls) == 1
    assert counter.processes[0].returncode == 0


def test_a_reader_who_stops_half_way_leaves_no_process(record):
    counter = Counter()
    repo = GitRepo(record, start=counter)
    sha = repo.tree(repo.head())[0][0].sha
    blobs = repo.blobs(sha for _ in range(100_000))
    assert next(blobs)[1] == b'a\n'
    blobs.close()
    assert all(p.returncode is not None for p in counter.processes)


def test_no_blobs_is_no_trouble_and_a_tree_is_no_blob(record):
    repo = GitRepo(record)
    assert list(repo.blobs([])) == []
    with pytest.raises(FailedError, match='is tree'):
        list(repo.blobs([sh(record, 'rev-parse', 'HEAD^{tree}')]))


# ---- dates


def test_a_file_made_by_a_merge_has_the_merges_date_and_one_that_came_along_has_its_own(record):
    base = sh(record, 'rev-parse', 'HEAD')
    commit(record, {'main.md': 'm\n', 'a.md': 'main\n'}, 1_900_000_100)
    sh(record, 'checkout', '-q', '-b', 'side', base)
    commit(record, {'side.md': 's\n', 'a.md': 'side\n', 'hosts/b.md': None}, 1_900_000_200)
    sh(record, 'checkout', '-q', 'main')
    sh(record, 'merge', '-q', '--no-commit', 'side', ok=False)
    merge = commit(record, {'a.md': 'both\n', 'evil.md': 'made in the merge\n'}, 1_900_000_300)
    repo = GitRepo(record)
    expected = {'main.md': 1_900_000_100, 'side.md': 1_900_000_200, 'a.md': 1_900_000_300, 'evil.md': 1_900_000_300}
    assert {p: repo.commit_dates(merge)[p] for p in texts(repo)} == expected
    assert len(sh(record, 'rev-list', '--merges', 'HEAD').split()) == 1
    assert repo.commit_dates(merge, since=sh(record, 'rev-parse', 'main^1')) == {
        'side.md': 1_900_000_200,
        'a.md': 1_900_000_300,
        'evil.md': 1_900_000_300,
    }


def test_an_incremental_pass_names_only_what_changed_and_a_foreign_start_means_all(record):
    old = sh(record, 'rev-parse', 'HEAD')
    new = commit(record, {'a.md': 'x\n', 'hosts/b.md': None}, 1_900_000_100)
    repo = GitRepo(record)
    assert repo.commit_dates(new, since=old) == {'a.md': 1_900_000_100}
    assert repo.commit_dates(new, since=new) == {}
    assert repo.commit_dates(new, since='0' * 40) == repo.commit_dates(new)


def test_a_commit_of_a_time_that_no_calendar_has_costs_its_files_no_more_than_their_date(record):
    who = f'a <a@example.invalid> {"9" * 20} +0000'
    text = f'tree {sh(record, "rev-parse", "HEAD^{tree}")}\nauthor {who}\ncommitter {who}\n\nx\n'
    made = subprocess.run(
        ['git', 'hash-object', '-t', 'commit', '-w', '--literally', '--stdin'], cwd=record, input=text, text=True,
        capture_output=True, check=True,
    ).stdout.strip()  # fmt: skip
    (stamp,) = set(GitRepo(record).commit_dates(made).values())
    assert stamp == 2**63 - 1 and commit_day(stamp, None) is None


@pytest.mark.parametrize('listing', [b'x\0', b'100644 blob\tx\0', b'100644 blob \xff\ta.md\0', b'\0'])
def test_what_git_never_says_is_a_failure_in_one_line(record, listing):
    with pytest.raises(FailedError, match='ls-tree said what cannot be read'):
        read_tree(listing, str)
    repo = GitRepo(record)
    repo._git.run = lambda *args: (0, listing)
    with pytest.raises(FailedError, match='diff-tree said what cannot be read'):
        repo.changes('a' * 40, 'b' * 40)


def test_a_clock_before_1970_is_read(record):
    tree = sh(record, 'rev-parse', 'HEAD^{tree}')
    raw = f'tree {tree}\nauthor a <a> 0 +0000\ncommitter a <a> 0 +0000\n\nx\n'.encode()
    sha = sh(record, 'hash-object', '-t', 'commit', '-w', '--stdin', text=raw)
    assert GitRepo(record).commit_dates(sha) == {'a.md': 0, 'hosts/b.md': 0}


def random_history(where: Path, seed: int, commits: int) -> dict[str, int]:
    "A history of branches that each edit files of their own, merged again and again: path to number of its last commit."
    rng = random.Random(seed)
    states: dict[int, dict[str, int]] = {}  # commit -> path -> the commit that wrote it
    heads, folders, lines = {}, 0, []  # head commit -> its folder
    for n in range(1, commits + 1):
        parents = rng.sample(sorted(heads), min(len(heads), rng.choice((1, 1, 2))))
        state = {p: max(states[q].get(p, 0) for q in parents) for p in {p for q in parents for p in states[q]}}
        lines.append(f'commit refs/heads/main\nmark :{n}\ncommitter a <a> {1_900_000_000 + n * 60} +0000\ndata 1\nx')
        lines += [f'{word} :{parent}' for word, parent in zip(('from', 'merge'), parents, strict=False)]
        if not parents or (len(parents) == 1 and rng.random() < 0.3):
            folders += 1
            folder = f'd{folders}'
        else:
            folder = heads.pop(parents[0])
        wrote = [f'{folder}/f{rng.randrange(4)}.md' for _ in range(rng.randrange(1, 4))] if len(parents) < 2 else []
        state |= dict.fromkeys(wrote, n)
        before = states[parents[0]] if parents else {}
        lines += [f'M 100644 inline {p}\ndata 4\n{m:04}' for p, m in state.items() if before.get(p) != m]
        states[n], heads[n] = state, folder
        if len(parents) == 2:
            heads.pop(parents[1], None)
    sh(where, 'fast-import', '--quiet', '--force', text='\n'.join(lines).encode() + b'\n')
    return states[commits]


@pytest.mark.parametrize('seed', range(3))
def test_one_pass_dates_every_path_and_incremental_passes_add_up(tmp_path, seed):
    where = make(tmp_path / 'random')
    expected = {p: 1_900_000_000 + n * 60 for p, n in random_history(where, seed, 80).items()}
    repo = GitRepo(where)
    head = repo.head()
    assert {e.path for e in repo.tree(head)[0]} == set(expected) and len(expected) > 3
    assert repo.commit_dates(head) == expected
    line = sh(where, 'rev-list', '--first-parent', '--reverse', 'HEAD').split()[::5] + [head]
    grown = repo.commit_dates(line[0])
    for old, new in zip(line, line[1:], strict=False):
        grown |= repo.commit_dates(new, since=old)
    assert grown == expected


@pytest.mark.records
@pytest.mark.parametrize('bundle', ['openshift-runbooks', 'prometheus-operator-runbooks'])
def test_a_real_history_is_dated_as_git_dates_each_file(tmp_path, bundle):
    records = os.environ.get('MERLIN_TEST_RECORDS')
    if not records:
        pytest.skip('MERLIN_TEST_RECORDS is not set')
    where = tmp_path / 'clone.git'
    sh(tmp_path, 'clone', '-q', '--bare', f'{records}/corpora/{bundle}.bundle', str(where))
    repo = GitRepo(where)
    dates, entries = repo.commit_dates(repo.head()), repo.tree(repo.head())[0]
    assert {e.path for e in entries} <= set(dates)
    for entry in random.Random(1).sample(entries, 25):
        assert dates[entry.path] == int(sh(where, 'log', '-1', '--format=%ct', 'HEAD', '--', entry.path))


# ---- pull


@pytest.fixture(params=['mirror', 'bare', 'checkout'])
def follower(request, record, tmp_path) -> GitRepo:
    "A clone of the record."
    where = tmp_path / 'follower'
    kind = [] if request.param == 'checkout' else [f'--{request.param}']
    sh(tmp_path, 'clone', '-q', *kind, str(record), str(where))
    return GitRepo(where)


def test_a_pull_moves_forward_and_again_does_nothing(record, follower):
    before = int(time.time())
    old, new = follower.head(), commit(record, {'c.md': 'c\n'})
    result = follower.pull()
    assert (result.old, result.new, result.rewritten, follower.head()) == (old, new, False, new)
    assert result.fetched_at >= before and follower.fetched_at() >= before
    assert b'c\n' in texts(follower).values() and follower.upstream() in (new, None)
    again = follower.pull()
    assert (again.old, again.new) == (new, new) and 'already' in again.message


def test_a_rewritten_history_stays_out_until_it_is_followed(record, follower):
    base = follower.head()
    old = commit(record, {'c.md': 'c\n'})
    follower.pull()
    sh(record, 'reset', '-q', '--hard', base)
    new = commit(record, {'d.md': 'd\n'})
    for _ in range(2):
        result = follower.pull()
        assert result.rewritten and result.new == result.old == old == follower.head()
        assert follower.upstream() == new and 'c.md' in texts(follower)
        assert not follower.is_ancestor(follower.upstream(), old)
    result = follower.pull(reset=True)
    assert (result.new, result.rewritten, follower.head()) == (new, False, new)
    assert set(texts(follower)) == {'a.md', 'hosts/b.md', 'd.md'} and follower.upstream() in (new, None)
    assert not sh(follower.dir, 'for-each-ref', 'refs/worktree')


def test_commits_that_upstream_dropped_are_a_rewritten_history_too(record, follower):
    base = follower.head()
    old = commit(record, {'c.md': 'c\n'})
    follower.pull()
    sh(record, 'reset', '-q', '--hard', base)
    for _ in range(2):
        assert follower.pull().rewritten and follower.head() == old
    assert follower.pull(reset=True).new == base == follower.head()


def test_other_refs_of_a_mirror_do_not_move(record, tmp_path):
    sh(record, 'branch', 'other')
    sh(record, 'tag', 'v1')
    sh(tmp_path, 'clone', '-q', '--mirror', str(record), str(tmp_path / 'm.git'))
    sh(tmp_path / 'm.git', 'config', 'fetch.prune', 'true')
    before = sh(tmp_path / 'm.git', 'show-ref')
    head = sh(record, 'rev-parse', 'HEAD')
    sh(record, 'branch', '-D', 'other')
    sh(record, 'tag', '-d', 'v1')
    new = commit(record, {'c.md': 'c\n'})
    sh(record, 'tag', 'v2')
    GitRepo(tmp_path / 'm.git').pull()
    assert sh(tmp_path / 'm.git', 'show-ref') == before.replace(f'{head} refs/heads/main', f'{new} refs/heads/main')


@pytest.fixture
def checkout(record, tmp_path) -> GitRepo:
    "A checkout of the record."
    sh(tmp_path, 'clone', '-q', str(record), str(tmp_path / 'checkout'))
    return GitRepo(tmp_path / 'checkout')


def test_a_checkouts_files_follow_and_unrelated_work_stays(record, checkout):
    (checkout.dir / 'hosts/b.md').write_text('half a thought\n')
    (checkout.dir / 'untracked.md').write_text('mine\n')
    commit(record, {'a.md': 'news\n'})
    checkout.pull()
    assert (checkout.dir / 'a.md').read_text() == 'news\n'
    assert sh(checkout.dir, 'status', '--porcelain') == 'M hosts/b.md\n?? untracked.md'


@pytest.mark.parametrize('reset', [False, True])
@pytest.mark.parametrize('name', ['a.md', 'new.md', 'ignored.md'])
def test_work_that_is_not_committed_is_never_lost(record, checkout, name, reset):
    base = checkout.head()
    if reset:
        commit(record, {'x.md': 'x\n'})
        base = checkout.pull().new
        sh(record, 'reset', '-q', '--hard', 'HEAD^')
    (checkout.dir / '.git/info/exclude').write_text('ignored.md\n')
    (checkout.dir / name).write_text('mine\n')
    commit(record, {name: 'theirs\n'})
    with pytest.raises(FailedError, match=f'uncommitted files stand in the way.*{name}'):
        checkout.pull(reset=reset)
    assert (checkout.dir / name).read_text() == 'mine\n' and checkout.head() == base


def test_own_commits_of_a_checkout_are_no_rewriting_but_parted_ways_stop(record, checkout):
    own = commit(checkout.dir, {'own.md': 'mine\n'})
    result = checkout.pull()
    assert not result.rewritten and result.new == own and 'own' in result.message or 'commits' in result.message
    commit(record, {'c.md': 'c\n'})
    result = checkout.pull()
    assert not result.rewritten and checkout.head() == own and 'not pulled' in result.message


def test_a_linked_work_tree_pulls_its_own_branch(record, checkout, tmp_path):
    sh(record, 'branch', 'other')
    sh(checkout.dir, 'fetch', '-q')
    sh(checkout.dir, 'worktree', 'add', '-q', '--track', '-b', 'other', str(tmp_path / 'linked'), 'origin/other')
    sh(record, 'checkout', '-q', 'other')
    new = commit(record, {'o.md': 'o\n'})
    main = checkout.head()
    linked = GitRepo(tmp_path / 'linked')
    assert linked.pull().new == new == linked.head() and (tmp_path / 'linked/o.md').exists()
    assert checkout.head() == main


def test_a_shallow_clone_pulls(record, tmp_path):
    sh(tmp_path, 'clone', '-q', '--depth=1', f'file://{record}', str(tmp_path / 's'))
    new = commit(record, {'c.md': 'c\n'})
    assert GitRepo(tmp_path / 's').pull().new == new


def test_a_pull_without_a_way_says_what_is_missing(record, tmp_path, follower):
    with pytest.raises(ConfigError, match='no remote to pull from'):
        GitRepo(record).pull()
    secret = 'hunter' + '2' * 3
    sh(record, 'branch', '-m', 'main', 'trunk')
    with pytest.raises(ConfigError, match='origin has no branch main'):
        follower.pull()
    sh(follower.dir, 'config', 'remote.origin.url', f'https://ann:{secret}@127.0.0.1:9/notes.git')
    with pytest.raises(FailedError, match='fetch failed') as caught:
        follower.pull()
    assert secret not in str(caught.value) and '\n' not in str(caught.value)
    assert follower.fetched_at() is None  # the last try failed
    sh(follower.dir, 'update-ref', '--no-deref', 'HEAD', follower.head())
    with pytest.raises(ConfigError, match='detached'):
        follower.pull()


def test_a_locked_index_or_ref_is_a_failure_and_nothing_moved(record, follower):
    old = follower.head()
    commit(record, {'a.md': 'news\n'})
    bare = not (follower.dir / '.git').exists()
    lock = follower.dir / ('refs/heads/main.lock' if bare else '.git/index.lock')
    lock.parent.mkdir(parents=True, exist_ok=True)
    lock.touch()
    with pytest.raises(FailedError):
        follower.pull()
    assert follower.head() == old
    lock.unlink()
    assert follower.pull().new != old


# ---- processes


def test_a_run_that_finds_nothing_new_costs_few_processes(record, follower):
    counter = Counter()
    repo = GitRepo(follower.dir, start=counter)
    repo.head(), repo.upstream()
    assert len(counter.calls) == 3
    counter.calls.clear()
    repo.pull()
    assert len(counter.calls) <= 9


def test_every_call_goes_out_with_all_guards(record, follower):
    counter = Counter()
    repo = GitRepo(follower.dir, start=counter)
    repo.pull(), repo.head(), texts(repo)
    for argv in counter.calls:
        assert argv[0] == 'git' and 'core.hooksPath=/dev/null' in argv and 'core.fsmonitor=false' in argv
        assert any(part.startswith('--git-dir=') for part in argv)


def test_a_git_that_hangs_is_ended_with_its_helpers(record, tmp_path):
    started, late = [], tmp_path / 'late'

    def start(argv, env, stdin, stderr):
        started.append(start_git(['sh', '-c', f'(sleep 1; touch {late}) & wait'], env, stdin, stderr))
        return started[-1]

    git = Git(record, start)
    begin = time.monotonic()
    with pytest.raises(FailedError, match='took longer than'):
        git.run('rev-parse', 'HEAD', timeout=0.2)
    with pytest.raises(FailedError, match='silent'), git.stream('log', silence=0.2) as (_, out):
        out.until(b'\0')
    assert time.monotonic() - begin < 1
    assert all(process.returncode is not None for process in started)
    time.sleep(1.2)
    assert not late.exists()


def test_a_missing_git_is_told(record):
    def missing(argv, env, stdin, stderr):
        raise FileNotFoundError

    with pytest.raises(ConfigError, match='git is not installed'):
        GitRepo(record, start=missing).head()


def test_reading_may_use_no_transport():
    assert git_env({}, network=False)['GIT_ALLOW_PROTOCOL'] == 'none'
    assert git_env({}, network=True)['GIT_ALLOW_PROTOCOL'] == 'file:https:ssh'


def test_an_entry_is_a_path_and_a_blob(record):
    entries, warnings = GitRepo(record).tree(sh(record, 'rev-parse', 'HEAD'))
    assert entries[0] == Entry('a.md', sh(record, 'rev-parse', 'HEAD:a.md')) and warnings == []
