"""The panels around the kernels of a compiled plan: switches, details of a kernel, and the reasons, as HTML."""

from collections.abc import Sequence
from typing import TYPE_CHECKING
from xml.etree.ElementTree import Element

from fuser_lab.report.markup import element, to_html
from fuser_lab.report.units import bytes_label, plural
from fuser_lab_widgets.elements import button, note, table

if TYPE_CHECKING:
    from fuser_lab.compilers.kernels import CompiledKernel
    from fuser_lab.compilers.plan import CompiledPlan

_HELP = "Click a kernel to see its source and its neighbours. Keys: arrows move between kernels, Enter selects one."
_MOST_PAIRS = 200  # rows of the table of reasons


def bar(titles: Sequence[str], chosen: int, plan: "CompiledPlan", *, edited: bool | None) -> str:
    """Return the switches above the kernels; ``edited`` says whether the edited plan is shown, None if none exists."""
    opaque = sum(kernel.opaque for kernel in plan.segments)
    counted = f"{plan.name}: {plural(len(plan.segments), 'kernel')}, {opaque} of them from elsewhere"
    graphs = [button(title, {"type": "graph", "n": n}, css="fx-mode", on=n == chosen) for n, title in enumerate(titles)]
    switch = [] if edited is None else [
        element("div", button("edited plan", {"type": "edited"}, css="fx-mode", on=edited)),
    ]
    groups = (element("div", *graphs, css="fx-switch"), *switch)
    return to_html(element("div", element("p", counted), *groups))


def side(plan: "CompiledPlan", kernel: "CompiledKernel | None", graph: int) -> str:
    """Return the details of a kernel: its ops and lines, its neighbours with reasons, edits, and its source."""
    if kernel is None:
        regions = [
            button(f"Open region {number}", {"type": "open", "graph": graph, "region": number})
            for number in range(len(plan.graph.regions) if plan.graph is not None else 0)
        ]
        return "".join(map(to_html, (note(_HELP), *regions)))
    parts: list[Element] = [element("h4", f"kernel {kernel.index}"), note(str(kernel))]
    if kernel.bytes:
        parts.append(note(f"It reads and writes {bytes_label(kernel.bytes)}."))
    neighbours = [why for why in (*plan.boundaries(), *plan.siblings()) if kernel.index in why.kernels]
    for why in neighbours:
        first, second = why.kernels
        parts.append(element("p", str(why), css="fx-why"))
        if plan.is_editable:
            event = {"type": "glue", "n": first, "with": second}
            parts.append(element("p", button(f"Glue {first} and {second}", event)))
    parts += [
        element("p", button(f"Cut after {name}", {"type": "cut", "at": name}))
        for name in kernel.writes if plan.is_editable and plan.can_cut(name)
    ]
    source = plan.record.sources.get(kernel.function)
    if source is not None:
        parts += [element("h4", f"Source of {kernel.function}"), _source(kernel)]
    return "".join(map(to_html, parts))


def _source(kernel: "CompiledKernel") -> Element:
    """Return the source with the op of each line; lines of the other kernels of its function are dimmed."""
    lines = kernel.source_lines()
    rows = [
        element(
            "tr", element("td", line.op, css="fx-note"), element("td", line.place, css="fx-note"),
            element("td", element("code", line.text)),
            css="fm-within" if line.inside else "fm-beside" if line.node else "",
        )
        for line in lines
    ]
    head = element("tr", *(element("th", name, scope="col") for name in ("op", "line", "source")))
    return element("table", element("thead", head), element("tbody", *rows), css="fm-source")


def below(plan: "CompiledPlan") -> str:
    """Return the table of neighbours with the reasons for which they are separate, and the times of an edit."""
    parts: list[Element] = []
    if plan.edited is not None:
        parts.append(element("p", f"One call takes {plan.edited}."))
    whys = (*plan.boundaries(), *plan.siblings())
    more = f"; the first {_MOST_PAIRS} of {len(whys)}" if len(whys) > _MOST_PAIRS else ""
    rows = [(" and ".join(map(str, why.kernels)), why.text, why.by) for why in whys[:_MOST_PAIRS]]
    sends = [{"type": "box", "id": f"kernel {why.kernels[0]}"} for why in whys[:_MOST_PAIRS]]
    columns = ("kernels", "separate because", "stated by")
    parts.append(table(columns, rows, caption=f"Neighbours{more}", sends=sends))
    return "".join(map(to_html, parts))
