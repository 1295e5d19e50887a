"""What the functions that write a nest share: elements and stores at a position, and reductions with running values."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields, is_dataclass, replace
from enum import Enum
from typing import Generic, TypeVar

from fuser_lab.analysis.integer_limits import integer_limits
from fuser_lab.codegen import kernel_ir as ir
from fuser_lab.codegen.kernel_plan import NestPlan
from fuser_lab.codegen.nests import Axis, Nest, axis_indices
from fuser_lab.codegen.values import Values, call_text
from fuser_lab.dtypes import DataType
from fuser_lab.ir import Expr, Fusion, TensorView
from fuser_lab.ir.term import Apply, Const, Term, Var, cast, index, select
from fuser_lab.ir.transform import ParallelType
from fuser_lab.ops import OPS

Places = Mapping[str, Term]  # the axes of a nest as terms of the loops
ZERO = index(0)
_Plan = TypeVar("_Plan")


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseCode:
    """The emitter of a phase, with the nest that is written and the memory of its tensors."""

    fusion: Fusion
    nest: Nest
    buffers: Mapping[str, ir.Buffer]
    layouts: Mapping[TensorView, ir.Layout]
    values: Values

    def flat(self, axes: Sequence[Axis], number: Term) -> dict[str, Term]:
        """Return axes as terms of the number of a point among all points of these axes."""
        return axis_indices(axes, number, self.values.scope.ranges)

    def element(self, tensor: TensorView, places: Places) -> Term:
        """Return the element of a tensor at a position in the nest."""
        return self.values.value(tensor, self.nest.at(tensor, places))

    def know(self, tensor: TensorView, places: Places, element: Term) -> None:
        """Make the element of a tensor at a position available as a term."""
        self.values.know(tensor, self.nest.at(tensor, places), element)

    def position(self, tensor: TensorView, places: Places) -> Term:
        """Return where in its memory a tensor has the element at a position in the nest."""
        at = self.values.simplified(self.nest.at(tensor, places))
        return self.values.simplify(self.layouts[tensor].position(at))

    def store(self, tensors: Sequence[TensorView], places: Places) -> None:
        """Write the stores of results at a position in the nest."""
        for tensor in tensors:
            self.values.store(tensor, self.nest.at(tensor, places), self.layouts[tensor])


@dataclass(frozen=True, slots=True)
class StylePlan(Generic[_Plan]):
    """A nest, the plan of its style, and the function that writes what the plan says."""

    nest: NestPlan
    plan: _Plan
    write: Callable[[_Plan], Iterator[ir.Phase]]

    def phases(self) -> Iterator[ir.Phase]:
        """Yield the phases of the nest."""
        return self.write(self.plan)

    def __str__(self) -> str:
        """Return the plan as one line; tensors, ops and memory are their names."""
        return _text(self.plan)


def _text(value: object) -> str:
    match value:
        case NestPlan() | TensorView() | Expr() | ir.Buffer() | Axis():
            return value.name
        case Enum():
            return str(value.value)
        case Mapping():
            return f"{{{', '.join(f'{_text(key)}: {_text(item)}' for key, item in value.items())}}}"
        case tuple() | list():
            return f"[{', '.join(map(_text, value))}]"
        case _ if is_dataclass(value):
            parts = (f"{field.name}={_text(getattr(value, field.name))}" for field in fields(value) if field.repr)
            return f"{type(value).__name__}({', '.join(parts)})"
        case _:
            return str(value)


def written_phase(plan: NestPlan, suffix: str, write: Callable[[PhaseCode], ir.Launch]) -> ir.Phase:
    """Return the phase that a function writes, with the memory and the scalars that are its arguments."""
    facts = plan.facts
    values = Values(facts.fusion, facts.buffers, facts.layouts)
    launch = write(PhaseCode(
        fusion=facts.fusion, nest=facts.nest, buffers=facts.buffers, layouts=facts.layouts, values=values,
    ))
    body = tuple(values.scope.body)
    used, scalars = ir.arguments_of(body)
    names = {name: number for number, name in enumerate(facts.buffers)}  # inputs and outputs in the fusion's order
    roles = (ir.Role.INPUT, ir.Role.OUTPUT, ir.Role.WORKSPACE)
    return ir.Phase(
        name=plan.name + suffix,
        buffers=tuple(sorted(
            (buffer for buffer in used if not buffer.role.is_allocated),
            key=lambda buffer: (roles.index(buffer.role), names.get(buffer.name, 0)),
        )),
        scalars=scalars, body=body, launch=launch, schedule=plan.choice.schedule,
    )


def open_loop(values: Values, stack: ExitStack, name: str, count: int, parallel: ParallelType) -> Var:
    """Open a loop until the stack is closed, and return its variable."""
    return stack.enter_context(values.loop(name, count, parallel))


# Reductions


@dataclass(frozen=True, slots=True, kw_only=True)
class Fold:
    """A reduction whose loops are being written, with its running value.

    Where the condition ``matters`` does not hold, the elements of a thread cannot change the result.
    """

    expr: Expr
    fn: str
    identity: Const
    total: Term
    matters: Term | None = None

    @property
    def rounds(self) -> bool:
        """Whether the order of additions changes the result."""
        dtype = self.identity.dtype
        return self.fn in {"add", "mul"} and (dtype.is_float or dtype.is_complex)

    @property
    def name(self) -> str:
        """The name of the running value, such as ``t6_sum``."""
        return f"{self.expr.name.lower()}_{self.expr.op.name}"


def folds_of(exprs: Sequence[Expr]) -> list[Fold]:
    """Return reductions whose running values are the identity."""
    folds = []
    for expr in exprs:
        combine = OPS[expr.op.name].combine
        assert combine is not None
        identity = Const(expr.out.dtype.compute, combine.identity(expr.out.dtype))
        folds.append(Fold(expr=expr, fn=combine.fn, identity=identity, total=identity))
    return folds


def open_folds(values: Values, exprs: Sequence[Expr]) -> list[Fold]:
    """Return reductions whose running values are new variables."""
    folds = [narrow(fold, values.fusion) for fold in folds_of(exprs)]
    return [
        replace(fold, total=values.let(fold.name, fold.identity, origin=fold.expr.name, note=call_text(fold.expr)))
        for fold in folds
    ]


def narrow(fold: Fold, fusion: Fusion) -> Fold:
    """Return a maximum or minimum with a running value of 32 bits if its elements fit, as positions of an axis do."""
    operand, dtype = fold.expr.tensor_inputs[0], DataType.Int32
    limits = integer_limits(fusion, operand) if fold.fn in {"max", "min"} and operand.numel else None
    if fold.identity.dtype is not DataType.Int or limits is None:
        return fold
    low, high = dtype.limits
    if limits[0] < low or limits[1] > high:
        return fold
    identity = Const(dtype, low if fold.fn == "max" else high)
    return replace(fold, identity=identity, total=identity)


def cells(sums: Mapping[Expr, ir.Buffer], slot: Term) -> list[Fold]:
    """Return reductions whose running values are the elements of scratch memory at a slot."""
    return [
        replace(fold, total=ir.Load(sums[fold.expr].dtype, sums[fold.expr], slot)) for fold in folds_of(tuple(sums))
    ]


def update(values: Values, fold: Fold, value: Term, inside: Term | None = None, *, replacing: bool = False) -> None:
    """Write ``total = total fn value``, or ``total = value`` if ``replacing``.

    Where the condition ``inside`` does not hold, the identity takes the place of the value.
    """
    running = fold.total
    operand = cast(value, running.dtype)
    if inside is not None:
        operand = select(inside, operand, fold.identity)
    term = operand if replacing else Apply(running.dtype, fold.fn, (running, operand))
    if isinstance(running, ir.Load):
        values.emit(ir.Store(buffer=running.buffer, position=running.position, value=term, origin=fold.expr.name))
        return
    assert isinstance(running, Var)
    values.emit(ir.Let(name=running.name, value=term, update=True, origin=fold.expr.name))


def close_folds(code: PhaseCode, folds: Sequence[Fold], places: Places) -> None:
    """Make the results of reductions available to subsequent statements."""
    for fold in folds:
        code.know(fold.expr.out, places, cast(fold.total, fold.expr.out.dtype))
    code.values.pin({fold.total.name for fold in folds if isinstance(fold.total, Var)})


def write_point(
    code: PhaseCode, places: Places, folds: Sequence[Fold], stored: Sequence[TensorView],
    buffers: Mapping[TensorView, ir.Buffer], slot: Term, inside: Term | None = None,
) -> None:
    """Write what a nest computes at one position: values that buffers keep at a slot, reductions, and stores."""
    for tensor, buffer in buffers.items():
        value = code.element(tensor, places)
        expr = code.fusion.producers.get(tensor)
        origin = None if expr is None else expr.name
        code.values.emit(ir.Store(buffer=buffer, position=slot, value=value, origin=origin))
    for fold in folds:
        update(code.values, fold, code.element(fold.expr.tensor_inputs[0], places), inside)
    code.store(stored, places)


def store_parts(values: Values, parts: Mapping[Expr, ir.Buffer], folds: Sequence[Fold], position: Term) -> None:
    """Write the partial results of reductions to the memory between phases."""
    for fold in folds:
        buffer = parts[fold.expr]
        values.put(buffer, position, cast(fold.total, buffer.dtype), fold.expr.name)


def parts_of(plan: NestPlan) -> dict[Expr, ir.Buffer]:
    """Return the memory of the partial results of reductions that a second phase combines."""
    split, rows = plan.choice.schedule.split, plan.facts.space.rows
    return {
        expr: ir.Buffer(
            name=f"{expr.name}_parts", dtype=expr.out.dtype.compute, size=rows * split, role=ir.Role.WORKSPACE,
        )
        for expr in (plan.facts.nest.reductions if split > 1 else ())
    }
