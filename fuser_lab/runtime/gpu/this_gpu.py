"""The GPU of this machine, described for the segmenter."""

import functools
import importlib
from typing import Any

from fuser_lab.cost.device import DEVICES, Device
from fuser_lab.errors import InputError

THIS_MACHINE = "this machine"

# FP32 lanes and dense BF16 tensor-core operations per clock of an SM, by compute capability; 128 and 1024 if unknown.
_LANES = {(7, 0): 64, (7, 5): 64, (8, 0): 64, (6, 0): 64}
_TENSOR = {(8, 0): 2048, (9, 0): 4096, (10, 0): 8192}


@functools.cache
def this_gpu() -> Device:
    """Return the first GPU of this machine: from its data sheet if the name is known, else as the driver reports it.

    Raises
    ------
    InputError
        If there is no GPU, or torch is not installed to query it.
    """
    try:
        torch: Any = importlib.import_module("torch")
    except ImportError:
        msg = f"target {THIS_MACHINE!r}: torch, which queries the GPU, is not installed; {_others()}."
        raise InputError(msg) from None
    if not torch.cuda.is_available():
        raise InputError(f"target {THIS_MACHINE!r}: no CUDA GPU was found; {_others()}.")
    return describe_device(torch.cuda.get_device_properties(0))


def describe_device(properties: Any) -> Device:
    """Return a device as torch describes it."""
    cc = (properties.major, properties.minor)
    sms = properties.multi_processor_count
    for device in DEVICES:
        if device.name in properties.name.replace("-", " ").split() and (device.cc, device.sms) == (cc, sms):
            return device
    clock = getattr(properties, "clock_rate", 1_500_000) * 1e3
    memory = getattr(properties, "memory_clock_rate", 0) * 1e3 * 2 * getattr(properties, "memory_bus_width", 0) / 8
    return Device(
        name=properties.name,
        cc=cc,
        sms=sms,
        shared_per_sm=properties.shared_memory_per_multiprocessor,
        shared_per_block=properties.shared_memory_per_block_optin,
        l2=properties.L2_cache_size,
        bandwidth=memory / 1e9 or 1000.0,
        fp32=2 * _LANES.get(cc, 128) * sms * clock / 1e12,
        bf16=2 * _TENSOR.get(cc, 1024) // 2 * sms * clock / 1e12,
        registers=properties.regs_per_multiprocessor,
    )


def _others() -> str:
    return f"choose from {', '.join(d.name for d in DEVICES)}, or pass a Device"
