"""Helpers that nvFuser's tests and benchmarks import from their own modules."""

from collections.abc import Callable, Mapping
from typing import Any

from fuser_lab.arguments import is_whole
from fuser_lab.definition.repro.values import description
from fuser_lab.dtypes import DataType, of_python
from fuser_lab.errors import DefinitionError
from fuser_lab.ir import Number

_ASSUMED_SIZE = 1024  # elements per axis of an input whose size is not in the script
_ASSUMED_ATTENTION = (16, 512, 12, 768)  # batches, length, heads and width of the first model of the benchmarks


def _dtype(value: Any) -> DataType:
    # Dtypes of torch are read as those of nvFuser.
    if isinstance(value, DataType):
        return value
    raise DefinitionError(f"torch_dtype_to_nvfuser_dtype is read only for dtypes, given {description(value)}.")


def _dtype_of_number(value: Any) -> DataType:
    if isinstance(value, DataType):
        return value
    if isinstance(value, Number):
        return of_python(value)
    raise DefinitionError(f"python_scalar_to_nvfuser_dtype is read only for numbers, given {description(value)}.")


def _sizes(dims: Any = 2, **_: Any) -> list[tuple[int, ...]]:
    entries = dims if isinstance(dims, list | tuple) else [dims]
    if not entries or not all(is_whole(n) and 0 < n <= 8 for n in entries):
        raise DefinitionError(f"generate_input_sizes is read only for numbers of axes, given {description(dims)}.")
    return [(_ASSUMED_SIZE,) * n for n in entries]


# The default target is an H200; older devices are "pre" to it.
HELPERS: Mapping[str, Any] = {
    "PROMOTE_DTYPES": (DataType.BFloat16, DataType.Half),
    "FLOAT_DTYPES": (DataType.BFloat16, DataType.Half, DataType.Float),
}
HELPER_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "torch_dtype_to_nvfuser_dtype": _dtype,
    "python_scalar_to_nvfuser_dtype": _dtype_of_number,
    "generate_input_sizes": _sizes,
    "generate_attn_inputs": lambda: [_ASSUMED_ATTENTION],
    "is_pre_volta": lambda: False,
    "is_pre_ampere": lambda: False,
    "is_pre_hopper": lambda: False,
    "is_pre_blackwell": lambda: True,
}
# Helpers whose values are not in the script.
NOTED: Mapping[str, str] = {
    "generate_input_sizes": f"sizes of nvFuser's benchmarks are not in the script; {_ASSUMED_SIZE} is assumed for each",
    "generate_attn_inputs": f"sizes of nvFuser's benchmarks are not in the script; {_ASSUMED_ATTENTION} are assumed",
}
