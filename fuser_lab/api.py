"""The public functions: define, segment, explore, time."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from fuser_lab import examples
from fuser_lab.cost import timings as records
from fuser_lab.cost.device import DEFAULT, DEVICES, Device
from fuser_lab.definition.binding import Described, bind, default_inputs
from fuser_lab.definition.builder import FusionBuilder
from fuser_lab.definition.python_text import definition_text
from fuser_lab.definition.spec import TensorSpec
from fuser_lab.errors import ArgumentTypeError, EmptyDefinitionError, InputError, StateError, UnsupportedError
from fuser_lab.events import DecisionLog
from fuser_lab.ir import Fusion, scalars_in
from fuser_lab.ir.printer import math_text
from fuser_lab.passes import PRESEGMENTATION
from fuser_lab.plan import Plan
from fuser_lab.report import html, timings
from fuser_lab.runtime.arrays import describe, inputs_to_numpy
from fuser_lab.schedule.registry import SchedulerRegistry
from fuser_lab.segmentation import SegmenterOptions, Strategy
from fuser_lab.segmentation import segment as segment_fusion

if TYPE_CHECKING:
    import pandas as pd
    from fuser_lab_widgets import Explorer

_KEPT_PLANS = 64


class FusionDefinition(FusionBuilder):
    """Defines a fusion as nvFuser's Python frontend does, and runs it.

    ``with FusionDefinition() as fd:`` opens it; inside, ``fd.define_tensor``, ``fd.ops.*`` and ``fd.add_output``
    record. ``repr`` is runnable Python.
    """

    def __init__(self) -> None:
        super().__init__()
        self._plans: OrderedDict[Any, Plan] = OrderedDict()
        self._plans_lock = threading.Lock()

    def execute(self, inputs: Sequence[Any], *, device: object = None) -> list[Any]:
        """Return the outputs as arrays of the inputs' library (NumPy for NumPy, torch for torch).

        Parameters
        ----------
        inputs
            One array or number per fusion input; nested lists and tuples are flattened.
        device
            None, or the device that the inputs are on.

        Raises
        ------
        InputError
            If the inputs do not fit the definition.
        EmptyDefinitionError
            If nothing is defined.
        """
        flat = _flatten(inputs)
        plan = self.plan_for(flat)
        on = {d.device for d in plan.inputs if isinstance(d, TensorSpec)}
        if device is not None and on and str(device) not in on and f"cuda:{device}" not in on:
            msg = f"execute: device is {device}, but the inputs are on {', '.join(sorted(on))}."
            raise InputError(msg)
        return plan.run(flat)

    def plan_for(self, inputs: Sequence[Any]) -> Plan:
        """Return the plan that `execute` runs for these inputs; the last 64 are kept."""
        described = tuple(describe(value) for value in inputs)
        key = _key(self.fusion, described)
        with self._plans_lock:
            if key in self._plans:
                self._plans.move_to_end(key)
                return self._plans[key]
        plan = segment(self, inputs)
        with self._plans_lock:
            self._plans[key] = plan
            if len(self._plans) > _KEPT_PLANS:
                self._plans.popitem(last=False)
        return plan

    def reference(self, inputs: Sequence[Any]) -> list[Any]:
        """Return what the NumPy reference evaluation gives, as NumPy arrays, rounding as the fusion's dtypes do."""
        from fuser_lab.interpreter import evaluate

        flat = _flatten(inputs)
        bound = bind(self.fusion, [describe(v) for v in flat]).fusion
        results = evaluate(bound, inputs_to_numpy(flat))
        return [x for tv, x in zip(bound.outputs, results, strict=True) if tv not in bound.hidden]

    def print_math(self) -> None:
        """Print the fusion as nvFuser's IR text."""
        print(math_text(self.fusion))  # noqa: T201

    def __repr__(self) -> str:
        """Return Python that defines the fusion again."""
        try:
            return definition_text(self.fusion)
        except (EmptyDefinitionError, StateError) as error:
            return f"<FusionDefinition: {error}>"


class Timings(records.Timings):
    """Measured times of plans: one row per segment, a total row per plan, NaN for what was not measured."""

    def to_pandas(self, *, verbose: bool = False) -> "pd.DataFrame":
        """Return the numbers with units in the columns' names; ``verbose`` adds samples, timer, device and error."""
        return timings.timings_frame(self, verbose=verbose)

    def __repr__(self) -> str:
        """Return the table as text."""
        return timings.timings_text(self)

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        """Return the table as text and as static HTML."""
        table = html.table_html(timings.timing_table(self), note=timings.timing_note(self))
        return {"text/plain": repr(self), "text/html": table}


def _flatten(values: Sequence[Any]) -> list[Any]:
    if not isinstance(values, list | tuple):
        msg = f"inputs must be a list of arrays and numbers, given {type(values).__name__}."
        raise ArgumentTypeError(msg)
    found: list[Any] = []
    for value in values:
        found += _flatten(value) if isinstance(value, list | tuple) else [value]
    return found


def _key(fusion: Fusion, described: Sequence[Described]) -> tuple[object, ...]:
    # Values of scalars matter only where some size or other attribute may depend on one.
    sized = any(True for expr in fusion.exprs for _ in scalars_in(value for _, value in expr.attrs))
    return tuple(d if isinstance(d, TensorSpec) or sized else type(d) for d in described)


def segment(
    fd: FusionBuilder | Fusion,
    inputs: Sequence[Any] | None = None,
    *,
    strategy: Strategy = "bottom_up",
    target: str | Device | None = None,
    options: SegmenterOptions | None = None,
    log: DecisionLog | None = None,
    name: str | None = None,
) -> Plan:
    """Return a plan: the fusion cut into segments as nvFuser would, or by another strategy.

    Parameters
    ----------
    fd
        A definition or a fusion.
    inputs
        Arrays, abstract inputs (`fuser_lab.spec`) and numbers, one per fusion input; may be left out if the
        definition fixes all sizes.
    strategy
        ``"bottom_up"`` (nvFuser's), ``"top_down"`` (NVIDIA/Fuser issue #2224), ``"unfused"``, or a function of fusion
        and oracle that returns groups of expressions or of the names of their results.
    target
        Device whose limits decide: a name (``"A100"``, ``"H100"``, ``"H200"``, ``"B200"``) or a Device; an H200 if
        left out.
    options
        Switches of the segmenter; nvFuser's defaults if left out.
    log
        Where decisions are recorded; ``plan.decisions`` has them in any case.
    name
        Name of the plan in tables and tabs; the strategy's if left out.

    Raises
    ------
    InputError
        If inputs do not fit, or strategy or target are unknown.
    """
    definition = fd.fusion if isinstance(fd, FusionBuilder) else fd
    if not isinstance(definition, Fusion):
        msg = f"segment: fd must be a FusionDefinition or a Fusion, given {type(fd).__name__}."
        raise ArgumentTypeError(msg)
    if strategy in {"optimal", "saving"}:
        msg = f"strategy {strategy!r} is not implemented."
        raise UnsupportedError(msg)
    if options is not None and not isinstance(options, SegmenterOptions):
        msg = f"segment: options must be SegmenterOptions, given {type(options).__name__}."
        raise ArgumentTypeError(msg)
    if log is not None and not isinstance(log, DecisionLog):
        msg = f"segment: log must be a DecisionLog, given {type(log).__name__}."
        raise ArgumentTypeError(msg)
    described = default_inputs(definition) if inputs is None else tuple(_described(v) for v in _flatten(inputs))
    bound = bind(definition, described)
    oracle = SchedulerRegistry(_device(target))
    chosen = options or SegmenterOptions()
    decisions = DecisionLog() if log is None else log
    fusion = PRESEGMENTATION.run(bound.fusion, disabled=chosen.disabled_passes)
    segmented = segment_fusion(fusion, oracle, strategy=strategy, options=chosen, log=decisions)
    word = strategy if isinstance(strategy, str) else getattr(strategy, "__name__", "custom")
    return Plan(
        name=name or word.replace("_", "-"),
        strategy=word,
        segmented=segmented,
        definition=definition,
        inputs=bound.inputs,
        options=chosen,
        oracle=oracle,
        decisions=decisions,
    )


def _described(value: Any) -> Described:
    return value if isinstance(value, TensorSpec) else describe(value)


def _device(target: str | Device | None) -> Device:
    if target is None:
        return DEFAULT
    if isinstance(target, Device):
        return target
    for device in DEVICES:
        if device.name == target:
            return device
    msg = f"target {target!r} is unknown; there are {', '.join(d.name for d in DEVICES)}, or give a Device."
    raise InputError(msg)


def time(
    plans: Plan | Sequence[Plan],
    inputs: Sequence[Any],
    *,
    progress: Callable[[int, int, records.Timings], None] | bool | None = None,
    cancelled: Callable[[], bool] | None = None,
    seconds: float = 1.0,
) -> Timings:
    """Return measured times of plans, per segment and in total.

    Results are checked against the reference evaluation first. Outputs are allocated beforehand. The first plan is
    the baseline of the ratios.

    Parameters
    ----------
    plans
        Plans for the same inputs.
    inputs
        Arrays and numbers.
    progress
        Called as ``progress(done, total, timings so far)``; None shows a bar in a terminal or notebook, False none.
    cancelled
        Asked between measurements; once true, the rows measured so far are returned.
    seconds
        Time to spend on each measurement, at most, after warm-up.

    Raises
    ------
    InputError
        If inputs do not fit, or are abstract.
    """
    several = [plans] if isinstance(plans, Plan) else plans
    if not isinstance(several, list | tuple) or not several or not all(isinstance(p, Plan) for p in several):
        msg = f"time: plans must be a plan or a list of plans, given {plans!r}."
        raise ArgumentTypeError(msg)
    flat = _flatten(inputs)
    for value in flat:
        if isinstance(value, TensorSpec):
            msg = "time: abstract inputs cannot run; give arrays (spec.materialize() makes one)."
            raise InputError(msg)
    from fuser_lab.runtime.timing import measure

    measured = measure(several, flat, progress=progress, cancelled=cancelled, seconds=seconds)
    return Timings(rows=measured.rows, preallocated=measured.preallocated)


def explore(
    fd: FusionBuilder | Fusion | Plan,
    inputs: Sequence[Any] | None = None,
    *,
    title: str | None = None,
    **segment_options: Any,
) -> "Explorer":
    """Return the live explorer of a fusion, to be shown in a notebook.

    Parameters
    ----------
    fd
        A definition, a fusion, or a plan to begin with.
    inputs
        As for `segment`; arrays let the explorer run plans, abstract inputs do not.
    title
        What stands in the header.
    **segment_options
        Passed on to `segment`.

    Raises
    ------
    UnsupportedError
        If the notebook packages are not installed.
    """
    try:
        from fuser_lab_widgets import Explorer
    except ImportError as error:
        msg = f"the explorer needs the notebook packages: pip install 'fuser_lab[notebook]' ({error})."
        raise UnsupportedError(msg) from None
    plan = fd if isinstance(fd, Plan) else segment(fd, inputs, **segment_options)
    others = {
        strategy: lambda strategy=strategy: segment(
            plan.definition, list(plan.inputs), strategy=strategy, target=plan.oracle.device, options=plan.options,
        )
        for strategy in ("bottom_up", "top_down", "unfused")
        if strategy != plan.strategy
    }
    arrays = None
    if inputs is not None and not any(isinstance(v, TensorSpec) for v in _flatten(inputs)):
        arrays = _flatten(inputs)
    return Explorer(plan, arrays, strategies=others, title=title or plan.name)


def example(name: str, size: str = "small") -> tuple[FusionDefinition, list[Any]]:
    """Return an example's definition with inputs: arrays for ``"small"``, abstract ones for ``"full"``.

    Raises
    ------
    InputError
        If there is no such example or size.
    """
    chosen = examples.get(name)
    with FusionDefinition() as fd:
        chosen.define(fd, size)
    return fd, list(chosen.specs(size)) if size == "full" else chosen.inputs(size)


__all__ = ["FusionDefinition", "Timings", "example", "explore", "segment", "time"]
