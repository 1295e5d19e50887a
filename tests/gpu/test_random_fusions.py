"""Random fusions over all ops on a real GPU: the fuzzer's programs, with torch tensors."""

import warnings

import numpy as np
import pytest
from needs import needs

from fuser_lab.codegen.kernel_ir import dense_strides
from fuser_lab.errors import EvaluationWarning
from fuser_lab.runtime.arrays import to_numpy
from fuser_lab.runtime.evaluate import origins_of
from tests import agreement
from tests.campaign import Trial
from tests.fuzz.check import Checked
from tests.fuzz.runner import draw
from tests.on_gpu import on_gpu

needs("torch")
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore::numpy.exceptions.ComplexWarning")]

SEED, BATCHES, SIZE = 41, 24, 10


@pytest.mark.parametrize("batch", range(BATCHES))
def test_agrees_with_the_reference(batch: int) -> None:
    for index in range(batch * SIZE, (batch + 1) * SIZE):
        checked = Checked(draw(Trial(seed=SEED, number=index, compiled=True)))
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
