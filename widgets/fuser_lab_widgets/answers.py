"""The inspector's content for a selected edge, op, tensor or segment, as JSON-ready data."""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, cast

from fuser_lab.dtypes import DataType
from fuser_lab.errors import FuserLabError, IllegalEdit
from fuser_lab.passes.annotations import with_segment_set
from fuser_lab.report.collapse import is_large
from fuser_lab.report.repeats import Block, blocks
from fuser_lab.report.svg import edge_title, segment_text, segment_title
from fuser_lab.report.tables import decision_reason
from fuser_lab.report.units import bytes_label, plural
from fuser_lab.report.view_model import (
    AnnotationView,
    EdgeView,
    NodeView,
    SegmentView,
    VerdictView,
    ViewModel,
    view_decisions,
    view_layouts,
    view_verdicts,
)
from fuser_lab.segmentation.events import Attempt
from fuser_lab.segmentation.layouts import layout_of
from fuser_lab.segmentation.previews import EditPreview
from fuser_lab_widgets import previews
from fuser_lab_widgets.session import EditablePlan

Answer = dict[str, Any]
DECISIONS = 500  # attempts that are sent at a time
_MOST_MOVES = 4  # segments that are tried while an op is selected
_MOST_LINES = 6  # of the user's code, shown for a segment
_CUT = "Overrules the segmenter: the partition is cut here, regardless of nvFuser's rules"
_AGAIN = "The segment computes the tensor again instead of reading it; values do not change"
NARROW = {"BFloat16": 256, "Half": 2048}  # 16-bit dtypes, with the reciprocal of the relative rounding error
_ASKS = "Changes the definition and segments it again, as nvFuser would"


def answer(plan: EditablePlan, view: ViewModel, selected: str, *, editable: bool = True) -> Answer:
    """Return the inspector's content for a selection, or an empty answer if the plan no longer has it.

    ``editable=False`` omits the edits and their previews.
    """
    edge = view.edge(selected)
    if edge is not None:
        said = _edge(plan, view, edge)
        return _with_preview(plan, view, edge, said) if editable else said | {"actions": []}
    node = view.node(selected)
    if node is not None:
        return _node(plan, view, node, editable=editable)
    segment = next((s for s in view.segments if f"segment:{s.index}" == selected), None)
    if segment is not None:
        return _segment(plan, view, segment)
    if selected.startswith("module:"):
        return _module(view, selected, editable=editable)
    block = next((b for b in blocks(view) if b.id == selected), None) if selected.startswith("block:") else None
    return {} if block is None else _block(view, block, editable=editable)


def _block(view: ViewModel, block: Block, *, editable: bool) -> Answer:
    inside = [s for s in view.segments if s.index in block]
    schedulers = ", ".join(s.scheduler for s in inside[: block.period])
    return {
        "id": block.id,
        "title": f"Segments {block.first} to {block.last}",
        "sentence": f"{plural(block.period, 'segment')}, {block.count} times: {schedulers}.",
        "facts": [
            ["ops", str(sum(len(s.ops) for s in inside))],
            ["moved", bytes_label(sum(s.bytes_in + s.bytes_out for s in inside))],
        ],
        "actions": [{"type": "open", "label": "Show its segments", "block": block.id}] if editable else [],
    }


def _module(view: ViewModel, selected: str, *, editable: bool) -> Answer:
    """Return the contents of a module's box, whose id names the module and the segment."""
    path, _, place = selected.removeprefix("module:").rpartition("@")
    index = int(place.partition("#")[0])
    segment = next((s for s in view.segments if s.index == index), None)
    inside = [n for n in view.nodes if n.segment == index and f"{n.module}.".startswith(f"{path}.")]
    if segment is None or not inside:
        return {}
    lines = dict.fromkeys(node.line for node in inside if node.line)
    return {
        "id": selected,
        "kind": "module",
        "title": f"{path} in {segment_title(segment)}",
        "facts": [
            ["ops", ", ".join(dict.fromkeys(node.label for node in inside))],
            *(["line", line] for line in list(lines)[:_MOST_LINES]),
        ],
        "names": sorted({name for node in inside for name in node.tensors}),
        "sentence": f"{plural(len(inside), 'op')} of this module in segment {index}.",
        "actions": [{"type": "open", "label": "Show what it holds", "module": path}] if editable else [],
        "verdicts": [],
        "segment": index,
    }


def folding(view: ViewModel, said: Answer, opened: Collection[str]) -> list[Answer]:
    """Return the actions of an answer where these modules and blocks are open.

    What is open is not opened again; an action folds an open block, or the innermost open module around a module or op.
    """
    selected = str(said["id"])
    actions = [a for a in said["actions"] if not {a.get("module"), a.get("block")} & set(opened)]
    if selected in opened:
        return [*actions, {"type": "open", "label": "Fold its segments", "block": selected}]
    path = selected.removeprefix("module:").rpartition("@")[0] if selected.startswith("module:") else next(
        (node.module for node in view.nodes if node.id == selected), ""
    )
    around = [each for each in opened if f"{path}.".startswith(f"{each}.")]
    if not around:
        return actions
    inner = max(around, key=len)
    return [*actions, {"type": "open", "label": f"Fold {inner}", "module": inner}]


def _with_preview(plan: EditablePlan, view: ViewModel, edge: EdgeView, said: Answer) -> Answer:
    """Return the answer about an edge with the preview of its edit; a refused edit is disabled and has the reason."""
    preview = previews.of_edge(plan, view, edge)
    if preview is not None:
        said["preview"] = previews.answer_of(preview)
        if not preview.legal:
            said["actions"] = [action | {"refused": preview.rule} for action in said["actions"]]
    said["actions"] += [*_rewriting(plan, view, edge), *_annotating(plan, view, edge)]
    return said


def _rewriting(plan: Any, view: ViewModel, edge: EdgeView) -> list[Answer]:
    """Return the edits of computations at a crossing tensor: computing it again, or passing it in 16 bits.

    Their legality is known only once they are made, which takes too long for large fusions.
    """
    _, reader = edge.segments
    if edge.kind != "boundary" or reader is None or not hasattr(plan, "recompute"):
        return []
    is_checked = not is_large(view)
    again = {"type": "recompute", "label": f"Recompute {edge.tensor} in S{reader}", "id": edge.id, "title": _AGAIN}
    edits: list[Answer] = [again | (_refusal(plan.recompute, edge.tensor, segments=reader) if is_checked else {})]
    tensor = plan.fusion.tensors.get(edge.tensor)
    for dtype, parts in NARROW.items() if tensor is not None and tensor.dtype is DataType.Float else ():
        title = f"Values change: each element is rounded by at most 1/{parts} of itself; the edit reports the effect"
        less = {"type": "narrow", "label": f"Pass {edge.tensor} as {dtype}", "id": edge.id, "dtype": dtype}
        refused = _refusal(plan.narrow, edge.tensor, DataType[dtype]) if is_checked else {}
        edits.append(less | {"title": title} | refused)
    return edits


def _refusal(edit: Callable[..., Any], *arguments: Any, **more: Any) -> Answer:
    """Return why an edit is refused, as a part of its action, or nothing if it is legal."""
    try:
        edit(*arguments, **more)
    except FuserLabError as error:
        return {"refused": str(error).partition("\n")[0]}
    return {}


def refusal(plan: EditablePlan, view: ViewModel, selected: str, error: FuserLabError) -> Answer:
    """Return why an edit of the selection was refused: the sentence of the error, and each scheduler's answer."""
    said, text = answer(plan, view, selected), str(error)
    verdicts = _verdicts(view_verdicts(getattr(error, "verdicts", None)))
    sentence = f"{text[:1].upper()}{text[1:]}"
    return said | {"sentence": sentence, "refused": True, "verdicts": verdicts or said.get("verdicts", [])}


def certificate(plan: EditablePlan) -> Answer:
    """Return the certificate of a plan: the verdict, the costs, what a cheaper plan saves, and what every plan pays."""
    if not hasattr(plan, "certificate"):
        return {"hash": plan.hash, "problem": "This plan has no cost model, so it cannot be certified."}
    proof = plan.certificate()
    us, total = proof.time_text, proof.total_text
    less = f"bound: no plan costs less{f', {proof.reading}' if proof.reading else ''}"
    costs = [[total(proof.cost), "this plan"], [total(proof.bound), less]]
    if proof.known < proof.cost:
        costs.append([total(proof.known), "a cheaper plan is known"])
    return {
        "hash": plan.hash,
        "status": proof.status,
        "proved": proof.is_optimal,
        "costs": costs,
        "model": proof.model_text,
        "notes": list(proof.notes),
        "missed": [[us(entry.cost), entry.text] for entry in proof.missed_shown],
        "terms": [[us(term.cost), term.text] for term in proof.terms if term.cost],
    }


def decision_page(attempts: Sequence[Attempt], first: int = 0, count: int | None = DECISIONS) -> dict[str, Any]:
    """Return ``count`` attempts, or all, from ``first`` on as rows.

    A row has the names that it concerns, its groups if it changed them, and indices into the page's verdicts, because
    many groups get the same verdict.
    """
    verdicts: dict[VerdictView, int] = {}
    rows = [
        {
            "seq": d.seq,
            "phase": d.phase,
            "kind": d.kind,
            "of": d.of,
            "names": d.names,
            "ok": d.accepted,
            "groups": d.groups if d.accepted else (),
            "reason": decision_reason(d),
            "verdicts": [verdicts.setdefault(v, len(verdicts)) for v in d.verdicts],
        }
        for d in view_decisions(attempts[first : None if count is None else first + count])
    ]
    return {"first": first, "total": len(attempts), "rows": rows, "verdicts": _verdicts(verdicts)}


def _edge(plan: EditablePlan, view: ViewModel, edge: EdgeView) -> Answer:
    source, target = view.node(edge.source), view.node(edge.target)
    assert source is not None
    assert target is not None
    a, b = edge.segments
    said: Answer = {
        "id": edge.id,
        "kind": edge.kind,
        "title": edge_title(edge),
        "facts": [
            ["tensor", f"{edge.tensor}  {source.dtype} [{', '.join(source.shape)}]"],
            ["size", f"{bytes_label(edge.bytes)} ({edge.bytes:,} bytes)"],
            ["from", source.text.replace("\n", "; ")],
            ["to", target.text.replace("\n", "; ")],
        ],
        "names": [source.tensor, target.tensor],
        "actions": [],
        "verdicts": [],
        "sentence": "",
    }
    if edge.kind in {"boundary", "output"}:
        said["layout"] = _layout(plan, edge.tensor)
    if edge.kind in {"input", "output"}:
        reads = "read from" if edge.kind == "input" else "written to"
        return said | {"sentence": f"{edge.tensor} is a fusion {edge.kind}: it is {reads} memory in every plan."}
    said |= _why(plan, source.tensor, target.tensor)
    if edge.kind == "inside":
        size = bytes_label(edge.bytes)
        saved = f"{edge.tensor} stays in registers inside one kernel. A cut here writes and reads {size}."
        said["actions"] = [{"type": "cut", "label": f"Cut at {edge.tensor}", "id": edge.id, "title": _CUT}]
        said["note"] = saved
    else:
        said["actions"] = [{"type": "glue", "label": f"Glue S{a} and S{b}", "id": edge.id}]
        said["note"] = _passed_text(edge)
    return said


def _passed_text(edge: EdgeView) -> str:
    a, b = edge.segments
    if edge.is_free:
        return (
            f"{edge.tensor} passes from S{a} to S{b} as a view, or for one: no kernel writes its "
            f"{bytes_label(edge.bytes)} for another kernel."
        )
    return f"{edge.tensor} crosses: S{a} writes {bytes_label(edge.bytes)} to memory and S{b} reads it back."


def annotation_at(view: ViewModel, edge: EdgeView) -> AnnotationView | None:
    """Return the ``segment_set`` that an edge leads to or leaves."""
    target = view.node(edge.target)
    names = {edge.tensor, "" if target is None else target.tensor}
    return next((annotation for annotation in view.annotations if annotation.hint in names), None)


def reader_at(view: ViewModel, edge: EdgeView) -> str | None:
    """Return the reader at the end of an edge if its tensor has others; None stands for all."""
    targets = {e.target: view.node(e.target) for e in view.edges_of(edge.tensor)}
    ends = {ident: node.tensor for ident, node in targets.items() if node is not None and node.kind == "op"}
    return ends.get(edge.target) if len(set(ends.values())) > 1 else None


def _annotating(plan: Any, view: ViewModel, edge: EdgeView) -> list[Answer]:
    """Return the changes of the definition at an edge: inserting or removing a ``segment_set``.

    Tensors created by passes and edits are not in the definition, and cannot be annotated.
    """
    there = annotation_at(view, edge)
    if there is not None:
        remove = {"type": "unannotate", "label": "Remove segment_set", "id": edge.id, "title": _ASKS}
        return [remove] if there.own else []
    if edge.kind == "output":
        return []
    reader = reader_at(view, edge)
    where = edge.tensor if reader is None else f"{edge.tensor} → {reader}"
    insert = {"type": "annotate", "id": edge.id, "title": _ASKS}
    actions: list[tuple[Answer, str | None]] = [(insert | {"label": f"Insert segment_set: {where}"}, reader)]
    if reader is not None:
        actions.append((insert | {"label": f"Insert segment_set: {edge.tensor}, all readers", "all": True}, None))
    if not hasattr(plan, "definition"):
        return [action for action, _ in actions]
    return [action | _refusal(with_segment_set, plan.definition, edge.tensor, readers) for action, readers in actions]


def _layout(plan: Any, tensor: str) -> list[list[str]]:
    """Return the memory layout of a tensor that a segment writes: all preferences, what decided, and the cost."""
    if not hasattr(plan, "layouts"):
        return []
    boundaries = [layout_of(plan.segmented, tensor)] if plan.agreed is None else plan.agreed
    views = view_layouts(boundary for boundary in boundaries if boundary is not None and boundary.tensor == tensor)
    return [
        fact
        for layout in views
        for fact in (
            ["layout", f"{layout.chosen}, decided by {layout.by}"],
            ["required", layout.required],
            ["hint", layout.hint],
            ["natural", f"{layout.natural} (S{layout.producer})"],
            ["preferred", layout.preferred],
            ["across rows", f"{bytes_label(layout.cost)}; naturally {bytes_label(layout.natural_cost)}"],
        )
    ]


def _node(plan: EditablePlan, view: ViewModel, node: NodeView, *, editable: bool) -> Answer:
    segment = next((s for s in view.segments if s.index == node.segment), None)
    moves = _moves(plan, view, node) if editable else []
    facts = [
        ["result", f"{', '.join(node.tensors)}  {node.dtype} [{', '.join(node.shape)}]"],
        ["size", f"{bytes_label(node.bytes)} ({node.bytes:,} bytes)"],
    ]
    if segment is not None:
        facts.append(["segment", f"S{segment.index}, {segment.scheduler}"])
    if node.called:
        facts.append(["named", ", ".join(node.called)])
    if node.line:
        facts.append(["line", node.line])
    if node.replica:
        facts.append(["copies", "recomputed in each segment that reads it instead of stored"])
    return {
        "id": node.id,
        "kind": node.kind,
        "title": node.text.partition("\n")[0],
        "facts": facts,
        "names": list(node.tensors),
        "actions": [action for _, action in moves if action] + (_removing(view, node) if editable else []),
        "moves": [row for row, _ in moves],
        "verdicts": _verdicts(segment.verdicts) if segment else [],
        "segment": node.segment,
        "sentence": "" if segment is None else _scheduler_text(segment),
    }


def _removing(view: ViewModel, node: NodeView) -> list[Answer]:
    is_annotation = any(annotation.own and annotation.node == node.id for annotation in view.annotations)
    return [
        {"type": "unannotate", "label": "Remove segment_set", "id": node.id, "title": _ASKS},
    ] if is_annotation else []


def _moves(plan: EditablePlan, view: ViewModel, node: NodeView) -> list[tuple[dict[str, Any], Answer | None]]:
    """Return for each neighbouring segment whether the op may move there, the cost or the reason, and the edit."""
    if node.kind != "op" or node.replica or not hasattr(plan, "move"):
        return []
    sides = (edge.segments for edge in view.edges if node.id in {edge.source, edge.target})
    near = [other for pair in sides for other in pair if other is not None and other != node.segment]
    moves: list[tuple[dict[str, Any], Answer | None]] = []
    for segment in list(dict.fromkeys(near))[:_MOST_MOVES]:
        where = f"to S{segment}"
        if previews.can_preview(plan):
            moves.append(_move(cast("Any", plan).preview_move(node.tensor, segment), node, segment))
            continue
        try:
            moved = plan.move(node.tensor, segment)
        except IllegalEdit as error:
            moves.append(({"scheduler": where, "ok": False, "code": "", "text": str(error).partition("\n")[0]}, None))
            continue
        more = _traffic(moved) - view.header.bytes_moved
        sign = "+" if more >= 0 else "−"
        action = {"type": "move", "label": f"Move to S{segment}", "id": node.id, "segment": segment}
        text = f"{sign}{bytes_label(abs(more))} moved"
        moves.append(({"scheduler": where, "ok": True, "code": "", "text": text}, action))
    return moves


def _move(preview: EditPreview, node: NodeView, segment: int) -> tuple[dict[str, Any], Answer | None]:
    row = {"scheduler": f"to S{segment}", "ok": preview.legal, "code": ""}
    if not preview.legal:
        return row | {"text": preview.rule.partition("\n")[0]}, None
    action = {"type": "move", "label": f"Move to S{segment}", "id": node.id, "segment": segment}
    return row | {"text": f"{preview.change} ({preview.device})"}, action | {"title": preview.rule}


def _traffic(plan: Any) -> int:
    return sum(s.bytes_in + s.bytes_out for s in plan.segments)


def _segment(plan: EditablePlan, view: ViewModel, segment: SegmentView) -> Answer:
    made = {name for n in view.nodes if n.segment == segment.index for name in n.tensors}
    lines = list(dict.fromkeys(n.line for n in view.nodes if n.segment == segment.index and n.line))
    more = len(lines) - _MOST_LINES
    is_idle = segment.index in getattr(plan, "idle", ())
    launch = " It launches nothing and moves no bytes: its results are in the memory of other tensors." * is_idle
    return {
        "id": f"segment:{segment.index}",
        "kind": "segment",
        "title": segment_title(segment),
        "facts": [
            ["ops", f"{len(segment.ops)}: {', '.join(segment.ops)}"],
            ["reads", f"{', '.join(segment.inputs)} ({bytes_label(segment.bytes_in)})"],
            ["writes", f"{', '.join(segment.outputs)} ({bytes_label(segment.bytes_out)})"],
            ["crossing", bytes_label(segment.bytes_crossing)],
            *(["line", line] for line in lines[:_MOST_LINES]),
            *([["line", f"and {more} more"]] if more > 0 else []),
        ],
        "names": sorted(made),
        "actions": [],
        "verdicts": _verdicts(segment.verdicts),
        "segment": segment.index,
        "sentence": (_scheduler_text(segment) if segment.ok else segment_text(segment)) + launch,
    }


def _scheduler_text(segment: SegmentView) -> str:
    """Return which scheduler accepted a segment, and those that refused before it."""
    if not segment.ok:
        return f"No scheduler accepts segment {segment.index}."
    refused = [v.scheduler for v in segment.verdicts if not v.accepted]
    after = f" after {', '.join(refused)} refused" if refused else ""
    return f"The {segment.scheduler} scheduler accepted segment {segment.index}{after}."


def _why(plan: EditablePlan, a: str, b: str) -> Answer:
    try:
        why = plan.why(a, b)
    except FuserLabError as error:
        return {"sentence": str(error)}
    refused = getattr(why, "refusal", "")
    return {
        "sentence": f"{why.text} {refused[:1].upper()}{refused[1:]}." if refused else str(why.text),
        "verdicts": _verdicts(view_verdicts(getattr(why, "verdicts", None))),
        "attempts": list(getattr(why, "attempts", ())),
    }


def _verdicts(verdicts: Iterable[VerdictView]) -> list[dict[str, Any]]:
    return [{"scheduler": v.scheduler, "ok": v.accepted, "code": v.code, "text": v.text} for v in verdicts]
