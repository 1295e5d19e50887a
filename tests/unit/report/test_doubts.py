"""Remarks on times that may be unreliable."""

import math

from fuser_lab.cost.measured_times import TimingRow, Timings
from fuser_lab.report.timing_table import timing_note


def row(segment=None, *, iqr=0.1, samples=100, plan="a"):
    return TimingRow(
        plan=plan, segment=segment, scheduler="", ops=1, bytes_in=1, bytes_out=1, bytes_crossing=0, median=1.0, iqr=iqr,
        samples=samples, device="CPU", timer="perf_counter",
    )


def test_steady_times_of_an_idle_machine_raise_no_doubt():
    note = timing_note(Timings(rows=(row(0), row()), system_load=0.5, cores=2))
    assert "Warm: the caches hold data of the previous run" in note
    for doubt in ("spread", "fewer", "busy"):
        assert doubt not in note


def test_wide_spreads_few_samples_and_a_busy_machine_are_said():
    rows = (row(0, iqr=0.31), row(1, samples=9), row(iqr=0.5))
    note = timing_note(Timings(rows=rows, system_load=7.5, cores=2))
    assert "The spread is above 30 % in a S0, a." in note
    assert "There are fewer than 10 samples of a S1." in note
    assert note.endswith("The machine was busy: a load of 7.5 on 2 cores.")


def test_many_rows_are_counted_and_an_unknown_load_is_not_told():
    note = timing_note(Timings(rows=tuple(row(n, iqr=1.0) for n in range(9)), system_load=math.nan, cores=2))
    assert "in a S0, a S1, a S2, 6 more." in note
    assert "busy" not in note
