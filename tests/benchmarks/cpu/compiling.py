"""What a new kernel costs on the CPU: ``python -m tests.benchmarks.cpu.compiling [--only NAME,...]``.

Processor seconds from the definition to the machine code of all kernels of a workload, in a session that has compiled
before, with an empty cache: those of this process and of LLVM's. The workloads are those of the GPU's benchmark, with a
sixteenth of the elements.
"""

import argparse
import os
import tempfile
import time

import fuser_lab as fl
from fuser_lab import FusionDefinition
from fuser_lab.codegen.pipeline import evaluated_because
from tests.benchmarks.chains import CHAINS, processor_seconds
from tests.benchmarks.cpu.variants import SETS
from tests.kernels import generate

PROMISED = 0.6  # seconds for each of the first set


def cost(definition: FusionDefinition, specs: list[object]) -> tuple[float, int]:
    """Return the processor seconds and the number of kernels of a plan."""
    from fuser_lab.runtime.cpu_kernels import functions_of

    begin = processor_seconds()
    plan = fl.segment(definition, specs)
    made = [s for s in plan.segments if not evaluated_because(s.fusion, s.scheduler)]
    for segment in made:
        assert segment.scheduler is not None
        kernel = generate(segment.fusion, segment.scheduler, "cpu")
        functions_of(kernel.source, [phase.name for phase in kernel.kernel_ir.phases])
    return processor_seconds() - begin, len(made)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.cpu.compiling")
    parser.add_argument("--only", default="", help="names, separated by commas")
    parser.add_argument("--set", default="first", choices=["first", "second"])
    options = parser.parse_args()
    cost(CHAINS[1].definition(20), [fl.spec((64, 1024))] * 2)
    print("| workload | kernels | processor, s | wall, s |\n|---|---|---|---|")
    late = []
    for load in SETS[options.set]:
        if options.only and load.name not in options.only.split(","):
            continue
        begin = time.perf_counter()
        seconds, kernels = cost(load.definition(), load.specs())
        late += [load.name] * (seconds > PROMISED)
        print(f"| {load.name} | {kernels} | {seconds:.2f} | {time.perf_counter() - begin:.2f} |", flush=True)
    print(f"Over {PROMISED} s: {', '.join(late) or 'none'}.")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        os.environ["FUSER_LAB_CACHE"] = place
        main()
