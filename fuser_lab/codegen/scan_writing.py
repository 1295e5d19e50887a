"""What the functions that write scans share: running values along an axis, their operands and their results."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fuser_lab.codegen.kernel_ir import Alloc, Buffer, Role, Scan, Scope
from fuser_lab.codegen.nest_writing import PhaseCode, Places
from fuser_lab.codegen.nests import Nest
from fuser_lab.codegen.values import Values, call_text
from fuser_lab.dtypes import DataType
from fuser_lab.errors import CodegenError
from fuser_lab.ir import Expr, Fusion, Scalar, Val
from fuser_lab.ir.term import Const, Term, Var, cast
from fuser_lab.ops import OPS


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A scan whose loops are being written: ``elements`` holds its operands, then its results, in the compute type.

    ``first`` precedes the first element, in the dtype of the value that is carried between iterations.
    """

    expr: Expr
    fn: str
    identity: Const
    first: Term
    elements: Buffer

    @property
    def name(self) -> str:
        """The name of the carried value, such as ``t6_cumsum``."""
        return f"{self.expr.name.lower()}_{self.expr.op.name}"

    def over(self, parts: int, each: int, carry: Var, scope: Scope) -> Scan:
        """Return the statement that replaces the operands, in runs of ``each`` elements, by the results."""
        return Scan(
            buffer=self.elements, parts=parts, each=each, carry=carry, fn=self.fn, identity=self.identity.value,
            scope=scope, origin=self.expr.name,
        )


def scan_levels(fusion: Fusion, nest: Nest) -> tuple[tuple[Expr, ...], ...]:
    """Return the scans of a nest grouped by the number of other scans they depend on."""
    behind: dict[Val, int] = {}
    levels: dict[int, list[Expr]] = {}
    for expr in fusion.exprs:
        level = max((behind.get(v, 0) for v in expr.inputs), default=0)
        if expr in nest.scans:
            levels.setdefault(level, []).append(expr)
            level += 1
        behind.update((out, level) for out in expr.outputs)
    return tuple(tuple(levels[level]) for level in sorted(levels))


def check_scanned_columns(nest: Nest) -> None:
    """Refuse columns that are scanned and reduced."""
    if nest.reductions:
        raise CodegenError(f"{nest.scans[0].op.name} runs down columns, whose reductions are another kernel.")


def open_scan(values: Values, expr: Expr, size: int, *, wide: bool = False, sums: bool = False) -> Running:
    """Allocate ``size`` elements of a scan, none if 0; if ``wide``, sums of Float are carried as Double.

    ``sums`` says that the elements are carried values.
    """
    combine = OPS[expr.op.name].running
    assert combine is not None
    dtype = expr.out.dtype.compute
    carried = DataType.Double if wide and dtype is DataType.Float and combine.fn not in {"max", "min"} else dtype
    elements = Buffer(
        name=f"{expr.name}_running", dtype=carried if sums else dtype, size=size, role=Role.SCRATCH,
    )
    if size:
        values.emit(Alloc(buffer=elements, origin=expr.name, note=call_text(expr)))
    start = next((v for v in expr.inputs if isinstance(v, Scalar)), None)
    identity = combine.identity(expr.out.dtype)
    first: Term = Const(carried, identity)
    if start is not None:
        # The value before the first element, rounded to the dtype of the results.
        initial = values.scalar(start)
        first = cast(initial if initial.dtype is expr.out.dtype else cast(initial, expr.out.dtype), carried)
    return Running(expr=expr, fn=combine.fn, identity=Const(dtype, identity), first=first, elements=elements)


def carried_values(values: Values, levels: Sequence[Sequence[Running]]) -> dict[Expr, Var]:
    """Name the values that scans carry, and initialize them."""
    scans = [scan for level in levels for scan in level]
    return {scan.expr: values.let(scan.name, scan.first, origin=scan.expr.name) for scan in scans}


def know_results(code: PhaseCode, scans: Mapping[Expr, Term], places: Places) -> None:
    """Make results of scans available at one position: ``scans`` holds the element of each."""
    for expr, element in scans.items():
        code.know(expr.out, places, cast(element, expr.out.dtype))


def operand(code: PhaseCode, expr: Expr, places: Places) -> Term:
    """Return the operand of a scan at one position, in the compute type."""
    return cast(code.element(expr.tensor_inputs[0], places), expr.out.dtype.compute)
