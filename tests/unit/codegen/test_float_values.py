"""Values that a kernel keeps in Float: all but those in memory, those of a second pass, and those of some ops."""

from dataclasses import replace
from typing import Any

import pytest
from backend.fusions import D, build

from fuser_lab.codegen.decompose import with_float_values


def product(fd: Any, x: Any, w: Any) -> Any:
    """A product that is rounded as eager does: T4 is in Float, T5 in the dtype of the inputs."""
    return fd.ops.cast(fd.ops.mul(x, w), dtype=x.dtype)


def chain(fd: Any, x: Any, w: Any) -> Any:
    y = product(fd, x, w)
    return fd.ops.cast(fd.ops.exp(y), dtype=x.dtype), fd.ops.cast(fd.ops.neg(y), dtype=D.Double)


def norm(fd: Any, x: Any, w: Any) -> Any:
    y = product(fd, x, w)
    total = fd.ops.cast(fd.ops.sum(fd.ops.mul(y, y), [1]), dtype=x.dtype)
    return fd.ops.mul(y, fd.ops.broadcast(total, [False, True]))


def padded(fd: Any, x: Any, w: Any) -> Any:
    return fd.ops.pad(product(fd, x, w), [1, 1])


@pytest.mark.parametrize(("record", "narrow"), [
    (chain, ["T8"]), (norm, ["T5"]), (padded, ["T5", "T6"]),
])
@pytest.mark.parametrize("dtype", [D.BFloat16, D.Half])
def test_values_that_stay_narrow(record: Any, narrow: list[str], dtype: D) -> None:
    fusion = build(record, [(6, 40), (6, 40)], dtype)
    assert with_float_values(fusion) is fusion
    made = with_float_values(replace(fusion, keeps_float=True))
    assert [tv.name for expr in made.exprs for tv in expr.tensor_outputs if tv.dtype is dtype] == narrow
    assert [tv.dtype for tv in made.outputs] == [tv.dtype for tv in fusion.outputs]
    assert [expr.name for expr in made.exprs] == [expr.name for expr in fusion.exprs]
    assert made.digest != fusion.digest
