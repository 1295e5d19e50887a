"""A schedule as data: its text, its steps, undo, transforms over several tensors, heuristics by name."""

import re

import numpy as np
import pytest
from hand_schedules import (
    CASES,
    arrays,
    bound,
    check,
    check_scheduled,
    generated,
    row_sum,
    run_kernel,
    softmax,
    transpose,
    without_barriers,
)

from fuser_lab.api.functions import FusionDefinition
from fuser_lab.cost.verdict import SchedulerType
from fuser_lab.definition.scheduling import RULES
from fuser_lab.errors import ScheduleError, StateError, UnsupportedError
from fuser_lab.execution.executors import KernelExecutor
from fuser_lab.interpreter import evaluate
from fuser_lab.ir.replay import replay
from fuser_lab.ir.transform import MemoryType
from fuser_lab.ir.transform import ParallelType as P


def summed():
    """s = sum(x, 1) with its output cached, static sizes."""
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[6, 100], contiguity=True)
        s = fd.ops.sum(x, [1])
        fd.add_output(s)
    return fd, x, s, s.cache_before()


def test_loops_print_as_nvfuser_prints_them():
    fd, _, _, total = summed()
    total.split(1, 32)
    assert str(total) == "T2_l_float[iS2{6}, rS5{4}, rS6{32}]"
    partial = total.rfactor([1])
    assert str(partial) == "T3_l_float[iS2{6}, rS5{4}rf, iS6{32}rf]"
    assert str(total) == "T2_l_float[iS7{6}, rS8{32}]"
    partial.parallelize(0, P.grid_x)
    partial.parallelize(2, P.block_x)
    assert str(partial) == "T3_l_float[iblockIdx.x2{6}, rS5{4}rf, ithreadIdx.x6{32}rf]"
    total.parallelize(0, P.grid_x)
    total.parallelize(1, P.block_x)
    fd.sched.inline_most()
    assert str(partial) == "T3_l_float[iblockIdx.x2{6}, rS5{4}rf, ithreadIdx.x6{32}rf] ca_pos( 1 )"
    assert str(total) == "T2_l_float[iblockIdx.x7{6}, rthreadIdx.x8{32}] ca_pos( 1 ) produce_pos( 1 )"
    partial.set_memory_type(MemoryType.shared)
    assert str(partial).startswith("T3_s_float[")


def test_symbolic_extents_print_as_formulas():
    fd = row_sum()
    text = fd.sched.user_schedule_ir()
    assert "rS9{( ceilDiv(( ceilDiv(i1, 4) ), 64) )}rf" in text
    assert text.startswith("Inputs:\n  T0_g_float[")
    assert "= reduction( T2_l_float[" in text


def test_domains_and_their_transforms_print():
    fd, _, _, total = summed()
    total.split(1, 32, inner_split=False)
    total.reorder({1: 2})
    text = fd.sched.user_schedule_ir(tensor_transforms=True)
    assert "  Outer split: rS3{100} by factor 32 -> rS5{32}, rS6{4}\n loop domain : (iS2{6}, rS6{4}, rS5{32})" in text
    assert " logical domain : (iS2{6}, rS3{100})" in text


def test_each_step_shows_before_and_after():
    fd, _, _, total = summed()
    total.split(1, 32)
    total.merge(1)
    steps = fd.sched.steps()
    assert [str(s.transform) for s in steps] == [
        "T2 = T1.cache_before()", "T2.split(axis=1, factor=32, inner_split=True)", "T2.merge(axis_o=1, axis_i=2)",
    ]
    assert steps[1].changes == (("T2", "T2_l_float[iS2{6}, rS3{100}]", "T2_l_float[iS2{6}, rS5{4}, rS6{32}]"),)
    assert steps[0].changes[0] == ("T2", "", "T2_l_float[iS2{6}, rS3{100}]")
    assert str(steps).splitlines()[-2:] == [
        "   - T2_l_float[iS2{6}, rS5{4}, rS6{32}]", "   + T2_l_float[iS2{6}, rS7{128}]",
    ]
    page = steps._repr_html_()
    assert page.count("<table>") == 3
    assert "<th>before</th><th>after</th>" in page


def test_undo_is_a_prefix():
    fd, _, _, total = summed()
    texts = [fd.sched.user_schedule_ir()]
    for act in (lambda: total.split(1, 4), lambda: total.reorder({1: 2}), lambda: total.parallelize(0, P.grid_x)):
        act()
        texts.append(fd.sched.user_schedule_ir())
    for before in reversed(texts[:-1]):
        fd.sched.undo()
        assert fd.sched.user_schedule_ir() == before


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_a_schedule_as_python_makes_the_same_schedule(case):
    fd = case.build()
    script, transforms, text = fd.sched.to_python(), fd.sched.transforms, str(fd.sched)
    fd.sched.undo(len(transforms))
    tensors = {tv.name: tv for tv in fd.sched.tensors()}
    exec(script, {"fd": fd, "ParallelType": P, "MemoryType": MemoryType, **tensors})
    assert fd.sched.transforms == transforms
    assert str(fd.sched) == text


def test_the_fusion_never_changes():
    fd = softmax()
    plain = softmax()
    plain.sched.undo(len(plain.sched.transforms))
    assert fd.definition == plain.definition
    assert repr(fd) == repr(plain)
    assert len(fd.hand.scheduled.fusion.exprs) == len(fd.definition.exprs) + 2


@pytest.mark.sampled(4)
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_any_prefix_is_a_valid_schedule_with_the_same_values(case):
    fd = case.build()
    # Small, since loops that are not parallel yet are Python loops here.
    inputs = arrays([tuple(min(n, 9) for n in shape) for shape in case.shapes[1]], case.dtype)
    fusion = bound(fd, inputs)
    wanted = evaluate(fusion, inputs, exact=False)
    transforms = fd.sched.transforms
    ran = []
    for count in range(len(transforms) + 1):
        scheduled = replay(fusion, transforms[:count], RULES)
        assert scheduled.transforms == transforms[:count]
        try:
            check_scheduled(scheduled, inputs, wanted)
        except ScheduleError:
            # Some tensors already have parallel loops, their readers do not yet.
            continue
        ran.append(count)
    assert ran[0] == 0
    assert ran[-1] == len(transforms)
    assert len(ran) > len(transforms) // 2


def test_barriers_that_are_missing_are_found():
    fd = softmax(MemoryType.shared, threads=24)  # no number of lanes whose registers can be exchanged
    inputs = arrays([(3, 70)])
    scheduled = fd.hand.replayed(bound(fd, inputs))
    kernel = generated(scheduled, inputs).kernel_ir
    run_kernel(kernel, scheduled.fusion, inputs)
    with pytest.raises((AssertionError, IndexError), match="a race for T|without a barrier after its write"):
        run_kernel(without_barriers(kernel), scheduled.fusion, inputs)


def test_transform_like_reaches_tensors_through_inputs_and_around_reductions():
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[8, 64], contiguity=True)
        a, b = fd.ops.exp(x), fd.ops.neg(x)
        s = fd.ops.sum(a, [1])
        fd.add_output(b)
        fd.add_output(s)
    b.split(1, 16)
    b.split(0, 2)
    b.transform_like()
    assert [len(t.scheduled.loop) for t in (x, a, b, s)] == [4, 4, 4, 4]
    b.parallelize(0, P.grid_x)
    b.parallelize(3, P.block_x)
    b.parallelize_like(selected_parallel_types=[P.block_x])
    assert "threadIdx.x" in str(a)
    assert "rthreadIdx.x" in str(s)
    assert "blockIdx.x" not in str(a)


def test_transform_like_reaches_selected_tensors_only():
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[64], contiguity=True)
        a = fd.ops.exp(x)
        b = fd.ops.neg(a)
        c = fd.ops.relu(b)
        fd.add_output(c)
    c.split(0, 16)
    c.transform_like([b])
    assert [len(t.scheduled.loop) for t in (a, b, c)] == [1, 2, 2]


def test_bounded_transform_backward_stays_between_its_ends_and_within_its_position():
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[64, 32], contiguity=True)
        a = fd.ops.exp(x)
        b = fd.ops.neg(a)
        c = fd.ops.relu(b)
        fd.add_output(c)
    c.split(1, 4)
    c.split(0, 16)
    c.parallelize(0, P.grid_x)
    fd.sched.bounded_transform_backward(c, 2, [b], propagate_parallel_type=True)
    assert re.fullmatch(r"T2_l_float\[iblockIdx.x\d+\{4\}, iS\d+\{16\}, iS\d+\{32\}\]", str(b))
    assert [len(t.scheduled.loop) for t in (x, a, b, c)] == [2, 2, 3, 4]
    fd.sched.bounded_transform_backward(c, -1, [x])
    assert [len(t.scheduled.loop) for t in (x, a, b, c)] == [4, 4, 4, 4]


def test_compute_at_transforms_and_inlines_what_is_on_the_way():
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[64, 32], contiguity=True)
        a = fd.ops.exp(x)
        b = fd.ops.neg(a)
        c = fd.ops.relu(b)
        fd.add_output(c)
    c.split(1, 4)
    a.compute_at(c, 2)
    assert [t.scheduled.compute_at for t in (a, b, c)] == [2, 2, 0]
    check(fd, arrays([(64, 32)]))


def test_inline_at_takes_what_it_can_if_told_so():
    fd = softmax()
    fd.sched.undo()
    tensors = {tv.name: tv for tv in fd.sched.tensors()}
    out = tensors[fd.definition.outputs[0].name]
    with pytest.raises(ScheduleError, match="is reduced in"):
        fd.sched.inline_at(out, 3)
    fd.sched.inline_at(out, 3, best_effort=True)
    assert sorted({tv.scheduled.compute_at for tv in tensors.values()}) == [0, 1, 3]
    check(fd, arrays([(3, 70)]))


def test_one_schedule_serves_several_definitions():
    transforms = row_sum().sched.transforms
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[3, 300], contiguity=True)
        fd.add_output(fd.ops.sum(x, [1]))
    fusion = bound(fd, arrays([(3, 300)]))
    (x,) = arrays([(3, 300)])
    check_scheduled(replay(fusion, transforms, RULES), [x], evaluate(fusion, [x], exact=False))


@pytest.mark.parametrize(
    ("scheduler", "record", "shapes"),
    [
        (SchedulerType.POINTWISE, lambda fd, x, y: fd.ops.add(fd.ops.exp(x), y), ((12, 36), (12, 36))),
        (SchedulerType.POINTWISE, lambda fd, x, y: fd.ops.mul(x, y), ((7, 13), (1, 13))),
        (SchedulerType.REDUCTION, lambda fd, x, y: fd.ops.sum(fd.ops.mul(x, y), [1]), ((5, 300), (5, 300))),
        (SchedulerType.REDUCTION, lambda fd, x, y: fd.ops.max(fd.ops.mul(x, y), [0]), ((5, 300), (5, 300))),
        (SchedulerType.REDUCTION, lambda fd, x, y: fd.ops.sum(fd.ops.mul(x, y)), ((5, 300), (5, 300))),
        (SchedulerType.TRANSPOSE, lambda fd, x, y: fd.ops.add(fd.ops.permute(x, [1, 0]), y), ((50, 70), (70, 50))),
        (SchedulerType.TRANSPOSE, lambda fd, x, y: fd.ops.exp(fd.ops.add(
            fd.ops.permute(x, [2, 1, 0]), fd.ops.neg(y))), ((5, 3, 40), (40, 3, 5))),
        (SchedulerType.INNER_PERSISTENT, lambda fd, x, y: fd.ops.truediv(
            fd.ops.mul(x, y), fd.ops.broadcast(fd.ops.sum(x, [1]), [False, True])), ((5, 300), (5, 300))),
    ],
)
def test_heuristics_by_name_are_transforms(scheduler, record, shapes):
    with FusionDefinition() as fd:
        tensors = [fd.define_tensor(shape=[1 if n == 1 else -1 for n in s], contiguity=[
            None if n == 1 else True for n in s]) for s in shapes]
        fd.add_output(record(fd, *tensors))
    fd.sched.schedule(scheduler)
    assert len(fd.sched.transforms) > 4
    assert "threadIdx.x" in str(fd.sched)
    inputs = arrays(shapes)
    inputs = [np.abs(x) + 0.5 for x in inputs]
    check(fd, inputs)
    with pytest.raises(ScheduleError, match="transforms; undo them first"):
        fd.sched.schedule(scheduler)


def test_heuristics_that_are_no_transforms():
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[8, 8], contiguity=True)
        fd.add_output(fd.ops.var_mean(x, [1])[0])
    with pytest.raises(UnsupportedError, match=r"persistent cannot be written as transforms: .* Supported"):
        fd.sched.schedule(SchedulerType.INNER_OUTER_PERSISTENT)
    with pytest.raises(UnsupportedError, match="the transforms of transpose do not fit this fusion: "):
        fd.sched.schedule(SchedulerType.TRANSPOSE)
    with pytest.raises(UnsupportedError, match="Welford"):
        fd.sched.schedule(SchedulerType.REDUCTION)
    assert fd.sched.transforms == ()
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[8, 8], contiguity=True)
        fd.add_output(fd.ops.neg(x))
    for scheduler in (SchedulerType.REDUCTION, SchedulerType.INNER_PERSISTENT, SchedulerType.OUTER_PERSISTENT):
        with pytest.raises(UnsupportedError, match=f"{scheduler.value} do not fit this fusion: it has no reduction"):
            fd.sched.schedule(scheduler)


def test_heuristics_computed_for_inputs_are_applied():
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1, -1], contiguity=True)
        fd.add_output(fd.ops.neg(x))
    inputs = arrays([(8, 8)])
    params = fd.sched.compute_heuristics(fd.definition, SchedulerType.POINTWISE, inputs)
    assert params.hand.vector == 4
    fd.sched.schedule(fd.definition, SchedulerType.POINTWISE, params)
    assert "iV" in str(fd.sched)
    np.testing.assert_array_equal(fd.manual_execute(inputs)[0], -inputs[0])


def test_kernel_executor_compiles_and_prints_a_schedule():
    fd = transpose()
    executor = KernelExecutor()
    with pytest.raises(StateError, match="no kernel scheduled by hand has been compiled"):
        executor.get_scheduled_ir()
    (x,) = arrays([(40, 50)])
    executor.compile(fd, [x])
    assert executor.is_compiled()
    ir = executor.get_scheduled_ir()
    assert re.search(r"T3_s_float\[iblockIdx.y\d+\{2\}, iblockIdx.x\d+\{2\}, iS\d+\{4\}, ithreadIdx.y", ir)
    assert "loop domain" in executor.get_scheduled_ir(tensor_transforms=True)
    source = executor.get_cuda_kernel()
    assert "T3_shared = cuda.shared.array(1024, float32" in source
    assert "cuda.syncthreads()" in source
    np.testing.assert_array_equal(executor.run([x])[0], -x.T)


def test_a_changed_schedule_is_compiled_again():
    fd = softmax()
    inputs = arrays([(4, 40)])
    first = fd.manual_execute(inputs)[0]
    kernel = fd.ke
    assert fd.manual_execute(inputs) is not None
    assert fd.ke is kernel
    fd.sched.undo()
    np.testing.assert_array_equal(fd.manual_execute(inputs)[0], first)
    assert fd.ke is not kernel
