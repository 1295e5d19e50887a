"""Functions that read, write, sort and scan at positions that are data, at sizes of a few milliseconds on a CPU.

``python -m tests.bridge.speed --set lookups`` times them beside eager; torch has a kernel for most of their ops, so a
region in which the array library evaluates them would be slower.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.needs import needs

torch = needs("torch")
F = torch.nn.functional

ROWS, MANY, WIDTH = 5_000, 40_000, 64


def _floats(*shape: int) -> Callable[[str], Any]:
    return lambda device: torch.randn(shape, device=device)


def _places(size: int, *shape: int) -> Callable[[str], Any]:
    return lambda device: torch.randint(0, size, shape, device=device)


TABLE, EDGES, VALUES, LINE = _floats(ROWS, WIDTH), _places(ROWS, MANY), _floats(MANY, WIDTH), _floats(400_000)
WIDE = _places(ROWS, MANY, WIDTH)
COUNTS = _places(512, 400_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lookup:
    """A function, factories of its inputs on a device, and whether gradients of its floats are computed as well."""

    compute: Callable[..., Any]
    makers: tuple[Callable[[str], Any], ...]
    backward: bool = False

    def inputs(self, device: str) -> list[Any]:
        return [make(device) for make in self.makers]


def _of(compute: Callable[..., Any], *makers: Callable[[str], Any]) -> Lookup:
    return Lookup(compute=compute, makers=makers)


def _trained(compute: Callable[..., Any], *makers: Callable[[str], Any]) -> Lookup:
    return Lookup(compute=compute, makers=makers, backward=True)


def _index_reduce(x: Any, i: Any, v: Any, how: str, *, own: bool = True) -> Any:
    return x.index_reduce(0, i, v, how, include_self=own)


def _scatter_reduce(x: Any, i: Any, v: Any, how: str, *, own: bool = True) -> Any:
    return x.scatter_reduce(0, i, v, how, include_self=own)


def _put(x: Any, i: Any, v: Any, *, accumulate: bool) -> Any:
    return x.index_put((i,), v, accumulate=accumulate)


def _graph_layer(x: Any, w: Any, source: Any, end: Any) -> Any:
    """Messages along edges with the largest and the mean of each node, as in a principal neighbourhood aggregation."""
    y = x @ w
    messages = F.relu(y[source]) * torch.sigmoid(y[end])
    total = torch.zeros_like(y).index_add(0, end, messages)
    most = torch.zeros_like(y).index_reduce(0, end, messages, "amax")
    degree = torch.zeros(len(x), device=x.device).scatter_add(0, end, torch.ones_like(end, dtype=x.dtype))
    return F.elu(total / degree.clamp(min=1)[:, None] + most)


def _attention_layer(x: Any, w: Any, source: Any, end: Any) -> Any:
    """Attention among the edges of one node: the largest score, exponentials, and their sums."""
    y = x @ w
    score = F.leaky_relu((y[source] * y[end]).sum(-1), 0.2)
    most = torch.full((len(x),), float("-inf"), device=x.device).scatter_reduce(0, end, score, "amax")
    weight = torch.exp(score - most[end])
    total = torch.zeros(len(x), device=x.device).scatter_add(0, end, weight)
    return torch.zeros_like(y).index_add(0, end, y[source] * (weight / (total[end] + 1e-9))[:, None])


def _segments(x: Any, lengths: Any, how: str) -> Any:
    return torch.segment_reduce(x, how, lengths=lengths, axis=0)


def _lengths(device: str) -> Any:
    return torch.full((MANY // 8,), 8, device=device)


_EDGE_INPUTS = (TABLE, EDGES, VALUES)
_NODES = (TABLE, _floats(WIDTH, WIDTH), EDGES, EDGES)
LOOKUPS: dict[str, Lookup] = {
    "gather rows": _of(lambda x, i: x[i], TABLE, EDGES),
    "gather rows, backward": _trained(lambda x, i: x[i], TABLE, EDGES),
    "index_select": _of(lambda x, i: x.index_select(0, i), TABLE, EDGES),
    "index_select, backward": _trained(lambda x, i: x.index_select(0, i), TABLE, EDGES),
    "gather": _of(lambda x, i: x.gather(0, i), TABLE, WIDE),
    "gather, backward": _trained(lambda x, i: x.gather(0, i), TABLE, WIDE),
    "take_along_dim": _of(lambda x, i: torch.take_along_dim(x, i, 1), VALUES, _places(WIDTH, MANY, 16)),
    "take": _of(torch.take, TABLE, _places(ROWS * WIDTH, 400_000)),
    "index of two axes": _of(lambda x, i, j: x[i, j], TABLE, _places(ROWS, 400_000), _places(WIDTH, 400_000)),
    "index of two axes, backward": _trained(
        lambda x, i, j: x[i, j], TABLE, _places(ROWS, 400_000), _places(WIDTH, 400_000)),
    "embedding": _of(lambda w, i: F.embedding(i, w), TABLE, EDGES),
    "embedding, backward": _trained(lambda w, i: F.embedding(i, w), TABLE, EDGES),
    "embedding with padding, backward": _trained(lambda w, i: F.embedding(i, w, padding_idx=0), TABLE, EDGES),
    "embedding and silu, backward": _trained(lambda w, i: F.silu(F.embedding(i, w)), TABLE, EDGES),
    "embedding_bag, sum": _of(lambda w, i: F.embedding_bag(i, w, mode="sum"), TABLE, _places(ROWS, MANY // 8, 8)),
    "embedding_bag, mean, backward": _trained(
        lambda w, i: F.embedding_bag(i, w, mode="mean"), TABLE, _places(ROWS, MANY // 8, 8)),
    "scatter_add": _of(lambda x, i, v: x.scatter_add(0, i, v), TABLE, WIDE, VALUES),
    "scatter_add, backward": _trained(lambda x, i, v: x.scatter_add(0, i, v), TABLE, WIDE, VALUES),
    "scatter_add of a line": _of(lambda x, i, v: x.scatter_add(0, i, v), _floats(512), COUNTS, LINE),
    "scatter": _of(lambda x, i, v: x.scatter(0, i, v), TABLE, WIDE, VALUES),
    "scatter of a number": _of(lambda x, i: x.scatter(0, i, 2.0), TABLE, WIDE),
    "one_hot": _of(lambda i: F.one_hot(i, 64), _places(64, MANY)),
    **{
        f"scatter_reduce, {how}{', backward' * back}": (_trained if back else _of)(
            functools.partial(_scatter_reduce, how=how), TABLE, WIDE, VALUES)
        for how, back in (("sum", False), ("mean", False), ("amax", False), ("amax", True), ("amin", False),
                          ("prod", False), ("mean", True))
    },
    "scatter_reduce without itself": _of(
        functools.partial(_scatter_reduce, how="amax", own=False), TABLE, WIDE, VALUES),
    "index_add": _of(lambda x, i, v: x.index_add(0, i, v), *_EDGE_INPUTS),
    "index_add, alpha": _of(lambda x, i, v: x.index_add(0, i, v, alpha=2), *_EDGE_INPUTS),
    "index_add, backward": _trained(lambda x, i, v: x.index_add(0, i, v), *_EDGE_INPUTS),
    **{
        f"index_reduce, {how}{', backward' * back}": (_trained if back else _of)(
            functools.partial(_index_reduce, how=how), *_EDGE_INPUTS)
        for how, back in (("amax", False), ("amax", True), ("amin", True), ("mean", False), ("mean", True),
                          ("prod", False))
    },
    "index_put": _of(functools.partial(_put, accumulate=False), TABLE, _places(ROWS, ROWS), TABLE),
    "index_put, accumulate": _of(functools.partial(_put, accumulate=True), *_EDGE_INPUTS),
    "index_put, accumulate, backward": _trained(functools.partial(_put, accumulate=True), *_EDGE_INPUTS),
    "index_copy": _of(lambda x, i, v: x.index_copy(0, i, v), TABLE, _places(ROWS, ROWS), TABLE),
    "index_fill": _of(lambda x, i: x.index_fill(0, i, 1.0), TABLE, _places(ROWS, 500)),
    "masked_scatter": _of(lambda x, v: x.masked_scatter(x > 0, v), VALUES, VALUES),
    "put": _of(lambda x, i, v: torch.Tensor.put(x, i, v, accumulate=True), TABLE, COUNTS, LINE),
    **{
        f"segment_reduce, {how}": _of(functools.partial(_segments, how=how), VALUES, _lengths)
        for how in ("sum", "max", "mean")
    },
    "segment_reduce, backward": _trained(functools.partial(_segments, how="sum"), VALUES, _lengths),
    "unique": _of(torch.unique, COUNTS),
    "unique with inverse": _of(lambda i: torch.unique(i, return_inverse=True)[1], COUNTS),
    "bincount": _of(lambda i: torch.bincount(i, minlength=512), COUNTS),
    "bincount with weights": _of(lambda i, v: torch.bincount(i, v, minlength=512), COUNTS, LINE),
    "histc": _of(lambda x: torch.histc(x, 64, -3, 3), LINE),
    "searchsorted": _of(lambda b, x: torch.searchsorted(b.sort().values, x), _floats(512), LINE),
    "bucketize": _of(lambda b, x: torch.bucketize(x, b.sort().values) + 1, _floats(64), LINE),
    "sort": _of(lambda x: x.sort(1).values, VALUES),
    "sort, backward": _trained(lambda x: x.sort(1).values, VALUES),
    "sort with indices": _of(lambda x: x.sort(0), LINE),
    "sort and scale": _of(lambda x: x.sort(1, descending=True).values * 2 + 1, VALUES),
    "argsort": _of(lambda x: x.argsort(1), VALUES),
    "topk": _of(lambda x: x.topk(8, 1), VALUES),
    "topk, backward": _trained(lambda x: x.topk(8, 1).values, VALUES),
    "kthvalue": _of(lambda x: x.kthvalue(8, 1), VALUES),
    "median": _of(lambda x: x.median(1).values, VALUES),
    "cumsum": _of(lambda x: x.cumsum(1), VALUES),
    "cumsum of columns": _of(lambda x: x.cumsum(0), VALUES),
    "cumsum, backward": _trained(lambda x: x.cumsum(1), VALUES),
    "cumsum and scale": _of(lambda x: torch.exp(x).cumsum(1) * 2, VALUES),
    "cumprod": _of(lambda x: x.cumprod(1), VALUES),
    "cummax": _of(lambda x: x.cummax(1).values, VALUES),
    "logcumsumexp": _of(lambda x: x.logcumsumexp(1), VALUES),
    "cross entropy, backward": _trained(F.cross_entropy, VALUES, _places(WIDTH, MANY)),
    "nearest rows": _of(lambda x, i: (x[i] - x[i.flip(0)]).square().sum(-1), TABLE, EDGES),
    "graph layer": _of(_graph_layer, *_NODES),
    "graph layer, backward": _trained(_graph_layer, *_NODES),
    "graph attention": _of(_attention_layer, *_NODES),
    "graph attention, backward": _trained(_attention_layer, *_NODES),
}  # fmt: skip
