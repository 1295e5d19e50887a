"""Kernels as transforms and back: the schedule that parameters make, and the parameters that a schedule has.

Each nest of loops of a kernel has a style and parameters (`LoopSchedule`). `schedule_of` writes them as transforms:
as splits, parallel types and compute-at positions where one nest on a GPU is the whole kernel, otherwise as one
template transform per nest (``on_blocks``, ``on_cores``). `read` goes the other way: a schedule that `schedule_of`
writes for some parameters is that kernel, written by the style's own writer; all others are lowered loop by loop.
Values that follow from others, such as the number of blocks, are not part of a schedule unless they are set by hand.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fuser_lab.arguments import shown
from fuser_lab.definition.scheduling import RULES
from fuser_lab.errors import ArgumentTypeError, ScheduleError, UnsupportedError
from fuser_lab.ir import Fusion
from fuser_lab.ir.kernel_transforms import is_hint, is_template
from fuser_lab.ir.loop_nest import nest_text
from fuser_lab.ir.transform import Argument, ParallelType, Transform
from fuser_lab.schedule.by_hand import FORMS_OF_STYLES, HandParams, LoopForm, NumberedSchedule
from fuser_lab.schedule.parameters import LoopChange, NestChoice, Value, Values, changed, checked
from fuser_lab.schedule.state import LoopSchedule, Style
from fuser_lab.targets import Form, find, names, target_of

LOOPS_TARGET = "cuda"
"""The target whose kernels are written as loops; those of others are templates."""

_LATER = ("resident", "blocks")  # parameters that follow from others where they are not set
_HINTS: Mapping[str, tuple[str, str]] = {"resident": ("launch_bounds", "blocks"), "blocks": ("grid", "blocks")}
_KINDS: Mapping[Form, str] = {Form.BLOCKS: "on_blocks", Form.CORES: "on_cores"}
_DEFAULTS: Mapping[str, str] = {"on_blocks": "cuda", "on_cores": "cpu"}
_FACTORS: Mapping[str, str] = {
    "vector": "vector: elements of one access", "threads": "threads of a block, in x",
    "rows": "threads of a block, in y", "unroll": "unroll: steps in flight together",
    "split": "split: parts of each reduction",
}
_OF_LINES = ("style", "nest", "target")

_Word = tuple[str, str, Any]
Choices = Callable[[Sequence[LoopChange]], Sequence[NestChoice]]  # the nests of a kernel with parameters set by hand


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What a schedule says of a segment's kernels.

    ``changes`` are parameters of the targets in ``targets``, where the schedule is what `schedule_of` writes for
    them. Otherwise ``loops`` is the schedule, to be lowered loop by loop, and ``because`` says why.
    """

    changes: tuple[LoopChange, ...] = ()
    targets: tuple[str, ...] = ()
    loops: tuple[Transform, ...] = ()
    because: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelSchedule:
    """The schedule of a kernel, and what the factors of its splits are, by the number of the transform."""

    transforms: tuple[Transform, ...]
    meanings: tuple[tuple[int, str], ...] = ()


# From parameters to transforms


def schedule_of(fusion: Fusion, choices: Sequence[NestChoice], taken: Collection[str] = ()) -> KernelSchedule:
    """Return the schedule of a kernel.

    Parameters
    ----------
    fusion
        The segment, decomposed.
    choices
        The nests of its kernel.
    taken
        Names that no new tensor may have.
    """
    form = _form(fusion, choices, taken)
    written = None if form is None else _written(form, fusion, _params(choices[0].schedule), taken)
    if written is None:
        return KernelSchedule(transforms=tuple(map(line_of, choices)))
    (choice,) = choices
    meanings = tuple((place, _FACTORS[name]) for place, name in sorted(written.parameters.items()))
    return KernelSchedule(transforms=(*written.transforms, *_hints(choice)), meanings=meanings)


def following(choices: Sequence[NestChoice]) -> Iterator[str]:
    """Yield a sentence for the values of each nest that follow from its parameters, as the kernel has them."""
    for choice in choices:
        loops, given = choice.schedule, _set_by_hand(choice)
        said = [
            _call(*_HINTS[name], getattr(loops, name))
            for name in _later_names(choice)
            if name in choice.names and name not in given and getattr(loops, name)
        ]
        if loops.persistent and loops.style is Style.ROWS and (loops.registers or loops.shared):
            said.append(f"steps of a row in registers: {loops.registers}, in shared memory: {_steps_in_shared(choice)}")
        if said:
            where = f"Nest {choice.number}: " if len(choices) > 1 else ""
            yield f"{where}follows from these: {'; '.join(said)}"


def _steps_in_shared(choice: NestChoice) -> int:
    return 0 if choice.space.column_sums else choice.schedule.shared


def _call(kind: str, argument: str, value: object) -> str:
    return f"fd.sched.{kind}({argument}={value})"


def _form(fusion: Fusion, choices: Sequence[NestChoice], taken: Collection[str]) -> LoopForm | None:
    """Return how the loops of a kernel's only nest are written; None if no form fits.

    It depends on the heuristics' choice, so that other parameters are other numbers in the same transforms.
    """
    if len(choices) != 1 or choices[0].target != LOOPS_TARGET:
        return None
    (choice,) = choices
    space, loops = choice.space, choice.chosen
    if space.scans or space.column_sums:
        return None
    fitting = None
    for form in FORMS_OF_STYLES.get(loops.style, ()):
        written = _written(form, fusion, _params(loops), taken)
        if written is None:
            continue
        fitting = fitting or form
        try:
            nest_text(written.scheduled, RULES)
        except ScheduleError:
            continue
        return form
    return fitting


def _params(loops: LoopSchedule) -> HandParams:
    x, y = loops.threads
    return HandParams(vector=loops.vector, threads=x, rows=y, unroll=loops.unroll, parts=loops.split, full=True)


def _written(
    form: LoopForm, fusion: Fusion, params: HandParams, taken: Collection[str],
) -> NumberedSchedule | None:
    hand = NumberedSchedule(fusion, taken=lambda: tuple(taken))
    try:
        form(hand, fusion, params)
    except (ScheduleError, UnsupportedError):
        return None
    # A loop that runs over no element has no schedule.
    return hand if hand.transforms else None


def _hints(choice: NestChoice) -> Iterator[Transform]:
    """Yield what the loops of a nest do not say and the heuristics would choose otherwise."""
    given, loops, chosen = _set_by_hand(choice), choice.schedule, choice.chosen
    for name, (kind, argument) in _HINTS.items():
        if name in given:
            yield Transform(kind=kind, args=((argument, getattr(loops, name)),))
    if chosen.persistent and not loops.persistent:
        yield Transform(kind="read_again")
    if loops.specialized is not chosen.specialized:
        yield Transform(kind="specialize", args=(("sizes", loops.specialized),))


def line_of(choice: NestChoice) -> Transform:
    """Return a nest as one template."""
    kind, loops, given = _KINDS[target_of(choice.target).form], choice.schedule, _set_by_hand(choice)
    args: list[tuple[str, Argument]] = [("style", loops.style.value), ("nest", choice.number)]
    if choice.target != _DEFAULTS[kind]:
        args.append(("target", choice.target))
    for name in choice.names:
        value = getattr(loops, name)
        shown_always = name not in _later_names(choice) and name != "specialized"
        if shown_always or name in given or (name == "specialized" and value):
            args.append((name, value))
    return Transform(kind=kind, args=tuple(args))


def _later_names(choice: NestChoice) -> tuple[str, ...]:
    """Return the parameters that follow from others where they are not set."""
    loops = choice.chosen
    if not target_of(choice.target).has_blocks:
        return ()
    return {Style.ELEMENTS: ("blocks",), Style.ROWS: ("resident",)}.get(loops.style, ())


def _set_by_hand(choice: NestChoice) -> dict[str, Value]:
    """Return the values that make a nest what it is and that neither the heuristics choose nor others imply."""
    wanted = choice.schedule
    values = {name: getattr(wanted, name) for name in choice.names}
    found = {name: value for name, value in values.items() if value != getattr(choice.chosen, name)}
    if not _gives(choice, found, wanted):
        found |= {name: values[name] for name in _later_names(choice) if name in values}
    return _fewest(choice, found)


def _gives(choice: NestChoice, values: Mapping[str, Value], wanted: LoopSchedule) -> bool:
    got, problem = changed(choice.space, choice.target, choice.chosen, tuple(sorted(values.items())), choice.names)
    return not problem and replace(got, reasons=()) == replace(wanted, reasons=())


def _fewest(choice: NestChoice, values: Mapping[str, Value]) -> dict[str, Value]:
    """Return values without those that change nothing."""
    found = dict(values)
    wanted, problem = changed(choice.space, choice.target, choice.chosen, tuple(sorted(found.items())), choice.names)
    if problem:
        return found
    # What follows from others goes first.
    for name in sorted(found, key=lambda name: (name not in _LATER, name)):
        rest = {other: value for other, value in found.items() if other != name}
        if _gives(choice, rest, wanted):
            found = rest
    return found


def needed(choice: NestChoice, values: Values) -> Values:
    """Return values set by hand without those that the heuristics choose as well, or that follow from others."""
    pairs = {name: (value, 1) if name == "threads" and isinstance(value, int) else value for name, value in values}
    return tuple(sorted(_fewest(choice, pairs).items()))


# From transforms to parameters


def read(
    fusion: Fusion, transforms: Sequence[Transform], choices: Callable[[str], Choices], taken: Collection[str] = (),
) -> Reading:
    """Return what a schedule says of a segment's kernels.

    Parameters
    ----------
    fusion
        The segment, decomposed.
    transforms
        The schedule; legal for the fusion.
    choices
        Returns, for a target, a function that returns the nests of the segment's kernel.
    taken
        Names that no new tensor may have.

    Raises
    ------
    ScheduleError
        If a template names a nest, a style or a parameter that the kernel does not have, or has an illegal value; or
        if templates stand beside loops of the same target.
    """
    lines = [one for one in transforms if is_template(one)]
    loops = tuple(one for one in transforms if not is_template(one))
    by_target: dict[str, list[Transform]] = {}
    for line in lines:
        by_target.setdefault(_target(line), []).append(line)
    if loops and LOOPS_TARGET in by_target:
        line = by_target[LOOPS_TARGET][0]
        msg = f"{line}: the schedule has loops for {LOOPS_TARGET!r} as well, {loops[0]}; only one of them is allowed."
        raise ScheduleError(msg)
    changes = [change for target, those in by_target.items() for change in _of_lines(those, choices(target))]
    targets = tuple(by_target)
    if not loops:
        return Reading(changes=tuple(changes), targets=targets)
    found, because = _of_loops(fusion, loops, choices(LOOPS_TARGET), taken)
    if found is not None:
        return Reading(changes=(*changes, *found), targets=(*targets, LOOPS_TARGET))
    if lines:
        msg = f"{lines[0]}: the other loops of this schedule are no template ({because}), and run alone."
        raise ScheduleError(msg)
    return Reading(loops=loops, because=because)


def _target(line: Transform) -> str:
    args = dict(line.args)
    target = str(args.get("target", _DEFAULTS[line.kind]))
    known = find(target)
    if known is None or _KINDS[known.form] != line.kind:
        fitting = ", ".join(name for name in names() if _KINDS[target_of(name).form] == line.kind)
        msg = f"{line.kind}: target is {shown(target)}; choose from {fitting}."
        raise ScheduleError(msg)
    return target


def _of_lines(lines: Sequence[Transform], choices: Choices) -> tuple[LoopChange, ...]:
    """Return the parameters that templates set; a line as the heuristics write it sets none."""
    base, found = choices(()), list[LoopChange]()
    for line in sorted(lines, key=_number):
        number = _number(line)
        if number < len(base) and line == line_of(base[number]):
            continue
        now = choices(tuple(found)) if found else base
        if number not in range(len(now)):
            count = f"{len(now)} nest{'s' if len(now) != 1 else ''} of loops"
            msg = f"{line.kind}: the kernel has {count}, no nest {number}."
            raise ScheduleError(msg)
        values = _values(line, now[number])
        if values:
            found.append(LoopChange(target=now[number].target, nest=number, values=values))
    return tuple(found)


def _number(line: Transform) -> int:
    nest = line.arg("nest")
    return nest if isinstance(nest, int) else -1


def _values(line: Transform, choice: NestChoice) -> Values:
    args = dict(line.args)
    style = choice.chosen.style.value
    if args["style"] != style:
        msg = f"{line.kind}: nest {choice.number} is of style {style!r}, given {shown(args['style'])}."
        raise ScheduleError(msg)
    given: dict[str, Any] = {name: value for name, value in args.items() if name not in _OF_LINES}
    try:
        values = checked(given)
    except ArgumentTypeError as error:
        raise ScheduleError(_called(str(error), line.kind)) from None
    wanted = dict(needed(choice, values))
    _, problem = changed(choice.space, choice.target, choice.chosen, tuple(sorted(wanted.items())), choice.names)
    if problem:
        msg = f"{line.kind}: {problem}."
        raise ScheduleError(msg)
    return tuple(sorted(wanted.items()))


def _called(message: str, kind: str) -> str:
    return message.replace("with_params:", f"{kind}:", 1)


def _of_loops(
    fusion: Fusion, loops: Sequence[Transform], choices: Choices, taken: Collection[str],
) -> tuple[tuple[LoopChange, ...] | None, str]:
    """Return the parameters of loops that are a template, or None and why they are not."""
    base = choices(())
    form = _form(fusion, base, taken)
    if form is None:
        return None, "the automatic kernel has several nests, or a form that only a template names"
    (choice,) = base
    plain = [one for one in loops if not is_hint(one)]
    given = _numbers(form, fusion, choice, plain, taken)
    if given is None:
        return None, "its steps are not those of the automatic kernel with other numbers"
    for one in loops:
        if is_hint(one):
            name, value = _of_hint(one)
            given[name] = value
    differ = {
        name: value for name, value in given.items()
        if value != getattr(choice.chosen, name) or name in _later_names(choice)
    }
    values = tuple(sorted(_fewest(choice, differ).items()))
    _, problem = changed(choice.space, choice.target, choice.chosen, values, choice.names)
    if problem:
        return None, f"{problem}"
    return ((LoopChange(target=choice.target, nest=choice.number, values=values),) if values else ()), ""


def _of_hint(hint: Transform) -> tuple[str, Any]:
    for name, (kind, argument) in _HINTS.items():
        if hint.kind == kind:
            return name, hint.arg(argument)
    return ("persistent", False) if hint.kind == "read_again" else ("specialized", hint.arg("sizes"))


def _numbers(
    form: LoopForm, fusion: Fusion, choice: NestChoice, plain: Sequence[Transform], taken: Collection[str],
) -> dict[str, Value] | None:
    """Return the parameters from which a form writes exactly these transforms; None if there are none.

    The factors of splits are read where the form has them, then everything is written again and compared.
    """
    wanted, accesses = _split_words(fusion, plain)
    widest = _written(form, fusion, _params(replace(choice.chosen, vector=choice.space.vector)), taken)
    least = frozenset() if widest is None else _split_words(fusion, widest.transforms)[1]
    # Whether parts are added up by a second phase changes the steps themselves.
    for split in dict.fromkeys((choice.chosen.split, 1, 2)):
        written = _written(form, fusion, _params(replace(choice.chosen, split=split)), taken)
        if written is None:
            continue
        found = {"vector": 1, "threads": 1, "rows": 1, "unroll": 1, "split": 1}
        for place, parameter in written.parameters.items():
            factor = dict(plain[place].args).get("factor") if place < len(plain) else None
            if isinstance(factor, int):
                found[parameter] = factor
        loops = replace(
            choice.chosen, vector=found["vector"], threads=(found["threads"], found["rows"]), unroll=found["unroll"],
            split=found["split"],
        )
        again = _written(form, fusion, _params(loops), taken)
        if again is None:
            continue
        words, most = _split_words(fusion, again.transforms)
        # Fewer copies are one access where a vector is wider, so a number that is changed leaves some of them out.
        if words == wanted and least & most <= accesses <= most:
            return {"vector": loops.vector, "threads": loops.threads, "unroll": loops.unroll, "split": loops.split}
    return None


def content(fusion: Fusion, transforms: Sequence[Transform]) -> str:
    """Return what a schedule is, whatever its tensors are called: equal for equal schedules of equal segments."""
    return repr(_words(fusion, transforms))


def _split_words(fusion: Fusion, transforms: Sequence[Transform]) -> tuple[list[_Word], frozenset[_Word]]:
    """Return what a schedule is without the copies that are one access, and these."""
    words = _words(fusion, transforms)
    accesses = {word for word, one in zip(words, transforms, strict=True) if _is_access(one)}
    return [word for word in words if word not in accesses], frozenset(accesses)


def _is_access(transform: Transform) -> bool:
    return dict(transform.args).get("ptype") is ParallelType.vectorize


def _words(fusion: Fusion, transforms: Sequence[Transform]) -> list[_Word]:
    called = {name: f"t{place}" for place, name in enumerate(fusion.tensors)}
    words: list[_Word] = []
    for transform in transforms:
        for key, value in transform.args:
            if key == "result":
                called[str(value)] = f"m{len(called)}"
        words.append((transform.kind, called.get(transform.tensor, ""), _renamed(transform.args, called)))
    return words


def _renamed(value: Any, called: dict[str, str]) -> Any:
    if isinstance(value, tuple):
        return tuple(_renamed(entry, called) for entry in value)
    return called.get(value, value) if isinstance(value, str) else value
