"""A stand-in for a GPU: plans generate CUDA kernels and launch them on tensors in host memory.

Instead of the driver's call, a function evaluates the kernels in lock step, or does nothing if only the time until that
call matters.
"""

import contextlib
import ctypes
import threading
from collections import OrderedDict
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, ClassVar
from unittest import mock

import numpy as np
from needs import needs

from fuser_lab.bridge import signature
from fuser_lab.bridge.torch_region import TorchRegion
from fuser_lab.codegen.kernel_eval import Lanes, Trace
from fuser_lab.codegen.kernel_ir import Buffer, Phase
from fuser_lab.codegen.kernel_list import ListPhase
from fuser_lab.cost.device import DEFAULT
from fuser_lab.runtime.arrays import empty_strided, storage_dtype
from fuser_lab.runtime.gpu import device, driver
from fuser_lab.runtime.plan import executor, variants

_UINT, _PLACE = ctypes.c_uint, ctypes.c_void_p
_LAUNCH = ctypes.CFUNCTYPE(ctypes.c_int, _PLACE, *(_UINT,) * 7, _PLACE, ctypes.POINTER(_PLACE), _PLACE)


class StandIn(device.DeviceMemory):
    """Memory of the stand-in: tensors of torch on the CPU; ``stream`` is the current one."""

    stream: ClassVar[int] = 7

    def __init__(self, launched: "Launched | None") -> None:
        torch = needs("torch")
        self.number, self._device, self.gpu = -1, torch.device("cpu"), DEFAULT
        self._allocator = threading.local()
        self._launched = launched

    def calls(self, generated: Any) -> tuple[device.DeviceCall, ...]:
        """Return the launches of a kernel without compiling it."""
        return tuple(
            device.DeviceCall(
                function=SimpleNamespace(
                    handle=self._launched.handle(phase) if self._launched else 0, context=0, device=-1,
                    reserve=lambda _: None,
                ),
                phase=phase, generated=generated,
                parameters=(
                    *((b.name, (device._pointer,)) for b in phase.buffers),
                    *((v.name, device._PARAMETERS[v.dtype]) for v in phase.scalars),
                ),
            )
            for phase in generated.kernel_ir.phases
        )

    def active(self, values: object) -> Any:
        """Return a context without effect."""
        return contextlib.nullcontext()

    def maker(self, outputs: Any) -> Any:
        """Return the allocator of outputs."""
        make = empty_strided()
        made = [(slot.shape, slot.dense, self._dtype(slot.tensor.dtype)) for slot in outputs]
        return lambda: [make(*form) for form in made]

    def queue(self) -> int:
        """Return the current stream."""
        return StandIn.stream

    def capability(self) -> tuple[int, int]:
        """Return the device of the default target."""
        return DEFAULT.cc

    def label(self) -> str:
        """Return a name."""
        return "a stand-in"


class Launched:
    """The launches of the driver, evaluated in lock step; ``phases`` lists all of them."""

    def __init__(self) -> None:
        self.phases: list[Phase] = []
        self.errors: list[Exception] = []
        self._known: list[Phase] = []
        self.function = _LAUNCH(self._launch)

    def handle(self, phase: Phase) -> int:
        """Return the handle of a function."""
        self._known.append(phase)
        return len(self._known)

    def _launch(self, handle: int, *given: Any) -> int:
        phase, arguments = self._known[handle - 1], given[8]
        try:
            memory: dict[str, Any] = {}
            for place, buffer in enumerate(phase.buffers):
                memory[buffer.name] = _array(buffer, _word(arguments[place], ctypes.c_uint64))
            for place, scalar in enumerate(phase.scalars, len(phase.buffers)):
                kind = type(device._PARAMETERS[scalar.dtype][0](0))
                memory[scalar.name] = _word(arguments[place], kind)
            for part, given_memory in _parts(phase, memory, arguments):
                trace = Trace({b.name: np.zeros(b.size, np.int64) for b in part.buffers})
                with np.errstate(all="ignore"):
                    Lanes(part, given_memory, trace).run()
        except Exception as error:  # noqa: BLE001 - a callback cannot raise
            self.errors.append(error)
            return 1
        self.phases.append(phase)
        return 0


def _parts(phase: Phase, memory: dict[str, Any], arguments: Any) -> Iterator[tuple[Phase, dict[str, Any]]]:
    """Yield the entries of a list with their memory, or the phase itself with all of it."""
    if not isinstance(phase, ListPhase):
        yield phase, memory
        return
    start = len(phase.buffers)
    for place, size in enumerate(phase.sizes, start):
        passed = _word(arguments[place], type(device._PARAMETERS[size.dtype][0](0)))
        if passed != size.value:
            msg = f"{phase.name} takes {size.value} as {size.name}, and got {passed}."
            raise ValueError(msg)
    for number, entry in enumerate(phase.entries):
        yield entry, {buffer.name: memory[phase.listed(buffer.name, number)] for buffer in entry.buffers}


def _word(place: int, kind: Any) -> Any:
    return kind.from_address(place).value


def _array(buffer: Buffer, address: int) -> Any:
    if address % buffer.alignment:
        msg = f"{buffer.name} must be aligned to {buffer.alignment} bytes; its address is {address}."
        raise ValueError(msg)
    dtype = storage_dtype(buffer.dtype)
    raw = (ctypes.c_uint8 * (buffer.size * dtype.itemsize)).from_address(address)
    return np.frombuffer(raw, dtype)


@contextlib.contextmanager
def stand_in_gpu(*, evaluated: bool = True) -> Iterator[Launched]:
    """Let all plans that are prepared inside run on the stand-in; return the launches."""
    torch = needs("torch")
    launched = Launched()
    quiet: Any = ctypes.CDLL(None).abs  # returns 0 for the handle 0
    names = SimpleNamespace(CUresult=lambda status: SimpleNamespace(name=str(status)))
    with (
        mock.patch.object(signature, "_RECORDED", OrderedDict()),
        mock.patch.object(TorchRegion, "kernels", return_value=()),
        mock.patch.object(executor, "_memory", return_value=StandIn(launched if evaluated else None)),
        mock.patch.object(variants, "compile_ahead"),
        mock.patch.object(device, "_torch", return_value=torch),
        mock.patch.object(device, "_stream_of", return_value=lambda _: StandIn.stream),
        mock.patch.object(driver, "_launcher", return_value=launched.function if evaluated else quiet),
        mock.patch.object(driver, "bindings", return_value=names),
    ):
        yield launched
    if launched.errors:
        raise launched.errors[0]
