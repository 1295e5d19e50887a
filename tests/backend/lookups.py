"""Segments that read at positions given as data: their computations, tables and positions."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from backend.fusions import D, S, build, numbers


@dataclass(frozen=True, kw_only=True)
class Lookup:
    """A kernel over one table and one index; ``size`` is the extent of the indexed axis."""

    name: str
    record: Callable[..., Any]
    table: tuple[int, ...]
    index: tuple[int, ...]
    size: int
    scheduler: S = S.POINTWISE
    dtype: D = D.Float
    integer: D = D.Int

    def fusion(self) -> Any:
        return build(self.record, [self.table, self.index], [self.dtype, self.integer])

    def inputs(self, seed: int = 0) -> list[np.ndarray]:
        places = np.random.default_rng(seed).integers(0, self.size, self.index)
        return [numbers(self.table, self.dtype, seed), places.astype(self.integer.numpy)]


def _cross_entropy(fd: Any, x: Any, labels: Any) -> Any:
    shifted = fd.ops.sub(x, fd.ops.max(x, [1], keepdim=True))
    total = fd.ops.log(fd.ops.sum(fd.ops.exp(shifted), [1], keepdim=True))
    return fd.ops.take_along_axis(fd.ops.sub(total, shifted), labels, 1), fd.ops.exp(fd.ops.sub(shifted, total))


def _twice(fd: Any, x: Any, index: Any) -> Any:
    first = fd.ops.index_select(x, index, 0)
    return fd.ops.add(fd.ops.relu(first), 1.0), fd.ops.index_select(fd.ops.neg(x), index, 0)


def _chained(fd: Any, x: Any, index: Any) -> Any:
    return fd.ops.index_select(x, fd.ops.index_select(index, fd.ops.relu(index), 0), 1)


LOOKUPS = (
    Lookup(name="rows", record=lambda fd, x, i: fd.ops.exp(fd.ops.index_select(x, i, 0)),
           table=(40, 33), index=(57,), size=40),
    Lookup(name="many rows", record=lambda fd, x, i: fd.ops.index_select(x, i, 0),
           table=(300, 256), index=(1000,), size=300, dtype=D.BFloat16, integer=D.Int32),
    Lookup(name="columns", record=lambda fd, x, i: fd.ops.index_select(x, i, 1),
           table=(300, 50), index=(600,), size=50, dtype=D.Half),
    Lookup(name="one row", record=lambda fd, x, i: fd.ops.neg(fd.ops.index_select(x, i, 0)),
           table=(9, 33), index=(), size=9),
    Lookup(name="middle", record=lambda fd, x, i: fd.ops.neg(fd.ops.index_select(x, i, 1)),
           table=(4, 7, 5), index=(11,), size=7, dtype=D.Double),
    Lookup(name="along the last axis", record=lambda fd, x, i: fd.ops.neg(fd.ops.take_along_axis(x, i, 1)),
           table=(40, 33), index=(40, 9), size=33),
    Lookup(name="along the first axis", record=lambda fd, x, i: fd.ops.mul(fd.ops.take_along_axis(x, i, 0), 2.0),
           table=(40, 33), index=(80, 33), size=40, dtype=D.ComplexFloat),
    Lookup(name="broadcast index", record=lambda fd, x, i: fd.ops.take_along_axis(x, i, 1),
           table=(40, 33), index=(1, 50), size=33, dtype=D.Int32),
    Lookup(name="broadcast table", record=lambda fd, x, i: fd.ops.take_along_axis(x, i, 1),
           table=(1, 33), index=(40, 50), size=33, dtype=D.Bool),
    Lookup(name="gather", record=lambda fd, x, i: fd.ops.gather(x, i, 0),
           table=(40, 33), index=(7, 20), size=40, dtype=D.UInt64),
    Lookup(name="transposed", record=lambda fd, x, i: fd.ops.permute(fd.ops.index_select(x, i, 0), [1, 0]),
           table=(40, 33), index=(57,), size=40),
    Lookup(name="reshaped", record=lambda fd, x, i: fd.ops.reshape(fd.ops.index_select(x, i, 0), [-1]),
           table=(40, 32), index=(57,), size=40),
    Lookup(name="twice", record=_twice, table=(40, 33), index=(57,), size=40),
    Lookup(name="positions from positions", record=_chained, table=(40, 33), index=(33,), size=33),
    Lookup(name="sum of rows", record=lambda fd, x, i: fd.ops.sum(fd.ops.index_select(x, i, 0), [1]),
           table=(9, 70), index=(11,), size=9, scheduler=S.REDUCTION),
    Lookup(name="sum over rows", record=lambda fd, x, i: fd.ops.sum(fd.ops.index_select(x, i, 0), [0]),
           table=(9, 11), index=(70,), size=9, scheduler=S.REDUCTION),
    Lookup(name="sum of lookups", record=lambda fd, x, i: fd.ops.sum(fd.ops.take_along_axis(x, i, 1), [1]),
           table=(6, 33), index=(6, 70), size=33, scheduler=S.REDUCTION),
    Lookup(name="cross entropy", record=_cross_entropy, table=(5, 70), index=(5, 1), size=70,
           scheduler=S.INNER_PERSISTENT),
)
