"""The script and the style sheet of the live views, for the widget and for pages that embed them."""

from __future__ import annotations

from importlib.resources import files

from fuser_lab.report import theme


def script() -> str:
    """Return the ES module that drives an explorer.

    It comes without indentation and comments: a notebook that saves its widgets stores it once for each.
    """
    return _dense("explorer.js") + _dense("steps.js")


def report_script() -> str:
    """Return the module of a report: the explorer's, and the model that answers from the page."""
    return script() + _dense("report.js")


def style() -> str:
    """Return the style sheet: colours, the rules of the drawing, and those of the explorer around it."""
    return theme.variables(".fl-explorer") + theme.graph_style() + _read("explorer.css")


def _dense(name: str) -> str:
    lines = map(str.strip, _read(name).splitlines())
    return "".join(f"{line}\n" for line in lines if line and not line.startswith(("//", "/**")))


def _read(name: str) -> str:
    return (files("fuser_lab_widgets") / "static" / name).read_text(encoding="utf-8")
