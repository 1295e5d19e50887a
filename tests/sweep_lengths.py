"""``python -m tests.sweep_lengths``: rows of many lengths, compiled for many processors, in processes that may abort.

Kernels are specialized by length, and LLVM decides by length, dtype and processor how to vectorize them. Each program
is compiled for the current processor, run, and compared with NumPy in float64; its Numba module then goes through the
same passes for every other processor, up to its machine code, which is not run. An abort is a process that LLVM ended.
Each worker has a separate LLVM process, so that an abort is counted and the sweep continues.
"""

import argparse
import json
import os
import platform
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from fuser_lab import DataType, FusionDefinition, segment
from fuser_lab.runtime.cpu import pipelines
from fuser_lab.runtime.cpu.llvm_process import Compiled, LlvmProcess, Pipeline, Request, WorkerEndedError

ROWS = 4
OWN = "native"
FOREIGN = ("znver5", "znver4", "sapphirerapids", "skylake-avx512", "haswell", "x86-64-v3", "generic")
DTYPES = {
    "float32": (DataType.Float, np.dtype(np.float32), 1e-4),
    "float64": (DataType.Double, np.dtype(np.float64), 1e-10),
    "bfloat16": (DataType.BFloat16, np.dtype(ml_dtypes.bfloat16), 2e-2),
}
_EPS = 1e-5
_LONG = 100
_LONGEST = 10_000
_SEED = 13


def default_lengths() -> tuple[int, ...]:
    """Return the lengths 1 to 300, and 100 more up to 10,000."""
    longer = random.Random(_SEED).sample(range(301, _LONGEST + 1), _LONG)
    return (*range(1, 301), *sorted(longer))


def _softmax(fd: Any, x: Any) -> Any:
    e = fd.ops.exp(fd.ops.sub(x, fd.ops.max(x, [1], keepdim=True)))
    return fd.ops.truediv(e, fd.ops.sum(e, [1], keepdim=True))


def _layer_norm(fd: Any, x: Any) -> Any:
    wide = fd.ops.cast(x, DataType.Float) if x.dtype is DataType.BFloat16 else x
    variance, mean = fd.ops.var_mean(wide, [1], correction=0, keepdim=True)
    y = fd.ops.mul(fd.ops.sub(wide, mean), fd.ops.rsqrt(fd.ops.add(variance, _EPS)))
    return fd.ops.cast(y, x.dtype)


def _softmax_reference(x: Any) -> Any:
    e = np.exp(x - x.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def _layer_norm_reference(x: Any) -> Any:
    return (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + _EPS)


PROGRAMS: dict[str, tuple[Callable[[Any, Any], Any], Callable[[Any], Any]]] = {
    "softmax": (_softmax, _softmax_reference),
    "layer_norm": (_layer_norm, _layer_norm_reference),
    "sum": (lambda fd, x: fd.ops.sum(x, [1]), lambda x: x.sum(1)),
    "max": (lambda fd, x: fd.ops.max(x, [1]), lambda x: x.max(1)),
    "max_abs": (lambda fd, x: fd.ops.max(fd.ops.abs(x), [1]), lambda x: np.abs(x).max(1)),
    "column_sum": (lambda fd, x: fd.ops.sum(x, [0]), lambda x: x.sum(0)),
}


class RecordingProcess(LlvmProcess):
    """An LLVM process that records its requests, and counts its aborts."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[Request] = []
        self.ended = 0

    def attempt(self, request: Request, pipeline: Pipeline | None = None) -> Compiled:
        """Return a compiled module, like the base class."""
        if pipeline in {None, request.pipeline}:
            self.requests.append(request)
        try:
            return super().attempt(request, pipeline)
        except WorkerEndedError:
            self.ended += 1
            raise


@dataclass(kw_only=True)
class Found:
    """Numbers of compilations by processor, and the failures."""

    programs: int = 0
    modules: Counter[str] = field(default_factory=Counter)
    aborts: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


def inputs_of(length: int, dtype: np.dtype[Any]) -> Any:
    """Return rows of a length; one of them has a NaN."""
    x = np.random.default_rng(length).normal(size=(ROWS, length)).astype(dtype)
    x[1, length // 2] = np.nan
    return x


def swept(
    process: RecordingProcess, length: int, dtypes: Sequence[str], programs: Sequence[str], cpus: Sequence[str],
) -> Found:
    """Return the findings for rows of one length; kernels of this process must be compiled by ``process``."""
    found = Found()
    for dtype in dtypes:
        kind, numpy_dtype, tolerance = DTYPES[dtype]
        x = inputs_of(length, numpy_dtype)
        for program in programs:
            what = f"{program} of {dtype} rows of {length}"
            write, reference = PROGRAMS[program]
            with FusionDefinition() as fd:
                fd.add_output(write(fd, fd.define_tensor(shape=[-1, -1], contiguity=True, dtype=kind)))
            process.requests.clear()
            process.ended = 0
            result = np.asarray(segment(fd, [x]).run([x])[0], np.float64)
            found.programs += 1
            found.modules[OWN] += len(process.requests)
            found.aborts += [f"{what} for the processor that is here"] * process.ended
            with np.errstate(invalid="ignore"):
                expected = reference(x.astype(np.float64))
            if not np.allclose(result, expected, rtol=tolerance, atol=tolerance, equal_nan=True):
                found.wrong.append(what)
            for request in tuple(process.requests):
                for cpu in cpus:
                    machine = {**request.machine, "cpu": cpu, "features": pipelines.features_of(cpu, "")}
                    try:
                        process.attempt(replace(request, machine=machine))
                    except WorkerEndedError:
                        found.aborts.append(f"{what} for {cpu}")
                    found.modules[cpu] += 1
    return found


def _work() -> None:
    """Answer each line of JSON, a request, with another, its findings."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    pipelines.LLVM = process = RecordingProcess()
    for line in sys.stdin:
        found = swept(process, **json.loads(line))
        print(json.dumps(vars(found)), file=answers, flush=True)


Task = dict[str, Any]  # arguments of `swept`, as JSON has them


class _Workers:
    """Processes that sweep one length after another; one that ends counts as an abort and is replaced."""

    def __init__(self, tasks: Iterator[Task], report: Callable[[dict[str, Any]], None]) -> None:
        self._tasks, self._report, self._lock = tasks, report, threading.Lock()

    def run(self, count: int) -> None:
        """Sweep all lengths in a number of processes."""
        threads = [threading.Thread(target=self._feed, daemon=True) for _ in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _feed(self) -> None:
        worker: subprocess.Popen[str] | None = None
        while True:
            with self._lock:
                task = next(self._tasks, None)
            if task is None:
                break
            worker = worker or subprocess.Popen(
                [sys.executable, "-m", "tests.sweep_lengths", "--worker"], stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, text=True,
            )
            assert worker.stdin is not None
            assert worker.stdout is not None
            worker.stdin.write(json.dumps(task) + "\n")
            worker.stdin.flush()
            line = worker.stdout.readline()
            found = json.loads(line) if line else vars(Found(aborts=[f"the process, at rows of {task['length']}"]))
            with self._lock:
                self._report(found)
            if not line:
                worker.communicate()
                worker = None
        if worker is not None:
            worker.communicate()


def _numbers(text: str) -> list[int]:
    """Return the numbers of ``"1-300,512"``."""
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def main() -> int:
    """Sweep, print the findings, and return 0 if there was no failure."""
    parser = argparse.ArgumentParser(prog="python -m tests.sweep_lengths", description=__doc__)
    parser.add_argument("--lengths", type=_numbers, default=default_lengths(), help='such as "1-300,512"')
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=list(DTYPES))
    parser.add_argument("--programs", nargs="+", choices=PROGRAMS, default=list(PROGRAMS))
    parser.add_argument("--cpu", nargs="*", help="processors in addition to the current one, by LLVM's names")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        _work()
        return 0
    foreign = FOREIGN if platform.machine() in {"x86_64", "AMD64"} else ("generic",)
    cpus = list(foreign if options.cpu is None else options.cpu)
    # The longest first, which balances the processes at the end.
    tasks = [
        {"length": length, "dtypes": options.dtypes, "programs": options.programs, "cpus": cpus}
        for length in sorted(options.lengths, reverse=True)
    ]
    total, started, done = Found(), time.monotonic(), 0

    def report(found: dict[str, Any]) -> None:
        nonlocal done
        done += 1
        total.programs += found["programs"]
        total.modules.update(found["modules"])
        total.aborts += found["aborts"]
        total.wrong += found["wrong"]
        for kind in ("aborts", "wrong"):
            for what in found[kind]:
                print(f"{kind}: {what}", flush=True)
        if done % 20 == 0:
            print(f"{done} of {len(tasks)} lengths, {time.monotonic() - started:.0f} s", flush=True)

    place = tempfile.mkdtemp(prefix="fuser_lab_sweep_")
    os.environ["FUSER_LAB_CACHE"] = place
    try:
        _Workers(iter(tasks), report).run(options.workers)
    finally:
        shutil.rmtree(place, ignore_errors=True)
    names = [f"{OWN} ({_host()})", *cpus]
    print(
        f"{len(tasks)} lengths x {len(options.programs)} programs x {len(options.dtypes)} dtypes x {len(names)} "
        f"processors ({', '.join(names)}): {sum(total.modules.values())} modules compiled, {total.programs} programs "
        f"run and compared with NumPy, {len(total.wrong)} wrong, {len(total.aborts)} aborts, "
        f"{time.monotonic() - started:.0f} s with {options.workers} processes.",
    )
    return 1 if total.aborts or total.wrong else 0


def _host() -> str:
    import llvmlite.binding as llvm

    return os.environ.get("NUMBA_CPU_NAME") or str(llvm.get_host_cpu_name())


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("NUMBA_NUM_THREADS", "1")
    sys.path.insert(0, str(Path(__file__).parents[1]))
    sys.exit(main())
