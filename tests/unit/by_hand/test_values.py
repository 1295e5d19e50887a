"""Schedules by hand give float64's values without races, on odd sizes and strided inputs too."""


import numpy as np
import pytest
from hand_schedules import (
    CASES,
    Case,
    arrays,
    bound,
    check,
    kernel_of,
    pointwise,
    row_sum,
    run,
    run_kernel,
    softmax,
    transpose,
    without_barriers,
)

from fuser_lab.api.functions import FusionDefinition
from fuser_lab.codegen.kernel_ir import Barrier, Reduce, Role, Scope, Store, VectorLoad, VectorStore, walk
from fuser_lab.dtypes import DataType
from fuser_lab.errors import CodegenError
from fuser_lab.ir.transform import MemoryType
from fuser_lab.ir.transform import ParallelType as P


@pytest.mark.parametrize(
    ("case", "shapes"), [(c, s) for c in CASES for s in c.shapes], ids=lambda v: v.name if isinstance(v, Case) else "",
)
def test_values(case, shapes):
    fd = case.build()
    check(fd, arrays(shapes, case.dtype))


def test_strided_and_reversed_inputs():
    (x,) = arrays([(14, 40)])
    for view in (x[::2, ::3], x.T, x[::-1, 5:27], np.broadcast_to(x[:1], (6, 40))):
        check(row_sum(), [view])


def test_scalars_and_ops_of_all_kinds():
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1, 6], contiguity=True)
        factor = fd.define_scalar(None, dtype=x.dtype)
        y = fd.ops.mul(fd.ops.slice(x, [0, 1], [10, 5]), factor)
        z = fd.ops.pad(fd.ops.reshape(y, [10, 2, 2]), [1, 0])
        fd.add_output(fd.ops.where(fd.ops.gt(z, 0.5), z, -1.0))
        fd.add_output(fd.ops.sum(fd.ops.squeeze(fd.ops.broadcast(y, [False, True, False]), [1]), [0]))
    for tv in fd.sched.tensors():
        if not fd.sched.is_reduction(tv) and tv.ndim and len(tv.scheduled.loop) > 1:
            tv.split(0, 3)
    fd.sched.inline_most()
    check(fd, [*arrays([(10, 6)]), 1.5])


def test_loops_are_not_called_like_numbers_of_the_inputs():
    with FusionDefinition() as fd:
        seed, offset = (fd.define_scalar(None, dtype=DataType.Int) for _ in range(2))
        x = fd.define_tensor(shape=[-1, -1], contiguity=True)
        fd.add_output(fd.ops.add(x, fd.ops.uniform(0.0, 1.0, [5, 7], rng_seed=seed, rng_offset=offset)))
    assert [value.name for value in fd.fusion.inputs[:2]] == ["i0", "i1"]
    check(fd, [3, 4, *arrays([(5, 7)])])


def test_a_reshape_that_splits_a_merged_axis_keeps_its_own_loops():
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[4, 6], contiguity=True)
        y = fd.ops.exp(x)
        fd.add_output(y)
        fd.add_output(fd.ops.reshape(y, [4, 2, 3]))
    y.merge(0)
    y.transform_like()
    fd.sched.inline_most()
    check(fd, arrays([(4, 6)]))


def test_an_expanded_axis_that_a_reshape_reads_has_one_element():
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[6, 6], contiguity=True)
        repeated = fd.ops.expand(fd.ops.broadcast(x, [False, True, False]), [6, 3, 6])
        out = fd.ops.reshape(repeated, [6, 18])
        fd.add_output(out)
    out.merge(0)
    out.split(0, 4)
    out.transform_like()
    check(fd, arrays([(6, 6)]))


@pytest.mark.parametrize(
    ("threads", "scope"), [(8, Scope.WARP), (32, Scope.WARP), (96, Scope.BLOCK), (24, None), (40, None)],
)
def test_threads_of_a_row_exchange_registers_where_warps_are_whole(threads, scope):
    fd = row_sum(threads=threads)
    inputs = arrays([(5, 700)])
    check(fd, inputs)
    statements = [s for phase in kernel_of(fd, inputs).kernel_ir.phases for s in walk(phase.body)]
    assert [s.scope for s in statements if isinstance(s, Reduce)] == [scope] * (scope is not None)
    tree = [s for s in statements if isinstance(s, Store) and s.buffer.role is Role.SHARED]
    assert bool(tree) == (scope is None)


def test_warps_of_a_repeated_reduction_wait_before_they_exchange_again():
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1, -1], contiguity=True)
        out = fd.ops.sum(x, [1])
        fd.add_output(out)
    out.split(0, 4)
    out.split(2, 64)
    partial = out.rfactor([2])
    partial.parallelize(0, P.grid_x)
    partial.parallelize(3, P.block_x)
    partial.transform_like()
    partial.parallelize_like()
    fd.sched.inline_most()
    inputs = arrays([(9, 200)])
    check(fd, inputs)
    broken = without_barriers(kernel_of(fd, inputs).kernel_ir)
    with pytest.raises(CodegenError, match=r"is the only wait of an iteration of 'for i0 in \.\.\.'"):
        run_kernel(broken, bound(fd, inputs), inputs)


def test_a_result_of_a_row_is_stored_once():
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1, -1], contiguity=True)
        total = fd.ops.broadcast(fd.ops.sum(x, [1]), [False, True])
        root = fd.ops.tanh(total)
        out = fd.ops.mul(x, root)
        fd.add_output(root)
        fd.add_output(out)
    root.cache_fork()
    out.split(1, 32)
    out.transform_like()
    out.parallelize(0, P.grid_x)
    out.parallelize(2, P.block_x)
    out.parallelize_like()
    fd.sched.inline_most()
    check(fd, arrays([(3, 160)]))


def test_no_elements():
    fd = pointwise()
    got = fd.manual_execute(arrays([(0, 8), (8,)]))
    assert got[0].shape == (0, 8)


@pytest.mark.parametrize("build", [pointwise, row_sum, softmax, transpose])
def test_without_a_schedule_the_same_fusion_has_the_same_values(build):
    fd = build()
    shapes = [(6, 50), (50,)] if build is pointwise else [(6, 50)]
    inputs = arrays(shapes)
    by_hand = run(fd.hand.replayed(bound(fd, inputs)), inputs)
    fd.sched.undo(len(fd.sched.transforms))
    assert fd.sched.transforms == ()
    np.testing.assert_allclose(fd.execute(inputs)[0], by_hand[0], rtol=2e-5, atol=1e-6)


def test_a_vector_access_is_one_where_sizes_allow_it_and_several_where_they_do_not():
    fd = pointwise()

    def vectors(shape):
        kernel = kernel_of(fd, arrays([shape, shape[1:]])).kernel_ir
        return [type(s) for s in walk(kernel.phases[0].body) if isinstance(s, VectorLoad | VectorStore)]

    assert vectors((3, 8)) == [VectorLoad, VectorStore]
    assert vectors((3, 7)) == []


def test_barriers_stand_between_writing_and_reading_shared_memory_only():
    def barriers(fd):
        kernel = kernel_of(fd, arrays([(4, 64)])).kernel_ir
        return sum(isinstance(s, Barrier) for s in walk(kernel.phases[0].body))

    local, shared = barriers(softmax()), barriers(softmax(MemoryType.shared))
    assert shared == local + 2
    assert barriers(transpose()) == 1


def test_shared_memory_in_a_loop_is_not_written_before_all_have_read():
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1, -1], contiguity=True)
        out = fd.ops.neg(x)
        fd.add_output(out)
    copy = x.cache_after()
    copy.set_memory_type(MemoryType.shared)
    out.split(1, 16)
    out.transform_like()
    # All threads run loop 1 together; each reads in it what an adjacent one has written.
    out.split(2, 4)
    out.parallelize(2, P.block_x)
    out.parallelize(3, P.block_y)
    copy.split(2, 4)
    copy.parallelize(2, P.block_y)
    copy.parallelize(3, P.block_x)
    fd.sched.inline_at(out, 2)
    assert copy.scheduled.compute_at == 2
    check(fd, arrays([(3, 70)]))


def test_manual_execution_on_numpy_of_any_size():
    fd = row_sum()
    for shape in ((3, 100), (2, 257), (3, 100)):
        (x,) = arrays([shape])
        np.testing.assert_allclose(fd.manual_execute([x])[0], x.sum(1, dtype=np.float64), rtol=1e-5, atol=1e-5)


def test_what_is_written_over_an_input():
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1], contiguity=True)
        y = fd.ops.mul(x, 2.0)
        fd.add_output(y, x)
        out = fd.ops.neg(y)
        fd.add_output(out)
    y.split(0, 4)
    (x,) = arrays([(10,)])
    before = x.copy()
    (got,) = fd.manual_execute([x])
    np.testing.assert_allclose(x, before * 2)
    np.testing.assert_allclose(got, before * -2)


def test_shared_memory_inside_the_loop_over_threads_has_a_place_for_each():
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1], contiguity=True)
        r = fd.define_tensor(shape=[-1, 1], contiguity=[True, None])
        out = fd.ops.mul(fd.ops.broadcast(x, [True, False]), r)
        fd.add_output(out)
    for tv in (x, r):
        tv.cache_after().set_memory_type(MemoryType.shared)
    out.parallelize(0, P.block_y)
    out.parallelize(1, P.block_x)
    out.transform_like()
    out.parallelize_like()
    fd.sched.inline_most()
    check(fd, arrays([(12,), (5, 1)]))


def test_one_thread_in_the_direction_of_a_reduction():
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1, -1], contiguity=True)
        out = fd.ops.sum(x, [1])
        fd.add_output(out)
    out.split(1, 8, inner_split=False)
    out.parallelize(1, P.block_y)
    out.parallelize(2, P.block_x)
    check(fd, arrays([(3, 5)]))
    check(fd, arrays([(3, 50)]))


def test_a_tensor_in_a_loop_of_its_reader_that_has_a_new_broadcast_axis_outside():
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1], contiguity=True)
        y = fd.define_tensor(shape=[-1, -1], contiguity=True)
        out = fd.ops.add(fd.ops.broadcast(fd.ops.exp(x), [True, False]), y)
        fd.add_output(out)
    fd.sched.inline_most()
    check(fd, arrays([(4,), (3, 4)]))


def test_one_element_along_a_loop_that_many_threads_have():
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1, -1], contiguity=True)
        r = fd.define_tensor(shape=[-1, 1], contiguity=[True, None])
        out = fd.ops.mul(x, fd.ops.neg(r))
        fd.add_output(out)
    out.merge(0)
    out.parallelize(0, P.block_x)
    out.transform_like()
    out.parallelize_like()
    # All threads hold the one row of r, and each holds an element of x.
    check(fd, arrays([(1, 4), (1, 1)]))
