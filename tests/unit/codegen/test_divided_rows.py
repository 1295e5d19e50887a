"""GPU kernels of rows with any alignment in lock step: whole accesses, the first and the last used in part."""

import re
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import pytest
from backend.fusions import D, S, build, numbers
from backend.reductions import add_norm, softmax, totals
from unit.codegen.test_gpu_reductions import check

import fuser_lab as fl
from fuser_lab import FusionDefinition
from fuser_lab.codegen.index_map import index_var
from fuser_lab.codegen.kernel_eval import Lanes, evaluate_kernel
from fuser_lab.codegen.kernel_ir import If, Kernel, Let, Loop, Role, Statement, Store, VectorLoad, VectorStore, walk
from fuser_lab.cost.device import H200
from fuser_lab.dtypes import DataType
from fuser_lab.errors import ScheduleError
from fuser_lab.interpreter import evaluate
from fuser_lab.ir.term import Const, Var
from fuser_lab.runtime.gpu.ptx import kernel_key
from fuser_lab.schedule import gpu_row_loops
from fuser_lab.schedule.gpu_row_loops import row_loops
from fuser_lab.schedule.parameters import LoopChange
from fuser_lab.schedule.state import Space
from tests.kernels import generate, lower

LENGTHS = [129, 251, 1021, 1535, 4099, 20_001, 40_003]
VECTOR = {D.Float: 4, D.BFloat16: 8, D.Half: 8}


def widths(kernel: Kernel, kind: type, role: Role) -> set[int]:
    return {
        s.width for phase in kernel.phases for s in walk(phase.body) if isinstance(s, kind) and s.buffer.role is role
    }


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("dtype", VECTOR, ids=lambda d: d.name)
class TestLengths:
    @pytest.mark.sampled(4)
    def test_softmax(self, length: int, dtype: DataType) -> None:
        x = numbers((9, length), dtype)
        kernel = check(build(softmax, [x.shape], dtype), S.INNER_PERSISTENT, [x])
        (nest,) = kernel.nests
        assert 2 <= nest.schedule.vector <= VECTOR[dtype]
        assert widths(kernel, VectorLoad, Role.INPUT) == {nest.schedule.vector}
        assert widths(kernel, VectorStore, Role.OUTPUT) == {nest.schedule.vector}

    @pytest.mark.sampled(4)
    def test_sums(self, length: int, dtype: DataType) -> None:
        x = numbers((300, length if length < 5000 else 2051), dtype)  # a few rows are split into parts
        kernel = check(build(totals(1), [x.shape], dtype), S.REDUCTION, [x])
        assert widths(kernel, VectorLoad, Role.INPUT) == {VECTOR[dtype]}


@pytest.mark.parametrize(("length", "shifted"), [(251, False), (1021, True), (1023, True)])
@pytest.mark.parametrize("dtype", [D.BFloat16, D.Half], ids=lambda d: d.name)
def test_what_all_rows_share_is_put_together_from_whole_accesses(
    monkeypatch: pytest.MonkeyPatch, length: int, dtype: DataType, shifted: bool,
) -> None:
    monkeypatch.setattr(gpu_row_loops, "SHIFTED_STEPS", 0)  # accesses as wide as those of long rows
    shapes = [(41, length), (41, length), (length,)]
    inputs = [numbers(s, dtype, n) for n, s in enumerate(shapes)]
    kernel = check(build(add_norm, shapes, dtype), S.INNER_PERSISTENT, inputs)
    loads = [s for p in kernel.phases for s in walk(p.body) if isinstance(s, VectorLoad)]
    assert {s.buffer.name for s in loads if s.buffer.role is Role.INPUT and not s.shifted} == {"T0", "T1"}
    assert {s.buffer.name for s in loads if s.shifted} == ({"T2"} if shifted else set())


def masked(fd: Any, x: Any, mask: Any) -> Any:
    return fd.ops.cast(fd.ops.softmax(fd.ops.where(mask, fd.ops.cast(x, dtype=D.Float), -1e4), 1), dtype=D.BFloat16)


def test_dtypes_of_two_sizes() -> None:
    shape = (7, 1999)
    inputs = [numbers(shape, D.BFloat16), numbers(shape, D.Bool, 1)]
    kernel = check(build(masked, [shape, shape], [D.BFloat16, D.Bool]), S.INNER_PERSISTENT, inputs)
    assert widths(kernel, VectorLoad, Role.INPUT) == {4}


@pytest.mark.parametrize(("length", "weight"), [(1018, D.Float), (250, D.BFloat16), (1022, D.Float)])
def test_what_all_rows_share_has_nothing_before_it(length: int, weight: DataType) -> None:
    def record(fd: Any, x: Any, w: Any) -> Any:
        y = fd.ops.rms_norm(fd.ops.cast(x, dtype=D.Float), [length], fd.ops.cast(w, dtype=D.Float), eps=1e-5)
        return fd.ops.cast(y, dtype=D.BFloat16)

    inputs = [numbers((40, length), D.BFloat16), numbers((length,), weight, 1)]
    kernel = check(build(record, [(40, length), (length,)], [D.BFloat16, weight]), S.INNER_PERSISTENT, inputs)
    (nest,) = kernel.nests
    assert nest.schedule.vector in widths(kernel, VectorLoad, Role.INPUT) - {1}


@pytest.mark.parametrize("shape", [(2, 3, 515), (1, 515), (515,)], ids=str)
def test_rows_of_batches_and_single_ones(shape: tuple[int, ...]) -> None:
    x = numbers(shape, D.Float)
    fusion = build(lambda fd, x: fd.ops.softmax(x, -1), [x.shape], D.Float)
    assert widths(check(fusion, S.INNER_PERSISTENT, [x]), VectorStore, Role.OUTPUT) == {2}


def test_numbers_of_rows_share_kernels() -> None:
    sizes = [*range(2, 18), *(n * n + n // 3 for n in range(5, 84, 4)), 40_000, 65_536, 99_991]
    kernels = [generate(build(softmax, [(size, 1021)], D.BFloat16), S.INNER_PERSISTENT, "cuda") for size in sizes]
    assert len({kernel_key(kernel) for kernel in kernels}) <= 5


def test_rows_apart_in_memory() -> None:
    """Rows of 515 with strides 515 and 523 have the same alignment, 8 elements apart; 515 and 522 have not."""
    for line, expected in ((523, {2}), (522, set())):
        x = numbers((6, line), D.Float)[:, :515]
        kernel = check(build(softmax, [x.shape], D.Float), S.INNER_PERSISTENT, [x])
        assert widths(kernel, VectorStore, Role.OUTPUT) == expected


def test_rows_from_the_last_to_the_first() -> None:
    for length in (1021, 1022):
        x = numbers((6, length), D.BFloat16)[::-1]
        check(build(softmax, [x.shape], D.BFloat16), S.INNER_PERSISTENT, [x])


def test_an_address_that_allows_less() -> None:
    x = numbers((6, 515), D.Float)
    for alignment, expected in ((8, {2}), (4, set())):
        kernel = check(build(softmax, [x.shape], D.Float), S.INNER_PERSISTENT, [x], {"T0": alignment})
        assert widths(kernel, VectorLoad, Role.INPUT) == expected


@pytest.mark.parametrize(("length", "dtype"), [(1021, D.Double), (1022, D.Float), (1020, D.BFloat16)])
def test_rows_that_begin_where_eight_bytes_do_are_left_whole(length: int, dtype: DataType) -> None:
    x = numbers((9, length), dtype)
    kernel = check(build(softmax, [x.shape], dtype), S.INNER_PERSISTENT, [x])
    assert all(loops.schedule.vector * dtype.itemsize == 8 for loops in kernel.nests)


@pytest.mark.parametrize("dtype", [D.BFloat16, D.Float, D.Double], ids=lambda d: d.name)
@pytest.mark.parametrize("shape", [(64, 31), (96, 7), (40, 130), (2, 9, 64, 29), (56, 250)], ids=str)
def test_short_rows_pass_through_shared_memory(shape: tuple[int, ...], dtype: DataType) -> None:
    def of_last(fd: Any, x: Any) -> Any:
        return fd.ops.cast(fd.ops.softmax(x if dtype is D.Double else fd.ops.cast(x, D.Float), -1), dtype)

    kernel = check(build(of_last, [shape], dtype), S.INNER_PERSISTENT, [numbers(shape, dtype)])
    staged = shape[-1] * dtype.itemsize % 8 != 0  # otherwise, accesses of 8 bytes begin with each row
    assert all(nest.schedule.staged is staged for nest in kernel.nests)
    if staged:
        whole = 16 // dtype.itemsize
        assert widths(kernel, VectorLoad, Role.INPUT) == widths(kernel, VectorStore, Role.OUTPUT) == {whole}
        body = [s for phase in kernel.phases for s in walk(phase.body)]
        assert not [s for s in body if isinstance(s, Store) and s.buffer.role is Role.OUTPUT]


@pytest.mark.parametrize("length", [33, 65, 127, 257, 333])
def test_rows_of_lengths_that_gain_nothing_do_not_pass_through_shared_memory(length: int) -> None:
    kernel = check(build(softmax, [(64, length)], D.Float), S.INNER_PERSISTENT, [numbers((64, length), D.Float)])
    assert not any(nest.schedule.staged for nest in kernel.nests)


def test_short_rows_of_which_no_number_fills_accesses_are_taken_element_by_element() -> None:
    for shape in ((41, 31), (40, 7)):
        x = np.asarray(numbers((shape[0], shape[1] + 2), D.Float))[:, : shape[1]]
        x = np.ascontiguousarray(x) if shape[0] % 2 else x  # 40 rows with gaps
        assert not widths(check(build(softmax, [shape], D.Float), S.INNER_PERSISTENT, [x]), VectorLoad, Role.INPUT)


def compared(fd: Any, x: Any, w: Any) -> Any:
    """Several results of rows, of other sizes than the input, one of a row, and an input that all rows share."""
    highest = fd.ops.max(fd.ops.mul(x, w), [1], keepdim=True)
    return fd.ops.ge(x, highest), fd.ops.squeeze(highest, [1]), fd.ops.cast(fd.ops.sub(x, highest), D.Half)


def test_results_of_several_sizes_pass_through_shared_memory() -> None:
    inputs = [numbers((64, 31), D.Float), numbers((31,), D.Float, 1)]
    kernel = check(build(compared, [(64, 31), (31,)], D.Float), S.INNER_PERSISTENT, inputs)
    assert all(nest.schedule.staged for nest in kernel.nests)
    assert widths(kernel, VectorStore, Role.OUTPUT) == {8, 16}


def test_rows_are_summed_through_shared_memory() -> None:
    x = numbers((64, 31), D.Float)
    kernel = check(build(lambda fd, x: fd.ops.sum(x, [1]), [x.shape], D.Float), S.REDUCTION, [x])
    assert all(nest.schedule.staged for nest in kernel.nests)


@pytest.mark.parametrize(("values", "staged"), [
    ({"threads": (8, 16)}, True), ({"threads": (32, 4)}, True), ({"threads": (8, 6)}, False),
    ({"threads": (64, 1)}, False), ({"cluster": 2, "threads": 32}, False), ({"unroll": 2}, True),
])
def test_staged_rows_with_parameters_given_by_hand(values: dict[str, Any], staged: bool) -> None:
    fusion = build(softmax, [(64, 131)], D.Float)
    change = LoopChange(target="cuda", nest=0, values=tuple(sorted(values.items())))
    kernel = generate(fusion, S.INNER_PERSISTENT, "cuda", changes=(change,)).kernel_ir
    assert kernel.nests[0].schedule.staged is staged
    x = numbers((64, 131), D.Float)
    memory = {"T0": x.reshape(-1).copy(), kernel.outputs[0].name: np.zeros(x.size, np.float32)}
    evaluate_kernel(kernel, memory)
    (wanted,) = evaluate(fusion, [x], exact=False)
    np.testing.assert_allclose(memory[kernel.outputs[0].name].reshape(x.shape), wanted, rtol=1e-5)


def test_rows_with_two_weights_are_left_whole() -> None:
    def record(fd: Any, x: Any, w: Any, b: Any) -> Any:
        return fd.ops.layer_norm(x, [1021], w, b)

    shapes = [(41, 1021), (1021,), (1021,)]
    inputs = [numbers(s, D.Float, n) for n, s in enumerate(shapes)]
    assert not widths(check(build(record, shapes, D.Float), S.INNER_PERSISTENT, inputs), VectorLoad, Role.INPUT)


def test_few_rows_are_still_cut_into_parts() -> None:
    space = Space(
        kept=(4,), reduced=(1_000_003,), kept_run=4, reduced_run=1_000_003, inner_reduced=True, passes=1, reduces=True,
        vector=8, shifted=True, device=H200,
    )
    found = row_loops(space)
    assert found.split > 1
    assert found.vector == 1


def test_parameters_given_by_hand() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([4096, 4099], contiguity=True, dtype=D.Float)
        fd.add_output(fd.ops.sum(x, [1]))
    plan = fl.segment(fd)
    with pytest.raises(ScheduleError, match="split = 2 requires vector = 1: rows of 4099 begin anywhere"):
        plan.with_params(0, split=2)
    given = plan.with_params(0, split=2, vector=1)
    assert "load_vector" not in given.segments[0].source("cuda")
    for vector in (1, 2, 4):
        y = numbers((5, 4099), D.Float)
        with FusionDefinition() as fd:
            z = fd.define_tensor([5, 4099], contiguity=True, dtype=D.Float)
            fd.add_output(fd.ops.softmax(z, 1))
        source = fl.segment(fd).with_params(0, vector=vector).segments[0].source("cuda")
        assert bool(re.search(r"load_\w+\(T0, ", source)) is (vector > 1)
        assert np.isfinite(y).all()


class Watched(Lanes):
    """Records the stores of lanes: the number of each lane in its block, and the position."""

    stores: ClassVar[list[tuple[np.ndarray, np.ndarray]]] = []

    def _move(self, move: VectorLoad | VectorStore) -> None:
        super()._move(move)
        if move.buffer.role is Role.OUTPUT:
            lane, at = (self._spread_out(self._eval(t))[self._mask] for t in (index_var("lane"), move.position))
            self.stores.append((lane, at))


@pytest.mark.parametrize("length", [1000, 1021, 2008, 5001])
def test_lanes_begin_with_lines_of_memory_wherever_a_row_begins(length: int) -> None:
    x = numbers((9, length), D.BFloat16)
    kernel = check(build(softmax, [x.shape], D.BFloat16), S.INNER_PERSISTENT, [x])
    memory = {"T0": x.reshape(-1).copy(), kernel.outputs[0].name: np.zeros(x.size, D.BFloat16.numpy)}
    Watched.stores.clear()
    evaluate_kernel(kernel, memory, Watched)
    assert Watched.stores
    (nest,) = kernel.nests
    width, groups = nest.schedule.vector, 64 // nest.schedule.vector  # in a line of 128 bytes
    for lane, at in Watched.stores:
        assert ((at // width) % groups == lane % groups).all()


def unguarded(body: tuple[Statement, ...]) -> Iterator[Statement]:
    """Statements under no condition except that on the row."""
    for statement in body:
        yield statement
        if isinstance(statement, Loop):
            yield from unguarded(statement.body)
        elif isinstance(statement, If) and "row" in {t.name for t in statement.condition.walk() if isinstance(t, Var)}:
            yield from unguarded(statement.then)


@pytest.mark.parametrize(("length", "plain"), [(1000, 3), (1021, 7), (701, 9)])
def test_steps_in_the_middle_of_a_row_have_no_conditions(length: int, plain: int) -> None:
    x = numbers((300, length), D.BFloat16)
    (phase,) = check(build(softmax, [x.shape], D.BFloat16), S.INNER_PERSISTENT, [x]).phases
    loops = [s for s in unguarded(phase.body) if isinstance(s, Loop) and any(isinstance(t, VectorLoad) for t in s.body)]
    assert [int(loop.stop.value.real) for loop in loops if isinstance(loop.stop, Const)][:1] == [plain]
    assert not any(isinstance(s, If) for s in walk(loops[0].body))


def test_lanes_begin_with_rows_where_lines_of_tensors_begin_at_different_places() -> None:
    fusion = build(softmax, [(300, 1000)], D.BFloat16)
    found = []
    for strides in ({}, {"T0": (1024, 1)}):
        kernel = lower(fusion, S.INNER_PERSISTENT, "cuda", "kernel", strides)
        found.append({s.name for phase in kernel.phases for s in walk(phase.body) if isinstance(s, Let)})
    assert "leading" in found[0] - found[1]
