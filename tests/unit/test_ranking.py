"""Other parameters of a kernel, ranked by the predicted times of their kernels, and the order of a search."""

import math
from pathlib import Path

import numpy as np
import pytest

import fuser_lab as fl
from fuser_lab.errors import CodegenError, InputError
from fuser_lab.runtime.cpu import this_cpu
from fuser_lab.schedule.suggestions import suggestions
from tests.unit.test_this_cpu import PLANTED
from tests.unit.tuning_clock import clock


def plan(rows: int = 4096, columns: int = 768, target: str | None = None) -> fl.Plan:
    with fl.FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True, dtype=fl.DataType.Float)
        powers = fd.ops.exp(fd.ops.sub(x, fd.ops.max(x, [1], keepdim=True)))
        fd.add_output(fd.ops.div(powers, fd.ops.sum(powers, [1], keepdim=True)))
    return fl.segment(fd, [fl.spec((rows, columns))], target=target)


@pytest.fixture
def measured_cpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FUSER_LAB_CACHE", str(tmp_path))
    this_cpu.keep(PLANTED)


@pytest.mark.parametrize("device", ["A100", "H200"])
def test_a_ratio_is_that_of_the_times_predicted_for_plans_with_these_parameters(device: str) -> None:
    (segment,) = plan(target=device).segments
    candidates = segment.candidates()
    ratios = [candidate.ratio for candidate in candidates.ranked]
    assert len(ratios) > 20
    assert ratios == sorted(ratios)
    assert candidates.seconds == pytest.approx(segment.predicted_time().seconds)
    for candidate in (candidates.ranked[0], candidates.ranked[len(ratios) // 2], candidates.ranked[-1]):
        changed = plan(target=device).with_params(0, **dict(candidate.values)).segments[0].predicted_time()
        assert candidate.ratio == pytest.approx(changed.seconds / candidates.seconds)
    # No two are the same kernel: with 32 threads per row, unroll makes no difference.
    sources = [plan().with_params(0, **dict(row.values)).segments[0].source("cuda") for row in candidates.ranked[:12]]
    launches = [row.values for row in candidates.ranked[:12] if dict(row.values).get("resident") is not None]
    assert len(set(sources)) >= 12 - len(launches)


def test_the_table_has_the_kernel_that_runs_among_its_candidates() -> None:
    candidates = plan().segments[0].candidates()
    table = candidates.table()
    assert len(table.rows) == len(candidates.ranked) + 1
    (runs,) = table.strong
    assert table.rows[runs][0].startswith("threads=(32, 2), unroll=6")
    assert table.rows[runs][2:] == ("1.00", "runs")
    assert f"rates from {candidates.source}; fl.tune measures" in repr(candidates)
    assert "<table" in candidates._repr_html_()


def test_candidates_start_from_parameters_set_by_hand() -> None:
    (segment,) = plan().with_params(0, threads=(32, 8)).segments
    candidates = segment.candidates()
    assert all(dict(candidate.values)["threads"] for candidate in candidates.ranked)
    assert candidates.nest.values["threads"] == (32, 8)


def test_candidates_keep_their_order_where_no_model_predicts_their_time() -> None:
    (segment,) = plan(512, 300).segments
    candidates = segment.candidates("cpu")
    values = [candidate.values for candidate in candidates.ranked]
    order = list(suggestions(segment.params("cpu")[0]))
    assert len(values) > 5
    assert [order.index(value) for value in values] == sorted(map(order.index, values))
    assert all(math.isnan(candidate.ratio) for candidate in candidates.ranked)
    assert candidates.table().rows[0][0].startswith("grain=")
    assert "no model of these kernels' times" in repr(candidates)


def test_the_rates_of_this_cpu_rank_its_kernels(measured_cpu: None) -> None:
    (segment,) = plan(512, 300, target="this CPU").segments
    candidates = segment.candidates("cpu")
    ratios = [candidate.ratio for candidate in candidates.ranked]
    assert ratios == sorted(ratios)
    assert ratios[0] < ratios[-1]
    assert candidates.seconds == pytest.approx(segment.predicted_time().seconds)
    assert all(math.isnan(candidate.ratio) for candidate in segment.candidates("cuda").ranked)


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
    monkeypatch: pytest.MonkeyPatch, measured_cpu: None,
) -> None:
    array = np.ones((512, 300), np.float32)
    here = plan(512, 300, target="this CPU")
    first, second = here.segments[0].candidates("cpu").ranked[:2]
    measured = clock(monkeypatch, {})
    tuning = fl.tune(here, [array], candidates=2, progress=False)
    assert measured == ["the given plan", first.text, second.text]
    assert [trial.predicted for trial in tuning.trials[1:]] == pytest.approx([first.ratio, second.ratio])
    assert "predicted ratio" in tuning.table().columns
    again = fl.tune(here, [array], candidates=2, progress=False)
    assert (again.kept, again.trials[1:]) == ({0}, tuning.trials[1:])
    fl.tune(here, [array], candidates=3, progress=False)
    assert len(measured) == 3 + 4, "a larger budget gives another search"
