"""A program as data: inputs, calls and outputs; it can be recorded, and printed as Python."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np

from fuser_lab import DataType, FusionDefinition

Shape = tuple[int, ...]
NUMPY = {
    DataType.Double: np.dtype(np.float64), DataType.Float: np.dtype(np.float32), DataType.Half: np.dtype(np.float16),
    DataType.BFloat16: np.dtype(ml_dtypes.bfloat16), DataType.Int: np.dtype(np.int64),
    DataType.Int32: np.dtype(np.int32), DataType.Bool: np.dtype(np.bool_),
}



@dataclass(frozen=True, slots=True)
class Ref:
    """A value of the program by its number: inputs come first, then the results of calls."""

    number: int

    def __repr__(self) -> str:
        """Return the name that the printed program uses."""
        return f"v{self.number}"


@dataclass(frozen=True, slots=True)
class Size:
    """The size of an axis of a value, as the scalar that ``fd.ops.size`` gives."""

    value: Ref
    axis: int

    def __repr__(self) -> str:
        """Return the call."""
        return f"fd.ops.size({self.value!r}, {self.axis})"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Input:
    """A tensor input: a dense base array, the view of it that is the input, and the declaration of its axes.

    ``view`` is the text of an expression over ``a``, the base. ``declared`` has -1 for symbolic axes.
    """

    base: np.ndarray
    dtype: DataType
    view: str = "a"
    declared: Shape = ()
    contiguity: tuple[bool | None, ...] | bool = False

    @property
    def array(self) -> np.ndarray:
        """The input itself, a view of the base."""
        found: np.ndarray = eval(self.view, {"a": self.base, "np": np})
        return found

    def fixed(self) -> "Input":
        """Return the input with its sizes declared."""
        return replace(self, declared=self.array.shape, contiguity=False)

    def dense(self) -> "Input":
        """Return the input as a newly allocated dense array."""
        return replace(self, base=np.ascontiguousarray(self.array).reshape(self.array.shape), view="a")

    @property
    def declaration(self) -> tuple[Any, ...]:
        """Everything but the numbers."""
        return self.view, self.declared, self.contiguity

    def define(self, fd: Any) -> Any:
        """Record it."""
        return fd.define_tensor(list(self.declared), self.contiguity_given, self.dtype)

    @property
    def contiguity_given(self) -> list[bool | None] | bool:
        """The contiguity as ``define_tensor`` accepts it."""
        return list(self.contiguity) if isinstance(self.contiguity, tuple) else self.contiguity


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalarInput:
    """A scalar input and its value."""

    value: bool | int | float
    dtype: DataType


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """``fd.ops.<op>(*args, **kwargs)``; operands are `Ref`, `Size`, numbers, lists of these, and dtypes."""

    op: str
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...] = ()
    results: int = 1

    def refs(self) -> set[int]:
        """Return the numbers of the values that are read."""
        return {ref.number for ref in _refs([self.args, [v for _, v in self.kwargs]])}

    def renumbered(self, numbers: dict[int, Ref]) -> "Call":
        """Return the call with other operands."""
        kwargs = tuple((k, _renumbered(v, numbers)) for k, v in self.kwargs)
        return replace(self, args=_renumbered(self.args, numbers), kwargs=kwargs)

    def __repr__(self) -> str:
        """Return the text of the call."""
        given = [*map(repr, self.args), *(f"{k}={v!r}" for k, v in self.kwargs)]
        return f"fd.ops.{self.op}({', '.join(given)})"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Program:
    """Inputs, then calls, then the values that are outputs."""

    inputs: tuple[Input | ScalarInput, ...]
    calls: tuple[Call, ...] = ()
    outputs: tuple[int, ...] = ()

    def arrays(self) -> list[Any]:
        """Return the arguments of a run."""
        return [x.array if isinstance(x, Input) else x.value for x in self.inputs]

    def define(self) -> FusionDefinition:
        """Return the recorded definition."""
        with FusionDefinition() as fd:
            values = [x.define(fd) if isinstance(x, Input) else fd.define_scalar(None, x.dtype) for x in self.inputs]
            for call in self.calls:
                values += called(fd, call, values)
            for number in self.outputs:
                fd.add_output(values[number])
        return fd

    def live(self) -> "Program":
        """Return the program without the calls that no output needs, renumbered."""
        needed, first = set(self.outputs), [len(self.inputs)]
        for call in self.calls:
            first.append(first[-1] + call.results)
        kept: list[int] = []
        for k in reversed(range(len(self.calls))):
            if needed & set(range(first[k], first[k + 1])):
                kept.insert(0, k)
                needed |= self.calls[k].refs()
        inputs = [k for k in range(len(self.inputs)) if k in needed]
        numbers = {k: Ref(new) for new, k in enumerate(inputs)}
        calls = []
        for k in kept:
            calls.append(self.calls[k].renumbered(numbers))
            for old in range(first[k], first[k + 1]):
                numbers[old] = Ref(len(numbers))
        outputs = tuple(numbers[k].number for k in self.outputs)
        return Program(inputs=tuple(self.inputs[k] for k in inputs), calls=tuple(calls), outputs=outputs)

    def __str__(self) -> str:
        """Return Python code that records the program and names its inputs."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield "import ml_dtypes, numpy as np, fuser_lab as fl"
        yield "from fuser_lab import DataType, FusionDefinition"
        yield "nan, inf = float('nan'), float('inf')"
        yield "inputs = []"
        for given in self.inputs:
            if isinstance(given, Input):
                yield f"a = {_array_text(given.base)}"
                yield f"inputs.append({given.view})"
            else:
                yield f"inputs.append({given.value!r})"
        yield "with FusionDefinition() as fd:"
        for number, given in enumerate(self.inputs):
            if isinstance(given, Input):
                shape, flags = list(given.declared), given.contiguity_given
                yield f"    v{number} = fd.define_tensor({shape}, {flags}, {given.dtype!r})"
            else:
                yield f"    v{number} = fd.define_scalar(None, {given.dtype!r})"
        number = len(self.inputs)
        for call in self.calls:
            names = ", ".join(f"v{number + k}" for k in range(call.results))
            yield f"    {names} = {call!r}"
            number += call.results
        yield from (f"    fd.add_output(v{k})" for k in self.outputs)


def called(fd: Any, call: Call, values: list[Any]) -> list[Any]:
    """Return the handles that a call records."""
    args = [_given(fd, x, values) for x in call.args]
    found = getattr(fd.ops, call.op)(*args, **{k: _given(fd, v, values) for k, v in call.kwargs})
    return list(found) if isinstance(found, list | tuple) else [found]


def _given(fd: Any, value: Any, values: list[Any]) -> Any:
    if isinstance(value, Ref):
        return values[value.number]
    if isinstance(value, Size):
        return fd.ops.size(values[value.value.number], value.axis)
    if isinstance(value, list):
        return [_given(fd, x, values) for x in value]
    return value


def _refs(value: Any) -> Iterator[Ref]:
    if isinstance(value, Ref):
        yield value
    elif isinstance(value, Size):
        yield value.value
    elif isinstance(value, list | tuple):
        for x in value:
            yield from _refs(x)


def _renumbered(value: Any, numbers: dict[int, Ref]) -> Any:
    if isinstance(value, Ref):
        return numbers[value.number]
    if isinstance(value, Size):
        return Size(numbers[value.value.number], value.axis)
    if isinstance(value, list | tuple):
        return type(value)(_renumbered(x, numbers) for x in value)
    return value


def _array_text(array: np.ndarray) -> str:
    values = array.reshape(-1).astype(np.float64 if array.dtype.kind not in "biu" else array.dtype).tolist()
    name = array.dtype.name
    dtype = "ml_dtypes.bfloat16" if name == "bfloat16" else f"np.{name.replace('bool', 'bool_')}"
    if values and len(values) > 4 and all(x == values[0] for x in values):
        return f"np.full({array.shape}, {values[0]}).astype({dtype})"
    return f"np.array({values}).astype({dtype}).reshape({array.shape})"
