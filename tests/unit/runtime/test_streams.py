"""Work on CuPy's arrays goes to CuPy's current stream."""

import sys
import threading
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from fuser_lab.runtime.gpu import device


@pytest.mark.parametrize("handle", [0, 1, 7000])
def test_launches_follow_the_work_of_cupy(handle: int, monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[Any] = []
    cuda = SimpleNamespace(
        # As in torch, where it is a new stream if the handle is 0.
        ExternalStream=lambda given, device: ("new" if given == 0 else given, device),
        default_stream=lambda device: (0, device), device=lambda _: nullcontext(),
        stream=lambda stream: nullcontext(used.append(stream)),
    )
    monkeypatch.setattr(device, "_torch", lambda: SimpleNamespace(cuda=cuda))
    current = SimpleNamespace(ptr=handle)
    cupy = SimpleNamespace(cuda=SimpleNamespace(get_current_stream=lambda: current))
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    memory = device.DeviceMemory.__new__(device.DeviceMemory)
    memory.number, memory._device, memory._allocator = 0, "cuda:0", threading.local()
    with memory._beside_cupy():
        assert memory._allocator.library is cupy
    assert used == [(handle, "cuda:0")]
    assert memory._allocator.library is None
