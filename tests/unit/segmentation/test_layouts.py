"""Layouts chosen between segments: the examples, invariants, and what is recorded and shown."""

import itertools
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from thorough import tries

import fuser_lab as fl
from fuser_lab.cost.reasons import ReasonCode
from fuser_lab.cost.verdict import Answer, SchedulerType, reason, refuse
from fuser_lab.examples import layouts as examples
from fuser_lab.interpreter import evaluate
from fuser_lab.segmentation import replay
from fuser_lab.segmentation.events import DecisionLog
from fuser_lab.segmentation.layouts import _Parties, layouts_of, negotiate
from fuser_lab.segmentation.options import LAYOUT_MODES
from tests.agreement import lock_step

SMALL = {
    "channels_last_norm": {"batch": 2, "channels": 8, "side": 5},
    "vanishing_transpose": {"rows": 16, "columns": 12},
    "reader_decides": {"rows": 16, "columns": 12},
}
BODIES = {body.__name__: body for body in examples.ALL}


def defined(body, **sizes):
    with fl.FusionDefinition() as fd:
        body(fd, **sizes)
    return fd


def planned(body, mode, **sizes):
    return fl.segment(defined(body, **sizes), options=fl.SegmenterOptions(layout_mode=mode))


def schedulers(plan):
    return [s.scheduler.value for s in plan.segments]


# The examples


def test_channels_last_through_a_norm_stays_channels_last():
    before, after = (planned(examples.channels_last_norm, mode) for mode in ("outputs", "negotiate"))
    (crossing,) = before.segmented.crossing
    assert before.layouts()[crossing.name].chosen == (0, 1, 2, 3)
    assert after.layouts()[crossing.name].chosen == (0, 2, 3, 1)
    assert schedulers(before) == ["inner_persistent", "transpose"]
    assert schedulers(after) == ["inner_persistent", "pointwise"]
    # The norm reads channels-last and writes row-major: each lane reads a separate sector of eight floats.
    size = crossing.nbytes
    assert before.layouts().cost == 7 * size + size
    assert after.layouts().cost == 0


@pytest.mark.parametrize("mode", ["propagate", "negotiate"])
def test_a_transpose_vanishes(mode):
    before, after = planned(examples.vanishing_transpose, "outputs"), planned(examples.vanishing_transpose, mode)
    assert schedulers(before) == ["transpose", "transpose"]
    assert schedulers(after) == ["pointwise", "pointwise"]
    assert after.layouts().cost == 0 < before.layouts().cost == 2 * 2048 * 1024 * 4


def test_only_a_negotiation_hears_the_reader():
    plans = {mode: planned(examples.reader_decides, mode) for mode in LAYOUT_MODES}
    found = {mode: plan.layouts()[plan.segmented.crossing[0].name] for mode, plan in plans.items()}
    assert {mode: one.chosen for mode, one in found.items()} == {
        "outputs": (0, 1), "propagate": (0, 1), "negotiate": (1, 0),
    }
    one = found["negotiate"]
    assert (one.by, one.hint, one.natural, one.preferred) == ("S1", None, (0, 1), ((1, (1, 0)),))
    assert (one.cost, one.natural_cost) == (0, 2048 * 1024 * 4)


@pytest.mark.parametrize("mode", LAYOUT_MODES)
def test_a_linear_lies_as_the_library_leaves_it(mode):
    layouts = planned(examples.linear_and_product, mode).layouts()
    first, second = layouts
    assert first.required is None
    assert first.hint.order == first.natural == first.chosen == second.chosen == (0, 1, 2)
    assert first.by == "producer"
    assert layouts.cost == 0


@pytest.mark.parametrize("mode", LAYOUT_MODES)
def test_a_requirement_forces_a_copy(mode):
    plan = planned(examples.required_copy, mode)
    product, scaled = plan.layouts()
    assert (product.required, product.chosen, product.by, product.hint) == ((0, 2, 1), (0, 2, 1), "user", None)
    assert product.natural == (0, 1, 2)
    # The library's result is read and written once more.
    assert plan.layouts().cost >= 2 * 6 * 2 * 8 * 4
    assert scaled.chosen == ((0, 2, 1) if mode == "negotiate" else (0, 1, 2))


# Invariants


@pytest.mark.parametrize("mode", LAYOUT_MODES)
@pytest.mark.parametrize("name", BODIES)
def test_kernels_of_both_targets_compute_the_same(name, mode):
    plan = planned(BODIES[name], mode, **SMALL.get(name, {}))
    inputs = examples.inputs_of(plan.fusion)
    wanted = evaluate(plan.definition, inputs, exact=False)
    for target in ("cpu", "cuda"):
        for got, right in zip(lock_step(plan, inputs, target), wanted, strict=True):
            np.testing.assert_allclose(got, right, rtol=2e-5, atol=2e-5)


SHAPE = (2, 3, 4)
ORDERS = list(itertools.permutations(range(3)))


def chain(orders, required, *, reduce):
    """Record segments in sequence, each of which reads a separate input and the result of the previous one."""

    def body(fd):
        value = None
        for order in orders:
            ranks = [2 - order.index(axis) for axis in range(3)]
            x = fd.define_tensor(list(SHAPE), contiguity=True, stride_order=ranks)
            value = x if value is None else fd.ops.add(value, x)
            if reduce:
                value = fd.ops.sub(value, fd.ops.max(value, [1], True))
            value = fd.ops.segment_set(value)
        fd.add_output(value)
        if required is not None:
            fd.set_output_stride_order(value, [2 - required.index(axis) for axis in range(3)])

    return body


@tries(60, deadline=None)
@given(st.lists(st.sampled_from(ORDERS), min_size=2, max_size=4), st.none() | st.sampled_from(ORDERS), st.booleans())
def test_requirements_stay_and_costs_never_grow(orders, required, reduce):
    body = chain(orders, required, reduce=reduce)
    before, after = planned(body, "outputs"), planned(body, "negotiate")
    layouts = after.layouts()
    assert layouts.cost <= before.layouts().cost
    result = after.fusion.outputs[0]
    if required is not None:
        assert result.domain.allocation_order == required
        assert layouts[result.name].by == "user"
    assert all(s.scheduler for s in after.segments)
    assert [s.group.names for s in after.segments] == [s.group.names for s in before.segments]
    inputs = examples.inputs_of(after.fusion)
    (got,), (wanted,) = lock_step(after, inputs, "cpu"), evaluate(after.definition, inputs, exact=False)
    np.testing.assert_allclose(got, wanted, rtol=2e-5, atol=2e-5)
    # The reported layout is the actual one.
    for one in layouts:
        assert after.fusion.tensors[one.tensor].domain.allocation_order == one.chosen


@tries(40, deadline=None)
@given(st.sampled_from(ORDERS), st.sampled_from(ORDERS), st.sampled_from(ORDERS), st.booleans())
def test_no_other_order_of_the_one_open_tensor_is_cheaper(first, second, required, reduce):
    plan = planned(chain([first, second], required, reduce=reduce), "negotiate")
    parties = _Parties(plan.segmented)
    agreed = parties.as_segmented()
    (crossing,) = plan.segmented.crossing
    assert parties.total(agreed) == min(parties.total({**agreed, crossing.name: order}) for order in ORDERS)


class Stubborn:
    """Schedulers that refuse every segment that reads or writes the tensor in any order but row-major."""

    def __init__(self, oracle, tensor):
        self.oracle, self.tensor = oracle, tensor

    def ask(self, candidate):
        own = {tv.name: tv for tv in (*candidate.tensor_inputs, *candidate.outputs)}
        tensor = own.get(self.tensor)
        if tensor is None or tensor.domain.allocation is None:
            return self.oracle.ask(candidate)
        why = reason(ReasonCode.DISABLED)
        return Answer((refuse(SchedulerType.POINTWISE, why, candidate.exprs[0].name),))


def test_a_refused_order_is_given_up():
    plan = planned(examples.vanishing_transpose, "outputs")
    (crossing,) = plan.segmented.crossing
    segmented, layouts = negotiate(plan.segmented, Stubborn(plan.oracle, crossing.name))
    one = layouts[crossing.name]
    assert (one.by, one.chosen) == ("refusal", (0, 1))
    assert [g.scheduler.value for g in segmented.groups] == ["transpose", "transpose"]
    assert layouts.cost == plan.layouts().cost


def test_where_all_is_row_major_nothing_is_asked_again():
    def body(fd):
        x = fd.define_tensor([8, 16], contiguity=True)
        fd.add_output(fd.ops.relu(fd.ops.segment_set(fd.ops.exp(x))))

    plan = planned(body, "outputs")
    segmented, layouts = negotiate(plan.segmented, None)
    assert segmented is plan.segmented
    assert layouts.reasked == ()
    assert all(one.chosen == one.natural for one in layouts)


def test_a_view_lies_as_what_it_is_seen_in():
    def body(fd):
        x = fd.define_tensor([4, 6], contiguity=True, stride_order=[0, 1])
        y = fd.ops.exp(x)
        fd.add_output(y)
        fd.add_output(fd.ops.permute(y, [1, 0]))

    plan = planned(body, "negotiate")
    one = plan.layouts()[plan.fusion.outputs[1].name]
    assert one.by == "view"
    base = plan.layouts()[plan.segments[one.producer].inputs[0].name]
    assert base.chosen == (1, 0)
    assert one.chosen == (0, 1)


def test_what_is_written_over_an_input_lies_as_the_input():
    def body(fd):
        x = fd.define_tensor([4, 6], contiguity=True, stride_order=[0, 1])
        y = fd.define_tensor([4, 6], contiguity=True)
        fd.add_output(fd.ops.add(x, y), x)

    (one,) = (b for b in planned(body, "negotiate").layouts() if not b.consumers)
    assert (one.by, one.chosen) == ("in place", (1, 0))


# Plans


def test_an_edit_negotiates_again():
    plan = planned(examples.vanishing_transpose, "negotiate")
    whole = fl.segment(defined(examples.vanishing_transpose), options=plan.options, strategy="unfused")
    cut = plan.cut("T2")
    assert len(cut.segments) == len(plan.segments) + 1
    assert {one.tensor for one in cut.layouts()} > {one.tensor for one in plan.layouts()}
    assert cut.layouts().cost == whole.layouts().cost == 0
    assert cut.glue(0, 1) == plan
    assert cut != plan


def test_the_mode_is_part_of_a_plan_and_of_its_code():
    plans = {mode: planned(examples.vanishing_transpose, mode) for mode in LAYOUT_MODES}
    assert len({plan.hash for plan in plans.values()}) == len(LAYOUT_MODES)
    for plan in plans.values():
        names = {}
        exec(plan.to_python(), names)
        assert names["plan"] == plan


def test_a_requirement_is_part_of_a_definition_and_of_its_code():
    plan = planned(examples.required_copy, "outputs")
    names = {}
    exec(plan.to_python(), names)
    assert names["plan"] == plan
    assert names["plan"].definition.stride_orders[0][1] == (2, 0, 1)
    assert plan.definition != defined(examples.linear_and_product).fusion
    read, _ = fl.load_repro(f"{names['fd']!r}\n\nwith FusionDefinition() as fd:\n    nvfuser_fusion(fd)\n")
    assert read.fusion == plan.definition


def test_the_log_keeps_who_chose_what():
    log = DecisionLog()
    plan = fl.segment(
        defined(examples.reader_decides), options=fl.SegmenterOptions(layout_mode="negotiate"), log=log,
    )
    crossing = plan.segmented.crossing[0].name
    (one,) = (c for c in log.layouts if c.tensor == crossing)
    assert (one.natural, one.chosen, one.by, one.cost, one.natural_cost) == ((0, 1), (1, 0), "S1", 0, 2048 * 1024 * 4)
    again = DecisionLog.from_json(log.to_json())
    assert again == log
    assert again.layouts == log.layouts
    assert f"layout {crossing}: (1, 0) by S1" in str(log)
    assert planned(examples.reader_decides, "outputs").decisions.layouts == []
    # Replaying the attempts on the fusion with its layouts gives the plan.
    assert replay(plan.fusion, log, plan.oracle) == plan.segmented


def test_layouts_are_shown():
    plan = planned(examples.reader_decides, "negotiate")
    crossing = plan.segmented.crossing[0].name
    frame = plan.layouts().to_pandas().set_index("tensor")
    assert frame.loc[crossing, "chosen"] == "1,0"
    assert frame.loc[crossing, "by"] == "S1"
    assert f"{crossing}" in str(plan.layouts())
    assert "The schedulers were asked about S1 again: it goes from transpose to pointwise." in str(plan.layouts())
    assert "<td>1,0</td>" in plan.layouts()._repr_html_()
    assert "across rows" in str(plan)
    assert "Layouts: axes in memory" in plan._repr_mimebundle_()["text/html"]
    with pytest.raises(KeyError):
        plan.layouts()["T99"]


def test_the_json_of_a_plan_has_its_layouts(tmp_path):
    plan = planned(examples.reader_decides, "negotiate")
    data = json.loads(plan.save(tmp_path / "plan.json").read_text())
    (one,) = (x for x in data["layouts"] if x["consumers"])
    assert (one["chosen"], one["by"], one["natural"], one["preferred"]) == ("1,0", "S1", "0,1", "S1: 1,0")


def test_plans_that_are_row_major_throughout_are_shown_as_before():
    def body(fd):
        fd.add_output(fd.ops.relu(fd.define_tensor([8, 16], contiguity=True)))

    plan = planned(body, "outputs")
    assert "across rows" not in str(plan)
    assert len(plan.layouts()) == 1


def test_layouts_of_a_plan_made_otherwise():
    plan = planned(examples.channels_last_norm, "outputs")
    assert str(layouts_of(plan.segmented, "outputs")) == str(plan.layouts())


# Bad input


def test_an_unknown_mode_is_refused():
    says = "layout_mode must be 'outputs', 'propagate' or 'negotiate', given 'all'"
    with pytest.raises(fl.errors.InputError, match=says):
        fl.SegmenterOptions(layout_mode="all")


@pytest.mark.parametrize(
    ("output", "order", "sentence"),
    [
        ("T1", [0, 0, 1], r"\[0, 0, 1\] is not a permutation of 0..2, the ranks of the 3 axes of T1"),
        ("T1", [1, 0], r"\[1, 0\] is not a permutation of 0..2, the ranks of the 3 axes of T1"),
        ("T1", [-1, 0, 1], r"\[-1, 0, 1\] is not a permutation"),
        ("T1", "012", "stride_order must be a list of ints, given '012'"),
        ("T1", [0, 1, True], "stride_order must be a list of ints"),
        ("T1", 2, "stride_order must be a list of ints, given 2"),
        ("T0", [0, 1, 2], "T0 is not an output of the fusion; its outputs are T1, T2"),
        ("T9", [0, 1, 2], "T9 is not an output"),
        ("T2", [0, 1, 2], "T2 is written over the input T0 and has its layout"),
    ],
)
def test_orders_that_cannot_be_are_refused(output, order, sentence):
    with fl.FusionDefinition() as fd:
        x = fd.define_tensor([2, 3, 4])
        fd.add_output(fd.ops.relu(x))
        fd.add_output(fd.ops.exp(x), x)
    with pytest.raises(fl.errors.FuserLabError, match=f"^set_output_stride_order: {sentence}"):
        fd.fusion.set_output_stride_order(output, order)


def test_a_definition_refuses_the_same_at_once():
    with fl.FusionDefinition() as fd:
        x = fd.define_tensor([2, 3])
        y = fd.ops.relu(x)
        with pytest.raises(fl.errors.InputError, match="has no output|is not an output"):
            fd.set_output_stride_order(y, [0, 1])
        fd.add_output(y)
        with pytest.raises(fl.errors.DefinitionError, match="is not a permutation of 0..1"):
            fd.set_output_stride_order(y, [0, 2])
        fd.set_output_stride_order(y, [1, 0])
        fd.set_output_stride_order(y, [0, 1])
        assert fd.get_output_stride_order(y) == (0, 1)
        assert fd.get_output_stride_order(x) is None
    assert fd.fusion.get_output_stride_order("T1") == (0, 1)
    with pytest.raises(fl.errors.ClosedDefinitionError):
        fd.set_output_stride_order(y, [1, 0])
    back = fd.fusion.set_output_stride_order("T1", [1, 0])
    assert back.get_output_stride_order("T1") == (1, 0)
    assert back != fd.fusion
