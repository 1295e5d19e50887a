"""Tables as plain numbers, for CSV: column names contain the units, and spaces separate the names in a cell."""

import csv
import io
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fuser_lab.cost.measured_times import Timings
from fuser_lab.report.tables import decision_reason
from fuser_lab.report.view_model import DecisionView, SegmentView, ViewModel

Cell = str | int | float | bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """Values by column; None and NaN for unknown values."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]

    def to_dicts(self) -> list[dict[str, Cell]]:
        """Return the rows for JSON, with None for NaN."""
        return [dict(zip(self.columns, map(_plain, row), strict=True)) for row in self.rows]


def records_csv(records: Records) -> str:
    """Return the values as CSV, with empty cells for unknown values."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(records.columns)
    writer.writerows(map(_plain, row) for row in records.rows)
    return file.getvalue()


def _plain(cell: Cell) -> Cell:
    return None if isinstance(cell, float) and math.isnan(cell) else cell


def segment_records(segments: Sequence[SegmentView]) -> Records:
    """Return one row per segment."""
    columns = (
        "segment", "scheduler", "ops", "read [bytes]", "written [bytes]", "crossing [bytes]", "reads", "writes",
    )
    rows = (
        (
            s.index, s.scheduler, len(s.ops), s.bytes_in, s.bytes_out, s.bytes_crossing, words(s.inputs),
            words(s.outputs),
        )
        for s in segments
    )
    return Records(columns=columns, rows=tuple(rows))


def op_records(view: ViewModel) -> Records:
    """Return one row per input, op or output, with the tensors that it reads and their readers."""
    reads: dict[str, list[str]] = {}
    readers: dict[str, list[str]] = {}
    results = {n.id: n.tensors if n.kind == "op" else (n.kind,) for n in view.nodes}
    for edge in view.edges:
        reads.setdefault(edge.target, []).append(edge.tensor)
        readers.setdefault(edge.source, []).extend(results[edge.target])
    columns = ("op", "result", "dtype", "shape", "size [bytes]", "segment", "reads", "read by")
    rows = (
        (
            n.label if n.kind == "op" else n.kind, words(n.tensors), n.dtype, words(n.shape), n.bytes, n.segment,
            words(dict.fromkeys(reads.get(n.id, ()))), words(dict.fromkeys(readers.get(n.id, ()))),
        )
        for n in view.nodes
    )
    return Records(columns=columns, rows=tuple(rows))


def decision_records(decisions: Sequence[DecisionView]) -> Records:
    """Return one row per attempt of the segmenter."""
    columns = ("number", "phase", "kind", "of", "accepted", "reason")
    rows = ((d.seq, d.phase, d.kind, d.of, d.accepted, decision_reason(d)) for d in decisions)
    return Records(columns=columns, rows=tuple(rows))


def timing_records(timings: Timings) -> Records:
    """Return one row per segment, and one per whole plan or peer, whose segment is empty."""
    columns = (
        "plan", "segment", "scheduler", "ops", "read [bytes]", "written [bytes]", "crossing [bytes]", "median [µs]",
        "lower quartile [µs]", "upper quartile [µs]", "warm median [µs]", "gaps [µs]", "bandwidth [GB/s]",
        "time / time of the first plan", "tie", "samples", "timer", "device", "clocks", "error / tolerance", "note",
    )
    rows = (
        (
            r.plan, r.segment, r.scheduler, r.ops, r.bytes_in, r.bytes_out, r.bytes_crossing,
            *(1e6 * seconds for seconds in (r.median, r.low, r.high, r.warm, r.gaps)), r.bandwidth,
            r.ratio, r.tie if r.segment is None else None, r.samples, r.timer, r.device, r.clocks, r.error, r.note,
        )
        for r in timings.rows
    )
    return Records(columns=columns, rows=tuple(rows))


def words(names: Iterable[object]) -> str:
    """Return names in a cell, separated by spaces."""
    return " ".join(map(str, names))
