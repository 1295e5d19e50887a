"""The replacements of each step before segmentation, as data, as two graphs side by side, and as text."""

import json
from dataclasses import dataclass
from typing import ClassVar
from xml.etree.ElementTree import fromstring

import pytest

import fuser_lab as fl
from fuser_lab import DataType, FusionDefinition
from fuser_lab.ir import Fusion
from fuser_lab.passes import PASSES, with_segment_set
from fuser_lab.report.pass_diff import Mark, rewrite_of
from fuser_lab.report.pass_picture import rewrite_svg
from tests.pages.passes import example_of

SVG = "{http://www.w3.org/2000/svg}"


@dataclass(frozen=True)
class HintBehind(fl.Pass):
    """<b>Stores</b> every exponential."""

    name: ClassVar[str] = "<img src=x>"

    def run(self, fusion: Fusion) -> Fusion:
        for expr in fusion.exprs:
            if expr.op.name == "exp" and fusion.users.get(expr.out):
                fusion = with_segment_set(fusion, expr.name)
        return fusion


def sides(name):
    """The fusions before and after a pass, for the example in docs/passes.md."""
    step = next(step for step in PASSES if step.name == name)
    before = example_of(step)
    return before, step.run(before)


def marks(side, mark):
    return [one.name for one in side.ops if one.mark is mark]


def test_two_casts_become_one():
    found = rewrite_of(*sides("consecutive_casts"))
    assert (found.removed, found.added, found.rewritten) == (("T1", "T2"), (), ("T3",))
    assert [(one.name, one.op, one.reads) for one in found.before.ops] == [
        ("T1", "cast", ("T0",)), ("T2", "reshape", ("T1",)), ("T3", "cast", ("T2",)),
    ]
    assert [(one.name, one.op, one.reads, one.output) for one in found.after.ops] == [("T3", "reshape", ("T0",), True)]
    assert found.headline == "2 removed, 1 rewritten"


def test_updates_in_place_are_told_in_words():
    found = rewrite_of(*sides("segment_inplace_update"))
    assert "now: T3_copy is written over T0" in found.notes
    assert "no longer: T3 is written over T0" in found.notes


@pytest.mark.parametrize("name", [step.name for step in PASSES])
def test_both_graphs_account_for_every_op(name):
    before, after = sides(name)
    found = rewrite_of(before, after)
    names = [{expr.name for expr in fusion.exprs} for fusion in (before, after)]
    assert set(found.removed) == names[0] - names[1]
    assert set(found.added) == names[1] - names[0]
    for side, fusion, mark in ((found.before, before, Mark.REMOVED), (found.after, after, Mark.ADDED)):
        assert len(side.ops) + side.left_out == len(fusion.exprs)
        assert {*marks(side, mark), *marks(side, Mark.REWRITTEN)} == {
            *(found.removed if mark is Mark.REMOVED else found.added), *found.rewritten,
        }
        ops = {expr.name: expr.op.name for expr in fusion.exprs}
        assert all(ops[one.name] == one.op for one in side.ops)
    drawn = fromstring(rewrite_svg(found)).findall(f".//{SVG}g")
    titles = [g.find(f"{SVG}title").text for g in drawn if "fl-rewrite" in g.get("class", "")]
    assert titles == [f"{one.mark}: {one.text}" for side in (found.before, found.after) for one in side.ops]


def test_an_op_that_both_graphs_have_is_at_the_same_height():
    found = rewrite_of(*sides("move_pad"))
    places = [
        {g.find(f"{SVG}title").text.partition(": ")[2].partition(" ")[0]: g.find(f"{SVG}rect").get("y")
         for g in side.iter(f"{SVG}g") if "fl-rewrite" in g.get("class", "")}
        for side in fromstring(rewrite_svg(found)).findall(f"{SVG}g")
    ]
    both = places[0].keys() & places[1].keys()
    assert both == {"T2", "T4"}
    assert all(places[0][name] == places[1][name] for name in both)


def test_only_the_neighbourhood_of_a_change_is_drawn():
    with FusionDefinition() as fd:
        value = fd.define_tensor([64, 32])
        for n in range(150):
            value = fd.ops.cast(fd.ops.cast(value, dtype=DataType.Double), dtype=DataType.Float) if n == 70 else (
                fd.ops.relu(fd.ops.neg(value))
            )
        fd.add_output(value)
    (step,) = fl.segment(fd).pass_diffs()
    assert step.name == "consecutive_casts"
    assert len(step.rewrite.before.ops) <= 5
    assert step.rewrite.before.left_out == 300 - len(step.rewrite.before.ops)
    assert f"{step.rewrite.before.left_out} other ops not drawn" in rewrite_svg(step.rewrite)


def test_many_changes_are_drawn_up_to_a_limit():
    with FusionDefinition() as fd:
        value = fd.define_tensor([64, 32])
        for _ in range(60):
            value = fd.ops.exp(fd.ops.neg(value))
        fd.add_output(value)
    found = fl.segment(fd, passes=[*PASSES, HintBehind()]).pass_diffs()
    (step,) = found
    assert len(step.rewrite.added) == 59
    assert all(len(side.ops) <= 40 for side in (step.rewrite.before, step.rewrite.after))
    shown = found._repr_html_()
    assert "&lt;b&gt;Stores&lt;/b&gt; every exponential." in shown
    assert "<img" not in shown
    assert "<svg" in shown


def test_the_preparation_and_the_segmenter_are_steps_too():
    with FusionDefinition() as sized:
        x = sized.define_tensor([-1, 8])
        sized.add_output(sized.ops.reshape(x, [sized.ops.mul(sized.ops.size(x, 0), 8)]))
    (first,) = fl.segment(sized, [fl.spec((4, 8))]).pass_diffs()
    assert first.name == "concretize"
    assert first.rewrite.removed
    plan = fl.segment(*fl.example("layer_norm"))
    (last,) = plan.pass_diffs()
    assert last.name == "segmenter"
    assert {"T2_total", "T2_deviation"} <= set(last.rewrite.added)
    assert {one.name for one in last.rewrite.after.ops} <= {expr.name for expr in plan.fusion.exprs}


def test_text_and_json_tell_the_same():
    found = fl.segment(*fl.example("softmax")).pass_diffs()
    assert found.headline == f"1 step changed the fusion before it was cut ({len(PASSES)} passes ran)"
    assert "- T2 = max(T1, dims=[1])\n  + T2 = fmax(T1, dims=[1])" in str(found)
    data = json.loads(json.dumps(found.to_dict()))
    assert data["steps"][0]["rewrite"]["rewritten"] == ["T2"]
    assert found[0].name == data["steps"][0]["name"] == "fmin_fmax_promotion"
