"""Decompositions of ops that torch does not decompose, or decomposes into ops or dtypes that are not computed."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from fuser_lab.bridge.lowerings.windows import MOST_ALONG_AXIS
from fuser_lab.bridge.requirement import torch_for
from fuser_lab.targets import is_on_host


def decompositions() -> dict[Any, Callable[..., Any]]:
    """Return the decompositions by op."""
    aten = torch_for("fuser_lab.bridge").ops.aten
    written: dict[str, Callable[..., Any]] = {
        "_weight_norm_interface_backward": _weight_norm_backward,
        "bmm": _product_with_vectors,
        "col2im": _sum_of_blocks,
        "fake_quantize_per_tensor_affine_cachemask": _fake_quantize,
        "unfold_backward": _sum_of_windows,
    }
    return {getattr(aten, name).default: function for name, function in written.items()} | {
        aten.lerp.Scalar: _lerp, aten.eye.default: _eye, aten.eye.m: _eye,
    } | _of_lists()


def _weight_norm_backward(gradient: Any, v: Any, g: Any, norms: Any, dim: int) -> tuple[Any, Any]:
    """Return the gradients of ``v * (g / norm(v))`` by v and g."""
    axes = [axis for axis in range(v.ndim) if axis != dim]
    shape = [n if axis == dim else 1 for axis, n in enumerate(v.shape)]
    wide, length = norms.dtype, norms.view(shape)
    shared = (gradient.to(wide) * v.to(wide)).sum(axes, keepdim=True)
    by_v = (g.view(shape).to(wide) / length) * (gradient.to(wide) - v.to(wide) * (shared / (length * length)))
    return by_v.to(v.dtype), (shared / length).view(g.shape).to(g.dtype)


def _sum_of_windows(windows: Any, sizes: Any, dim: int, size: int, step: int) -> Any:
    """Return the sums of overlapping windows, the last axis of a tensor, each ``step`` elements after the one before.

    Windows are cut into parts of ``step`` elements, and the results into blocks: each block is the sum of the first
    part of one window, the second part of the window before, and so on. torch's kernels add each element in memory.
    NotImplemented for sizes that are unknown and for windows of more parts.
    """
    torch = torch_for("fuser_lab.bridge")
    count = -(-size // step) if isinstance(size, int) and isinstance(step, int) and size else 0
    if not 0 < count <= MOST_ALONG_AXIS or not all(type(n) is int for n in (*sizes, *windows.shape)):
        return NotImplemented
    axis = dim % max(len(sizes), 1)
    if not sizes or not windows.numel():
        return windows.new_zeros(sizes) if sizes else windows.squeeze(0)
    wide = _widen(windows)
    later_pads = [0, 0] * (len(sizes) - axis - 1)  # of the axes between a window's axis and its elements
    parts = (
        torch.constant_pad_nd(part, [0, step - part.shape[-1], *later_pads, back, count - 1 - back])
        for back, part in enumerate(wide.split(step, -1))
    )
    blocks = functools.reduce(torch.add, parts).movedim(-1, axis + 1).flatten(axis, axis + 1)
    rest = sizes[axis] - blocks.shape[axis]
    total = torch.constant_pad_nd(blocks, [*later_pads, 0, rest]) if rest else blocks
    return total.to(windows.dtype).contiguous()


def _sum_of_blocks(x: Any, sizes: Any, kernel: Any, dilation: Any, padding: Any, stride: Any) -> Any:
    """Return images as sums of overlapping blocks; NotImplemented for blocks of elements that are not adjacent."""
    if any(n != 1 for n in dilation) or not all(type(n) is int for n in (*sizes, *x.shape)):
        return NotImplemented
    whole = [size + 2 * pad for size, pad in zip(sizes, padding, strict=True)]
    rows, columns = ((size - k) // step + 1 for size, k, step in zip(whole, kernel, stride, strict=True))
    lead = (*x.shape[:-2], x.shape[-2] // (kernel[0] * kernel[1]))
    blocks = _widen(x).reshape(-1, *kernel, rows, columns).permute(0, 3, 4, 2, 1)
    tall = _sum_of_windows(blocks, (blocks.shape[0], whole[0], columns, kernel[1]), 1, kernel[0], stride[0])
    if tall is NotImplemented:
        return NotImplemented
    images = _sum_of_windows(tall, (blocks.shape[0], *whole), 2, kernel[1], stride[1])
    if images is NotImplemented:
        return NotImplemented
    for axis, (size, pad) in enumerate(zip(sizes, padding, strict=True), 1):
        images = images.narrow(axis, pad, size)
    return images.reshape(*lead, *sizes).to(x.dtype).contiguous()


def _widen(x: Any) -> Any:
    """Return a tensor in the dtype in which its sums are accumulated."""
    return x.float() if x.dtype.itemsize == 2 and x.dtype.is_floating_point else x


def _product_with_vectors(a: Any, b: Any) -> Any:
    """Return products of matrices of which one is a vector, as products of numbers; NotImplemented for others.

    Such products wait for memory, and fused ones neither store nor copy their operands. Sums of products remain torch's
    on a GPU, where libraries divide long ones among blocks.
    """
    rows, inner, columns = a.shape[1], a.shape[2], b.shape[2]
    if _is_one(inner):
        return a * b
    if not is_on_host(a.device.type) or not (_is_one(rows) or _is_one(columns)):
        return NotImplemented
    wide = a.float() if a.dtype.itemsize == 2 and a.dtype.is_floating_point else a
    return (wide.unsqueeze(-1) * b.to(wide.dtype).unsqueeze(1)).sum(2, dtype=wide.dtype).to(a.dtype)


def _is_one(size: Any) -> bool:
    """Whether a size is known to be 1."""
    return isinstance(size, int) and size == 1


def _fake_quantize(x: Any, scale: float, zero_point: int, least: int, most: int) -> tuple[Any, Any]:
    """Return a tensor rounded to the steps of a quantization, and where it is in range."""
    # As in torch's kernel, the scale and its reciprocal are Float.
    step = np.float32(scale)
    steps = (x * float(1 / step)).round() + zero_point
    return (steps.clamp(least, most) - zero_point) * float(step), (steps >= least) & (steps <= most)


def _lerp(start: Any, end: Any, weight: float) -> Any:
    """Return a value between two, computed from the closer one, as torch's kernel does."""
    step = end - start
    return start + weight * step if abs(weight) < 0.5 else end - (1 - weight) * step


def _eye(
    rows: int, columns: int | None = None, *, dtype: Any = None, layout: Any = None, device: Any = None,
    pin_memory: bool | None = None,
) -> Any:
    """Return ones on the diagonal; NotImplemented for memory that is not usual.

    torch's decomposition compares places in the smallest dtype, which may be uint16; torch has no ``arange`` for it.
    """
    torch = torch_for("fuser_lab.bridge")
    if pin_memory or layout not in (None, torch.strided):
        return NotImplemented
    row, column = (torch.arange(n, device=device) for n in (rows, rows if columns is None else columns))
    return (row.unsqueeze(1) == column).to(dtype or torch.get_default_dtype())


def _of_lists() -> dict[Any, Callable[..., Any]]:
    """Return decompositions of the functional ``_foreach`` ops: the effect on one tensor, for each of the list."""
    torch = torch_for("fuser_lab.bridge")
    effects = {}
    for full in torch._C._dispatch_get_all_op_names():  # noqa: SLF001 - torch lists its ops nowhere else
        name, _, kind = full.removeprefix("aten::_foreach_").partition(".")
        if not full.startswith("aten::_foreach_") or name.endswith("_") or "out" in kind:
            continue
        function = _for_one(torch, name, kind)
        if function is not None:
            effects[getattr(getattr(torch.ops.aten, f"_foreach_{name}"), kind or "default")] = _for_each(function)
    return effects


def _for_one(torch: Any, name: str, kind: str) -> Callable[..., Any] | None:
    """Return the effect of ``_foreach_NAME.KIND`` on one tensor, or None if it is not known."""
    if name in ("addcmul", "addcdiv"):
        function = getattr(torch, name)
        return None if kind == "Tensor" else lambda x, a, b, value=1: function(x, a, b, value=value)
    if name in ("maximum", "minimum") and kind != "List":
        clamped: Callable[..., Any] = torch.clamp_min if name == "maximum" else torch.clamp_max
        return clamped
    if name == "norm":
        return lambda x, order=2, dtype=None: torch.linalg.vector_norm(x, order, dtype=dtype)
    if name == "copy":
        overwritten: Callable[..., Any] = torch.ops.aten.copy.default
        return overwritten
    of_one = {"zero": "zeros_like", "max": "amax", "mm": ""}.get(name, name)
    on_tensor: Callable[..., Any] | None = getattr(torch, of_one, None)
    return on_tensor


def _for_each(function: Callable[..., Any]) -> Callable[..., list[Any]]:
    def decompose(*args: Any, **kwargs: Any) -> list[Any]:
        def at(place: int, value: Any) -> Any:
            return value[place] if isinstance(value, list | tuple) else value

        count = next(len(arg) for arg in args if isinstance(arg, list | tuple))
        return [
            function(*(at(place, arg) for arg in args), **{key: at(place, value) for key, value in kwargs.items()})
            for place in range(count)
        ]

    return decompose
