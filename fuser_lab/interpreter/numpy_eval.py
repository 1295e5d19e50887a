"""Evaluate a fusion expression by expression with NumPy.

With ``exact=True`` results have the fusion's dtypes; arithmetic on floats of 16 and 8 bits runs in float32 and rounds
once per expression. With ``exact=False`` every real value is kept in float64 and casts between float types do nothing:
the meaning of the fusion, without rounding.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fuser_lab.dtypes import COMPUTE_NUMPY, DataType, narrow, number_of, truncate
from fuser_lab.errors import OutOfMemoryError
from fuser_lab.ir import Expr, Fusion, OpKind, Scalar, TensorView, Val
from fuser_lab.ops import OPS
from fuser_lab.ops.rules import Array
from fuser_lab.process.host_memory import check_fits


def evaluate(fusion: Fusion, inputs: Sequence[Any], *, exact: bool = True) -> tuple[Array, ...]:
    """Return the fusion's outputs, hidden ones included; an input that is overwritten and returned is the new one.

    Parameters
    ----------
    fusion
        A concretized fusion.
    inputs
        NumPy arrays and Python numbers, one per fusion input.
    exact
        Whether to keep the fusion's dtypes (see the module text).

    Raises
    ------
    OutOfMemoryError
        If there is not enough memory for the results of an expression.
    """
    arrays: dict[Val, Any] = {}
    for value, argument in zip(fusion.inputs, inputs, strict=True):
        array = number_of(argument, value.dtype) if isinstance(value, Scalar) else argument
        arrays[value] = array if exact else _widen(np.asarray(array))
    for expr in fusion.exprs:
        operands = [arrays[v] if v in arrays else constant(v) for v in expr.inputs]
        try:
            results = evaluate_expr(expr, operands, exact=exact)
        except (MemoryError, ValueError) as error:
            tensor = max(expr.tensor_outputs, key=lambda tv: tv.nbytes, default=None)
            # For sizes beyond the address space, NumPy raises ValueError.
            if tensor is None or (isinstance(error, ValueError) and tensor.nbytes < _MOST_BYTES):
                raise
            raise OutOfMemoryError(
                f"not enough host memory to evaluate {tensor.name}, {tensor.dtype.ir_name} "
                f"{list(tensor.shape)}, without a kernel: {tensor.nbytes} bytes are needed for it alone."
            ) from error
        arrays.update(zip(expr.outputs, results, strict=True))
    written = {target: output for output, target in fusion.aliases}
    return tuple(np.asarray(arrays[written.get(tv, tv)]) for tv in fusion.outputs)


_MOST_BYTES = 1 << 62  # bytes that are worth requesting


def constant(value: Val) -> Any:
    """Return a constant scalar as a NumPy scalar of its dtype."""
    if not isinstance(value, Scalar) or value.value is None:
        raise KeyError(f"{value} has no value here.")
    return number_of(value.value, value.dtype)


def evaluate_expr(expr: Expr, operands: Sequence[Any], *, exact: bool = True) -> tuple[Array, ...]:
    """Return the results of one expression; views of operands where NumPy makes views."""
    entry = OPS[expr.op.name]
    attrs: Mapping[str, Any] = dict(expr.attrs)
    if not expr.kind.is_view:
        for tensor in expr.tensor_outputs:
            check_fits(tensor.nbytes)
    if expr.kind.is_view or expr.kind in _MOVES:
        if expr.kind.is_view and expr.op.name == "pad":
            operands = [operands[0], np.asarray(operands[1]).astype(operands[0].dtype)]
        results = entry.reference(*operands, **attrs)
    elif expr.op.name == "cast":
        results = _cast(expr, operands[0], exact=exact)
    else:
        with np.errstate(all="ignore"):
            selects = entry.combine is not None and entry.combine.selects
            read = _bit_operands(expr, operands) if entry.reads_bits else [
                _to_compute(x, integers=not selects) for x in operands
            ]
            results = entry.reference(*read, **attrs)
    outputs = results if isinstance(results, tuple) else (results,)
    with np.errstate(all="ignore"):  # overflow of a reduced float is infinite, without a warning
        return tuple(
            _convert(array, value, exact=exact) for array, value in zip(outputs, expr.outputs, strict=True)
        )


def _bit_operands(expr: Expr, operands: Sequence[Any]) -> list[Array]:
    """Return operands in the dtypes that they are stored in, although they may have been computed in float64."""
    return [narrow(np.asarray(x), value.dtype) for x, value in zip(operands, expr.inputs, strict=True)]


# Ops that only move elements.
_MOVES = frozenset({OpKind.FACTORY, OpKind.INDEXING, OpKind.SCATTER})


def _cast(expr: Expr, x: Any, *, exact: bool) -> Array:
    dtype, source = expr.outputs[0].dtype, expr.inputs[0].dtype
    if not exact and np.asarray(x).dtype.kind == "f":
        if dtype.is_float:
            return np.asarray(x)
        if dtype.is_integral:  # float64, whatever its dtype is
            return truncate(np.asarray(x), dtype, of_double=source.real is DataType.Double)
    with np.errstate(all="ignore"):
        return np.asarray(OPS["cast"].reference(_to_compute(x), dtype=dtype))


def _to_compute(x: Any, *, integers: bool = True) -> Any:
    """Return operands of narrow types in the type that arithmetic runs in."""
    wide = COMPUTE_NUMPY.get(getattr(x, "dtype", None))  # type: ignore[arg-type]
    return x if wide is None or (not integers and wide.kind in "iu") else np.asarray(x).astype(wide)


def _widen(x: Array) -> Array:
    if COMPUTE_NUMPY.get(x.dtype, x.dtype) == np.float32:
        return x.astype(np.float64)
    return x.astype(np.complex128) if x.dtype == np.complex64 else x


def _convert(array: Any, value: Val, *, exact: bool) -> Array:
    result = np.asarray(array)
    if isinstance(value, TensorView) and result.shape != value.shape:
        raise AssertionError(f"{value.name} evaluated to shape {result.shape}, inferred {value.shape}.")
    dtype = value.dtype.numpy
    if exact and value.dtype.is_reduced_float:
        return np.asarray(narrow(result, value.dtype))
    if not exact and value.dtype.is_float:
        dtype = np.dtype(np.float64)
    elif not exact and value.dtype.is_complex:
        dtype = np.dtype(np.complex128)
    return result if result.dtype == dtype else result.astype(dtype)
