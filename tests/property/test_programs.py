"""Random programs against torch in float64 (`make fuzz` runs more of them), and that planted errors are found."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from needs import INSTALL, needs

pytest.importorskip("torch", reason=f"needs torch: {INSTALL['torch']}")

import fuser_lab as fl
from fuser_lab.ops import OPS
from tests.campaign import failure_of, shrink
from tests.programs import check as checking
from tests.programs.check import Way, Wrong, check, compare
from tests.programs.generator import program_of, row_program
from tests.programs.oracle import evaluated, results
from tests.programs.program import NUMPY, Call, Input, Program, Ref
from tests.programs.runner import CAMPAIGN
from tests.programs.shrink import smaller
from tests.programs.values import Value

pytestmark = pytest.mark.property

SEED = 3


@pytest.mark.parametrize("first", [0, 20, 40])
def test_a_fixed_batch(first):
    tally = CAMPAIGN.run(SEED, range(first, first + 20))
    assert not tally.findings, tally.findings[0].trace
    assert tally.counts["plans", "checked"] >= 20
    assert tally.counts["plans", "edited"] >= 1


def test_one_program_is_compiled():
    tally = CAMPAIGN.run(SEED, range(1, 2), compile_every=1)
    assert not tally.findings, tally.findings[0].trace
    assert tally.counts["compiled", "programs"] == 1


def summed(array, **declared):
    """Return a program that sums rows and takes the square root."""
    x = Input(base=array, dtype=fl.DataType.Float, declared=declared.get("declared", array.shape))
    calls = (Call(op="sum", args=(Ref(0), [1])), Call(op="abs", args=(Ref(1),)), Call(op="sqrt", args=(Ref(2),)))
    return Program(inputs=(x,), calls=calls, outputs=(1, 3))


def test_a_program_is_the_same_each_time_and_is_printed_as_python():
    program = program_of(SEED, 5, Counter())
    assert str(program) == str(program_of(SEED, 5, Counter()))
    names = {}
    exec(str(program), names)
    got = names["fd"].reference(names["inputs"])
    for a, b in zip(got, program.define().reference(program.arrays()), strict=True):
        np.testing.assert_array_equal(a, b)
    assert row_program(SEED, 36, Counter()).inputs[0].array.shape[1] == 37


def test_elements_that_rounding_decides_are_not_compared():
    array = np.array([[1.0, 1e-9], [3e38, 3e38], [float("nan"), 1.0]], np.float32)
    program = summed(array)
    (total, root) = (evaluated(program)[k] for k in program.outputs)
    assert total.u.tolist() == [False, True, False]
    right = [total.v.numpy().astype(np.float32), root.v.numpy().astype(np.float32)]
    compare(right, [total, root], "as it is")
    compare([right[0] + np.array([0, 1e38, 0], np.float32), right[1]], [total, root], "where nothing is certain")
    for wrong in (1.001, float("nan")):
        with pytest.raises(Wrong, match=r"output 0: .* at \[0\]"):
            compare([right[0] * np.array([wrong, 1, 1], np.float32), right[1]], [total, root], "planted")
    with pytest.raises(Wrong, match=r"shape \(2,\)"):
        compare([right[0][:2], right[1]], [total, root], "planted")
    with pytest.raises(Wrong, match="dtype float64"):
        compare([right[0].astype(np.float64), right[1]], [total, root], "planted")


def test_an_error_of_the_reference_is_found_and_shrunk(monkeypatch):
    entry = OPS["sqrt"]
    monkeypatch.setitem(OPS, "sqrt", replace(entry, reference=lambda x: np.sqrt(x) * 1.001))
    program = summed(np.ones((3, 4), np.float32), declared=(-1, 4))
    assert isinstance(failure_of(check, program, Way()), Wrong)
    small = shrink(program, smaller, lambda p: failure_of(check, p, Way()))
    assert [call.op for call in small.calls] == ["sqrt"]


def test_an_error_of_kernels_is_found(monkeypatch):
    def changed(plan, inputs, target):
        return [x * 1.001 for x in kernels(plan, inputs, target)]

    kernels = checking.agreement.lock_step
    program = summed(np.ones((3, 4), np.float32))
    assert check(program, Way(edits=1)) >= (1, 0)
    monkeypatch.setattr(checking.agreement, "lock_step", changed)
    with pytest.raises(Wrong, match="cpu kernels of top_down"):
        check(program, Way(strategy="top_down"))


@pytest.mark.parametrize("target", [fl.DataType.Int, fl.DataType.Int32])
@pytest.mark.parametrize("source", [fl.DataType.Float, fl.DataType.Double, fl.DataType.Half, fl.DataType.BFloat16])
def test_floats_that_no_integer_holds(source, target):
    numbers = np.array([np.nan, np.inf, -np.inf, 1e10, -1e10, 3.7, -3.7, 2.0**31, -(2.0**63), 1e30])
    with np.errstate(over="ignore"):
        x = Input(base=numbers.astype(NUMPY[source]), dtype=source, declared=numbers.shape)
    program = Program(inputs=(x,), calls=(Call(op="cast", args=(Ref(0), target)),), outputs=(1,))
    assert failure_of(check, program, Way()) is None


def float_program(op, *arguments, dtypes=(fl.DataType.Float,), **attributes):
    """Return a program of one call on given arrays and numbers."""
    arrays = [x for x in arguments if isinstance(x, np.ndarray)]
    inputs = tuple(
        Input(base=x.astype(NUMPY[dtype]), dtype=dtype, declared=x.shape)
        for x, dtype in zip(arrays, dtypes * len(arrays), strict=False)
    )
    places = iter(range(len(arrays)))
    given = tuple(Ref(next(places)) if isinstance(x, np.ndarray) else x for x in arguments)
    return Program(inputs=inputs, calls=(Call(op=op, args=given, kwargs=tuple(attributes.items())),),
                   outputs=(len(inputs),))


LARGE = np.full(9, 1.7e308)
DECIDED = {
    "fmod of large numbers": float_program("fmod", LARGE, 0.3, dtypes=(fl.DataType.Double,)),
    "remainder of large numbers": float_program("remainder", -LARGE, 0.3, dtypes=(fl.DataType.Double,)),
    "lgamma of subnormal numbers": float_program(
        "lgamma", np.array([5e-324, -5e-324, 1e-310, 2.2e-308, -1e-300, 1e-20, 0.0]), dtypes=(fl.DataType.Double,),
    ),
    "a root of minus infinity": float_program("pow", np.array([-np.inf, np.inf, -0.0, 0.0, 4.0, -4.0]), 0.5),
    "silu of a subnormal sigmoid": float_program("silu", np.linspace(-120, -80, 41)),
    "a sum of halves that overflows": float_program(
        "var", np.full((3, 31), 60000.0), [0, 1], 1, True, dtypes=(fl.DataType.Half,),
    ),
}


@pytest.mark.parametrize("name", DECIDED)
def test_values_that_libraries_differ_about(name):
    error = failure_of(check, DECIDED[name], Way())
    assert error is None, error


def test_what_errors_decide_is_not_compared():
    torch = needs("torch")
    nearly = Value(
        dtype=fl.DataType.Float, v=torch.tensor([1.0, 0.5, 3.5]).double(), e=torch.tensor([1e-7, 1e-7, 2.0]).double(),
        u=torch.zeros(3) > 0,
    )
    (power,) = results(Call(op="pow", args=(-2.0, Ref(0))), [nearly])
    assert power.u.tolist() == [True, False, True]
    close_to_zero = Value(
        dtype=fl.DataType.Float, v=torch.tensor([1e-9, -1e-9, 0.5]).double(), e=torch.full((3,), 1e-7).double(),
        u=torch.zeros(3) > 0,
    )
    for op, arguments in (("truediv", (0.0, Ref(0))), ("div", (1.0, Ref(0))), ("reciprocal", (Ref(0),)),
                          ("pow", (Ref(0), -1.0))):
        (quotient,) = results(Call(op=op, args=arguments), [close_to_zero])
        assert quotient.u.tolist() == [True, True, False]
    (fraction,) = results(Call(op="frac", args=(Ref(0),)), [nearly])
    assert fraction.u.tolist() == [True, False, True]


@pytest.mark.parametrize("index", [1905, 2036, 2070, 2292])
def test_long_rows_in_two_channels_compute_something(index):
    assert row_program(1, index, Counter()).outputs


def test_a_plan_without_segments_is_not_edited():
    program = Program(
        inputs=(Input(base=np.ones(1, np.float32), dtype=fl.DataType.Float, declared=(1,)),),
        calls=(Call(op="expand", args=(Ref(0), [-1])),), outputs=(1,),
    )
    assert check(program, Way(edits=1)) == (1, 0)
