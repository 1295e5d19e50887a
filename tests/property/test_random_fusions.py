"""Random fusions over all ops: every way of computing one agrees with the reference (`make fuzz` runs more of them)."""

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given
from hypothesis import strategies as st
from thorough import share, tries

from fuser_lab.codegen import kernel_eval
from fuser_lab.dtypes import DataType
from tests.agreement import STRATEGIES, TARGETS, Disagreement
from tests.campaign import failure_of, shrink
from tests.fuzz.analysis import Analysis
from tests.fuzz.check import Way, check
from tests.fuzz.choices import Drawn, Seeded
from tests.fuzz.generator import ENTRIES, Generator, generate
from tests.fuzz.program import Program, Step, TensorInput
from tests.fuzz.runner import CAMPAIGN
from tests.fuzz.shrink import smaller

pytestmark = [pytest.mark.property, pytest.mark.filterwarnings("ignore::numpy.exceptions.ComplexWarning")]

SEED, COUNT, BATCHES = 3, share(120), 4
COMPILED = share(15)


# Shrinking programs is much faster than shrinking the choices they are built from.
@tries(60, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
@given(st.data(), st.sampled_from(STRATEGIES), st.sampled_from(TARGETS))
def test_every_way_agrees(data, strategy, target):
    program, way = generate(Drawn(data), 12), Way(strategy=strategy, targets=(target,))
    error = failure_of(check, program, way)
    if error is not None:
        small = shrink(program, smaller, lambda p: failure_of(check, p, way))
        raise AssertionError(f"{way}: {failure_of(check, small, way)}\n{small}") from error


@pytest.mark.parametrize("batch", range(BATCHES))
def test_a_fixed_batch(batch):
    size = COUNT // BATCHES
    tally = CAMPAIGN.run(SEED, range(batch * size, (batch + 1) * size))
    assert not tally.findings, tally.findings[0].trace
    assert sum(count for (group, _), count in tally.counts.items() if group == "ops") > 5 * size


def test_rounding_may_move_the_imaginary_part_of_what_is_complex():
    inputs = (
        TensorInput(name="a", values=np.array(0.1827114075422287j, np.complex64), dtype=DataType.ComplexFloat),
        TensorInput(name="b", values=np.array([1.5, -0.5, 0.0]), dtype=DataType.Double),
    )
    calls = {"c": "fd.ops.exp2(a)", "d": "fd.ops.sub(b, c)", "e": "fd.ops.imag(d)"}
    program = Program(
        inputs=inputs, steps=tuple(Step(results=(name,), call=call, unpacks=False) for name, call in calls.items()),
        outputs=("e",),
    )
    assert failure_of(check, program, Way(targets=())) is None
    analysis = Analysis.of(program)
    assert analysis.known("e").error >= analysis.known("c").error > 0


def test_errors_of_operands_do_not_cancel():
    analysis = Analysis()
    values = np.array([1.3]).astype(DataType.BFloat16.numpy)
    analysis.add_input(TensorInput(name="a", values=values, dtype=DataType.BFloat16))
    analysis.add_call("fd.ops.mul(a, 0.7)", ["b"])
    analysis.add_call("fd.ops.mul(a, 0.9)", ["c"])
    b, c = analysis.known("b"), analysis.known("c")
    for _ in range(8):  # in random directions
        (name,) = analysis.add_call("fd.ops.atan2(b, c)")
        assert analysis.known(name).error >= (c.size * b.error + b.size * c.error) / (b.size**2 + c.size**2)


def test_a_pole_that_rounding_may_reach_is_refused():
    analysis = Analysis()
    values = np.array([-3.00001 / 0.7, 1e-5, 400.0], np.float32)
    analysis.add_input(TensorInput(name="a", values=values, dtype=DataType.Float))
    analysis.add_call("fd.ops.mul(a, 0.7)", ["b"])
    assert analysis.known("b").error > 1e-5
    assert analysis.add_call("fd.ops.lgamma(b)") is None
    assert analysis.add_call("fd.ops.div(0, b)") is None
    assert analysis.add_call("fd.ops.truediv(0.0, b)") is None
    analysis.add_call("fd.ops.add(fd.ops.abs(b), 0.5)", ["c"])
    assert analysis.add_call("fd.ops.lgamma(c)") is not None
    assert analysis.add_call("fd.ops.div(0, c)") is not None


def test_rounding_decides_whether_what_is_complex_is_real():
    analysis = Analysis()
    values = np.array([1.5 - 1.1957180500030518j], np.complex64)
    analysis.add_input(TensorInput(name="a", values=values, dtype=DataType.ComplexFloat))
    analysis.add_call("fd.ops.truediv(a, a)", ["b"])
    assert analysis.add_call("fd.ops.isreal(b)") is None
    assert analysis.add_call("fd.ops.isfinite(b)") is not None
    assert analysis.add_call("fd.ops.isreal(a)") is not None
    assert analysis.add_call("fd.ops.isreal(fd.ops.abs(b))") is not None


def test_an_input_that_is_overwritten_and_returned_is_as_uncertain_as_what_is_written():
    values = np.array([[0.5, -1.5], [0.25, 2.0]], np.float32)
    program = Program(
        inputs=(TensorInput(name="a", values=values, dtype=DataType.Float),),
        steps=(Step(results=("b",), call="fd.ops.tanh(a)"), Step(results=("c",), call="fd.ops.expand(a, [-1, -1])")),
        outputs=(("b", "a"), "c"),
    )
    assert failure_of(check, program, Way()) is None


@pytest.mark.parametrize("index", range(COMPILED))
def test_compiled_kernels(index):
    program = generate(Seeded(SEED, 10_000 + index), 10)
    error = failure_of(check, program, Way(targets=(), compiled=True))
    assert error is None, f"{error}\n{program}"


def test_a_wrong_kernel_is_found_and_shrunk(monkeypatch):
    functions = kernel_eval._FUNCTIONS
    monkeypatch.setitem(functions, "tanh", lambda x: np.tanh(x) + 0.01)
    for index in range(1000):
        program = generate(Seeded(0, index), 12)
        error = failure_of(check, program, Way(targets=("cpu",)))
        if error is not None:
            break
    assert isinstance(error, Disagreement)
    assert len(program.steps) > 2
    small = shrink(program, smaller, lambda p: failure_of(check, p, Way(targets=("cpu",))))
    assert len(small.steps) <= 2
    assert "tanh" in small.ops()
    monkeypatch.undo()
    assert failure_of(check, small, Way(targets=("cpu",))) is None


def test_the_same_seed_gives_the_same_program():
    assert str(generate(Seeded(1, 2))) == str(generate(Seeded(1, 2)))
    assert str(generate(Seeded(1, 2))) != str(generate(Seeded(1, 3)))


def test_a_printed_program_runs_and_gives_its_inputs():
    for index in range(40):
        program = generate(Seeded(5, index), 12)
        names = {}
        exec(str(program).rpartition("outputs = ")[0], names)
        assert names["fd"].fusion == program.define().fusion
        for printed, given_ in zip(names["inputs"], program.arrays(), strict=True):
            np.testing.assert_array_equal(np.asarray(printed), given_)
            assert np.asarray(printed).dtype == np.asarray(given_).dtype or not np.ndim(given_)
            if np.size(given_) > 1:
                sized = [i for i, n in enumerate(given_.shape) if n > 1]
                assert [printed.strides[i] for i in sized] == [given_.strides[i] for i in sized]


def test_what_jumps_meets_exact_values_only():
    values = np.array([0.3, 1.7, 2.0, -0.5], np.float32)
    analysis = Analysis()
    analysis.add_input(TensorInput(name="t0", values=values, dtype=DataType.Float))
    assert analysis.add_call("fd.ops.floor(t0)") is not None
    assert analysis.known(analysis.steps[-1].results[0]).error == 0
    (uncertain,) = analysis.add_call("fd.ops.exp(t0)")
    assert 0 < analysis.known(uncertain).error < 1e-4
    assert analysis.add_call(f"fd.ops.floor({uncertain})") is None
    assert analysis.add_call(f"fd.ops.cast({uncertain}, DataType.Int)") is None
    assert analysis.add_call(f"fd.ops.lt({uncertain}, 1.0)") is None
    assert analysis.add_call("fd.ops.log(t0)") is None  # not finite


def test_the_sign_of_a_computed_zero_is_not_compared():
    analysis = Analysis()
    values = np.array([1.0, -1.0, -0.0], np.float32)
    analysis.add_input(TensorInput(name="a", values=values, dtype=DataType.Float))
    analysis.add_call("fd.ops.cumsum(a, 0)", ["b"])
    assert analysis.add_call("fd.ops.signbit(a)") is not None
    assert analysis.add_call("fd.ops.signbit(b)") is None


def test_dead_steps_go_away():
    given_ = TensorInput(name="t0", values=np.ones(3, np.float32), dtype=DataType.Float)
    steps = (Step(results=("t1",), call="fd.ops.neg(t0)"), Step(results=("t2",), call="fd.ops.exp(t0)"))
    program = Program(inputs=(given_,), steps=steps, outputs=("t2",)).live()
    assert [s.results for s in program.steps] == [("t2",)]
    assert program.ops() == ["exp"]


def test_all_families_are_reached():
    generator = Generator(Seeded(0, 0))
    generator.program(60)
    ops = {op for index in range(150) for op in generate(Seeded(9, index), 60).ops()}
    kinds = {getattr(ENTRIES[op], "kind", None) for op in ops}
    missing = {e.kind for e in ENTRIES.values() if getattr(e, "kind", None) and e.samples} - kinds
    assert {kind.value for kind in missing} <= {"attention"}, missing
