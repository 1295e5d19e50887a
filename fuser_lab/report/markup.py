"""Elements of HTML and SVG, escaped by construction."""

import re
from typing import Final
from xml.etree.ElementTree import Element, tostring

_NOT_XML: Final = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_LESS: Final = "\ufffe"  # not a character, so that no cleaned text contains it

Child = Element | str


def element(tag: str, *children: Child, css: str = "", **attributes: str) -> Element:
    """Return an element; strings among ``children`` become text, and ``data_x`` is written ``data-x``."""
    made = Element(tag, {key.replace("_", "-"): clean(value) for key, value in attributes.items()})
    if css:
        made.set("class", css)
    for child in children:
        if isinstance(child, Element):
            made.append(child)
        elif len(made):
            made[-1].tail = (made[-1].tail or "") + clean(child)
        else:
            made.text = (made.text or "") + clean(child)
    return made


def to_html(root: Element) -> str:
    """Return the HTML text of an element; unlike the library, also escape ``<`` in attributes."""
    for part in root.iter():
        for key, value in part.items():
            if "<" in value:
                part.set(key, value.replace("<", _LESS))
    return tostring(root, encoding="unicode", method="html").replace(_LESS, "&lt;")


def clean(text: str) -> str:
    """Return the text without characters that XML cannot hold."""
    if text.isprintable():  # the common case; every printable character is valid in XML
        return text
    return _NOT_XML.sub("\ufffd", text)
