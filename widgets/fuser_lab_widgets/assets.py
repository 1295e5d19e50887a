"""The script and the style sheet of the live views, for the widget and for pages that embed them."""

from importlib.resources import files

from fuser_lab.report import theme


def script() -> str:
    """Return the ES module that drives an explorer: the bundle of ``widgets/js/widget.js``."""
    return _read("explorer.js")


def report_script() -> str:
    """Return the module of a report: the explorer, and the model that answers from the page; it starts by itself."""
    return _read("report.js")


def play_script() -> str:
    """Return the module of a page that plays the steps of one kernel; it starts by itself."""
    return _read("play.js")


def style() -> str:
    """Return the style sheet: colours, the rules of the drawing, and those of the explorer around it."""
    explorer_rules = "".join(map(_read, ("explorer.css", "previews.css", "source.css")))
    return theme.variables(".fl-explorer") + theme.graph_style() + explorer_rules


def map_script() -> str:
    """Return the module that drives the map of a model."""
    return _read("map.js")


def map_style() -> str:
    """Return the style sheet of the map of a model, including the explorer's for its buttons and tables."""
    return style() + theme.MAP_RULES + _read("map.css")


def _read(name: str) -> str:
    return (files("fuser_lab_widgets") / "static" / name).read_text(encoding="utf-8")
