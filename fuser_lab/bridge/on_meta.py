"""Capture of tensors on the device ``"meta"``, with corrections of torch's tracing."""

import functools
import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from fuser_lab.bridge.requirement import torch_for
from fuser_lab.targets import CPU


@contextmanager
def traced_on_meta() -> Iterator[None]:
    """Let torch trace functions of meta tensors like those of other tensors.

    Composite ops with a reference in Python, such as ``nll_loss``, ``var`` and ``where``, have that registered as their
    kernel for meta tensors. Torch's Python dispatcher then treats them as ops with a kernel and without a derivative,
    and gradients end there with a warning. Here their derivative is that of their parts. ``torch.tensor`` makes a meta
    tensor that a fake tensor cannot be combined with, unless the mode says so. Also, ``torch.autocast`` does not accept
    the device ``"meta"``, although models disable it for the device of their inputs.
    """
    torch = torch_for("from_torch")
    mode: Any = importlib.import_module("torch._subclasses").FakeTensorMode
    key = torch._C.DispatchKey  # noqa: SLF001 - torch has no public name for it
    mended = _composites_with_meta_kernel(torch)
    for op in mended:
        op.py_kernels[key.AutogradMeta] = functools.partial(op._op_dk, key.CompositeImplicitAutograd)  # noqa: SLF001
        op._dispatch_cache.clear()  # noqa: SLF001
    # Higher-order ops, such as the effects of assertions, know the class itself and no class derived from it.
    begin = mode.__init__
    mode.__init__ = _with_real_tensors(begin)
    autocast: Any = torch.autocast
    enter = autocast.__init__
    autocast.__init__ = _without_device(enter)
    try:
        yield
    finally:
        autocast.__init__ = enter
        mode.__init__ = begin
        for op in mended:
            del op.py_kernels[key.AutogradMeta]
            op._dispatch_cache.clear()  # noqa: SLF001


def _composites_with_meta_kernel(torch: Any) -> list[Any]:
    key = torch._C.DispatchKey  # noqa: SLF001
    table = importlib.import_module("torch._decomp").global_decomposition_table["post_autograd"]
    return [
        op for op in table
        if isinstance(op, torch._ops.OpOverload)  # noqa: SLF001
        and key.Meta in op.py_kernels and key.AutogradMeta not in op.py_kernels
        and op.has_kernel_for_dispatch_key(key.CompositeImplicitAutograd)
        and not op.has_kernel_for_dispatch_key(key.Autograd)
    ]


def _with_real_tensors(begin: Callable[..., None]) -> Callable[..., None]:
    """Return a ``FakeTensorMode.__init__`` that lets fake tensors meet others."""

    @functools.wraps(begin)
    def __init__(self: Any, *args: Any, allow_non_fake_inputs: bool = True, **more: Any) -> None:  # noqa: N807
        begin(self, *args, allow_non_fake_inputs=True, **more)

    return __init__


def _without_device(enter: Callable[..., None]) -> Callable[..., None]:
    """Return an ``autocast.__init__`` that disables it for meta tensors, which no device's autocast casts."""

    @functools.wraps(enter)
    def __init__(  # noqa: N807
        self: Any, device_type: str, dtype: Any = None, enabled: bool = True, cache_enabled: bool | None = None,
    ) -> None:
        enter(self, CPU.name if device_type == "meta" and not enabled else device_type, dtype, enabled, cache_enabled)

    return __init__
