"""The maps between the numbers of a definition and those of its segments, as text and as a picture."""

import re
from xml.etree import ElementTree as ET

import numpy as np
import pytest

from fuser_lab import FusionDefinition, SegmenterOptions
from fuser_lab.definition.spec import spec
from fuser_lab.errors import StateError

APART = SegmenterOptions(whole_fusion=False, level_merge=False, final_merge=False, combine_reductions=False)


@pytest.fixture
def fd():
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1, -1], contiguity=True)
        total = fd.ops.sum(fd.ops.exp(x), dims=[1], keepdim=True)
        fd.add_output(fd.ops.mul(fd.ops.neg(total), 2.5))
        fd.add_output(fd.ops.full([fd.ops.size(x, 1)], fill_value=1.0, dtype=total.dtype))
    return fd


def test_text(fd):
    fd.segment([spec((4, 8))], options=APART)
    lines = repr(fd.index_maps).splitlines()
    assert len(lines) == len(fd.segments) > 2
    assert lines[0].startswith("segment 0: 0 is 0 (T0), ")
    found = {
        (int(i), int(new), int(old))
        for i, line in enumerate(lines) for new, old in re.findall(r"(-?\d+) is (-?\d+) ", line)
    }
    maps = [fd.segment_index_space_maps[segment] for segment in fd.segments]
    assert found == {(i, new, old) for i, numbers in enumerate(maps) for new, old in numbers.items()}
    assert any("(i1)" in line for line in lines), "a size of the definition"


def test_each_pair_is_a_line_between_two_boxes(fd):
    segments = fd.segment([spec((4, 8))], options=APART)
    html = fd.index_maps._repr_html_()
    svg = ET.fromstring(re.search(r"<svg.*</svg>", html, re.DOTALL)[0])
    space = {"s": "http://www.w3.org/2000/svg"}
    titles = [t.text for t in svg.findall(".//s:path/s:title", space)]
    maps = [fd.segment_index_space_maps[segment] for segment in segments]
    assert sorted(titles) == sorted(f"segment {i}: {n} is {o}" for i, m in enumerate(maps) for n, o in m.items())
    boxes = svg.findall(".//s:rect", space)
    used = {old for numbers in maps for old in numbers.values() if old < 0}
    inner = sum(fid >= len(fd.state.states) for fid in fd.state.fid_of.values())
    assert used == {-2}
    assert len(boxes) == len(fd.state.states) + len(used) + inner + sum(len(s.state.states) for s in segments)
    width = float(svg.get("width"))
    assert all(float(box.get("x")) >= 0 and float(box.get("x")) + float(box.get("width")) <= width for box in boxes)
    ends = [list(map(float, re.findall(r"-?[\d.]+", path.get("d")))) for path in svg.findall(".//s:path", space)]
    tops = {float(box.get("y")) for box in boxes}
    assert {round(end[-1], 3) for end in ends} <= tops, "a line ends at the top of a segment's box"


def test_without_segments_there_are_no_maps(fd):
    with pytest.raises(StateError, match="call segment first"):
        _ = fd.index_maps


def test_a_definition_that_is_one_segment_says_so():
    with FusionDefinition() as one:
        x = one.define_tensor(shape=[-1], contiguity=True)
        one.add_output(one.ops.neg(x))
    assert one.segment([np.ones(4, np.float32)]) == []
    with pytest.raises(StateError, match="^index_maps: the definition is one segment by itself, so there are no"):
        _ = one.index_maps
