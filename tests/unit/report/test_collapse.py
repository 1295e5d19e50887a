from dataclasses import replace

import pytest

from fuser_lab.report.collapse import collapsed, is_large
from fuser_lab.report.layout import lay_out
from fuser_lab.report.view_model import view_plan


@pytest.fixture
def view(stubs):
    return view_plan(stubs.rope_like(12, 5))


def test_each_segment_is_one_node_and_edges_keep_their_ids(view):
    small = collapsed(view)
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
    shown = collapsed(view, {2})
    own = {n.id for n in view.nodes if n.segment == 2}
    assert {n.id for n in shown.nodes if n.kind == "op"} == own
    assert {e.id for e in shown.edges if e.kind == "inside"} == {e.id for e in view.edges if e.segments == (2, 2)}
    assert set(lay_out(shown).segments) == {2}


def test_all_opened_is_the_whole_view(view):
    opened = collapsed(view, range(5))
    assert set(opened.edges) == set(view.edges)
    assert set(opened.nodes) == set(view.nodes)


def test_large_is_more_than_300_ops(view):
    assert not is_large(replace(view, header=replace(view.header, ops=300)))
    assert is_large(replace(view, header=replace(view.header, ops=301)))
