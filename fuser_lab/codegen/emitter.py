"""Printing of Kernel IR as Python source; targets override the hooks at the end."""

import math
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from fuser_lab.codegen import kernel_ir as ir
from fuser_lab.codegen.kernel_verifier import verify_kernel
from fuser_lab.dtypes import DataType, narrow
from fuser_lab.errors import CodegenError
from fuser_lab.ir.term import COMPARISONS, SLOW, Apply, Const, Term, Var
from fuser_lab.ir.transform import ParallelType
from fuser_lab.targets import Form, target_of

INFIX = {
    "add": "+", "sub": "-", "mul": "*", "floordiv": "//", "mod": "%",
    "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!=",
    "and": "&", "or": "|", "xor": "^", "shl": "<<", "shr": ">>",
}
_INTEGER_CALLS = {"shl": "shift_left", "shr": "shift_right", "gcd": "common_divisor"}
_STRENGTH = {"*": 6, "//": 6, "%": 6, "+": 5, "-": 5, "<<": 4, ">>": 4, "&": 3, "^": 2, "|": 1}
ATOM, _WEAKEST = 9, 0

TYPE_NAMES = {
    DataType.Double: "float64",
    DataType.Float: "float32",
    DataType.Half: "float32",
    DataType.BFloat16: "float32",
    DataType.Float8_e4m3fn: "float32",
    DataType.Float8_e5m2: "float32",
    DataType.Float8_e8m0fnu: "float32",
    DataType.Int: "int64",
    DataType.Index: "int64",
    DataType.Int32: "int32",
    DataType.Short: "int32",
    DataType.Char: "int32",
    DataType.Byte: "int32",
    DataType.UInt64: "uint64",
    DataType.Bool: "boolean",
    DataType.ComplexFloat: "complex64",
    DataType.ComplexDouble: "complex128",
}
# Floats that kernels store as words and compute with as float32; the names are part of the names of intrinsics.
REDUCED = {
    DataType.Half: "half",
    DataType.BFloat16: "bf16",
    DataType.Float8_e4m3fn: "e4m3",
    DataType.Float8_e5m2: "e5m2",
    DataType.Float8_e8m0fnu: "e8m0",
}
# Integers that kernels compute with as int32.
SMALL_INTEGERS = {DataType.Short: "int16", DataType.Char: "int8", DataType.Byte: "uint8"}
BITS = ("bits_of_double", "bits_of_float", "double_of_bits", "float_of_bits")  # a float and the integer with its bits
TRUNCATIONS = ("float_to_int32", "float_to_int64", "float_to_uint64")
CONVERSIONS = (  # of the floats in REDUCED
    "bf16_bits",
    *(name for kind in REDUCED.values() for name in (f"{kind}_to_float", f"float_to_{kind}", f"round_{kind}")),
)

# Functions of complex numbers that both targets implement (`fuser_lab.runtime.complex_functions`).
COMPLEX_FUNCTIONS = {
    name: f"complex_{name}"
    for name in (
        "acosh", "cos", "cosh", "exp", "exp2", "expm1", "log", "log10", "log1p", "log2", "pow", "sin", "sinh", "tan",
        "tanh",
    )
}


def storage_name(buffer: ir.Buffer) -> str:
    """Return Numba's name of the storage type of a buffer's elements."""
    if buffer.dtype.is_reduced_float:
        return f"uint{8 * buffer.dtype.itemsize}"
    return SMALL_INTEGERS.get(buffer.dtype, TYPE_NAMES[buffer.dtype])


Place = tuple[int, int]
_Line = tuple[str, str | None, Place | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A generated file and, per line, the expression that it computes and the statement that it prints.

    A statement is given by the number of its phase and its position there in the order of `walk`. ``repeats`` maps
    statements that are not printed to those that are printed and have the same code. ``compiler`` is the compiler that
    the file is for, if the target has several.
    """

    text: str
    origins: tuple[str | None, ...]
    statements: tuple[Place | None, ...]
    repeats: Mapping[Place, Place]
    compiler: str


class Emitter:
    """Prints one kernel; `Emitter.source` is the entry point."""

    compiler = ""  # the chosen one, if the target has several
    form: Form
    complex_calls: Mapping[str, str] = {}  # term function of complex numbers without an operator -> function to call
    loops: Mapping[ParallelType, str] = {}  # how each kind of loop that the target supports is run
    rounded_before: frozenset[DataType] = frozenset({DataType.BFloat16})  # rounded when they are computed
    called_powers: frozenset[DataType] = frozenset()  # dtypes whose powers are function calls instead of ``**``

    def __init__(self, kernel: ir.Kernel) -> None:
        self._kernel = kernel
        self._lines: list[str] = []
        self._origins: list[str | None] = []
        self._places: list[Place | None] = []
        self._place: Place | None = None
        self._phase = self._next = 0  # position of the statement that is printed next
        self._depth = 0

        self._functions: list[_Line] = []  # that the kernel calls
        self._repeats: dict[Place, Place] = {}

    def source(self) -> Source:
        """Return the file; raise CodegenError if the kernel is lowered for another form of loops, or is wrong."""
        lowered = self._kernel.target
        if target_of(lowered).form is not self.form:
            msg = f"{self._kernel.name} is lowered for {lowered} and cannot be printed as {self.form.value}."
            raise CodegenError(msg)
        verify_kernel(self._kernel)
        for number, phase in enumerate(self._kernel.phases):
            self._line("")
            self._line("")
            self._function(number, phase)
        body = [*zip(self._lines, self._origins, self._places, strict=True), *self._functions]
        self._lines, self._origins, self._places = [], [], []
        self._header("\n".join(line for line, _, _ in body))
        lines = [*zip(self._lines, self._origins, self._places, strict=True), *body]
        return Source(
            text="\n".join(line for line, _, _ in lines) + "\n",
            origins=tuple(origin for _, origin, _ in lines),
            statements=tuple(place for _, _, place in lines),
            repeats=self._repeats,
            compiler=self.compiler,
        )

    def _header(self, body: str) -> None:
        kernel = self._kernel
        self._line(f"# {kernel.name}: {kernel.scheduler.value}, generated for {self._kernel.target}")
        self._line("#")
        for name, text in kernel.ops:
            self._line(f"#   {text}", name)
        self._line("#")
        self._line("# T0, T1, ... are buffers; t0, t1, ... one element of each tensor.")
        sizes = dict.fromkeys(size for phase in kernel.phases for size in phase.sizes)
        if sizes:
            listed = ", ".join(f"{size.name} = {size.value}" for size in sizes)
            self._line(f"# Sizes that are arguments of the kernel (all others are constants): {listed}.")
        self._line("")
        for line in self.imports(body):
            self._line(line)

    def _line(self, text: str, origin: str | None = None) -> None:
        self._lines.append("    " * self._depth + text if text else "")
        self._origins.append(origin)
        self._places.append(self._place)

    @contextmanager
    def _indent(self) -> "Iterator[None]":
        self._depth += 1
        yield
        self._depth -= 1

    @contextmanager
    def _apart(self) -> "Iterator[list[_Line]]":
        """Yield a list of the lines that are printed in the block, without the indentation around it."""
        around = self._lines, self._origins, self._places, self._depth
        self._lines, self._origins, self._places, self._depth = [], [], [], 0
        lines: list[_Line] = []
        yield lines
        lines += zip(self._lines, self._origins, self._places, strict=True)
        self._lines, self._origins, self._places, self._depth = around

    # Statements

    def _function(self, number: int, phase: ir.Phase) -> None:
        self._phase, self._next = number, 0
        self.decorator(phase)
        names = [*(b.name for b in phase.buffers), *(v.name for v in phase.scalars), *(n.name for n in phase.sizes)]
        names += ["status"] if phase.has_status else []
        self._line(f"def {phase.name}({', '.join(names)}):")
        with self._indent():
            self.prologue(phase)
            self._block(phase.body)
            if not phase.body:
                self._line("pass")

    def _block(self, statements: tuple[ir.Statement, ...]) -> None:
        around = self._place
        for statement in statements:
            self._place = self._phase, self._next
            self._next += 1
            self._statement(statement)
        self._place = around

    def _statement(self, statement: ir.Statement) -> None:
        origin = statement.origin
        if statement.note:
            self._line(f"# {statement.note}", origin)
        match statement:
            case ir.Let(name=name, value=value, update=update):
                self._line(f"{name} = {self.updated(name, value) if update else self.term(value)}", origin)
            case ir.Store(buffer=buffer, position=position, value=value):
                self._line(f"{buffer.name}[{self.subscript(position)}] = {self.stored(buffer, value)}", origin)
            case ir.If(condition=condition, then=then, otherwise=otherwise):
                self._line(f"if {self.term(condition)}:", origin)
                with self._indent():
                    self._block(then)
                    self.end_of_then(statement)
                if otherwise:
                    self._line("else:", origin)
                    with self._indent():
                        self._block(otherwise)
            case ir.Loop():
                self.loop(statement)
            case ir.Alloc():
                self.alloc(statement)
            case ir.Reduce():
                self.reduce(statement)
            case ir.Scan():
                self.scan(statement)
            case _:
                self.of_target(statement)

    # Terms

    def term(self, term: Term) -> str:
        """Return a term as an expression."""
        return self._strong(term)[0]

    def _strong(self, term: Term) -> tuple[str, int]:
        """Return the text and its operator precedence."""
        match term:
            case Const(dtype, value):
                return self.constant(dtype, value), ATOM
            case Var(_, name):
                return name, ATOM
            case ir.Load():
                return self.loaded(term), ATOM
            case Apply():
                return self.apply(term)
            case _:
                raise CodegenError(f"{type(term).__name__} cannot be printed.")

    def constant(self, dtype: DataType, value: complex) -> str:
        """Return a constant of a dtype."""
        name = TYPE_NAMES[dtype]
        if dtype is DataType.Bool:
            return str(bool(value))
        if dtype.is_complex:
            number = complex(value)
            return f"{name}(complex({_float_text(number.real)}, {_float_text(number.imag)}))"
        number = value.real
        if dtype.is_float:
            if dtype.is_reduced_float:
                number = float(narrow(np.asarray(number, np.float32), dtype))
            text = _float_text(float(number))
            return text if dtype is DataType.Double else f"float32({text})"
        text = str(int(number))
        return text if dtype in {DataType.Int, DataType.Index} else f"{name}({text})"

    def selected(self, args: tuple[Term, ...]) -> str:
        """Return a call that selects the second or the third term, both of which are computed."""
        return self._call("where", args)

    def updated(self, name: str, value: Term) -> str:
        """Return the updated running value ``name`` of a reduction."""
        del name
        return self.term(value)

    def subscript(self, position: Term) -> str:
        """Return a position as a subscript."""
        return self.term(position)

    def loaded(self, load: ir.Load) -> str:
        """Return an element of a buffer in its compute type."""
        text = f"{load.buffer.name}[{self.subscript(load.position)}]"
        if load.buffer.role is ir.Role.SCRATCH:
            return text
        if load.buffer.dtype.is_small_integer:
            return f"int32({text})"
        reduced = REDUCED.get(load.buffer.dtype)
        return text if reduced is None else f"{reduced}_to_float({text})"

    def stored(self, buffer: ir.Buffer, value: Term) -> str:
        """Return a value in its storage type."""
        if buffer.role is ir.Role.SCRATCH or not buffer.dtype.is_narrow:
            return self.term(value)
        if buffer.dtype.is_small_integer:
            return f"{SMALL_INTEGERS[buffer.dtype]}({self.term(value)})"
        if buffer.dtype is value.dtype and buffer.dtype in self.rounded_before:
            return f"{REDUCED[buffer.dtype]}_bits({self.term(value)})"
        return f"float_to_{REDUCED[buffer.dtype]}({self.term(value)})"

    def apply(self, term: Apply) -> tuple[str, int]:
        """Return a function application and its operator precedence."""
        fn, args, dtype = term.fn, term.args, term.dtype
        operand = args[0].dtype
        if fn == "select":
            if self._is_computed_anyway(term):
                return self.selected(args), ATOM
            parts = [self._argument(a, 1) for a in args]
            return f"{parts[1]} if {parts[0]} else {parts[2]}", _WEAKEST
        if fn == "cast":
            return self._cast(args[0], dtype), ATOM
        if fn == "bitcast":
            return self._bitcast(args[0], dtype), ATOM
        if fn in COMPARISONS:
            return f"{self._argument(args[0], 1)} {INFIX[fn]} {self._argument(args[1], 1)}", _WEAKEST
        if dtype is DataType.Bool and operand is DataType.Bool:
            return self._logic(fn, args)
        if dtype is DataType.Index and fn in {"min", "max"}:
            return self._call(fn, args), ATOM
        if operand.is_integral or operand is DataType.Bool:
            special = self._whole(term)
            if special is not None:
                return special
        if fn == "neg":
            return f"-{self._argument(args[0], 7)}", 7
        if fn == "abs" and not operand.is_complex:
            return self._call("abs", args), ATOM
        if fn in {"real", "imag"}:
            return f"{self._argument(args[0], 8)}.{fn}", ATOM
        if fn == "complex":
            return f"{TYPE_NAMES[dtype]}({self._call('complex', args)})", ATOM
        if operand.is_complex and fn in self.complex_calls:
            return f"{TYPE_NAMES[dtype]}({self._call(self.complex_calls[fn], args)})", ATOM
        if fn == "div":
            return f"{self._argument(args[0], 6)} / {self._argument(args[1], 7)}", 6
        if fn == "pow" and operand.compute not in self.called_powers:
            return f"{self._argument(args[0], 8)} ** {self._argument(args[1], 8)}", 7
        if fn in INFIX and (dtype is DataType.Index or fn not in {"floordiv", "mod"}):
            return self._infix(INFIX[fn], args)
        if fn == "not":
            return f"~{self._argument(args[0], 7)}", 7
        return self.function(term), ATOM

    def _is_computed_anyway(self, choice: Apply) -> bool:
        """Whether both values of a choice may be computed: they read no memory, and no branch is worth its cost."""
        parts = [part for side in choice.args[1:] for part in side.walk()]
        skipped = any(isinstance(part, ir.Load) or (isinstance(part, Apply) and self.is_slow(part)) for part in parts)
        return not skipped and not choice.dtype.is_complex

    def is_slow(self, term: Apply) -> bool:
        """Whether a function takes longer than a branch."""
        return term.fn in SLOW

    def _infix(self, sign: str, args: tuple[Term, ...]) -> tuple[str, int]:
        strength = _STRENGTH[sign]
        # Left-associative: only a right operand of the same precedence needs parentheses.
        return f"{self._argument(args[0], strength)} {sign} {self._argument(args[1], strength + 1)}", strength

    def _argument(self, term: Term, needed: int) -> str:
        text, strength = self._strong(term)
        return text if strength >= needed else f"({text})"

    def _call(self, name: str, args: tuple[Term, ...]) -> str:
        return f"{name}({', '.join(self.term(a) for a in args)})"

    def _logic(self, fn: str, args: tuple[Term, ...]) -> tuple[str, int]:
        sign = {"and": "&", "mul": "&", "min": "&", "or": "|", "add": "|", "max": "|", "xor": "!="}.get(fn)
        if fn == "not":
            return f"not {self._argument(args[0], 7)}", _WEAKEST
        if sign is None:
            # As in C++: computed as integers, and true if not zero.
            widened = Apply(DataType.Int, fn, tuple(Apply(DataType.Int, "cast", (a,)) for a in args))
            return self._cast(widened, DataType.Bool), ATOM
        if sign == "!=":
            return f"{self._argument(args[0], 1)} != {self._argument(args[1], 1)}", _WEAKEST
        return self._infix(sign, args)

    def _whole(self, term: Apply) -> tuple[str, int] | None:
        """Return a function application that differs for integers."""
        fn, args, dtype = term.fn, term.args, term.dtype
        unsigned = args[0].dtype is DataType.UInt64
        if fn in {"floor", "ceil", "round", "trunc"}:
            return self._strong(args[0])
        if fn in {"isnan", "isinf", "isfinite"}:
            return str(fn == "isfinite"), ATOM
        if dtype is DataType.Index:
            return None
        if fn == "div":
            text = self._call("divide_uint" if unsigned else "divide_int", args)
        elif fn in {"mod", "fmod"}:
            text = self._call("modulo_uint" if unsigned else "modulo_int", args)
        elif fn == "remainder":
            text = self._call("modulo_uint" if unsigned else "remainder_int", args)
        elif fn == "pow":
            text = self._call("power_uint" if unsigned else "power_int", args)
        elif fn in {"max", "min"}:
            text = self._call(fn, args)
        elif fn in {"shl", "shr", "gcd"}:
            text = self._call(_INTEGER_CALLS[fn], args)
            if fn == "gcd":
                return f"{TYPE_NAMES[dtype]}({text})", ATOM
            text = f"{text[:-1]}, {8 * dtype.itemsize})"
        elif fn == "signbit":
            return ("False", ATOM) if unsigned else (f"{self._argument(args[0], 1)} < 0", _WEAKEST)
        elif dtype is DataType.Int or fn not in {"neg", "abs", "not", *INFIX}:
            return None
        elif fn in INFIX:
            text = self._infix(INFIX[fn], args)[0]
        else:
            sign = {"neg": "-", "not": "~"}.get(fn)
            text = self._call("abs", args) if sign is None else f"{sign}{self._argument(args[0], 7)}"
        # Numba computes small integers in int64, but the op wraps around in its dtype.
        return (text if dtype is DataType.Int else f"{TYPE_NAMES[dtype]}({text})"), ATOM

    def _cast(self, value: Term, dtype: DataType) -> str:
        text, source = self.term(value), value.dtype
        if dtype is DataType.Bool:
            return f"({self._argument(value, 1)} != {self.constant(source, 0)})"
        if source.is_complex and not dtype.is_complex:
            text, source = f"{self._argument(value, 8)}.real", source.real
        name = TYPE_NAMES[dtype]
        if source.is_float and dtype.is_integral:
            text, source = f"float_to_{name}({text})", dtype.compute
            if not dtype.is_narrow:
                return text
        if dtype.is_small_integer:
            return f"int32({SMALL_INTEGERS[dtype]}({text}))"
        same = TYPE_NAMES[source] == name
        if dtype.is_reduced_float:
            number = text if same else f"float32({text})"
            return f"round_{REDUCED[dtype]}({number})"
        if same:
            return f"({text})" if isinstance(value, Apply) else text
        return f"{name}({text})"

    def _bitcast(self, value: Term, dtype: DataType) -> str:
        """Return the number of another dtype with the same bits: of a float the integer, or the reverse."""
        text, source = self.term(value), value.dtype
        if source in REDUCED:
            return f"int32({SMALL_INTEGERS[dtype]}(float_to_{REDUCED[source]}({text})))"
        if dtype in REDUCED:
            return f"{REDUCED[dtype]}_to_float(uint{8 * dtype.itemsize}({text}))"
        if source is DataType.Float:
            return f"int32(bits_of_float({text}))"
        if dtype is DataType.Float:
            return f"float_of_bits(uint32({text}))"
        return f"bits_of_double({text})" if source is DataType.Double else f"double_of_bits({text})"

    def function(self, term: Apply) -> str:
        """Return a call of a mathematical function."""
        raise self.unsupported(term)

    def unsupported(self, term: Apply) -> CodegenError:
        """Return the error about a function that a target does not have."""
        dtype, target = term.args[0].dtype, self._kernel.target
        return CodegenError(f"{term.fn} of {dtype!r} is not supported for target {target!r}.")

    # Hooks

    def imports(self, body: str) -> list[str]:
        """Return the import lines that ``body`` needs."""
        raise NotImplementedError

    def decorator(self, phase: ir.Phase) -> None:
        """Print the lines above a function."""

    def prologue(self, phase: ir.Phase) -> None:
        """Print the first lines of a function."""

    def loop(self, loop: ir.Loop) -> None:
        """Print a loop."""
        raise NotImplementedError

    def alloc(self, statement: ir.Alloc) -> None:
        """Print the allocation of a scratch buffer."""
        raise NotImplementedError

    def reduce(self, statement: ir.Reduce) -> None:
        """Print a reduction among threads."""
        raise NotImplementedError

    def scan(self, statement: ir.Scan) -> None:
        """Print running values among threads."""
        raise NotImplementedError

    def of_target(self, statement: ir.Statement) -> None:
        """Print a statement that only some targets have."""
        raise CodegenError(f"{type(statement).__name__} cannot be printed for target {self._kernel.target!r}.")

    def end_of_then(self, statement: ir.If) -> None:
        """Print what a compiler needs between the two sides of a branch."""

    def serial_loop(self, loop: ir.Loop, iterator: str = "range") -> None:
        """Print a ``for`` over ``iterator``."""
        start, stop = self.term(loop.start), self.term(loop.stop)
        bounds = stop if start == "0" else f"{start}, {stop}"
        self._line(f"for {loop.var} in {iterator}({bounds}):", loop.origin)
        with self._indent():
            self._block(loop.body)
            if not loop.body:
                self._line("pass")


def _float_text(number: float) -> str:
    if math.isnan(number):
        return "math.nan"
    if math.isinf(number):
        return "math.inf" if number > 0 else "-math.inf"
    return repr(number)


def used_names(body: str, names: tuple[str, ...]) -> list[str]:
    """Return the names that occur in a text."""
    words = set(re.findall(r"[A-Za-z_][A-Za-z_0-9]*", body))
    return [name for name in names if name in words]
