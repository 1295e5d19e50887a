"""Plans and timings as rows of a ledger."""

import functools
import math
from collections.abc import Iterator, Sequence
from hashlib import sha256

from fuser_lab.cost import measured_times as measured
from fuser_lab.cost.measured_times import TimingRow
from fuser_lab.definition.builder import FusionBuilder
from fuser_lab.definition.python_text import definition_text
from fuser_lab.definition.repro import read_script
from fuser_lab.definition.spec import TensorSpec
from fuser_lab.errors import FuserLabError
from fuser_lab.files.json_text import json_text
from fuser_lab.ir import Fusion
from fuser_lab.lab.environment import environment, now
from fuser_lab.lab.schema import Row
from fuser_lab.plan import Plan, Segment
from fuser_lab.targets import target_of_label


def timing_rows(timings: measured.Timings, plans: Sequence[Plan]) -> Iterator[Row]:
    """Yield timings as rows; ``plans`` are those that were timed, and describe what was measured."""
    where = dict(timings.environment) or {"measured_at": now(), **environment().to_dict()}
    shared = {
        **where, "load": timings.system_load, "cores": timings.cores, "preallocated": timings.preallocated,
    }
    plan_of = {plan.hash: plan for plan in plans}
    described = {plan.hash: plan_columns(plan) for plan in plans}
    for row in timings.rows:
        plan = plan_of.get(row.plan_hash) or (next(iter(plans)) if plans and row.segment is None else None)
        yield {**shared, **_measured_columns(row), **(described[plan.hash] if plan else {}), **_kernel(plan, row)}


def plan_columns(plan: Plan) -> Row:
    """Return the columns that describe a plan: its fusion, the inputs and how it was cut."""
    text = canonical_text(plan.definition)
    return {
        "fusion": text, "fusion_hash": text_hash(text), "plan_python": plan.to_python(), "strategy": plan.strategy,
        "target": plan.target,
        "sizes": json_text([list(d.shape) if isinstance(d, TensorSpec) else d for d in plan.inputs]),
        "dtypes": json_text([d.dtype.name if isinstance(d, TensorSpec) else type(d).__name__ for d in plan.inputs]),
        "strides": json_text([list(d.strides) if isinstance(d, TensorSpec) else None for d in plan.inputs]),
    }


@functools.lru_cache(maxsize=256)
def canonical_text(fusion: Fusion) -> str:
    """Return a definition as text that is the same for definitions that differ only in tensor names.

    Names are those that reading the text assigns; a definition whose text cannot be read keeps its own.
    """
    text = definition_text(fusion)
    try:
        builder, _ = read_script(text, FusionBuilder)
    except FuserLabError:
        return text
    return definition_text(builder.fusion)


def text_hash(text: str) -> str:
    """Return the hash by which rows name a text."""
    return sha256(text.encode()).hexdigest()[:16]


def _measured_columns(row: TimingRow) -> Row:
    return {
        "plan": row.plan, "segment": row.segment, "scheduler": row.scheduler, "plan_hash": row.plan_hash,
        "ops": row.ops, "bytes_in": row.bytes_in, "bytes_out": row.bytes_out, "bytes_crossing": row.bytes_crossing,
        "median": row.median, "low": row.low, "high": row.high, "warm": row.warm, "kernels": row.kernels,
        "samples": list(row.seconds), "cache": "warm" if math.isnan(row.warm) else "cold",
        "timer": row.timer, "clocks": row.clocks, "error": row.error, "note": row.note, "subject": row.group,
        "device": row.device,
    }


def _kernel(plan: Plan | None, row: TimingRow) -> Row:
    if plan is None or row.segment is None:
        return {}
    target = target_of_label(row.device).name
    try:
        segment = plan.segments[row.segment]
    except FuserLabError:
        return {}
    return kernel_columns(segment, target)


def kernel_columns(segment: Segment, target: str) -> Row:
    """Return the schedule and the hash of a segment's kernel; nothing if the array library evaluates the segment."""
    try:
        schedule = "\n".join(str(nest) for nest in segment.params(target))
        kernel = text_hash(segment.kernel(target).source)
    except FuserLabError:
        return {}
    return {"schedule": schedule, "kernel_hash": kernel}
