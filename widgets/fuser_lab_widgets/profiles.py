"""The source tab's view of a profile: the kernel's lines with their bytes, and what bounds the kernel."""

import math
from collections.abc import Callable, Iterator, Sequence
from html import escape
from typing import TYPE_CHECKING, Any, Final

from fuser_lab.codegen.links import LinkedLine, source_lines
from fuser_lab.errors import FuserLabError
from fuser_lab.report.units import bytes_label, plural, seconds_label
from fuser_lab_widgets.lines import line_options, ranges

if TYPE_CHECKING:
    from fuser_lab.codegen.pipeline import GeneratedKernel

# The result of `fuser_lab.profile`; its module times plans and must not be loaded to draw one.
PlanProfile = Any
ProfiledSegment = Any
ProfiledStatement = Any
_NO_COST: Final = '<span class="fx-cost"></span>'
_SOME: Final = 0.01  # minimum share of the bytes for a line to have a bar


def beside(segment: Any, profile: PlanProfile) -> dict[str, Any]:
    """Return the source of a segment with the bytes of its lines, and the profile's summary, as linked columns.

    All text in the columns' HTML is escaped. If there is no kernel, ``problem`` says why.
    """
    row = next((profiled for profiled in profile.rows if profiled.segment == segment.index), None)
    try:
        generated = segment.kernel(profile.target)
    except FuserLabError as error:
        return {"problem": " ".join((str(error), row.sentence if row else ""))}
    statements = [statement for statement in profile.statements if statement.segment == segment.index]

    def before(place: int) -> str:
        here = [statement for statement in statements if statement.line == place + 1]
        return f'<span class="fx-number">{place + 1}</span>{_cost(here) if here else _NO_COST}'

    source = line_options("s", source_lines(generated), before=before)
    lines = "".join(
        f'<div role="option" aria-selected="false" class="fx-remark" id="fx-w{n}"'
        + (f' data-links="{ranges(line.places)}"' if line.places else "") + f">{escape(line.text)}</div>"
        for n, line in enumerate(_profile_lines(row, statements, generated))
    )
    return {"columns": [["Source", source], [f"Profile, {profile.device}", lines]], "note": _note(profile, statements)}


def _cost(statements: Sequence[ProfiledStatement]) -> str:
    share = sum(statement.share for statement in statements)
    moved = bytes_label(round(sum(statement.bytes for statement in statements)))
    bar = f'<i style="width:{100 * share:.0f}%"></i>' if share >= _SOME else ""
    return f'<span class="fx-cost" title="{share:.0%} of the bytes that the kernel requests">{bar}{moved}</span>'


def _profile_lines(
    row: ProfiledSegment | None, statements: Sequence[ProfiledStatement], generated: "GeneratedKernel",
) -> Iterator[LinkedLine]:
    if row is not None:
        everything = frozenset(place for place in generated.line_statements if place is not None)
        yield LinkedLine(text=row.sentence, places=everything)
        facts = _facts(row)
        if facts:
            yield LinkedLine(text=facts, places=everything)
        for number, counters in enumerate(row.counters):
            places = frozenset(place for place in everything if place[0] == number)
            yield LinkedLine(text=f"Launch {counters.name}: {counters.sentence(0)}", places=places)
    for line in statements:
        said = f"Line {line.line} {'writes' if line.write else 'reads'} {line.tensor}: "
        said += f"{'at most ' if line.at_most else ''}{bytes_label(round(line.bytes))}, {line.share:.0%} of all"
        times = line.bytes / line.tensor_bytes if line.tensor_bytes else math.nan
        said += f", {times:.2f} times the tensor" if not math.isnan(times) else ""
        said += "" if math.isnan(line.seconds) else f", {seconds_label(line.seconds)}"
        yield LinkedLine(text=f"{said}.", places=frozenset({(line.phase, line.place)}))


def _facts(row: ProfiledSegment) -> str:
    """Return the known numbers of a segment, besides those in its sentence."""
    numbers: tuple[tuple[str, float, Callable[[float], str]], ...] = (
        ("counted", row.bytes, _bytes), ("from memory, by counters", row.dram_bytes, _bytes),
        ("through L2", row.l2_bytes, _bytes), ("at best", row.predicted, seconds_label),
        ("measured", row.seconds, seconds_label), ("occupancy", row.occupancy, lambda v: f"{v:.0%}"),
        ("registers", row.registers, lambda v: f"{v:.0f}"), ("shared memory", row.shared, _bytes),
        ("spilled", row.spilled, _bytes), ("bank conflicts", row.bank_conflicts, lambda v: f"{v:,.0f}"),
    )
    return "; ".join(f"{name} {label(value)}" for name, value, label in numbers if not math.isnan(value))


def _bytes(value: float) -> str:
    return bytes_label(round(value))


def _note(profile: PlanProfile, statements: Sequence[ProfiledStatement]) -> str:
    said = (
        f"{plural(len(statements), 'line')} of the source. An element counts each time that a line accesses it, "
        "even if a cache holds it. The measured time is divided in proportion to these bytes."
    )
    return f"{said} Without hardware counters: {profile.why_no_counters}" if profile.why_no_counters else said
