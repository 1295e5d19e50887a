"""A call that is to be compiled, with what decides beside its function, and its partition."""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fuser_lab.arguments import short_text
from fuser_lab.bridge.captured import Captured
from fuser_lab.compilers.plan import CompiledPlan
from fuser_lab.contracts.partition import (
    Partition,
)
from fuser_lab.dtypes import DataType
from fuser_lab.errors import ArgumentTypeError
from fuser_lab.plan import Plan
from fuser_lab.report.units import dtype_label
from fuser_lab.version import __version__

_SHORT = {"float": "f", "bfloat": "bf", "int": "i", "uint": "u", "complex": "c"}


@dataclass(frozen=True, kw_only=True)
class Call:
    """A function with its arguments, and how it is compiled.

    ``who`` is the public function, which begins messages. ``options`` are those of the compiler's function:
    `from_inductor`, or `from_torch` for our own plans.
    """

    who: str
    function: Any
    inputs: tuple[Any, ...] = ()
    compiler: str = "inductor"
    device: str | None = None
    backward: bool = False
    keywords: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Compiled:
    """A call with its partition, and the plans that it was read from."""

    call: Call
    partition: Partition
    plans: tuple[CompiledPlan | Plan, ...]
    captured: Captured | None = None


def check_function(call: Call) -> None:
    """Raise ArgumentTypeError unless the subject is a function or a module, as compilers of other projects need."""
    if not callable(call.function) or isinstance(call.function, type):
        raise ArgumentTypeError(
            f"{call.who}: with compiler={call.compiler!r} the subject must be a function or a module, given "
            f"{short_text(call.function)}."
        )


def options_text(options: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the options that are set, one text each, in the order of their names."""
    return tuple(f"{name} = {value!r}" for name, value in sorted(options.items()) if value is not None)


def circumstances(call: Call, versions: Mapping[str, str]) -> dict[str, Any]:
    """Return what decides beside the function: its inputs and parameters as texts, and versions."""
    leaves: list[Any] = []
    waiting: list[Any] = [[*call.inputs, *(value for _, value in sorted(call.keywords.items()))]]
    while waiting:
        value = waiting.pop()
        if isinstance(value, list | tuple):
            waiting += reversed(value)
        elif isinstance(value, dict):
            waiting += [value[name] for name in sorted(value, key=str, reverse=True)]
        elif hasattr(value, "shape") and hasattr(value, "dtype"):
            leaves.append(value)
    held = [*getattr(call.function, "parameters", tuple)(), *getattr(call.function, "buffers", tuple)()]
    return {
        "inputs": tuple(map(_describe, leaves)), "versions": {"fuser_lab": __version__, **versions},
        "parameters": dict(sorted(Counter(_dtype(each.dtype) for each in held).items())),
    }


def _describe(tensor: Any) -> str:
    """Return ``f32[64,512]``, with strides where the tensor is not dense in the order of its axes."""
    sizes = [str(size) for size in tensor.shape]
    text = f"{_dtype(tensor.dtype)}[{','.join(sizes)}]"
    strides = tensor.stride() if callable(getattr(tensor, "stride", None)) else getattr(tensor, "strides", None)
    if strides is None or hasattr(tensor, "__array_interface__"):  # NumPy's strides are bytes, and JAX has none
        return text
    dense = 1
    for size, stride in zip(reversed(tensor.shape), reversed(strides), strict=True):
        if size > 1 and stride != dense:
            return f"{text} strides {','.join(map(str, strides))}"
        dense *= size
    return text


def _dtype(dtype: Any) -> str:
    if isinstance(dtype, DataType):
        return dtype_label(dtype)
    name = str(getattr(dtype, "name", dtype)).rpartition(".")[2].lower()
    match = re.fullmatch(r"([a-z]+?)(\d+)", name)
    return f"{_SHORT[match[1]]}{match[2]}" if match is not None and match[1] in _SHORT else name
