"""The Kernel IR of a planned kernel: a writer per target and kind of nest, and the passes over what it writes."""

from dataclasses import dataclass, replace
from typing import Any

from fuser_lab.codegen.cpu_nests import cpu_style
from fuser_lab.codegen.gpu_backward import backward_plan, write_backward
from fuser_lab.codegen.gpu_columns import column_plan, write_columns
from fuser_lab.codegen.gpu_common import with_hints
from fuser_lab.codegen.gpu_elements import element_plan, write_elements
from fuser_lab.codegen.gpu_kept_columns import kept_column_plan, write_kept_columns
from fuser_lab.codegen.gpu_row_parts import parted_row_plan, write_parted_rows
from fuser_lab.codegen.gpu_rows import row_plan, write_rows
from fuser_lab.codegen.gpu_scans import scan_plan, write_scans
from fuser_lab.codegen.gpu_staged_rows import write_staged_rows
from fuser_lab.codegen.gpu_tiles import tile_plan, write_tiles
from fuser_lab.codegen.kernel_ir import Kernel, Phase, Role
from fuser_lab.codegen.kernel_passes import with_passes
from fuser_lab.codegen.kernel_plan import KernelPlan, NestPlan
from fuser_lab.codegen.nest_writing import StylePlan
from fuser_lab.codegen.values import call_text
from fuser_lab.dtypes import DataType
from fuser_lab.ir import Scalar
from fuser_lab.ir.term import Var
from fuser_lab.schedule.state import Style
from fuser_lab.targets import target_of


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenNest:
    """The phases of a nest: one, one per pass, or two if reductions are cut into parts."""

    plan: NestPlan
    phases: tuple[Phase, ...]


@dataclass(frozen=True, slots=True)
class MovesMore:
    """The answer that a kernel moves at least ``moved`` bytes, which is more than the limit."""

    moved: int


def write(style: StylePlan[Any]) -> WrittenNest:
    """Return the loops of a nest as the plan of its style says, element by element."""
    return WrittenNest(plan=style.nest, phases=tuple(style.phases()))


def style_plan(nest: NestPlan) -> StylePlan[Any]:
    """Return the plan of a nest and the function that writes it."""
    if not target_of(nest.choice.target).has_blocks:
        return cpu_style(nest)
    if nest.facts.column_sums:
        return StylePlan(nest, backward_plan(row_plan(nest)), write_backward)
    if nest.facts.nest.scans:
        return StylePlan(nest, scan_plan(nest), write_scans)
    schedule = nest.schedule
    match schedule.style:
        case Style.ELEMENTS:
            return StylePlan(nest, element_plan(nest), write_elements)
        case Style.TILES:
            return StylePlan(nest, tile_plan(nest), write_tiles)
        case Style.COLUMNS if schedule.persistent:
            return StylePlan(nest, kept_column_plan(nest), write_kept_columns)
        case Style.COLUMNS:
            return StylePlan(nest, column_plan(nest), write_columns)
        case Style.ROWS if schedule.split > 1:
            return StylePlan(nest, parted_row_plan(row_plan(nest)), write_parted_rows)
        case Style.ROWS:
            return StylePlan(nest, row_plan(nest), write_staged_rows if schedule.staged else write_rows)


def run_passes(nest: WrittenNest) -> WrittenNest:
    """Return a nest after the passes over Kernel IR."""
    plan = nest.plan
    target, has_blocks = plan.choice.target, target_of(plan.choice.target).has_blocks
    phases = (replace(phase, body=with_passes(phase.body, target)) for phase in nest.phases)
    return replace(
        nest, phases=tuple(with_hints(phase, plan.facts, plan.schedule) if has_blocks else phase
                           for phase in phases),
    )


def written_within(plan: KernelPlan, most: int) -> tuple[WrittenNest, ...] | MovesMore:
    """Return the nests of a kernel, or, as soon as it is known, that they move more bytes than a limit."""
    moved, nests = 0, list[WrittenNest]()
    for nest in plan.nests:
        exceeding = next((moved + least for least in nest.least if moved + least > most), None)
        if exceeding is not None:
            return MovesMore(exceeding)
        nests.append(write(style_plan(nest)))
        for phase in nests[-1].phases:
            moved += phase.nbytes
        if moved + nest.waiting > most:
            return MovesMore(moved + nest.waiting)
    return tuple(nests)


def kernel_of(plan: KernelPlan, nests: tuple[WrittenNest, ...]) -> Kernel:
    """Return a planned kernel with its nests as they are written."""
    request = plan.request
    assert request.scheduler is not None
    phases = tuple(phase for nest in nests for phase in nest.phases)
    ops = {expr.name: expr for expr in plan.exprs}
    return Kernel(
        name=request.function,
        target=request.target,
        scheduler=request.scheduler,
        inputs=plan.inputs,
        scalars=tuple(map(_parameter, plan.scalars)),
        outputs=plan.outputs,
        workspace=tuple(dict.fromkeys(b for phase in phases for b in phase.buffers if b.role is Role.WORKSPACE)),
        phases=phases,
        nests=plan.choices,
        ops=tuple((name, call_text(expr)) for name, expr in ops.items()),
    )


def _parameter(value: Scalar) -> Var:
    return Var(DataType.Int if value.dtype is DataType.Index else value.dtype, value.name)
