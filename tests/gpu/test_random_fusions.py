"""Random fusions over all ops on a real GPU: the fuzzer's programs, with torch tensors."""

import warnings
from typing import Any

import numpy as np
import pytest
from needs import needs

from fuser_lab.codegen.layout import dense_strides
from fuser_lab.errors import EvaluationWarning
from fuser_lab.runtime.arrays import from_numpy_as, to_numpy
from fuser_lab.runtime.evaluate import origins_of
from tests import agreement
from tests.fuzz.check import Checked
from tests.fuzz.runner import made

torch = needs("torch")
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore::numpy.exceptions.ComplexWarning")]

SEED, BATCHES, SIZE = 41, 24, 10


def on_gpu(x: Any) -> Any:
    """The array on the GPU with its strides, which torch requires to be 0 or more; numbers are unchanged."""
    if not isinstance(x, np.ndarray):
        return x
    dense = from_numpy_as("torch", np.require(x, requirements=("C", "W"))).cuda()
    steps = [s // x.itemsize for s in x.strides]
    return dense if any(s < 0 for s in steps) else _placed(dense, steps)


def _placed(dense: Any, steps: list[int]) -> Any:
    """Return a tensor with these strides and the elements of a dense one."""
    if not dense.numel():
        return dense
    size = 1 + sum((n - 1) * s for n, s in zip(dense.shape, steps, strict=True))
    target = torch.empty(size, dtype=dense.dtype, device="cuda").as_strided(dense.shape, steps)
    once = [slice(0, 1) if s == 0 else slice(None) for s in steps]
    target[tuple(once)] = dense[tuple(once)]
    return target


@pytest.mark.parametrize("batch", range(BATCHES))
def test_agrees_with_the_reference(batch: int) -> None:
    for index in range(batch * SIZE, (batch + 1) * SIZE):
        program, analysis = made(SEED, index, compiled=True)
        checked = Checked(program, analysis)
        plan = checked.fd.plan_for(checked.inputs)
        origins = origins_of(plan.fusion)
        given = [on_gpu(x) for x in checked.inputs]
        with warnings.catch_warnings():
            warnings.simplefilter("error", EvaluationWarning)
            got = iter(plan.run(given))
        for position, tv in enumerate(plan.fusion.outputs):
            if tv in plan.fusion.hidden:
                continue
            a = next(got)
            agreement.near(
                to_numpy(a), checked.wanted[position], checked.allowed[position], f"{tv.name} of {SEED}, {index}",
            )
            # Without a tensor input, results are NumPy arrays.
            if tv not in origins and not isinstance(a, np.ndarray):
                sized = [i for i, n in enumerate(a.shape) if n > 1 and a.numel()]
                assert [a.stride()[i] for i in sized] == [dense_strides(tv)[i] for i in sized]
