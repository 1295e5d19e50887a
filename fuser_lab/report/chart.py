"""Shared parts of charts: the enclosing SVG, labels, and escaped text."""

from html import escape

from fuser_lab.report import measure, theme
from fuser_lab.report.markup import clean


def document(title: str, text: str, body: str, size: tuple[float, float], *, style: bool) -> str:
    """Return an SVG of a size in pixels, with a title and a description for screen readers; ``body`` is markup."""
    sheet = f"<style>{escape(theme.graph_style(), quote=False)}</style>" if style else ""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="fl-svg fl-plot" viewBox="0 0 {size[0]:.0f} {size[1]:.0f}" '
        f'width="{size[0]:.0f}" height="{size[1]:.0f}" font-family="{escape(theme.SANS)}" role="img">'
        f"<title>{escape_text(title)}</title><desc>{escape_text(text)}</desc>{sheet}"
        f'<rect class="fl-paper" width="100%" height="100%" fill="{theme.colour("paper")}"/>{body}</svg>'
    )


def label(words: str, at: tuple[float, float], css: str = "fl-detail", *, anchor: str = "", colour: str = "") -> str:
    """Return text at a position; ``fl-name`` is for names, ``fl-detail`` for the details beside them."""
    fill = theme.colour(colour or ("ink" if css == "fl-name" else "muted"))
    end = f' text-anchor="{anchor}"' if anchor else ""
    return (
        f'<text class="{css}" x="{at[0]:.1f}" y="{at[1]:.1f}" font-size="{measure.LABEL_SIZE:.0f}" fill="{fill}"{end}>'
        f"{escape_text(words)}</text>"
    )


def escape_text(words: str) -> str:
    """Return text for markup, without characters that XML cannot hold."""
    return escape(clean(words))


def rule(start: tuple[float, float], end: tuple[float, float]) -> str:
    """Return a line of a plot's grid."""
    way = f"M{start[0]:.1f},{start[1]:.1f} L{end[0]:.1f},{end[1]:.1f}"
    return f'<path class="fl-grid" d="{way}" stroke="{theme.colour("line")}" stroke-width="1" fill="none"/>'
