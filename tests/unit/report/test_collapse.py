from dataclasses import replace

import pytest

import fuser_lab as fl
from fuser_lab import DataType, FusionDefinition
from fuser_lab.report.collapse import collapse, is_large
from fuser_lab.report.layout import lay_out
from fuser_lab.report.repeats import blocks
from fuser_lab.report.view_model import view_plan


@pytest.fixture
def view(stubs):
    return view_plan(stubs.rope_like(12, 5))


def test_each_segment_is_one_node_and_edges_keep_their_ids(view):
    small = collapse(view)
    assert [n.id for n in small.nodes if n.kind == "segment"] == [f"segment:{n}" for n in range(5)]
    assert not [n for n in small.nodes if n.kind == "op"]
    known = {e.id: e for e in view.edges}
    places = {n.id for n in small.nodes}
    for edge in small.edges:
        assert known[edge.id].kind == edge.kind != "inside"
        assert {edge.source, edge.target} <= places
    crossing = {(e.tensor, *e.segments) for e in view.edges if e.kind == "boundary"}
    assert {(e.tensor, *e.segments) for e in small.edges if e.kind == "boundary"} == crossing


def test_an_opened_segment_shows_its_ops(view):
    shown = collapse(view, {2})
    own = {n.id for n in view.nodes if n.segment == 2}
    assert {n.id for n in shown.nodes if n.kind == "op"} == own
    assert {e.id for e in shown.edges if e.kind == "inside"} == {e.id for e in view.edges if e.segments == (2, 2)}
    assert set(lay_out(shown).segments) == {2}


def test_all_opened_is_the_whole_view(view):
    opened = collapse(view, range(5))
    assert set(opened.edges) == set(view.edges)
    assert set(opened.nodes) == set(view.nodes)


def test_large_is_more_than_300_ops(view):
    assert not is_large(replace(view, header=replace(view.header, ops=300)))
    assert is_large(replace(view, header=replace(view.header, ops=301)))


@pytest.fixture
def repeating():
    with FusionDefinition() as fd:
        x = fd.ops.exp(fd.define_tensor([64, 64], contiguity=True, dtype=DataType.Float))
        for _ in range(4):
            x = fd.ops.neg(fd.ops.sin(x))
        fd.add_output(x)
    return view_plan(fl.segment(fd, strategy="unfused"))


def test_segments_that_repeat_are_one_block_with_their_number(repeating):
    (block,) = blocks(repeating)
    assert (block.first, block.period, block.count, block.id) == (1, 2, 4, "block:1-8")
    folded = collapse(repeating, blocks=[block])
    assert [n.id for n in folded.nodes] == ["in:T0", "out:0:T9", "segment:0", "block:1-8"]
    assert [(e.source, e.target) for e in folded.edges] == [
        ("in:T0", "segment:0"), ("segment:0", "block:1-8"), ("block:1-8", "out:0:T9"),
    ]
    assert "4 × 2 segments · 8 ops" in {n.detail for n in folded.nodes}
    assert lay_out(folded).nodes.keys() == {n.id for n in folded.nodes}


def test_two_of_a_kind_and_segments_out_of_order_make_no_block(repeating):
    few = replace(repeating, segments=repeating.segments[:5])
    assert blocks(few) == ()
    back = replace(repeating.edges[1], segments=(3, 1))
    assert blocks(replace(repeating, edges=(*repeating.edges, back))) == ()
