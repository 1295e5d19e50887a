"""Examples on a GPU as a user runs them; `test_kinds.py` compares each under every strategy with float64."""

from typing import Any

import numpy as np
import pytest
from needs import needs

import fuser_lab as fl
from fuser_lab.runtime.arrays import from_numpy_as, to_numpy

torch = needs("torch")
pytestmark = pytest.mark.gpu


def on_gpu(value: Any) -> Any:
    return from_numpy_as("torch", value).cuda() if isinstance(value, np.ndarray) else value


@pytest.mark.parametrize("name", fl.examples.names())
def test_results_lie_where_the_inputs_do(name):
    fd, arrays = fl.example(name)
    outputs = fl.segment(fd, arrays).run([on_gpu(x) for x in arrays])
    assert all(x.is_cuda for x in outputs)
    assert fl.examples.get(name).max_error(arrays, [to_numpy(x) for x in outputs]) < 1


def test_times_on_a_gpu_say_so():
    fd, arrays = fl.example("sum_broadcast_add")
    inputs = [on_gpu(x) for x in arrays]
    plan = fl.segment(fd, inputs)
    times = fl.time([plan, plan.cut("T2")], inputs, progress=False, seconds=0.1)
    assert "CUDA" in times.rows[0].timer
    assert "CPU" not in times.rows[0].device
    assert all(row.median > 0 for row in times.rows)


def test_definitions_execute_on_the_device_of_their_inputs():
    fd, arrays = fl.example("layer_norm")
    on_device = fd.execute([on_gpu(x) for x in arrays])
    on_host = fd.execute(arrays)
    for a, b in zip(on_device, on_host, strict=True):
        np.testing.assert_allclose(to_numpy(a).astype(np.float64), b.astype(np.float64), rtol=2e-2, atol=2e-2)
