"""The cost model of the machine that runs plans, so that predictions and measurements are for the same device.

`fit_this_cpu` measures the rates of the CPU once and stores them, for plans with ``target="this CPU"``.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from fuser_lab.api.fusion_definition import FusionDefinition
from fuser_lab.arguments import number, takes, whole
from fuser_lab.codegen.host_features import host_features
from fuser_lab.codegen.pipeline import GeneratedKernel
from fuser_lab.cost.device import THIS_CPU
from fuser_lab.cost.host_fitting import FEWEST, HostFit, HostSample, fitted_host
from fuser_lab.cost.host_time import HostCaches
from fuser_lab.cost.traffic import CostModel
from fuser_lab.definition.spec import TensorSpec, spec
from fuser_lab.dtypes import DataType
from fuser_lab.plan.accepted import TARGET
from fuser_lab.plan.plan import Plan
from fuser_lab.plan.planning import segment
from fuser_lab.runtime.clocks import HostClock
from fuser_lab.runtime.cpu.this_cpu import caches_here, keep
from fuser_lab.runtime.plan.ahead import compile_ahead
from fuser_lab.targets import CPU, target_of, target_of_label

_SAMPLES = 7  # timed runs per kernel, of which the fastest counts: a busy machine makes runs only slower
_BEYOND = 1.5  # times the calibrated bandwidth above which a kernel contradicts it; caches may hold parts of tensors
_PART = 4  # a kernel that moves a smaller part of all bytes, 1 / this, may find them in a faster cache
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
    power = _power(nbytes)
    if power not in _calibrated:
        _calibrated[power] = _host(power)
    return _calibrated[power]


def _power(nbytes: int) -> int:
    return min(max((nbytes - 1).bit_length(), _LEAST), _MOST)


def model_that_ran(timings: Any, plan: Any) -> CostModel | None:
    """Return the cost model of the device on which a plan was timed; None if nothing was measured.

    A kernel that moved its bytes much faster than the calibrated bandwidth of a CPU contradicts it: the machine was
    busy then. The bandwidth is measured again; if the kernel was still faster, its rate is taken, and a note says so.
    """
    devices = [row.device for row in timings.rows if row.samples and row.device]
    if not devices:
        return None
    fusion = plan.fusion
    tensors = {*fusion.tensor_inputs, *fusion.outputs, *plan.segmented.crossing}
    target, nbytes = target_of_label(devices[0]), max(sum(tensor.nbytes for tensor in tensors), 1)
    model = machine_model(target.name, nbytes)
    rates = [1e9 * row.bandwidth for row in timings.rows if row.samples and _PART * row.bytes_io >= nbytes]
    fastest = max((rate for rate in rates if not math.isnan(rate)), default=0.0)
    if target.device is not None or fastest <= _BEYOND * model.bandwidth:
        return model
    again = _host(_power(nbytes))
    model = again if again.bandwidth > model.bandwidth else model
    if fastest > _BEYOND * model.bandwidth:
        note = f"the rate of a measured kernel, because the calibration gave only {model.bandwidth / 1e9:.0f} GB/s"
        model = replace(model, bandwidth=fastest, note=note)
    _calibrated[_power(nbytes)] = model
    return model


_calibrated: dict[int, CostModel] = {}  # models of this machine by the power of two of the bytes


def _host(power: int) -> CostModel:
    elements = (1 << power) // 8  # half of the bytes are read and half written, 4 for each element
    launch, whole_time = _seconds(1), _seconds(elements)
    moving = max(whole_time - launch, _MARGIN * whole_time)
    return CostModel(device=THIS_CPU, bandwidth=8 * elements / moving, launch=launch)


def _seconds(elements: int) -> float:
    """Return the shortest time of a kernel that reads and writes an array of Float."""
    with FusionDefinition() as fd:
        numbers = fd.define_tensor(shape=[-1], contiguity=True, dtype=DataType.Float)
        fd.add_output(fd.ops.neg(numbers))
    source, target = np.ones(elements, np.float32), np.empty(elements, np.float32)
    prepared = segment(fd, [spec((elements,), DataType.Float)]).prepare(CPU.name)
    clock = HostClock().measured(prepared.bind([source], [target]).steps[0])
    return min(clock() for _ in range(_SAMPLES))


# The rates of this CPU

Shape = tuple[int, ...]
Computation = Callable[[Any, list[Any], Shape], Any]  # of ops, inputs and their shape; a list for several outputs


def _softmax(o: Any, sources: list[Any], dim: int) -> Any:
    powers = o.exp(o.sub(sources[0], o.max(sources[0], [dim], keepdim=True)))
    return o.div(powers, o.sum(powers, [dim], keepdim=True))


def _layer_norm(o: Any, sources: list[Any], _: Shape) -> Any:
    variance, mean = o.var_mean(sources[0], [1], 0, keepdim=True)
    return o.mul(o.sub(sources[0], mean), o.rsqrt(o.add(variance, 1e-5)))


def _many(o: Any, sources: list[Any], _: Shape) -> Any:
    value = sources[0]
    for step in range(12):
        value = o.add(o.mul(value, sources[1]), 0.5 + step)
    return value


def _functions(o: Any, sources: list[Any], _: Shape) -> Any:
    return o.mul(o.log(o.add(o.exp(sources[0]), 1.0)), o.tanh(sources[0]))


def _moved_and_summed(o: Any, sources: list[Any], shape: Shape) -> Any:
    outer, inner, points = shape
    rows = o.reshape(o.permute(sources[0], [0, 2, 1]), [outer * points, inner])
    return [rows, o.sum(rows, [0])]


def _halves_turned(o: Any, sources: list[Any], shape: Shape) -> Any:
    rows, columns = shape
    low, high = (o.slice(sources[0], [0, start], [rows, start + columns // 2]) for start in (0, columns // 2))
    return o.add(o.mul(sources[0], sources[1]), o.cat([o.neg(high), low], dim=1))


def _left_columns(o: Any, sources: list[Any], shape: Shape) -> Any:
    rows, columns = shape
    return o.neg(o.slice(sources[0], [0, 0], [rows, columns // 32]))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Form:
    """A computation of ``inputs`` tensors of one of several shapes.

    Shapes that differ in the first size alone often share a compiled kernel.
    """

    compute: Computation
    shapes: tuple[Shape, ...]
    inputs: int = 1
    dtype: DataType = DataType.Float
    strategy: str = "bottom_up"


# Rows and columns of pointwise kernels: 64 KiB to 16 MiB of Float.
_FLAT: Final = ((64, 256), (1024, 256), (4096, 1024))
_ALL: Final = (*_FLAT, (256, 256), (16384, 1024))  # the same from 64 KiB to 64 MiB
_ROWS: Final = ((1024, 1024), (4096, 1024), (64, 1024))  # rows and columns of kernels that reduce rows
# The first ones are measured first: each third is compiled together.
_FORMS: Final[dict[str, _Form]] = {
    "copy": _Form(compute=lambda o, g, _: o.neg(g[0]), shapes=(*_ALL, (8, 8))),
    "many": _Form(compute=_many, inputs=2, shapes=_FLAT),
    "gelu": _Form(compute=lambda o, g, _: o.mul(g[0], o.add(o.tanh(o.mul(g[0], 0.797)), 1.0)), shapes=_FLAT),
    "bfloat16": _Form(
        compute=lambda o, g, _: o.cast(o.add(o.mul(g[0], g[1]), 1.0), dtype=DataType.BFloat16), inputs=2,
        dtype=DataType.BFloat16, shapes=_ALL,
    ),
    "softmax": _Form(compute=lambda o, g, _: _softmax(o, g, 1), shapes=_ROWS),
    "layer norm": _Form(compute=_layer_norm, shapes=((1024, 768), (8192, 768), (64, 768))),
    "column sum": _Form(compute=lambda o, g, _: o.sum(g[0], [0]), shapes=((1024, 1024), (8192, 1024), (64, 1024))),
    "transpose": _Form(
        compute=lambda o, g, _: o.neg(o.permute(g[0], [1, 0])), shapes=((512, 1000), (2048, 2048), (64, 256)),
    ),
    "halves turned": _Form(compute=_halves_turned, inputs=2, shapes=((4096, 128), (65536, 128), (256, 128))),
    "add": _Form(compute=lambda o, g, _: o.add(g[0], g[1]), inputs=2, shapes=_ALL),
    "quotient": _Form(compute=lambda o, g, _: o.div(g[0], o.sqrt(o.add(o.abs(g[1]), 1.0))), inputs=2, shapes=_FLAT),
    "row sum": _Form(compute=lambda o, g, _: o.sum(g[0], [1]), shapes=_ROWS),
    "softmax of short rows": _Form(
        compute=lambda o, g, _: _softmax(o, g, 1), shapes=((16384, 16), (131072, 16), (1024, 16)),
    ),
    "moved and summed": _Form(compute=_moved_and_summed, shapes=((16, 192, 49), (64, 192, 49))),
    "direct and transposed": _Form(
        compute=lambda o, g, _: o.add(g[0], o.permute(g[0], [1, 0])), shapes=((512, 512), (2048, 2048)),
    ),
    "transposed factor": _Form(
        compute=lambda o, g, _: o.sum(o.mul(g[0], o.permute(g[1], [0, 2, 1])), [0, 2]), inputs=2,
        shapes=((32, 192, 192), (8, 192, 192)),
    ),
    "column softmax": _Form(compute=lambda o, g, _: _softmax(o, g, 0), shapes=((512, 1024), (64, 256))),
    "one after another": _Form(
        compute=lambda o, g, _: o.mul(o.add(o.neg(g[0]), g[1]), g[0]), inputs=2, strategy="unfused", shapes=_FLAT,
    ),
    "after a large one": _Form(
        compute=lambda o, g, _: o.neg(o.sum(g[0], [1])), strategy="unfused", shapes=((16384, 1024),),
    ),
    "three": _Form(compute=lambda o, g, _: o.add(o.mul(g[0], g[1]), g[2]), inputs=3, shapes=_ALL),
    "exp": _Form(compute=lambda o, g, _: o.exp(g[0]), shapes=_FLAT),
    "functions": _Form(compute=_functions, shapes=_FLAT),
    "library": _Form(compute=lambda o, g, _: o.tan(o.atan(g[0])), shapes=((64, 256), (1024, 256))),
    "half": _Form(
        compute=lambda o, g, _: o.cast(o.mul(o.cast(g[0], dtype=DataType.Float), 3.0), dtype=DataType.Half),
        dtype=DataType.Half, shapes=_FLAT,
    ),
    "short row sums": _Form(
        compute=lambda o, g, _: o.sum(o.mul(g[0], g[1]), [1]), inputs=2, shapes=((16384, 49), (1024, 49)),
    ),
    "softmax of odd rows": _Form(compute=lambda o, g, _: _softmax(o, g, 1), shapes=((8192, 100), (512, 100))),
    "left columns": _Form(compute=_left_columns, shapes=((4096, 1024), (16384, 1024))),
    "scan": _Form(compute=lambda o, g, _: o.neg(o.cumsum(o.abs(g[0]), 1)), shapes=((512, 1024), (64, 1024))),
}
_TOGETHER: Final = 9  # forms that are compiled together
_PRODUCT: Final = 768  # rows and columns of the matrices that are multiplied
_RUNS: Final = 15  # runs of each kernel at least; the fastest counts, because other programs only add time
_SECONDS: Final = 0.05  # for which short kernels run more often


@takes(seconds=number(above=0))
def fit_this_cpu(seconds: float = 20.0) -> HostFit:
    """Measure kernels on this CPU, fit its rates, and store them for ``target="this CPU"``.

    Kernels of several forms and sizes are compiled and measured in a fixed order until the time limit.

    Parameters
    ----------
    seconds
        Time after which no further kernel is compiled or measured, once there are twenty.

    Returns
    -------
    HostFit
        The rates, and how well each kernel is predicted from those of other forms.
    """
    until = time.monotonic() + seconds
    names = list(_FORMS)
    product, samples, caches = _product_rate(), list[HostSample](), caches_here()
    for first in range(0, len(names), _TOGETHER):
        forms = [(name, _FORMS[name]) for name in names[first : first + _TOGETHER]]
        plans = [(name, _plan(form, shape)) for name, form in forms for shape in form.shapes]
        if time.monotonic() < until:
            compile_ahead([kernel for _, plan in plans for kernel in _kernels(plan)], None, progress=False)
        for name, plan in plans:
            count = sum(len(sample.kernels) for sample in samples)
            if time.monotonic() > until and count >= FEWEST:
                break
            samples.append(_sample(name, plan, caches))
    fit = fitted_host(samples, caches, product)
    keep(fit.rates)
    return fit


def _plan(form: _Form, shape: Shape) -> Plan:
    with FusionDefinition() as fd:
        sources = [fd.define_tensor(list(shape), contiguity=True, dtype=form.dtype) for _ in range(form.inputs)]
        results = form.compute(fd.ops, sources, shape)
        for output in results if isinstance(results, list) else [results]:
            fd.add_output(output)
    return segment(fd, strategy=form.strategy)


def _kernels(plan: Plan) -> Sequence[GeneratedKernel]:
    """Return the kernels of a plan that are not compiled yet."""
    return plan.prepare(CPU.name).generated(
        [described.strides for described in plan.inputs if isinstance(described, TensorSpec)],
    )


def _sample(form: str, plan: Plan, caches: HostCaches) -> HostSample:
    """Return the kernels of a plan with their features and measured seconds."""
    prepared = plan.prepare(CPU.name)
    arrays = [described.materialize() if isinstance(described, TensorSpec) else described for described in plan.inputs]
    clock, bound = HostClock(), prepared.bind(arrays)
    alone = len(bound.steps) == 1
    calls = [clock.measured(bound.steps[0])] if alone else clock.measured_in_order(bound.steps)
    taken: list[list[float]] = []
    until = time.monotonic() + _SECONDS
    while len(taken) < _RUNS or time.monotonic() < until:
        taken.append([call() for call in calls])
    kernels = tuple(
        host_features(step.generated.kernel_ir, caches).phases if step.runs and step.generated else ()
        for step in prepared.steps()
    )
    least = map(min, zip(*taken, strict=True))
    return HostSample(
        form=form, kernels=kernels,
        seconds=tuple(seconds if kernel else math.nan for kernel, seconds in zip(kernels, least, strict=True)),
    )


def _product_rate() -> float:
    """Return the operations per second of a matrix product of the array library."""
    a, b = np.ones((2, _PRODUCT, _PRODUCT), np.float32)
    clock = HostClock().measured(lambda: a @ b)
    return 2 * _PRODUCT**3 / min(clock() for _ in range(_RUNS))
