"""The cost model of the machine that runs plans, so that predictions and measurements are for the same device.

`fit_this_cpu` measures the rates of the CPU once and stores them, for plans with ``target="this CPU"``.
"""

import functools
import random
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np

from fuser_lab.arguments import number, takes, whole
from fuser_lab.cost.device import THIS_CPU
from fuser_lab.cost.host_fitting import FEWEST, HostFit, HostSample, fitted_host
from fuser_lab.cost.traffic import CostModel
from fuser_lab.cost.work import repeated_work
from fuser_lab.definition.spec import spec
from fuser_lab.dtypes import DataType
from fuser_lab.fusion_definition import FusionDefinition
from fuser_lab.plan.accepted import TARGET
from fuser_lab.plan.planning import segment
from fuser_lab.runtime.clocks import HostClock
from fuser_lab.runtime.this_cpu import keep
from fuser_lab.targets import CPU, labelled, target_of

_SAMPLES = 7
_LEAST, _MOST = 16, 27  # powers of two: sizes in bytes of the arrays with which bandwidth is measured
_MARGIN = 0.5  # smallest share of a measured time that counts as moving bytes; both measurements are noisy


@takes(target=TARGET, nbytes=whole(1))
def machine_model(target: str, nbytes: int) -> CostModel:
    """Return the cost of bytes and launches on this machine, for plans whose tensors occupy ``nbytes`` of memory.

    For the CPU both are measured, once per power of two of the bytes, with a kernel of the runtime that reads one array
    and writes another: caches make small tensors faster than large ones. A launch is the time of that kernel for one
    element. A GPU is described by its data sheet.

    Parameters
    ----------
    target
        The name of a target, such as ``"cpu"``.
    nbytes
        Bytes of the tensors that a run reads and writes, each counted once.

    Raises
    ------
    InputError
        If the target is a GPU and there is none.
    """
    described = target_of(target).device
    if described is not None:
        return CostModel.of(described()())
    return _host(min(max((nbytes - 1).bit_length(), _LEAST), _MOST))


def model_that_ran(timings: Any, plan: Any) -> CostModel | None:
    """Return the cost model of the device on which a plan was timed; None if nothing was measured."""
    devices = [row.device for row in timings.rows if row.samples and row.device]
    if not devices:
        return None
    fusion = plan.fusion
    tensors = {*fusion.tensor_inputs, *fusion.outputs, *plan.segmented.crossing}
    return machine_model(labelled(devices[0]).name, max(sum(tensor.nbytes for tensor in tensors), 1))


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
    prepared = segment(fd, [spec((elements,), DataType.Float)]).prepared(CPU.name)
    clock = HostClock().measured(prepared.bind([source], [target]).steps[0])
    return statistics.median(clock() for _ in range(_SAMPLES))


# The rates of this CPU

Form = Callable[[Any, list[Any]], Any]


def _softmax(o: Any, given: list[Any], dim: int) -> Any:
    powers = o.exp(o.sub(given[0], o.max(given[0], [dim], keepdim=True)))
    return o.div(powers, o.sum(powers, [dim], keepdim=True))


def _layer_norm(o: Any, given: list[Any]) -> Any:
    variance, mean = o.var_mean(given[0], [1], 0, keepdim=True)
    return o.mul(o.sub(given[0], mean), o.rsqrt(o.add(variance, 1e-5)))


def _many(o: Any, given: list[Any]) -> Any:
    value = given[0]
    for step in range(12):
        value = o.add(o.mul(value, given[1]), 0.5 + step)
    return value


# Number of inputs and the computation; together these cover many proportions of bytes and arithmetic.
_FORMS: Final[dict[str, tuple[int, Form]]] = {
    "copy": (1, lambda o, g: o.neg(g[0])),
    "add": (2, lambda o, g: o.add(g[0], g[1])),
    "three": (3, lambda o, g: o.add(o.mul(g[0], g[1]), g[2])),
    "many": (2, _many),
    "quotient": (2, lambda o, g: o.div(g[0], o.sqrt(o.add(o.abs(g[1]), 1.0)))),
    "exp": (1, lambda o, g: o.exp(g[0])),
    "gelu": (1, lambda o, g: o.mul(g[0], o.add(o.tanh(o.mul(g[0], 0.797)), 1.0))),
    "silu": (1, lambda o, g: o.div(g[0], o.add(o.exp(o.neg(g[0])), 1.0))),
    "functions": (1, lambda o, g: o.sin(o.log(o.add(o.exp(g[0]), 1.0)))),
    "row sum": (1, lambda o, g: o.sum(g[0], [1])),
    "row products": (2, lambda o, g: o.sum(o.mul(g[0], g[1]), [1])),
    "column sum": (1, lambda o, g: o.sum(g[0], [0])),
    "softmax": (1, lambda o, g: _softmax(o, g, 1)),
    "column softmax": (1, lambda o, g: _softmax(o, g, 0)),
    "layer norm": (1, _layer_norm),
    "column mean": (1, lambda o, g: o.sub(g[0], o.mul(o.sum(g[0], [0], keepdim=True), 0.001))),
    "transpose": (1, lambda o, g: o.permute(g[0], [1, 0])),
    "direct and transposed": (1, lambda o, g: o.add(g[0], o.permute(g[0], [1, 0]))),
}
_SIZES: Final = (16, 64, 192, 512, 1024, 2048)  # rows, and columns
_NARROW: Final = ("copy", "gelu", "softmax", "column sum")  # forms that are also measured in 16 bits
_LARGE: Final = ("copy", "add", "three", "gelu", "row sum", "column sum", "softmax")  # beyond the caches
_LARGE_SIZE: Final = 4096
_PRODUCT: Final = 768  # rows and columns of the matrices that are multiplied
_RUNS: Final = 15  # runs of each kernel; the fastest counts, because other programs only add time


@takes(seconds=number(above=0))
def fit_this_cpu(seconds: float = 20.0) -> HostFit:
    """Measure kernels on this CPU, fit its rates, and store them for ``target="this CPU"``.

    Pointwise, row, column and transpose kernels of several sizes are compiled and measured in a random order that is
    the same in every run, until the time limit.

    Parameters
    ----------
    seconds
        Time after which no further kernel is measured, once there are twenty.

    Returns
    -------
    HostFit
        The rates, and how well each kernel is predicted from those of other forms.
    """
    begun = time.monotonic()
    order = [(form, DataType.Float, size) for form in _FORMS for size in _SIZES]
    order += [(form, dtype, 512) for form in _NARROW for dtype in (DataType.BFloat16, DataType.Half)]
    order += [(form, DataType.Float, _LARGE_SIZE) for form in _LARGE]
    random.Random(0).shuffle(order)  # noqa: S311 - an order that can be repeated, no secret
    product, samples = _product_rate(), list[HostSample]()
    for form, dtype, size in order:
        if time.monotonic() - begun > seconds and len(samples) >= FEWEST:
            break
        samples += _samples(form, dtype, size)
    found = fitted_host(samples, product)
    keep(found.rates)
    return found


def _samples(form: str, dtype: DataType, size: int) -> Iterator[HostSample]:
    """Yield a sample of a form with a single kernel; nothing if it has several."""
    count, compute = _FORMS[form]
    wide = dtype is DataType.Float
    with FusionDefinition() as fd:
        given = [fd.define_tensor([-1, -1], contiguity=True, dtype=dtype) for _ in range(count)]
        value = compute(fd.ops, given if wide else [fd.ops.cast(one, dtype=DataType.Float) for one in given])
        fd.add_output(value if wide else fd.ops.cast(value, dtype=dtype))
    described = [spec((size, size), dtype) for _ in range(count)]
    plan = segment(fd, described)
    if len(plan.segments) == 1:
        arrays = [one.materialize() for one in described]
        bound = plan.prepared(CPU.name).bind(arrays)
        clock = HostClock().measured(bound.steps[0])
        exprs = plan.segments[0].exprs
        yield HostSample(
            form=form, moved=plan.segments[0].bytes, work=repeated_work(exprs),
            seconds=min(clock() for _ in range(_RUNS)),
        )


def _product_rate() -> float:
    """Return the operations per second of a matrix product of the array library."""
    a, b = np.ones((2, _PRODUCT, _PRODUCT), np.float32)
    clock = HostClock().measured(lambda: a @ b)
    return 2 * _PRODUCT**3 / min(clock() for _ in range(_RUNS))
