"""Errors in units in the last place, and their tables."""

import json
import math

import numpy as np
import pytest

from fuser_lab.dtypes import DataType
from tests.op_accuracy import __main__ as command
from tests.op_accuracy import measuring, tables
from tests.op_accuracy.measuring import DTYPES, Accuracy, samples, stated_from, ulps
from tests.op_accuracy.tables import Stated, accuracy_text, save, stated
from tests.pages.ops import accuracy_lines

D = DataType


def errors(got, exact, dtype=D.Float):
    return ulps(np.array(got, dtype.numpy), np.array(exact), dtype).tolist()


def test_neighbouring_numbers_are_one_unit_apart():
    x = np.float32([1.0, 1.5, 4.0, 1e-40, 3e38])
    above = np.nextafter(x, np.float32(np.inf))
    assert ulps(above, x.astype(np.float64), D.Float).tolist()[:3] == [1.0, 1.0, 1.0]
    assert ulps(above, x.astype(np.float64), D.Float).tolist()[3:] == [1.0, 1.0]
    assert errors([1.0], [1 + 2.0**-24]) == [0.5]
    assert errors([1.0], [1 - 2.0**-25]) == [0.5]  # below a power of two, units are half as large
    assert errors([1.0], [1.0 + 2.0**-10], D.Half) == [1.0]


def test_what_is_special_counts():
    assert errors([np.nan, np.inf, -np.inf], [np.nan, np.inf, -np.inf]) == [0.0, 0.0, 0.0]
    assert errors([np.nan, 1.0], [1.0, np.nan]) == [math.inf, math.inf]
    assert errors([np.inf], [3.4028236e38]) == [pytest.approx(0.6, abs=0.5)]
    assert errors([np.inf], [1.0])[0] > 1e30


def test_errors_of_complex_numbers_are_distances():
    got = np.array([3 + 4j], np.complex64)
    exact = np.array([3 + 4j]) + 2.0**-21 * (0.6 + 0.8j)
    assert ulps(got, exact, D.ComplexFloat) == pytest.approx([1.0])


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.name)
def test_samples_are_of_the_whole_range_and_always_the_same(dtype):
    for count in (1, 2):
        found = samples(dtype, count)
        assert len(found) == count
        again = samples(dtype, count)
        for a, b in zip(found, again, strict=True):
            assert a.dtype == dtype.numpy
            assert a.tobytes() == b.tobytes()
            real = np.real(a).astype(np.float64)
            assert np.isnan(real).any()
            assert np.isinf(real).any()
            assert np.signbit(real[real == 0]).any()
            assert ((real != 0) & (np.abs(real) < 1e-4)).any()


def test_what_is_measured_is_kept_rounded_up_and_other_targets_stay(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "FILE", tmp_path / "accuracy.json")
    rows = [("exp", D.Float, 0.861), ("exp", D.Double, 1234.5), ("log", D.Float, math.inf), ("add", D.Float, 0.5)]
    found = [Accuracy(op=op, dtype=d, target="cpu", ulps=x, operands=("1",)) for op, d, x in rows]
    save({"cpu": stated_from(found, "cpu", "a processor")})
    save({"cuda": Stated(target="cuda", device="a GPU", ulps={"exp": {"Float": 2.0}})})
    known = stated()
    assert known["cpu"].ulps == {"exp": {"Float": 0.87, "Double": 1300.0}, "log": {"Float": math.inf},
                                 "add": {"Float": 0.5}}
    assert known["cuda"].device == "a GPU"
    json.loads(tables.FILE.read_text(), parse_constant=pytest.fail)
    text = "\n".join(accuracy_lines(known))
    assert "| `exp` | 0.9 | 1.3e+03 |" in text
    assert "| `log` | NaN |  |" in text
    assert "At most 0.5 in every dtype: `add`." in text
    assert "Measured on a GPU." in text
    assert "a processor" in accuracy_text(known)


def test_a_target_that_was_not_measured_says_so():
    assert "Not measured on a GPU yet." in list(accuracy_lines({}))


def test_what_is_less_exact_without_fused_multiply_add_is_named():
    def table(target, **ulps):
        return Stated(target=target, device="a processor", ulps={op: {"Float": one} for op, one in ulps.items()})

    without = table(tables.WITHOUT_FMA, exp=1.05, tanh=3.51, erf=math.inf)
    text = "\n".join(accuracy_lines({"cpu": table("cpu", exp=1.0, tanh=2.5, erf=1.0), without.target: without}))
    assert "(`NUMBA_CPU_NAME=generic`): `erf` NaN instead of 1 in Float; `tanh` 3.6 instead of 2.5 in Float. No" in text


def test_the_command_prints_what_it_measures_and_writes_it_only_when_told_to(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(tables, "FILE", tmp_path / "accuracy.json")
    found = Accuracy(op="exp", dtype=D.Float, target="cpu", ulps=0.9, operands=("1",))
    monkeypatch.setattr(measuring, "measured", lambda target: (found,))
    command.main([])
    assert "exp                     0.9" in capsys.readouterr().out
    assert not tables.FILE.exists()
    command.main(["--write"])
    assert stated()[measuring.cpu_table()].ulps == {"exp": {"Float": 0.9}}
