"""Compiled CPU kernels of segments that only open schedulers accept."""

import numpy as np
import pytest

import fuser_lab as fl
from fuser_lab.interpreter import evaluate
from tests.unit.schedule.test_open import arrays, cross_entropy, defined, group_norm, norm_with_rope


@pytest.mark.parametrize("body", [norm_with_rope, group_norm, cross_entropy], ids=lambda body: body.__name__)
def test_compiled_kernels(body):
    fd = defined(body)
    given = arrays(fd)
    plan = fl.segment(fd, given, schedulers=fl.OPEN_SCHEDULERS)
    assert len(plan.segments) == 1
    for got, wanted in zip(plan.run(given), evaluate(plan.fusion, given), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=2e-5, atol=2e-5)
