"""The report: one HTML file with the explorer's own script and precomputed plans."""

import base64
import zlib
from collections.abc import Mapping
from typing import Any
from xml.etree.ElementTree import Element

from fuser_lab.files.json_text import json_text
from fuser_lab.report import theme
from fuser_lab.report.collapse import collapse
from fuser_lab.report.html import plan_parts
from fuser_lab.report.markup import element, to_html
from fuser_lab.report.view_model import ViewModel

# The browser itself blocks all network requests of the page.
_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:"
_MOST_DRAWN = 150  # ops in the static picture, which is not packed
_UNPACK = """const code = document.getElementById("fl-code").textContent;
const packed = Uint8Array.from(atob(code), (c) => c.charCodeAt(0));
const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
const [style, script] = JSON.parse(await new Response(stream).text());
for (const [tag, text] of [["style", style], ["script", script]]) {
  const made = document.createElement(tag);
  if (tag === "script") made.type = "module";
  made.textContent = text;
  document.body.append(made);
}"""
# The explorer takes all of the page, or of the frame that it has in a notebook.
_FILLED = "body{margin:0;background:var(--fl-paper)}main .fl-explorer{height:100vh;resize:none}"
_FRAME = (
    "body{margin:0;padding:16px;background:var(--fl-paper)}.fl-live{max-width:1500px;margin:0 auto}"
    "main .fl-explorer{height:calc(100vh - 32px)}"
)


def report_page(
    view: ViewModel, data: Mapping[str, Any], *, script: str, style: str, title: str,
) -> str:
    """Return the document; without a script, or while it starts, it shows the first plan as static HTML.

    Parameters
    ----------
    view
        The first plan, for the static part, which draws a large plan by segments.
    data
        The script's data, JSON-ready.
    script, style
        The text of the module, which starts on its own, and of its style sheet.
    title
        Title of the document.
    """
    head = _head(title, theme.variables("body") + _FRAME, style, theme.page_style())
    drawn = collapse(view) if view.header.ops > _MOST_DRAWN else view
    static = element("div", *plan_parts(drawn, style=False), id="fl-static", css="fl-report")
    body = element(
        "body",
        element("main", id="fl-live", css="fl-live"),
        static,
        element("script", _pack(data), id="fl-data", type="application/octet-stream"),
        element("script", script.replace("</", "<\\/"), type="module"),
    )
    return "<!DOCTYPE html>\n" + to_html(element("html", head, body, lang="en"))


def packed_page(data: Mapping[str, Any], *, script: str, style: str, title: str) -> str:
    """Return the document with script and style sheet packed like its data, and without static HTML.

    It is a third shorter than `report_page`; notebooks store one for each explorer.

    Parameters
    ----------
    data, script, style, title
        As for `report_page`.
    """
    body = element(
        "body",
        element("main", id="fl-live", css="fl-live"),
        element("script", _pack(data), id="fl-data", type="application/octet-stream"),
        element("script", _pack([style, script]), id="fl-code", type="application/octet-stream"),
        element("script", _UNPACK, type="module"),
    )
    head = _head(title, theme.variables("body") + _FILLED)
    return "<!DOCTYPE html>\n" + to_html(element("html", head, body, lang="en"))


def _pack(data: Any) -> str:
    return base64.b64encode(zlib.compress(json_text(data).encode(), 9)).decode()


def _head(title: str, *styles: str) -> Element:
    return element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", title),
        *(element("style", style) for style in styles),
    )
