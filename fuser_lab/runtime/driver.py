"""The CUDA driver's calls: modules loaded through cuda.bindings, launches through ctypes with prepared arguments.

Arguments of a launch are words in memory whose addresses the driver is given. They are made once; another array later
is another number in one of the words.
"""

import ctypes
import functools
import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fuser_lab.codegen.kernel_ir import Phase

_INVALID_CONTEXT = 201  # no context is current in this thread
_INVALID_HANDLE = 400  # another device's context is
_OUT_OF_MEMORY = 2

Word = Any  # a ctypes number


@functools.cache
def bindings() -> Any:
    """Return cuda.bindings.driver."""
    return importlib.import_module("cuda.bindings.driver")


@functools.cache
def _library() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


@functools.cache
def _launcher() -> Callable[..., int]:
    # Without types of arguments, which would be converted at each call: they are ctypes numbers already.
    return _library().cuLaunchKernel


def check(status: Any, what: str) -> None:
    """Raise RuntimeError if the driver refused something."""
    if int(status) != 0:
        raise RuntimeError(failure(int(status), what))


def failure(status: int, what: str) -> str:
    """Return what the driver says, in one sentence."""
    name = bindings().CUresult(status).name
    return f"{what} failed: the CUDA driver says {name}."


class Function:
    """A kernel loaded on one device."""

    __slots__ = ("context", "device", "handle", "module")

    def __init__(self, cubin: bytes, entry: str, phase: Phase, device: int) -> None:
        """Load a cubin into the current context."""
        driver = bindings()
        status, module = driver.cuModuleLoadData(cubin)
        check(status, f"loading {phase.name}")
        status, function = driver.cuModuleGetFunction(module, entry.encode())
        check(status, f"finding {phase.name}")
        if phase.launch.shared:
            attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            (status,) = driver.cuFuncSetAttribute(function, attribute, phase.launch.shared)
            check(status, f"reserving {phase.launch.shared:,} bytes of shared memory a block for {phase.name}")
        status, context = driver.cuCtxGetCurrent()
        check(status, f"loading {phase.name}")
        self.module, self.handle, self.context, self.device = module, int(function), int(context), device


class Launch:
    """One launch with its arguments in place; calling it with a stream starts it.

    ``words`` are the arguments by the names of buffers and scalars. A launch copies them, so that they may change as
    soon as the call is back.
    """

    __slots__ = ("_arguments", "_fixed", "_function", "_last", "_launch", "_name", "words")

    def __init__(self, function: Function, phase: Phase, words: Mapping[str, Sequence[Word]]) -> None:
        """Lay out the arguments in the order of the kernel's parameters."""
        flat = [word for group in words.values() for word in group]
        self.words = words
        addresses = (ctypes.c_void_p * max(len(flat), 1))(*map(ctypes.addressof, flat))
        blocks, (x, y) = phase.launch.blocks, phase.launch.threads
        shape = (blocks, 1, 1, x, y, 1, phase.launch.shared)
        self._fixed = (ctypes.c_void_p(function.handle), *map(ctypes.c_uint, shape)), (addresses, ctypes.c_void_p())
        self._function, self._name, self._launch = function, phase.name, _launcher()
        self._last = -1  # the stream of the arguments
        self._arguments: tuple[Any, ...] = ()

    def __call__(self, stream: int) -> None:
        """Launch on a stream, given by its handle."""
        if stream != self._last:
            before, after = self._fixed
            self._arguments, self._last = (*before, ctypes.c_void_p(stream), *after), stream
        status = self._launch(*self._arguments)
        if status:
            self._again(status)

    def _again(self, status: int) -> None:
        """Launch once more with the kernel's context where another one is current, or none; else raise."""
        if status in {_INVALID_CONTEXT, _INVALID_HANDLE}:
            _library().cuCtxPushCurrent_v2(ctypes.c_void_p(self._function.context))
            status = self._launch(*self._arguments)
            _library().cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))
        if status == _OUT_OF_MEMORY:
            raise MemoryError(failure(status, f"launching {self._name}"))
        check(status, f"launching {self._name}")
