"""Invariants of a fusion's graph."""

from collections.abc import Sequence

from fuser_lab.errors import VerificationError
from fuser_lab.ir.domain import allocation_of
from fuser_lab.ir.expr import Expr
from fuser_lab.ir.scalar import Scalar
from fuser_lab.ir.val import TensorView, Val


def verify_graph(inputs: Sequence[Val], exprs: Sequence[Expr], outputs: Sequence[TensorView]) -> None:
    """Check topological order, single assignment, unique names and produced outputs.

    Raises
    ------
    VerificationError
        Naming the expression and the value that break the rule.
    """
    defined: dict[str, Val] = {}

    def declare(value: Val) -> None:
        defined[value.name] = value
        if isinstance(value, TensorView) and value.domain.sizes is None:
            # The sizes of a tensor can be read wherever the tensor can be.
            defined.update((e.name, e) for e in value.extents if isinstance(e, Scalar))

    for value in inputs:
        if value.name in defined and isinstance(value, TensorView):
            raise VerificationError(f"input {value.name} appears twice among the inputs.")
        declare(value)
    for expr in exprs:
        for value in expr.inputs:
            if isinstance(value, Scalar) and value.value is not None:
                continue
            there = defined.get(value.name)
            if there is value:
                continue
            if there is None:
                msg = f"{expr.op.name} reads {value.name}, which is neither an input nor produced before it."
                raise VerificationError(msg)
            if there != value:
                msg = f"{expr.op.name} reads a value called {value.name} that is not the one produced under this name."
                raise VerificationError(msg)
        for value in expr.outputs:
            if value.name in defined:
                raise VerificationError(f"{expr.op.name} produces {value.name}, which already exists.")
            declare(value)
    for value in outputs:
        there = defined.get(value.name)
        if there is not value and there != value:
            raise VerificationError(f"output {value.name} is neither an input nor produced by an expression.")


def verify_stride_orders(
    stride_orders: Sequence[tuple[TensorView, tuple[int, ...]]], outputs: Sequence[TensorView],
) -> None:
    """Check that required layouts are those of outputs.

    Raises
    ------
    VerificationError
        Naming the tensor that has another layout, or is not an output.
    """
    for tensor, ranks in stride_orders:
        if tensor not in outputs:
            raise VerificationError(f"the layout {ranks} is required of {tensor.name}, which is not an output.")
        if tensor.domain.allocation != allocation_of(ranks):
            order = tensor.domain.allocation_order
            msg = f"the layout {ranks} is required of {tensor.name}, whose axes have the order {order}."
            raise VerificationError(msg)
