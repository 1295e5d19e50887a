"""The cost model of the machine that runs plans, so that predictions and measurements are for the same device."""

import functools
import statistics
from typing import Any

import numpy as np

from fuser_lab.arguments import one_of, takes, whole
from fuser_lab.cost.traffic import CostModel
from fuser_lab.definition.spec import spec
from fuser_lab.dtypes import DataType
from fuser_lab.fusion_definition import FusionDefinition
from fuser_lab.plan.planning import segment
from fuser_lab.runtime.clocks import HostClock
from fuser_lab.runtime.this_gpu import this_gpu

THIS_CPU = "this CPU"
_SAMPLES = 7
_LEAST, _MOST = 16, 27  # powers of two: sizes in bytes of the arrays with which bandwidth is measured
_MARGIN = 0.5  # the smallest share of a measured time that counts as moving bytes, because the two measurements scatter


@takes(target=one_of("cpu", "cuda"), nbytes=whole(1))
def machine_model(target: str, nbytes: int) -> CostModel:
    """Return the cost of bytes and launches on this machine, for plans whose tensors occupy ``nbytes`` of memory.

    For the CPU both are measured, once per power of two of the bytes, with a kernel of the runtime that reads one array
    and writes another: caches make small tensors faster than large ones. A launch is the time of that kernel for one
    element. A GPU is described by its data sheet.

    Parameters
    ----------
    target
        ``"cpu"`` or ``"cuda"``.
    nbytes
        Bytes of the tensors that a run reads and writes, each counted once.

    Raises
    ------
    InputError
        If the target is ``"cuda"`` and there is no GPU.
    """
    if target == "cuda":
        return CostModel.of(this_gpu())
    return _host(min(max((nbytes - 1).bit_length(), _LEAST), _MOST))


def model_that_ran(timings: Any, plan: Any) -> CostModel | None:
    """Return the cost model of the device on which a plan was timed; None if nothing was measured."""
    devices = [row.device for row in timings.rows if row.samples and row.device]
    if not devices:
        return None
    fusion = plan.fusion
    tensors = {*fusion.tensor_inputs, *fusion.outputs, *plan.segmented.crossing}
    target = "cpu" if devices[0].startswith("CPU") else "cuda"
    return machine_model(target, max(sum(tensor.nbytes for tensor in tensors), 1))


@functools.cache
def _host(power: int) -> CostModel:
    elements = (1 << power) // 8  # half of the bytes are read and half written, 4 for each element
    launch, whole_time = _seconds(1), _seconds(elements)
    moving = max(whole_time - launch, _MARGIN * whole_time)
    return CostModel(device=THIS_CPU, bandwidth=8 * elements / moving, launch=launch)


def _seconds(elements: int) -> float:
    """Return the median time of a kernel that reads and writes an array of Float."""
    with FusionDefinition() as fd:
        given = fd.define_tensor(shape=[-1], contiguity=True, dtype=DataType.Float)
        fd.add_output(fd.ops.neg(given))
    source, target = np.ones(elements, np.float32), np.empty(elements, np.float32)
    prepared = segment(fd, [spec((elements,), DataType.Float)]).prepared("cpu")
    clock = HostClock().measured(prepared.bind([source], [target]).steps[0])
    return statistics.median(clock() for _ in range(_SAMPLES))
