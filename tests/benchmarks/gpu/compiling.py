"""Time to compile: ``python -m tests.benchmarks.gpu.compiling [--only NAME,...] [--processes N]``.

Seconds from the definition to the machine code of all its kernels for compute capability 9.0, in three processes per
workload: the first has an empty cache, and imports Numba and loads the compilers within the time; the second finds the
machine code on disk; the third has an empty cache, and has compiled another kernel before, as in a session. Importing
fuser_lab is not counted. No GPU is needed.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import fuser_lab as fl
from tests.benchmarks.gpu.workloads import WORKLOADS

PROMISED = {"first kernel": 3.0, "from disk": 0.3, "new kernel": 1.0}  # seconds
STAGES = ("segmented", "generated", "machine code")


def stages(definition: fl.FusionDefinition, specs: Sequence[Any]) -> dict[str, float]:
    """Seconds of each stage in this process."""
    from fuser_lab.codegen.pipeline import evaluated_because
    from fuser_lab.runtime.gpu.cubins import machine_code_of
    from tests.kernels import generate

    clock = [time.perf_counter()]
    plan = fl.segment(definition, specs)
    clock.append(time.perf_counter())
    made = [s for s in plan.segments if not evaluated_because(s.fusion, s.scheduler)]
    kernels = [generate(s.fusion, s.scheduler, "cuda") for s in made]
    clock.append(time.perf_counter())
    for kernel in kernels:
        machine_code_of(kernel, (9, 0))
    clock.append(time.perf_counter())
    return {stage: end - begin for stage, begin, end in zip(STAGES, clock, clock[1:], strict=False)}


def load_compilers() -> None:
    """Compile a kernel that no workload has."""
    with fl.FusionDefinition() as fd:
        fd.add_output(fd.ops.neg(fd.define_tensor(shape=[-1])))
    stages(fd, [fl.spec((1 << 20,), fl.DataType.Float)])


def in_processes(name: str) -> dict[str, dict[str, float]]:
    """Stages by the name of the promise, each in a new process; NaN for failures."""
    found = {}
    for places in (("first kernel", "from disk"), ("new kernel",)):
        with tempfile.TemporaryDirectory() as place:
            env = {**os.environ, "FUSER_LAB_CACHE": place, "NUMBA_CACHE_DIR": place}
            for promise in places:
                command = [sys.executable, "-m", "tests.benchmarks.gpu.compiling", "--stages-of", name]
                command += ["--loaded"] * (promise == "new kernel")
                run = subprocess.run(command, env=env, check=False, capture_output=True, text=True)
                print(run.stderr[-300:], end="", file=sys.stderr)
                failed = dict.fromkeys(STAGES, math.nan)
                found[promise] = failed if run.returncode else json.loads(run.stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.gpu.compiling")
    parser.add_argument("--only", default="", help="names, separated by commas")
    parser.add_argument("--processes", type=int, default=max((os.cpu_count() or 1) // 4, 1), help="at a time")
    parser.add_argument("--stages-of", default="", help=argparse.SUPPRESS)
    parser.add_argument("--loaded", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.stages_of:
        load = next(w for w in WORKLOADS if w.name == options.stages_of)
        if options.loaded:
            load_compilers()
        print(json.dumps(stages(load.definition(), load.specs())))
        return
    names = [w.name for w in WORKLOADS if not options.only or w.name in options.only.split(",")]
    print(f"| workload | {' | '.join(f'{promise}, s | ' + ' | '.join(STAGES) for promise in PROMISED)} |")
    print("|---" * ((len(STAGES) + 1) * len(PROMISED) + 1) + "|")
    late = []
    with ThreadPoolExecutor(options.processes) as pool:
        for name, found in zip(names, pool.map(in_processes, names), strict=True):
            cells = [f"{s:.3f}" for seconds in found.values() for s in (sum(seconds.values()), *seconds.values())]
            print(f"| {name} | {' | '.join(cells)} |", flush=True)
            slow = [p for p, seconds in found.items() if not sum(seconds.values()) <= PROMISED[p]]
            late += [f"{name} ({', '.join(slow)})"] * bool(slow)
    promises = ", ".join(f"{promise} {seconds} s" for promise, seconds in PROMISED.items())
    print(f"Over what is promised ({promises}): {', '.join(late) or 'none'}.")


if __name__ == "__main__":
    main()
