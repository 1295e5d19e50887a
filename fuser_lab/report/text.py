"""Plans, logs and answers as plain text."""

from collections.abc import Iterable, Sequence

from fuser_lab.ir.tensor_names import named_text
from fuser_lab.report.subject import PlanLike
from fuser_lab.report.tables import decision_reason, layout_table, line_table, segment_table, table_text
from fuser_lab.report.units import bytes_label, plural
from fuser_lab.report.view_model import (
    DecisionView,
    Header,
    SegmentView,
    VerdictView,
    ViewModel,
    view_decisions,
    view_plan,
)
from fuser_lab.segmentation.events import Attempt


def plan_text(plan: PlanLike, *, title: str | None = None) -> str:
    """Return a plan's headline and segment table."""
    return view_text(view_plan(plan, title=title, decisions=False))


def view_text(view: ViewModel) -> str:
    """Return the text of a view model, followed by any decisions."""
    parts = [headline(view.header), table_text(segment_table(view.segments).with_names(view.called))]
    parts += [named_text(refusal_text(s), view.called) for s in view.segments if not s.ok]
    if view.layouts:
        parts.append(table_text(layout_table(view.layouts).with_names(view.called)))
    lines = line_table(view)
    if lines is not None:
        lines = lines.with_names(view.called)
        parts.append("\n".join(f"{segment} computes {line}: {names}" for segment, line, names in lines.rows))
    if view.decisions:
        parts.append(_attempts(view.decisions))
    return "\n\n".join(parts)


def headline(header: Header) -> str:
    """Return the title and the most important numbers in one line."""
    name = header.title if header.title == header.plan else f"{header.title}: {header.plan}"
    strategy = header.strategy.replace("_", "-")
    made = "" if strategy == name else f" ({strategy})"
    return (
        f"{name}{made}: {plural(header.ops, 'op')} in "
        f"{plural(header.segments, 'segment')}, {bytes_label(header.bytes_moved)} moved "
        f"(one kernel: {bytes_label(header.bytes_ideal)}), {bytes_label(header.bytes_crossing)} crossing"
    )


def refusal_text(segment: SegmentView) -> str:
    """Return why no scheduler accepts a segment."""
    return f"S{segment.index} has no scheduler:\n{verdicts_text(segment.verdicts)}"


def verdicts_text(verdicts: Sequence[VerdictView]) -> str:
    """Return one line per scheduler, in the order in which they were tried."""
    width = max((len(v.scheduler) for v in verdicts), default=0)
    return "\n".join(f"  {'✓' if v.accepted else '✗'} {v.scheduler.ljust(width)}  {v.text}".rstrip() for v in verdicts)


def decisions_text(log: Iterable[Attempt]) -> str:
    """Return a decision log as text."""
    return _attempts(view_decisions(log))


def _attempts(decisions: Sequence[DecisionView]) -> str:
    accepted = sum(d.accepted for d in decisions)
    head = f"{plural(len(decisions), 'attempt')}: {accepted} accepted, {len(decisions) - accepted} refused"
    return "\n".join((head, *map(_attempt, decisions)))


def _attempt(decision: DecisionView) -> str:
    mark = "✓" if decision.accepted else "✗"
    subject = f"{decision.phase}: {decision.kind}" if decision.phase else decision.kind
    return f"{decision.seq:>4} {mark} {subject} {decision.of}  {decision_reason(decision)}".rstrip()
