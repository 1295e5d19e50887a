"""Plans as data for the report: every answer that the widget would request from Python, computed in advance."""

from collections.abc import Sequence
from typing import Any, Final

from fuser_lab import targets
from fuser_lab.cost.traffic import CostModel
from fuser_lab.report.diff import plan_diff
from fuser_lab.report.modules import has_modules, module_folds
from fuser_lab.report.repeats import blocks
from fuser_lab.report.timing_table import timed_plans, timing_doubts, timing_note
from fuser_lab.report.view_model import ViewModel, view_plan
from fuser_lab_widgets import answers, lines, profiles, scenes, sources, tabs
from fuser_lab_widgets.amounts import Amounts, target_name, times_table
from fuser_lab_widgets.heat import heat
from fuser_lab_widgets.session import EditablePlan

_MOST_LINKED: Final = 150  # maximum number of ops of a plan for linked lines and steps in a page
_UNTIMED: Final = "The report contains no timings; fl.report(plans, path, fl.time(plans, inputs)) writes one that does."
_UNSEARCHED: Final = {"problem": "The report contains no certificate; plan.certificate() computes one."}
_HINT: Final = "Click an op, edge or segment for details; press ? for the keys."


def bake(
    plans: Sequence[EditablePlan], timings: Any = None, *, title: str | None = None, machine: CostModel | None = None,
    followed: int = 8, profile: Any = None, opens: str = "",
) -> dict[str, Any]:
    """Return what the report's script shows: each plan's drawings, answers, sources, decisions and tabs.

    ``machine`` is the cost model of the device on which the plans were timed. Plans of up to ``followed`` segments
    have the steps of their kernels. ``profile`` is shown beside the source of its plan, and ``opens`` is the view that
    is open at first.
    """
    views = [view_plan(plan, title=title, decisions=False) for plan in plans]
    pieces = scenes.Pieces()
    rows = () if timings is None else tuple(timings.rows)
    totals = {row.plan_hash: row for row in rows if row.segment is None and row.plan_hash}
    note = "" if timings is None else timing_note(timings)
    conditions = "" if timings is None else timing_note(timings, doubts=False)
    by_hash = {view.header.hash: plan for view, plan in zip(views, plans, strict=True)}
    amounts = Amounts(
        target=target_name(plans[0]), plans=by_hash, machine=machine, measured=totals, base=next(iter(totals), ""),
        note=conditions,
        doubts=[] if timings is None else timing_doubts(timings),
    )
    timed: dict[str, Any] = {"running": False, "done": 0, "total": 0, "note": _UNTIMED}
    if timings is not None:
        timed |= {
            "table": times_table(timings), "note": note, "plans": timed_plans(timings),
            "measured": amounts.medians,
        }
    made = [_plan(n, plans, views, amounts, rows, pieces, followed, profile) for n in range(len(plans))]
    return {
        "hint": _HINT,
        "timings": timed,
        "views": tabs.views(live=False),
        "opens": opens,
        "targets": sources.offers(),
        "plans": made,
        "chunks": pieces.stock.chunks,
    }


def _plan(
    n: int, plans: Sequence[EditablePlan], views: Sequence[ViewModel], amounts: Amounts, rows: Sequence[Any],
    pieces: scenes.Pieces, most_followed: int, profile: Any,
) -> dict[str, Any]:
    plan, view = plans[n], views[n]
    ids = [*(b.id for b in blocks(view)), *(x.id for x in view.nodes), *(e.id for e in view.edges)]
    ids += [f"segment:{s.index}" for s in view.segments]
    details: list[scenes.Detail] = ["ops", "segments"]
    if blocks(view):
        details.append("blocks")
    if has_modules(view):
        details.append("modules")
        ids += [fold.id for fold in module_folds(view)]
    drawn = {detail: scenes.scene(view, pieces, detail=detail) for detail in details}
    others = [(str(m), f"{plans[m].name}", views[m]) for m in range(len(plans)) if m != n]
    difference = plan_diff(plans[0], plan) if n and hasattr(plan, "segmented") else None
    if difference is not None:
        for drawn_scene in drawn.values():
            drawn_scene["marks"] = scenes.marks(view, difference)
    shown = tabs.Shown(
        plan=plan, view=view, amounts=amounts, rows=rows, compared="0" if n else "", other=plans[0] if n else None,
        difference=difference, others=lambda: others, certificate=_UNSEARCHED, fixed=True,
    )
    plan_profile = profile if profile is not None and profile.plan_hash == plan.hash else None
    linked = view.header.ops <= _MOST_LINKED
    followed = linked and len(plan.segments) <= most_followed
    written = {each.name: each.write(shown) for each in tabs.VIEWS if each.write is not None and not each.live_only}
    return {
        "name": plan.name,
        "detail": scenes.first_detail(view),
        "scenes": drawn,
        "heat": {"times": amounts.facts(view.header), **heat(plan, view, rows)},
        "answers": {selected: answers.answer(plan, view, selected, editable=False) for selected in ids},
        "sources": [
            {name: _source_views(
                segment, name, plan_profile, linked=linked, followed=followed,
            ) for name in targets.names()}
            for segment in plan.segments
        ],
        "profiled": plan_profile is not None,
        "decisions": answers.decision_page(tuple(getattr(plan, "decisions", None) or ()), count=None),
        "panels": {name: {"hash": view.header.hash, "html": html} for name, html in written.items()},
        "code": plan.to_python(),
        "called": view.called,
    }


def _source_views(
    segment: Any, target: str, profile: Any, *, linked: bool, followed: bool,
) -> dict[str, Any]:
    """Return the source tab's data of a segment without PTX: its source, and linked lines and steps if requested."""
    views: dict[str, Any] = {"source": _page_form(sources.source(segment, target))}
    if linked and hasattr(segment, "kernel"):
        views["beside"] = lines.beside(segment, target, compiled=False)
    if followed and hasattr(segment, "steps"):
        views["steps"] = lines.steps(segment, target)
    if profile is not None:
        other = {"problem": f"The profile is of the kernels for {profile.target}."}
        views["profile"] = profiles.beside(segment, profile) if profile.target == target else other
    return views


def _page_form(source: dict[str, str]) -> dict[str, str]:
    """Return a source without its plain text, which the page does not show."""
    return {key: text for key, text in source.items() if key != "text"}
