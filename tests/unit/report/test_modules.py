"""Ops folded by module: each op is in at most one box, and no path leads out of a box and back."""

from __future__ import annotations

from dataclasses import replace
from graphlib import TopologicalSorter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuser_lab.report.layout import lay_out
from fuser_lab.report.modules import by_modules, has_modules, module_folds
from fuser_lab.report.view_model import view_plan
from tests.browser.sizes import layers
from tests.thorough import tries

PLAN = layers(2)
OPS = [expr.name for expr in PLAN.fusion.tensor_exprs]
PATHS = ("model", "model.layers.0", "model.layers.0.norm", "model.layers.0.mlp", "model.layers.1", "model.head")


def called(paths):
    """Return the view of the plan whose ops these modules call, in this order."""
    return view_plan(replace(PLAN, modules=tuple(zip(OPS, paths, strict=True))), decisions=False)


@pytest.fixture
def view():
    half = len(OPS) // 2
    first = ["model.layers.0.norm"] * 10 + ["model.layers.0.mlp"] * (half - 12) + ["model.layers.0"] * 2
    return called(first + ["model.layers.1.norm"] * (len(OPS) - half))


def test_a_plan_without_paths_has_no_modules():
    view = view_plan(PLAN, decisions=False)
    assert not has_modules(view)
    assert module_folds(view) == ()
    assert by_modules(view, ()) == view


def test_a_module_opens_into_its_modules_and_its_own_ops(view):
    def paths(*opened):
        return list(dict.fromkeys(fold.path for fold in module_folds(view, opened)))

    assert paths() == ["model.layers.0", "model.layers.1"]
    assert paths("model.layers.0") == ["model.layers.0.norm", "model.layers.0.mlp", "model.layers.1"]
    shown = by_modules(view, module_folds(view, ["model.layers.0"]))
    assert {n.module for n in shown.nodes if n.kind == "op"} == {"model.layers.0"}
    assert next(n.label for n in shown.nodes if n.kind == "segment") == "layers.0.norm"  # the common prefix is omitted
    every = ("model.layers.0", "model.layers.0.norm", "model.layers.0.mlp", "model.layers.1", "model.layers.1.norm")
    assert by_modules(view, module_folds(view, every)) == view


def test_segments_keep_their_boxes_and_edges_their_ids(view):
    shown = by_modules(view, module_folds(view))
    assert [s.index for s in shown.segments] == [s.index for s in view.segments]
    assert set(lay_out(shown).segments) == {s.index for s in view.segments}
    known = {edge.id: edge for edge in view.edges}
    assert all((known[e.id].kind, known[e.id].segments) == (e.kind, e.segments) for e in shown.edges)


@tries(100, deadline=None)
@given(st.lists(st.sampled_from(PATHS), min_size=len(OPS), max_size=len(OPS)), st.sets(st.sampled_from(PATHS)))
def test_no_way_leads_out_of_a_box_and_back(paths, opened):
    view = called(paths)
    folds = module_folds(view, opened)
    inside = [node for fold in folds for node in fold.nodes]
    assert len(inside) == len(set(inside))
    shown = by_modules(view, folds)
    assert len({fold.id for fold in folds}) == len(folds)
    TopologicalSorter({n.id: {e.source for e in shown.edges if e.target == n.id} for n in shown.nodes}).prepare()
    left = {node.id for node in shown.nodes if node.kind == "op"}
    assert left == {node.id for node in view.nodes if node.kind == "op"} - set(inside)
