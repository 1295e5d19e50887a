"""Kernels check positions that are data only if their ranges do not show that they are within the axis."""

import pytest

import fuser_lab as fl
from fuser_lab import DataType, FusionDefinition


@pytest.mark.parametrize("target", ["cpu", "cuda"])
@pytest.mark.parametrize(
    ("dtype", "position", "checks"),
    [
        (DataType.Byte, lambda o, n: n, ""),
        (DataType.Char, lambda o, n: n, ">="),
        (DataType.Int, lambda o, n: n, ">= <"),
        (DataType.Int, lambda o, n: o.bitwise_and(n, 255), ""),
        (DataType.Int, lambda o, n: o.bitwise_and(n, 256), "<"),
        (DataType.Int, lambda o, n: o.where(o.lt(n, 7), 0, 255), ""),
        (DataType.Byte, lambda o, n: o.add(o.cast(n, DataType.Int), 1), "<"),
        (DataType.Byte, lambda o, n: o.minimum(o.add(o.cast(n, DataType.Int), 1), 255), ""),
        (DataType.Byte, lambda o, n: o.bitwise_or(o.bitwise_right_shift(n, 4), o.bitwise_and(n, 240)), ""),
        (DataType.Byte, lambda o, n: o.sub(o.cast(n, DataType.Int), 1), ">="),
    ],
)  # fmt: skip
def test_a_position_is_checked_unless_its_range_is_known(target, dtype, position, checks):
    with FusionDefinition() as fd:
        table = fd.define_tensor([256], contiguity=True)
        codes = fd.define_tensor([300], contiguity=True, dtype=dtype)
        fd.add_output(fd.ops.neg(fd.ops.index_select(table, position(fd.ops, codes), 0)))
    (segment,) = fl.segment(fd).segments
    text = segment.source(target)
    assert [check for check in (">=", "<") if f"_at {check} " in text] == checks.split()
