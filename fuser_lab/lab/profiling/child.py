"""One run of a plan on the GPU, with profiling enabled only for that run: the end of the script that ``ncu`` starts."""

import importlib
from collections.abc import Sequence
from typing import Any

from fuser_lab.definition.spec import TensorSpec
from fuser_lab.plan import Plan
from fuser_lab.runtime.arrays import from_numpy_as


def run(plan: Plan, inputs: Sequence[Any]) -> None:
    """Run a plan twice on arrays of the given descriptions; the second run is profiled."""
    torch: Any = importlib.import_module("torch")
    arrays = [
        from_numpy_as("torch", value.materialize()).cuda() if isinstance(value, TensorSpec) else value
        for value in inputs
    ]
    plan.run(arrays)  # compiles and loads the kernels
    torch.cuda.synchronize()
    torch.cuda.profiler.start()
    plan.run(arrays)
    torch.cuda.synchronize()
    torch.cuda.profiler.stop()
