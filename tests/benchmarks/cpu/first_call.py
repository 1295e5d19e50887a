"""Seconds of a first call in a new process with empty caches: ``python -m tests.benchmarks.cpu.first_call NAME WHO``.

Counted from the definition, or the torch function, to the first results; importing the package (fuser_lab or torch) and
creating the inputs are not counted. Prints wall time and processor time, which other programs disturb less.
"""

import importlib
import json
import os
import subprocess
import sys
import tempfile
import time

from tests.benchmarks.cpu import variants

_CACHES = ("FUSER_LAB_CACHE", "TORCHINDUCTOR_CACHE_DIR", "NUMBA_CACHE_DIR")


def measured(name: str, who: str) -> dict[str, float]:
    """Run a first call in a new process; returns wall and processor seconds."""
    with tempfile.TemporaryDirectory() as place:
        env = {**os.environ, **dict.fromkeys(_CACHES, place)}
        command = [sys.executable, "-m", "tests.benchmarks.cpu.first_call", name, who]
        run = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if run.returncode:
        raise RuntimeError(run.stderr[-500:])
    found: dict[str, float] = json.loads(run.stdout.splitlines()[-1])
    return found


def main() -> None:
    name, who = sys.argv[1:]
    load = next(w for w in variants.SETS["all"] if w.name == name)
    importlib.import_module("torch" if who == "compile" else "fuser_lab")
    inputs, outs = load.inputs(), load.outputs()
    begin, used = time.perf_counter(), _processor()
    variants.variant(who, load, inputs, outs)()
    print(json.dumps({"wall": time.perf_counter() - begin, "processor": _processor() - used}))


def _processor() -> float:
    """Processor seconds of this process and of compilers that it started."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


if __name__ == "__main__":
    main()
