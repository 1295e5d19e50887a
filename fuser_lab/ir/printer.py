"""A fusion as nvFuser's IR text (the form of ``Fusion::printMath``)."""

from collections.abc import Callable, Sequence
from typing import Protocol

from fuser_lab.dtypes import DataType
from fuser_lab.ir.expr import Expr, OpKind
from fuser_lab.ir.scalar import Number, Scalar
from fuser_lab.ir.val import TensorView, Val

_INFIX = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "truediv": "/", "mod": "%",
    "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=",
    "bitwise_and": "&", "bitwise_or": "|", "bitwise_xor": "^", "logical_and": "&&", "logical_or": "||",
    "bitwise_left_shift": "<<", "bitwise_right_shift": ">>",
}
_PREFIX = {"neg": "-", "bitwise_not": "~", "logical_not": "!"}
_REDUCTIONS = {"sum": "add", "prod": "mul", "max": "fmax", "min": "fmin"}
_COPIES = {"set": "Set", "segment_set": "SegmenterSet", "permute": "Set.Permute", "stride_order": "Set"}
# Functions of one element whose names differ in IR text; integers have their own largest and smallest.
_FUNCTIONS = {"maximum": "fmax", "minimum": "fmin", "round": "nearbyint", "complex": "std::complex"}
_OF_INTEGERS = {"maximum": "max", "minimum": "min"}
# Functions that C spells with an f for Float.
_FLOAT_SUFFIX = frozenset(
    {"acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "ceil", "cos", "cosh", "erf", "erfc", "erfcinv"}
    | {"erfinv", "exp", "exp2", "expm1", "floor", "fmod", "lgamma", "log", "log10", "log1p", "log2", "round", "rsqrt"}
    | {"sin", "sinh", "sqrt", "tan", "tanh", "trunc"},
)
# Types that have their own conversion functions; all others are converted as in C.
_NARROW = {
    DataType.Half: "half", DataType.BFloat16: "bfloat", DataType.Float8_e4m3fn: "e4m3",
    DataType.Float8_e5m2: "e5m2", DataType.Float8_e8m0fnu: "e8m0",
}
_IN_FUNCTIONS = {
    DataType.Int: "int", DataType.Int32: "int32", DataType.UInt64: "uint64", DataType.Index: "int",
    DataType.Short: "int16_t", DataType.Char: "int8_t", DataType.Byte: "uint8_t",
}


class Printed(Protocol):
    """The parts of a fusion that printing needs."""

    @property
    def inputs(self) -> Sequence[Val]:
        """Its inputs."""

    @property
    def tensor_inputs(self) -> Sequence[TensorView]:
        """Those inputs that are tensors."""

    @property
    def exprs(self) -> Sequence[Expr]:
        """Its expressions in topological order."""

    @property
    def outputs(self) -> Sequence[TensorView]:
        """Its outputs."""


def math_text(fusion: Printed, spelled: Callable[[Val], str] | None = None) -> str:
    """Return inputs, outputs and every expression, one block each; ``spelled`` replaces the spelling of values."""
    names = _Names(fusion, spelled)
    return "\n".join([*_head(fusion, names), "%kernel_math {", *_body(fusion, names), "} // %kernel_math ", ""])


def kernel_text(fusion: Printed) -> str:
    """Return a fusion with the domains of every tensor, as nvFuser's ``Fusion::print`` does since February 2026."""
    names = _Names(fusion, None)
    tensors = dict.fromkeys([*fusion.tensor_inputs, *(tv for expr in fusion.exprs for tv in expr.tensor_outputs)])
    lines = [*_head(fusion, names), "%kernel {", *_body(fusion, names), "", "TransformPrinter : "]
    for tensor in tensors:
        lines += [names.text(tensor), *domain_lines(tensor)]
    return "\n".join([*lines, "} // %kernel", ""])


def domain_lines(tensor: TensorView) -> list[str]:
    """Return the lines of nvFuser's ``IrTransformPrinter`` for a tensor without a schedule."""
    domain = tensor.domain
    memory = list(domain.logical)
    places = [place for place, axis in enumerate(memory) if not axis.is_reduction]
    for place, position in zip(places, domain.allocation_order, strict=True):
        memory[place] = domain.axes[position]
    flags = iter(domain.contiguity or (None if domain.axes[i].is_broadcast else True for i in domain.allocation_order))
    shown = ("n" if axis.is_reduction else {True: "t", False: "f", None: "n"}[next(flags)] for axis in memory)
    logical = ", ".join(map(str, domain.logical))
    lines = [f" logical domain: ({logical})"]
    if domain.allocation is not None:
        lines.append(f" allocation domain: ({', '.join(map(str, memory))})")
    return [*lines, f" contiguity: {' '.join(shown)}", f" loop domain: ({logical})"]


def _head(fusion: Printed, names: "_Names") -> list[str]:
    inputs, outputs = ([f"  {names.text(v)}" for v in values] for values in (fusion.inputs, fusion.outputs))
    return ["Inputs:", *inputs, "Outputs:", *outputs, ""]


def _body(fusion: Printed, names: "_Names") -> list[str]:
    return [line for expr in fusion.exprs for line in _lines(expr, names)]


def expression_texts(fusion: Printed, stored: frozenset[TensorView] = frozenset()) -> dict[str, str]:
    """Return each expression as printed by `math_text`, by its name; ``stored`` tensors are in global memory, too."""
    names = _Names(fusion, None, stored)
    return {expr.name: "\n".join(_lines(expr, names)) for expr in fusion.exprs}


class _Names:
    """Inputs and outputs are in global memory, everything in between is in registers."""

    def __init__(
        self, fusion: Printed, spelled: Callable[[Val], str] | None = None, stored: frozenset[TensorView] = frozenset(),
    ) -> None:
        self._global = {*fusion.tensor_inputs, *fusion.outputs, *stored}
        self._spelled = spelled

    def text(self, value: Val) -> str:
        if self._spelled is not None:
            return self._spelled(value)
        if isinstance(value, TensorView):
            return value.to_text("g" if value in self._global else "l")
        return str(value)


def _lines(expr: Expr, names: _Names) -> list[str]:
    args = [names.text(v) for v in expr.inputs]
    results = [names.text(v) for v in expr.outputs]
    op = expr.op.name
    if op in _ONE_LINE:
        return [f"{results[0]} = {_ONE_LINE[op](expr, args)}"]
    if op in _STATEMENTS:
        return [*_STATEMENTS[op](expr, args, results)]
    if expr.kind is OpKind.REDUCTION:
        return [*results, f"   = reduction( {args[0]}, {_fold(expr)} )"]
    if expr.kind is OpKind.POINTWISE:
        if not expr.tensor_outputs:
            return [f"{results[0]} = {''.join(_pointwise(expr, args))};"]
        # Texts of tensors are long, so each has its own line.
        first, *rest = _pointwise(expr, args)
        *lines, last = [f"   = {first}", *(f"  {part}" for part in rest)]
        return [results[0], *lines, f"{last};"]
    inside = ", ".join([*args, *(f"{key} = {_attr(value)}" for key, value in expr.attrs)])
    return [*(f"{result}," for result in results[:-1]), results[-1], f"   = {op}( {inside} )"]


def _pointwise(expr: Expr, args: list[str]) -> list[str]:
    """Return an expression in parts, each but the first with the separator before it."""
    op, dtype = expr.op.name, expr.outputs[0].dtype
    if op in _INFIX:
        return [args[0], f" {_INFIX[op]} {args[1]}"]
    if op in _PREFIX:
        return [f"{_PREFIX[op]}{args[0]}"]
    if op == "cast":
        return [f"{_cast(expr.inputs[0].dtype, dtype)}({args[0]})"]
    function = _OF_INTEGERS[op] if op in _OF_INTEGERS and dtype.is_integral else _FUNCTIONS.get(op, op)
    if dtype is DataType.Float and op in _FLOAT_SUFFIX:
        function += "f"
    parts = [f"{function}({args[0]}", *(f", {arg}" for arg in args[1:])]
    return [*parts[:-1], f"{parts[-1]})"]


def _cast(source: DataType, target: DataType) -> str:
    if source is not target and (source in _NARROW or target in _NARROW):
        a, b = (_NARROW.get(d, _IN_FUNCTIONS.get(d, d.ir_name)) for d in (source, target))
        return f"__{a}2{b}"
    real = "std::real" if source.is_complex and not target.is_complex else ""
    return f"({target.ir_name}){real}"


def _fold(expr: Expr) -> str:
    dtype = expr.outputs[0].dtype
    combine = getattr(expr.op, "combine", None)
    initial = "" if combine is None else f", initial value = {_constant(combine.identity(dtype), dtype)}"
    fold = _REDUCTIONS.get(expr.op.name, expr.op.name)
    if dtype.is_integral or dtype is DataType.Bool:
        fold = fold.removeprefix("f")
    return f"op = {fold}{initial}, allreduce = false"


def _constant(number: Number, dtype: DataType) -> str:
    return str(Scalar(name="", dtype=dtype, value=number))


def _welford(expr: Expr, args: list[str], results: list[str]) -> list[str]:
    del expr
    kinds = ("Avg", "Var", "Count")
    first, second, third = (f"{text}({kind})" for text, kind in zip(results, kinds, strict=True))
    return [f"{first},", f"{second},", third, f" = Welford ( {args[0]}(Avg), ", "  allreduce = false )"]


def _copy(expr: Expr, args: list[str], results: list[str]) -> list[str]:
    return [*results, f"   = {_COPIES[expr.op.name]}( {args[0]}, cache_op=Streaming )"]


def _flags(expr: Expr, args: list[str], results: list[str]) -> list[str]:
    if expr.op.name == "broadcast":
        flags = expr.attr("is_broadcast_dim")
    else:
        flags = tuple(axis in expr.ints("dims") for axis in range(len(_tensor(expr).domain.axes)))
    return [*results, f"   = {expr.op.name}( {args[0]}, flags = {_attr(flags)} )"]


def _slice(expr: Expr, args: list[str], results: list[str]) -> list[str]:
    bounds = zip(_entries(expr.attr("start_indices")), _entries(expr.attr("end_indices")), strict=True)
    ranges = " ".join(f"{{{start}, {end}, 1}}" for start, end in bounds)
    return [*results, f"   = slice( {args[0]}, {{ {ranges} }} )"]


def _pad(expr: Expr, args: list[str], results: list[str]) -> list[str]:
    """Print widths of all axes, the outermost first."""
    widths = _entries(expr.attr("pad_widths"))
    pairs = [widths[i : i + 2] for i in range(0, len(widths), 2)]
    pairs += [["0", "0"]] * (len(_tensor(expr).domain.axes) - len(pairs))
    shown = ", ".join(width for pair in reversed(pairs) for width in pair)
    return [*results, f"   = pad( {args[0]}, {{{shown}}}, {args[1]} )"]


def _cat(expr: Expr, args: list[str], results: list[str]) -> list[str]:
    return [*results, f"   = cat( {', '.join(args)}, {expr.attr('dim')} )"]


def _product(expr: Expr, args: list[str], results: list[str]) -> list[str]:
    first, *rest = args
    *lines, last = [f"   = {expr.op.name}({first}", *(f"            {arg}" for arg in rest)]
    return [*results, *(f"{line}," for line in lines), f"{last})"]


def _factory(expr: Expr, args: list[str], results: list[str]) -> list[str]:
    sizes = _entries(expr.attr("shape"))
    dtype = expr.outputs[0].dtype.ir_name
    if expr.op.name == "iota":
        return [*results, f"   = iota({', '.join([*sizes, *args, dtype])});"]
    return [*results, f"   = full({{{', '.join(sizes)}}}, {args[0]});"]


def _random(expr: Expr, args: list[str], results: list[str]) -> list[str]:
    name = {"uniform": "rng_uniform_range", "normal": "rng_normal_general"}[expr.op.name]
    inside = ", ".join([*args[:2], expr.outputs[0].dtype.ir_name, *args[2:]])
    return [*results, f"   = {name}({{{', '.join(_entries(expr.attr('shape')))}}}, {inside});"]


def _tensor(expr: Expr) -> TensorView:
    return expr.tensor_inputs[0]


def _entries(value: object) -> list[str]:
    return [_attr(entry) for entry in value] if isinstance(value, tuple) else []


_ONE_LINE: dict[str, Callable[[Expr, list[str]], str]] = {
    "reshape": lambda expr, args: f"reshape( {args[0]} )",
    "expand": lambda expr, args: f"expand( {args[0]}, {{{', '.join(_entries(expr.attr('shape')))}}} )",
}
_STATEMENTS: dict[str, Callable[[Expr, list[str], list[str]], list[str]]] = {
    **dict.fromkeys(_COPIES, _copy),
    "broadcast": _flags,
    "squeeze": _flags,
    "slice": _slice,
    "pad": _pad,
    "cat": _cat,
    "welford": _welford,
    "matmul": _product,
    "linear": _product,
    "full": _factory,
    "iota": _factory,
    "uniform": _random,
    "normal": _random,
}


def _attr(value: object) -> str:
    if isinstance(value, tuple):
        return "{" + ", ".join(_attr(v) for v in value) + "}"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, DataType):
        return value.ir_name
    return str(value) if isinstance(value, Scalar | int | float) else repr(value)
