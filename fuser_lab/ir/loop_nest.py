"""The loop nest of a scheduled fusion as text: which loops contain which statements, and what runs them."""

from collections.abc import Sequence
from dataclasses import replace

from fuser_lab.errors import ScheduleError
from fuser_lab.ir.expr import OpKind
from fuser_lab.ir.loop_order import Item, LoopClasses, Slot, group_items, items_of
from fuser_lab.ir.transform import GLOBAL, ParallelType, Rules, ScheduledFusion

_INDENT = "  "


def nest_text(scheduled: ScheduledFusion, rules: Rules) -> str:
    """Return the loop nest of a scheduled fusion, one line per loop and per statement.

    A loop that several tensors share is printed once. Loops over blocks and threads are printed at their positions in
    the tensors; a reduction ends on a separate line after its loops.

    Raises
    ------
    ScheduleError
        If the loops that tensors share allow no order of execution.
    """
    classes = LoopClasses(scheduled, rules)
    kinds: dict[Slot, ParallelType] = {}
    for name, tensor in scheduled.tensors.items():
        for position in range(len(tensor.loop)):
            kind = tensor.parallel_type(position)
            if kind is not ParallelType.serial:
                kinds.setdefault(classes.of((name, position)), kind)
    items = items_of(scheduled, classes)
    for place, item in enumerate(items):
        if item.part == "end":
            items[place] = replace(item, path=classes.around(item.name, complete_in(scheduled, item.name)))
    lines: list[str] = []
    _write(scheduled, kinds, items, 0, lines)
    return "\n".join(lines)


def nest_or_reason(scheduled: ScheduledFusion, rules: Rules) -> str:
    """Return the loop nest as text, or a sentence that says why there is none yet."""
    try:
        return nest_text(scheduled, rules)
    except ScheduleError as error:
        return f"No loop nest yet: {error}"


def complete_in(scheduled: ScheduledFusion, name: str) -> int:
    """Return how many outer loops of a reduction contain its complete result."""
    tensor = scheduled.tensors[name]
    if tensor.memory is not GLOBAL:
        return tensor.compute_at
    return next((i for i, axis in enumerate(tensor.loop) if axis.is_reduction), len(tensor.loop))


def _write(
    scheduled: ScheduledFusion, kinds: dict[Slot, ParallelType], items: Sequence[Item], depth: int, lines: list[str],
) -> None:
    for key, members in group_items(items, depth):
        indent = _INDENT * depth
        if depth >= len(members[0].path):
            lines += [f"{indent}{_statement(scheduled, item)}" for item in members]
            continue
        assert isinstance(key, tuple)
        name, position = key
        axis = scheduled.tensors[name].loop[position]
        kind = kinds.get((name, position), ParallelType.serial)
        word = kind.value if kind.is_block or kind.is_thread else kind.name
        lines.append(f"{indent}for {word} in {axis.extent}:")
        _write(scheduled, kinds, members, depth + 1, lines)


def _statement(scheduled: ScheduledFusion, item: Item) -> str:
    memory = scheduled.tensors[item.name].memory.name
    operands = ", ".join(str(getattr(value, "name", value)) for value in item.expr.inputs)
    call = f"{item.expr.op.name}({operands})"
    if item.expr.kind is not OpKind.REDUCTION:
        return f"{item.name} = {call}  # {memory}"
    if item.part == "update":
        return f"{item.name} += {call}"
    return f"{item.name} is complete  # {memory}"
