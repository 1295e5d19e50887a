"""Lowering of a fusion scheduled by hand to Kernel IR: the loops, predicates, buffers and barriers of its schedule.

Loops over blocks and threads are bound to their indices. Inside them, each tensor is computed by its own loops
(`scheduled_statements`). Values are in variables and arrays (`scheduled_memory`).

Variables that are read outside of the loop or branch that sets them get initial values.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import prod

from fuser_lab.codegen import kernel_ir as ir
from fuser_lab.codegen.kernel_passes import with_passes
from fuser_lab.codegen.scheduled_elements import BLOCKS, NUMBERS, THREADS, Elements
from fuser_lab.codegen.scheduled_loops import Loops, index_of
from fuser_lab.codegen.scheduled_memory import Memory
from fuser_lab.codegen.scheduled_statements import StatementWriter
from fuser_lab.codegen.sizes import with_sizes
from fuser_lab.codegen.values import call_text
from fuser_lab.cost.device import BLOCK_THREADS, MOST_BLOCKS, STATIC_SHARED
from fuser_lab.cost.verdict import SchedulerType
from fuser_lab.dtypes import DataType
from fuser_lab.errors import CodegenError, ScheduleError, UnsupportedError
from fuser_lab.ir import Fusion, OpKind, Scalar
from fuser_lab.ir.kernel_transforms import OF_SCHEDULERS, is_template
from fuser_lab.ir.term import Const, Term, Var, apply, index, variables_in
from fuser_lab.ir.transform import ParallelType, Rules, ScheduledFusion
from fuser_lab.ir.transform_arguments import int_of
from fuser_lab.ops import OPS
from fuser_lab.targets import target_of, with_blocks

Sizes = Mapping[ParallelType, int]


def lower_scheduled(
    scheduled: ScheduledFusion, rules: Rules, target: str, name: str,
    strides: Mapping[str, Sequence[int] | ir.Layout] | None = None, alignments: Mapping[str, int] | None = None,
    outputs: Mapping[str, str] | None = None,
) -> ir.Kernel:
    """Return the Kernel IR of a scheduled fusion.

    Parameters
    ----------
    scheduled
        A scheduled fusion with known extents.
    rules
        The rules with which the schedule was replayed.
    target
        Name of a target with blocks.
    name
        Name of the kernel's function; if it is empty, made from the first output.
    strides
        Strides in elements of inputs that are not dense in their allocation order, or their layouts.
    alignments
        Alignment in bytes of the addresses of inputs and outputs, if it is less than 16.
    outputs
        Names of the kernel's outputs, by the names of tensors, if they differ.

    Raises
    ------
    ScheduleError
        If the schedule cannot be lowered; the message names the tensors and loops.
    UnsupportedError
        If an op has no rule for one element, or several results.
    CodegenError
        If the target has no blocks.
    """
    if not target_of(target).has_blocks:
        raise CodegenError(
            f"loops over blocks and threads have no kernel for {target!r}: they run on GPUs, and the CPU evaluates "
            f"that kernel in lock step; see source({with_blocks().name!r})."
        )
    fusion, resident = scheduled.fusion, _launch_bounds(scheduled)
    _check_ops(fusion)
    loops = Loops(scheduled, rules)
    _check_hardware(loops.hardware)
    elements = _elements(loops, strides or {}, alignments or {}, outputs or {})
    function = name or f"by_hand_{fusion.outputs[0].name}"
    computed = tuple(tv for tv in dict.fromkeys(fusion.outputs) if tv not in fusion.inputs)
    reduces = any(expr.kind is OpKind.REDUCTION for expr in fusion.exprs)
    kernel = ir.Kernel(
        name=function,
        target=target,
        scheduler=SchedulerType.REDUCTION if reduces else SchedulerType.POINTWISE,
        inputs=tuple(elements.buffers[tv.name] for tv in fusion.tensor_inputs),
        scalars=tuple(_parameter(v) for v in fusion.inputs if isinstance(v, Scalar)),
        outputs=tuple(elements.buffers[tv.name] for tv in computed),
        workspace=(),
        # A kernel that has nothing to write has no phase.
        phases=(_phase(elements, function, target, resident),) if any(tv.numel for tv in computed) else (),
        ops=tuple((expr.name, call_text(expr)) for expr in fusion.exprs),
    )
    return kernel if _is_specialized(scheduled) else with_sizes(kernel)


def _launch_bounds(scheduled: ScheduledFusion) -> int:
    """Return the blocks per multiprocessor for which registers are limited; raise for unsupported transforms."""
    resident = 0
    for transform in scheduled.transforms:
        if transform.kind == "launch_bounds":
            resident = int_of(transform, "blocks")
        elif is_template(transform):
            msg = f"{transform} is a template for a plan's segment and cannot be combined with other loops."
            raise ScheduleError(msg)
        elif transform.kind in OF_SCHEDULERS:
            msg = f"{transform} applies only to loops that the scheduler of a plan's segment writes; remove it."
            raise ScheduleError(msg)
    return resident


def _check_ops(fusion: Fusion) -> None:
    """Raise for an op that has several results, no rule for one element, or an axis that cannot be reduced."""
    for expr in fusion.tensor_exprs:
        op = OPS[expr.op.name]
        is_supported = op.scalar is not None or op.element is not None or op.combine is not None
        if not is_supported or len(expr.tensor_outputs) > 1:
            raise UnsupportedError(
                f"{op.name} ({expr.name}) cannot be scheduled by hand: it has several results, or no "
                "rule for one element."
            )
        for tensor in expr.tensor_outputs:
            for axis in tensor.domain.logical:
                if axis.is_reduction and axis.expanded is not None:
                    msg = f"{tensor.name} reduces the expanded axis {axis}, which cannot be scheduled by hand."
                    raise UnsupportedError(msg)
                if axis.is_reduction and axis.extent == 0:
                    msg = f"{tensor.name} reduces {axis}, which has no elements, so it cannot be scheduled."
                    raise ScheduleError(msg)


def _check_hardware(sizes: Sizes) -> None:
    """Raise if a launch has too many blocks, or blocks have too many threads."""
    threads = prod(sizes.get(kind, 1) for kind in THREADS)
    if threads > BLOCK_THREADS:
        parts = " x ".join(str(sizes.get(kind, 1)) for kind in THREADS)
        msg = f"the schedule needs {parts} = {threads} threads per block; at most {BLOCK_THREADS} are allowed."
        raise ScheduleError(msg)
    blocks = prod(sizes.get(kind, 1) for kind in BLOCKS)
    if blocks > MOST_BLOCKS:
        raise ScheduleError(f"the schedule needs {blocks} blocks; at most {MOST_BLOCKS} are allowed.")


def _elements(
    loops: Loops, strides: Mapping[str, Sequence[int] | ir.Layout], alignments: Mapping[str, int],
    outputs: Mapping[str, str],
) -> Elements:
    """Return the memory of a fusion's tensors, before any loop is opened."""
    fusion = loops.scheduled.fusion
    outside = [*fusion.tensor_inputs, *dict.fromkeys(fusion.outputs)]
    layouts = {tv.name: ir.layout_of(tv, strides.get(tv.name)) for tv in outside}
    buffers = {
        tv.name: ir.Buffer(
            name=outputs.get(tv.name, tv.name), dtype=tv.dtype, size=layouts[tv.name].size,
            role=ir.Role.INPUT if tv in fusion.inputs else ir.Role.OUTPUT, alignment=alignments.get(tv.name, 16),
        )
        for tv in outside
    }
    ranges = {NUMBERS[kind]: (0, size - 1) for kind, size in loops.hardware.items()}
    return Elements(
        loops=loops, memory=Memory(loops, ranges), layouts=layouts, buffers=buffers, ranges=ranges, terms={},
    )


def _is_specialized(scheduled: ScheduledFusion) -> bool:
    """Whether the schedule asks for all sizes as constants."""
    said = [transform.arg("sizes") for transform in scheduled.transforms if transform.kind == "specialize"]
    return bool(said and said[-1])


def _phase(elements: Elements, name: str, target: str, resident: int) -> ir.Phase:
    body, sizes = StatementWriter(elements).body(), elements.loops.hardware
    arrays = elements.memory.arrays.values()
    shared = [b for b in arrays if b.role is ir.Role.SHARED]
    nbytes = sum(b.nbytes for b in shared)
    if nbytes > STATIC_SHARED:
        parts = ", ".join(f"{b.name} {b.nbytes}" for b in shared)
        msg = f"the schedule needs {nbytes} bytes of shared memory per block ({parts}); at most {STATIC_SHARED} fit."
        raise ScheduleError(msg)
    body = with_initial_values(with_passes(body, target))
    local = tuple(ir.Alloc(buffer=b) for b in arrays if b.role is not ir.Role.SHARED)
    body = _bound((*local, *body), tuple(ir.Alloc(buffer=b) for b in shared), sizes)
    used, scalars = ir.arguments_of(body)
    x, y, z = (sizes.get(kind, 1) for kind in THREADS)
    return ir.Phase(
        name=name, buffers=tuple(b for b in elements.buffers.values() if b in used), scalars=scalars, body=body,
        launch=ir.Launch(blocks=prod(sizes.get(kind, 1) for kind in BLOCKS), threads=(x, y * z), resident=resident),
    )


def _bound(body: tuple[ir.Statement, ...], shared: tuple[ir.Statement, ...], sizes: Sizes) -> tuple[ir.Statement, ...]:
    """Return a body inside its blocks and threads; the directions of a grid are one dimension of the launch."""
    x, y, z = (sizes.get(kind, 1) for kind in THREADS)
    lets, rows = _unfold("row", (ParallelType.block_y, ParallelType.block_z), sizes)
    body = (*lets, *body)
    # Threads that are adjacent in x are adjacent lanes.
    if x > 1:
        body = (ir.Loop(var="tidx", start=index(0), stop=index(x), parallel=ParallelType.block_x, body=body),)
    if y * z > 1:
        body = (ir.Loop(var=rows, start=index(0), stop=index(y * z), parallel=ParallelType.block_y, body=body),)
    lets, block = _unfold("block", BLOCKS, sizes)
    body = (*lets, *shared, *body)
    count = prod(sizes.get(kind, 1) for kind in BLOCKS)
    return (ir.Loop(var=block, start=index(0), stop=index(count), parallel=ParallelType.grid_x, body=body),)


def _unfold(name: str, kinds: Sequence[ParallelType], sizes: Sizes) -> tuple[tuple[ir.Statement, ...], str]:
    """Return the index in each direction from one index over all of them, and the name of that index."""
    used = [kind for kind in kinds if sizes.get(kind, 1) > 1]
    if len(used) < 2:
        return (), NUMBERS[used[0] if used else kinds[0]]
    whole: Term = index_of(name)
    lets = []
    for kind in used:
        part = whole if kind is used[-1] else apply("mod", whole, sizes[kind])
        lets.append(ir.Let(name=NUMBERS[kind], value=part))
        whole = apply("floordiv", whole, sizes[kind])
    return tuple(lets), name


def _parameter(value: Scalar) -> Var:
    return Var(DataType.Int if value.dtype is DataType.Index else value.dtype, value.name)


def with_initial_values(body: tuple[ir.Statement, ...]) -> tuple[ir.Statement, ...]:
    """Return statements in which such variables are zero at the beginning, and updated where they are set."""
    begun = _initial_values(body)
    return (*begun, *_updating(body, frozenset(let.name for let in begun)))


def _initial_values(body: tuple[ir.Statement, ...]) -> tuple[ir.Let, ...]:
    """Return initial values of the variables that are read outside of the loop or branch that sets them."""
    outside = set(_read_outside(body, frozenset()))
    dtypes: dict[str, DataType] = {}
    for statement in ir.walk(body):
        if isinstance(statement, ir.Let) and statement.name in outside:
            dtypes.setdefault(statement.name, statement.value.dtype)
    return tuple(ir.Let(name=name, value=Const(dtype, 0)) for name, dtype in dtypes.items())


def _read_outside(statements: Sequence[ir.Statement], visible: frozenset[str]) -> Iterator[str]:
    """Yield the names that statements read where no block around them has set them before."""
    for statement in statements:
        yield from variables_in(ir.terms_of(statement)) - visible
        match statement:
            case ir.Let(name=name, update=update):
                if update and name not in visible:
                    yield name
                visible |= {name}
            case ir.Loop(body=inner):
                yield from _read_outside(inner, visible)
            case ir.If(then=then, otherwise=otherwise):
                yield from _read_outside(then, visible)
                yield from _read_outside(otherwise, visible)


def _updating(body: tuple[ir.Statement, ...], begun: frozenset[str]) -> tuple[ir.Statement, ...]:
    """Return a body that updates the variables that have an initial value."""
    def updating(statement: ir.Statement) -> ir.Statement:
        if isinstance(statement, ir.Let) and statement.name in begun:
            return replace(statement, update=True)
        return ir.map_blocks(statement, partial(_updating, begun=begun))

    return tuple(map(updating, body))
