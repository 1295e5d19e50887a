"""One expression as a line of text."""


from fuser_lab.dtypes import DataType
from fuser_lab.ir import Expr, Scalar
from fuser_lab.report.identity_cache import cached_by_identity


@cached_by_identity
def expr_text(expr: Expr) -> str:
    """Return the expression as one line, such as ``T2 = sum(T0, dims=(1,))``."""
    results = ", ".join(v.name for v in expr.outputs)
    operands = [_operand(v) for v in expr.inputs]
    operands += [f"{key}={_operand(value)}" for key, value in expr.attrs]
    return f"{results} = {expr.op.name}({', '.join(operands)})"


def _operand(value: object) -> str:
    if isinstance(value, Scalar):
        return value.name if value.value is None else _operand(value.value)
    if isinstance(value, DataType):
        return value.name
    if isinstance(value, tuple):
        return f"[{', '.join(map(_operand, value))}]"
    if isinstance(value, float):
        return f"{value:g}"
    return str(getattr(value, "name", value))
