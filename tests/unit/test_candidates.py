"""The model that ranks candidates: its fit, its text, beside the heuristics' choice, and the order of a search."""

import json
import math
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import fuser_lab as fl
from fuser_lab import cli
from fuser_lab.codegen.kernel_features import kernel_features
from fuser_lab.cost.candidate_fitting import fitted_candidates, fitted_model
from fuser_lab.cost.candidate_model import (
    TERMS,
    CandidateModel,
    because,
    candidate_model,
    kept_record,
    model_from,
    products,
    terms,
)
from fuser_lab.cost.device import DEVICES, Device
from fuser_lab.cost.kernel_time import KernelFeatures, columns, kernel_model, predicted_seconds
from fuser_lab.cost.measurements import Measurement, Measurements, load, save
from fuser_lab.errors import CodegenError, InputError
from tests.benchmarks import candidates as command

ROOT = Path(__file__).parents[2]
A100, H200 = (next(one for one in DEVICES if one.name == name) for name in ("A100", "H200"))
THIN = 3


def plan(rows: int = 4096, columns_: int = 768, target: str | None = None) -> fl.Plan:
    with fl.FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True, dtype=fl.DataType.Float)
        powers = fd.ops.exp(fd.ops.sub(x, fd.ops.max(x, [1], keepdim=True)))
        fd.add_output(fd.ops.div(powers, fd.ops.sum(powers, [1], keepdim=True)))
    return fl.segment(fd, [fl.spec((rows, columns_))], target=target)


def features(plan: fl.Plan) -> KernelFeatures:
    (segment,) = plan.segments
    return kernel_features(segment.fusion, segment.kernel("cuda").kernel_ir)


@cache
def measured(device: Device) -> tuple[Measurement, ...]:
    return load(ROOT / "tests" / "data" / "kernels" / f"{device.name}.csv.gz").rows


# Against the measurements in the repository


def test_the_table_of_the_docs_is_what_the_fit_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    page = command.PAGE.read_text(encoding="utf-8")
    found = command.table(kept_record()["agreement"])
    assert f"\n\n{found}\n\n" in page
    assert command.written(page, found) == page
    copy = tmp_path / "page.md"
    copy.write_text(command.written(page, "| measured kernels | 1 |"), encoding="utf-8")
    monkeypatch.setattr(command, "PAGE", copy)
    given: list[str] = []
    monkeypatch.setattr(command.cli, "main", lambda arguments: given.extend(arguments) or 0)
    assert command.main(["--fit"]) == 0
    assert copy.read_text(encoding="utf-8") == page
    assert given == ["fit", "--candidates", "--write", *map(str, command.files())]


def test_the_command_measures_all_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[list[str]] = []
    monkeypatch.setattr(command.measure_kernels, "main", given.append)
    assert command.main(["--out", "x.csv.gz", "--seconds", "5"]) == 0
    assert given == [["--out", "x.csv.gz", "--seconds", "5.0", "--candidates", "1000"]]


def test_the_weights_of_the_package_are_fitted_to_the_measurements_of_the_repository() -> None:
    runs = [load(file) for file in command.files()]
    devices = {one.name: one for one in DEVICES}
    found = fitted_model([(devices[run.facts["name"]], run.rows) for run in runs])
    shipped = candidate_model()
    assert found.source == shipped.source
    assert set(found.weights) == set(shipped.weights) == {"elements", "rows", "columns", "tiles"}
    for style, weights in found.weights.items():
        np.testing.assert_allclose(weights, shipped.weights[style], rtol=1e-3, atol=1e-6)


def test_candidates_of_other_fusions_are_ranked_better_than_by_their_predicted_times() -> None:
    names = sorted({row.fusion for row in measured(H200)})[::THIN]
    thin = [row for row in measured(H200) if row.fusion in set(names)]
    (found,) = fitted_candidates([(H200, thin)], refit=False).agreement
    assert found.segments > 100
    assert found.concordant > found.plain_concordant
    assert found.rank > found.plain_rank
    assert found.best < 1.08, "over the fastest"
    assert all(one < other for one, other in zip(found.after[:2], found.at_random[:2], strict=True))
    assert "rank correlation" in str(found)


# The model itself


def row(fusion: str, params: str, one: KernelFeatures, seconds: float) -> Measurement:
    return Measurement(
        fusion=fusion, scheduler="pointwise", params=params, features=one, median=seconds, low=seconds, high=seconds,
        samples=15,
    )


def planted(count: int = 200) -> list[Measurement]:
    """Candidates whose time grows with the square root of their threads and with nothing else."""
    rng, base, rows = np.random.default_rng(0), features(plan()), []
    for number in range(count):
        size = 2.0 ** rng.integers(0, 8)
        for params in ("", "a", "b"):
            threads = 32 * 2 ** int(rng.integers(0, 6))
            one = replace(base, threads=threads, blocks=int(base.blocks * size), fetched=base.fetched * size)
            rows.append(row(f"corpus/{number // 2}#{number % 2}", params, one, 1e-6 * size * math.sqrt(threads)))
    return rows


def test_a_fit_finds_what_was_planted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fit = fitted_candidates([(H200, planted())], refit=False)
    (found,) = fit.agreement
    assert found.concordant > 0.98
    assert found.best < 1.01 < found.heuristics
    assert found.guarded < found.heuristics
    assert found.faster > 0.3
    assert found.slower == 0
    one = planted(2)[0].features
    (ratio,) = fit.model.ratios(one, [replace(one, threads=one.threads // 2)], H200)
    assert ratio == pytest.approx(math.sqrt(1 / 2), rel=0.2)
    assert model_from(json.loads(json.dumps(fit.record()))) == fit.model
    # Rows that failed or lack the heuristics' choice are ignored.
    odd = [row("corpus/odd#0", "a", one, 1.0), replace(planted(1)[1], median=math.nan, note="no")]
    again = fitted_candidates([(H200, [*planted(), *odd])], refit=False)
    assert again.agreement[0].kernels == found.kernels
    place = tmp_path / "rows.csv.gz"
    save(Measurements(facts={"name": "H200"}, rows=tuple(planted(60))), place)
    assert cli.main(["fit", "--candidates", str(place), str(place), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["schema"], len(data["agreement"]), data["source"]) == (
        "fuser_lab.fit_candidates", 2, "360 kernels on H200",
    )
    assert cli.main(["fit", str(place), str(place)]) == 2
    assert "the rates of a device are fitted to one FILE, given 2" in capsys.readouterr().err


def test_a_fit_needs_candidates_of_several_fusions() -> None:
    with pytest.raises(InputError, match="at least 100 measured candidates of several fusions are needed, given 6"):
        fitted_candidates([(H200, planted(2))], refit=False)
    with pytest.raises(InputError, match="of several fusions"):
        fitted_candidates([(H200, [replace(one, fusion=f"corpus/1#{one.fusion}") for one in planted(60)])], refit=False)


@pytest.mark.parametrize("device", [A100, H200], ids=lambda one: one.name)
def test_effects_of_terms_add_up_to_the_ratio(device: Device) -> None:
    base, other = features(plan(target=device.name)), features(
        plan(target=device.name).with_params(0, threads=(8, 4), vector=1),
    )
    model = candidate_model()
    effects = model.effects(base, other, device)
    assert tuple(effects) == TERMS
    (ratio,) = model.ratios(base, [other], device)
    assert math.exp(sum(effects.values())) == pytest.approx(ratio)
    assert model.ratios(base, [base], device) == 1
    assert model.ratios(base, [], device).size == 0
    assert because(model, base, base, device) == ""


def test_what_is_known_only_after_compilation_does_not_count() -> None:
    base = features(plan())
    compiled = replace(base, registers=64, resident=4, spilled=128)
    assert candidate_model().ratios(base, [compiled], H200) == 1


def test_a_style_without_weights_is_ranked_by_predicted_times() -> None:
    base, other = features(plan()), features(plan().with_params(0, threads=(8, 4)))
    model = CandidateModel(weights={}, source="nothing")
    (ratio,) = model.ratios(base, [other], H200)
    times = predicted_seconds(columns([base, other]), kernel_model(H200).rates, H200)
    assert ratio == pytest.approx(times[1] / times[0])
    assert sum(model.effects(base, other, H200).values()) == pytest.approx(math.log(ratio))


def test_a_prediction_far_from_what_was_measured_is_bounded() -> None:
    base = features(plan())
    far = replace(base, blocks=10**9, threads=1, fetched=1e3, simple=1e15, scratch=1e9)
    assert math.exp(-3) <= candidate_model().ratios(base, [far], H200)[0] <= math.exp(3)


@pytest.mark.parametrize(("change", "text"), [
    ({"threads": 1024}, "blocks of 1024 threads instead of"),
    ({"blocks": 1}, "warps on a multiprocessor instead of"),
    ({"rounds": 400.0}, "loads of a warp one after another instead of"),
    ({"simple": 1e9}, "times the instructions"),
    ({"scratch": 4000.0}, "4000 bytes of arrays per thread instead of"),
    ({"fetched": 1e3}, "KiB of loads in flight on a multiprocessor instead of"),
])
def test_each_term_has_words(change: dict[str, float], text: str) -> None:
    """A model with one term prints it."""
    names = {"threads": "threads", "blocks": "warps", "rounds": "rounds", "simple": "instructions",
             "scratch": "scratch", "fetched": "in_flight"}
    base = features(plan())
    weights = [0.0] * products(terms(columns([base]), kernel_model(H200).rates, H200)).shape[1]
    (name,) = change
    weights[TERMS.index(names[name])] = 1.0
    model = CandidateModel(weights={base.style: tuple(weights)}, source="one term")
    assert text in because(model, base, replace(base, **change), H200)  # type: ignore[arg-type]


# Beside the heuristics' choice


def test_candidates_of_a_segment_are_in_the_order_of_their_predicted_times() -> None:
    (segment,) = plan().segments
    found = segment.candidates()
    ratios = [one.ratio for one in found.ranked]
    assert len(ratios) > 20
    assert ratios == sorted(ratios)
    assert ratios[-1] > 1.2
    assert ratios[0] < 1
    slow = found.ranked[-1]
    assert (slow.verdict, slow.because) == ("slower", f"{slow.because}")
    assert slow.because
    assert found.seconds == pytest.approx(segment.predicted_time().seconds)
    table = found.table()
    assert len(table.rows) == len(ratios) + 1
    (runs,) = table.strong
    assert table.rows[runs][0].startswith("threads=(32, 2), unroll=6")
    assert table.rows[runs][2:4] == ("1.00", "runs")
    text = repr(found)
    assert f"{len(table.rows) - text.count(' µs ')} more candidates are in table()" in text
    assert "fitted to" in text
    assert "<table" in found._repr_html_()
    # No two are the same kernel: with 32 threads per row, unroll makes no difference.
    sources = [plan().with_params(0, **dict(one.values)).segments[0].source("cuda") for one in found.ranked[:12]]
    launches = [one.values for one in found.ranked[:12] if dict(one.values).get("resident") is not None]
    assert len(set(sources)) >= 12 - len(launches)


def test_candidates_start_from_parameters_set_by_hand() -> None:
    (segment,) = plan().with_params(0, threads=(32, 8)).segments
    found = segment.candidates()
    assert all(dict(one.values)["threads"] for one in found.ranked)
    assert found.nest.values["threads"] == (32, 8)


def test_no_model_ranks_kernels_of_a_cpu() -> None:
    (segment,) = plan(512, 300).segments
    found = segment.candidates("cpu")
    assert found.ranked
    assert all(math.isnan(one.ratio) and one.verdict == "no prediction" for one in found.ranked)
    assert found.table().rows[0][0].startswith("grain=")
    assert "No model ranks kernels of a CPU" in repr(found)


def test_a_nest_that_is_not_there_has_no_candidates() -> None:
    (segment,) = plan().segments
    with pytest.raises(InputError, match="candidates: nest must be from 0 to 0; given 2"):
        segment.candidates(nest=2)
    with fl.FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True)
        fd.add_output(fd.ops.matmul(x, x))
    with pytest.raises(CodegenError):
        fl.segment(fd, [fl.spec((64, 64))]).segments[0].candidates()


def test_a_search_with_a_small_budget_measures_what_is_predicted_to_be_fast(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
) -> None:
    from fuser_lab.codegen.candidates import RankedCandidate
    from fuser_lab.search import tuning
    from tests.unit.tuning_clock import clock

    monkeypatch.setenv("FUSER_LAB_CACHE", str(tmp_path))
    array = np.ones((512, 300), np.float32)
    asked: list[object] = []

    def ordered(*given: object) -> tuple[RankedCandidate, ...]:
        asked.append(given)
        values = ((("grain", 4),), (("grain", 2),), (("partial", 64),))
        return tuple(RankedCandidate(values=one, ratio=0.8 + 0.1 * n) for n, one in enumerate(values))

    monkeypatch.setattr(tuning, "ranked", ordered)
    measured = clock(monkeypatch, {})
    found = fl.tune(plan(512, 300), [array], candidates=2, progress=False)
    assert measured == ["the given plan", "grain=4", "grain=2"]
    assert [trial.predicted for trial in found.trials[1:]] == pytest.approx([0.8, 0.9])
    assert "predicted ratio" in found.table().columns
    again = fl.tune(plan(512, 300), [array], candidates=2, progress=False)
    assert (again.kept, again.trials[1:]) == ({0}, found.trials[1:])
    assert len(asked) == 1
    fl.tune(plan(512, 300), [array], candidates=3, progress=False)
    assert len(measured) == 3 + 4, "a larger budget gives another search"
