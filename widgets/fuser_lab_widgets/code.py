"""Python source coloured for the page."""

from __future__ import annotations

from html import escape


def highlighted(source: str) -> str:
    """Return the source as HTML spans with Pygments' short class names, or only escaped where Pygments is missing."""
    try:
        from pygments import highlight
        from pygments.formatters import HtmlFormatter
        from pygments.lexers import PythonLexer
    except ImportError:
        return escape(source)
    return str(highlight(source, PythonLexer(), HtmlFormatter(nowrap=True)))
