"""Memory on the CPU: inputs as views, intermediates and outputs as NumPy arrays."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from typing import Any

import numpy as np

from fuser_lab.codegen.kernel_ir import ALIGNED, Layout, dense_strides
from fuser_lab.codegen.pipeline import GeneratedKernel
from fuser_lab.cost.device import DEFAULT
from fuser_lab.dtypes import DataType
from fuser_lab.errors import FuserLabError, InputError, UnsupportedError
from fuser_lab.ir import TensorView
from fuser_lab.ops.rules import Array
from fuser_lab.process.host_memory import check_fits, free_bytes
from fuser_lab.runtime.arrays import flat_view, from_numpy_as, is_torch, storage_dtype, to_numpy, torch_module
from fuser_lab.runtime.compile import refusal_error
from fuser_lab.runtime.cpu.copies import copy_transposed
from fuser_lab.runtime.cpu.host_ready import HostRuns, can_repoint
from fuser_lab.runtime.cpu.launcher import HostCall, host_calls
from fuser_lab.runtime.environment import Environment
from fuser_lab.runtime.interrupts import import_whole, interrupts_deferred
from fuser_lab.runtime.processors import threads_here
from fuser_lab.targets import CPU

_MANY = 1 << 14  # elements, for which calling torch is worthwhile
ALIGNMENT = 64  # bytes of a cache line, and more than the widest access
_SAME_SIZE: dict[int, Any] = {1: np.int8, 2: np.int16, 4: np.int32, 8: np.int64}


class HostMemory:
    """The host implementation of the memory interface; `DeviceMemory` is that for a GPU."""

    target = CPU.name
    gpu = DEFAULT

    def import_input(self, value: Any, tensor: TensorView) -> Array:
        """Return an input as an array that kernels can read, a view if possible."""
        array = value if type(value) is np.ndarray else to_numpy(value)
        return array if _is_regular(array) else array.copy()

    def element_strides(self, array: Array) -> tuple[int, ...]:
        """Return strides in elements."""
        return tuple(s // array.itemsize for s in array.strides)

    def alignment(self, array: Array) -> int:
        """Return the largest alignment, because CPU kernels only need aligned elements."""
        return ALIGNED

    def flat(self, array: Array, dtype: DataType, layout: Layout) -> Array:
        """Return the memory of an array as a kernel argument."""
        return flat_view(array, dtype, layout.size, layout.offset)

    def block(self, nbytes: int) -> Array:
        """Return uninitialized, aligned memory."""
        check_fits(nbytes)
        raw = np.empty(nbytes + ALIGNMENT, np.uint8)
        start = -raw.ctypes.data % ALIGNMENT
        return raw[start : start + nbytes]

    def typed(self, block: Array, dtype: DataType, size: int) -> Array:
        """Return the beginning of a block as stored elements of a dtype."""
        stored = storage_dtype(dtype)
        return block[: size * stored.itemsize].view(stored)

    def fresh(self, dtype: DataType, size: int) -> Array:
        """Return new memory for an output."""
        stored = storage_dtype(dtype)
        check_fits(size * stored.itemsize)
        return np.empty(size, stored)

    def logical(self, flat: Array, tensor: TensorView) -> Array:
        """Return memory that is dense in a tensor's allocation order as an array of its shape and dtype."""
        steps = tuple(s * tensor.dtype.itemsize for s in dense_strides(tensor))
        return np.ndarray(tensor.shape, tensor.dtype.numpy, buffer=flat, strides=steps)

    def export(self, array: Array, kind: str, like: Any) -> Any:
        """Return an output as an array of the inputs' library."""
        return from_numpy_as(kind, array, like)

    def copy(self, target: Array, source: Any) -> None:
        """Copy elements, to an array of any library."""
        if isinstance(target, np.ndarray):
            _copy(target, to_numpy(source))
        elif is_torch(target):
            array = to_numpy(source)
            if _is_plain(target) and _by_kernel(to_numpy(target), array):
                torch_module().autograd.graph.increment_version(target)  # as copy_ does
            else:
                target.copy_(from_numpy_as("torch", array if _is_shareable(array) else np.array(array, order="C")))
        else:
            msg = f"out must be NumPy or torch arrays, given {type(target).__name__}, which cannot be written to."
            raise InputError(msg)

    def calls(self, generated: GeneratedKernel) -> tuple[HostCall, ...]:
        """Return the compiled functions of a kernel; raise CompilationError if Numba refuses it."""
        with interrupts_deferred():
            try:
                return host_calls(generated)
            except FuserLabError:
                raise
            except Exception as error:
                raise refusal_error(generated, "the CPU", error) from error

    def is_native(self, value: Any) -> bool:
        """Whether kernels can write to an array of the caller."""
        if isinstance(value, np.ndarray):
            return _is_regular(value)
        return is_torch(value) and value.is_cpu and not value.is_conj() and not value.is_neg()

    def is_writable(self, array: Any) -> bool:
        """Whether an array may be written to."""
        return is_torch(array) or (isinstance(array, np.ndarray) and bool(array.flags.writeable))

    def capability(self) -> None:
        """Return None: kernels are compiled for the CPU of this machine."""

    def active(self, values: Sequence[Any]) -> AbstractContextManager[object]:
        """Return a context without effect, because there is only one CPU."""
        return nullcontext()

    def queue(self) -> int:
        """Return the only queue: CPU kernels are synchronous."""
        return 0

    def bound(self, calls: Sequence[Callable[[Environment], None]], env: Environment) -> Callable[[], None]:
        """Return the calls with their arguments in place."""

        def start() -> None:
            for call in calls:
                call(env)

        return start

    def ready_runs(self, outputs: object) -> HostRuns | None:
        """Return the store of runs that can be repeated with other arrays."""
        return HostRuns() if can_repoint() else None

    def launches(self, calls: object, env: object, shared: object = None) -> None:
        """Return None: there are no launches."""

    def capture(self, start: Callable[[], None]) -> Callable[[], None]:
        """Raise UnsupportedError: a CUDA graph holds launches on a GPU."""
        raise UnsupportedError("captured: a CUDA graph needs a plan for a GPU; prepare it for 'cuda'.")

    def free_bytes(self) -> int | None:
        """Return the bytes available to this process, None if unknown."""
        return free_bytes()

    def synchronize(self) -> None:
        """Do nothing: CPU kernels are synchronous."""

    def label(self) -> str:
        """Return the device's name for tables."""
        if find_spec("numba") is None:
            return f"{CPU.label} (NumPy)"
        count = threads_here()
        return f"{CPU.label} ({count} thread{'s' if count != 1 else ''})"


def host_memory(number: None = None) -> HostMemory:
    """Return the memory of the only CPU, which has no number; import Numba, which its kernels need, as a whole."""
    del number
    import_whole("fuser_lab.runtime.cpu_kernels")
    return HostMemory()


def _copy(target: Array, source: Array) -> None:
    """Copy elements, by a kernel from another order of axes; torch, if it is loaded, copies the others in parallel.

    Elements that an expanded target has once in memory are copied once.
    """
    if target.shape == source.shape and 0 in target.strides:
        distinct = tuple(slice(0, 1) if stride == 0 else slice(None) for stride in target.strides)
        target, source = target[distinct], source[distinct]
    if _by_kernel(target, source):
        return
    kind = _SAME_SIZE.get(target.itemsize)
    shareable = _is_shareable(source) and _is_shareable(target) and _are_apart(target, source)
    if kind is not None and torch_module() is not None and source.size >= _MANY and shareable:
        from_numpy_as("torch", target.view(kind)).copy_(from_numpy_as("torch", source.view(kind)))
    else:
        np.copyto(target, source, casting="unsafe")


def _by_kernel(target: Array, source: Array) -> bool:
    """Copy elements with a kernel if there is a faster one; return whether they were copied."""
    regular = target.flags.writeable and _is_regular(target) and _is_regular(source)
    return regular and _are_apart(target, source) and copy_transposed(target, source)


def _are_apart(target: Array, source: Array) -> bool:
    """Whether arrays have elements of the same kind, in the same shape and in different memory."""
    same = source.dtype == target.dtype and source.shape == target.shape
    return same and not np.may_share_memory(source, target)


def _is_plain(tensor: Any) -> bool:
    """Whether writing to the memory of a torch tensor is like ``copy_``, which refuses or follows some tensors."""
    plain = type(tensor) is torch_module().Tensor and tensor.is_cpu and not tensor.requires_grad
    return plain and not (tensor.is_inference() or tensor.is_neg() or tensor.is_conj())


def _is_shareable(array: Array) -> bool:
    """Whether torch can view an array."""
    return bool(array.flags.writeable) and _is_regular(array) and min(array.strides, default=0) >= 0


def _is_regular(array: Array) -> bool:
    """Whether strides are multiples of the element size."""
    return array.flags.aligned and not any(s % array.itemsize for s in array.strides)
