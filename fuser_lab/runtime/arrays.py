"""Arrays of any library: their properties, and views of them without copies.

Supported are NumPy (including bfloat16 from ml_dtypes), torch on CPU and CUDA, CuPy, JAX on the CPU and anything with
``__array_interface__``. Libraries other than NumPy are imported only if the caller's arrays come from them.
"""

import functools
import importlib
import math
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fuser_lab.definition.spec import TensorSpec
from fuser_lab.dtypes import DataType, from_numpy
from fuser_lab.errors import ArgumentTypeError, InputError
from fuser_lab.ir import Number
from fuser_lab.ops.rules import Array
from fuser_lab.targets import CPU, CUDA, holders, is_on_host

_TORCH_NAMES = {
    "float64": DataType.Double, "float32": DataType.Float, "float16": DataType.Half, "bfloat16": DataType.BFloat16,
    "int64": DataType.Int, "int32": DataType.Int32, "uint64": DataType.UInt64, "bool": DataType.Bool,
    "int16": DataType.Short, "int8": DataType.Char, "uint8": DataType.Byte,
    "complex64": DataType.ComplexFloat, "complex128": DataType.ComplexDouble,
    "float8_e4m3fn": DataType.Float8_e4m3fn, "float8_e5m2": DataType.Float8_e5m2,
    "float8_e8m0fnu": DataType.Float8_e8m0fnu,
}
TORCH_OF = {dtype: name for name, dtype in _TORCH_NAMES.items()} | {DataType.Index: "int64"}

# Integers that represent, in kernels, the floats that NumPy and Numba do not support.
_WORDS: "dict[int, np.dtype[np.generic]]" = {1: np.dtype(np.uint8), 2: np.dtype(np.uint16)}
# The torch dtypes that these are viewed as.
_TORCH_WORDS = {1: "uint8", 2: "int16"}
_MOST_COMPARED = 1 << 22  # elements whose addresses are compared one by one
_FOREIGN = {dtype.numpy: dtype for dtype in TORCH_OF if dtype.is_float8 or dtype is DataType.BFloat16}


def torch_module() -> Any:
    """Return torch if the caller has loaded it, else None."""
    return sys.modules.get("torch")


def is_torch(value: Any) -> bool:
    """Whether a value is a torch tensor."""
    torch = torch_module()
    return torch is not None and isinstance(value, torch.Tensor)


def kind_of(value: Any) -> str:
    """Return the library of an array: ``"numpy"``, ``"torch"``, ``"cupy"``, ``"jax"``, or ``"number"``.

    Raises
    ------
    InputError
        If the value is neither an array nor a number.
    """
    if type(value) is np.ndarray:
        return "numpy"
    if isinstance(value, np.ma.MaskedArray):
        msg = "a masked array cannot be an input, because fusions ignore masks; pass x.filled(...) or x.data."
        raise InputError(msg)
    if isinstance(value, np.ndarray):
        return "numpy"
    if isinstance(value, bool | int | float | complex | np.generic):
        return "number"
    if is_torch(value):
        return "torch"
    library = type(value).__module__.partition(".")[0]
    if library in {"jax", "jaxlib"}:
        return "jax"
    if library == "cupy":
        return "cupy"
    if hasattr(value, "__array_interface__"):
        return "numpy"
    raise InputError(f"an input must be an array or a number, given {type(value).__name__}.")


def describe(value: Any) -> TensorSpec | Number:
    """Return an array's shape, dtype, strides and device, or a number as a Python number; nothing is copied.

    Raises
    ------
    InputError
        If the value is not an array or number, or has a dtype that no fusion has.
    """
    kind = kind_of(value)
    if kind == "number":
        return _number(value)
    if kind == "torch":
        return _describe_torch(value)
    array = value if kind == "numpy" and isinstance(value, np.ndarray) else None
    try:
        if array is None and kind == "cupy":
            return _describe_numpy(value, CUDA.name)
        return _describe_numpy(np.asarray(value) if array is None else array, CPU.name)
    except ArgumentTypeError as error:
        raise InputError(str(error)) from None


def _number(value: Any) -> Number:
    plain: Number = value.item() if isinstance(value, np.generic) else value
    return plain


def _describe_numpy(array: Any, device: str) -> TensorSpec:
    dtype = from_numpy(array.dtype)
    size = array.dtype.itemsize
    return TensorSpec(
        shape=tuple(array.shape), dtype=dtype, strides=tuple(s // size for s in array.strides), device=device,
    )


def _describe_torch(tensor: Any) -> TensorSpec:
    name = str(tensor.dtype).removeprefix("torch.")
    if name not in _TORCH_NAMES:
        msg = f"dtype {tensor.dtype} is not a tensor type of a fusion; accepted are {', '.join(_TORCH_NAMES)}."
        raise InputError(msg)
    if str(tensor.layout) != "torch.strided":
        raise InputError(f"a tensor with layout {tensor.layout} cannot be an input; only strided tensors can.")
    device = tensor.device
    if device.type not in holders():
        raise InputError(f"a tensor on device {device} cannot be an input; only {' and '.join(holders())} tensors can.")
    return TensorSpec(
        shape=tuple(tensor.shape), dtype=_TORCH_NAMES[name], strides=tuple(tensor.stride()), device=str(device),
    )


def to_numpy(value: Any) -> Array:
    """Return an array as a NumPy array of its own dtype: a view for anything on the CPU, else a copy.

    Subclasses of NumPy's array, such as matrices, become plain arrays.
    """
    if isinstance(value, np.ndarray):
        return np.asarray(value)
    if is_torch(value):
        return _torch_to_numpy(value)
    if hasattr(value, "get") and type(value).__module__.startswith("cupy"):
        return np.asarray(value.get())
    return np.asarray(value)


def _torch_to_numpy(tensor: Any) -> Array:
    torch = torch_module()
    plain = tensor.detach()
    if not plain.is_cpu:
        plain = plain.cpu()
    if plain.is_conj() or plain.is_neg():
        plain = plain.resolve_conj().resolve_neg()
    dtype = _TORCH_NAMES.get(str(plain.dtype).removeprefix("torch."), DataType.Float)
    if dtype.numpy in _FOREIGN:
        words: Array = plain.view(getattr(torch, _TORCH_WORDS[dtype.itemsize])).numpy()
        return words.view(dtype.numpy)
    view: Array = plain.numpy()
    return view


def inputs_to_numpy(values: Sequence[Any]) -> list[Any]:
    """Return inputs as NumPy arrays and Python numbers, as the reference evaluation expects them."""
    return [_number(v) if kind_of(v) == "number" else to_numpy(v) for v in values]


def output_kind(values: Sequence[Any]) -> str:
    """Return the library that outputs are made with: the first that is not NumPy, else NumPy."""
    kinds = [kind_of(v) for v in values]
    return next((k for k in kinds if k not in {"numpy", "number"}), "numpy")


def storage_dtype(dtype: DataType) -> "np.dtype[np.generic]":
    """Return the NumPy dtype that kernels see: floats of 16 and 8 bits are words."""
    return _WORDS[dtype.itemsize] if dtype.is_reduced_float else dtype.numpy


class Memory:
    """A range of memory in a form that NumPy can wrap; keeps its owner alive, None if its arrays may point anywhere."""

    __slots__ = ("__array_interface__", "owner")

    def __init__(
        self, owner: Any, address: int, shape: tuple[int, ...], typestr: str, strides: tuple[int, ...] | None = None,
    ) -> None:
        self.owner = owner
        self.__array_interface__ = {
            "data": (address, False), "shape": shape, "typestr": typestr, "strides": strides, "version": 3,
        }


def _place(value: Any) -> Any:
    """Return a NumPy array at the address of an array, never to be read; None if the address is unknown.

    Devices have disjoint address ranges, so this works for arrays on a GPU as well.
    """
    if isinstance(value, np.ndarray):
        return value
    if not is_torch(value) or not value.numel():
        return None
    size = value.element_size()
    steps = tuple(s * size for s in value.stride())
    return np.asarray(Memory(value, value.data_ptr(), tuple(value.shape), f"|V{size}", steps))


def may_overlap(a: Any, b: Any) -> bool:
    """Whether the ranges of memory of two arrays of NumPy or torch overlap."""
    a, b = _place(a), _place(b)
    return a is not None and b is not None and np.may_share_memory(a, b)


def overlap(a: Any, b: Any) -> bool:
    """Whether two NumPy or torch arrays share an element; True if that is too expensive to rule out."""
    a, b = _place(a), _place(b)
    if a is None or b is None:
        return False
    shares: Any = np.shares_memory
    try:
        return bool(shares(a, b, max_work=1 << 16))
    except np.exceptions.TooHardError:
        return True


def overlaps_itself(value: Any) -> bool:
    """Whether elements of one array share memory; True if that is too expensive to rule out."""
    if isinstance(value, np.ndarray):
        if value.flags.c_contiguous or value.flags.f_contiguous:
            return False
        steps, item = value.strides, value.itemsize
    elif is_torch(value):
        if value.is_contiguous():
            return False
        item = value.element_size()
        steps = tuple(s * item for s in value.stride())
    elif hasattr(value, "strides") and hasattr(value, "itemsize"):
        steps, item = value.strides, value.itemsize
    else:
        return False
    shape = tuple(value.shape)
    return 0 not in shape and _collide(sorted((abs(s), n) for s, n in zip(steps, shape, strict=True) if n > 1), item)


def _collide(axes: list[tuple[int, int]], item: int) -> bool:
    """Whether two elements of some axes, (stride, size) by ascending stride, are less than ``item`` bytes apart."""
    # An axis whose stride exceeds the extent of all axes with shorter strides cannot make elements collide.
    while axes and axes[-1][0] >= item + sum(step * (size - 1) for step, size in axes[:-1]):
        axes = axes[:-1]
    if not axes:
        return False
    if axes[0][0] < item or math.prod(size for _, size in axes) > _MOST_COMPARED:
        return True
    places = np.zeros(1, np.int64)
    for step, size in axes:
        places = np.add.outer(places, step * np.arange(size)).reshape(-1)
    return bool((np.diff(np.sort(places)) < item).any())


def flat_view(array: Array, dtype: DataType, size: int, offset: int) -> Array:
    """Return the range of memory of an array's elements, as a one-dimensional array of stored elements.

    The range begins ``offset`` elements before element 0 (negative strides) and has ``size`` elements. It is always
    writable, since kernels take one type of array; kernels do not write to inputs.
    """
    flags = array.flags
    stored = storage_dtype(dtype)
    if flags.c_contiguous and flags.writeable:
        flat = array.reshape(-1)
        return flat if flat.dtype == stored else flat.view(stored)
    if not size:
        return np.empty(0, stored)
    address = array.__array_interface__["data"][0] - offset * array.itemsize
    return np.asarray(Memory(array, address, (size,), stored.str))


def from_numpy_as(kind: str, array: Array, like: Any = None) -> Any:
    """Return a NumPy array as an array of another library; torch shares the memory, others may copy."""
    if kind == "torch":
        torch = torch_module()
        dtype = _FOREIGN.get(array.dtype)
        if dtype is not None:
            words = torch.from_numpy(array.view(np.int16 if dtype.itemsize == 2 else np.uint8))
            return words.view(getattr(torch, TORCH_OF[dtype]))
        return torch.from_numpy(array)
    if kind == "jax":
        return importlib.import_module("jax.numpy").asarray(array)
    if kind == "cupy":
        return importlib.import_module("cupy").asarray(array)
    return array


def shared_with_torch(values: dict[str, Any]) -> dict[str, Any]:
    """Return NumPy arrays as torch tensors over the same memory, or unchanged if torch cannot share it."""
    arrays = [value for value in values.values() if isinstance(value, np.ndarray)]
    if any(not array.flags.writeable or min(array.strides, default=0) < 0 for array in arrays):
        return values
    return {name: from_numpy_as("torch", v) if isinstance(v, np.ndarray) else v for name, v in values.items()}


Empty = Callable[[Any, Any, Any], Any]  # creates a tensor from a shape, strides and a dtype


@functools.cache
def quick_empty(kind: str) -> Empty | None:
    """Return a function that makes a tensor on the current "cpu" or "cuda" device; None if torch lacks it.

    Inductor's function takes a third of the time of ``torch.empty_strided``, which parses its arguments.
    """
    try:
        guards = importlib.import_module("torch._C._dynamo.guards")
    except ImportError:
        return None
    return getattr(guards, f"_empty_strided_{kind}", None)  # as called by inductor's code


@functools.cache
def empty_strided(device: str = CPU.name) -> Empty:
    """Return a function that makes a tensor on a device."""
    torch = importlib.import_module("torch")
    place = torch.device(device)
    quick = quick_empty(place.type)

    def slow(shape: Any, strides: Any, dtype: Any) -> Any:
        return torch.empty_strided(shape, strides, dtype=dtype, device=place)

    if quick is None:
        return slow
    if is_on_host(place.type):
        return quick
    current = torch._C._cuda_getDevice  # noqa: SLF001

    def made(shape: Any, strides: Any, dtype: Any) -> Any:
        return (quick if current() == place.index else slow)(shape, strides, dtype)

    return made
