"""The public functions that compare, time and report plans."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, overload

from fuser_lab import examples
from fuser_lab.api.fusion_definition import FusionDefinition
from fuser_lab.api.subject import Subject, subject_of
from fuser_lab.arguments import FLAG, FUNCTION, PATH, TEXT, brief, instance, list_of, mapping, number, optional, takes
from fuser_lab.bridge.model import CapturedModel
from fuser_lab.bridge.model_page import model_page
from fuser_lab.bridge.step_costs import StepCosts
from fuser_lab.bridge.timing import PEERS, measure_model
from fuser_lab.compilers.comparing import GraphComparison, compared_plans
from fuser_lab.compilers.plan import CompiledPlan
from fuser_lab.cost import measured_times as measured
from fuser_lab.definition.repro import read_script
from fuser_lab.definition.spec import TensorSpec
from fuser_lab.errors import InputError, UnsupportedError
from fuser_lab.ir import Number
from fuser_lab.lab.calibration import model_that_ran
from fuser_lab.lab.comparison import Comparison, compare_rows
from fuser_lab.lab.environment import environment, now
from fuser_lab.lab.ledger import Ledger
from fuser_lab.lab.timings import Timings, with_views
from fuser_lab.passes import bare
from fuser_lab.plan import Plan
from fuser_lab.plan.planning import segment
from fuser_lab.report import save
from fuser_lab.report.diff import PlanComparison, PlanDiff, plan_comparison, plan_diff
from fuser_lab.report.page import report_page
from fuser_lab.report.view_model import view_plan

_PLAN = instance(Plan)
_PLANS = list_of(instance(CompiledPlan, Plan, str), "a list of plans")
_TIMES = instance(measured.Timings, accepted="what time() returns")
_PEERS = mapping(TEXT, FUNCTION.worded("a function of the inputs"), "a dict of functions by name")


@takes(
    peers=optional(_PEERS | list_of(TEXT, "a list of names")).worded("a dict of functions by name, or a list of names"),
    progress=(FUNCTION | optional(FLAG)).worded("a function, True, False or None"),
    cancelled=optional(FUNCTION.worded("a function without arguments")),
    seconds=number(0),
    ledger=optional(instance(Ledger)),
)
def time(
    subject: object,
    /,
    *inputs: Any,
    peers: Mapping[str, Callable[..., Any]] | Sequence[str] | None = None,
    progress: Callable[[int, int, measured.Timings], None] | bool | None = None,
    cancelled: Callable[[], bool] | None = None,
    seconds: float = 1.0,
    ledger: Ledger | None = None,
    **options: Any,
) -> Timings:
    """Return measured times of plans, per segment and in total, and of peers; or of a model and its regions.

    Results are checked first: against the reference evaluation, or for regions against torch's results. Outputs of
    plans are preallocated. Rows are measured round-robin, so drift affects all of them equally. The first plan is the
    baseline of the ratios. On a GPU, times are device times, with a cold L2 cache and, beside it, a warm one.

    Parameters
    ----------
    subject
        A plan, plans for the same inputs, a definition, a captured model, or a function or module of torch, which is
        captured. For a model, the rows are the whole model and each region (equal regions once, with a count), each
        followed by the peers' times for the same computation.
    *inputs
        Arrays and numbers, also as one list; for a captured model, by default those with which it was captured.
    peers
        Functions that compute the same as plans, by the names of their rows, for example
        ``{"eager": f, "compile": torch.compile(f)}``. They are called with the inputs and, if they have a parameter
        ``out``, with the array to write to or a list of them; they may then return None. A peer that changes its
        inputs is not timed. For a model: ``"eager"`` and backends of ``torch.compile``, by name; by default
        eager, inductor and aot_eager.
    progress
        Called as ``progress(done, total, timings so far)``; None shows a bar in a terminal or notebook, False
        shows none.
    cancelled
        Called between measurements; when it returns True, the rows measured so far are returned.
    seconds
        Maximum time for each measurement, after warm-up.
    ledger
        A ledger that also stores the rows.
    **options
        As for `explain`.

    Raises
    ------
    InputError
        If inputs do not fit, or are abstract or missing, if torch has no backend of a peer's name, or if seconds are
        negative or not finite.
    ArgumentTypeError
        If an argument has the wrong type.
    """
    chosen = subject_of("time", subject, inputs, options)
    if chosen.captured is not None:
        timings = _time_model(chosen, peers, progress, cancelled, seconds)
    else:
        if peers is not None and not isinstance(peers, Mapping):
            raise InputError(f"time: peers of plans are functions by name, as {{'eager': f}}, given {list(peers)}.")
        timings = _time_plans(chosen, dict(peers or {}), progress, cancelled, seconds)
    timed = with_views(replace(timings, environment={"measured_at": now(), **environment().to_dict()}))
    if ledger is not None:
        ledger.add(timed, chosen.plans if chosen.captured is None else ())
    return timed


def _time_model(
    subject: Subject, peers: Mapping[str, Callable[..., Any]] | Sequence[str] | None,
    progress: Callable[[int, int, measured.Timings], None] | bool | None, cancelled: Callable[[], bool] | None,
    seconds: float,
) -> measured.Timings:
    if isinstance(peers, Mapping):
        raise InputError(f"time: peers of a captured model are names, as {list(PEERS)}, given a dict.")
    if not isinstance(subject.captured, CapturedModel):
        msg = "time: a function of JAX has no peers here; fl.explain(model, *inputs, measure=True) measures its ops."
        raise UnsupportedError(msg)
    return measure_model(
        subject.captured, subject.inputs, peers=PEERS if peers is None else tuple(peers), progress=progress,
        cancelled=cancelled, seconds=seconds,
    )


def _time_plans(
    subject: Subject, peers: Mapping[str, Callable[..., Any]],
    progress: Callable[[int, int, measured.Timings], None] | bool | None, cancelled: Callable[[], bool] | None,
    seconds: float,
) -> measured.Timings:
    flat = subject.inputs
    if flat is None:
        raise InputError("time: plans are timed with inputs: time(plans, inputs).")
    for value in flat:
        if isinstance(value, TensorSpec):
            raise InputError("time: abstract inputs cannot run; give arrays (spec.materialize() makes one).")
    from fuser_lab.runtime.plan.timing import measure

    for name in peers:
        if name in {plan.name for plan in subject.plans}:
            raise InputError(f"time: {name!r} is the name of a plan and of a peer; give them different ones.")
    return measure(subject.plans, flat, peers=peers, progress=progress, cancelled=cancelled, seconds=seconds)


@overload
def compare(before: measured.Timings, after: measured.Timings, *, confidence: float = 0.95) -> Comparison: ...


@overload
def compare(before: Sequence[CompiledPlan | Plan | str], *, measure: bool = False) -> GraphComparison: ...


@takes(
    before=(_TIMES | _PLANS).worded("timings, as fl.time and Timings.load return them, or a list of plans"),
    after=optional(_TIMES.worded("timings, as fl.time and Timings.load return them")), confidence=number(0.5),
    measure=FLAG,
)
def compare(
    before: measured.Timings | Sequence[CompiledPlan | Plan | str], after: measured.Timings | None = None, *,
    confidence: float = 0.95, measure: bool = False,
) -> Comparison | GraphComparison:
    """Return the ratios of two measurements with their intervals, or several plans of one captured graph side by side.

    Rows of measurements are matched by the plan's name, the segment's number and, for a model, the region. A ratio
    whose interval contains 1 is called a tie. The interval comes from a bootstrap over blocks of samples (Efron 1979,
    Carlstein 1986): it says how well the medians of these two runs are known, not what a third run would give. What
    changed between the environments is listed.

    Plans have their bytes, predicted times, and for each region the ops that they group differently.

    Parameters
    ----------
    before, after
        The result of `time`, of `Timings.load`, or of a ledger's ``timings(measurement)``. Or, without ``after``, a
        list of plans: the first is one of `from_inductor`, others also edited ones, or names of strategies
        (``"optimal"``).
    confidence
        Confidence level of the intervals, below 1.
    measure
        Whether a call of the function is timed under each plan, in turns; a strategy stands for our own backend.

    Raises
    ------
    InputError
        If the two have no row in common, or if the confidence is not from 0.5 to below 1; or if the plans are not of
        one graph.
    UnsupportedError
        If a plan has no capture of its graph, or cannot be measured.
    """
    if confidence >= 1:
        raise InputError(f"compare: confidence must be below 1, given {confidence}.")
    if isinstance(before, measured.Timings) and isinstance(after, measured.Timings):
        return compare_rows(before, after, confidence=confidence)
    if isinstance(before, measured.Timings) or after is not None:
        raise InputError("compare: give two measurements, or one list of plans.")
    return compared_plans(before, measure=measure)


@overload
def diff(before: Plan, after: Plan) -> PlanDiff: ...


@overload
def diff(before: Plan, after: Plan, *others: Plan) -> PlanDiff | PlanComparison: ...


@takes(before=_PLAN, after=_PLAN, others=_PLAN)
def diff(before: Plan, after: Plan, *others: Plan) -> PlanDiff | PlanComparison:
    """Return the differences between two plans: ops that moved, tensors that now cross segments, and their bytes.

    For more than two plans, the figures are listed side by side, and each plan is compared with the first.

    Parameters
    ----------
    before, after
        Plans of one definition: of two strategies, for two targets, or before and after an edit. Annotations may
        differ (`Plan.annotate`).
    others
        More plans of that definition.

    Raises
    ------
    InputError
        If they are plans of different definitions or sizes.
    """
    if any(not _are_comparable(before, plan) for plan in (after, *others)):
        raise InputError("diff: the plans must be of one definition and of inputs of the same sizes.")
    return plan_comparison((before, after, *others)) if others else plan_diff(before, after)


def _are_comparable(a: Plan, b: Plan) -> bool:
    """Whether two plans are of one definition, ignoring ``segment_set``, and of the same sizes."""
    if a.inputs != b.inputs:
        return False
    return a.definition == b.definition or bare(a.definition) == bare(b.definition)


@takes(
    path=optional(PATH), title=optional(TEXT),
    times=optional(_TIMES | instance(StepCosts)).worded("what time() or explain() returns"),
)
def report(
    subject: object,
    /,
    *inputs: Any,
    path: str | Path | None = None,
    times: measured.Timings | StepCosts | None = None,
    title: str | None = None,
    **options: Any,
) -> Path:
    """Write one HTML file about plans or a model, which needs no kernel, and return its path.

    The file opens from disk, makes no network requests, and for plans does everything that the explorer does except
    edit and run. For a model, it has the table of `explain`, the memory over the step, the map, and each distinct
    region's plan with the reasons for its cuts.

    Parameters
    ----------
    subject
        A plan, or several of one definition, one tab each; a definition; a captured model, or a function or module,
        which is captured. Further plans are compared with the first; annotations may differ (`Plan.annotate`).
    *inputs
        The inputs of a function or a definition. The last text or ``Path`` among these arguments is the path, and
        the result of `time` or `explain` is ``times``.
    path
        Path of the file, with the extension ``.html``; ``report.html`` by default.
    times
        Measured times of these plans, possibly among others for the same inputs; for a model the table that the page
        shows, for example ``fl.explain(captured, measure=True)``.
    title
        Title of the page; the first plan's name by default.
    **options
        As for `explain`.

    Raises
    ------
    InputError
        If the path has another extension, the plans differ in definition or sizes, or the times are of other plans.
    ArgumentTypeError
        If an argument has the wrong type.
    """
    values = list(inputs)
    if times is None:
        times = next((value for value in values if isinstance(value, measured.Timings | StepCosts)), None)
    if path is None:
        path = next((value for value in reversed(values) if isinstance(value, str | Path)), "report.html")
    values = [value for value in values if value is not path and value is not times]
    target = save.path_of("a report", path)
    if target.suffix.lower() not in {".html", ".htm"}:
        raise InputError(
            f"report: path must end in .html, given {brief(target.name)!r}; "
            "fl.report(model, *inputs, path='report.html') keeps it apart from inputs."
        )
    chosen = subject_of("report", subject, values, options).without_inputs()
    if chosen.captured is None:
        return save.write_file("a report", target, _page_of_plans(chosen.plans, times, title))
    if isinstance(times, measured.Timings):
        raise InputError(
            "report: times of a model are what explain returns: "
            "fl.report(captured, times=fl.explain(captured, measure=True))."
        )
    return save.write_file("a report", target, model_page(chosen.captured, times, title))


def _page_of_plans(
    plans: Sequence[Plan], times: measured.Timings | StepCosts | None, title: str | None,
) -> str:
    if isinstance(times, StepCosts):
        raise InputError("report: times of plans are what time returns: report(plans, path, fl.time(plans, inputs)).")
    for other in plans[1:]:
        if not _are_comparable(plans[0], other):
            raise InputError("report: the plans must be of one definition and of inputs of the same sizes.")
    if times is not None:
        _check_times(plans, times)
    from fuser_lab_widgets import assets, baked

    view = view_plan(plans[0], title=title, decisions=False)
    machine = None if times is None else model_that_ran(times, plans[0])
    data = baked.bake(plans, times, title=title, machine=machine)
    name = title or plans[0].name
    return report_page(view, data, script=assets.report_script(), style=assets.style(), title=name)


def _check_times(plans: Sequence[Plan], times: measured.Timings) -> None:
    """Raise for times that are not of the plans of a report."""
    timed = {row.plan_hash: row.plan for row in times.rows if row.plan_hash}
    remedy = "time the plans of the report: report(plans, path, time(plans, inputs))"
    for plan in plans:
        if any(row.plan == plan.name and row.plan_hash not in {"", plan.hash} for row in times.rows):
            msg = f"report: the times of {plan.name!r} are of another plan of that name, or of other sizes; {remedy}."
            raise InputError(msg)
    if timed and not timed.keys() & {plan.hash for plan in plans}:
        names = ", ".join(repr(name) for name in dict.fromkeys(timed.values()))
        raise InputError(f"report: the times are of {names}, none of which is a plan of the report; {remedy}.")


@takes(name=TEXT, size=TEXT)
def example(name: str, size: str = "small") -> tuple[FusionDefinition, list[Any]]:
    """Return an example's definition with inputs: arrays for ``"small"``, abstract ones for ``"full"``.

    Raises
    ------
    InputError
        If the name or size is unknown.
    """
    chosen = examples.get(name)
    with FusionDefinition() as fd:
        chosen.define(fd, size)
    return fd, list(chosen.specs(size)) if size == "full" else chosen.inputs(size)


@takes(text=TEXT, name=optional(TEXT))
def load_repro(text: str, *, name: str | None = None) -> tuple[FusionDefinition, list[TensorSpec | Number]]:
    """Return the definition in an nvFuser repro script, and descriptions of its inputs.

    No part of the text is executed. The descriptions are accepted by `explore` and wherever nothing runs, and
    ``spec.materialize()`` makes arrays from them. For a script without inputs, the static sizes determine them, or the
    list is empty. ``fd.notes`` says which lines were skipped and what was assumed.

    Parameters
    ----------
    text
        A script in any of nvFuser's forms, or a whole issue with one in a Markdown fence.
    name
        Selects one of several definitions by its function, class or variable, or as ``"line 12"``.

    Raises
    ------
    DefinitionError
        If part of the script cannot be read or is not a legal definition; the message names line and reason.
    UnsupportedError
        If the script uses a feature of nvFuser that is not implemented.
    """
    return read_script(text, FusionDefinition, name)


__all__ = ["FusionDefinition", "PlanDiff", "Timings", "diff", "example", "load_repro", "report", "segment",
           "time"]
