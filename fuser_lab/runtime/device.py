"""Memory and launches on a CUDA device: torch holds the arrays, the driver launches the kernels.

A launch through the driver with plain pointers costs a few microseconds, where Numba's own dispatcher takes tens.
"""

import ctypes
import functools
import importlib
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fuser_lab.codegen.generate import GeneratedKernel
from fuser_lab.codegen.kernel_ir import ALIGNED, Phase
from fuser_lab.codegen.layout import Layout, dense_strides
from fuser_lab.dtypes import DataType
from fuser_lab.errors import UnsupportedError
from fuser_lab.ir import TensorView
from fuser_lab.runtime.arrays import TORCH_OF, from_numpy_as, is_torch, to_numpy
from fuser_lab.runtime.ptx import compile_phases, kernel_key, machine_code

# Parameters that a scalar becomes: a complex one is two, as Numba's kernels take it.
_PARAMETERS: Mapping[DataType, tuple[Callable[[Any], Any], ...]] = {
    DataType.Double: (ctypes.c_double,), DataType.Float: (ctypes.c_float,),
    **{dtype: (ctypes.c_float,) for dtype in DataType if dtype.is_reduced_float},
    DataType.Int: (ctypes.c_int64,), DataType.Index: (ctypes.c_int64,), DataType.Int32: (ctypes.c_int32,),
    DataType.UInt64: (ctypes.c_uint64,), DataType.Bool: (ctypes.c_uint8,),
    DataType.ComplexFloat: (lambda z: ctypes.c_float(z.real), lambda z: ctypes.c_float(z.imag)),
    DataType.ComplexDouble: (lambda z: ctypes.c_double(z.real), lambda z: ctypes.c_double(z.imag)),
}


@functools.cache
def _torch() -> Any:
    try:
        torch: Any = importlib.import_module("torch")
    except ImportError:
        msg = "running on a GPU needs torch, which holds the arrays there: pip install torch."
        raise UnsupportedError(msg) from None
    if not torch.cuda.is_available():
        msg = "there is no CUDA device here; kernels for one can be generated and read, but not run."
        raise UnsupportedError(msg)
    torch.cuda.init()
    return torch


def _pointer(array: Any) -> Any:
    return ctypes.c_void_p(array.data_ptr())


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceCall:
    """One launch: the loaded function and its parameters, each a name and what makes it of the value."""

    function: Any
    phase: Phase
    parameters: tuple[tuple[str, Callable[[Any], Any]], ...]

    def __call__(self, env: Mapping[str, Any]) -> None:
        """Launch on torch's current stream."""
        driver = _driver()
        values = [made(env[name]) for name, made in self.parameters]
        addresses = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        launch = self.phase.launch
        stream = driver.CUstream(_torch().cuda.current_stream().cuda_stream)
        (status,) = driver.cuLaunchKernel(
            self.function, launch.blocks, 1, 1, *launch.threads, 1, launch.shared, stream, ctypes.addressof(addresses), 0,
        )
        _check(status, f"launching {self.phase.name}")


@functools.cache
def _driver() -> Any:
    return importlib.import_module("cuda.bindings.driver")


def _check(status: Any, what: str) -> None:
    if int(status) != 0:
        msg = f"{what} failed: the CUDA driver says {status}."
        raise RuntimeError(msg)


_FUNCTIONS: dict[tuple[object, int], tuple[tuple[Phase, Any], ...]] = {}
_LOCK = threading.Lock()


def _loaded(generated: GeneratedKernel) -> tuple[tuple[Phase, Any], ...]:
    """Return the phases of a kernel with their functions on the current device."""
    torch, driver = _torch(), _driver()
    key = (kernel_key(generated), torch.cuda.current_device())
    with _LOCK:
        if key not in _FUNCTIONS:
            # Torch makes its context current lazily; modules are loaded into the current one.
            torch.cuda.current_stream().synchronize()
            torch.empty(1, device="cuda")
            cc = torch.cuda.get_device_capability()
            found = []
            for compiled in compile_phases(generated, cc):
                code, _ = machine_code(compiled.ptx, cc)
                status, module = driver.cuModuleLoadData(code)
                _check(status, f"loading {compiled.phase.name}")
                status, function = driver.cuModuleGetFunction(module, compiled.entry.encode())
                _check(status, f"finding {compiled.phase.name}")
                if compiled.phase.launch.shared:
                    attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
                    (status,) = driver.cuFuncSetAttribute(function, attribute, compiled.phase.launch.shared)
                    _check(status, f"shared memory for {compiled.phase.name}")
                found.append((compiled.phase, function))
            _FUNCTIONS[key] = tuple(found)
        return _FUNCTIONS[key]


class DeviceMemory:
    """The GPU twin of `HostMemory`; arrays are torch tensors."""

    target = "cuda"

    def __init__(self) -> None:
        self._device = _torch().device("cuda", _torch().cuda.current_device())

    def import_input(self, value: Any, tensor: TensorView) -> Any:
        """Return an input as a tensor on the device: as it is if it lies there, else a copy."""
        if is_torch(value):
            return value.detach().to(self._device)
        if hasattr(value, "__cuda_array_interface__") and hasattr(value, "__dlpack__"):
            return _torch().from_dlpack(value)
        array = np.ascontiguousarray(to_numpy(value)).reshape(tensor.shape)
        return from_numpy_as("torch", array if array.flags.writeable else array.copy()).to(self._device)

    def is_native(self, value: Any) -> bool:
        """Whether kernels can write to an array of the caller."""
        return is_torch(value) and value.device == self._device

    def is_writable(self, array: Any) -> bool:
        """Whether an array may be written to."""
        return is_torch(array) or (isinstance(array, np.ndarray) and array.flags.writeable)

    def element_strides(self, array: Any) -> tuple[int, ...]:
        """Return strides in elements."""
        return tuple(array.stride())

    def alignment(self, array: Any) -> int:
        """Return the number of bytes, at most `ALIGNED`, that the address of the first element is a multiple of."""
        address = array.data_ptr() | ALIGNED
        return int(address & -address)

    def flat(self, array: Any, dtype: DataType, layout: Layout) -> Any:
        """Return what kernels are given: the tensor, whose first element is where a pointer leads."""
        return array

    def block(self, nbytes: int) -> Any:
        """Return uninitialized memory."""
        return _torch().empty(nbytes, dtype=_torch().uint8, device=self._device)

    def typed(self, block: Any, dtype: DataType, size: int) -> Any:
        """Return the beginning of a block as elements of a dtype."""
        return block[: size * dtype.itemsize].view(self._dtype(dtype))

    def _dtype(self, dtype: DataType) -> Any:
        return getattr(_torch(), TORCH_OF[dtype])

    def fresh(self, dtype: DataType, size: int) -> Any:
        """Return new memory for an output."""
        return _torch().empty(size, dtype=self._dtype(dtype), device=self._device)

    def logical(self, flat: Any, tensor: TensorView) -> Any:
        """Return memory that is dense in a tensor's allocation order as a tensor of its shape."""
        return flat.as_strided(tensor.shape, dense_strides(tensor))

    def export(self, array: Any, kind: str, like: Any) -> Any:
        """Return an output as an array of the inputs' library, on the inputs' device."""
        if kind == "torch":
            return array.to(like.device) if is_torch(like) else array
        if kind == "cupy":
            return importlib.import_module("cupy").from_dlpack(array)
        return from_numpy_as(kind, to_numpy(array))

    def copy(self, target: Any, source: Any) -> None:
        """Copy elements between arrays of any place."""
        if is_torch(target):
            moved = source if is_torch(source) else from_numpy_as("torch", np.require(source, requirements=("C", "W")))
            steps = enumerate(zip(target.shape, target.stride(), strict=True))
            for axis in [axis for axis, (size, step) in steps if size > 1 > step]:
                # An expanded axis is one element in memory; torch refuses to write it several times.
                target, moved = target.narrow(axis, 0, 1), moved.narrow(axis, 0, 1)
            target.copy_(moved)
        else:
            np.copyto(target, to_numpy(source), casting="unsafe")

    def calls(self, generated: GeneratedKernel) -> tuple[DeviceCall, ...]:
        """Return the launches of a kernel, compiled for the current device and loaded."""
        return tuple(
            DeviceCall(
                function=function, phase=phase,
                parameters=(
                    *((b.name, _pointer) for b in phase.buffers),
                    *((v.name, made) for v in phase.scalars for made in _PARAMETERS[v.dtype]),
                ),
            )
            for phase, function in _loaded(generated)
        )

    def synchronize(self) -> None:
        """Wait until everything launched has run."""
        _torch().cuda.synchronize()

    def label(self) -> str:
        """Return the device's name for tables."""
        return str(_torch().cuda.get_device_name())
