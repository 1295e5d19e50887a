"""A case of a template: its sizes and dtype, the layouts of its inputs, and what else reads its values.

Everything is drawn from the case's seed; `smaller` yields the cases that differ in one thing less, for shrinking.
"""

import math
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import numpy as np

from fuser_lab import DataType as D
from fuser_lab import FusionDefinition
from tests.fuzz.program import TensorInput
from tests.templates.templates import TEMPLATES, Template

# Vectors, warps and tiles end at, before and after these sizes.
SIZES = (1, 2, 3, 5, 7, 8, 16, 17, 31, 32, 33, 64, 100, 127, 128, 130, 257, 300)
SMALL = {"batch": 4, "heads": 4, "group": 4, "part": 9, "side": 9, "chan": 20, "blocks": 9}  # largest size of an axis
ELEMENTS = (4_000, 4_000, 4_000, 4_000, 30_000)  # of a nest of all axes: kernels are evaluated element by element
DTYPES = (D.Float, D.Float, D.BFloat16, D.BFloat16, D.Half, D.Double)
COUNTS = {"two": 2, "three": 3}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One way to record a template.

    ``layouts`` says whether inputs have other orders and strides than dense row-major ones; ``readers`` counts the
    additional outputs that are computed from values of the template; ``hints`` counts values behind a ``segment_set``.
    """

    template: str
    seed: int
    sizes: tuple[tuple[str, int], ...]
    dtype: D
    symbolic: bool = False
    layouts: bool = False
    readers: int = 0
    hints: int = 0

    def smaller(self) -> Iterator["Case"]:
        """Yield cases with one mutation less, or with a smaller axis."""
        plain = {"readers": 0, "hints": 0, "layouts": False, "symbolic": False, "dtype": D.Float}
        for name, value in plain.items():
            if getattr(self, name) != value:
                yield replace(self, **{name: value})
        if self.readers > 1:
            yield replace(self, readers=self.readers - 1)
        for number, (axis, size) in enumerate(self.sizes):
            least = TEMPLATES[self.template].least.get(axis, 0)
            for less in sorted({least, 1, 2, size // 2, size - 1}):
                if max(least, 1) <= less < size:
                    yield self.resized({axis: less}, number)

    def resized(self, sizes: Mapping[str, int], _: int = 0) -> "Case":
        """Return the case with other sizes of some axes."""
        return replace(self, sizes=tuple((axis, sizes.get(axis, size)) for axis, size in self.sizes))


def case_of(seed: int, index: int) -> Case:
    """Return the case of a number; consecutive numbers are of different templates."""
    names = list(TEMPLATES)
    template = TEMPLATES[names[index % len(names)]]
    rng = Random(f"{seed} {index}")
    sizes = _sizes(rng, template)
    return Case(
        template=template.name, seed=rng.randrange(1 << 30), sizes=tuple(sizes.items()), dtype=rng.choice(DTYPES),
        symbolic=rng.random() < 0.5, layouts=rng.random() < 0.5, readers=rng.choice((0, 0, 1, 2, 3)),
        hints=rng.choice((0, 0, 0, 0, 1, 2)),
    )


def _sizes(rng: Random, template: Template) -> dict[str, int]:
    most_elements = rng.choice(ELEMENTS)
    while True:
        sizes = {}
        for axis in template.axes:
            least, most = template.least.get(axis, 0), SMALL.get(axis, SIZES[-1])
            fitting = [n for n in SIZES if least <= n <= most]
            sizes[axis] = 0 if not least and rng.random() < 0.04 else rng.choice(fitting)
        squares = sizes.get("side", 1) * sizes.get("part", 1)
        if math.prod(max(n, 1) for n in sizes.values()) * squares <= most_elements:
            return sizes


@dataclass(slots=True)
class Recording:
    """A `Recorder` that defines a case on a definition; ``inputs`` and ``asked`` are what it learns."""

    case: Case
    fd: FusionDefinition
    inputs: list[TensorInput] = field(default_factory=list)
    axes: list[tuple[str, ...]] = field(default_factory=list)
    asked: set[str] = field(default_factory=set)
    written: list[tuple[Any, Any]] = field(default_factory=list)
    values: list[Any] = field(default_factory=list)

    @property
    def ops(self) -> "_Ops":
        """The ops of the definition, whose results the recording remembers."""
        return _Ops(self)

    def size(self, axis: str) -> int:
        """Return the size of an axis, on which the definition then depends."""
        self.asked.add(axis)
        return dict(self.case.sizes)[axis]

    def floats(self, axes: str, *, like: D | None = None, positive: bool = False, written: bool = False) -> Any:
        """Return an input of random numbers."""
        shape, rng = self._shape(axes), self._numbers()
        values = rng.uniform(0.1, 1.1, shape) if positive else rng.standard_normal(shape)
        return self._input(axes, values, like or self.case.dtype, dense=written)

    def integers(self, axes: str, below: str | int) -> Any:
        """Return an input of random Int numbers."""
        most = below if isinstance(below, int) else dict(self.case.sizes)[below]
        if not isinstance(below, int):
            self.asked.add(below)
        return self._input(axes, self._numbers().integers(0, most, self._shape(axes)), D.Int)

    def mask(self, axes: str) -> Any:
        """Return an input of random truth values."""
        return self._input(axes, self._numbers().random(self._shape(axes)) < 0.7, D.Bool)

    def wide(self, value: Any) -> Any:
        """Return a value in the dtype of computation."""
        return self.ops.cast(value, D.Double if self.case.dtype is D.Double else D.Float)

    def narrow(self, value: Any) -> Any:
        """Return a value in the case's dtype."""
        return self.ops.cast(value, self.case.dtype)

    def number(self, value: int) -> Any:
        """Return a number as a scalar of the definition."""
        return self.fd.define_scalar(value)

    def write(self, value: Any, target: Any) -> None:
        """Overwrite an input at the end of the definition."""
        self.written.append((value, target))

    def _shape(self, axes: str) -> tuple[int, ...]:
        return tuple(math.prod(self._factor(f) for f in word.split("*")) for word in axes.split())

    def _factor(self, word: str) -> int:
        sizes = dict(self.case.sizes)
        if word in sizes:
            return sizes[word]
        return COUNTS.get(word) or int(word)

    def _numbers(self) -> np.random.Generator:
        return np.random.default_rng((self.case.seed, len(self.inputs)))

    def _input(self, axes: str, values: np.ndarray, dtype: D, *, dense: bool = False) -> Any:
        rng = Random(f"{self.case.seed} {len(self.inputs)}")
        made = TensorInput(name=f"x{len(self.inputs)}", values=values.astype(dtype.numpy), dtype=dtype)
        if self.case.symbolic:
            made = replace(made, symbolic=frozenset(i for i, n in enumerate(values.shape) if n != 1))
        if self.case.layouts and not dense:
            made = _laid_out(rng, made)
        self.inputs.append(made)
        self.axes.append(tuple(axes.split()))
        return eval(made.declaration, {"fd": self.fd, "DataType": D})


def _laid_out(rng: Random, dense: TensorInput) -> TensorInput:
    """Return an input in another layout: with transposed axes, gaps, a reversed axis, or an expanded one."""
    rank, kind = dense.values.ndim, rng.choice(("dense", "order", "order", "step", "backwards", "expanded"))
    if not rank or not dense.values.size:
        return dense
    axis = rng.randrange(rank)
    if kind == "order" and rank > 1:
        return replace(dense, order=tuple(rng.sample(range(rank), rank)))
    if kind == "step":
        return replace(dense, step=2)
    if kind == "backwards":
        return replace(dense, backwards=frozenset({axis}))
    if kind == "expanded" and dense.values.shape[axis] > 1:
        equal = np.broadcast_to(np.take(dense.values, [0], axis), dense.values.shape)
        return replace(dense, values=equal, expanded=frozenset({axis}), symbolic=dense.symbolic - {axis})
    return dense


class _Ops:
    """The ops of a definition; tensors that they return are added to the values of a recording."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording

    def __getattr__(self, name: str) -> Any:
        op = getattr(self._recording.fd.ops, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            result = op(*args, **kwargs)
            results = result if isinstance(result, tuple | list) else [result]
            self._recording.values += [v for v in results if hasattr(v, "ndim")]
            return result

        return call


def recorded(case: Case) -> Recording:
    """Return a case's definition and inputs."""
    template = TEMPLATES[case.template]
    with FusionDefinition() as fd:
        recording = Recording(case, fd)
        outputs = template.record(recording)
        outputs = list(outputs) if isinstance(outputs, tuple) else [outputs]
        rng = Random(f"{case.seed} readers {zlib.crc32(case.template.encode())}")
        for _ in range(case.hints):
            outputs.append(_hinted(fd, rng, recording.values))
        for _ in range(case.readers):
            outputs.append(_reader(fd, rng, rng.choice(recording.values)))
        for value, target in recording.written:
            fd.add_output(value, target)
        for value in outputs:
            fd.add_output(value)
    return recording


def _hinted(fd: Any, rng: Random, values: list[Any]) -> Any:
    """Return a new output behind a ``segment_set``."""
    value = fd.ops.segment_set(rng.choice(values))
    return fd.ops.neg(value) if value.dtype is not D.Bool else fd.ops.logical_not(value)


def _reader(fd: Any, rng: Random, value: Any) -> Any:
    """Return a new output that is computed from a value."""
    kind, axes = rng.choice(("value", "pointwise", "sum", "max", "transposed", "narrow")), list(range(value.ndim))
    if value.dtype in {D.Bool, D.Char} or kind == "value":
        return value
    if kind == "sum" and axes:
        return fd.ops.sum(value, [rng.choice(axes)])
    if kind == "max" and axes:
        some = sorted(rng.sample(axes, rng.randint(1, len(axes))))
        return fd.ops.max(fd.ops.abs(value), some) if value.dtype.is_float else fd.ops.sum(value, some)
    if kind == "transposed" and len(axes) > 1:
        return fd.ops.permute(value, axes[::-1])
    if kind == "narrow" and value.dtype.is_float:
        return fd.ops.cast(value, D.BFloat16)
    return fd.ops.abs(fd.ops.sub(value, 1.0 if value.dtype.is_float else 1))

