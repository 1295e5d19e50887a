"""nvFuser's direct Python bindings by their names, over this package.

``import fuser_lab.nvfuser_direct as nvfuser_direct`` is the only line that a script changes. CPU tensors, which nvFuser
refuses, run on the CPU. Fusions over several devices, and features that Numba cannot express, raise UnsupportedError.
"""

import sys
import warnings
from typing import Any

from fuser_lab.bindings.enums import (
    CacheOp,
    IdMappingMode,
    LoadStoreOpType,
    MemoryType,
    ParallelType,
    SchedulerType,
)
from fuser_lab.definition.python_text import definition_text
from fuser_lab.dtypes import DataType
from fuser_lab.errors import UnsupportedNameError
from fuser_lab.execution.validation import check_outputs, get_val_tolerances
from fuser_lab.nvfuser_direct import idm, multidevice, ops, pytorch_utils, schedule
from fuser_lab.nvfuser_direct.definition import FusionDefinition
from fuser_lab.nvfuser_direct.executors import (
    FusionExecutorCache,
    KernelExecutor,
    LRUCache,
    LruFusionCache,
)
from fuser_lab.nvfuser_direct.executors import described_tensor as compute_tensor_descriptor
from fuser_lab.nvfuser_direct.multidevice import (
    Communicator,
    CommunicatorBackend,
    DeviceMesh,
    Sharding,
    execute_with_dtensors,
)
from fuser_lab.nvfuser_direct.profiler import PythonProfiler
from fuser_lab.nvfuser_direct.recording import FusionGuard, active
from fuser_lab.nvfuser_direct.recording import RecordedFusion as Fusion
from fuser_lab.nvfuser_direct.values import (
    BroadcastOp,
    Expr,
    IterDomain,
    Merge,
    ReshapeOp,
    Split,
    SqueezeOp,
    TensorDomain,
    TensorView,
    Val,
)
from fuser_lab.plan.planning import definition_of, flatten

if "fuser_lab.nvfuser" in sys.modules:
    warnings.warn(
        "Be careful! You've imported nvfuser_direct when the nvfuser module is already imported.", UserWarning,
        stacklevel=2,
    )

_REFUSED = {
    "WarpSpecialized": "Numba cannot give warps of one block different programs",
    "Pipelined": "Numba has no asynchronous copies to overlap",
}


def __getattr__(name: str) -> Any:
    """Raise UnsupportedNameError, with the reason, for features that Numba cannot express, otherwise AttributeError."""
    if name in _REFUSED:
        raise UnsupportedNameError(f"{name} is not supported: {_REFUSED[name]}.")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def define_tensor(*args: Any, **kwargs: Any) -> TensorView:
    """Return a tensor of the active fusion; ``fusion.add_input`` makes it an input."""
    recorder = active()
    handle = recorder.tensor_input(*args, **kwargs)
    recorder.detach(handle)
    return handle


def define_scalar(*args: Any, **kwargs: Any) -> Val:
    """Return a scalar of the active fusion; ``fusion.add_input`` makes a symbolic one an input."""
    recorder = active()
    handle = recorder.scalar_value(*args, **kwargs)
    recorder.detach(handle)
    return handle


def translate_fusion(fusion: Fusion) -> str:
    """Return Python code that defines a fusion again."""
    return definition_text(definition_of(fusion))


def validate_with_auto_inferred_outputs(fusion: Fusion, fusion_outputs: list[Any], args: list[Any]) -> None:
    """Raise ValidationError unless outputs agree with the reference evaluation of these inputs."""
    check_outputs(definition_of(fusion), flatten(args), fusion_outputs)


def version() -> str:
    """Return the version of this package."""
    from fuser_lab import __version__

    return __version__


__all__ = [
    "BroadcastOp",
    "CacheOp",
    "Communicator",
    "CommunicatorBackend",
    "DataType",
    "DeviceMesh",
    "Expr",
    "Fusion",
    "FusionDefinition",
    "FusionExecutorCache",
    "FusionGuard",
    "IdMappingMode",
    "IterDomain",
    "KernelExecutor",
    "LRUCache",
    "LoadStoreOpType",
    "LruFusionCache",
    "MemoryType",
    "Merge",
    "ParallelType",
    "PythonProfiler",
    "ReshapeOp",
    "SchedulerType",
    "Sharding",
    "Split",
    "SqueezeOp",
    "TensorDomain",
    "TensorView",
    "Val",
    "compute_tensor_descriptor",
    "define_scalar",
    "define_tensor",
    "execute_with_dtensors",
    "get_val_tolerances",
    "idm",
    "multidevice",
    "ops",
    "pytorch_utils",
    "schedule",
    "translate_fusion",
    "validate_with_auto_inferred_outputs",
    "version",
]
