"""One kernel for many sizes: numbers that differ between sizes of a segment become arguments of its kernel.

A segment is lowered for the sizes of one run. `fuser_lab.codegen.sizes` passes extents of outermost loops as arguments;
strides, divisors and inner extents stay constants, because most programs have few of them. A program with symbolic
sizes has many. `SharedKernels` compares the kernels that one segment lowers to at several sizes: if they have the same
statements, each number that differs becomes an argument, so that one compiled kernel serves all of them. An argument is
passed the number that it replaces, so the choice cannot change a result.

Quotients and remainders by arguments are computed before the loops in which they do not change.

A compiler moves a division by a constant out of a loop. It does not move a division by an argument, because the loop
may never run and the argument may be zero. The loop then divides once per element and is not vectorized.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeGuard

from fuser_lab.codegen import kernel_ir as ir
from fuser_lab.codegen.rewrites import variables_read
from fuser_lab.codegen.sizes import names_in, with_sizes
from fuser_lab.dtypes import DataType
from fuser_lab.ir.term import Apply, Const, Term, Var
from fuser_lab.process.forks import new_lock
from fuser_lab.targets import target_of

Names = frozenset[str]

_DIVISIONS = frozenset({"floordiv", "mod"})


def divisions_before_loops(body: ir.Block, divisors: Names, used: set[str]) -> ir.Block:
    """Return statements that divide by ``divisors``, which are not zero, outside of loops where that is possible.

    The names of the results are added to ``used``, the names that the kernel has.
    """
    return _Divisions(divisors, used).block(body, divisors)


class _Divisions:
    def __init__(self, divisors: Names, used: set[str]) -> None:
        self._divisors, self._used = divisors, used

    def block(self, body: ir.Block, computed: Names) -> ir.Block:
        """Return statements with the divisions before their loops; ``computed`` values are those before them."""
        result: list[ir.Statement] = []
        for statement in body:
            match statement:
                case ir.Loop():
                    fixed = self._movable_divisions(statement, computed)
                    variable_of: dict[Term, Var] = {term: Var(term.dtype, self._name()) for term in fixed}
                    result += [ir.Let(name=variable_of[term].name, value=_value(term, variable_of)) for term in fixed]
                    (loop,) = ir.rewrite_statements((statement,), variable_of.get) if variable_of else (statement,)
                    assert isinstance(loop, ir.Loop)
                    inner = computed | {loop.var} | {name.name for name in variable_of.values()}
                    result.append(replace(loop, body=self.block(loop.body, inner)))
                case ir.Let(name=name, update=False):
                    computed |= {name}
                    result.append(statement)
                case _:
                    result.append(ir.map_blocks(statement, partial(self.block, computed=computed)))
        return tuple(result)

    def _name(self) -> str:
        name = next(n for n in map("q{}".format, range(len(self._used) + 1)) if n not in self._used)
        self._used.add(name)
        return name

    def _movable_divisions(self, loop: ir.Loop, computed: Names) -> list[Apply]:
        """Return the divisions in a loop that only depend on known values, without those in others; quotients first."""
        inside = list(ir.walk((loop,)))
        changed = {s.var if isinstance(s, ir.Loop) else s.name for s in inside if isinstance(s, ir.Let | ir.Loop)}
        terms = (term for statement in inside for term in ir.terms_of(statement))
        divisions = dict.fromkeys(division for term in terms for division in self._divisions(term, computed - changed))
        return sorted(divisions, key=lambda term: term.fn == "mod")

    def _divisions(self, term: Term, computed: Names) -> Iterator[Apply]:
        if isinstance(term, Apply) and self._is_division(term) and all(_is_known(t, computed) for t in term.walk()):
            yield term
            return
        for child in term.children:
            yield from self._divisions(child, computed)

    def _is_division(self, term: Apply) -> bool:
        if term.fn not in _DIVISIONS:
            return False
        return any(t.name in self._divisors for t in term.args[1].walk() if isinstance(t, Var))


def _value(term: Apply, variable_of: Mapping[Term, Var]) -> Term:
    """Return a division, or a remainder as the difference from the quotient if that is known."""
    quotient = variable_of.get(Apply(term.dtype, "floordiv", term.args)) if term.fn == "mod" else None
    if quotient is None:
        return term
    value, divisor = term.args
    return Apply(term.dtype, "sub", (value, Apply(term.dtype, "mul", (quotient, divisor))))


def _is_known(term: Term, computed: Names) -> bool:
    return term.name in computed if isinstance(term, Var) else not isinstance(term, ir.Load)


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

    def kernel(self, kernel: ir.Kernel) -> ir.Kernel:
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


def _without_numbers(kernel: ir.Kernel) -> tuple[object, tuple[Number, ...], tuple[int, ...]]:
    """Return a kernel's statements without numbers as a key, its numbers, and the sizes of its scratch memory."""
    numbers: list[Number] = []
    scratch: list[int] = []

    def number(constant: Const) -> Term:
        numbers.append((constant.dtype, repr(constant.value)))
        return Const(constant.dtype, 0)

    def memory(buffer: ir.Buffer) -> ir.Buffer:
        return _roomy(buffer) if buffer.role.is_allocated else replace(buffer, size=0)

    parts = []
    for phase in kernel.phases:
        scratch += [s.buffer.size for s in ir.walk(phase.body) if isinstance(s, ir.Alloc)]
        names = tuple((b.name, b.dtype, b.alignment) for b in phase.buffers)
        extents = tuple((size.name, size.dtype) for size in phase.sizes)
        body = ir.rewrite_statements(phase.body, lambda term: number(term) if _may_be_argument(term) else None, memory)
        parts.append((phase.name, names, phase.scalars, extents, _without_notes(body)))
    return (kernel.name, *parts), tuple(numbers), tuple(scratch)


def _without_notes(body: tuple[ir.Statement, ...]) -> tuple[ir.Statement, ...]:
    """Return statements that are equal to those of other kernels with the same code."""
    return tuple(ir.map_blocks(replace(statement, origin=None, note=""), _without_notes) for statement in body)


def _with_arguments(kernel: ir.Kernel, labels: dict[int, int]) -> ir.Kernel:
    """Return a kernel with one argument per label instead of the numbers with that label."""
    used = names_in(kernel)
    sizes: dict[tuple[int, DataType], ir.Size] = {}
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
            value = constant.value.real if constant.dtype.is_float else int(constant.value.real)
            sizes[key] = ir.Size(name=name, dtype=constant.dtype, value=value)
        return Var(constant.dtype, sizes[key].name)

    phases = []
    for phase in kernel.phases:
        body = ir.rewrite_statements(phase.body, lambda term: number(term) if _may_be_argument(term) else None, _roomy)
        body = divisions_before_loops(body, frozenset(size.name for size in sizes.values()), used)
        read = variables_read(body)
        declared = (*phase.sizes, *sizes.values())
        phases.append(replace(phase, body=body, sizes=tuple(size for size in declared if size.name in read)))
    return replace(kernel, phases=tuple(phases))


def _may_be_argument(term: Term) -> TypeGuard[Const]:
    return isinstance(term, Const) and term.dtype in _PASSED and not isinstance(term.value, bool)


def _roomy(buffer: ir.Buffer) -> ir.Buffer:
    """Return scratch memory for more elements, so that rows of many lengths share a kernel."""
    if not buffer.role.is_allocated or buffer.role is ir.Role.SHARED:
        return buffer
    size = _LEAST_SCRATCH
    while size < buffer.size:
        size *= _NEXT_SCRATCH
    return replace(buffer, size=size)
