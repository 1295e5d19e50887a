"""`fuser_lab.profile`: a plan's segments with their counters, predictions and what bounds them."""

import math
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final

from fuser_lab.api.functions import time
from fuser_lab.arguments import ANYTHING, instance, list_of, number, optional, takes
from fuser_lab.codegen.pipeline import evaluated_because
from fuser_lab.cost.traffic import CostModel
from fuser_lab.definition.binding import bind
from fuser_lab.definition.spec import TensorSpec
from fuser_lab.errors import CodegenError, CompilationError, InputError, UnsupportedError
from fuser_lab.files.json_text import json_text
from fuser_lab.lab.calibration import machine_model
from fuser_lab.lab.environment import environment, now
from fuser_lab.lab.ledger import Ledger
from fuser_lab.lab.profiling import ncu
from fuser_lab.lab.profiling.counters import LINE, count_events
from fuser_lab.lab.profiling.ncu import KernelCounters
from fuser_lab.lab.profiling.statements import ProfiledStatement, profiled_statements
from fuser_lab.lab.rows import kernel_columns, plan_columns
from fuser_lab.passes import PASSES
from fuser_lab.plan import Plan, Segment
from fuser_lab.plan.planning import described_input, flatten, has_arrays
from fuser_lab.report.plots import Load, loads
from fuser_lab.report.records import Records
from fuser_lab.report.tables import Table
from fuser_lab.report.units import bytes_label, seconds_label
from fuser_lab.report.view import View
from fuser_lab.runtime.arrays import describe
from fuser_lab.runtime.binding import device_of
from fuser_lab.schedule.registry import SCHEDULERS
from fuser_lab.segmentation import STRATEGIES
from fuser_lab.targets import CPU, CUDA, has_own_memory

COUNTERS, FACTS, ROOFLINE = "counters", "compiled code", "roofline"
_NEAR: Final = 0.6  # minimum share of the roofline for the roof to count as the bound
_RUNS: Final = 5  # runs of a segment between two readings of a counter


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfiledSegment:
    """One segment with counted, predicted and measured figures; NaN for unknown ones.

    Attributes
    ----------
    segment, scheduler, kernels
        Number, scheduler and names of its launches.
    bytes, operations
        Bytes read and written, and arithmetic operations, both counted from the fusion.
    predicted
        Minimum seconds for these on the device, by its data sheet or by the calibrated model of the CPU.
    seconds
        Measured seconds.
    dram_bytes, l2_bytes
        Bytes that hardware counters saw.
    occupancy, registers, shared, spilled
        Share of a multiprocessor's warps, registers per thread, bytes of shared memory per block, and bytes spilled per
        thread: the maximum over its launches, and the minimum for the occupancy.
    stall, bank_conflicts
        What warps wait for most, and bank conflicts of shared memory.
    bound
        ``"memory"``, ``"L2"``, ``"arithmetic"``, ``"launches"``, ``"latency"``, or ``""`` if nothing runs.
    sentence
        What bounds it, with numbers as evidence.
    source
        ``"counters"``, ``"compiled code"`` or ``"roofline"``: the source of these figures.
    counters
        What Nsight Compute counted in each launch, in the order of ``kernels``; empty without it.
    """

    segment: int
    scheduler: str
    kernels: tuple[str, ...]
    bytes: int
    operations: int
    predicted: float
    seconds: float = math.nan
    dram_bytes: float = math.nan
    l2_bytes: float = math.nan
    occupancy: float = math.nan
    registers: float = math.nan
    shared: float = math.nan
    spilled: float = math.nan
    stall: str = ""
    bank_conflicts: float = math.nan
    bound: str
    sentence: str
    source: str
    counters: tuple[KernelCounters, ...] = ()


_COLUMNS: Final = (
    ("segment", "segment"), ("scheduler", "scheduler"), ("bytes", "bytes counted"), ("dram_bytes", "DRAM bytes"),
    ("l2_bytes", "L2 bytes"), ("operations", "operations"), ("predicted", "at best [s]"), ("seconds", "measured [s]"),
    ("occupancy", "occupancy"), ("registers", "registers"), ("shared", "shared [bytes]"),
    ("spilled", "spilled [bytes]"), ("stall", "stall"), ("bank_conflicts", "bank conflicts"), ("bound", "bound by"),
    ("sentence", "why"), ("source", "source"),
)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class PlanProfile(View):
    """The segments of a plan in order; ``device`` is what ran, or what they were compiled for.

    ``statements`` are those of the kernels' source that read or write memory, ``target`` the target of these kernels
    (``"cpu"`` or ``"cuda"``), ``plan_hash`` the hash of the plan.
    """

    what: ClassVar[str] = "a profile"
    plan: str
    device: str
    rows: tuple[ProfiledSegment, ...]
    why_no_counters: str = ""
    statements: tuple[ProfiledStatement, ...] = ()
    target: str = ""
    plan_hash: str = ""

    @property
    def note(self) -> str:
        """What bounds each segment."""
        lines = [f"S{row.segment}: {row.sentence}" for row in self.rows]
        if self.why_no_counters:
            lines.append(f"Without hardware counters: {self.why_no_counters}")
        return "\n".join((f"{self.plan} on {self.device}.", *lines))

    def _table(self) -> Table:
        rows = tuple(
            (
                f"S{r.segment}", r.scheduler, bytes_label(r.bytes), _bytes(r.dram_bytes), _bytes(r.l2_bytes),
                seconds_label(r.predicted), "" if math.isnan(r.seconds) else seconds_label(r.seconds),
                "" if math.isnan(r.occupancy) else f"{r.occupancy:.0%}", _count(r.registers), _bytes(r.shared),
                _bytes(r.spilled), r.stall, _count(r.bank_conflicts), r.bound, r.source,
            )
            for r in self.rows
        )
        columns = (
            "segment", "scheduler", "counted", "DRAM", "L2", "at best", "measured", "occupancy", "registers", "shared",
            "spilled", "stall", "bank conflicts", "bound by", "source",
        )
        columns_with_values = [
            n for n, name in enumerate(columns) if name in {"segment", "bound by"} or any(row[n] for row in rows)
        ]
        shown = tuple(columns[n] for n in columns_with_values)
        numeric = frozenset(shown) - {"segment", "scheduler", "stall", "bound by", "source"}
        return Table(
            columns=shown, rows=tuple(tuple(row[n] for n in columns_with_values) for row in rows), numeric=numeric,
        )

    def _records(self) -> Records:
        rows = tuple(tuple(getattr(row, field) for field, _ in _COLUMNS) for row in self.rows)
        return Records(columns=tuple(name for _, name in _COLUMNS), rows=rows)


@takes(
    plan=instance(Plan), inputs=optional(list_of(ANYTHING, "a list of arrays and numbers")),
    seconds=number(0), ledger=optional(instance(Ledger)),
)
def profile(
    plan: Plan, inputs: Sequence[Any] | None = None, *, seconds: float = 0.2, ledger: Ledger | None = None,
) -> PlanProfile:
    """Return what bounds each segment of a plan, with counters and predictions as evidence.

    ``statements`` of the result are the lines of the kernels' source that read or write memory, with their bytes; the
    explorer shows them beside the source.

    On a GPU, Nsight Compute (``ncu``) counts bytes of memory and L2, occupancy, stalls and bank conflicts of each
    launch, in another process with inputs of the same description. Without it, or without arrays, the compiled code
    gives registers, shared memory, spills and occupancy on the plan's target; no GPU is needed. On the CPU, bytes are
    those of cache misses if the system lets a process count them; otherwise the measured time is compared with the
    roofline of this machine (`fuser_lab.lab.calibration.machine_model`; Williams, Waterman and Patterson 2009).

    Parameters
    ----------
    plan
        Its segments are profiled within one run of the plan.
    inputs
        Arrays decide where it runs; with None or descriptions, nothing runs.
    seconds
        Maximum time of each measurement of times.
    ledger
        A ledger that also stores one row per segment (``subject`` is ``"profile"``) and one per statement (``"profile
        of a line"``): ``note`` is the sentence or the line, ``tags`` the numbers as JSON.

    Raises
    ------
    InputError
        If the inputs do not fit.
    SegmentationError
        If the plan runs and no scheduler accepts some segment.
    """
    abstract = inputs is None or any(isinstance(value, TensorSpec) for value in inputs) or not has_arrays(inputs)
    if inputs is None or abstract:
        _check(plan, inputs)
        profiled = _estimate(plan)
    elif has_own_memory(device_of([describe(value) for value in inputs])):
        profiled = _on_gpu(plan, inputs, seconds)
    else:
        profiled = _on_cpu(plan, inputs, seconds)
    took = {row.segment: row.seconds for row in profiled.rows}
    profiled = replace(profiled, statements=profiled_statements(plan, profiled.target, took), plan_hash=plan.hash)
    if ledger is not None:
        _store(profiled, plan, ledger)
    return profiled


def _check(plan: Plan, inputs: Sequence[Any] | None) -> None:
    """Refuse descriptions of inputs other than the plan's, which is what is profiled."""
    if inputs is None:
        return
    bound = bind(plan.definition, [described_input(value) for value in flatten(inputs)]).inputs
    for place, (ours, theirs) in enumerate(zip(plan.inputs, bound, strict=True)):
        sizes = [size.shape if isinstance(size, TensorSpec) else size for size in (ours, theirs)]
        if sizes[0] != sizes[1]:
            msg = f"profile: input {place} of the plan is {sizes[0]}, given {sizes[1]}; fl.segment makes a plan for it."
            raise InputError(msg)


def _estimate(plan: Plan, why: str = "", measured: dict[int, float] | None = None, device: str = "") -> PlanProfile:
    target = plan.oracle.device
    model = CostModel.of(target)
    rows = []
    for segment, load in zip(plan.segments, loads(plan), strict=True):
        took = (measured or {}).get(segment.index, math.nan)
        predicted = _at_best(load, model, target.fp32 * 1e12)
        bound, sentence = _by_roofline(load, model, predicted, took, target.fp32 * 1e12, target.name)
        facts: dict[str, Any] = {}
        names: tuple[str, ...] = ()
        try:
            launches = () if evaluated_because(segment.fusion, segment.scheduler) else segment.launches()
        except (CodegenError, CompilationError, UnsupportedError) as error:
            launches = ()
            sentence += f" Its code is not known: {error}"
        if launches:
            names = tuple(launch.name for launch in launches)
            least = min(launches, key=lambda launch: launch.occupancy)
            facts = {
                "occupancy": least.occupancy, "registers": float(max(launch.registers for launch in launches)),
                "shared": float(max(launch.shared for launch in launches)),
                "spilled": float(max(launch.spilled for launch in launches)),
            }
            sentence += f" {len(launches)} launches: " if len(launches) > 1 else " "
            sentence += (
                f"{least.resident} blocks fit on a multiprocessor, limited by {least.limit}, so at most "
                f"{least.occupancy:.0%} of its warps are active"
            )
            blocks = max(launch.blocks for launch in launches)
            few = f"; {blocks} blocks leave {target.sms - blocks} of {target.sms} multiprocessors idle"
            sentence += f"{few if blocks < target.sms else ''}."
            if facts["spilled"]:
                sentence += f" Threads spill {facts['spilled']:.0f} bytes to memory."
        rows.append(ProfiledSegment(
            segment=segment.index, scheduler=_scheduler(segment), kernels=names, bytes=load.bytes,
            operations=load.operations, predicted=predicted, seconds=took, bound=bound, sentence=sentence,
            source=FACTS if launches else ROOFLINE, **facts,
        ))
    name = device or target.name
    return PlanProfile(plan=plan.name, device=name, rows=tuple(rows), why_no_counters=why, target=CUDA.name)


def _on_gpu(plan: Plan, inputs: Sequence[Any], seconds: float) -> PlanProfile:
    times = time(plan, inputs, seconds=seconds, progress=False)
    took = {row.segment: row.median for row in times.rows if row.segment is not None and row.samples}
    device = times.rows[-1].device
    try:
        kernels = ncu.measure_launches(_script(plan))
        return counted_profile(_estimate(plan, measured=took, device=device), kernels)
    except UnsupportedError as error:
        return _estimate(plan, str(error), took, device)


def _script(plan: Plan) -> str:
    if plan.oracle.schedulers != SCHEDULERS or plan.passes != PASSES or plan.strategy not in STRATEGIES:
        msg = "profile: ncu runs the plan in another process, which has no schedulers, passes or strategies of yours."
        raise UnsupportedError(msg)
    return plan.to_python()


def counted_profile(compiled: PlanProfile, kernels: Sequence[KernelCounters]) -> PlanProfile:
    """Return a profile with the counters of a run's launches, matched to the segments in order.

    Raises
    ------
    UnsupportedError
        If there are not as many launches as the segments' kernels.
    """
    expected = sum(len(row.kernels) for row in compiled.rows)
    ours = [kernel for kernel in kernels if any(name in kernel.name for row in compiled.rows for name in row.kernels)]
    if len(ours) != expected:
        raise UnsupportedError(f"profile: ncu saw {len(ours)} launches of the plan's {expected} kernels.")
    left = iter(ours)
    rows = tuple(_with_counters(row, [next(left) for _ in row.kernels]) for row in compiled.rows)
    return replace(compiled, rows=rows, why_no_counters="")


def _with_counters(row: ProfiledSegment, kernels: Sequence[KernelCounters]) -> ProfiledSegment:
    if not kernels:
        return row
    longest = max(kernels, key=lambda kernel: kernel.seconds)
    stall = longest.top_stall
    said = longest.sentence(row.bytes if len(kernels) == 1 else 0)
    if len(kernels) > 1:
        said = f"Of {len(kernels)} launches, the longest is {longest.name}. {said}"
    return replace(
        row, seconds=sum(kernel.seconds for kernel in kernels), dram_bytes=sum(kernel.dram_bytes for kernel in kernels),
        l2_bytes=sum(kernel.l2_bytes for kernel in kernels), occupancy=longest.occupancy,
        registers=max(kernel.registers for kernel in kernels), stall=f"{stall[0]} {stall[1]:.0%}" if stall else "",
        bank_conflicts=sum(kernel.bank_conflicts for kernel in kernels), bound=longest.bound, sentence=said,
        source=COUNTERS,
        counters=tuple(kernels),
    )


def _on_cpu(plan: Plan, inputs: Sequence[Any], seconds: float) -> PlanProfile:
    times = time(plan, inputs, seconds=seconds, progress=False)
    took = {row.segment: row.median for row in times.rows if row.segment is not None and row.samples}
    missed, why = _cache_misses(plan, inputs)
    rows = []
    for segment, load in zip(plan.segments, loads(plan), strict=True):
        model = machine_model(CPU.name, max(load.bytes, 1))
        predicted = _at_best(load, model, math.inf)
        measured = took.get(segment.index, math.nan)
        bound, sentence = _by_roofline(load, model, predicted, measured, math.inf, "this CPU")
        dram = missed.get(segment.index, math.nan)
        if dram > 0 and load.bytes:
            sentence += (
                f" Cache misses amount to {bytes_label(round(dram))}, {dram / load.bytes:.2f} times the bytes counted."
            )
        rows.append(ProfiledSegment(
            segment=segment.index, scheduler=_scheduler(segment), kernels=(), bytes=load.bytes,
            operations=load.operations, predicted=predicted, seconds=measured, dram_bytes=dram, bound=bound,
            sentence=sentence, source=ROOFLINE if math.isnan(dram) else COUNTERS,
        ))
    device = times.rows[-1].device
    return PlanProfile(plan=plan.name, device=device, rows=tuple(rows), why_no_counters=why, target=CPU.name)


def _cache_misses(plan: Plan, inputs: Sequence[Any]) -> tuple[dict[int, float], str]:
    """Return the bytes of cache misses per segment, from hardware counters, or why there are none."""
    bound = plan.prepare(CPU.name).bind(list(inputs))
    bytes_of: dict[int, float] = {}
    try:
        with count_events() as read:
            for segment, step in zip(plan.segments, bound.steps, strict=True):
                step()
                before = read()
                for _ in range(_RUNS):
                    step()
                bytes_of[segment.index] = (read() - before) * LINE / _RUNS
    except UnsupportedError as error:
        return {}, str(error)
    return bytes_of, ""


def _at_best(load: Load, model: CostModel, peak: float) -> float:
    """Return the longer of the times for bytes and for operations, but at least that of a launch."""
    return max(load.bytes / model.bandwidth, load.operations / peak, model.launch if load.bytes else 0.0)


def _by_roofline(
    load: Load, model: CostModel, predicted: float, took: float, peak: float, device: str,
) -> tuple[str, str]:
    moving, computing = load.bytes / model.bandwidth, load.operations / peak
    if not load.bytes:
        return "", "Nothing is read or written."
    roof = "launches" if model.launch >= max(moving, computing) else "memory" if moving >= computing else "arithmetic"
    cause = {
        "launches": f"a launch takes {seconds_label(model.launch)}",
        "memory": f"{bytes_label(load.bytes)} take {seconds_label(moving)} at {model.bandwidth / 1e9:.0f} GB/s",
        "arithmetic": f"{load.operations:.3g} operations take {seconds_label(computing)}",
    }[roof]
    if math.isnan(took):
        return roof, f"By the roofline of {device}, bound by {_NAMES[roof]}: {cause}."
    share = predicted / took if took > 0 else math.nan
    if share >= _NEAR:
        return roof, f"Bound by {_NAMES[roof]}: {cause}, and it took {seconds_label(took)}."
    return "latency", (
        f"Bound by latency or computation: {cause}, but it took {seconds_label(took)}, {1 / share:.1f} times as long."
    )


_NAMES: Final = {"memory": "memory", "arithmetic": "arithmetic", "launches": "launch overhead"}


def _scheduler(segment: Segment) -> str:
    return segment.scheduler.value if segment.scheduler else "none"


def _store(profiled: PlanProfile, plan: Plan, ledger: Ledger) -> None:
    shared = {
        "measured_at": now(), "measurement": uuid.uuid4().hex, **environment().to_dict(), **plan_columns(plan),
        "plan": profiled.plan, "plan_hash": plan.hash, "device": profiled.device,
    }
    for row in profiled.rows:
        values = dict(zip((name for _, name in _COLUMNS), (getattr(row, f) for f, _ in _COLUMNS), strict=True))
        counters = {
            name: value for name, value in values.items()
            if not (isinstance(value, float) and math.isnan(value)) and name not in {"segment", "scheduler", "why"}
        }
        segment = plan.segments[row.segment]
        ledger.append({
            **shared, **kernel_columns(segment, profiled.target), "segment": row.segment, "scheduler": row.scheduler,
            "ops": len(segment.exprs), "bytes_in": segment.bytes_in, "bytes_out": segment.bytes_out,
            "median": None if math.isnan(row.seconds) else row.seconds, "subject": "profile", "note": row.sentence,
            "tags": json_text(counters),
        })
    for statement in profiled.statements:
        numbers: dict[str, Any] = {
            "kernel": statement.kernel, "line": statement.line, "tensor": statement.tensor,
            "access": "write" if statement.write else "read", "bytes": round(statement.bytes),
            "tensor bytes": statement.tensor_bytes, "share": statement.share, "at most": statement.at_most,
        }
        if not math.isnan(statement.seconds):
            numbers["seconds"] = statement.seconds
        ledger.append({
            **shared, "segment": statement.segment, "subject": "profile of a line", "note": statement.text,
            "tags": json_text(numbers),
        })


def _bytes(value: float) -> str:
    return "" if math.isnan(value) else bytes_label(round(value))


def _count(value: float) -> str:
    return "" if math.isnan(value) else f"{value:,.0f}"
