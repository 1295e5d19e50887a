"""Laws of boundary casts over random fusions and random schedulers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from thorough import tries

from fuser_lab.dtypes import DataType
from fuser_lab.interpreter import evaluate
from fuser_lab.segmentation import SegmenterOptions, replay, segment
from fuser_lab.segmentation.events import DecisionLog, Kind
from tests.unit.builders import record
from tests.unit.segmentation.toy import chance

pytestmark = pytest.mark.property

FLOAT, HALVES = DataType.Float, (DataType.BFloat16, DataType.Half)
INPUTS = [np.array([1, 2, 0.5, 3], np.float32), np.array([0.25, 4, 1, 2], np.float32)]  # no cancellation
STEPS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 30), st.integers(0, 30)), min_size=1, max_size=14)
ENDS = st.lists(st.sampled_from([FLOAT, *HALVES]), min_size=1, max_size=3)


def dag(steps, ends):
    """Return a fusion over [4] tensors whose last results are returned in several dtypes."""

    def body(fd):
        values = [fd.define_tensor([4], contiguity=True) for _ in INPUTS]
        for kind, a, b in steps:
            x, y = values[a % len(values)], values[b % len(values)]
            made = (
                lambda x=x, y=y: fd.ops.add(x, y),
                lambda x=x, y=y: fd.ops.maximum(fd.ops.mul(x, 0.7), y),
                lambda x=x: fd.ops.segment_set(x),
                lambda x=x: fd.ops.slice(x, [0], [4]),
                lambda x=x: fd.ops.reshape(fd.ops.reshape(x, [2, 2]), [4]),
                lambda x=x: fd.ops.add(x, fd.ops.sum(x, [0], keepdim=True)),
            )
            values.append(made[kind]())
        for end, value in zip(ends, reversed(values), strict=False):
            fd.add_output(value if end is FLOAT else fd.ops.cast(value, end))

    return record(body)


@tries(150)
@given(
    STEPS, ENDS, st.integers(0, 1000), st.integers(0, 100), st.booleans(),
    st.sampled_from(["bottom_up", "top_down", "saving", "unfused"]),
)
def test_only_what_leads_to_halves_is_rounded_and_each_boundary_once(steps, ends, seed, percent, forward, strategy):
    fusion, oracle = dag(steps, ends), chance(seed, percent)
    options = SegmenterOptions(io_to_lower_precision=True, forward_inputs=forward)
    log = DecisionLog()
    found = segment(fusion, oracle, strategy=strategy, options=options, log=log)
    stored = {a.subjects[0][0] for a in log.filter(kind=Kind.CAST, accepted=True)}
    written = {tv.name: tv for group in found.groups for tv in group.outputs}
    for name in stored:
        half = written[f"{name}_lower"]
        assert half.dtype in HALVES
        assert name not in written
        readers = [g for g in found.groups if half in g.tensor_inputs]
        assert readers
        assert all(sum(half in e.tensor_inputs for e in g.exprs) == 1 for g in readers)
    assert {tv.name for tv in fusion.outputs} == {tv.name for tv in found.fusion.outputs}
    if not any(end in HALVES for end in ends):
        assert not stored
    assert replay(found.fusion, log, oracle) == found
    assert replay(fusion, log, oracle) == found
    exact = evaluate(fusion, INPUTS, exact=False)
    for wanted, got, tv in zip(exact, evaluate(found.fusion, INPUTS), fusion.outputs, strict=True):
        roundings = 0 if tv.dtype is FLOAT and not stored else len(steps) + 1
        np.testing.assert_allclose(got.astype(np.float64), wanted, rtol=1e-5 + 2.0**-8 * roundings)
