"""Parameters set by hand: legal ones never change a result, illegal ones give a reason, and a plan keeps them."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from backend.fusions import D, S, build, close, numbers
from backend.reductions import add_norm, backward, softmax, totals
from thorough import THOROUGH

import fuser_lab as fl
from fuser_lab.codegen.kernel_eval import evaluate_kernel
from fuser_lab.codegen.kernel_ir import dense_strides, layout_of
from fuser_lab.dtypes import DataType
from fuser_lab.errors import ArgumentTypeError, InputError, ScheduleError
from fuser_lab.interpreter import evaluate
from fuser_lab.ir import Fusion
from fuser_lab.runtime.arrays import flat_view, storage_dtype
from fuser_lab.schedule.parameter_values import Values, with_values
from fuser_lab.schedule.parameters import LoopChange
from fuser_lab.schedule.state import NestKind, parameters_of
from fuser_lab.schedule.suggestions import suggestions
from tests.kernels import generate

Shapes = list[tuple[int, ...]]
CASES: tuple[tuple[str, Callable[..., Any], Shapes, DataType, S], ...] = (
    ("elements", lambda fd, x, y: fd.ops.add(fd.ops.mul(x, 2.0), y), [(40, 33), (40, 33)], D.BFloat16, S.POINTWISE),
    ("repeats", lambda fd, x, b: fd.ops.add(x, b), [(64, 96), (96,)], D.Float, S.POINTWISE),
    ("turned", lambda fd, x: fd.ops.neg(fd.ops.permute(x, [1, 0])), [(70, 96)], D.Float, S.TRANSPOSE),
    ("softmax of short rows", softmax, [(9, 200)], D.BFloat16, S.INNER_PERSISTENT),
    ("softmax", softmax, [(3, 4096)], D.BFloat16, S.INNER_PERSISTENT),
    ("softmax of long rows", softmax, [(2, 33_000)], D.Float, S.INNER_PERSISTENT),
    ("norm", add_norm, [(5, 1032), (5, 1032), (1032,)], D.BFloat16, S.INNER_PERSISTENT),
    ("rows", totals(1), [(70, 264)], D.Float, S.REDUCTION),
    ("few long rows", totals(1), [(2, 9000)], D.Float, S.REDUCTION),
    ("columns", totals(0), [(257, 96)], D.BFloat16, S.REDUCTION),
    ("all", totals(0, 1), [(70, 90)], D.Int, S.REDUCTION),
    ("backward", backward, [(37, 520), (37, 520), (520,), (37, 1)], D.BFloat16, S.INNER_OUTER_PERSISTENT),
    ("backward in float32", backward, [(9, 77), (9, 77), (77,), (9, 1)], D.Float, S.INNER_OUTER_PERSISTENT),
)


def run(fusion: Fusion, scheduler: S, change: LoopChange, inputs: list[np.ndarray]) -> list[np.ndarray]:
    kernel = generate(fusion, scheduler, change.target, changes=(change,)).kernel_ir
    memory: dict[str, Any] = {}
    for tv, x in zip(fusion.tensor_inputs, inputs, strict=True):
        memory[tv.name] = flat_view(x, tv.dtype, layout_of(tv).size, 0)
    for tv in fusion.outputs:
        memory[tv.name] = np.full(layout_of(tv).size, 77).astype(storage_dtype(tv.dtype))
    writes = evaluate_kernel(kernel, memory).writes
    for tv in fusion.outputs:
        assert (writes[tv.name] == 1).all(), f"{tv.name} is not written exactly once"
    return [
        np.ndarray(
            tv.shape, tv.dtype.numpy, buffer=memory[tv.name],
            strides=[s * tv.dtype.itemsize for s in dense_strides(tv)],
        )
        for tv in fusion.outputs
    ]


# In lock step, a loop of a CPU kernel is a Python loop.
CPU_CASES: tuple[tuple[str, Callable[..., Any], Shapes, DataType, S], ...] = (
    ("elements", lambda fd, x: fd.ops.mul(x, 2.0), [(10, 33)], D.BFloat16, S.POINTWISE),
    ("turned", lambda fd, x: fd.ops.neg(fd.ops.permute(x, [1, 0])), [(34, 20)], D.Float, S.TRANSPOSE),
    ("softmax", softmax, [(9, 40)], D.BFloat16, S.INNER_PERSISTENT),
    ("rows", totals(1), [(7, 90)], D.Float, S.REDUCTION),
    ("columns", totals(0), [(70, 20)], D.BFloat16, S.REDUCTION),
    ("backward", backward, [(7, 24), (7, 24), (24,), (7, 1)], D.Float, S.INNER_OUTER_PERSISTENT),
)
TOGETHER: tuple[Values, ...] = (
    (("parallel", True), ("split", 4)), (("parallel", True), ("partial", 8), ("split", 3)), (("partial", 7),),
    (("tile", 7),), (("grain", 3), ("parallel", True)), (("parallel", True),), (("parallel", True), ("tile", 5)),
)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("target", "_", "record", "shapes", "dtype", "scheduler"),
    [("cuda", *case) for case in CASES] + [("cpu", *case) for case in CPU_CASES],
    ids=[f"{target} {case[0]}" for target, cases in (("cuda", CASES), ("cpu", CPU_CASES)) for case in cases],
)
def test_whatever_is_suggested_gives_the_same_results(
    target: str, _: str, record: Callable[..., Any], shapes: Shapes, dtype: DataType, scheduler: S,
) -> None:
    fusion = build(record, shapes, dtype)
    inputs = [numbers(shape, dtype, n) for n, shape in enumerate(shapes)]
    wanted = evaluate(fusion, inputs, exact=False)
    found: list[Values] = []
    for nest in generate(fusion, scheduler, target).kernel_ir.nests:
        legal = [v for v in TOGETHER if not with_values(nest.space, target, nest.chosen, v)[1]]
        options = (*(legal if target == "cpu" else ()), *suggestions(nest))
        for values in options[:: max(len(options) // (12 if THOROUGH else 6), 1)] if target == "cuda" else options:
            found.append(values)
            change = LoopChange(target=target, nest=nest.number, values=values)
            for tv, a, b in zip(fusion.outputs, run(fusion, scheduler, change, inputs), wanted, strict=True):
                try:
                    close(a, np.asarray(b).astype(tv.dtype.numpy), tv.dtype)
                except AssertionError as error:
                    msg = f"{values}: {error}"
                    raise AssertionError(msg) from None
    assert len(found) >= (3 if target == "cuda" else 1)


def softmax_plan(rows: int = 64, columns: int = 8192) -> fl.Plan:
    with fl.FusionDefinition() as fd:
        fd.add_output(softmax(fd, fd.define_tensor([-1, -1], contiguity=True, dtype=fl.DataType.BFloat16)))
    return fl.segment(fd, [fl.spec((rows, columns), "bfloat16")])


def test_parameters_come_with_reasons() -> None:
    (nest,) = softmax_plan().segments[0].params("cuda")
    assert nest.values["threads"] == nest.schedule.threads == nest.chosen.threads
    text = str(nest)
    assert "the row stays in registers" in text
    assert f"threads = {nest.schedule.threads}: threads of a block" in text
    (cpu,) = softmax_plan().segments[0].params("cpu")
    assert set(cpu.values) == {"grain", "split", "partial", "parallel", "specialized"}


def test_what_is_given_is_in_the_source_the_hash_and_the_python_text() -> None:
    plan = softmax_plan()
    given = plan.with_params(0, threads=256, vector=4)
    assert given.hash != plan.hash
    assert "256 x 1 threads" in given.segments[0].source("cuda")
    (nest,) = given.segments[0].params()
    assert "set by hand: threads = (256, 1), vector = 4" in nest.schedule.reasons
    assert f"threads = (256, 1) (heuristics: {nest.chosen.threads})" in str(nest)
    assert given.segments[0].source("cpu") == plan.segments[0].source("cpu")
    scope: dict[str, Any] = {}
    exec(given.to_python(), scope)
    assert scope["plan"].hash == given.hash
    assert scope["plan"].segments[0].source("cuda") == given.segments[0].source("cuda")
    back = given.with_params(0)
    assert back.hash == plan.hash
    assert back.segments[0].source("cuda") == plan.segments[0].source("cuda")


def test_a_segment_keeps_its_parameters_while_others_are_edited() -> None:
    with fl.FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True, dtype=fl.DataType.Float)
        y = fd.ops.exp(x)
        fd.add_output(fd.ops.neg(fd.ops.sum(y, [1])))
    plan = fl.segment(fd, [fl.spec((3000, 500), "float32")], strategy="unfused")
    number = next(s.index for s in plan.segments if s.exprs[0].op.name == "exp")
    given = plan.with_params(number, threads=256)
    other = next(s.index for s in plan.segments if s.exprs[0].op.name == "neg")
    edited = given.glue(other - 1, other)
    kept = next(s for s in edited.segments if [e.op.name for e in s.exprs] == ["exp"])
    assert kept.params()[0].values["threads"] == (256, 1)
    gone = given.glue(number, number + 1)
    assert gone.hash == plan.glue(number, number + 1).hash, "the segment has changed"


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"threads": 2048}, r"threads = \(2048, 1\) must be positive, at most 1024 together"),
        ({"threads": 100}, r"threads = \(100, 1\) must be a multiple of 32, or a power of two below it"),
        ({"threads": 24}, r"must be a multiple of 32, or a power of two below it"),
        ({"threads": (64, 2)}, r"rows can share a block only if each has one warp"),
        ({"threads": 1}, r"1 threads would each keep \d+ registers of a row"),
        ({"vector": 3}, r"vector = 3 must be a power of two that divides 8"),
        ({"vector": 16}, r"vector = 16 must be a power of two that divides 8"),
        ({"unroll": 0}, r"unroll = 0 must be between 1 and 64"),
        ({"split": 4}, r"split = 4 requires a reduction whose result the kernel does not use"),
        ({"resident": 64}, r"resident = 64 blocks of 512 threads exceed the capacity of a multiprocessor"),
        ({"grain": 4}, r"grain is not a parameter of a nest of rows on cuda; it has threads, unroll"),
    ],
)
def test_illegal_values_get_one_sentence(values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ScheduleError, match=sentence):
        softmax_plan().with_params(0, **values)


def test_whole_numbers_of_other_libraries_are_whole_numbers() -> None:
    plan = softmax_plan()
    ours = plan.with_params(0, threads=256, unroll=2)
    theirs = plan.with_params(0, threads=np.int64(256), unroll=np.uint8(2))
    assert theirs == ours
    assert theirs.to_python() == ours.to_python()
    for value in (np.float32(2), "2", 2.0, None, np.array([1, 2])):
        with pytest.raises(ArgumentTypeError, match="unroll must be an int, given"):
            plan.with_params(0, unroll=value)


def test_wrong_names_types_and_numbers() -> None:
    plan = softmax_plan()
    with pytest.raises(ArgumentTypeError, match="unknown parameter 'thread'; choose from threads"):
        plan.with_params(0, thread=4)
    with pytest.raises(ArgumentTypeError, match="unroll must be an int, given True"):
        plan.with_params(0, unroll=True)
    with pytest.raises(ArgumentTypeError, match="persistent must be a bool, given 1"):
        plan.with_params(0, persistent=1)
    with pytest.raises(InputError, match="segment must be from 0 to 0, given 3"):
        plan.with_params(3, threads=64)
    with pytest.raises(InputError, match="target must be 'cpu' or 'cuda', given 'H200'"):
        plan.with_params(0, target="H200", threads=64)
    with pytest.raises(ScheduleError, match="1 nest of loops, given nest 1"):
        plan.with_params(0, nest=1, threads=64)


def backward_plan(rows: int = 4096, columns: int = 8192) -> fl.Plan:
    with fl.FusionDefinition() as fd:
        shapes = [(rows, columns), (rows, columns), (columns,), (rows, 1)]
        tensors = [fd.define_tensor(list(s), contiguity=True, dtype=fl.DataType.BFloat16) for s in shapes]
        first, *sums = backward(fd, *tensors)
        for output in (fd.ops.cast(first, fl.DataType.BFloat16), *sums):
            fd.add_output(output)
    return fl.segment(fd)


def test_rows_that_add_to_sums_of_columns_have_parameters_of_their_own() -> None:
    plan = backward_plan()
    (segment,) = plan.segments
    assert segment.scheduler is S.INNER_OUTER_PERSISTENT
    first, *totals_of_parts = segment.params()
    assert tuple(first.values) == parameters_of(NestKind.BLOCK_ROWS_WITH_COLUMN_SUMS)
    assert first.space.column_sums == (4, 4)
    assert all("split" in nest.values for nest in totals_of_parts)
    given = plan.with_params(0, threads=512, blocks=264, shared=1, unroll=2, constants=True, resident=1)
    (changed_nest, *_) = given.segments[0].params()
    assert changed_nest.schedule.registers == 8192 // 8 // 512
    assert changed_nest.values == {
        "threads": (512, 1), "blocks": 264, "unroll": 2, "vector": 8, "shared": 1, "constants": True, "resident": 1,
        "specialized": False,
    }
    rows = given.segments[0].kernel("cuda").kernel_ir.phases[0]
    assert (rows.launch.blocks, rows.launch.threads, rows.launch.shared) == (256, (512, 1), 8192 * 4)
    assert given.hash != plan.hash
    scope: dict[str, Any] = {}
    exec(given.to_python(), scope)
    assert scope["plan"].segments[0].source("cuda") == given.segments[0].source("cuda")
    (bands, *_) = segment.params("cpu")
    assert list(bands.values) == ["grain", "parallel", "specialized"]
    assert plan.with_params(0, target="cpu", grain=64).segments[0].source("cpu") != segment.source("cpu")


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"threads": 48}, r"threads = \(48, 1\) must be a multiple of 32, in x only"),
        ({"threads": (128, 2)}, r"threads = \(128, 2\) must be a multiple of 32, in x only"),
        ({"threads": 32}, r"32 threads would each keep \d+ registers of rows and sums, more than 160"),
        ({"blocks": 0}, r"blocks = 0 must be between 1 and 2147483647"),
        ({"blocks": 5000}, r"blocks = 5000 must be between 1 and 4096, the number of rows"),
        ({"unroll": 3}, r"unroll = 3 must be 1, or 2 to load the next row in advance"),
        ({"shared": 3}, r"shared = 3 must be between 0 and 2, the number of column sums"),
        ({"shared": -1}, r"shared = -1 must be between 0 and 2"),
        ({"resident": 4, "shared": 2}, r"shared = 2 takes 65536 bytes, more than the 57344 that a block of the H200"),
        ({"vector": 3}, r"vector = 3 must be a power of two that divides 8"),
        ({"split": 2}, r"split is not a parameter of a nest of rows on cuda; it has threads, blocks, unroll, vector"),
        ({"target": "cpu", "grain": 0}, r"grain = 0 must be between 1 and 4096"),
        ({"target": "cpu", "split": 2}, r"split is not a parameter of a nest of rows on cpu; it has grain, parallel"),
    ],
)
def test_illegal_values_of_rows_with_sums_of_columns_get_one_sentence(values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ScheduleError, match=sentence):
        backward_plan().with_params(0, **values)


def test_flags_are_flags() -> None:
    with pytest.raises(ArgumentTypeError, match="constants must be a bool, given 1"):
        backward_plan().with_params(0, constants=1)
    with pytest.raises(ArgumentTypeError, match="shared must be an int, given True"):
        backward_plan().with_params(0, shared=True)


def test_strides_that_do_not_allow_a_vector_leave_what_heuristics_choose() -> None:
    fusion = build(lambda fd, x: fd.ops.neg(x), [(64, 64)], D.Float)
    change = LoopChange(target="cuda", nest=0, values=(("vector", 8),))
    strided = generate(fusion, S.POINTWISE, "cuda", strides={"T0": (65, 1)}, alignment={"T0": 4}, changes=(change,))
    (nest,) = strided.kernel_ir.nests
    assert nest.schedule == nest.chosen
    assert "must be a power of two" in nest.problem


@pytest.mark.parametrize(
    ("shape", "dims", "split"), [((3, 4), [1], 3), ((3, 24), [1], 16), ((2, 3, 2, 3), [1, 3], 5), ((24, 5), [0], 16)],
)
def test_parts_of_a_reduction_may_be_empty(shape: tuple[int, ...], dims: list[int], split: int) -> None:
    fusion = build(lambda fd, x: fd.ops.max(x, dims), [shape], D.Float)
    values: Values = (("parallel", True), ("specialized", True), ("split", split))
    x = -1 - np.random.default_rng(0).random(shape, np.float32)
    (got,) = run(fusion, S.REDUCTION, LoopChange(target="cpu", nest=0, values=values), [x])
    assert np.array_equal(got, x.max(tuple(dims)))
