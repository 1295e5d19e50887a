"""The names of all public functions and methods with arguments, found by inspecting the packages."""

import enum
import inspect
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from fuser_lab_widgets import Explorer

import fuser_lab
from fuser_lab import nvfuser, nvfuser_direct, teaching
from fuser_lab.api.explaining import Explanation
from fuser_lab.bindings.schedule import Sched
from fuser_lab.compilers.nvfuser_dumps import Dump
from fuser_lab.compilers.plan import CompiledPlan
from fuser_lab.definition.handles import Tensor
from fuser_lab.definition.loop_axis import LoopAxis
from fuser_lab.definition.spec import Fill, TensorSpec
from fuser_lab.lab.comparison import Comparison
from fuser_lab.lab.corpus import Corpus, CorpusEntry
from fuser_lab.lab.profiling import PlanProfile
from fuser_lab.lab.sweeps import Sweep
from fuser_lab.nvfuser import sched as nvfuser_sched
from fuser_lab.plan import Segment
from fuser_lab.plan.kept_results import KeptResults
from fuser_lab.plan.shown_log import ShownLog
from fuser_lab.pricing.prices import Prices
from fuser_lab.report.diff import PlanComparison
from fuser_lab.runtime.plan.executor import PreparedPlan
from fuser_lab.search.shrinking import Shrunk
from fuser_lab.search.tuning import Tuning
from fuser_lab.teaching import Prediction

PACKAGES = {"": fuser_lab, "nvfuser_direct.": nvfuser_direct, "nvfuser.": nvfuser, "teaching.": teaching}

# Classes that no package exports and whose objects public functions return, with the prefix of their names.
RETURNED = (
    *(("", cls) for cls in (
        Tensor, Segment, Sched, PreparedPlan, TensorSpec, Fill, PlanComparison, ShownLog, Shrunk, Tuning, Prediction,
        CompiledPlan,
        Dump, LoopAxis, Explanation, Explorer, Comparison, Corpus, CorpusEntry, PlanProfile, Prices, Sweep, KeptResults,
    )),
    ("nvfuser.", nvfuser_sched.Sched),
)


def takes_arguments(function: Any, *, of_class: bool = False) -> bool:
    """Whether a call may have arguments other than the object of a method."""
    try:
        parameters = list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return False
    return bool(parameters[of_class:])


def methods(cls: type) -> Iterator[tuple[str, Any]]:
    """The public methods with arguments that a class has from classes of this project, by name."""
    for name in dir(cls):
        attribute = inspect.getattr_static(cls, name)
        is_bound = isinstance(attribute, staticmethod | classmethod)
        function = inspect.unwrap(attribute.__func__ if is_bound else attribute)
        if name.startswith("_") or not inspect.isfunction(function):
            continue
        own = function.__module__.partition(".")[0] in {"fuser_lab", "fuser_lab_widgets"}
        if own and takes_arguments(function, of_class=not isinstance(attribute, staticmethod)):
            yield name, function


def public_names() -> dict[str, Any]:
    """Functions and classes by names such as ``segment``, ``Plan.cut`` and ``nvfuser_direct.schedule.can_schedule``.

    A function may have several names: an inherited method has one for each class.
    """
    found: dict[str, Any] = {}
    for prefix, cls in RETURNED:
        found.update(_names(prefix, cls.__name__, cls))
    for prefix, package in PACKAGES.items():
        for name in _public(package):
            found.update(_names(prefix, name, getattr(package, name)))
    return found


def _public(module: Any) -> list[str]:
    """The exports of a module: as declared, or else the functions and classes that it defines."""
    written = [n for n, v in vars(module).items() if getattr(v, "__module__", "") == module.__name__]
    return list(getattr(module, "__all__", [n for n in written if not n.startswith("_")]))


def _names(prefix: str, name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, type):
        if issubclass(value, enum.Enum | BaseException):
            return
        if takes_arguments(value):
            yield f"{prefix}{name}", value
        yield from ((f"{prefix}{name}.{method}", function) for method, function in methods(value))
    elif isinstance(value, ModuleType) and not callable(value):
        for inner in _public(value):
            yield from _names(f"{prefix}{name}.", inner, getattr(value, inner))
    elif callable(value) and takes_arguments(value):
        yield f"{prefix}{name}", inspect.unwrap(value)


# The reasons why public functions are not among the calls of `public_calls`.
_REASONS = {
    "called by the package itself, or by ipywidgets": """
        Explorer.get_state Explorer.set_state
        Fill.numbers FusionCache.child FusionCache.end FusionCache.end_of FusionCache.insert FusionCache.refuse
        FusionDefinition.call FusionDefinition.emit FusionDefinition.extents FusionDefinition.of FusionDefinition.placed
        FusionDefinition.recorded FusionDefinition.require_open FusionDefinition.tensor FusionDefinition.tensors
        FusionDefinition.value FusionDefinition.wrap KeptResults.of KeptResults.on Pass.run
        Plan.planned_for PreparedPlan.generated SegmenterOptions.check_strategy SegmenterOptions.for_strategy
        nvfuser.FusionCache.user_schedules nvfuser.FusionDefinition.call
        nvfuser.FusionDefinition.extents nvfuser.FusionDefinition.recorded nvfuser.FusionDefinition.wrap
        nvfuser_direct.FusionDefinition.adopt nvfuser_direct.FusionExecutorCache.like
        errors.warn
        nvfuser_direct.idm.DisjointSets.add nvfuser_direct.idm.DisjointSets.check nvfuser_direct.idm.DisjointSets.join
    """,
    "made by the package, not by users": """
        CompiledPlan
        Comparison Corpus CorpusEntry Dump Explanation KeptResults LoopAxis Plan PlanProfile PlanComparison PlanDiff
        Prediction PreparedPlan
        Prices Sched Segment ShownLog Shrunk Sweep Tensor TensorSpec Timings Tuning examples.Example views.Frontier
        views.FrontierRow views.HeatMap views.History views.HistoryRow views.MemoryOrder views.MemoryOrders
        views.OrderSensitivity views.OrderedPlan views.Regression views.Regressions nvfuser.Scalar nvfuser.Sched
        nvfuser.Tensor nvfuser.Vector nvfuser.nvfuser_version.Version nvfuser_direct.BroadcastOp nvfuser_direct.Expr
        nvfuser_direct.IterDomain nvfuser_direct.KernelExecutor nvfuser_direct.Merge nvfuser_direct.ReshapeOp
        nvfuser_direct.Split nvfuser_direct.SqueezeOp nvfuser_direct.TensorDomain nvfuser_direct.TensorView
        nvfuser_direct.Val nvfuser_direct.idm.ValGraph nvfuser_direct.schedule.HeuristicParams teaching.Outcome
        teaching.Played teaching.QuestionBank teaching.Score
    """,
    "refuses every argument, as unsupported": """
        Sched.warp_specialize Tensor.circular_buffer Tensor.set_allocation_domain Tensor.set_device_mesh Tensor.swizzle
        Tensor.swizzle1d nvfuser_direct.Communicator nvfuser_direct.CommunicatorBackend nvfuser_direct.DeviceMesh
        nvfuser_direct.Sharding nvfuser_direct.execute_with_dtensors nvfuser_direct.schedule.warp_specialize
    """,
    "runs a function of the user, whose errors come through; its own refusals are in tests/bridge": """
        CompiledPlan.comparison CompiledPlan.cut CompiledPlan.glue CompiledPlan.measure CompiledPlan.resegmented
        from_inductor from_jax from_torch from_xla
    """,
    "needs a GPU": """
        PreparedPlan.captured
    """,
}
EXCEPTIONS = {name: reason for reason, names in _REASONS.items() for name in names.split()}
