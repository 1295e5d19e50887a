"""Kernels for each device respect its limits: threads and shared memory of a block, blocks of all multiprocessors."""

import re
from dataclasses import replace

import pytest
from backend.fusions import D, S, build
from backend.reductions import add_norm, backward, softmax, totals
from hypothesis import given
from hypothesis import strategies as st

import fuser_lab as fl
from fuser_lab.codegen.kernel_ir import Alloc, Reduce, Role, walk
from fuser_lab.cost.device import A100, DEVICES, H200
from fuser_lab.schedule.gpu_column_sum_loops import backward_loops
from fuser_lab.schedule.gpu_limits import shared_room
from fuser_lab.schedule.gpu_row_loops import row_loops, row_room
from fuser_lab.schedule.state import LoopSchedule, Space
from tests.kernels import generate

SMALL = fl.Device(
    name="small", cc=(8, 6), sms=28, shared_per_sm=100 << 10, shared_per_block=99 << 10, l2=3 << 20, bandwidth=360.0,
    fp32=12.0, bf16=50.0,
)
ALL = (*DEVICES, SMALL)


def shared_bytes(kernel):
    """Each launch's shared memory per block, by the kernel's IR: dynamic, static and of reductions."""
    for phase in kernel.phases:
        statements = list(walk(phase.body))
        static = sum(
            s.buffer.size * s.buffer.dtype.itemsize for s in statements
            if isinstance(s, Alloc) and s.buffer.role is Role.SHARED and not s.buffer.is_dynamic
        )
        meeting = sum(32 * s.value.dtype.itemsize for s in statements if isinstance(s, Reduce))
        yield phase.launch, phase.launch.shared + static + meeting


@pytest.mark.sampled(5)
@pytest.mark.parametrize("device", ALL, ids=lambda device: device.name)
@pytest.mark.parametrize("columns", [40_000, 73_728, 81_920, 100_000, 131_072, 200_000])
def test_long_rows_fit_a_block_of_every_device(columns, device):
    for record, dtype, inputs in ((softmax, D.BFloat16, 1), (softmax, D.Float, 1), (add_norm, D.BFloat16, 3)):
        fusion = build(record, [(4096, columns), (4096, columns), (columns,)][:inputs], dtype)
        kernel = generate(fusion, S.INNER_PERSISTENT, "cuda", device=device).kernel_ir
        for launch, nbytes in shared_bytes(kernel):
            assert nbytes <= device.shared_per_block
            assert (launch.shared + (1 << 10)) * max(launch.resident, 1) <= device.shared_per_sm
            assert launch.threads[0] * launch.threads[1] <= device.max_threads_per_block


@pytest.mark.sampled(5)
@pytest.mark.parametrize("device", ALL, ids=lambda device: device.name)
@pytest.mark.parametrize("columns", [1024, 4096, 8192, 16_384, 40_000])
def test_rows_that_add_to_columns_fit_a_block_of_every_device(columns, device):
    shapes = [(4096, columns), (4096, columns), (columns,), (4096, 1)]
    for dtype in (D.BFloat16, D.Float):
        kernel = generate(build(backward, shapes, dtype), S.INNER_OUTER_PERSISTENT, "cuda", device=device).kernel_ir
        for launch, nbytes in shared_bytes(kernel):
            assert nbytes <= device.shared_per_block
            assert launch.shared * max(launch.resident, 1) <= device.shared_per_sm


def test_what_a_smaller_device_has_no_room_for_is_read_again_and_the_parameters_say_so():
    fusion = build(softmax, [(4096, 131_072)], D.BFloat16)
    by_device = {
        device.name: generate(fusion, S.INNER_PERSISTENT, "cuda", device=device).kernel_ir.nests[0]
        for device in (A100, H200)
    }
    small, large = by_device["A100"].schedule, by_device["H200"].schedule
    kept = {s: (s.shared + s.registers) * s.threads[0] * s.vector * s.cluster for s in (small, large)}
    assert kept[small] < 131_072 == kept[large]
    said = "a block of the A100 has 128 KiB for a row of 256 KiB: 4 steps are read again"
    assert said in str(by_device["A100"])
    assert "read again" not in str(by_device["H200"])
    assert generate(fusion, S.INNER_PERSISTENT, "cuda").kernel_ir.nests[0].schedule == large


def test_rows_without_room_for_their_columns_sums_read_again_and_the_parameters_say_so():
    def sums(fd, x):
        y = fd.ops.mul(x, fd.ops.sum(x, [1], keepdim=True))
        return [fd.ops.sum(fd.ops.mul(y, float(n + 1)), [0]) for n in range(4)]

    fusion = build(sums, [(4096, 16_384)], D.Float)
    kernels = {
        device.name: generate(fusion, S.INNER_OUTER_PERSISTENT, "cuda", device=device).kernel_ir
        for device in (A100, H200)
    }
    assert len(kernels["H200"].nests[0].space.column_sums) == 4
    assert not kernels["A100"].nests[0].space.column_sums
    assert "no block of the A100 has registers and shared memory for a row of 16384" in str(kernels["A100"].nests[0])


def test_blocks_are_as_many_as_the_device_has_multiprocessors():
    for device in ALL:
        fusion = build(totals(0, 1), [(4096, 8192)], D.Float)
        (nest, *_) = generate(fusion, S.REDUCTION, "cuda", device=device).kernel_ir.nests
        assert nest.schedule.split == 4 * device.sms
        shapes = [(4096, 8192), (4096, 8192), (8192,), (4096, 1)]
        kernel = generate(build(backward, shapes, D.BFloat16), S.INNER_OUTER_PERSISTENT, "cuda", device=device)
        assert kernel.kernel_ir.nests[0].schedule.blocks % device.sms == 0


@pytest.mark.parametrize("device", DEVICES, ids=lambda device: device.name)
def test_a_plans_segments_are_generated_for_its_target(device):
    with fl.FusionDefinition() as fd:
        fd.add_output(softmax(fd, fd.define_tensor([-1, -1], contiguity=True, dtype=fl.DataType.BFloat16)))
    plan = fl.segment(fd, [fl.spec((4096, 65_536), "bfloat16")], target=device.name)
    for segment in plan.segments:
        for nest in segment.params():
            assert nest.space.device == device
    least = plan.segments[0].params()[0].schedule
    assert least.shared * least.threads[0] * least.vector * 2 <= row_room(device, max(least.resident, 1))


@pytest.mark.property
@given(
    st.integers(0, 256), st.integers(0, 256), st.integers(1, 200), st.integers(1, 1 << 18), st.integers(1, 24),
    st.sampled_from([1, 2, 4, 8]),
)
def test_any_device_has_room_for_what_is_chosen(per_sm, per_block, sms, depth, size, vector):
    device = fl.Device(
        name="any", cc=(8, 0), sms=sms, shared_per_sm=max(per_sm, per_block) << 10, shared_per_block=per_block << 10,
        l2=0, bandwidth=1.0, fp32=1.0, bf16=1.0,
    )
    space = Space(
        kept=(4096,), reduced=(-(-depth // vector) * vector,), kept_run=1, reduced_run=1, inner_reduced=True, passes=3,
        reduces=True, vector=vector, input_bytes=size, device=device,
    )
    rows = row_loops(space)
    assert rows.shared * rows.threads[0] * vector * size <= shared_room(device, max(rows.resident, 1))
    walk_rows = backward_loops(replace(space, column_sums=(4, 4, 8)))
    if isinstance(walk_rows, LoopSchedule):
        held = walk_rows.registers * vector * walk_rows.threads[0]
        assert sum((4, 4, 8)[: walk_rows.shared]) * held <= shared_room(device, max(walk_rows.resident, 1))


def test_parameters_by_hand_are_held_to_the_device():
    with fl.FusionDefinition() as fd:
        shapes = [(4096, 8192), (4096, 8192), (8192,), (4096, 1)]
        tensors = [fd.define_tensor(list(s), contiguity=True, dtype=fl.DataType.BFloat16) for s in shapes]
        rows, *columns = backward(fd, *tensors)
        fd.add_output(fd.ops.cast(rows, fl.DataType.BFloat16))
        for total in columns:
            fd.add_output(total)
    plan = fl.segment(fd, target="A100")
    assert plan.segments[0].scheduler is S.INNER_OUTER_PERSISTENT
    two = plan.with_params(0, resident=2, shared=2)
    (launch, nbytes), *_ = shared_bytes(two.segments[0].kernel("cuda").kernel_ir)
    assert launch.shared == 2 * 8192 * 4
    assert nbytes <= A100.shared_per_sm // 2
    with pytest.raises(fl.errors.ScheduleError, match=re.escape("shared = 2 takes 65536 bytes, more than the 54613")):
        plan.with_params(0, resident=3, shared=2)
