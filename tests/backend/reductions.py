"""Reductions that GPU kernels are tested with: patterns, row lengths that each lead to different kernels, dtypes."""

from collections.abc import Callable
from typing import Any

from backend.fusions import D, S

FLOATS = (D.Double, D.Float, D.Half, D.BFloat16)
ALL = (*FLOATS, D.Int, D.Int32, D.Bool, D.ComplexFloat, D.ComplexDouble)


def totals(*dims: int) -> Callable[..., Any]:
    """Sums, and the other reductions of a dtype, over some axes."""

    def record(fd: Any, x: Any) -> Any:
        names = ["sum"] if x.dtype in {D.ComplexFloat, D.ComplexDouble} else ["sum", "max", "min"]
        return [getattr(fd.ops, name)(x, list(dims)) for name in names]

    return record


def softmax(fd: Any, x: Any) -> Any:
    f = fd.ops.cast(x, D.Double if x.dtype is D.Double else D.Float)
    e = fd.ops.exp(fd.ops.sub(f, fd.ops.max(f, [1], keepdim=True)))
    return fd.ops.cast(fd.ops.div(e, fd.ops.sum(e, [1], keepdim=True)), x.dtype)


def add_norm(fd: Any, x: Any, y: Any, weight: Any) -> Any:
    """A sum that is kept and normalized: two inputs and two outputs of one row."""
    wide = D.Double if x.dtype is D.Double else D.Float
    both = fd.ops.add(fd.ops.cast(x, wide), fd.ops.cast(y, wide))
    variance, mean = fd.ops.var_mean(both, [1], correction=0, keepdim=True)
    normal = fd.ops.mul(fd.ops.sub(both, mean), fd.ops.rsqrt(fd.ops.add(variance, 1e-5)))
    return fd.ops.cast(both, x.dtype), fd.ops.cast(fd.ops.mul(normal, fd.ops.cast(weight, wide)), x.dtype)


def backward(fd: Any, grad: Any, x: Any, weight: Any, scale: Any) -> Any:
    """The backward pass of an RMS norm: results of rows and sums of columns."""
    wide = D.Double if x.dtype is D.Double else D.Float
    grad, x, weight, scale = (fd.ops.cast(v, wide) for v in (grad, x, weight, scale))
    normal, weighted = fd.ops.mul(x, scale), fd.ops.mul(grad, weight)
    mean = fd.ops.div(fd.ops.sum(fd.ops.mul(normal, weighted), [1], keepdim=True), float(x.size(1)))
    inner = fd.ops.mul(fd.ops.sub(weighted, fd.ops.mul(normal, mean)), scale)
    return inner, fd.ops.neg(fd.ops.sum(fd.ops.mul(grad, normal), [0])), fd.ops.sum(grad, [0])


# (rows, columns): one warp or part of a warp per row, registers, shared memory, both, rows longer than both, odd sizes
ROWS = (
    (1, 1), (5, 1), (7, 2), (130, 3), (33, 8), (9, 31), (6, 64), (5, 200), (4, 1000), (3, 1024), (3, 1032), (3, 4096),
    (2, 8200), (2, 16385), (2, 33_000), (2, 66_048), (2, 131_072), (1, 200_000),
    (41, 131), (17, 1021), (9, 4099), (5, 32_003), (3, 50_257), (3, 131_071),
)
COLUMNS = ((1, 40), (2, 1), (3, 5000), (70, 1), (100, 8), (257, 96), (1000, 33), (4100, 6), (20, 4304), (0, 7), (7, 0))
BACKWARD = ((1, 8), (2, 64), (37, 200), (40, 1), (300, 77), (530, 256), (3, 1024), (2, 8192), (2, 16_392), (3, 40_000))
PATTERNS = (
    ("rows", totals(1), (9, 130)), ("columns", totals(0), (130, 9)), ("all", totals(0, 1), (70, 90)),
    ("outer and inner", totals(0, 2), (6, 5, 40)), ("middle", totals(1), (5, 40, 24)),
    ("all but the last", totals(0, 1), (6, 40, 24)), ("few long rows", totals(1), (2, 20_000)),
)
SCHEDULER = {softmax: S.INNER_PERSISTENT, add_norm: S.INNER_PERSISTENT, backward: S.INNER_OUTER_PERSISTENT}
