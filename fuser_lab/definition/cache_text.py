"""A fusion cache as text and as static HTML."""

from collections.abc import Iterable
from dataclasses import dataclass
from html import escape

MOST_LINES = 400  # lines of a tree that are shown
_CSS = (
    "font-family:ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace;font-size:12px;line-height:1.5;"
    "white-space:pre-wrap"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeLine:
    """One call, or the end of a fusion; ``depth`` counts the branches before it.

    ``begins`` says that one of several branches begins here.
    """

    depth: int
    text: str
    begins: bool = False
    is_end: bool = False


def tree_text(headline: str, lines: Iterable[TreeLine]) -> str:
    """Return the tree as text."""
    return "\n".join([headline, *(f"{'  ' * line.depth}{_mark(line)}{line.text}" for line in lines)])


def tree_html(headline: str, lines: Iterable[TreeLine]) -> str:
    """Return the tree as a block of HTML, all text escaped."""
    shown = "".join(
        f'<div style="padding-left:{1.5 * line.depth + 1.5:g}em;text-indent:-1.2em">'
        f"{_mark(line)}{_strong(escape(line.text), line)}</div>"
        for line in lines
    )
    return f'<details open style="{_CSS}"><summary>{escape(headline)}</summary>{shown}</details>'


def _mark(line: TreeLine) -> str:
    return "- " if line.begins else "  "


def _strong(text: str, line: TreeLine) -> str:
    return f"<b>{text}</b>" if line.is_end else text
