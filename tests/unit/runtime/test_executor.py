"""Prepared plans: buffers, outputs, aliases, wrong inputs, threads, cancellation."""

import threading
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from backend.fusions import D, S, build, numbers

from fuser_lab.definition.builder import FusionBuilder
from fuser_lab.definition.concretize import concretize
from fuser_lab.errors import CodegenError, EvaluationWarning, InputError, UnsupportedError
from fuser_lab.interpreter import evaluate
from fuser_lab.ir import Fusion
from fuser_lab.runtime.plan import variants
from fuser_lab.runtime.plan.executor import PreparedPlan
from fuser_lab.runtime.plan.steps import CancelFlag, Cancelled
from tests.kernels import prepare


def exp_plan(shape: tuple[int, ...] = (3, 4)) -> PreparedPlan:
    fusion = build(lambda fd, x: fd.ops.exp(x), [shape], D.Float)
    return prepare(fusion, [(fusion, S.POINTWISE)], allow_fallback=False)


def test_a_prepared_plan_says_what_it_is() -> None:
    assert repr(exp_plan()) == str(exp_plan()) == "PreparedPlan(cpu, 1 segment: pointwise)"
    fusion = build(lambda fd, x: fd.ops.exp(x), [(3,)], D.Float)
    assert str(prepare(fusion, [(fusion, None)], allow_fallback=False)) == "PreparedPlan(cpu, 1 segment: evaluated)"


def cut(whole: Fusion, *groups: tuple[tuple[str, ...], S]) -> list[tuple[Fusion, S | None]]:
    """Segments of a fusion, given by the names of their expressions."""
    segments: list[tuple[Fusion, S | None]] = []
    for names, scheduler in groups:
        exprs = tuple(e for e in whole.exprs if e.name in names)
        made = {v for e in exprs for v in e.outputs}
        read = (v for e in exprs for v in e.inputs if v not in made)
        inputs = dict.fromkeys(v for v in read if getattr(v, "value", None) is None)
        outputs = tuple(
            tv for e in exprs for tv in e.tensor_outputs
            if tv in whole.outputs or any(user.name not in names for user in whole.users.get(tv, ()))
        )
        segments.append((Fusion(inputs=tuple(inputs), exprs=exprs, outputs=outputs), scheduler))
    return segments


@pytest.fixture(scope="module")
def chain() -> tuple[Fusion, PreparedPlan]:
    """Four segments in sequence: three intermediates, two of them live at a time."""
    whole = build(lambda fd, x: fd.ops.neg(fd.ops.tanh(fd.ops.neg(fd.ops.exp(x)))), [(50, 8)], D.Float)
    names = [e.name for e in whole.exprs]
    plan = prepare(whole, cut(whole, *(((n,), S.POINTWISE) for n in names)), allow_fallback=False)
    return whole, plan


def test_intermediates_share_memory(chain: tuple[Fusion, PreparedPlan]) -> None:
    whole, plan = chain
    x = numbers((50, 8), D.Float)
    np.testing.assert_allclose(plan.run([x])[0], evaluate(whole, [x])[0], rtol=1e-5)
    assert plan.storage_bytes == 2 * x.nbytes


def test_storage_is_kept_between_runs(chain: tuple[Fusion, PreparedPlan]) -> None:
    whole, _ = chain
    plan = prepare(whole, cut(whole, *(((e.name,), S.POINTWISE) for e in whole.exprs)), allow_fallback=False)
    plan._ready = None  # repeated runs are in test_host_ready.py
    x = numbers((50, 8), D.Float)
    plan.run([x])
    (variant,) = plan._variants.kept.values()
    (env,) = variant.idle
    plan.run([x])
    assert len(variant.idle) == 1
    assert variant.idle[0] is env
    assert not {"T0", "T4"} & {*env.arguments, *env.arrays}, "the caller's arrays are released"


def test_outputs_are_new_arrays_unless_given() -> None:
    plan, x = exp_plan(), numbers((3, 4), D.Float)
    first, second = plan.run([x])[0], plan.run([x])[0]
    assert not np.shares_memory(first, second)
    given = np.full((3, 4), 7, np.float32)
    (same,) = plan.run([x], [given])
    assert same is given
    np.testing.assert_array_equal(given, first)
    wide = np.zeros((3, 8), np.float32)
    plan.run([x], [wide[:, ::2]])  # not dense: written through a copy
    np.testing.assert_array_equal(wide[:, ::2], first)
    assert not wide[:, 1::2].any()


@pytest.mark.parametrize("change", [lambda x: x.copy(), lambda x: x[::-1], np.asfortranarray, lambda x: x.T.copy().T])
def test_layouts_of_inputs_are_compiled_once_each(change: Any) -> None:
    plan, x = exp_plan((6, 6)), numbers((6, 6), D.Float)
    view = change(x)
    for _ in range(2):
        np.testing.assert_allclose(plan.run([view])[0], np.exp(view), rtol=1e-6)
    assert len(plan._variants.kept) <= 2


def test_read_only_unaligned_and_expanded_inputs() -> None:
    plan = exp_plan()
    frozen = numbers((3, 4), D.Float)
    frozen.flags.writeable = False
    unaligned = np.frombuffer(b"x" + frozen.tobytes(), np.uint8)[1:].view(np.float32).reshape(3, 4)
    assert not unaligned.flags.aligned
    expanded = np.broadcast_to(frozen[:1], (3, 4))
    for x in (frozen, unaligned, expanded):
        np.testing.assert_allclose(plan.run([x])[0], np.exp(x), rtol=1e-6)


def test_stride_order_of_an_output() -> None:
    fusion = build(lambda fd, x: fd.ops.stride_order(fd.ops.exp(x), [0, 1]), [(3, 5)], D.Float)
    (got,) = prepare(fusion, [(fusion, S.POINTWISE)]).run([numbers((3, 5), D.Float)])
    assert got.strides == (4, 12)


def test_an_expanded_output_repeats_in_place() -> None:
    fusion = build(lambda fd, x: fd.ops.expand(fd.ops.exp(x), [3, 5]), [(3, 1)], D.Float)
    x = numbers((3, 1), D.Float)
    (got,) = prepare(fusion, [(fusion, S.POINTWISE)], allow_fallback=False).run([x])
    assert got.strides[1] == 0
    np.testing.assert_allclose(got, np.broadcast_to(np.exp(x), (3, 5)), rtol=1e-6)


def test_an_expanded_result_can_be_written_again() -> None:
    fusion = build(lambda fd, x: (fd.ops.expand(fd.ops.exp(x), [3, 5]), fd.ops.neg(x)), [(3, 1)], D.Float)
    plan = prepare(fusion, [(fusion, S.POINTWISE)], allow_fallback=False)
    first = plan.run([numbers((3, 1), D.Float)])
    x = np.array([[1.0], [2.0], [3.0]], np.float32)
    again = plan.run([x], plan.reusable(first))
    assert again[0] is first[0]
    np.testing.assert_allclose(again[0], np.broadcast_to(np.exp(x), (3, 5)), rtol=1e-6)
    with pytest.raises(InputError, match="out for T3 has elements that share memory"):
        plan.run([x], [first[0], np.lib.stride_tricks.as_strided(np.zeros(1, np.float32), (3, 1), (0, 0))])


def with_scalars() -> Fusion:
    with FusionBuilder() as fd:
        x = fd.define_tensor([3, 4], contiguity=True)
        scale, count, flag = fd.define_scalar(), fd.define_scalar(None, D.Int), fd.define_scalar(None, D.Bool)
        more = fd.ops.add(count, 1)
        y = fd.ops.add(fd.ops.mul(x, scale), fd.ops.cast(more, D.Float))
        fd.add_output(fd.ops.where(flag, y, fd.ops.neg(y)))
    return concretize(fd.fusion, {"T0": (3, 4)}, {})


def test_scalar_inputs() -> None:
    fusion = with_scalars()
    plan = prepare(fusion, [(fusion, S.POINTWISE)], allow_fallback=False)
    x = numbers((3, 4), D.Float)
    np.testing.assert_allclose(plan.run([x, 2.5, 3, True])[0], x * 2.5 + 4, rtol=1e-6)
    np.testing.assert_allclose(plan.run([x, np.float32(0.5), np.int64(-1), False])[0], -x * 0.5, rtol=1e-6)


def in_place() -> Fusion:
    with FusionBuilder() as fd:
        x = fd.define_tensor([5], contiguity=True)
        y = fd.ops.add(x, 1.0)
        fd.add_output(y, x)
        fd.add_output(fd.ops.mul(y, x))
    return concretize(fd.fusion, {"T0": (5,)}, {})


def test_an_output_over_an_input() -> None:
    fusion = in_place()
    plan = prepare(fusion, [(fusion, S.POINTWISE)])
    x = np.arange(5, dtype=np.float32)
    (got,) = plan.run([x])
    np.testing.assert_array_equal(got, [0, 2, 6, 12, 20])
    np.testing.assert_array_equal(x, [1, 2, 3, 4, 5])
    x.flags.writeable = False
    with pytest.raises(InputError, match="T0 in place, but the given array is read-only"):
        plan.run([x])


def test_an_input_may_be_returned() -> None:
    with FusionBuilder() as fd:
        x = fd.define_tensor([4], contiguity=True)
        fd.add_output(x)
        fd.add_output(fd.ops.neg(x))
    fusion = concretize(fd.fusion, {"T0": (4,)}, {})
    segment = Fusion(inputs=fusion.inputs, exprs=fusion.exprs, outputs=fusion.outputs[1:])
    value = np.arange(4, dtype=np.float32)
    same, negative = prepare(fusion, [(segment, S.POINTWISE)]).run([value])
    assert same is value
    np.testing.assert_array_equal(negative, -value)


def test_evaluated_segments() -> None:
    def record(fd: Any, a: Any, b: Any) -> Any:
        return fd.ops.exp(fd.ops.matmul(fd.ops.permute(a, [1, 0]), b))

    whole = build(record, [(4, 3), (4, 5)], D.BFloat16)
    first, second, *others = (e.name for e in whole.exprs)
    segments = cut(whole, ((first,), S.NO_OP), ((second,), S.EXPR_EVAL), (tuple(others), S.POINTWISE))
    plan = prepare(whole, segments)
    inputs = [numbers((4, 3), D.BFloat16), numbers((4, 5), D.BFloat16, 1)]
    (got,) = plan.run(inputs)
    assert got.dtype == evaluate(whole, inputs)[0].dtype
    np.testing.assert_allclose(
        got.astype(np.float32), evaluate(whole, inputs)[0].astype(np.float32), rtol=1e-2,
    )
    assert [step.evaluated_because for step in plan.steps()] == ["no_op", "expr_eval", ""]


def test_single_elements_are_computed_by_a_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    from fuser_lab.runtime.cpu import host

    def record(fd: Any, a: Any, b: Any) -> Any:
        return fd.ops.add(fd.ops.tanh(fd.ops.mul(a, b)), 1.0)

    fusion = build(record, [(), (1,)], D.Float)
    plan = prepare(fusion, [(fusion, S.NO_OP)])
    assert plan.steps()[0].generated is not None
    for a, b in ((2.0, 0.25), (np.nan, 1.0), (-np.inf, 1.0)):
        inputs = [np.array(a, np.float32), np.array([b], np.float32)]
        np.testing.assert_allclose(plan.run(inputs)[0], np.tanh(inputs[0] * inputs[1]) + 1, rtol=1e-6)

    whole = build(lambda fd, a: fd.ops.add(fd.ops.full([], 2.0, D.Float), a), [(3,)], D.Float)
    filled, *others = (e.name for e in whole.exprs)
    plan_of_parts = prepare(whole, cut(whole, ((filled,), S.NO_OP), (tuple(others), S.POINTWISE)))
    assert all(step.generated for step in plan_of_parts.steps())
    np.testing.assert_array_equal(plan_of_parts.run([np.arange(3, dtype=np.float32)])[0], [2, 3, 4])

    def refuse(_: object) -> None:
        msg = "cannot type this"
        raise ValueError(msg)

    monkeypatch.setattr(host, "host_calls", refuse)
    with pytest.warns(EvaluationWarning, match="The array library evaluates the segment"):
        plan = prepare(fusion, [(fusion, S.NO_OP)])
    assert plan.steps()[0].generated is None
    np.testing.assert_allclose(plan.run(inputs)[0], np.zeros(1), atol=1e-6)


def test_views_of_single_elements_and_arrays_without_elements_get_no_kernel() -> None:
    view = build(lambda fd, a: fd.ops.broadcast(a, [True, True]), [()], D.Float)
    empty = build(lambda fd, a: fd.ops.neg(a), [(0, 4)], D.Float)
    for fusion, shape in ((view, ()), (empty, (0, 4))):
        plan = prepare(fusion, [(fusion, S.NO_OP)])
        assert plan.steps()[0].generated is None
        assert plan.run([np.ones(shape, np.float32)])[0].shape == fusion.outputs[0].shape


def test_what_no_kernel_computes_is_refused_or_evaluated() -> None:
    fusion = build(lambda fd, a, b: fd.ops.exp(fd.ops.matmul(a, b)), [(3, 4), (4, 5)], D.Float)
    with pytest.raises(CodegenError, match="matmul"):
        prepare(fusion, [(fusion, S.POINTWISE)], allow_fallback=False)
    plan = prepare(fusion, [(fusion, S.POINTWISE)], compile_now=False)
    inputs = [numbers((3, 4), D.Float), numbers((4, 5), D.Float)]
    says = "the segment of T3 has no cpu kernel, so the array library evaluates it"
    with pytest.warns(EvaluationWarning, match=says) as warned:
        plan.prepare()
    assert [one.filename for one in warned] == [__file__]
    np.testing.assert_allclose(plan.run(inputs)[0], np.exp(inputs[0] @ inputs[1]), rtol=1e-5)
    assert "matmul" in plan.steps()[0].evaluated_because
    unscheduled = prepare(fusion, [(fusion, None)])
    np.testing.assert_allclose(unscheduled.run(inputs)[0], plan.run(inputs)[0])


@pytest.mark.parametrize(
    ("inputs", "sentence"),
    [
        ([], "the fusion takes 1 input .T0., given 0"),
        ([2.0], "Expected input 0, T0.*, to be an at::Tensor but got scalar 2.0"),
        ([np.zeros((3, 4))], "tensor of dtype float, but got a tensor of dtype double"),
        ([np.zeros((3, 4), ml_dtypes.bfloat16)], "but got a tensor of dtype __bfloat"),
        ([np.zeros((4, 3), np.float32)], "T0 has size 4 on axis 0; this plan is for size 3"),
        ([np.zeros(12, np.float32)], "tensor of rank 2, but got a tensor of rank 1"),
        ([[1.0, 2.0]], "must be an array or a number, given list"),
        ([np.zeros((3, 4), np.uint16)], "dtype uint16 is not a tensor type"),
    ],
)
def test_wrong_inputs_are_told_in_one_sentence(inputs: list[Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        exp_plan().run(inputs)


def test_wrong_scalars_and_outputs() -> None:
    fusion, x = with_scalars(), numbers((3, 4), D.Float)
    plan = prepare(fusion, [(fusion, S.POINTWISE)])
    with pytest.raises(InputError, match="Expected input 1, d., to be a scalar but got float tensor of rank 2"):
        plan.run([x, x, 3, True])
    with pytest.raises(InputError, match="Scalar value 2.5 is not compatible"):
        plan.run([x, 1.0, 2.5, True])
    with pytest.raises(InputError, match="not compatible"):
        plan.run([x, 2 + 1j, 3, True])
    with pytest.raises(InputError, match="returns 1 outputs, given 2"):
        plan.run([x, 1.0, 2, True], [x, x])
    with pytest.raises(InputError, match=r"out for T\d+ must be float \[3, 4\], given double \[3, 4\]"):
        plan.run([x, 1.0, 2, True], [np.zeros((3, 4))])
    frozen = np.zeros((3, 4), np.float32)
    frozen.flags.writeable = False
    with pytest.raises(InputError, match="cannot be written to"):
        plan.run([x, 1.0, 2, True], [frozen])
    with pytest.raises(UnsupportedError, match="unknown target 'tpu'"):
        prepare(fusion, [], "tpu")


def test_cancelled_between_segments(chain: tuple[Fusion, PreparedPlan]) -> None:
    _, plan = chain
    flag = CancelFlag()
    flag.set()
    with pytest.raises(Cancelled):
        plan.run([numbers((50, 8), D.Float)], cancel=flag)
    plan.run([numbers((50, 8), D.Float)], cancel=CancelFlag())


def test_steps_can_be_called_one_by_one(chain: tuple[Fusion, PreparedPlan]) -> None:
    whole, plan = chain
    x = numbers((50, 8), D.Float)
    bound = plan.bind([x])
    for _ in range(2):
        for step in bound.steps:
            step()
    bound.finish()
    np.testing.assert_allclose(bound.outputs[0], evaluate(whole, [x])[0], rtol=1e-5)


def test_what_a_plan_keeps_is_bounded() -> None:
    plan, x = exp_plan((3, 4)), numbers((3, 4), D.Float)
    plan.run([x])
    (variant,) = plan._variants.kept.values()
    environments = [plan._run_memory.environment(variant) for _ in range(5)]
    variant.idle.extend(environments)
    assert len(variant.idle) <= 2
    for step in range(1, variants.KEPT_VARIANTS + 9):
        view = np.zeros((3, 4 * step), np.float32)[:, ::step]
        plan.prepare([view])
        plan.prepare([x])
    assert len(plan._variants.kept) == variants.KEPT_VARIANTS
    assert variant in plan._variants.kept.values(), "variants in use stay"
    assert len(plan._variants.known) <= len(plan._variants.kept)
    flat = exp_plan((1, 4))
    for step in range(4, 400):
        flat.prepare([np.lib.stride_tricks.as_strided(x, (1, 4), (4 * step, 4))])
    assert len(flat._variants.kept) == 1
    assert len(flat._variants.known) <= 256


def test_threads_share_a_plan() -> None:
    whole = build(
        lambda fd, x: fd.ops.sub(x, fd.ops.broadcast(fd.ops.max(x, [1]), [False, True])), [(400, 600)], D.Float,
    )
    names = [e.name for e in whole.exprs]
    plan = prepare(whole, cut(whole, ((names[0],), S.REDUCTION), (tuple(names[1:]), S.POINTWISE)), allow_fallback=False)
    wrong: list[str] = []

    def work(seed: int) -> None:
        x = numbers((400, 600), D.Float, seed)
        wanted = x - x.max(1, keepdims=True)
        wrong.extend(f"thread {seed}" for _ in range(15) if not np.array_equal(plan.run([x])[0], wanted))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_kernel_that_numba_refuses_is_named_and_evaluated_only_if_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    from fuser_lab.errors import CompilationError, EvaluationWarning
    from fuser_lab.runtime.cpu import host

    def refuse(_: object) -> None:
        msg = "cannot type this\nat all"
        raise ValueError(msg)

    monkeypatch.setattr(host, "host_calls", refuse)
    fusion, x = build(lambda fd, x: fd.ops.exp(x), [(3, 4)], D.Float), numbers((3, 4), D.Float)
    with pytest.raises(CompilationError, match=r"T1 does not compile for the CPU: cannot type this \(its source"):
        prepare(fusion, [(fusion, S.POINTWISE)])
    with pytest.warns(EvaluationWarning, match="The array library evaluates the segment"):
        plan = prepare(fusion, [(fusion, S.POINTWISE)], evaluate_refused=True)
    np.testing.assert_allclose(plan.run([x])[0], np.exp(x), rtol=1e-6)
    monkeypatch.undo()
    np.testing.assert_allclose(prepare(fusion, [(fusion, S.POINTWISE)]).run([x])[0], np.exp(x), rtol=1e-6)


def test_an_interrupt_while_compiling_leaves_nothing_half_done(monkeypatch: pytest.MonkeyPatch) -> None:
    from fuser_lab.runtime.cpu import host

    def interrupt(_: object) -> None:
        raise KeyboardInterrupt

    fusion, x = build(lambda fd, x: fd.ops.exp(x), [(3, 5)], D.Float), numbers((3, 5), D.Float)
    plan = prepare(fusion, [(fusion, S.POINTWISE)], compile_now=False)
    with monkeypatch.context() as patch:
        patch.setattr(host, "host_calls", interrupt)
        with pytest.raises(KeyboardInterrupt):
            plan.run([x])
    np.testing.assert_allclose(plan.run([x])[0], np.exp(x), rtol=1e-6)
