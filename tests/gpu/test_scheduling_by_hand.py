"""Schedules by hand on a GPU: the kernels that run in lock step elsewhere, with real threads and barriers."""

import pytest
from hand_schedules import (
    CASES,
    TOLERANCE,
    MemoryType,
    arrays,
    bound,
    column_sum,
    pointwise,
    row_sum,
    softmax,
    transpose,
)
from needs import needs

from fuser_lab.dtypes import DataType
from fuser_lab.interpreter import evaluate

torch = needs("torch")
pytestmark = pytest.mark.gpu


def check(fd, inputs, dtype=DataType.Float):
    fusion = bound(fd, inputs)
    given = [torch.from_numpy(x).cuda() for x in inputs]
    first, second = fd.manual_execute(given), fd.manual_execute(given)
    for a, b, wanted in zip(first, second, evaluate(fusion, inputs, exact=False), strict=True):
        assert a.is_cuda
        assert torch.equal(a, b), "two runs differ"
        expected = torch.from_numpy(wanted)
        allowed = TOLERANCE[dtype] * max(float(expected.abs().max()), 1.0)
        torch.testing.assert_close(a.cpu().double(), expected.double(), rtol=0, atol=allowed)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_values(case):
    check(case.build(), arrays(case.shapes[1], case.dtype), case.dtype)


@pytest.mark.parametrize(
    ("build", "shapes"),
    [
        (pointwise, [(2048, 1500), (1500,)]),
        (lambda: row_sum(threads=256), [(700, 20000)]),
        (column_sum, [(3001, 517)]),
        (lambda: softmax(MemoryType.shared, 256), [(300, 4001)]),
        (transpose, [(1111, 2300)]),
    ],
    ids=["pointwise", "row sum", "column sum", "softmax", "transpose"],
)
def test_more_blocks_than_fit_at_a_time(build, shapes):
    check(build(), arrays(shapes))


def test_addresses_that_forbid_vectors():
    fd = pointwise()
    base = torch.randn(8 * 32 + 1, device="cuda")
    bias = torch.randn(32, device="cuda")
    for view in (base[1:].reshape(8, 32), base[:-1].reshape(8, 32), base[:-1].reshape(32, 8).T):
        torch.testing.assert_close(fd.manual_execute([view, bias])[0], torch.relu(view + bias))
