"""Kernels with equal code but different launches or element types are not exchanged."""

import numpy as np
import pytest
from backend.fusions import D, S, build, numbers
from needs import needs

from fuser_lab.interpreter import evaluate
from fuser_lab.runtime.arrays import from_numpy_as, to_numpy
from tests.kernels import prepare

torch = needs("torch")
pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtypes", [(D.Float, D.Double), (D.Int, D.Int32), (D.Half, D.BFloat16)])
def test_sizes_and_types_in_one_process(dtypes):
    for shape in ((512,), (4096,), (100_000,), (7,)):
        for dtype in dtypes:
            fusion = build(lambda fd, x: fd.ops.relu(x), [shape], dtype)
            x = numbers(shape, dtype)
            out = from_numpy_as("torch", np.full(shape, 77).astype(dtype.numpy)).cuda()
            prepare(fusion, [(fusion, S.POINTWISE)], "cuda").run([from_numpy_as("torch", x).cuda()], [out])
            np.testing.assert_array_equal(to_numpy(out), evaluate(fusion, [x])[0])
