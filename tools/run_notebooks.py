"""Run every notebook from top to bottom, with a limit, and make sure that none was left out.

    python tools/run_notebooks.py [SECONDS]

nbdev_test has no time limit of its own, and ends well when it finds no notebook at all.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NBS = ROOT / 'nbs'


def expected() -> set[str]:
    "The notebooks that should run: all but hidden ones and those beside a `.notest`."
    paths = [p for p in NBS.rglob('*.ipynb') if not (p.parent / '.notest').exists()]
    return {str(p) for p in paths if not any(part[0] in '._' for part in p.relative_to(NBS).parts)}


def run(limit: float) -> tuple[int | None, str]:
    "Exit code (None: out of time) and output of nbdev_test; nothing of it is left running."
    command = [Path(sys.executable).parent / 'nbdev_test', '--n_workers', '2', '--do_print', '--timing']
    env = {**os.environ, 'PYTHONUNBUFFERED': '1'}
    proc = subprocess.Popen(
        command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    try:
        out, _ = proc.communicate(timeout=limit)
        return proc.returncode, out
    except subprocess.TimeoutExpired:
        os.killpg(proc.pid, signal.SIGKILL)
        return None, proc.communicate()[0]
    except KeyboardInterrupt:
        os.killpg(proc.pid, signal.SIGKILL)
        raise


def main() -> int:
    "0 when every notebook ran and none failed."
    limit = float(sys.argv[1]) if len(sys.argv) > 1 else 1200.0
    code, out = run(limit)
    done = {line.removeprefix('- Completed ') for line in out.splitlines() if line.startswith('- Completed ')}
    print('\n'.join(line for line in out.splitlines() if not line.startswith(('Starting ', '- Completed '))))
    missing = sorted(Path(p).name for p in expected() - done)
    if code is None:
        print(f'stopped after {limit:g} s; not completed: {", ".join(missing)}')
    elif missing:
        print(f'did not run: {", ".join(missing)}')
    print(f'{len(done)} notebooks ran')
    return 0 if code == 0 and done and not missing else 1


if __name__ == '__main__':
    raise SystemExit(main())
