"""The elements that panels share: notes, buttons that send a message, and tables whose rows do or select something."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any
from xml.etree.ElementTree import Element

from fuser_lab.files.json_text import json_text
from fuser_lab.report.markup import Child, element
from fuser_lab.report.tables import rows_element

Event = Mapping[str, Any]  # a message that the page sends


def note(text: str) -> Element:
    """Return a sentence in the style of notes."""
    return element("p", text, css="fx-note")


def button(words: str, event: Event, *, css: str = "fx-button", on: bool | None = None, **attributes: str) -> Element:
    """Return a button that sends a message; ``on`` says whether it is pressed, None for one that never is."""
    state = {} if on is None else {"aria_pressed": str(on).lower()}
    return element("button", words, css=css, type="button", data_send=json_text(event), **state, **attributes)


def table(
    columns: Sequence[str], rows: Sequence[Sequence[Child]], *, numeric: Collection[str] = (), caption: str = "",
    ids: Sequence[str] = (), sends: Sequence[Event | None] = (), strong: Collection[int] = (),
) -> Element:
    """Return a table; a click on a row selects its id among ``ids``, or sends its message among ``sends``."""
    targets = [{"data_id": ident} if ident else {} for ident in ids]
    targets += [{} if event is None else {"data_send": json_text(event)} for event in sends]
    looks = {n: {"css": "fx-total"} for n in strong}
    looks |= {n: {**target, "tabindex": "0", "css": "fx-row"} for n, target in enumerate(targets) if target}
    return rows_element(columns, rows, numeric=numeric, caption=caption, looks=looks, css="fx")
