"""The segmenter's questions to schedulers: candidates and the scheduler protocol."""

from bisect import insort
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, compress
from operator import attrgetter, not_
from typing import Protocol
from weakref import WeakValueDictionary

from fuser_lab.analysis.deviations import squared_deviations
from fuser_lab.cost.verdict import Answer
from fuser_lab.ir import Expr, Fusion, Scalar, TensorView, Val


@dataclass(frozen=True, eq=False)
class Candidate:
    """Expressions treated as a whole fusion (nvFuser: narrowing).

    ``exprs`` are in topological order. ``inputs`` are the values that it reads but does not compute, ``outputs`` the
    tensors computed inside that are fusion outputs or read by other expressions, except those that these recompute for
    themselves.
    """

    fusion: Fusion
    exprs: tuple[Expr, ...]
    inputs: tuple[Val, ...]
    outputs: tuple[TensorView, ...]

    def may_begin(self, count: int) -> bool:
        """Whether what is said about a candidate of ``count`` expressions may begin with this part of it.

        For smaller parts that takes longer than to compute everything.
        """
        return len(self.exprs) >= LEAST_PART and (count - len(self.exprs)) * LEAST_RATIO <= len(self.exprs)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the expressions in order."""
        return tuple(map(_NAME, self.exprs))

    @property
    def ends(self) -> tuple[str, str]:
        """Names of the first and last expression; there must be some."""
        return self.exprs[0].name, self.exprs[-1].name

    @cached_property
    def key(self) -> frozenset[str]:
        """Names of the expressions: candidates of one segmentation with equal keys are equal."""
        return frozenset(map(_NAME, self.exprs))

    @cached_property
    def tensor_inputs(self) -> tuple[TensorView, ...]:
        """Tensors among the inputs."""
        return tuple(v for v in self.inputs if isinstance(v, TensorView))

    @cached_property
    def narrowed(self) -> Fusion:
        """The candidate as a separate fusion; names are unchanged.

        Candidates of the same expressions share it, with what it remembers of its content, also if a rewriting made one
        of their fusions from the other.
        """
        centered = self._centered_sums()
        whole = self.fusion
        key = (tuple(map(id, self.exprs)), tuple(map(id, self.outputs)), tuple(map(id, centered)), whole.keeps_float)
        fusion = _NARROWED.get(key)
        if fusion is None:
            fusion = _NARROWED[key] = Fusion(
                inputs=self.inputs, exprs=self.exprs, outputs=self.outputs, centered=centered,
                keeps_float=whole.keeps_float,
            )
        return fusion

    def _centered_sums(self) -> tuple[TensorView, ...]:
        """Return the sums of squared deviations from a mean that is computed outside of the candidate."""
        deviations = ((expr, squared_deviations(self.fusion, expr)) for expr in self.exprs)
        return tuple(expr.out for expr, parts in deviations if parts is not None and parts.total.name not in self.key)


LEAST_PART = 16  # fewest expressions of a part whose facts begin those of a candidate
LEAST_RATIO = 8  # fewest expressions of that part for each further expression of the candidate

# A fusion holds the expressions whose ids are its key.
_NARROWED: WeakValueDictionary[tuple[object, ...], Fusion] = WeakValueDictionary()


def candidate(fusion: Fusion, exprs: Iterable[Expr], recomputed: frozenset[str] = frozenset()) -> Candidate:
    """Return expressions of a fusion as a candidate; scalar arithmetic that they need comes along.

    ``recomputed`` names expressions that readers make again for themselves (forwarded chains and factories): their
    results do not leave a segment, unless it consists of nothing else.
    """
    # By names, which do not repeat within a fusion: this is called for every question to schedulers.
    chosen = {expr.name: expr for expr in exprs}
    if recomputed and all(name in recomputed for name, expr in chosen.items() if expr.tensor_outputs):
        recomputed = frozenset()
    if len(fusion.tensor_exprs) < len(fusion.exprs):
        chosen.update((expr.name, expr) for expr in _scalar_chain(fusion, chosen.values()))
    # Loops over all expressions run in C, because candidates may have thousands.
    ordered = tuple(map(chosen.__getitem__, sorted(chosen, key=fusion.positions.__getitem__)))
    made = set(map(_NAME, chain.from_iterable(map(_OUTPUTS, ordered))))
    read = list(chain.from_iterable(map(_INPUTS, ordered)))
    inputs = tuple([
        value for name, value in dict(zip(map(_NAME, read), read, strict=True)).items()
        if name not in made and not _is_constant(value)
    ])
    storing = [expr for expr in ordered if expr.name not in recomputed] if recomputed else ordered
    tensors = list(chain.from_iterable(map(_TENSOR_OUTPUTS, storing)))
    inside = map(frozenset(chosen).issuperset, map(fusion.needed_for.__getitem__, map(_NAME, tensors)))
    return Candidate(fusion, ordered, inputs, tuple(compress(tensors, map(not_, inside))))


_NAME, _INPUTS, _OUTPUTS = attrgetter("name"), attrgetter("inputs"), attrgetter("outputs")
_TENSOR_OUTPUTS = attrgetter("tensor_outputs")


def _is_constant(value: Val) -> bool:
    return isinstance(value, Scalar) and value.value is not None


def grow_candidate(
    part: Candidate, exprs: Iterable[Expr], recomputed: frozenset[str] = frozenset(),
) -> Candidate | None:
    """Return a candidate with further expressions, which only read what it or they compute; None if there are others.

    The result is that of `candidate`, in a time that hardly depends on the size of the part.
    """
    fusion = part.fusion
    places = fusion.positions
    if len(fusion.tensor_exprs) < len(fusion.exprs) or part.exprs[0].name in recomputed:
        return None
    further = sorted(exprs, key=lambda expr: places[expr.name])
    made = {value.name for expr in further for value in expr.outputs}
    read = {
        value.name: value for expr in further for value in expr.inputs
        if value.name not in made and not _is_constant(value)
    }
    makers = (fusion.producers.get(value) for value in read.values())
    if any(maker is None or maker.name not in part.key for maker in makers):
        return None
    if any(value.name in made for value in part.inputs):
        return None
    ordered, key = list(part.exprs), part.key.union(expr.name for expr in further)
    outputs = [tensor for tensor in part.outputs if tensor.name not in read or fusion.needed_for[tensor.name] - key]
    for expr in further:
        insort(ordered, expr, key=lambda expr: places[expr.name])
        for tensor in expr.tensor_outputs if expr.name not in recomputed else ():
            if fusion.needed_for[tensor.name] - key:
                insort(outputs, tensor, key=lambda tensor: places[fusion.producers[tensor].name])
    result = Candidate(fusion, tuple(ordered), part.inputs, tuple(outputs))
    result.__dict__["key"] = key
    return result


def _scalar_chain(fusion: Fusion, exprs: Iterable[Expr]) -> set[Expr]:
    """Return the expressions that compute scalars read by ``exprs``: scalars cannot pass between segments."""
    chain: set[Expr] = set()
    waiting = [v for expr in exprs for v in expr.inputs if isinstance(v, Scalar) and v in fusion.producers]
    while waiting:
        expr = fusion.producers[waiting.pop()]
        if expr not in chain:
            chain.add(expr)
            waiting.extend(v for v in expr.inputs if isinstance(v, Scalar) and v in fusion.producers)
    return chain


class SchedulerOracle(Protocol):
    """Decides which scheduler accepts a candidate."""

    def ask(self, candidate: Candidate) -> Answer:
        """Return the schedulers' verdicts, ending with the first acceptance."""
