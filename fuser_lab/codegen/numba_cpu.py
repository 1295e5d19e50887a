"""The CPU printer: `prange` over threads, and plain inner loops that LLVM vectorizes."""

import math
import re
from dataclasses import replace
from itertools import chain

from fuser_lab.codegen import emitter
from fuser_lab.codegen import kernel_ir as ir
from fuser_lab.codegen.cpu_functions import BRANCHING, VECTORIZED, are_called, is_vectorized, vectorized_name
from fuser_lab.codegen.index_math import access_of
from fuser_lab.cost.planned_cpu import STACK_BYTES
from fuser_lab.dtypes import DataType
from fuser_lab.errors import CodegenError
from fuser_lab.ir.term import SLOW, Apply, Const, Term, Var, cast, index
from fuser_lab.ir.transform import ParallelType
from fuser_lab.targets import Form

_TYPES = (
    "boolean", "complex64", "complex128", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16",
    "uint32", "uint64", "uintp",
)
_INTRINSICS = (
    *emitter.BITS, *emitter.TRUNCATIONS, *emitter.COMPLEX_FUNCTIONS.values(),
    "ceil", "common_divisor", "complex_div", "divide_int", "divide_uint", "erfcinv", "erfinv", "floor", "fmax", "fmin",
    "maximum", "maximum_unsigned", "minimum", "modulo_int", "modulo_uint", "nextafter32", "nextafter64", "note_missed",
    "opaque", "philox_uniform", "power_int", "power_uint", "remainder_int", "rint",
    "running_product", "running_sum", "scratch", "shift_left", "shift_right", "transpose", "trunc", "where",
)
_NARROW_FLOATS = (*emitter.CONVERSIONS, "e4m3_bits", "e5m2_bits")
# Iterations of a grid are distributed over threads; the compiler vectorizes loops over vectors.
_LOOPS = {ParallelType.grid_x: "parallel", ParallelType.vectorize: "simd", ParallelType.serial: "serial"}
_THREADS = ("Threaded", "prange")
_RUNNING = {"add": "running_sum", "mul": "running_product"}
_UNSIGNED = frozenset({"abs", "exp", "exp2"})  # their results are positive, 0.0 or NaN
_ROUNDINGS = {"floor": "floor", "ceil": "ceil", "round": "rint", "trunc": "trunc"}

_COMPLEX = {
    "abs": "abs", "div": "complex_div", "sqrt": "np.sqrt", **emitter.COMPLEX_FUNCTIONS,
    **{f"a{name}": f"np.arc{name}" for name in ("cos", "sin", "sinh", "tan", "tanh")},
}

_WORD = re.compile(r"[A-Za-z_]\w*")

SHORTEST_ROLLED, LONGEST_ROLLED = 8, 128  # iterations; LLVM unrolls longer loops only after vectorizing them

LARGEST_STACK = STACK_BYTES // 4  # bytes of the rows of one function; those that call it have rows, too

# No flag that would assume the absence of NaN or infinity. Only reductions may be reordered: with "reassoc" on all
# operations, LLVM replaces x - x by zero, even if x is NaN, and drops the rounding of (x + y) - y.
FASTMATH = ("contract", "nsz")
_FLAGS = ", ".join(f'"{flag}"' for flag in FASTMATH)
_OPTIONS = ('error_model="numpy"', f"fastmath={{{_FLAGS}}}")


class CpuEmitter(emitter.Emitter):
    """Prints Numba CPU kernels."""

    form = Form.CORES
    complex_calls = _COMPLEX
    loops = _LOOPS
    called_powers = frozenset({DataType.Float, DataType.Double})
    rounded_before = frozenset({DataType.BFloat16, DataType.Float8_e4m3fn, DataType.Float8_e5m2})

    def __init__(self, kernel: ir.Kernel) -> None:
        super().__init__(kernel)
        self._counters: set[str] = set()
        # By signature and code: the name of a function, and its first statement.
        self._called: dict[tuple[str, str], tuple[str, emitter.Place]] = {}
        self._unsigned: frozenset[str] = frozenset()  # values that are positive, 0.0 or NaN
        self._on_stack = 0  # bytes
        self._calls = any(are_called(phase.body) for phase in kernel.phases)

    def imports(self, body: str) -> list[str]:
        """Return the import lines that ``body`` needs."""
        body = "\n".join(line for line in body.splitlines() if not line.lstrip().startswith(("#", '"void(')))
        lines = ["import math"] if "math." in body else []
        if "np." in body:
            lines += ["", "import numpy as np"]
        if names := emitter.used_names(body, _TYPES):
            lines += ["", f"from numba import {', '.join(sorted(names))}"]
        functions = tuple(dict.fromkeys(VECTORIZED.values()))
        called = functions if self._calls else BRANCHING
        ours = {
            "called_loops": emitter.used_names(body, ("called",)),
            "cpu_kernels": ("kernel",),
            "intrinsics_cpu": emitter.used_names(body.replace("math.", "math_"), _INTRINSICS),
            "narrow_floats_cpu": emitter.used_names(body, _NARROW_FLOATS),
            "called_functions": emitter.used_names(body, called),
            "polynomials": emitter.used_names(body, tuple(name for name in functions if name not in called)),
            "threads": emitter.used_names(body, _THREADS),
        }
        lines += ["", *(f"from fuser_lab.runtime.{m} import {', '.join(fns)}" for m, fns in ours.items() if fns)]
        return [line for i, line in enumerate(lines) if line or (i and lines[i - 1])]

    def decorator(self, phase: ir.Phase) -> None:
        """Print the compilation options and the signature."""
        self._on_stack = 0
        self._unsigned = _unsigned_values(phase)
        types = [f"{emitter.storage_name(b)}[::1]" for b in phase.buffers]
        types += [emitter.TYPE_NAMES[scalar.dtype] for scalar in phase.scalars]
        types += [emitter.TYPE_NAMES[size.dtype] for size in phase.sizes]
        types += ["int64"] if phase.has_status else []
        parallel = any(isinstance(s, ir.Loop) and s.parallel is ParallelType.grid_x for s in ir.walk(phase.body))
        if parallel:
            _check_shared(phase)
        options = [*_OPTIONS, "nogil=True"]
        if parallel:
            options.insert(0, "pipeline_class=Threaded")
        if _is_rolled(phase):
            options.append("rolled=True")
        self._line("@kernel(")
        self._line(f'    "void({", ".join(types)})",')
        self._line(f"    {', '.join(options)},")
        self._line(")")

    def _statement(self, statement: ir.Statement) -> None:
        match statement:
            case ir.Store(buffer=buffer, position=at, value=Apply(_, "max", (ir.Load() as running, x)) as step) if (
                running.buffer == buffer and running.position == at and _is_unsigned(x, self._unsigned)
            ):
                text = self._call("maximum_unsigned", step.args)
                self._line(f"{self.loaded(running)} = {text}", statement.origin)
            case _:
                super()._statement(statement)

    def loop(self, loop: ir.Loop) -> None:
        """Print a loop, or the call of its function; the compiler vectorizes the innermost."""
        if loop.parallel not in _LOOPS:
            raise CodegenError(f"the CPU cannot run a loop over {loop.parallel.value}.")
        parallel = loop.parallel is ParallelType.grid_x
        if not parallel and isinstance(loop.start, Const):
            self._counters.add(loop.var)  # the compiler knows that it is not negative
        if loop.called:
            self._call_of(loop)
        else:
            self.serial_loop(loop, "prange" if parallel else "range")
        self._counters.discard(loop.var)

    def _call_of(self, loop: ir.Loop) -> None:
        """Print the call of a loop's function, and keep the function unless one has the same code but for names."""
        first = self._next
        with self._apart() as body, self._indent():
            self.serial_loop(loop)
        names, types = _names_of(loop)
        order: dict[str, str] = {}
        code = "\n".join(
            _WORD.sub(lambda word: order.setdefault(word[0], f"_{len(order)}") if word[0] in names else word[0], text)
            for text, _, _ in body if not text.lstrip().startswith("#")
        )
        parameters = [name for name in order if name in types]
        signature = f"void({', '.join(types[name] for name in parameters)})"
        arguments = ", ".join(parameters)
        new = f"{self._kernel.name}_part{len(self._called)}", (self._phase, first)
        name, (phase, start) = self._called.setdefault((signature, code), new)
        if name == new[0]:
            with self._apart() as head:
                options = f"    {', '.join(_OPTIONS)},"
                for text in ("", "", "@called(", f'    "{signature}",', options, ")", f"def {name}({arguments}):"):
                    self._line(text)
            self._functions += (*head, *body)
        else:
            self._repeats.update(((self._phase, n), (phase, start + n - first)) for n in range(first, self._next))
        self._line(f"{name}({arguments})", loop.origin)

    def selected(self, args: tuple[Term, ...]) -> str:
        """Return a selection; LLVM must not see an infinity that has no effect on a largest or smallest element."""
        texts = [f"opaque({self.term(arg)})" if _is_infinite(arg) else self.term(arg) for arg in args]
        return f"where({', '.join(texts)})"

    def updated(self, name: str, value: Term) -> str:
        """Return a step of a reduction.

        Sums and products may be reordered, so that the compiler vectorizes them. A running maximum of numbers without a
        minus sign has none either.
        """
        match value:
            case Apply(dtype, ("add" | "mul") as fn, (Var(_, first), _)) if dtype.is_float and first == name:
                return self._call(_RUNNING[fn], value.args)
            case Apply(_, "max", (Var(_, first), x)) if first == name and _is_unsigned(x, self._unsigned):
                return self._call("maximum_unsigned", value.args)
        return self.term(value)

    def is_slow(self, term: Apply) -> bool:
        """Whether a function takes longer than a branch; fuser_lab's functions for Float are vectorized."""
        return super().is_slow(term) and not is_vectorized(term)

    def loaded(self, load: ir.Load) -> str:
        """Return an element of a buffer in its compute type; scratch memory of a narrower float has its bits."""
        text = super().loaded(load)
        return f"{emitter.REDUCED[load.buffer.dtype]}_to_float({text})" if _has_bits(load.buffer) else text

    def stored(self, buffer: ir.Buffer, value: Term) -> str:
        """Return a value in its storage type."""
        return super().stored(replace(buffer, role=ir.Role.WORKSPACE) if _has_bits(buffer) else buffer, value)

    def subscript(self, position: Term) -> str:
        """Return a position as unsigned, because testing for negative positions prevents vectorization."""
        if isinstance(position, Const) or (isinstance(position, Var) and position.name in self._counters):
            return self.term(position)
        return f"uintp({self.term(position)})"

    def alloc(self, statement: ir.Alloc) -> None:
        """Print the allocation of a row, on the stack of the thread if it fits."""
        buffer = statement.buffer
        name = _element_name(buffer)
        self._on_stack += (nbytes := buffer.size * buffer.dtype.itemsize)
        if self._on_stack <= LARGEST_STACK:
            text = f"scratch({buffer.size}, {name})"
        else:
            self._on_stack -= nbytes
            text = f"np.empty({buffer.size}, np.{'bool_' if name == 'boolean' else name})"
        self._line(f"{buffer.name} = {text}", statement.origin)

    def of_target(self, statement: ir.Statement) -> None:
        """Print the call that moves a tile through vector registers, or that tells the host about a position."""
        if isinstance(statement, ir.Missed):
            self._line("note_missed(status)")
            return
        if not isinstance(statement, ir.Transpose):
            super().of_target(statement)
            return
        where = f"{statement.source.name}, {statement.target.name}, {self.subscript(statement.start)}"
        sizes = ", ".join(map(str, (statement.rows, statement.columns, *statement.pitches)))
        self._line(f"transpose({where}, {sizes})", statement.origin)

    def reduce(self, statement: ir.Reduce) -> None:
        """Raise CodegenError: CPU kernels combine results through memory."""
        raise CodegenError(f"the CPU cannot run a reduction over {statement.scope.value} threads.")

    def scan(self, statement: ir.Scan) -> None:
        """Print a loop in which all parts advance together, then one per part that adds the preceding total.

        A step of a part depends on the previous one; the steps of other parts hide its latency.
        """
        if statement.scope is not ir.Scope.THREAD:
            raise CodegenError(f"the CPU cannot run a scan over {statement.scope.value} threads.")
        buffer, carry, each, origin = statement.buffer, statement.carry, statement.each, statement.origin
        if statement.fn in SLOW:
            self._scan_of_functions(statement)
            return
        part_totals = [Var(buffer.dtype, f"{carry.name}_{part}") for part in range(statement.parts)]
        place, before = Var(DataType.Index, f"{carry.name}_at"), Var(buffer.dtype, f"{carry.name}_before")

        def element(part: int, at: Term) -> ir.Load:
            return ir.Load(buffer.dtype, buffer, at + part * each if part else at)

        def folded(a: Term, b: Term) -> str:
            return self.term(Apply(a.dtype, statement.fn, (a, b)))

        for part, running in enumerate(part_totals):
            self._line(f"{running.name} = {self.term(element(part, index(0)))}", origin)
        self._counters.add(place.name)
        self._line(f"for {place.name} in range(1, {each}):", origin)
        with self._indent():
            for part, running in enumerate(part_totals):
                self._line(f"{running.name} = {folded(running, element(part, place))}", origin)
                self._line(f"{self.term(element(part, place))} = {running.name}", origin)
        for part, running in enumerate(part_totals):
            self._line(f"{before.name} = {self.term(cast(carry, buffer.dtype))}", origin)
            self._line(f"for {place.name} in range({each}):", origin)
            with self._indent():
                self._line(f"{self.term(element(part, place))} = {folded(before, element(part, place))}", origin)
            self._line(f"{carry.name} = {folded(carry, cast(running, carry.dtype))}", origin)
        self._counters.discard(place.name)

    def _scan_of_functions(self, statement: ir.Scan) -> None:
        """Print such loops for a function that vectors compute: their lanes are the parts, then elements of a part."""
        buffer, carry, each, origin = statement.buffer, statement.carry, statement.each, statement.origin
        place, part = Var(DataType.Index, f"{carry.name}_at"), Var(DataType.Index, f"{carry.name}_part")
        before = Var(buffer.dtype, f"{carry.name}_before")
        totals = ir.Buffer(name=f"{carry.name}_parts", dtype=buffer.dtype, size=statement.parts, role=ir.Role.SCRATCH)
        total, element = ir.Load(buffer.dtype, totals, part), ir.Load(buffer.dtype, buffer, place + part * each)

        def folded(a: Term, b: Term) -> str:
            return self.term(Apply(a.dtype, statement.fn, (a, b)))

        self._counters |= {place.name, part.name}
        self.alloc(ir.Alloc(buffer=totals, origin=origin))
        self._line(f"for {part.name} in range({statement.parts}):", origin)
        with self._indent():
            self._line(f"{self.term(total)} = {self.constant(buffer.dtype, statement.identity)}", origin)
        self._line(f"for {place.name} in range({each}):", origin)
        with self._indent():
            self._line(f"for {part.name} in range({statement.parts}):", origin)
            with self._indent():
                self._line(f"{self.term(total)} = {folded(total, element)}", origin)
                self._line(f"{self.term(element)} = {self.term(total)}", origin)
        self._line(f"for {part.name} in range({statement.parts}):", origin)
        with self._indent():
            self._line(f"{before.name} = {self.term(cast(carry, buffer.dtype))}", origin)
            self._line(f"for {place.name} in range({each}):", origin)
            with self._indent():
                self._line(f"{self.term(element)} = {folded(before, element)}", origin)
            self._line(f"{carry.name} = {folded(carry, cast(total, carry.dtype))}", origin)
        self._counters -= {place.name, part.name}

    def barrier(self, statement: ir.Barrier) -> None:
        """Raise CodegenError: threads synchronize only at the end of a parallel loop."""
        raise CodegenError("the CPU cannot run a barrier.")

    def function(self, term: Apply) -> str:
        """Return a call of a mathematical function."""
        fn, args, operand = term.fn, term.args, term.args[0].dtype
        if operand.is_complex:
            return self._call(f"np.{fn}", args) if fn in {"isnan", "isinf", "isfinite"} else super().function(term)
        if fn in {"max", "min"}:
            return self._call("maximum" if fn == "max" else "minimum", args)
        if fn in {"fmax", "fmin"}:
            return self._call(fn, args)
        if fn in _ROUNDINGS:
            return self._call(_ROUNDINGS[fn], args)
        if (name := vectorized_name(term)) is not None:
            return self._call(name, args)
        if fn == "rsqrt":
            return f"({self.constant(operand, 1)} / {self._call('math.sqrt', args)})"
        if fn in {"isnan", "isinf", "isfinite", "sqrt"}:
            return self._call(f"math.{fn}", args)
        if fn in {"erfinv", "erfcinv"}:
            return f"{emitter.TYPE_NAMES[term.dtype]}({self._call(fn, args)})"
        if fn == "nextafter":
            return self._call("nextafter64" if operand is DataType.Double else "nextafter32", args)
        if fn == "signbit":
            return f"(math.copysign({self.constant(operand, 1)}, {self.term(args[0])}) < 0)"
        if fn != "philox_uniform":
            raise self.unsupported(term)
        return f"{emitter.TYPE_NAMES[term.dtype]}({self._call(fn, args)})"


def _names_of(loop: ir.Loop) -> tuple[set[str], dict[str, str]]:
    """Return the names in a loop, and the types of those that it takes from outside of it."""
    inside = list(ir.walk((loop,)))
    terms = [term for statement in inside for term in ir.every_term(statement)]
    read = {term.name: emitter.TYPE_NAMES[term.dtype] for term in terms if isinstance(term, Var)}
    local = {s.name if isinstance(s, ir.Let) else s.var for s in inside if isinstance(s, ir.Let | ir.Loop)}
    buffers = {b.name: f"{_element_name(b)}[::1]" for statement in inside for b, _ in ir.accesses_of(statement)}
    types = {name: kind for name, kind in (read | buffers).items() if name not in local}
    return local | types.keys(), types


def _element_name(buffer: ir.Buffer) -> str:
    """Return Numba's name of the type of a buffer's elements."""
    has_words = buffer.role is not ir.Role.SCRATCH or _has_bits(buffer)
    return emitter.storage_name(buffer) if has_words else emitter.TYPE_NAMES[buffer.dtype]


def _has_bits(buffer: ir.Buffer) -> bool:
    """Whether scratch memory holds elements as they are in a tensor."""
    return buffer.role is ir.Role.SCRATCH and buffer.dtype.is_reduced_float


def _unsigned_values(phase: ir.Phase) -> frozenset[str]:
    """Return the names whose values are all positive, 0.0 or NaN, so that their zeros need not be told apart."""
    made = [statement for statement in ir.walk(phase.body) if isinstance(statement, ir.Let)]
    unsigned = frozenset(let.name for let in made)
    while signed := {let.name for let in made if let.name in unsigned and not _is_unsigned(let.value, unsigned)}:
        unsigned -= signed
    return unsigned


def _is_unsigned(term: Term, unsigned: frozenset[str]) -> bool:
    match term:
        case Var(name=name):
            return name in unsigned
        case Apply(fn="cast", args=(x,)):
            return x.dtype.is_float and term.dtype.is_float and _is_unsigned(x, unsigned)
        case Apply(fn="mul", args=(x, y)):
            return x.dtype.is_float and x == y
        case Apply(fn=fn, args=(x, *_)):
            return x.dtype.is_float and fn in _UNSIGNED
        case _:
            return False


def _is_infinite(term: Term) -> bool:
    return isinstance(term, Const) and term.dtype.is_float and math.isinf(term.value.real)


def _is_rolled(phase: ir.Phase) -> bool:
    """Whether LLVM should vectorize before it unrolls.

    It should if innermost loops are short, but not shorter than a vector, and contiguous in memory. If they are
    strided, an enclosing loop is contiguous, which LLVM vectorizes once they are unrolled.
    """
    rounds = {}
    for loop in ir.walk(phase.body):
        if not isinstance(loop, ir.Loop) or any(isinstance(inside, ir.Loop) for inside in ir.walk(loop.body)):
            continue
        if loop.rounds is not None:
            rounds[loop] = loop.rounds
    short = [loop for loop, count in rounds.items() if count <= LONGEST_ROLLED]
    shortest = min((rounds[loop] for loop in short), default=0)
    return shortest >= SHORTEST_ROLLED and any(map(_walks_along_memory, short))


def _walks_along_memory(loop: ir.Loop) -> bool:
    """Whether some access of a loop advances by one element per iteration."""
    accesses = chain.from_iterable(map(ir.accesses_of, ir.walk(loop.body)))
    return any(access_of(buffer, position, loop.var).step == 1 for buffer, position in accesses)


def _check_shared(phase: ir.Phase) -> None:
    """Raise CodegenError unless a phase can run in threads, which all execute the code outside its parallel loop."""
    parallel = [s for s in ir.walk(phase.body) if isinstance(s, ir.Loop) and s.parallel is ParallelType.grid_x]
    around = [s for s in phase.body if s not in parallel]
    inside = [s for s in ir.walk(tuple(around)) if not isinstance(s, ir.Let | ir.Alloc | ir.If | ir.Missed)]
    if len(parallel) > 1 or len(around) == len(phase.body) or inside:
        msg = f"{phase.name}: a parallel phase must have a single outermost loop and no stores outside it."
        raise CodegenError(msg)
