"""Kernel parameters set by hand: which parameters a loop nest has, their legal values, and their consequences.

Heuristics choose fast values; no legal value can make a result wrong. Parameters that are not set keep the heuristics'
choice unless they depend on one that is set: with a different number of threads, a row takes a different number of
steps.
"""

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from fuser_lab.arguments import short_text
from fuser_lab.cost.device import MEETING_BYTES, MOST_BLOCKS, WARP
from fuser_lab.errors import ArgumentTypeError, ScheduleError
from fuser_lab.schedule.gpu_loops import (
    MEETING_BUFFER,
    columns_in_cluster,
    fits_staged,
    in_cluster,
    row_room,
    shared_room,
    steps_of_columns,
)
from fuser_lab.schedule.gpu_scan_loops import illegal_scan
from fuser_lab.schedule.gpu_tile_sum_loops import tile_sums_meet
from fuser_lab.schedule.loops import choose_loops, describe
from fuser_lab.schedule.state import LoopSchedule, Refused, Space, Style
from fuser_lab.targets import Form, target_of

Value = int | bool | tuple[int, int]
Values = tuple[tuple[str, Value], ...]

_REGISTER_WORDS = 160  # registers per thread, for the part of a row that it keeps
_UNROLLED = 64  # iterations of a loop that are written out at most, which limits the length of the code
_ROWS_AHEAD = 2  # rows per block and step: the present row, and the next row, which is loaded in advance
_MOST_PARTS = 1 << 16  # parts of a reduction at most, about the limit of CUDA for blocks in y
_SPLIT_FROM = 2  # elements reduced per result

MEANINGS: Mapping[str, str] = {
    "threads": "threads of a block, in x and y", "blocks": "blocks of the grid", "unroll": "steps in flight together",
    "vector": "elements of one access", "split": "parts of each reduction",
    "cluster": "blocks that share each row through each other's shared memory",
    "persistent": "rows stay on chip between passes",
    "resident": "blocks per multiprocessor for which registers are limited", "tile": "columns, or sides of a tile",
    "grain": "rows of one parallel iteration", "parallel": "distributed over cores",
    "partial": "additions before a subtotal", "shared": "column sums in shared memory, the others in registers",
    "constants": "values that all rows share are loaded once",
    "specialized": "all sizes are constants of the kernel, not arguments",
}
_NAMES: Mapping[tuple[Form, Style], tuple[str, ...]] = {
    (Form.BLOCKS, Style.ELEMENTS): ("threads", "blocks", "unroll", "vector", "specialized"),
    (Form.BLOCKS, Style.TILES): ("threads", "tile", "vector", "specialized"),
    (Form.BLOCKS, Style.ROWS): (
        "threads", "unroll", "vector", "split", "cluster", "persistent", "resident", "specialized",
    ),
    (Form.BLOCKS, Style.COLUMNS): ("threads", "unroll", "vector", "split", "resident", "specialized"),
    (Form.CORES, Style.ELEMENTS): ("parallel", "specialized"),
    (Form.CORES, Style.TILES): ("tile", "parallel", "specialized"),
    (Form.CORES, Style.ROWS): ("grain", "split", "partial", "parallel", "specialized"),
    (Form.CORES, Style.COLUMNS): ("tile", "split", "partial", "parallel", "specialized"),
}


_BITS = 63  # bits of an integer, without its sign
_FLAGS = ("constants", "parallel", "persistent", "specialized")
# For rows that also accumulate column sums, on a GPU and on a CPU.
BACKWARD_NAMES = ("threads", "blocks", "unroll", "vector", "shared", "constants", "resident", "specialized")
TILE_SUM_NAMES = ("threads", "tile", "split", "resident", "specialized")
KEPT_COLUMN_NAMES = ("threads", "vector", "cluster", "specialized")
SCAN_NAMES: Mapping[tuple[Form, Style], tuple[str, ...]] = {
    (Form.BLOCKS, Style.ROWS): ("threads", "unroll", "vector", "specialized"),
    (Form.BLOCKS, Style.COLUMNS): ("threads", "unroll", "vector", "specialized"),
    (Form.CORES, Style.ROWS): ("parallel", "specialized"),
    (Form.CORES, Style.COLUMNS): ("tile", "parallel", "specialized"),
}
BANDS_NAMES = ("grain", "parallel", "specialized")


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

    ``names`` are the parameters that may be set by hand; ``problem`` says why the given values were rejected.
    ``chosen`` is the heuristics' choice, with the parameters kept from `fl.tune` where ``is_kept``.
    """

    number: int
    target: str
    space: Space
    chosen: LoopSchedule
    schedule: LoopSchedule
    names: tuple[str, ...]
    problem: str = ""
    is_kept: bool = False

    @property
    def values(self) -> dict[str, Value]:
        """The parameters that may be set by hand, with their values."""
        return {name: getattr(self.schedule, name) for name in self.names}

    @property
    def is_changed(self) -> bool:
        """Whether any parameter is set by hand."""
        return replace(self.schedule, reasons=()) != replace(self.chosen, reasons=())

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
        return loops if isinstance(loops, Refused) else self.with_given(number, space, loops, notes)

    def with_given(
        self, number: int, space: Space, chosen: LoopSchedule, notes: Sequence[str] = (),
    ) -> NestChoice:
        """Return the loops of a nest for which the heuristics choose some loops."""
        target, names = self.target, _names(space, self.target, chosen)
        if self.propose is not None:
            chosen = _proposal(space, target, chosen, names, self.propose(space, target))
        chosen = replace(chosen, reasons=(*notes, *chosen.reasons)) if notes else chosen
        chosen, is_kept = self._with_kept(number, space, chosen, names)
        values = next((change.values for change in self.changes if change.nest == number), ())
        schedule, problem = with_values(space, target, chosen, values, names) if values else (chosen, "")
        return NestChoice(
            number=number, target=target, space=space, chosen=chosen, schedule=schedule, names=names, problem=problem,
            is_kept=is_kept,
        )

    def _with_kept(
        self, number: int, space: Space, chosen: LoopSchedule, names: tuple[str, ...],
    ) -> tuple[LoopSchedule, bool]:
        """Return loops with the parameters kept for a nest, if they are legal, and whether they are used."""
        values, because = self.kept.values.get(number, ()), self.kept.refused if number == 0 else ""
        if values:
            schedule, problem = with_values(space, self.target, chosen, values, names)
            if not problem:
                reason = f"parameters {self.kept.origin}: {_settings_text(dict(values))}; {self.kept.gain}"
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
            msg = f"with_params: {problem}."
            raise ScheduleError(msg)


def _proposal(
    space: Space, target: str, chosen: LoopSchedule, names: tuple[str, ...], proposal: LoopSchedule,
) -> LoopSchedule:
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
    values = tuple((name, getattr(proposal, name)) for name in sorted(names))
    differ = tuple((name, value) for name, value in values if value != getattr(chosen, name))
    # Values that follow from others are those of the heuristics if nothing differs.
    schedule, problem = with_values(space, target, chosen, differ, names) if differ else (chosen, "")
    if problem:
        msg = f"propose: {problem}."
        raise ScheduleError(msg)
    return replace(schedule, reasons=proposal.reasons)


def _names(space: Space, target: str, chosen: LoopSchedule) -> tuple[str, ...]:
    """Return the parameters that may be set by hand."""
    if space.column_sums:
        return BACKWARD_NAMES if target_of(target).has_blocks else BANDS_NAMES
    if chosen.keeps_columns:
        return KEPT_COLUMN_NAMES
    if chosen.style is Style.TILES and space.reduces:
        return TILE_SUM_NAMES
    by_style = SCAN_NAMES if space.scans else _NAMES
    return by_style[target_of(target).form, chosen.style]


def with_values(
    space: Space, target: str, chosen: LoopSchedule, values: Values, names: Sequence[str],
) -> tuple[LoopSchedule, str]:
    """Return loops with some values set and an empty text, or the loops unchanged and the reason as a sentence."""
    where = f"a nest of {chosen.style.value} on {target}"
    for name, _ in values:
        if name not in names:
            has = ", ".join(names) or "none that can be set"
            return chosen, f"{name} is not a parameter of {where}; it has {has}"
    settings = {name: (value, 1) if name == "threads" and isinstance(value, int) else value for name, value in values}
    has_blocks = target_of(target).has_blocks
    chosen = _in_given_cluster(space, chosen, settings)
    problem = _illegal(space, chosen, settings) if has_blocks else _illegal_on_cpu(space, chosen, settings)
    if problem:
        return chosen, f"{problem}, for {where}"
    # mypy cannot know the types of fields by name; they were checked above.
    reasons = (*chosen.reasons, f"set by hand: {_settings_text(settings)}")
    schedule = replace(chosen, **settings, reasons=reasons)  # type: ignore[arg-type]
    return (_with_implied(space, chosen, schedule, settings), "") if has_blocks else (schedule, "")


def check_values(values: Mapping[str, object]) -> Values:
    """Return values set by hand, sorted by name.

    Raises
    ------
    ArgumentTypeError
        If a name is not that of a parameter, or a value has the wrong type.
    """
    pairs: list[tuple[str, Value]] = []
    for name, value in sorted(values.items()):
        if name not in MEANINGS:
            msg = f"with_params: unknown parameter {name!r}; choose from {', '.join(MEANINGS)}."
            raise ArgumentTypeError(msg)
        if name == "threads" and isinstance(value, list | tuple) and len(value) == 2 and all(map(_is_int, value)):
            pairs.append((name, (operator.index(value[0]), operator.index(value[1]))))
        elif (isinstance(value, bool) if name in _FLAGS else _is_int(value)):
            pairs.append((name, value if isinstance(value, bool) else operator.index(value)))  # type: ignore[arg-type]
        else:
            if isinstance(value, int) and value.bit_length() > _BITS:
                msg = f"with_params: {name} must fit in {_BITS} bits, given {short_text(value)}."
                raise ScheduleError(msg)
            kinds = {"threads": "an int or a pair of ints", **dict.fromkeys(_FLAGS, "a bool")}
            msg = f"with_params: {name} must be {kinds.get(name, 'an int')}, given {short_text(value)}."
            raise ArgumentTypeError(msg)
    return tuple(pairs)


def _is_int(value: object) -> bool:
    """Whether a value is an integer that fits: Python's, or one of NumPy or another library."""
    try:
        return not isinstance(value, bool) and operator.index(value).bit_length() <= _BITS  # type: ignore[arg-type]
    except TypeError:
        return False


def _settings_text(settings: Mapping[str, Value]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in settings.items())


def _illegal(space: Space, chosen: LoopSchedule, settings: Mapping[str, Value]) -> str:
    """Return why values are illegal on a GPU; empty if they are legal."""
    schedule = replace(chosen, **settings)  # type: ignore[arg-type]
    x, y = schedule.threads
    vector, style = schedule.vector, chosen.style
    most = space.device.max_threads_per_block
    if x < 1 or y < 1 or x * y > most:
        return f"threads = {schedule.threads} must be positive, at most {most} together"
    if vector < 1 or space.vector % vector or vector & (vector - 1):
        return f"vector = {vector} must be a power of two that divides {space.vector}, which extents and strides allow"
    if not 1 <= schedule.unroll <= _UNROLLED:
        return f"unroll = {schedule.unroll} must be between 1 and {_UNROLLED}"
    if "blocks" in settings and not 1 <= schedule.blocks <= MOST_BLOCKS:
        return f"blocks = {schedule.blocks} must be between 1 and {MOST_BLOCKS}"
    if "resident" in settings and not 0 <= schedule.resident * x * y <= space.device.threads_per_sm:
        return f"resident = {schedule.resident} blocks of {x * y} threads exceed the capacity of a multiprocessor"
    if space.column_sums:
        return _illegal_backward(space, chosen, schedule)
    if space.scans:
        return illegal_scan(space, schedule)
    if schedule.split != 1 and space.shifted and vector > 1:
        return f"split = {schedule.split} requires vector = 1: rows of {space.depth} begin anywhere in a wider access"
    again = style is Style.ROWS and not schedule.persistent  # each pass may be a launch
    if schedule.split != 1 and (not (space.is_one_pass or again) or space.depth < _SPLIT_FROM):
        return f"split = {schedule.split} requires a reduction whose result the kernel does not use"
    if not 1 <= schedule.split <= min(_MOST_PARTS, max(space.depth, 1)):
        return f"split = {schedule.split} must be between 1 and {min(_MOST_PARTS, max(space.depth, 1))}"
    if style in {Style.ELEMENTS, Style.TILES} and (x % WARP or y != 1):
        return f"threads = {schedule.threads} must be a multiple of {WARP}, in x only"
    if style is Style.TILES:
        return _illegal_tile(schedule, chosen) or (_illegal_tile_sum(space, schedule) if space.reduces else "")
    if style is Style.COLUMNS:
        if x & (x - 1) or y & (y - 1):
            return f"threads = {schedule.threads} must be powers of two"
        problem = _illegal_cluster(space, schedule.cluster)
        if problem:
            return problem
        nbytes = x * y * vector * max(space.met_bytes if schedule.persistent else space.sum_bytes, 1)
        if schedule.cluster > 1:
            nbytes += x * schedule.cluster * vector * space.sum_bytes
        if y > 1 and nbytes > MEETING_BYTES:
            return f"{x * y} threads combine results in {nbytes} bytes of shared memory, more than {MEETING_BYTES}"
        if schedule.persistent and y > 1 and x * y * vector * space.widest_sum > MEETING_BUFFER:
            return f"{x * y} threads combine one reduction in more than {MEETING_BUFFER} bytes of shared memory"
        words = _kept_steps(space, schedule) * vector * space.input_bytes // 4
        if schedule.persistent and words > _REGISTER_WORDS:
            return f"{x * y} threads would each keep {words} registers of columns, more than {_REGISTER_WORDS}"
    return _illegal_row(space, chosen, schedule) if style is Style.ROWS else ""


def _kept_steps(space: Space, schedule: LoopSchedule) -> int:
    lines = schedule.threads[1] * schedule.cluster
    return steps_of_columns(space, lines, specialized=schedule.specialized)


def _illegal_tile_sum(space: Space, schedule: LoopSchedule) -> str:
    """Return why the threads of a block cannot add up tiles; empty if they can."""
    x, vector = schedule.threads[0], schedule.vector
    if x & (x - 1) or x < schedule.tile:
        least = f"{schedule.tile}, a side of the tiles"
        return f"threads = {schedule.threads} must be a power of two from {least}, in x only"
    if not tile_sums_meet(space, x):
        nbytes = x * vector * space.sum_bytes
        return f"{x} threads combine results in {nbytes} bytes of shared memory, more than the tiles leave"
    return ""


def _illegal_tile(schedule: LoopSchedule, chosen: LoopSchedule) -> str:
    tile = schedule.tile
    if tile < schedule.vector or tile & (tile - 1) or tile > chosen.tile:
        return f"tile = {tile} must be a power of two from {schedule.vector} to {chosen.tile}"
    return ""


def _illegal_row(space: Space, chosen: LoopSchedule, schedule: LoopSchedule) -> str:
    x, y = schedule.threads
    if (x > WARP and x % WARP) or (x < WARP and x & (x - 1)):
        return f"threads = {schedule.threads} must be a multiple of {WARP}, or a power of two below it"
    problem = _illegal_cluster(space, schedule.cluster)
    if problem:
        return problem
    if schedule.cluster > 1 and (x < WARP or y > 1 or schedule.split > 1):
        return f"cluster = {schedule.cluster}: blocks share only rows that are not split, each with at least one warp"
    if y > 1 and (x > WARP or schedule.split > 1):
        return f"threads = {schedule.threads}: rows can share a block only if each has one warp and is not split"
    if schedule.persistent and not chosen.persistent:
        return "persistent = True: there is only one pass over the row, so there is nothing to keep"
    if schedule.persistent and not chosen.shared:
        steps = _steps(space, schedule)
        words = steps * schedule.vector * max(space.input_bytes, 1) // 4
        if words > _REGISTER_WORDS:
            return f"{x} threads would each keep {words} registers of a row, more than {_REGISTER_WORDS}"
    return ""


def _in_given_cluster(space: Space, chosen: LoopSchedule, settings: Mapping[str, Value]) -> LoopSchedule:
    """Return the loops to which the other values set by hand are applied if the blocks that share a row are given."""
    cluster = settings.get("cluster", chosen.cluster)
    if not isinstance(cluster, int) or cluster == chosen.cluster or _illegal_cluster(space, cluster):
        return chosen
    if chosen.keeps_columns:
        return columns_in_cluster(space, cluster) or chosen
    if chosen.persistent or (chosen.split > 1 and space.passes > 1 and settings.get("split", 1) == 1):
        return in_cluster(space, cluster)
    return replace(chosen, split=1)


def _illegal_cluster(space: Space, cluster: int) -> str:
    """Return why blocks cannot share rows in clusters of a size; empty if they can."""
    most = space.device.largest_cluster
    if cluster > 1 and most == 1:
        cc = ".".join(map(str, space.device.cc))
        return f"cluster = {cluster}: the {space.device.name} has compute capability {cc} and no clusters"
    if not 1 <= cluster <= most or cluster & (cluster - 1):
        return f"cluster = {cluster} must be a power of two, at most {most}"
    return ""


def _steps(space: Space, schedule: LoopSchedule) -> int:
    """Return the number of steps that the threads of a row take over it."""
    return -(-max(space.groups(schedule.vector), 1) // (schedule.threads[0] * schedule.cluster))


def _illegal_backward(space: Space, chosen: LoopSchedule, schedule: LoopSchedule) -> str:
    """Return why values are illegal for rows that also accumulate column sums; empty if they are legal."""
    (x, y), sums, shared = schedule.threads, space.column_sums, schedule.shared
    if x % WARP or y != 1:
        return f"threads = {schedule.threads} must be a multiple of {WARP}, in x only"
    # For few rows the heuristics start more blocks than there are rows.
    if schedule.blocks > max(space.rows, 1) and schedule.blocks != chosen.blocks:
        return f"blocks = {schedule.blocks} must be between 1 and {max(space.rows, 1)}, the number of rows"
    if schedule.unroll > _ROWS_AHEAD:
        return f"unroll = {schedule.unroll} must be 1, or {_ROWS_AHEAD} to load the next row in advance"
    if not 0 <= shared <= len(sums):
        return f"shared = {shared} must be between 0 and {len(sums)}, the number of column sums"
    each = -(-max(space.groups(schedule.vector), 1) // x) * schedule.vector
    constant = space.constant_bytes if schedule.constants else 0
    rows = 2 if schedule.unroll > 1 else 1
    words = each * (sum(sums[shared:]) + rows * space.input_bytes + constant) // 4
    if words > _REGISTER_WORDS:
        return f"{x} threads would each keep {words} registers of rows and sums, more than {_REGISTER_WORDS}"
    nbytes, room = sum(sums[:shared]) * each * x, shared_room(space.device, max(schedule.resident, 1))
    if nbytes > room:
        where = f"a block of the {space.device.name}"
        return f"shared = {shared} takes {nbytes} bytes, more than the {room} that {where} has"
    return ""


def _with_implied(
    space: Space, chosen: LoopSchedule, schedule: LoopSchedule, settings: Mapping[str, Value],
) -> LoopSchedule:
    """Return loops with the parameters that follow from the given values."""
    x, _ = schedule.threads
    if schedule.style is Style.ELEMENTS and "blocks" not in settings:
        chunks = -(-space.rows // schedule.vector)
        return replace(schedule, blocks=max(min(-(-chunks // (x * schedule.unroll)), MOST_BLOCKS), 1))
    if schedule.keeps_columns:
        return replace(schedule, registers=_kept_steps(space, schedule))
    if schedule.style is not Style.ROWS:
        return schedule
    if "resident" not in settings and schedule.threads != chosen.threads:
        schedule = replace(schedule, resident=0)
    if space.column_sums:
        return replace(schedule, registers=-(-max(space.groups(schedule.vector), 1) // x))
    if schedule.staged:
        is_whole = schedule.split == 1 and schedule.cluster == 1
        schedule = replace(schedule, staged=is_whole and fits_staged(space, schedule.threads[1]))
    if not schedule.persistent:
        return replace(schedule, registers=0, shared=0, constants=False, blocks=0)
    steps = _steps(space, schedule)
    if not chosen.shared:
        return replace(schedule, registers=steps)
    # As many bytes as before, in steps of another size.
    step, before = x * schedule.vector, chosen.threads[0] * chosen.vector
    held = min(chosen.registers * before // step, steps)
    room = row_room(space.device, max(schedule.resident, 1)) // (step * max(space.input_bytes, 1))
    shared = min(chosen.shared * before // step, steps - held, room)
    # Blocks that iterate over rows need registers for the next one.
    return replace(schedule, registers=held, shared=shared, blocks=schedule.blocks if held else 0)


def _illegal_on_cpu(space: Space, chosen: LoopSchedule, settings: Mapping[str, Value]) -> str:
    """Return why values are illegal on a CPU; empty if they are legal."""
    schedule = replace(chosen, **settings)  # type: ignore[arg-type]
    rows = max(space.rows, 1)
    if not 1 <= schedule.grain <= rows:
        return f"grain = {schedule.grain} must be between 1 and {rows}, the number of rows"
    if schedule.split != 1 and (space.passes > 1 or space.depth < _SPLIT_FROM):
        return f"split = {schedule.split} requires a reduction whose result the kernel does not use"
    if schedule.split != 1 and not schedule.parallel:
        return f"split = {schedule.split} requires several cores, but parallel is False"
    if not 1 <= schedule.split <= min(_MOST_PARTS, max(space.depth, 1)):
        return f"split = {schedule.split} must be between 1 and {min(_MOST_PARTS, max(space.depth, 1))}"
    most = max(space.kept_run, 1) if chosen.style is Style.COLUMNS else 512
    if chosen.style in {Style.COLUMNS, Style.TILES} and not 1 <= schedule.tile <= most:
        return f"tile = {schedule.tile} must be between 1 and {most}"
    if not 1 <= schedule.partial <= 1 << 20:
        return f"partial = {schedule.partial} must be between 1 and {1 << 20}"
    return ""


def suggestions(choice: NestChoice) -> tuple[Values, ...]:
    """Return legal changes of a choice that are worth measuring; `tune` searches these."""
    schedule = choice.schedule
    changes: dict[Values, None] = {}
    for values in _grid(choice):
        change = tuple(sorted((name, v) for name, v in values.items() if v != getattr(schedule, name)))
        _, problem = with_values(choice.space, choice.target, choice.chosen, change, choice.names)
        if change and not problem:
            changes[change] = None
    return tuple(changes)


def _grid(choice: NestChoice) -> list[dict[str, Value]]:
    space, names, now = choice.space, choice.names, choice.schedule
    y = now.threads[1]
    grid: list[dict[str, Value]] = [{"specialized": True}]
    if target_of(choice.target).has_blocks:
        threads = [(n, y) for n in (32, 64, 128, 256, 512, 1024)]
        if now.style is Style.COLUMNS or y > 1:
            threads = [(a, b) for a in (8, 16, 32) for b in (1, 2, 4, 8, 16, 32)]
        vectors = [n for n in (1, 2, 4, 8, 16) if n <= space.vector]
        unrolls = sorted({1, 2, 4, 8, now.unroll})
        if "unroll" not in names:
            unrolls = [now.unroll]
        grid += [{"threads": t, "unroll": u} if "unroll" in names else {"threads": t} for t in threads for u in unrolls]
        grid += [{"vector": v} for v in vectors]
        grid += [{"threads": t, "vector": v} for t in threads for v in vectors[-2:]]
        sms = space.device.sms
        splits = (1, 2, 4, 8, 16, 32, 64, sms, 2 * sms, 4 * sms) if "split" in names else ()
        grid += [{"split": n} for n in splits]
        clusters = [n for n in (1, 2, 4, 8, 16) if n <= space.device.largest_cluster and "cluster" in names]
        grid += [{"cluster": n} for n in clusters if n > 1 or now.cluster > 1]
        grid += [{"cluster": n, "threads": t} for n in clusters if now.cluster > 1 for t in threads[2:]]
        grid += [{"resident": n} for n in (0, 1, 2, 3, 4, 8) if "resident" in names]
        grid += [{"tile": n} for n in (16, 32, 64) if "tile" in names]
        grid += [{"blocks": n * sms} for n in (1, 2, 4, 8, 16) if "blocks" in names]
        grid += [{"shared": n} for n in range(len(space.column_sums) + 1) if "shared" in names]
        grid += [{"constants": flag} for flag in (False, True) if "constants" in names]
        return [{name: v for name, v in values.items() if name in names} for values in grid]
    grid += [{"parallel": flag} for flag in (True, False) if "parallel" in names]
    grid += [{"grain": n} for n in (1, 2, 4, 8, 16, 32, 64, 128) if "grain" in names]
    grid += [{"tile": n} for n in (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192) if "tile" in names]
    grid += [{"split": n} for n in (1, 2, 4, 8, 16, 32, 64) if "split" in names]
    grid += [{"partial": n} for n in (64, 256, 1024, 4096, 16384) if "partial" in names]
    return grid

