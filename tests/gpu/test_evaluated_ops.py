"""Whatever torch evaluates on a GPU is right in every dtype; where torch has no kernel, NumPy computes it."""

import pytest
from gpu.evaluated_ops import table
from needs import needs

torch = needs("torch")
pytestmark = pytest.mark.gpu


def test_every_op_that_torch_evaluates_is_right_in_every_dtype() -> None:
    found = table("cuda")
    assert len(found) > 400
    assert not [(op, dtype, what) for (op, dtype), one in found.items() for what in one if what.startswith("FAILED")]
