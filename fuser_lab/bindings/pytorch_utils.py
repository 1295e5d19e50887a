"""Small helpers that scripts expect for torch."""

import functools
import gc
import importlib
from collections.abc import Callable
from typing import Any

from fuser_lab.arguments import FUNCTION, short_text, takes
from fuser_lab.dtypes import DataType, of_python
from fuser_lab.errors import ArgumentTypeError, UnsupportedDtypeError, UnsupportedError
from fuser_lab.runtime.arrays import TORCH_OF

_NUMBERS: dict[type, DataType] = {
    bool: DataType.Bool, int: DataType.Int, float: DataType.Double, complex: DataType.ComplexDouble,
}

__all__ = [
    "get_device_properties", "python_scalar_to_nvfuser_dtype", "retry_on_oom_or_skip_test",
    "torch_dtype_to_nvfuser_dtype",
]


def torch_dtype_to_nvfuser_dtype(dtype: Any) -> DataType:
    """Return the DataType of a torch dtype, or of a type of Python numbers.

    Raises
    ------
    UnsupportedDtypeError
        A KeyError, if no fusion has it.
    """
    if isinstance(dtype, type) and dtype in _NUMBERS:
        return _NUMBERS[dtype]
    named = dtype if isinstance(dtype, str) else short_text(dtype)
    name = named.removeprefix("torch.")
    for own_dtype, torch_name in TORCH_OF.items():
        if torch_name == name and own_dtype is not DataType.Index:
            return own_dtype
    accepted = ", ".join(sorted(set(TORCH_OF.values())))
    raise UnsupportedDtypeError(f"dtype {short_text(dtype)} is not a tensor type of a fusion; accepted are {accepted}.")


def python_scalar_to_nvfuser_dtype(a: Any) -> DataType:
    """Return the DataType of a Python number, or of a type of Python numbers."""
    if isinstance(a, type) and a in _NUMBERS:
        return _NUMBERS[a]
    if isinstance(a, bool | int | float | complex):
        return of_python(a)
    raise ArgumentTypeError(f"python_scalar_to_nvfuser_dtype: a must be a number, given {type(a).__name__}.")


@takes(func=FUNCTION)
def retry_on_oom_or_skip_test(func: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a test: if a GPU is out of memory, free memory and run the test again, then skip it."""

    @functools.wraps(func)
    def again(*args: Any, **kwargs: Any) -> Any:
        torch: Any = importlib.import_module("torch")
        try:
            return func(*args, **kwargs)
        except torch.OutOfMemoryError:
            gc.collect()
            torch.cuda.empty_cache()
        try:
            return func(*args, **kwargs)
        except torch.OutOfMemoryError as error:
            pytest: Any = importlib.import_module("pytest")
            pytest.skip(f"out of GPU memory: {error}")

    return again


def get_device_properties() -> dict[str, Any]:
    """Return properties of the current GPU by nvFuser's names.

    Raises
    ------
    UnsupportedError
        If there is none.
    """
    torch: Any = importlib.import_module("torch")
    if not torch.cuda.is_available():
        raise UnsupportedError("get_device_properties: no CUDA device was found.")
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    return {
        "gpu_name": properties.name,
        "gpu_compute_capability_major": properties.major,
        "gpu_compute_capability_minor": properties.minor,
        "gpu_gmem_bytes": properties.total_memory,
        "gpu_sm_count": properties.multi_processor_count,
    }
