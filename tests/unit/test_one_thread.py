"""The explorer, reports and the first lessons (all of them in `make test-all`) in a Python such as a browser's."""

import os
import subprocess
import sys
from pathlib import Path

from thorough import THOROUGH

ROOT = Path(__file__).parents[2]
LESSONS = sorted((ROOT / "tests" / "notebooks" / "text").glob("0[1-5]_*.py" if THOROUGH else "0[135]_*.py"))


def test_without_threads_processes_numba_scipy_and_pandas():
    assert len(LESSONS) == (5 if THOROUGH else 3)
    scripts = [str(ROOT / "tests" / "one_thread_explorer.py"), *map(str, LESSONS)]
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    run = subprocess.run(
        [sys.executable, "-m", "tests.one_thread", *scripts], cwd=ROOT / "notebooks",
        env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, check=False, timeout=300,
    )
    assert run.returncode == 0, run.stderr
