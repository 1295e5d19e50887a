"""The results of `fuser_lab.time`: plans of one name, plots, refusals."""

import xml.etree.ElementTree as ET

import numpy as np
import pytest
from fuser_lab_widgets.amounts import model_text

import fuser_lab as fl
from fuser_lab.cost.traffic import CostModel
from fuser_lab.errors import ArgumentTypeError, InputError
from fuser_lab.lab import calibration
from fuser_lab.lab.calibration import machine_model
from fuser_lab.report.units import seconds_label

X = np.linspace(0, 1, 64 * 300, dtype=np.float32).reshape(64, 300)


@pytest.fixture(scope="module")
def plan() -> fl.Plan:
    with fl.FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True, dtype=fl.DataType.Float)
        fd.add_output(fd.ops.exp(fd.ops.segment_set(fd.ops.sum(fd.ops.exp(x), [1]))))
    return fl.segment(fd, [X])


@pytest.fixture(scope="module")
def times(plan: fl.Plan) -> fl.Timings:
    return fl.time([plan, plan], [X], seconds=0.01, progress=False)


def test_a_plan_given_twice_has_rows_of_its_own(plan: fl.Plan, times: fl.Timings) -> None:
    names = [row.plan for row in times.totals]
    assert names == [plan.name, f"{plan.name} (2)"]
    for name in names:
        rows = [row for row in times.rows if row.plan == name]
        assert len(rows) == len(plan.segments) + 1 >= 3
        assert rows[-1].kernels == pytest.approx(sum(row.median for row in rows[:-1]))
    assert "samples or more" in str(times)


def test_the_roofline_of_what_was_measured(plan: fl.Plan, times: fl.Timings) -> None:
    drawn = times.roofline(plan.renamed("the plan decides, not its name"))
    text = " ".join(e.text or "" for e in ET.fromstring(drawn).iter())
    assert "filled ones were measured on CPU" in text
    first = [row.median for row in times.rows if row.plan == plan.name and row.segment is not None]
    assert [text.count(f"measured {seconds_label(median)}") for median in first] == [1] * len(first)
    assert drawn.count(' fl-full"') == len(plan.segments) == 2
    assert times.roofline(plan, before=plan).count('class="fl-before"') == 2


def test_a_roofline_of_what_was_not_measured(times: fl.Timings) -> None:
    with fl.FusionDefinition() as fd:
        fd.add_output(fd.ops.exp(fd.define_tensor([-1, -1], contiguity=True, dtype=fl.DataType.Float)))
    other = fl.segment(fd, [X]).renamed("other")
    with pytest.raises(InputError, match="roofline: no segment of 'other' was measured; the times are of "):
        times.roofline(other)


def test_nothing_to_time() -> None:
    with pytest.raises(ArgumentTypeError, match="time: a list must contain plans, given an empty list"):
        fl.time([], [X])


def test_the_cost_model_of_this_machine_is_measured_once_for_each_size() -> None:
    small = machine_model("cpu", 50_000)
    assert small.device == "this CPU"
    assert 0 < small.launch < 1e-2
    assert 1e7 < small.bandwidth < 1e13
    assert machine_model("cpu", 65_536) is small


def test_a_calibration_that_a_kernel_contradicts_is_repeated_or_replaced(
    plan: fl.Plan, times: fl.Timings, monkeypatch: pytest.MonkeyPatch,
) -> None:
    rate = max(1e9 * row.bandwidth for row in times.rows if row.segment is not None)
    busy, quiet = (CostModel(device="this CPU", bandwidth=share * rate, launch=1e-6) for share in (0.04, 0.9))
    for again, bandwidth in ((quiet, quiet.bandwidth), (busy, pytest.approx(rate))):
        monkeypatch.setattr(calibration, "_calibrated", dict.fromkeys(range(64), busy))
        monkeypatch.setattr(calibration, "_host", lambda _power, again=again: again)
        model = calibration.model_that_ran(times, plan)
        assert model is not None
        assert model.bandwidth == bandwidth
        assert ("the rate of a measured kernel" in model_text(model)) is (again is busy)
        assert calibration.model_that_ran(times, plan) is model  # and nothing is measured again


def test_a_calibration_is_the_best_of_its_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = iter([5.0, 1.0, 5.0, 5.0, 5.0, 5.0, 5.0])
    monkeypatch.setattr(calibration.HostClock, "measured", lambda _clock, _call: lambda: next(runs))
    assert calibration._seconds(64) == 1.0


def test_the_roofline_of_what_ran_on_the_cpu_has_no_roof_of_a_gpu(plan: fl.Plan, times: fl.Timings) -> None:
    drawn = times.roofline(plan)
    assert "H200" not in drawn
    assert "this CPU: its memory" in drawn
