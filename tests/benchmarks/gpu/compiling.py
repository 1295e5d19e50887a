"""Time to compile: ``python -m tests.benchmarks.gpu.compiling [--only NAME,...] [--processes N]``.

Seconds from the definition to the machine code of all its kernels for compute capability 9.0, in one process per
workload: cold, with an empty cache, and in a second process, which finds the machine code on disk. Importing fuser_lab
is not counted; importing Numba and loading the compilers is. No GPU is needed.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

import fuser_lab as fl
from tests.benchmarks.gpu.workloads import WORKLOADS

COLD, FROM_DISK = 3.0, 0.3  # promised seconds
STAGES = ("segmented", "generated", "machine code")


def stages(name: str) -> dict[str, float]:
    """Seconds of each stage in this process."""
    from fuser_lab.codegen.generate import evaluated_because, generate
    from fuser_lab.runtime.cubins import machine_code_of

    load = next(w for w in WORKLOADS if w.name == name)
    clock = [time.perf_counter()]
    plan = fl.segment(load.definition(), load.specs())
    clock.append(time.perf_counter())
    made = [s for s in plan.segments if not evaluated_because(s.fusion, s.scheduler)]
    kernels = [generate(s.fusion, s.scheduler, "cuda") for s in made]
    clock.append(time.perf_counter())
    for kernel in kernels:
        machine_code_of(kernel, (9, 0))
    clock.append(time.perf_counter())
    return {stage: end - begin for stage, begin, end in zip(STAGES, clock, clock[1:], strict=False)}


def twice(name: str) -> list[dict[str, float]]:
    """Stages in a process with an empty cache, and in the next one; NaN for failures."""
    with tempfile.TemporaryDirectory() as place:
        env = {**os.environ, "FUSER_LAB_CACHE": place, "NUMBA_CACHE_DIR": place}
        command = [sys.executable, "-m", "tests.benchmarks.gpu.compiling", "--stages-of", name]
        runs = [subprocess.run(command, env=env, check=False, capture_output=True, text=True) for _ in range(2)]
    failed = dict.fromkeys(STAGES, math.nan)
    for run in runs:
        print(run.stderr[-300:], end="", file=sys.stderr)
    return [failed if run.returncode else json.loads(run.stdout) for run in runs]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.gpu.compiling")
    parser.add_argument("--only", default="", help="names, separated by commas")
    parser.add_argument("--processes", type=int, default=max((os.cpu_count() or 1) // 4, 1), help="at a time")
    parser.add_argument("--stages-of", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.stages_of:
        print(json.dumps(stages(options.stages_of)))
        return
    names = [w.name for w in WORKLOADS if not options.only or w.name in options.only.split(",")]
    print(f"| workload | cold, s | {' | '.join(STAGES)} | from disk, s | {' | '.join(STAGES)} |")
    print("|---" * (2 * len(STAGES) + 3) + "|")
    late = []
    with ThreadPoolExecutor(options.processes) as pool:
        for name, found in zip(names, pool.map(twice, names), strict=True):
            cells = [f"{s:.3f}" for seconds in found for s in (sum(seconds.values()), *seconds.values())]
            print(f"| {name} | {' | '.join(cells)} |", flush=True)
            cold, again = (sum(seconds.values()) for seconds in found)
            late += [name] * (not (cold <= COLD and again <= FROM_DISK))
    print(f"Over {COLD} s cold or {FROM_DISK} s from disk: {', '.join(late) or 'none'}.")


if __name__ == "__main__":
    main()
