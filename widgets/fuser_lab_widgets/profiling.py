"""The profile of the plan on show, made on request."""

import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fuser_lab import targets
from fuser_lab.definition.spec import TensorSpec
from fuser_lab.errors import UnsupportedError

if TYPE_CHECKING:
    from fuser_lab.lab.profiling import PlanProfile


def profile_plan(plan: Any, inputs: Sequence[Any] | None, target: str) -> "PlanProfile":
    """Return the profile of a plan's kernels for a target: run on the inputs if there are any, otherwise compiled.

    Raises
    ------
    UnsupportedError
        If the target is the CPU and there are no inputs for it.
    FuserLabError
        If the plan does not run, or its kernels do not compile.
    """
    profile: Any = importlib.import_module("fuser_lab.lab.profiling").profile  # loads the runtime
    if inputs is not None and _target_of(inputs) == target:
        arrays = [v.materialize(seed) if isinstance(v, TensorSpec) else v for seed, v in enumerate(inputs)]
        measured: PlanProfile = profile(plan, arrays)
        return measured
    if targets.is_on_host(target):
        raise UnsupportedError(
            "A profile on the CPU runs the kernels; give the explorer arrays in host memory, as in explore(fd, inputs)."
        )
    compiled: PlanProfile = profile(plan)
    return compiled


def _target_of(inputs: Sequence[Any]) -> str:
    from fuser_lab.runtime.arrays import describe
    from fuser_lab.runtime.binding import device_of

    arrays = [describe(value) for value in inputs if not isinstance(value, TensorSpec)]
    return targets.target_of(device_of(arrays)).name
