"""Ops are as exact as docs/ops.md says."""

import math

import pytest

from fuser_lab.dtypes import DataType
from tests.op_accuracy.measuring import cpu_table, measured
from tests.op_accuracy.tables import stated

# Libraries of other processors round some functions differently.
SPARE = 0.75


@pytest.mark.parametrize("operands", [1, 2])
def test_errors_do_not_grow(operands: int) -> None:
    known = stated()[cpu_table()].ulps
    found = measured("cpu", [DataType.Float], [operands])
    assert len(found) > 10
    for one in found:
        assert one.op in known, f"{one.op} was not measured yet: python -m tests.op_accuracy --write"
        limit = known[one.op][one.dtype.name]
        assert one.ulps <= limit * 1.1 + SPARE, f"{one.op} of {one.operands}: {one.ulps}, stated are {limit}"
        assert math.isfinite(one.ulps)
