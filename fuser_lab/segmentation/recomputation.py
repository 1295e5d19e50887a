"""Recomputation: the cheap producers of a tensor that passes between segments are computed again where it is read.

Rematerialization (Briggs, Cooper and Torczon, PLDI 1992) for memory traffic instead of registers. A copy is a separate
expression with its own name, as a replica of privatization is: if it and its original end up in one segment, they
become one expression again.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import count
from math import prod

from fuser_lab.cost.amounts import bytes_label
from fuser_lab.errors import IllegalEdit, SegmentationError
from fuser_lab.ir import Expr, Fusion, OpKind, TensorView, Val
from fuser_lab.ops.positions import indexed_operands
from fuser_lab.passes.base import with_inputs
from fuser_lab.passes.rewriter import Axes
from fuser_lab.segmentation.events import Attempt, Kind, Names, Outcome
from fuser_lab.segmentation.graph import SegmentedFusion
from fuser_lab.segmentation.hints import is_hint
from fuser_lab.segmentation.privatization import again

PHASE = "edit: recompute"
_CHEAP = frozenset({
    OpKind.POINTWISE, OpKind.COPY, OpKind.BROADCAST, OpKind.SQUEEZE, OpKind.EXPAND, OpKind.RESHAPE, OpKind.RESIZE,
    OpKind.FACTORY, OpKind.INDEXING,
})


@dataclass(frozen=True, slots=True, kw_only=True)
class Copies:
    """Expressions that one segment computes again: the originals in order, their copies, and who reads the copies.

    Each reader reads the copy of every original that it would read; so does each copy.
    """

    originals: Names
    copies: Names
    readers: Names

    @property
    def pairs(self) -> dict[str, str]:
        """For each copy, its original."""
        return dict(zip(self.copies, self.originals, strict=True))


def chain_of(
    segmented: SegmentedFusion, tensor: TensorView, *, reductions: bool = False, storing: bool = False,
) -> tuple[Expr, ...]:
    """Return the expressions that compute a tensor from values in memory, in order.

    They go back to inputs of the fusion, to tensors that some segment stores, and to chains that each reader
    recomputes in any case. If ``storing``, they also go back to results of reductions, which their segment then stores.

    Raises
    ------
    IllegalEdit
        If one of them must not be computed again.
    """
    fusion = segmented.fusion
    stored = segmented.written
    chain: dict[Expr, None] = {}
    waiting = [fusion.producers[tensor]]
    while waiting:
        expr = waiting.pop()
        if expr in chain:
            continue
        why = _refusal(expr, reductions=reductions)
        if why:
            msg = f"{tensor.name} cannot be recomputed: {expr.name} is computed by {expr.op.name}, {why}."
            raise IllegalEdit(msg)
        chain[expr] = None
        for value in expr.tensor_inputs:
            maker = fusion.producers.get(value)
            if maker is None or value in stored or maker.name in segmented.recomputed:
                continue
            if not (storing and maker.kind is OpKind.REDUCTION):
                waiting.append(maker)
    return tuple(sorted(chain, key=lambda e: fusion.positions[e.name]))


def share_read(tensor: TensorView, readers: Iterable[Expr]) -> float:
    """Return the part of a tensor's elements that expressions read, at most: indexed reads and slices read few."""
    elements = 0
    for expr in readers:
        indexed = indexed_operands(expr) if expr.kind is OpKind.INDEXING else None
        if expr.op.name != "slice" and (indexed is None or indexed[0] is tensor):
            return 1.0
        elements += prod(expr.out.shape)
    return min(elements / max(prod(tensor.shape), 1), 1.0)


def _refusal(expr: Expr, *, reductions: bool) -> str:
    """Return why an expression must not be computed again, or an empty text."""
    if is_hint(expr):
        return "which marks where a tensor goes through memory"
    if expr.kind is OpKind.RANDOM:
        return "whose random numbers are drawn once"
    if expr.kind is OpKind.REDUCTION and len(expr.outputs) == 1:
        return "" if reductions else "a reduction, which is only repeated with reductions=True"
    if expr.kind not in _CHEAP or len(expr.outputs) != 1:
        return "which is not a cheap op"
    return ""


def unused_without(fusion: Fusion, chain: Sequence[Expr], readers: Iterable[str]) -> frozenset[str]:
    """Return the expressions of a chain that nothing needs if some readers of its end read copies instead."""
    gone = set(readers)
    unused: set[str] = set()
    for expr in reversed(chain):
        users = fusion.users.get(expr.out, ())
        if expr.out not in fusion.outputs and all(user.name in gone for user in users):
            gone.add(expr.name)
            unused.add(expr.name)
    return frozenset(unused)


def copies_for(fusion: Fusion, chain: Iterable[Expr], readers: Sequence[str], taken: set[str]) -> Copies:
    """Return copies of a chain with unused names, which are added to ``taken``."""
    originals = tuple(expr.name for expr in chain)
    names = []
    for original in originals:
        tries = (f"{original}_again{i if i > 1 else ''}" for i in count(1))
        names.append(next(name for name in tries if name not in taken and name not in fusion.tensors))
        taken.add(names[-1])
    return Copies(originals=originals, copies=tuple(names), readers=tuple(readers))


def with_copies(fusion: Fusion, copies: Copies) -> Fusion:
    """Return the fusion with copies before the first of their readers; the same object if it has them already.

    A copy that depends on a value computed after this reader follows that value.

    Raises
    ------
    KeyError
        If the fusion has no expression of some name.
    """
    if not copies.copies or copies.copies[0] in fusion.tensors:
        return fusion
    axes = Axes(fusion)
    instead: dict[Val, Val] = {}
    by_name = {expr.name: expr for expr in fusion.exprs}
    chosen = {by_name[name].name for name in copies.readers}
    first = next(place for place, expr in enumerate(fusion.exprs) if expr.name in chosen)
    ready = {value: place + 1 for place, expr in enumerate(fusion.exprs) for value in expr.outputs}
    made: dict[int, list[Expr]] = {}
    for original, name in zip(copies.originals, copies.copies, strict=True):
        copy = again(with_inputs(by_name[original], instead), name, axes)
        instead[by_name[original].out] = copy.out
        place = max([first, *(ready[value] for value in copy.inputs if value in ready)])
        ready[copy.out] = place
        made.setdefault(place, []).append(copy)
    exprs: list[Expr] = []
    for place, expr in enumerate(fusion.exprs):
        exprs += made.get(place, ())
        exprs.append(with_inputs(expr, instead) if expr.name in chosen else expr)
    return replace(fusion, exprs=tuple(exprs))


def attempt_of(
    copies: Copies, moved: Names, text: str, outcome: Outcome = Outcome.ACCEPTED, phase: str = PHASE,
) -> Attempt:
    """Return the attempt that makes copies; ``moved`` are expressions that move to the readers' segment."""
    subjects = (copies.originals, copies.copies, copies.readers, moved)
    return Attempt(phase=phase, kind=Kind.RECOMPUTE, subjects=subjects, outcome=outcome, text=text)


def copies_in(attempt: Attempt) -> tuple[Copies, Names]:
    """Return the copies that an attempt of `attempt_of` makes, and the expressions that it moves.

    Raises
    ------
    SegmentationError
        If it is not such an attempt.
    """
    if len(attempt.subjects) != 4 or len(attempt.subjects[0]) != len(attempt.subjects[1]):
        msg = f"the log has a recomputation with {len(attempt.subjects)} groups that do not fit together."
        raise SegmentationError(msg)
    originals, copies, readers, moved = attempt.subjects
    return Copies(originals=originals, copies=copies, readers=readers), moved


def amounts_text(saved: int, operations: int) -> str:
    """Return the effect of a recomputation, as the end of a sentence."""
    change = f"saves {bytes_label(saved)}" if saved >= 0 else f"costs {bytes_label(-saved)} more"
    more = f", and {operations:,} more operations are computed" if operations else ""
    return f"{change} of reads and writes{more}"
