"""Pre-segmentation passes that a user supplies."""

from dataclasses import dataclass
from typing import ClassVar

import pytest

import fuser_lab as fl
from fuser_lab import FusionDefinition
from fuser_lab.errors import ArgumentTypeError, InputError
from fuser_lab.ir import Fusion
from fuser_lab.passes import with_segment_set
from fuser_lab.report.passes import view_passes


@dataclass(frozen=True)
class HintBehind(fl.Pass):
    """Inserts a segment_set after every op with a given name."""

    op: str = "exp"
    name: ClassVar[str] = "hint_behind"

    def run(self, fusion: Fusion) -> Fusion:
        for expr in fusion.exprs:
            if expr.op.name == self.op and fusion.users.get(expr.out):
                fusion = with_segment_set(fusion, expr.name)
        return fusion


def defined():
    with FusionDefinition() as fd:
        x = fd.define_tensor([64, 32])
        fd.add_output(fd.ops.sin(fd.ops.exp(fd.ops.neg(x))))
    return fd


def test_a_pass_of_ones_own_runs_behind_ours_and_is_in_the_log():
    plan = fl.segment(defined(), passes=[*fl.PASSES, HintBehind()])
    assert [[e.op.name for e in s.exprs] for s in plan.segments] == [["neg", "exp", "segment_set"], ["sin"]]
    assert [one.name for one in plan.decisions.passes] == ["hint_behind"]
    mine = view_passes(plan)[-1]
    assert (mine.name, mine.outcome) == ("hint_behind", "changed")
    assert mine.about == "Inserts a segment_set after every op with a given name."
    assert "T2_hint" in plan.boundaries()[0].text
    assert len(fl.segment(defined(), passes=[*fl.PASSES, HintBehind(op="cos")]).segments) == 1


def test_passes_stay_in_force_when_a_plan_is_segmented_again():
    plan = fl.segment(defined(), passes=[*fl.PASSES, HintBehind()])
    assert plan.resegmented("top_down") == plan
    assert len(plan.annotate("T1").segments) == 3


def test_code_names_the_passes_that_it_needs():
    plan = fl.segment(defined(), passes=[*fl.PASSES, HintBehind()])
    text = plan.to_python()
    assert "# passes = [*fl.PASSES, HintBehind()]" in text
    names = {"passes": plan.passes}
    exec(text, names)
    assert names["plan"].hash == plan.hash


def test_ours_can_be_left_out_and_switched_off():
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.permute(fd.ops.exp(fd.define_tensor([64, 32])), [1, 0]))
    assert len(fl.segment(fd).segments) == 2
    assert len(fl.segment(fd, passes=[]).segments) == 1
    options = fl.SegmenterOptions(disabled_passes=["mark_aliases_prepare"])
    assert fl.segment(fd, passes=[HintBehind(op="cos")], options=options).decisions.passes == []


class Nothing(HintBehind):
    """Does not return a fusion."""

    def run(self, fusion):
        return None


class LosesAnOutput(HintBehind):
    """Returns an unrelated fusion."""

    def run(self, fusion):
        return Fusion(inputs=fusion.inputs, exprs=(), outputs=fusion.tensor_inputs)


def test_what_is_no_pass_is_refused_in_one_sentence():
    with pytest.raises(InputError, match="pass 'hint_behind': run must return a Fusion, given NoneType."):
        fl.segment(defined(), passes=[Nothing()])
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.sum(fd.define_tensor([64, 32]), [0]))
    with pytest.raises(InputError, match=r"must keep the outputs .* Float \[32\]; it returned Float \[64, 32\]"):
        fl.segment(fd, passes=[LosesAnOutput()])
    with pytest.raises(ArgumentTypeError, match="passes"):
        fl.segment(fd, passes=["mark_aliases_prepare"])


def test_seeds_become_inputs_beside_the_checks_of_passes():
    with FusionDefinition() as fd:
        x = fd.define_tensor([3, 4])
        fd.add_output(fd.ops.add(x, fd.ops.uniform(0.0, 1.0, [3, 4], dtype=fl.DataType.Float)))
    plan = fl.segment(fd, [fl.spec((3, 4))])
    assert [v.dtype for v in plan.fusion.inputs[1:]] == [fl.DataType.Int] * 2
