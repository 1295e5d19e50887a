"""Tables that text, HTML, pandas and the widget share: segments, decisions, timings."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from xml.etree.ElementTree import Element

from fuser_lab.ir.tensor_names import named_text
from fuser_lab.report.markup import Child, element
from fuser_lab.report.units import bytes_label
from fuser_lab.report.view_model import DecisionView, LayoutView, SegmentView, ViewModel

_WIDEST = 46  # characters of a cell in a text


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Table:
    """Formatted cells: ``numeric`` names the right-aligned columns, ``strong`` the rows that are totals."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numeric: frozenset[str] = frozenset()
    strong: frozenset[int] = frozenset()

    def to_dict(self) -> dict[str, object]:
        """Return the JSON-ready form."""
        return {
            "columns": list(self.columns),
            "rows": [list(row) for row in self.rows],
            "numeric": [column in self.numeric for column in self.columns],
            "strong": sorted(self.strong),
        }

    def with_names(self, called: Mapping[str, str]) -> "Table":
        """Return the table with the user's names of tensors before the fusion's."""
        rows = tuple(tuple(named_text(cell, called) for cell in row) for row in self.rows)
        return replace(self, rows=rows) if called else self

    def __repr__(self) -> str:
        """Return the table as text."""
        return table_text(self)


def table_text(table: Table) -> str:
    """Return the table with aligned columns and shortened long cells."""
    cells = [tuple(_shorten(cell) for cell in row) for row in (table.columns, *table.rows)]
    widths = [max(len(row[n]) for row in cells) for n in range(len(table.columns))]
    lines = [_line(row, widths, table) for row in cells]
    return "\n".join((lines[0], "  ".join("-" * width for width in widths), *lines[1:]))


def table_element(table: Table, *, caption: str = "") -> Element:
    """Return the table as HTML."""
    looks = {n: {"css": "fl-total"} for n in table.strong}
    return rows_element(table.columns, table.rows, numeric=table.numeric, caption=caption, looks=looks)


def rows_element(
    columns: Sequence[str], rows: Iterable[Sequence[Child]], *, numeric: Collection[str] = (), caption: str = "",
    looks: Mapping[int, Mapping[str, str]] | None = None, css: str = "fl",
) -> Element:
    """Return rows as HTML; ``looks`` has attributes of rows by number, and the names of classes begin with ``css``."""
    kinds = [f"{css}-num" if column in numeric else "" for column in columns]

    def cells(tag: str, row: Sequence[Child], **attributes: str) -> Iterator[Element]:
        return (element(tag, cell, css=kind, **attributes) for cell, kind in zip(row, kinds, strict=True))

    made = (element("tr", *cells("td", row), **(looks or {}).get(n, {})) for n, row in enumerate(rows))
    parts = (element("caption", caption),) if caption else ()
    head = element("thead", element("tr", *cells("th", columns, scope="col")))
    return element("table", *parts, head, element("tbody", *made), css=f"{css}-table")


def segment_table(segments: Sequence[SegmentView]) -> Table:
    """Return one row per segment."""
    rows = [
        (
            f"S{s.index}",
            s.scheduler,
            str(len(s.ops)),
            bytes_label(s.bytes_in),
            bytes_label(s.bytes_out),
            bytes_label(s.bytes_crossing),
            ", ".join(s.inputs),
            ", ".join(s.outputs),
        )
        for s in segments
    ]
    columns = ("segment", "scheduler", "ops", "in", "out", "crossing", "reads", "writes")
    return Table(columns=columns, rows=tuple(rows), numeric=frozenset({"ops", "in", "out", "crossing"}))


def op_table(view: ViewModel) -> Table:
    """Return the graph as a table: one row per input, op or output, with its operands, its readers, and its line."""
    reads: dict[str, list[str]] = {}
    readers: dict[str, list[str]] = {}
    labels = {n.id: n.label if n.kind == "op" else n.kind for n in view.nodes}
    lines = any(n.line for n in view.nodes)
    for edge in view.edges:
        reads.setdefault(edge.target, []).append(edge.tensor)
        readers.setdefault(edge.source, []).append(labels[edge.target])
    rows = [
        (
            n.label if n.kind == "op" else n.kind,
            ", ".join(n.tensors),
            f"{n.dtype} [{', '.join(n.shape)}]",
            bytes_label(n.bytes),
            "" if n.segment is None else f"S{n.segment}",
            ", ".join(dict.fromkeys(reads.get(n.id, ()))),
            ", ".join(readers.get(n.id, ())),
            *((n.line,) if lines else ()),
        )
        for n in view.nodes
    ]
    columns = ("op", "result", "type", "size", "segment", "reads", "read by", *(("line",) if lines else ()))
    return Table(columns=columns, rows=tuple(rows), numeric=frozenset({"size"}))


def line_table(view: ViewModel) -> Table | None:
    """Return the results of a segment by line of the user's code; None if no line is known."""
    results: dict[tuple[int | None, str], list[str]] = {}
    for node in view.nodes:
        if node.line:
            results.setdefault((node.segment, node.line), []).extend(node.tensors)
    rows = [(f"S{segment}", line, ", ".join(names)) for (segment, line), names in results.items()]
    return Table(columns=("segment", "line", "results"), rows=tuple(rows)) if rows else None


def layout_table(layouts: Sequence[LayoutView]) -> Table:
    """Return one row per tensor that a segment writes: its axis order and the orders that its neighbours prefer."""
    rows = [
        (
            layout.tensor,
            f"S{layout.producer}",
            ", ".join(f"S{n}" for n in layout.consumers) or "result",
            layout.required,
            layout.hint,
            layout.natural,
            layout.preferred,
            layout.chosen,
            layout.by,
            bytes_label(layout.cost),
        )
        for layout in layouts
    ]
    columns = ("tensor", "from", "to", "required", "hint", "natural", "preferred", "chosen", "by", "across rows")
    return Table(columns=columns, rows=tuple(rows), numeric=frozenset({"across rows"}))


def decision_reason(decision: DecisionView) -> str:
    """Return the reason of an attempt, or the schedulers' reasons if the attempt has none."""
    if decision.text:
        return decision.text
    answers = [v for v in decision.verdicts if v.accepted is decision.accepted]
    return "; ".join(f"{v.scheduler}: {v.text}" if v.text else v.scheduler for v in answers)


def _line(row: Sequence[str], widths: Sequence[int], table: Table) -> str:
    padded = (
        cell.rjust(width) if column in table.numeric else cell.ljust(width)
        for cell, width, column in zip(row, widths, table.columns, strict=True)
    )
    return "  ".join(padded).rstrip()


def _shorten(cell: str) -> str:
    return cell if len(cell) <= _WIDEST else f"{cell[: _WIDEST - 1]}…"
