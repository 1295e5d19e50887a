"""Each illegal transform is refused in one sentence, and leaves the schedule unchanged."""

import re

import pytest
from hand_schedules import arrays, check

from fuser_lab.api.functions import FusionDefinition
from fuser_lab.codegen.kernel_ir import Kernel, Launch, Loop, Phase
from fuser_lab.codegen.numba_cpu import CpuEmitter
from fuser_lab.cost.verdict import SchedulerType
from fuser_lab.errors import CodegenError, ScheduleError, UnsupportedError
from fuser_lab.ir.term import index
from fuser_lab.ir.transform import GLOBAL, MemoryType
from fuser_lab.ir.transform import ParallelType as P
from fuser_lab.nvfuser_direct import LoadStoreOpType


class Scene:
    """x [i0, i1] -> y = exp(x) -> s = sum(y, 1) -> z = y * s: tensors for transforms."""

    def __init__(self) -> None:
        with FusionDefinition() as self.fd:
            self.x = self.fd.define_tensor(shape=[-1, -1], contiguity=[True, True])
            self.y = self.fd.ops.exp(self.x)
            self.s = self.fd.ops.sum(self.y, [1])
            self.z = self.fd.ops.mul(self.y, self.fd.ops.broadcast(self.s, [False, True]))
            self.fd.add_output(self.z)
            self.dead = self.fd.ops.neg(self.x)


def copied(c: Scene):
    copy = c.x.cache_after()
    copy.split(1, 4)
    return copy


def inlined(c: Scene):
    c.z.split(1, 4)
    c.z.transform_like([c.y])
    c.fd.sched.inline_most()
    return c.y


def transposed_copy(c: Scene):
    copy = c.x.cache_after()
    copy.reorder([1, 0])
    copy.split(1, 4)
    copy.vectorize()


def strided_copy(c: Scene):
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1, -1], contiguity=[True, False])
        fd.add_output(fd.ops.neg(x))
    copy = x.cache_after()
    copy.split(1, 4)
    copy.vectorize()


ILLEGAL = [
    (lambda c: c.y.split(2, 4), "split: axis 2 is out of range; T1 has 2 loops."),
    (lambda c: c.y.split(-3, 4), "split: axis -3 is out of range; T1 has 2 loops."),
    (lambda c: c.y.split(0, 0), "split: factor is 0; T1 can be split by 1 or more."),
    (lambda c: c.y.split(0, -4), "split: factor is -4"),
    (lambda c: (c.y.parallelize(0, P.block_x), c.y.split(0, 4)),
     "split: axis 0 of T1 is on threadIdx.x; split before parallelizing."),
    (lambda c: inlined(c).split(0, 2), "split: axis 0 of T1 is one of the first 1 loops, which are shared with"),
    (lambda c: (inlined(c), c.s.split(0, 2)), "split: axis 0 of T2 is one of the first 1 loops, which are shared"),
    (lambda c: c.y.merge(1), "merge: axis 2 is out of range; T1 has 2 loops."),
    (lambda c: (c.y.split(0, 4), c.y.merge(0, 2)), "merge: axes 0 and 2 of T1 are not neighbours"),
    (lambda c: c.y.merge(1, 0), "merge: axes 1 and 0 of T1 are not neighbours, outer before inner; reorder first."),
    (lambda c: c.s.merge(0), "so they cannot be merged."),
    (lambda c: (c.y.parallelize(0, P.grid_x), c.y.merge(0)), "merge: axis 0 of T1 is on blockIdx.x"),
    (lambda c: c.y.reorder({0: 2}), "reorder: axis 2 is out of range; T1 has 2 loops."),
    (lambda c: c.y.reorder({0: 1, 1: 1}), "reorder: {0: 1, 1: 1} moves two axes of T1 to one position"),
    (lambda c: inlined(c).reorder({0: 1}), "reorder: the first 1 loops of T1 are shared with other tensors"),
    (lambda c: c.y.parallelize(3, P.block_x), "parallelize: axis 3 is out of range"),
    (lambda c: (c.y.parallelize(0, P.block_x), c.y.parallelize(1, P.block_x)),
     "parallelize: T1 already has an axis on threadIdx.x; only one is allowed."),
    (lambda c: c.s.parallelize(1, P.grid_x), "of T2 is reduced, and blocks cannot combine their results in one kernel"),
    (lambda c: copied(c).parallelize(1, P.vectorize), "it is not the innermost loop."),
    (lambda c: c.y.vectorize(),
     "T1 cannot vectorize iS3{i1}: a vector has 1, 2, 4, 8 or 16 elements and at most 16 bytes"),
    (lambda c: (c.y.split(1, 3), c.y.vectorize()), "and this axis has 3 of 4 bytes."),
    (lambda c: (c.y.split(1, 8), c.y.vectorize()), "and this axis has 8 of 4 bytes."),
    (lambda c: (c.y.split(1, 4), c.y.vectorize()), "only a copy from or to global memory can be one access"),
    (lambda c: (c.s.split(1, 4), c.s.vectorize()), "it is a reduction axis."),
    (transposed_copy, "it does not run along the axis of T0 that is contiguous in memory."),
    (strided_copy, "T0 is not contiguous along it."),
    (lambda c: c.z.cache_after(), "cache_after: nothing reads T4; cache_before makes a copy before an output."),
    (lambda c: c.x.cache_before(), "cache_before: T0 is an input; cache_after makes a copy after it."),
    (lambda c: c.z.cache_fork(), "cache_fork: T4 must be an output that other tensors are computed from."),
    (lambda c: inlined(c).cache_after(), "cache_after: loops of T1 are already shared with other tensors"),
    (lambda c: c.y.rfactor([1]), "rfactor: T1 is not the result of a reduction."),
    (lambda c: c.s.rfactor([0]), "rfactor: axis 0 of T2 is iS4{i0}, which is not reduced."),
    (lambda c: c.s.rfactor([1]), "rfactor: T2 must keep at least one of its 1 reduction axes and move at least one."),
    (lambda c: (c.s.split(1, 4), c.s.rfactor([])), "rfactor: T2 must keep at least one"),
    (lambda c: c.s.rfactor([5]), "rfactor: axis 5 is out of range; T2 has 2 loops."),
    (lambda c: c.x.set_memory_type(MemoryType.shared), "T0 is an input or output, which are stored in global memory"),
    (lambda c: c.y.set_memory_type(GLOBAL), "T1 is an intermediate tensor; a kernel keeps it in local or shared"),
    (lambda c: c.s.inline_at(2),
     "inline_at: T2 cannot be computed inside 2 loops of its consumers: rS5{i1} is reduced in T2"),
    (lambda c: c.s.inline_at(-1),
     "inline_at: T2 cannot be computed inside 2 loops of its consumers, which pos=-1 stands for: rS5{i1} is reduced"),
    (lambda c: c.s.compute_at(c.z, 2),
     "compute_at: T2 cannot be computed inside 2 loops of its consumers: rS5{i1} is reduced in T2"),
    (lambda c: c.s.compute_at(c.z),
     "compute_at: T2 cannot be computed inside 2 loops of its consumers, which pos=-1 stands for: rS5{i1} is reduced"),
    (lambda c: c.y.inline_at(2), "T1 is needed again after a reduction over loop 1, iS3{i1}."),
    (lambda c: c.y.inline_at(3), "inline_at: position 3 is out of range; T1 has 2 loops."),
    (lambda c: (c.z.split(1, 4), c.y.inline_at(2)), "loop 1 of T1, iS3{i1}, is not a loop of T4."),
    (lambda c: c.fd.sched.inline_at(c.z, 2, selected_tensors=[c.s]), "rS5{i1} is reduced in T2"),
    (lambda c: c.z.compute_at(c.y), "compute_at: T1 is not computed from T4"),
    (lambda c: c.x.compute_at(c.z), "or T0 is an input; cache_after makes a copy."),
    (lambda c: c.y.compute_at(c.z, 1, "most"), "compute_at: mode must be 'standard' or 'best_effort', given 'most'."),
    (lambda c: c.y.bounded_transform_backward(1, [c.z]), "bounded_transform_backward: T1 is not computed from T4."),
    (lambda c: c.z.bounded_transform_backward(4, [c.x]), "position 4 is out of range; T4 has 2 loops."),
    (lambda c: (c.z.merge(0), c.z.transform_like()), "merge axes of which T2 reduces only one"),
    (lambda c: (inlined(c), c.z.split(0, 2)), "split: axis 0 of T4 is one of the first 1 loops"),
    (lambda c: c.dead.split(0, 2), "T5 is not a tensor that any output of this fusion needs."),
    (lambda c: c.fd.sched.undo(1), "undo: 1 transforms cannot be undone; there are 0."),
]


@pytest.mark.parametrize(("act", "says"), ILLEGAL, ids=[says[:50] for _, says in ILLEGAL])
def test_illegal_transforms(act, says):
    scene = Scene()
    with pytest.raises(ScheduleError, match=re.escape(says)) as raised:
        act(scene)
    sentence = str(raised.value)
    assert sentence.endswith(".")
    assert "\n" not in sentence
    # Earlier, legal transforms are still there and work.
    scene.fd.sched.steps()
    assert scene.fd.sched.user_schedule_ir()


UNSUPPORTED = [
    (lambda c: c.y.parallelize(0, P.mma), "ParallelType.mma is not supported: Numba has no tensor core instructions."),
    (lambda c: c.y.parallelize(0, P.tma), "ParallelType.tma is not supported: Numba has no bulk copies (TMA)."),
    (lambda c: c.y.parallelize(0, P.mesh_x), "fuser_lab runs on one device"),
    (lambda c: c.y.parallelize(0, P.stream), "run on one stream"),
    (lambda c: c.x.cache_after(LoadStoreOpType.tma), "Numba has no such instruction"),
    (lambda c: c.x.cache_after(LoadStoreOpType.cp_async), "Numba has no such instruction"),
    (lambda c: c.z.cache_before(LoadStoreOpType.load_matrix), "Numba has no such instruction"),
    (lambda c: c.y.set_memory_type(MemoryType.tensor), "Numba has no tensor memory"),
    (lambda c: c.y.set_memory_type(MemoryType.symmetric), "fuser_lab runs on one device"),
    (lambda c: c.y.swizzle(0, 1), "swizzle is not supported"),
    (lambda c: c.y.circular_buffer(2), "no asynchronous copies"),
    (lambda c: c.fd.sched.warp_specialize(c.y), "warps of one block different programs"),
]


@pytest.mark.parametrize(("act", "says"), UNSUPPORTED, ids=[says[:40] for _, says in UNSUPPORTED])
def test_what_numba_cannot_say_is_refused_by_name(act, says):
    with pytest.raises(UnsupportedError, match=re.escape(says)):
        act(Scene())


@pytest.mark.parametrize(
    ("act", "says"),
    [
        (lambda c: c.y.split("a", 2), "split: axis must be a whole number, given 'a'."),
        (lambda c: c.y.split(0, 2.5), "split: factor must be a whole number, given 2.5."),
        (lambda c: c.y.reorder(3), "reorder: order must be a mapping of old positions to new ones, given 3."),
        (lambda c: c.y.parallelize(0, "TIDx"), "parallelize: a ParallelType is needed, given 'TIDx'."),
        (lambda c: c.y.set_memory_type("shared"), "set_memory_type: a MemoryType is needed, given 'shared'."),
        (lambda c: c.fd.sched.inline_most([1]), "inline_most: a list of tensors is needed, given 1."),
    ],
)
def test_arguments_of_another_kind(act, says):
    with pytest.raises(TypeError, match=re.escape(says)):
        act(Scene())


def negated(shape):
    """y = -exp(x) of a static shape."""
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=shape, contiguity=True)
        y = fd.ops.exp(x)
        z = fd.ops.neg(y)
        fd.add_output(z)
    return fd, x, y, z


def thread_reads_another():
    fd, _, y, z = negated([64])
    y.split(0, 8)
    y.parallelize(1, P.block_x)
    z.split(0, 8)
    z.parallelize(0, P.block_x)
    return fd


def block_reads_another():
    fd, _, y, z = negated([64])
    y.set_memory_type(MemoryType.shared)
    y.split(0, 8)
    y.parallelize(1, P.grid_x)
    z.split(0, 8)
    z.parallelize(0, P.grid_x)
    return fd


def too_many_threads():
    fd, _, _, z = negated([64, 64])
    z.parallelize(0, P.block_x)
    z.parallelize(1, P.block_y)
    return fd


def too_much_shared():
    fd, _, y, _ = negated([64, 1024])
    y.set_memory_type(MemoryType.shared)
    return fd


def two_types_for_one_loop():
    fd, _, y, z = negated([64])
    fd.sched.inline_most()
    y.parallelize(0, P.block_x)
    z.parallelize(0, P.block_y)
    return fd


def reduced_over_blocks_by_sharing():
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[8, 8], contiguity=True)
        s = fd.ops.sum(x, [1])
        fd.add_output(fd.ops.max(s, [0]))
    s.parallelize(0, P.grid_x)
    fd.sched.inline_most()
    return fd


def output_read_by_other_threads():
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[8, 8], contiguity=True)
        s = fd.ops.sum(x, [1])
        out = fd.ops.mul(x, fd.ops.broadcast(s, [False, True]))
        fd.add_output(s)
        fd.add_output(out)
    out.parallelize(1, P.block_x)
    return fd


def loops_that_wait_for_each_other():
    fd = Scene().fd
    tensor = next(tv for tv in fd.sched.tensors() if tv.name == "T1")
    tensor.inline_at(1)
    return fd


def welford():
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[8, 8], contiguity=True)
        y = fd.ops.var_mean(x, [1])[0]
        fd.add_output(y)
    y.split(0, 2)
    return fd


@pytest.mark.parametrize(
    ("build", "error", "says"),
    [
        (thread_reads_another, ScheduleError,
         "loop 1 of T1 (iS4{8}, block_x) does not fit T2, which reads a value computed by another thread; shared"),
        (block_reads_another, ScheduleError, "does not fit T2, which reads a value computed by another block."),
        (too_many_threads, ScheduleError, "64 x 64 x 1 = 4096 threads per block; at most 1024 are allowed."),
        (too_much_shared, ScheduleError, "needs 262144 bytes of shared memory per block (T1_shared 262144)"),
        (two_types_for_one_loop, ScheduleError,
         "T2 and T1 share a loop that is parallelized as threadIdx.y in the first and as threadIdx.x in the second."),
        (reduced_over_blocks_by_sharing, ScheduleError,
         "T2 reduces loop 0, rS4{8}, which it shares with a tensor that splits it among blocks"),
        (output_read_by_other_threads, ScheduleError,
         "T2 reads the output T1 in threads that have not written it; use cache_fork on T1, so that the value"),
        (loops_that_wait_for_each_other, ScheduleError, "share would have to run before and after each other; inline"),
        (welford, UnsupportedError, "welford (T"),
    ],
)
def test_schedules_that_no_kernel_follows(build, error, says):
    fd = build()
    inputs = arrays([(8, 8) if build is loops_that_wait_for_each_other else fd.definition.tensor_inputs[0].shape])
    with pytest.raises(error, match=re.escape(says)):
        fd.manual_execute(inputs)


def test_shared_memory_is_the_advice_that_helps():
    fd = thread_reads_another()
    tensor = next(tv for tv in fd.sched.tensors() if tv.name == "T1")
    tensor.set_memory_type(MemoryType.shared)
    check(fd, arrays([(64,)]))


def test_the_cpu_printer_refuses_threads_of_a_block():
    loop = Loop(var="tidx", start=index(0), stop=index(32), body=(), parallel=P.block_x)
    phase = Phase(name="f", buffers=(), scalars=(), body=(loop,), launch=Launch())
    alone = Kernel(
        name="f", target="cpu", scheduler=SchedulerType.POINTWISE, inputs=(), scalars=(), outputs=(), workspace=(),
        phases=(phase,), ops=(),
    )
    with pytest.raises(CodegenError, match="the CPU cannot run a loop over threadIdx.x"):
        CpuEmitter(alone).source()
