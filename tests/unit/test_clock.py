"""Predicted times of a plan's scheduled kernels: views take none, strided inputs count as such, the limit holds."""

import pytest

import fuser_lab as fl
from fuser_lab import DataType, FusionDefinition
from fuser_lab.cost.device import H200
from fuser_lab.plan.clock import ScheduledClock, given_strides


def symmetric():
    with FusionDefinition() as fd:
        x = fd.define_tensor([4096, 4096], contiguity=True)
        fd.add_output(fd.ops.add(x, fd.ops.permute(x, [1, 0])))
    return fd


def test_a_segment_of_views_takes_no_time_and_is_read_where_it_lies():
    plan = fl.segment(symmetric(), strategy=lambda fusion, oracle: [["T1"], ["T2"]])
    view, kernel = plan.segments
    assert view.predicted_time().seconds == 0.0
    assert plan.predicted_time().seconds == kernel.predicted_time().seconds
    assert "views" not in str(plan.predicted_time())


def test_a_view_that_has_to_be_copied_takes_time():
    with FusionDefinition() as fd:
        x = fd.define_tensor([4096, 4096], contiguity=True)
        fd.add_output(fd.ops.sum(fd.ops.reshape(fd.ops.permute(x, [1, 0]), [8192, 2048]), [1]))
    plan = fl.segment(fd, strategy=lambda fusion, oracle: [["T1", "T2"], ["T3"]])
    assert plan.segments[0].predicted_time().seconds > 4096 * 4096 * 4 / H200.bandwidth / 1e9


def test_inputs_are_read_as_they_lie():
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.mul(fd.define_tensor([4096, 8192], contiguity=False), 2.0))
    dense, every_other = (
        fl.segment(fd, [fl.spec((4096, 8192), strides=strides)]) for strides in ((8192, 1), (16384, 2))
    )
    assert every_other.predicted_time().seconds > 1.3 * dense.predicted_time().seconds


def test_no_more_is_lowered_than_the_limit_and_equal_segments_once():
    with FusionDefinition() as fd:
        tensors = [fd.define_tensor([512, 512], contiguity=True) for _ in range(4)]
        for x in tensors:
            fd.add_output(fd.ops.mul(fd.ops.exp(x), 2.0))
    plan = fl.segment(fd, strategy=lambda fusion, oracle: [[f"T{n}", f"T{n + 1}"] for n in range(4, 12, 2)])
    given = given_strides(plan.inputs)
    first, *others = ScheduledClock(H200, 2, given).seconds(plan.segmented)
    assert len(set(others)) == 1
    assert others[0] < first, "only the first one waits for its launch"
    assert ScheduledClock(H200, 1, given).seconds(plan.segmented) == [None] * 4
    assert None not in ScheduledClock(H200, 1, given).seconds(plan.segmented, limited=False)
    clock = ScheduledClock(H200, 8, given)
    assert None not in clock.seconds(plan.segmented)
    alone = fl.segment(fd, strategy="unfused").segmented
    assert None not in clock.seconds(alone), "six expressions remained for two different segments"
    assert clock.seconds(alone)[0] == pytest.approx(clock.seconds(plan.segmented)[0], rel=0.5)


def test_what_the_array_library_computes_is_predicted_by_bytes_and_arithmetic():
    with FusionDefinition() as fd:
        a, b = (fd.define_tensor([256, 256], contiguity=True, dtype=DataType.Half) for _ in range(2))
        fd.add_output(fd.ops.relu(fd.ops.matmul(a, b)))
    plan = fl.segment(fd)
    product, relu = ScheduledClock(H200, 10, given_strides(plan.inputs)).seconds(plan.segmented)
    assert product == plan.segments[0].predicted_time().seconds
    assert 0 < relu < plan.segments[1].predicted_time().seconds
