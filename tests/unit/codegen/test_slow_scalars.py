"""Scalars that every thread computes first: if that is slow, a thread processes several chunks."""

from collections.abc import Callable
from typing import Any

import pytest

import fuser_lab as fl
from fuser_lab import DataType, FusionDefinition


def _power(fd: Any, decay: Any, step: Any) -> Any:
    return fd.ops.sub(1.0, fd.ops.pow(decay, step))


def _difference(fd: Any, decay: Any, step: Any) -> Any:
    return fd.ops.sub(step, decay)


@pytest.mark.parametrize(("scalar", "elements", "unroll"), [
    (_power, 1 << 24, 4), (_difference, 1 << 24, 1), (_power, 1 << 14, 1),
])  # fmt: skip
def test_chunks_per_thread(scalar: Callable[..., Any], elements: int, unroll: int) -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1], contiguity=True, dtype=DataType.Float)
        decay, step = (fd.define_scalar(None, dtype=dtype) for dtype in (DataType.Double, DataType.Int))
        fd.add_output(fd.ops.div(x, scalar(fd, decay, step)))
    (segment,) = fl.segment(fd, [fl.spec((elements,), DataType.Float), 0.9, 7]).segments
    (nest,) = segment.kernel("cuda").kernel_ir.nests
    assert nest.schedule.unroll == unroll
    assert any("computes the scalars once" in reason for reason in nest.schedule.reasons) == (unroll > 1)
