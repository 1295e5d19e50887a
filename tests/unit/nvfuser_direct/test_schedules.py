"""Schedules by hand as scripts for nvFuser's direct bindings write them."""

import re

import pytest
from needs import needs

from fuser_lab import nvfuser_direct
from fuser_lab.nvfuser_direct import (
    DataType,
    FusionDefinition,
    FusionGuard,
    KernelExecutor,
    LoadStoreOpType,
    MemoryType,
    Merge,
    ParallelType,
    SchedulerType,
    Split,
    schedule,
)

torch = needs("torch")

X = torch.randn(10, 40)


def test_a_copy_first_without_and_then_with_a_schedule(capsys):
    with FusionDefinition() as fd:
        tv0 = fd.define_tensor(shape=[-1, -1], contiguity=[True, True], dtype=DataType.Float)
        tv1 = fd.ops.set(tv0)
        fd.add_output(tv1)
        assert str(tv1) == "T1_g_float[iS2{i0}, iS3{i1}]"
        tv1.split(1, 16)
        tv1.merge(0, 1)
        assert str(tv1) == "T1_g_float[iS6{( i0 * ( ceilDiv(i1, 16) ) )}, iS5{16}]"
        tv1.axis(0).parallelize(ParallelType.grid_x)
        tv1.axis(1).parallelize(ParallelType.block_x)
        fd.fusion.print_math()
    printed = capsys.readouterr().out
    assert "T1_g_float[iblockIdx.x6{( i0 * ( ceilDiv(i1, 16) ) )}, ithreadIdx.x5{16}]\n   = Set( T0_g_float" in printed
    assert torch.equal(fd.manual_execute([X])[0], X)
    assert torch.equal(fd.manual_execute([X[:3]])[0], X[:3])


def test_axes_and_where_they_come_from():
    with FusionDefinition() as fd:
        tv0 = fd.define_tensor(shape=[8, 6], contiguity=[True, True])
        tv1 = fd.ops.neg(tv0)
        fd.add_output(tv1)
        tv1.split(0, 4)
        tv1.merge(1)
        loops, logical = tv1.get_loop_domain(), tv1.get_logical_domain()
        assert [str(axis) for axis in loops] == ["iS4{2}", "iS6{24}"]
        assert [str(axis) for axis in logical] == ["iS2{8}", "iS3{6}"]
        merge = tv1.axis(1).definition()
        assert isinstance(merge, Merge)
        assert isinstance(merge.input(0).definition(), Split)
        assert merge.input(0).definition().input(0) == logical[0]
        with pytest.raises(RuntimeError, match="is not, or is no longer, a loop of T1"):
            logical[0].parallelize(ParallelType.block_x)


def test_a_reduction_in_steps_with_rfactor():
    with FusionDefinition() as fd:
        tv0 = fd.define_tensor(shape=[-1, -1], contiguity=[True, True], dtype=DataType.Float)
        tv1 = fd.ops.sum(tv0, dims=[1])
        fd.add_output(tv1)
        tv1.split(1, 8)
        tv2 = tv1.rfactor([1])
        assert tv2.axis(1).is_reduction()
        assert not tv2.axis(2).is_reduction()
        assert [axis.is_reduction() for axis in tv1.get_logical_domain()] == [False, True]
        for tv in (tv1, tv2):
            tv.axis(0).parallelize(ParallelType.grid_x)
            tv.axis(-1).parallelize(ParallelType.block_x)
        schedule.inline_most()
        loops = r"iblockIdx.x\d+\{i0\}, rS\d+\{.*\}rf, ithreadIdx.x\d+\{8\}rf"
        assert re.fullmatch(rf"T2_l_float\[{loops}\] ca_pos\( 1 \)", str(tv2))
    torch.testing.assert_close(fd.manual_execute([X])[0], X.sum(1))


def test_a_schedule_under_a_guard():
    with FusionDefinition() as fd:
        tv0 = fd.define_tensor(shape=[-1, -1], contiguity=[True, True])
        tv1 = fd.ops.exp(tv0)
        tv2 = fd.ops.neg(tv1)
        fd.add_output(tv2)
    with FusionGuard(fd.fusion):
        cached = tv0.cache_after(LoadStoreOpType.set)
        cached.set_memory_type(MemoryType.shared)
        tv2.split(1, 8)
        schedule.bounded_transform_backward(tv2, -1, [tv0])
        tv2.axis(0).parallelize(ParallelType.grid_x)
        tv2.axis(2).parallelize(ParallelType.block_x)
        schedule.parallelize_like(tv2, -1, [cached, tv1], {ParallelType.grid_x, ParallelType.block_x})
        schedule.inline_at(tv2, 1, best_effort=True)
    executor = KernelExecutor()
    executor.compile(fd.fusion, [X])
    torch.testing.assert_close(executor.run([X])[0], -torch.exp(X))
    assert "T3_s_float[iblockIdx.x" in executor.get_scheduled_ir()


def test_no_definition_is_open():
    with pytest.raises(AssertionError, match="no definition is open"):
        schedule.inline_most()


def test_ops_may_follow_transforms_while_the_definition_is_open():
    with FusionDefinition() as fd:
        tv0 = fd.define_tensor(shape=[-1, -1], contiguity=[True, True])
        tv1 = fd.ops.exp(tv0)
        fd.add_output(tv1)
        cached = tv1.cache_before()
        cached.split(0, 4)
        tv3 = fd.ops.neg(tv1)
        fd.add_output(tv3)
        assert len({cached.name, tv1.name, tv3.name}) == 3
    first, second = fd.manual_execute([X])
    torch.testing.assert_close(first, torch.exp(X))
    torch.testing.assert_close(second, -torch.exp(X))


def test_a_scheduler_applied_by_name_can_be_read_and_changed():
    with FusionDefinition() as fd:
        tv0 = fd.define_tensor(shape=[-1, -1], contiguity=[True, True])
        tv1 = fd.ops.relu(tv0)
        fd.add_output(tv1)
    params = schedule.compute_heuristics(fd.fusion, SchedulerType.pointwise, [X])
    assert schedule.schedule(fd.fusion, SchedulerType.pointwise, params) == params
    assert re.fullmatch(
        r"T1_g_float\[iblockIdx.x\d+\{.*\}, ithreadIdx.x\d+\{128\}, iV\d+\{4\}\] produce_pos\( 2 \)", str(tv1),
    )
    assert torch.equal(fd.manual_execute([X])[0], torch.relu(X))
    assert nvfuser_direct.ParallelType.grid_x is ParallelType.BIDx
