"""Numbers that differ between sizes become arguments: one kernel serves many inner extents, and is right for each."""

from dataclasses import replace

import numpy as np
import pytest
from backend.fusions import D, S, build, close, numbers
from backend.reductions import softmax
from thorough import THOROUGH
from unit.codegen.test_sizes import computed

import fuser_lab as fl
from fuser_lab.codegen.kernel_ir import Kernel, Let, Loop, terms_of, walk
from fuser_lab.codegen.varying import SharedKernels, divisions_before_loops
from fuser_lab.interpreter import evaluate
from fuser_lab.ir.term import Apply, Term, Var, index
from fuser_lab.ir.transform import ParallelType
from fuser_lab.runtime.gpu.ptx import kernel_key
from tests.kernels import generate

# Computation, scheduler and shapes. Tiles that CPU kernels transpose stay constant.
CASES = {
    "softmax": (softmax, S.INNER_PERSISTENT, lambda n, m: [(n, m)]),
    "heads": (
        lambda fd, x: fd.ops.neg(fd.ops.permute(fd.ops.reshape(x, [x.size(0), x.size(1), 4, 8]), [0, 2, 1, 3])),
        S.POINTWISE, lambda n, m: [(n, m, 32)],
    ),
    "column sums": (lambda fd, x: fd.ops.sum(x, [0]), S.REDUCTION, lambda n, m: [(20 * n, m)]),
    "joined": (lambda fd, x, y: fd.ops.cat([x, y], 1), S.RESIZE, lambda n, m: [(n, m), (n, 7)]),
    "scaled": (
        lambda fd, x: fd.ops.mul(x, 1 / x.val.shape[1]), S.POINTWISE, lambda n, m: [(n, m)],
    ),
}
SIZES = [(5, 21), (9, 23), (7, 33), (6, 50), *([(5, 27), (12, 49)] if THOROUGH else [])]


@pytest.mark.parametrize("name", CASES)
def test_one_kernel_serves_sizes_of_one_kind(name: str) -> None:
    record, scheduler, shapes = CASES[name]
    shared, keys, alone = SharedKernels(), [], []
    for size in SIZES:
        fusion = build(record, shapes(*size), D.Float)
        made = generate(fusion, scheduler, "cpu", shared=shared)
        keys.append(kernel_key(made))
        alone.append(kernel_key(generate(fusion, scheduler, "cpu")))
        inputs = [numbers(tv.shape, tv.dtype) for tv in fusion.tensor_inputs]
        for tv, ours, right in zip(
            fusion.outputs, computed(made.kernel_ir, fusion, inputs), evaluate(fusion, inputs), strict=True,
        ):
            close(ours, right, tv.dtype)
    assert len(set(keys[1:])) == 1
    assert len(set(alone)) > 2


def test_equal_numbers_share_an_argument_until_they_differ() -> None:
    shared = SharedKernels()
    counts = []
    for shape in [(20, 20), (30, 30), (40, 50)]:
        (phase,) = generate(build(softmax, [shape], D.Float), S.INNER_PERSISTENT, "cpu", shared=shared).kernel_ir.phases
        counts.append(len({size.value for size in phase.sizes}))
        assert len(phase.sizes) == len({size.name for size in phase.sizes})
    assert counts[1] < counts[2]


def test_a_kernel_that_is_lowered_once_is_as_it_would_be_alone() -> None:
    fusion = build(softmax, [(20, 40)], D.Float)
    assert generate(fusion, S.INNER_PERSISTENT, "cpu", shared=SharedKernels()).source == generate(
        fusion, S.INNER_PERSISTENT, "cpu",
    ).source


def test_kernels_that_differ_in_more_than_numbers_are_apart() -> None:
    shared = SharedKernels()
    sizes = [(20, 40), (20, 40), (1, 40), (1, 48)]
    for shape in sizes:
        fusion = build(softmax, [shape], D.Float)
        x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
        made = generate(fusion, S.INNER_PERSISTENT, "cpu", shared=shared)
        close(computed(made.kernel_ir, fusion, [x])[0], evaluate(fusion, [x])[0], fusion.outputs[0].dtype)


def divisions_inside(kernel: Kernel) -> list[Term]:
    """The divisions by arguments in a loop that none of the loop's values changes."""
    found = []
    for phase in kernel.phases:
        arguments = {size.name for size in phase.sizes}
        for loop in (one for one in walk(phase.body) if isinstance(one, Loop)):
            changed = {loop.var} | {s.name for s in walk(loop.body) if isinstance(s, Let)}
            for term in (t for s in walk(loop.body) for root in terms_of(s) for t in root.walk()):
                names = {t.name for t in term.walk() if isinstance(t, Var)}
                if isinstance(term, Apply) and term.fn in {"floordiv", "mod"} and names & arguments:
                    found += [term] if not names & changed else []
    return found


def test_loops_do_not_repeat_divisions_by_arguments() -> None:
    record, scheduler, shapes = CASES["heads"]
    shared = SharedKernels()
    for size in SIZES:
        kernel = generate(build(record, shapes(*size), D.Float), scheduler, "cpu", shared=shared).kernel_ir
        assert divisions_inside(kernel) == []
    values = [s.value for phase in kernel.phases for s in walk(phase.body) if isinstance(s, Let)]
    assert any(isinstance(value, Apply) and value.fn in {"floordiv", "mod"} for value in values)


def test_a_division_of_a_value_that_the_loop_changes_stays_in_it() -> None:
    place, divisor = Var(D.Index, "place"), Var(D.Index, "n")
    quotient = Let(name="quotient", value=Apply(D.Index, "floordiv", (place, divisor)))
    inside = (Let(name="place", value=index(7)), quotient)
    body = (
        Let(name="place", value=index(3)),
        Loop(var="i", start=index(0), stop=index(4), parallel=ParallelType.serial, body=inside),
    )
    assert divisions_before_loops(body, frozenset({"n"}), {"place", "quotient", "n", "i"}) == body


def test_the_first_sizes_keep_their_numbers_if_the_others_come_later() -> None:
    shared = SharedKernels(keeps_first=True)
    first, *_, again = [
        generate(build(softmax, [shape], D.Float), S.INNER_PERSISTENT, "cpu", shared=shared).source
        for shape in [(20, 40), (20, 48), (20, 56), (20, 40)]
    ]
    alone = generate(build(softmax, [(20, 40)], D.Float), S.INNER_PERSISTENT, "cpu").source
    assert first == again == alone


def test_specialized_kernels_take_no_arguments() -> None:
    shared, plans = SharedKernels(), []
    for columns in (40, 48):
        with fl.FusionDefinition() as fd:
            x = fd.define_tensor([20, columns], contiguity=True, dtype=D.Float)
            fd.add_output(fd.ops.softmax(x, -1))
        plans.append(replace(fl.segment(fd).with_params(0, target="cpu", specialized=True), shared=shared))
    for plan in plans:
        (step,) = plan.prepare("cpu").steps()
        assert step.generated is not None
        assert [phase.sizes for phase in step.generated.kernel_ir.phases] == [()]
