"""One kernel for many sizes: numbers that differ between sizes of a segment become arguments of its kernel.

A segment is lowered for the sizes of one run. `fuser_lab.codegen.sizes` passes extents of outermost loops as arguments;
strides, divisors and inner extents stay constants, because most programs have few of them. A program with symbolic
sizes has many. `SharedKernels` compares the kernels that one segment lowers to at several sizes: if they have the same
statements, each number that differs becomes an argument, so that one compiled kernel serves all of them. An argument is
passed the number that it replaces, so the choice cannot change a result.
"""

from dataclasses import dataclass, replace
from typing import TypeGuard

from fuser_lab.codegen.divisions import divisions_before_loops
from fuser_lab.codegen.kernel_ir import Alloc, Buffer, Kernel, Role, Size, terms_of, walk
from fuser_lab.codegen.rewriter import Rewriter
from fuser_lab.codegen.sizes import names_in, with_sizes
from fuser_lab.dtypes import DataType
from fuser_lab.ir.term import Const, Term, Var
from fuser_lab.process.forks import new_lock
from fuser_lab.targets import target_of

_PASSED = frozenset({DataType.Index, DataType.Int, DataType.Float, DataType.Double})
_LEAST_SCRATCH, _NEXT_SCRATCH = 256, 16  # elements, and the growth factor of the next larger size

Number = tuple[DataType, str]  # as text, because 0.0 equals -0.0 and NaN differs from itself


@dataclass(slots=True)
class _Form:
    """Kernels with the same statements: their first numbers, the positions that differ, and those always equal."""

    first: tuple[Number, ...]
    scratch: tuple[int, ...]
    labels: list[int]
    varying: set[int]
    varies: bool = False

    def add(self, numbers: tuple[Number, ...], scratch: tuple[int, ...]) -> None:
        """Add another kernel."""
        self.varying.update(n for n, (a, b) in enumerate(zip(self.first, numbers, strict=True)) if a != b)
        self.varies = self.varies or bool(self.varying) or scratch != self.scratch
        joint: dict[tuple[int, Number], int] = {}
        self.labels = [
            joint.setdefault((label, number), len(joint)) for label, number in zip(self.labels, numbers, strict=True)
        ]


class SharedKernels:
    """The kernels of one program with symbolic sizes; safe for any number of threads.

    Parameters
    ----------
    keeps_first
        Whether the first of the kernels with the same statements keeps its numbers, also for its sizes later on.
        Otherwise its sizes are like others as soon as there are others.
    """

    def __init__(self, *, keeps_first: bool = False) -> None:
        self._keeps_first = keeps_first
        self._forms: dict[object, _Form] = {}
        self._lock = new_lock()

    def kernel(self, kernel: Kernel) -> Kernel:
        """Return a kernel with arguments instead of the numbers that differ from those at other sizes.

        Kernels of targets that launch blocks of threads take only extents, because their launches depend on sizes.
        """
        sized = with_sizes(kernel)
        if target_of(kernel.target).has_blocks or any(p.schedule and p.schedule.specialized for p in kernel.phases):
            return sized
        key, numbers, scratch = _without_numbers(sized)
        with self._lock:
            form = self._forms.get(key)
            if form is None:
                form = self._forms[key] = _Form(numbers, scratch, [0] * len(numbers), set())
            form.add(numbers, scratch)
            is_first = self._keeps_first and numbers == form.first and scratch == form.scratch
            if is_first or not form.varies:
                return sized
            labels = {place: form.labels[place] for place in form.varying}
        return _with_arguments(sized, labels)


def _without_numbers(kernel: Kernel) -> tuple[object, tuple[Number, ...], tuple[int, ...]]:
    """Return a kernel's statements without numbers as a key, its numbers, and the sizes of its scratch memory."""
    numbers: list[Number] = []
    scratch: list[int] = []

    def number(constant: Const) -> Term:
        numbers.append((constant.dtype, repr(constant.value)))
        return Const(constant.dtype, 0)

    def memory(buffer: Buffer) -> Buffer:
        return _roomy(buffer) if buffer.role.is_allocated else replace(buffer, size=0)

    rewriter = Rewriter(lambda term: number(term) if _may_be_argument(term) else None, memory, is_key=True)
    parts = []
    for phase in kernel.phases:
        scratch += [s.buffer.size for s in walk(phase.body) if isinstance(s, Alloc)]
        names = tuple((b.name, b.dtype, b.alignment) for b in phase.buffers)
        extents = tuple((size.name, size.dtype) for size in phase.sizes)
        parts.append((phase.name, names, phase.scalars, extents, rewriter.block(phase.body)))
    return (kernel.name, *parts), tuple(numbers), tuple(scratch)


def _with_arguments(kernel: Kernel, labels: dict[int, int]) -> Kernel:
    """Return a kernel with one argument per label instead of the numbers with that label."""
    used = names_in(kernel)
    sizes: dict[tuple[int, DataType], Size] = {}
    place = -1

    def number(constant: Const) -> Term:
        nonlocal place
        place += 1
        if place not in labels:
            return constant
        key = labels[place], constant.dtype
        if key not in sizes:
            name = next(n for n in map("n{}".format, range(len(used) + 1)) if n not in used)
            used.add(name)
            value = constant.value.real
            sizes[key] = Size(name=name, dtype=constant.dtype, value=value if constant.dtype.is_float else int(value))
        return Var(constant.dtype, sizes[key].name)

    rewriter = Rewriter(lambda term: number(term) if _may_be_argument(term) else None, _roomy)
    phases = []
    for phase in kernel.phases:
        body = rewriter.block(phase.body)
        body = divisions_before_loops(body, frozenset(size.name for size in sizes.values()), used)
        terms = (term for statement in walk(body) for root in terms_of(statement) for term in root.walk())
        read = {term.name for term in terms if isinstance(term, Var)}
        declared = (*phase.sizes, *sizes.values())
        phases.append(replace(phase, body=body, sizes=tuple(size for size in declared if size.name in read)))
    return replace(kernel, phases=tuple(phases))


def _may_be_argument(term: Term) -> TypeGuard[Const]:
    return isinstance(term, Const) and term.dtype in _PASSED and not isinstance(term.value, bool)


def _roomy(buffer: Buffer) -> Buffer:
    """Return scratch memory for more elements, so that rows of many lengths share a kernel."""
    if not buffer.role.is_allocated or buffer.role is Role.SHARED:
        return buffer
    size = _LEAST_SCRATCH
    while size < buffer.size:
        size *= _NEXT_SCRATCH
    return replace(buffer, size=size)
