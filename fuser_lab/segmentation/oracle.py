"""The segmenter's questions to schedulers: candidates and the scheduler protocol."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
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

    @cached_property
    def key(self) -> frozenset[str]:
        """Names of the expressions: candidates of one segmentation with equal keys are equal."""
        return frozenset(expr.name for expr in self.exprs)

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
        centered = self._centered()
        key = (tuple(map(id, self.exprs)), tuple(map(id, self.outputs)), tuple(map(id, centered)))
        found = _NARROWED.get(key)
        if found is None:
            found = _NARROWED[key] = Fusion(
                inputs=self.inputs, exprs=self.exprs, outputs=self.outputs, centered=centered,
            )
        return found

    def _centered(self) -> tuple[TensorView, ...]:
        """Return the sums of squared deviations from a mean that is computed outside of the candidate."""
        found = ((expr, squared_deviations(self.fusion, expr)) for expr in self.exprs)
        return tuple(expr.out for expr, parts in found if parts is not None and parts.total.name not in self.key)


# A fusion holds the expressions whose ids are its key.
_NARROWED: WeakValueDictionary[tuple[tuple[int, ...], ...], Fusion] = WeakValueDictionary()


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
    order = sorted(chosen, key=fusion.positions.__getitem__)
    made: set[str] = set()
    inputs: dict[str, Val] = {}
    outputs: list[TensorView] = []
    names = frozenset(chosen)
    readers, results = fusion.readers, fusion.output_names
    for name in order:
        expr = chosen[name]
        for value in expr.inputs:
            if value.name not in made and not (isinstance(value, Scalar) and value.value is not None):
                inputs[value.name] = value
        for value in expr.outputs:
            made.add(value.name)
        if name not in recomputed:
            outputs += [
                tv for tv in expr.tensor_outputs
                if tv.name in results or not names.issuperset(readers.get(tv.name, ()))
            ]
    return Candidate(fusion, tuple([chosen[name] for name in order]), tuple(inputs.values()), tuple(outputs))


def _scalar_chain(fusion: Fusion, exprs: Iterable[Expr]) -> set[Expr]:
    """Return the expressions that compute scalars read by ``exprs``: scalars cannot pass between segments."""
    found: set[Expr] = set()
    waiting = [v for expr in exprs for v in expr.inputs if isinstance(v, Scalar) and v in fusion.producers]
    while waiting:
        expr = fusion.producers[waiting.pop()]
        if expr not in found:
            found.add(expr)
            waiting.extend(v for v in expr.inputs if isinstance(v, Scalar) and v in fusion.producers)
    return found


class SchedulerOracle(Protocol):
    """Decides which scheduler accepts a candidate."""

    def ask(self, candidate: Candidate) -> Answer:
        """Return the schedulers' verdicts, ending with the first acceptance."""
