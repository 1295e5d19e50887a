"""Calls of the CUDA driver: modules loaded through cuda.bindings, and launches with prepared arguments.

The driver receives the addresses of words that hold a launch's arguments. They are created once; a different array only
changes one of the words.
"""

import ctypes
import functools
import importlib
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fuser_lab.codegen.kernel_ir import Phase
from fuser_lab.cost.device import PORTABLE_CLUSTER
from fuser_lab.runtime.gpu.launch_loop import Record, Row, loop

if TYPE_CHECKING:
    from fuser_lab.codegen.pipeline import GeneratedKernel

_INVALID_CONTEXT = 201  # no context is current in this thread
_INVALID_HANDLE = 400  # the context of another device is current
_OUT_OF_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY of the driver API

Word = Any  # a ctypes number


@functools.cache
def bindings() -> Any:
    """Return cuda.bindings.driver."""
    return importlib.import_module("cuda.bindings.driver")


@functools.cache
def _library() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


def _launcher() -> Any:
    return _library().cuLaunchKernel


def check(status: Any, call: str) -> None:
    """Raise RuntimeError if the driver reports an error."""
    if int(status) != 0:
        raise RuntimeError(failure(int(status), call))


def failure(status: int, call: str) -> str:
    """Return the driver's error as one sentence."""
    name = bindings().CUresult(status).name
    return f"{call} failed: the CUDA driver returned {name}."


# Modules whose functions have no references, with their contexts, waiting for `unload_unused`.
_UNUSED: "deque[tuple[int, Any]]" = deque()


def unload_unused() -> None:
    """Unload the modules whose functions have no references.

    A module is not unloaded with its last reference, because a graph capture may be in progress, another context may be
    current, and launches may still run. This function waits for each module's context first, so no capture may be in
    progress in this thread.
    """
    while _UNUSED:
        try:
            context, module = _UNUSED.popleft()
        except IndexError:  # another thread took it
            return
        driver = bindings()
        (status,) = driver.cuCtxPushCurrent(driver.CUcontext(context))
        if int(status) == 0:  # otherwise the context was destroyed, and its modules with it
            driver.cuCtxSynchronize()
            driver.cuModuleUnload(module)
            driver.cuCtxPopCurrent()


class Function:
    """A kernel loaded on one device; `unload_unused` unloads its module once it has no references."""

    __slots__ = ("__weakref__", "_reserved", "context", "device", "handle", "module")

    def __init__(self, cubin: bytes, entry: str, phase: Phase, device: int) -> None:
        """Load a cubin into the current context."""
        driver = bindings()
        status, module = driver.cuModuleLoadData(cubin)
        check(status, f"loading {phase.name}")
        status, function = driver.cuModuleGetFunction(module, entry.encode())
        check(status, f"finding {phase.name}")
        if phase.launch.cluster > PORTABLE_CLUSTER:
            attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
            (status,) = driver.cuFuncSetAttribute(function, attribute, 1)
            check(status, f"allowing clusters of {phase.launch.cluster} blocks for {phase.name}")
        status, context = driver.cuCtxGetCurrent()
        check(status, f"loading {phase.name}")
        self.module, self.handle, self.context, self.device = module, int(function), int(context), device
        self._reserved = 0
        # Not at exit: the driver may be shut down by then, and the process frees everything else.
        weakref.finalize(self, _UNUSED.append, (self.context, module)).atexit = False


    def reserve(self, phase: Phase) -> None:
        """Allow launches with the dynamic shared memory of a phase, which may be more than that of earlier ones."""
        nbytes = phase.launch.shared
        if nbytes <= self._reserved:
            return
        driver = bindings()
        attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        (status,) = driver.cuCtxPushCurrent(driver.CUcontext(self.context))
        check(status, f"reserving shared memory for {phase.name}")
        try:
            (status,) = driver.cuFuncSetAttribute(driver.CUfunction(self.handle), attribute, nbytes)
            check(status, f"reserving {nbytes:,} bytes of shared memory per block for {phase.name}")
        finally:
            driver.cuCtxPopCurrent()
        self._reserved = nbytes


class Launch:
    """One launch with its arguments in place; calling it with a stream starts it.

    ``words`` are the arguments by the names of buffers and scalars. A launch copies them, so they may change as soon as
    the call returns. ``generated`` is the kernel of which it is a launch, if that is known.
    """

    __slots__ = ("_alone", "addresses", "function", "generated", "name", "shape", "words")

    def __init__(
        self, function: Function, phase: Phase, words: Mapping[str, Sequence[Word]],
        generated: "GeneratedKernel | None" = None,
    ) -> None:
        """Lay out the arguments in the order of the kernel's parameters."""
        function.reserve(phase)
        flat = [word for group in words.values() for word in group]
        self.addresses = (ctypes.c_void_p * max(len(flat), 1))(*map(ctypes.addressof, flat))
        self.words, self.function, self.name, self.generated = words, function, phase.name, generated
        self.shape = (phase.launch.blocks, *phase.launch.threads, phase.launch.shared)
        self._alone: Launches | None = None

    def __call__(self, stream: int) -> None:
        """Launch on a stream, given by its handle."""
        if self._alone is None:
            self._alone = Launches((self,))
        self._alone(stream)


class Launches:
    """A sequence of launches; calling it with a stream starts all of them."""

    __slots__ = ("_records", "_row", "_start", "_stream", "launches")

    def __init__(self, launches: Sequence[Launch]) -> None:
        """Hold launches; their words may change."""
        self.launches = tuple(launches)
        self._records = (Record * max(len(self.launches), 1))(*(
            Record(x.function.handle, ctypes.addressof(x.addresses), *x.shape) for x in self.launches
        ))
        launcher = ctypes.cast(_launcher(), ctypes.c_void_p)
        self._row = Row(launcher.value, None, ctypes.addressof(self._records), 0, len(self.launches))
        self._start = functools.partial(loop(), ctypes.c_void_p(ctypes.addressof(self._row)))
        self._stream = 0

    def __call__(self, stream: int) -> None:
        """Launch on a stream, given by its handle."""
        if stream != self._stream:
            self._row.stream = self._stream = stream
        status = self._start()
        if status:
            self._again(status)

    def _again(self, status: int) -> None:
        """Retry with a kernel's own context if another one, or none, is current; otherwise raise."""
        row = self._row
        refused = self.launches[row.next]
        if status in {_INVALID_CONTEXT, _INVALID_HANDLE}:
            _library().cuCtxPushCurrent_v2(ctypes.c_void_p(refused.function.context))
            status = self._start()
            _library().cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))
            refused = self.launches[row.next]
        row.next = 0
        if status == _OUT_OF_MEMORY:
            raise MemoryError(failure(status, f"launching {refused.name}"))
        check(status, f"launching {refused.name}")
