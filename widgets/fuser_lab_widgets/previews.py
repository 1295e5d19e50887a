"""Previews of the current plan's edits, for its edges and as a ranked list, as JSON-ready data."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from textwrap import shorten
from typing import Any, Final

from fuser_lab.plan.code import REWRITINGS
from fuser_lab.report.collapse import is_large
from fuser_lab.report.markup import Child, element, to_html
from fuser_lab.report.parts import crossing
from fuser_lab.report.view_model import EdgeView, ViewModel
from fuser_lab.segmentation.previews import EditPreview
from fuser_lab_widgets.elements import button, note, table
from fuser_lab_widgets.session import EditablePlan

MOST: Final = 12  # edits in the ranked list
SECONDS: Final = 3.0  # after which the list is truncated
_STEPS: Final = (0.0, 0.05, 0.2)  # shares of the predicted time above which an edge has the next colour
_LONGEST: Final = 220  # characters of a refusal at the pointer; the inspector has all of it
_BATCH: Final = 40  # edges that are sent together at first
Hint = list[Any]


def can_preview(plan: EditablePlan) -> bool:
    """Whether a plan supports previews that take less than about a second."""
    return hasattr(plan, "preview_cut") and not getattr(plan, "is_slow_to_predict", False)


def one_of_several(view: ViewModel, edge: EdgeView) -> str | None:
    """Return the reader at the end of an edge if the tensor has others in the same segment."""
    beside = [e for e in view.edges_of(edge.tensor) if (e.kind, e.segments) == (edge.kind, edge.segments)]
    reader = view.node(edge.target)
    return None if len(beside) == 1 or reader is None else reader.tensor


def of_edge(plan: Any, view: ViewModel, edge: EdgeView) -> EditPreview | None:
    """Return the preview of a click on an edge; None at a fusion input or output, and for plans without previews."""
    if not can_preview(plan):
        return None
    a, b = edge.segments
    preview: EditPreview | None = None
    if edge.kind == "inside":
        reader = one_of_several(view, edge)
        preview = plan.preview_cut(edge.tensor if reader is None else (edge.tensor, reader))
    elif edge.kind == "boundary" and a is not None and b is not None:
        preview = plan.preview_glue(a, b)
    return preview


def because(plan: Any, kind: str, arguments: Sequence[Any]) -> tuple[str, ...]:
    """Return why an edit changes more than it names; empty for plans and edits without previews."""
    if not can_preview(plan) or kind in {*REWRITINGS, "annotate"}:
        return ()
    if kind == "cut":
        preview = plan.preview_cut(arguments[0] if len(arguments) == 1 else tuple(arguments))
    else:
        preview = {"glue": plan.preview_glue, "move": plan.preview_move}[kind](*arguments)
    return tuple(preview.because)


def best(plan: Any) -> tuple[EditPreview, ...]:
    """Return the legal edits that save time, the best first."""
    return tuple(plan.best_edits(MOST, seconds=SECONDS))


def advice(plan: Any, number: int) -> dict[str, Any]:
    """Return the sentence about the first of the best edits that are known, and the event of the edit."""
    advice = plan.advice(seconds=0.0)
    if advice.edit is None:
        return {"plan": number, "text": advice.text}
    kind, arguments = advice.edit.edit
    label = f"{advice.edit.name[:1].upper()}{advice.edit.name[1:]}"
    return {"plan": number, "text": advice.text, "action": {"type": "edit", "edit": [kind, *arguments], "label": label}}


def hint_of(preview: EditPreview) -> Hint:
    """Return the hint at an edge: whether the edit is legal, a colour from 0 to 3, and the text."""
    if preview.after is None:
        return [False, 0, preview.name, shorten(preview.rule.partition("\n")[0], _LONGEST, placeholder=" …")]
    saved = -preview.seconds / preview.before.seconds if preview.before.seconds else 0.0
    return [True, sum(saved > step for step in _STEPS), preview.name, f"{preview.change} ({preview.device})"]


def answer_of(preview: EditPreview) -> dict[str, Any]:
    """Return the inspector's view of a preview."""
    return {
        "name": preview.name, "legal": preview.legal, "change": preview.change, "device": preview.device,
        "rule": preview.rule, "because": list(preview.because),
    }


def in_batches(plan: EditablePlan, view: ViewModel, stopped: Callable[[], bool]) -> Iterator[dict[str, Hint]]:
    """Yield the previews of a plan's edges, boundaries first; for large fusions only these.

    Each batch is as large as all before it, because the page gets all that are known with each.
    """
    boundaries = [replace(edge, segments=ends) for edge, ends in crossing(view.edges) if edge.kind == "boundary"]
    inside = [] if is_large(view) else [edge for edge in view.edges if edge.kind == "inside"]
    batch: dict[str, Hint] = {}
    size, sent = _BATCH, 0
    for edge in (*boundaries, *inside):
        if stopped():
            return
        preview = of_edge(plan, view, edge)
        if preview is not None:
            batch[edge.id] = hint_of(preview)
        if len(batch) == size:
            yield batch
            sent += size
            batch, size = {}, sent
    yield batch


def best_html(best: tuple[EditPreview, ...] | None, number: int) -> str:
    """Return the ranked edits as a table with a button each; ``number`` is that of the plan that they are for.

    None means that the search is still in progress.
    """
    if best is None:
        return to_html(element("p", "Searching for edits that save time …", css="fx-empty"))
    if not best:
        text = "No single cut, glue, move or segment_set that was examined is predicted to make this plan faster."
        return to_html(note(text))
    columns = ("", "edit", "segments", "moved", "predicted", "why")
    about = (
        "Legal edits that save time, best first; the sentence in the head is the first of them. Times are predicted "
        f"for the {best[0].device}."
    )
    rows = [_row(preview, number) for preview in best]
    return to_html(note(about)) + to_html(element("div", table(columns, rows), css="fx-scroll"))


def _row(preview: EditPreview, number: int) -> Sequence[Child]:
    event = {"type": "edit", "edit": [preview.edit[0], *preview.edit[1]], "plan": number}
    apply = button("Apply", event, aria_label=f"Apply: {preview.name}")
    return apply, preview.name, *preview.changes, " ".join(filter(None, (preview.times, preview.rule)))
