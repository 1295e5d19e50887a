"""Launches whose arguments are the addresses of tensors, one after another in one block of memory."""

import ctypes
import functools
import struct
from collections.abc import Callable, Sequence

from fuser_lab.runtime.environment import Environment
from fuser_lab.runtime.gpu.device import DeviceCall
from fuser_lab.runtime.gpu.driver import Launches


def address_words(calls: Sequence[DeviceCall], names: Sequence[str]) -> tuple[Callable[..., None], Launches]:
    """Return a function that takes the addresses of the buffers with some names, and the launches that read them."""
    block = bytearray(8 * len(names))
    words = {name: (ctypes.c_uint64.from_buffer(block, 8 * place),) for place, name in enumerate(names)}
    put = functools.partial(struct.Struct(f"={len(names)}Q").pack_into, block, 0)
    return put, Launches([call.launch(Environment(), words) for call in calls])
