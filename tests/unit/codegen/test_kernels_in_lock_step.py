"""Both targets' kernels, run by NumPy, agree with the reference evaluation; no compiler is needed."""

from contextlib import nullcontext

import numpy as np
import pytest
from backend.fusions import CASES, Case, D, S, build, close, numbers, outputs_of
from hypothesis import given
from hypothesis import strategies as st
from thorough import tries

from fuser_lab.api.functions import FusionDefinition, segment
from fuser_lab.codegen.kernel_eval import evaluate_kernel
from fuser_lab.codegen.kernel_ir import (
    If,
    Kernel,
    Let,
    Load,
    Loop,
    Reduce,
    Scope,
    Statement,
    Store,
    dense_strides,
    layout_of,
    terms_of,
    walk,
)
from fuser_lab.interpreter import evaluate
from fuser_lab.ir import Fusion
from fuser_lab.ir.term import Const, Term, Var, index
from fuser_lab.ir.transform import ParallelType
from fuser_lab.runtime.arrays import flat_view, storage_dtype
from fuser_lab.targets import target_of
from tests.agreement import lock_step
from tests.kernels import generate, lower

TARGETS = ("cpu", "cuda")


def run(fusion: Fusion, scheduler: S, target: str, inputs: list[np.ndarray]) -> tuple[Kernel, list[np.ndarray]]:
    """Lower for the inputs' strides, run, and check that each output element is written exactly once."""
    strides = {
        tv.name: tuple(s // x.itemsize for s in x.strides) for tv, x in zip(fusion.tensor_inputs, inputs, strict=True)
    }
    kernel = lower(fusion, scheduler, target, "kernel", strides)
    memory = {}
    for tv, x in zip(fusion.tensor_inputs, inputs, strict=True):
        layout = layout_of(tv, strides[tv.name])
        memory[tv.name] = flat_view(x, tv.dtype, layout.size, layout.offset)
    for tv in fusion.outputs:
        memory[tv.name] = np.full(layout_of(tv).size, 77).astype(storage_dtype(tv.dtype))
    writes = evaluate_kernel(kernel, memory).writes
    for tv in fusion.outputs:
        assert (writes[tv.name] == 1).all(), f"{tv.name} is not written exactly once: {writes[tv.name]}"
    return kernel, [
        np.ndarray(
            tv.shape, tv.dtype.numpy, buffer=memory[tv.name] if memory[tv.name].size else None,
            strides=[s * tv.dtype.itemsize for s in dense_strides(tv)] if memory[tv.name].size else None,
        )
        for tv in fusion.outputs
    ]


def check(fusion: Fusion, scheduler: S, target: str, inputs: list[np.ndarray]) -> Kernel:
    kernel, got = run(fusion, scheduler, target, inputs)
    for tv, a, b in zip(outputs_of(fusion), got, evaluate(fusion, inputs), strict=True):
        close(a, b, tv.dtype)
    return kernel


@pytest.mark.sampled(5)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_agrees_with_the_reference(case: Case, target: str) -> None:
    check(case.fusion(), case.scheduler, target, case.inputs())


LAYOUTS = {
    "reversed rows": lambda x: x[::-1],
    "reversed columns": lambda x: x[:, ::-1],
    "column-major": np.asfortranarray,
    "every second column": lambda x: np.repeat(x, 2, 1)[:, ::2],
    "one row for all": lambda x: np.broadcast_to(x[:1], x.shape),
    "one column for all": lambda x: np.broadcast_to(x[:, :1], x.shape),
    "overlapping": lambda x: np.lib.stride_tricks.sliding_window_view(np.resize(x, 9999), x.shape[1])[: x.shape[0]],
}


# Strides affect kernels for the CPU in the same way, and tests/backend runs some of those compiled.
@pytest.mark.parametrize("target", [pytest.param("cpu", marks=pytest.mark.matrix), "cuda"])
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("name", ["inner sum", "outer sum", "softmax of long rows", "several outputs", "pad"])
def test_any_strides(name: str, layout: object, target: str) -> None:
    case = next(c for c in CASES if c.name == name)
    assert callable(layout)
    check(case.fusion(), case.scheduler, target, [layout(x) for x in case.inputs()])


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("size", [1, 2, 31, 32, 33, 257, 1025])
def test_odd_row_lengths(size: int, target: str) -> None:
    softmax = next(c for c in CASES if c.name == "softmax")
    check(build(softmax.record, [(3, size)], D.BFloat16), S.INNER_PERSISTENT, target, [numbers((3, size), D.BFloat16)])


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("shape", "dims"),
    [((2, 70_000), (1,)), ((20_000, 3), (0,)), ((70_000,), (0,)), ((40, 3, 2000), (0, 2)), ((600, 500), (0,))],
)
def test_reductions_cut_into_parts(shape: tuple[int, ...], dims: tuple[int, ...], target: str) -> None:
    if target == "cpu":  # which splits smaller reductions
        shape = tuple(max(n // 10, 3) for n in shape)
    fusion = build(lambda fd, x: fd.ops.add(fd.ops.sum(x, list(dims)), 1.0), [shape], D.Float)
    kernel, (got,) = run(fusion, S.REDUCTION, target, [numbers(shape, D.Float)])
    wanted = numbers(shape, D.Float).astype(np.float64).sum(dims) + 1
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=3e-4)
    if target == "cuda":
        assert len(kernel.phases) == 2 or shape == (40, 3, 2000)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_invariants(case: Case, target: str) -> None:
    kernel = lower(case.fusion(), case.scheduler, target, "kernel", {})
    for phase in kernel.phases:
        names = {b.name for b in phase.buffers}
        for statement in walk(phase.body):
            if isinstance(statement, Loop):
                assert statement.parallel in target_of(target).emitter().loops
            for root in terms_of(statement):
                for term in root.walk():
                    if isinstance(term, Load) and not term.buffer.role.is_allocated:
                        assert term.buffer.name in names
        computed = {e for s in walk(phase.body) if isinstance(s, Let | Store | If) and (e := s.origin)}
        assert computed <= {name for name, _ in kernel.ops}
        _uniform(phase.body, set())


def _uniform(statements: tuple[Statement, ...], lanes: set[str], divided: str = "") -> None:
    """All lanes of a row reach each reduction among them: ``lanes`` are the names whose values differ between them."""
    for statement in statements:
        match statement:
            case Let(name=name, value=value) if _differs(value, lanes):
                lanes.add(name)
            case Reduce(name=name):
                assert not divided, f"{name} is reduced where lanes of a row differ, in {divided}"
            case Loop(var=var, body=body):
                if statement.parallel is ParallelType.block_x:
                    lanes.add(var)
                is_divided = _differs(statement.start, lanes) or _differs(statement.stop, lanes)
                _uniform(body, lanes, f"the loop over {var}" if is_divided else divided)
            case If(condition=condition, then=then, otherwise=otherwise):
                where = f"a branch on {condition}" if _differs(condition, lanes) else divided
                _uniform(then, lanes, where)
                _uniform(otherwise, lanes, where)


def _differs(term: Term, lanes: set[str]) -> bool:
    return any(isinstance(part, Var) and part.name in lanes for part in term.walk())


def test_a_reduction_that_some_lanes_miss_is_noticed() -> None:
    lane = Var(D.Index, "lane")
    total = Reduce(name="total", fn="add", value=Const(D.Float, 1.0), identity=0.0, scope=Scope.WARP)
    for first, divides in ((lane, True), (Const(D.Index, 3), False)):
        branch = (Let(name="row", value=first), If(condition=Var(D.Index, "row") < 4, then=(total,)))
        body = (Loop(var="lane", start=index(0), stop=index(32), parallel=ParallelType.block_x, body=branch),)
        with pytest.raises(AssertionError, match="a branch on") if divides else nullcontext():
            _uniform(body, set())


def test_inputs_of_a_persistent_row_are_read_once_on_a_gpu() -> None:
    softmax = next(c for c in CASES if c.name == "softmax")
    kernel = lower(softmax.fusion(), softmax.scheduler, "cuda", "kernel", {})
    (phase,) = kernel.phases
    reads = [any(isinstance(t, Load) and t.buffer.name == "T0" for r in terms_of(s) for t in r.walk())
             for s in walk(phase.body)]
    first = next(n for n, s in enumerate(walk(phase.body)) if isinstance(s, Reduce))
    assert any(reads[:first])
    assert not any(reads[first:])


def test_exponentials_of_a_row_are_computed_once_on_the_cpu() -> None:
    softmax = next(c for c in CASES if c.name == "softmax")
    source = generate(softmax.fusion(), softmax.scheduler, "cpu").source
    assert source.count("= exp32(") == 1


@st.composite
def fusions(draw: st.DrawFn) -> Fusion:
    """Random graphs of a few pointwise ops and views over one space, with an optional reduction at the end."""
    rows, columns = draw(st.integers(1, 6)), draw(st.integers(1, 40))
    kinds = ["add", "mul", "exp", "permute", "reshape", "slice", "pad", "broadcast", "max"]
    steps = draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=6))

    def record(fd: object, x: object, y: object) -> object:
        ops = fd.ops  # type: ignore[attr-defined]
        pool = [x, y]
        for number, step in enumerate(steps):
            a, b = pool[-1], pool[number % len(pool)]
            shape = [int(n) for n in a.shape()]  # type: ignore[attr-defined]
            same = shape == [int(n) for n in b.shape()]  # type: ignore[attr-defined]
            if step in {"add", "mul"} and same:
                pool.append(getattr(ops, step)(a, b))
            elif step == "exp":
                pool.append(ops.tanh(a))
            elif step == "permute":
                pool.append(ops.permute(a, [1, 0]))
            elif step == "reshape":
                pool.append(ops.reshape(ops.reshape(a, [-1]), [shape[1], shape[0]]))
            elif step == "slice" and shape[1] > 1:
                pool.append(ops.slice(a, [0, 1], shape))
            elif step == "pad":
                pool.append(ops.pad(a, [1, 2], 0.5))
            elif step == "broadcast" and shape[0] == 1:
                pool.append(ops.mul(a, 2.0))
        last = pool[-1]
        if steps[-1] == "max":
            return ops.max(last, [draw(st.integers(0, 1))])
        return last if last is not x and last is not y else ops.neg(last)

    return build(record, [(rows, columns), (rows, columns)], D.Float)


@pytest.mark.property
@tries(40)
@given(fusions(), st.sampled_from(TARGETS))
def test_random_graphs(fusion: Fusion, target: str) -> None:
    reduces = any(e.op.name == "max" for e in fusion.exprs)
    inputs = [numbers(tv.shape, tv.dtype, n) for n, tv in enumerate(fusion.tensor_inputs)]
    check(fusion, S.REDUCTION if reduces else S.POINTWISE, target, inputs)


ELSEWHERE = {
    "expanded sum": (lambda fd, x: fd.ops.expand(fd.ops.sum(x, [0, 1, 2, 3], True), [5, 2, 1, 1]), (1, 3, 11, 1)),
    "expanded row": (lambda fd, x: fd.ops.expand(fd.ops.max(x, [1]), [6, -1, -1]), (1, 11, 8, 2)),
    "sum of sums elsewhere": (
        lambda fd, x: fd.ops.sum(fd.ops.reshape(fd.ops.sum(x, [0], keepdim=True), [2, 10, 4]), [1]), (11, 2, 10, 4),
    ),
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", [D.Float, D.BFloat16], ids=lambda d: d.name)
@pytest.mark.parametrize("name", ELSEWHERE)
def test_totals_that_are_needed_elsewhere_go_through_memory(name: str, dtype: D, target: str) -> None:
    record, shape = ELSEWHERE[name]
    fusion = build(record, [shape], dtype)
    kernel = check(fusion, S.REDUCTION, target, [numbers(shape, dtype)])
    assert len(kernel.phases) > 1
    assert any(b.name.endswith("_whole") for b in kernel.workspace)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", [D.Float, D.BFloat16], ids=lambda d: d.name)
def test_a_total_seen_with_an_axis_split_is_stored_where_it_is_summed(dtype: D, target: str) -> None:
    def record(fd: object, x: object) -> object:
        ops = fd.ops  # type: ignore[attr-defined]
        return ops.reshape(ops.sum(x, [0], keepdim=True), [1, 2, 2, 2, 2])

    kernel = check(build(record, [(4, 2, 2, 4)], dtype), S.REDUCTION, target, [numbers((4, 2, 2, 4), dtype)])
    assert len(kernel.phases) == 1
    assert not kernel.workspace


@pytest.mark.parametrize("target", TARGETS)
def test_a_tensor_beside_its_repetition_is_written_once(target: str) -> None:
    def record(fd: object, x: object) -> object:
        ops = fd.ops  # type: ignore[attr-defined]
        twice = ops.reshape(ops.expand(ops.broadcast(x, [True, False, False]), [2, 8, 3]), [16, 3])
        return ops.neg(x), ops.min(twice, [0])

    check(build(record, [(8, 3)], D.Float), S.REDUCTION, target, [numbers((8, 3), D.Float)])


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", [D.Float, D.BFloat16], ids=lambda d: d.name)
def test_results_of_welford_lie_as_their_operand_does(dtype: D, target: str) -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([4, 7, 5], contiguity=True, dtype=dtype, stride_order=[0, 1, 2])
        for result in fd.ops.welford(x, [1]):
            fd.add_output(result)
    plan = segment(fd)
    array = np.asfortranarray(numbers((4, 7, 5), dtype))
    assert plan.fusion.outputs[0].domain.allocation == (1, 0)
    results = lock_step(plan, [array], target)
    for tv, got, wanted in zip(plan.fusion.outputs, results, fd.reference([array]), strict=True):
        close(got, wanted, tv.dtype)


@pytest.mark.parametrize("target", TARGETS)
def test_welford_of_what_a_pass_made_a_repetition(target: str) -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([3, 3], contiguity=True)
        wide = fd.ops.broadcast_in_dim(x, [2, 5, 3, 3], [2, 3])
        for result in fd.ops.welford(fd.ops.cat([wide, wide], 2), [1]):
            fd.add_output(result)
    plan, array = segment(fd), numbers((3, 3), D.Float)
    results = lock_step(plan, [array], target)
    for tv, got, wanted in zip(plan.fusion.outputs, results, fd.reference([array]), strict=True):
        close(got, wanted, tv.dtype)


@pytest.mark.parametrize("target", TARGETS)
def test_a_tensor_beside_a_view_of_itself_is_written_everywhere(target: str) -> None:
    def record(fd: object, x: object) -> object:
        ops = fd.ops  # type: ignore[attr-defined]
        y = ops.reshape(x, [2, 1, 2, 1, 2, 1])
        return ops.add(x, y), ops.max(y, [4])

    check(build(record, [(4, 2, 1)], D.Float), S.REDUCTION, target, [numbers((4, 2, 1), D.Float)])


@pytest.mark.parametrize("target", TARGETS)
def test_a_column_beside_the_whole_is_written_once(target: str) -> None:
    def record(fd: object, x: object) -> object:
        ops = fd.ops  # type: ignore[attr-defined]
        return ops.select(x, fd.define_scalar(2, D.Int), -1), ops.reshape(x, [-1])  # type: ignore[attr-defined]

    check(build(record, [(6, 4)], D.Float), S.POINTWISE, target, [numbers((6, 4), D.Float)])


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("shape", [(1, 1), (1, 3), (3, 1)])
@pytest.mark.parametrize("dim", [0, 1])
def test_sums_of_exponentials_are_known_before_they_are_read(shape, dim, target):
    # Over a single position no index has a variable, but the reader of the sum still comes after it.
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], False, D.Float)
        power = fd.ops.exp(fd.ops.sub(x, fd.ops.max(x, [dim], True)))
        fd.add_output(fd.ops.le(power, fd.ops.mul(fd.ops.sum(power, [dim], True), 2.0)))
    inputs = [np.ones(shape, np.float32)]
    assert lock_step(segment(fd, inputs), inputs, target)[0].all()


@pytest.mark.parametrize("target", TARGETS)
def test_results_of_rows_that_lie_elsewhere_are_computed_beside_the_sums_of_columns(target: str) -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([3, 4], [True, True], D.Float)
        rows = fd.ops.prod(x, [1], keepdim=True)
        for result in (fd.ops.sum(x, [0]), fd.ops.sub(x, rows), fd.ops.cat([rows, rows], 0)):
            fd.add_output(result)
    inputs = [numbers((3, 4), D.Float)]
    plan = segment(fd, inputs)
    assert [part.scheduler for part in plan.segments] == [S.INNER_OUTER_PERSISTENT]
    product = inputs[0].prod(1, keepdims=True)
    wanted = (inputs[0].sum(0), inputs[0] - product, np.concatenate([product, product]))
    for got, expected in zip(lock_step(plan, inputs, target), wanted, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [D.Float, D.Int])
def test_only_threads_that_have_seen_an_extreme_look_for_its_place(dtype):
    size = 2051
    with FusionDefinition() as fd:
        x = fd.define_tensor([3, size], contiguity=True, dtype=dtype)
        y = fd.ops.mul(x, x)
        largest = fd.ops.max(y, [1], True)
        hit = fd.ops.eq(y, largest)
        hit = fd.ops.logical_or(hit, fd.ops.isnan(y)) if dtype.is_float else hit
        places = fd.ops.broadcast(fd.ops.iota(size, 0, 1, D.Int), [True, False])
        fd.add_output(fd.ops.min(fd.ops.where(hit, places, size), [1]))
        if dtype.is_float:
            fd.add_output(fd.ops.sum(fd.ops.exp(fd.ops.sub(y, largest)), [1]))
    elements = numbers((3, size), dtype, seed=7) if dtype.is_float else np.arange(3 * size).reshape(3, size) % 97
    elements[1, 1500:] = elements[1, 700]
    if dtype.is_float:
        elements[0, [900, 40]] = np.nan
    kernel, results = run(fd.fusion, S.INNER_PERSISTENT, "cuda", [elements])
    guards = [s for s in walk(kernel.phases[0].body) if isinstance(s, If) and "is_seen" in str(s.condition)]
    assert guards
    for result, expected in zip(results, evaluate(fd.fusion, [elements]), strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-5)
