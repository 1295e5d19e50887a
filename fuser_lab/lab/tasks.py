"""Tasks of a sweep: one fusion at one size, cut in one way, and what to do with the plan. Equal content, equal key."""

import enum
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from hashlib import sha256
from typing import Any, Final

from fuser_lab.arguments import is_whole, short_text
from fuser_lab.cost.device import Device
from fuser_lab.definition.binding import Described, check_count, default_inputs, described_as_defined
from fuser_lab.definition.spec import TensorSpec
from fuser_lab.errors import FuserLabError, InputError
from fuser_lab.files.json_text import json_text
from fuser_lab.ir import Fusion, TensorView
from fuser_lab.lab.rows import canonical_text, text_hash
from fuser_lab.plan import Plan
from fuser_lab.plan.planning import described_input, segment
from fuser_lab.report.units import plural
from fuser_lab.schedule.parameter_values import check_values
from fuser_lab.schedule.state import Value
from fuser_lab.schedule.suggestions import suggestions
from fuser_lab.segmentation import SegmenterOptions
from fuser_lab.targets import CPU

_FORMAT: Final = 1  # version of the content that keys are made from

Schedule = tuple[tuple[int, int, tuple[tuple[str, Value], ...]], ...]
"""Parameters set by hand: segment, loop nest, values by name."""


class Work(enum.Enum):
    """What a task does with its plan; the values are those that users write."""

    SEGMENT = "segment"
    CERTIFICATE = "certificate"
    COMPILE = "compile"
    TIME = "time"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One fusion at one size.

    ``refusal`` says why the size does not fit the fusion, and is empty if it fits; ``inputs`` are empty if it does not.
    """

    name: str
    fusion: Fusion
    inputs: tuple[Described, ...] = ()
    refusal: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One task, as text and numbers that any process can work on.

    Attributes
    ----------
    subject
        Name of the fusion in tables.
    fusion
        The definition as canonical text.
    inputs
        Descriptions of the inputs.
    strategy, target, options, schedule
        How the fusion is cut, and parameters set by hand.
    work, device
        What to do with the plan, and whether kernels are for the CPU or for CUDA.
    peers
        Names of the peers, each with that of its function.
    seconds
        Maximum time for each measurement.
    sweep
        Name of the sweep.
    refusal
        Why the task cannot be done; empty if no reason is known.
    key
        Hash of the content, without the subject.
    """

    subject: str
    fusion: str
    inputs: tuple[Described, ...]
    strategy: str
    target: Device
    options: SegmenterOptions
    schedule: Schedule
    work: Work
    device: str
    peers: tuple[tuple[str, str], ...] = ()
    seconds: float = 1.0
    sweep: str = ""
    refusal: str = ""
    key: str = field(init=False)

    def __post_init__(self) -> None:
        """Set the key."""
        content = {f.name: _content(getattr(self, f.name)) for f in fields(self) if f.name not in {"subject", "key"}}
        text = json_text([_FORMAT, _sort(content)])
        object.__setattr__(self, "key", sha256(text.encode()).hexdigest()[:24])

    @property
    def fusion_hash(self) -> str:
        """The hash by which rows name the fusion."""
        return text_hash(self.fusion)

    @property
    def plan_name(self) -> str:
        """Name of the plan in rows: strategy, and parameters set by hand."""
        return " ".join([self.strategy, *self.schedule_words])

    @property
    def schedule_words(self) -> tuple[str, ...]:
        """Parameters set by hand, one text per loop nest, such as ``S0[grain=8]``."""
        return tuple(
            f"S{number}{f'.{nest}' if nest else ''}[{', '.join(f'{name}={value}' for name, value in values)}]"
            for number, nest, values in self.schedule
        )

    def __str__(self) -> str:
        """Return fusion, sizes, strategy and target."""
        sizes = ", ".join(str(list(d.shape)) if isinstance(d, TensorSpec) else str(d) for d in self.inputs)
        return f"{self.subject}{f' ({sizes})' if sizes else ''} {self.plan_name} {self.target.name}"


def case_of(name: str, fusion: Fusion, size: Sequence[Any] | None, fusion_inputs: Sequence[Any] | None) -> Case:
    """Return a fusion at a size: the sweep's, otherwise the example's, otherwise the size that the definition fixes."""
    try:
        if size is not None:
            inputs = inputs_of(fusion, size)
        elif fusion_inputs is not None:
            inputs = tuple(map(_plain_input, fusion_inputs))
        else:
            inputs = default_inputs(fusion)
        check_count(fusion.inputs, inputs)
    except FuserLabError as error:
        return Case(name=name, fusion=fusion, refusal=str(error))
    return Case(name=name, fusion=fusion, inputs=inputs)


def inputs_of(fusion: Fusion, size: Sequence[Any]) -> tuple[Described, ...]:
    """Return the inputs of a size.

    A size of whole numbers holds for all tensors, aligned at the last axis: ``(64, 32)`` makes a vector of 32 and a
    matrix of 64 rows; axes that the definition fixes to 1 keep their extent. Any other size has one entry per input:
    a shape, a description, an array or a number.

    Raises
    ------
    InputError
        If it does not fit.
    """
    if all(is_whole(entry) for entry in size):
        return tuple(_align(value, tuple(map(int, size))) for value in fusion.inputs)
    if len(size) != len(fusion.inputs):
        expected = f"{plural(len(fusion.inputs), 'input')} ({', '.join(value.name for value in fusion.inputs)})"
        raise InputError(f"the fusion takes {expected}, but the size {short_text(size)} describes {len(size)}.")
    return tuple(_entry(value, entry) for value, entry in zip(fusion.inputs, size, strict=True))


def tasks_of(
    case: Case, *, strategies: Sequence[str], targets: Sequence[Device], options: Sequence[SegmenterOptions],
    schedules: Sequence[Schedule] | None, work: Work, device: str, peers: Sequence[tuple[str, str]], seconds: float,
    sweep: str,
) -> Iterator[Task]:
    """Yield the tasks of a fusion at a size; ``schedules=None`` stands for all candidates of each plan's kernels."""
    text = canonical_text(case.fusion)
    measures = work is Work.TIME
    for target in targets:
        for strategy in strategies:
            for chosen in options:
                task = Task(
                    subject=case.name, fusion=text, inputs=case.inputs, strategy=strategy, target=target,
                    options=chosen, schedule=(), work=work, device=device, peers=tuple(peers) if measures else (),
                    seconds=seconds if measures else 0.0, sweep=sweep, refusal=case.refusal,
                )
                for schedule in _candidates(case, task) if schedules is None else schedules:
                    yield replace(task, schedule=schedule)


def schedule_of(parameters: Mapping[Any, Mapping[str, Value]]) -> Schedule:
    """Return parameters by segment, such as ``{0: {"grain": 8}}``, as part of a task.

    Raises
    ------
    InputError
        If a key is not the number of a segment.
    ArgumentTypeError
        If a name is not a parameter, or a value has the wrong type.
    """
    changes = []
    for segment_number, values in parameters.items():
        text = str(segment_number)
        if not text.isdecimal():
            raise InputError(f"sweep: schedules have numbers of segments as keys, given {short_text(segment_number)}.")
        plain = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
        changes.append((int(text), 0, check_values(plain)))
    return tuple(sorted(changes))


def with_schedule(plan: Plan, schedule: Schedule, device: str) -> Plan:
    """Return a plan with the parameters of a task."""
    for number, nest, values in schedule:
        plan = plan.with_params(number, target=device, nest=nest, **dict(values))
    return plan


def _candidates(case: Case, task: Task) -> list[Schedule]:
    """Return the heuristics' choice, and every change of one loop nest that is worth measuring."""
    schedules: list[Schedule] = [()]
    if case.refusal:
        return schedules
    try:
        plan = segment(
            case.fusion, case.inputs, strategy=task.strategy, target=task.target, options=task.options,
        )
        for planned in plan.segments:
            for nest in planned.params(task.device):
                schedules += [((planned.index, nest.number, values),) for values in suggestions(nest)]
    except FuserLabError:
        return [()]  # the task names it
    return schedules


def _align(value: Any, size: tuple[int, ...]) -> Described:
    if not isinstance(value, TensorView):
        raise InputError(f"the size {list(size)} does not give the number {value.name}; give one entry per input.")
    if value.ndim > len(size):
        raise InputError(f"the size {list(size)} is too short for the input {value.name}, which has {value.ndim} axes.")
    extents = (axis.visible_extent for axis in value.domain.axes)
    sizes = size[len(size) - value.ndim :]
    return described_as_defined(value, [1 if e == 1 else n for e, n in zip(extents, sizes, strict=True)])


def _entry(value: Any, entry: Any) -> Described:
    is_shape = isinstance(entry, list | tuple) and all(is_whole(n) for n in entry)
    if is_shape and isinstance(value, TensorView):
        shape = tuple(map(int, entry))
        if len(shape) != value.ndim or min(shape, default=0) < 0:
            raise InputError(f"the shape {list(shape)} does not fit the input {value}.")
        return described_as_defined(value, shape)
    if isinstance(entry, list | tuple):
        raise InputError(
            f"the entry {short_text(entry)} does not describe the input {value.name}; give a shape, fl.spec or a "
            "number."
        )
    return _plain_input(entry)


def _plain_input(value: Any) -> Described:
    """Return the description of an input, without its device."""
    described = described_input(value)
    return replace(described, device=CPU.name) if isinstance(described, TensorSpec) else described


def _sort(content: dict[str, Any]) -> dict[str, Any]:
    return {name: content[name] for name in sorted(content)}


def _content(value: Any) -> Any:
    """Return a value as JSON that is the same in every process: sets are sorted, numbers keep their types."""
    if isinstance(value, SegmenterOptions):  # only changed options, because options may be added
        default = SegmenterOptions()
        names = [f.name for f in fields(value) if getattr(value, f.name) != getattr(default, f.name)]
        return _sort({name: _content(getattr(value, name)) for name in names})
    if is_dataclass(value) and not isinstance(value, type):
        # A GPU has no rates of a host, so its keys match those in ledgers from before devices had this field.
        hidden = {"host"} if isinstance(value, Device) and value.host is None else frozenset[str]()
        return _sort({f.name: _content(getattr(value, f.name)) for f in fields(value) if f.name not in hidden})
    if isinstance(value, enum.Enum):
        return _content(value.value) if isinstance(value.value, str) else value.name
    if isinstance(value, frozenset | set):
        return sorted(json_text(_content(entry)) for entry in value)
    if isinstance(value, list | tuple):
        return [_content(entry) for entry in value]
    return value if value is None or isinstance(value, str | bool | int) else repr(value)
