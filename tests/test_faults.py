"The campaign of faults and the soak: a slice of the one, and that both can tell right from wrong."

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / 'tools'))

import faults
import soak
from faults_lab import PASSWORD, open_lab
from faults_same import compare, differences, questions, rows

ROOT = Path(__file__).resolve().parents[1]
linux = pytest.mark.skipif(not os.path.exists('/proc/self/cwd'), reason='needs /proc')
# A plain kill is in tests/test_ingest.py. Both go from the first head to the second, which saves clean rebuilds.
SLICE = ('power:10', 'pack:1')


@linux
def test_after_each_fault_of_a_slice_the_next_run_makes_the_index_of_a_clean_rebuild(monkeypatch, capsys):
    with open_lab() as lab:
        tallies = faults.campaign(lab, SLICE, seed=1, verbose=True)
        assert not [finding for tally in tallies.values() for finding in tally.findings], capsys.readouterr().out
        assert sum(tally.points for tally in tallies.values()) == len(SLICE)
        changed_rows_and_answers_are_seen(lab)
        a_fault_that_nobody_mends_is_a_finding(lab, monkeypatch)
    assert not lab.folder.exists()


def changed_rows_and_answers_are_seen(lab):
    lab.settle('second')
    assert len(questions()) >= 50 and compare(lab.snapshot(), lab.clean()) == []
    assert PASSWORD not in str(lab.clean())
    changes = {
        'documents': "update documents set title = 'x' where path = 'hosts/beta.md'",
        'chunks': 'delete from chunks where id = (select min(id) from chunks)',
        'vectors': "update vectors set text_sha = '\\x00' where id = (select min(id) from vectors)",
        'lexical_postings': "update lexical_postings set entries = entries[2:] where term = 'beta'",
        'lexical_totals': 'update lexical_totals set length = length + 1',
        'keys': 'drop index chunks_tsv',
        'meta': "update meta set value = '{}' where key = 'counts'",
    }
    for table, change in changes.items():
        with lab.connected() as conn, conn.transaction(force_rollback=True):
            conn.execute(change)
            found = differences(rows(conn, lab.config), lab.clean().tables)
        assert table in {line.partition(':')[0] for line in found}, (table, found)


def a_fault_that_nobody_mends_is_a_finding(lab, monkeypatch):
    def forgotten(point):
        point.lab.settle('second')
        with point.lab.connected() as conn:
            conn.execute("delete from chunks where heading like '%Cellar%'")
        point.mended()

    monkeypatch.setitem(faults.KINDS, 'forgotten', faults.Kind(forgotten, 0, 'rows removed by hand'))
    found = faults.campaign(lab, ['forgotten:0'], seed=1, verbose=False)['forgotten'].findings
    assert found and found[0][0] == 'forgotten:0' and found[0][1].startswith('chunks: ')


def test_points_are_shared_out_by_kind_and_each_kind_has_one():
    names = faults.shares(200, list(faults.KINDS))
    assert len(names) == len(set(names)) == 200
    assert {name.partition(':')[0] for name in names} == set(faults.KINDS)
    assert faults.shares(3, ['kill', 'power']) == ['kill:0', 'power:0', 'kill:1']


def hooked(order, code, tmp_path):
    (tmp_path / 'sitecustomize.py').write_text((ROOT / 'tools/faults_hook.py').read_text())
    env = {'PATH': os.environ['PATH'], 'PYTHONPATH': f'{tmp_path}:{ROOT}', 'FAULT_ORDER': json.dumps(order)}
    return subprocess.run([sys.executable, '-c', code], env=env, capture_output=True, text=True, check=False)


def test_a_child_lives_at_another_time_and_finds_no_order_to_pass_on(tmp_path):
    code = 'import os, time; from merlin.store import now; print(time.time(), now(), "FAULT_ORDER" in os.environ)'
    seen, stamp, passed_on = hooked({'clock': -40 * 86_400}, code, tmp_path).stdout.split()
    assert abs(time.time() - 40 * 86_400 - float(seen)) < 60 and passed_on == 'False'
    assert stamp[:10] == time.strftime('%Y-%m-%d', time.gmtime(float(seen)))


@linux
@pytest.mark.parametrize('order', [{'git': 2}, {'git': 2, 'after': 0.01}])
def test_one_git_is_killed_and_its_neighbours_are_not(order, tmp_path):
    code = 'import subprocess as s; print([s.call(["git", *a], stdin=s.PIPE) for a in (["version"], ["hash-object", "--stdin"], ["version"])])'
    assert hooked(order, code, tmp_path).stdout.splitlines()[-1] == '[0, -9, 0]'


def test_the_soak_tells_growth_from_warming_up():
    calm = dict.fromkeys((*soak.SLACK, 'wal_mb', 'database_mb'), 10.0) | {'idle_transactions': 0.0}
    warm = [{**calm, 'memory_mb': size} for size in (50.0, 80.0, *[100.0] * 20)]
    assert soak.grown(warm, ceiling=64) == []
    leak = [{**calm, 'memory_mb': 100.0 + 5 * n, 'connections': 8.0 + n // 4} for n in range(20)]
    assert [line.split()[0] for line in soak.grown(leak, ceiling=64)] == ['connections', 'memory_mb']
    assert 'WAL reached 90 MB' in soak.grown([{**calm, 'wal_mb': 90.0}] * 8, ceiling=64)[0]
    assert 'transaction' in soak.grown([{**calm, 'idle_transactions': 1.0}] * 8, ceiling=64)[0]
