import math
import xml.etree.ElementTree as ET
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import fuser_lab as fl
from fuser_lab.cost.device import H200, THIS_CPU
from fuser_lab.cost.kernel_time import kernel_model
from fuser_lab.cost.measured_times import TimingRow
from fuser_lab.report.time_line import GAPS, time_line_svg, time_lines, time_table
from fuser_lab.report.view_model import view_plan

FLOATS = np.ones((256, 128), np.float32)


@pytest.fixture(scope="module")
def plan():
    with fl.FusionDefinition() as fd:
        x, y = (fd.define_tensor(shape=[-1, -1], contiguity=True, dtype=fl.DataType.Float) for _ in range(2))
        fd.add_output(fd.ops.add(y, fd.ops.sum(x, dims=[1], keepdim=True)))
    return fl.segment(fd, [FLOATS, FLOATS])


def measured(plan, seconds, whole, device="CPU (2 threads)"):
    rows = [
        TimingRow(
            plan="a", segment=n, scheduler="", ops=1, bytes_in=1, bytes_out=1, bytes_crossing=0, median=median,
            device=device, plan_hash=plan.hash,
        ) for n, median in enumerate(seconds)
    ]
    return [*rows, replace(rows[0], segment=None, median=whole, kernels=sum(seconds))]


def is_covered(line):
    at = 0.0
    for span in line.spans:
        assert span.start == pytest.approx(at)
        at += span.seconds
    return at == pytest.approx(line.seconds)


def test_a_predicted_line_is_the_predicted_time_with_the_launch_and_the_gap_apart(plan):
    (line,) = time_lines(plan)
    model = kernel_model(H200)
    assert line.label == "predicted (H200)"
    assert line.seconds == pytest.approx(plan.predicted_time().seconds)
    assert [(span.segment, span.is_gap) for span in line.spans] == [(0, True), (0, False), (1, True), (1, False)]
    assert line.spans[0].seconds == model.rates.launch
    assert line.spans[2].seconds == model.together.gap
    assert is_covered(line)


def test_a_measured_line_has_its_own_device_and_the_sum_of_its_gaps_in_equal_parts(plan):
    _, line = time_lines(plan, measured(plan, [1e-3, 3e-3], 5e-3))
    assert line.label == f"measured ({THIS_CPU})"
    assert line.gaps == pytest.approx(1e-3)
    assert [span.seconds for span in line.spans if span.is_gap] == pytest.approx([5e-4, 5e-4])
    assert is_covered(line)


def test_times_of_other_plans_and_unfinished_measurements_make_no_line(plan):
    assert len(time_lines(plan, measured(SimpleNamespace(hash="other"), [1e-3, 3e-3], 5e-3))) == 1
    assert len(time_lines(plan, measured(plan, [1e-3, 3e-3], math.nan))) == 1
    assert len(time_lines(plan, measured(plan, [1e-3, 3e-3], 5e-3)[:2])) == 1


@pytest.mark.parametrize("whole", [5e-3, 3.953e-3, 4.0003e-3])
def test_the_rows_of_the_table_add_up_to_the_total_as_they_are_printed(plan, whole):
    lines = time_lines(plan, measured(plan, [1.23456e-3, 2.71828e-3], whole, device="NVIDIA H200"))
    table = time_table(view_plan(plan, decisions=False).segments, lines)
    assert [row[0] for row in table.rows] == ["S0 reduction", "S1 pointwise", GAPS, "total"]
    assert table.columns[1::2] == ("predicted (H200) [µs]", "measured (H200) [ms]")
    for column in range(1, len(table.columns)):
        *parts, total = (float(row[column]) for row in table.rows)
        assert sum(parts) == pytest.approx(total, abs=1e-9)


def test_a_segment_that_was_not_timed_says_so(plan):
    rows = measured(plan, [1e-3, math.nan], 5e-3)
    table = time_table(view_plan(plan, decisions=False).segments, time_lines(plan, rows))
    assert table.rows[1][3] == "not timed"


def test_lines_of_one_device_share_a_scale_and_others_do_not(plan):
    def ends(device):
        lines = time_lines(plan, measured(plan, [1e-3, 3e-3], 5e-3, device=device))
        root = ET.fromstring(time_line_svg(lines))
        bars = [box for box in root.iter("{http://www.w3.org/2000/svg}rect") if "fl-h" in box.get("class", "")]
        return [float(bar.get("x")) + float(bar.get("width")) for bar in bars]

    _, predicted, _, here = ends("CPU (2 threads)")
    assert predicted == pytest.approx(here, abs=0.2)
    _, predicted, _, here = ends("NVIDIA H200")
    assert predicted < here / 10


def test_medians_of_segments_that_exceed_that_of_the_plan_stay_in_the_picture(plan):
    lines = time_lines(plan, measured(plan, [1e-3, 3e-3], 3e-3))
    assert lines[1].gaps == 0
    assert lines[1].excess == pytest.approx(1e-3)
    table = time_table(view_plan(plan, decisions=False).segments, lines)
    text = "segments took 1.00 ms more than the run, as the machine was busy"
    assert table.rows[2][0] == f"gaps; measured ({THIS_CPU}): {text}"
    assert [float(row[3]) for row in table.rows] == [1, 3, 0, 3]
    root = ET.fromstring(time_line_svg(lines))
    for box in root.iter("{http://www.w3.org/2000/svg}rect"):
        if "fl-h" in box.get("class", ""):
            assert float(box.get("x")) + float(box.get("width")) <= float(root.get("width"))
