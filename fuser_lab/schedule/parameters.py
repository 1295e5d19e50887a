"""The choice of a nest's loops: what the heuristics or a scheduler propose, what is kept or set by hand.

A nest has parameters by its form, and their values can be set by hand.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

from fuser_lab.errors import ScheduleError
from fuser_lab.schedule.cpu_loops import cpu_loops
from fuser_lab.schedule.gpu_column_loops import column_loops, columns_in_cluster
from fuser_lab.schedule.gpu_column_sum_loops import backward_loops
from fuser_lab.schedule.gpu_element_loops import element_loops
from fuser_lab.schedule.gpu_row_loops import row_loops
from fuser_lab.schedule.gpu_scan_loops import loops_with_scans, scan_loops
from fuser_lab.schedule.gpu_tile_sum_loops import tile_sum_loops
from fuser_lab.schedule.parameter_values import Values, settings_text, with_values
from fuser_lab.schedule.state import MEANINGS, LoopSchedule, Refused, Space, Style, Value, parameters_of, why
from fuser_lab.targets import target_of


def choose_loops(space: Space, target: str) -> LoopSchedule | Refused:
    """Return the loops of a nest on the named target, correct for any extents.

    Only rows that add to column sums may be refused, because these sums do not fit on chip.
    """
    return _gpu(space) if target_of(target).has_blocks else cpu_loops(space)


def _gpu(space: Space) -> LoopSchedule | Refused:
    loops = backward_loops(space) if space.column_sums and not space.scans else _gpu_loops(space)
    return loops if isinstance(loops, Refused) else replace(loops, reasons=(*loops.reasons, *why(loops.evict)))


def _gpu_loops(space: Space) -> LoopSchedule | Refused:
    if space.scans:
        return scan_loops(space) if space.passes == 1 else loops_with_scans(space)
    if not space.reduces:
        return element_loops(space)
    tiles = tile_sum_loops(space) if space.transposed != (0, 0) else None
    if tiles is not None:
        return tiles
    # Clusters would keep longer columns; only parameters set by hand ask for them.
    loops = None if space.inner_reduced or space.passes == 1 else columns_in_cluster(space, 1)
    if loops is not None:
        return loops
    if not space.inner_reduced and space.is_one_pass:
        return column_loops(space)
    # Lanes that share a column do not read adjacent elements: the lowering traverses columns once per result instead.
    return row_loops(space if space.inner_reduced else replace(space, vector=1))


def describe(schedule: LoopSchedule, space: Space) -> str:
    """Return a one-line description of a nest's loops."""
    text = f"{prod(space.kept)} results"
    if space.scans and space.passes == 1:
        text = f"{prod(space.kept)} scans of {space.depth} elements each, {schedule.style.value}"
    elif space.reduced:
        text += f" of {space.depth} elements each, {schedule.style.value}"
    if schedule.split > 1:
        text += f", each in {schedule.split} parts"
    if schedule.style is Style.COLUMNS and schedule.tile > 1:
        text += f", {schedule.tile} columns at a time"
    if schedule.style is Style.TILES:
        where = "the cache" if schedule.threads == (1, 1) else "shared memory"
        text += f", tiles of {schedule.tile} x {schedule.tile} transposed in {where}"
    if schedule.cluster > 1:
        text += f", each shared by {schedule.cluster} blocks"
    if schedule.vector > 1:
        text += f", {schedule.vector * schedule.unroll} elements per thread in accesses of {schedule.vector}"
    if schedule.threads != (1, 1):
        text += f", blocks of {schedule.threads[0]} x {schedule.threads[1]} threads"
    elif schedule.parallel:
        text += ", distributed over cores"
    return "; ".join((text, *schedule.reasons))


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopChange:
    """Values set by hand for one nest of loops of a segment, sorted by the names of the parameters."""

    target: str
    nest: int
    values: Values


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptChoice:
    """Parameters that `fl.tune` found for a kernel, by the number of the nest.

    ``origin`` says on what they were found and when, ``gain`` how much faster they were. ``refused`` says why there are
    no values.
    """

    values: Mapping[int, Values] = field(default_factory=dict)
    origin: str = ""
    gain: str = ""
    refused: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NestChoice:
    """The loops of one nest of a kernel: what was proposed, the actual loops, and the parameters set by hand.

    ``problem`` says why the given values were rejected. ``chosen`` is the heuristics' choice, with the parameters kept
    from `fl.tune` where ``is_kept``.
    """

    number: int
    target: str
    space: Space
    chosen: LoopSchedule
    schedule: LoopSchedule
    problem: str = ""
    is_kept: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """The parameters that may be set by hand."""
        return parameters_of(self.chosen.kind)

    @property
    def values(self) -> dict[str, Value]:
        """The parameters that may be set by hand, with their values."""
        return {name: getattr(self.schedule, name) for name in self.names}

    @property
    def is_changed(self) -> bool:
        """Whether any parameter is set by hand."""
        return replace(self.schedule, reasons=()) != replace(self.chosen, reasons=())

    def __repr__(self) -> str:
        """Return the same text, so that the choices of a kernel can be read when they are printed together."""
        return str(self)

    def __str__(self) -> str:
        """Return the nest's loops, the reasons for them, and its parameters, one per line."""
        lines = [f"nest {self.number} on {self.target}: {describe(self.schedule, self.space)}"]
        for name, value in self.values.items():
            before = getattr(self.chosen, name)
            default = "" if before == value else f" ({'kept' if self.is_kept else 'heuristics'}: {before})"
            lines.append(f"  {name} = {value}{default}: {MEANINGS[name]}")
        return "\n".join(lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chooser:
    """Chooses the loops of a kernel's nests: proposed, kept or set by hand, in this order.

    Attributes
    ----------
    target
        Name of the target.
    changes
        Parameters set by hand for the segment on this target.
    propose
        Proposes the parameters of a nest instead of the default, `choose_loops`.
    kept
        Parameters kept from `fl.tune`.
    """

    target: str
    changes: Sequence[LoopChange] = ()
    propose: Callable[[Space, str], LoopSchedule] | None = None
    kept: KeptChoice = field(default_factory=KeptChoice)

    def choice(self, number: int, space: Space, notes: Sequence[str] = ()) -> NestChoice | Refused:
        """Return the loops of a nest, or why the target has none for it; ``notes`` precede the reasons for them.

        Values set by hand that are illegal are not used, and the choice says why.
        """
        loops = choose_loops(space, self.target)
        return loops if isinstance(loops, Refused) else self.choice_from(number, space, loops, notes)

    def choice_from(
        self, number: int, space: Space, chosen: LoopSchedule, notes: Sequence[str] = (),
    ) -> NestChoice:
        """Return the loops of a nest for which the heuristics choose some loops."""
        target = self.target
        if self.propose is not None:
            chosen = _proposal(space, target, chosen, self.propose(space, target))
        chosen = replace(chosen, reasons=(*notes, *chosen.reasons)) if notes else chosen
        chosen, is_kept = self._with_kept(number, space, chosen)
        values = next((change.values for change in self.changes if change.nest == number), ())
        schedule, problem = with_values(space, target, chosen, values) if values else (chosen, "")
        return NestChoice(
            number=number, target=target, space=space, chosen=chosen, schedule=schedule, problem=problem,
            is_kept=is_kept,
        )

    def _with_kept(self, number: int, space: Space, chosen: LoopSchedule) -> tuple[LoopSchedule, bool]:
        """Return loops with the parameters kept for a nest, if they are legal, and whether they are used."""
        values, because = self.kept.values.get(number, ()), self.kept.refused if number == 0 else ""
        if values:
            schedule, problem = with_values(space, self.target, chosen, values)
            if not problem:
                reason = f"parameters {self.kept.origin}: {settings_text(dict(values))}; {self.kept.gain}"
                return replace(schedule, reasons=(*chosen.reasons, reason)), True
            because = f"parameters {self.kept.origin} are not used: {problem}"
        return (replace(chosen, reasons=(*chosen.reasons, because)) if because else chosen), False

    def check(self, choices: Sequence[NestChoice]) -> None:
        """Raise ScheduleError if a value set by hand is illegal, or is for a nest that does not exist."""
        problem = next((choice.problem for choice in choices if choice.problem), "")
        numbers = {choice.number for choice in choices}
        beyond = next((change.nest for change in self.changes if change.nest not in numbers), None)
        if beyond is not None:
            count = f"{len(choices)} nest{'s' if len(choices) != 1 else ''} of loops"
            problem = f"the kernel has {count}, given nest {beyond}"
        if problem:
            raise ScheduleError(f"with_params: {problem}.")


def _proposal(space: Space, target: str, chosen: LoopSchedule, proposal: LoopSchedule) -> LoopSchedule:
    """Return loops with the parameters that a user-defined scheduler proposes.

    Raises
    ------
    ScheduleError
        If they are illegal, or of another style.
    """
    if proposal.style is not chosen.style:
        style = proposal.style.value
        msg = f"propose: the style of a nest on {target} must be {chosen.style.value!r} here, given {style!r}."
        raise ScheduleError(msg)
    values = tuple((name, getattr(proposal, name)) for name in sorted(parameters_of(chosen.kind)))
    differ = tuple((name, value) for name, value in values if value != getattr(chosen, name))
    # Values that follow from others are those of the heuristics if nothing differs.
    schedule, problem = with_values(space, target, chosen, differ) if differ else (chosen, "")
    if problem:
        raise ScheduleError(f"propose: {problem}.")
    return replace(schedule, reasons=proposal.reasons)


def prefer(loops: LoopSchedule, space: Space, target: str, because: str, **values: Value) -> LoopSchedule:
    """Return loops with other values of some parameters, and the reason for them, for `Heuristics.propose`.

    If the values are illegal for the nest, or it lacks one of the parameters, the loops are unchanged, and their
    reasons say so.
    """
    schedule, problem = with_values(space, target, loops, tuple(sorted(values.items())))
    reason = f"{settings_text(values)} is not used: {problem}" if problem else because
    return replace(schedule, reasons=(*loops.reasons, reason))
