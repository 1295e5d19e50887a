"""Fusions scheduled by hand, as in nvFuser's tutorials, and checks of their kernels without a GPU.

Kernels run in lock step with float64 as the oracle. The evaluation observes the threads of a block: between two
barriers no element of shared memory may be written by one thread and read or written by another, and every thread must
reach every barrier.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fuser_lab.api.functions import FusionDefinition
from fuser_lab.codegen import kernel_eval
from fuser_lab.codegen.kernel_ir import Barrier, Kernel, Load, Loop, Reduce, Role, Scope, Statement, Store, layout_of
from fuser_lab.codegen.pipeline import GeneratedKernel, generate_scheduled
from fuser_lab.definition.binding import bind
from fuser_lab.dtypes import DataType
from fuser_lab.interpreter import evaluate
from fuser_lab.ir import Fusion
from fuser_lab.ir.transform import MemoryType, ScheduledFusion
from fuser_lab.ir.transform import ParallelType as P
from fuser_lab.runtime.arrays import describe, flat_view, storage_dtype

TOLERANCE = {DataType.Float: 2e-5, DataType.Double: 1e-11, DataType.Half: 8e-3, DataType.BFloat16: 5e-2}


class WatchedThreads(kernel_eval.Lanes):
    """Threads in lock step that notice races in shared memory and barriers that some of them miss."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.time = 0
        self.seen: dict[str, np.ndarray] = {}
        self.writers: dict[str, np.ndarray] = {}

    def _statement(self, statement: Statement) -> None:
        if isinstance(statement, Barrier):
            self.time += 1
            assert self._mask.all(), "a barrier that some threads do not reach"
        super()._statement(statement)

    def _reduce(self, statement: Reduce) -> None:
        if statement.scope is Scope.BLOCK:
            assert self._mask.all(), "a reduction over a block that some threads do not reach"
            self.time += 1
        super()._reduce(statement)

    def _assign(self, name: str, value: Any, *, update: bool) -> None:
        known = name in self._env and np.shape(self._env[name]) == self._mask.shape
        super()._assign(name, value, update=update)
        made = self._env[name]
        if not known and not self._mask.all() and made.dtype.kind == "f":
            # A thread that has not reached this point holds nothing.
            self._env[name] = np.where(self._mask, made, np.nan).astype(made.dtype)

    def _load(self, load: Load) -> Any:
        value = super()._load(load)
        if load.buffer.role is Role.SHARED:
            self._touch(load.buffer, load.position, write=False)
        elif load.buffer.role is Role.OUTPUT:
            where, thread = self._place(load.position)
            writers = self.writers.get(load.buffer.name)
            assert writers is not None, f"{load.buffer.name} is read before it is written"
            assert (writers[where] == thread).all(), f"{load.buffer.name} is read where another thread wrote it"
        return value

    def _place(self, position: Any) -> tuple[np.ndarray, np.ndarray]:
        """The positions that threads access, and the threads."""
        where = np.broadcast_to(self._eval(position), self._mask.shape)[self._mask]
        return where, np.arange(len(self._mask))[self._mask]

    def _store(self, statement: Store) -> None:
        super()._store(statement)
        if statement.buffer.role is Role.SHARED:
            self._touch(statement.buffer, statement.position, write=True)
        elif statement.buffer.role is Role.OUTPUT:
            where, thread = self._place(statement.position)
            self.writers.setdefault(statement.buffer.name, np.full(statement.buffer.size, -1))[where] = thread

    def _touch(self, buffer: Any, position: Any, *, write: bool) -> None:
        """Rows: the time of the last write and its thread, the time of the last read and its thread."""
        blocks = int(self._blocks.max()) + 1
        seen = self.seen.setdefault(buffer.name, np.full((4, blocks, buffer.size), -1))
        place, thread = self._place(position)
        where = self._blocks[self._mask], place
        for moment, who in ((0, 1), (2, 3)) if write else ((0, 1),):
            other = (seen[moment][where] == self.time) & (seen[who][where] != thread)
            assert not other.any(), f"a race for {buffer.name}[{where[1][other][0]}]"
        row = 0 if write else 2
        several = write and len(set(zip(*where, strict=True))) < len(thread)
        assert not several, f"several threads write one element of {buffer.name}"
        # Two readers at the same time are recorded as a thread that differs from every writer.
        again = (seen[row][where] == self.time) & (seen[row + 1][where] != thread)
        seen[row][where] = self.time
        seen[row + 1][where] = np.where(again, -2, thread)
        if not write:
            shared = np.zeros(seen[0].shape, np.int64)
            np.add.at(shared, where, 1)
            seen[3][shared > 1] = -2


def bound(fd: FusionDefinition, inputs: Sequence[Any]) -> Fusion:
    """The fusion with the sizes of these inputs."""
    return bind(fd.definition, [describe(x) for x in inputs]).fusion


def generated(scheduled: ScheduledFusion, inputs: Sequence[Any]) -> GeneratedKernel:
    """The CUDA kernel of a schedule, for inputs of these strides."""
    layouts = tuple((tuple(s // x.itemsize for s in x.strides), 16) for x in inputs if isinstance(x, np.ndarray))
    return generate_scheduled(scheduled, "kernel", layouts)


def kernel_of(fd: FusionDefinition, inputs: Sequence[Any]) -> GeneratedKernel:
    """The CUDA kernel of a definition's schedule by hand, for inputs like these."""
    return generated(fd.hand.replayed(bound(fd, inputs)), inputs)


def run(scheduled: ScheduledFusion, inputs: Sequence[Any]) -> list[np.ndarray]:
    """The outputs of a schedule in lock step; every element is written exactly once, without races."""
    return run_kernel(generated(scheduled, inputs).kernel_ir, scheduled.fusion, inputs)


def run_kernel(kernel: Kernel, fusion: Fusion, inputs: Sequence[Any]) -> list[np.ndarray]:
    memory: dict[str, Any] = {}
    for value, x in zip(fusion.inputs, inputs, strict=True):
        if isinstance(x, np.ndarray):
            layout = layout_of(value, [s // x.itemsize for s in x.strides])
            memory[value.name] = flat_view(x, value.dtype, layout.size, layout.offset)
        else:
            memory[value.name] = x
    written = {tv.name: np.full(layout_of(tv).size, 77).astype(storage_dtype(tv.dtype)) for tv in fusion.outputs}
    results = {name: memory.get(name, array) for name, array in written.items()}  # an output may be an input
    plain, kernel_eval.Lanes = kernel_eval.Lanes, WatchedThreads
    try:
        trace = kernel_eval.evaluate_kernel(kernel, memory | results)
    finally:
        kernel_eval.Lanes = plain
    for name, writes in trace.writes.items():
        assert (writes == 1).all(), f"{name} is written {sorted(set(writes.tolist()))} times"
    return [results[tv.name].view(tv.dtype.numpy).reshape(tv.shape) for tv in fusion.outputs]


def without_barriers(kernel: Kernel) -> Kernel:
    """A kernel whose only phase has no barriers, not even in its loops."""
    def kept(statements: Sequence[Statement]) -> tuple[Statement, ...]:
        found = [s for s in statements if not isinstance(s, Barrier)]
        return tuple(replace(s, body=kept(s.body)) if isinstance(s, Loop) else s for s in found)

    (phase,) = kernel.phases
    return replace(kernel, phases=(replace(phase, body=kept(phase.body)),))


def check(fd: FusionDefinition, inputs: Sequence[Any]) -> None:
    """The outputs of a definition's schedule by hand agree with float64."""
    fusion = bound(fd, inputs)
    check_scheduled(fd.hand.replayed(fusion), inputs, evaluate(fusion, inputs, exact=False))


def check_scheduled(scheduled: ScheduledFusion, inputs: Sequence[Any], wanted: Sequence[np.ndarray]) -> None:
    """The outputs of a schedule are the expected ones, up to a few roundings."""
    for tv, got, expected in zip(scheduled.fusion.outputs, run(scheduled, inputs), wanted, strict=True):
        allowed = TOLERANCE[tv.dtype] * max(float(np.abs(expected).max(initial=0)), 1.0)
        np.testing.assert_allclose(got.astype(np.float64), expected, rtol=0, atol=allowed)


def arrays(shapes: Sequence[tuple[int, ...]], dtype: DataType = DataType.Float, seed: int = 0) -> list[np.ndarray]:
    """Random inputs."""
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape).astype(dtype.numpy) for shape in shapes]


# The schedules


def pointwise(dtype: DataType = DataType.Float, width: int = 4) -> FusionDefinition:
    """relu(x + bias): one loop over everything, split into blocks, threads and vectors."""
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1, -1], contiguity=True, dtype=dtype)
        b = fd.define_tensor(shape=[-1], contiguity=True, dtype=dtype)
        out = fd.ops.relu(fd.ops.add(x, fd.ops.broadcast(b, [True, False])))
        out = fd.ops.cast(out, dtype=dtype)
        fd.add_output(out)
    copy = x.cache_after()
    out.cache_before()
    out.merge(0)
    out.split(0, width)
    out.split(0, 64)
    out.transform_like()
    out.parallelize(0, P.grid_x)
    out.parallelize(1, P.block_x)
    out.parallelize_like()
    out.vectorize()
    copy.vectorize()
    fd.sched.inline_most()
    return fd


def two_directions() -> FusionDefinition:
    """exp(x) * y: rows over blocks in y and threads in y, columns in x, the innermost unrolled."""
    with FusionDefinition() as fd:
        x, y = (fd.define_tensor(shape=[-1, -1], contiguity=True) for _ in range(2))
        out = fd.ops.mul(fd.ops.exp(x), y)
        fd.add_output(out)
    out.cache_before()
    out.split(1, 2)
    out.split(1, 16)
    out.split(0, 4)
    for axis, kind in enumerate((P.grid_y, P.block_y, P.grid_x, P.block_x, P.unroll)):
        out.parallelize(axis, kind)
    out.transform_like()
    out.parallelize_like()
    fd.sched.inline_at(out, 4)
    return fd


def three_directions() -> FusionDefinition:
    """-x of three axes, each split over blocks and threads of a different direction."""
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1, -1, -1], contiguity=True)
        out = fd.ops.neg(x)
        fd.add_output(out)
    for axis, size in ((2, 8), (1, 4), (0, 2)):
        out.split(axis, size)
    for axis, kind in enumerate((P.grid_z, P.block_z, P.grid_y, P.block_y, P.grid_x, P.block_x)):
        out.parallelize(axis, kind)
    return fd


def row_sum(dtype: DataType = DataType.Float, threads: int = 64) -> FusionDefinition:
    """Rows over blocks; each thread sums its vectors (rfactor), then all threads combine their sums."""
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1, -1], contiguity=True, dtype=dtype)
        out = fd.ops.sum(x, [1])
        fd.add_output(out)
    copy = x.cache_after()
    total = out.cache_before()
    total.split(1, 16 // dtype.itemsize)
    total.split(1, threads)
    partial = total.rfactor([1, 3])
    partial.parallelize(0, P.grid_x)
    partial.parallelize(2, P.block_x)
    partial.transform_like()
    partial.parallelize_like()
    copy.vectorize()
    fd.sched.inline_most()
    return fd


def several_rows_per_block() -> FusionDefinition:
    """max over rows: threads in y have one row each, threads in x share it; no rfactor."""
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1, -1], contiguity=True)
        out = fd.ops.max(x, [1])
        fd.add_output(out)
    out.split(1, 24)
    out.split(0, 5)
    for axis, kind in ((0, P.grid_x), (1, P.block_y), (3, P.block_x)):
        out.parallelize(axis, kind)
    return fd


def column_sum() -> FusionDefinition:
    """Each thread of a block has a column, and rows are split among threads in y."""
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1, -1], contiguity=True)
        out = fd.ops.sum(fd.ops.exp(x), [0])
        fd.add_output(out)
    total = out.cache_before()
    total.split(0, 8)
    total.split(2, 32)
    total.reorder([2, 3, 0, 1])
    partial = total.rfactor([2])
    for axis, kind in ((0, P.grid_x), (1, P.block_x), (3, P.block_y)):
        partial.parallelize(axis, kind)
    partial.transform_like()
    partial.parallelize_like()
    fd.sched.inline_most()
    return fd


def whole_sum() -> FusionDefinition:
    """All elements, by one block."""
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1, -1, -1], contiguity=True)
        out = fd.ops.sum(x)
        fd.add_output(out)
    out.merge(0)
    out.merge(0)
    out.split(0, 96)
    out.parallelize(1, P.block_x)
    return fd


def softmax(memory: Any = MemoryType.local, threads: int = 32) -> FusionDefinition:
    """Rows over blocks, kept in registers or in shared memory between the passes."""
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1, -1], contiguity=True)
        largest = fd.ops.broadcast(fd.ops.max(x, [1]), [False, True])
        power = fd.ops.exp(fd.ops.sub(x, largest))
        out = fd.ops.truediv(power, fd.ops.broadcast(fd.ops.sum(power, [1]), [False, True]))
        fd.add_output(out)
    copy = x.cache_after()
    copy.set_memory_type(memory)
    power.set_memory_type(memory)
    out.cache_before()
    out.split(1, threads)
    out.transform_like()
    out.parallelize(0, P.grid_x)
    out.parallelize(2, P.block_x)
    out.parallelize_like()
    fd.sched.inline_most()
    return fd


def transpose(tile: int = 32, rows: int = 8) -> FusionDefinition:
    """Tiles are read along rows, kept in shared memory and written along columns."""
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1, -1], contiguity=True)
        turned = fd.ops.permute(x, [1, 0])
        out = fd.ops.neg(turned)
        fd.add_output(out)
    copy = x.cache_after()
    copy.set_memory_type(MemoryType.shared)
    out.split(1, tile)
    out.split(0, tile)
    out.reorder({1: 2, 2: 1})
    out.transform_like()
    out.parallelize(0, P.grid_y)
    out.parallelize(1, P.grid_x)
    out.parallelize_like()
    # From here on, loads and stores of a tile have different loops.
    out.split(2, rows)
    out.parallelize(3, P.block_y)
    out.parallelize(4, P.block_x)
    out.transform_like([turned])
    out.parallelize_like(selected_tensors=[turned])
    copy.reorder({2: 3, 3: 2})
    copy.split(2, rows)
    copy.parallelize(3, P.block_y)
    copy.parallelize(4, P.block_x)
    fd.sched.inline_most()
    return fd


def partly_inlined() -> FusionDefinition:
    """compute_at: exp(x) is computed in the outer loops of its reader, for all rounds of the inner one."""
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1, -1], contiguity=True)
        power = fd.ops.exp(x)
        out = fd.ops.neg(power)
        fd.add_output(out)
    out.split(1, 8)
    power.compute_at(out, 2)
    out.parallelize(0, P.grid_x)
    power.parallelize(0, P.grid_x)
    power.parallelize(2, P.unswitch)
    return fd


def forked_output() -> FusionDefinition:
    """exp(x) is returned and read: the returned copy and the reader share loops with it."""
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1], contiguity=True)
        power = fd.ops.exp(x)
        out = fd.ops.neg(power)
        fd.add_output(power)
        fd.add_output(out)
    returned = power.cache_fork()
    out.split(0, 32)
    out.parallelize(0, P.grid_x)
    out.parallelize(1, P.block_x)
    out.transform_like()
    out.parallelize_like()
    assert returned.scheduled.loop
    fd.sched.inline_most()
    return fd


@dataclass(frozen=True, kw_only=True)
class Case:
    """A schedule and the shapes of inputs that it is tried for."""

    name: str
    build: Callable[[], FusionDefinition]
    shapes: tuple[tuple[tuple[int, ...], ...], ...]
    dtype: DataType = DataType.Float


MATRICES = (((4, 256),), ((5, 1000),), ((1, 1),), ((7, 77),), ((2, 513),))
CASES = (
    *(
        Case(
            name=f"pointwise of {dtype.name}", build=lambda dtype=dtype, width=width: pointwise(dtype, width),
            shapes=(((8, 32), (32,)), ((7, 13), (13,)), ((1, 1), (1,)), ((33, 100), (100,))), dtype=dtype,
        )
        for dtype, width in ((DataType.Float, 4), (DataType.Double, 2), (DataType.Half, 8))
    ),
    Case(name="two directions", build=two_directions, shapes=(((8, 64),) * 2, ((9, 35),) * 2, ((1, 1),) * 2)),
    Case(name="three directions", build=three_directions, shapes=(((4, 8, 16),), ((3, 5, 9),), ((1, 1, 1),))),
    Case(name="row sum", build=row_sum, shapes=MATRICES),
    Case(
        name="row sum of Double", build=lambda: row_sum(DataType.Double, 48), shapes=MATRICES, dtype=DataType.Double,
    ),
    Case(name="several rows per block", build=several_rows_per_block, shapes=(((10, 48),), ((7, 77),), ((1, 1),))),
    Case(name="column sum", build=column_sum, shapes=(((64, 64),), ((77, 35),), ((1, 1),), ((3, 100),))),
    Case(name="whole sum", build=whole_sum, shapes=(((4, 6, 8),), ((3, 5, 7),), ((1, 1, 1),))),
    Case(name="softmax in registers", build=softmax, shapes=MATRICES),
    Case(name="softmax in shared memory", build=lambda: softmax(MemoryType.shared), shapes=MATRICES),
    Case(name="transpose", build=transpose, shapes=(((64, 64),), ((33, 70),), ((1, 5),), ((100, 3),))),
    Case(name="partly inlined", build=partly_inlined, shapes=(((4, 16),), ((3, 13),), ((1, 1),))),
    Case(name="forked output", build=forked_output, shapes=(((64,),), ((77,),), ((1,),))),
)
