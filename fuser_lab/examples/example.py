"""An example: a fusion, its sizes, its inputs and its expected results."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fuser_lab.arguments import TEXT, instance, list_of, number, short_text, takes, whole
from fuser_lab.definition.builder import FusionBuilder
from fuser_lab.definition.spec import TensorSpec, spec
from fuser_lab.errors import InputError
from fuser_lab.ops.rules import Array

Sizes = Mapping[str, int]
Inputs = list[Any]

_ARRAY = instance(np.ndarray, accepted="a NumPy array")
_INPUT = (_ARRAY | number()).worded("a NumPy array or a number")


def _describe(value: Any) -> object:
    """Return the common properties of all inputs of one size: shapes and dtypes of arrays, types of numbers."""
    return spec(value.shape, value.dtype) if isinstance(value, np.ndarray | TensorSpec) else type(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A named fusion with full and small sizes.

    ``record(fd, sizes)`` defines it; ``make(rng, sizes)`` gives NumPy inputs; ``reference(inputs, outputs)`` computes
    the outputs in float64 with plain NumPy, independently of the op registry (``outputs`` provides random masks, which
    the reference uses). An output is correct if ``|got - reference| <= atol + rtol |reference|``.
    """

    name: str
    title: str
    look_at: str
    full: Sizes
    small: Sizes
    record: Callable[[Any, Sizes], None]
    make: Callable[[np.random.Generator, Sizes], Inputs]
    reference: Callable[[Sequence[Any], Sequence[Array]], list[Array]]
    rtol: float
    atol: float

    @takes("example.sizes", size=TEXT)
    def sizes(self, size: str) -> Sizes:
        """Return the sizes called ``"full"`` or ``"small"``."""
        if size not in {"full", "small"}:
            raise InputError(f"example {self.name} has the sizes 'full' and 'small', not {short_text(size)}.")
        return self.full if size == "full" else self.small

    @takes("example.define", fd=instance(FusionBuilder, accepted="an open FusionDefinition"))
    def define(self, fd: FusionBuilder, size: str = "small") -> None:
        """Record the fusion into an open definition."""
        self.record(fd, self.sizes(size))

    @takes("example.inputs", seed=whole(0))
    def inputs(self, size: str = "small", seed: int = 0) -> Inputs:
        """Return NumPy inputs; the same seed gives the same numbers."""
        return self.make(np.random.default_rng(seed), self.sizes(size))

    def specs(self, size: str = "small") -> list[TensorSpec | int | float]:
        """Return abstract inputs, of the same default size as `define`: shapes and dtypes, nothing allocated."""
        specs: list[TensorSpec | int | float] = []
        # Two elements per axis are enough to determine ranks, dtypes and scalars from the inputs.
        tiny = self.make(np.random.default_rng(0), self.small)
        with FusionBuilder() as fd:
            self.define(fd, size)
        for value, tiny_input in zip(fd.fusion.inputs, tiny, strict=True):
            if not isinstance(tiny_input, np.ndarray):
                specs.append(tiny_input)
                continue
            specs.append(spec(self._shape(value.name, fd, tiny_input, size), tiny_input.dtype))
        return specs

    def _shape(self, name: str, fd: FusionBuilder, array: Array, size: str) -> tuple[int, ...]:
        tensor = fd.fusion.tensors[name]
        shape = tensor.extents
        if not all(isinstance(e, int) for e in shape):
            msg = f"example {self.name} must define static sizes; {tensor} of rank {array.ndim} ({size}) does not."
            raise InputError(msg)
        return tensor.shape

    @takes(
        "example.max_error", inputs=list_of(_INPUT, "a list of NumPy arrays and numbers"),
        outputs=list_of(_ARRAY, "a list of NumPy arrays"),
    )
    def max_error(self, inputs: Sequence[Any], outputs: Sequence[Array]) -> float:
        """Return the largest ``|got - reference| / (atol + rtol |reference|)`` over all outputs; below 1 is correct.

        Raises
        ------
        InputError
            If the inputs are not of the shapes and dtypes of `inputs`, or the number of outputs differs.
        """
        described = [_describe(value) for value in inputs]
        if described not in [[_describe(value) for value in self.specs(size)] for size in ("small", "full")]:
            msg = f"example.max_error: inputs must have the shapes and dtypes of those that {self.name}.inputs returns."
            raise InputError(msg)
        expected = self.reference(inputs, outputs)
        if len(outputs) != len(expected):
            raise InputError(f"example.max_error: {self.name} has {len(expected)} outputs, given {len(outputs)}.")
        worst = 0.0
        for got, reference in zip(outputs, expected, strict=True):
            if got.shape != reference.shape:
                return float("inf")
            if not got.size:
                continue
            difference = np.abs(got.astype(np.float64) - reference)
            ratio = difference / (self.atol + self.rtol * np.abs(reference))
            if np.isnan(ratio).any():
                return float("inf")
            worst = max(worst, float(ratio.max()))
        return worst
