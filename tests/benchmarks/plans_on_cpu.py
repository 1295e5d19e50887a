"""Predicted and measured orders of a fusion's plans on this CPU: python -m tests.benchmarks.plans_on_cpu.

Fit the rates first: ``python -m fuser_lab fit --this-cpu``. Fusions are measured as described in
`tests.benchmarks.plans`, in the small form if the fusion has one, after all have been compiled.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

import fuser_lab as fl
from fuser_lab.runtime.clocks import HostClock
from fuser_lab.runtime.plan.ahead import compile_kernel
from tests.benchmarks.plans import OPS, WAYS, in_order, parsed, run

MOST: Final = 64 << 20  # bytes of inputs and outputs
BATCH: Final = 3  # runs of a plan per sample, the least of which counts


class OnCpu:
    """Plans on this processor."""

    target = "this CPU"
    name = "this CPU"
    waits = True

    def entries(self, pattern: str) -> list[str]:
        return [e.name for e in fl.corpus(pattern) if e.ops <= OPS and (e.small_script or e.bytes <= MOST)]

    def load(self, name: str) -> tuple[Any, list[Any]]:
        entry = fl.corpus()[name]
        return entry.load(small=bool(entry.small_script))

    def compile(self, plan: fl.Plan) -> None:
        strides = [one.strides for one in plan.inputs if hasattr(one, "strides")]
        for kernel in plan.prepare("cpu").generated(strides):
            compile_kernel(kernel, None)

    def arrays(self, inputs: Sequence[Any]) -> list[Any]:
        return [one.materialize() if hasattr(one, "materialize") else one for one in inputs]

    def measured(self, plan: fl.Plan, arrays: Sequence[Any]) -> Callable[[], float]:
        bound = plan.prepare("cpu").bind(arrays)
        clock = HostClock().measured(lambda: [step() for step in bound.steps])
        return lambda: min(clock() for _ in range(BATCH))

    def parts(self, plan: fl.Plan, arrays: Sequence[Any]) -> list[float]:
        bound = plan.prepare("cpu").bind(arrays)
        return in_order(HostClock().measured_in_order(bound.steps))

    def free(self) -> None:
        pass


if __name__ == "__main__":
    run(OnCpu, OnCpu(), parsed(__doc__, "*/*/0"), WAYS)
