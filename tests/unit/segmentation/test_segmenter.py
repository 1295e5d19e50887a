"""The segmenter on small fusions with known answers, with simple oracles."""

import re

import pytest

from fuser_lab import examples
from fuser_lab.cost.verdict import SchedulerType
from fuser_lab.definition.binding import bind
from fuser_lab.definition.builder import FusionBuilder
from fuser_lab.dtypes import DataType
from fuser_lab.errors import ArgumentTypeError, IllegalEdit, InputError, VerificationError
from fuser_lab.ir import OpKind
from fuser_lab.segmentation import Relation, SegmenterOptions, replay, segment, why
from fuser_lab.segmentation.edits import cut, glue, move
from fuser_lab.segmentation.events import DecisionLog, Kind
from fuser_lab.segmentation.graph import verify
from tests.unit.builders import record
from tests.unit.segmentation.toy import Rule, everything, one_reduction, sum_broadcast_add


def names(segmented):
    return [group.names for group in segmented.groups]


def test_the_smallest_fusion_that_splits():
    log = DecisionLog()
    fusion = sum_broadcast_add()
    segmented = segment(fusion, one_reduction(), log=log)
    assert names(segmented) == [("T2", "T3"), ("T4",)]
    assert [tv.name for tv in segmented.crossing] == ["T3"]
    assert log[0].phase == "whole fusion"
    assert not log[0].accepted
    assert replay(fusion, log, one_reduction()) == segmented


def test_cut_then_glue_is_where_it_began():
    oracle = one_reduction()
    segmented = segment(sum_broadcast_add(), oracle)
    three = cut(segmented, "T2", None, oracle)
    assert names(three) == [("T2",), ("T3",), ("T4",)]
    assert cut(segmented, "T2", "T3", oracle) == three
    back = glue(three, 0, 1, oracle)
    assert back == segmented
    assert hash(back) == hash(segmented)
    other = glue(three, 1, 2, oracle)
    assert names(other) == [("T2",), ("T3", "T4")]


def test_refused_edits_say_why():
    oracle = one_reduction()
    segmented = segment(sum_broadcast_add(), oracle)
    with pytest.raises(IllegalEdit, match="no scheduler accepts segments 0 and 1 as one; pointwise: ") as refused:
        glue(segmented, 0, 1, oracle)
    assert refused.value.verdicts
    for tensor, text in (
        ("T0", "T0 is a fusion input, which is already in memory"),
        ("T3", "T3 is not read inside segment 0"),
        ("T9", "no tensor called 'T9'; it has T0, T1"),
    ):
        with pytest.raises(IllegalEdit, match=text):
            cut(segmented, tensor, None, oracle)
    with pytest.raises(IllegalEdit, match="T2 is not read by T4 inside segment 0"):
        cut(segmented, "T2", "T4", oracle)
    with pytest.raises(IllegalEdit, match="there is no segment 7; the plan has segments 0 to 1"):
        glue(segmented, 0, 7, oracle)
    with pytest.raises(IllegalEdit, match="segment 1 is already one"):
        glue(segmented, 1, 1, oracle)


def diamond():
    def body(fd):
        x = fd.define_tensor([4], contiguity=True)
        a = fd.ops.add(x, x)
        b = fd.ops.exp(a)
        fd.add_output(fd.ops.add(a, b))

    return record(body)


def test_a_glue_that_would_close_a_cycle():
    segmented = segment(diamond(), everything(), strategy="unfused")
    with pytest.raises(IllegalEdit, match="would close a cycle through 0 -> 1 -> 2"):
        glue(segmented, 0, 2, everything())
    answer = why(segmented, "T1", "T3", DecisionLog(), everything())
    assert answer.relation is Relation.CYCLE
    assert "through segment 1" in answer.text


def test_move():
    oracle = everything()
    segmented = segment(diamond(), oracle, strategy=lambda *_: [["T1"], ["T2", "T3"]])
    assert names(move(segmented, "T2", 0, oracle)) == [("T1", "T2"), ("T3",)]
    with pytest.raises(IllegalEdit, match="already"):
        move(segmented, "T2", 1, oracle)
    with pytest.raises(IllegalEdit, match="form a cycle"):
        move(segmented, "T3", 0, oracle)
    picky = Rule(lambda c: len(c.exprs) < 3)
    with pytest.raises(IllegalEdit, match="with T1 in segment 1, no scheduler accepts segment 1"):
        move(segmented, "T1", 1, picky)


def test_why():
    oracle, log = one_reduction(), DecisionLog()
    segmented = segment(sum_broadcast_add(), oracle, log=log)
    assert why(segmented, "T2", "T3", log, oracle).relation is Relation.TOGETHER
    refused = why(segmented, "T2", "T4", log, oracle)
    assert refused.relation is Relation.REFUSED
    assert "T2 (sum) is in segment 0, T4 (add) in segment 1; no scheduler accepts both (tried" in refused.text
    assert refused.verdicts
    assert refused.attempts
    edited = why(cut(segmented, "T2", None, oracle), "T2", "T3", log, oracle)
    assert edited.relation is Relation.EDITED
    assert "by an edit: the segmenter had joined them (tried as {T2} + {T3} in the level round 1" in edited.text
    unfused = segment(sum_broadcast_add(), oracle, strategy="unfused")
    untried = why(unfused, 0, 1, DecisionLog(), oracle)
    assert untried.relation is Relation.NEVER_TRIED
    assert "never tried" in untried.text
    with pytest.raises(InputError, match="fusion input"):
        why(segmented, "T0", "T4", log, oracle)
    with pytest.raises(InputError, match="no tensor called"):
        why(segmented, "T2", "T77", log, oracle)
    with pytest.raises(InputError, match="there is no segment 5"):
        why(segmented, 0, 5, log, oracle)


def hinted():
    """Return relu -> segment_set -> exp beside a path around the hint."""

    def body(fd):
        x, y = fd.define_tensor([4], contiguity=True), fd.define_tensor([4], contiguity=True)
        a = fd.ops.add(x, y)
        fd.add_output(fd.ops.add(fd.ops.exp(fd.ops.segment_set(a)), fd.ops.sin(a)))

    return record(body)


def test_the_meanings_of_segment_set():
    fusion = hinted()

    def count(strategy, meaning):
        options = SegmenterOptions(segment_set=meaning)
        return len(segment(fusion, everything(), strategy=strategy, options=options).groups)

    assert count("bottom_up", "ignore") == 1
    assert count("bottom_up", "hint") == 2
    assert count("top_down", "hint") == 2
    cut_options = SegmenterOptions(segment_set="cut")
    segmented = segment(fusion, everything(), options=cut_options)
    for group in segmented.groups:
        assert not {"T2", "T4"} <= set(group.names), "add comes before the cut, exp after it"


def test_hints_that_are_no_cut_set_are_refined():
    segmented = segment(hinted(), everything(), strategy="top_down")
    assert names(segmented) == [("T2", "T3", "T5"), ("T4", "T6")] or names(segmented) == [
        ("T2", "T3"),
        ("T4", "T5", "T6"),
    ]


def test_top_down_joins_siblings_that_share_only_an_input():
    def body(fd):
        x = fd.define_tensor([4], contiguity=True)
        for op in ("sin", "cos", "segment_set"):
            fd.add_output(getattr(fd.ops, op)(x))

    fusion = record(body)
    assert names(segment(fusion, everything())) == [("T1",), ("T2",), ("T3",)]
    assert names(segment(fusion, everything(), strategy="top_down")) == [("T1", "T2"), ("T3",)]
    apart = SegmenterOptions(connect_through_inputs=False)
    assert len(segment(fusion, everything(), strategy="top_down", options=apart).groups) == 3


def test_unary_chains_and_full_are_recomputed():
    def body(fd):
        x, y = (fd.define_tensor([4], contiguity=True, dtype=DataType.BFloat16) for _ in range(2))
        wide = fd.ops.neg(fd.ops.cast(x, dtype=DataType.Float))
        ones = fd.ops.full([4], 1.0, DataType.Float)
        other = fd.ops.cast(y, dtype=DataType.Float)
        first = fd.ops.add(fd.ops.mul(wide, ones), other)
        fd.add_output(fd.ops.segment_set(first))
        fd.add_output(fd.ops.add(fd.ops.mul(fd.ops.segment_set(first), wide), ones))

    fusion = record(body)
    log = DecisionLog()
    segmented = segment(fusion, everything(), log=log)
    full = next(e for e in fusion.exprs if e.op.name == "full")
    assert len(log.filter(kind=Kind.FORWARD)) == 3
    assert full.out not in segmented.crossing
    assert len(segmented.home[full.name]) > 1, "each segment creates one"
    assert all(tv.dtype is not DataType.BFloat16 for g in segmented.groups for tv in g.outputs)


def test_a_chain_that_a_reader_refuses_is_stored_once():
    def body(fd):
        x = fd.define_tensor([8], contiguity=True)
        y = fd.ops.neg(x)
        fd.add_output(fd.ops.slice(y, [0], [5]))
        fd.add_output(fd.ops.slice(y, [3], [8]))

    picky = Rule(lambda c: len(c.exprs) == 1)
    segmented = segment(record(body), picky)
    assert names(segmented) == [("T1",), ("T2",), ("T3",)]
    assert [tv.name for tv in segmented.crossing] == ["T1"]


def test_forwarding_stops_before_outputs_hints_and_random_numbers():
    def body(fd):
        x = fd.define_tensor([4], contiguity=True)
        y = fd.ops.relu(x)
        fd.add_output(fd.ops.neg(y))
        noise = fd.ops.uniform(0.0, 1.0, [4], rng_seed=fd.define_scalar(1), rng_offset=fd.define_scalar(0))
        fd.add_output(fd.ops.add(noise, fd.ops.segment_set(y)))

    log = DecisionLog()
    segment(record(body), everything(), log=log)
    assert not log.filter(kind=Kind.FORWARD)


def test_rope_backward_stores_no_zeros():
    example = examples.get("llama3_rope_backward")
    with FusionBuilder() as fd:
        example.define(fd, "full")
    fusion = bind(fd.fusion, example.specs("full")).fusion
    simple = Rule(lambda c: not any(e.kind is OpKind.REDUCTION for e in c.exprs) or len(c.exprs) < 12)
    segmented = segment(fusion, simple)
    zeros = {e.out for e in fusion.exprs if e.op.name == "full"}
    assert len(segmented.groups) > 1
    assert zeros.isdisjoint(segmented.crossing)


@pytest.mark.parametrize(
    ("strategy", "text"),
    [
        ("best", "unknown strategy 'best'"),
        (lambda *_: 3, "must return groups"),
        (lambda *_: "T2", "must return groups"),
        (lambda *_: ["T2", "T3", "T4"], "a group must be a list"),
        (lambda *_: [["T2", "T3"]], "left out T4"),
        (lambda *_: [["T2", "T3"], ["T3", "T4"]], "put T3 into the groups 0 and 1"),
        (lambda *_: [["T2", "T3", "T4", "T9"]], "returned 'T9', which the fusion does not compute"),
        (lambda *_: [["T2", "T4"], ["T3"]], "did not return a legal partition: the segments form a cycle"),
    ],
)
def test_strategies_that_return_nonsense(strategy, text):
    with pytest.raises(InputError, match=text):
        segment(sum_broadcast_add(), everything(), strategy=strategy)


def test_a_fusion_that_nobody_takes_is_still_a_plan():
    segmented = segment(sum_broadcast_add(), Rule(lambda _: False))
    assert [group.scheduler for group in segmented.groups] == [None] * 3
    assert all(group.verdicts for group in segmented.groups)


def test_illegal_partitions_cannot_be_built():
    fusion = sum_broadcast_add()
    for groups, text in (
        ([["T2"], ["T3"]], "no segment computes T4"),
        ([["T2", "T3"], ["T3", "T4"]], "T3 is in the segments 0 and 1"),
        ([["T3"], ["T2", "T4"]], "segment 0 reads T2, which no earlier segment computes"),
        ([["T2", "T3", "T4", "X"]], "contains X"),
    ):
        with pytest.raises(VerificationError, match=text):
            verify(fusion, groups, frozenset())


def test_long_chains_need_no_recursion():
    def body(fd):
        x = fd.define_tensor([4], contiguity=True)
        for _ in range(1200):
            x = fd.ops.add(x, 1.0)
        fd.add_output(x)

    fusion = record(body)
    assert len(segment(fusion, everything()).groups) == 1
    assert len(segment(fusion, everything(), strategy="top_down").groups) == 1


def test_a_log_that_belongs_elsewhere():
    with pytest.raises(InputError, match="not a decision log"):
        DecisionLog.from_json("{}")
    with pytest.raises(InputError, match="not a decision log"):
        DecisionLog.from_json("")


HEAD = '{"schema": "fuser_lab.decisions", "version": 2}'


@pytest.mark.parametrize(
    ("added", "text"),
    [
        ("\n{bad", "line 2 of the decision log is not an attempt, pass or layout as to_json writes it: {bad"),
        ("\n\n3", "line 3 of the decision log is not an attempt, pass or layout as to_json writes it: 3"),
        ('\n{"phase":1}', 'line 2 of the decision log is not an attempt, .* writes it: {"phase":1}'),
        ('\n{"pass": 3}', "line 2 of the decision log is not an attempt"),
        ('\n{"layout": {"tensor": "T2"}}', "line 2 of the decision log is not an attempt"),
        ("\n" + "[" * 100_000, r"line 2 of the decision log is not an attempt, .* writes it: \[{60}\.\.\.$"),
    ],
)
def test_a_line_that_is_no_record_is_named(added, text):
    with pytest.raises(InputError, match=text):
        DecisionLog.from_json(HEAD + added)


def test_a_log_is_read_from_a_str_and_blank_lines_are_passed_over():
    with pytest.raises(ArgumentTypeError, match="from_json: text must be a str, given None"):
        DecisionLog.from_json(None)
    log = DecisionLog()
    segment(sum_broadcast_add(), one_reduction(), log=log)
    assert DecisionLog.from_json(f"{log.to_json()}\n\n  \n") == log


def test_a_log_is_filtered_by_names_and_by_members():
    log = DecisionLog()
    segment(sum_broadcast_add(), one_reduction(), log=log)
    merges = [a for a in log if a.kind is Kind.MERGE]
    assert len(log.filter(kind="merge")) == len(log.filter(kind=Kind.MERGE)) == len(merges) > 0
    asked = {verdict.scheduler for attempt in log for verdict in attempt.verdicts}
    one = SchedulerType(min(asked))
    assert len(log.filter(scheduler=one)) == len(log.filter(scheduler=one.value)) > 0


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"kind": "glue"}, "filter: unknown kind 'glue'; choose from 'merge', 'forward', "),
        ({"kind": SchedulerType.RESIZE}, "filter: unknown kind <SchedulerType.RESIZE: 'resize'>; choose from 'merge'"),
        ({"scheduler": "pointwize"}, "filter: unknown scheduler 'pointwize'; choose from 'expr_eval', 'no_op', "),
        ({"accepted": "yes"}, "filter: accepted must be True or False or None, given 'yes'."),
    ],
)
def test_filters_that_are_none(given, text):
    with pytest.raises((InputError, ArgumentTypeError), match=re.escape(text)):
        DecisionLog().filter(**given)
