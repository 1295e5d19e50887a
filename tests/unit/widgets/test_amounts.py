"""Predicted and measured times appear side by side only with their devices."""

import re
from dataclasses import replace

import pytest

pytest.importorskip("anywidget")

from fuser_lab_widgets import Explorer, panels
from fuser_lab_widgets.amounts import Amounts, outcome, times_table
from fuser_lab_widgets.baked import bake

import fuser_lab as fl
from fuser_lab import DataType, FusionDefinition
from fuser_lab.cost.amounts import seconds_label
from fuser_lab.cost.measured_times import TimingRow, Timings
from fuser_lab.cost.traffic import CostModel
from fuser_lab.report.view_model import view_plan

CPU = CostModel(device="this CPU", bandwidth=10e9, launch=1e-6)


def plans():
    with FusionDefinition() as fd:
        x = fd.define_tensor([1000, 1000], contiguity=True, dtype=DataType.Float)
        fd.add_output(fd.ops.neg(fd.ops.sum(fd.ops.sin(x), dims=[1])))
    return fl.segment(fd), fl.segment(fd, strategy="unfused")


def row(plan, segment=None, median=9e-4):
    return TimingRow(
        plan=plan.name, segment=segment, scheduler="", ops=1, bytes_in=1, bytes_out=1, bytes_crossing=0, median=median,
        iqr=median / 10, samples=20, device="CPU (2 threads)", timer="wall clock", plan_hash=plan.hash,
    )


@pytest.mark.parametrize(("medians", "says"), [
    ((500e-6,), "A takes 500 µs (median on this CPU)."),
    ((500e-6, 400e-6), "B takes 400 µs, 20 % less than A with 500 µs (medians on this CPU)."),
    ((500e-6, 700e-6), "B takes 700 µs, 40 % more than A with 500 µs (medians on this CPU)."),
    ((500e-6, 505e-6), "B takes 505 µs, a tie within the spread with A, which takes 500 µs (medians on this CPU)."),
    (
        (500e-6, 700e-6, 400e-6),
        "C, the fastest of 3 plans, takes 400 µs, 20 % less than A with 500 µs (medians on this CPU).",
    ),
    ((400e-6, 700e-6, 500e-6), "A, the fastest of 3 plans, takes 400 µs (median on this CPU)."),
])
def test_a_run_ends_with_the_plan_that_is_faster_and_by_how_much(medians, says):
    first, _ = plans()
    totals = [
        replace(row(first, median=median), plan=name, low=0.98 * median, high=1.02 * median)
        for name, median in zip("ABC", medians, strict=False)
    ]
    assert outcome(totals) == says


def test_the_head_of_a_report_says_what_was_measured():
    shown, other = plans()
    page = bake([shown, other], Timings(rows=(row(shown, segment=0), row(shown))))
    assert {key: said[:2] for key, said in page["timings"]["measured"].items()} == {
        shown.hash: ["900 µs", "measured (this CPU)"],
    }
    assert "measured" not in bake([shown])["timings"]


def columns_of(html):
    return re.findall(r"<th[^>]*>([^<]*)</th>", html)


def test_the_table_of_all_plans_has_times_by_device_and_says_what_they_assume():
    one, two = plans()
    view, other = view_plan(one), view_plan(two)
    status = "at most 20.7 % more costly than the cheapest possible plan"
    found = {"hash": one.hash, "status": status, "costs": [["5 µs", ""], ["4 µs", ""]]}
    amounts = Amounts(
        target="H200", plans={plan.hash: plan for plan in (one, two)}, machine=CPU, measured={one.hash: row(one)},
        peers=[row(one, median=2e-3)], note="Warm.", certificates={one.hash: found},
    )
    html = panels.comparison([("unfused", "the unfused plan", other)], "", None, view, amounts)
    assert columns_of(html)[:6] == [
        "plan", "measured (this CPU)", "± IQR", "ratio", "predicted (H200)", "by bytes (this CPU)",
    ]
    assert all(seconds_label(plan.predicted_time().seconds) in html for plan in (one, two))
    assert "900 µs" in html
    assert "not yet" in html
    assert "2.00 ms" in html
    assert "this CPU: bytes at 10 GB/s, and 1.00 µs for each launch" in html
    assert f"This plan is {status}. It costs 5 µs; no plan costs less than 4 µs." in html
    assert [name for _, name, _ in amounts.facts(view.header)] == ["predicted (H200)", "by bytes (this CPU)"]
    assert amounts.predict(view.header) == one.predicted_time()
    assert amounts.facts(view.header)[1][0] == "401 µs"  # 4.004 MB at 10 GB/s, and one launch


def test_ratios_are_to_the_first_plan_of_the_run_which_the_heading_names_in_all_tables():
    one, two = plans()
    rows = (replace(row(one), plan="bottom-up"), replace(row(two, median=1.8e-3), plan="mine"))
    headings = times_table(Timings(rows=rows))["columns"]
    amounts = Amounts(base=one.hash, measured={one.hash: rows[0], two.hash: rows[1]})
    beside = [("start", "the plan before the edits", view_plan(one))]
    html = panels.comparison(beside, "", None, view_plan(two), amounts)
    assert "ratio to bottom-up" in headings
    assert columns_of(html)[3] == "ratio to bottom-up"
    assert re.findall(r">(\d\.\d\d)<", html) == ["2.00", "1.00"]


@pytest.mark.parametrize(("iqr", "label"), [(1e-5, "1.10"), (2e-4, "1.10 (tie)")])
def test_plans_whose_spreads_overlap_tie_and_the_doubts_stand_above_the_table(iqr, label):
    one, two = plans()
    rows = [
        replace(row(plan, median=median), iqr=iqr, low=median - iqr / 2, high=median + iqr / 2)
        for plan, median in ((one, 1e-3), (two, 1.1e-3))
    ]
    amounts = Amounts(
        measured=dict(zip((one.hash, two.hash), rows, strict=True)), note="Warm.",
        doubts=["The machine was busy.", "Few samples."],
    )
    html = panels.comparison([("unfused", "the unfused plan", view_plan(two))], "", None, view_plan(one), amounts)
    assert f">{label}<" in html
    assert ">1.00<" in html
    assert html.index("The machine was busy. Few samples.") < html.index("<table") < html.index("Warm.")


def test_a_plan_with_several_names_is_one_row():
    one, two = plans()
    view, other = view_plan(one), view_plan(two)
    named = [("start", "the plan before the edits", view), ("optimal", "the optimal plan", None)]
    html = panels.comparison([*named, ("unfused", "b", other)], "", None, view, Amounts(target="H200"))
    body = html[html.index("<tbody") :]
    assert re.findall(r"<tr[^>]*><td[^>]*>([^<]*)</td>", body) == [
        "this plan (also the plan before the edits)", "the optimal plan", "b",
    ]


def test_the_target_that_ran_has_one_prediction():
    one, _ = plans()
    amounts = Amounts(target="H200", plans={one.hash: one}, machine=CostModel())
    assert [name for _, name, _ in amounts.facts(view_plan(one).header)] == ["predicted (H200)"]


def test_a_plan_that_moves_as_many_bytes_as_another_says_so():
    one, _ = plans()
    same = one.renamed("same")
    header = view_plan(one).header
    found = {"status": "proved by search", "costs": [["5 µs", ""], ["5 µs", ""]]}
    amounts = Amounts(certificates={one.hash: found})
    other = view_plan(same.resegmented(forward_inputs=False)).header
    assert other.hash != header.hash
    assert amounts.sentences([("the optimal plan", header), ("the bottom-up plan", other)]) == [
        "The optimal plan is proved by search. It moves as many bytes as the bottom-up plan (4.00 MB).",
    ]


@pytest.mark.parametrize("machine", [None, CPU])
def test_marks_and_roofs_are_of_one_device(machine):
    plan, _ = plans()
    rows = [row(plan, 0), row(plan)]
    html = panels.roofline(plan, rows, None, machine)
    target, *ran = html.split("<svg")[1:]
    assert "fl-full" not in target
    assert "67.0 TFLOP/s" in target
    assert len(ran) == (machine is not None)
    if ran:
        assert "fl-full" in ran[0]
        assert "this CPU: its memory" in ran[0]
    assert "measured (this CPU)" in columns_of(html)


class Timer:
    """Gives each plan 1 ms, and records its requests."""

    def __init__(self):
        self.asked = []

    def __call__(self, timed, inputs, *, progress, cancelled, peers=None):
        self.asked.append(([plan.hash for plan in timed], list(peers or {})))
        results = [peer(*inputs) for peer in (peers or {}).values()]
        assert all(len(result) == len(timed[0].fusion.outputs) for result in results)
        found = [row(plan, median=1e-3) for plan in timed]
        return Timings(rows=(*found, *(row(timed[0], median=5e-3) for _ in results)))


def test_all_plans_of_the_comparison_and_the_ops_one_by_one_are_timed():
    import numpy as np

    plan, _ = plans()
    timer = Timer()
    explorer = Explorer(plan, [np.ones((1000, 1000), np.float32)], strategies=["unfused", "optimal"], timer=timer)
    explorer.events = [{"n": 1, "type": "panel", "name": "compare"}]
    assert explorer.panels["compare"]["html"].count("select to compute") == 1  # the optimal one needs a search
    explorer.events = [{"n": 2, "type": "strategy", "strategy": "unfused"}]
    explorer.events = [{"n": 3, "type": "run_all"}]
    explorer.wait(300)
    assert timer.asked == [([plan.hash, explorer.plan.hash], ["NumPy, op by op"])]
    explorer.events = [{"n": 4, "type": "panel", "name": "compare"}]
    html = explorer.panels["compare"]["html"]
    assert html.count("1.00 ms") == 2
    assert "5.00 ms" in html
    assert explorer.times["measured"][plan.hash][:2] == ["1.00 ms", "measured (this CPU)"]
    explorer.close()
