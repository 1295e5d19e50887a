"""Top-down presegmentation: the interpretations of segment_set compared, and each corner case of the proposal."""

import json
import re
from pathlib import Path

import pytest

from fuser_lab.definition.builder import FusionBuilder
from fuser_lab.definition.spec import spec
from fuser_lab.dtypes import DataType
from fuser_lab.errors import InputError
from fuser_lab.ir import OpKind
from fuser_lab.plan.planning import segment as plan_of
from fuser_lab.segmentation import SegmenterOptions, segment
from fuser_lab.segmentation.events import DecisionLog
from fuser_lab.segmentation.pieces import pieces
from tests.unit.builders import record
from tests.unit.segmentation.toy import Rule, everything

GALLERY = json.loads((Path(__file__).parents[2] / "data" / "gallery.json").read_text())


def names(segmented):
    return [group.names for group in segmented.groups]


def top_down(fusion, oracle=None, log=None, **options):
    """Return the names of the segments, top-down."""
    chosen = SegmenterOptions(**options)
    return names(segment(fusion, oracle or everything(), strategy="top_down", options=chosen, log=log))


def tensor(fd, *shape):
    return fd.define_tensor(list(shape or (4,)), contiguity=True)


@pytest.mark.parametrize(
    ("strategy", "meaning", "segments"),
    [
        ("bottom_up", "hint", 3),
        ("bottom_up", "cut", 2),
        ("bottom_up", "ignore", 1),
        ("top_down", "hint", 2),
        ("top_down", "cut", 2),
        ("top_down", "ignore", 1),
    ],
)
def test_issue_3096_has_three_segments_or_two_or_one(strategy, meaning, segments):
    case = next(c for c in GALLERY if c["id"] == "segment_set_extra")
    with FusionBuilder() as fd:
        exec(case["python"], {"fd": fd, "DataType": DataType})
    inputs = [spec(x["shape"], x["dtype"]) for x in case["inputs"]]
    options = SegmenterOptions(segment_set=meaning)
    assert len(plan_of(fd, inputs, strategy=strategy, options=options).segments) == segments


def around_the_hint(fd):
    """T3 = hint(T2); T4 = exp(T3); T5 = sin(T2) beside it; T6 = add(T4, T5)."""
    a = fd.ops.add(tensor(fd), tensor(fd))
    fd.add_output(fd.ops.add(fd.ops.exp(fd.ops.segment_set(a)), fd.ops.sin(a)))


def test_1_hints_that_are_no_cut_set_leave_one_piece_or_are_split_by_depth():
    fusion = record(around_the_hint)
    split = [("T2", "T3", "T5"), ("T4", "T6")]
    assert top_down(fusion, segment_set="cut") == split
    assert top_down(fusion, pieces_by_depth=True) == split
    # The proposal: the piece is the complete fusion, which the hint inside shatters.
    log = DecisionLog()
    for group in top_down(fusion, log=log):
        assert not {"T3", "T4"} <= set(group)
    (piece,) = log.filter(phase="top-down")
    assert not piece.accepted
    assert piece.code == "segment_set_inside"
    assert top_down(fusion, segment_set="ignore") == [("T2", "T3", "T4", "T5", "T6")]


def there_and_back(fd):
    """One piece leads to another through a hint, and the other leads back through a third path."""
    x, y = tensor(fd), tensor(fd)
    a = fd.ops.add(x, y)
    b = fd.ops.add(fd.ops.segment_set(a), y)
    c = fd.ops.segment_set(b)
    fd.add_output(fd.ops.add(c, a))


def test_2_cycles_from_contraction_are_one_piece_or_refined():
    fusion = record(there_and_back)
    # T2 and T6 are joined by an edge that is not a cut; T4 reads the first and leads to the second.
    assert pieces(fusion, SegmenterOptions(connect_through_inputs=False)) == [[0, 1, 2, 3, 4]]
    by_depth = SegmenterOptions(connect_through_inputs=False, pieces_by_depth=True)
    assert pieces(fusion, by_depth) == [[0, 1], [2, 3], [4]]
    assert top_down(fusion, segment_set="cut") == [("T2", "T3"), ("T4", "T5"), ("T6",)]


def test_3_depth_is_as_early_as_possible():
    def body(fd):
        a = fd.ops.add(tensor(fd), tensor(fd))
        late = fd.ops.relu(a)
        fd.add_output(fd.ops.add(fd.ops.segment_set(a), late))

    # relu has readers only after the hint, and stays before it with its producers.
    assert top_down(record(body), segment_set="cut") == [("T2", "T3", "T4"), ("T5",)]


def test_4_siblings_that_share_only_an_input():
    def body(fd):
        x = tensor(fd)
        fd.add_output(fd.ops.sin(x))
        fd.add_output(fd.ops.segment_set(fd.ops.cos(x)))

    fusion = record(body)
    assert top_down(fusion) == [("T1", "T2", "T3")]
    assert sorted(top_down(fusion, connect_through_inputs=False)) == [("T1",), ("T2", "T3")]


def test_4_disconnected_fusions_fall_apart():
    def body(fd):
        fd.add_output(fd.ops.add(tensor(fd), 1.0))
        fd.add_output(fd.ops.add(tensor(fd, 5), 1.0))

    whole_only = Rule(lambda c: len(c.tensor_inputs) == 1)
    assert [len(group) for group in top_down(record(body), whole_only)] == [1, 1]


def test_5_a_hint_on_an_input_is_a_piece_of_its_own():
    def body(fd):
        x = tensor(fd)
        fd.add_output(fd.ops.add(fd.ops.segment_set(x), x))

    assert top_down(record(body)) == [("T1",), ("T2",)]


def test_6_a_hint_whose_result_is_an_output_cuts_still():
    def body(fd):
        hint = fd.ops.segment_set(fd.ops.add(tensor(fd), 1.0))
        fd.add_output(hint)
        fd.add_output(fd.ops.exp(hint))

    fusion = record(body)
    assert [len(group) for group in top_down(fusion)] == [2, 1]
    assert [len(group) for group in top_down(fusion, segment_set="cut")] == [2, 1]


def reshaped(fd):
    x = fd.ops.reshape(fd.ops.exp(tensor(fd, 8, 6)), [8, 2, 3])
    fd.add_output(fd.ops.sum(x, dims=[2]))


PAIRS = Rule(lambda c: len(c.exprs) < 3)


def tried(fusion, oracle=PAIRS, **options):
    """Return the pieces that are tried; by default, schedulers accept at most two expressions."""
    log = DecisionLog()
    top_down(fusion, oracle, log, **options)
    return [tuple(name for group in attempt.subjects for name in group) for attempt in log.filter(phase="top-down")]


def test_7_soft_cuts_at_reshapes_and_resizes():
    fusion = record(reshaped)
    whole = ("T1", "T2", "T3")
    assert tried(fusion) == [whole]
    # The complete fusion is not tried if something in it is cut.
    assert tried(fusion, cut_reshape_inputs=True) == [("T1",), ("T2", "T3")]
    assert tried(fusion, cut_resize_inputs=True) == [whole]

    def sliced(fd):
        fd.add_output(fd.ops.neg(fd.ops.slice(fd.ops.exp(tensor(fd, 8)), [1], [5])))

    assert tried(record(sliced)) == [whole]
    assert tried(record(sliced), cut_resize_inputs=True) == [("T1",), ("T2", "T3")]
    assert tried(record(sliced), cut_reshape_inputs=True) == [whole]

    def joined(fd):
        fd.add_output(fd.ops.cat([fd.ops.exp(tensor(fd, 8)), fd.ops.sin(tensor(fd, 8))]))

    # The pads belong to the cat.
    assert tried(record(joined), everything(), cut_resize_inputs=True) == [("T1",), ("T3",), ("T4", "T5", "T6")]


def test_7_forcing_cuts_an_exp_from_a_reshape_that_one_kernel_takes():
    def body(fd):
        fd.add_output(fd.ops.sin(fd.ops.reshape(fd.ops.exp(tensor(fd, 8, 6)), [48])))

    fusion = record(body)
    assert top_down(fusion) == [("T1", "T2", "T3")]
    assert top_down(fusion, cut_reshape_inputs=True) == [("T1",), ("T2", "T3")]
    # Without the attempt on the whole fusion its only piece is not tried, and grows bottom-up.
    assert tried(fusion, everything(), whole_fusion=False) == []
    assert top_down(fusion, whole_fusion=False) == [("T1", "T2", "T3")]


def test_7_soft_cuts_that_another_path_leads_around_leave_one_piece_or_are_split_by_depth():
    def body(fd):
        a = fd.ops.exp(tensor(fd, 8, 6))
        back = fd.ops.reshape(fd.ops.reshape(a, [48]), [8, 6])
        fd.add_output(fd.ops.add(a, back))

    fusion = record(body)
    assert top_down(fusion, cut_reshape_inputs=True) == [("T1", "T2", "T3", "T4")]
    by_depth = top_down(fusion, cut_reshape_inputs=True, pieces_by_depth=True)
    assert by_depth == [("T1",), ("T2",), ("T3", "T4")]


def test_7_accepted_pieces_are_not_tried_again_across_any_cut():
    def two_reshapes(fd):
        x = fd.ops.reshape(fd.ops.exp(tensor(fd, 8, 6)), [8, 2, 3])
        fd.add_output(fd.ops.reshape(x, [16, 3]))

    # Crossing the soft cuts would give two segments, but they are forced, so this is not tried.
    log = DecisionLog()
    assert len(top_down(record(two_reshapes), PAIRS, log, cut_reshape_inputs=True)) == 3
    assert [attempt.phase for attempt in log] == ["top-down"] * 3

    def hinted(fd):
        x = fd.ops.reshape(fd.ops.segment_set(fd.ops.exp(tensor(fd, 8, 6))), [8, 2, 3])
        fd.add_output(fd.ops.sum(x, dims=[2]))

    assert [len(group) for group in top_down(record(hinted), cut_reshape_inputs=True)] == [2, 2]


@pytest.mark.parametrize("switch", ["cut_reshape_inputs", "cut_resize_inputs", "pieces_by_depth"])
@pytest.mark.parametrize("strategy", ["bottom_up", "saving", "optimal", "unfused", lambda fusion, oracle: []])
def test_7_other_strategies_refuse_cuts_that_they_do_not_make(strategy, switch):
    options = SegmenterOptions(**{switch: True})
    named = repr(strategy) if isinstance(strategy, str) else "that is a function"
    sentence = f"segment: the strategy {named} does not accept {switch}; only 'top_down' does."
    with pytest.raises(InputError, match=re.escape(sentence)):
        segment(record(reshaped), everything(), strategy=strategy, options=options)
    assert segment(
        record(reshaped), everything(), strategy="bottom_up", options=options.for_strategy("bottom_up"),
    ).groups


def test_8_accepted_pieces_stay_as_they_are():
    def body(fd):
        x = tensor(fd)
        wide = fd.ops.cast(fd.ops.segment_set(fd.ops.cast(fd.ops.add(x, 1.0), dtype=DataType.Half)), DataType.Float)
        fd.add_output(fd.ops.cast(fd.ops.exp(wide), dtype=DataType.Half))

    log = DecisionLog()
    segments = top_down(record(body), log=log)
    assert len(segments) == 2
    assert [a.accepted for a in log] == [True, True]


def test_8_expressions_of_shattered_pieces_may_join_an_accepted_one():
    def body(fd):
        a = fd.ops.exp(tensor(fd, 8, 6))
        r = fd.ops.reshape(a, [4, 12])
        fd.add_output(fd.ops.add(a, tensor(fd, 8, 6)))
        fd.add_output(fd.ops.sin(fd.ops.sum(r, dims=[1])))

    fusion = record(body)
    reshape = next(e for e in fusion.exprs if e.op.name == "reshape")
    apart = Rule(lambda c: reshape not in c.exprs or not any(e.kind is OpKind.REDUCTION for e in c.exprs))
    log = DecisionLog()
    segments = top_down(fusion, apart, log, cut_reshape_inputs=True)
    assert [attempt.accepted for attempt in log.filter(phase="top-down")] == [True, False]
    assert sorted(len(group) for group in segments) == [2, 3]


def test_8_what_is_shattered_goes_on_beside_pieces_that_stay():
    def body(fd):
        x, y = tensor(fd, 4, 8), tensor(fd, 4, 8)
        a = fd.ops.exp(fd.ops.add(x, y))
        total = fd.ops.sum(fd.ops.segment_set(a), dims=[1])
        fd.add_output(fd.ops.sum(fd.ops.exp(fd.ops.broadcast(total, [False, True])), dims=[0]))

    picky = Rule(lambda c: sum(e.kind is OpKind.REDUCTION for e in c.exprs) < 2)
    log = DecisionLog()
    segments = top_down(record(body), picky, log)
    first, second = log.filter(phase="top-down")
    assert first.accepted
    assert not second.accepted
    assert len(segments) == 3
    later = [attempt for attempt in log if attempt.phase != "top-down"]
    assert later
    assert not any(first.names & attempt.names for attempt in later if attempt.accepted)


def test_9_a_committed_piece_keeps_its_own_copy_of_what_would_be_forwarded():
    def body(fd):
        x = tensor(fd)
        chain = fd.ops.neg(fd.ops.exp(x))
        fd.add_output(fd.ops.add(chain, 1.0))
        fd.add_output(fd.ops.add(fd.ops.segment_set(fd.ops.add(chain, x)), chain))

    fusion = record(body)
    log = DecisionLog()
    segments = top_down(fusion, log=log, segment_set="cut")
    assert not log.filter(phase="forward")
    assert sum(group.count("T1") for group in segments) == 1


def test_10_a_failing_piece_is_shattered_and_goes_on_bottom_up():
    def body(fd):
        x = tensor(fd, 4, 8)
        total = fd.ops.sum(x, dims=[1])
        fd.add_output(fd.ops.sum(fd.ops.exp(fd.ops.broadcast(total, [False, True])), dims=[0]))

    picky = Rule(lambda c: sum(e.kind is OpKind.REDUCTION for e in c.exprs) < 2)
    log = DecisionLog()
    segments = top_down(record(body), picky, log)
    first = log[0]
    assert not first.accepted
    assert first.text.startswith("shattered into single expressions; ")
    assert len(segments) == 2
    assert log.filter(phase="level round")


def test_13_updates_in_place_need_no_rule_of_their_own():
    case = next(c for c in GALLERY if c["id"] == "segment_set_extra")
    with FusionBuilder() as fd:
        exec(case["python"], {"fd": fd, "DataType": DataType})
    inputs = [spec(x["shape"], x["dtype"]) for x in case["inputs"]]
    plan = plan_of(fd, inputs, strategy="top_down")
    writer = next(s for s in plan.segments if plan.fusion.aliases[0][0] in s.outputs)
    assert [e.op.name for e in writer.exprs] == ["set"]


@pytest.mark.parametrize("case", GALLERY, ids=lambda c: c["id"])
def test_11_without_hints_top_down_never_gives_more_segments(case):
    if "segment_set" in case["python"]:
        return
    with FusionBuilder() as fd:
        exec(case["python"], {"fd": fd, "DataType": DataType})
    inputs = [spec(x["shape"], x["dtype"], x.get("strides")) if "shape" in x else x["scalar"] for x in case["inputs"]]
    # Passes insert hints into some; ignored ones do not count.
    options = SegmenterOptions(segment_set="ignore")
    counts = [len(plan_of(fd, inputs, strategy=s, options=options).segments) for s in ("top_down", "bottom_up")]
    assert counts[0] <= counts[1]
