"""The Python frontend that nvFuser removed in February 2026 (#5917), by its names, over this package.

``import fuser_lab.nvfuser as nvfuser`` is the only line that a script changes. CPU tensors and NumPy arrays run, too.
"""

import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

from fuser_lab.arguments import whole
from fuser_lab.bindings.enums import LoadStoreOpType, MemoryType, ParallelType, SchedulerType
from fuser_lab.definition.strides import describe_strides
from fuser_lab.dtypes import DataType
from fuser_lab.nvfuser import nvfuser_version, pytorch_utils
from fuser_lab.nvfuser.cache import (
    FusionCache,
    disable_automatic_serialization,
    enable_automatic_serialization,
    serialize,
)
from fuser_lab.nvfuser.definition import FusionDefinition, clone
from fuser_lab.nvfuser.values import Scalar, Tensor, Vector

if "fuser_lab.nvfuser_direct" in sys.modules:
    warnings.warn(
        "Be careful! You've imported nvfuser when the nvfuser_direct module is already imported.", UserWarning,
        stacklevel=2,
    )


_SIZE = whole(-1).but(lambda size: size != 0, "-1 or a whole number of at least 1")


@dataclass(slots=True, kw_only=True)
class LaunchParams:
    """Blocks of a grid and threads of a block; -1 leaves a value to the schedule.

    Raises
    ------
    ArgumentTypeError
        If a field is not an int.
    InputError
        If a field is neither -1 nor a number of 64 bits above 0.
    """

    gdimx: int = -1
    gdimy: int = -1
    gdimz: int = -1
    bdimx: int = -1
    bdimy: int = -1
    bdimz: int = -1

    def __setattr__(self, name: str, value: object) -> None:
        if name in LaunchParams.__dataclass_fields__:
            value = _SIZE.of(value, "LaunchParams", name)
        object.__setattr__(self, name, value)


def compute_contiguity(sizes: Sequence[int], strides: Sequence[int]) -> list[bool | None]:
    """Return for each axis, slowest in memory first, whether it is contiguous; None for broadcast axes."""
    return list(describe_strides(sizes, strides, "compute_contiguity")[0])


def compute_tensor_descriptor(sizes: Sequence[int], strides: Sequence[int]) -> tuple[list[bool | None], list[int]]:
    """Return (contiguity, stride order) of a tensor of these sizes and strides."""
    contiguity, order = describe_strides(sizes, strides, "compute_tensor_descriptor")
    return list(contiguity), list(order)


def version() -> str:
    """Return the version of this package."""
    from fuser_lab import __version__

    return __version__


__version__ = version()

__all__ = [
    "DataType",
    "FusionCache",
    "FusionDefinition",
    "LaunchParams",
    "LoadStoreOpType",
    "MemoryType",
    "ParallelType",
    "Scalar",
    "SchedulerType",
    "Tensor",
    "Vector",
    "clone",
    "compute_contiguity",
    "compute_tensor_descriptor",
    "disable_automatic_serialization",
    "enable_automatic_serialization",
    "nvfuser_version",
    "pytorch_utils",
    "serialize",
    "version",
]
