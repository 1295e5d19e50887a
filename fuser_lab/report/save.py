"""A plan as a file; the extension says what kind."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fuser_lab.errors import InputError
from fuser_lab.report.html import plan_page
from fuser_lab.report.mermaid import view_mermaid
from fuser_lab.report.svg import view_svg
from fuser_lab.report.text import view_text
from fuser_lab.report.view_model import ViewModel, view_plan

if TYPE_CHECKING:
    from collections.abc import Callable

    from fuser_lab.report.subject import PlanLike

WRITERS: dict[str, Callable[[ViewModel], str]] = {
    ".svg": view_svg,
    ".html": plan_page,
    ".json": ViewModel.to_json,
    ".mmd": view_mermaid,
    ".txt": view_text,
}


def save_plan(plan: PlanLike, path: str | Path, *, title: str | None = None) -> Path:
    """Write a plan as SVG, HTML, JSON, Mermaid or text and return the path.

    Raises
    ------
    InputError
        If the extension is none of these.
    """
    target = Path(path)
    write = WRITERS.get(target.suffix.lower())
    if write is None:
        msg = f"a plan cannot be saved as {target.name!r}; the extension must be one of {', '.join(WRITERS)}."
        raise InputError(msg)
    has_passes = target.suffix.lower() in {".json", ".html"}
    target.write_text(write(view_plan(plan, title=title, passes=has_passes)), encoding="utf-8")
    return target
