"""What the page draws of a plan, as JSON-ready data: the picture, its nodes and edges, the numbers, the marks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from fuser_lab.report.collapse import collapsed
from fuser_lab.report.layout import lay_out
from fuser_lab.report.svg import view_svg
from fuser_lab.report.tables import segment_table
from fuser_lab.report.units import bytes_label, seconds_label

if TYPE_CHECKING:
    from collections.abc import Collection

    from fuser_lab.report.diff import PlanDiff
    from fuser_lab.report.view_model import ViewModel

Detail = Literal["ops", "segments"]


def scene(view: ViewModel, prefix: str, *, detail: Detail = "ops", opened: Collection[int] = ()) -> dict[str, Any]:
    """Return the drawing and the data beside it; ``detail="segments"`` draws one node for each that is not opened.

    A node is its id, kind, segment, the middle of its box, the names of its tensors, and what a search looks at.
    """
    shown = view if detail == "ops" else collapsed(view, opened)
    layout = lay_out(shown)
    return {
        "hash": view.header.hash,
        "svg": view_svg(shown, layout, prefix=prefix, style=False),
        "title": view.header.title,
        "edges": [[e.id, e.kind, e.source, e.target, e.tensor, *e.segments] for e in shown.edges],
        "nodes": [
            [
                n.id,
                n.kind,
                n.segment,
                round(layout.nodes[n.id].x + layout.nodes[n.id].width / 2),
                round(layout.nodes[n.id].y + layout.nodes[n.id].height / 2),
                list(n.tensors),
                f"{n.text} {n.dtype}" if n.kind != "segment" else f"{n.label} {n.text}",
            ]
            for n in shown.nodes
        ],
        "facts": facts(view),
        "segments": segment_table(view.segments).to_dict(),
        "detail": detail,
    }


def facts(view: ViewModel) -> list[list[str]]:
    """Return the numbers of the header: value, name, and what it means."""
    header = view.header
    return [
        [str(header.segments), "segment" if header.segments == 1 else "segments", "one kernel each"],
        [str(header.ops), "op" if header.ops == 1 else "ops", "a recomputed op counts in each segment"],
        [bytes_label(header.bytes_moved), "moved", "what all segments read from memory and write to it"],
        [bytes_label(header.bytes_ideal), "ideal", "what a single kernel would move: fusion inputs and outputs"],
        [bytes_label(header.bytes_crossing), "crossing", "tensors that one segment writes for another"],
    ]


def predicted(view: ViewModel, plan: Any) -> list[list[str]]:
    """Return the time that the cost model gives a plan, as one more number of the header; none without a model."""
    oracle = getattr(plan, "oracle", None)
    if oracle is None:
        return []
    from fuser_lab.cost.traffic import model_of

    model = model_of(oracle)
    seconds = view.header.bytes_moved / model.bandwidth + view.header.segments * model.launch
    about = f"bytes at {model.device}'s {model.bandwidth / 1e9:.0f} GB/s, and {seconds_label(model.launch)} a launch"
    return [[seconds_label(seconds), "predicted", about]]


def marks(view: ViewModel, difference: PlanDiff) -> dict[str, list[str]]:
    """Return what another plan has differently, by ids: ops in other company, tensors that cross only here or there."""
    moved = {m.name for m in difference.moved} | set(difference.only_after)
    new = {c.name for c in difference.now_crossing}
    gone = {c.name for c in difference.no_longer_crossing}
    return {
        "moved": [n.id for n in view.nodes if n.kind == "op" and moved & set(n.tensors)],
        "new": [e.id for e in view.edges if e.kind == "boundary" and e.tensor in new],
        "gone": [e.id for e in view.edges if e.kind == "inside" and e.tensor in gone],
    }
