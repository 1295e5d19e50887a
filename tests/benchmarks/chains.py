"""What compiling chains of pointwise ops costs: ``python -m tests.benchmarks.chains [--ops N,...] [--runs R]``.

Processor seconds from the definition to machine code in a session that has compiled before: those of this process and
of LLVM's, the least of some runs. Wall time would include other programs. A chain for CUDA is compiled for compute
capability 9.0, which needs no GPU; a chain for the CPU is run once on a small array. Linux only.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import fuser_lab as fl
from fuser_lab import FusionDefinition
from tests.kernels import generate

PROMISED = 2.0  # seconds for 1,200 ops
SHAPE = (64, 1024)


@dataclass(frozen=True, kw_only=True)
class Chain:
    """A kind of chain: ``step(o, number, z, x, y)`` is one op, of the value before and of two inputs."""

    name: str
    step: Callable[..., Any]

    def definition(self, ops: int, seed: int = 0) -> FusionDefinition:
        """Return a chain of ops; chains of different seeds share no machine code."""
        with FusionDefinition() as fd:
            x, y = (fd.define_tensor(shape=[-1, -1], contiguity=True) for _ in range(2))
            z = fd.ops.mul(x, 1.0 + seed / 1024)
            for number in range(1, ops):
                z = self.step(fd.ops, number, z, x, y)
            fd.add_output(z)
        return fd


def arithmetic(o: Any, number: int, z: Any, x: Any, y: Any) -> Any:
    return (o.add(z, y), o.mul(z, 0.99), o.sub(z, x))[number % 3]


def mixed(o: Any, number: int, z: Any, x: Any, y: Any) -> Any:
    """Arithmetic, functions, and choices."""
    steps: tuple[Callable[[], Any], ...] = (
        lambda: o.add(z, y), lambda: o.tanh(z), lambda: o.mul(z, 0.9), lambda: o.exp(z), lambda: o.sub(z, x),
        lambda: o.sigmoid(z), lambda: o.relu(z), lambda: o.where(o.gt(z, x), z, y),
    )
    return steps[number % len(steps)]()


CHAINS = (Chain(name="arithmetic", step=arithmetic), Chain(name="mixed", step=mixed))


def processor_seconds() -> float:
    """Return the processor time of this process, and of LLVM's, which is running after the first compilation."""
    from fuser_lab.runtime.cpu.llvm_process import LLVM

    worker = LLVM._worker
    found = time.process_time()
    if worker is not None and worker.poll() is None:
        fields = Path(f"/proc/{worker.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        found += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")  # in user and in system mode
    return found


def cost(chain: Chain, ops: int, target: str, seed: int = 0) -> float:
    """Return the processor seconds of compiling a chain."""
    inputs = [np.ones(SHAPE, np.float32)] * 2
    begin = processor_seconds()
    plan = fl.segment(chain.definition(ops, seed), inputs)
    if target == "cpu":
        plan.prepare("cpu").run(inputs)
    else:
        from fuser_lab.runtime.gpu.cubins import machine_code_of

        for segment in plan.segments:
            assert segment.scheduler is not None
            machine_code_of(generate(segment.fusion, segment.scheduler, target), (9, 0))
    return processor_seconds() - begin


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.chains")
    parser.add_argument("--ops", default="150,600,1200", help="numbers of ops, separated by commas")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--targets", default="cpu,cuda")
    options = parser.parse_args()
    print("| chain | target | ops | processor, s | wall, s |\n|---|---|---|---|---|")
    for target in options.targets.split(","):
        for chain in CHAINS:
            cost(chain, 8, target, seed=99)
            for ops in map(int, options.ops.split(",")):
                found = []
                for run in range(options.runs):
                    begin = time.perf_counter()
                    found.append((cost(chain, ops, target, run), time.perf_counter() - begin))
                seconds, wall = min(found)
                print(f"| {chain.name} | {target} | {ops} | {seconds:.2f} | {wall:.2f} |", flush=True)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        os.environ["FUSER_LAB_CACHE"] = place
        main()
