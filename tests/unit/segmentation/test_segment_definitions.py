"""Plans of every kind become definitions: strategies, edits, replicas, layouts and other sizes."""

import json
from pathlib import Path

import numpy as np
import pytest
from needs import needs

import fuser_lab as fl
from fuser_lab import DataType, FusionCache, FusionDefinition, Plan, SegmenterOptions
from fuser_lab.definition.spec import spec
from fuser_lab.errors import ArgumentTypeError, InputError, StateError

CASES = json.loads((Path(__file__).parents[2] / "data" / "segmentation_cases.json").read_text())
APART = SegmenterOptions(whole_fusion=False, level_merge=False, final_merge=False, combine_reductions=False)


def defined(define, cache=None):
    with FusionDefinition(cache=cache) as fd:
        define(fd)
    return fd


def softmax(fd):
    x = fd.define_tensor(shape=[-1, -1], contiguity=True)
    e = fd.ops.exp(fd.ops.sub(x, fd.ops.max(x, dims=[1], keepdim=True)))
    fd.add_output(fd.ops.truediv(e, fd.ops.sum(e, dims=[1], keepdim=True)))


def reshaped(fd):
    """Reshapes decide: bottom-up has four segments, top-down with cuts at inputs of reshapes has two."""
    x, y = (fd.define_tensor(shape=[-1, -1], contiguity=True) for _ in range(2))
    a = fd.ops.exp(x)
    r = fd.ops.reshape(a, [512, 2048])
    fd.add_output(fd.ops.add(a, y))
    fd.add_output(fd.ops.exp(a))
    fd.add_output(fd.ops.div(r, fd.ops.sum(r, dims=[1], keepdim=True)))


def arrays(*shapes, dtype=np.float32):
    rng = np.random.default_rng(3)
    return [rng.standard_normal(shape).astype(dtype) for shape in shapes]


def close(got, wanted):
    assert len(got) == len(wanted)
    for a, b in zip(got, wanted, strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        np.testing.assert_allclose(np.asarray(a, np.float64), np.asarray(b, np.float64), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("strategy", ["bottom_up", "top_down", "saving", "optimal", "unfused"])
def test_strategies(strategy):
    fd = defined(reshaped)
    inputs = arrays((1024, 1024), (1024, 1024))
    segments = fd.segment(inputs, strategy=strategy)
    close(fd.segments_reference(inputs), fd.reference(inputs))
    plan = fl.segment(fd, inputs, strategy=strategy, passes=())
    counts = [len(segment.fusion.tensor_exprs) for segment in segments]
    assert sorted(counts) == sorted(len(part.fusion.tensor_exprs) for part in plan.segments)
    definitions = fl.segment(fd, inputs, strategy=strategy).definitions()
    close(definitions.reference(inputs), fd.reference(inputs))


def test_options_that_only_top_down_takes():
    fd = defined(reshaped)
    inputs = arrays((1024, 1024), (1024, 1024))
    options = SegmenterOptions(cut_reshape_inputs=True)
    without = fl.segment(fd, inputs, strategy="top_down", options=options, passes=())
    assert len(fd.segment(inputs, strategy="top_down", options=options)) == len(without.segments)
    plan = fl.segment(fd, inputs, strategy="top_down", options=options)
    assert len(fd.segment(plan=plan)) == len(plan.segments) < len(fl.segment(fd, inputs).segments)
    close(fd.segments_reference(inputs), fd.reference(inputs))
    with pytest.raises(InputError, match="only 'top_down' does"):
        fd.segment(inputs, options=options)
    with pytest.raises(InputError, match="unknown strategy 'upside_down'"):
        fd.segment(inputs, strategy="upside_down")


def test_plans_and_their_edits():
    fd = defined(softmax)
    (x,) = arrays((6, 40))
    plan = fl.segment(fd, [x])
    assert fd.segment(plan=plan) == []
    (only,) = plan.definitions()
    assert only.segments == []
    close(only.execute([x]), fd.reference([x]))
    edited = plan.cut("T4").cut("T2")
    segments = fd.segment(plan=edited)
    assert len(segments) == len(edited.segments) == 3
    for segment, part in zip(segments, edited.segments, strict=True):
        numbers = fd.segment_index_space_maps[segment]
        names = {fid: fd.state.name_of[numbers[fid]] for fid in numbers}
        assert [names[fid] for fid in segment.state.inputs] == [tv.name for tv in part.inputs]
        assert [names[fid] for fid in segment.state.outputs] == [tv.name for tv in part.outputs]
    close(fd.execute([x]), fd.reference([x]))
    # Glued again, it is one segment, and `execute` runs the whole fusion.
    assert fd.segment(plan=edited.glue(0, 1).glue(0, 1)) == []
    close(fd.execute([x]), fd.reference([x]))


def test_definitions_of_a_plan():
    fd = defined(softmax)
    (x,) = arrays((6, 40))
    cache = FusionCache()
    plan = fl.segment(fd, [x]).cut("T4")
    definitions = plan.definitions(cache)
    assert len(definitions) == len(plan.segments) == cache.num_fusions() == 2
    assert [s.fusion_id for s in definitions] == [s.fusion_id for s in plan.definitions(cache)] == [0, 1]
    assert repr(definitions).startswith("# segment 0\ndef nvfuser_fusion(fd")
    assert len(definitions.maps) == 2
    assert definitions.maps[0] == definitions.whole.segment_index_space_maps[definitions[0]]
    assert set(definitions.last_used.values()) == {0, 1}
    assert repr(definitions.index_maps).count("segment") == 2
    assert definitions.manager.segments[0].reads == (0,)
    assert definitions.state is definitions.whole.state
    assert len(definitions[:1]) == 1
    wanted = fd.reference([x])
    close(definitions.execute([x]), wanted)
    # One of them is run by its schedule by hand, also together with the others.
    definitions = plan.definitions(cache)
    definitions[0].handle(definitions[0].state.outputs[0]).split(1, 8)
    close(definitions.execute([x]), wanted)
    assert definitions[0].ke is not None


@pytest.mark.parametrize("name", ["privatize_upcast", "privatize_upcast_and_squeeze"])
def test_replicas_are_expressions_of_each_reader(name):
    case = next(c for c in CASES if c["id"] == name)
    fd = defined(lambda fd: exec(case["python"], {"fd": fd, "DataType": DataType}))
    inputs = [fl.spec(x["shape"], x["dtype"]).materialize() for x in case["inputs"]]
    plan = fl.segment(fd, inputs)
    assert plan.segmented.replicas
    definitions = plan.definitions()
    casts = [e.op.name for s in definitions for e in s.fusion.exprs].count("cast")
    assert casts > [e.op.name for e in fd.fusion.exprs].count("cast")
    # The readers of a replica read what the cast reads: nothing but its operand crosses.
    numbers = {name: plan.definition.tensors[name] for name in definitions.state.fid_of if name in fd.fusion.tensors}
    assert {definitions.state.name_of[n] for m in definitions.maps for n in m.values() if n >= 0} <= numbers.keys()
    close(definitions.reference(inputs), fd.reference(inputs))


def rows_of(fd):
    x = fd.define_tensor(shape=[-1, -1], contiguity=True)
    mean = fd.ops.var_mean(x, dims=[1], correction=0, keepdim=True)
    fd.add_output(fd.ops.mul(fd.ops.sub(x, mean[1]), fd.ops.rsqrt(fd.ops.add(mean[0], 1e-5))))


def test_what_the_segmenter_made_for_some_sizes_is_not_run_for_others():
    fd = defined(rows_of)
    (x,) = arrays((4, 6))
    plan = fl.segment(fd, [x])
    assert any("sum" in e.op.name for e in plan.fusion.exprs), "a Welford has become sums"
    definitions = plan.definitions()
    close(definitions.reference([x]), fd.reference([x]))
    # More rows are divided by the same count; longer ones are not.
    (more, longer) = arrays((7, 6), (4, 9))
    close(definitions.reference([more]), fd.reference([more]))
    with pytest.raises(InputError, match="the passes or the segmenter compute T.* differently than for the sizes"):
        definitions.execute([longer])


def test_passes_that_find_something_only_for_some_sizes():
    def define(fd):
        x = fd.define_tensor(shape=[-1, -1], contiguity=True)
        fd.add_output(fd.ops.add(fd.ops.sum(x, dims=[0]), 1.0))

    fd = defined(define)
    definitions = fl.segment(fd, [spec((0, 3))]).definitions()
    (empty,) = arrays((0, 3))
    close(definitions.reference([empty]), fd.reference([empty]))
    with pytest.raises(InputError, match="call segment again"):
        definitions.reference(arrays((2, 3)))


def test_what_passes_make_is_printed_by_names_that_exist():
    fd = defined(softmax)
    (x,) = arrays((6, 40))
    plan = fl.segment(fd, [x], strategy="unfused")
    assert any(e.op.name == "fmax" for e in plan.fusion.exprs)
    for segment in plan.definitions():
        with FusionDefinition() as again:
            names = {"FusionDefinition": FusionDefinition, "DataType": DataType}
            exec(repr(segment), names)
            names["nvfuser_fusion"](again)
        assert again.fusion == segment.fusion


def test_random_numbers_are_drawn_by_each_segment():
    torch = needs("torch")

    def define(fd):
        x = fd.define_tensor(shape=[-1, -1], contiguity=True)
        fd.add_output(fd.ops.sum(fd.ops.mul(fd.ops.rand_like(x), x), dims=[0]))

    fd = defined(define)
    x = torch.ones(3, 5)
    definitions = fl.segment(fd, [x], options=APART).definitions()
    # No seed is needed: the given numbers are those of the definition.
    assert {n for numbers in definitions.maps for n in numbers.values()} <= {*definitions.state.fid_of.values()}
    runs = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        runs.append(definitions.execute([x])[0])
    assert torch.equal(runs[0], runs[1])
    assert not torch.equal(runs[0], runs[2])


def test_names_may_differ_between_equal_definitions():
    cache = FusionCache()
    fd = defined(softmax, cache)
    again = FusionDefinition.of(fd.fusion)
    (x,) = arrays((6, 40))
    plan = fl.segment(again, [x]).cut("T2")
    fd.segment(plan=plan)
    first = fd.segment_index_space_maps[fd.segments[0]]
    close(fd.execute([x]), fd.reference([x]))
    # Numbers are those of the segmented definition, in which constants and vectors count too.
    assert set(first.values()) <= {*range(len(fd.state.states) + 4)}


# Layouts


def channels_last(fd):
    x = fd.define_tensor(shape=[-1, -1, -1, -1], contiguity=True, stride_order=[3, 0, 2, 1])
    mean = fd.ops.sum(fd.ops.exp(fd.ops.sum(x, dims=[2, 3], keepdim=True)), dims=[0], keepdim=True)
    fd.add_output(fd.ops.add(fd.ops.mul(x, 2.0), mean))
    fd.add_output(fd.ops.permute(fd.ops.exp(x), [0, 2, 3, 1]))
    fd.add_output(fd.ops.permute(x, [0, 2, 3, 1]))
    fd.add_output(fd.ops.sum(x, dims=[0]))


@pytest.mark.parametrize(("apart", "mode"), [
    (False, "outputs"), (False, "propagate"), (False, "negotiate"), (True, "propagate"), (True, "negotiate"),
    pytest.param(True, "outputs", marks=pytest.mark.matrix),
])
def test_results_lie_as_before(mode, apart):
    fd = defined(channels_last)
    x = arrays((2, 6, 5, 8))[0].transpose(0, 3, 1, 2)
    options = SegmenterOptions(
        layout_mode=mode, whole_fusion=not apart, final_merge=not apart, level_merge=not apart,
    )
    plan = fl.segment(fd, [x], options=options)
    wanted = plan.run([x])
    assert len(fd.segment([x], options=options)) > 1
    for got in (fd.execute([x]), plan.definitions().execute([x])):
        close(got, wanted)
        assert [a.strides for a in got] == [b.strides for b in wanted]


def test_layout_mode_is_in_the_definitions():
    def define(fd):
        x = fd.define_tensor(shape=[-1, -1, -1], contiguity=True, stride_order=[2, 0, 1])
        y = fd.ops.segment_set(fd.ops.exp(x))
        fd.add_output(fd.ops.sum(y, dims=[0]))

    fd = defined(define)
    inputs = [spec((4, 6, 8), "float32", (48, 1, 6))]
    orders = {}
    for mode in ("outputs", "propagate", "negotiate"):
        *_, last = fd.segment(inputs, options=SegmenterOptions(layout_mode=mode))
        plan = fl.segment(fd, inputs, options=SegmenterOptions(layout_mode=mode))
        crossing = plan.segments[-1].inputs[0].domain.allocation_order
        orders[mode] = last.fusion.tensor_inputs[0].domain.allocation_order
        assert orders[mode] == crossing
    assert orders["propagate"] == (0, 2, 1) != orders["outputs"]


# Bad calls


def test_what_segment_does_not_take_together():
    fd, other = defined(softmax), defined(reshaped)
    (x,) = arrays((6, 40))
    plan = fl.segment(fd, [x])
    assert isinstance(plan, Plan)
    for more in ({"strategy": "optimal"}, {"options": SegmenterOptions()}, {"target": "H100"}, {"inputs": [x]}):
        with pytest.raises(ArgumentTypeError, match="pass no other argument with it"):
            fd.segment(plan=plan, **more)
    with pytest.raises(ArgumentTypeError, match="inputs must be given, or a plan"):
        fd.segment()
    with pytest.raises(ArgumentTypeError, match="plan must be a Plan, given int"):
        fd.segment(plan=1)
    with pytest.raises(InputError, match="the plan is of another definition"):
        other.segment(plan=plan)
    with pytest.raises(StateError, match="argument_manager: the definition is not segmented"):
        _ = other.argument_manager
    # A refused call has no effect.
    assert fd.segment(plan=plan) == []
