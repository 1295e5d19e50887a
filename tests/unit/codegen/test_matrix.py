"""Every scheduler in every dtype on awkward shapes and layouts, in lock step, with poisoned outputs."""

from typing import Any

import numpy as np
import pytest
from backend.fusions import D, close
from backend.matrix import DTYPES, RECORDS, Form, elements, forms, fusion_of
from thorough import THOROUGH

from fuser_lab.codegen.kernel_eval import evaluate_kernel
from fuser_lab.codegen.kernel_ir import dense_strides, layout_of
from fuser_lab.interpreter import evaluate
from fuser_lab.runtime.arrays import flat_view, storage_dtype
from tests.kernels import lower


def check(name: str, form: Form, dtype: D, target: str) -> None:
    fusion, scheduler = fusion_of(name, form, dtype)
    x = form.view(elements(form, dtype))
    (tensor,) = fusion.tensor_inputs
    strides = tuple(s // x.itemsize for s in x.strides) if x.size else None
    address = (x.ctypes.data - x.base.ctypes.data if x.base is not None else 0) | 16
    kernel = lower(
        fusion, scheduler, target, "kernel", {tensor.name: strides} if strides else {},
        {tensor.name: address & -address},
    )
    layout = layout_of(tensor, strides)
    memory: dict[str, Any] = {tensor.name: flat_view(x, dtype, layout.size, layout.offset)}
    for tv in fusion.outputs:
        memory[tv.name] = np.full(layout_of(tv).size, 77).astype(storage_dtype(tv.dtype))
    writes = evaluate_kernel(kernel, memory).writes
    for tv, b in zip(fusion.outputs, evaluate(fusion, [x], exact=False), strict=True):
        assert (writes[tv.name] == 1).all(), f"{tv.name} is not written exactly once"
        flat = memory[tv.name]
        steps = [s * tv.dtype.itemsize for s in dense_strides(tv)]
        a = np.ndarray(tv.shape, tv.dtype.numpy, buffer=flat, strides=steps) if flat.size else np.empty(
            tv.shape, tv.dtype.numpy,
        )
        close(a, np.asarray(b).astype(tv.dtype.numpy), tv.dtype)


@pytest.mark.parametrize("target", ["cpu", "cuda"])
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.name)
@pytest.mark.parametrize("name", RECORDS)
def test_agrees_with_float64(name: str, dtype: D, target: str) -> None:
    """`make test` tries a third of the forms of each dtype; `make test-all` tries all combinations."""
    known = list(forms(dtype, large=False))
    for form in known if THOROUGH else known[DTYPES.index(dtype) % 3 :: 3]:
        try:
            check(name, form, dtype, target)
        except (AssertionError, IndexError) as error:
            msg = f"{form.name}: {error}"
            raise AssertionError(msg) from None
