"""Cheaper forms of expressions give the same numbers."""

from typing import Any

import numpy as np
import pytest
from backend.fusions import D, S, build
from unit.codegen.test_gpu_reductions import check

from fuser_lab.codegen.kernel_ir import terms_of, walk
from fuser_lab.ir.term import Apply


@pytest.mark.parametrize(("low", "high", "dtype", "gone"), [
    (-448.0, 448.0, D.Float8_e4m3fn, True), (-460.0, 450.0, D.Float8_e4m3fn, True),
    (-447.0, 447.0, D.Float8_e4m3fn, False), (0.0, 448.0, D.Float8_e4m3fn, False),
    (-448.0, 448.0, D.Float8_e5m2, False), (-448.0, 448.0, D.BFloat16, False),
])  # fmt: skip
def test_bounds_that_a_conversion_has_anyway_are_not_computed(low: float, high: float, dtype: D, gone: bool) -> None:
    def record(fd: Any, x: Any) -> Any:
        return fd.ops.cast(fd.ops.clamp(fd.ops.mul(x, 300.0), low, high), dtype=dtype)

    x = np.array([0.0, 1.0, -1.0, 1.4, 1.5, -1.6, 1e30, -1e30, 1e-4, 2.0, -3.0, 0.3, 7.0, -7.0, 1.0, 1.0], np.float32)
    kernel = check(build(record, [x.shape], D.Float), S.POINTWISE, [x])
    roots = [root for phase in kernel.phases for s in walk(phase.body) for root in terms_of(s)]
    functions = {term.fn for root in roots for term in root.walk() if isinstance(term, Apply)}
    assert ("select" not in functions) == gone


def test_silu_multiplies_by_the_logistic_function() -> None:
    x = np.array([0.0, -0.0, 1.0, -1.0, 20.0, -20.0, 80.0, -80.0, 200.0, -200.0, 0.5, 1e-30], np.float32)
    kernel = check(build(lambda fd, x: fd.ops.silu(x), [x.shape], D.Float), S.POINTWISE, [x])
    roots = [root for phase in kernel.phases for s in walk(phase.body) for root in terms_of(s)]
    functions = {term.fn for root in roots for term in root.walk() if isinstance(term, Apply)}
    assert "sigmoid" in functions
    assert functions.isdisjoint({"div", "exp"})
