"""Making a plan from a definition and inputs."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from fuser_lab.analysis.symbolic_axes import SymbolicAxes
from fuser_lab.arguments import ANYTHING, FLAG, FUNCTION, TEXT, instance, list_of, optional, short_text, takes
from fuser_lab.cost.device import DEFAULT, DEVICES, THIS_CPU, TYPICAL_CPU, Device
from fuser_lab.cost.verdict import SchedulerType
from fuser_lab.definition.binding import Binding, Described, bind, default_inputs, example_line
from fuser_lab.definition.builder import FusionBuilder
from fuser_lab.definition.spec import TensorSpec
from fuser_lab.errors import ArgumentTypeError, InputError
from fuser_lab.ir import Fusion
from fuser_lab.ir.tensor_names import named_error
from fuser_lab.passes import PASSES, Pass, text_digest
from fuser_lab.plan.clock import ScheduledClock, given_strides
from fuser_lab.plan.kept_results import kept_for
from fuser_lab.plan.plan import Plan
from fuser_lab.plan.shown_log import ShownLog
from fuser_lab.report.units import plural
from fuser_lab.runtime.arrays import describe, kind_of
from fuser_lab.runtime.cpu.this_cpu import this_cpu, typical_cpu
from fuser_lab.runtime.gpu.this_gpu import THIS_MACHINE, this_gpu
from fuser_lab.schedule.base import Scheduler
from fuser_lab.schedule.registry import SCHEDULERS, SchedulerRegistry
from fuser_lab.schedule.tuned_parameters import Kept
from fuser_lab.segmentation import STRATEGIES, SegmenterOptions, Strategy
from fuser_lab.segmentation import segment as segment_fusion
from fuser_lab.segmentation.events import DecisionLog, PassApplied
from fuser_lab.segmentation.layouts import layouts_of, negotiate
from fuser_lab.segmentation.options import run_passes

_ENTRIES = list_of(ANYTHING, "a list of arrays and numbers", lazy=True)
TARGET = optional(TEXT.worded("a device's name") | instance(Device))
# Search states per expression that may be lowered to predict the time of its kernel; in limited time only that counts.
STATES_PER_LOWERED = 2000
_END = object()


def flatten(inputs: object) -> list[Any]:
    """Return inputs as a flat list: any iterable of arrays and numbers, whose lists and tuples are flattened.

    Raises
    ------
    ArgumentTypeError
        If the inputs are not iterable, or are a single array.
    InputError
        If a list contains itself, or the entries do not end.
    """
    if hasattr(inputs, "dtype"):
        raise ArgumentTypeError(f"inputs must be a list of arrays and numbers, given {short_text(inputs)}.")
    values: list[Any] = []
    open_: list[tuple[object, Iterator[Any]]] = [(inputs, iter(_ENTRIES.of(inputs, "", "inputs")))]
    inside = {id(inputs)}
    while open_:
        value = next(open_[-1][1], _END)
        if value is _END:
            inside.discard(id(open_.pop()[0]))
        elif isinstance(value, list | tuple):
            if id(value) in inside:
                raise InputError(f"inputs must be a list of arrays and numbers; {short_text(value)} contains itself.")
            inside.add(id(value))
            open_.append((value, iter(value)))
        else:
            values.append(value)
    return values


def definition_of(fd: object) -> Fusion:
    """Return the fusion that a definition, or anything with a ``definition``, has recorded.

    Raises
    ------
    ArgumentTypeError
        If the object is neither.
    """
    fusion = fd if isinstance(fd, Fusion) else fd.fusion if isinstance(fd, FusionBuilder) else None
    if fusion is None:
        fusion = getattr(fd, "definition", None)
    if isinstance(fusion, Fusion):
        return fusion
    captured = "; fl.from_torch and fl.from_jax capture functions and modules" if callable(fd) else ""
    raise ArgumentTypeError(f"fd must be a FusionDefinition or a Fusion, given {type(fd).__name__}{captured}.")


def has_arrays(inputs: Sequence[Any]) -> bool:
    """Whether some flat input is an array."""
    return any(kind_of(value) != "number" for value in inputs)


@takes(
    strategy=TEXT.worded("a strategy's name") | FUNCTION.worded("a function of fusion and oracle"),
    target=TARGET,
    options=optional(instance(SegmenterOptions, accepted="SegmenterOptions")),
    schedulers=optional(list_of(ANYTHING, "a list of schedulers", lazy=True)),
    passes=list_of(instance(Pass), "a list of passes", lazy=True),
    log=optional(instance(DecisionLog)),
    name=optional(TEXT),
    tuned=(optional(FLAG) | instance(Kept)).worded("True, False, None, or what kept_results() returns"),
)
def segment(
    fd: object,
    inputs: Sequence[Any] | None = None,
    *,
    strategy: Strategy = "bottom_up",
    target: str | Device | None = None,
    options: SegmenterOptions | None = None,
    schedulers: Iterable[Scheduler] | None = None,
    passes: Iterable[Pass] = PASSES,
    log: DecisionLog | None = None,
    name: str | None = None,
    tuned: bool | Kept | None = None,
) -> Plan:
    """Return a plan: the fusion cut into segments as nvFuser would, or by another strategy.

    Parameters
    ----------
    fd
        A definition or a fusion.
    inputs
        Arrays, abstract inputs (`fuser_lab.spec`) and numbers, one per fusion input; optional if the definition
        fixes all sizes.
    strategy
        ``"bottom_up"`` (nvFuser's), ``"top_down"`` (NVIDIA/Fuser issue #2224), ``"saving"`` (merges that save the
        most bytes first), ``"optimal"`` (the fewest bytes and launches that the search finds), ``"fastest"`` (the least
        predicted time that the search finds, with recomputation and our own schedulers), ``"unfused"``, or a function
        of fusion and oracle that returns groups of expressions or of the names of their results.
    target
        Device to plan for: a name (``"A100"``, ``"H100"``, ``"H200"``, ``"B200"``), ``"this machine"`` for the local
        GPU, ``"this CPU"`` for the local processor once its rates are known (`python -m fuser_lab fit --this-cpu`),
        ``"typical CPU"`` for a CPU with its caches whose rates are not known, or a Device; an H200 by default.
    options
        Options of the segmenter; nvFuser's by default.
    schedulers
        Schedulers asked for each candidate, in this order, until one accepts; by default nvFuser's, and for the
        strategy "fastest" `OPEN_SCHEDULERS` (``schedulers=fl.SCHEDULERS`` keeps nvFuser's rules). `with_rule` adds a
        rule to these; `OPEN_SCHEDULERS` also accept candidates that nvFuser refuses and fuser_lab lowers to one kernel.
        A user-defined scheduler has a ``type``, which selects its kernels, and a method ``can_schedule(facts,
        device)``.
    passes
        Passes that rewrite the fusion before it is cut, in this order; nvFuser's by default. Your own pass is a
        `fuser_lab.Pass`: ``[*fuser_lab.PASSES, Mine()]``.
    log
        Log in which decisions are also recorded; ``plan.decisions`` always has them.
    name
        Name of the plan in tables and tabs; by default the strategy's, or ``"custom"`` for a lambda.
    tuned
        Whether kernels begin with the parameters that were kept from `tune` (`fuser_lab.kept_results`); by default as
        `fuser_lab.use_tuned` says, otherwise not. It may also be some of these results.

    Raises
    ------
    InputError
        If inputs do not fit, strategy or target are unknown, or a pass returns something other than a fusion with the
        same inputs and outputs.
    """
    definition = definition_of(fd)
    names = fd.names if isinstance(fd, FusionBuilder) else ()
    try:
        bound = _bound(definition, inputs)
    except InputError as error:
        raise named_error(error, names) from None
    chosen = options or SegmenterOptions()
    device = device_of(target)
    if chosen.least_capability is not None and device.cc < chosen.least_capability:
        needed, has = (".".join(map(str, cc)) for cc in (chosen.least_capability, device.cc))
        msg = f"segment: the options require compute capability {needed}, but target {device.name} has {has}."
        raise InputError(msg)
    asked = _default_schedulers(strategy) if schedulers is None else schedulers
    oracle = registry(
        device, chosen, asked, kept_for(tuned), SymbolicAxes(definition=definition, bound=bound.fusion),
    )
    decisions = ShownLog() if log is None else log
    ran = tuple(passes)
    fusion = rewrite_fusion(bound.fusion, chosen, decisions, ran)
    if chosen.precision == "fused":
        fusion = replace(fusion, keeps_float=True)
    clock = None
    if strategy in {"optimal", "fastest"}:
        each = STATES_PER_LOWERED if chosen.search_calls is None else 1
        clock = ScheduledClock(device, chosen.search_states // each, given_strides(bound.inputs))
    segmented = segment_fusion(fusion, oracle, strategy=strategy, options=chosen, log=decisions, clock=clock)
    agreed = None
    if chosen.layout_mode == "negotiate":
        segmented, agreed = negotiate(segmented, oracle)
    elif chosen.layout_mode == "propagate":
        agreed = layouts_of(segmented, chosen.layout_mode)
    if agreed is not None:
        decisions.layouts.extend(agreed.events)
    word = strategy if isinstance(strategy, str) else _own_name(strategy)
    return Plan(
        name=name or word.replace("_", "-"),
        strategy=word,
        segmented=segmented,
        definition=definition,
        inputs=bound.inputs,
        options=chosen,
        oracle=oracle,
        decisions=decisions,
        segmenter=segment,
        agreed=agreed,
        passes=ran,
        method=strategy,
        sources=fd.sources if isinstance(fd, FusionBuilder) else (),
        names=names,
    )


def _bound(definition: Fusion, inputs: Sequence[Any] | None) -> Binding:
    """Return a definition for inputs, or for those that its sizes describe."""
    described = default_inputs(definition) if inputs is None else tuple(described_input(v) for v in flatten(inputs))
    if not described and definition.inputs:
        expected = f"{plural(len(definition.inputs), 'input')} ({', '.join(value.name for value in definition.inputs)})"
        raise InputError(f"the fusion takes {expected}, given 0; {example_line(definition)}.")
    return bind(definition, described)


def _default_schedulers(strategy: Strategy) -> Iterable[Scheduler]:
    """Return nvFuser's schedulers, and for the strategy "fastest" the open ones as well."""
    if strategy != "fastest":
        return SCHEDULERS
    from fuser_lab.codegen.one_kernel import OPEN_SCHEDULERS

    return OPEN_SCHEDULERS


def _own_name(strategy: object) -> str:
    """Return the name of a strategy that is a function.

    "custom" for a lambda or a function with the name of a built-in strategy.
    """
    name: str = getattr(strategy, "__name__", "custom")
    return name if name.isidentifier() and name not in STRATEGIES else "custom"


def registry(
    device: Device, options: SegmenterOptions, schedulers: Iterable[Scheduler] = SCHEDULERS, kept: Kept | None = None,
    symbolic: SymbolicAxes | None = None,
) -> SchedulerRegistry:
    """Return the schedulers of a device that the options do not disable."""
    return SchedulerRegistry(
        device, frozenset(map(SchedulerType, options.disabled_schedulers)),
        memory_promotion=options.memory_promotion, fuse_matmul=options.fuse_matmul, schedulers=schedulers,
        kept=kept, symbolic=symbolic,
    )


def rewrite_fusion(
    fusion: Fusion, options: SegmenterOptions, log: DecisionLog, passes: Sequence[Pass] = PASSES,
) -> Fusion:
    """Return a concretized fusion after the presegmentation passes; the log records those that changed it."""

    def note(applied: Pass, before: Fusion, after: Fusion, seconds: float) -> None:
        digests = text_digest(before), text_digest(after)
        log.passes.append(PassApplied(name=applied.name, before=digests[0], after=digests[1], seconds=seconds))

    return run_passes(fusion, options, passes, note)


def described_input(value: Any) -> Described:
    """Return the description of an input; a description is returned unchanged."""
    return value if isinstance(value, TensorSpec) else describe(value)


def device_of(target: str | Device | None) -> Device:
    """Return a device by name; an H200 if none is named."""
    target = TARGET.of(target, "", "target")
    if target is None:
        return DEFAULT
    if isinstance(target, Device):
        return target
    if target == THIS_MACHINE:
        return this_gpu()
    if target == THIS_CPU:
        return this_cpu()
    if target == TYPICAL_CPU:
        return typical_cpu()
    for device in DEVICES:
        if device.name == target:
            return device
    names = ", ".join(d.name for d in DEVICES)
    raise InputError(
        f"unknown target {short_text(target)}; choose from {names}, {THIS_MACHINE!r}, {THIS_CPU!r} and "
        f"{TYPICAL_CPU!r}, or give a Device."
    )
