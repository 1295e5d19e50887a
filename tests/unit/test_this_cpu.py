"""This CPU as a target: rates that are fitted, kept on disk, refused where they do not fit, and used by plans."""

import json
from dataclasses import asdict, replace

import numpy as np
import pytest

import fuser_lab as fl
from fuser_lab import DataType, FusionDefinition, calibration, cli
from fuser_lab.cost.device import DEFAULT, HostRates, host_device
from fuser_lab.cost.host_fitting import FEWEST, HostSample, fitted_host
from fuser_lab.cost.predicted_times import TimeModel
from fuser_lab.cost.work import Work, repeated_work, work_of
from fuser_lab.errors import InputError
from fuser_lab.runtime import this_cpu
from tests.benchmarks.optimal import irregular
from tests.unit.test_plan import made_by

PLANTED = HostRates(
    launch=1e-6, bandwidth=2e10, cache=1 << 22, cache_bandwidth=1e11, simple=2e10, dividing=4e9, special=1e9,
    reducing=1e10, product=5e10, overlaps=True, low=0.8, high=1.3, source="40 measurements",
)


def samples(rates, count=120, noise=0.0):
    """Kernels of many proportions, each taking what the rates say."""
    model, dice = TimeModel.of(host_device(rates)), np.random.default_rng(0)
    for number in range(count):
        points = int(2 ** dice.uniform(4, 24))
        work = Work(
            simple=points * (number % 4), dividing=points * (number % 3 == 0), special=points * (number % 5 == 0),
            reducing=points * (number % 2),
        )
        moved = 4 * points * (1 + number % 3)
        yield HostSample(
            form=f"form {number % 7}", moved=moved, work=work,
            seconds=model.seconds(moved, work) * float(np.exp(noise * dice.standard_normal())),
        )


@pytest.fixture
def kept(tmp_path, monkeypatch):
    monkeypatch.setenv("FUSER_LAB_CACHE", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("overlaps", [True, False])
def test_a_fit_finds_planted_rates(overlaps):
    found = fitted_host(list(samples(replace(PLANTED, overlaps=overlaps), noise=0.03)), 5e10)
    assert found.rates.overlaps == overlaps
    for name in ("launch", "bandwidth", "cache_bandwidth", "special"):
        assert getattr(found.rates, name) == pytest.approx(getattr(PLANTED, name), rel=0.15), name
    assert found.within > 0.9
    assert 0.9 < found.rates.low <= 1 <= found.rates.high < 1.1
    assert "of 120 kernels" in str(found)


def test_a_fit_needs_kernels_of_several_forms():
    few = list(samples(PLANTED, FEWEST - 1))
    alike = [replace(one, form="copy") for one in samples(PLANTED)]
    for given in (few, alike):
        with pytest.raises(InputError, match="at least 20 measured kernels of several forms are needed"):
            fitted_host(given, 1.0)


def test_rates_are_kept_and_belong_to_one_processor(kept):
    with pytest.raises(InputError, match="its rates have not been measured; 'python -m fuser_lab fit --this-cpu'"):
        fl.segment(irregular(0, 5, 8, 8), target="this CPU")
    place = this_cpu.keep(PLANTED)
    assert kept in place.parents
    assert this_cpu.this_cpu().host == PLANTED
    record = json.loads(place.read_text())
    place.write_text(json.dumps(record | {"processor": "Z80"}))
    with pytest.raises(InputError, match="the stored rates are for Z80 with"):
        this_cpu.this_cpu()
    for wrong in ("", "[]", json.dumps(record | {"rates": {}})):
        place.write_text(wrong)
        with pytest.raises(InputError, match="cannot be read"):
            this_cpu.this_cpu()


def test_plans_for_this_cpu_are_predicted_by_its_rates(kept):
    this_cpu.keep(PLANTED)
    fd = irregular(2, 12, 512, 512)
    before, plan = (fl.segment(fd, target="this CPU", strategy=name) for name in ("unfused", "fastest"))
    assert plan.target == "this CPU"
    found = plan.predicted_time()
    assert found.source == "40 measurements"
    assert (found.low, found.high) == pytest.approx((0.8 * found.seconds, 1.3 * found.seconds))
    assert found.seconds == pytest.approx(plan.time_bound().seconds)
    assert plan.time_bound().bound <= found.seconds < before.predicted_time().seconds
    assert made_by(plan.to_python()) == plan
    assert "target='this CPU'" in plan.to_python()
    prices = fl.price(fd, target="this CPU")
    assert prices.target == "this CPU"
    unfused = sum(segment.bytes for segment in before.segments) / PLANTED.bandwidth
    assert fl.price(fd, target="this CPU", strategy="unfused").seconds == pytest.approx(
        unfused + len(before.segments) * PLANTED.launch,
    )


def test_what_is_broadcast_over_outer_axes_counts_for_each_reader():
    with FusionDefinition() as fd:
        x = fd.define_tensor([8, 16, 32], contiguity=True)
        table, column = (fd.define_tensor(shape, contiguity=True) for shape in ([16, 32], [8, 16]))
        cosines = fd.ops.broadcast(fd.ops.cos(table), [True, False, False])
        scale = fd.ops.broadcast(fd.ops.exp(column), [False, False, True])
        y = fd.ops.mul(fd.ops.mul(x, cosines), scale)
        total = fd.ops.broadcast(fd.ops.sin(fd.ops.sum(y, [0])), [True, False, False])
        fd.add_output(fd.ops.sub(y, total))
    exprs = fl.segment(fd, strategy="unfused").fusion.tensor_exprs
    once, again = work_of(exprs), repeated_work(exprs)
    assert once.special == 16 * 32 + 8 * 16 + 16 * 32
    assert again.special == 8 * 16 * 32 + 8 * 16 + 16 * 32, "the cosines for each of eight, the others once"
    assert (again.simple, again.reducing) == (once.simple, once.reducing)
    for expr in exprs:
        assert repeated_work([expr]) == work_of([expr]), "nothing is repeated in a kernel of one expression"


def test_the_command_measures_this_cpu_and_keeps_its_rates(kept, capsys, monkeypatch):
    given = iter(samples(PLANTED, 400))
    measured = []

    def one(form, dtype, size):
        measured.append((form, dtype, size))
        return [next(given)]

    monkeypatch.setattr(calibration, "_samples", one)
    assert cli.main(["fit", "--this-cpu", "--seconds", "0.001"]) == 0
    assert len(measured) == FEWEST
    said = capsys.readouterr()
    assert "Plans with target='this CPU' are predicted by these rates." in said.out
    assert str(kept) in said.err
    assert this_cpu.this_cpu().host.source == "20 measurements"
    assert cli.main(["fit", "--this-cpu", "--seconds", "60", "--json"]) == 0
    assert len(measured) == len(set(measured[FEWEST:])) + FEWEST
    assert json.loads(capsys.readouterr().out)["rates"] == asdict(this_cpu.this_cpu().host)
    for wrong in (["fit"], ["fit", "--this-cpu", "--write"], ["fit", "file", "--this-cpu"]):
        assert cli.main(wrong) == 2
        assert "fit: give" in capsys.readouterr().err


@pytest.mark.parametrize("form", ["copy", "softmax", "transpose"])
def test_a_sample_is_one_kernel_with_its_bytes_and_arithmetic(form):
    (found,) = calibration._samples(form, DataType.Float, 16)
    assert found.moved == 2 * 4 * 16 * 16
    assert 0 < found.seconds < 1
    assert found.work.special == (16 * 16 if form == "softmax" else 0)


def test_a_gpu_is_still_described_by_its_data_sheet():
    assert DEFAULT.host is None
    assert TimeModel.of(DEFAULT).bandwidth == DEFAULT.bandwidth * 1e9
    assert not TimeModel.of(DEFAULT).repeats
