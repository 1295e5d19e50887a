import json
import math
import sys
from dataclasses import replace

from fuser_lab_widgets.scenes import facts

import fuser_lab as fl
from fuser_lab import FusionDefinition
from fuser_lab.report.view_model import SCHEMA_VERSION, view_plan


def test_the_header_counts_ops_of_segments_and_of_the_definition():
    plan = fl.segment(*fl.example("reshape_decides"))
    header = view_plan(plan).header
    assert header.ops == sum(len(segment.exprs) for segment in plan.segments) > header.defined
    assert header.defined == len(plan.definition.exprs)
    assert f"has {header.defined}" in next(about for _, word, about in facts(view_plan(plan)) if word == "ops")


def test_json_has_the_version_and_round_trips(stubs):
    view = view_plan(stubs.sum_broadcast_add())
    data = json.loads(view.to_json())
    assert data["version"] == SCHEMA_VERSION
    assert [s["scheduler"] for s in data["segments"]] == ["reduction", "pointwise"]
    assert data["decisions"][0]["verdicts"][0]["code"] == "post_broadcast"


def test_json_has_null_for_what_was_not_measured(stubs):
    view = view_plan(stubs.sum_broadcast_add(), timings=({"median": math.nan},))
    assert json.loads(view.to_json())["timings"] == [{"median": None}]


def test_headline_counts_bytes(stubs):
    header = view_plan(stubs.sum_broadcast_add()).header
    full, row = 8192 * 4096 * 4, 8192 * 4
    assert header.bytes_ideal == 3 * full
    assert header.bytes_moved == 3 * full + 2 * row
    assert header.bytes_crossing == row


def test_every_op_is_there_once_for_each_segment_it_is_in(stubs):
    plan = stubs.sum_broadcast_add()
    twice = replace(plan, groups=(("T2",), ("T2", "T3", "T4")))
    view = view_plan(twice)
    ops = [n for n in view.nodes if n.kind == "op"]
    assert [n.tensor for n in ops] == ["T2", "T2", "T3", "T4"]
    assert [n.replica for n in ops] == [True, True, False, False]
    assert len({n.id for n in ops}) == 4
    reads = next(e for e in view.edges if e.tensor == "T2")
    assert reads.kind == "inside"


def test_an_edge_says_what_it_joins(stubs):
    view = view_plan(stubs.sum_broadcast_add())
    kinds = {e.tensor: (e.kind, e.segments) for e in view.edges}
    assert kinds == {
        "T0": ("input", (None, 0)),
        "T1": ("input", (None, 1)),
        "T2": ("boundary", (0, 1)),
        "T3": ("inside", (1, 1)),
        "T4": ("output", (1, None)),
    }


def test_ids_survive_an_edit(stubs):
    plan = stubs.sum_broadcast_add()
    before, after = view_plan(plan), view_plan(plan.cut("T3"))
    assert [n.id for n in before.nodes] == [n.id for n in after.nodes]
    assert {e.id for e in before.edges} == {e.id for e in after.edges}


def test_a_segment_without_scheduler_keeps_its_reasons(stubs):
    view = view_plan(replace(stubs.sum_broadcast_add(), refused=frozenset({1})))
    assert view.segments[0].ok
    assert not view.segments[1].ok
    assert view.segments[1].scheduler == "no scheduler"
    assert [v.accepted for v in view.segments[1].verdicts] == [False, False]


def test_an_input_is_drawn_beside_each_segment_that_reads_it(stubs):
    view = view_plan(stubs.rope_like())
    assert sum(n.label == "T0" for n in view.nodes) == len(view.segments)
    ends = {s.index: f"@{s.nodes[0]}" if s.index else "" for s in view.segments}
    assert all(e.source == f"in:T0{ends[e.segments[1]]}" for e in view.edges if e.tensor == "T0")


def test_looking_up_a_node_or_an_edge_takes_as_many_calls_in_a_larger_plan():
    def calls(ops):
        with FusionDefinition() as fd:
            z = fd.define_tensor(shape=[64])
            for _ in range(ops):
                z = fd.ops.neg(z)
            fd.add_output(z)
        view = view_plan(fl.segment(fd))
        nodes, edges, counted = list(view.nodes), list(view.edges), []
        view.node(nodes[0].id)
        view.edge(edges[0].id)
        before = sys.getprofile()
        sys.setprofile(lambda _frame, event, _arg: counted.append(event))
        try:
            looked_up = [view.node(node.id) for node in nodes], [view.edge(edge.id) for edge in edges]
        finally:
            sys.setprofile(before)
        assert looked_up == (nodes, edges)
        return len(counted) / ops

    assert calls(100) < 1.2 * calls(50)
