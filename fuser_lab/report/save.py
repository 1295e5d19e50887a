"""Views as files; the extension selects the format."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fuser_lab.arguments import PATH, brief
from fuser_lab.errors import InputError
from fuser_lab.files.json_text import json_text
from fuser_lab.report.dot_text import view_dot
from fuser_lab.report.html import decisions_html, document, plan_page, table_html
from fuser_lab.report.log_picture import decisions_svg
from fuser_lab.report.mermaid import view_mermaid
from fuser_lab.report.raster import rasterize
from fuser_lab.report.records import Records, decision_records, op_records, records_csv, segment_records
from fuser_lab.report.subject import PlanLike
from fuser_lab.report.svg import view_svg
from fuser_lab.report.tables import Table, op_table, table_text
from fuser_lab.report.text import decisions_text, view_text
from fuser_lab.report.view_model import ViewModel, view_decisions, view_plan

Writers = dict[str, "Callable[[], str | bytes]"]


def save(caller: str, path: str | Path, writers: Mapping[str, Callable[[], str | bytes]]) -> Path:
    """Write something with the writer of the path's extension and return the path.

    Raises
    ------
    InputError
        If no writer has the extension, or the file cannot be written.
    ArgumentTypeError
        If the path is not a path.
    """
    target = path_of(caller, path)
    write = writers.get(target.suffix.lower())
    if write is None:
        msg = f"{caller} cannot be saved as {brief(target.name)!r}; the extension must be one of {', '.join(writers)}."
        raise InputError(msg)
    return write_file(caller, target, write())


def path_of(caller: str, path: object) -> Path:
    """Return the path to write, or raise ArgumentTypeError if it is not a path."""
    return Path(PATH.of(path, caller, "path"))


def write_file(caller: str, target: Path, made: str | bytes) -> Path:
    """Write a file and return its path, or raise InputError if that fails."""
    try:
        target.write_bytes(made if isinstance(made, bytes) else made.encode())
    except OSError as error:
        raise InputError(f"{caller} cannot be saved as {brief(str(target))}: {error.strerror}.") from None
    return target


def save_plan(plan: PlanLike, path: str | Path) -> Path:
    """Write a plan as a picture, a page, data, a graph, a table or text and return the path.

    Raises
    ------
    InputError
        If the extension is not one of these.
    UnsupportedError
        If a PNG is requested and no browser is installed to draw it.
    """
    has_passes = path_of("a plan", path).suffix.lower() in {".json", ".html"}
    view = view_plan(plan, passes=has_passes)
    writers = drawing_writers(view) | {
        ".html": lambda: plan_page(view),
        ".json": view.to_json,
        ".csv": lambda: records_csv(segment_records(view.segments)),
        ".txt": lambda: view_text(view),
    }
    if hasattr(plan, "to_python"):
        writers[".py"] = plan.to_python
    return save("a plan", path, writers)


def drawing_writers(view: ViewModel) -> Writers:
    """Return writers of a picture: SVG, PNG, Graphviz and Mermaid."""
    return picture_writers(lambda: view_svg(view)) | {
        ".dot": lambda: view_dot(view),
        ".mmd": lambda: view_mermaid(view),
    }


def graph_writers(view: ViewModel) -> Writers:
    """Return writers of a graph without segments: its pictures, its data, and its ops as a table."""
    return drawing_writers(view) | {
        ".json": view.to_json,
        ".csv": lambda: records_csv(op_records(view)),
        ".txt": lambda: f"{table_text(op_table(view).with_names(view.called))}\n",
    }


def picture_writers(draw: Callable[[], str]) -> Writers:
    """Return writers of a drawing: SVG and PNG."""
    return {".svg": draw, ".png": lambda: rasterize(draw())}


def table_writers(
    table: Table, records: Callable[[], Records], data: Callable[[], Any], *, note: str = "", title: str = "table",
) -> Writers:
    """Return writers of a table: CSV of its numbers, JSON of its data, a page and text."""
    return {
        ".csv": lambda: records_csv(records()),
        ".json": lambda: json_text(data(), indent=1),
        ".html": lambda: document(title, table_html(table, note=note)),
        ".txt": lambda: f"{table_text(table)}\n",
    }


def log_writers(log: Any) -> Writers:
    """Return writers of a decision log."""
    return picture_writers(lambda: decisions_svg(log)) | {
        ".json": log.to_json,
        ".csv": lambda: records_csv(decision_records(view_decisions(log))),
        ".html": lambda: document("decisions", decisions_svg(log) + decisions_html(log)),
        ".txt": lambda: f"{decisions_text(log)}\n",
    }
