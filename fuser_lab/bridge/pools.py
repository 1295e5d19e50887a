"""Maxima of windows with the offset of each in its window, an int8 number, in place of its int64 index.

The gradient of a maximum needs to know which element of a window it is, and nothing else of the operand. With offsets a
training step keeps one byte for each window, and not the operand.
"""

import functools
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

from fuser_lab.bridge.lowerings.windows import MOST_OF_MAXIMUM
from fuser_lab.bridge.requirement import torch_for
from fuser_lab.bridge.traced import Node, target_of

_NAMES = {2: "max_pool2d_with_indices", 3: "max_pool3d_with_indices"}  # by pooled axes
_PREFIX = "_low_memory_max_pool_"  # of inductor's ops
_INDICES = f"prims.{_PREFIX}offsets_to_indices.default"
_POOL = f"prims.{_PREFIX}with_offsets.default"
_GRADIENT = (  # the schema of our op, in the notation of torch.library
    "max_pool_gradient(Tensor gradient, Tensor offsets, SymInt[] input_size, SymInt[] kernel_size, SymInt[] stride, "
    "SymInt[] padding, SymInt[] dilation) -> Tensor"
)


@dataclass(frozen=True, slots=True)
class _Ops:
    """Inductor's ops of offsets, and the library that adds ours to torch for as long as it exists."""

    pool: Callable[..., Any]
    indices: Callable[..., Any]
    library: Any


@functools.cache
def ops_of_offsets() -> _Ops | None:
    """Return the ops of offsets, after adding ``fuser_lab.max_pool_gradient`` to torch; None if torch lacks them."""
    torch = torch_for("fuser_lab.bridge")
    importlib.import_module("torch._inductor.inductor_prims")  # which adds inductor's ops to torch
    pool, indices = (getattr(torch.ops.prims, _PREFIX + name, None) for name in ("with_offsets", "offsets_to_indices"))
    if pool is None or indices is None:
        return None
    library = torch.library.Library("fuser_lab", "FRAGMENT")
    library.define(_GRADIENT)
    library.impl("max_pool_gradient", _gradient, "CompositeExplicitAutograd")
    return _Ops(pool, indices, library)


def decompositions() -> dict[Any, Callable[..., Any]]:
    """Return the decompositions of maxima by op; none if torch is too old to have ops of offsets."""
    aten, ops = torch_for("fuser_lab.bridge").ops.aten, ops_of_offsets()
    if ops is None:
        return {}
    return {getattr(aten, name).default: functools.partial(_pool, ops, count) for count, name in _NAMES.items()}


def _pool(
    ops: _Ops, count: int, x: Any, kernel: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1,
    ceil_mode: bool = False,
) -> Any:
    """Return maxima and their indices, which are computed from offsets."""
    lists = ([n] if isinstance(n, int) else list(n) for n in (kernel, stride or kernel, padding, dilation))
    kernel, stride, padding, dilation = (n * count if len(n) == 1 else n for n in lists)
    if prod(kernel) > MOST_OF_MAXIMUM:
        return NotImplemented
    most, offsets = ops.pool(x, kernel, stride, padding, dilation, ceil_mode)
    return most, ops.indices(offsets, kernel, x.shape[-count:], stride, padding, dilation)


def _gradient(
    gradient: Any, offsets: Any, sizes: Any, kernel: Any, stride: Any, padding: Any, dilation: Any,
) -> Any:
    """Return the gradient of a pool's operand, by torch's ops."""
    torch, ops = torch_for("fuser_lab.bridge"), ops_of_offsets()
    assert ops is not None
    indices = ops.indices(offsets, kernel, sizes, stride, padding, dilation)
    order = importlib.import_module("torch._prims_common").suggest_memory_format(offsets)
    shape = (*gradient.shape[: -len(sizes)], *sizes)
    like = torch.empty(shape, dtype=gradient.dtype, device=gradient.device, memory_format=order)
    backward = getattr(torch.ops.aten, f"{_NAMES[len(sizes)]}_backward").default
    return backward(gradient, like, kernel, stride, padding, dilation, False, indices)


def use_offsets(graph: Any) -> None:
    """Let gradients of maxima read offsets where indices are computed from these."""
    if ops_of_offsets() is None:
        return
    op = torch_for("fuser_lab.bridge").ops.fuser_lab.max_pool_gradient.default
    for node in list(graph.nodes):
        if target_of(node) not in {f"aten.{name}_backward.default" for name in _NAMES.values()}:
            continue
        gradient, _, *windows, _, indices = node.args
        if target_of(indices) != _INDICES:
            continue
        offsets, kernel, sizes, *more = indices.args
        if list(map(list, windows)) == list(map(list, (kernel, *more))):
            node.target, node.args = op, (gradient, offsets, sizes, kernel, *more)
            if not indices.users:
                graph.erase_node(indices)


def forget_offsets(graph: Any) -> None:
    """Rewrite pools whose offsets nothing reads as torch's own op, whose kernel computes no offsets."""
    aten = torch_for("fuser_lab.bridge").ops.aten
    for node in graph.nodes:
        if target_of(node) == _POOL and all(map(_is_maximum, node.users)):
            node.target = getattr(aten, _NAMES[len(node.args[1])]).default


def _is_maximum(user: Node) -> bool:
    return target_of(user) == "getitem" and user.args[1] == 0
