"""The CUDA printer: plain Python functions over pointers, in the subset that Numba's GPU compilers accept.

The source imports a compiler, but printing it does not, so kernels can be read without a GPU or a compiler.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import takewhile

from fuser_lab.codegen.cuda_reductions import threads_of
from fuser_lab.codegen.cuda_scans import scan_lines
from fuser_lab.codegen.emitter import (
    ATOM,
    BITS,
    COMPLEX_FUNCTIONS,
    CONVERSIONS,
    REDUCED,
    TRUNCATIONS,
    TYPE_NAMES,
    Emitter,
    storage_name,
    used_names,
)
from fuser_lab.codegen.index_math import Range, linear, range_of, remainder_form, substitute
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
    Phase,
    Reduce,
    Role,
    Scan,
    Scope,
    Send,
    Statement,
    Uniforms,
    VectorAdd,
    VectorLoad,
    VectorStore,
    every_term,
    walk,
)
from fuser_lab.codegen.rewrites import NarrowValues, indexes_registers, narrow_values
from fuser_lab.cost.crossovers import crossover
from fuser_lab.dtypes import DataType
from fuser_lab.errors import CodegenError
from fuser_lab.ir.term import MATH, Apply, Const, Term, Var, cast, index
from fuser_lab.ir.transform import ParallelType
from fuser_lab.schedule.state import Evict
from fuser_lab.targets import Form
from fuser_lab.targets.cuda_compiler import chosen_compiler


@dataclass(frozen=True, slots=True, kw_only=True)
class _Imports:
    """The modules from which source for a compiler imports names: ``cuda``, types, libdevice, fuser_lab's functions.

    ``wide_shuffles`` says whether the compiler's shuffles move 64 bits.
    """

    cuda: str
    types: str
    libdevice: str
    functions: str
    wide_shuffles: bool


_IMPORTS = {
    "numba": _Imports(
        cuda="numba", types="numba", libdevice="numba.cuda",
        functions="fuser_lab.runtime.cuda_compilers.numba_functions", wide_shuffles=True,
    ),
    "mlir": _Imports(
        cuda="numba_cuda_mlir", types="numba_cuda_mlir.types", libdevice="numba_cuda_mlir.cuda",
        functions="fuser_lab.runtime.cuda_compilers.mlir_functions", wide_shuffles=False,
    ),
}
_TYPES = (
    "boolean", "complex64", "complex128", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16",
    "uint32", "uint64",
)
_COMPLEX = {
    "abs": "complex_abs", "div": "complex_div", "sqrt": "complex_sqrt", **COMPLEX_FUNCTIONS,
    **{name: f"cmath.{name}" for name in ("acos", "asin", "asinh", "atan", "atanh")},
}
COMPLEX_INTRINSICS = tuple(name for name in _COMPLEX.values() if "." not in name)
_PAIRED = {DataType.Float8_e4m3fn: "e4m3", DataType.Float8_e5m2: "e5m2"}  # converted two at a time
_INTRINSICS = (
    *BITS,
    *CONVERSIONS,
    *TRUNCATIONS,
    *COMPLEX_INTRINSICS,
    "common_divisor", "divide_int", "divide_uint", "maximum", "minimum", "modulo_int", "modulo_uint", "philox_uniform",
    "power_int", "power_uint", "remainder_float", "remainder_int", "shift_left", "shift_right",
    "add_vector", "atomic_add", "beginning_at", "index32", "keep_loads_apart", "load_retained", "load_shifted",
    "load_streamed", "load_vector",
    "fast_exp", "fast_logaddexp", "fast_sigmoid", "fast_tanh", "floor_quotient32", "floor_quotient64", "logaddexp",
    "one_plus_tanh", "philox_uniforms", "quotient", "rounded_quotient32", "rounded_quotient64", "rounded_sqrt32",
    "rounded_sqrt64", "small_to_float", "store_vector", "unrolled", "where",
    "wide_shfl_sync", "wide_shfl_up_sync", "wide_shfl_xor_sync",
    "cluster_arrive", "cluster_arrived", "cluster_expect", "cluster_rank", "cluster_wait", "send_in_cluster",
    *(f"{name}_among" for name in _PAIRED.values()),
    *(f"store_{name}" for name in _PAIRED.values()),
)
_LOOPS = {
    ParallelType.grid_x: "blockIdx.x", ParallelType.block_x: "threadIdx.x", ParallelType.block_y: "threadIdx.y",
    ParallelType.vectorize: "vectorize", ParallelType.unroll: "unroll", ParallelType.serial: "serial",
}
_WRITTEN_OUT = frozenset({ParallelType.vectorize, ParallelType.unroll})
_HARDWARE = frozenset({ParallelType.grid_x, ParallelType.block_x, ParallelType.block_y})  # indices in special registers
_LIBRARY = {
    "floor": "floor", "ceil": "ceil", "round": "rint", "trunc": "trunc", "exp2": "exp2", "log2": "log2",
    "rsqrt": "rsqrt", "erfinv": "erfinv", "erfcinv": "erfcinv", "nextafter": "nextafter", "fmax": "fmax",
    "fmin": "fmin",
}
# fuser_lab's functions for float32, made from the hardware's exp2 and reciprocal.
_FAST = {
    "exp": "fast_exp", "logaddexp": "fast_logaddexp", "tanh": "fast_tanh", "one_plus_tanh": "one_plus_tanh",
    "sigmoid": "fast_sigmoid",
}
# Comparisons that clamp numbers to a bound: ``bound if x < bound else x``.
_BOUNDS = {"lt": "maximum", "le": "maximum", "gt": "minimum", "ge": "minimum"}
_BY_MATH = frozenset(
    {
        "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cos", "cosh", "erf", "erfc", "exp", "expm1",
        "lgamma", "log", "log10", "log1p", "sin", "sinh", "sqrt", "tan", "tanh",
    },
)
_ROUNDED = frozenset({"rounded_quotient", "rounded_sqrt"})  # fuser_lab's functions, each about ten instructions
_OF_LIBRARY = "library_"  # before the names of functions that are fast otherwise
_LOADS = {Evict.NORMAL: "load_vector", Evict.FIRST: "load_streamed", Evict.LAST: "load_retained"}
_WORDS = 1 << 32  # smaller indices are computed with 32 bits
_UNROLLED = crossover("gpu.unrolled")
_WIDE = 8  # bytes of a value that takes two words


def _is_unrolled(loop: Loop) -> bool:
    """Whether the compiler is to write out a loop, so that arrays indexed by its variable are registers."""
    if not loop.rounds or _statement_count((loop,)) > _UNROLLED:
        return False
    return loop.parallel in _WRITTEN_OUT or (loop.parallel is ParallelType.serial and _needs_registers(loop))


def _needs_registers(loop: Loop) -> bool:
    """Whether a loop over elements that a thread keeps computes functions, which NVVM by itself may not write out."""
    terms = (term for statement in walk(loop.body) for term in every_term(statement))
    return indexes_registers(loop) and any(isinstance(term, Apply) and term.fn in MATH | _ROUNDED for term in terms)


def _statement_count(statements: tuple[Statement, ...]) -> int:
    """Return the number of statements that a thread executes, at most; loops of unknown length count once."""
    count = 0
    for statement in statements:
        if isinstance(statement, Loop):
            count += max(statement.rounds or 1, 1) * _statement_count(statement.body)
        elif isinstance(statement, If):
            count += _statement_count(statement.then) + _statement_count(statement.otherwise)
        else:
            count += 1
    return count


def _alternatives(branch: If) -> list[tuple[Term | None, tuple[VectorLoad, ...]]]:
    """Return the vectors that a chain of branches loads into the same arrays, by condition; none for other branches.

    The last condition is None.
    """
    sides: list[tuple[Term | None, tuple[VectorLoad, ...]]] = []
    rest: tuple[Statement, ...] = (branch,)
    while len(rest) == 1 and isinstance(rest[0], If):
        sides.append((rest[0].condition, tuple(load for load in rest[0].then if isinstance(load, VectorLoad))))
        if len(sides[-1][1]) < len(rest[0].then):
            return []
        rest = rest[0].otherwise
    sides.append((None, tuple(load for load in rest if isinstance(load, VectorLoad))))
    forms = {
        tuple((load.words, load.slot, load.count, load.width, load.evict, load.shifted) for load in loads)
        for _, loads in sides
    }
    alike = len(forms) == 1 and len(sides[-1][1]) == len(rest) > 0 and not any(load.shifted for load in sides[-1][1])
    return sides if alike else []


def _last_targets(branch: If) -> Iterator[tuple[tuple[Buffer, Term], ...]]:
    """Yield the places into which each side of a branch loads vectors at its end, the last one first."""
    for side in filter(None, (branch.then, branch.otherwise)):
        if isinstance(side[-1], If):
            yield from _last_targets(side[-1])
            continue
        loads = takewhile(lambda statement: isinstance(statement, VectorLoad), reversed(side))
        yield tuple((load.words, load.slot) for load in loads if isinstance(load, VectorLoad))


def _is_power_of_two(term: Term) -> bool:
    """Whether a divisor is a constant power of two, so that division is a shift."""
    return isinstance(term, Const) and (value := int(term.value.real)) > 0 and not value & (value - 1)


def pointed_name(buffer: Buffer) -> str:
    """Return Numba's name of the type that a buffer's pointer points to; a Bool in memory is a byte."""
    return "uint8" if buffer.dtype is DataType.Bool else storage_name(buffer)


def _small_integers(phase: Phase) -> frozenset[str]:
    """Return the names of values that are Char, Byte or Short in all assignments."""
    small, others = set[str](), set[str]()
    for statement in walk(phase.body):
        match statement:
            case Let(name=name, value=value):
                (small if value.dtype.is_small_integer else others).add(name)
            case Reduce(name=name) | Loop(var=name):
                others.add(name)
            case _:
                pass
    return frozenset(small - others)


def _memory(phase: Phase) -> str:
    return f" and {phase.launch.shared} bytes of shared memory" if phase.launch.shared else ""


class CudaEmitter(Emitter):
    """Prints Numba CUDA kernels."""

    form = Form.BLOCKS
    complex_calls = _COMPLEX
    loops = _LOOPS

    def __init__(self, kernel: Kernel) -> None:
        super().__init__(kernel)
        self.compiler = chosen_compiler()

    def loaded(self, load: Load) -> str:
        """Return an element of a buffer in its compute type."""
        buffer = load.buffer
        if buffer.dtype in _PAIRED and buffer.role is Role.WORDS and buffer.size % 2 == 0:
            return f"{_PAIRED[buffer.dtype]}_among({buffer.name}, {self.subscript(load.position)})"
        text = super().loaded(load)
        pointed = buffer.dtype is DataType.Bool and buffer.role is not Role.SCRATCH
        return f"({text} != 0)" if pointed else text

    def stored(self, buffer: Buffer, value: Term) -> str:
        """Return a value in its storage type."""
        if buffer.name in self._narrow.wide or self._is_in(self._narrow.copied):
            return self.term(value)
        if self._is_in(self._narrow.unrounded):
            return f"float_to_{REDUCED[buffer.dtype]}({self.term(value)})"
        if isinstance(value, Load) and value.buffer.dtype is buffer.dtype and buffer.dtype.is_reduced_float and (
            Role.SCRATCH not in {buffer.role, value.buffer.role}
        ):
            return f"{value.buffer.name}[{self.subscript(value.position)}]"  # a word, copied as it is
        text = super().stored(buffer, value)
        return f"uint8({text})" if buffer.dtype is DataType.Bool and buffer.role is not Role.SCRATCH else text

    def imports(self, body: str) -> list[str]:
        """Return the import lines that ``body`` needs."""
        body = "\n".join(line for line in body.splitlines() if not line.lstrip().startswith("#"))
        lines = [f"import {name}" for name in ("cmath", "math") if re.search(rf"\b{name}\.", body)]
        lines += [""] if lines else []
        origins = _IMPORTS[self.compiler]
        names = {origins.cuda: {"cuda"}}
        names.setdefault(origins.types, set()).update(used_names(body, _TYPES))
        if "libdevice." in body:
            names.setdefault(origins.libdevice, set()).add("libdevice")
        lines += [f"from {module} import {', '.join(sorted(names[module]))}" for module in names if names[module]]
        functions = used_names(body, _INTRINSICS)
        if functions:
            lines += ["", f"from {origins.functions} import {', '.join(sorted(functions))}"]
        return lines

    def decorator(self, phase: Phase) -> None:
        """Print the launch and the types of the parameters; the runtime compiles the function for its device."""
        x, y = phase.launch.threads
        types = [f"{pointed_name(b)}*" for b in phase.buffers] + [TYPE_NAMES[v.dtype] for v in phase.scalars]
        types += [TYPE_NAMES[size.dtype] for size in phase.sizes]
        groups = f" in clusters of {phase.launch.cluster}" if phase.launch.cluster > 1 else ""
        self._line(f"# launched with {phase.launch.blocks} blocks of {x} x {y} threads{groups}{_memory(phase)}")
        self._line(f"# parameters: {', '.join(types)}")

    def loop(self, loop: Loop) -> None:
        """Print a loop; loops over blocks and threads are bound to indices."""
        if loop.parallel not in _LOOPS:
            msg = f"a GPU cannot run a loop over {loop.parallel.value}."
            raise CodegenError(msg)
        start, stop = map(self._range, (loop.start, loop.stop))
        self._ranges[loop.var] = (start[0], max(stop[1] - 1, start[0]))
        if loop.parallel in _HARDWARE:
            self._words.add(loop.var)
            self._line(f"{loop.var} = index32({self.hardware(loop.parallel)})", loop.origin)
            self._block(loop.body)
            return
        self._around += 1
        self.serial_loop(loop, "unrolled" if _is_unrolled(loop) else "range")
        self._around -= 1

    def hardware(self, parallel: ParallelType) -> str:
        """Return the index of a block or of a thread."""
        return f"cuda.{_LOOPS[parallel]}"

    def _statement(self, statement: Statement) -> None:
        if isinstance(statement, Let) and statement.value.dtype is DataType.Index:
            low, high = self._range(statement.value)
            self._ranges[statement.name] = (low, high)
            if low >= 0 and high < _WORDS and isinstance(statement.value, Apply) and statement.value.fn != "cast":
                self._words.add(statement.name)
                self._line(f"{statement.name} = index32({self.term(statement.value)})", statement.origin)
                return
        if isinstance(statement, If) and (sides := _alternatives(statement)):
            self._load_one_of(sides, statement.origin)
            self._next += len(list(walk((statement,)))) - 1
            return
        super()._statement(self._without_rounding(statement))

    def _infix(self, sign: str, args: tuple[Term, ...]) -> tuple[str, int]:
        if sign in {"//", "%"} and args[0].dtype is DataType.Index and not _is_power_of_two(args[1]):
            # A 64-bit division takes four times the instructions.
            args = self._in_words(args[0]), self._in_words(args[1])
        return super()._infix(sign, args)

    def _in_words(self, term: Term) -> Term:
        """Return an index that the compiler knows to fit in 32 bits, or the term unchanged."""
        low, high = self._range(term)
        if low < 0 or high >= _WORDS or self._fits_words(term):
            return term
        return Var(term.dtype, f"index32({self.term(term)})")

    def _fits_words(self, term: Term) -> bool:
        """Whether the compiler knows that an index fits in 32 bits; a quotient does if its dividend does."""
        match term:
            case Apply(_, "floordiv" | "mod", (number, divisor)):
                return self._fits_words(number) or not _is_power_of_two(divisor)
            case Var(_, name):
                return name in self._words
            case _:
                return isinstance(term, Const)

    def _without_rounding(self, statement: Statement) -> Statement:
        """Return a Let without a rounding that its stores perform, or of a word that is copied."""
        match statement:
            case Let(value=Apply(_, _, (operand,))) if self._is_in(self._narrow.unrounded):
                return replace(statement, value=cast(operand, DataType.Float))
            case Let(value=Load(_, buffer, position)) if self._is_in(self._narrow.copied):
                word = Var(buffer.dtype, f"{buffer.name}[{self.subscript(position)}]")
                return replace(statement, value=word)
            case _:
                return statement

    def _is_in(self, places: frozenset[int]) -> bool:
        return self._place is not None and self._place[1] in places

    def _range(self, term: Term) -> Range:
        """Return the smallest and the largest value of an index for the sizes of this run."""
        return range_of(linear(substitute(term, self._sizes), self._ranges), self._ranges)

    def alloc(self, statement: Alloc) -> None:
        """Print an array of the thread or the block; small arrays with constant loops become registers."""
        buffer = statement.buffer
        kind = TYPE_NAMES[buffer.dtype] if buffer.role is Role.SCRATCH else pointed_name(buffer)
        if buffer.role is Role.SHARED:
            size = 0 if buffer.is_dynamic else buffer.size
            text = f"cuda.shared.array({size}, {kind}, alignment={buffer.alignment})"
        else:
            # Words are moved four bytes at a time; alignment matters only if they are not in registers.
            aligned = ", alignment=8" if buffer.role is Role.WORDS and buffer.dtype.itemsize < 4 else ""
            wide = buffer.name in self._narrow.wide
            text = f"cuda.local.array({buffer.size}, {'float32' if wide else kind + aligned})"
        self._line(f"{buffer.name} = {text}", statement.origin)

    def of_target(self, statement: Statement) -> None:
        """Print a vector access, the call of an instruction or what threads exchange."""
        match statement:
            case VectorLoad() | VectorStore():
                self._vector(statement)
            case AtomicAdd() | VectorAdd():
                self._add(statement)
            case Uniforms():
                self._uniforms(statement)
            case Barrier(scope=scope):
                self._line("cluster_wait()" if scope is Scope.CLUSTER else "cuda.syncthreads()")
            case Arrive():
                self._print(self._threads.expected(), statement.origin)
            case Send():
                self._send(statement)
            case Await():
                self._print(self._threads.arrived(statement.buffer.name), statement.origin)
            case _:
                super().of_target(statement)

    def _vector(self, statement: VectorLoad | VectorStore) -> None:
        """Print the call that moves a few adjacent elements between memory and registers."""
        name = "store_vector"
        if isinstance(statement, VectorLoad):
            name = "load_shifted" if statement.shifted else _LOADS[statement.evict]
        elif statement.words.name in self._narrow.wide:
            name = f"store_{_PAIRED[statement.buffer.dtype]}"
        memory = f"{statement.buffer.name}, {self.term(statement.position)}"
        if isinstance(statement, VectorLoad) and statement.shifted:
            # Steps of whole accesses do not change it, so it is computed once for all of them.
            memory += f", {self.term(remainder_form(statement.position, statement.width))}"
        words = f"{statement.words.name}, {self.term(statement.slot)}"
        self._line(f"{name}({memory}, {words}, {statement.count}, {statement.width})", statement.origin)

    def _load_one_of(self, sides: list[tuple[Term | None, tuple[VectorLoad, ...]]], origin: str | None) -> None:
        """Print loads from selected addresses, for which the threads of a warp execute no branch one after another."""
        for loads in zip(*(loads for _, loads in sides), strict=True):
            at = f"{loads[0].words.name}_at"
            for (condition, _), load in reversed(list(zip(sides, loads, strict=True))):
                begin = f"beginning_at({load.buffer.name}, {self.term(load.position)})"
                text = begin if condition is None else f"where({self.term(condition)}, {begin}, {at})"
                self._line(f"{at} = {text}", load.origin or origin)
            first = replace(loads[0], buffer=replace(loads[0].buffer, name=at), position=index(0))
            self._vector(first)

    def end_of_then(self, statement: If) -> None:
        """Print a call that keeps loads into arrays in registers, if the sides of a branch end by loading others."""
        if any(len(set(targets)) > 1 for targets in zip(*_last_targets(statement), strict=False)):
            self._line("keep_loads_apart()", statement.origin)

    def _uniforms(self, statement: Uniforms) -> None:
        """Print the call that draws consecutive random numbers, four at a time."""
        where = ", ".join(self.term(t) for t in (statement.seed, statement.offset, statement.position))
        numbers = f"{statement.numbers.name}, {self.term(statement.slot)}, {statement.count}"
        self._line(f"philox_uniforms({where}, {numbers})", statement.origin)

    def _add(self, statement: AtomicAdd | VectorAdd) -> None:
        """Print the call of an instruction that adds to global or shared memory."""
        where = f"{statement.buffer.name}, {self.subscript(statement.position)}"
        name = "atomic_add" if isinstance(statement, AtomicAdd) else "add_vector"
        added = self.term(statement.value) if isinstance(statement, AtomicAdd) else (
            f"{statement.words.name}, {self.term(statement.slot)}, {statement.count}")
        self._line(f"{name}({where}, {added}, {self.term(statement.condition)})", statement.origin)

    def _send(self, statement: Send) -> None:
        """Print a store to the shared memory of another block of the cluster."""
        buffer = statement.buffer
        place, value = self.term(statement.position), self.stored(buffer, statement.value)
        kind = TYPE_NAMES[buffer.dtype.compute]
        lines = self._threads.sent(buffer.name, (buffer.name, kind), place, value, self.term(statement.rank))
        self._print(lines, statement.origin)

    def reduce(self, statement: Reduce) -> None:
        """Print shuffles among the lanes of a warp, then shared memory and shuffles among the warps of a block."""
        self._print(self._threads.reduced(statement, repeats=self._around > 0), statement.origin)

    def exchange(self, call: str, value: Var) -> str:
        """Return another lane's value received by a shuffle; ``call`` has braces in place of the sent value."""
        dtype, name = value.dtype, value.name
        carried = {DataType.Bool: DataType.Int32, DataType.UInt64: DataType.Int}.get(dtype, dtype)
        is_wide = carried.itemsize // (2 if dtype.is_complex else 1) == _WIDE
        needs_wide = is_wide and not _IMPORTS[self.compiler].wide_shuffles
        shuffle = f"wide_{call}" if needs_wide else f"cuda.{call}"
        if dtype.is_complex:
            parts = (shuffle.format(f"{name}.{part}") for part in ("real", "imag"))
            return f"{TYPE_NAMES[dtype]}(complex({', '.join(parts)}))"
        if carried is dtype:
            return shuffle.format(name)
        received = shuffle.format(f"{TYPE_NAMES[carried]}({name})")
        return f"({received} != 0)" if dtype is DataType.Bool else f"uint64({received})"

    def scan(self, statement: Scan) -> None:
        """Print running values of threads, of the lanes of a warp by shuffles, and of warps through shared memory."""
        lines = scan_lines(statement, self._threads.count, self, repeats=self._around > 0)
        self._print(lines, statement.origin)

    def _print(self, lines: Iterable[str], origin: str | None) -> None:
        for line in lines:
            self._line(line, origin)

    def prologue(self, phase: Phase) -> None:
        """Record the shape of a block, and clear the known indices."""
        self._threads = threads_of(phase, self)
        self._around = 0  # number of loops around the statement that is printed
        self._small = _small_integers(phase)
        self._narrow: NarrowValues = narrow_values(phase.body, frozenset(_PAIRED))
        self._ranges: dict[str, Range] = {}
        self._words: set[str] = set()  # indices that the compiler knows to fit in 32 bits
        sizes = (size for size in phase.sizes if size.dtype is DataType.Index)
        self._sizes = {size.name: index(size.value) for size in sizes}

    def apply(self, term: Apply) -> tuple[str, int]:
        """Return a function application and its operator precedence."""
        match term:
            case Apply(_, "select", (Apply(_, fn, (x, Const(DataType.Float, bound) as limit)), y, z)) if (
                fn in _BOUNDS and y == limit and z == x and bound != 0
            ):
                # One instruction that preserves NaN; it may choose a zero of the other sign.
                return self._call(_BOUNDS[fn], (x, limit)), ATOM
            case Apply(_, "eq" | "ne" as fn, (a, b)) if a.dtype.is_complex:
                return self._compare(fn, self._argument(a, 8), self._argument(b, 8)), ATOM
            case _:
                return super().apply(term)

    def is_slow(self, term: Apply) -> bool:
        """Whether a function takes longer than a branch: our own for Float are few instructions."""
        return super().is_slow(term) and not (term.fn in _FAST and term.args[0].dtype.compute is DataType.Float)

    @staticmethod
    def _compare(fn: str, a: str, b: str) -> str:
        """Return a comparison of complex numbers by their parts, which numba-cuda-mlir lacks."""
        sign, both = ("==", "&") if fn == "eq" else ("!=", "|")
        return f"(({a}.real {sign} {b}.real) {both} ({a}.imag {sign} {b}.imag))"

    def _whole(self, term: Apply) -> tuple[str, int] | None:
        if term.fn in {"max", "min"} and term.args[0].dtype is DataType.UInt64:
            # numba-cuda-mlir's functions compare unsigned numbers as signed.
            return self._call("maximum" if term.fn == "max" else "minimum", term.args), ATOM
        return super()._whole(term)

    def _cast(self, value: Term, dtype: DataType) -> str:
        if dtype is DataType.Bool and value.dtype.is_complex:
            return self._compare("ne", self._argument(value, 8), self.constant(value.dtype, 0))
        if TYPE_NAMES[dtype] == "float32" and self._has_few_bits(value):
            text = f"small_to_float({self.term(value)})"
            return f"round_{REDUCED[dtype]}({text})" if dtype.is_reduced_float else text
        return super()._cast(value, dtype)

    def _has_few_bits(self, value: Term) -> bool:
        """Whether a value is a small integer; operands are widened to Int32."""
        match value:
            case Var(_, name):
                return name in self._small
            case Load(_, buffer):
                return buffer.dtype.is_small_integer
            case _:
                return value.dtype.is_small_integer

    def function(self, term: Apply) -> str:
        """Return a call of a mathematical function."""
        fn, args, operand = term.fn, term.args, term.args[0].dtype
        if operand.is_complex:
            return self._call(f"cmath.{fn}", args) if fn in {"isnan", "isinf", "isfinite"} else super().function(term)
        if fn == "quotient":
            return self._call(fn, args)
        if fn.startswith(_OF_LIBRARY):
            return self._call(f"math.{fn.removeprefix(_OF_LIBRARY)}", args)
        if fn in _ROUNDED:
            return self._call(f"{fn}64" if operand is DataType.Double else f"{fn}32", args)
        if fn == "cos_turns":
            name = "cospi" if operand is DataType.Double else "cospif"
            return f"libdevice.{name}({self.constant(operand, 2)} * {self._argument(args[0], 6)})"
        if fn in {"max", "min"}:
            return self._call("maximum" if fn == "max" else "minimum", args)
        if fn in _LIBRARY:
            suffix = "" if operand is DataType.Double else "f"
            return self._call(f"libdevice.{_LIBRARY[fn]}{suffix}", args)
        if fn in _FAST and operand is not DataType.Double:
            return self._call(_FAST[fn], args)
        if fn in _BY_MATH or fn in {"isnan", "isinf", "isfinite"}:
            return self._call(f"math.{fn}", args)
        if fn in {"mod", "fmod"}:
            return self._call("math.fmod", args)
        if fn == "logaddexp":
            return self._call(fn, args)
        if fn == "remainder":
            return self._call("remainder_float", args)
        if fn == "floordiv":
            return self._call("floor_quotient64" if operand is DataType.Double else "floor_quotient32", args)
        if fn == "signbit":
            return f"(math.copysign({self.constant(operand, 1)}, {self.term(args[0])}) < 0)"
        if fn != "philox_uniform":
            raise self.unsupported(term)
        return f"{TYPE_NAMES[term.dtype]}({self._call(fn, args)})"
