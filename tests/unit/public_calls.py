"""Every public function and method with legal arguments, to be called with illegal ones in their places."""

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

import fuser_lab as fl
import fuser_lab.nvfuser_direct as nd
from fuser_lab import DataType, FusionDefinition, teaching
from fuser_lab.definition.spec import Fill
from fuser_lab.segmentation import SegmenterOptions
from fuser_lab.validation import get_val_tolerances
from tests.unit.public_call import Call
from tests.unit.public_schedules import schedule_calls

SLOWEST = 5.0  # seconds
MOST_BYTES = 1 << 31  # of memory that a call may add to what the process has


class TooSlow(BaseException):
    """Raised inside a call that takes too long; no ``except Exception`` catches it."""


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Interrupts what takes longer, where signals arrive: in the main thread of a POSIX system."""
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        yield
        return

    def interrupt(*_: object) -> None:
        raise TooSlow

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        with _limited_memory():
            yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def _limited_memory() -> Iterator[None]:
    """Limits what may be allocated: a list of what has no end is made by code in C, which no signal interrupts."""
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
    """Nothing that fuser_lab knows."""

    RED = "red"


class Plain:
    """Takes any arguments: what a callback raises itself is not fuser_lab's."""

    def __init__(self, *_: object, **__: object) -> None:
        """Do nothing."""


class Hostile:
    """Every question about it fails."""

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

# What may stand in an argument's place. Each is made anew: a call may use an iterator up.
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
    "deep list": lambda: _deep(100_000),
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


X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
INPUTS = [X, 2.0]


@dataclass(frozen=True, kw_only=True)
class World:
    """What the calls are about; ``folder`` is where they may write."""

    fd: FusionDefinition
    plan: Any
    times: Any
    folder: Path
    script: str
    dump: str


def world(folder: Path) -> World:
    """A definition in two segments, compiled and timed."""
    with contextlib.suppress(ImportError):  # a call that is the first to need torch takes seconds
        importlib.import_module("torch")
    fd = defined()
    plan = fl.segment(fd, INPUTS).cut("T2")
    times = fl.time(plan, INPUTS, progress=False, seconds=0.0)
    return World(fd=fd, plan=plan, times=times, folder=folder, script=fd.repro_script_for(INPUTS), dump=plan.to_dump())


def opened() -> FusionDefinition:
    """A definition that is open."""
    return FusionDefinition().__enter__()


def calls(w: World) -> dict[str, Call]:
    """All public functions and methods with legal arguments, by name."""
    plan, fd, segment = w.plan, w.fd, w.plan.segments[0]
    known = lambda function: lambda: function  # noqa: E731
    with fl.FusionDefinition(cache=(cache := fl.FusionCache())) as other:
        t = other.define_tensor([4])
        other.add_output(other.ops.neg(t))
    cache.save(w.folder / "cache.json")
    found = {
        # fuser_lab
        "segment": Call(known(fl.segment), (fd, INPUTS), {
            "strategy": "top_down", "target": "A100", "options": SegmenterOptions(), "schedulers": fl.SCHEDULERS,
            "log": fl.DecisionLog(), "name": "a",
        }),
        "time": Call(known(fl.time), ([plan], INPUTS), {
            "peers": {}, "progress": False, "cancelled": lambda: True, "seconds": 0.0,
        }),
        "diff": Call(known(fl.diff), (plan, plan, plan)),
        "explore": Call(known(fl.explore), (plan, INPUTS), {"title": "a", "target": None}),
        "report": Call(known(fl.report), (plan, w.folder / "a.html", w.times), {"title": "a"}),
        "example": Call(known(fl.example), ("softmax", "small")),
        "examples.get": Call(known(fl.examples.get), ("softmax",)),
        "load_dump": Call(known(fl.load_dump), (w.dump,), {"sizes": {"i0": 64}, "index": 0, "target": "A100"}),
        "load_repro": Call(known(fl.load_repro), (w.script,), {"name": "nvfuser_fusion"}),
        "shrink": Call(known(fl.shrink), (fd, INPUTS), {"keep": lambda p: True, "most_plans": 1, "target": None}),
        "spec": Call(known(fl.spec), ((2, 3), "float32", (3, 1), Fill(kind="normal"))),
        "tune": Call(known(fl.tune), (plan, INPUTS), {
            "segments": [], "seconds": 0.0, "again": False, "progress": False, "cancelled": lambda: True,
        }),
        "with_rule": Call(known(fl.with_rule), (lambda facts, device: None, "pointwise"), {
            "schedulers": fl.SCHEDULERS,
        }),
        "SegmenterOptions": Call(known(SegmenterOptions), (), {
            name: getattr(SegmenterOptions(), name) for name in SegmenterOptions.__dataclass_fields__
        }),
        "SegmenterOptions.from_nvfuser": Call(known(SegmenterOptions.from_nvfuser), (), {
            "enable": ["fuse_matmul"], "disable": [], "disable_preseg": [], "segmenter": {}, "entry": "executor_cache",
            "requires": None,
        }),
        "Device": Call(known(fl.Device), (), {
            "name": "a", "cc": (9, 0), "sms": 1, "shared_per_sm": 1, "shared_per_block": 1, "l2": 1, "bandwidth": 1.0,
            "fp32": 1.0, "bf16": 1.0, "registers": 1, "max_threads_per_block": 1,
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
        "DecisionLog.save": Call(known(plan.decisions.save), (w.folder / "log.json",)),
        # plans
        "Plan.cut": Call(known(plan.cut), ("T3",)),
        "Plan.glue": Call(known(plan.glue), (0, 1)),
        "Plan.move": Call(known(plan.move), ("T3", 0)),
        "Plan.why": Call(known(plan.why), ("T2", "T3")),
        "Plan.annotate": Call(known(fl.segment(fd, INPUTS).annotate), ("T2", ["T3"])),
        "Plan.without_annotation": Call(known(fl.segment(fd, INPUTS).annotate("T2").without_annotation), ("T2", None)),
        "Plan.to_annotations": Call(known(plan.to_annotations), (), {"tries": 3}),
        "Plan.to_python": Call(known(plan.to_python), ("fuser_lab",)),
        "Plan.resegmented": Call(known(plan.resegmented), ("top_down",), {"forward_inputs": True}),
        "Plan.renamed": Call(known(plan.renamed), ("a",)),
        "Plan.certificate": Call(known(plan.certificate), (), {"states": 1, "seconds": 1.0}),
        "Plan.with_params": Call(known(plan.with_params), (0,), {"target": "cuda", "nest": 0, "threads": 128}),
        "Plan.prepared": Call(known(plan.prepared), ("cpu",), {"evaluate_refused": False}),
        "Plan.run": Call(known(plan.run), (INPUTS, [np.empty_like(X)])),
        "Plan.save": Call(known(plan.save), (w.folder / "plan.txt",)),
        "PreparedPlan.prepare": Call(known(plan.prepared("cpu").prepare), (INPUTS,)),
        "PreparedPlan.steps": Call(known(plan.prepared("cpu").steps), (INPUTS,)),
        "PreparedPlan.bind": Call(known(plan.prepared("cpu").bind), (INPUTS, [np.empty_like(X)])),
        "PreparedPlan.reusable": Call(known(plan.prepared("cpu").reusable), ([X],)),
        "PreparedPlan.run": Call(known(plan.prepared("cpu").run), (INPUTS, [np.empty_like(X)])),
        "Segment.source": Call(known(segment.source), ("cpu",)),
        "Segment.kernel": Call(known(segment.kernel), ("cpu",)),
        "Segment.params": Call(known(segment.params), ("cpu",)),
        "Segment.save": Call(known(segment.save), (w.folder / "segment.txt",)),
        "PlanDiff.save": Call(known(fl.diff(plan, plan).save), (w.folder / "diff.txt",)),
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
            _with_tensor("add_output"), (None,), {"alias_input": None, "stride_order": ()},
        ),
        "FusionDefinition.set_output_stride_order": Call(
            _with_tensor("set_output_stride_order", returned=True), (None, [1, 0]),
        ),
        "FusionDefinition.get_output_stride_order": Call(_with_tensor("get_output_stride_order"), (None,)),
        "nvfuser_direct.get_val_tolerances": Call(known(get_val_tolerances), (fd, INPUTS)),
        # lessons
        "teaching.shown": Call(known(teaching.shown), (3.5,)),
        "examples.Example.inputs": Call(known(fl.examples.get("softmax").inputs), ("small",)),
        "examples.Example.sizes": Call(known(fl.examples.get("softmax").sizes), ("small",)),
        "examples.Example.specs": Call(known(fl.examples.get("softmax").specs), ("small",)),
        "PlanComparison.save": Call(known(fl.diff(plan, plan, plan).save), (w.folder / "plans.csv",)),
        "teaching.predict": Call(known(teaching.predict), ("How many?", 3), {"choices": [3, 4]}),
        "Prediction.reveal": Call(known(teaching.predict("How many?", 3).reveal), (4,), {
            "because": "it is", "within": 0.1, "hints": {3: "no"},
        }),
        "teaching.score": Call(known(teaching.score), (teaching.predict("?", 3).reveal(3),)),
        "teaching.on_gpu": Call(known(teaching.on_gpu), (INPUTS,)),
    }
    return found | schedule_calls() | nvfuser_calls(w)


def _with_tensor(method: str, *, returned: bool = False) -> Callable[[], Callable[..., Any]]:
    """A method of an open definition, whose first argument is a tensor of it where None is given."""

    def make() -> Callable[..., Any]:
        fd = opened()
        tensor = fd.ops.neg(fd.define_tensor([2, 3], True))
        if returned:
            fd.add_output(tensor)
        return lambda *args, **kwargs: getattr(fd, method)(*(tensor if a is None else a for a in args), **kwargs)

    return make


def _set_up() -> Callable[..., Any]:
    fd = defined()
    fd.setup_segmentation(INPUTS)
    return fd.build_segment


def _direct() -> tuple[nd.FusionDefinition, Any]:
    with nd.FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], True)
        fd.add_output(fd.ops.neg(x))
    return fd, x


def _in_direct(method: str) -> Callable[[], Callable[..., Any]]:
    """A method of nvFuser's definition, called while it is open."""

    def make() -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            with nd.FusionGuard(nd.Fusion()) as _:
                return getattr(nd, method)(*args, **kwargs)

        return call

    return make


def _of_fusion(method: str) -> Callable[[], Callable[..., Any]]:
    """A method of nvFuser's fusion, whose first argument is a tensor of it where None is given."""

    def make() -> Callable[..., Any]:
        fusion = nd.Fusion()
        with nd.FusionGuard(fusion):
            tensor = nd.define_tensor([2, 3], True)
        return lambda value, *args: getattr(fusion, method)(tensor if value is None else value, *args)

    return make


def nvfuser_calls(w: World) -> dict[str, Call]:
    """The entry points of `fuser_lab.nvfuser_direct`."""
    known = lambda function: lambda: function  # noqa: E731
    fd, x = _direct()
    given = [X]
    kind = nd.SchedulerType.pointwise
    executor = nd.KernelExecutor()
    executor.compile(fd.fusion, given)
    found = {
        "define_tensor": Call(_in_direct("define_tensor"), ([2, 3],), {
            "contiguity": True, "dtype": DataType.Float, "is_cpu": False, "stride_order": [1, 0],
        }),
        "define_scalar": Call(_in_direct("define_scalar"), (1.0, DataType.Float)),
        "translate_fusion": Call(known(nd.translate_fusion), (fd.fusion,)),
        "validate_with_auto_inferred_outputs": Call(
            known(nd.validate_with_auto_inferred_outputs), (fd.fusion, [-X], given),
        ),
        "compute_tensor_descriptor": Call(known(nd.compute_tensor_descriptor), ([2, 3], [3, 1])),
        "FusionGuard": Call(known(lambda fusion: nd.FusionGuard(fusion).release()), (nd.Fusion(),)),
        "Fusion": Call(known(nd.Fusion), (None,)),
        "Fusion.add_input": Call(_of_fusion("add_input"), (None,)),
        "Fusion.add_output": Call(_of_fusion("add_output"), (None, None)),
        "FusionExecutorCache": Call(known(nd.FusionExecutorCache), (fd.fusion, 0, True)),
        "FusionExecutorCache.execute": Call(known(nd.FusionExecutorCache(fd.fusion).execute), (given,), {
            "device": None, "_enable_options": [], "_disable_options": [],
        }),
        "FusionExecutorCache.get_cuda_kernel": Call(
            known(nd.FusionExecutorCache(fd.fusion).get_cuda_kernel), (given,), {"intrinsic_code": True, "device": 0},
        ),
        "FusionExecutorCache.get_scheduled_ir": Call(
            known(nd.FusionExecutorCache(fd.fusion).get_scheduled_ir), (given,),
            {"tensor_transforms": True, "device": 0},
        ),
        "FusionExecutorCache.is_compiled": Call(
            known(nd.FusionExecutorCache(fd.fusion).is_compiled), (given,), {"device": 0},
        ),
        "KernelExecutor.compile": Call(lambda: nd.KernelExecutor().compile, (fd.fusion, given, None, None, kind)),
        "KernelExecutor.run": Call(known(executor.run), (given, None, None)),
        "LRUCache": Call(known(nd.LRUCache), (3,)),
        "LRUCache.cache_compile": Call(known(nd.LRUCache(3).cache_compile), (fd.fusion,)),
        "LruFusionCache": Call(known(nd.LruFusionCache), (lambda: fd,), {"max_fusions": 3}),
        "PythonProfiler": Call(known(nd.PythonProfiler), (True,)),
        "idm.IdModel": Call(known(nd.idm.IdModel), (fd,)),
        "idm.IdModel.maybe_build_graph": Call(
            known(nd.idm.IdModel(fd).maybe_build_graph), (nd.IdMappingMode.exact,),
        ),
        "pytorch_utils.torch_dtype_to_nvfuser_dtype": Call(
            known(nd.pytorch_utils.torch_dtype_to_nvfuser_dtype), (float,),
        ),
        "pytorch_utils.python_scalar_to_nvfuser_dtype": Call(
            known(nd.pytorch_utils.python_scalar_to_nvfuser_dtype), (1.0,),
        ),
        "schedule.can_schedule": Call(known(nd.schedule.can_schedule), (fd.fusion, kind, given)),
        "schedule.find_compatible_schedulers": Call(
            known(nd.schedule.find_compatible_schedulers), (fd.fusion, given),
        ),
        "schedule.compute_heuristics": Call(known(nd.schedule.compute_heuristics), (fd.fusion, kind, given)),
        "schedule.schedule": Call(lambda: nd.schedule.schedule, (_direct()[0].fusion, kind, given)),
        "TensorView.size": Call(known(x.size), (0,)),
        "TensorView.axis": Call(known(x.axis), (0,)),
    }
    return {f"nvfuser_direct.{name}": call for name, call in found.items()}
