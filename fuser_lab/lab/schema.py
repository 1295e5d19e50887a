"""The columns of a ledger's rows, with their SQL types and contents."""

from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

VERSION: Final = 1  # version of the files; a ledger with a newer one is refused


class Kind(Enum):
    """The type of a column: its name in DuckDB and in SQLite."""

    TEXT = ("VARCHAR", "TEXT")
    WHOLE = ("BIGINT", "INTEGER")
    REAL = ("DOUBLE", "REAL")
    FLAG = ("BOOLEAN", "INTEGER")
    TIME = ("TIMESTAMP", "TEXT")
    REALS = ("DOUBLE[]", "TEXT")  # SQLite has no lists: JSON

    def holds(self, value: Any) -> bool:
        """Whether a column of this type accepts a value; None and NaN mean unknown."""
        if value is None:
            return True
        if not isinstance(value, _TAKEN[self]) or (isinstance(value, bool) and self is not Kind.FLAG):
            return False
        if isinstance(value, list | tuple):
            return all(Kind.REAL.holds(entry) for entry in value)
        return not isinstance(value, int) or -(1 << 63) <= value < 1 << 63

    @property
    def duckdb(self) -> str:
        """The type in DuckDB."""
        return self.value[0]

    @property
    def sqlite(self) -> str:
        """The type in SQLite."""
        return self.value[1]


_TAKEN: Final[dict[Kind, tuple[type, ...]]] = {
    Kind.TEXT: (str,), Kind.WHOLE: (int,), Kind.REAL: (float, int), Kind.FLAG: (bool,), Kind.TIME: (str,),
    Kind.REALS: (list, tuple),
}


@dataclass(frozen=True, slots=True)
class Column:
    """One column."""

    name: str
    kind: Kind
    doc: str


COLUMNS: Final = (
    Column("id", Kind.TEXT, "Identifier of the row."),
    Column("measurement", Kind.TEXT, "Identifier that the rows of one call of `fl.time` share."),
    Column("measured_at", Kind.TIME, "When the measurement ended, UTC."),
    Column("plan", Kind.TEXT, "Name of the plan or of the peer."),
    Column("segment", Kind.WHOLE, "Number of the segment; NULL for a whole plan."),
    Column("scheduler", Kind.TEXT, "Scheduler of the segment."),
    Column("schedule", Kind.TEXT, "Parameters of the segment's kernel, as text."),
    Column("kernel_hash", Kind.TEXT, "Hash of the kernel's source."),
    Column("plan_hash", Kind.TEXT, "Hash of the plan's content."),
    Column("plan_python", Kind.TEXT, "The plan as a Python script."),
    Column("fusion", Kind.TEXT, "The fusion as text."),
    Column("fusion_hash", Kind.TEXT, "Hash of that text."),
    Column("sizes", Kind.TEXT, "Shapes of the inputs, as JSON; numbers are unchanged."),
    Column("dtypes", Kind.TEXT, "Dtypes of the inputs, as JSON."),
    Column("strides", Kind.TEXT, "Strides of the inputs in elements, as JSON."),
    Column("ops", Kind.WHOLE, "Number of expressions that were measured."),
    Column("bytes_in", Kind.WHOLE, "Bytes read."),
    Column("bytes_out", Kind.WHOLE, "Bytes written."),
    Column("bytes_crossing", Kind.WHOLE, "Bytes of both that pass between segments."),
    Column("median", Kind.REAL, "Median time in seconds; NULL if nothing was measured."),
    Column("low", Kind.REAL, "Lower quartile in seconds."),
    Column("high", Kind.REAL, "Upper quartile in seconds."),
    Column("warm", Kind.REAL, "Median in seconds with a warm L2 cache; GPU only."),
    Column("kernels", Kind.REAL, "Seconds that the segments of a plan take inside its runs."),
    Column("samples", Kind.REALS, "Every sample, in seconds, in the order of measurement."),
    Column("cache", Kind.TEXT, "Whether the samples begin with a 'cold' or a 'warm' cache."),
    Column("timer", Kind.TEXT, "How the time was taken."),
    Column("clocks", Kind.TEXT, "Clock rates of the processor during the measurement."),
    Column("error", Kind.REAL, "Largest deviation from the reference, as a fraction of the tolerance."),
    Column("note", Kind.TEXT, "Why nothing was measured, or another remark."),
    Column("subject", Kind.TEXT, "The subject of the row if a table has several, such as a region of a model."),
    Column("preallocated", Kind.FLAG, "Whether outputs were allocated before the measurement."),
    Column("device", Kind.TEXT, "What ran the kernels."),
    Column("load", Kind.REAL, "Average number of runnable processes in the preceding minute."),
    Column("cores", Kind.WHOLE, "Cores of the machine."),
    Column("host", Kind.TEXT, "Name of the machine."),
    Column("cpu", Kind.TEXT, "Model of its processor."),
    Column("driver", Kind.TEXT, "Version of the CUDA driver; '' without one."),
    Column("versions", Kind.TEXT, "Versions of Python and of the relevant packages, as JSON."),
    Column("commit", Kind.TEXT, "Git commit of the working directory; '+' at the end for uncommitted changes."),
    Column("tags", Kind.TEXT, "Tags that the user added, as JSON."),
    Column("strategy", Kind.TEXT, "Strategy that cut the fusion."),
    Column("target", Kind.TEXT, "Target device of the plan."),
    Column("segments", Kind.WHOLE, "Number of segments of a whole plan."),
    Column("cost", Kind.WHOLE, "Cost of the plan in bytes by its certificate; a launch counts as bytes."),
    Column("bound", Kind.WHOLE, "Lower bound on the cost of every plan of the fusion, in bytes."),
    Column("known", Kind.WHOLE, "Cost of the cheapest plan that the certificate knows, in bytes."),
    Column("sweep", Kind.TEXT, "Name of the sweep; NULL outside sweeps."),
    Column("task", Kind.TEXT, "Key of the sweep's task to which the row belongs."),
    Column("work", Kind.TEXT, "What the task does: 'segment', 'certificate', 'compile' or 'time'."),
    Column("failure", Kind.TEXT, "Why the task failed, in one sentence."),
    Column("elapsed", Kind.REAL, "Seconds that the task took; only on its last row, which completes the task."),
)
BY_NAME: Final = {column.name: column for column in COLUMNS}

Row = dict[str, Any]
