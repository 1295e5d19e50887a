"""Samples of the registry as definitions with inputs, in several layouts."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fuser_lab.api.functions import FusionDefinition
from fuser_lab.dtypes import DataType
from fuser_lab.ir import OpKind
from fuser_lab.ops import COMPOSITES, OPS
from fuser_lab.ops.registry import Arg, Sample

ENTRIES = {**OPS, **COMPOSITES}
LETTERS = "abcdefghijklmnopqrstuvwxyz"
# Kinds and names of ops: values of their operands depend on sizes.
SIZED = frozenset({"indexing", "scatter", "sort", "cross_entropy", "index", "index_put", "as_strided"})


def _dense(x: np.ndarray) -> np.ndarray:
    """A dense copy; NumPy's own function turns zero axes into one."""
    return np.ascontiguousarray(x).reshape(x.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A way to declare and lay out the operands of a sample; ``resize`` changes one size everywhere."""

    name: str
    declare: Callable[[Any, Arg], Any]
    arrange: Callable[[np.ndarray], np.ndarray] = _dense
    resize: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """A sample as a definition with inputs."""

    fd: FusionDefinition
    inputs: list[np.ndarray]


def values(arg: Arg, rng: np.random.Generator) -> np.ndarray:
    """Values of an operand: uniform in [low, high), truncated for integers; booleans are random."""
    dtype = arg.dtype
    if dtype is DataType.Bool:
        return rng.integers(0, 2, arg.shape).astype(np.bool_)
    found = np.asarray(rng.uniform(arg.low, arg.high, arg.shape))
    if dtype.is_integral:
        low = max(dtype.limits[0], np.ceil(arg.low))
        return np.asarray(np.clip(np.trunc(found), low, None)).astype(dtype.numpy)
    if dtype.is_complex:
        found = found + 1j * rng.uniform(arg.low, arg.high, arg.shape)
    return np.asarray(found).astype(dtype.numpy)


def _static(fd: Any, arg: Arg) -> Any:
    return fd.define_tensor(list(arg.shape), True, arg.dtype)


def _symbolic(fd: Any, arg: Arg) -> Any:
    return fd.define_tensor([n if n == 1 else -1 for n in arg.shape], True, arg.dtype)


def _loose(fd: Any, arg: Arg) -> Any:
    return fd.define_tensor(list(arg.shape), False, arg.dtype)


def _columns(fd: Any, arg: Arg) -> Any:
    return fd.define_tensor(list(arg.shape), True, arg.dtype, stride_order=list(range(len(arg.shape))))


def _expanded(fd: Any, arg: Arg) -> Any:
    at = _widest(arg.shape)
    flags = [None if n == 1 or i == at else True for i, n in enumerate(arg.shape)]
    return fd.define_tensor(list(arg.shape), flags, arg.dtype)


def _widest(shape: tuple[int, ...]) -> int | None:
    """The first axis with more than one element."""
    return next((i for i, n in enumerate(shape) if n > 1), None)


def _strided(x: np.ndarray) -> np.ndarray:
    return np.repeat(x, 2, -1)[..., ::2] if x.ndim else x


def _repeated(x: np.ndarray) -> np.ndarray:
    at = _widest(x.shape)
    return x if at is None else np.broadcast_to(np.take(x, [0], at), x.shape)


PLAIN = Variant(name="dense", declare=_static)
LAYOUTS = (
    Variant(name="symbolic", declare=_symbolic),
    Variant(name="strided", declare=_loose, arrange=_strided),
    Variant(name="backwards", declare=_loose, arrange=lambda x: np.flip(_dense(np.flip(x)))),
    Variant(name="column-major", declare=_columns, arrange=np.asfortranarray),
    Variant(name="expanded", declare=_expanded, arrange=_repeated),
)


def variants(entry: Any, sample: Sample) -> Iterator[Variant]:
    """Layouts of a sample, and sizes 1 and 0 in place of each of its sizes."""
    if not sample.args:
        return
    yield from LAYOUTS
    kind = getattr(entry, "kind", None)
    if entry.name in SIZED or (kind is not None and kind.value in SIZED):
        return
    for size in sorted({n for arg in sample.args for n in arg.shape if n > 1}):
        for new in (1, 0):
            yield Variant(name=f"size {new} for {size}", declare=_static, resize=(size, new))
            yield Variant(name=f"size {new} for {size}, symbolic", declare=_symbolic, resize=(size, new))


def build(sample: Sample, variant: Variant = PLAIN, seed: int = 0) -> Built:
    """A sample's definition with inputs; every result is an output, scalars as tensors filled with them."""
    args = sample.args
    if variant.resize is not None:
        old, new = variant.resize
        args = tuple(replace(a, shape=tuple(new if n == old else n for n in a.shape)) for a in args)
    rng = np.random.default_rng(seed)
    inputs = [variant.arrange(values(a, rng)) for a in args]
    with FusionDefinition() as fd:
        names = {letter: variant.declare(fd, arg) for letter, arg in zip(LETTERS, args, strict=False)}
        result = eval(sample.call, {"fd": fd, "DataType": DataType, **names})
        for value in results(result):
            tensor = hasattr(value, "ndim")
            dtype = DataType.Int if isinstance(value, int) else value.dtype
            fd.add_output(value if tensor else fd.ops.full([2], value, dtype=dtype))
    return Built(fd=fd, inputs=inputs)


def results(result: Any) -> list[Any]:
    """Results of a call as a flat list."""
    return [x for r in result for x in results(r)] if isinstance(result, list | tuple) else [result]


SPECIAL = (np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -2.5)


def special(name: str) -> list[tuple[Sample, Built]]:
    """The first call of a pointwise op for each type of floats, with all combinations of special values."""
    entry = ENTRIES[name]
    if getattr(entry, "kind", None) is not OpKind.POINTWISE:
        return []
    first: dict[DataType, Sample] = {}
    for sample in entry.samples:
        dtypes = {arg.dtype for arg in sample.args}
        if len(dtypes) == 1 and (dtype := dtypes.pop()).is_float and len(sample.args) < 4:
            first.setdefault(dtype, sample)
    found = []
    for dtype, sample in first.items():
        grids = np.meshgrid(*[SPECIAL] * len(sample.args), indexing="ij")
        shaped = replace(sample, args=tuple(replace(arg, shape=grids[0].shape) for arg in sample.args))
        found.append((shaped, replace(build(shaped), inputs=[_dense(grid.astype(dtype.numpy)) for grid in grids])))
    return found
