"""What the linter finds in records made for it, what it stays silent about, and how the command behaves."""

import json
import os
import random
import re
import subprocess
import sys
import time
from itertools import accumulate
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from merlin.config import load_config
from merlin.copies import NEAR_COPY, overlap, shingles
from merlin.errors import ConfigError, RefusedError
from merlin.findings import Copy, Finding, find_copies, named_by
from merlin.lint import Lint, choose_paths, lint, read_record
from merlin.mentions import unclaimed_hosts
from merlin.testing import commit_all, fixture_record, run_git

ROOT = Path(__file__).resolve().parents[1]
HOST = '---\nhost: {0}\naliases: [{0}.home.test]\n---\n# {0}\n\nA machine.\n'


def make(folder: Path, pages: dict[str, str | bytes]) -> Path:
    "A record with these pages, committed."
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / '.git').exists():
        run_git(folder, 'init', '--quiet')
    for path, text in pages.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(text if isinstance(text, bytes) else text.encode())
    commit_all(folder, 'pages')
    return folder


def look(folder: Path, *paths: str, **env: str) -> Lint:
    "The findings in a record."
    return lint(load_config({'REPO_DIR': str(folder), 'MERLIN_HOME': str(folder / 'none'), **env}), paths)


def kinds(found: Lint) -> list[str]:
    return [f.kind for f in found.findings]


def command(folder: Path, *args: str, **env: str) -> subprocess.CompletedProcess:
    "merlin lint with nothing configured but what is given."
    path = {'PATH': os.environ['PATH'], 'PYTHONPATH': str(ROOT)}
    return subprocess.run(
        [sys.executable, '-m', 'merlin.lint', *args], cwd=folder, env=path | env, capture_output=True, text=True
    )


@pytest.fixture(scope='module')
def fixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fixture_record(tmp_path_factory.mktemp('lint') / 'record')


WELL_KEPT = {
    'README.md': '# Notes\n\nSee [disk](runbooks/disk.md), [alpha](hosts/alpha.md) and [lessons](memory/one.md).\n',
    'hosts/alpha.md': HOST.format('alpha'),
    'journal/2030-01-12.md': '# Disk full\n\nOn alpha, as in runbooks/disk.md. At 10:22 it was over; see main.py:22.\n',
    'journal/2030-01-13.md': '# Quiet\n\n`ssh alpha` and 10.0.0.0/24, version 10.1.2, http://wiki.home.test/.\n',
    'runbooks/disk.md': '# Make room\n\n## Old way\n\n(superseded 2030-01-02: see § New way)\n\nBy hand.\n\n'
    '## New way\n\n```sh\ndf -h\n```\n',
    'memory/one.md': '---\ndate: 2030-01-03\n---\n# Dumps are not ballast\n\nNever delete a dump.\n',
}


def test_a_well_kept_record_gives_no_finding_at_all(tmp_path):
    assert look(make(tmp_path, WELL_KEPT)).lines() == ['6 pages: no warnings; no notes']


def test_every_kind_of_ingest_warning_of_the_fixture_record_has_its_line(fixture):
    found = {(f.path, f.line, f.kind) for f in look(fixture).findings}
    assert {
        ('notes/invalid-front-matter.md', 3, 'front-matter'),
        ('notes/duplicate-key.md', 4, 'duplicate-key'),
        ('notes/impossible-date.md', 2, 'date'),
        ('notes/unclosed-fence.md', 5, 'fence'),
        ('notes/lost-pointer.md', 1, 'pointer'),
        ('notes/nul.md', 5, 'nul'),
        ('journal/ideas.md', 1, 'undated'),
        ('journal/2030-01-16.md', 11, 'no-pointer'),
    } <= found


def test_lint_warns_of_exactly_what_ingest_warns_of(fixture):
    from merlin.ingest import ingest
    from merlin.testing import WordEmbedder, scratch

    with scratch(fixture) as config:
        ingested = {tuple(w) for w in ingest(config, embed=WordEmbedder()).warnings}
    assert ingested and ingested <= {tuple(f) for f in look(fixture).findings}


def test_a_shallow_clone_gives_the_findings_of_the_full_one(fixture, tmp_path):
    run_git(tmp_path, 'clone', '--quiet', '--depth', '1', f'file://{fixture}', 'clone')
    assert look(tmp_path / 'clone').findings == look(fixture).findings


def test_a_bare_mirror_and_several_repos_are_read_too(fixture, tmp_path):
    run_git(tmp_path, 'clone', '--quiet', '--mirror', str(fixture), 'mirror')
    make(tmp_path / 'more', {'a.md': '# A\n\n(superseded: see § Nowhere)\n'})
    (tmp_path / 'merlin.toml').write_text(
        f'[[repos]]\nname = "x"\ndir = "{tmp_path}/mirror"\n[[repos]]\nname = "y"\ndir = "{tmp_path}/more"\n'
    )
    found = lint(load_config({'MERLIN_CONFIG': str(tmp_path / 'merlin.toml'), 'MERLIN_HOME': str(tmp_path / 'none')}))
    assert {f.path.split('/')[0] for f in found.findings} == {'x', 'y'}


def test_an_uncommitted_edit_is_not_looked_at(tmp_path):
    record = make(tmp_path, {'a.md': '# A\n\nText.\n'})
    (record / 'a.md').write_text('# A\n\n```\nno end\n')
    assert kinds(look(record)) == []
    commit_all(record, 'now')
    assert kinds(look(record)) == ['fence']


# -- secrets


def token() -> str:
    return 'ghp' + '_' + ''.join(random.Random(7).choices('ABCDEFGHabcdefgh0123456789', k=36))


def test_a_finding_about_a_secret_shows_its_line_and_never_the_secret(tmp_path):
    lines = '\n'.join(['-----BEGIN PRIVATE' + ' KEY-----', *['Ab3dEf9hIj' * 6] * 4, '-----END PRIVATE' + ' KEY-----'])
    record = make(tmp_path, {'a.md': f'# A\n\nKey:\n\n{lines}\n\nToken: {token()}\n'})
    found = look(record)
    assert [(f.kind, f.line) for f in found.findings] == [('secret', 5), ('secret-like', 12)]
    assert token() not in json.dumps(found.as_json()) and 'Ab3dEf9hIj' not in '\n'.join(found.lines())


def test_a_broken_hash_file_stops_the_linter(fixture, tmp_path):
    with pytest.raises(RefusedError):
        look(fixture, SECRET_HASHES=str(tmp_path / 'missing'))


# -- copies


def by_hand(texts: list[str], least: int) -> set[int]:
    "The sections that have a copy, by comparing every pair."
    runs = [shingles(t) for t in texts]
    out = set()
    for n, own in enumerate(runs):
        others = [r for m, r in enumerate(runs) if m != n and (len(r), -m) > (len(own), -n)]
        if len(own) >= least and any(overlap(own, r) >= NEAR_COPY for r in others):
            out.add(n)
    return out


@given(st.lists(st.lists(st.sampled_from('abcdef'), min_size=8, max_size=40).map(' '.join), max_size=12))
@settings(derandomize=True, deadline=None, max_examples=80)
def test_the_index_of_rare_runs_misses_no_copy(texts):
    assert {c.section for c in find_copies(texts, least=10)} == by_hand(texts, 10)


def test_a_copy_survives_small_changes_and_names_the_larger_or_earlier_one():
    rng = random.Random(1)
    text = [f'word{rng.randrange(5000)}' for _ in range(200)]
    changed = text[:90] + ['here', 'it', 'differs'] + text[95:]
    found = find_copies([' '.join(t) for t in (text, changed, changed[:150])])
    assert [c.section for c in found] == [1, 2] and all(c.share >= NEAR_COPY for c in found)


def test_a_hundred_pages_from_one_template_each_find_another():
    template = ' '.join(f'line{n}' for n in range(80))
    found = find_copies([f'host{n} {template}' for n in range(300)])
    assert {c.section for c in found} >= set(range(1, 300))


def test_copies_are_found_the_same_in_every_process(tmp_path):
    code = (
        'import random; from merlin.findings import find_copies; r = random.Random(3)\n'
        'words = [f"w{n}" for n in range(6)]\n'
        'print(find_copies([" ".join(r.choices(words, k=60)) + " x y z" * r.randrange(9) for _ in range(200)], near=.2))'
    )
    runs = [
        subprocess.run(
            [sys.executable, '-c', code], env={'PYTHONHASHSEED': seed, 'PYTHONPATH': str(ROOT)}, capture_output=True
        )
        for seed in '12'
    ]
    assert runs[0].stdout == runs[1].stdout and b'Copy(' in runs[0].stdout


@pytest.mark.slow
def test_twelve_thousand_sections_are_compared_in_seconds():
    rng = random.Random(1)
    words = [f'w{n}' for n in range(20_000)]
    weights = list(accumulate(1 / (n + 2) for n in range(len(words))))
    texts = [' '.join(rng.choices(words, cum_weights=weights, k=rng.randint(30, 250))) for _ in range(11_500)]
    texts += [text.rsplit(' ', 5)[0] for text in texts[:500]]
    began = time.process_time()
    found = find_copies(texts)
    assert {c.section for c in found} >= {n for n in range(11_500, 12_000) if len(shingles(texts[n])) >= 25}
    assert time.process_time() - began < 20  # 10 on a machine that has nothing else to do


def test_a_superseded_section_may_repeat_its_successor_and_no_other(tmp_path):
    text = ' '.join(f'step{n}' for n in range(60))
    page = f'# Restore\n\n## Old (superseded)\n\n(superseded 2030-01-01: see § New)\n\n{text}\n\n## New\n\n{text}\n'
    assert kinds(look(make(tmp_path / 'a', {'a.md': page}))) == []
    (found,) = look(
        make(
            tmp_path / 'b',
            {'a.md': page.replace(f'## New\n\n{text}', '## New\n\nOtherwise.'), 'b.md': f'# B\n\n{text}\n'},
        )
    ).findings
    assert (found.path, found.kind) == ('b.md', 'copy') and 'a superseded section' in found.text


def words(start: int, end: int) -> str:
    return ' '.join(f'step{n}' for n in range(start, end))


def test_what_is_said_of_a_copy_is_true_of_sections_of_unequal_length(tmp_path):
    new, old = '# New\n\n{}\n', '# Old\n\n(superseded 2030-01-01: see § Elsewhere)\n\n{}\n'
    long, short, near = words(0, 1060), words(500, 560), words(500, 555) + ' and five other words here'
    said = {}
    for name, texts in {
        'a current one holds a superseded one': (new.format(long), old.format(short)),
        'a current one holds most of a superseded one': (new.format(long), old.format(near)),
        'a current one stands in a superseded one': (new.format(short), old.format(long)),
        'two current ones': (new.format(long), new.format(short)),
    }.items():
        found = look(make(tmp_path / name, dict(zip(('new.md', 'old.md'), texts, strict=True)))).findings
        said[name] = [(f.path, f.text.partition(';')[0]) for f in found if f.kind == 'copy']
    holds, most, stands, both = said.values()
    # Of the superseded section, the line about its successor is text as well.
    ((path, text),) = holds
    assert path == 'new.md' and re.fullmatch(r'holds \d\d % of the text of a superseded section, old.md:1 § Old', text)
    ((path, text),) = most
    assert path == 'new.md' and re.fullmatch(r'holds 8\d % of the text of a superseded section, old.md:1 § Old', text)
    # Of a long section, its part.
    ((path, text),) = stands
    assert path == 'new.md' and re.fullmatch(r'all of its text stands in a superseded section, old.md:\d+ § Old', text)
    ((path, text),) = both
    assert path == 'old.md' and re.fullmatch(r'all of its text stands in new.md:\d+ § New too', text)


# -- hosts


def test_a_host_that_others_call_by_an_unknown_name_is_named_twice(tmp_path):
    pages = {
        'hosts/alpha.md': HOST.format('alpha'),
        'hosts/beta.md': HOST.format('beta'),
        'journal/2030-01-12.md': '# A\n\nalpha is fine.\n\n```sh\nssh -p 2222 root@betty uptime\n```\n',
        'journal/2030-01-13.md': '# B\n\n`rsync -a /srv/ betty:/srv/` failed.\n',
    }
    found = look(make(tmp_path, pages)).findings
    assert [(f.kind, f.path, f.line) for f in found] == [
        ('host-unmentioned', 'hosts/beta.md', None),
        ('unknown-host', 'journal/2030-01-12.md', 6),
    ]


@pytest.mark.parametrize(
    'text',
    [
        'ssh into the machine, or use ssh keys',
        '`ssh-keygen -t ed25519 betty`',
        '`ssh $HOST` and `ssh <host>` and `ssh user@HOST`',
        'at 10:22, main.py:22 and Port:22',
        'mail ann@mail.home.test or open https://wiki.home.test/x',
        'the network 192.168.1.0/24, version 10.4.2, build 10.1.2.3-4, 10.2.3.4.5',
        'alpha.home.test:22 is known, so is `ssh ALPHA`',
        'Use `ssh` and then `systemctl`, `scp` and `betty:/srv`, `rsync -p`\nor `gamma`',
        '```sh\nssh\nsystemctl restart x\nrsync\nbetty:/srv\n```',
        '`rsync -a rsync://mirror/x .` and `rsync -e ssh ssh://mirror/x .`',
    ],
)
def test_what_only_looks_like_a_host_is_none(tmp_path, text):
    pages = {'hosts/alpha.md': HOST.format('alpha'), 'notes/a.md': f'# A\n\n{text}\n', 'notes/b.md': f'# B\n\n{text}\n'}
    records, _ = read_record(
        load_config({'REPO_DIR': str(make(tmp_path, pages)), 'MERLIN_HOME': str(tmp_path / 'none')})
    )
    assert unclaimed_hosts(records) == []


@pytest.mark.parametrize(
    'command',
    [
        'ssh \\\n  betty uptime',
        'ssh -p 2222 \\\n  -i key root@betty',
        'rsync -a /srv/ \\\n  betty:/srv/',
        'rsync -a rsync://mirror/x betty:/srv',
    ],
)
def test_a_command_may_go_on_in_the_next_line(tmp_path, command):
    text = f'# A\n\n```sh\n{command}\n```\n'
    pages = {'hosts/alpha.md': HOST.format('alpha'), 'notes/a.md': text, 'notes/b.md': text}
    records, _ = read_record(
        load_config({'REPO_DIR': str(make(tmp_path, pages)), 'MERLIN_HOME': str(tmp_path / 'none')})
    )
    assert [u.name for u in unclaimed_hosts(records)] == ['betty']


@pytest.mark.parametrize('end', ['\n', '\r\n', '\r'])
def test_a_machine_stands_where_it_is_a_machine_and_not_where_its_letters_stand(tmp_path, end):
    text = '# The webhook\n\nIn a web of pages, `curl` the website.\n\n`uptime` or `ssh web`\n'.replace('\n', end)
    pages = {'hosts/alpha.md': HOST.format('alpha'), 'notes/a.md': text, 'notes/b.md': f'{end}web:22{end}'}
    records, _ = read_record(
        load_config({'REPO_DIR': str(make(tmp_path, pages)), 'MERLIN_HOME': str(tmp_path / 'none')})
    )
    (web,) = unclaimed_hosts(records)
    assert (web.name, web.how, web.places) == ('web', 'ssh', (('notes/a.md', 5), ('notes/b.md', 2)))


# -- links


@pytest.mark.parametrize(
    'text',
    [
        '[x](../deep/target%20page.md#part)',
        '[x](</deep/target page.md>)',
        '[x][1]\n\n[1]: ../deep/target%20page',
        '[[target page]]',
        '<a href="../deep/target%20page.md">x</a>',
        'https://forge.test/me/notes/blob/main/deep/target%20page.md',
        'see § The target',
    ],
)
def test_a_page_is_named_by_every_way_people_point_at_pages(tmp_path, text):
    pages = {'a/b.md': f'# B\n\n{text}\n', 'deep/target page.md': '# The target\n\nText.\n'}
    records, _ = read_record(
        load_config({'REPO_DIR': str(make(tmp_path, pages)), 'MERLIN_HOME': str(tmp_path / 'none')})
    )
    assert named_by(records)['deep/target page.md'] == {'a/b.md'}


def test_a_name_that_may_mean_two_pages_means_none(tmp_path):
    pages = {'x.md': '# X\n\nas in notes.md\n', 'a/notes.md': '# A\n\nText.\n', 'b/notes.md': '# B\n\nText.\n'}
    records, _ = read_record(
        load_config({'REPO_DIR': str(make(tmp_path, pages)), 'MERLIN_HOME': str(tmp_path / 'none')})
    )
    assert set().union(*named_by(records).values()) == set()


# -- paths and command


def test_paths_choose_which_findings_are_told_and_copies_still_look_everywhere(tmp_path):
    text = ' '.join(f'step{n}' for n in range(60))
    record = make(tmp_path, {'a/one.md': f'# A\n\n{text}\n', 'b/two.md': f'# B\n\n{text}\n', 'c.md': '# C\n\n```\n'})
    assert kinds(look(record)) == ['copy', 'fence']
    assert kinds(look(record, 'b/')) == ['copy'] and kinds(look(record, './c.md')) == ['fence']
    assert kinds(look(record, 'a/**')) == []
    with pytest.raises(ConfigError, match='no page has this path'):
        look(record, 'd/*.md')


@pytest.mark.parametrize('path', ['/', '//', '', '/hosts', '..'])
def test_what_is_no_path_of_the_record_is_refused_and_never_means_everything(path):
    with pytest.raises(ConfigError):
        choose_paths([path], ['hosts/a.md', 'b.md'])


def test_a_path_is_never_taken_for_an_option_or_a_pattern():
    assert choose_paths(['a[1].md'], ['a[1].md']) == {'a[1].md'}


def test_the_exit_code_says_what_was_found(tmp_path):
    record = make(tmp_path / 'r', {'a.md': '# A\n\n```\n', 'b.md': '# B\n'})
    nothing = tmp_path / 'nothing'
    nothing.mkdir()
    assert command(record, REPO_DIR='.').returncode == 0
    strict = command(record, '--strict', REPO_DIR='.')
    assert strict.returncode == 1 and strict.stdout.splitlines() == [
        'a.md:3: fence: code fence is never closed; read as code to the end of the file',
        'b.md:1: heading-only: only headings, nothing below them',
        '2 pages: 1 warning (fence 1); 1 note (heading-only 1)',
    ]
    assert command(record, '--strict', 'b.md', REPO_DIR='.').returncode == 0  # a note is no warning
    for refused in (command(record), command(nothing, REPO_DIR='.'), command(record, 'x.md', REPO_DIR='.')):
        assert refused.returncode == 2 and refused.stderr.count('\n') == 1 and not refused.stdout
    assert 'in a clone of the record: REPO_DIR=.' in command(record).stderr


def test_a_terminal_that_has_no_umlauts_gets_an_escape_and_no_traceback(tmp_path):
    record = make(tmp_path, {'ä.md': '# Ä\n\n```\n'})
    for args in ([], ['--json']):
        done = command(record, '--strict', *args, REPO_DIR='.', PYTHONIOENCODING='ascii', PYTHONUTF8='0')
        assert done.returncode == 1 and '\\xe4.md' in done.stdout and 'Traceback' not in done.stderr


def test_the_path_of_a_repo_is_refused_as_ingest_refuses_it(tmp_path):
    record = make(tmp_path / os.fsdecode(b'caf\xe9'), {'a.md': '# A\n'})
    with pytest.raises(ConfigError, match='not printable'):
        lint(load_config({'REPO_DIR': str(record), 'MERLIN_HOME': str(tmp_path / 'none')}))


def test_a_page_that_begins_with_a_line_across_it_is_nothing_to_tell(tmp_path):
    text = '---\n\nIt rained a whole day, and so on.\n\n---\n\nMore.\n'
    record = make(tmp_path, {'a.md': text, 'b.md': '---\nhost alpha\nips: [10.0.0.1]\n---\n\nText.\n'})
    assert [(f.path, f.kind) for f in look(record).findings] == [('b.md', 'front-matter')]


def test_findings_are_findings_wherever_they_come_from(fixture):
    found = look(fixture).findings
    assert found and {type(f) for f in found} == {Finding}


def test_json_holds_the_findings_and_their_counts(tmp_path):
    record = make(tmp_path, {'a.md': '# A\n\n```\n', 'b.md': '# B\n'})
    got = json.loads(command(record, '--json', REPO_DIR=str(record)).stdout)
    assert got['warnings'] == {'fence': 1} and got['notes'] == {'heading-only': 1} and got['pages'] == 2
    assert got['findings'][0] == {
        'path': 'a.md', 'line': 3, 'severity': 'warning', 'kind': 'fence',
        'text': 'code fence is never closed; read as code to the end of the file',
    }  # fmt: skip


def test_a_page_can_forge_no_line(tmp_path):
    record = make(tmp_path, {'a\nb.md:1: fence: forged.md': '# A\n'})
    assert len(look(record).lines()) == 2


def test_lint_loads_no_model_and_opens_no_database(tmp_path):
    record = make(tmp_path, {'a.md': '# A\n\nText.\n'})
    code = (
        'import sys, merlin.lint; merlin.lint.main([])\n'
        'print(sorted({"numpy", "onnxruntime", "tokenizers", "httpx", "merlin.embed", "matplotlib"} & set(sys.modules)))'
    )
    env = {
        'PATH': os.environ['PATH'],
        'PYTHONPATH': str(ROOT),
        'REPO_DIR': str(record),
        'DATABASE_URL': 'host=nowhere.invalid',
    }
    done = subprocess.run([sys.executable, '-c', code], env=env, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == '[]' and done.returncode == 0


def test_a_thousand_pages_take_seconds(tmp_path):
    rng = random.Random(2)
    words = [f'word{n}' for n in range(3000)]

    def text(n: int) -> str:
        parts = [
            f'## Part {k}\n\n{" ".join(rng.choices(words, k=60))}, see `p{rng.randrange(1000)}.md`.\n' for k in range(4)
        ]
        return f'# Page {n}\n\n' + '\n'.join(parts)

    record = make(tmp_path, {f'notes/p{n}.md': text(n) for n in range(1000)})
    began = time.process_time()
    assert look(record).pages == 1000
    assert time.process_time() - began < 10


def test_copy_is_plain_data():
    assert Copy(1, 0, 0.9) == Copy(1, 0, 0.9)


@pytest.mark.parametrize(
    'line',
    [
        'a' * 500_000,
        'a.' * 250_000,
        'a/' * 250_000,
        'x.md/' * 100_000,
        '`' + 'rsync a ' * 60_000 + '`',
        '`' + 'ssh -v ' * 60_000 + '`',
        'ssh `' + ' ' * 400_000 + '`',
        'https://' + 'a.md/' * 80_000,
        '[[' * 200_000,
        '](' * 200_000,
        '10.' * 150_000,
    ],
    ids=lambda line: line[:12].strip(),
)
def test_no_line_makes_the_linter_slow(tmp_path, line):
    pages = {'hosts/alpha.md': HOST.format('alpha'), 'a.md': f'# A\n\n{line}\n', 'b.md': f'# B\n\n{line}\n'}
    record = make(tmp_path, pages)
    began = time.process_time()
    look(record)
    assert time.process_time() - began < 10  # a quadratic pattern takes minutes


def test_the_sample_workflow_runs_the_linter_as_it_is():
    import yaml

    from merlin.lint import parser

    workflow = yaml.safe_load((ROOT / 'deploy/lint-workflow.yml').read_text(encoding='utf-8'))
    step = workflow['jobs']['lint']['steps'][-1]
    assert step['env'] == {'REPO_DIR': '.'}
    program, command_name, *rest = step['run'].split()
    assert (program, command_name) == ('merlin', 'lint') and parser().parse_args(rest).strict


def test_the_page_lists_every_kind_that_there_is_by_its_severity():
    from merlin.findings import NOTES, severity

    warnings, notes = (ROOT / 'docs/lint.md').read_text(encoding='utf-8').split('### Warnings')[1].split('### Notes')
    rows = [line.split(' | ')[0] for line in notes.split('\n## ')[0].splitlines() if line.startswith('| `')]
    assert {name.strip('`') for row in rows for name in row.removeprefix('| ').split(', ')} == set(NOTES)
    rows = [line.split(' | ')[0] for line in warnings.splitlines() if line.startswith('| `')]
    graver = {name.strip('`') for row in rows for name in row.removeprefix('| ').split(', ')}
    assert graver and {severity(kind) for kind in graver} == {'warning'}


def test_a_path_that_is_a_page_needs_to_be_no_glob():
    assert choose_paths(['[draft.md'], ['[draft.md', 'b.md']) == {'[draft.md'}
