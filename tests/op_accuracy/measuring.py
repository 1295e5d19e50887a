"""The accuracy of each op: its largest error in units in the last place, against a reference of higher precision.

Compiled kernels are measured. One kernel contains all ops that accept a dtype, and their operands cover the whole range
of the dtype: random bit patterns, numbers of moderate size, neighbours of zeros and poles, and special values (zeros of
both signs, infinities, NaN, subnormal, smallest and largest numbers). The reference is the interpreter in float64 for
floats of up to 32 bits, NumPy's long double for Double, and mpmath, if it is installed, for functions that NumPy lacks.
``python -m tests.op_accuracy`` prints the table; with ``--write`` it replaces the numbers that `docs/ops.md` shows, for
CUDA on a machine with a GPU only.
"""

import contextlib
import importlib
import importlib.metadata
import platform
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from fuser_lab.codegen.request import KernelRequest
from fuser_lab.cost.verdict import SchedulerType
from fuser_lab.definition.builder import FusionBuilder
from fuser_lab.definition.concretize import concretize
from fuser_lab.dtypes import DataType
from fuser_lab.errors import FuserLabError
from fuser_lab.interpreter import evaluate
from fuser_lab.ir import Fusion, OpKind
from fuser_lab.ops import COMPOSITES, OPS
from fuser_lab.ops.rules import Array
from fuser_lab.runtime.arrays import from_numpy_as, to_numpy
from fuser_lab.runtime.cpu_kernels import cpu_has
from fuser_lab.runtime.plan.executor import prepare
from fuser_lab.targets import CPU, is_on_host, names, target_of
from tests.op_accuracy.tables import WITHOUT_FMA, Stated

DTYPES = (
    DataType.Float, DataType.Double, DataType.Half, DataType.BFloat16, DataType.ComplexFloat, DataType.ComplexDouble,
)
MOST_OPERANDS = 3
_SEED, _EACH = 20261122, 1500
_OF_DTYPE = frozenset({"nextafter"})  # their results depend on the dtype, so no higher precision is exact


@dataclass(frozen=True, slots=True, kw_only=True)
class Accuracy:
    """The largest error of one op in one dtype.

    ``ulps`` is infinite if NaN is returned for a number, or a number for NaN.

    ``operands`` are those with the largest error. Units are those of the result's dtype at the exact result; the error
    of a complex result is its distance in the complex plane, in units of the magnitude.
    """

    op: str
    dtype: DataType
    target: str
    ulps: float
    operands: tuple[str, ...]


def measure_all() -> dict[str, Stated]:
    """Return the accuracy of kernels on every target of this machine: the CPU, and a GPU if there is one."""
    tables = {cpu_table(): stated_from(measured(CPU.name), cpu_table(), _processor())}
    for name in names():
        described = target_of(name).device
        if described is not None:
            with contextlib.suppress(FuserLabError):  # there is none here
                tables[name] = stated_from(measured(name), name, described()().name)
    return tables


def cpu_table() -> str:
    """Return the name of the table for CPU kernels compiled on this machine."""
    return CPU.name if cpu_has("fma") else WITHOUT_FMA


def stated_from(accuracies: Iterable[Accuracy], target: str, device: str) -> Stated:
    """Return measurements as a table."""
    table: dict[str, dict[str, float]] = {}
    for accuracy in accuracies:
        table.setdefault(accuracy.op, {})[accuracy.dtype.name] = accuracy.ulps
    return Stated(target=target, device=device, ulps=table)


def _processor() -> str:
    return f"{platform.machine()}, Numba {importlib.metadata.version('numba')}"


def measured(
    target: str = CPU.name, dtypes: Iterable[DataType] = DTYPES, operands: Iterable[int] = range(1, MOST_OPERANDS + 1),
) -> tuple[Accuracy, ...]:
    """Return the accuracy of all pointwise ops with ``operands`` operands, for kernels that run on this machine.

    Raises
    ------
    UnsupportedError
        If the target is a GPU and there is none.
    """
    accuracies: list[Accuracy] = []
    counts = tuple(operands)
    for dtype in dtypes:
        for count in counts:
            names = _names(dtype, count)
            if names:
                accuracies += _measure(names, dtype, count, target)
    return tuple(accuracies)


def _names(dtype: DataType, count: int) -> tuple[str, ...]:
    """Return the pointwise ops whose operands may all be tensors of a dtype and whose results are numbers."""
    pointwise = [op.name for op in OPS.values() if op.kind is OpKind.POINTWISE and op.name not in {"where", "cast"}]
    return tuple(name for name in (*pointwise, "addcmul", "sign") if name in {**OPS, **COMPOSITES} and _takes(
        name, dtype, count,
    ))


def _takes(name: str, dtype: DataType, count: int) -> bool:
    try:
        (out,) = _fusion((name,), dtype, count, 1).outputs
    except FuserLabError:
        return False
    return out.dtype.is_float or out.dtype.is_complex


def _fusion(names: Sequence[str], dtype: DataType, count: int, size: int) -> Fusion:
    with FusionBuilder() as fd:
        tensors = [fd.define_tensor([size], True, dtype) for _ in range(count)]
        for name in names:
            extra = [1.0] if name == "addcmul" else []
            fd.add_output(getattr(fd.ops, name)(*tensors, *extra))
    return concretize(fd.fusion, {tv.name: (size,) for tv in fd.fusion.tensor_inputs}, {})


def _measure(names: Sequence[str], dtype: DataType, count: int, target: str) -> list[Accuracy]:
    inputs = samples(dtype, count)
    fusion = _fusion(names, dtype, count, len(inputs[0]))
    plan = prepare(
        fusion, [KernelRequest(fusion=fusion, scheduler=SchedulerType.POINTWISE)], target, allow_fallback=False,
    )
    on_host = is_on_host(target)
    arguments = inputs if on_host else [from_numpy_as("torch", x).to(target) for x in inputs]
    results = [to_numpy(x) for x in plan.run(arguments)]
    with np.errstate(all="ignore"):
        references = _exact_results(names, fusion, inputs)
        accuracies = []
        for name, tv, got, exact in zip(names, fusion.outputs, results, references, strict=True):
            if exact is None:
                continue
            places, reference = exact
            errors = ulps(got[places], reference, tv.dtype)
            if dtype.is_complex:  # implementations differ in the results for infinities and overflow
                errors = np.where(_finite(reference, tv.dtype) & _moderate([x[places] for x in inputs]), errors, 0.0)
            if not on_host:  # results may be flushed to zero
                errors = np.where(np.abs(reference) < _info(tv.dtype).tiny, 0.0, errors)
            worst = int(np.argmax(errors))
            operands = tuple(str(x[places][worst]) for x in inputs)
            accuracies.append(
                Accuracy(op=name, dtype=dtype, target=target, ulps=float(errors[worst]), operands=operands),
            )
    return accuracies


Wanted = tuple[Any, Array]  # indices of samples, and their exact results


def _exact_results(names: Sequence[str], fusion: Fusion, inputs: Sequence[Array]) -> list[Wanted | None]:
    """Return exact results for some samples of each op; None if none can be computed in higher precision."""
    if inputs[0].dtype in {np.dtype(np.float64), np.dtype(np.complex128)}:
        return [_of_double(name, inputs) for name in names]
    narrow, wide = evaluate(fusion, inputs), evaluate(fusion, inputs, exact=False)
    return [
        (slice(None), a if name in _OF_DTYPE else b) for name, a, b in zip(names, narrow, wide, strict=True)
    ]


def _of_double(name: str, inputs: Sequence[Array]) -> Wanted | None:
    entry = OPS.get(name)
    if entry is None:
        return None
    if name in _OF_DTYPE:
        return slice(None), np.asarray(entry.reference(*inputs))
    if name in _BY_MPMATH:
        return _by_mpmath(name, inputs[0])
    kind = np.longdouble if inputs[0].dtype.kind == "f" else np.clongdouble
    if np.finfo(kind).nmant <= np.finfo(np.float64).nmant:
        return None
    try:
        results = np.asarray(entry.reference(*(x.astype(kind) for x in inputs)))
    except TypeError:
        return None
    return (slice(None), results) if np.finfo(results.dtype).nmant > np.finfo(np.float64).nmant else None


_BY_MPMATH: dict[str, Callable[[Any, Any], Any]] = {
    "erf": lambda mp, x: mp.erf(x),
    "erfc": lambda mp, x: mp.erfc(x),
    "erfinv": lambda mp, x: mp.erfinv(x),
    "erfcinv": lambda mp, x: mp.erfinv(1 - x),
    "lgamma": lambda mp, x: mp.log(abs(mp.gamma(x))) if abs(x) < 1e3 else mp.loggamma(x).real,
}  # fmt: skip
_DIGITS, _FEW = 400, 24


def _by_mpmath(name: str, x: Array) -> Wanted | None:
    """Return mpmath's results for a regular subset of the finite samples of moderate size."""
    try:
        mpmath: Any = importlib.import_module("mpmath")
    except ImportError:
        return None
    low, high = {"erfinv": (-1.0, 1.0), "erfcinv": (0.0, 2.0)}.get(name, (-25.0, 25.0))
    places = np.flatnonzero((x > low) & (x < high) & (np.abs(x) > 1e-30) & ((x != np.rint(x)) | (x > 0)))[::_FEW]
    with mpmath.workdps(_DIGITS if name == "erfcinv" else 60):
        exact = [_BY_MPMATH[name](mpmath.mp, mpmath.mpf(float(value))) for value in x[places]]
        numbers = [np.longdouble(mpmath.nstr(value, 25)) for value in exact]
    return places, np.array(numbers)


def ulps(got: Array, exact: Array, dtype: DataType) -> Array:
    """Return the errors of results in units in the last place of ``dtype`` at the exact results.

    A number beyond the largest finite one counts as the next power of two. NaN for a number, or the reverse, is an
    infinite error.
    """
    info = _info(dtype)
    wide = np.longdouble if not (np.iscomplexobj(got) or np.iscomplexobj(exact)) else np.clongdouble
    a, b = got.astype(wide), np.asarray(exact).astype(wide)
    end = np.ldexp(np.longdouble(1), int(info.maxexp))
    if wide is np.longdouble:
        a, b = np.clip(a, -end, end), np.clip(b, -end, end)
    exponent = np.frexp(np.minimum(np.abs(b), end))[1] - 1
    least = int(np.frexp(np.longdouble(info.tiny))[1]) - 1
    exponent = np.clip(np.where(np.isfinite(np.abs(b)), exponent, 0), least, int(info.maxexp) - 1)
    unit = np.ldexp(np.longdouble(1), (exponent - int(info.nmant)).astype(np.int32))
    errors = np.abs(a - b) / unit
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    return np.asarray(np.where(same, 0.0, np.where(np.isnan(errors), np.inf, errors)).astype(np.float64))


def _info(dtype: DataType) -> Any:
    return ml_dtypes.finfo(dtype.real.numpy)  # type: ignore[no-untyped-call]


def _finite(exact: Array, dtype: DataType) -> Array:
    return np.asarray(np.abs(exact) < float(_info(dtype).max))


def _moderate(inputs: Sequence[Array]) -> Array:
    """Whether operands are finite and their squares neither overflow nor underflow."""
    sizes = [np.abs(x) for x in inputs]
    root = float(np.sqrt(np.finfo(sizes[0].dtype).max)) / 16
    return np.asarray(np.all([(size < root) & ((size > 1 / root) | (size == 0)) for size in sizes], axis=0))


# Samples


def samples(dtype: DataType, count: int) -> list[Array]:
    """Return operands over the whole range of a dtype, the same for every call."""
    rng = np.random.default_rng(_SEED)
    if dtype.is_complex:
        return [_complex_samples(rng, dtype) for _ in range(count)]
    special = _special(dtype)
    if count == 1:
        return [np.concatenate([special, _ordinary(rng, dtype)])]
    crossed = np.meshgrid(*[special] * count) if count == 2 else [rng.choice(special, 400) for _ in range(count)]
    ordinary = [rng.permutation(_ordinary(rng, dtype)) for _ in range(count)]
    return [np.concatenate([a.ravel(), b]) for a, b in zip(crossed, ordinary, strict=True)]


def _special(dtype: DataType) -> Array:
    info = _info(dtype)
    sizes = [
        0.0, 1.0, 0.5, 2.0, 3.0, 1.5, 2.5, 10.0, 60.0, np.inf, float(info.max), float(info.tiny),
        float(info.smallest_subnormal), 1 + float(info.eps), 1 - float(info.eps) / 2,
    ]
    with np.errstate(all="ignore"):
        return np.array([np.nan, *sizes, *(-x for x in sizes)]).astype(dtype.numpy)


def _ordinary(rng: np.random.Generator, dtype: DataType) -> Array:
    turns = np.arange(-12, 13) * (np.pi / 2)
    parts = [
        rng.uniform(-4, 4, _EACH), rng.uniform(-1, 1, _EACH), rng.uniform(-100, 100, _EACH // 2), turns,
        1 + np.ldexp(rng.uniform(-1, 1, _EACH // 4), -rng.integers(1, 30, _EACH // 4)),
        np.ldexp(rng.uniform(-1, 1, _EACH // 4), -rng.integers(1, 40, _EACH // 4)),
    ]
    bits = rng.integers(0, 256, (_EACH, dtype.itemsize), np.uint8).view(dtype.numpy).ravel()
    with np.errstate(all="ignore"):
        bits[np.isnan(bits)] = np.nan  # signalling NaNs raise a warning when they are read
        return np.concatenate([bits, np.concatenate(parts).astype(dtype.numpy)])


def _complex_samples(rng: np.random.Generator, dtype: DataType) -> Array:
    part = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, -2.0, 1e-6, -1e-6, 30.0, -30.0, 1e10, np.inf, -np.inf, np.nan]
    real, imag = (x.ravel() for x in np.meshgrid(part, part))
    special = real.astype(np.complex128)
    special.imag = imag
    size = np.exp(rng.uniform(-7, 5, 2 * _EACH))
    plane = size * np.exp(1j * rng.uniform(-np.pi, np.pi, 2 * _EACH))
    numbers = np.concatenate([special, plane])
    return rng.permutation(numbers).astype(dtype.numpy)
