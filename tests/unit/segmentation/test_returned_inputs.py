"""An input that is both overwritten and returned, in segments: itself with new values, its views with old ones."""

import numpy as np
import pytest

import fuser_lab as fl
from fuser_lab import FusionDefinition

OLD = np.arange(4, dtype=np.float32).reshape(2, 2)
NEW = -(np.exp(OLD) @ np.exp(OLD))


@pytest.mark.parametrize(
    ("returned", "values"),
    [
        (lambda _, x: x, NEW),
        (lambda fd, x: fd.ops.set(x), OLD),
        (lambda fd, x: fd.ops.permute(x, [1, 0]), OLD.T),
    ],
    ids=["itself", "set", "permute"],
)
@pytest.mark.parametrize("cut", [False, True])
def test_itself_is_new_and_views_are_old(returned, values, cut):
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1, -1], contiguity=True)
        y = fd.ops.segment_set(fd.ops.exp(x))
        fd.add_output(fd.ops.neg(fd.ops.matmul(y, y)), x)
        fd.add_output(returned(fd, x))
    given = OLD.copy()
    if cut:
        assert len(fd.segment([given])) > 1
    (out,) = fd.execute([given])
    np.testing.assert_allclose(given, NEW, rtol=1e-5)
    np.testing.assert_allclose(out, values, rtol=1e-5)
    assert (out is given) is (values is NEW)


@pytest.mark.parametrize("strategy", ["bottom_up", "top_down", "optimal", "fastest"])
def test_a_fusion_of_inputs_alone_is_one_segment_that_reads_nothing(strategy):
    with FusionDefinition() as fd:
        x, y = (fd.define_tensor(shape=[2, 2], contiguity=True) for _ in range(2))
        fd.add_output(y)
        fd.add_output(x)
    plan = fl.segment(fd, strategy=strategy)
    (segment,) = plan.segments
    assert (segment.scheduler.value, segment.exprs, segment.bytes) == ("expr_eval", (), 0)
    assert repr(segment) == "<Segment 0: expr_eval of nothing>"
    assert plan.certificate().cost == 0
    assert len(plan.definitions()) == 0
    other = OLD + 1
    returned = plan.run([OLD, other])
    assert returned[0] is other
    assert returned[1] is OLD
