"""The change of a rewrite: the ops around it, before and after, side by side."""

import enum
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final

from fuser_lab.ir import Expr, Fusion
from fuser_lab.report.expressions import expr_text

MOST_DRAWN: Final = 40  # ops of one side
_MOST_BESIDE: Final = 4  # unchanged producers, and readers, drawn beside an op


class Mark(enum.StrEnum):
    """The effect of a rewrite on an op; a rewritten op keeps the names of its results and computes them differently."""

    REMOVED = "removed"
    ADDED = "added"
    REWRITTEN = "rewritten"
    UNCHANGED = "unchanged"


@dataclass(frozen=True, slots=True, kw_only=True)
class OpMark:
    """An op on one side of a rewrite.

    ``reads`` names the first result of each op that it reads from, or the fusion input; ``output`` says that it
    produces an output of the fusion.
    """

    name: str
    op: str
    text: str
    reads: tuple[str, ...]
    mark: Mark
    output: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteSide:
    """The ops around a change, in topological order, and the number of the fusion's ops that are omitted."""

    ops: tuple[OpMark, ...]
    left_out: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewrite:
    """The differing parts of a fusion before and after a rewrite.

    ``removed``, ``added`` and ``rewritten`` name all ops of the kind, drawn or not. ``notes`` describe changes of
    inputs, outputs and in-place updates.
    """

    before: RewriteSide
    after: RewriteSide
    removed: tuple[str, ...]
    added: tuple[str, ...]
    rewritten: tuple[str, ...]
    notes: tuple[str, ...] = ()

    @property
    def headline(self) -> str:
        """The numbers of removed, added and rewritten ops."""
        counts = ((self.removed, "removed"), (self.added, "added"), (self.rewritten, "rewritten"))
        return ", ".join(f"{len(names)} {word}" for names, word in counts if names) or "no op changed"


def rewrite_of(
    before: Fusion, after: Fusion, text: Callable[[Expr], str] = expr_text, *, most: int = MOST_DRAWN,
) -> Rewrite:
    """Return how two fusions differ.

    Ops are equal if ``text`` gives the same line for both. The picture shows the differing ops, at most ``most`` of
    each side, and their unchanged producers and readers.
    """
    first, second = _by_name(before, text), _by_name(after, text)
    removed = tuple(name for name in first if name not in second)
    added = tuple(name for name in second if name not in first)
    rewritten = tuple(name for name in first if name in second and first[name] != second[name])
    changed = {*removed, *added, *rewritten}
    beside = _beside(before, changed) | _beside(after, changed)
    marks = dict.fromkeys(rewritten, Mark.REWRITTEN)
    return Rewrite(
        before=_side(before, changed, beside, marks | dict.fromkeys(removed, Mark.REMOVED), text, most),
        after=_side(after, changed, beside, marks | dict.fromkeys(added, Mark.ADDED), text, most),
        removed=removed,
        added=added,
        rewritten=rewritten,
        notes=_notes(before, after),
    )


def _by_name(fusion: Fusion, text: Callable[[Expr], str]) -> dict[str, str]:
    return {expr.name: text(expr) for expr in fusion.exprs}


def _beside(fusion: Fusion, changed: Collection[str]) -> set[str]:
    """Return the unchanged ops next to the changed ones."""
    names: set[str] = set()
    for expr in fusion.exprs:
        if expr.name not in changed:
            continue
        makers = [fusion.producers[v].name for v in expr.inputs if v in fusion.producers]
        readers = [user.name for value in expr.outputs for user in fusion.users.get(value, ())]
        for near in (makers, readers):
            names.update([name for name in dict.fromkeys(near) if name not in changed][:_MOST_BESIDE])
    return names


def _side(
    fusion: Fusion, changed: Collection[str], beside: Collection[str], marks: dict[str, Mark],
    text: Callable[[Expr], str], most: int,
) -> RewriteSide:
    ours = [expr for expr in fusion.exprs if expr.name in changed][:most]
    room = most - len(ours)
    near = [expr.name for expr in fusion.exprs if expr.name in beside][:room]
    drawn = {*(expr.name for expr in ours), *near}
    makers = {value: expr.name for expr in fusion.exprs for value in expr.outputs}
    tensors = set(fusion.tensor_inputs)
    outputs = set(fusion.outputs)
    ops = tuple(
        OpMark(
            name=expr.name,
            op=expr.op.name,
            text=text(expr),
            reads=tuple(dict.fromkeys(
                makers.get(value) or value.name for value in expr.inputs if value in makers or value in tensors
            )),
            mark=marks.get(expr.name, Mark.UNCHANGED),
            output=not outputs.isdisjoint(expr.outputs),
        )
        for expr in fusion.exprs if expr.name in drawn
    )
    return RewriteSide(ops=ops, left_out=len(fusion.exprs) - len(ops))


def _notes(before: Fusion, after: Fusion) -> tuple[str, ...]:
    """Return the changes outside expressions: inputs, outputs, layouts of inputs, in-place updates."""
    notes = []
    for role, old, new in (
        ("inputs", [v.name for v in before.inputs], [v.name for v in after.inputs]),
        ("outputs", [v.name for v in before.outputs], [v.name for v in after.outputs]),
    ):
        if old != new:
            notes.append(f"{role} were {', '.join(old)}, and are {', '.join(new)}")
    sides = [{f"{output.name} is written over {source.name}" for output, source in f.aliases} for f in (before, after)]
    notes += [f"no longer: {line}" for line in sorted(sides[0] - sides[1])]
    notes += [f"now: {line}" for line in sorted(sides[1] - sides[0])]
    return tuple(notes)


def lines_of(rewrite: Rewrite) -> Sequence[str]:
    """Return the difference as text: each drawn op that is removed, added or rewritten, with its mark in front."""
    lines = [f"- {op.text}" for op in rewrite.before.ops if op.mark is not Mark.UNCHANGED]
    lines += [f"+ {op.text}" for op in rewrite.after.ops if op.mark is not Mark.UNCHANGED]
    return [*lines, *rewrite.notes]
