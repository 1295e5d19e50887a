"""A fusion as nvFuser's IR text (the form of ``Fusion::printMath``)."""

from fuser_lab.dtypes import DataType
from fuser_lab.ir.expr import Expr, OpKind
from fuser_lab.ir.fusion import Fusion
from fuser_lab.ir.scalar import Scalar
from fuser_lab.ir.val import TensorView, Val

_INFIX = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "truediv": "/", "mod": "%",
    "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=",
    "bitwise_and": "&", "bitwise_or": "|", "bitwise_xor": "^", "logical_and": "&&", "logical_or": "||",
}
_PREFIX = {"neg": "-", "bitwise_not": "~", "logical_not": "!"}
_REDUCTIONS = {"sum": "add", "prod": "mul", "max": "fmax", "min": "fmin"}
_PLAIN_COPIES = {"set": "Set", "segment_set": "SegmenterSet", "permute": "Set.Permute", "stride_order": "Set"}


def math_text(fusion: Fusion) -> str:
    """Return inputs, outputs and every expression, one block each."""
    names = _Names(fusion)
    lines = ["Inputs:", *(f"  {names.text(v)}" for v in fusion.inputs)]
    lines += ["Outputs:", *(f"  {names.text(tv)}" for tv in fusion.outputs), "", "%kernel_math {"]
    for expr in fusion.exprs:
        lines += _lines(expr, names)
    return "\n".join([*lines, "} // %kernel_math ", ""])


class _Names:
    """Inputs and outputs live in global memory, everything between in registers."""

    def __init__(self, fusion: Fusion) -> None:
        self._global = {*fusion.tensor_inputs, *fusion.outputs}

    def text(self, value: Val) -> str:
        if isinstance(value, TensorView):
            return value.to_text("g" if value in self._global else "l")
        return str(value)


def _lines(expr: Expr, names: _Names) -> list[str]:
    out = names.text(expr.outputs[0])
    args = [names.text(v) for v in expr.inputs]
    name = expr.op.name
    if name == "welford":
        avg, var, number = map(names.text, expr.outputs)
        results = [f"{avg}(Avg),", f"{var}(Var),", f"{number}(Count)"]
        return [*results, f"   = Welford( {args[0]}(Avg), axes = {_attr(expr.attr('dims'))}, allreduce = false );"]
    if len(expr.outputs) > 1:
        return [*(f"{names.text(v)}," for v in expr.outputs[:-1]), names.text(expr.outputs[-1]),
                f"   = {_call(expr, args)};"]
    if name in _INFIX:
        return [out, f"   = {args[0]}", f"   {_INFIX[name]} {args[1]};"]
    if name in _PREFIX:
        return [out, f"   = {_PREFIX[name]}{args[0]};"]
    return [out, f"   = {_call(expr, args)};"]


def _call(expr: Expr, args: list[str]) -> str:
    name, inside = expr.op.name, ", ".join(args)
    if expr.kind is OpKind.REDUCTION:
        fold = _REDUCTIONS.get(name, name)
        return f"reduction( {inside}, op = {fold}, axes = {_attr(expr.attr('dims'))} )"
    if name == "cast":
        return f"{_cast_name(expr.inputs[0].dtype, expr.outputs[0].dtype)}({inside})"
    if name in _PLAIN_COPIES:
        extra = "" if name in {"set", "segment_set"} else f", {_attrs(expr)}"
        return f"{_PLAIN_COPIES[name]}( {inside}{extra} )"
    if name == "broadcast":
        return f"broadcast( {inside}, flags = {_attr(expr.attr('is_broadcast_dim'))} )"
    if expr.kind is OpKind.POINTWISE:
        return f"{_function(name, expr.outputs[0].dtype)}({inside})"
    return f"{name}( {', '.join(x for x in (inside, _attrs(expr)) if x)} )"


def _function(name: str, dtype: DataType) -> str:
    return f"{name}f" if dtype is DataType.Float and name in _FLOAT_SUFFIX else name


_FLOAT_SUFFIX = frozenset(
    {"acos", "asin", "atan", "atan2", "ceil", "cos", "cosh", "erf", "erfc", "exp", "exp2", "expm1", "floor", "fmod"}
    | {"log", "log10", "log1p", "log2", "pow", "round", "rsqrt", "sin", "sinh", "sqrt", "tan", "tanh", "trunc"},
)
_SHORT = {DataType.Half: "half", DataType.BFloat16: "bfloat", DataType.Float: "float", DataType.Double: "double"}


def _cast_name(source: DataType, target: DataType) -> str:
    return f"__{_SHORT.get(source, source.ir_name)}2{_SHORT.get(target, target.ir_name)}"


def _attrs(expr: Expr) -> str:
    return ", ".join(f"{key} = {_attr(value)}" for key, value in expr.attrs)


def _attr(value: object) -> str:
    if isinstance(value, tuple):
        return "{" + ", ".join(_attr(v) for v in value) + "}"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, DataType):
        return value.ir_name
    return str(value) if isinstance(value, Scalar | int | float) else repr(value)
