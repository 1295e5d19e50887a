"""The pictures of a difference and of a log, checked by counts from the plans themselves."""

import re
from xml.etree import ElementTree as ET

import pytest

import fuser_lab as fl
from fuser_lab import DataType, FusionDefinition
from fuser_lab.report.diff_picture import diff_dot, diff_mermaid, diff_svg, links
from fuser_lab.report.log_picture import decisions_svg


@pytest.fixture(scope="module")
def plans():
    with FusionDefinition() as fd:
        x, y = (fd.define_tensor([4096, 4096], contiguity=True, dtype=DataType.Float) for _ in range(2))
        a = fd.ops.exp(x)
        b = fd.ops.mul(a, fd.ops.broadcast(fd.ops.sum(a, dims=[1]), is_broadcast_dim=[False, True]))
        columns = fd.ops.broadcast(fd.ops.sum(b, dims=[0]), is_broadcast_dim=[True, False])
        fd.add_output(fd.ops.add(fd.ops.mul(b, columns), y))
        fd.add_output(fd.ops.sum(fd.ops.mul(y, columns), dims=[1]))
    return fl.segment(fd), fl.segment(fd, strategy="unfused")


def classes(root, name):
    return [e for e in root.iter() if name in e.get("class", "").split()]


def test_bands_join_the_segments_that_share_expressions(plans):
    difference = fl.diff(*plans)
    found = links(difference)
    homes = [{e.name: s.index for s in plan.segments for e in s.exprs} for plan in plans]
    assert {(link.before, link.after) for link in found} == {(homes[0][n], homes[1][n]) for n in homes[0]}
    assert sorted(n for link in found for n in link.names) == sorted(homes[0])
    moved = {n for link in found if link.moved for n in link.names}
    assert moved == {m.name for m in difference.moved}
    root = ET.fromstring(diff_svg(difference))
    assert len(classes(root, "fl-link")) == len(found)
    assert len(classes(root, "fl-moved")) == sum(link.moved for link in found)
    assert len(classes(root, "fl-point")) == sum(len(plan.segments) for plan in plans)
    words = " ".join(e.text or "" for e in root.iter())
    assert all(f"+ {c.name} now crosses" in words for c in difference.now_crossing)


def test_partners_have_one_colour(plans):
    difference = fl.diff(*plans)
    boxes = classes(ET.fromstring(diff_svg(difference)), "fl-point")
    hues = [re.search(r"fl-h(\d)", box.get("class")).group(1) for box in boxes]
    left, right = hues[: len(plans[0].segments)], hues[len(plans[0].segments) :]
    assert all(left[a] == right[b] for a, b in difference.partners)


def test_plans_cut_alike_have_no_coloured_band(plans):
    root = ET.fromstring(diff_svg(fl.diff(plans[0], plans[0])))
    assert classes(root, "fl-link")
    assert not classes(root, "fl-moved")


def test_mermaid_and_dot_hold_the_same_links(plans):
    difference = fl.diff(*plans)
    found = {(link.before, link.after, link.moved) for link in links(difference)}
    in_mermaid = {(int(a), int(b), way == "-.") for a, way, b in re.findall(
        r"^  a(\d+) (-\.|--) .* b(\d+)$", diff_mermaid(difference), re.MULTILINE)}
    in_dot = {(int(a), int(b), "dashed" in rest) for a, b, rest in re.findall(
        r"^  a(\d+) -> b(\d+) (.*);$", diff_dot(difference), re.MULTILINE)}
    assert in_mermaid == in_dot == found


def test_a_hostile_name_stays_text_in_a_difference(plans):
    name = '<script>alert(1)</script>"];'
    difference = fl.diff(plans[0].renamed(name), plans[1])
    ET.fromstring(diff_svg(difference))
    assert "<script" not in diff_svg(difference) + diff_mermaid(difference)
    pygraphviz = pytest.importorskip("pygraphviz")
    assert len(pygraphviz.AGraph(diff_dot(difference)).subgraphs()) == 2


def test_each_attempt_is_a_row_with_a_mark_for_each_expression(plans):
    log = plans[0].decisions
    assert {a.accepted for a in log} == {True, False}
    root = ET.fromstring(decisions_svg(log))
    rows = classes(root, "fl-attempt")
    assert [("fl-yes" in row.get("class")) for row in rows] == [a.accepted for a in log]
    marks = [len([e for e in row if e.tag.endswith("circle")]) for row in rows]
    assert marks == [len(a.names) for a in log]


def test_rows_of_a_long_log_beyond_the_first_are_counted(plans):
    log = [*plans[0].decisions] * 30
    root = ET.fromstring(decisions_svg(log))
    assert len(classes(root, "fl-attempt")) == 200
    assert f"… and {len(log) - 200} more" in " ".join(e.text or "" for e in root.iter())


def test_an_empty_log_has_a_picture_that_says_so():
    root = ET.fromstring(decisions_svg([]))
    assert root.find("{*}title").text == "0 decisions"
