"""Every public function and method with legal arguments, each of which tests replace by illegal ones."""

import contextlib
import enum
import importlib
import itertools
import math
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from fuser_lab_widgets import Explorer
from machine import allowed

import fuser_lab as fl
from fuser_lab import DataType, FusionDefinition, ParallelType, teaching
from fuser_lab.compilers.record import KernelRecord, PlanRecord, RecordedPlan, Recording, text_of_recording
from fuser_lab.definition.spec import Fill
from fuser_lab.execution.validation import get_val_tolerances
from fuser_lab.segmentation import SegmenterOptions
from tests.unit.public_bindings import binding_calls
from tests.unit.public_call import TENSOR, Call, X, given
from tests.unit.public_schedules import schedule_calls

SLOWEST = 5.0  # processor seconds
MOST_BYTES = 1 << 31  # of memory that a call may allocate in addition to the process's


class TooSlow(BaseException):
    """Raised inside a call that takes too long; no ``except Exception`` catches it."""


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Interrupts longer calls where signals can arrive: in the main thread of a POSIX system.

    ``seconds`` are processor seconds, which other work on the machine does not affect; waiting may take longer, and a
    slower machine has more of both.
    """
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        yield
        return

    def interrupt(*_: object) -> None:
        raise TooSlow

    seconds = allowed(seconds)
    limits = ((signal.SIGPROF, signal.ITIMER_PROF, seconds), (signal.SIGALRM, signal.ITIMER_REAL, 12 * seconds))
    before = [(number, signal.signal(number, interrupt)) for number, _, _ in limits]
    for _, timer, limit in limits:
        signal.setitimer(timer, limit)
    try:
        with _limited_memory():
            yield
    finally:
        for _, timer, _ in limits:
            signal.setitimer(timer, 0)
        for number, handler in before:
            signal.signal(number, handler)


@contextmanager
def _limited_memory() -> Iterator[None]:
    """Limits allocations: code in C, which no signal interrupts, makes a list of an endless iterator."""
    if not sys.platform.startswith("linux"):
        yield
        return
    import resource

    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    most = used + MOST_BYTES if hard == resource.RLIM_INFINITY else min(used + MOST_BYTES, hard)
    resource.setrlimit(resource.RLIMIT_AS, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


class Colour(enum.Enum):
    """An object unknown to fuser_lab."""

    RED = "red"


class Plain:
    """Accepts any arguments: exceptions of a callback itself are not fuser_lab's."""

    def __init__(self, *_: object, **__: object) -> None:
        """Do nothing."""


class Hostile:
    """An object with which every operation fails."""

    def __repr__(self) -> str:
        raise RuntimeError

    def __eq__(self, other: object) -> bool:
        raise RuntimeError

    __hash__ = None


def _self_containing() -> tuple[list[Any], dict[str, Any]]:
    loop: list[Any] = []
    loop.append(loop)
    knot: dict[str, Any] = {}
    knot["knot"] = knot
    return loop, knot


def _deep(levels: int) -> list[Any]:
    found: list[Any] = []
    for _ in range(levels):
        found = [found]
    return found


LOOP, KNOT = _self_containing()
DEEP = _deep(100_000)  # made once: the collector walks what is made, level by level

# Values that replace an argument. Each is created per call, because a call may exhaust an iterator.
WRONG: dict[str, Callable[[], Any]] = {
    "None": lambda: None,
    "True": lambda: True,
    "1": lambda: 1,
    "-1": lambda: -1,
    "2**31": lambda: 2**31,
    "2**63": lambda: 2**63,
    "10**400": lambda: 10**400,
    "-10**400": lambda: -(10**400),
    "10**5000": lambda: 10**5000,
    "0.5": lambda: 0.5,
    "nan": lambda: math.nan,
    "inf": lambda: math.inf,
    "1e300": lambda: 1e300,
    "1j": lambda: 1j,
    "empty text": lambda: "",
    "text": lambda: "nonsense",
    "surrogate": lambda: "\udcff",
    "NUL": lambda: "a\0b",
    "long text": lambda: "x" * 100_000,
    "bytes": lambda: b"T0",
    "[]": list,
    "[None]": lambda: [None],
    "[[]]": lambda: [[]],
    "[10**400]": lambda: [10**400],
    "[nan, '\\udcff']": lambda: [math.nan, "\udcff"],
    "(1, 2)": lambda: (1, 2),
    "{}": dict,
    "{1: 2}": lambda: {1: 2},
    "set": lambda: {1, "a"},
    "list in itself": lambda: LOOP,
    "dict in itself": lambda: KNOT,
    "deep list": lambda: DEEP,
    "range(10**12)": lambda: range(10**12),
    "endless": lambda: itertools.repeat(1),
    "object": object,
    "hostile": Hostile,
    "class": lambda: Plain,
    "function": lambda: lambda *_, **__: None,
    "enum": lambda: Colour.RED,
    "array": lambda: np.arange(3),
    "array of text": lambda: np.array(["cpu", "cuda"]),
    "0-d array": lambda: np.array(1.0),
    "array of objects": lambda: np.array([None, "a"], dtype=object),
    "NaT": lambda: np.datetime64("NaT"),
    "np.bool": lambda: np.True_,
    "np.int8": lambda: np.int8(-1),
    "np.float64": lambda: np.float64("nan"),
    "DataType": lambda: DataType.Null,
    "spec": lambda: fl.spec((2, 3)),
    "path": lambda: Path("nowhere/at/all"),
}


def defined() -> FusionDefinition:
    """Rows minus their sums, exponentiated: two segments when cut at T2."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], True)
        s = fd.define_scalar(DataType.Double)
        fd.add_output(fd.ops.mul(fd.ops.exp(fd.ops.sub(x, fd.ops.sum(x, [1], keepdim=True))), s))
    return fd


INPUTS = [X, 2.0]


@dataclass(frozen=True, kw_only=True)
class World:
    """The objects of the calls; they may write to ``folder``."""

    fd: FusionDefinition
    plan: Any
    times: Any
    folder: Path
    script: str
    dump: str
    question_bank: Path


def world(folder: Path) -> World:
    """A definition in two segments, compiled and timed."""
    with contextlib.suppress(ImportError):  # the first call that needs torch takes seconds
        importlib.import_module("torch")
    fd = defined()
    plan = fl.segment(fd, INPUTS).cut("T2")
    times = fl.time(plan, INPUTS, progress=False, seconds=0.0)
    bank = folder / "questions.toml"
    bank.write_text('[[question]]\nasks = "How many?"\nbecause = "Counted."\n', encoding="utf-8")
    return World(
        fd=fd, plan=plan, times=times, folder=folder, script=fd.repro_script_for(INPUTS), dump=plan.to_dump(),
        question_bank=bank,
    )


def _recorded(folder: Path) -> Path:
    """A file with a plan of two kernels, as `fuser_lab.from_inductor` records one."""
    kernels = tuple(
        KernelRecord(
            names=(f"op{n}",), writes=(f"buf{n}",), reads=(), nodes=(), function="", launch=n, opaque=False, bytes=0,
            loops="[8]",
        )
        for n in range(2)
    )
    plan = PlanRecord(
        compiler="inductor", number=0, kind="inference", digest="", calls={}, attempts=(), kernels=kernels,
        groups=tuple(kernel.names for kernel in kernels), through={}, writers={"buf0": "op0", "buf1": "op1"},
        read_by={}, sources={}, output_code="",
    )
    path = folder / "step.fusions.json"
    path.write_text(text_of_recording(Recording(plans=(RecordedPlan(plan=plan),))), encoding="utf-8")
    return path


def opened() -> FusionDefinition:
    """An open definition."""
    return FusionDefinition().__enter__()


def _views(w: World, plan: Any, known: Any) -> dict[str, Call]:
    """Calls of `fuser_lab.views`, on rows such as a ledger has."""
    views = fl.views
    rows = [
        {"plan": "a", "fusion_hash": "f", "segment": None, "device": "CPU", "commit": commit, "measured_at": commit,
         "median": seconds, "samples": [seconds] * 20, "size": 4}
        for commit, seconds in (("1", 1.0), ("2", 2.0))
    ]
    return {
        "views.heat_map": Call(known(views.heat_map), (rows, "size", "commit"), {"value": "median"}),
        "views.frontier": Call(known(views.frontier), (w.times, [plan]), {"unit": "bytes"}),
        "views.history": Call(known(views.history), (rows,), {"plan": "a", "fusion": "f", "segment": None}),
        "views.regressions": Call(known(views.regressions), (rows, "1", "2"), {"ledger": "runs"}),
        "views.order_sensitivity": Call(known(views.order_sensitivity), (plan, 2), {"seed": 0}),
        "views.memory_orders": Call(known(views.memory_orders), (plan, 2), {"seed": 0, "states": 9}),
        "views.peak_memory": Call(known(views.peak_memory), (plan,)),
        **{
            f"views.{type(view).__name__}.save": Call(known(view.save), (w.folder / "view.csv",))
            for view in (
                views.heat_map(rows, "size", "commit"), views.frontier(w.times, [plan]), views.history(rows),
                views.regressions(rows), views.order_sensitivity(plan, 1), views.memory_orders(plan, 1),
            )
        },
    }


def calls(w: World) -> dict[str, Call]:
    """All public functions and methods with legal arguments, by name."""
    plan, fd, segment = w.plan, w.fd, w.plan.segments[0]
    known = lambda function: lambda: function  # noqa: E731
    with fl.FusionDefinition(cache=(cache := fl.FusionCache())) as other:
        t = other.define_tensor([4])
        other.add_output(other.ops.neg(t))
    cache.save(w.folder / "cache.json")
    explorer = fl.explore(plan)
    tuned = fl.tune(plan, INPUTS, segments=[], seconds=0.0, progress=False)
    softmax = fl.examples.get("softmax")
    ledger = fl.Ledger(w.folder / "ledger")
    measurement = ledger.add(w.times)
    swept = fl.sweep((fd, INPUTS), work="segment", name="calls")
    softmax_fd, rows = fl.example("softmax", "small")
    priced = fl.price(*fl.example("reshape_decides", "full"))
    found = {
        # fuser_lab
        "segment": Call(known(fl.segment), (fd, INPUTS), {
            "strategy": "top_down", "target": "A100", "options": SegmenterOptions(), "schedulers": fl.SCHEDULERS,
            "log": fl.DecisionLog(), "name": "a", "tuned": False,
        }),
        "time": Call(known(fl.time), ([plan], INPUTS), {
            "peers": {}, "progress": False, "cancelled": lambda: True, "seconds": 0.0,
            "ledger": ledger,
        }),
        "diff": Call(known(fl.diff), (plan, plan, plan)),
        "compare": Call(known(fl.compare), (w.times, w.times), {"confidence": 0.9}),
        "Comparison.save": Call(known(fl.compare(w.times, w.times).save), (w.folder / "compared.txt",)),
        "Ledger": Call(known(fl.Ledger), (w.folder / "ledger",)),
        "Ledger.append": Call(known(ledger.append), ({"plan": "a"},)),
        "Ledger.add": Call(known(ledger.add), (w.times, [plan]), {"tags": {"a": "b"}}),
        "Ledger.sql": Call(known(ledger.sql), ("SELECT ?", [1])),
        "Ledger.timings": Call(known(ledger.timings), (measurement,)),
        **_views(w, plan, known),
        "sweep": Call(known(fl.sweep), ((fd, INPUTS), None), {
            "strategies": ["optimal"], "targets": ["A100"], "options": [SegmenterOptions()], "schedules": [None],
            "peers": {}, "work": "segment", "device": "cpu", "seconds": 0.0, "name": "a",
        }),
        "Sweep.run": Call(known(swept.run), (ledger, None), {"again": False, "progress": False}),
        "Sweep.missing": Call(known(swept.missing), (ledger,), {"again": False}),
        "Sweep.to_pandas": Call(known(swept.to_pandas), (ledger,)),
        "profile": Call(known(fl.profile), (plan, INPUTS), {"seconds": 0.0, "ledger": ledger}),
        "PlanProfile.save": Call(known(fl.profile(plan, INPUTS, seconds=0.0).save), (w.folder / "profile.csv",)),
        "corpus": Call(known(fl.corpus), ("example/*",), {"kind": "example", "origin": "softmax"}),
        "Corpus.select": Call(known(fl.corpus().select), ("example/*",), {"kind": "example", "origin": "softmax"}),
        "CorpusEntry.load": Call(known(fl.corpus("example/softmax")[0].load), (), {"small": True}),
        "price": Call(known(fl.price), (fd, INPUTS), {
            "measure": False, "strategy": "top_down", "target": "A100", "options": SegmenterOptions(),
            "progress": lambda done, total, name: None,
        }),
        "Prices.row": Call(known(priced.row), ("reshape_mixes",)),
        "Prices.issue": Call(known(priced.issue), ("reshape_mixes",), {"most_plans": 0}),
        "Prices.save": Call(known(priced.save), (w.folder / "prices.csv",)),
        "explain": Call(known(fl.explain), (plan,), {"measure": False, "seconds": 0.0}),
        "Explanation.save": Call(known(fl.explain(plan).save), (w.folder / "plan.txt",)),
        "explore": Call(known(_closed(fl.explore)), (fd, INPUTS), {"title": "a", "target": None}),
        "report": Call(known(fl.report), (plan, w.folder / "a.html", w.times), {"title": "a"}),
        "example": Call(known(fl.example), ("softmax", "small")),
        "examples.get": Call(known(fl.examples.get), ("softmax",)),
        "load_dump": Call(known(fl.load_dump), (w.dump,), {"sizes": {"i0": 64}, "index": 0, "target": "A100"}),
        "load_recorded": Call(known(fl.load_recorded), (recorded := _recorded(w.folder),)),
        "CompiledPlan.can_cut": Call(known(fl.load_recorded(recorded).plans[0].can_cut), ("buf0",)),
        "CompiledPlan.why": Call(known(fl.load_recorded(recorded).plans[0].why), ("buf0", 1)),
        **{name: Call(known(check), (fd, INPUTS), {
            "compiler": "nvfuser", "device": "A100", "backward": False, "keywords": {}, "shrink_seconds": 0.0, **more,
        }) for name, check, more in (
            ("one_kernel", fl.one_kernel, {}), ("same_kernel", fl.same_kernel, {"ops": ["exp"]}),
            ("at_most", fl.at_most, {"kernels": 2, "bytes_over_bound": 2.0}),
        )},
        "load_repro": Call(known(fl.load_repro), (w.script,), {"name": "nvfuser_fusion"}),
        "fastest": Call(known(fl.fastest), (fd, INPUTS), {
            "measure": 0, "seconds": 0.0, "target": "H100", "options": SegmenterOptions(search_states=0),
            "schedulers": fl.SCHEDULERS,
        }),
        "shrink": Call(known(fl.shrink), (fd, INPUTS), {
            "keep": lambda p: True, "most_plans": 1, "seconds": 1.0, "target": None,
        }),
        "spec": Call(known(fl.spec), ((2, 3), "float32", (3, 1), Fill(kind="normal"))),
        "tune": Call(known(fl.tune), (plan, INPUTS), {
            "segments": [], "seconds": 0.0, "candidates": 1, "again": False, "progress": False,
            "cancelled": lambda: True,
        }),
        "use_tuned": Call(known(fl.use_tuned), (False,)),
        "with_rule": Call(known(fl.with_rule), (lambda facts, device: None, "pointwise"), {
            "schedulers": fl.SCHEDULERS,
        }),
        "without_rules": Call(known(fl.without_rules), ("index_input",)),
        "SegmenterOptions": Call(known(SegmenterOptions), (), {
            name: getattr(SegmenterOptions(), name) for name in SegmenterOptions.__dataclass_fields__
        }),
        "SegmenterOptions.from_nvfuser": Call(known(SegmenterOptions.from_nvfuser), (), {
            "enable": ["fuse_matmul"], "disable": [], "disable_preseg": [], "segmenter": {}, "entry": "executor_cache",
            "requires": None,
        }),
        "Device": Call(known(fl.Device), (), {
            "name": "a", "cc": (9, 0), "sms": 1, "shared_per_sm": 1, "shared_per_block": 1, "l2": 1, "bandwidth": 1.0,
            "fp32": 1.0, "bf16": 1.0, "registers": 1, "max_threads_per_block": 1, "host": None,
        }),
        "Fill": Call(known(Fill), (), {"kind": "uniform", "low": 0, "high": 1, "values": (1, 2)}),
        "TensorSpec.materialize": Call(known(fl.spec((2,)).materialize), (0,)),
        "FusionCache": Call(known(fl.FusionCache), (4,)),
        "FusionCache.load": Call(known(fl.FusionCache.load), (w.folder / "cache.json", 3)),
        "FusionCache.save": Call(known(cache.save), (w.folder / "again.json",)),
        "FusionCache.schedules": Call(known(cache.schedules), (0,)),
        "DecisionLog": Call(known(fl.DecisionLog), ((), (), ())),
        "DecisionLog.filter": Call(known(plan.decisions.filter), (), {
            "phase": "a", "kind": "merge", "accepted": True, "scheduler": "pointwise", "code": "a", "op": "T2",
        }),
        "DecisionLog.about": Call(known(plan.decisions.about), (["T2"],)),
        "DecisionLog.append": Call(lambda: fl.DecisionLog().append, (plan.decisions[0],)),
        "DecisionLog.from_json": Call(known(fl.DecisionLog.from_json), (plan.decisions.to_json(),)),
        "ShownLog.save": Call(known(plan.decisions.save), (w.folder / "log.json",)),
        # plans
        "Plan.cut": Call(known(plan.cut), ("T3",)),
        "Plan.glue": Call(known(plan.glue), (0, 1)),
        "Plan.move": Call(known(plan.move), ("T3", 0)),
        "Plan.recompute": Call(known(plan.recompute), ("T2", 1), {"reductions": True}),
        "Plan.narrow": Call(known(plan.narrow), ("T2", DataType.BFloat16)),
        "Plan.preview_cut": Call(known(plan.preview_cut), ("T3",)),
        "Plan.preview_glue": Call(known(plan.preview_glue), (0, 1)),
        "Plan.preview_move": Call(known(plan.preview_move), ("T3", 0)),
        "Plan.best_edits": Call(known(plan.best_edits), (), {"most": 1, "seconds": 1.0}),
        "Plan.with_edit": Call(known(plan.with_edit), (plan.preview_cut("T3"),)),
        "Plan.why": Call(known(plan.why), ("T2", "T3")),
        "Plan.advice": Call(known(plan.advice), (), {"seconds": 1.0}),
        "Plan.change_from": Call(known(plan.cut("T3").change_from), (plan,)),
        "Plan.name_of": Call(known(plan.name_of), ("T2",)),
        "Plan.annotate": Call(known(fl.segment(fd, INPUTS).annotate), ("T2", ["T3"])),
        "Plan.without_annotation": Call(known(fl.segment(fd, INPUTS).annotate("T2").without_annotation), ("T2", None)),
        "Plan.to_annotations": Call(known(plan.to_annotations), (), {"tries": 3}),
        "Plan.to_dump": Call(known(plan.to_dump), ("print",)),
        "Plan.to_python": Call(known(plan.to_python), ("fuser_lab",)),
        "Plan.definitions": Call(known(plan.definitions), (fl.FusionCache(),)),
        "Plan.resegmented": Call(known(plan.resegmented), ("top_down",), {"forward_inputs": True}),
        "Plan.renamed": Call(known(plan.renamed), ("a",)),
        "Plan.certificate": Call(known(plan.certificate), (), {"states": 1, "seconds": 1.0}),
        "Plan.with_params": Call(known(plan.with_params), (0,), {"target": "cuda", "nest": 0, "threads": 128}),
        "Plan.with_schedule": Call(known(plan.with_schedule), (0, plan.segments[0].schedule.to_python())),
        "Plan.prepare": Call(known(plan.prepare), ("cpu",), {"evaluate_refused": False}),
        "Plan.run": Call(known(plan.run), (INPUTS, [np.empty_like(X)])),
        "Plan.save": Call(known(plan.save), (w.folder / "plan.txt",)),
        "PreparedPlan.prepare": Call(known(plan.prepare("cpu").prepare), (INPUTS,)),
        "PreparedPlan.steps": Call(known(plan.prepare("cpu").steps), (INPUTS,)),
        "PreparedPlan.bind": Call(known(plan.prepare("cpu").bind), (INPUTS, [np.empty_like(X)])),
        "PreparedPlan.reusable": Call(known(plan.prepare("cpu").reusable), ([X],)),
        "PreparedPlan.run": Call(known(plan.prepare("cpu").run), (INPUTS, [np.empty_like(X)])),
        "Segment.source": Call(known(segment.source), ("cpu",)),
        "Segment.kernel": Call(known(segment.kernel), ("cpu",)),
        "Segment.schedule_for": Call(known(segment.schedule_for), ("cpu",)),
        "Segment.params": Call(known(segment.params), ("cpu",)),
        "Segment.candidates": Call(known(segment.candidates), ("cuda",), {"nest": 0}),
        "Segment.steps": Call(known(segment.steps), ("cpu",)),
        "Segment.save": Call(known(segment.save), (w.folder / "segment.txt",)),
        "PlanDiff.save": Call(known(fl.diff(plan, plan).save), (w.folder / "diff.txt",)),
        "Timings.load": Call(known(fl.Timings.load), (w.times.save(w.folder / "loaded.json"),)),
        "Timings.save": Call(known(w.times.save), (w.folder / "times.json",)),
        "Timings.to_pandas": Call(known(w.times.to_pandas), (), {"verbose": True}),
        "Timings.bars": Call(known(w.times.bars), (), {"style": True}),
        "Timings.roofline": Call(known(w.times.roofline), (plan,), {"before": plan, "style": True}),
        "Certificate.to_json": Call(known(plan.certificate(states=1).to_json)),
        # definitions
        "FusionDefinition": Call(known(FusionDefinition), (), {"cache": None}),
        "FusionDefinition.define_tensor": Call(lambda: opened().define_tensor, ([2, 3],), {
            "contiguity": True, "dtype": DataType.Float, "is_cpu": False, "stride_order": [1, 0],
        }),
        "FusionDefinition.define_tensor of strides": Call(lambda: opened().define_tensor, (), {
            "sizes": [2, 3], "strides": [3, 1], "dtype": DataType.Float, "static_sizes": True, "is_cpu": False,
        }),
        "FusionDefinition.define_scalar": Call(lambda: opened().define_scalar, (1.0, DataType.Float)),
        "FusionDefinition.define_vector": Call(lambda: opened().define_vector, (2,)),
        "FusionDefinition.from_array": Call(lambda: opened().from_array, (X, False)),
        "FusionDefinition.from_pytorch": Call(lambda: opened().from_pytorch, (X, False)),
        "FusionDefinition.define_from_spec": Call(lambda: opened().define_from_spec, (fl.spec((2, 3)),), {
            "static_sizes": False, "is_cpu": False,
        }),
        "FusionDefinition.execute": Call(known(fd.execute), (INPUTS,), {
            "device": None, "save_repro_inputs": True, "_enable_options": ["fuse_matmul"], "_disable_options": [],
        }),
        "FusionDefinition.manual_execute": Call(lambda: defined().manual_execute, (INPUTS, None)),
        "FusionDefinition.plan_for": Call(known(fd.plan_for), (INPUTS,)),
        "FusionDefinition.validate": Call(known(fd.validate), (INPUTS, None, None)),
        "FusionDefinition.manual_validate": Call(lambda: defined().manual_validate, (INPUTS, None)),
        "FusionDefinition.profile": Call(known(fd.profile), (INPUTS,)),
        "FusionDefinition.reference": Call(known(fd.reference), (INPUTS,)),
        "FusionDefinition.repro_script_for": Call(known(fd.repro_script_for), (INPUTS,)),
        "FusionDefinition.save": Call(known(fd.save), (w.folder / "fd.txt",)),
        "FusionDefinition.segment": Call(lambda: defined().segment, (INPUTS,), {"target": "A100", "options": None}),
        "FusionDefinition.defined_segments": Call(
            lambda: FusionDefinition.of(plan.definition).defined_segments, (plan, fl.FusionCache()),
        ),
        "FusionDefinition.segments_reference": Call(_in_segments, (INPUTS,)),
        "FusionDefinition.setup_segmentation": Call(lambda: defined().setup_segmentation, (INPUTS,), {
            "target": "A100", "options": None,
        }),
        "FusionDefinition.build_segment": Call(_set_up, (FusionDefinition(), 0)),
        "FusionDefinition.handle": Call(known(fd.handle), (0,)),
        "FusionDefinition.with_segment_set": Call(known(fd.with_segment_set), ("T2", ["T3"])),
        "FusionDefinition.without_segment_set": Call(
            known(fd.with_segment_set("T2").without_segment_set), ("T2", None),
        ),
        "FusionDefinition.add_output": Call(
            _with_tensor("add_output"), (TENSOR,), {"alias_input": None, "stride_order": ()},
        ),
        "FusionDefinition.set_output_stride_order": Call(
            _with_tensor("set_output_stride_order", returned=True), (TENSOR, [1, 0]),
        ),
        "FusionDefinition.get_output_stride_order": Call(_with_tensor("get_output_stride_order"), (TENSOR,)),
        "nvfuser_direct.get_val_tolerances": Call(known(get_val_tolerances), (fd, INPUTS)),
        "Tensor.axis": Call(lambda: _result().axis, (0,)),
        "Tensor.size": Call(lambda: opened().define_tensor([2, 3], True).size, (0,)),
        "LoopAxis.parallelize": Call(lambda: _result().axis(0).parallelize, (ParallelType.grid_x,)),
        # the live view
        "Explorer": Call(known(_closed(Explorer)), (plan, INPUTS), {
            "strategies": ["top_down"], "searched": ["optimal"], "timer": None, "title": "a",
        }),
        "Explorer.wait": Call(known(explorer.wait), (0.0,)),
        # tuning
        "Tuning.best": Call(known(tuned.best), (0, 0)),
        "Tuning.svg": Call(known(tuned.svg), (), {"style": True}),
        "KeptResults.forget": Call(known(tuned.keep().forget), ([],)),
        # dumps
        "Dump.ours": Call(known(fl.load_dump(w.dump).ours), (), {"strategy": "top_down", "options": None}),
        "Dump.agreement": Call(known(fl.load_dump(w.dump).agreement), (), {"target": "A100"}),
        # lessons
        "teaching.answer_text": Call(known(teaching.answer_text), (3.5,)),
        "examples.Example.inputs": Call(known(softmax.inputs), ("small",)),
        "examples.Example.sizes": Call(known(softmax.sizes), ("small",)),
        "examples.Example.specs": Call(known(softmax.specs), ("small",)),
        "examples.Example.define": Call(lambda: given(softmax.define, opened()), (TENSOR, "small")),
        "examples.Example.max_error": Call(known(softmax.max_error), (rows, softmax_fd.execute(rows))),
        "PlanComparison.save": Call(known(fl.diff(plan, plan, plan).save), (w.folder / "plans.csv",)),
        "teaching.predict": Call(known(teaching.predict), ("How many?", 3), {"choices": [3, 4]}),
        "Prediction.reveal": Call(known(teaching.predict("How many?", 3).reveal), (4,), {
            "because": "it is", "within": 0.1, "hints": {3: "no"}, "facts": {"count": 3},
        }),
        "Prediction.answer": Call(known(teaching.predict("How many?").answer), (3,)),
        "Prediction.show": Call(known(teaching.predict("How many?", 3).show), ("counted",), {"sep": " ", "end": ""}),
        "teaching.read_questions": Call(known(teaching.read_questions), (w.question_bank,)),
        "teaching.QuestionBank.predict": Call(
            known(teaching.read_questions(w.question_bank).predict), ("How many?", 3), {"choices": [3, 4]},
        ),
        "teaching.read_answers": Call(known(teaching.read_answers), ([],)),
        "teaching.Score.save": Call(known(teaching.score().save), (w.folder / "answers.json", "Ada")),
        "teaching.score": Call(known(teaching.score), (teaching.predict("?", 3).reveal(3),)),
        "teaching.play": Call(known(teaching.play), (segment, "cpu")),
        "teaching.on_gpu": Call(known(teaching.on_gpu), (INPUTS,)),
    }
    return found | schedule_calls() | binding_calls(w.folder)


def _with_tensor(method: str, *, returned: bool = False) -> Callable[[], Callable[..., Any]]:
    """A method of an open definition; TENSOR is a placeholder for one of its tensors."""

    def make() -> Callable[..., Any]:
        fd = opened()
        tensor = fd.ops.neg(fd.define_tensor([2, 3], True))
        if returned:
            fd.add_output(tensor)
        return given(getattr(fd, method), tensor)

    return make


def _result() -> Any:
    """The result of a complete definition, which can be scheduled."""
    with FusionDefinition() as fd:
        y = fd.ops.neg(fd.define_tensor([2, 3], True))
        fd.add_output(y)
    return y


def _closed(explored: Callable[..., Explorer]) -> Callable[..., None]:
    """A function that closes the explorer that it creates, since searches continue while one is open."""
    return lambda *args, **kwargs: explored(*args, **kwargs).close()


def _in_segments() -> Callable[..., Any]:
    fd = defined()
    fd.segment(plan=fl.segment(fd, INPUTS).cut("T2"))
    return fd.segments_reference


def _set_up() -> Callable[..., Any]:
    fd = defined()
    fd.setup_segmentation(INPUTS)
    return fd.build_segment
