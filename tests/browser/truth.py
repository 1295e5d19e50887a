"""What has to be true of an explorer's page: each sentence, mark and enabled action, from the plan on show alone."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from fuser_lab_widgets import answers, previews, scenes, sources, tabs, unfolding
from fuser_lab_widgets.amounts import place
from fuser_lab_widgets.controls import controls
from fuser_lab_widgets.heat import heat

from fuser_lab import DataType
from fuser_lab.errors import FuserLabError
from fuser_lab.pricing.rule_lifting import liftable
from fuser_lab.report import measure
from fuser_lab.report.collapse import collapse
from fuser_lab.report.diff import plan_diff
from fuser_lab.report.repeats import blocks
from fuser_lab.report.svg import describe, edge_title, node_title
from fuser_lab.report.tables import decision_reason, segment_table
from fuser_lab.report.timing_table import timed_plans, timing_table
from fuser_lab.report.units import seconds_label
from fuser_lab.report.view_model import ViewModel, view_decisions, view_plan

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from browser.hands import Hands
    from fuser_lab_widgets import Explorer

    from fuser_lab.report.view_model import EdgeView, NodeView

    Check = Callable[[str, Any, Any], None]

# Sentences about something that is no longer on show: a page at rest offers nothing that leads to them.
_LATE: Final = (
    "no longer", "nothing was done", "nothing to cut", "nothing to glue", "failed: ", "There is no segment_set",
)
_HEATS: Final = ("", "bytes", "time", "roof")
SHOWN: Final = (Path(__file__).parent / "shown.js").read_text(encoding="utf-8")


def untrue(explorer: Explorer, shown: dict[str, Any], hands: Hands) -> dict[str, tuple[Any, Any]]:
    """Return what the page shows otherwise than it is, as pairs of what it shows and what would be true."""
    plan = explorer.plan
    view = view_plan(plan, title=shown["scene"]["title"], decisions=False)
    found: dict[str, tuple[Any, Any]] = {}

    def check(name: str, said: Any, true: Any) -> None:
        if said != true:
            found[name] = said, true

    check("plan", shown["scene"]["hash"], plan.hash)
    check("traits", {name: getattr(explorer, name) for name in explorer._facts()}, explorer._facts())
    check("linked", shown["linked"], {name: getattr(explorer, name) for name in shown["linked"]})
    _check_head(check, explorer, shown, plan, view)
    _check_status(check, shown, plan, explorer._session.state.edits, hands)
    _check_picture(check, explorer, shown, plan, view)
    _check_colours(check, explorer, shown, plan, view)
    _check_inspector(check, explorer, shown, plan, view)
    _check_decisions(check, shown, plan)
    _check_tab(check, explorer, shown, plan, view)
    for rule in set(shown["lifts"]) - set(liftable(plan)):
        found["lift"] = rule, liftable(plan)
    return found


def _check_head(check: Check, explorer: Explorer, shown: dict[str, Any], plan: Any, view: ViewModel) -> None:
    session = explorer._session
    state = session.state
    title = view.header.title
    check("title", shown["title"], [title, f"Fusion explorer: {title}", title])
    segments, *others = scenes.facts(view)
    times = explorer._runs.amounts.facts(view.header)
    predicted = [time for time in times if time[1].startswith("predicted")]
    timed = explorer._runs.totals.get(plan.hash)
    if timed is None:
        first = [*predicted, ["–", "measured"]]
    else:
        first = [[seconds_label(timed.median), f"measured ({place(timed.device)})"], *predicted]
    facts = [segments, *first, *others, *(time for time in times if time not in predicted)]
    check("facts", shown["facts"], [f"{value} {name}" for value, name, *_ in facts])
    (_, _, strategies, _), *switches = controls(session, explorer._search.topic, explorer._steps.mention())
    check("strategy", shown["strategy"], [[words, on, free] for _, words, on, free, *_ in strategies])
    check("switches", sorted(shown["switches"]), sorted(  # some are in a menu
        [name, [[words, on, free] for _, words, on, free, *_ in buttons]] for name, _, buttons, _ in switches
    ))
    check("the strategy of the plan", [words for words, on, _ in shown["strategy"] if on], [
        "mine" if state.edits else state.strategy.replace("_", "-"),
    ])
    check("history", shown["history"], [
        session.can_undo, session.can_redo, bool(state.edits) or state.annotated or bool(state.lifted),
    ])
    own = [f"segment_set({one.tensor})" for one in view.annotations if one.own]
    edits = ", ".join([*own, *state.edits])
    about = f"Annotations of the definition, and edits since the {state.strategy.replace('_', '-')} plan: {edits}"
    check("badge", shown["badge"], about if edits else "")


def _check_status(check: Check, shown: dict[str, Any], plan: Any, edits: Sequence[str], hands: Hands) -> None:
    said = shown["status"]
    is_new = shown["said"] != hands.said
    if is_new and hands.clicked:
        check("late", [said for late in _LATE if late in said], [])
    if is_new and hands.offered:
        check("refused after it was offered", shown["error"] and said, False)
    counted = re.search(r"→ (\d+) segments?,", said) or re.match(r"(?!The )[\w -]+: (\d+) segments?\b", said)
    if counted:
        check("status", int(counted[1]), len(plan.segments))
    stepped = re.match(r"Decision \d+ \((\d+) of ", said)
    if stepped:
        log = tuple(plan.decisions)
        (row,) = view_decisions(log[int(stepped[1]) - 1 :][:1])
        later = " (before your edits)" if edits and not row.phase.startswith("edit") else ""
        how = "accepted" if row.accepted else "refused"
        reason = decision_reason(row)
        outcome = reason if reason.startswith(how) else f"{how}; {reason}" if reason else how
        true = f"Decision {row.seq} ({stepped[1]} of {len(log)}): {row.of} {outcome}{later}"
        check("step", [said, shown["stepping"]], [true, True])


def _check_picture(check: Check, explorer: Explorer, shown: dict[str, Any], plan: Any, view: ViewModel) -> None:
    detail, drawn = shown["scene"]["detail"], view
    if detail in {"segments", "blocks"}:
        unfolded = unfolding.blocks_of(view, explorer._picture.unfolded)
        folded = [block for block in blocks(view) if detail == "blocks" and block.id not in unfolded]
        drawn = collapse(view, unfolding.segments_of(view, explorer._picture.opened), folded)
    check("picture", shown["picture"], describe(view))
    check("edges", shown["edges"], {edge.id: _label(edge, drawn) for edge in drawn.edges})
    check("nodes", shown["nodes"], sorted(node_title(node) for node in drawn.nodes))
    boxed = sorted((s for s in drawn.segments if s.nodes), key=lambda s: f"segment:{s.index}")
    check("boxes", shown["boxes"], [[f"segment:{s.index}", f"Segment {s.index}: {s.scheduler}"] for s in boxed])
    check("heads", shown["heads"], [[f"segment:{s.index}", *measure.segment_label(s)] for s in boxed])
    times = explorer.heat.get("time", {}).get("labels", {})
    for name, lines in shown["labels"]:
        index = name.removeprefix("segment:")
        number, scheduler, *amounts = next(map(measure.segment_label, (s for s in boxed if s.index == int(index))))
        about = {number, scheduler, f"{number} {scheduler}", *" · ".join(amounts).split(" · "), times.get(index)}
        check("label of a head", sorted(set(lines) - about), [])
    chosen = explorer.answer.get("id", "")
    ids = {*(n.id for n in drawn.nodes), *(e.id for e in drawn.edges), *(f"segment:{s.index}" for s in boxed)}
    check("selected", shown["selected"], [chosen] if chosen in ids else [])
    other = explorer._comparison.plan()
    difference = explorer._page.difference if other is None else plan_diff(other, plan)
    marks = {} if difference is None else scenes.marks(view, difference)
    check("marks", shown["marks"], {name: sorted(set(marks.get(name, ())) & ids) for name in ("moved", "new", "gone")})
    text, count, lit = shown["found"]
    matching = sorted(n.id for n in drawn.nodes if text and text.lower() in _searched(n).lower())
    check("found", [count, lit], [f"{len(matching)} found" if text else "", matching])


def _searched(node: NodeView) -> str:
    """Return the text in which a search looks for a node."""
    words = (node.label, node.text) if node.kind == "segment" else (node.text, node.dtype, *node.called)
    return " ".join((*words, *node.tensors))


def _label(edge: EdgeView, view: ViewModel) -> str:
    """Return what a screen reader says of an edge."""
    hinted = any(one.hint == edge.tensor for one in view.annotations)
    return ("annotated " if hinted else "") + edge_title(edge)


def _check_colours(check: Check, explorer: Explorer, shown: dict[str, Any], plan: Any, view: ViewModel) -> None:
    """Check the colours of edges by what gluing saves, the sentences at them, and the colours of segments."""
    drawn = [view.edge(ident) for ident in shown["edges"]]
    hints = {e.id: (e, previews.hint_of(found)) for e in drawn if e is not None
             if (found := previews.of_edge(plan, view, e)) is not None}
    across = {ident: hint for ident, (edge, hint) in hints.items() if edge.kind == "boundary"}
    check("greyed", shown["greyed"], sorted(ident for ident, hint in across.items() if not hint[0]))
    check("saving", shown["saving"], [
        sorted(ident for ident, hint in across.items() if hint[0] and hint[1] == n) for n in (1, 2, 3)
    ])
    said = [shown["hint"], *(text.removeprefix("Enter: ").removesuffix(".") for _, text in shown["described"])]
    effects = {f"{'' if legal else 'cannot '}{name}: {text}" for legal, _, name, text in (h for _, h in hints.values())}
    for one in said:
        if ": " in one:
            check("hint", one in effects, True)
    found = heat(plan, view, explorer._runs.rows).get(_HEATS[shown["colour"]])
    if found is None:
        check("legend", shown["legend"], [])
        return
    check("legend", shown["legend"], [found["least"], found["most"], found["about"]])
    shares = {ident[8:]: found["values"].get(ident[8:]) for ident, _ in shown["boxes"]}  # no roof without work
    check("heat", shown["heats"], {
        segment: "" if share is None else f"{int(8.5 + 52 * share)}%" for segment, share in shares.items()
    })


def _check_inspector(check: Check, explorer: Explorer, shown: dict[str, Any], plan: Any, view: ViewModel) -> None:
    said, state = explorer.answer, explorer._session.state
    chosen = said.get("id", "")
    if shown["heading"] == "This plan as code":
        check("code", shown["code"], plan.to_python(explorer.code["form"]))
        return
    why = f"Why {state.step} also changed other ops"
    check("last edit", shown["last"], [why, *state.because] if state.because else [])
    if not chosen:
        check("heading", shown["heading"], "Inspector")
        return
    true = answers.answer(plan, view, chosen)
    if chosen in unfolding.blocks_of(view, explorer._picture.unfolded) and shown["scene"]["detail"] == "blocks":
        true["actions"] = [{"type": "open", "label": "Fold its segments"}]
    check("heading", shown["heading"], true["title"])
    check("about", shown["about"], [word for fact in true["facts"] for word in fact])
    check("layout", shown["layout"], [word for fact in true.get("layout", ()) for word in fact])
    check("note", shown["note"], true.get("note", ""))
    preview = true.get("preview") or {"legal": False}
    check("preview", [shown["preview"], shown["reasons"]], [
        f"{preview['name']}: {preview['change']} ({preview['device']}). {preview['rule']}", preview["because"],
    ] if preview["legal"] else ["", []])
    if not said.get("refused"):
        check("why", shown["why"], true.get("sentence", ""))
        listed = [*true.get("moves", ()), *true.get("verdicts", ())]
        check("verdicts", shown["verdicts"], [[one["ok"], one["scheduler"], one["text"]] for one in listed])
    actions = [[action["label"], "refused" not in action] for action in true["actions"]]
    in_segment, is_folded = true.get("segment") is not None, shown["scene"]["detail"] in {"segments", "blocks"}
    more = [("Show source", in_segment), ("Show or hide its ops", in_segment and is_folded),
            ("Decisions about it", bool(true.get("names")))]
    check("actions", shown["actions"], [*actions, *([label, True] for label, there in more if there)])
    for action in true["actions"]:
        check(f"legality of {action['label']}", "refused" not in action, _is_legal(plan, view, action))


def _is_legal(plan: Any, view: ViewModel, action: dict[str, Any]) -> bool:
    """Whether an edit that is offered can be made."""
    edge, node = (find(str(action.get("id", ""))) for find in (view.edge, view.node))
    tensor = edge.tensor if edge is not None else node.tensor if node is not None else ""
    reader = None if edge is None else previews.one_of_several(view, edge)
    edits: dict[str, Callable[[], object]] = {
        "cut": lambda: plan.cut(tensor if reader is None else (tensor, reader)),
        "glue": lambda: plan.glue(*edge.segments),
        "move": lambda: plan.move(tensor, action["segment"]),
        "recompute": lambda: plan.recompute(tensor, segments=edge.segments[1]),
        "narrow": lambda: plan.narrow(tensor, DataType[action["dtype"]]),
        "annotate": lambda: plan.annotate(tensor, None if action.get("all") else answers.reader_at(view, edge)),
        "unannotate": lambda: plan.without_annotation(tensor),
        "open": lambda: None,
    }
    try:
        edits[action["type"]]()
    except FuserLabError:
        return False
    return True


def _check_decisions(check: Check, shown: dict[str, Any], plan: Any) -> None:
    if not shown["open"] or shown["tab"] != "decisions":
        return
    rows = view_decisions(tuple(plan.decisions))
    true = {n: [d.of, decision_reason(d)] for n, d in enumerate(rows, 1)}
    for step, *said in shown["decisions"]:
        check(f"decision {step}", said, true.get(step))
    if shown["count"]:
        check("count of decisions", shown["count"].split(" of ")[1], str(len(rows)))


def _check_tab(check: Check, explorer: Explorer, shown: dict[str, Any], plan: Any, view: ViewModel) -> None:
    tab = shown["tab"]
    if not shown["open"] or tab == "decisions":
        return
    if tab == "segments":
        check(tab, shown["cells"], [list(row) for row in segment_table(view.segments).rows])
        chosen = explorer.answer.get("id", "")
        node = view.node(chosen)
        home = chosen if chosen.startswith("segment:") else f"segment:{node.segment}" if node is not None else None
        if home in shown["rows"]:
            check("row of the selection", shown["chosen"], [home])
    elif tab == "timings":
        timings = explorer.timings
        rows = [] if timings is None else [list(row) for row in timing_table(timings).rows]
        plans = [] if timings is None else timed_plans(timings)
        check(tab, shown["cells"], rows)
        check("segments that were timed", shown["rows"], [
            f"segment:{name[1:]}" if name.startswith("S") and timed == plan.hash else ""
            for (_, name, *_), timed in zip(rows, plans, strict=True)
        ])
    elif tab == "source":
        found = shown["source"]
        check("source of", found["hash"], plan.hash)
        check("segment of the source", found["of"], str(found["segment"]))
        if found["shown"] and found["view"] == "source":
            check("source", found["shown"], sources.source(plan.segments[found["segment"]], found["target"])["text"])
    else:
        check(f"{tab} of", explorer.panels[tab]["hash"], plan.hash)
        check(f"{tab} written", explorer.panels[tab]["html"], tabs.WRITTEN[tab](explorer._panels.data()))
        check(tab, shown["panel"], shown["written"])
