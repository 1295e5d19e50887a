"""A fusion in which the position of a reshape determines how many bytes a plan moves."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fuser_lab.dtypes import DataType
from fuser_lab.examples.example import Example, Sizes
from fuser_lab.examples.pointwise import normal, wide
from fuser_lab.ops.rules import Array


def _reshape_decides(fd: Any, sizes: Sizes) -> None:
    rows, columns = sizes["rows"], sizes["columns"]
    x, y = (fd.define_tensor(shape=[rows, columns], contiguity=True, dtype=DataType.Float) for _ in range(2))
    a = fd.ops.exp(x)
    r = fd.ops.reshape(a, new_shape=[rows // 2, columns * 2])
    fd.add_output(fd.ops.add(a, y))
    fd.add_output(fd.ops.exp(a))
    fd.add_output(fd.ops.truediv(r, fd.ops.sum(r, dims=[1], keepdim=True)))


def _reshape_decides_reference(inputs: Sequence[Any], outputs: Sequence[Array]) -> list[Array]:
    del outputs
    x, y = map(wide, inputs)
    a = np.exp(x)
    r = a.reshape(a.shape[0] // 2, a.shape[1] * 2)
    return [a + y, np.exp(a), r / r.sum(axis=1, keepdims=True)]


RESHAPE_DECIDES = Example(
    name="reshape_decides",
    title="A reshape between pointwise results and a normalization",
    look_at=(
        "Bottom-up makes four segments. Top-down presegmentation that cuts at the input of the reshape makes two, with "
        "22 % fewer bytes, which is the optimum: the ops that read exp(x) directly share one kernel, and those that "
        "read it after the reshape share the other."
    ),
    full={"rows": 1024, "columns": 1024},
    small={"rows": 64, "columns": 128},
    record=_reshape_decides,
    make=lambda rng, s: [0.25 * normal(rng, (s["rows"], s["columns"]), np.float32) for _ in range(2)],
    reference=_reshape_decides_reference,
    rtol=1e-5,
    atol=1e-6,
)
