"""The panels around the map of a model: switches, details of a box, and the cost of the cuts, as HTML."""

import functools
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from xml.etree.ElementTree import Element

from fuser_lab.bridge.region import Region
from fuser_lab.report.markup import element, to_html
from fuser_lab.report.memory_line import memory_line_svg
from fuser_lab.report.module_map import ModuleBox
from fuser_lab.report.module_picture import describe
from fuser_lab.report.units import bytes_label, plural, seconds_label
from fuser_lab_widgets.elements import button, note, table

if TYPE_CHECKING:
    from fuser_lab.bridge.costs import ModelCosts
    from fuser_lab.bridge.module_map import ModuleMap
    from fuser_lab.bridge.step_costs import StepCosts

DEPTHS = (1, 2, 3)  # levels of modules that buttons open
_MOST_ROWS = 200  # rows of a table
HINT = "Click a module to open or close it, a region to see its ops."
_HELP = (
    "Keys: arrows move between boxes, Enter opens or closes a box, Esc closes the enclosing module, / searches, + − 0 "
    "zoom and fit, f is full screen."
)


def bar(titles: Sequence[str], chosen: int, headline: str, *, folded: bool, panel: str) -> str:
    """Return the switches above the map: which graph, how deep, and whether equal modules are folded."""
    mode = functools.partial(button, css="fx-mode")
    graphs = [mode(title, {"type": "graph", "n": n}, on=n == chosen) for n, title in enumerate(titles)]
    depths = [mode(str(n), {"type": "depth", "n": n}, title=f"Open {plural(n, 'level')}") for n in DEPTHS]
    fold = mode("fold equal modules", {"type": "fold"}, on=folded, title="Draw equal adjacent modules as one box")
    ask_costs, ask_step = (
        mode(words, {"type": kind}, on=panel == kind, title=title) for words, kind, title in (
            ("what the cuts cost", "costs", "Bytes that pass between segments"),
            ("what the step costs", "step", "Each region and op: bytes, bound, time"),
        )
    )
    parts = [
        element("p", headline),
        _group("Graph", graphs), _group("Open levels", depths), element("div", fold), element("div", ask_step),
        element("div", ask_costs),
    ]
    return to_html(element("div", *parts))


def side(shown: "ModuleMap", box: ModuleBox, number: int, step_costs: "StepCosts | None" = None) -> str:
    """Return the details of a box: its numbers, regions, ops with their lines, and the calls that torch runs.

    With the costs of the step, the numbers include the box's share of it.
    """
    module = box.id or shown.graph.title
    title = {"module": module, "region": f"region {box.name}", "torch": f"{box.library}: {box.name}"}
    parts = [element("h4", title[box.kind]), note(f"{describe(box)}.")]
    if step_costs is not None:
        parts.append(note(_share(shown, box, number, step_costs)))
    if box.kind == "module":
        parts += _regions(shown, box, number)
        parts += _left_rows(shown, box)
    if box.kind == "region":
        parts.append(element("p", button(f"Open region {box.name}", _open(number, int(box.name)))))
    if len(box.calls) <= _MOST_ROWS:
        parts += _ops(shown, box, number)
    else:
        parts.append(note(f"{plural(len(box.calls), 'op')}: open a module to see its ops."))
    if not box.id:
        parts.append(note(_HELP))
    return "".join(map(to_html, parts))


def costs(model_costs: "ModelCosts | None", problem: str, *, asked: bool) -> str:
    """Return the cost of the cuts, an error, or a progress note; empty unless requested."""
    if not asked:
        return ""
    if problem:
        return to_html(element("p", problem, css="fx-why fx-refused"))
    if model_costs is None:
        return to_html(note("Segmenting each distinct region …"))
    head = element("h4", f"What the cuts cost: {model_costs.headline}")
    if not model_costs.boundaries:
        return to_html(head)
    rows: list[list[Any]] = [[], [], [_open(b.graph, b.region) for b in model_costs.boundaries]]
    *sums, boundaries = (
        table(shown.columns, shown.rows, numeric=shown.numeric, caption=caption, sends=sends)
        for (caption, shown), sends in zip(model_costs.tables(), rows, strict=True)
    )
    return "".join(map(to_html, (head, element("div", *sums, css="fm-sums"), boundaries)))


def step(step_costs: "StepCosts | None", problem: str, *, asked: bool) -> str:
    """Return the table of a step and the line of its memory, an error, or a progress note; empty unless requested."""
    if not asked:
        return ""
    if problem:
        return to_html(element("p", problem, css="fx-why fx-refused"))
    if step_costs is None:
        return to_html(note("Planning each distinct region …"))
    shown = step_costs.table()
    sends = [
        _open(unit.graph, unit.part.index) if row.units and isinstance((unit := row.units[0]).part, Region) else None
        for row in step_costs.rows
    ]
    parts = (
        element("h4", "What the step costs"), element("p", step_costs.headline),
        table(shown.columns, shown.rows, numeric=shown.numeric, sends=sends),
        note(step_costs.note),
    )
    return "".join(map(to_html, parts)) + memory_line_svg(step_costs.memory, style=False)


def _share(shown: "ModuleMap", box: ModuleBox, number: int, step_costs: "StepCosts") -> str:
    """Return what a box moves, takes and could save; of a region that is partly in it, by the share of its ops."""
    by_unit = {unit.unit: unit for unit in step_costs.units if unit.graph == number}
    parts: Counter[Any] = Counter()
    for n in box.calls:
        part = shown.parts[n]
        parts[part[0] if isinstance(part, tuple) else part.node] += 1
    shares = [
        (by_unit[unit], count / len(unit) if isinstance(unit, Region) else 1.0)
        for unit, count in parts.items() if unit in by_unit
    ]
    seconds = sum(share * unit.seconds for unit, share in shares)
    moved = sum(share * unit.runs * unit.cost.bytes for unit, share in shares)
    bound = sum(share * unit.runs * unit.cost.bound for unit, share in shares)
    gain = sum(share * unit.gain for unit, share in shares)
    return (
        f"In the step: {seconds_label(seconds)}, {100 * seconds / step_costs.step if step_costs.step else 0:.1f} %; "
        f"bound {seconds_label(bound)}; {bytes_label(round(moved))} moved; gain {seconds_label(gain)}."
    )


def _open(graph: int, region: int, tensor: str = "") -> dict[str, Any]:
    return {"type": "open", "graph": graph, "region": region, "tensor": tensor}


def _regions(shown: "ModuleMap", box: ModuleBox, number: int) -> list[Element]:
    """Return the regions of a box, equal ones once."""
    region_calls = [part[0] for n in box.calls if isinstance(part := shown.parts[n], tuple)]
    inside = Counter(region.index for region in region_calls)
    equal: dict[Any, list[Any]] = {}
    for region in dict.fromkeys(region_calls):
        equal.setdefault(region.signature, []).append(region)
    rows, sends = [], []
    for regions in equal.values():
        first = regions[0]
        names = list(dict.fromkeys(op.target.split(".")[1] for op in first.ops if "." in op.target))
        here = inside[first.index]
        count = plural(len(first), "op") if here == len(first) else f"{here} of {plural(len(first), 'op')}"
        times = f" × {len(regions)}" if len(regions) > 1 else ""
        failed = f"; {first.library} runs it: {first.failed}" if first.failed else ""
        module_names = ", ".join(names[:6]) + (", …" if names[6:] else "")
        rows.append((f"region {first.index}{times}", count, f"{module_names}{failed}"))
        sends.append(_open(number, first.index))
    if not rows:
        return []
    return [table(("region", "ops here", "what"), rows, sends=sends, caption="Regions (click a region to open it)")]


def _left_rows(shown: "ModuleMap", box: ModuleBox) -> list[Element]:
    counts: Counter[tuple[str, str]] = Counter()
    for n in box.calls:
        part = shown.parts[n]
        if not isinstance(part, tuple):
            counts[part.op, part.reason] += 1
    rows = [(op, str(count), why) for (op, why), count in counts.most_common()]
    return [table((f"run by {box.library}", "count", "why"), rows, numeric={"count"})] if rows else []


def _ops(shown: "ModuleMap", box: ModuleBox, number: int) -> list[Element]:
    rows: list[tuple[str, str, str]] = []
    sends: list[dict[str, Any] | None] = []
    for n in box.calls:
        part = shown.parts[n]
        if isinstance(part, tuple):
            region, op = part
            rows.append((shown.graph.calls[n].op, f"region {region.index}", str(op.origin)))
            sends.append(_open(number, region.index, op.tensors[-1] if op.tensors else ""))
        else:
            rows.append((shown.graph.calls[n].op, box.library, str(part.origin)))
            sends.append(None)
    caption = "Ops (click an op to show it in its region)"
    return [table(("op", "where", "your line"), rows, sends=sends, caption=caption)]


def _group(name: str, buttons: Sequence[Element]) -> Element:
    switch = element("div", *buttons, css="fx-switch", role="group", aria_label=name)
    return element("div", element("span", name, css="fx-note"), switch, css="fx-group")
