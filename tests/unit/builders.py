"""Short ways to record and evaluate a fusion in tests."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fuser_lab.definition.binding import bind
from fuser_lab.definition.builder import FusionBuilder
from fuser_lab.definition.spec import TensorSpec, spec
from fuser_lab.dtypes import DataType, from_numpy
from fuser_lab.interpreter import evaluate
from fuser_lab.ir import Fusion


def record(body: Callable[[FusionBuilder], None]) -> Fusion:
    """Return the fusion that ``body`` records."""
    with FusionBuilder() as fd:
        body(fd)
    return fd.fusion


def describe(value: Any) -> Any:
    """Return the description of an array; other values unchanged."""
    return spec(value.shape, value.dtype) if isinstance(value, np.ndarray) else value


def apply(op: str, *operands: Any, exact: bool = True, **attrs: Any) -> Any:
    """Return ``fd.ops.<op>(*operands, **attrs)`` evaluated; arrays become symbolic inputs."""
    arrays = [x for x in operands if isinstance(x, np.ndarray)]
    with FusionBuilder() as fd:
        values = [
            fd.define_tensor(shape=[-1 if n != 1 else 1 for n in x.shape], dtype=from_numpy(x.dtype))
            if isinstance(x, np.ndarray)
            else x
            for x in operands
        ]
        results = getattr(fd.ops, op)(*values, **attrs)
        several = isinstance(results, tuple)
        for result in results if several else (results,):
            fd.add_output(result)
    outputs = evaluate(bind(fd.fusion, [describe(x) for x in arrays]).fusion, arrays, exact=exact)
    return outputs if several else outputs[0]


def inputs_of(*shapes: Sequence[int], dtype: DataType = DataType.Float) -> list[TensorSpec]:
    """Return abstract inputs."""
    return [spec(shape, dtype) for shape in shapes]
