"""Inductor without a compiler of C++: kernels fill their tensors with 0."""

from typing import Any

import pytest


class _Zeros:
    def __call__(self, *args: Any, **options: Any) -> Any:
        return lambda *tensors: [x.data.zero_() for x in tensors if hasattr(x, "data")]


def compile_nothing(patch: pytest.MonkeyPatch, *, vectorized: bool = False) -> None:
    """Let Inductor write kernels that nothing compiles; torch must be installed.

    To write ``vectorized`` kernels, Inductor compiles small programs that say what the processor has.
    """
    from torch._inductor import async_compile, cpu_vec_isa

    patch.setattr(async_compile.AsyncCompile, "cpp_pybinding", _Zeros())
    if not vectorized:
        patch.setattr(cpu_vec_isa, "valid_vec_isa_list", list)
