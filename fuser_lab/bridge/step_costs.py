"""A captured step as one table: what each region and each op of the library moves, takes, and could save."""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

from fuser_lab.bridge.costs import common_path, deciding_rule
from fuser_lab.bridge.graph_walk import Unit
from fuser_lab.bridge.model_view import is_free
from fuser_lab.bridge.op_costs import OpCost, op_bytes, op_cost, op_flops, region_cost
from fuser_lab.bridge.partition import Left
from fuser_lab.bridge.region import Region
from fuser_lab.bridge.remedies import remedy
from fuser_lab.bridge.step_memory import memory_line, units_of
from fuser_lab.bridge.step_timing import MeasuredStep
from fuser_lab.bridge.traced import call_of, target_of
from fuser_lab.cost.device import DEFAULT, Device
from fuser_lab.errors import FuserLabError
from fuser_lab.plan.planning import device_of
from fuser_lab.report.html import fragment
from fuser_lab.report.markup import element
from fuser_lab.report.memory_line import AliveBytes, memory_line_svg, peak_of
from fuser_lab.report.records import Records
from fuser_lab.report.tables import Table, table_element, table_text
from fuser_lab.report.units import bytes_label, plural, seconds_label
from fuser_lab.report.view import View
from fuser_lab.runtime.cpu.this_cpu import COMMAND

if TYPE_CHECKING:
    from fuser_lab.bridge.capture import CapturedGraph, GraphBreak

PLAN_OF = "captured.graphs[{graph}].regions[{region}].plan"  # how messages call a region's plan
HOST = "host"  # the row of the time in which no unit runs
MOST_ROWS = 40  # of the table as text
_LEAST_GAIN = 0.02  # as a share of the step: a smaller one is not called a gain


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitCost:
    """One region, or one op of the library: its graph, its cost, and its measured seconds (NaN if not measured)."""

    graph: int
    kind: str
    part: Region | Left
    cost: OpCost
    measured: float = math.nan

    @property
    def unit(self) -> Unit:
        """The region, or the node of the op."""
        return self.part if isinstance(self.part, Region) else self.part.node

    @property
    def name(self) -> str:
        """The region with its number, or the op."""
        part = self.part
        return f"region {part.index}" if isinstance(part, Region) else part.op.removesuffix(".default")

    @property
    def seconds(self) -> float:
        """The measured seconds, or the predicted ones."""
        return self.cost.predicted if math.isnan(self.measured) else self.measured

    @property
    def modules(self) -> tuple[str, ...]:
        """Paths of its modules."""
        part = self.part
        return part.modules if isinstance(part, Region) else (part.origin.module,)

    @property
    def line(self) -> str:
        """Its first line in the user's code."""
        part = self.part
        origins = [op.origin for op in part.ops] if isinstance(part, Region) else [part.origin]
        first = next((origin for origin in origins if origin.place), None)
        return "" if first is None else f"{first.place}: {first.code}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRow:
    """Equal units of a step, or the time in which no unit runs (``units`` is empty), with sums over the units.

    ``bound`` is the least time on the device of the prediction, ``seconds`` the measured time or else the predicted
    one, and ``gain`` how much of it lies above the bound. Seconds are NaN where they are not known.
    """

    what: str
    units: tuple[UnitCost, ...] = field(default=(), repr=False)
    count: int
    ops: int
    module: str
    line: str
    bytes: int
    flops: int
    bound: float
    limit: str
    predicted: float
    measured: float
    gain: float

    @property
    def seconds(self) -> float:
        """The measured time, or the predicted one."""
        return self.predicted if math.isnan(self.measured) else self.measured

    def __str__(self) -> str:
        """Return where the row is, such as ``12 × forward region 3 of layers.*.mlp``."""
        times = f"{self.count} × " if self.count > 1 else ""
        where = f" of {self.module}" if self.module else ""
        return f"{times}{self.what}{where}"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class StepCosts(View):
    """Regions and ops of a captured step, equal ones as one row, those that could save the most time first.

    Attributes
    ----------
    rows
        Equal units, and if the step was measured, the time in which none of them runs.
    device
        The device of bounds and predictions.
    processor
        The processor on which the step was measured, or an empty text.
    step
        Seconds of the step: measured, or the sum of the predictions.
    memory
        Bytes that are alive while each unit runs, in run order.
    between
        Ops that the library runs between two graphs, in no row.
    """

    what: ClassVar[str] = "the costs of a step"

    rows: tuple[StepRow, ...]
    device: str
    processor: str
    step: float
    memory: tuple[AliveBytes, ...]
    between: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[StepRow]:
        """Iterate over the rows."""
        return iter(self.rows)

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.rows)

    @property
    def units(self) -> tuple[UnitCost, ...]:
        """All regions and ops."""
        return tuple(unit for row in self.rows for unit in row.units)

    def share(self, row: StepRow) -> float:
        """Return the share of a row in the step."""
        return row.seconds / self.step if self.step else 0.0

    @property
    def headline(self) -> str:
        """The largest gain and its cause, and the largest cost, in sentences."""
        timed = [row for row in self.rows if not math.isnan(row.seconds)]
        if not timed:
            return "No op of this step moves data."
        best, most = timed[0], max(timed, key=lambda row: row.seconds)
        cost = (
            f"The largest cost: {most} takes {seconds_label(most.seconds)}, {100 * self.share(most):.0f} % of the "
            f"step{_at(most)}."
        )
        if best.gain < _LEAST_GAIN * self.step:
            return (
                f"The largest gain: none; no row could save {100 * _LEAST_GAIN:.0f} % of the step, as predicted for "
                f"{self.device}. {cost}"
            )
        gain = (
            f"The largest gain: {best} could save {seconds_label(best.gain)} of {seconds_label(best.seconds)}, "
            f"{100 * best.gain / self.step:.0f} % of the step{_at(best)}. {_cause(best)}"
        )
        return gain if most is best else f"{gain} {cost}"

    @property
    def note(self) -> str:
        """The origin of the numbers, and the peak of memory."""
        how = f"bounds and predictions are for {self.device}"
        if self.processor:
            how = f"measured on {self.processor}: a step takes {seconds_label(self.step)}; {how}"
            if not _is_measured_device(self.device, self.processor):
                how += ", and a gain is the predicted share of the measured time"
                how += f" ({COMMAND!r} measures the rates of this CPU)" if self.processor.startswith("CPU") else ""
        else:
            how = f"a step is predicted at {seconds_label(self.step)}; {how}; nothing was measured (measure=True)"
        peak = peak_of(self.memory)
        memory = "" if peak is None else f" Memory: at most {bytes_label(peak.total)}, at {peak.graph} {peak.unit}."
        outside = f" Between graphs, in no row: {', '.join(self.between)}." if self.between else ""
        return f"{how[0].upper()}{how[1:]}.{memory}{outside}"

    def table(self) -> Table:
        """Return the formatted cells."""
        return self._table()

    def _table(self) -> Table:
        columns = (
            "what", "count", "module", "line", "bytes", "bound", "limit", "predicted", "measured", "share", "gain",
        )
        rows = [
            (
                row.what, str(row.count) if row.units else "", row.module, row.line,
                bytes_label(row.bytes) if row.units else "", _seconds(row.bound), row.limit, _seconds(row.predicted),
                _seconds(row.measured), f"{100 * self.share(row):.1f} %", _seconds(row.gain),
            )
            for row in self.rows
        ]
        shown = [n for n in range(len(columns)) if any(row[n] for row in rows)]
        return Table(
            columns=tuple(columns[n] for n in shown), rows=tuple(tuple(row[n] for n in shown) for row in rows),
            numeric=frozenset({"count", "bytes", "bound", "predicted", "measured", "share", "gain"}),
        )

    def _records(self) -> Records:
        columns = (
            "what", "count", "ops", "module", "line", "moved [bytes]", "flops", "bound [us]", "limit", "predicted [us]",
            "measured [us]", "share", "gain [us]",
        )
        rows = tuple(
            (
                row.what, row.count, row.ops, row.module, row.line, row.bytes, row.flops, 1e6 * row.bound, row.limit,
                1e6 * row.predicted, 1e6 * row.measured, self.share(row), 1e6 * row.gain,
            )
            for row in self.rows
        )
        return Records(columns=columns, rows=rows)

    def _data(self) -> Any:
        return self.to_dict()

    def to_dict(self) -> dict[str, Any]:
        """Return the table and the line of memory for JSON; times in microseconds, None if not known."""
        records = self._records()
        rows = [dict(zip(records.columns, row, strict=True)) for row in records.rows]
        plain = [{key: None if isinstance(v, float) and math.isnan(v) else v for key, v in row.items()} for row in rows]
        return {
            "schema": "fuser_lab.step", "version": 1, "device": self.device, "processor": self.processor,
            "step [us]": 1e6 * self.step, "headline": self.headline, "rows": plain, "between": list(self.between),
            "memory": [[alive.graph, alive.unit, alive.held, alive.computed] for alive in self.memory],
        }

    def svg(self) -> str:
        """Return the line of memory over the step as static SVG."""
        return memory_line_svg(self.memory)

    def __str__(self) -> str:
        """Return the headline and the table as text, of which the first forty rows."""
        table = self._table()
        more = f"\n… and {plural(len(table.rows) - MOST_ROWS, 'more row')}" if len(table.rows) > MOST_ROWS else ""
        return f"{self.headline}\n\n{table_text(replace(table, rows=table.rows[:MOST_ROWS]))}{more}\n{self.note}"

    def _repr_html_(self) -> str:
        """Return the headline, the table and the line of memory as HTML."""
        parts = (
            element("p", element("b", self.headline)), table_element(self._table()),
            element("p", self.note, css="fl-note"),
        )
        return f"{fragment(*parts)}{self.svg()}"


def _seconds(value: float) -> str:
    return "" if math.isnan(value) else seconds_label(value)


def _at(row: StepRow) -> str:
    return f" ({row.line})" if row.line else ""


def _cause(row: StepRow) -> str:
    """Return why a row takes longer than its bound, and the next call."""
    if not row.units:
        return (
            "In this time no region and no op runs: it is Python, guards and launches. Larger inputs, or one compiled "
            "call of the whole step, reduce its share."
        )
    first = row.units[0]
    part = first.part
    if isinstance(part, Left):
        library = "torch" if part.op.startswith("aten") else "JAX"
        takes = remedy(library, part.op, part.reason)
        return f"{library} runs it: {part.reason}" + (f"; what it takes: {takes}." if takes else ".")
    plan, call = part.plan, PLAN_OF.format(graph=first.graph, region=part.index)
    boundaries = plan.boundaries()
    if not boundaries:
        return f"It is one kernel, which takes longer than its {row.limit}: see {call}.segments[0].schedule."

    def crossing(why: Any) -> int:
        written, read = (plan.segments[n] for n in why.segments)
        return sum(tensor.nbytes for tensor in written.outputs if tensor in set(read.inputs))

    why = max(boundaries, key=crossing)
    rule = deciding_rule(why, plan.decisions)
    return (
        f"It is cut into {plural(len(plan.segments), 'segment')}: S{why.segments[0]} and S{why.segments[1]} are "
        f"separate because of {rule}; see {call}."
    )


def _is_measured_device(device: str, processor: str) -> bool:
    """Whether the device of the predictions is the processor that was measured."""
    return device == "this CPU" if processor.startswith("CPU") else device in processor


def _device_for(graphs: Sequence["CapturedGraph"]) -> Device:
    """Return the device that the plans of captured graphs are for."""
    first = next((region for graph in graphs for region in graph.regions), None)
    return DEFAULT if first is None else device_of(first.signature.cutting.target)


def step_costs(
    graphs: Sequence["CapturedGraph"], breaks: Sequence["GraphBreak"] = (), measured: MeasuredStep | None = None,
) -> StepCosts:
    """Return the costs of captured graphs as one step; each distinct region is planned once."""
    device = _device_for(graphs)
    regions: dict[Any, OpCost] = {}
    units: list[UnitCost] = []
    for number, graph in enumerate(graphs):
        for part in _parts(graph):
            if isinstance(part, Region):
                key = part.signature
                cost = regions.get(key) or regions.setdefault(key, _region_cost(part, device))
            else:
                cost = op_cost(part.node, device)
            unit = UnitCost(graph=number, kind=graph.kind, part=part, cost=cost)
            units.append(
                unit if measured is None else replace(unit, measured=measured.units.get(unit.unit, math.nan)),
            )
    is_same = measured is not None and _is_measured_device(device.name, measured.processor)
    several = len({graph.kind for graph in graphs}) > 1
    rows = [_row(group, named=several, is_same=is_same) for group in _equal(units)]
    total = math.fsum(row.seconds for row in rows if not math.isnan(row.seconds))
    step = total if measured is None else measured.step
    if measured is not None:
        gap = max(0.0, step - total)
        rows.append(StepRow(
            what=HOST, count=1, ops=0, module="", line="", bytes=0, flops=0, bound=0.0, limit="", predicted=math.nan,
            measured=gap, gain=gap,
        ))
    rows.sort(key=lambda row: (-_or_zero(row.gain), -_or_zero(row.seconds), row.what))
    return StepCosts(
        rows=tuple(rows), device=device.name, processor="" if measured is None else measured.processor, step=step,
        memory=memory_line(graphs), between=tuple(b.op for b in breaks if b.op),
    )


def _or_zero(value: float) -> float:
    return 0.0 if math.isnan(value) else value


def _region_cost(region: Region, device: Device) -> OpCost:
    """Return the cost of a region; if it cannot be planned, only what its results are."""
    with suppress(FuserLabError):
        return region_cost(region, device)
    moved = sum(map(op_bytes, region.call_nodes))
    flops = sum(map(op_flops, region.call_nodes))
    return OpCost(bytes=moved, flops=flops, bound=0.0, predicted=math.nan, limit="bytes")


def _parts(graph: "CapturedGraph") -> Iterator[Region | Left]:
    """Yield the regions and the computing ops of the library, in run order."""
    left = {each.node: each for each in graph.left if not is_free(each.reason)}
    for unit in units_of(graph):
        if isinstance(unit, Region):
            yield unit
        elif unit in left and target_of(unit) != "getitem":
            yield left[unit]


def _equal(units: Iterable[UnitCost]) -> Iterable[list[UnitCost]]:
    """Return equal regions, and calls of one op with equal sizes on one line, as lists."""
    groups: defaultdict[Any, list[UnitCost]] = defaultdict(list)
    for unit in units:
        part = unit.part
        if isinstance(part, Region):
            groups[unit.kind, part.signature].append(unit)
        else:
            call = call_of(part.node)
            sizes = None if call is None else repr((call.tensors, call.results))
            groups[unit.kind, part.op, sizes, part.origin.code, part.origin.place].append(unit)
    return groups.values()


def _row(units: Sequence[UnitCost], *, named: bool, is_same: bool) -> StepRow:
    first, count = units[0], len(units)
    part, cost = first.part, first.cost
    measured = math.fsum(unit.measured for unit in units)
    bound, predicted = count * cost.bound, count * cost.predicted
    if math.isnan(measured) or is_same:
        gain = (predicted if math.isnan(measured) else measured) - bound
    else:
        gain = measured * (1 - bound / predicted) if predicted else 0.0
    modules = [common_path(paths) for paths in zip(*(unit.modules for unit in units), strict=False)]
    more = ", …" if len(modules) > 2 else ""
    return StepRow(
        what=f"{first.kind} {first.name}" if named else first.name, units=tuple(units), count=count,
        ops=count * (len(part) if isinstance(part, Region) else 1), module=f"{', '.join(modules[:2])}{more}",
        line=first.line, bytes=count * cost.bytes, flops=count * cost.flops, bound=bound, limit=cost.limit,
        predicted=predicted, measured=measured, gain=max(0.0, gain) if not math.isnan(gain) else math.nan,
    )
