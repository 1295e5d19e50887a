"""The kernels of a compiled plan as boxes of a map."""

from collections.abc import Iterator, Sequence

from fuser_lab.compilers.record import KernelRecord, PlanRecord, bare
from fuser_lab.report.module_map import Inside, Link, ModuleBox


def kernel_map(title: str, plan: PlanRecord, successors: Sequence[frozenset[int]]) -> ModuleBox:
    """Return a plan as an open box with a box of each kernel; a kernel from elsewhere is one of the library's.

    ``successors`` are, for each kernel, the kernels that read what it writes.
    """
    boxes = tuple(_box(number, plan) for number in range(len(plan.kernels)))
    return ModuleBox(
        id="", kind="kernels", name=title, cls="", times=1, calls=tuple(range(len(plan.calls))), ops=(),
        regions=tuple(n for n, kernel in enumerate(plan.kernels) if not kernel.opaque),
        left=sum(kernel.opaque for kernel in plan.kernels), library="libraries", bytes_in=0, bytes_out=0,
        inside=Inside(boxes=boxes, links=tuple(_links(plan, successors))),
    )


def _box(number: int, plan: PlanRecord) -> ModuleBox:
    kernel = plan.kernels[number]
    return ModuleBox(
        id=f"kernel {number}", kind="torch" if kernel.opaque else "kernel",
        name=kernel.function if kernel.opaque else str(number), cls="", times=1,
        calls=tuple(range(1 if kernel.opaque else len(kernel.nodes))),
        ops=tuple(dict.fromkeys(bare(plan.calls[name].target) for name in kernel.nodes)), regions=(), left=0,
        library=f"kernel {number}", bytes_in=_bytes(plan, _read(plan, kernel) - set(kernel.writes)),
        bytes_out=_bytes(plan, set(kernel.writes)),
    )


def _links(plan: PlanRecord, successors: Sequence[frozenset[int]]) -> Iterator[Link]:
    for source, readers in enumerate(successors):
        for target in sorted(readers):
            passed = set(plan.kernels[source].writes) & _read(plan, plan.kernels[target])
            yield Link(
                source=source, target=target, tensors=len(passed), bytes=_bytes(plan, passed), back=target < source,
            )


def _read(plan: PlanRecord, kernel: KernelRecord) -> set[str]:
    return {base for name in kernel.reads for base in plan.bases(name)}


def _bytes(plan: PlanRecord, buffers: set[str]) -> int:
    return sum(plan.sizes.get(name, 0) for name in buffers)
