import math
import re
from itertools import pairwise
from xml.etree import ElementTree as ET

import pytest

import fuser_lab as fl
from fuser_lab import DataType, FusionDefinition
from fuser_lab.cost.device import H200
from fuser_lab.report import plots


@pytest.fixture
def plan():
    """Three kernels in a row: exp, sum over rows, neg; 4 kB, 4 kB, 128 B and 128 B of floats."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([32, 32], contiguity=True, dtype=DataType.Float)
        fd.add_output(fd.ops.neg(fd.ops.sum(fd.ops.exp(x), dims=[1])))
    return fl.segment(fd, strategy="unfused")


def test_operations_and_bytes_are_counted(plan):
    found = [(one.operations, one.bytes) for one in plots.loads(plan)]
    assert found == [(1024, 8192), (1024, 4096 + 128), (32, 256)]
    assert plots.loads(plan)[0].intensity == 0.125


def test_a_product_counts_two_operations_a_multiply_add():
    with FusionDefinition() as fd:
        a = fd.define_tensor([8, 16], contiguity=True, dtype=DataType.BFloat16)
        b = fd.define_tensor([16, 4], contiguity=True, dtype=DataType.BFloat16)
        fd.add_output(fd.ops.matmul(a, b))
    assert [one.operations for one in plots.loads(fl.segment(fd))] == [2 * 8 * 16 * 4]


def test_moving_data_is_no_arithmetic():
    with FusionDefinition() as fd:
        x = fd.define_tensor([8, 16], contiguity=True, dtype=DataType.Float)
        fd.add_output(fd.ops.permute(x, dims=[1, 0]))
    assert [one.operations for one in plots.loads(fl.segment(fd))] == [0]


def test_what_passes_between_segments_is_freed_after_its_last_reader(plan):
    steps = [(s.inputs, s.between, s.results) for s in plots.memory_steps(plan)]
    assert steps == [(4096, 4096, 0), (4096, 4096 + 128, 0), (4096, 128, 128)]


def test_the_longer_of_both_times_counts():
    light = plots.Load(segment=0, scheduler="", operations=1, bytes=48_000_000)
    heavy = plots.Load(segment=0, scheduler="", operations=67_000_000_000, bytes=1)
    assert plots.least_seconds(light, H200) == pytest.approx(1e-5)
    assert plots.least_seconds(heavy, H200) == pytest.approx(1e-3)


def test_the_roofline_marks_each_segment_and_what_was_measured(plan):
    root = ET.fromstring(plots.roofline_svg(plots.loads(plan, {1: 1e-6}), H200))
    marks = [e.get("class").split()[-1] for e in root.iter() if e.tag.endswith("circle")]
    assert marks.count("fl-hollow") == 3
    assert marks.count("fl-full") == 1
    for svg in (root, ET.fromstring(plots.memory_svg(plan))):
        assert svg.get("role") == "img"
        assert [e.text for e in svg if e.tag.endswith(("title", "desc"))]
        assert len([e for e in svg if e.get("class") == "fl-point"]) == 3


@pytest.mark.parametrize("intensity", [0.004, 0.2, 3.0, 40.0])
def test_hollow_marks_lie_on_the_roof(intensity):
    load = plots.Load(segment=0, scheduler="", operations=round(intensity * 10**6), bytes=10**6)
    root = ET.fromstring(plots.roofline_svg([load], H200))
    mark = next(e for e in root.iter() if e.tag.endswith("circle"))
    at = float(mark.get("cx")), float(mark.get("cy"))
    roof = next(e for e in root.iter() if e.get("class") == "fl-roof").get("d")
    corners = [tuple(map(float, point.split(","))) for point in roof[1:].split(" L")]
    (x0, y0), (x1, y1) = next(pair for pair in pairwise(corners) if pair[0][0] - 0.1 <= at[0] <= pair[1][0] + 0.1)
    assert at[1] == pytest.approx(y0 + (y1 - y0) * (at[0] - x0) / (x1 - x0), abs=0.3)


def test_a_plan_without_arithmetic_still_has_a_roofline():
    ET.fromstring(plots.roofline_svg([plots.Load(segment=0, scheduler="no_op", operations=0, bytes=0)], H200))


@pytest.fixture
def both(plan):
    return plan.glue(0, 1), plan


def test_work_flows_from_each_segment_of_one_plan_to_another(both):
    assert plots.flows(*both) == ((0, 0), (0, 1), (1, 2))
    assert plots.flows(*reversed(both)) == ((0, 0), (1, 0), (2, 1))


def test_arrows_go_from_the_marks_of_one_plan_to_those_of_the_other(both):
    before, after = map(plots.loads, both)
    pairs = plots.flows(*both)
    root = ET.fromstring(plots.roofline_svg(after, H200, before=before, pairs=pairs))
    arrows = [e for e in root.iter() if e.get("class") == "fl-arrow"]
    titles = [e.find("{*}title").text for e in arrows]
    # The third pair is one kernel in both plans: its marks touch, and no arrow connects them.
    assert titles == ["S0 there to S0 here", "S0 there to S1 here"]
    squares = [e for e in root.iter() if e.get("class") == "fl-before"]
    assert len(squares) == 2
    centre = [float(squares[0].get("x")) + 4, float(squares[0].get("y")) + 4]
    hollow = {e.get("data-id"): next(c for c in e if c.tag.endswith("circle")) for e in root if e.get("data-id")}
    for arrow, segment in zip(arrows, ("segment:0", "segment:1"), strict=True):
        numbers = [float(n) for n in re.findall(r"-?\d+\.\d", arrow.find("{*}path").get("d"))]
        assert numbers[:2] == pytest.approx(centre, abs=0.2)
        tip = [float(n) for n in arrow.find("{*}polygon").get("points").split()[0].split(",")]
        end = [float(hollow[segment].get(axis)) for axis in ("cx", "cy")]
        assert math.dist(tip, end) == pytest.approx(7, abs=0.3)  # just outside the mark


def test_arrows_join_what_was_measured_where_both_plans_were(both):
    seconds = {0: 1e-6, 1: 2e-6, 2: 1e-6}
    before, after = (plots.loads(one, seconds) for one in both)
    root = ET.fromstring(plots.roofline_svg(after, H200, before=before, pairs=plots.flows(*both)))
    full = [e for e in root.iter() if "fl-full" in (e.get("class") or "")]
    arrow = next(e for e in root.iter() if e.get("class") == "fl-arrow")
    tip = [float(n) for n in arrow.find("{*}polygon").get("points").split()[0].split(",")]
    assert math.dist(tip, [float(full[0].get("cx")), float(full[0].get("cy"))]) == pytest.approx(7, abs=0.3)


def test_the_table_says_where_the_work_came_from(both):
    table = plots.load_table(plots.loads(both[1]), H200, plots.flows(*both))
    assert [row[table.columns.index("from there")] for row in table.rows] == ["S0", "S0", "S1"]
    assert "from there" not in plots.load_table(plots.loads(both[1]), H200).columns


def test_marks_that_lie_together_share_one_label():
    load = [plots.Load(segment=n, scheduler="", operations=1000, bytes=1000) for n in range(6)]
    root = ET.fromstring(plots.roofline_svg(load, H200))
    assert [e.text for e in root.iter() if e.get("class") == "fl-name"] == ["S0, S1, S2, S3 +2"]
