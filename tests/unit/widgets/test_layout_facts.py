"""The inspector's text about layouts."""

import pytest

pytest.importorskip("anywidget")

from fuser_lab_widgets import answers

import fuser_lab as fl
from fuser_lab.examples import layouts
from fuser_lab.report.view_model import view_plan


def selected(plan, kind):
    view = view_plan(plan)
    edge = next(e for e in view.edges if e.kind == kind)
    said = answers.answer(plan, view, edge.id)
    assert "layout" not in dict(said["facts"])  # which the first click does not need to explain
    return dict(said.get("layout", ()))


def test_an_edge_between_segments_says_how_it_lies_and_who_decided():
    with fl.FusionDefinition() as fd:
        layouts.reader_decides(fd)
    facts = selected(fl.segment(fd, options=fl.SegmenterOptions(layout_mode="negotiate")), "boundary")
    assert facts["layout"] == "1,0, decided by S1"
    assert (facts["required"], facts["hint"], facts["natural"], facts["preferred"]) == ("-", "-", "0,1 (S0)", "S1: 1,0")
    assert facts["across rows"] == "0 B; naturally 8.39 MB"


def test_a_result_says_what_the_user_required():
    with fl.FusionDefinition() as fd:
        layouts.required_copy(fd)
    facts = selected(fl.segment(fd), "output")
    assert facts["layout"] == "0,2,1, decided by user"
    assert facts["required"] == "0,2,1"


def test_inside_a_segment_nothing_lies_anywhere():
    with fl.FusionDefinition() as fd:
        layouts.reader_decides(fd)
    assert "layout" not in selected(fl.segment(fd), "inside")
