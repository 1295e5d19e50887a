"""The sentence about the largest known gain: it agrees with the plans that its edits make."""

from dataclasses import replace

import pytest
from fuser_lab_widgets import Explorer

import fuser_lab as fl
from fuser_lab.plan.advice import advice


@pytest.fixture(scope="module")
def unfused():
    return fl.segment(*fl.example("softmax"), strategy="unfused")


def test_the_gain_is_the_difference_of_the_predicted_times(unfused):
    best = unfused.advice()
    edited = unfused.with_edit(best.edit)
    assert best.seconds == unfused.predicted_time().seconds - edited.predicted_time().seconds > 0
    assert best.text.startswith(f"Gluing {best.edit.name.removeprefix('glue ')} saves ")
    assert all(best.edit.seconds <= other.seconds for other in unfused.best_edits(20))


def test_an_edit_that_the_model_calls_slower_is_not_recommended(unfused):
    plan = fl.segment(*fl.example("softmax"))
    cuts = [preview for expr in plan.fusion.tensor_exprs if (preview := plan.preview_cut(expr.name)).legal]
    assert min(cut.seconds for cut in cuts) > 0
    assert advice(plan, cuts).edit is None
    assert "saves" not in advice(plan, cuts).text
    assert unfused.advice(seconds=0).edit is not None  # known from above


def test_ops_of_numbers_have_no_cut():
    with fl.FusionDefinition() as fd:
        x = fd.define_tensor([64, 32], contiguity=True)
        factor = fd.ops.cast(fd.define_scalar(dtype=fl.DataType.Int), fl.DataType.Float)
        fd.add_output(fd.ops.mul(fd.ops.exp(x), factor))
    plan = fl.segment(fd, [fl.spec((64, 32)), 2])
    assert plan.advice().text.startswith("No edit that was examined is predicted to save time. ")


def test_a_cut_is_recommended_if_it_saves_time():
    plan = fl.segment(*fl.example("softmax"))
    cut = next(preview for expr in plan.fusion.tensor_exprs if (preview := plan.preview_cut(expr.name)).legal)

    class Slow:
        """The plan before a cut that halves its time."""

        names, target = plan.names, plan.target
        with_edit = staticmethod(plan.with_edit)

        def predicted_time(self):
            time = plan.with_edit(cut).predicted_time()
            return type(time)(seconds=2 * time.seconds, low=0, high=0, source="")

    promised = type(cut)(edit=cut.edit, before=cut.after, after=cut.before, device=cut.device, rule=cut.rule)
    said = advice(Slow(), [promised])
    assert said.edit is promised
    assert said.text.startswith(f"Cutting at {cut.edit[1][0]} saves ")


@pytest.mark.parametrize("name", ["silu_mul", "sum_broadcast_add"])
def test_without_a_gain_the_sentence_compares_with_the_bound(name):
    plan = fl.segment(*fl.example(name, size="full"))
    text = plan.advice().text
    assert plan.time_bound().status.lower() in text.lower()
    assert "µs" not in text  # the plan has one time, the predicted one


def test_a_bound_says_how_much_slower_a_plan_is_by_the_same_model():
    bound = fl.segment(*fl.example("reshape_decides", size="full"), strategy="unfused").time_bound()
    assert bound.gap == bound.seconds / bound.bound - 1 > 0
    status = f"at most {100 * bound.gap:.3g} % slower than the fastest possible plan, by bytes and arithmetic"
    assert str(bound).partition("\n")[0] == status
    best = replace(bound, seconds=bound.bound)
    assert str(best).startswith("no plan is faster by bytes and arithmetic\n")
    assert replace(bound, seconds=bound.bound * (1 + 2.0**-52)).status == best.status
    worse = replace(bound, seconds=15 * bound.bound)
    assert worse.status == "at most 15 times as slow as the fastest possible plan, by bytes and arithmetic"


def test_the_explorer_sends_it_with_an_event_that_makes_the_edit(unfused):
    explorer = Explorer(unfused, [])
    explorer.wait(60)
    said = explorer.advice
    assert said["plan"] == explorer.scene["plan"]
    assert said["text"] == unfused.advice().text
    explorer.events = [{"n": 1, "plan": said["plan"], **{k: v for k, v in said["action"].items() if k != "label"}}]
    assert explorer.plan.hash == unfused.with_edit(unfused.advice().edit).hash
    explorer.wait(60)
    assert explorer.advice["plan"] == explorer.scene["plan"] != said["plan"]
    explorer.close()
