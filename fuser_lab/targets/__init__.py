"""Targets: one record per target, registered once; all other code asks the record.

``CPU`` is the target of arrays in host memory, and the default where nothing else is said.
"""

from fuser_lab.targets.cpu import CPU
from fuser_lab.targets.cuda import CUDA
from fuser_lab.targets.record import Assembly, Form, Later, Target
from fuser_lab.targets.registry import (
    find,
    has_own_memory,
    holders,
    is_on_host,
    names,
    on_this_cpu,
    register,
    target_of,
    target_of_label,
    with_blocks,
)

register(CPU)
register(CUDA)

__all__ = [
    "CPU",
    "CUDA",
    "Assembly",
    "Form",
    "Later",
    "Target",
    "find",
    "has_own_memory",
    "holders",
    "is_on_host",
    "names",
    "on_this_cpu",
    "register",
    "target_of",
    "target_of_label",
    "with_blocks",
]
