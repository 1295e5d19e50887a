"""The script and the style sheet of the live views, for the widget and for pages that embed them."""

from __future__ import annotations

import re
from importlib.resources import files
from typing import Final

from fuser_lab.report import theme

_QUOTED: Final = re.compile(r'("(?:[^"\\]|\\.)*"|`[^`]*`)')
_SPACED: Final = re.compile(r" ?(=>|[{}(),:;?=<>&|*!/[\]]) ?|(?<![+-]) ?([+-]) ?(?![+-])")
_OPEN: Final = ("{", ";", ",", "(", "[")  # what goes on in the next line


def script() -> str:
    """Return the ES module that drives an explorer.

    It comes without indentation, comments, spare spaces and most ends of lines: a notebook that saves its widgets
    stores it once for each.
    """
    names = ("explorer.js", "graph.js", "canvas.js", "panels.js", "steps.js", "previews.js")
    return "".join(map(_dense, names))


def report_script() -> str:
    """Return the module of a report: the explorer's, and the model that answers from the page."""
    return script() + _dense("report.js")


def style() -> str:
    """Return the style sheet: colours, the rules of the drawing, and those of the explorer around it."""
    return theme.variables(".fl-explorer") + theme.graph_style() + _read("explorer.css") + _read("previews.css")


def map_script() -> str:
    """Return the module that drives the map of a model."""
    return _dense("map.js")


def map_style() -> str:
    """Return the style sheet of the map of a model, with the explorer's, whose buttons and tables it has."""
    return style() + theme.MAP_RULES + _read("map.css")


def _dense(name: str) -> str:
    lines = (line.strip().partition(" // ")[0] for line in _read(name).splitlines())
    code = (_squeezed(line) for line in lines if line and not line.startswith(("//", "/**")))
    joined = "".join(line if line.endswith(_OPEN) else f"{line}\n" for line in code)
    return re.sub(r"\n(?=[])}])", "", joined)


def _squeezed(line: str) -> str:
    """Return a line of code without the spaces around its marks; in strings and templates they stay."""
    parts = _QUOTED.split(line)
    if any(part.startswith("`") and part.count("{") != part.count("}") for part in parts):
        return line  # a template within a template
    return "".join(part if part[:1] in {'"', "`"} else _shortened(part) for part in parts)


def _shortened(code: str) -> str:
    """Return code without strings in fewer characters; what never changes may as well be declared as if it could."""
    return re.sub(r"\bconst\b", "let", _SPACED.sub(r"\1\2", code))


def _read(name: str) -> str:
    return (files("fuser_lab_widgets") / "static" / name).read_text(encoding="utf-8")
