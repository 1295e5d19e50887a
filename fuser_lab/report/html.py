"""Static HTML without a script: the notebook output of plans, segments, logs and timings."""

from collections.abc import Iterable, Sequence
from typing import Final
from xml.etree.ElementTree import Element

from fuser_lab.report import theme
from fuser_lab.report.markup import element, to_html
from fuser_lab.report.pass_picture import rewrite_element
from fuser_lab.report.passes import CHANGED, PassView
from fuser_lab.report.subject import PlanLike
from fuser_lab.report.svg import view_element
from fuser_lab.report.tables import Table, decision_reason, layout_table, line_table, segment_table, table_element
from fuser_lab.report.units import bytes_label, plural
from fuser_lab.report.view_model import DecisionView, VerdictView, ViewModel, view_decisions, view_plan
from fuser_lab.segmentation.events import Attempt

_MOST_DECISIONS: Final = 400  # in a notebook's output; the log itself holds all entries


def plan_html(plan: PlanLike) -> str:
    """Return a plan for a notebook's output: the picture, the segments, and the collapsed decisions."""
    return fragment(*plan_parts(view_plan(plan)))


def plan_page(view: ViewModel) -> str:
    """Return a complete HTML document of a view model; it opens from disk and makes no network requests."""
    return document(view.header.title, fragment(*plan_parts(view)))


def document(title: str, body: str) -> str:
    """Return a complete HTML document around blocks from `fragment` and similar functions."""
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", title),
        element("style", "body{margin:0;padding:16px}td,th{text-align:left;vertical-align:top;padding:3px 10px 3px 0}"),
        element("style", theme.variables("body") + theme.BODY_RULE),
    )
    return f'<!DOCTYPE html>\n<html lang="en">{to_html(head)}<body>{body}</body></html>'


def segment_html(plan: PlanLike, index: int, source: str = "") -> str:
    """Return one segment of a plan: its row, its expressions, each scheduler's verdict, and its collapsed source."""
    view = view_plan(plan, decisions=False)
    segment = next(s for s in view.segments if s.index == index)
    lines = "\n".join(n.text for n in view.nodes if n.segment == index)
    parts = [table_element(segment_table([segment])), element("pre", lines), _verdict_list(segment.verdicts)]
    if source:
        parts.append(element("details", element("summary", "generated source"), element("pre", source)))
    return fragment(*parts)


def decisions_html(log: Iterable[Attempt]) -> str:
    """Return a decision log."""
    return fragment(*_decision_parts(view_decisions(log), opened=True))


def table_html(table: Table, *, note: str = "") -> str:
    """Return a table for a notebook's output, with a note below it."""
    return fragment(table_element(table), *([element("p", note, css="fl-note")] if note else []))


def fragment(*parts: Element) -> str:
    """Return one block that contains the parts and the style sheet."""
    return to_html(_block(*parts))


def _block(*parts: Element) -> Element:
    return element("div", element("style", theme.page_style()), *parts, css="fl-report")


def plan_parts(view: ViewModel, *, style: bool = True) -> list[Element]:
    """Return the picture of a plan, its segments, and collapsed details.

    ``style=False`` is for pages that already contain the style sheet of the drawing.
    """
    segments = segment_table(view.segments).with_names(view.called)
    parts = [_headline(view), _picture(view, style=style), table_element(segments)]
    parts += [
        element("div", element("p", f"S{s.index} has no scheduler:"), _verdict_list(s.verdicts))
        for s in view.segments
        if not s.ok
    ]
    if view.layouts:
        layouts = layout_table(view.layouts).with_names(view.called)
        parts.append(table_element(layouts, caption="Layouts: axes in memory, slowest first"))
    lines = line_table(view)
    if lines is not None:
        of_lines = table_element(lines.with_names(view.called))
        parts.append(element("details", element("summary", "lines that the ops come from"), of_lines))
    if view.passes:
        parts.append(_pass_part(view.passes))
    if view.decisions:
        parts += _decision_parts(view.decisions, opened=False)
    return parts


def _pass_part(passes: Sequence[PassView]) -> Element:
    """Return the collapsed passes before the cut; those that changed something include the change."""
    changed = [entry for entry in passes if entry.outcome == CHANGED]
    rest = [f"{entry.name}: {entry.outcome}" for entry in passes if entry.outcome != CHANGED]
    head = f"passes before the cut: {len(changed)} of {len(passes)} changed the fusion"
    parts = [element("summary", head)]
    for step in changed:
        parts += [element("p", element("b", step.name), f" {step.about}"), *_rewrite(step)]
    return element("details", *parts, element("p", "; ".join(rest), css="fl-note"))


def _rewrite(step: PassView) -> list[Element]:
    """Return the change of a pass as two graphs and as lines."""
    drawn = [] if step.rewrite is None else [
        element("div", rewrite_element(step.rewrite, style=False), css="fl-picture"),
    ]
    return [*drawn, element("pre", "\n".join(step.diff))]


def _picture(view: ViewModel, *, style: bool) -> Element:
    return element("div", view_element(view, style=style), css="fl-picture")


def _headline(view: ViewModel) -> Element:
    header = view.header
    numbers = (
        *(plural(count, noun).split(" ") for count, noun in ((header.segments, "segment"), (header.ops, "op"))),
        (bytes_label(header.bytes_moved), "moved"),
        (bytes_label(header.bytes_ideal), "one kernel would move"),
        (bytes_label(header.bytes_crossing), "crossing"),
    )
    facts = [element("span", element("b", value), f" {name}", css="fl-fact") for value, name in numbers]
    strategy = header.strategy.replace("_", "-")
    pill = [] if strategy == header.title else [element("span", strategy, css="fl-pill")]
    return element("div", element("span", header.title, css="fl-title"), *pill, *facts, css="fl-headline")


def _decision_parts(decisions: Sequence[DecisionView], *, opened: bool) -> list[Element]:
    accepted = sum(d.accepted for d in decisions)
    head = f"{plural(len(decisions), 'decision')}: {accepted} accepted, {len(decisions) - accepted} refused"
    items = [_decision(d) for d in decisions[:_MOST_DECISIONS]]
    if len(decisions) > _MOST_DECISIONS:
        items.append(element("li", f"… and {len(decisions) - _MOST_DECISIONS} more"))
    details = element("details", element("summary", head), element("ol", *items, css="fl-decisions"))
    if opened:
        details.set("open", "open")
    return [details]


def _decision(decision: DecisionView) -> Element:
    mark = element("span", "✓" if decision.accepted else "✗", css="fl-good" if decision.accepted else "fl-bad")
    subject = element("b", decision.of)
    place = " · ".join(filter(None, (decision.phase, decision.kind)))
    line: list[Element | str] = [
        f"{decision.seq} ",
        mark,
        " ",
        subject,
        " ",
        element("span", place, css="fl-note"),
        f" {decision_reason(decision)}",
    ]
    if not decision.verdicts:
        return element("li", *line)
    return element("li", element("details", element("summary", *line), _verdict_list(decision.verdicts)))


def _verdict_list(verdicts: Sequence[VerdictView]) -> Element:
    return element(
        "ul",
        *(
            element(
                "li",
                element("span", "✓" if v.accepted else "✗", css="fl-good" if v.accepted else "fl-bad"),
                " ",
                element("b", v.scheduler),
                f" {v.text}",
            )
            for v in verdicts
        ),
        css="fl-verdicts",
    )
