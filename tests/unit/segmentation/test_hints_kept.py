"""Certificates, edits and answers where a segment_set is kept, and where it is overruled."""

import json
import re
from dataclasses import replace
from itertools import pairwise

import pytest
from fuser_lab_widgets import answers, panels

import fuser_lab as fl
from fuser_lab import DataType, FusionDefinition, SegmenterOptions
from fuser_lab.errors import IllegalEdit
from fuser_lab.report.certificates import certificate_html
from fuser_lab.segmentation import verify

BYTES = 1024 * 1024 * 4


def hinted(meaning="hint", strategy="bottom_up"):
    with FusionDefinition() as fd:
        x = fd.define_tensor([1024, 1024], contiguity=True)
        fd.add_output(fd.ops.exp(fd.ops.segment_set(fd.ops.sin(x))))
    return fl.segment(fd, strategy=strategy, options=SegmenterOptions(segment_set=meaning))


def around(meaning):
    """T2 = hint(T1); T3 = exp(T2); T4 = cos(T1) beside it; T5 = add(T3, T4)."""
    with FusionDefinition() as fd:
        a = fd.ops.sin(fd.define_tensor([1024, 1024], contiguity=True))
        fd.add_output(fd.ops.add(fd.ops.exp(fd.ops.segment_set(a)), fd.ops.cos(a)))
    return fl.segment(fd, options=SegmenterOptions(segment_set=meaning))


@pytest.mark.parametrize("strategy", ["bottom_up", "optimal"])
@pytest.mark.parametrize(("meaning", "kept"), [("hint", "hints"), ("cut", "cuts")])
def test_a_certificate_says_that_hints_are_kept(strategy, meaning, kept):
    plan = hinted(meaning, strategy)
    certificate = plan.certificate()
    launch = certificate.model.launch_bytes
    assert certificate.status == f"certified optimal under this model, with {kept} kept"
    assert certificate.cost == 4 * BYTES + 2 * launch
    assert certificate.ignoring == 2 * BYTES + launch
    told = [str(certificate), certificate_html(certificate), certificate.to_json()]
    told.append(panels.certificate(answers.certificate(plan), searching=False, exists=True))
    for text in told:
        assert f"with {kept} kept" in text
        assert f"while {kept} are kept" in text
        assert "can never share" not in text
        assert "a plan of 5.75 µs is known" in text
    assert json.loads(certificate.to_json())["hints"] == ["T2"]
    assert verify(certificate, plan.segmented, plan.oracle).holds
    assert not verify(replace(certificate, hints=()), plan.segmented, plan.oracle).holds


def test_a_plan_against_a_hint_is_certified_with_hints_ignored():
    glued = hinted().glue(0, 1)
    assert glued.certificate().status == "certified optimal under this model, with hints ignored"
    assert glued.certificate().ignoring is None


def test_a_fusion_without_hints_has_no_reading():
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.exp(fd.define_tensor([64], contiguity=True)))
    certificate = fl.segment(fd).certificate()
    assert certificate.status == "certified optimal under this model"
    assert certificate.notes == ()


def test_pairs_that_no_scheduler_takes_are_still_apart_for_ever():
    with FusionDefinition() as fd:
        x = fd.define_tensor([1024, 1024], contiguity=True)
        columns = fd.ops.broadcast(fd.ops.sum(x, dims=[0]), is_broadcast_dim=[True, False])
        rows = fd.ops.sum(fd.ops.mul(columns, x), dims=[1])
        fd.add_output(fd.ops.exp(fd.ops.segment_set(rows)))
    plan = fl.segment(fd)
    text = str(plan.certificate())
    assert "can never share a kernel" in text
    assert "while hints are kept" in text
    assert verify(plan.certificate(), plan.segmented, plan.oracle).problems == ()


def test_gluing_overrules_a_hint_and_why_says_so():
    plan = hinted()
    assert "would accept both segments as one; glue merges them and overrules the hint." in plan.why(0, 1).text
    assert len(plan.glue(0, 1).segments) == 1


def test_no_edit_goes_across_a_cut():
    plan = hinted("cut")
    sentence = (
        "T2 is made by segment_set, which separates it from the expressions that read it; the candidate contains both, "
        "and no edit merges across a segment_set"
    )
    with pytest.raises(IllegalEdit, match=f"segments 0 and 1 cannot be merged: {sentence} that is read as 'cut'"):
        plan.glue(0, 1)
    with pytest.raises(IllegalEdit, match=f"T3 cannot be in segment 0: {sentence}"):
        plan.move("T3", 0)
    why = plan.why(0, 1)
    assert "a cut keeps them apart" in why.text
    assert "glue" not in str(why)
    assert not any(verdict.accepted for verdict in why.verdicts)


def test_nothing_before_and_after_a_cut_comes_together_on_a_path_around_it():
    plan = around("cut")
    assert len(plan.segments) == 2
    with pytest.raises(IllegalEdit, match="segments 0 and 1 cannot be merged: T2 is made by segment_set"):
        plan.glue(0, 1)
    split = plan.cut("T1")
    assert len(split.segments) == 3
    spaces = {}
    exec(split.to_python(), spaces)
    assert spaces["plan"].hash == split.hash


def test_small_savings_are_told_in_bytes_and_costs_with_digits_that_differ():
    with FusionDefinition() as fd:
        x = fd.define_tensor([8], contiguity=True)
        middle = fd.ops.exp(x)
        fd.add_output(fd.ops.sin(middle))
        fd.add_output(fd.ops.cos(middle))
    plan = fl.segment(fd)
    certificate = plan.cut("T1").certificate()
    costly = replace(certificate, known=certificate.cost - 32, missed=tuple(
        replace(entry, cost=32) for entry in certificate.missed[:1]
    ))
    text = str(costly)
    assert re.search(r"which saves\n +32 B  ", text)
    shown = [float(re.search(rf"^{word} +([0-9.]+) µs", text, re.MULTILINE)[1]) for word in ("cost", "known", "bound")]
    assert all(a > b for a, b in pairwise(shown))
    assert "0.00 µs" not in text


def test_names_that_passes_made_are_told_as_such():
    with FusionDefinition() as fd:
        a = fd.ops.sin(fd.define_tensor([1024, 512], contiguity=True))
        fd.add_output(fd.ops.permute(a, [1, 0]))
        fd.add_output(fd.ops.exp(a))
    plan = fl.segment(fd)
    told = "T1_hint is created by the pass mark_aliases_prepare."
    for why in (plan.why(0, 1), *plan.boundaries()):
        assert why.text.count(told) == 1
    assert str(plan.certificate()).count(told) == 1
    assert told in certificate_html(plan.certificate())
    assert told not in plan.why("T1", "T3").text
    assert "is created by the pass" not in str(hinted().certificate())


def test_names_that_rules_of_the_segmenter_made_are_told_as_such():
    with FusionDefinition() as fd:
        a = fd.ops.exp(fd.ops.sin(fd.define_tensor([1024, 1024], contiguity=True)))
        b = fd.ops.mul(a, fd.ops.broadcast(fd.ops.sum(a, dims=[0]), is_broadcast_dim=[True, False]))
        rows = fd.ops.broadcast(fd.ops.sum(b, dims=[1]), is_broadcast_dim=[False, True])
        fd.add_output(fd.ops.cast(fd.ops.mul(b, rows), dtype=DataType.Half))
    plan = fl.segment(fd, options=SegmenterOptions(io_to_lower_precision=True))
    assert "T5_lower is created by the option io_to_lower_precision." in plan.why("T5_lower", "T6").text
