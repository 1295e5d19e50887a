"""Dtypes of torch and of Python numbers as a fusion's."""

from fuser_lab.bindings.pytorch_utils import (
    get_device_properties,
    python_scalar_to_nvfuser_dtype,
    retry_on_oom_or_skip_test,
    torch_dtype_to_nvfuser_dtype,
)

__all__ = [
    "get_device_properties",
    "python_scalar_to_nvfuser_dtype",
    "retry_on_oom_or_skip_test",
    "torch_dtype_to_nvfuser_dtype",
]
