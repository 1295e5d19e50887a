"""Memory and launches on a CUDA device: torch holds the arrays, the driver launches the kernels.

A launch through the driver with plain pointers costs a few microseconds; Numba's dispatcher takes tens of them.
"""

import ctypes
import functools
import importlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

from fuser_lab.codegen.kernel_ir import Layout, Phase, dense_strides
from fuser_lab.codegen.pipeline import GeneratedKernel
from fuser_lab.dtypes import DataType
from fuser_lab.errors import UnsupportedError
from fuser_lab.ir import TensorView
from fuser_lab.process.forks import new_lock
from fuser_lab.runtime.arrays import TORCH_OF, from_numpy_as, is_torch, kind_of, quick_empty, to_numpy
from fuser_lab.runtime.binding import Slot
from fuser_lab.runtime.environment import Environment
from fuser_lab.runtime.gpu.cubins import machine_code_of
from fuser_lab.runtime.gpu.driver import Function, Launch, Launches, unload_unused
from fuser_lab.runtime.gpu.ptx import kernel_key
from fuser_lab.runtime.gpu.ready import ReadyRuns, aligned_to
from fuser_lab.runtime.gpu.this_gpu import describe_device
from fuser_lab.runtime.recent import Recent
from fuser_lab.targets import CUDA

# Parameters per scalar: a complex scalar is two parameters, as in Numba's kernels.
_PARAMETERS: Mapping[DataType, tuple[Callable[[Any], Any], ...]] = {
    DataType.Double: (ctypes.c_double,), DataType.Float: (ctypes.c_float,),
    **{dtype: (ctypes.c_float,) for dtype in DataType if dtype.is_reduced_float},
    **{dtype: (ctypes.c_int32,) for dtype in DataType if dtype.is_small_integer},
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
        msg = "running on a GPU requires torch, which allocates the arrays: pip install torch."
        raise UnsupportedError(msg) from None
    if not torch.cuda.is_available():
        raise UnsupportedError("no CUDA device was found; CUDA kernels can be generated and read, but not run.")
    torch.cuda.init()
    return torch


def _pointer(array: Any) -> Any:
    return ctypes.c_void_p(array.data_ptr())


@functools.cache
def _stream_of() -> Callable[[int], int]:
    """Return a function that returns the handle of torch's current stream on a device."""
    torch = _torch()
    # As Triton and Inductor do, at a tenth of the cost of a Stream object.
    raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)  # noqa: SLF001
    return raw_stream or (lambda device: int(torch.cuda.current_stream(device).cuda_stream))


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceCall:
    """One launch: the loaded function and its parameters, each with a name and a conversion of the value.

    ``generated`` is the kernel of which it is a launch.
    """

    function: Function
    phase: Phase
    generated: GeneratedKernel
    parameters: tuple[tuple[str, tuple[Callable[[Any], Any], ...]], ...]

    def __call__(self, env: Environment) -> None:
        """Launch on torch's current stream."""
        self.launch(env)(_stream_of()(self.function.device))

    def launch(self, env: Environment, shared: dict[str, tuple[Any, ...]] | None = None) -> Launch:
        """Return the launch with its arguments in place; the caller keeps the arrays alive.

        ``shared`` holds words of other launches by name: all kernels with the same argument share one word.
        """
        shared, arguments = {} if shared is None else shared, env.arguments
        for name, makers in self.parameters:
            if name not in shared:
                shared[name] = tuple(made(arguments[name]) for made in makers)
        words = {name: shared[name] for name, _ in self.parameters}
        words |= {size.name: tuple(made(size.word) for made in _PARAMETERS[size.dtype]) for size in self.phase.sizes}
        return Launch(self.function, self.phase, words, self.generated)


MOST_MODULES = 256  # kept loaded in addition to those in use

_FUNCTIONS: Recent[tuple[object, int], tuple[Function, ...]] = Recent(MOST_MODULES)
_LOCK = new_lock()


def _load(generated: GeneratedKernel, device: int) -> tuple[Function, ...]:
    """Return the functions of a kernel's phases on a device, which must be the current one.

    Kernels that differ only in their arguments, such as sizes and the number of blocks, share them.
    """
    torch = _torch()
    key = (kernel_key(generated), device)
    loaded = _FUNCTIONS.get(key)
    if loaded is None:
        codes = machine_code_of(generated, torch.cuda.get_device_capability(device))
        with _LOCK:
            loaded = _FUNCTIONS.get(key)
            if loaded is None:
                # Torch makes its context current lazily; modules are loaded into the current context.
                torch.cuda.current_stream().synchronize()
                torch.empty(1, device=CUDA.name)
                functions = tuple(Function(c.cubin, c.entry, c.phase, device) for c in codes)
                loaded = _FUNCTIONS.keep(key, functions)
                unload_unused()
    return loaded


def current_device() -> str:
    """Return the name of torch's current device, such as ``"cuda:0"``.

    Raises
    ------
    UnsupportedError
        If torch is not installed, or sees no GPU.
    """
    return f"{CUDA.name}:{_torch().cuda.current_device()}"


class DeviceMemory:
    """The GPU counterpart of `HostMemory`; arrays are torch tensors."""

    target = CUDA.name

    def __init__(self, number: int | None = None) -> None:
        """Take a device by number; the current one if none is given."""
        count = _torch().cuda.device_count()
        if number is not None and not 0 <= number < count:
            msg = f"device {CUDA.name}:{number} does not exist; this machine has {count} CUDA devices."
            raise UnsupportedError(msg)
        self.number = _torch().cuda.current_device() if number is None else number
        self._device = _torch().device(CUDA.name, self.number)
        self.gpu = describe_device(_torch().cuda.get_device_properties(self.number))
        self._allocator = threading.local()

    def import_input(self, value: Any, tensor: TensorView) -> Any:
        """Return an input as a tensor on the device, copied only if it is elsewhere."""
        if is_torch(value):
            # Torch conjugates and negates lazily, without a change in memory.
            return value.detach().resolve_conj().resolve_neg().to(self._device)
        if _is_shared(value):
            return _torch().from_dlpack(value)
        array = np.ascontiguousarray(to_numpy(value)).reshape(tensor.shape)
        return from_numpy_as("torch", array if array.flags.writeable else array.copy()).to(self._device)

    def is_native(self, value: Any) -> bool:
        """Whether kernels can write to an array of the caller."""
        if is_torch(value):
            return value.device == self._device and not value.is_conj() and not value.is_neg()
        return kind_of(value) == "cupy"

    def is_writable(self, array: Any) -> bool:
        """Whether an array may be written to."""
        is_on_device = is_torch(array) or kind_of(array) == "cupy"
        return is_on_device or (isinstance(array, np.ndarray) and array.flags.writeable)

    def element_strides(self, array: Any) -> tuple[int, ...]:
        """Return strides in elements."""
        return tuple(array.stride())

    def alignment(self, array: Any) -> int:
        """Return the alignment in bytes, at most `ALIGNED`, of the address of the first element."""
        return aligned_to(int(array.data_ptr()))

    def flat(self, array: Any, dtype: DataType, layout: Layout) -> Any:
        """Return the kernels' argument: the tensor, whose pointer is the address of its first element."""
        return array

    def block(self, nbytes: int) -> Any:
        """Return uninitialized memory."""
        library = getattr(self._allocator, "library", None)
        if library is not None:
            return _torch().from_dlpack(library.empty(nbytes, dtype=library.uint8))
        return _torch().empty(nbytes, dtype=_torch().uint8, device=self._device)

    def typed(self, block: Any, dtype: DataType, size: int) -> Any:
        """Return the beginning of a block as elements of a dtype."""
        return block[: size * dtype.itemsize].view(self._dtype(dtype))

    def _dtype(self, dtype: DataType) -> Any:
        return getattr(_torch(), TORCH_OF[dtype])

    def fresh(self, dtype: DataType, size: int) -> Any:
        """Return new memory for an output."""
        if getattr(self._allocator, "library", None) is not None:
            return self.typed(self.block(size * dtype.itemsize), dtype, size)
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
        """Copy elements between arrays on any device."""
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
        """Return the launches of a kernel, compiled for the device and loaded."""
        with self.active(()):
            return tuple(
                DeviceCall(
                    function=function, phase=phase, generated=generated,
                    parameters=(
                        *((b.name, (_pointer,)) for b in phase.buffers),
                        *((v.name, _PARAMETERS[v.dtype]) for v in phase.scalars),
                    ),
                )
                for phase, function in zip(generated.kernel_ir.phases, _load(generated, self.number), strict=True)
            )

    def capability(self) -> tuple[int, int]:
        """Return the compute capability that kernels are compiled for."""
        major, minor = _torch().cuda.get_device_capability(self.number)
        return int(major), int(minor)

    # Devices and streams

    def active(self, values: Sequence[Any]) -> AbstractContextManager[object]:
        """Return a context that sends work to this device, on the current stream of the values' library.

        That is torch's current stream, or CuPy's if some value is CuPy's; new memory then comes from CuPy too.
        """
        if any(kind_of(value) == "cupy" for value in values):
            return self._beside_cupy()
        if _torch().cuda.current_device() != self.number:
            return _torch().cuda.device(self.number)  # type: ignore[no-any-return]
        return nullcontext()

    @contextmanager
    def _beside_cupy(self) -> Iterator[None]:
        torch, cupy = _torch(), importlib.import_module("cupy")
        handle = cupy.cuda.get_current_stream().ptr
        # Without a handle, ExternalStream is a new stream, which does not wait for the default stream.
        stream = (
            torch.cuda.ExternalStream(handle, device=self._device) if handle
            else torch.cuda.default_stream(self._device)
        )
        self._allocator.library = cupy
        try:
            with torch.cuda.device(self.number), torch.cuda.stream(stream):
                yield
        finally:
            self._allocator.library = None

    def queue(self) -> int:
        """Return the stream of launches; the storage of a run is reused only on the same stream."""
        return _stream_of()(self.number)

    def bound(self, calls: Sequence[Any], env: Environment) -> Callable[[], None]:
        """Return the calls with their arguments in place; each call uses the stream that is then current."""
        stream, number = _stream_of(), self.number
        launches = self.launches(calls, env)
        row = None if launches is None else Launches(launches)
        held = env.copy()  # keeps the arrays alive as long as the function

        def start() -> None:
            if row is not None:
                row(stream(number))
                return
            for call in calls:
                call(held)

        return start

    def ready_runs(self, outputs: Sequence[Slot]) -> ReadyRuns:
        """Return the store of runs on torch tensors that can be repeated with other tensors."""
        torch = _torch()
        kinds = frozenset({torch.Tensor, torch.nn.Parameter})
        return ReadyRuns(kinds, functools.partial(_stream_of(), self.number), self.maker(outputs))

    def maker(self, outputs: Sequence[Slot]) -> Callable[[], list[Any]]:
        """Return a function that makes new tensors for outputs."""
        torch = _torch()
        made = [(slot.shape, slot.dense, self._dtype(slot.tensor.dtype)) for slot in outputs]
        number, current, quick = self.number, torch._C._cuda_getDevice, quick_empty(CUDA.name)  # noqa: SLF001

        def new() -> list[Any]:
            if quick is not None and current() == number:
                return [quick(*form) for form in made]
            return [torch.empty_strided(*form, dtype=dtype, device=self._device) for *form, dtype in made]

        return new

    def launches(
        self, calls: Sequence[Any], env: Environment, shared: dict[str, tuple[Any, ...]] | None = None,
    ) -> list[Launch] | None:
        """Return the launches of calls with their arguments in place; None unless all calls are launches.

        ``shared`` holds words of launches by name; those that are missing are added.
        """
        if not all(isinstance(call, DeviceCall) for call in calls):
            return None
        shared = {} if shared is None else shared
        return [call.launch(env, shared) for call in calls]

    def capture(self, start: Callable[[], None]) -> Callable[[], None]:
        """Return a function that replays all launches of a function on the current stream.

        Raises
        ------
        RuntimeError
            If something cannot be captured because it waits for the GPU, or allocates memory elsewhere.
        """
        torch = _torch()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            start()
        return graph.replay  # type: ignore[no-any-return]

    def synchronize(self) -> None:
        """Wait for all launches to finish."""
        _torch().cuda.synchronize(self.number)

    def free_bytes(self) -> int | None:
        """Return the bytes available to this process: free in the driver, or unused in torch's allocator."""
        cuda = _torch().cuda
        free, total = map(int, cuda.mem_get_info(self.number))
        reserved, used = int(cuda.memory_reserved(self.number)), int(cuda.memory_allocated(self.number))
        # torch reports the process's share of the device since 2.7.
        share = float(getattr(cuda, "get_per_process_memory_fraction", lambda _: 1.0)(self.number))
        return max(min(free, int(total * share) - reserved), 0) + reserved - used

    def label(self) -> str:
        """Return the device's name for tables."""
        return str(_torch().cuda.get_device_name(self.number))


def _is_shared(value: Any) -> bool:
    """Whether an array of another library is on a GPU and can be viewed by torch."""
    return hasattr(value, "__cuda_array_interface__") and hasattr(value, "__dlpack__")
