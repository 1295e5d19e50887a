"""The model of a kernel's time: its fit on synthetic measurements, its intervals, its files, and real kernels."""

import json
import math
from dataclasses import asdict, replace
from math import prod

import numpy as np
import pytest

import fuser_lab as fl
from fuser_lab import FusionDefinition
from fuser_lab.codegen.kernel_profile import kernel_features, largest_phase
from fuser_lab.cost.device import A100, H200
from fuser_lab.cost.kernel_time import (
    STYLES,
    Interval,
    KernelFeatures,
    KernelModel,
    Rates,
    columns,
    kernel_model,
    model_from,
    predicted_seconds,
)
from fuser_lab.cost.verdict import SchedulerType
from fuser_lab.errors import InputError
from tests.fitting import __main__ as command
from tests.fitting.kernels import Fit, fitted
from tests.fitting.measurements import Measurement, Measurements, load, save

SHEET = Rates.of(H200)
PLANTED = replace(
    SHEET, launch=4e-6, read=0.7 * SHEET.read, write=0.5 * SHEET.write, latency=1.5e-6, special=0.5 * SHEET.special,
)
NOISE = 0.05


def kernel(number: int, rng: np.random.Generator) -> KernelFeatures:
    """One of many kernels: sizes from the launch alone to 512 MB, streams, reductions and many functions."""
    points = int(2 ** rng.uniform(8, 27))
    reduces = number % 4 != 0
    threads, vector = 2 ** int(rng.integers(5, 11)), 2 ** int(rng.integers(0, 4))
    blocks = max(points // (threads * vector), 1)
    warps = blocks * threads / 32
    written = 4.0 * points // (32 if reduces and number % 3 else 1)
    return KernelFeatures(
        style=STYLES[number % 4], launches=1 + number % 2, started=blocks, blocks=blocks, threads=threads, shared=0,
        registers=32, spilled=0, resident=min(2048 // threads, 32), warps=warps, read=4.0 * points, written=written,
        fetched=4.0 * points, near=0.0, gathered=0.0, stored=written, partial=0.0, lines=(4 * points + written) / 128,
        shared_accesses=0.0, moves=0.0, simple=warps * vector * float(rng.integers(4, 60)), dividing=0.0,
        special=points / 32 * float(rng.integers(0, 100)) if number % 5 == 0 else 0.0,
        rounds=float(2 ** rng.integers(0, 6)), unrolled=float(vector), meetings=2.0 if reduces else 0.0, scratch=16.0,
    )


def planted(count: int, seed: int = 0) -> list[Measurement]:
    """Measurements that follow the planted rates up to the noise of a clock."""
    rng = np.random.default_rng(seed)
    kernels = [kernel(number, rng) for number in range(count)]
    times = predicted_seconds(columns(kernels), PLANTED, H200) * np.exp(rng.normal(0, NOISE, count))
    return [
        Measurement(fusion=f"corpus/fusion {n // 4}#0", scheduler="pointwise", params=f"unroll={n % 4}",
                    features=one, median=float(t), low=float(t), high=float(t), samples=15)
        for n, (one, t) in enumerate(zip(kernels, times, strict=True))
    ]


@pytest.fixture(scope="module")
def fit() -> Fit:
    return fitted(planted(400), H200)


def test_a_fit_finds_planted_rates(fit: Fit) -> None:
    for name in ("launch", "read", "write", "special"):
        assert getattr(fit.model.rates, name) == pytest.approx(getattr(PLANTED, name), rel=0.15), name
    fresh = planted(200, seed=1)
    found = np.array([fit.model.seconds(row.features) / row.median for row in fresh])
    assert np.mean(np.abs(found - 1) < 0.2) > 0.95
    assert fit.within > 0.95 > fit.before
    assert fit.rank > 0.95
    assert fit.model.is_measured
    assert fit.model.source == "400 measurements"


def test_an_interval_covers_eight_of_ten(fit: Fit) -> None:
    assert fit.covered == pytest.approx(0.8, abs=0.03)
    fresh = planted(300, seed=2)
    predictions = [fit.model.predict(row.features) for row in fresh]
    inside = [one.low <= row.median <= one.high for one, row in zip(predictions, fresh, strict=True)]
    assert 0.65 < np.mean(inside) < 0.95
    assert all(one.low <= one.seconds <= one.high for one in predictions)


def test_a_device_without_measurements_is_predicted_by_its_data_sheet() -> None:
    found = kernel_model(A100)
    assert found.source == "its data sheet"
    assert not found.is_measured
    assert "A100, from its data sheet" in str(found)
    copy = replace(
        kernel(0, np.random.default_rng(0)), read=1e9, written=1e9, fetched=1e9, stored=1e9, lines=2e9 / 128,
        simple=0.0, special=0.0, blocks=10**6, started=10**6, threads=128, resident=16, warps=4e6, rounds=1.0,
    )
    prediction = found.predict(copy)
    assert prediction.low == prediction.seconds == prediction.high
    assert prediction.seconds == pytest.approx(2e9 / (A100.bandwidth * 1e9), rel=0.4)


def test_only_a_known_device_has_measured_rates() -> None:
    assert kernel_model(H200).is_measured
    assert not kernel_model(replace(H200, sms=64)).is_measured
    assert not kernel_model(replace(H200, name="../rates/H200")).is_measured


def test_a_plan_is_predicted_as_its_kernels_are_scheduled() -> None:
    with fl.FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True, dtype=fl.DataType.Float)
        w = fd.define_tensor([-1, -1], contiguity=True, dtype=fl.DataType.Float)
        fd.add_output(fd.ops.sum(fd.ops.matmul(fd.ops.exp(x), w), [1]))
    plan = fl.segment(fd, [fl.spec((4096, 1024)), fl.spec((1024, 512))])
    found = plan.predicted_time()
    each = [segment.predicted_time() for segment in plan.segments]
    assert [one.source for one in each] == [kernel_model().source, "its data sheet", kernel_model().source]
    assert max(one.seconds for one in each) < found.seconds < sum(one.seconds for one in each)
    assert found.low < found.seconds < found.high
    assert f"from {kernel_model().source}, its data sheet" in str(found)
    slow = plan.with_params(0, target="cuda", threads=32, vector=1, blocks=1)
    assert slow.predicted_time().seconds > 10 * found.seconds
    assert slow.time_bound().seconds == plan.time_bound().seconds


@pytest.mark.parametrize(("shape", "dim"), [((24, 100000), 0), ((1000003, 3), 1), ((7, 1000003), 0)], ids=str)
@pytest.mark.parametrize("unroll", [8, 16, 32])
def test_rounds_that_exceed_the_depth_do_not_hide_what_is_read(shape, dim, unroll) -> None:
    """A condition that holds only in the first rounds of an unrolled loop does not hold in its middle."""
    with fl.FusionDefinition() as fd:
        fd.add_output(fd.ops.sum(fd.define_tensor(list(shape), contiguity=True), [dim]))
    plan = fl.segment(fd).with_params(0, target="cuda", unroll=unroll)
    (segment,) = plan.segments
    found = kernel_features(segment.fusion, segment.kernel("cuda").kernel_ir)
    nbytes = 4 * math.prod(shape)
    assert 0.8 * nbytes < found.read <= nbytes
    assert plan.predicted_time().seconds > 0.8 * nbytes / H200.bandwidth / 1e9


def test_a_fit_needs_kernels_of_several_fusions() -> None:
    with pytest.raises(InputError, match="at least 30 measured kernels of several fusions are needed, given 3"):
        fitted(planted(3), H200)
    one = [replace(row, fusion="corpus/one#0") for row in planted(40)]
    with pytest.raises(InputError, match="several fusions"):
        fitted(one, H200)


def test_kernels_that_failed_take_no_part() -> None:
    rows = planted(100)
    failed = [replace(row, median=math.nan, note="CompilationError: no") for row in rows[:10]]
    assert fitted([*rows, *failed], H200).count == 100


@pytest.mark.parametrize("name", ["rows.csv", "rows.csv.gz"])
def test_measurements_are_read_as_written(name, tmp_path) -> None:
    rows = (*planted(3), replace(planted(1)[0], median=math.nan, low=math.nan, high=math.nan, note='no, "really"'))
    save(Measurements(facts={"name": "H200", "device": "NVIDIA H200"}, rows=rows), tmp_path / name)
    found = load(tmp_path / name)
    assert found.facts == {"name": "H200", "device": "NVIDIA H200"}
    for read, row in zip(found.rows, rows, strict=True):
        numbers, wanted = asdict(read.features), asdict(row.features)
        assert numbers.pop("style") == wanted.pop("style")
        assert numbers == pytest.approx(wanted, rel=1e-4)
    assert [row.note for row in found.rows] == [row.note for row in rows]
    assert found.rows[0].median == pytest.approx(rows[0].median, rel=1e-3)
    assert [row.is_good for row in found.rows] == [True, True, True, False]


def test_a_model_is_read_as_written() -> None:
    bounds = {"": Interval(low=0.9, high=1.2)}
    model = KernelModel(device=H200, rates=PLANTED, source="7 measurements", intervals=bounds)
    assert model_from(command.model_record(model), H200) == model


def test_the_command_fits_a_file(tmp_path, capsys, monkeypatch) -> None:
    place = tmp_path / "rows.csv"
    save(Measurements(facts={"name": "H200"}, rows=tuple(planted(60))), place)
    assert command.main([str(place)]) == 0
    said = capsys.readouterr().out
    assert "H200: 60 kernels of 15 fusions" in said
    assert "rank correlation" in said
    (tmp_path / "rates").mkdir()
    monkeypatch.setattr(command, "files", lambda _: tmp_path)
    assert command.main([str(place), "--json", "--write"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["device"], data["source"]) == ("H200", "60 measurements")
    assert json.loads((tmp_path / "rates" / "H200.json").read_text()) == data
    assert model_from(data, H200) == fitted(load(place).rows, H200).model


def test_the_command_refuses_other_files(tmp_path) -> None:
    place = tmp_path / "rows.csv"
    place.write_text("a,b\n1,2\n")
    with pytest.raises(InputError, match="its columns differ"):
        command.main([str(place)])
    save(Measurements(facts={"name": "this CPU"}, rows=tuple(planted(3))), place)
    with pytest.raises(InputError, match="FILE is of 'this CPU'; rates can be fitted for A100"):
        command.main([str(place)])


def profiled(plan: fl.Plan) -> KernelFeatures:
    segment = plan.segments[0]
    return kernel_features(segment.fusion, segment.kernel("cuda").kernel_ir)


def test_an_exact_division_takes_more_instructions_than_a_reciprocal() -> None:
    def simple(name: str) -> float:
        with fl.FusionDefinition() as fd:
            x, y = (fd.define_tensor([1 << 20], contiguity=True, dtype=fl.DataType.Float) for _ in range(2))
            fd.add_output(getattr(fd.ops, name)(x, y))
        return profiled(fl.segment(fd)).simple * 32 / (1 << 20)

    assert simple("truediv") - simple("mul") == pytest.approx(9, abs=0.5)


def test_features_of_a_real_kernel() -> None:
    with fl.FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True, dtype=fl.DataType.Float)
        fd.add_output(fd.ops.sum(fd.ops.exp(x), [1]))
    plan = fl.segment(fd, [fl.spec((512, 1024))])
    found = profiled(plan)
    full = float(2 << 20)
    assert found.style == "rows"
    assert (found.read, found.fetched, found.written) == pytest.approx((full, full, 2048))
    assert found.partial == pytest.approx(512 * 28)
    assert (found.lines, found.special) == pytest.approx((full / 128 + 512, 512 * 1024 / 32))
    slow = profiled(plan.with_params(0, threads=64, vector=1))
    assert (slow.threads, slow.lines) == pytest.approx((64, found.lines))
    assert slow.unrolled > found.unrolled
    model = kernel_model()
    assert model.seconds(slow) > model.seconds(found)


def test_a_column_read_by_threads_of_a_row_is_fetched_in_whole_sectors() -> None:
    with fl.FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True, dtype=fl.DataType.Float)
        y = fd.define_tensor([-1, -1], contiguity=True, dtype=fl.DataType.Float)
        fd.add_output(fd.ops.softmax(fd.ops.add(fd.ops.permute(x, [1, 0]), y), 1))
    found = profiled(fl.segment(fd, [fl.spec((1024, 1024))] * 2))
    assert (found.read, found.fetched) == pytest.approx((2 * 4 * 1024**2, 2 * 4 * 1024**2))


def test_columns_and_rows_that_are_reduced_together_are_read_in_whole_accesses() -> None:
    with fl.FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True, dtype=fl.DataType.Float)
        y = fd.define_tensor([-1, -1], contiguity=True, dtype=fl.DataType.Float)
        fd.add_output(fd.ops.sum(fd.ops.add(fd.ops.permute(x, [1, 0]), y), [1]))
    found = profiled(fl.segment(fd, [fl.spec((1024, 1024))] * 2))
    assert found.style == "tiles"
    assert found.read == pytest.approx(2 * 4 * 1024**2, rel=0.01)
    assert found.fetched == pytest.approx(2 * 4 * 1024**2, rel=0.01)


def test_only_what_a_slice_takes_is_read() -> None:
    with fl.FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True, dtype=fl.DataType.Float)
        fd.add_output(fd.ops.neg(fd.ops.slice(x, [0, 256], [1024, 512])))
    assert profiled(fl.segment(fd, [fl.spec((1024, 1024))])).read == pytest.approx(1024 * 256 * 4)


def test_a_table_counts_as_the_rows_that_are_read() -> None:
    with fl.FusionDefinition() as fd:
        table = fd.define_tensor([-1, -1], contiguity=True, dtype=fl.DataType.Float)
        places = fd.define_tensor([-1], contiguity=True, dtype=fl.DataType.Int)
        fd.add_output(fd.ops.neg(fd.ops.index_select(table, places, 0)))
    found = profiled(fl.segment(fd, [fl.spec((10000, 64)), fl.spec((10,), "int64")]))
    assert found.gathered == pytest.approx(10 * 64 * 4)
    assert found.read < 2 * 10 * 64 * 4


def test_positions_that_are_data_are_within_their_axis() -> None:
    """A small table of functions is looked up: each element takes the branch whose position is in range."""
    with fl.FusionDefinition() as fd:
        table = fd.define_tensor([-1, -1], contiguity=True, dtype=fl.DataType.Float)
        places = fd.define_tensor([-1], contiguity=True, dtype=fl.DataType.Int)
        functions = fd.ops.sin(fd.ops.exp(table))
        fd.add_output(fd.ops.neg(fd.ops.index_select(functions, places, 0)))
    plan = fl.segment(fd, [fl.spec((64, 1024)), fl.spec((4096,), "int64")], schedulers=fl.OPEN_SCHEDULERS)
    assert len(plan.segments) == 1
    found = profiled(plan)
    assert found.special == pytest.approx((1 + 6) * 4096 * 1024 / 32)
    assert found.gathered >= 4096 * 1024 * 4


def test_a_part_of_a_vector_is_counted_where_it_is_computed() -> None:
    """Each of the four elements of a vector comes from another part, so a thread takes each function once."""
    with fl.FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True, dtype=fl.DataType.Float)
        scaled = (fd.ops.exp(fd.ops.mul(x, number)) for number in (2.0, 3.0, 5.0, 7.0))
        parts = [fd.ops.broadcast(part, [False, False, True]) for part in scaled]
        fd.add_output(fd.ops.cat(parts, 2))
    found = profiled(fl.segment(fd, [fl.spec((512, 1024))], schedulers=fl.OPEN_SCHEDULERS))
    assert found.special == pytest.approx(4 * 512 * 1024 / 32)
    assert found.rounds <= 4


def test_short_loops_are_counted_round_by_round() -> None:
    """Two rounds of 512 threads over 784 elements: in the second, most warps are idle."""
    with fl.FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True, dtype=fl.DataType.Float)
        fd.add_output(fd.ops.neg(fd.ops.sum(x, [1])))
    plan = fl.segment(fd, [fl.spec((256, 1568))]).with_params(0, threads=512, vector=2, unroll=1)
    assert profiled(plan).fetched == pytest.approx(256 * 1568 * 4, rel=0.05)


def test_the_largest_phase_walks_the_rows_though_the_one_after_it_has_more_threads():
    """More threads combine the partial results of columns than iterate over rows and columns."""
    with FusionDefinition() as fd:
        x, g = (fd.define_tensor([1024, 8192], contiguity=True) for _ in range(2))
        product = fd.ops.mul(x, g)
        mean = fd.ops.mul(fd.ops.sum(product, [1], keepdim=True), 1 / 8192)
        for out in (fd.ops.sub(x, mean), fd.ops.sum(product, [0]), fd.ops.sum(g, [0])):
            fd.add_output(out)
    (segment,) = fl.segment(fd).segments
    assert segment.scheduler is SchedulerType.INNER_OUTER_PERSISTENT
    kernel = segment.kernel("cuda").kernel_ir
    threads = [phase.launch.blocks * prod(phase.launch.threads) for phase in kernel.phases]
    assert threads[0] < threads[1]
    assert kernel.phases[0].nbytes > 3 * 4 * 1024 * 8192
    assert largest_phase(kernel) == 0
    assert kernel_features(segment.fusion, kernel).blocks == kernel.phases[0].launch.blocks
