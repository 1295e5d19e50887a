import math
from dataclasses import replace
from types import SimpleNamespace

import pytest

from fuser_lab.cost.measured_times import TimingRow, Timings
from fuser_lab.report.timing_table import timed_plans, timing_note, timing_table, timings_frame, timings_text


def row(plan, segment, median, ratio=math.nan, **more):
    given = {
        "plan": plan,
        "segment": segment,
        "scheduler": "" if segment is None else "pointwise",
        "ops": 3,
        "bytes_io": 8_000_000,
        "bytes_crossing": 4_000_000,
        "median": median,
        "iqr": median / 50,
        "warm": math.nan,
        "kernels": math.nan,
        "gaps": math.nan,
        "excess": 0.0,
        "clocks": "",
        "note": "",
        "samples": 20,
        "bandwidth": 8e-3 / median,
        "ratio": ratio,
        "tie": False,
        "device": "CPU",
        "timer": "wall clock",
        "error": 0.1,
        "group": "",
    }
    return SimpleNamespace(**(given | more))


@pytest.fixture
def timings():
    rows = (
        row("a", 0, 1e-3),
        row("a", 1, math.nan, bandwidth=math.nan),
        row("a", None, 2e-3, 1.0),
        row("b", 0, 1.9e-3),
        row("b", None, 1.9e-3, 0.95, tie=True),
    )
    return Timings(rows=rows)


def test_the_table_has_a_total_row_for_each_plan_and_says_cpu(timings):
    table = timing_table(timings)
    assert [r[1] for r in table.rows] == ["S0", "S1", "total", "S0", "total"]
    assert table.strong == {2, 4}
    assert "CPU median" in table.columns
    assert len(table.columns) <= 12
    assert len(timing_table(timings, verbose=True).columns) > 12
    assert "not of a GPU" in timing_note(timings)


def test_the_rows_of_a_plan_add_up_to_its_total_because_its_gaps_are_a_row():
    rows = [
        row("a", 0, 2e-4, plan_hash="a"), row("a", 1, 3e-4, plan_hash="a"),
        row("a", None, 6e-4, 1.0, kernels=5e-4, gaps=1e-4, plan_hash="a"), row("eager", None, 4e-4, 0.7, plan_hash=""),
    ]
    table = timing_table(Timings(rows=rows))
    assert [r[1] for r in table.rows] == ["S0", "S1", "gaps", "total", "total"]
    assert [r[6] for r in table.rows] == ["200 µs", "300 µs", "100 µs", "600 µs", "400 µs"]
    assert table.strong == {3, 4}
    assert timed_plans(Timings(rows=rows)) == ["a", "a", "a", "a", ""]


def test_gaps_are_never_negative_and_the_exception_is_stated():
    rows = [
        TimingRow(
            plan="a", segment=segment, scheduler="", ops=1, bytes_in=1, bytes_out=1, bytes_crossing=0, median=median,
            low=median, high=median, samples=20, device="CPU (2 threads)", kernels=kernels, timer="wall clock",
        )
        for segment, median, kernels in ((0, 8e-4, math.nan), (1, 3e-4, math.nan), (None, 6e-4, 1.1e-3))
    ]
    timings = Timings(rows=tuple(rows))
    table = timing_table(timings)
    gaps = dict(zip(table.columns, table.rows[2], strict=True))
    assert [cell for name, cell in gaps.items() if name.endswith(" median")] == ["0.00 µs"]
    assert gaps["scheduler"] == "segments took 500 µs more than the run, as the machine was busy"
    assert "add up to the total except in a, whose segments took more than the median run." in timing_note(timings)
    quiet = Timings(rows=(*rows[:2], replace(rows[2], kernels=5e-4)))
    assert "segments and gaps add up to the total. " in timing_note(quiet)


def test_what_was_not_measured_is_not_zero_and_ties_are_called_ties(timings):
    table = timing_table(timings)
    cells = [dict(zip(table.columns, r, strict=True)) for r in table.rows]
    assert cells[1]["CPU median"] == "not measured"
    assert cells[1]["GB/s"] == ""
    assert cells[2]["ratio"] == "1.00"
    assert cells[4]["ratio"] == "0.95 (tie)"
    assert cells[0]["± IQR"] == "2 %"


def test_the_frame_has_numbers_and_units(timings):
    frame = timings_frame(timings)
    assert list(frame["segment"]) == ["0", "1", "total", "0", "total"]
    assert frame["CPU median [µs]"].iloc[0] == pytest.approx(1000)
    assert math.isnan(frame["CPU median [µs]"].iloc[1])
    assert frame["in+out [MB]"].iloc[0] == pytest.approx(8)
    assert list(frame.columns) == [
        "plan", "segment", "scheduler", "ops", "in+out [MB]", "crossing [MB]", "CPU median [µs]", "IQR [µs]", "GB/s",
        "ratio", "tie", "gaps [µs]", "samples", "timer", "clocks", "note",
    ]
    assert set(frame["timer"]) == {"wall clock"}
    assert set(frame["samples"]) == {20}
    assert list(timings_frame(timings, verbose=True).columns)[-2:] == ["device", "error"]


def test_the_frame_says_why_there_is_no_number():
    rows = (row("a", None, 1e-3, 1.0), row("b", None, math.nan, note="wrong results, not timed"))
    assert list(timings_frame(Timings(rows=rows))["note"]) == ["", "wrong results, not timed"]


def test_text_fits_a_terminal(timings):
    assert max(map(len, timings_text(timings).splitlines())) <= 100


def test_text_says_how_times_were_taken():
    rows = (row("a", None, 1e-3, 1.0, clocks="CPU 3100 MHz"), row("b", None, 2e-3, 2.0, samples=9))
    text = timings_text(Timings(rows=rows)).replace("\n", " ")
    assert "wall clock, 9 samples or more" in text
    assert "Clocks: CPU 3100 MHz." in text
    nothing = row("a", None, math.nan, samples=0)
    assert "samples" not in timings_text(Timings(rows=(nothing,)))
