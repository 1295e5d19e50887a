"""A drawing that reuses parts of another plan's drawing equals a fresh drawing."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import fuser_lab as fl
from fuser_lab import examples
from fuser_lab.errors import IllegalEdit
from fuser_lab.report.collapse import collapse
from fuser_lab.report.drawing import Drawing, Drawn
from fuser_lab.report.layout import lay_out
from fuser_lab.report.parts import Parts
from fuser_lab.report.repeats import blocks
from fuser_lab.report.view_model import view_plan
from fuser_lab.segmentation.layouts import layout_of, layouts_of
from tests.browser.sizes import layers
from tests.thorough import tries

RECOMPUTES, NORM = "llama3_rope_backward", "layer_norm_backward"


def example(name):
    found = examples.get(name)
    with fl.FusionDefinition() as fd:
        found.define(fd, "full")
    return fl.segment(fd, found.specs("full"))


PLANS = {name: example(name) for name in (RECOMPUTES, NORM)} | {"layers": layers(4)}


def edited(plan, choose):
    """Return the plan after an edit at a random edge, or the plan itself if the edit is refused."""
    edges = [edge for edge in view_plan(plan, decisions=False).edges if edge.kind in {"inside", "boundary"}]
    edge = choose.draw(st.sampled_from(edges))
    try:
        return plan.cut(edge.tensor) if edge.kind == "inside" else plan.glue(*edge.segments)
    except IllegalEdit:
        return plan


@tries(60, deadline=None)
@given(st.sampled_from(sorted(PLANS)), st.data())
def test_what_is_reused_is_what_would_be_made(name, data):
    drawn, plan = Drawn(), PLANS[name]
    plans = [plan]
    for _ in range(5):
        plan = data.draw(st.sampled_from(plans)) if data.draw(st.booleans()) else edited(plan, data)  # an undo, an edit
        plans.append(plan)
        assert view_plan(plan, decisions=False, drawn=drawn) == view_plan(plan, decisions=False)
        layouts = layouts_of(plan.segmented, "outputs")
        one = data.draw(st.sampled_from(layouts.boundaries))
        assert layout_of(plan.segmented, one.tensor) == one


def test_a_drawing_takes_the_unchanged_segments_over():
    plan, drawn = PLANS["layers"], Drawn()
    before = view_plan(plan, decisions=False, drawn=drawn)
    after = view_plan(plan.cut(before.nodes[-3].tensor), decisions=False, drawn=drawn)
    known = set(map(id, before.nodes))
    assert sum(id(node) in known for node in after.nodes if node.kind == "op") > len(after.nodes) // 2


def test_segments_that_only_get_other_numbers_are_not_drawn_again(monkeypatch):
    plan, drawn, made = PLANS["layers"], Drawn(), []
    view_plan(plan, decisions=False, drawn=drawn)
    op, count = Drawing._op, len(plan.segments[0].exprs)
    monkeypatch.setattr(Drawing, "_op", lambda self, expr, segment: made.append(segment) or op(self, expr, segment))
    after = view_plan(plan.cut(plan.segments[0].exprs[0].outputs[0].name), decisions=False, drawn=drawn)
    assert len(after.segments) > len(plan.segments)
    assert 0 < len(made) <= count


@pytest.mark.parametrize("name", sorted(PLANS))
def test_a_tensor_that_no_segment_writes_has_no_layout(name):
    plan = PLANS[name]
    assert layout_of(plan.segmented, plan.fusion.tensor_inputs[0].name) is None


def test_what_is_folded_is_not_made_for_another_number(monkeypatch):
    plan, drawn, completed = PLANS["layers"], Drawn(), []
    view_plan(plan, decisions=False, drawn=drawn)
    after = view_plan(plan.cut(plan.segments[0].exprs[0].outputs[0].name), decisions=False, drawn=drawn)
    all_of = Parts.all.func
    monkeypatch.setattr(Parts, "all", property(lambda self: completed.append(self) or all_of(self)))
    folded = collapse(after, {0}, blocks(after))
    lay_out(after)
    op = next(node for node in reversed(after.nodes.parts[-2].rough) if node.kind == "op")
    assert after.node(op.id).segment == after.segments[-1].index
    assert completed == []
    whole = replace(after, nodes=tuple(after.nodes), edges=tuple(after.edges))
    assert collapse(whole, {0}, blocks(whole)) == folded
    assert after.nodes == whole.nodes
    for edge in whole.edges:
        assert after.edge(edge.id) == edge
        assert after.edges_of(edge.tensor) == tuple(e for e in whole.edges if e.tensor == edge.tensor)
    for node in whole.nodes:
        assert after.node(node.id) == node
