"""This CPU as a target: rates that are fitted, stored on disk, refused if they do not match, and used by plans."""

import json
from dataclasses import asdict, replace

import numpy as np
import pytest

import fuser_lab as fl
from fuser_lab import FusionDefinition
from fuser_lab.cli import commands as cli
from fuser_lab.cost.device import DEFAULT, host_device
from fuser_lab.cost.host_fitting import FEWEST, TYPICAL, HostSample, fitted_host
from fuser_lab.cost.host_plan import begun_phases
from fuser_lab.cost.host_time import COUNTS, HostCaches, HostPhase, HostRates, Moved, host_columns, phase_seconds
from fuser_lab.cost.predicted_times import TimeModel
from fuser_lab.cost.verdict import SchedulerType
from fuser_lab.cost.work import repeated_work, work_of
from fuser_lab.errors import InputError
from fuser_lab.lab import calibration
from fuser_lab.plan.clock import EVALUATED_ON_HOST, ScheduledClock, given_strides
from fuser_lab.runtime.cpu import this_cpu
from fuser_lab.runtime.processors import threads_here
from tests.benchmarks.optimal import irregular
from tests.unit.test_plan import made_by

CACHES = HostCaches(threads=threads_here(), first=1 << 15, second=1 << 20, last=1 << 25)
PLANTED = HostRates(
    **{name: 1.5 * seconds for name, seconds in TYPICAL.items()}, caches=CACHES, second=1 << 20, last=1 << 25,
    product=5e10, low=0.8, high=1.3, source="40 measurements",
)


def samples(rates, count=120, noise=0.0):
    """Kernels of many proportions, each with the time that the rates give."""
    dice = np.random.default_rng(0)
    for number in range(count):
        points = int(2 ** dice.uniform(8, 24))
        cores = float(CACHES.threads if number % 3 else 1)
        counts = {name: dice.uniform(1e-5, 1e-3) / TYPICAL[name] for name in dice.choice(COUNTS, 2, replace=False)}
        phase = HostPhase(
            cores=cores, is_shared=bool(number % 3), near=4 * points / cores, **counts,
            moved=tuple(
                Moved(
                    name=name, nbytes=4 * points, far=4 * points, memory=4 * points,
                    length=64.0 if number % 5 == 0 else 1e6, is_stored=name == "y",
                )
                for name in "xy"[: 1 + number % 2]
            ),
        )
        columns = host_columns(begun_phases([[phase]], CACHES.threads, rates.second, rates.last))
        (seconds,) = phase_seconds(columns, rates)
        yield HostSample(
            form=f"form {number % 7}", kernels=((phase,),),
            seconds=(float(seconds * np.exp(noise * dice.standard_normal())),),
        )


@pytest.fixture
def kept(tmp_path, monkeypatch):
    monkeypatch.setenv("FUSER_LAB_CACHE", str(tmp_path))
    return tmp_path


def test_a_fit_finds_planted_rates():
    found = fitted_host(list(samples(PLANTED, noise=0.03)), CACHES, 5e10)
    for name in ("simple", "dividing", "function", "called", "single", "whole", "turned", "scanned"):
        assert getattr(found.rates, name) == pytest.approx(getattr(PLANTED, name), rel=0.25), name
    assert found.rates.last == PLANTED.last
    assert found.within > 0.9
    assert 0.9 < found.rates.low <= 1 <= found.rates.high < 1.1
    assert "of 120 kernels" in str(found)


def test_a_fit_needs_kernels_of_several_forms():
    few = list(samples(PLANTED, FEWEST - 1))
    alike = [replace(one, form="copy") for one in samples(PLANTED)]
    for given in (few, alike):
        with pytest.raises(InputError, match="at least 20 measured kernels of several forms are needed"):
            fitted_host(given, CACHES, 1.0)


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
    for wrong in ("", "[]", json.dumps(record | {"rates": {}}), json.dumps(record | {"rates": {"caches": {}}})):
        place.write_text(wrong)
        with pytest.raises(InputError, match="cannot be read"):
            this_cpu.this_cpu()


def test_rates_are_kept_for_each_number_of_threads(kept, monkeypatch):
    monkeypatch.setattr(this_cpu, "threads_here", lambda: 1)
    first = this_cpu.keep(PLANTED)
    monkeypatch.setattr(this_cpu, "threads_here", lambda: 3)
    second = this_cpu.keep(replace(PLANTED, fork=1.0))
    assert first != second
    assert this_cpu.this_cpu().host.fork == 1.0
    monkeypatch.setattr(this_cpu, "threads_here", lambda: 1)
    assert this_cpu.this_cpu().host == PLANTED


@pytest.mark.parametrize(("cores", "count"), [("0", 1), ("0-3", 4), ("0-3,8-11", 8), ("0,2", 2)])
def test_a_list_of_cores_is_counted(cores, count):
    assert this_cpu._count(cores) == count


def test_plans_for_this_cpu_are_predicted_by_its_rates(kept):
    this_cpu.keep(PLANTED)
    fd = irregular(2, 12, 512, 512)
    before, bottom_up, plan = (
        fl.segment(fd, target="this CPU", strategy=name) for name in ("unfused", "bottom_up", "fastest")
    )
    assert plan.target == "this CPU"
    found = plan.predicted_time()
    assert found.source == "40 measurements"
    assert (found.low, found.high) == pytest.approx((0.8 * found.seconds, 1.3 * found.seconds))
    assert plan.time_bound().bound <= found.seconds <= bottom_up.predicted_time().seconds
    assert found.seconds < before.predicted_time().seconds
    assert all(segment.predicted_time().seconds > PLANTED.call for segment in plan.segments)
    assert made_by(plan.to_python()) == plan
    assert "target='this CPU'" in plan.to_python()
    prices = fl.price(fd, target="this CPU")
    assert prices.target == "this CPU"
    assert fl.price(fd, target="this CPU", strategy="unfused").seconds == before.predicted_time().seconds


def test_what_the_array_library_computes_for_this_cpu_has_an_interval(kept):
    this_cpu.keep(PLANTED)
    with FusionDefinition() as fd:
        x = fd.define_tensor([64, 64], contiguity=True)
        fd.add_output(fd.ops.matmul(x, x))
    found = fl.segment(fd, target="this CPU").predicted_time()
    assert 0 < found.low < found.seconds < found.high
    assert found.source == "40 measurements"


def test_each_expression_that_the_array_library_computes_is_a_call():
    with FusionDefinition() as fd:
        x = fd.define_tensor([64, 64], contiguity=True)
        fd.add_output(fd.ops.cumsum(fd.ops.slice(x, [0, 0], [64, 64], [1, 2]), 1))
    device = host_device(PLANTED)
    plan = fl.segment(fd, target=device)
    calls = [len(part.exprs) for part in plan.segments if part.scheduler is SchedulerType.EXPR_EVAL]
    assert calls
    assert plan.predicted_time().seconds > sum(calls) * EVALUATED_ON_HOST


def test_a_cpu_that_was_not_measured_has_typical_rates(kept):
    fd = irregular(2, 12, 512, 512)
    plan = fl.segment(fd, target="typical CPU", strategy="fastest")
    assert plan.target == "typical CPU"
    assert plan.predicted_time().source == "typical rates of a CPU"
    assert made_by(plan.to_python()) == plan
    assert this_cpu.cpu_of_regions().name == "typical CPU"
    this_cpu.keep(PLANTED)
    assert this_cpu.cpu_of_regions().host == PLANTED


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


def test_what_is_read_at_indices_counts_for_each_element_that_is_read():
    with FusionDefinition() as fd:
        x = fd.define_tensor([4, 16], contiguity=True)
        index = fd.define_tensor([32], contiguity=True, dtype=fl.DataType.Int)
        part = fd.ops.exp(fd.ops.div(x, fd.ops.sum(x, [1], keepdim=True)))
        fd.add_output(fd.ops.index_select(part, fd.ops.mul(index, 3), 1))
    exprs = fl.segment(fd, strategy="unfused").fusion.tensor_exprs
    once, again = work_of(exprs), repeated_work(exprs)
    assert (once.special, once.dividing, once.reducing) == (4 * 16, 4 * 16, 4 * 16)
    assert (again.special, again.dividing, again.reducing) == (4 * 32, 4 * 32, 4 * 16)
    assert again.simple == 4 * once.simple == 4 * 32, "the index for each of four rows"


def test_the_command_measures_this_cpu_and_keeps_its_rates(kept, capsys, monkeypatch):
    given = iter(samples(PLANTED))
    measured = []

    def one(form, plan, caches):
        measured.append((form, tuple(value.shape for value in plan.inputs)))
        return next(given)

    monkeypatch.setattr(calibration, "_FORMS", dict(list(calibration._FORMS.items())[:8]))
    monkeypatch.setattr(calibration, "_sample", one)
    monkeypatch.setattr(calibration, "compile_ahead", lambda kernels, cc, progress: None)
    assert cli.main(["fit", "--this-cpu", "--seconds", "0.001"]) == 0
    assert len(measured) == FEWEST
    said = capsys.readouterr()
    assert "Plans with target='this CPU' are predicted by these rates." in said.out
    assert str(kept) in said.err
    assert this_cpu.this_cpu().host.source == "20 measurements"
    assert cli.main(["fit", "--this-cpu", "--seconds", "60", "--json"]) == 0
    assert len(measured) == len(set(measured[FEWEST:])) + FEWEST
    assert json.loads(capsys.readouterr().out)["rates"] == asdict(this_cpu.this_cpu().host)
    for wrong, reason in ((["fit"], "required: --this-cpu"), (["fit", "file", "--this-cpu"], "unrecognized arguments")):
        assert cli.main(wrong) == 2
        assert reason in capsys.readouterr().err


def test_a_sample_has_the_kernels_of_a_plan_with_their_features_and_times():
    form = calibration._FORMS["one after another"]
    plan = calibration._plan(form, (16, 16))
    found = calibration._sample("three", plan, CACHES)
    assert len(found.kernels) == len(found.seconds) == 3
    assert all(0 < seconds < 1 for seconds in found.seconds)
    assert [len(phases) for phases in found.kernels] == [1, 1, 1]
    assert [sorted(one.name for one in phases[0].moved) for phases in found.kernels] == [
        ["T0", "T2"], ["T1", "T2", "T3"], ["T0", "T3", "T4"],
    ]


@pytest.mark.parametrize("form", sorted(calibration._FORMS))
def test_every_form_has_a_kernel(form):
    found = calibration._FORMS[form]
    for shape in found.shapes:
        plan = calibration._plan(found, tuple(min(size, 64) for size in shape))
        assert any(segment.bytes for segment in plan.segments)
        kernels = calibration._kernels(plan)
        assert kernels
        assert all(kernel.kernel_ir.phases for kernel in kernels)


def test_a_gpu_is_still_described_by_its_data_sheet():
    assert DEFAULT.host is None
    assert TimeModel.of(DEFAULT).bandwidth == DEFAULT.bandwidth * 1e9
    assert not TimeModel.of(DEFAULT).repeats
    assert TimeModel.of(host_device(PLANTED)).repeats


def test_the_array_library_finds_indexed_elements_one_by_one_so_the_fastest_plan_has_them_in_a_kernel():
    rows, columns = 4096, 1024
    with fl.FusionDefinition() as fd:
        x = fd.define_tensor([rows, columns], contiguity=True)
        places = fd.define_tensor([rows, columns], contiguity=True, dtype=fl.DataType.Int)
        fd.add_output(fd.ops.mul(fd.ops.gather(x, places, 1), 2.0))
    device = host_device(PLANTED)
    plan = fl.segment(fd, target=device)
    assert [segment.scheduler for segment in plan.segments] == [SchedulerType.EXPR_EVAL, SchedulerType.POINTWISE]
    evaluated, kernel = ScheduledClock(device, 9, given_strides(plan.inputs)).seconds(plan.segmented)
    memory = rows * columns * (PLANTED.jump + (8 + 2 * 4) * PLANTED.loaded)
    assert evaluated == pytest.approx(EVALUATED_ON_HOST + memory)
    assert evaluated > 2 * kernel
    assert len(fl.segment(fd, strategy="fastest", target=device).segments) == 1


def loss_of_picked_elements():
    with fl.FusionDefinition() as fd:
        x = fd.define_tensor([1024, 10000], contiguity=True)
        target = fd.define_tensor([1024, 1], contiguity=True, dtype=fl.DataType.Int)
        y = fd.ops.log_softmax(x, 1)
        fd.add_output(fd.ops.add(fd.ops.take_along_axis(y, target, 1), fd.ops.mean(y, dims=[1], keepdim=True)))
    return fd


@pytest.mark.parametrize("sure", [True, False])
def test_a_kernel_that_does_the_same_and_stores_less_is_faster_whatever_the_error_of_the_rates(sure, monkeypatch):
    """With memory this fast, the stored tensor costs little of the time, and less than the error of both times."""
    device = host_device(replace(PLANTED, stored=PLANTED.stored / 4, together=PLANTED.together / 4))
    fd = loss_of_picked_elements()
    two, one = fl.segment(fd, target=device), fl.segment(fd, target=device, schedulers=fl.OPEN_SCHEDULERS)
    assert [len(plan.segments) for plan in (two, one)] == [2, 1]
    if not sure:
        monkeypatch.setattr(ScheduledClock, "is_sure", lambda self, faster, slower: False)
    assert len(fl.segment(fd, strategy="fastest", target=device).segments) == (1 if sure else 2)


def test_what_is_sure_does_not_depend_on_any_rate():
    fd = loss_of_picked_elements()
    two, one = (fl.segment(fd, schedulers=kind).segmented for kind in (fl.SCHEDULERS, fl.OPEN_SCHEDULERS))
    given = given_strides(fl.segment(fd).inputs)
    clock = ScheduledClock(host_device(PLANTED), 99, given)
    assert clock.is_sure(one, two)
    assert not clock.is_sure(two, one)
    assert not clock.is_sure(one, one)
    on_gpu = ScheduledClock(DEFAULT, 99, given)
    assert on_gpu.is_sure(one, two)
    assert not on_gpu.is_sure(two, one)
    assert not on_gpu.is_sure(one, one)


def test_what_saves_bytes_and_costs_arithmetic_is_not_sure():
    with fl.FusionDefinition() as fd:
        x = fd.define_tensor([4096, 4096], contiguity=True)
        y = fd.ops.mul(fd.ops.exp(x), 2.0)
        for dim in (0, 1):
            fd.add_output(fd.ops.sum(y, [dim]))
    stored = fl.segment(fd)
    again = stored.recompute("T2")
    clock = ScheduledClock(host_device(PLANTED), 99, given_strides(stored.inputs))
    fast, slow = (sum(clock.seconds(plan.segmented)) for plan in (again, stored))
    assert fast < slow
    assert not clock.is_sure(again.segmented, stored.segmented)
