"""Compile time and code of the CUDA compilers: ``python -m tests.benchmarks.gpu.compilers [--only NAME,...]``.

Each line is one workload of `tests.benchmarks.gpu`, compiled by numba-cuda and by numba-cuda-mlir in one process:
seconds to compile its kernels without a cache (to PTX; and to machine code, which is linked the same way for both),
registers, and the device time of a run, each as an absolute value and as the ratio of numba-cuda-mlir to numba-cuda.
Runs are checked against torch, and timed alternately. Without a GPU, ``--no-device`` prints the costs of compiling.
"""

import argparse
import math
import os
import re
import statistics
import time
import traceback
from collections.abc import Sequence
from typing import Any

import fuser_lab as fl
from fuser_lab.codegen.pipeline import GeneratedKernel, evaluated_because
from fuser_lab.runtime.gpu.ptx import compile_phases, machine_code
from fuser_lab.targets.cuda_compiler import COMPILERS, VARIABLE
from tests.benchmarks.gpu.workloads import WORKLOADS
from tests.benchmarks.second import SECOND
from tests.benchmarks.written import Written

ALL: tuple[Written, ...] = (*WORKLOADS, *SECOND)
DOZEN = (
    "bias_gelu", "softmax_8k", "softmax_128k", "layernorm_fwd", "layernorm_bwd", "col_sum", "all_sum", "transpose_add",
    "rope_fwd", "to_float8", "running_sums", "max_pool_2",
)
ROUNDS = 3  # of alternating measurements


def kernels_of(load: Written, compiler: str) -> list[GeneratedKernel]:
    os.environ[VARIABLE] = compiler
    plan = fl.segment(load.definition(), load.specs())
    return [s.kernel("cuda") for s in plan.segments if not evaluated_because(s.fusion, s.scheduler)]


def compiling(kernels: Sequence[GeneratedKernel]) -> tuple[float, float, int, int]:
    """Seconds to PTX and to machine code, the most registers, and bytes spilled."""
    begin = time.perf_counter()
    phases = [phase for kernel in kernels for phase in compile_phases(kernel)]
    to_ptx = time.perf_counter() - begin
    logs = [machine_code(phase.ptx, (9, 0))[1] for phase in phases]
    seconds = time.perf_counter() - begin
    registers = max((int(n) for log in logs for n in re.findall(r"Used (\d+) registers", log)), default=0)
    return to_ptx, seconds, registers, sum(int(n) for log in logs for n in re.findall(r"(\d+) bytes spill", log))


def runs(load: Written) -> dict[str, Any]:
    """By compiler, the checked run of a plan into newly allocated outputs."""
    from tests.benchmarks.gpu.__main__ import captured, checked

    inputs, found = load.inputs("cuda"), {}
    for compiler in COMPILERS:
        os.environ[VARIABLE] = compiler
        plan = fl.segment(load.definition(), inputs)
        run, error = checked(load, plan, inputs, plan.prepare("cuda").run(inputs))
        if not error < 1:
            print(f"  {load.name} by {compiler}: WRONG, error {error:.2f}")
            continue
        found[compiler] = captured(run)
    return found


def timed(found: dict[str, Any], rep: int) -> dict[str, float]:
    from tests.benchmarks.gpu.__main__ import milliseconds

    samples: dict[str, list[float]] = {compiler: [] for compiler in found}
    for _ in range(ROUNDS):
        for compiler, run in found.items():
            samples[compiler].append(milliseconds(run, rep).median)
    return {compiler: statistics.median(values) for compiler, values in samples.items()}


def mean(ratios: Sequence[float]) -> float:
    known = [r for r in ratios if not math.isnan(r)]
    return math.exp(statistics.fmean(map(math.log, known))) if known else math.nan


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.gpu.compilers")
    parser.add_argument("--only", default=",".join(DOZEN), help="names, separated by commas; all for all")
    parser.add_argument("--rep", type=int, default=30, help="milliseconds to measure each call for, three times")
    parser.add_argument("--no-device", action="store_true", help="compile only")
    options = parser.parse_args()
    chosen = [w for w in ALL if options.only == "all" or w.name in options.only.split(",")]
    for compiler in COMPILERS:  # loads it
        begin = time.perf_counter()
        compiling(kernels_of(WORKLOADS[0], compiler))
        print(f"{compiler}: the first kernel of the process takes {time.perf_counter() - begin:.2f} s")
    print("| workload | PTX, s: numba | mlir | ratio | machine code, s: numba | mlir | ratio | registers | us: numba | "
          "mlir | ratio |")
    print("|---" * 11 + "|")
    columns: list[list[float]] = [[], [], []]
    for load in chosen:
        try:
            a, b = (compiling(kernels_of(load, compiler)) for compiler in COMPILERS)
            times = {} if options.no_device else timed(runs(load), options.rep)
        except Exception as error:  # noqa: BLE001 - the others are measured all the same
            print(f"{load.name}: {error!r:.500}")
            traceback.print_exc(limit=-3)
            continue
        us = [times.get(compiler, math.nan) * 1e3 for compiler in COMPILERS]
        ratios = [b[0] / a[0], b[1] / a[1], us[1] / us[0]]
        for column, ratio in zip(columns, ratios, strict=True):
            column.append(ratio)
        registers = " / ".join(f"{x[2]}" + (f" ({x[3]} B spilled)" if x[3] else "") for x in (a, b))
        print(f"| {load.name} | {a[0]:.2f} | {b[0]:.2f} | {ratios[0]:.2f} | {a[1]:.2f} | {b[1]:.2f} | {ratios[1]:.2f} "
              f"| {registers} | {us[0]:.1f} | {us[1]:.1f} | {ratios[2]:.3f} |", flush=True)
    print(f"geometric means of the ratios: PTX {mean(columns[0]):.2f}, machine code {mean(columns[1]):.2f}, "
          f"device time {mean(columns[2]):.3f}")


if __name__ == "__main__":
    main()
