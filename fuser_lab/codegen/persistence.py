"""The values of a row that are kept between passes, so that later passes need not compute them again.

A pass may also compute a pair of reductions of which the second depends on the first. The pair is a maximum and the sum
of exponentials relative to it (online softmax), or a sum and the squared deviations from the mean.
"""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from fuser_lab.analysis.deviations import QUOTIENTS, squared_deviations
from fuser_lab.analysis.integer_limits import integer_limits
from fuser_lab.codegen.cpu_functions import is_vectorized
from fuser_lab.codegen.index_map import Index, operand_index
from fuser_lab.codegen.index_math import variables
from fuser_lab.codegen.kernel_ir import Load, Statement, every_term, walk
from fuser_lab.codegen.nest_facts import NestFacts
from fuser_lab.codegen.nests import Axis, Nest
from fuser_lab.codegen.values import Values
from fuser_lab.dtypes import DataType
from fuser_lab.ir import Expr, Fusion, OpKind, TensorView, Val
from fuser_lab.ir.term import MATH, SLOW, Apply, Const, Term, Var, apply, select

# Ops that are more expensive to recompute than to read back.
CALLED = MATH | {"pow"}
COSTLY = MATH | {"div", "pow", "fmod", "remainder", "philox_uniform"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """A tensor of which a row is kept, and the pass that computes it."""

    tensor: TensorView
    written: int


def choose_saved(facts: NestFacts, without: Collection[int] = (), *, cheap: bool = False) -> tuple[Saved, ...]:
    """Return the values to keep, none of which is written by the passes ``without``.

    A value is a candidate if a pass that computes something new from it follows an earlier pass that needed it as well.
    Only values that are expensive to recompute are kept, unless ``cheap`` ones are as well.
    """
    needs = [_needs(facts, number) for number in range(facts.passes)]
    saved: dict[TensorView, Saved] = {}
    expensive: dict[TensorView, bool] = {}
    reduced = {axis.name for axis in facts.nest.reduced}
    for number in range(1, facts.passes):
        earlier = set().union(*(need for i, need in enumerate(needs[:number]) if i not in without))
        roots = set(_roots(facts, number))
        for tensor in sorted(needs[number] & earlier, key=lambda tv: tv.name):
            new = any(
                out not in earlier and out in needs[number]
                for user in facts.fusion.users.get(tensor, ()) for out in user.tensor_outputs
            )
            if not (new or tensor in roots) or tensor in saved:
                continue
            if not facts.nest.axes_of(tensor) & reduced:
                continue
            if cheap or _is_expensive(facts, tensor, expensive):
                first = next(i for i, need in enumerate(needs) if i not in without and tensor in need)
                saved[tensor] = Saved(tensor=tensor, written=first)
    return tuple(saved.values())


def rows_kept(
    facts: NestFacts, *, values: bool, early: bool = False, without: Collection[int] = (),
) -> tuple[Saved, ...]:
    """Return what a GPU keeps of a row: the inputs that several passes need, in their storage type.

    With ``values``, values that are expensive to recompute are also kept, by other passes than those ``without``; with
    ``early``, also inputs that only later passes need, which are then loaded in advance. Other inputs that all rows
    share are not kept, because caches hold them. Of columns without inputs to keep, all values that later passes need
    are kept.
    """
    expensive = choose_saved(facts, without) if values else ()
    pass_numbers: dict[TensorView, list[int]] = {}
    for number in range(facts.passes):
        for tensor in inputs_needed(facts, number, expensive):
            pass_numbers.setdefault(tensor, []).append(number)
    rows = {axis.name for axis in facts.nest.kept}
    inputs = []
    for tensor, numbers in pass_numbers.items():
        varies = not rows or rows & facts.nest.axes_of(tensor)
        if early or (varies and len(numbers) > 1):
            inputs.append(Saved(tensor=tensor, written=0 if early else numbers[0]))
    if values and not inputs and not facts.inner_reduced:
        return choose_saved(facts, without, cheap=True)
    return (*inputs, *expensive)


def inputs_needed(facts: NestFacts, number: int, saved: Sequence[Saved]) -> tuple[TensorView, ...]:
    """Return the inputs of which a pass reads an element at each point, given the values that earlier passes kept."""
    needed = _needs_of_pass(facts, number, saved)
    reduced = {axis.name for axis in facts.nest.reduced}
    saved_tensors = {s.tensor for s in saved if s.written < number}
    return tuple(
        tv for tv in sorted(needed, key=lambda tv: tv.name)
        if tv not in facts.fusion.producers and tv not in saved_tensors
        and reduced & facts.nest.axes_of(tv)
    )


def read_back(facts: NestFacts, number: int, saved: Sequence[Saved]) -> tuple[TensorView, ...]:
    """Return the tensors, kept by earlier passes, of which a pass reads an element at each point."""
    needed = _needs_of_pass(facts, number, saved)
    return tuple(s.tensor for s in saved if s.written < number and s.tensor in needed)


def memory_of_kept(facts: NestFacts, saved: Sequence[Saved]) -> tuple[dict[TensorView, int], list[int]]:
    """Return the part of memory of each kept tensor, and the bytes per element of each part.

    The last pass that reads a tensor, or a later one, writes another of this size in its place.
    """
    last = {tv: number for number in range(facts.passes) for tv in read_back(facts, number, saved)}
    places, sizes, until = dict[TensorView, int](), list[int](), list[int]()
    for entry in sorted(saved, key=lambda s: s.written):
        item = entry.tensor.dtype.itemsize
        free = (n for n, size in enumerate(sizes) if size == item and until[n] <= entry.written)
        place = next(free, len(sizes))
        if place == len(sizes):
            sizes.append(item)
            until.append(0)
        places[entry.tensor], until[place] = place, last.get(entry.tensor, entry.written)
    return places, sizes


def _needs_of_pass(facts: NestFacts, number: int, saved: Sequence[Saved]) -> frozenset[TensorView]:
    """Return the tensors of which a pass needs an element at each point, given what is kept."""
    earlier = tuple(s for s in saved if s.written < number)
    written = [s.tensor for s in saved if s.written == number and s.tensor in facts.fusion.producers]
    return _needs(facts, number, earlier, written)


def shared_along(facts: NestFacts, axes: Sequence[Axis], number: int = 0) -> tuple[TensorView, ...]:
    """Return the values that are constant along some but not all axes, and from which a pass computes other values.

    Computed values come first.
    """
    needed = _needs(facts, number)
    same = {axis.name for axis in axes}
    remaining, along = {axis.name for axis in facts.nest.axes} - same, facts.nest.axes_of
    tensors = [
        tv for tv in sorted(needed, key=lambda tv: tv.name)
        if along(tv) & remaining and not along(tv) & same and any(
            out in needed and along(out) & same
            for user in facts.fusion.users.get(tv, ()) for out in user.tensor_outputs
        )
    ]
    return tuple(sorted(tensors, key=lambda tv: tv not in facts.fusion.producers))


def constant_along(facts: NestFacts, number: int) -> tuple[TensorView, ...]:
    """Return the expensive values that all elements of a reduction share and that each of them needs in a pass.

    A mean that is a sum divided by a number is one, and so is a reciprocal standard deviation.
    """
    needed = _needs(facts, number)
    reduced = {axis.name for axis in facts.nest.reduced}

    def varies(tensor: TensorView) -> bool:
        return bool(reduced & facts.nest.axes_of(tensor))

    return tuple(
        tv for tv in sorted(needed, key=lambda tv: tv.name)
        if not varies(tv) and tv in facts.fusion.producers
        and any(out in needed and varies(out) for user in facts.fusion.users.get(tv, ()) for out in user.tensor_outputs)
        and _costly(facts, tv)
    )


def calls_functions(facts: NestFacts, tensor: TensorView, functions: Collection[str] = CALLED) -> bool:
    """Whether an element is computed by mathematical functions."""
    return any(isinstance(term, Apply) and term.fn in functions for term in _terms(facts, [tensor]))


def is_scalar(facts: NestFacts) -> bool:
    """Whether the compiler computes reduced elements one after another.

    It does if an element needs a function that is called or branches, or is at a data-dependent position.
    """
    operands = [expr.tensor_inputs[0] for expr in facts.nest.reductions]
    places = {axis.name for axis in facts.nest.axes}
    return any(
        not variables(t.position) <= places if isinstance(t, Load)
        else isinstance(t, Apply) and t.fn in SLOW and not is_vectorized(t)
        for t in _terms(facts, operands)
    )


def reads_several(facts: NestFacts, tensor: TensorView) -> bool:
    """Whether computing an element reads several elements that differ along a row."""
    terms, reduced = set(_terms(facts, [tensor])), {axis.name for axis in facts.nest.reduced}
    return sum(isinstance(term, Load) and bool(reduced & variables(term.position)) for term in terms) > 1


def bytes_kept(saved: Sequence[Saved], fusion: Fusion) -> int:
    """Return the bytes per element of a row that are kept at once; a computed value replaces an input."""
    inputs = sum(s.tensor.dtype.itemsize for s in saved if s.tensor not in fusion.producers)
    values = sum(s.tensor.dtype.compute.itemsize for s in saved if s.tensor in fusion.producers)
    return max(inputs, values)


def _roots(facts: NestFacts, number: int) -> list[TensorView]:
    folds = (*facts.reductions_in(number), *facts.scans_in(number))
    return [*(expr.tensor_inputs[0] for expr in folds), *facts.stored_in(number)]


class _Asked(Values):
    """Records which elements are needed, without naming or emitting values."""

    def _compute(self, expr: Expr, tensor: TensorView, at: Index) -> Term:
        for operand in expr.tensor_inputs:
            self.value(operand, operand_index(operand, at))
        result = self.scope.values[tensor.name, at] = Var(tensor.dtype, tensor.name)
        return result


def _terms(facts: NestFacts, roots: Sequence[TensorView]) -> Iterator[Term]:
    """Yield the terms from which elements of some tensors are computed at a point of the nest."""
    for statement in _requested_values(facts, Values(facts.fusion, facts.buffers, facts.layouts), roots):
        yield from every_term(statement)


def _requested_values(
    facts: NestFacts, values: Values, roots: Sequence[TensorView], earlier: Sequence[Saved] = (),
) -> Iterator[Statement]:
    """Request roots at a point of the nest, given reduction results and kept values; return the emitted values."""
    nest = facts.nest
    with values.block(facts.ranges(), pinned=True) as scope:
        for expr in (*nest.reductions, *nest.scans):
            values.know(expr.out, nest.index[expr.out], Var(expr.out.dtype, f"{expr.out.name}_result"))
        for saved in earlier:
            values.know(saved.tensor, nest.index[saved.tensor], Var(saved.tensor.dtype, f"{saved.tensor.name}_kept"))
        for tensor in roots:
            values.value(tensor, nest.index[tensor])
    return walk(tuple(scope.body))


def _needs(
    facts: NestFacts, number: int, earlier: Sequence[Saved] = (), written: Sequence[TensorView] = (),
) -> frozenset[TensorView]:
    key = number, tuple(earlier), tuple(written)
    if key not in facts.needs:
        facts.needs[key] = _trace_needs(facts, number, earlier, written)
    return facts.needs[key]


def _trace_needs(
    facts: NestFacts, number: int, earlier: Sequence[Saved], written: Sequence[TensorView],
) -> frozenset[TensorView]:
    values = _Asked(facts.fusion, facts.buffers, facts.layouts)
    _requested_values(facts, values, [*_roots(facts, number), *written], earlier)
    tensors, index = facts.fusion.tensors, facts.nest.index
    return frozenset(
        tensors[name] for name, at in values.asked
        if name in tensors and tensors[name] in index and values.simplified(index[tensors[name]]) == at
    )


def _is_expensive(facts: NestFacts, tensor: TensorView, cache: dict[TensorView, bool]) -> bool:
    """Whether a value is expensive to recompute; ``cache`` keeps the results."""
    # A value computed element by element from an expensive value is expensive as well.
    cache[tensor] = any(map(cache.get, _computed_of(facts.fusion, tensor))) or _costly(facts, tensor)
    return cache[tensor]


def _computed_of(fusion: Fusion, tensor: TensorView) -> Iterator[TensorView]:
    """Yield the tensors from which pointwise expressions compute an element."""
    waiting, seen = [tensor], {tensor}
    while waiting:
        maker = fusion.producers.get(waiting.pop())
        if maker is not None and maker.kind is OpKind.POINTWISE:
            new = [tv for tv in maker.tensor_inputs if tv not in seen and tv.shape == tensor.shape]
            seen.update(new)
            waiting.extend(new)
            yield from new


def _costly(facts: NestFacts, tensor: TensorView) -> bool:
    terms = list(_terms(facts, [tensor]))
    loads = sum(isinstance(t, Load) for t in terms)
    return loads > 2 or any(isinstance(t, Apply) and t.fn in COSTLY for t in terms)


_LARGEST = frozenset({"max", "fmax"})  # a sum with NaN is NaN, even relative to a maximum that ignores NaN
_VIEWS = frozenset({OpKind.BROADCAST, OpKind.SQUEEZE, OpKind.EXPAND, OpKind.COPY})


def finite(largest: Term) -> Term:
    """Return a maximum, or 0 if it is minus infinity, so that nothing is subtracted from minus infinity."""
    lowest = Const(largest.dtype, -math.inf)
    return select(apply("eq", largest, lowest), Const(largest.dtype, 0.0), largest)


def scale(old: Term, origin: Term) -> Term:
    """Return the factor that makes a sum relative to one maximum relative to another, which is `finite`."""
    return Apply(old.dtype, "exp", (old - origin,))


def whole_sum(largest: Term, total: Term) -> Term:
    """Return the complete sum, which is NaN if all elements are minus infinity."""
    lowest = Const(largest.dtype, -math.inf)
    return select(apply("eq", largest, lowest), Const(total.dtype, math.nan), total)


def online_pair(fusion: Fusion, nest: Nest, levels: Mapping[Val, int]) -> tuple[Expr, Expr] | None:
    """Return a maximum and the sum of exp(x - maximum), if they are all that the first two passes compute."""
    pair = _first_two(nest, levels)
    if pair is None:
        return None
    largest, total = pair
    power = fusion.producers.get(total.inputs[0])
    if largest.op.name not in _LARGEST or total.op.name != "sum" or power is None or power.op.name != "exp":
        return None
    if _origin(fusion, power.inputs[0], largest.inputs[0]) is not largest.out:
        return None
    return pair if _are_floats(largest.out, total.out, *power.tensor_inputs) else None


def extreme_of_place(fusion: Fusion, expr: Expr) -> Expr | None:
    """Return the maximum or minimum whose first place a reduction finds, as `argmax` does.

    The reduction is the least of the places of all elements that are equal to the extreme, and of NaNs. Others count as
    a place after all of them, so a thread none of whose elements is the extreme does not change the result.
    """
    choice = fusion.producers.get(expr.inputs[0]) if expr.op.name == "min" else None
    if choice is None or choice.op.name != "where":
        return None
    condition, place, after = choice.inputs
    limits, beyond = integer_limits(fusion, place), integer_limits(fusion, after)
    if limits is None or beyond is None or limits[1] > beyond[0]:
        return None
    tests = [fusion.producers.get(condition)]
    if tests[0] is not None and tests[0].op.name == "logical_or":
        tests = [fusion.producers.get(test) for test in tests[0].inputs]
    equal, *others = tests
    if equal is None or equal.op.name != "eq":
        return None
    element, origin = equal.inputs
    extreme = fusion.producers.get(_without_views(fusion, origin))
    if extreme is None or extreme.op.name not in {"max", "min"} or extreme.inputs[0] is not element:
        return None
    are_nans = all(test is not None and test.op.name == "isnan" and test.inputs[0] is element for test in others)
    return extreme if are_nans else None


@dataclass(frozen=True, slots=True)
class Moments:
    """A sum, the mean that is computed from it, and the sum of squared deviations from this mean.

    ``rest`` is the sum of the deviations, which would be 0 without rounding; None if nothing reads it.
    """

    total: Expr
    squares: Expr
    mean: TensorView
    deviation: TensorView
    rest: Expr | None = None

    @property
    def sums(self) -> tuple[Expr, ...]:
        """The sums of elements, of squared deviations and, if anything reads it, of deviations."""
        return (self.total, self.squares) if self.rest is None else (self.total, self.squares, self.rest)


def moments(fusion: Fusion, nest: Nest, levels: Mapping[Val, int], count: int) -> Moments | None:
    """Return a sum and the squared deviations from the mean of ``count`` elements, if they are the first two passes."""
    squares = {e: squared for e in nest.reductions if (squared := squared_deviations(fusion, e)) is not None}
    rests = [e for e in nest.reductions if any(e.inputs[0] is squared.deviation for squared in squares.values())]
    pair = _first_two(nest, levels, rests)
    if pair is None or pair[1] not in squares or len(rests) > 1:
        return None
    squared = squares[pair[1]]
    if squared.total is not pair[0] or squared.count != count:
        return None
    if fusion.producers[squared.mean].op.name not in QUOTIENTS:
        return None
    return Moments(squared.total, pair[1], squared.mean, squared.deviation, *rests)


def _first_two(nest: Nest, levels: Mapping[Val, int], besides: Sequence[Expr] = ()) -> tuple[Expr, Expr] | None:
    """Return the reductions of the first two passes, if these are one each and all that the passes compute.

    Reductions ``besides`` these do not count.
    """
    counted = [e for e in nest.reductions if e not in besides]
    by_level = [[e for e in counted if levels.get(e.inputs[0], 0) == level] for level in (0, 1)]
    stored_or_scanned = (*nest.full, *(expr.inputs[0] for expr in nest.scans))
    is_early = any(levels.get(v, 0) < len(by_level) for v in stored_or_scanned)
    if is_early or any(len(exprs) != 1 for exprs in by_level):
        return None
    (first,), (second,) = by_level
    return first, second


def _origin(fusion: Fusion, difference: Val, operand: Val) -> Val | None:
    """Return what ``difference`` subtracts from an operand, without broadcasts of it."""
    maker = fusion.producers.get(difference)
    if maker is None or maker.op.name != "sub" or maker.inputs[0] is not operand:
        return None
    return _without_views(fusion, maker.inputs[1])


def _without_views(fusion: Fusion, value: Val) -> Val:
    """Return the value of which another one is a broadcast or another view."""
    while value in fusion.producers and fusion.producers[value].kind in _VIEWS:
        value = fusion.producers[value].inputs[0]
    return value


def _are_floats(*tensors: TensorView) -> bool:
    return {tv.dtype for tv in tensors} <= {DataType.Float, DataType.Double}
