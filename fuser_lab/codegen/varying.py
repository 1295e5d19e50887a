"""One kernel for many sizes: numbers that differ between sizes of a segment become arguments of its kernel.

A segment is lowered for the sizes of one run. `fuser_lab.codegen.sizes` passes extents of outermost loops as arguments;
strides, divisors and inner extents stay constants, because most programs have few of them. A program with symbolic
sizes has many. `SharedKernels` compares the kernels that one segment lowers to at several sizes: if they have the same
statements, each number that differs becomes an argument, so that one compiled kernel serves all of them. An argument is
passed the number that it replaces, so the choice cannot change a result.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace

from fuser_lab.codegen.kernel_ir import (
    Alloc,
    Buffer,
    If,
    Kernel,
    Let,
    Load,
    Loop,
    Role,
    Send,
    Size,
    Statement,
    Store,
    Transpose,
    Uniforms,
    terms_of,
    walk,
)
from fuser_lab.codegen.sizes import names_in, with_sizes
from fuser_lab.dtypes import DataType
from fuser_lab.ir.term import Apply, Const, Term, Var
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
        known: dict[tuple[int, Number], int] = {}
        self.labels = [
            known.setdefault((label, number), len(known)) for label, number in zip(self.labels, numbers, strict=True)
        ]


class SharedKernels:
    """The kernels of one program with symbolic sizes; safe for any number of threads."""

    def __init__(self) -> None:
        self._forms: dict[object, _Form] = {}
        self._lock = threading.Lock()

    def kernel(self, kernel: Kernel) -> Kernel:
        """Return a kernel with arguments instead of the numbers that differ from those at other sizes.

        Kernels of targets that launch blocks of threads take only extents, because their launches depend on sizes.
        """
        if target_of(kernel.target).has_blocks:
            return with_sizes(kernel)
        key, numbers, scratch = _erased(kernel)
        with self._lock:
            form = self._forms.get(key)
            if form is None:
                form = self._forms[key] = _Form(numbers, scratch, [0] * len(numbers), set())
            form.add(numbers, scratch)
            if not form.varies:
                return with_sizes(kernel)
            labels = {place: form.labels[place] for place in form.varying}
        return _with_arguments(kernel, labels)


def _erased(kernel: Kernel) -> tuple[object, tuple[Number, ...], tuple[int, ...]]:
    """Return a kernel's statements without numbers as a key, its numbers, and the sizes of its scratch memory."""
    numbers: list[Number] = []
    scratch: list[int] = []

    def number(constant: Const) -> Term:
        numbers.append((constant.dtype, repr(constant.value)))
        return Const(constant.dtype, 0)

    def memory(buffer: Buffer) -> Buffer:
        return _roomy(buffer) if buffer.role.is_allocated else replace(buffer, size=0)

    rewriter = _Rewriter(number, memory, is_key=True)
    parts = []
    for phase in kernel.phases:
        scratch += [s.buffer.size for s in walk(phase.body) if isinstance(s, Alloc)]
        names = tuple((b.name, b.dtype, b.alignment) for b in phase.buffers)
        parts.append((phase.name, names, phase.scalars, rewriter.block(phase.body)))
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

    rewriter = _Rewriter(number, _roomy, is_key=False)
    phases = []
    for phase in kernel.phases:
        body = rewriter.block(phase.body)
        terms = (term for statement in walk(body) for root in terms_of(statement) for term in root.walk())
        read = {term.name for term in terms if isinstance(term, Var)}
        phases.append(replace(phase, body=body, sizes=tuple(size for size in sizes.values() if size.name in read)))
    return replace(kernel, phases=tuple(phases))


def _roomy(buffer: Buffer) -> Buffer:
    """Return scratch memory for more elements, so that rows of many lengths share a kernel."""
    if not buffer.role.is_allocated or buffer.role is Role.SHARED:
        return buffer
    size = _LEAST_SCRATCH
    while size < buffer.size:
        size *= _NEXT_SCRATCH
    return replace(buffer, size=size)


class _Rewriter:
    """Rewrites statements: numbers that may be arguments by ``number``, and buffers by ``memory``.

    Numbers have the same order for all kernels with the same statements. A key has no notes or origins.
    """

    def __init__(
        self, number: Callable[[Const], Term], memory: Callable[[Buffer], Buffer], *, is_key: bool,
    ) -> None:
        self._number, self._memory, self._is_key = number, memory, is_key

    def block(self, statements: tuple[Statement, ...]) -> tuple[Statement, ...]:
        """Return rewritten statements."""
        return tuple(map(self._statement, statements))

    def _statement(self, statement: Statement) -> Statement:
        if self._is_key:
            statement = replace(statement, origin=None, note="")
        match statement:
            case Let(value=value):
                return replace(statement, value=self._term(value))
            case Store(buffer=buffer, position=position, value=value):
                return replace(
                    statement, buffer=self._memory(buffer), position=self._term(position), value=self._term(value),
                )
            case Send(buffer=buffer, position=position, value=value, rank=rank):
                return replace(
                    statement, buffer=self._memory(buffer), position=self._term(position), value=self._term(value),
                    rank=self._term(rank),
                )
            case If(condition=condition, then=then, otherwise=otherwise):
                return replace(
                    statement, condition=self._term(condition), then=self.block(then), otherwise=self.block(otherwise),
                )
            case Loop(start=start, stop=stop, body=body):
                return replace(statement, start=self._term(start), stop=self._term(stop), body=self.block(body))
            case Alloc(buffer=buffer):
                return replace(statement, buffer=self._memory(buffer))
            case Transpose(source=source, target=target, start=start):
                return replace(
                    statement, source=self._memory(source), target=self._memory(target), start=self._term(start),
                )
            case Uniforms(numbers=numbers, slot=slot, position=position):
                return replace(
                    statement, numbers=self._memory(numbers), slot=self._term(slot), position=self._term(position),
                )
            case _:
                return statement

    def _term(self, term: Term) -> Term:
        match term:
            case Const(dtype, value) if dtype in _PASSED and not isinstance(value, bool):
                return self._number(term)
            case Apply(dtype, fn, args):
                return Apply(dtype, fn, tuple(map(self._term, args)))
            case Load(dtype, buffer, position):
                return Load(dtype, self._memory(buffer), self._term(position))
            case _:
                return term
