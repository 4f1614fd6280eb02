"The verdict: its whole table, and repositories in every situation, each looked at with one git process."

import os
import random
import subprocess
import time
from dataclasses import replace
from datetime import UTC, datetime
from itertools import product
from pathlib import Path

import pytest

from merlin.config import RepoConfig, load_config
from merlin.errors import ConfigError
from merlin.freshness import IndexFacts, RepoFacts, judge, repo_facts, verdict
from merlin.git import Git, start_git
from merlin.gitrepo import GitRepo, fetched_at, has_remote
from merlin.position import HEAD, INDEXED, SLACK, Commit, Position, Walk, position

# ---- the table, whole

NOW, GRACE, MAX_AGE = 1_900_000_000.0, 900, 21_600
A, B, C = 'aaaa', 'bbbb', 'cccc'  # commits: indexed, HEAD elsewhere, upstream

REPOS = {  # what a repo may look like -> its facts
    'indexed at HEAD': RepoFacts('notes', A, Position(A)),
    'indexed at HEAD, upstream the same': RepoFacts('notes', A, Position(A, A)),
    'indexed at HEAD, upstream older': RepoFacts('notes', A, Position(A, C)),
    'HEAD moved 5 min ago': RepoFacts('notes', A, Position(B, None, 2, NOW - 300)),
    'HEAD moved 15 min ago': RepoFacts('notes', A, Position(B, None, 2, NOW - 900)),
    'HEAD moved 2 h ago': RepoFacts('notes', A, Position(B, None, 2, NOW - 7_200)),
    'HEAD moved, dated tomorrow': RepoFacts('notes', A, Position(B, None, 2, NOW + 86_400)),
    'upstream moved 5 min ago': RepoFacts('notes', A, Position(A, C, 1, NOW - 300, ahead=True)),
    'upstream moved 2 h ago': RepoFacts('notes', A, Position(A, C, 1, NOW - 7_200, ahead=True)),
    'never indexed': RepoFacts('notes', None, Position(B)),
    'unreadable': RepoFacts('notes', A, None, 'no such folder'),
    'indexed commit gone': RepoFacts('notes', A, Position(B, held=False)),
    'HEAD went back': RepoFacts('notes', A, Position(B, contained=False)),
    'HEAD went elsewhere': RepoFacts('notes', A, Position(B, None, 3, NOW - 10, contained=False)),
    'upstream rewritten': RepoFacts('notes', A, Position(A, C, 1, NOW - 10, ahead=True, rewritten=True)),
    'far': RepoFacts('notes', A, Position(B, None, 9, NOW - 10, contained=False, far=True)),
}
COMMIT_AGE = {  # of those that merely wait: the oldest commit's, in seconds; None = unknown
    'HEAD moved 5 min ago': 300, 'HEAD moved 15 min ago': 900, 'HEAD moved 2 h ago': 7_200, 'HEAD moved, dated tomorrow': -86_400,
    'upstream moved 5 min ago': 300, 'upstream moved 2 h ago': 7_200, 'never indexed': None,
}  # fmt: skip
FETCHES = {  # seconds since merlin's last good fetch
    'no remote': None, 'never pulled': None,
    'fetched now': 0, 'fetched 5 h ago': 18_000, 'fetched 6 h ago': 21_600, 'fetched 2 d ago': 172_800,
    'fetched in the future': -60, 'fetched at no known time': None,
}  # fmt: skip
RUNS = {'now': 0, '10 min': 600, '15 min': 900, '3 h': 10_800, 'in the future': -60, 'never': None}
RESULTS = ('good', 'failed', 'unfinished', 'building')


def expected(repo: str, fetch: str, run: str, result: str, model: bool, rules: bool) -> str:
    "The state, read off the table."
    age = RUNS[run]
    if repo in (
        'unreadable',
        'indexed commit gone',
        'HEAD went back',
        'HEAD went elsewhere',
        'upstream rewritten',
        'far',
    ):
        return 'stale'
    if result != 'good' or run in ('in the future', 'never') or model or rules:
        return 'stale'
    if fetch in ('fetched 6 h ago', 'fetched 2 d ago', 'fetched in the future', 'fetched at no known time'):
        return 'stale'
    if repo not in COMMIT_AGE:
        return 'fresh'
    lag = age if COMMIT_AGE[repo] is None else min(age, COMMIT_AGE[repo])
    return 'behind' if lag < GRACE and age < GRACE else 'stale'


SAID = {  # cause -> what the line must say, and the options of the command that helps; None = no command does
    'HEAD moved 5 min ago': ('2 commits not indexed since', ''),
    'HEAD moved 15 min ago': ('2 commits not indexed since', ''),
    'HEAD moved 2 h ago': ('2 commits not indexed since', ''),
    'HEAD moved, dated tomorrow': ('2 commits not indexed since', ''),
    'upstream moved 5 min ago': ('1 commit not indexed since', '--pull'),
    'upstream moved 2 h ago': ('1 commit not indexed since', '--pull'),
    'unreadable': ('cannot be read (no such folder)', None),
    'indexed commit gone': ('the indexed commit is gone', ''),
    'HEAD went back': (f'HEAD {B} does not contain the indexed commit {A}', ''),
    'HEAD went elsewhere': (f'HEAD {B} does not contain the indexed commit {A}', ''),
    'upstream rewritten': (f'upstream {C} does not contain HEAD {A}', '--pull --reset'),
    'far': ('more than 10,000 commits', ''),
    'fetched 6 h ago': ('last fetched 6 h ago', '--pull'),
    'fetched 2 d ago': ('last fetched 2 d ago', '--pull'),
    'fetched in the future': ('the clock stands 1 min before its last fetch', None),
    'fetched at no known time': ('when it was last fetched is not known', '--pull'),
    'failed': ('the last ingest failed 20 min ago (no space)', ''),
    'unfinished': ('the last ingest (begun 30 min ago) never finished', ''),
    'building': ('the first ingest is still at work', None),
    'model': ('another embedding model', '--reembed-all'),
    'rules': ('rules changed', ''),
    'in the future': ('the clock stands 1 min before the last ingest', None),
}
EVERY = list(product(REPOS, FETCHES, RUNS, RESULTS, (False, True), (False, True)))


def facts_of(repo: str, fetch: str, run: str, result: str, model: bool, rules: bool) -> tuple[RepoFacts, IndexFacts]:
    "The facts of one row."
    pulled, at = fetch.startswith('fetched'), FETCHES[fetch]
    looked = REPOS[repo]._replace(
        remote=fetch != 'no remote', pulled=pulled, fetched_at=None if at is None else NOW - at
    )
    started = None if RUNS[run] is None else NOW - RUNS[run]
    failed = {'error': 'no space', 'failed_at': NOW - 1_200} if result == 'failed' else {}
    unfinished = {'unfinished': True, 'began_at': NOW - 1_800} if result == 'unfinished' else {}
    return looked, IndexFacts(
        started, building=result == 'building', model_differs=model, rules_differ=rules, **failed, **unfinished
    )


def test_every_row_of_the_table_has_its_state():
    states = dict.fromkeys(('fresh', 'behind', 'stale'), 0)
    for row in EVERY:
        looked, index = facts_of(*row)
        said = judge([looked], index, NOW, GRACE, MAX_AGE)
        assert said.state == expected(*row), (row, said.line)
        assert said.line.startswith('STALE' if said.state == 'stale' else said.state)
        states[said.state] += 1
    assert len(EVERY) == 16 * 8 * 6 * 4 * 4 and states['fresh'] == 3 * 4 * 4 and states['behind'] == 7 * 4 * 2


def test_every_row_names_its_causes_and_the_command_and_nothing_else():
    for row in EVERY:
        repo, fetch, run, result, model, rules = row
        looked, index = facts_of(*row)
        line = judge([looked], index, NOW, GRACE, MAX_AGE).line
        causes = [c for c in (repo, fetch, run, result) if c in SAID] + ['model'] * model + ['rules'] * rules
        for cause in causes:
            where = 'notes: ' if cause in (repo, fetch) else ''
            assert where + SAID[cause][0] in line, (row, line)
        said = {SAID[cause][0] for cause in causes}
        assert not [text for text, _ in SAID.values() if text not in said and text in line], (row, line)
        helps = {SAID[c][1] for c in causes} - {None}
        never = repo == 'never indexed' and run != 'never' or (run == 'never' and result == 'good')
        wanted = [o for o in ('--pull', '--reset', '--reembed-all') if any(o in h for h in helps)]
        assert line.endswith('; ' + ' '.join(['run merlin ingest', *wanted])) is bool(helps or never), (row, line)
        assert ('upstream not watched' in line) is (fetch == 'never pulled' and line.startswith('fresh'))


def test_a_lag_says_how_far_and_since_when():
    def line(repo, run, **changes):
        looked, index = facts_of(repo, 'no remote', run, 'good', False, False)
        return judge([looked._replace(**changes)], index, NOW, GRACE, MAX_AGE).line

    assert line('HEAD moved 5 min ago', '10 min') == (
        'behind: notes: 2 commits not indexed since 5 min ago; run merlin ingest'
    )
    assert line('HEAD moved 2 h ago', '10 min', name='').startswith('behind: 2 commits not indexed since 10 min ago')
    assert line('HEAD moved 2 h ago', '3 h').startswith('STALE: notes: 2 commits not indexed since 2 h ago;')
    assert line('HEAD moved 5 min ago', '3 h').startswith(
        'STALE: notes: 2 commits not indexed since 5 min ago, and the last good run began 3 h ago;'
    )
    assert line('never indexed', '10 min').startswith('behind: notes: its documents not indexed since 10 min ago')


def test_the_worst_repo_decides_and_is_named_first():
    index = IndexFacts(NOW - 60)
    for names in product(REPOS, repeat=2):
        repos = [REPOS[name]._replace(name=f'repo{n}') for n, name in enumerate(names)]
        alone = [expected(name, 'no remote', 'now', 'good', False, False) for name in names]
        said = judge(repos, index, NOW, GRACE, MAX_AGE)
        assert said.state == max(alone, key=['fresh', 'behind', 'stale'].index)
        for n, state in enumerate(alone):
            assert (f'repo{n}: ' in said.line) is (state != 'fresh')
        if set(alone) == {'stale', 'behind'}:
            assert said.reasons[0].startswith(f'repo{alone.index("stale")}: ')


def test_no_grace_and_no_age_leave_only_what_is_exactly_current():
    for repo, fetch in product(REPOS, FETCHES):
        looked, index = facts_of(repo, fetch, 'now', 'good', False, False)
        state = judge([looked], index, NOW, 0, 0).state
        assert state == ('fresh' if repo.startswith('indexed at') and not looked.pulled else 'stale')


def test_an_index_of_no_repo_and_no_run_is_not_fresh():
    assert judge([], IndexFacts(None), NOW, GRACE, MAX_AGE).line == (
        'STALE: nothing was ever ingested; run merlin ingest'
    )
    ended_later = IndexFacts(NOW - 60, NOW + 30)
    assert 'the clock stands 30 s before the last ingest' in judge([], ended_later, NOW, GRACE, MAX_AGE).line


# ---- the walk, against the whole truth


def closure(history: dict[str, Commit], sha: str) -> set[str]:
    "A commit and all before it."
    seen, waiting = set(), [sha]
    while waiting:
        if (at := waiting.pop()) not in seen:
            seen.add(at)
            waiting += history[at].parents
    return seen


def some_history(dice: random.Random, clocks: str) -> dict[str, Commit]:
    "Up to sixty commits, each with up to three parents, dated well, or at random."
    history: dict[str, Commit] = {}
    for n in range(dice.randint(1, 60)):
        near = [str(m) for m in range(max(0, n - dice.choice((1, 2, 5, 60))), n)]
        parents = dice.sample(near, min(len(near), dice.choice((0, 1, 1, 1, 1, 2, 3))))
        history[str(n)] = Commit(str(n), tuple(parents), 10 * n if clocks == 'right' else dice.randint(0, 600))
    return history


@pytest.mark.parametrize('clocks', ['right', 'wrong'])
def test_the_walk_finds_what_the_whole_history_says(clocks):
    dice, exact = random.Random(clocks), 0
    for _ in range(1_500):
        history = some_history(dice, clocks)
        head, indexed = dice.choices(list(history), k=2)
        asked = []
        walk = Walk(lambda sha, history=history, asked=asked: asked.append(sha) or history[sha])
        walk.paint(head, HEAD)
        walk.paint(indexed, INDEXED)
        assert walk.go()
        truth = closure(history, head) - closure(history, indexed)
        assert walk.has(indexed, HEAD) is (indexed in closure(history, head))  # whatever the clocks say
        assert walk.new >= truth and (clocks == 'wrong' or walk.new == truth)
        assert len(asked) == len(set(asked))
        exact += walk.new == truth
    assert exact > 1_480  # a wrong clock may count too many, rarely


def test_a_long_history_is_not_walked_for_a_few_commits():
    asked = []

    def ask(sha: str) -> Commit:
        asked.append(sha)
        return Commit(sha, (str(int(sha) - 1),), int(sha))

    walk = Walk(ask)
    walk.paint('1000000', HEAD)
    walk.paint('999995', INDEXED)
    assert walk.go() and len(walk.new) == 5 and len(asked) <= 7 + SLACK
    asked.clear()
    far = Walk(ask)
    far.paint('2000000', HEAD)
    far.paint('5', INDEXED)
    assert not far.go() and len(asked) < 10_010


# ---- real repositories


pytestmark = pytest.mark.usefixtures('person')


def sh(where: Path, *args: str, at: int = 1_800_000_000) -> str:
    "Run git as a person would."
    env = {**os.environ, 'GIT_AUTHOR_DATE': '1700000000 +0000', 'GIT_COMMITTER_DATE': f'{at} +0000'}
    done = subprocess.run(['git', '-C', str(where), *args], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def commit(where: Path, at: int = 1_800_000_000) -> str:
    "One more commit, committed at that time."
    sh(where, 'commit', '-q', '--allow-empty', '-m', f'at {at}', at=at)
    return sh(where, 'rev-parse', 'HEAD')


@pytest.fixture
def record(tmp_path) -> Path:
    "A repository with three commits."
    sh(tmp_path, 'init', '-q', '-b', 'main', 'record')
    for at in (1_800_000_000, 1_800_000_100, 1_800_000_200):
        commit(tmp_path / 'record', at)
    return tmp_path / 'record'


def clone(record: Path, name: str, *options: str) -> Path:
    "A clone beside the record."
    sh(record.parent, 'clone', '-q', *options, f'file://{record}', name)
    return record.parent / name


class Counter:
    "Starts git, and keeps what was started."

    def __init__(self):
        self.calls = []

    def __call__(self, argv, *rest):
        self.calls.append(argv)
        return start_git(argv, *rest)


def look(where: Path, indexed: str | None) -> Position:
    "The position, by one process at most."
    counter = Counter()
    try:
        return position(Git(where, counter), indexed)
    finally:
        assert len(counter.calls) <= 1


KINDS = [
    'mirror',
    'bare',
    'checkout',
    'worktree',
    'bare+worktree',
    'detached',
    'shallow',
    'single-branch',
    'gitdir',
    'sha256',
]


@pytest.mark.parametrize('kind', KINDS)
def test_every_kind_of_repository_is_looked_at_with_one_process(record, kind):
    if kind == 'sha256':
        sh(record.parent, 'init', '-q', '-b', 'main', '--object-format=sha256', 'there')
        there = record.parent / 'there'
        commit(there)
    elif kind in ('mirror', 'bare', 'single-branch'):
        there = clone(record, 'there', f'--{kind}')
    elif kind == 'shallow':
        there = clone(record, 'there', '--depth=1')
    elif kind == 'worktree':
        there = record.parent / 'there'
        sh(clone(record, 'main'), 'worktree', 'add', '-q', '-b', 'other', '--track', str(there), 'origin/main')
    elif kind == 'bare+worktree':
        there = record.parent / 'there'
        sh(clone(record, 'b.git', '--bare'), 'worktree', 'add', '-q', '-b', 'other', str(there))
    else:
        there = clone(record, 'there')
        if kind == 'detached':
            sh(there, 'checkout', '-q', '--detach')
        there = there / '.git' if kind == 'gitdir' else there
    head = sh(there, 'rev-parse', 'HEAD')
    tracks = kind in ('checkout', 'shallow', 'single-branch', 'worktree', 'gitdir')
    assert look(there, head) == Position(head, head if tracks else None)
    assert look(there, None) == Position(head, head if tracks else None)
    assert has_remote(Git(there)) is (kind != 'sha256')
    work = record.parent / 'work'
    sh(there, *(['worktree', 'add', '-q', '-b', 'more', str(work)]))
    new = commit(work, 1_800_000_500)
    sh(there, 'update-ref', 'HEAD', new)
    assert look(there, head) == Position(new, head if tracks else None, 1, 1_800_000_500)
    gone = look(there, '0' * len(head))
    assert not gone.held and gone.head == new


def test_a_fetched_upstream_counts_and_so_do_its_commits(record):
    there = clone(record, 'there')
    old = sh(there, 'rev-parse', 'HEAD')
    commit(record, 1_800_000_900)
    new = commit(record, 1_800_000_300)  # the oldest by its date, not the first
    sh(there, 'fetch', '-q')
    assert look(there, old) == Position(old, new, 2, 1_800_000_300, ahead=True)
    sh(there, 'merge', '-q', '--ff-only', new)
    assert look(there, old) == Position(new, new, 2, 1_800_000_300)
    assert look(there, new) == Position(new, new)


def test_commits_that_are_not_pushed_are_no_lag_and_parted_ways_are(record):
    there = clone(record, 'there')
    old = sh(there, 'rev-parse', 'HEAD')
    mine = commit(there, 1_800_001_000)
    assert look(there, mine) == Position(mine, old) and look(there, old) == Position(mine, old, 1, 1_800_001_000)
    theirs = commit(record, 1_800_000_800)
    sh(there, 'fetch', '-q')
    assert look(there, mine) == Position(mine, theirs, 1, 1_800_000_800, ahead=True)
    assert look(there, old) == Position(mine, theirs, 2, 1_800_000_800, ahead=True)


def test_an_unpushed_checkout_far_ahead_of_upstream_is_current(record):
    there = clone(record, 'there')
    for n in range(2 * SLACK):
        head = commit(there, 1_800_001_000 + n)
    assert look(there, head) == Position(head, sh(there, 'rev-parse', 'origin/main'))


def test_a_head_that_went_back_or_elsewhere_does_not_contain_the_indexed_commit(record):
    old = sh(record, 'rev-parse', 'HEAD')
    sh(record, 'reset', '-q', '--hard', 'HEAD~1')
    assert look(record, old) == Position(sh(record, 'rev-parse', 'HEAD'), contained=False)
    new = commit(record, 1_800_002_000)
    assert look(record, old) == Position(new, None, 1, 1_800_002_000, contained=False)
    sh(record, 'checkout', '-q', '--orphan', 'other')
    lone = commit(record, 1_800_003_000)
    assert look(record, old) == Position(lone, None, 1, 1_800_003_000, contained=False)


def test_a_merge_of_an_old_branch_is_counted_with_its_commits_only(record):
    old = sh(record, 'rev-parse', 'HEAD')
    sh(record, 'checkout', '-q', '-b', 'side', 'HEAD~2')
    commit(record, 1_800_000_050)
    sh(record, 'checkout', '-q', 'main')
    sh(record, 'merge', '-q', '--no-ff', '-m', 'm', 'side', at=1_800_004_000)
    assert look(record, old) == Position(sh(record, 'rev-parse', 'HEAD'), None, 2, 1_800_000_050)


def test_what_a_branch_follows_may_be_gone_or_nowhere(record):
    there = clone(record, 'there')
    head = sh(there, 'rev-parse', 'HEAD')
    sh(there, 'update-ref', '-d', 'refs/remotes/origin/main')
    assert look(there, head) == Position(head)
    sh(there, 'config', '--unset', 'remote.origin.fetch')
    assert look(there, head) == Position(head)
    sh(there, 'checkout', '-q', '-b', 'mine', '--no-track')
    assert look(there, head) == Position(head)


def test_a_shallow_clone_that_moved_on_is_walked_as_far_as_it_goes(record):
    there = clone(record, 'there', '--depth=1')
    old = sh(there, 'rev-parse', 'HEAD')
    new = commit(record, 1_800_005_000)
    sh(there, 'pull', '-q', '--ff-only')
    assert look(there, old) == Position(new, new, 1, 1_800_005_000)
    for at in (1_800_006_000, 1_800_007_000):
        last = commit(record, at)
    sh(there, 'fetch', '-q', '--depth=1')
    sh(there, 'reset', '-q', '--hard', 'FETCH_HEAD')
    assert look(there, new) == Position(last, last, 1, 1_800_007_000, contained=False)  # the link between is cut out


@pytest.mark.parametrize('what', ['empty', 'unborn', 'missing', 'garbled', 'plain', 'nowhere', 'damaged'])
def test_a_repository_without_a_readable_head_is_stale_and_says_why(record, what):
    there, indexed = record, sh(record, 'rev-parse', 'HEAD')
    loose = record / '.git/objects' / indexed[:2] / indexed[2:]
    if what == 'empty':
        there = record.parent / 'empty'
        sh(record.parent, 'init', '-q', 'empty')
    elif what == 'unborn':
        sh(record, 'symbolic-ref', 'HEAD', 'refs/heads/other')
    elif what == 'missing':
        loose.unlink()
    elif what == 'damaged':
        loose.chmod(0o644)
        loose.write_bytes(b'no object')
    elif what == 'garbled':
        (record / '.git/refs/heads/main').write_text('garbage\n')
    else:
        there = record.parent / what
        if what == 'plain':
            there.mkdir()
    counter = Counter()
    facts = repo_facts(RepoConfig('notes', there), indexed, {}, counter)
    assert facts.at is None and facts.error and str(there) in facts.error and len(counter.calls) <= 1
    said = judge([facts], IndexFacts(NOW - 60), NOW, GRACE, MAX_AGE)
    assert said.state == 'stale' and said.line.startswith('STALE: notes: cannot be read (')
    assert '\n' not in said.line and said.repos['notes']['head'] is None and said.repos['notes']['error']


def test_nothing_but_a_full_commit_id_reaches_git(record):
    for bad in ('--help', 'HEAD', 'x\nHEAD', '0' * 39):
        facts = repo_facts(RepoConfig('', record), bad, {})
        assert facts.at is None and 'full commit id' in facts.error


def test_a_history_made_for_confusion_is_read_as_commits_or_not_at_all(record):
    head = sh(record, 'rev-parse', 'HEAD')
    (record / 'blob').write_text(f'{head} commit 3\n')
    blob = sh(record, 'hash-object', '-w', 'blob')
    text = sh(record, 'cat-file', 'commit', 'HEAD').replace('parent ', f'parent {blob}\nparent ')
    (record / 'commit').write_text(text.replace('\n\n', f'\n\nparent {"0" * 40}\ncommitter X <x> 5 +0000\n', 1))
    odd = sh(record, 'hash-object', '-w', '-t', 'commit', '--literally', 'commit')
    sh(record, 'update-ref', 'HEAD', odd)
    assert look(record, sh(record, 'rev-parse', f'{head}~1')) == Position(odd, None, 1, 1_800_000_200)
    assert not look(record, blob).held
    sh(record, 'tag', '-a', '-m', 't', 'tag', head)
    sh(record, 'symbolic-ref', 'HEAD', 'refs/tags/tag')
    assert look(record, head) == Position(head)


def test_no_way_of_reading_runs_what_a_repository_names(record):
    seen = record.parent / 'mark'
    program = record.parent / 'evil'
    program.write_text(f'#!/bin/sh\ntouch {seen}\n')
    program.chmod(0o755)
    there = clone(record, 'there')
    for key in ('core.fsmonitor', 'core.pager', 'alias.cat-file', 'core.askPass', 'remote.origin.uploadpack'):
        sh(there, 'config', key, f'!{program}' if key.startswith('alias') else str(program))
    look(there, sh(there, 'rev-parse', 'HEAD'))
    look(there, '0' * 40)
    assert not seen.exists()


# ---- from meta to the line


def stamp(seconds_ago: float) -> str:
    "A stamp as meta keeps it."
    return datetime.fromtimestamp(time.time() - seconds_ago, UTC).isoformat()


def said_of(where: Path, indexed: str | None, fetched: str | None = 'never', ran: float = 60, **meta):
    "The verdict of one repo named notes; fetched: what meta holds, or never, where merlin did not pull."
    config = replace(load_config({}), repos=(RepoConfig('notes', where),), grace=900, max_age=21_600)
    known = {
        'state': {'heads': {'notes': indexed}} if indexed else None,
        'fetched': {} if fetched == 'never' else {'notes': fetched},
        'last_started_at': stamp(ran),
        'last_ingest_at': stamp(ran - 1),
    }
    return verdict(config, known | meta)


def test_a_timer_that_died_is_seen_by_the_age_of_its_last_fetch(record):
    there = clone(record, 'there', '--mirror')
    head = sh(there, 'rev-parse', 'HEAD')
    assert said_of(there, head).line == 'fresh: notes: upstream not watched'
    assert said_of(there, head, stamp(60)).line == 'fresh'
    assert said_of(there, head, stamp(30_000), ran=30_000).line == (
        'STALE: notes: last fetched 8 h ago; run merlin ingest --pull'
    )
    assert 'before its last fetch' in said_of(there, head, stamp(-3_600)).line


@pytest.mark.parametrize('lost', [None, '', 'yesterday'])
def test_where_meta_cannot_tell_when_a_pulled_repo_was_fetched_git_does(record, lost):
    there = clone(record, 'there')
    GitRepo(there).pull()
    head = sh(there, 'rev-parse', 'HEAD')
    said = said_of(there, head, lost)
    assert said.line == 'fresh' and said.repos['notes']['fetched_at']
    os.utime(there / '.git/FETCH_HEAD', (time.time() - 100_000,) * 2)
    assert 'last fetched 1 d ago' in said_of(there, head, lost).line
    assert said_of(there, head, stamp(5)).line == 'fresh'  # meta first
    os.utime(there / '.git/FETCH_HEAD', (4_000_000_000,) * 2)
    assert 'before its last fetch' in said_of(there, head, lost).line
    (there / '.git/FETCH_HEAD').unlink()
    assert 'when it was last fetched is not known' in said_of(there, head, lost).line


def test_when_a_linked_work_tree_was_fetched_is_its_own_matter(record):
    there = clone(record, 'there')
    sh(there, 'worktree', 'add', '-q', '-b', 'other', '--track', str(record.parent / 'linked'), 'origin/main')
    linked = record.parent / 'linked'
    GitRepo(linked).pull()
    assert fetched_at(Git(linked)) == GitRepo(linked).fetched_at() and fetched_at(Git(there)) is None
    assert has_remote(Git(linked)) and has_remote(Git(there)) and not has_remote(Git(record))


@pytest.mark.parametrize('kind', ['--mirror', '--bare', '--quiet'])
def test_a_rewritten_upstream_is_stale_at_once_until_it_is_followed(record, kind):
    there = clone(record, 'there', kind)
    old = GitRepo(there).pull().new
    sh(record, 'reset', '-q', '--hard', 'HEAD~1')
    new = commit(record, int(time.time()) - 5)
    assert GitRepo(there).pull().rewritten
    said = said_of(there, old, stamp(5))
    assert said.line == (
        f'STALE: notes: upstream {new[:12]} does not contain HEAD {old[:12]}: its history was rewritten; '
        'run merlin ingest --pull --reset'
    )
    assert said.repos['notes']['upstream'] == new and look(there, old).rewritten
    GitRepo(there).pull(reset=True)
    said = said_of(there, old, stamp(5))
    assert f'HEAD {new[:12]} does not contain the indexed commit {old[:12]}' in said.line and '--reset' not in said.line
    assert said_of(there, new, stamp(5)).line == 'fresh'


def test_a_rewritten_upstream_that_a_person_followed_by_hand_is_no_trouble_any_more(record):
    there = clone(record, 'there')
    old = GitRepo(there).pull().new
    sh(record, 'reset', '-q', '--hard', 'HEAD~1')
    new = commit(record)
    assert GitRepo(there).pull().rewritten and look(there, old).rewritten
    sh(there, 'fetch', '-q')
    sh(there, 'reset', '-q', '--hard', 'origin/main')
    last = commit(there, 1_800_009_000)
    assert look(there, last) == Position(last, new)


def test_the_status_and_the_line_come_from_the_same_look(record):
    old = sh(record, 'rev-parse', 'HEAD')
    new = commit(record, int(time.time()) - 120)
    said = said_of(record, old, ran=300)
    assert said.line == 'behind: notes: 1 commit not indexed since 2 min ago; run merlin ingest'
    status = said.repos['notes']
    assert 119 <= status.pop('lag_seconds') < 180
    assert status == {
        'indexed': old, 'head': new, 'upstream': None, 'lag_commits': 1, 'fetched_at': None, 'error': None,
    }  # fmt: skip
    assert said_of(record, new).repos['notes']['lag_seconds'] is None
    missing = said_of(record, '0' * 40)
    assert 'indexed commit is gone' in missing.line and missing.repos['notes']['lag_commits'] is None


def test_a_repo_that_is_not_configured_any_more_is_named(record):
    head = sh(record, 'rev-parse', 'HEAD')
    said = said_of(record, head, state={'heads': {'notes': head, 'old': '1' * 40}})
    assert said.line == 'STALE: old: cannot be read (it is not configured any more); run merlin ingest'


def test_what_meta_holds_of_the_last_run_is_said(record):
    head = sh(record, 'rev-parse', 'HEAD')
    failed = {'at': stamp(7_300), 'text': 'no space', 'exit_code': 1}
    assert said_of(record, head, last_ingest_error=failed).line == (
        'STALE: the last ingest failed 2 h ago (no space); run merlin ingest'
    )
    running = {'running': stamp(400)}
    assert said_of(record, head, **running).line == (
        'STALE: the last ingest (begun 6 min ago) never finished; run merlin ingest'
    )
    config = replace(load_config({}), repos=(RepoConfig('notes', record),))
    meta = {'state': {'heads': {'notes': head}}, 'last_ingest_at': stamp(60), 'running': stamp(5)}
    assert verdict(config, meta, busy=True).line == 'fresh'  # a run at work on a finished index
    assert 'still at work' in verdict(config, running, busy=True).line
    assert 'nothing was ever ingested' in verdict(config, {}).line


def test_a_whole_verdict_costs_one_process_for_each_repo(record, monkeypatch):
    import merlin.git as wrapper

    repos = [clone(record, f'there{kind}', kind) for kind in ('--mirror', '--bare', '--quiet', '--depth=1')]
    heads = {r.name: sh(record, 'rev-parse', 'HEAD~1') for r in repos}
    commit(record)
    sh(repos[2], 'fetch', '-q')
    started, popen = [], subprocess.Popen
    monkeypatch.setattr(wrapper.subprocess, 'Popen', lambda argv, **rest: started.append(argv) or popen(argv, **rest))
    config = replace(load_config({}), repos=tuple(RepoConfig(r.name, r) for r in repos))
    verdict(config, {'state': {'heads': heads}, 'last_started_at': stamp(5), 'fetched': {repos[0].name: None}})
    assert len(started) == 4 == len({argv[2] for argv in started})


def test_an_unreadable_position_is_an_error_not_a_guess(record, monkeypatch):
    monkeypatch.setenv('PATH', str(record))
    with pytest.raises(ConfigError, match='git is not installed'):
        position(Git(record), None)
    assert said_of(record, '0' * 40).state == 'stale'
