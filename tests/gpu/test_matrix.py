"""Every scheduler in every dtype on awkward shapes and layouts on a GPU, twice, into poisoned outputs."""

from typing import Any

import numpy as np
import pytest
from backend.fusions import D, close
from backend.matrix import DTYPES, RECORDS, Form, elements, forms, fusion_of
from gpu.kinds import placed, twice
from needs import needs

from fuser_lab.interpreter import evaluate
from tests.kernels import prepare

torch = needs("torch")
pytestmark = pytest.mark.gpu


def check(name: str, form: Form, dtype: D) -> None:
    fusion, scheduler = fusion_of(name, form, dtype)
    flat = elements(form, dtype)
    plan = prepare(fusion, [(fusion, scheduler)], "cuda", allow_fallback=False)
    got: list[Any] = twice(plan, [form.view(*placed([flat], "cuda"))])
    for tv, a, b in zip(fusion.outputs, got, evaluate(fusion, [form.view(flat)], exact=False), strict=True):
        close(a, np.asarray(b).astype(tv.dtype.numpy), tv.dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.name)
@pytest.mark.parametrize("name", RECORDS)
def test_agrees_with_float64(name: str, dtype: D) -> None:
    for form in forms(dtype, large=True):
        try:
            check(name, form, dtype)
        except AssertionError as error:
            msg = f"{form.name}: {error}"
            raise AssertionError(msg) from None
