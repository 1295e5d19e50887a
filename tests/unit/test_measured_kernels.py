"""The shipped rates against the measurements that they are fitted to, and the table of docs/cost_model.md."""

import math
from collections.abc import Callable
from dataclasses import fields, replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from fuser_lab.cost.device import DEVICES, Device
from fuser_lab.cost.kernel_time import STYLES, Rates, columns, kernel_model, predicted_seconds
from tests.fitting.kernels import concordant
from tests.fitting.measurements import Measurement, load
from tests.fitting.plans import fitted_together, read_plans

ROOT = Path(__file__).parents[2]
MEASURED = [device for device in DEVICES if device.name in {"H100", "H200"}]
SIZES = {"to 1 MB": 1e6, "to 10 MB": 1e7, "to 100 MB": 1e8, "more": math.inf}
THIN = 8  # one in this many segments


@cache
def rows(device: Device) -> tuple[Measurement, ...]:
    """The measurements that rates are fitted to."""
    found = load(ROOT / "tests" / "data" / "kernels" / f"{device.name}.csv.gz").good
    return tuple(row for row in found if row.features.gathered <= 0.1 * row.features.read)


def size(row: Measurement) -> str:
    moved = row.features.read + row.features.written
    return next(name for name, most in SIZES.items() if moved <= most)


def table(device: Device) -> list[str]:
    """Rows of Markdown: kernels with the heuristics' parameters and all, by style and by bytes read and written."""
    measured = np.array([row.median for row in rows(device)])
    predicted = predicted_seconds(columns([r.features for r in rows(device)]), kernel_model(device).rates, device)
    factors = measured / predicted
    ours = np.array([not row.params for row in rows(device)])
    lines = [f"| {device.name} | kernels | within 20 % | all candidates | within 20 % |", "|---|---|---|---|---|"]
    classes: dict[str, Callable[[Measurement], bool]] = {"all": lambda _: True}
    classes |= {style: lambda row, style=style: row.features.style == style for style in STYLES}  # type: ignore[misc]
    classes |= {name: lambda row, name=name: size(row) == name for name in SIZES}  # type: ignore[misc]
    for name, belongs in classes.items():
        here = np.array([belongs(row) for row in rows(device)])
        near = np.abs(1 / factors - 1) <= 0.2
        cells = [f"{(here & some).sum():,} | {near[here & some].mean():.0%}" for some in (ours, np.ones_like(ours))]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


@pytest.mark.parametrize("device", MEASURED, ids=lambda device: device.name)
def test_the_table_of_the_docs_is_that_of_the_shipped_rates(device) -> None:
    text = (ROOT / "docs" / "cost_model.md").read_text(encoding="utf-8")
    assert "\n".join(table(device)) in text


@pytest.mark.parametrize("device", MEASURED, ids=lambda device: device.name)
def test_four_of_five_kernels_as_scheduled_take_the_predicted_time(device) -> None:
    model = kernel_model(device)
    assert model.is_measured
    plans = int(model.together.source.removesuffix(" plans"))
    assert model.source == f"{len(rows(device)) + plans} measurements"
    scheduled = [row for row in rows(device) if not row.params]
    near = [abs(model.seconds(row.features) / row.median - 1) <= 0.2 for row in scheduled[::4]]
    assert np.mean(near) >= 0.8
    inside = [
        one.low <= row.median <= one.high for row in scheduled[::4] for one in [model.predict(row.features)]
    ]
    assert np.mean(inside) >= 0.75


@pytest.mark.parametrize("device", MEASURED, ids=lambda device: device.name)
def test_the_predicted_order_of_candidates_finds_faster_ones_than_a_random_order(device) -> None:
    """After one or two measurements beside the heuristics' choice, without what is known after compilation only."""
    segments: dict[str, list[Measurement]] = {}
    for row in rows(device):
        segments.setdefault(row.fusion, []).append(row)
    several = [group for group in segments.values() if len(group) > 3 and any(not row.params for row in group)]
    ordered = [row for group in several for row in sorted(group, key=lambda row: bool(row.params))]
    features = columns([replace(row.features, registers=0, spilled=0, resident=0) for row in ordered])
    predicted = predicted_seconds(features, kernel_model(device).rates, device)
    measured = np.array([row.median for row in ordered])
    groups = np.split(np.arange(len(ordered)), np.cumsum([len(group) for group in several])[:-1])

    def loss(order: np.ndarray, count: int) -> float:
        """Return the mean logarithm of the fastest measured so far over the fastest of a segment."""
        return float(np.mean([
            np.log(measured[[group[0], *group[1:][order[group[1:]].argsort()[:count]]]].min() / measured[group].min())
            for group in groups
        ]))

    assert len(groups) > 300
    randoms = [np.random.default_rng(seed).random(len(ordered)) for seed in range(5)]
    for count, gain in ((1, 0.9), (2, 0.7)):
        assert loss(predicted, count) < gain * np.mean([loss(order, count) for order in randoms])
    assert concordant(groups, measured, predicted) > 0.8


def test_a_fit_to_a_part_of_the_measurements_predicts_what_the_shipped_rates_predict() -> None:
    (device,) = (one for one in MEASURED if one.name == "H100")
    names = sorted({row.fusion for row in rows(device)})[::THIN]
    thin = [row for row in rows(device) if row.fusion in set(names)]
    plans = read_plans(ROOT / "tests" / "data" / "kernels" / "H100.plans.json.gz")
    some = set(sorted({plan.fusion for plan in plans})[::THIN])
    found = fitted_together(thin, [plan for plan in plans if plan.fusion in some], device)
    features = columns([row.features for row in rows(device)])
    here, shipped = (predicted_seconds(features, r, device) for r in (found.model.rates, kernel_model(device).rates))
    assert np.median(np.abs(here / shipped - 1)) < 0.06
    assert {field.name for field in fields(Rates)} == set(type(found.model.rates).__slots__)
    assert found.model.rates.read == pytest.approx(kernel_model(device).rates.read, rel=0.2)


def test_the_shares_of_a_copy_in_the_docs_are_those_of_the_kept_files() -> None:
    from tests.benchmarks.corpus import on_gpus

    assert on_gpus() in (ROOT / "docs" / "corpus.md").read_text(encoding="utf-8")
