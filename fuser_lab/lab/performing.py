"""Execution of a task, as rows of a ledger, in this process or in a worker of dask.distributed."""

import functools
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from fuser_lab.api.functions import time as time_plans
from fuser_lab.codegen.pipeline import evaluated_because
from fuser_lab.definition.builder import FusionBuilder
from fuser_lab.definition.repro import read_script
from fuser_lab.definition.spec import TensorSpec
from fuser_lab.errors import FuserLabError
from fuser_lab.ir import Fusion
from fuser_lab.lab.environment import environment, now
from fuser_lab.lab.rows import plan_columns, text_hash, timing_rows
from fuser_lab.lab.schema import Row
from fuser_lab.lab.tasks import Task, Work, with_schedule
from fuser_lab.plan import Plan, Segment
from fuser_lab.plan.planning import segment
from fuser_lab.runtime.arrays import from_numpy_as
from fuser_lab.runtime.gpu.device import DeviceMemory
from fuser_lab.runtime.plan.ahead import compile_kernel
from fuser_lab.targets import has_own_memory, is_on_host
from fuser_lab.version import __version__

Peers = Mapping[str, Callable[..., Any]]


def perform(task: Task, peers: Peers | None = None, *, run: str = "", version: str = __version__) -> list[Row]:
    """Return the rows of a task; an error becomes a row with the reason in ``failure``.

    The last row has ``elapsed``. The environment is looked up once in each process for each ``run``.
    """
    start = time.perf_counter()
    refusal = task.refusal
    if version != __version__:
        refusal = f"the sweep was created by fuser_lab {version}, and this worker has {__version__}."
    try:
        rows = [{"failure": refusal}] if refusal else _WORK[task.work](task, peers or {})
    except FuserLabError as error:
        rows = [{"failure": " ".join(str(error).split())}]
    except Exception as error:  # noqa: BLE001 - whatever goes wrong, other tasks go on
        rows = [{"failure": f"{type(error).__name__}: {' '.join(str(error).split())}"}]
    common = {**_environment(run), **_task_columns(task), "measurement": uuid.uuid4().hex, "measured_at": now()}
    full_rows = [{**common, **row} for row in rows]
    full_rows[-1]["elapsed"] = time.perf_counter() - start
    return full_rows


def failure_rows(task: Task, sentence: str) -> list[Row]:
    """Return the rows of a task that no worker could finish."""
    row = {"measurement": uuid.uuid4().hex, "measured_at": now(), "failure": sentence, "elapsed": 0.0}
    return [{**_task_columns(task), **row}]


def compiled_ahead(task: Task, capabilities: tuple[tuple[int, int], ...]) -> None:
    """Compile the kernels of a task for GPUs, so that they are on disk when it is measured, which reports failures."""
    if task.refusal:
        return
    try:
        for part in _plan(task).segments:
            for capability in capabilities:
                _compile(part, task.device, capability)
    except Exception:  # noqa: BLE001 - the measurement compiles it again, and says what is wrong
        return


def capability() -> tuple[int, int]:
    """Return the compute capability of this process's GPU."""
    return DeviceMemory().capability()


def _task_columns(task: Task) -> Row:
    return {
        "subject": task.subject, "fusion": task.fusion, "fusion_hash": task.fusion_hash, "plan": task.plan_name,
        "strategy": task.strategy, "target": task.target.name, "sweep": task.sweep, "task": task.key,
        "work": task.work.value,
    }


@functools.lru_cache(maxsize=1)
def _environment(run: str) -> Row:
    return environment().to_dict()


@functools.lru_cache(maxsize=64)
def _definition(text: str) -> Fusion:
    return read_script(text, FusionBuilder)[0].fusion


def _plan(task: Task) -> Plan:
    plan = segment(
        _definition(task.fusion), task.inputs, strategy=task.strategy, target=task.target, options=task.options,
    )
    return with_schedule(plan, task.schedule, task.device)


def _cut_rows(task: Task, peers: Peers) -> list[Row]:
    """Return a row per segment and one of the plan; a segment that no scheduler accepts has the reasons as its note."""
    return _plan_rows(_plan(task))


def _proof_rows(task: Task, peers: Peers) -> list[Row]:
    plan = _plan(task)
    certificate = plan.certificate()
    *segments, whole = _plan_rows(plan)
    totals = {
        "cost": certificate.cost, "bound": certificate.bound, "known": certificate.known, "note": certificate.status,
    }
    return [*segments, {**whole, **totals}]


def _compiled_rows(task: Task, peers: Peers) -> list[Row]:
    """Return a row per segment with its kernel; for CUDA, the note has the compiler's figures."""
    plan = _plan(task)
    *rows, whole = _plan_rows(plan)
    for part, row in zip(plan.segments, rows, strict=True):
        if evaluated_because(part.fusion, part.scheduler):
            continue
        _compile(part, task.device, plan.oracle.device.cc)
        row["schedule"] = "\n".join(str(nest) for nest in part.params(task.device))
        row["kernel_hash"] = text_hash(part.kernel(task.device).source)
        if has_own_memory(task.device):
            row["note"] = "; ".join(map(str, part.launches()))
    return [*rows, whole]


def _time_rows(task: Task, peers: Peers) -> list[Row]:
    plan = _plan(task).renamed(task.plan_name)
    inputs = [value.materialize() if isinstance(value, TensorSpec) else value for value in task.inputs]
    if has_own_memory(task.device):
        inputs = [_move(value, task.device) for value in inputs]
    times = time_plans(plan, inputs, peers=peers, seconds=task.seconds, progress=False)
    task_columns = {"subject": task.subject, "fusion": task.fusion, "fusion_hash": task.fusion_hash}
    return [{**row, **task_columns, **_cut_by(task, row)} for row in timing_rows(times, [plan])]


def _cut_by(task: Task, row: Row) -> Row:
    """Return strategy and target; a peer has neither."""
    is_plan = row["segment"] is not None or bool(row["plan_hash"])
    return {"strategy": task.strategy, "target": task.target.name} if is_plan else {"strategy": None, "target": None}


def _compile(part: Segment, target: str, capability: tuple[int, int]) -> None:
    if not evaluated_because(part.fusion, part.scheduler):
        compile_kernel(part.kernel(target), None if is_on_host(target) else capability)


def _move(value: Any, device: str) -> Any:
    return from_numpy_as("torch", value).to(device) if hasattr(value, "dtype") else value


def _plan_rows(plan: Plan) -> list[Row]:
    """Return a row per segment, then one for the whole plan."""
    plan_row = {**plan_columns(plan), "plan_hash": plan.hash}
    del plan_row["fusion"], plan_row["fusion_hash"]  # the task has them
    rows = [
        {
            **plan_row, "segment": part.index, "ops": len(part.exprs), "bytes_in": part.bytes_in,
            "bytes_out": part.bytes_out,
            "bytes_crossing": part.bytes_crossing, "scheduler": part.scheduler.value if part.scheduler else "",
            "note": "" if part.scheduler else part.group.answer.text,
        }
        for part in plan.segments
    ]
    totals = {name: sum(int(row[name]) for row in rows) for name in ("ops", "bytes_in", "bytes_out")}
    return [*rows, {**plan_row, **totals, "segments": len(rows), "bytes_crossing": plan.bytes_crossing}]


_WORK: dict[Work, Callable[[Task, Peers], list[Row]]] = {
    Work.SEGMENT: _cut_rows, Work.CERTIFICATE: _proof_rows, Work.COMPILE: _compiled_rows, Work.TIME: _time_rows,
}
