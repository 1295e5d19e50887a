"""A definition as a list of calls, with inputs: what the fuzzer generates, checks, shrinks and prints."""

import ast
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fuser_lab.api.functions import FusionDefinition
from fuser_lab.definition.python_text import number_text
from fuser_lab.dtypes import DataType
from fuser_lab.ir import Number


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorInput:
    """A tensor input: its declaration, its values, and their layout in memory.

    ``order`` names the axes slowest first, ``step`` is the stride of the fastest axis, ``backwards``
    and ``expanded`` are axes with a negative stride and with stride 0; values are equal along the latter.
    """

    name: str
    values: np.ndarray = field(repr=False)
    dtype: DataType
    symbolic: frozenset[int] = frozenset()
    order: tuple[int, ...] = ()
    step: int = 1
    backwards: frozenset[int] = frozenset()
    expanded: frozenset[int] = frozenset()

    @property
    def declaration(self) -> str:
        """The call that declares it."""
        shape = self.values.shape
        declared = [1 if n == 1 else -1 if i in self.symbolic else n for i, n in enumerate(shape)]
        order = self.order or tuple(range(len(shape)))
        dense = self.step == 1 and not self.backwards
        flags = [None if shape[i] == 1 or i in self.expanded else dense for i in order]
        text = f"fd.define_tensor({declared}, {flags}, {self.dtype!r}"
        if self.order:
            ranks = [len(order) - 1 - order.index(i) for i in range(len(shape))]
            text += f", stride_order={ranks}"
        return text + ")"

    def array(self) -> np.ndarray:
        """The values in newly allocated memory of the described layout."""
        x = self.values
        if not x.ndim or not x.size:
            return x.copy()
        order = self.order or tuple(range(x.ndim))
        x = x[tuple(slice(0, 1) if i in self.expanded else slice(None) for i in range(x.ndim))]
        x = np.flip(x, sorted(self.backwards))
        x = np.ascontiguousarray(np.transpose(x, order))
        if self.step > 1:
            x = np.repeat(x, self.step, -1)[..., :: self.step]
        x = np.flip(np.transpose(x, np.argsort(order)), sorted(self.backwards))
        return np.broadcast_to(x, self.values.shape) if self.expanded else x

    def plain(self) -> "TensorInput":
        """The same values, static and dense."""
        return TensorInput(name=self.name, values=self.values, dtype=self.dtype)

    @property
    def text(self) -> str:
        """An expression for the array, over ``np`` and, for types that NumPy lacks, ``ml_dtypes``."""
        x = self.array()
        kind = f'"{x.dtype}"' if x.dtype.kind in "biufc" else f"ml_dtypes.{x.dtype}"
        if x.flags.c_contiguous:
            return f"np.array({_numbers(x)}, {kind}).reshape({x.shape})"
        low = sum((n - 1) * s for n, s in zip(x.shape, x.strides, strict=True) if s < 0)
        high = sum((n - 1) * s for n, s in zip(x.shape, x.strides, strict=True) if s > 0)
        size = (high - low) // x.itemsize + 1
        flat = np.zeros(size, x.dtype)
        # Over bytes, since NumPy cannot create strided views of dtypes that are not its own.
        lay = np.ndarray(x.shape, x.dtype, flat.view(np.uint8), -low, x.strides)
        lay[...] = x
        memory = f"np.array({_numbers(flat)}, {kind}).view(np.uint8)"
        return f"np.ndarray({x.shape}, {kind}, {memory}, {-low}, {x.strides})"


def _numbers(x: np.ndarray) -> str:
    wide = x.ravel() if x.dtype.kind in "biufc" else x.ravel().astype(np.float64)
    return "[" + ", ".join("np.nan" if v != v else repr(v).replace("inf", "np.inf") for v in wide.tolist()) + "]"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalarInput:
    """A scalar input with its value."""

    name: str
    value: Number
    dtype: DataType

    @property
    def declaration(self) -> str:
        """The call that declares it."""
        return f"fd.define_scalar({self.dtype!r})"

    @property
    def text(self) -> str:
        """An expression for the value."""
        return number_text(self.value)


Input = TensorInput | ScalarInput


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """``results = call``; ``unpacks`` means that the call returns a list or a tuple of them."""

    results: tuple[str, ...]
    call: str
    unpacks: bool = False

    @property
    def line(self) -> str:
        """The statement."""
        left = f"({self.results[0]},)" if len(self.results) == 1 and self.unpacks else ", ".join(self.results)
        return f"{left} = {self.call}"

    @property
    def uses(self) -> frozenset[str]:
        """Names that the call reads."""
        return names_in(self.call)


def names_in(call: str) -> frozenset[str]:
    """Names of values in a call."""
    found = {node.id for node in ast.walk(ast.parse(call, mode="eval")) if isinstance(node, ast.Name)}
    return frozenset(found - {"fd", "DataType", "float"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """Inputs, steps, and outputs: names, or pairs of a name and the input that it overwrites."""

    inputs: tuple[Input, ...]
    steps: tuple[Step, ...]
    outputs: tuple[str | tuple[str, str], ...]

    def define(self) -> FusionDefinition:
        """The definition."""
        with FusionDefinition() as fd:
            names: dict[str, Any] = {"fd": fd, "DataType": DataType}
            exec("\n".join(self.lines()), names)
        return fd

    def arrays(self) -> list[Any]:
        """The inputs, as arrays and numbers."""
        return [x.array() if isinstance(x, TensorInput) else x.value for x in self.inputs]

    def lines(self) -> Iterable[str]:
        """Statements that record it on ``fd``."""
        for given in self.inputs:
            yield f"{given.name} = {given.declaration}"
        for step in self.steps:
            yield step.line
        for output in self.outputs:
            name, alias = output if isinstance(output, tuple) else (output, None)
            yield f"fd.add_output({name}, {alias})" if alias else f"fd.add_output({name})"

    @property
    def results(self) -> tuple[str, ...]:
        """Names of the fusion's outputs in its order: returning a value that was an alias puts it last."""
        found: list[str] = []
        for output in self.outputs:
            name = output[0] if isinstance(output, tuple) else output
            if name in found and not isinstance(output, tuple):
                found.remove(name)
            if name not in found:
                found.append(name)
        return tuple(found)

    def live(self) -> "Program":
        """The program without steps and inputs that no output depends on."""
        wanted = {name for o in self.outputs for name in ([*o] if isinstance(o, tuple) else [o])}
        kept: list[Step] = []
        for step in reversed(self.steps):
            if wanted & set(step.results):
                kept.append(step)
                wanted |= step.uses
        inputs = tuple(x for x in self.inputs if x.name in wanted)
        return replace(self, inputs=inputs, steps=tuple(reversed(kept)))

    def ops(self) -> list[str]:
        """Names of the ops that the steps call."""
        return [
            node.func.attr
            for step in self.steps
            for node in ast.walk(ast.parse(step.call, mode="eval"))
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr != "define_scalar"
        ]

    def __str__(self) -> str:
        """A Python script that defines and executes it."""
        lines = ["import ml_dtypes", "import numpy as np", "from fuser_lab import DataType, FusionDefinition", ""]
        lines += ["with FusionDefinition() as fd:", *(f"    {line}" for line in self.lines())]
        lines += ["inputs = [", *(f"    {x.text}," for x in self.inputs), "]", "outputs = fd.execute(inputs)"]
        return "\n".join(lines)
