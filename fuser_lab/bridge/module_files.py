"""The map of a model as files: pictures, data and tables of its boxes."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Protocol

from fuser_lab.bridge.module_map import ModuleMap
from fuser_lab.files.json_text import json_text
from fuser_lab.report.html import document
from fuser_lab.report.module_map import ModuleBox, depth_for, module_boxes
from fuser_lab.report.module_picture import map_svg
from fuser_lab.report.records import Records, records_csv, words
from fuser_lab.report.save import Writers, picture_writers

_READABLE = 40  # boxes


class Mapped(Protocol):
    """The parts of a captured model that its map shows."""

    def maps(self) -> Sequence[ModuleMap]:
        """Return a map of each graph."""

    def tables_html(self) -> str:
        """Return the regions, and the ops left to the library, as HTML tables."""


def boxes_of(maps: Sequence[ModuleMap], depth: int | None = None) -> list[ModuleBox]:
    """Return the boxes of maps, open to a depth, or as far as they are readable."""
    return [
        module_boxes(module_map.graph, depth=depth or depth_for(module_map.graph, _READABLE)) for module_map in maps
    ]


def map_html(maps: Sequence[ModuleMap]) -> str:
    """Return the picture of maps as HTML."""
    return f'<div style="overflow:auto;max-height:70vh">{map_svg(boxes_of(maps))}</div>'


def map_writers(model: Mapped, depth: int | None) -> Writers:
    """Return writers of a model's map: pictures, a page, the boxes as data and as a table, and the model as text."""
    maps = model.maps()
    return picture_writers(lambda: map_svg(boxes_of(maps, depth))) | {
        ".html": lambda: document("model", map_svg(boxes_of(maps, depth)) + model.tables_html()),
        ".json": lambda: json_text([asdict(box) for box in boxes_of(maps, depth)], indent=1),
        ".csv": lambda: records_csv(box_records(maps, boxes_of(maps, depth))),
        ".txt": lambda: f"{model}\n",
    }


def box_records(maps: Sequence[ModuleMap], wholes: Sequence[ModuleBox]) -> Records:
    """Return one row per box that is drawn."""
    columns = (
        "graph", "box", "kind", "class", "modules", "ops", "regions", "left to torch", "in [bytes]",
        "out [bytes]",
    )
    rows = tuple(
        (
            module_map.graph.title, box.id, box.kind, box.cls, box.modules, len(box.calls), words(box.regions),
            box.left,
            box.bytes_in, box.bytes_out,
        )
        for module_map, whole in zip(maps, wholes, strict=True) for box in whole.each() if box.id
    )
    return Records(columns=columns, rows=rows)
