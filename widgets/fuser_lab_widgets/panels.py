"""The tabs that Python writes: HTML without scripts. A click on an element with ``data-id`` selects that id."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from xml.etree.ElementTree import Element

from fuser_lab.cost.traffic import CostModel
from fuser_lab.report import plots
from fuser_lab.report.crossings import passage_table, passages
from fuser_lab.report.diff import PlanDiff
from fuser_lab.report.diff_picture import diff_svg
from fuser_lab.report.markup import element, to_html
from fuser_lab.report.pass_picture import rewrite_element
from fuser_lab.report.passes import CHANGED, PassView, view_steps
from fuser_lab.report.tables import Table, layout_table, op_table
from fuser_lab.report.time_line import excess_text, time_line_svg, time_lines, time_table
from fuser_lab.report.units import bytes_label, plural
from fuser_lab.report.view_model import ViewModel, view_layouts
from fuser_lab_widgets.amounts import Amounts, place
from fuser_lab_widgets.elements import button, note, table
from fuser_lab_widgets.session import EditablePlan

_MOST_OPEN = 3  # steps before the cut whose graphs are initially open


def graph(view: ViewModel) -> str:
    """Return the graph as a table: one row per input, op or output, with what it reads and who reads it."""
    return to_html(_table(op_table(view), ids=[n.id for n in view.nodes], caption="The graph, row by row"))


def roofline(
    plan: EditablePlan, timed: Iterable[Any], other: EditablePlan | None = None, machine: CostModel | None = None,
) -> str:
    """Return the rooflines with arrows from the segments of another plan, and their numbers as a table.

    Marks and roofs of a picture belong to one device: measurements elsewhere than on the target have a separate
    picture, with the roof of the ``machine`` that ran, or without one if it is not known.
    """
    device, rows = plots.device_of(plan), list(timed)
    loads = plots.loads(plan, plots.measured_seconds(plan, rows))
    places = " and ".join(dict.fromkeys(r.device for r in rows)) if any(load.seconds > 0 for load in loads) else ""
    there = not places or plots.is_label_of(device, places)
    ran = None if there or machine is None else plots.roof_that_ran(device, machine)
    ids = [f"segment:{load.segment}" for load in loads]
    marks = f"Filled marks were measured on {places}." if places and (there or ran) else "Run adds measurements."
    if places and not there and ran is None:
        marks = f"Measurements on {places} are only in the table, because the roof is not known."
    about = (
        f"{marks} Operations are counted: one per element, two per multiply-add. Hollow marks are on the roof: by its "
        f"data sheet, {device.name} cannot run a faster kernel."
    )
    if ran is not None:
        about += f" The roof of {ran.name} is the bandwidth that a copy reaches; its arithmetic is not measured."
    before = () if other is None else plots.loads(other, plots.measured_seconds(other, rows))
    pairs = () if other is None else plots.flows(other, plan)
    if other is not None:
        about += f" Squares are the segments of {other.name}; arrows lead to the segments that now do their work."
    bare = loads if there else plots.loads(plan)
    drawn = plots.roofline_svg(
        bare, device, before=before if there or other is None else plots.loads(other), pairs=pairs, style=False,
    )
    if ran is not None:
        drawn += plots.roofline_svg(loads, ran, before=before, pairs=pairs, style=False)
    numbers = to_html(_table(plots.load_table(loads, device, pairs, ran=ran, place=place(places)), ids=ids))
    return _beside(drawn, numbers + to_html(note(about)))


def time_line(plan: EditablePlan, view: ViewModel, timed: Iterable[Any], *, fixed: bool = False) -> str:
    """Return the segments and gaps of a plan on a line of time, predicted and measured, and as a table that adds up.

    ``fixed`` says that the reader cannot measure.
    """
    lines = time_lines(plan, timed)
    how = "fl.report(plans, path, fl.time(plans, inputs)) adds measured times." if fixed else "Press Run to measure it."
    if not lines:
        return to_html(note(f"This plan has no predicted times. {how}"))
    about = (
        "A gap is the time before a kernel starts: its launch, or the pause after the previous kernel. The times of "
        "segments and gaps add up to the total"
    )
    measured = next((line for line in lines if line.kind == "measured"), None)
    excess = 0.0 if measured is None else measured.excess
    about += f", except where {excess_text(excess)}." if excess else "."
    if measured is None:
        about += f" This plan has not been measured. {how}"
    else:
        if not excess:
            about += " Only the sum of the gaps is measured; the picture divides it into equal parts."
        if len({line.device for line in lines}) > 1:
            about += " The lines have different scales, because the devices differ."
    ids = [f"segment:{segment.index}" for segment in view.segments]
    return _beside(
        time_line_svg(lines, style=False),
        to_html(_table(time_table(view.segments, lines), ids=ids)) + to_html(note(about)),
    )


def memory(plan: EditablePlan, view: ViewModel) -> str:
    """Return the tensors in memory while each segment runs, and what each tensor between segments costs."""
    steps = plots.memory_steps(plan)
    peak = max(steps, key=lambda step: step.total)
    about = (
        f"The tensors occupy at most {bytes_label(peak.total)}, while S{peak.segment} runs. A tensor between segments "
        "is freed after its last reader; inputs and outputs stay in memory. A view takes no memory of its own."
    )
    crossing = passage_table(plan).with_names(view.called)
    makers = {name: n.id for n in view.nodes if n.kind == "op" for name in n.tensors}
    ids = [makers.get(passage.tensor, "") for passage in passages(plan)]
    caption = "Tensors between segments, the most costly first"
    words = _table(crossing, ids=ids, caption=caption) if crossing.rows else note("No tensor crosses.")
    return _beside(plots.memory_svg(plan, style=False), to_html(words) + to_html(note(about)))


def layouts(plan: EditablePlan, view: ViewModel) -> str:
    """Return the memory layouts of the tensors that segments write."""
    boundaries = plan.layouts() if hasattr(plan, "layouts") else ()
    shown = view_layouts(boundaries)
    if not shown:
        return to_html(note("This plan has no information about layouts."))
    about = (
        "Each order lists the axes of a tensor, the axis that varies slowest in memory first. The columns are the "
        "order that the definition requires, the order that nvFuser's pass infers (hint), the natural order of the "
        "segment that writes the tensor, the order that its readers prefer, and the chosen order, with the reason for "
        "it. The cost counts the bytes that segments access across the rows of memory."
    )
    makers = {name: n.id for n in view.nodes if n.kind == "op" for name in n.tensors}
    rows = _table(layout_table(shown), ids=[makers.get(layout.tensor, "") for layout in shown])
    return to_html(rows) + to_html(note(about))


def passes(plan: EditablePlan, view: ViewModel) -> str:
    """Return the steps before the cut: those that changed something as two graphs side by side, then the others."""
    rows = view_steps(plan)
    if not rows:
        return to_html(note("This plan has no record of its passes."))
    changed = [step for step in rows if step.outcome == CHANGED]
    nodes = {name: n.id for n in view.nodes if n.kind == "op" for name in n.tensors}
    items = [_step(step, nodes, shown=len(changed) <= _MOST_OPEN or n == 0) for n, step in enumerate(changed)]
    others = [
        element(
            "li", element("b", step.name), element("span", f"{step.outcome} · {step.about}", css="fx-note"),
            css="fx-line",
        )
        for step in rows if step.outcome != CHANGED
    ]
    head = (
        f"Before the cut, {len(changed)} of {plural(len(rows), 'step')} changed the fusion, in this order. Lines are "
        "removed (−), added (+), or rewritten with a result of the same name (≠)."
    )
    return to_html(note(head)) + to_html(element("ol", *items, *others, css="fx-decisions"))


def _step(step: PassView, nodes: Mapping[str, str], *, shown: bool) -> Element:
    """Return a step that changed the fusion: its graphs before and after, and its lines."""
    drawn = []
    if step.rewrite is not None and step.rewrite.before.ops + step.rewrite.after.ops:
        picture = rewrite_element(step.rewrite, style=False, ids=nodes)
        drawn = [
            element("div", picture, css="fx-scroll", tabindex="0", role="group", aria_label=f"{step.name}, graphs"),
        ]
    lines = step.diff or ("This step changed only layouts or aliases; the expressions are the same.",)
    about = element("span", step.about, css="fx-note")
    counted = element("span", step.rewrite.headline if step.rewrite is not None else "", css="fx-note")
    made = element(
        "details",
        element("summary", element("b", step.name), counted, about, css="fx-line"),
        element("div", *drawn, element("pre", *map(_diff_line, lines), css="fx-code", tabindex="0"), css="fx-beside"),
    )
    if shown:
        made.set("open", "open")
    return element("li", made)


def certificate(proof: Mapping[str, Any], *, searching: bool, exists: bool) -> str:
    """Return a certificate, or the button that asks for it; ``exists`` says whether it is that of the plan on show."""
    if searching:
        status = element("p", "Searching … You can continue to work.", css="fx-empty")
        cancel = button("Cancel the search", {"type": "stop"})
        return to_html(status) + to_html(element("div", cancel, css="fx-actions"))
    if not exists:
        ask = button("Search for a cheaper plan", {"type": "certificate"})
        about = "Searches for a plan with a lower cost in bytes and launches, or proves that there is none."
        return to_html(element("p", about, css="fx-empty")) + to_html(element("div", ask, css="fx-actions"))
    if proof.get("problem"):
        return to_html(element("p", proof["problem"], css="fx-why fx-refused"))
    costs = [element("span", element("b", cost), f" {text}") for cost, text in proof["costs"]]
    model = element("span", proof["model"], css="fx-note")
    parts = [element("p", element("b", proof["status"]), *costs, model, css="fx-verdict")]
    parts += [note(text) for text in proof.get("notes", ())]
    rows = (("What the cheaper plan saves, and why this one does not", "missed"), ("What every plan pays", "terms"))
    for title, key in rows:
        if proof[key]:
            lines = ((element("b", cost), element("span", text)) for cost, text in proof[key])
            items = (element("li", *line, css="fx-line") for line in lines)
            made = element("details", element("summary", title), element("ol", *items, css="fx-decisions fx-costs"))
            if key == "missed" or not proof["missed"]:
                made.set("open", "open")
            parts.append(made)
    return "".join(map(to_html, parts))


def comparison(
    plans: Sequence[tuple[str, str, ViewModel | None]], chosen: str, difference: PlanDiff | None, view: ViewModel,
    amounts: Amounts, *, fixed: bool = False,
) -> str:
    """Return the plans' numbers side by side, and how the plan on show differs from the chosen one.

    ``plans`` are key, label and view of the others; a view is None if the plan is not made yet. ``amounts`` are the
    times. ``fixed`` omits the choice and the button that times all of them.
    """
    rows = _distinct([("this plan", view), *((words, other) for _, words, other in plans)])
    headers = [(words[0], shown_view.header) for words, shown_view in rows if shown_view is not None]
    amounts = amounts.with_ratios([header.hash for _, header in headers])
    peers = [(row.plan, *amounts.peer_cells(row), "", "", "", "not a plan") for row in amounts.peers]
    numbers = (*amounts.columns, "segments", "moved", "crossing")  # with what decides beside the name
    everything = Table(
        columns=("plan", *numbers, "schedulers"),
        rows=(*(_numbers(_name_list(words), shown_view, amounts) for words, shown_view in rows), *peers),
        numeric=frozenset(numbers),
        strong=frozenset({0}),
    )
    doubts = " ".join(amounts.doubts)  # one line, below which the table is in sight
    all_plans = [*([note(doubts)] if doubts else []), _table(everything, caption="All plans")]
    about = [to_html(note(text)) for text in amounts.sentences(headers)]
    buttons = [
        button(words, {"type": "compare", "with": key}, css="fx-mode", on=key == chosen)
        for key, words in (("", "nothing"), *((key, words) for key, words, _ in plans))
    ]
    switch = element("div", *buttons, css="fx-switch", role="group", aria_label="Compare with")
    title = "Time every available plan in this table, and the same ops one by one"
    time_all = button("Time all of these", {"type": "run_all"}, title=title)
    label = element("span", "Colour the graph by what differs from")
    parts = [] if fixed else [element("div", label, switch, time_all, css="fx-filters")]
    if difference is not None:
        legend = (
            "Dashed ops share their segment with different ops; thick tensors cross only in this plan, dotted ones "
            "only in the other."
        )
        nodes = {name: n.id for n in view.nodes if n.kind == "op" for name in n.tensors}
        changed_rows = difference.table()
        ids = [nodes.get(row[0].partition(" ")[0], "") for row in changed_rows.rows]
        parts += [element("p", element("b", difference.headline)), note(legend)]
        changes = _table(changed_rows, ids=ids) if changed_rows.rows else note("Both plans have the same segments.")
        below = "".join((*map(to_html, (changes, *all_plans)), *about))
        beside = _beside(diff_svg(difference, style=False), below)
        return "".join(map(to_html, parts)) + beside
    return "".join((*map(to_html, (*parts, *all_plans)), *about))


def _distinct(rows: Iterable[tuple[str, ViewModel | None]]) -> list[tuple[list[str], ViewModel | None]]:
    """Return each plan once, with all its names; plans that are not made yet may be any."""
    distinct: dict[tuple[str, str], tuple[list[str], ViewModel | None]] = {}
    for words, view in rows:
        key = ("not made", words) if view is None else ("made", view.header.hash)
        distinct.setdefault(key, ([], view))[0].append(words)
    return list(distinct.values())


def _name_list(names: Sequence[str]) -> str:
    first, *others = names
    return f"{first} (also {', '.join(others)})" if others else first


def _numbers(words: str, view: ViewModel | None, amounts: Amounts) -> tuple[str, ...]:
    if view is None:
        free = len(amounts.columns) + 3
        return words, "select to compute", *[""] * free
    header, names = view.header, [s.scheduler for s in view.segments]
    counts = {name: names.count(name) for name in names}
    counted = ", ".join(name if count == 1 else f"{count} × {name}" for name, count in counts.items())
    moved, crossing = bytes_label(header.bytes_moved), bytes_label(header.bytes_crossing)
    return words, *amounts.cells(header), str(header.segments), moved, crossing, counted


def _table(shown: Table, *, ids: Sequence[str] = (), caption: str = "") -> Element:
    body = table(shown.columns, shown.rows, numeric=shown.numeric, caption=caption, ids=ids, strong=shown.strong)
    reached = {} if any(ids) else {"tabindex": "0", "role": "group", "aria_label": caption or "Table"}  # or by its rows
    return element("div", body, css="fx-scroll", **reached)


def _diff_line(line: str) -> Element:
    return element("span", f"{line}\n", css="fx-added" if line.startswith("+") else "fx-gone")


def _beside(picture: str, words: str) -> str:
    return f'<div class="fx-beside">{picture}<div>{words}</div></div>'


