"""The base class of pre-segmentation passes, and the pipeline that runs them in order."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from time import perf_counter
from typing import ClassVar

from fuser_lab.errors import InputError
from fuser_lab.ir import Expr, Fusion, TensorView, Val, needed_exprs


class Pass(ABC):
    """A rewrite of a concretized fusion before it is cut; fields of the dataclass are its options.

    ``evaluate(run(fusion)) == evaluate(fusion)`` holds exactly, outputs keep their names, and the fusion that is
    returned is verified like any other.
    """

    name: ClassVar[str]
    nvfuser: ClassVar[str] = ""  # nvFuser's name of it, without "Pass"; empty for passes that nvFuser does not have
    adds_scalars: ClassVar[bool] = False  # whether scalar inputs may follow those of the fusion
    only_without: ClassVar[str] = ""  # scheduler that replaces the pass: the pass runs only if it is disabled
    example: ClassVar[str] = ""  # statements over `fd` and `DataType` that record a fusion which the pass changes

    @abstractmethod
    def run(self, fusion: Fusion) -> Fusion:
        """Return the rewritten fusion, or the same object if there is nothing to do."""


Callback = Callable[[Pass, Fusion, Fusion, float], None]


@dataclass(frozen=True, slots=True)
class PassPipeline:
    """Passes in order; the order is part of their meaning."""

    passes: tuple[Pass, ...]

    def run(
        self,
        fusion: Fusion,
        *,
        disabled: Iterable[str] = (),
        without_schedulers: Iterable[str] = (),
        callback: Callback | None = None,
    ) -> Fusion:
        """Return the fusion after all passes.

        Parameters
        ----------
        fusion
            A concretized fusion.
        disabled
            Names of passes to leave out.
        without_schedulers
            Names of disabled schedulers; some passes run only then.
        callback
            Called as ``callback(pass, before, after, seconds)`` after each pass that changed something.

        Raises
        ------
        InputError
            If ``disabled`` names no pass.
        """
        off, missing = set(disabled), set(without_schedulers)
        unknown = off - {p.name for p in self.passes}
        if unknown:
            names = ", ".join(p.name for p in self.passes)
            raise InputError(f"unknown pass {min(unknown)!r}; choose from {names}.")
        for step in self.passes:
            if step.name in off or (step.only_without and step.only_without not in missing):
                continue
            started = perf_counter()
            after = _check(step, fusion, step.run(fusion))
            if callback is not None and after is not fusion:
                callback(step, fusion, after, perf_counter() - started)
            fusion = after
        return fusion


def _check(step: Pass, before: Fusion, after: object) -> Fusion:
    """Return the result of a pass, or raise InputError if it is not a fusion with the same inputs and outputs."""
    if not isinstance(after, Fusion):
        raise InputError(f"pass {step.name!r}: run must return a Fusion, given {type(after).__name__}.")
    if after is before:
        return after
    inputs = after.inputs
    if step.adds_scalars:
        added = inputs[len(before.inputs) :]
        inputs = (*inputs[: len(before.inputs)], *(v for v in added if isinstance(v, TensorView)))
    for role, old, new in (("inputs", before.inputs, inputs), ("outputs", before.outputs, after.outputs)):
        if _types(old) != _types(new):
            raise InputError(
                f"pass {step.name!r}: run must keep the {role} of the fusion, which are {', '.join(_types(old))}; it "
                f"returned {', '.join(_types(new)) or 'none'}."
            )
    return after


def _types(values: Iterable[Val]) -> list[str]:
    return [f"{v.dtype.name} {list(v.shape) if isinstance(v, TensorView) else 'scalar'}" for v in values]


def text_digest(fusion: Fusion) -> str:
    """Return a short digest of a fusion's expressions, names and layouts, much cheaper than that of its content."""
    lines = [
        f"{[(v.name, v.domain.allocation) for v in expr.tensor_outputs]} = {expr.op.name}"
        f"{[v.name or str(v) for v in expr.inputs]}{expr.attrs}"
        for expr in fusion.exprs
    ]
    ends = [(v.name for v in fusion.inputs), (v.name for v in fusion.outputs), (a.name for a, _ in fusion.aliases)]
    return sha256("\n".join([*lines, *map(" ".join, ends)]).encode()).hexdigest()[:16]


def rebuilt(fusion: Fusion, exprs: Iterable[Expr]) -> Fusion:
    """Return the fusion with other expressions, without those that no output needs."""
    return replace(fusion, exprs=needed_exprs(tuple(exprs), fusion.outputs))


def with_inputs(expr: Expr, replaced: Mapping[Val, Val]) -> Expr:
    """Return an expression that reads other values, with the same axes, instead of some operands."""
    inputs = tuple(replaced.get(v, v) for v in expr.inputs)
    if inputs == expr.inputs:
        return expr
    return Expr(op=expr.op, inputs=inputs, outputs=expr.outputs, attrs=expr.attrs)
