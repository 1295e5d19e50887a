"""Evaluation of Kernel IR with NumPy, all threads in lock step: the kernels of a GPU, without a GPU.

A value is an array with one entry per thread; threads that a condition excludes are masked. Barriers need no action,
because every statement is a step that all threads complete. The evaluation checks that no active thread accesses memory
outside a buffer, that none reads shared memory that another wrote since the last barrier, that no block of a cluster
sends data to a block that may not have started, and that everything that is awaited is sent exactly once. It also
counts how often each element of an output is written. Kernels are verified first (`fuser_lab.codegen.kernel_verifier`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fuser_lab.codegen.kernel_ir import (
    Alloc,
    Arrive,
    AtomicAdd,
    Await,
    Barrier,
    Buffer,
    If,
    Kernel,
    Let,
    Load,
    Loop,
    Missed,
    Phase,
    Reduce,
    Role,
    Scan,
    Scope,
    Send,
    Statement,
    Store,
    Transpose,
    Uniforms,
    VectorAdd,
    VectorLoad,
    VectorStore,
)
from fuser_lab.codegen.kernel_verifier import verify_kernel
from fuser_lab.cost.device import ACCESS_BYTES, WARP
from fuser_lab.dtypes import DataType, narrow
from fuser_lab.errors import CodegenError
from fuser_lab.ir.term import Apply, Const, Term, Var
from fuser_lab.ir.transform import ParallelType
from fuser_lab.ops import OPS
from fuser_lab.ops.random import philox
from fuser_lab.ops.rules import Array

_PER_RUN = 4  # numbers per run of the random generator
_SPREAD = {ParallelType.grid_x, ParallelType.block_x, ParallelType.block_y}


@dataclass(slots=True)
class Trace:
    """Record of a run: the number of writes per element of each output."""

    writes: dict[str, Array] = field(default_factory=dict)


def evaluate_kernel(
    kernel: Kernel, memory: Mapping[str, Any], threads: "Callable[[Phase, dict[str, Any], Trace], Lanes] | None" = None,
) -> Trace:
    """Run a kernel on flat arrays of stored elements and on numbers, by name; workspaces are allocated.

    ``threads`` makes the object that runs a phase, by default `Lanes`.

    Raises
    ------
    IndexError
        If a thread accesses memory outside a buffer, or makes a misaligned vector access.
    CodegenError
        If the kernel breaks a rule of Kernel IR.
    """
    verify_kernel(kernel)
    arrays = dict(memory)
    for buffer in kernel.workspace:
        arrays[buffer.name] = np.full(buffer.size, _poison(buffer.dtype), buffer.dtype.numpy)
    trace = Trace({b.name: np.zeros(b.size, np.int64) for b in kernel.outputs})
    for phase in kernel.phases:
        with np.errstate(all="ignore"):
            (threads or Lanes)(phase, arrays, trace).run()
    return trace


def _poison(dtype: DataType) -> Any:
    return np.nan if dtype.is_float or dtype.is_complex else 77


class Lanes:
    """The threads of one phase, in lock step; a subclass may observe them."""

    def __init__(self, phase: Phase, memory: dict[str, Any], trace: Trace) -> None:
        """Take a phase, its memory by name, and the record of the run."""
        self._phase, self._memory, self._trace = phase, memory, trace
        self._env: dict[str, Any] = {v.name: np.asarray([memory[v.name]]) for v in phase.scalars}
        self._env |= {size.name: np.asarray([size.value], size.dtype.compute.numpy) for size in phase.sizes}
        self._scratch: dict[str, Array] = {}
        self._mask = np.ones(1, bool)
        self._width = 1  # threads in x, which a warp or block reduction combines
        self._blocks = np.zeros(1, np.int64)  # the block of each thread
        self._epoch = 0  # barriers passed
        self._arrived = self._started = False  # whether blocks of a cluster announced their start, and waited
        self._found: set[str] = set()  # results reduced over all blocks of a cluster
        self._writers: dict[str, Array] = {}  # thread and epoch of the last write to each element of shared memory
        self._sent: dict[str, Array] = {}  # number of times that each of its elements was sent
        self._awaited: set[str] = set()
        self._constants: dict[int, tuple[Const, Array]] = {}  # by the id of the term, which is kept alive

    def run(self) -> None:
        """Run the phase."""
        self._block(self._phase.body)

    def _block(self, statements: tuple[Statement, ...]) -> None:
        for statement in statements:
            self._statement(statement)

    def _statement(self, statement: Statement) -> None:
        match statement:
            case Let(name=name, value=value):
                self._assign(name, self._eval(value), update=statement.update)
            case Store():
                self._store(statement)
            case AtomicAdd():
                self._add(statement)
            case Send():
                self._send(statement)
            case Await(buffer=buffer):
                self._await(buffer)
            case If(condition=condition, then=then, otherwise=otherwise):
                self._if(self._eval(condition), then, otherwise)
            case Loop():
                (self._spread if statement.parallel in _SPREAD else self._serial)(statement)
            case Alloc(buffer=buffer):
                dtype = buffer.dtype.compute.numpy
                owners = int(self._blocks[-1]) + 1 if buffer.role is Role.SHARED else len(self._mask)
                self._scratch[buffer.name] = np.full((owners, buffer.size), _poison(buffer.dtype), dtype)
                if buffer.role is Role.SHARED:
                    self._writers[buffer.name] = np.full((2, owners, buffer.size), -1)
                    self._sent[buffer.name] = np.zeros((owners, buffer.size), np.int64)
            case Reduce():
                self._reduce(statement)
            case Scan():
                self._scan(statement)
            case VectorLoad() | VectorStore():
                self._move(statement)
            case VectorAdd():
                self._check_aligned(statement)
                for k in range(statement.count):
                    element = Load(statement.words.dtype, statement.words, statement.slot + k)
                    self._add(AtomicAdd(
                        buffer=statement.buffer, position=statement.position + k, value=element,
                        condition=statement.condition))
            case Transpose():
                self._transpose(statement)
            case Uniforms():
                self._uniforms(statement)
            case Arrive():
                self._arrived = True
            case Missed():
                pass  # there is no host
            case Barrier():
                self._barrier(statement)
            case _:
                msg = f"{type(statement).__name__} cannot be evaluated."
                raise CodegenError(msg)

    def _assign(self, name: str, value: Array, *, update: bool) -> None:
        full = self._spread_out(value)
        old = self._env.get(name)
        if old is not None and np.shape(old) == self._mask.shape and not self._all_active():
            full = np.where(self._mask, full, old).astype(full.dtype)
        self._env[name] = full

    def _spread_out(self, value: Array) -> Array:
        """Return a value with one entry per thread."""
        shape = self._mask.shape
        if value.shape == shape:
            return value
        return value.repeat(shape[0]) if value.shape == (1,) else np.broadcast_to(value, shape)

    def _all_active(self) -> bool:
        return bool(np.count_nonzero(self._mask) == self._mask.size)

    def _if(self, condition: Array, then: tuple[Statement, ...], otherwise: tuple[Statement, ...]) -> None:
        outer = self._mask
        for holds, body in ((condition, then), (~np.asarray(condition, bool), otherwise)):
            self._mask = outer & np.asarray(holds, bool)
            if body and np.count_nonzero(self._mask):
                self._block(body)
        self._mask = outer

    def _spread(self, loop: Loop) -> None:
        """Run every iteration in a separate thread."""
        count = int(self._eval(loop.stop).flat[0])
        if self._width > 1:
            msg = f"{self._phase.name} has a loop over {loop.parallel.value} inside that over threadIdx.x."
            raise CodegenError(msg)
        env, mask, width, blocks = self._env, self._mask, self._width, self._blocks
        lanes = len(mask)
        self._env = {n: np.repeat(np.broadcast_to(v, mask.shape), count) for n, v in env.items()}
        self._env[loop.var] = np.tile(np.arange(count), lanes)
        self._mask = np.repeat(mask, count)
        self._blocks = np.repeat(blocks, count)
        if loop.parallel is ParallelType.block_x:
            self._width = count
        elif loop.parallel is ParallelType.grid_x:
            self._blocks = np.arange(len(self._mask))
        if count:
            self._block(loop.body)
        self._env, self._mask, self._width, self._blocks = env, mask, width, blocks

    def _serial(self, loop: Loop) -> None:
        start, stop = self._eval(loop.start), self._eval(loop.stop)
        if start.size == stop.size == 1:
            for step in range(int(start.item()), int(stop.item())):
                self._env[loop.var] = np.asarray([step])
                self._block(loop.body)
            return
        start, stop = self._spread_out(start), self._spread_out(stop)
        outer = self._mask
        rounds = int((stop - start)[outer].max(initial=0))
        for step in range(rounds):
            self._mask = outer & (start + step < stop)
            self._env[loop.var] = start + step
            self._block(loop.body)
        self._mask = outer

    def _barrier(self, barrier: Barrier) -> None:
        if barrier.scope is not Scope.CLUSTER:
            self._epoch += 1
            return
        if not self._arrived:
            msg = f"{self._phase.name} waits for blocks of a cluster that never announce that they have started."
            raise CodegenError(msg)
        self._started = True

    def _check_started(self, name: str) -> None:
        if not self._started:
            msg = (
                f"{self._phase.name} sends {name} to blocks of a cluster that may not have started: a barrier of the "
                "cluster is missing."
            )
            raise IndexError(msg)

    def _reduce(self, statement: Reduce) -> None:
        value = self._spread_out(self._eval(statement.value))
        identity = np.asarray(statement.identity).astype(value.dtype)
        width = min(self._width, WARP) if statement.scope is Scope.WARP else self._width
        if statement.scope is Scope.CLUSTER:
            width *= self._phase.launch.cluster
            self._check_started(statement.name)
            if statement.name in self._found:
                msg = f"{self._phase.name} reduces {statement.name} among the blocks of a cluster a second time."
                raise CodegenError(msg)
            self._found.add(statement.name)
        rows = np.where(self._mask, value, identity).reshape(-1, width)
        fold = _FUNCTIONS[statement.fn]
        total = rows[:, 0]
        for lane in range(1, width):
            total = fold(total, rows[:, lane])
        self._env[statement.name] = np.repeat(total, width).astype(value.dtype)

    def _scan(self, statement: Scan) -> None:
        fold, carry, count = _FUNCTIONS[statement.fn], statement.carry, statement.parts * statement.each
        width = 1 if statement.scope is Scope.THREAD else self._width
        elements = self._scratch[statement.buffer.name]
        split = elements[:, :count].reshape(-1, width, statement.parts, statement.each)
        order = split.transpose(0, 2, 1, 3).reshape(len(split), -1)  # parts, threads, elements of a run
        running = self._spread_out(self._env[carry.name]).reshape(-1, width)[:, 0]
        totals = np.empty_like(order)
        for place in range(order.shape[1]):
            running = fold(running, order[:, place].astype(running.dtype)).astype(running.dtype)
            totals[:, place] = running
        back = totals.reshape(len(split), statement.parts, width, statement.each).transpose(0, 2, 1, 3)
        elements[self._mask, :count] = back.reshape(-1, count)[self._mask]
        self._assign(carry.name, np.repeat(running, width), update=True)

    def _position(self, buffer: Buffer, position: Term, size: int) -> Array:
        index = self._spread_out(self._eval(position))
        outside = (index < 0) | (index >= size)
        if not np.count_nonzero(outside):
            return index
        wrong = self._mask & outside
        if wrong.any():
            msg = f"{self._phase.name} accesses {buffer.name}[{index[wrong][0]}], which has {size} elements."
            raise IndexError(msg)
        return np.where(self._mask, index, 0)

    def _load(self, load: Load) -> Array:
        buffer = load.buffer
        if buffer.role.is_allocated:
            index = self._position(buffer, load.position, buffer.size)
            self._check_waited(buffer, index)
            return np.asarray(self._scratch[buffer.name][self._owners(buffer), index])
        stored = self._memory[buffer.name]
        index = self._position(buffer, load.position, len(stored))
        if not len(stored):
            return np.zeros(self._mask.shape, buffer.dtype.compute.numpy)
        elements = stored[index]
        if buffer.dtype.is_reduced_float:
            # Inputs and outputs hold words, workspaces numbers.
            numbers = elements.view(buffer.dtype.numpy) if elements.dtype.kind == "u" else elements
            return np.asarray(numbers.astype(np.float32))
        return np.asarray(elements.astype(buffer.dtype.compute.numpy, copy=False))

    def _store(self, statement: Store) -> None:
        buffer, mask = statement.buffer, self._mask
        value = self._spread_out(self._eval(statement.value))
        if buffer.role.is_allocated:
            index = self._position(buffer, statement.position, buffer.size)
            stored = value if buffer.role is Role.SCRATCH else narrow(value, buffer.dtype)
            where = self._owners(buffer)[mask], index[mask]
            self._scratch[buffer.name][where] = stored[mask]
            if buffer.role is Role.SHARED:
                self._writers[buffer.name][0][where] = np.arange(len(mask))[mask]
                self._writers[buffer.name][1][where] = self._epoch
            return
        stored = self._memory[buffer.name]
        index = self._position(buffer, statement.position, len(stored))[mask]
        if buffer.dtype.is_reduced_float and stored.dtype.kind == "u":
            stored[index] = narrow(value[mask], buffer.dtype).view(stored.dtype)
        else:
            stored[index] = value[mask]
        if buffer.name in self._trace.writes:
            np.add.at(self._trace.writes[buffer.name], index, 1)

    def _add(self, statement: AtomicAdd) -> None:
        """Add one after another; other threads see a sum in shared memory after a barrier."""
        buffer, outer = statement.buffer, self._mask
        mask = self._mask = outer & self._spread_out(self._eval(statement.condition))
        stored = self._scratch[buffer.name][0] if buffer.role is Role.SHARED else self._memory[buffer.name]
        index = self._position(buffer, statement.position, len(stored))[mask]
        self._mask = outer
        value = self._spread_out(self._eval(statement.value))[mask]
        if buffer.role is Role.SHARED:
            where = self._owners(buffer)[mask], index
            writer, when = self._writers[buffer.name][:, *where]
            if ((when == self._epoch) & (writer >= 0) & (writer != np.flatnonzero(mask))).any():
                msg = f"{self._phase.name} adds to {buffer.name} without a barrier after its write."
                raise IndexError(msg)
            np.add.at(self._scratch[buffer.name], where, value)
            self._writers[buffer.name][:, *where] = np.asarray([[-1], [self._epoch]])
            return
        np.add.at(stored, index, value)

    def _send(self, statement: Send) -> None:
        buffer, mask, cluster = statement.buffer, self._mask, self._phase.launch.cluster
        self._check_started(buffer.name)
        rank = self._spread_out(self._eval(statement.rank))
        if ((rank < 0) | (rank >= cluster))[mask].any():
            msg = f"{self._phase.name} sends {buffer.name} to block {rank[mask].max()} of a cluster of {cluster}."
            raise IndexError(msg)
        value = narrow(self._spread_out(self._eval(statement.value)), buffer.dtype)
        index = self._position(buffer, statement.position, buffer.size)
        where = (self._blocks // cluster * cluster + rank)[mask], index[mask]
        self._scratch[buffer.name][where] = value[mask]
        np.add.at(self._sent[buffer.name], where, 1)

    def _await(self, buffer: Buffer) -> None:
        wrong = self._sent[buffer.name] != 1
        if wrong.any():
            times = self._sent[buffer.name][wrong][0]
            msg = f"{self._phase.name} waits for {buffer.name}, but an element of it is sent {times} times."
            raise CodegenError(msg)
        self._awaited.add(buffer.name)

    def _check_waited(self, buffer: Buffer, index: Array) -> None:
        """Raise unless a barrier separates a write to shared memory from reads by other threads."""
        if buffer.role is not Role.SHARED:
            return
        writer, when = self._writers[buffer.name][:, self._owners(buffer), index]
        early = self._mask & (when == self._epoch) & (writer != np.arange(len(self._mask)))
        if buffer.name not in self._awaited:
            early |= self._mask & (self._sent[buffer.name][self._owners(buffer), index] > 0)
        if early.any():
            msg = f"{self._phase.name} reads {buffer.name}[{index[early][0]}] without a barrier after its write."
            raise IndexError(msg)

    def _owners(self, buffer: Buffer) -> Array:
        """Return the part of an allocated buffer that each thread accesses."""
        return self._blocks if buffer.role is Role.SHARED else np.arange(len(self._mask))

    def _move(self, move: VectorLoad | VectorStore) -> None:
        self._check_aligned(move)
        ends = (move.buffer, move.position), (move.words, move.slot)
        (source, start), (target, place) = ends if isinstance(move, VectorLoad) else ends[::-1]
        for k in range(move.count):
            self._store(Store(buffer=target, position=place + k, value=Load(source.dtype, source, start + k)))

    def _transpose(self, move: Transpose) -> None:
        active = np.flatnonzero(self._mask)[:, None]
        read, written = self._transposed_elements(move)
        self._scratch[move.target.name][active, written[active[:, 0]]] = self._scratch[move.source.name][active, read]

    def _transposed_elements(self, move: Transpose) -> tuple[Array, Array]:
        """Return the elements that a transposition reads and those that it writes, one row per thread."""
        row, column = np.indices((move.rows, move.columns)).reshape(2, -1)
        start = self._spread_out(self._eval(move.start))[:, None]
        return row * move.pitches[0] + column, start + column * move.pitches[1] + row

    def _uniforms(self, draw: Uniforms) -> None:
        if (self._spread_out(self._eval(draw.position))[self._mask] % _PER_RUN).any():
            msg = f"{self._phase.name} draws {draw.count} numbers from the middle of a run of the generator."
            raise IndexError(msg)
        for k in range(draw.count):
            value = Apply(draw.numbers.dtype, "philox_uniform", (draw.seed, draw.offset, draw.position + k))
            self._store(Store(buffer=draw.numbers, position=draw.slot + k, value=value))

    def _check_aligned(self, access: VectorLoad | VectorStore | VectorAdd) -> None:
        nbytes = access.width * access.buffer.dtype.itemsize
        start = self._spread_out(self._eval(access.position))
        within = start % access.width
        if isinstance(access, VectorLoad) and access.shifted:
            beyond = start - within + access.width * (1 + (within > 0)) > access.buffer.size
            wrong, parts = self._mask & beyond, access.count == access.width and nbytes == ACCESS_BYTES
        else:
            wrong = self._mask & (within != 0)
            parts = access.count % access.width == 0 and nbytes <= ACCESS_BYTES
        if wrong.any() or access.buffer.alignment % nbytes or not parts:
            msg = (
                f"{self._phase.name} makes accesses of {nbytes} bytes to {access.buffer.name}, which is aligned to "
                f"{access.buffer.alignment} bytes, at {start[wrong][:1]}."
            )
            raise IndexError(msg)

    # Terms

    def _eval(self, term: Term) -> Array:
        match term:
            case Var():
                value: Array = self._env[term.name]
                return value
            case Load():
                return self._load(term)
            case Const():
                return self._constant(term)
            case Apply(fn="select"):
                condition, a, b = term.args
                return self._select(self._eval(condition), a, b)
            case Apply(fn="cast"):
                return _convert(self._eval(term.args[0]), term.dtype)
            case Apply(fn="bitcast"):
                stored = narrow(self._eval(term.args[0]), term.args[0].dtype)
                return stored.view(term.dtype.numpy).astype(term.dtype.compute.numpy)
            case Apply():
                result = np.asarray(_FUNCTIONS[term.fn](*[self._eval(arg) for arg in term.args]))
                return result.astype(term.dtype.compute.numpy, copy=False)
            case _:
                msg = f"{type(term).__name__} cannot be evaluated."
                raise CodegenError(msg)

    def _constant(self, term: Const) -> Array:
        entry = self._constants.get(id(term))
        if entry is None:
            dtype = term.dtype
            number = narrow(np.asarray([term.value]).astype(dtype.compute.numpy), dtype).astype(dtype.compute.numpy)
            number.flags.writeable = False
            entry = self._constants[id(term)] = (term, number)
        return entry[1]

    def _select(self, condition: Array, a: Term, b: Term) -> Array:
        """Evaluate each branch only for the threads that take it."""
        outer = self._mask
        chosen = self._spread_out(condition)
        sides = []
        for holds, side in ((chosen, a), (~chosen, b)):
            self._mask = outer & holds
            sides.append(self._spread_out(self._eval(side)))
        self._mask = outer
        return np.where(chosen, *sides).astype(sides[0].dtype)


def _convert(value: Array, dtype: DataType) -> Array:
    if np.iscomplexobj(value) and not dtype.is_complex and dtype is not DataType.Bool:
        value = value.real
    return narrow(value, dtype).astype(dtype.compute.numpy)


def _not(x: Array) -> Array:
    return np.logical_not(x) if x.dtype == np.bool_ else np.invert(x)


def _uniform(seed: Array, offset: Array, position: Array) -> Array:
    seed, offset, position = np.broadcast_arrays(seed, offset, position)
    words = philox(int(seed.flat[0]), int(offset.flat[0]), position // 4)
    bits = words[np.arange(len(position)), position % 4]
    return np.asarray((bits >> np.uint32(8)) * 2.0**-24)


def _rounding(function: Callable[[Array], Array]) -> Callable[[Array], Array]:
    return lambda x: function(x) if x.dtype.kind == "f" else x


_NAMES: dict[str, Callable[..., Any]] = {
    "acos": np.arccos, "acosh": np.arccosh, "asin": np.arcsin, "asinh": np.arcsinh, "atan": np.arctan,
    "atan2": np.arctan2, "atanh": np.arctanh, "cos": np.cos, "cosh": np.cosh, "exp": np.exp, "exp2": np.exp2,
    "expm1": np.expm1, "imag": np.imag, "log": np.log, "log10": np.log10, "log2": np.log2,
    "logaddexp": np.logaddexp, "sin": np.sin, "sinh": np.sinh, "sqrt": np.sqrt, "tan": np.tan, "tanh": np.tanh,
    "add": np.add, "mul": np.multiply, "abs": np.abs, "real": np.real, "max": OPS["maximum"].reference,
    "min": OPS["minimum"].reference, "fmax": np.fmax, "fmin": np.fmin,
    "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor, "shl": np.left_shift, "shr": np.right_shift,
    "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal, "eq": np.equal,
    "ne": np.not_equal, "isnan": np.isnan, "isinf": np.isinf, "isfinite": np.isfinite,
    "nextafter": np.nextafter, "signbit": np.signbit, "gcd": np.gcd,
}
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    **_NAMES,
    **{
        name: OPS[name].reference
        for name in (
            "complex", "div", "erf", "erfc", "erfcinv", "erfinv", "fmod", "lgamma", "log1p", "neg", "pow", "remainder",
            "sub",
        )
    },
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "quotient": OPS["div"].reference,
    "rounded_quotient": OPS["div"].reference,
    "rounded_sqrt": np.sqrt, "library_exp": np.exp, "library_tanh": np.tanh,
    "not": _not,
    "floordiv": np.floor_divide,
    "floor": _rounding(np.floor), "ceil": _rounding(np.ceil), "round": _rounding(np.rint),
    "trunc": _rounding(np.trunc),
    "mod": lambda a, b: np.remainder(a, b) if a.dtype == np.int64 and np.all(b > 0) and np.all(a >= 0)
    else OPS["mod"].reference(a, b),
    "philox_uniform": _uniform,
    "one_plus_tanh": lambda x: 1 + np.tanh(x),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "cos_turns": lambda x: np.cos(2 * np.pi * x),
}
