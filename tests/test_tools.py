"Every tool starts: what it imports is there, under the name that it uses."

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
IMPORT = (
    'import importlib.util as u, sys; s = u.spec_from_file_location("tool", sys.argv[1]); m = u.module_from_spec(s)'
)


@pytest.mark.parametrize('path', sorted((ROOT / 'tools').glob('*.py')), ids=lambda p: p.stem)
def test_a_tool_can_be_imported_and_does_nothing_then(path, tmp_path):
    env = {**os.environ, 'PYTHONPATH': os.pathsep.join([str(ROOT), str(ROOT / 'tools')])}
    script = f'{IMPORT}; sys.modules["tool"] = m; s.loader.exec_module(m)'
    command = [sys.executable, '-c', script, str(path)]
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, ''), done.stderr
    assert list(tmp_path.iterdir()) == []
