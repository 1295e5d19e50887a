"""Previews of the result of an edit."""

import pytest

import fuser_lab as fl
from fuser_lab import DataType, FusionDefinition, examples
from fuser_lab.cost.amounts import seconds_label
from fuser_lab.errors import IllegalEdit


def rope(strategy="bottom_up"):
    example = examples.get("llama3_rope_backward")
    with FusionDefinition() as fd:
        example.define(fd, "full")
    return fl.segment(fd, example.specs("full"), strategy=strategy)


def chain(strategy="bottom_up"):
    with FusionDefinition() as fd:
        x = fd.define_tensor([1000, 1000], contiguity=True, dtype=DataType.Float)
        fd.add_output(fd.ops.neg(fd.ops.exp(fd.ops.sin(x))))
    return fl.segment(fd, strategy=strategy)


def moved(plan):
    return sum(segment.bytes for segment in plan.segments)


@pytest.mark.parametrize("strategy", ["bottom_up", "unfused"])
def test_previews_are_what_edits_of_a_real_fusion_give(strategy):
    plan = rope(strategy)
    count = len(plan.segments)
    tensors = [tensor for tensor in plan.fusion.tensors if tensor in {"T4", "T7", "T10", "T12", "T14", "T53", "T58"}]
    pairs = [(a, b) for a in range(min(count, 7)) for b in range(a)]
    moves = [(tensor, segment) for tensor in tensors for segment in range(min(count, 3))]
    previews = [
        *map(plan.preview_cut, tensors), *(plan.preview_glue(*pair) for pair in pairs),
        *(plan.preview_move(*move) for move in moves),
    ]
    assert {preview.legal for preview in previews} == {True, False}
    for preview in previews:
        if not preview.legal:
            with pytest.raises(IllegalEdit, match=r".") as refused:
                plan.with_edit(preview)
            assert preview.rule.casefold() == str(refused.value).casefold()
            continue
        made = plan.with_edit(preview)
        assert (preview.after.segments, preview.after.moved) == (len(made.segments), moved(made)), preview


def test_a_preview_says_what_is_gained_and_by_which_rule():
    plan = chain("unfused")
    preview = plan.preview_glue(1, 0)
    assert preview.legal
    assert preview.name == "glue S0 and S1"
    assert (preview.before.segments, preview.after.segments) == (3, 2)
    assert preview.moved == -8_000_000
    saved = plan.predicted_time().seconds - plan.glue(0, 1).predicted_time().seconds
    assert preview.seconds == -saved
    assert preview.change == f"3 → 2 segments, −8.00 MB moved, −{seconds_label(saved)} predicted"
    assert preview.rule == "The pointwise scheduler accepts both."
    assert "(H200)" in str(preview)
    assert plan.preview_glue(0, 1) is preview
    refused = plan.preview_glue(0, 2)
    assert not refused.legal
    assert refused.rule == "Segments 0 and 2 cannot be merged: that would close a cycle through 0 -> 1 -> 2."
    assert (refused.moved, refused.seconds, refused.change) == (0, 0.0, "")
    assert "has no tensor called 'nothing'" in plan.preview_cut("nothing").rule


def test_a_cut_that_splits_more_than_it_names_says_why():
    preview = rope().preview_cut("T4")
    assert preview.after.segments == 7
    before, behind = preview.because
    assert before == (
        "The part before the cut, {T4, T7, T8, ..., T45, T46}, consists of 2 parts that do not share a tensor."
    )
    assert "cannot be one segment (resize: broadcast axis 1 of T4 corresponds to two different axes" in behind
    assert behind.endswith("it is segmented bottom-up into 3 segments.")
    assert {"edit: before the cut", "edit: after the cut"} <= {one.phase for one in preview.log}
    assert any(one.accepted and len(one.subjects) > 1 for one in preview.log if one.phase.startswith("edit: "))
    assert chain().preview_cut("T2").because == ()


def test_the_best_edits_save_time_and_come_in_order():
    plan = chain("unfused")
    best = plan.best_edits()
    assert {preview.edit for preview in best} == {("glue", (0, 1)), ("glue", (1, 2))}
    assert best[0].seconds <= best[1].seconds < 0
    once = plan.with_edit(best[0])
    assert [preview.edit for preview in once.best_edits(1)] == [("glue", (0, 1))]
    assert once.with_edit(once.best_edits()[0]).best_edits() == ()
    assert rope("unfused").best_edits(3, seconds=0.0)[1:] == ()


@pytest.fixture(scope="module")
def slow_reduction():
    """Return a plan of one kernel that is slower than two, and its edits that save time."""
    plan = fl.segment(*fl.corpus("electra/backward/3")[0].load())
    return plan, plan.best_edits(20)


def test_cuts_and_hints_that_save_time_are_among_the_best_edits(slow_reduction):
    plan, best = slow_reduction
    assert {preview.edit[0] for preview in best} == {"cut", "annotate"}
    assert [preview.seconds for preview in best] == sorted(preview.seconds for preview in best)
    for preview in best:
        edited = plan.with_edit(preview)
        assert edited.predicted_time().seconds == preview.after.seconds < plan.predicted_time().seconds
        assert moved(edited) - moved(plan) == preview.moved > 0
    advice = plan.advice(seconds=0)
    assert advice.edit is best[0]
    assert f"{advice.text[:advice.text.index('. ')]}." == (
        f"Cutting at {best[0].edit[1][0]} saves {seconds_label(-best[0].seconds)} of "
        f"{seconds_label(plan.predicted_time().seconds)} (predicted, H200)."
    )


def test_an_edit_that_saves_time_says_which_kernels_are_faster(slow_reduction):
    plan, (cut, *_) = slow_reduction
    edited = plan.with_edit(cut)
    assert cut.times.startswith("Faster kernels move more bytes: S0 (reduction, ")
    (before,), after = plan.segment_times, edited.segment_times
    for time in (before, *after):
        assert f" in {seconds_label(time.seconds)} at " in cut.times
    for segment in edited.segments:
        assert f"S{segment.index} ({segment.scheduler.value}, " in cut.times.partition("→")[2]
    assert cut.times in plan.advice(seconds=0).text
    assert all(preview.times == "" for preview in map(chain().preview_cut, ("T1", "T2")) if preview.seconds > 0)


def test_hints_are_not_proposed_where_they_would_drop_edits(slow_reduction):
    plan, (cut, *_) = slow_reduction
    assert all(preview.edit[0] != "annotate" for preview in plan.with_edit(cut).best_edits(20, seconds=2.0))


def test_moves_that_save_bytes_are_among_the_best_edits():
    with FusionDefinition() as fd:
        x = fd.define_tensor([1000, 1000], contiguity=True, dtype=DataType.Float)
        y = fd.ops.sum(fd.ops.cast(fd.ops.sin(x), DataType.Half), dims=[1])
        fd.add_output(fd.ops.neg(y))
    plan = fl.segment(fd, strategy=lambda fusion, _: [["T1"], [e.name for e in fusion.tensor_exprs if e.name != "T1"]])
    edits = {preview.edit for preview in plan.best_edits()}
    assert ("move", ("T2", 0)) in edits
    halved = plan.move("T2", 0)
    assert moved(halved) - moved(plan) == plan.preview_move("T2", 0).moved == -4_000_000
