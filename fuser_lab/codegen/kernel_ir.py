"""Kernel IR: a generated kernel as frozen data, which one printer per target prints as source.

A kernel is a tuple of phases that run one after another; each phase is one launch on a GPU and one function on the CPU.
Every statement has an ``origin``, the name of the expression it comes from, so that a source line can be traced to an
op and back. Invariants: each store is predicated or in range for every index of its loops; a ``Barrier`` and a block
``Reduce`` or ``Scan`` are in uniform control flow; a name is assigned once, except for accumulators.

A `Layout` gives the positions of a tensor's elements in its buffer.
"""

import enum
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from fuser_lab.cost.device import ACCESS_BYTES, STATIC_BUFFER
from fuser_lab.cost.verdict import SchedulerType
from fuser_lab.dtypes import DataType
from fuser_lab.ir import TensorView
from fuser_lab.ir.scalar import Number
from fuser_lab.ir.term import Apply, Const, Term, Var, index
from fuser_lab.ir.transform import ParallelType
from fuser_lab.schedule.parameters import NestChoice
from fuser_lab.schedule.state import Evict, LoopSchedule

ALIGNED = ACCESS_BYTES  # default alignment of memory in bytes
TRANSPOSED = 8  # rows and columns of the blocks that a `Transpose` moves through registers
LARGEST_STATIC = STATIC_BUFFER  # bytes of a statically sized buffer in shared memory


class Role(enum.Enum):
    """The kind of memory of a buffer."""

    INPUT = "input"
    OUTPUT = "output"
    UPDATED = "updated"  # an input whose elements are replaced by those of a result
    WORKSPACE = "workspace"  # allocated by the caller; lives across phases
    SCRATCH = "scratch"  # allocated by the kernel, one per thread or per parallel iteration
    WORDS = "words"  # like SCRATCH, with elements in their storage type, as vector accesses move them
    SHARED = "shared"  # one per block of a GPU, with elements in their storage type

    __hash__ = object.__hash__  # as in DataType, because buffers are hashed very often

    @property
    def is_allocated(self) -> bool:
        """Whether the kernel allocates such a buffer, so that it is not a parameter."""
        return self in {Role.SCRATCH, Role.WORDS, Role.SHARED}


OF_A_THREAD = frozenset({Role.SCRATCH, Role.WORDS})  # memory with elements that other threads do not see


class Scope(enum.Enum):
    """The threads that take part in a reduction or a scan."""

    THREAD = "thread"
    WARP = "warp"
    BLOCK = "block"
    CLUSTER = "cluster"  # of blocks that can access each other's shared memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffer:
    """A run of ``size`` elements; Half and BFloat16 are stored as 16-bit words.

    ``alignment`` is the alignment in bytes of the address of the first element.
    """

    name: str
    dtype: DataType
    size: int
    role: Role
    alignment: int = ALIGNED

    @property
    def nbytes(self) -> int:
        """Number of bytes of its elements."""
        return self.size * self.dtype.itemsize

    @property
    def is_dynamic(self) -> bool:
        """Whether the launch sets the size of the shared memory; all such buffers begin at the same address."""
        return self.role is Role.SHARED and self.nbytes > LARGEST_STATIC


@dataclass(frozen=True, slots=True)
class Load(Term):
    """The element of ``buffer`` at ``position``, as a value of the compute type."""

    buffer: Buffer
    position: Term

    @property
    def children(self) -> tuple[Term, ...]:
        """The position."""
        return (self.position,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """Base of statements; ``note`` is printed as a comment above the first statement of an expression."""

    origin: str | None = None
    note: str = ""


Block = tuple[Statement, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Let(Statement):
    """``name = value``; ``update`` marks a new value of an accumulator."""

    name: str
    value: Term
    update: bool = False

    @property
    def var(self) -> Var:
        """The name as a term."""
        return Var(self.value.dtype, self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Store(Statement):
    """``buffer[position] = value``."""

    buffer: Buffer
    position: Term
    value: Term


@dataclass(frozen=True, slots=True, kw_only=True)
class AtomicAdd(Statement):
    """``buffer[position] += value`` as one step if a condition holds, so other threads may add there too.

    The buffer is in global or shared memory, and its elements have 4 or 8 bytes. The order of additions differs between
    runs, and so do the last bits of sums of floats. There is no branch, behind which the compiler could move loads.
    """

    buffer: Buffer
    position: Term
    value: Term
    condition: Term


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorLoad(Statement):
    """``words[slot + k] = buffer[position + k]`` for k in 0..count-1, ``width`` elements per memory access.

    ``position`` and the buffer's alignment are multiples of an access, at most 16 bytes; ``words`` has Role.WORDS and
    the buffer's dtype. ``evict`` is a hint to the L2 cache. A ``shifted`` load has a single access that may begin
    anywhere: it is combined from the one or two aligned accesses that hold it.
    """

    buffer: Buffer
    position: Term
    words: Buffer
    slot: Term
    count: int
    width: int
    evict: Evict = Evict.NORMAL
    shifted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorStore(Statement):
    """``buffer[position + k] = words[slot + k]`` for k in 0..count-1, under the conditions of `VectorLoad`."""

    buffer: Buffer
    position: Term
    words: Buffer
    slot: Term
    count: int
    width: int


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorAdd(Statement):
    """``buffer[position + k] += words[slot + k]`` for k in 0..count-1 if a condition holds, as an `AtomicAdd` does.

    One instruction of compute capability 9.0 adds 2 or 4 floats in global memory: both buffers have elements of Float,
    and ``position`` and the buffer's alignment are multiples of the access.
    """

    buffer: Buffer
    position: Term
    words: Buffer
    slot: Term
    count: int
    condition: Term

    @property
    def width(self) -> int:
        """The number of elements of an access."""
        return self.count


@dataclass(frozen=True, slots=True, kw_only=True)
class Transpose(Statement):
    """``target[start + column * pitches[1] + row] = source[row * pitches[0] + column]`` for all rows and columns.

    Both are SCRATCH buffers. ``rows`` and ``columns`` are multiples of `TRANSPOSED`; elements that were never stored
    are moved as well.
    """

    source: Buffer
    target: Buffer
    start: Term
    rows: int
    columns: int
    pitches: tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Uniforms(Statement):
    """``numbers[slot + k] = philox_uniform(seed, offset, position + k)`` for k in 0..count-1.

    ``position`` and ``count`` are multiples of 4: one run of the generator gives four numbers.
    """

    numbers: Buffer
    slot: Term
    seed: Term
    offset: Term
    position: Term
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class If(Statement):
    """``then`` if the condition holds, else ``otherwise``."""

    condition: Term
    then: tuple[Statement, ...]
    otherwise: tuple[Statement, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop(Statement):
    """``for var in range(start, stop)``; block and thread loops start at 0 and have a constant stop.

    In a VECTORIZE loop (constant, innermost), contiguous accesses are combined before and after it; in an UNROLL loop
    (constant), the loads of all iterations precede the first: see `vectorize`. A ``called`` loop, which assigns no name
    from outside of it, is printed as a function that the kernel calls.
    """

    var: str
    start: Term
    stop: Term
    parallel: ParallelType
    body: tuple[Statement, ...]
    called: bool = False

    @property
    def rounds(self) -> int | None:
        """The number of iterations if it is a constant, otherwise None."""
        if isinstance(self.start, Const) and isinstance(self.stop, Const):
            return int(self.stop.value.real - self.start.value.real)
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Alloc(Statement):
    """Memory for a buffer that the kernel allocates."""

    buffer: Buffer


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduce(Statement):
    """``name`` = ``fn`` over ``value`` of all threads of a scope; each of them gets the result.

    In a cluster, each warp sends its result to all blocks, and each block waits only for these results, so it does not
    order other writes to shared memory. A barrier of the cluster precedes it, and it must not be in a loop.
    """

    name: str
    fn: str
    value: Term
    identity: Number
    scope: Scope


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan(Statement):
    """Replace the elements of ``buffer`` by running values that begin with ``carry``, which becomes the last of them.

    Each thread of the scope has ``parts`` runs of ``each`` adjacent elements in its SCRATCH buffer. They are ordered by
    part, then by thread in x, then by element of a run: the threads process a part together. ``carry`` is a variable of
    each thread, with equal values in a scope; it may be wider than the elements.
    """

    buffer: Buffer
    parts: int
    each: int
    carry: Var
    fn: str
    identity: Number
    scope: Scope


@dataclass(frozen=True, slots=True, kw_only=True)
class Barrier(Statement):
    """Make all threads of a block wait for each other, or until all blocks of a CLUSTER have executed `Arrive`."""

    scope: Scope = Scope.BLOCK


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrive(Statement):
    """Signal to the other blocks of a cluster that this block has started, before any data is sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Send(Statement):
    """``buffer[position] = value`` in the shared memory of the block of the cluster with number ``rank``.

    A barrier of the cluster precedes it. Each element of a block's buffer is sent once, and read after `Await`.
    """

    buffer: Buffer
    position: Term
    value: Term
    rank: Term


@dataclass(frozen=True, slots=True, kw_only=True)
class Await(Statement):
    """Make each thread wait until all elements of a buffer in its block's shared memory have been sent."""

    buffer: Buffer


@dataclass(frozen=True, slots=True, kw_only=True)
class Missed(Statement):
    """Tell the host that a position was outside of its axis, by a number that is not 0 in the word ``status``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Blocks and threads (x, y) of a phase on a GPU; all ones on the CPU.

    ``shared`` is the number of bytes of shared memory for buffers with ``is_dynamic``, ``resident`` the number of
    blocks per multiprocessor for which registers are limited, 0 for one. ``cluster`` adjacent blocks run concurrently
    and can access each other's shared memory; ``blocks`` is a multiple of it.
    """

    blocks: int = 1
    threads: tuple[int, int] = (1, 1)
    shared: int = 0
    resident: int = 0
    cluster: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """A number that a kernel takes as an argument: an Index, an Int, or a float such as the divisor of a mean.

    ``value`` is its value for the sizes that the kernel was lowered for.
    """

    name: str
    dtype: DataType
    value: int | float

    @property
    def word(self) -> int | float:
        """The value as an argument of its dtype."""
        return float(self.value) if self.dtype.is_float else self.value


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """One launch: a function of a subset of the kernel's parameters, which are buffers, scalars, then sizes.

    ``prepares`` says that it computes what the next launch begins with from what that reads anyway.
    """

    name: str
    buffers: tuple[Buffer, ...]
    scalars: tuple[Var, ...]
    body: tuple[Statement, ...]
    launch: Launch = field(default_factory=Launch)
    schedule: LoopSchedule | None = None
    sizes: tuple[Size, ...] = ()
    prepares: bool = False

    @property
    def nbytes(self) -> int:
        """Number of bytes of global memory that it reads and writes, counting each buffer once."""
        return sum(buffer.nbytes for buffer in self.buffers if not buffer.role.is_allocated)

    @property
    def has_status(self) -> bool:
        """Whether its last parameter is the address of the word that `Missed` sets."""
        return any(isinstance(statement, Missed) for statement in walk(self.body))


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """The kernel of one segment."""

    name: str
    target: str
    scheduler: SchedulerType
    inputs: tuple[Buffer, ...]
    scalars: tuple[Var, ...]
    outputs: tuple[Buffer, ...]
    workspace: tuple[Buffer, ...]
    phases: tuple[Phase, ...]
    ops: tuple[tuple[str, str], ...]  # (expression name, text), in the fusion's order
    nests: tuple[NestChoice, ...] = ()  # the choices of loops, with reasons


def walk(statements: tuple[Statement, ...]) -> Iterator[Statement]:
    """Yield every statement, outer ones first."""
    waiting = list(statements[::-1])
    while waiting:
        statement = waiting.pop()
        yield statement
        if isinstance(statement, Loop):
            waiting += statement.body[::-1]
        elif isinstance(statement, If):
            waiting += (*statement.otherwise[::-1], *statement.then[::-1])


def map_blocks(
    statement: Statement, rewrite: Callable[[tuple[Statement, ...]], tuple[Statement, ...]],
) -> Statement:
    """Return a statement whose nested blocks are rewritten; one without nested blocks is the same."""
    match statement:
        case Loop(body=body):
            return replace(statement, body=rewrite(body))
        case If(then=then, otherwise=otherwise):
            return replace(statement, then=rewrite(then), otherwise=rewrite(otherwise))
        case _:
            return statement


TERMS: Mapping[type[Statement], tuple[str, ...]] = {
    Let: ("value",), Store: ("position", "value"), AtomicAdd: ("position", "value", "condition"),
    Send: ("position", "value", "rank"),
    VectorLoad: ("position", "slot"), VectorStore: ("position", "slot"), VectorAdd: ("position", "slot", "condition"),
    Uniforms: ("seed", "offset", "position", "slot"), Transpose: ("start",), If: ("condition",),
    Loop: ("start", "stop"), Reduce: ("value",), Scan: ("carry",),
}
"""The fields of each kind of statement that hold terms; statements of other kinds have none."""

BUFFERS: Mapping[type[Statement], tuple[str, ...]] = {
    Store: ("buffer",), AtomicAdd: ("buffer",), Send: ("buffer",), Await: ("buffer",), Alloc: ("buffer",),
    Scan: ("buffer",),
    VectorLoad: ("buffer", "words"), VectorStore: ("buffer", "words"), VectorAdd: ("buffer", "words"),
    Uniforms: ("numbers",),
    Transpose: ("source", "target"),
}
"""The fields of each kind of statement that hold buffers, besides the buffers that its terms read."""


def terms_of(statement: Statement) -> tuple[Term, ...]:
    """Return the terms of a statement, without nested statements."""
    return tuple([getattr(statement, name) for name in TERMS.get(type(statement), ())])


def every_term(statement: Statement) -> Iterator[Term]:
    """Yield the terms of a statement and the terms inside them, without those of nested statements."""
    for root in terms_of(statement):
        yield from root.walk()


def map_terms(statement: Statement, rewrite: Callable[[Term], Term]) -> Statement:
    """Return a statement whose terms are rewritten, without those of nested statements.

    The carry of a `Scan`, which it assigns, has to remain a variable.
    """
    return _with_fields(statement, {name: rewrite(getattr(statement, name)) for name in TERMS.get(type(statement), ())})


def map_buffers(statement: Statement, rewrite: Callable[[Buffer], Buffer]) -> Statement:
    """Return a statement with other buffers, without those that its terms read."""
    names = BUFFERS.get(type(statement), ())
    return _with_fields(statement, {name: rewrite(getattr(statement, name)) for name in names})


def _with_fields(statement: Statement, values: Mapping[str, Term | Buffer]) -> Statement:
    """Return a statement with other values of some fields; the same object if there are none."""
    return replace(statement, **values) if values else statement  # type: ignore[arg-type] # fields by name


def replace_terms(
    term: Term, replaced: Callable[[Term], Term | None], memory: Callable[[Buffer], Buffer] = lambda buffer: buffer,
) -> Term:
    """Return a term of which some parts are replaced: those for which ``replaced`` returns a term, outermost first.

    ``memory`` returns what replaces a buffer that is read.
    """
    if (replacement := replaced(term)) is not None:
        return replacement
    match term:
        case Apply(dtype, fn, args):
            return Apply(dtype, fn, tuple(replace_terms(arg, replaced, memory) for arg in args))
        case Load(dtype, buffer, position):
            return Load(dtype, memory(buffer), replace_terms(position, replaced, memory))
        case _:
            return term


def rewrite_statements(
    statements: tuple[Statement, ...], replaced: Callable[[Term], Term | None],
    memory: Callable[[Buffer], Buffer] = lambda buffer: buffer,
) -> tuple[Statement, ...]:
    """Return statements with other terms and buffers, nested ones included.

    Terms are seen in the same order for all kernels with the same statements.
    """
    def rewrite(term: Term) -> Term:
        return replace_terms(term, replaced, memory)

    def block(inner: tuple[Statement, ...]) -> tuple[Statement, ...]:
        return rewrite_statements(inner, replaced, memory)

    return tuple(map_blocks(map_buffers(map_terms(s, rewrite), memory), block) for s in statements)


def accesses_of(statement: Statement) -> Iterator[tuple[Buffer, Term]]:
    """Yield the buffers that a statement reads and writes, with the positions, without nested statements."""
    match statement:
        case Store() | Send() | AtomicAdd():
            yield statement.buffer, statement.position
        case VectorLoad() | VectorStore() | VectorAdd():
            yield from ((statement.buffer, statement.position), (statement.words, statement.slot))
        case Uniforms(numbers=numbers, slot=slot):
            yield numbers, slot
        case Scan(buffer=buffer):
            yield buffer, index(0)
    yield from ((term.buffer, term.position) for term in every_term(statement) if isinstance(term, Load))


def arguments_of(body: tuple[Statement, ...]) -> tuple[tuple[Buffer, ...], tuple[Var, ...]]:
    """Return the buffers that statements read and write, and the variables that they read and do not define."""
    buffers: dict[Buffer, None] = {}
    scalars: dict[Var, None] = {}
    defined = {s.name for s in walk(body) if isinstance(s, Let | Reduce)}
    for statement in walk(body):
        if isinstance(statement, Store | AtomicAdd | VectorLoad | VectorStore | VectorAdd):
            buffers[statement.buffer] = None
        for term in every_term(statement):
            if isinstance(term, Load):
                buffers[term.buffer] = None
            elif isinstance(term, Var) and term.dtype is not DataType.Index and term.name not in defined:
                scalars[term] = None
    return tuple(buffers), tuple(scalars)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Element ``index`` is at position ``offset + sum(index * strides)`` of a buffer of ``size`` elements."""

    strides: tuple[int, ...]
    offset: int
    size: int

    def position(self, index: Sequence[Term]) -> Term:
        """Return the position of an element as an index term."""
        total: Term = Const(DataType.Index, self.offset)
        for i, stride in zip(index, self.strides, strict=True):
            total = total + i * stride
        return total


def dense_strides(tensor: TensorView) -> tuple[int, ...]:
    """Return the strides, in elements, of a tensor that is dense in its allocation order; 0 for expanded axes."""
    sizes = tensor.stored_shape
    strides = [0] * len(sizes)
    step = 1
    for axis in reversed(tensor.domain.allocation_order):
        expanded = tensor.domain.axes[axis].expanded is not None
        strides[axis] = 0 if expanded else step
        step *= max(sizes[axis], 1)
    return tuple(strides)


def layout_of(tensor: TensorView, strides: Sequence[int] | Layout | None = None) -> Layout:
    """Return the layout for given strides in elements, by default dense in the tensor's allocation order.

    Axes of size 1 get stride 0, because their index is always 0. A given layout, such as that of a view in the buffer
    of another tensor, is returned unchanged.
    """
    if isinstance(strides, Layout):
        return strides
    shape = tensor.shape
    distances = dense_strides(tensor) if strides is None else tuple(strides)
    used = tuple(0 if n <= 1 else s for n, s in zip(shape, distances, strict=True))
    if 0 in shape:
        return Layout(strides=used, offset=0, size=0)
    low = sum((n - 1) * s for n, s in zip(shape, used, strict=True) if s < 0)
    high = sum((n - 1) * s for n, s in zip(shape, used, strict=True) if s > 0)
    return Layout(strides=used, offset=-low, size=high - low + 1)
