"""Reads at positions given as data on a GPU: correct inside the operand, harmless outside."""

from typing import Any

import numpy as np
import pytest
from backend.fusions import close
from backend.lookups import LOOKUPS, Lookup
from needs import needs

from fuser_lab.api.functions import FusionDefinition
from fuser_lab.dtypes import DataType
from fuser_lab.errors import InputError
from fuser_lab.interpreter import evaluate
from fuser_lab.runtime.arrays import from_numpy_as, to_numpy
from tests.kernels import prepare

torch = needs("torch")
pytestmark = pytest.mark.gpu


def on_gpu(x: np.ndarray) -> Any:
    return from_numpy_as("torch", np.ascontiguousarray(x).reshape(x.shape)).cuda()


@pytest.mark.parametrize("lookup", LOOKUPS, ids=lambda x: x.name)
def test_agrees_with_the_reference(lookup: Lookup) -> None:
    fusion, inputs = lookup.fusion(), lookup.inputs()
    plan = prepare(fusion, [(fusion, lookup.scheduler)], "cuda", allow_fallback=False)
    for got, wanted, tv in zip(plan.run([on_gpu(x) for x in inputs]), evaluate(fusion, inputs), fusion.outputs,
                               strict=True):
        close(to_numpy(got), wanted, tv.dtype)


def test_positions_outside_on_the_device_give_zero() -> None:
    lookup = next(x for x in LOOKUPS if x.name == "rows")
    fusion, (x, index) = lookup.fusion(), lookup.inputs()
    plan = prepare(fusion, [(fusion, lookup.scheduler)], "cuda", allow_fallback=False)
    wrong = np.where(np.arange(len(index)) % 2, -1, 1 << 40)
    (got,) = plan.run([on_gpu(x), on_gpu(wrong)])
    np.testing.assert_array_equal(to_numpy(got), np.ones(got.shape))  # exp of 0
    with pytest.raises(InputError, match="index_select: the index T1 has the value"):
        plan.run([x, wrong])


def test_what_torch_evaluates_leaves_the_device_usable() -> None:
    with FusionDefinition() as fd:
        x, i = fd.define_tensor([-1, -1], True), fd.define_tensor([-1, -1], True, DataType.Int)
        fd.add_output(fd.ops.gather(x, i, 1))
    x = torch.randn(8, 16, device="cuda")
    with pytest.raises(InputError, match="gather: index has the value 16, out of range"):
        fd.execute([x, torch.full((8, 3), 16, device="cuda")])
    index = torch.randint(0, 16, (8, 3), device="cuda")
    torch.testing.assert_close(fd.execute([x, index])[0], torch.gather(x, 1, index))
