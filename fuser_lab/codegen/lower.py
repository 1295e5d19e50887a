"""The lowering: a segment and the loops chosen for it become Kernel IR, for every target."""

from collections.abc import Mapping, Sequence

from fuser_lab.codegen.cpu_loops import CpuNest
from fuser_lab.codegen.decompose import decompose
from fuser_lab.codegen.gpu_loops import GpuNest
from fuser_lab.codegen.kernel_ir import Buffer, Kernel, Phase, Role
from fuser_lab.codegen.layout import layout_of
from fuser_lab.codegen.nests import nests_of
from fuser_lab.codegen.values import call_text
from fuser_lab.cost.verdict import SchedulerType
from fuser_lab.dtypes import DataType
from fuser_lab.ir import Fusion, Scalar
from fuser_lab.ir.term import Var


def lower(
    fusion: Fusion, scheduler: SchedulerType, target: str, name: str, strides: Mapping[str, Sequence[int]],
) -> Kernel:
    """Return the Kernel IR of a segment; each loop nest is one phase, or two where reductions are cut into parts.

    Parameters
    ----------
    fusion
        A segment with known extents.
    scheduler
        Who accepted it.
    target
        ``"cpu"`` or ``"cuda"``.
    name
        Name of the kernel's functions.
    strides
        Strides in elements of inputs that are not dense in their allocation order.

    Raises
    ------
    CodegenError
        If the segment has a form that no nest of loops computes.
    """
    recorded = {expr.name: expr for expr in fusion.exprs}
    fusion = decompose(fusion)
    inputs = fusion.tensor_inputs
    computed = tuple(tv for tv in dict.fromkeys(fusion.outputs) if tv not in inputs)
    layouts = {tv: layout_of(tv, strides.get(tv.name)) for tv in inputs}
    layouts.update((tv, layout_of(tv)) for tv in computed)
    buffers = {
        tv.name: Buffer(
            name=tv.name, dtype=tv.dtype, size=layout.size, role=Role.INPUT if tv in inputs else Role.OUTPUT,
        )
        for tv, layout in layouts.items()
    }
    segment = Fusion(inputs=fusion.inputs, exprs=fusion.exprs, outputs=computed)
    writer = GpuNest if target == "cuda" else CpuNest
    phases: list[Phase] = []
    for number, nest in enumerate(nests_of(segment, buffers, layouts)):
        base = name if number == 0 else f"{name}_{number}"
        phases.extend(writer(segment, nest, buffers, layouts, target, base).phases())
    workspace = dict.fromkeys(b for phase in phases for b in phase.buffers if b.role is Role.WORKSPACE)
    return Kernel(
        name=name,
        target=target,
        scheduler=scheduler,
        inputs=tuple(buffers[tv.name] for tv in inputs),
        scalars=tuple(_parameter(v) for v in fusion.inputs if isinstance(v, Scalar)),
        outputs=tuple(buffers[tv.name] for tv in computed),
        workspace=tuple(workspace),
        phases=tuple(phases),
        ops=tuple((name, call_text(expr)) for name, expr in ({e.name: e for e in fusion.exprs} | recorded).items()),
    )


def _parameter(value: Scalar) -> Var:
    return Var(DataType.Int if value.dtype is DataType.Index else value.dtype, value.name)
