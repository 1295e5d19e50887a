"""The size of text and the lines on each box, so that layout and drawing agree without access to fonts."""

from dataclasses import dataclass
from functools import lru_cache

from fuser_lab.ir.tensor_names import full_name, short_name
from fuser_lab.report import theme
from fuser_lab.report.units import bytes_label, plural
from fuser_lab.report.view_model import EdgeView, NodeView, SegmentView

NAME_SIZE = 13.0  # pixels of the font of names
_FAR_SIZE = 18.4  # pixels of a name at the least scale at which the explorer opens a picture, 11 on the screen
DETAIL_SIZE = theme.DETAIL_SIZE
LABEL_SIZE, LABEL_HEIGHT = 11.0, 20.0  # pixels of the font of labels, and of labels
GAP = 18.0  # pixels between neighbours of a row in a segment
_GROWN, _APART = 1.25, 3.0  # how much the explorer enlarges labels in a small picture, and pixels between them then
HEADER_LINE, HEADER_DETAIL = 18.0, 12.0  # pixels: the height of the first line of a segment's header, and of the others
_SHAPE_CHARS = 30  # characters of a shape
_MONO_ADVANCE = 0.605  # width of a character of the monospaced font per pixel of its size
_NARROW = frozenset("fijltrI.,:;'|![](){}/ ")
_WIDE = frozenset("mwMW@%&—→")


@lru_cache(maxsize=1 << 14)
def sans_width(text: str, size: float) -> float:
    """Return a width that sans-serif text of this size will not exceed in common fonts."""
    units = sum(0.36 if c in _NARROW else 0.92 if c in _WIDE else 0.72 if c.isupper() else 0.6 for c in text)
    return units * size


def mono_width(text: str, size: float) -> float:
    """Return the width of monospaced text."""
    return len(text) * _MONO_ADVANCE * size


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxText:
    """The lines of a node box and its size in pixels.

    The user's name of the result (``called``) and ``aside`` follow the name on the same line.
    """

    name: str
    called: str = ""
    aside: str
    detail: str
    width: float
    height: float


def node_text(node: NodeView, *, compact: bool) -> BoxText:
    """Return the text of a node box."""
    if node.kind == "segment":
        width = max(mono_width(node.detail, DETAIL_SIZE) + 26, sans_width(node.label, NAME_SIZE) + 32)
        return BoxText(name=node.label, aside="", detail=node.detail, width=width, height=46)
    shape = f"{node.dtype} [{', '.join(node.shape)}]"
    if len(shape) > _SHAPE_CHARS:
        shape = shape[: _SHAPE_CHARS - 1] + "…"
    called = tuple(map(short_name, node.called))
    if node.kind != "op":
        name, aside = "".join(called) or node.label, bytes_label(node.bytes)
        aside = f"{node.label} {aside}" if any(called) else aside
        width = _with_aside(name, aside, mono_width(shape, DETAIL_SIZE) + 40)
        return BoxText(name=name, aside=aside, detail=shape, width=width, height=42)
    name, (alone, *others) = node.label, called or ("",)
    aside = ", ".join(map(full_name, node.tensors, called or ("",) * len(node.tensors))) if others else node.tensor
    aside += f" ×{node.copies}" if node.replica else ""
    alone = "" if others else alone
    detail = "" if compact else shape
    read = sans_width(f"{name}\u2002{alone}", _FAR_SIZE) + 8 if alone else 0.0
    width = _with_aside(name, full_name(aside, alone), max(mono_width(detail, DETAIL_SIZE) + 22, 64, read))
    height = 26 if compact else 42
    return BoxText(name=name, called=alone, aside=aside, detail=detail, width=width, height=height)


def _with_aside(name: str, aside: str, width: float) -> float:
    return max(width, sans_width(name, NAME_SIZE) + 8 + mono_width(aside, DETAIL_SIZE) + 24)


def segment_label(segment: SegmentView) -> tuple[str, str, str, str]:
    """Return the parts of a segment's header: number and scheduler, and on two more lines its ops and its traffic."""
    return f"S{segment.index}", segment.scheduler, *_traffic(len(segment.ops), segment.bytes_in, segment.bytes_out)


@lru_cache(maxsize=1 << 12)
def _traffic(ops: int, bytes_in: int, bytes_out: int) -> tuple[str, str]:
    return f"{plural(ops, 'op')} · in {bytes_label(bytes_in)}", f"out {bytes_label(bytes_out)}"


def header_size(segment: SegmentView) -> tuple[float, float]:
    """Return the size of a segment's header."""
    return _header_size(*segment_label(segment))


@lru_cache(maxsize=1 << 12)
def _header_size(chip: str, scheduler: str, *details: str) -> tuple[float, float]:
    first = chip_width(chip) + 8 + sans_width(scheduler, LABEL_SIZE + 1)
    far = sans_width(scheduler, _FAR_SIZE)  # on a line of its own
    lines = (sans_width(line, LABEL_SIZE) for line in details)
    return max(first, far, *lines), HEADER_LINE + HEADER_DETAIL * len(details)


def chip_width(chip: str) -> float:
    """Return the width of the coloured chip with a segment's number."""
    return sans_width(chip, LABEL_SIZE + 1) + 12


def edge_label(edge: EdgeView) -> str:
    """Return the text beside a boundary edge, or at the start of one that is drawn without its source."""
    return "".join(edge_label_parts(edge))


def edge_label_parts(edge: EdgeView) -> tuple[str, str, str]:
    """Return the text of an edge's label in three parts: the name, the tensor where it is not the name, the bytes."""
    name = short_name(edge.called)
    more = f" · {bytes_label(edge.passed)}" if edge.labelled else ""
    return name or edge.tensor, f" {edge.tensor}" if name else "", more


def edge_label_size(edge: EdgeView) -> tuple[float, float]:
    """Return the size of the label beside a boundary edge."""
    return sans_width(edge_label(edge), LABEL_SIZE) + 14, LABEL_HEIGHT


def edge_label_room(edge: EdgeView) -> tuple[float, float]:
    """Return the size of the place of a label, half a gap from the next one, which it does not touch if enlarged."""
    width, height = edge_label_size(edge)
    return max(width, width * _GROWN + _APART - GAP / 2), height
