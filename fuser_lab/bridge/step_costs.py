"""A captured step as one table: what each region and each op of the library moves, takes, and could save."""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

from fuser_lab.bridge.capture import GraphBreak
from fuser_lab.bridge.costs import common_path, deciding_rule
from fuser_lab.bridge.graph_walk import Unit, read_by
from fuser_lab.bridge.lists import planned_lists
from fuser_lab.bridge.model_view import graph_titles, is_free
from fuser_lab.bridge.op_costs import OpCost, op_bytes, op_cost, op_flops, region_cost
from fuser_lab.bridge.partition import Left
from fuser_lab.bridge.region import Region
from fuser_lab.bridge.remedies import remedy
from fuser_lab.bridge.step_memory import base_of, memory_line, units_of
from fuser_lab.bridge.step_timing import MeasuredStep
from fuser_lab.bridge.traced import Origin, call_of, target_of
from fuser_lab.cost.device import DEFAULT, Device
from fuser_lab.cost.predicted_times import TimeModel
from fuser_lab.errors import FuserLabError
from fuser_lab.report.html import fragment
from fuser_lab.report.markup import element
from fuser_lab.report.memory_line import AliveBytes, memory_line_svg, peak_of
from fuser_lab.report.records import Records
from fuser_lab.report.tables import Table, table_element, table_text
from fuser_lab.report.units import bytes_label, plural, seconds_label
from fuser_lab.report.view import View
from fuser_lab.runtime.cpu.this_cpu import COMMAND

if TYPE_CHECKING:
    from fuser_lab.bridge.capture import CapturedGraph

PLAN_OF = "captured.graphs[{graph}].regions[{region}].plan"  # how messages call a region's plan
HOST = "host"  # the row of the time in which no unit runs
BREAK = "graph break"  # the name of one at which no op runs
_UNKNOWN = OpCost(bytes=0, flops=0, bound=0.0, predicted=math.nan, limit="")
MOST_ROWS = 40  # of the table as text
_LONGEST_LINE = 100  # letters of a source line in a sentence
_LEAST_GAIN = 0.02  # as a share of the step: a smaller one is not called a gain


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitCost:
    """One region, op of the library or graph break: its graph, how often it runs, its cost, its seconds.

    The cost is that of one run, and not known for a graph break. The measured seconds and the gain are those of all
    runs, and NaN where they are not known.
    """

    graph: int
    kind: str
    part: Region | Left | GraphBreak
    runs: int
    cost: OpCost
    measured: float
    gain: float

    @property
    def unit(self) -> Unit | GraphBreak:
        """The region, the node of the op, or the graph break."""
        return self.part.node if isinstance(self.part, Left) else self.part

    @property
    def name(self) -> str:
        """The region with its number, or the op."""
        part = self.part
        return f"region {part.index}" if isinstance(part, Region) else part.op.removesuffix(".default") or BREAK

    @property
    def seconds(self) -> float:
        """The measured seconds, or the predicted ones."""
        return self.runs * self.cost.predicted if math.isnan(self.measured) else self.measured

    @property
    def modules(self) -> tuple[str, ...]:
        """Paths of its modules."""
        part = self.part
        return part.modules if isinstance(part, Region) else tuple(origin.module for origin in self._origins)

    @property
    def line(self) -> str:
        """Its first line in the user's code."""
        first = next((origin for origin in self._origins if origin.place), None)
        return "" if first is None else f"{first.place}: {first.code}"

    @property
    def _origins(self) -> tuple[Origin, ...]:
        part = self.part
        return tuple(op.origin for op in part.ops) if isinstance(part, Region) else (part.origin,)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRow:
    """Equal units of a step, or the time in which no unit runs (``units`` is empty), with sums over their runs.

    ``bound`` is the least time on the device of the prediction, ``seconds`` the measured time or else the predicted
    one, and ``gain`` how much of it lies above the bound. Seconds are NaN where they are not known. A graph break has
    neither bytes nor a bound, and ``limit`` is empty.
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
    """Regions, ops and graph breaks of a captured step, equal ones as one row, those that could save most time first.

    Attributes
    ----------
    rows
        Equal units, and if the step was measured, the time that belongs to none of them.
    device
        The device of bounds and predictions.
    processor
        The processor on which the step was measured, or an empty text.
    step
        Seconds of the step: measured, or the sum of the predictions.
    memory
        Bytes that are alive while each unit runs, in run order.
    """

    what: ClassVar[str] = "the costs of a step"

    rows: tuple[StepRow, ...]
    device: str
    processor: str
    step: float
    memory: tuple[AliveBytes, ...]

    def __iter__(self) -> Iterator[StepRow]:
        """Iterate over the rows."""
        return iter(self.rows)

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.rows)

    @property
    def units(self) -> tuple[UnitCost, ...]:
        """All regions, ops and graph breaks."""
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
            f"step{_at(most)}{_limit(most)}."
        )
        if best.gain <= _LEAST_GAIN * self.step:
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
        return f"{how[0].upper()}{how[1:]}.{memory}"

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
                *((bytes_label(row.bytes), _seconds(row.bound)) if row.limit else ("", "")), row.limit,
                _seconds(row.predicted), _seconds(row.measured), f"{100 * self.share(row):.1f} %", _seconds(row.gain),
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
        return {
            "schema": "fuser_lab.step", "version": 1, "device": self.device, "processor": self.processor,
            "step [us]": 1e6 * self.step, "headline": self.headline, "rows": self._records().to_dicts(),
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
    line = row.line if len(row.line) <= _LONGEST_LINE else f"{row.line[:_LONGEST_LINE]}…"
    return f" ({line})" if line else ""


def _limit(row: StepRow) -> str:
    """Return what the bound of a row consists of, as a clause."""
    computed = f"{row.flops / 1e9:.3g} GFLOP that it computes"
    limits = {"bytes": f"{bytes_label(row.bytes)} that it moves", "flops": computed}
    return f"; the limit is the {limits[row.limit]}" if row.limit else ""


def _cause(row: StepRow) -> str:
    """Return why a row takes longer than its bound, and the next call."""
    if not row.units:
        return (
            "In this time no region and no op runs: it is Python, guards and launches. Larger inputs, or one compiled "
            "call of the whole step, reduce its share."
        )
    first = row.units[0]
    part = first.part
    if isinstance(part, GraphBreak):
        return f"The graph ends there: {part.reason}; what it takes: {remedy('torch', part.op, part.why_outside)}."
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
    return DEFAULT if first is None else first.signature.device


def step_costs(
    graphs: Sequence["CapturedGraph"], breaks: Sequence[GraphBreak] = (), measured: MeasuredStep | None = None,
) -> StepCosts:
    """Return the costs of captured graphs as one step; each distinct region is planned once."""
    device = _device_for(graphs)
    is_same = measured is not None and _is_measured_device(device.name, measured.processor)
    times = {} if measured is None else measured.units
    regions: dict[Any, OpCost] = {}
    units: list[UnitCost] = []
    for number, graph in enumerate(graphs):
        shares = {} if device.host is not None else _launch_shares(graph)
        for part in (*_parts(graph), *(each for each in breaks if each.graph == number)):
            if isinstance(part, Region):
                key = part.signature
                cost = regions.get(key) or regions.setdefault(key, _region_cost(part, device))
                saved = min(cost.bound, TimeModel.of(device).launch * (1 - shares.get(part, 1.0)))
                cost = replace(cost, bound=cost.bound - saved, predicted=cost.predicted - saved)
            else:
                cost = op_cost(part.node, device) if isinstance(part, Left) else _UNKNOWN
            timed = times.get(part.node if isinstance(part, Left) else part, math.nan)
            units.append(UnitCost(
                graph=number, kind=graph.kind, part=part, runs=graph.runs, cost=cost, measured=timed,
                gain=_gain(cost, graph.runs, timed, is_same=is_same),
            ))
    titles = graph_titles(graphs)
    rows = [_row(group, titles if len(titles) > 1 else ()) for group in _equal(units)]
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
        memory=memory_line(graphs),
    )


def _launch_shares(graph: "CapturedGraph") -> dict[Region, float]:
    """Return the share of a launch that each region takes if one launch runs several of them."""
    lists = planned_lists(units_of(graph), lambda unit: {base_of(node) for node in read_by(unit)})
    return {region: 1 / len(listed) for listed in lists for region in listed}


def _or_zero(value: float) -> float:
    return 0.0 if math.isnan(value) else value


def _region_cost(region: Region, device: Device) -> OpCost:
    """Return the cost of a region; if it cannot be planned, only what its results are."""
    with suppress(FuserLabError):
        return region_cost(region, device)
    moved = sum(map(op_bytes, region.call_nodes))
    flops = sum(map(op_flops, region.call_nodes))
    return replace(_UNKNOWN, bytes=moved, flops=flops, limit="bytes")


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
            groups[unit.kind, part.signature, unit.cost].append(unit)
        else:
            call = call_of(part.node) if isinstance(part, Left) else None
            sizes = None if call is None else repr((call.tensors, call.results))
            groups[unit.kind, part.op, sizes, part.origin.code, part.origin.place].append(unit)
    return groups.values()


def _gain(cost: OpCost, runs: int, measured: float, *, is_same: bool) -> float:
    """Return the seconds above the bound; of a time on another device than the bound's, the predicted share."""
    bound, predicted = runs * cost.bound, runs * cost.predicted
    if math.isnan(measured) or is_same or not cost.limit:
        gain = (predicted if math.isnan(measured) else measured) - bound
    else:
        gain = measured * (1 - bound / predicted) if predicted else 0.0
    return gain if math.isnan(gain) else max(0.0, gain)


def _row(units: Sequence[UnitCost], titles: Sequence[str]) -> StepRow:
    first, count = units[0], sum(unit.runs for unit in units)
    part, cost = first.part, first.cost
    modules = [common_path(paths) for paths in zip(*(unit.modules for unit in units), strict=False)]
    more = ", …" if len(modules) > 2 else ""
    return StepRow(
        what=f"{titles[first.graph]} {first.name}" if titles else first.name, units=tuple(units), count=count,
        ops=count * (len(part) if isinstance(part, Region) else 1), module=f"{', '.join(modules[:2])}{more}",
        line=first.line, bytes=count * cost.bytes, flops=count * cost.flops, bound=count * cost.bound, limit=cost.limit,
        predicted=count * cost.predicted, measured=math.fsum(unit.measured for unit in units),
        gain=math.fsum(unit.gain for unit in units),
    )
