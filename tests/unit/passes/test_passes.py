"""Pre-segmentation passes: what they rewrite, what they do not rewrite, and that the meaning is preserved."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fuser_lab as fl
from fuser_lab.dtypes import DataType, narrow
from fuser_lab.errors import InputError
from fuser_lab.interpreter import evaluate
from fuser_lab.passes import PRESEGMENTATION, ConsecutiveCasts
from tests.unit.builders import record

FLOATS = ["Half", "BFloat16", "Float", "Double"]


def chain(*dtypes, source="BFloat16"):
    """Return neg(x) cast through dtypes, then doubled."""

    def body(fd):
        x = fd.ops.cast(fd.ops.neg(fd.define_tensor([6], dtype=DataType[source])), dtype=DataType[source])
        for dtype in dtypes:
            x = fd.ops.cast(x, dtype=DataType[dtype])
        fd.add_output(fd.ops.mul(x, 2.0))

    return record(body)


def casts(fusion):
    return [e.out.dtype.name for e in fusion.exprs if e.op.name == "cast"]


def test_widening_and_back_is_nothing():
    after = ConsecutiveCasts().run(chain("Float", "BFloat16", "Float"))
    assert casts(after) == ["Float", "BFloat16", "Float"], "of five casts, the promotion, the rounding and one back"


def test_rounding_is_kept():
    fusion = chain("Half", "Float", source="Float")
    assert casts(ConsecutiveCasts().run(fusion)) == casts(fusion)


@pytest.mark.parametrize(("source", "wide", "shortened"), [
    ("Float", "Double", False), ("Half", "Double", False), ("BFloat16", "Double", False), ("BFloat16", "Float", True),
])
def test_nan_becomes_the_integer_of_the_type_that_it_had(source, wide, shortened):
    for result in ("Int32", "Int"):
        def body(fd, result=result):
            x = fd.ops.cast(fd.define_tensor([3], dtype=DataType[source]), dtype=DataType[wide])
            fd.add_output(fd.ops.cast(x, dtype=DataType[result]))

        fusion, x = record(body), np.array([np.nan, 2.5, -2.5]).astype(DataType[source].numpy)
        after = ConsecutiveCasts().run(fusion)
        assert len(casts(after)) == (1 if shortened or result == "Int" else 2)
        np.testing.assert_array_equal(evaluate(after, [x])[0], evaluate(fusion, [x])[0])


def test_a_shortened_chain_of_casts_gives_the_same_numbers_for_all_types():
    """Every chain of three types, on values whose conversions differ: NaN, negative numbers, ends of ranges."""
    left_out = {DataType.Null, DataType.Float4_e2m1fn, DataType.Float4_e2m1fn_x2}
    real = [dtype for dtype in DataType if dtype not in left_out and not dtype.is_complex]
    hard = np.array([0, 1, -1, 2.5, -2.5, 127, -128, 255, 2049, -70000, 2**31 - 1, -(2**31), 16777217, 1e10, -1e10])
    for source, wide, result in itertools.product(real, repeat=3):
        values = np.append(hard, [np.nan, np.inf, -np.inf, 1e30]) if source.is_float else hard
        size = len(values)
        with np.errstate(over="ignore"):
            x = narrow(values, source)

        def body(fd, source=source, wide=wide, result=result, size=size):
            x = fd.define_tensor([size], dtype=source)
            fd.add_output(fd.ops.cast(fd.ops.cast(x, dtype=wide), dtype=result))

        fusion = record(body)
        after = ConsecutiveCasts().run(fusion)
        if after is not fusion:
            with np.errstate(over="ignore"):
                found, wanted = evaluate(after, [x]), evaluate(fusion, [x])
            compared = [y.astype(np.float64) if result.is_float else y for y in (*found, *wanted)]
            np.testing.assert_array_equal(*compared, f"{source}, {wide}, {result}")


def test_an_output_is_still_made():
    def body(fd):
        x = fd.define_tensor([6], dtype=DataType.BFloat16)
        wide = fd.ops.cast(x, dtype=DataType.Float)
        fd.add_output(fd.ops.cast(wide, dtype=DataType.BFloat16))
        fd.add_output(wide)

    after = ConsecutiveCasts().run(record(body))
    assert [e.op.name for e in after.exprs] == ["cast", "set"]
    assert after.outputs == record(body).outputs


@given(st.sampled_from(FLOATS), st.lists(st.sampled_from(FLOATS), max_size=5))
def test_the_meaning_stays(source, dtypes):
    fusion = chain(*dtypes, source=source)
    after = PRESEGMENTATION.run(fusion)
    x = np.array([1.1, -2.7, 3e-5, 0.0, 60000.0, np.inf]).astype(DataType[source].numpy)
    np.testing.assert_array_equal(evaluate(fusion, [x])[0], evaluate(after, [x])[0])
    assert len(after.exprs) <= len(fusion.exprs)


@pytest.mark.parametrize("name", fl.examples.names())
def test_examples_keep_their_meaning(name):
    fd, inputs = fl.example(name)
    plan = fl.segment(fd, inputs, options=fl.SegmenterOptions(disabled_passes=["consecutive_casts"]))
    changed = PRESEGMENTATION.run(plan.fusion)
    for a, b in zip(evaluate(plan.fusion, inputs), evaluate(changed, inputs), strict=True):
        np.testing.assert_array_equal(a, b)


def test_the_pipeline_reports_and_can_be_switched_off():
    fusion, seen = chain("Float", "BFloat16"), []
    PRESEGMENTATION.run(fusion, callback=lambda one, before, after, seconds: seen.append((one.name, before, after)))
    assert [name for name, *_ in seen] == ["consecutive_casts"]
    assert seen[0][1] is fusion
    assert PRESEGMENTATION.run(fusion, disabled=["consecutive_casts"]) is fusion
    with pytest.raises(InputError, match="unknown pass 'nothing'; choose from .*consecutive_casts"):
        PRESEGMENTATION.run(fusion, disabled=["nothing"])
