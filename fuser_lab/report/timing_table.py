"""Timings as a table: one row per segment, a total row per plan, units in the headings."""

import math
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from fuser_lab.cost.measured_times import TimingRow, Timings
from fuser_lab.report.bars import Bar
from fuser_lab.report.tables import Table, table_text
from fuser_lab.report.time_line import excess_text
from fuser_lab.report.units import bytes_label, seconds_label, three_digits

if TYPE_CHECKING:
    import pandas as pd

_NOT_MEASURED: Final = "not measured"
_WIDTH: Final = 100  # characters of a line of text
_COMPARED: Final = 2  # number of plans from which they are compared
_WIDE: Final = 0.3  # interquartile range / median above which a median says little
_FEW: Final = 10  # samples
_NAMED: Final = 4  # rows named in a sentence


def timing_table(timings: Timings, *, verbose: bool = False) -> Table:
    """Return the formatted table; the heading of the times names the device, so that CPU times say CPU.

    The segments of a plan and its gaps add up to its total, unless the row of the gaps says that they took longer.
    """
    time, spread = f"{_device(timings)} median", "± IQR"
    warm = any(not math.isnan(row.warm) for row in timings.rows)
    notes = any(row.note for row in timings.rows)
    columns = ["plan", "segment", "scheduler", "ops", "in+out", "crossing", time, spread, "GB/s", "ratio"]
    columns += ["warm"] * warm
    if verbose:
        columns += ["samples", "timer", "device", "clocks", "error"]
    columns += ["note"] * notes
    lines = _with_gaps(timings)
    return Table(
        columns=tuple(columns),
        rows=tuple(
            _gap_cells(row, len(columns)) if is_gap else _cells(row, verbose=verbose, warm=warm, notes=notes)
            for row, is_gap in lines
        ),
        numeric=frozenset(columns) - {"plan", "segment", "scheduler", "timer", "device", "clocks", "note"},
        strong=frozenset(n for n, (row, is_gap) in enumerate(lines) if row.segment is None and not is_gap),
    )


def timed_plans(timings: Timings) -> list[str]:
    """Return the hash of the plan of each row of the table."""
    return [row.plan_hash for row, _ in _with_gaps(timings)]


def _with_gaps(timings: Timings) -> list[tuple[TimingRow, bool]]:
    """Return the rows, and that of each plan once more, marked, for its gaps."""
    lines: list[tuple[TimingRow, bool]] = []
    for row in timings.rows:
        if row.segment is None and not math.isnan(row.kernels):
            lines.append((row, True))
        lines.append((row, False))
    return lines


def _gap_cells(row: TimingRow, count: int) -> tuple[str, ...]:
    busy = excess_text(row.excess) if row.excess else ""
    cells = (row.plan, "gaps", busy, "", "", "", seconds_label(row.gaps))
    return (*cells, *[""] * (count - len(cells)))


def timing_note(timings: Timings, *, doubts: bool = True) -> str:
    """Return how the times were measured, the meaning of a ratio, and (``doubts``) the reasons to doubt the numbers."""
    timers = ", ".join(dict.fromkeys(row.timer for row in timings.rows if row.timer))
    samples = [row.samples for row in timings.rows if row.samples]
    if not samples:
        return ""
    clocks = dict.fromkeys(row.clocks for row in timings.rows if row.clocks)
    base = "the first row of the same group" if any(row.group for row in timings.rows) else "the first plan"
    note = f"{_device(timings)}, {timers}, {min(samples)} samples or more. Ratio: time / time of {base}."
    if clocks:
        note += f" Clocks: {' to '.join((next(iter(clocks)), *list(clocks)[1:][-1:]))}."
    over = [row for row in timings.rows if row.excess]
    busy = f" except in {_names_of(over)}, whose segments took more than the median run" if over else ""
    if any(not math.isnan(row.warm) for row in timings.rows):
        note += (
            " The L2 cache is cold when a plan starts. Each segment is timed while its whole plan runs, with the cache"
            f" as the previous segments left it, so the times of segments and gaps add up to the total{busy}. Warm: the"
            " L2 cache holds data of the previous run."
        )
    if "CPU" in _device(timings):
        note += (
            " Warm: the caches hold data of the previous run. Each segment is timed while its whole plan runs, so the"
            f" times of segments and gaps add up to the total{busy}. "
            + ("Outputs were allocated beforehand." if timings.preallocated else "Each run allocates its outputs.")
            + " These are times of this machine's CPU, not of a GPU."
        )
    return " ".join((note, *(timing_doubts(timings) if doubts else ())))


def timing_doubts(timings: Timings) -> list[str]:
    """Return reasons to doubt the numbers: wide spreads, few samples, a busy machine."""
    measured = [row for row in timings.rows if row.samples and row.median > 0]
    wide = [row for row in measured if row.iqr > _WIDE * row.median]
    few = [row for row in measured if row.samples < _FEW]
    doubts = []
    if wide:
        doubts.append(f"The spread is above {100 * _WIDE:.0f} % in {_names_of(wide)}.")
    if few:
        doubts.append(f"There are fewer than {_FEW} samples of {_names_of(few)}.")
    if timings.system_load > timings.cores:
        doubts.append(f"The machine was busy: a load of {timings.system_load:.1f} on {timings.cores} cores.")
    return doubts


def _names_of(rows: Sequence[TimingRow]) -> str:
    names = [row.plan if row.segment is None else f"{row.plan} S{row.segment}" for row in rows]
    return ", ".join(names if len(names) <= _NAMED else [*names[: _NAMED - 1], f"{len(names) - _NAMED + 1} more"])


def timing_bars(timings: Timings) -> list[Bar]:
    """Return a bar for each whole plan and peer, with its ratio to the first, or a note that they tie.

    If only one plan was timed, its segments have bars as well.
    """
    totals = [row for row in timings.rows if row.segment is None]
    parts = [row for row in timings.rows if row.segment is not None] if len(totals) < _COMPARED else []
    segments = [
        Bar(
            label=f"S{row.segment} {row.scheduler}", seconds=row.median, low=row.low, high=row.high,
            hue=int(row.segment or 0),
        )
        for row in parts
    ]
    return [*segments, *_total_bars(totals)]


def _total_bars(totals: Sequence[TimingRow]) -> list[Bar]:
    return [
        Bar(
            label=row.plan, seconds=row.median, low=row.low, high=row.high, hue=number, strong=number == 0,
            note=ratio_label(row) if number else "",
        )
        for number, row in enumerate(totals)
    ]


def timings_text(timings: Timings) -> str:
    """Return the table as text, followed by how the times were measured."""
    note = textwrap.fill(timing_note(timings), _WIDTH)
    return "\n".join(filter(None, (table_text(timing_table(timings)), note)))


def timings_frame(timings: Timings, *, verbose: bool = False) -> "pd.DataFrame":
    """Return the numbers as a DataFrame with units in the column names; the row of a whole plan is ``total``.

    ``verbose`` adds the device of each row and its deviation from the reference as a share of the rounding bound.
    """
    import pandas as pd

    device = _device(timings)
    records = [_record(row, device, verbose=verbose) for row in timings.rows]
    return pd.DataFrame.from_records(records)


def _record(row: TimingRow, device: str, *, verbose: bool) -> dict[str, Any]:
    record: dict[str, Any] = {
        "plan": row.plan,
        "segment": "total" if row.segment is None else str(row.segment),
        "scheduler": row.scheduler,
        "ops": row.ops,
        "in+out [MB]": row.bytes_io / 1e6,
        "crossing [MB]": row.bytes_crossing / 1e6,
        f"{device} median [µs]": row.median * 1e6,
        "IQR [µs]": row.iqr * 1e6,
        "GB/s": row.bandwidth,
        "ratio": row.ratio,
        "tie": row.tie,
    }
    if not math.isnan(row.warm):
        record["warm [µs]"] = row.warm * 1e6
    record |= {"gaps [µs]": row.gaps * 1e6, "samples": row.samples, "timer": row.timer, "clocks": row.clocks}
    record["note"] = row.note
    if verbose:
        record |= {"device": row.device, "error": row.error}
    return record


def _cells(row: TimingRow, *, verbose: bool, warm: bool, notes: bool) -> tuple[str, ...]:
    counted = row.segment is not None or row.bytes_io > 0
    cells: tuple[str, ...] = (
        row.plan,
        "total" if row.segment is None else f"S{row.segment}",
        row.scheduler,
        str(row.ops),
        bytes_label(row.bytes_io) if counted else "",
        bytes_label(row.bytes_crossing) if counted else "",
        seconds_label(row.median),
        "" if math.isnan(row.median) else f"{100 * row.iqr / row.median:.0f} %" if row.median else "0 %",
        _number(row.bandwidth),
        ratio_label(row),
    )
    if warm:
        cells += (seconds_label(row.warm),)
    if verbose:
        error = _NOT_MEASURED if math.isnan(row.error) else f"{row.error:.2g}"
        cells += (str(row.samples), row.timer, row.device, row.clocks, error)
    return (*cells, row.note) if notes else cells


def ratio_label(row: TimingRow) -> str:
    """Return the ratio of a row to the first of its group, and whether the two tie; empty if there is none."""
    if math.isnan(row.ratio):
        return ""
    return f"{row.ratio:.2f} (tie)" if row.tie else f"{row.ratio:.2f}"


def _number(value: float) -> str:
    return "" if math.isnan(value) else three_digits(value)


def _device(timings: Timings) -> str:
    devices = dict.fromkeys(row.device for row in timings.rows)
    return " / ".join(devices) or "CPU"
