"""Sizes as arguments: which constants of Kernel IR become parameters of the compiled kernel.

A segment is lowered for the sizes of one run. This pass then replaces constants that only bound its outermost loops, or
distribute their iterations, by parameters; segments of other sizes that lower to the same loops give the same text and
share machine code. All other constants stay, because the compiler needs them: strides and divisors of index arithmetic,
trip counts of unrolled or vectorized loops, and sizes of register arrays. The choice cannot change a result, because
each parameter is passed the constant that it replaces.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import prod

from fuser_lab.codegen import kernel_ir as ir
from fuser_lab.codegen.index_math import is_index
from fuser_lab.cost.crossovers import crossover
from fuser_lab.dtypes import DataType
from fuser_lab.ir.term import Apply, Const, Term, Var, apply, index, variables_in
from fuser_lab.ir.transform import ParallelType
from fuser_lab.schedule.state import Style
from fuser_lab.targets import target_of

LEAST = 2  # index arithmetic with 0 and 1 is simpler, so these extents have separate kernels
FAR = crossover("sizes.far")
MOST_PARTS = crossover("sizes.parts")
SHORT = crossover("sizes.short")
_COMPARED = frozenset({"lt", "le", "gt", "ge"})
_SAME = frozenset({"eq", "ne"})
_LINEAR = frozenset({"add", "sub", "mul"})
_COUNTED = frozenset({DataType.Float, DataType.Double})  # dtypes of numbers of elements in arithmetic

Names = frozenset[str]


def with_sizes(kernel: ir.Kernel) -> ir.Kernel:
    """Return a kernel that takes the extents of its outermost loops as arguments, unless it is specialized."""
    used = names_in(kernel)
    counts = _counts(kernel)

    def sized(phase: ir.Phase) -> ir.Phase:
        if phase.schedule is not None and phase.schedule.specialized:
            return phase
        # Phases do not share parameters, because which of their constants are equal differs between sizes.
        return _writer(kernel, phase)(_Parameters(used), counts).phase(phase)

    return replace(kernel, phases=tuple(map(sized, kernel.phases)))


def names_in(kernel: ir.Kernel) -> set[str]:
    """Return all names that a kernel uses."""
    names = {b.name for b in (*kernel.inputs, *kernel.outputs, *kernel.workspace)} | {v.name for v in kernel.scalars}
    for phase in kernel.phases:
        names.update(size.name for size in phase.sizes)
        for statement in ir.walk(phase.body):
            if isinstance(statement, ir.Let | ir.Reduce):
                names.add(statement.name)
            elif isinstance(statement, ir.Loop):
                names.add(statement.var)
            elif isinstance(statement, ir.Alloc):
                names.add(statement.buffer.name)
    return names


def _writer(kernel: ir.Kernel, phase: ir.Phase) -> "type[_Sizes]":
    """Return what replaces the constants of a phase."""
    if phase.schedule is None:
        return _GuardSizes
    if target_of(kernel.target).has_blocks:
        return _GpuSizes
    columns = phase.schedule.style is Style.COLUMNS and phase.schedule.split == 1
    # Whether each iteration traverses all rows of some columns, so that only loops over rows have the outermost extent.
    return _ColumnSizes if columns and all(n.space.reduces_outermost for n in kernel.nests) else _CpuSizes


@dataclass(frozen=True, slots=True)
class _Counts:
    """The numbers of elements whose mean a kernel may compute over the outermost axis.

    ``reduced`` has those of the kernel's reductions, and these minus one, the divisors of unbiased variances. If
    another kernel has added them up, the number divides ``elements``, those of the largest output; 0 if this kernel has
    reductions itself.
    """

    reduced: frozenset[int]
    elements: int

    def is_divisor(self, value: float) -> bool:
        """Whether a division by a number may be that of a mean."""
        if value in self.reduced:
            return True
        # A division by a power of two is a product, which a division by an argument is not.
        whole = int(value) if self.elements and value >= FAR and float(value).is_integer() else 1
        return whole & (whole - 1) != 0 and self.elements % whole == 0


def _counts(kernel: ir.Kernel) -> _Counts:
    depths = {nest.space.depth for nest in kernel.nests if nest.space.reduces_outermost}
    reduced = frozenset(n for depth in depths for n in (depth, depth - 1) if n >= LEAST)
    reduces = any(nest.space.reduced for nest in kernel.nests)
    elements = 0 if reduces else max((output.size for output in kernel.outputs), default=0)
    return _Counts(reduced=reduced, elements=elements)


@dataclass(slots=True)
class _Parameters:
    """The parameters so far, by kind and value: equal constants of one kind share a parameter.

    Bounds of different indices do not share one, because sizes that happen to be equal would give a different kernel.
    """

    used: set[str]
    names: dict[tuple[str, Names, DataType, int], ir.Size] = field(default_factory=dict)

    def take(self, kind: str, dtype: DataType, value: int, of: Names = frozenset()) -> Term:
        key = kind, of, dtype, value
        if key not in self.names:
            name = next(n for n in map("n{}".format, range(len(self.used) + 1)) if n not in self.used)
            self.used.add(name)
            self.names[key] = ir.Size(name=name, dtype=dtype, value=value)
        return Var(dtype, self.names[key].name)


class _Sizes:
    """Replaces constants by parameters; a subclass per target selects them.

    ``moving`` contains the names of variables that depend on the outermost loop.
    """

    _chosen = False  # whether the statement or value runs only for some of the outermost indices

    def __init__(self, taken: _Parameters, counts: _Counts) -> None:
        self._taken, self._counts = taken, counts

    def phase(self, phase: ir.Phase) -> ir.Phase:
        """Return a phase with the parameters that it uses."""
        body = self.block(phase.body, frozenset(), outermost=True)
        sizes = {size.name: size for size in self._taken.names.values()}
        terms = (term for statement in ir.walk(body) for term in ir.every_term(statement))
        used = dict.fromkeys(term.name for term in terms if isinstance(term, Var) and term.name in sizes)
        return replace(phase, body=body, sizes=tuple(sizes[name] for name in used))

    def block(self, statements: ir.Block, moving: Names, *, outermost: bool) -> ir.Block:
        """Return statements with parameters."""
        result: list[ir.Statement] = []
        for statement in statements:
            match statement:
                case ir.Loop():
                    result.append(self.loop(statement, moving, outermost=outermost))
                case ir.Let(name=name, value=value):
                    moving = moving | {name} if self.moves(value, moving) else moving - {name}
                    result.append(replace(statement, value=self.value(value, moving)))
                case ir.If():
                    result.append(self.choice(statement, moving, outermost=outermost))
                case ir.Store(position=position, value=value):
                    result.append(replace(
                        statement, position=self.placed(self.position(position, statement.buffer), moving),
                        value=self.compared(value, moving),
                    ))
                case ir.VectorLoad(position=position, buffer=buffer) | ir.VectorStore(position=position, buffer=buffer):
                    result.append(replace(statement, position=self.placed(self.position(position, buffer), moving)))
                case _:
                    result.append(statement)
        return tuple(result)

    def moves(self, value: Term, moving: Names) -> bool:
        """Whether a value depends on the outermost loop."""
        return _mentions(value, moving)

    def loop(self, loop: ir.Loop, moving: Names, *, outermost: bool) -> ir.Loop:
        """Return a loop with parameters in its bounds and in its body."""
        raise NotImplementedError

    def value(self, value: Term, moving: Names) -> Term:
        """Return the value of a variable with parameters."""
        raise NotImplementedError

    def choice(self, statement: ir.If, moving: Names, *, outermost: bool) -> ir.If:
        """Return a conditional with parameters."""
        with self._among(statement.condition, moving, is_guard=not statement.otherwise):
            return replace(
                statement, condition=self.compared(statement.condition, moving),
                then=self.block(statement.then, moving, outermost=outermost),
                otherwise=self.block(statement.otherwise, moving, outermost=outermost),
            )

    @contextmanager
    def _among(self, condition: Term, moving: Names, *, is_guard: bool = False) -> Iterator[None]:
        """Within it, positions belong to the outermost indices that a condition selects.

        A guard that compares an index itself does not select: it bounds the iterations.
        """
        before = self._chosen
        self._chosen = before or any(
            isinstance(term, Apply) and term.fn in _COMPARED and _mentions(term.args[0], moving)
            and not (is_guard and isinstance(term.args[0], Var))
            for term in condition.walk()
        )
        yield
        self._chosen = before

    def placed(self, position: Term, moving: Names) -> Term:
        """Return a position in memory, with a parameter for the distance to the first of the selected indices."""
        match position:
            case Apply(dtype, "select", (condition, *sides)):
                with self._among(condition, moving):
                    sides = [self.placed(side, moving) for side in sides]
                return Apply(dtype, "select", (self.compared(condition, moving), *sides))
            case Apply(dtype, "add" | "sub" as fn, (a, b)) if self._is_apart(position, moving):
                return Apply(dtype, fn, (self.placed(a, moving), self._distance(b, moving)))
            case _:
                return self.compared(position, moving)

    def _is_apart(self, position: Term, moving: Names) -> bool:
        """Whether the offset of a position may depend on the outermost extent."""
        return self._chosen and _mentions(position, moving)

    def _distance(self, term: Term, moving: Names) -> Term:
        match term:
            case Const(DataType.Index, value) if abs(value.real) >= FAR:
                return self.steps(term)
            case _:
                return self.placed(term, moving)

    def position(self, position: Term, buffer: ir.Buffer) -> Term:
        """Return a position in memory with parameters."""
        return position

    def bound(self, term: Term, of: Names, least: int = LEAST) -> Term:
        """Return the end of a loop, or the bound of an index ``of`` some variables, as a parameter."""
        match term:
            case Const(DataType.Index as dtype, value) if (number := int(value.real)) >= least:
                return self._taken.take("bound", dtype, number, of)
            case Apply(dtype, "min", args):
                return Apply(dtype, "min", tuple(self.bound(arg, of, least) for arg in args))
            case Apply():
                return self.steps(term, least)
            case _:
                return term

    def steps(self, term: Term, least: int = LEAST) -> Term:
        """Return a linear term with parameters instead of its constants; other terms are unchanged."""
        match term:
            case Const(DataType.Index as dtype, value) if (number := int(value.real)) >= least:
                return self._taken.take("step", dtype, number)
            case Apply(dtype, fn, args) if fn in _LINEAR:
                return Apply(dtype, fn, tuple(self.steps(arg, least) for arg in args))
            case Apply(_, "min", _):
                return self.bound(term, variables_in([term]), least)
            case _:
                return term

    def compared(self, term: Term, moving: Names) -> Term:
        """Return a term with parameters for bounds of moving indices, and for divisors of means."""
        match term:
            case Apply(dtype, fn, (a, Const(DataType.Index, _) as limit)) if fn in _COMPARED | _SAME and is_index(a):
                return Apply(dtype, fn, (a, self.bound(limit, variables_in([a])))) if _mentions(a, moving) else term
            case Apply(dtype, "select", (condition, *sides)):
                with self._among(condition, moving):
                    chosen = tuple(self.compared(side, moving) for side in sides)
                return Apply(dtype, "select", (self.compared(condition, moving), *chosen))
            case Apply(dtype, "div" | "quotient" | "rounded_quotient" as fn, (a, Const(kind, value))) if (
                kind in _COUNTED and self._counts.is_divisor(value.real)
            ):
                count = self._taken.take("count", kind, int(value.real))
                return Apply(dtype, fn, (self.compared(a, moving), count))
            case Apply(dtype, fn, args):
                operands = tuple(self.compared(arg, moving) for arg in args)
                return term if operands == args else Apply(dtype, fn, operands)
            case ir.Load(dtype, buffer, position):
                return ir.Load(dtype, buffer, self.placed(position, moving))
            case Const(dtype, value) if dtype in _COUNTED and value.real in self._counts.reduced:
                return self._taken.take("count", dtype, int(value.real))
            case _:
                return term


class _CpuSizes(_Sizes):
    """Parameters of CPU kernels: bounds of outermost loops, and of enclosing loops that depend on them."""

    def loop(self, loop: ir.Loop, moving: Names, *, outermost: bool) -> ir.Loop:
        """Return a loop with parameters in its bounds; short innermost loops keep constants."""
        nested = any(isinstance(s, ir.Loop) for s in ir.walk(loop.body))
        moves = _mentions(loop.start, moving) or _mentions(loop.stop, moving)
        start, stop = loop.start, loop.stop
        if moves:
            least = LEAST if nested else SHORT + 1
            start, stop = self.steps(start, least), self.bound(stop, frozenset({loop.var}), least)
        elif outermost or (nested and self._counts.reduced and not _is_short(loop)):
            stop = self.bound(stop, frozenset({loop.var}))
        inner = moving | {loop.var} if outermost or moves or stop != loop.stop else moving
        return replace(loop, start=start, stop=stop, body=self.block(loop.body, inner, outermost=False))

    def value(self, value: Term, moving: Names) -> Term:
        """Return the value of a variable, with parameters in the index of a chunk's first element."""
        if value.dtype is DataType.Index and is_index(value):
            return self.steps(value) if _mentions(value, moving) else value
        return self.compared(value, moving)


class _ColumnSizes(_CpuSizes):
    """Parameters of CPU kernels that traverse columns: bounds of the loops over rows.

    Columns are the axes inside the outermost one, so their number and their distribution are constants of the kernel
    anyway, and LLVM optimizes loops over a known number of them.
    """

    def loop(self, loop: ir.Loop, moving: Names, *, outermost: bool) -> ir.Loop:
        """Return a loop, with parameters in its bounds unless it is over columns.

        A loop that begins at 0 is written such that it has an iteration. LLVM then computes the constants of functions
        before the loop. Otherwise it reloads them for each vector, which takes a tenth longer for a softmax.
        """
        if not any(isinstance(s, ir.Loop) for s in ir.walk(loop.body)):
            return replace(loop, body=self.block(loop.body, moving, outermost=False))
        result = super().loop(loop, moving, outermost=outermost)
        sized = isinstance(loop.stop, Const) and isinstance(result.stop, Var) and loop.start == index(0)
        return replace(result, stop=apply("max", result.stop, index(1))) if sized and not outermost else result

    def value(self, value: Term, moving: Names) -> Term:
        """Return the value of a variable; the index of a chunk's first column, or of a block of rows, has constants."""
        return value if value.dtype is DataType.Index and is_index(value) else self.compared(value, moving)


class _GpuSizes(_Sizes):
    """Parameters of CUDA kernels: bounds of indices that depend on the block, and the division of iterations."""

    _block = ""
    _distances: frozenset[int] = frozenset()  # distances between adjacent blocks that have several iterations each
    _rounds: Names = frozenset()  # variables of the loops over these iterations
    _rest = False  # whether all indices move: after all iterations, and in reductions of the outermost axis

    def phase(self, phase: ir.Phase) -> ir.Phase:
        """Return a phase with the parameters that it uses."""
        self._block = next((s.var for s in ir.walk(phase.body) if isinstance(s, ir.Loop) and _is_grid(s)), "")
        shared = (s for s in ir.walk(phase.body) if isinstance(s, ir.Loop) and self._is_divided(s))
        values = (s.value for loop in shared for s in loop.body if isinstance(s, ir.Let))
        self._distances = frozenset(n for value in values for n in _factors(value, self._block) if n >= LEAST)
        self._rest = bool(self._counts.reduced)
        return super().phase(phase)

    def loop(self, loop: ir.Loop, moving: Names, *, outermost: bool) -> ir.Loop:
        """Return a loop, with a parameter for its trip count if its iterations are divided among blocks."""
        rounds = self._rounds
        if self._is_divided(loop):
            self._rounds = rounds | {loop.var}
            stop = self.bound(loop.stop, frozenset({loop.var}), 1)
            result = replace(loop, stop=stop, body=self.block(loop.body, moving | {loop.var}, outermost=False))
        else:
            self._rounds = rounds - {loop.var}
            inner = moving | {loop.var} if _is_grid(loop) else moving - {loop.var}
            result = replace(loop, body=self.block(loop.body, inner, outermost=False))
        self._rounds = rounds
        return result

    def _is_divided(self, loop: ir.Loop) -> bool:
        """Whether the iterations of a loop are divided among blocks, or read data that blocks stored in a workspace."""
        if loop.parallel is not ParallelType.serial or not isinstance(loop.stop, Const):
            return False
        names, turns, parts, placed = {loop.var}, False, False, False
        for statement in ir.walk(loop.body):
            for buffer, position in ir.accesses_of(statement):
                if not names.isdisjoint(variables_in([position])):
                    if buffer.role in ir.OF_A_THREAD:
                        return False
                    parts |= buffer.role is ir.Role.WORKSPACE and not isinstance(statement, ir.Store | ir.VectorStore)
            if isinstance(statement, ir.Let) and _mentions(statement.value, names):
                names.add(statement.name)
                placed |= statement.value.dtype is DataType.Index
                turns |= statement in loop.body and _mentions(statement.value, {self._block})
        return turns or parts or (placed and bool(self._counts.reduced))

    def _is_apart(self, position: Term, moving: Names) -> bool:
        """Whether the offset of a position may depend on the outermost extent; if this is reduced, all may."""
        return self._rest or super()._is_apart(position, moving)

    def moves(self, value: Term, moving: Names) -> bool:
        """Whether a value depends on the outermost extent."""
        is_in_registers = any(isinstance(term, ir.Load) and term.buffer.role in ir.OF_A_THREAD for term in value.walk())
        return is_in_registers or (self._rest and value.dtype is DataType.Index) or super().moves(value, moving)

    def value(self, value: Term, moving: Names) -> Term:
        """Return the value of a variable, with parameters for the distance between the iterations of a thread."""
        if value.dtype is not DataType.Index or not is_index(value):
            return self.compared(value, moving)
        return self._place(value)

    def _place(self, term: Term) -> Term:
        match term:
            case Const():
                return self.steps(term) if self._rest else term
            case Apply(dtype, "max", (Apply(_, "sub", (Var(_, name) as a, first)), least)) if name == self._block:
                return Apply(dtype, "max", (a - self.bound(first, frozenset({name})), least))
            case Apply(dtype, "add" | "sub" as fn, args):
                return Apply(dtype, fn, tuple(map(self._place, args)))
            case Apply(dtype, "mul", (Var(_, name) as a, Const() as factor)):
                is_distance = name == self._block and (bool(self._rounds) or int(factor.value.real) in self._distances)
                return Apply(dtype, "mul", (a, self.steps(factor))) if is_distance or name in self._rounds else term
            case _:
                return term

    def choice(self, statement: ir.If, moving: Names, *, outermost: bool) -> ir.If:
        """Return a conditional with parameters."""
        match statement.condition:
            case Apply(dtype, "eq", (a, Const() as block)) if (names := variables_in([a])) & moving:
                condition = Apply(dtype, "eq", (a, self.bound(block, names, 0)))
                before, self._rest = self._rest, True
                then = self.block(statement.then, moving, outermost=outermost)
                self._rest = before
                otherwise = self.block(statement.otherwise, moving, outermost=outermost)
                return replace(statement, condition=condition, then=then, otherwise=otherwise)
            case _:
                return super().choice(statement, moving, outermost=outermost)

    def position(self, position: Term, buffer: ir.Buffer) -> Term:
        """Return a position in memory, with parameters for distances that grow with the outermost extent.

        These are the distances between the rows of adjacent blocks, and between the equal parts of a tensor that a
        thread processes together.
        """
        match position:
            case Apply(dtype, "add" | "sub" as fn, args):
                return Apply(dtype, fn, tuple(self.position(arg, buffer) for arg in args))
            case Apply(dtype, "mul", (Var(_, name) as number, Const(_, value) as factor)):
                apart = int(value.real)
                rows = name == self._block and any(apart % distance == 0 for distance in self._distances)
                parts = name != self._block and _has_parts(buffer, apart)
                return Apply(dtype, "mul", (number, self.steps(factor))) if rows or parts else position
            case _:
                return position


class _GuardSizes(_GpuSizes):
    """Parameters of kernels scheduled by hand: bounds of indices only, because trip counts are the user's factors."""

    def _is_divided(self, loop: ir.Loop) -> bool:
        """Return False: the rounds of all loops are constants."""
        return False

    def position(self, position: Term, buffer: ir.Buffer) -> Term:
        """Return a position in memory as it is."""
        return position


def _has_parts(buffer: ir.Buffer, apart: int) -> bool:
    """Whether a buffer outside the kernel has a few equal parts of a size."""
    few = apart >= FAR and LEAST <= buffer.size // apart <= MOST_PARTS
    return few and buffer.size % apart == 0 and not buffer.role.is_allocated


def _is_short(loop: ir.Loop) -> bool:
    """Whether a loop and its nested loops have few constant iterations in total, as over a window of an image."""
    loops = [loop, *(s for s in ir.walk(loop.body) if isinstance(s, ir.Loop))]
    stops = [inner.stop.value.real for inner in loops if isinstance(inner.stop, Const)]
    return len(stops) == len(loops) and prod(stops) <= SHORT


def _is_grid(loop: ir.Loop) -> bool:
    return loop.parallel is ParallelType.grid_x


def _factors(term: Term, name: str) -> Iterator[int]:
    """Yield the constants that a variable is multiplied by."""
    for part in term.walk():
        match part:
            case Apply(_, "mul", (Var(_, variable), Const(_, value))) if variable == name:
                yield int(value.real)


def _mentions(term: Term, names: Iterable[str]) -> bool:
    """Whether a term depends on some variables, except through a remainder, which an inner extent bounds."""
    match term:
        case Var(_, name):
            return name in names
        case Apply(_, "mod", _):
            return False
        case _:
            return any(_mentions(child, names) for child in term.children)
