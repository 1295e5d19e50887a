"""More elements than 32 bits can count, at full size: dense, and as views of stride 0 that take no memory."""

from collections.abc import Callable
from typing import Any

import pytest
from backend.fusions import D, S, build
from backend.reductions import softmax
from needs import needs

from tests.kernels import prepare

torch = needs("torch")
pytestmark = pytest.mark.gpu

ROWS, COLUMNS = 1 << 16, (1 << 15) + 8  # 2^31 + 2^19 elements
LARGEST = 12 << 30  # bytes that a test needs: its tensors, and the results of two kernels and of torch


def run(record: Any, scheduler: S, dtype: D, x: Any) -> list[Any]:
    fusion = build(record, [tuple(x.shape)], dtype)
    return prepare(fusion, [(fusion, scheduler)], "cuda", allow_fallback=False).run([x])


def test_sums_of_a_row_that_all_rows_share() -> None:
    x = torch.arange(COLUMNS, dtype=torch.int32, device="cuda").expand(ROWS, COLUMNS)
    total = COLUMNS * (COLUMNS - 1) // 2
    assert bool((run(lambda fd, t: fd.ops.sum(t, [1]), S.REDUCTION, D.Int32, x)[0] == total).all())
    columns = run(lambda fd, t: fd.ops.sum(t, [0]), S.REDUCTION, D.Int32, x)[0]
    assert torch.equal(columns, torch.arange(COLUMNS, device="cuda") * ROWS)
    assert int(run(lambda fd, t: fd.ops.sum(t, [0, 1]), S.REDUCTION, D.Int32, x)[0]) == total * ROWS


def test_sums_of_a_column_that_all_columns_share() -> None:
    x = torch.arange(ROWS, dtype=torch.int32, device="cuda").view(ROWS, 1).expand(ROWS, COLUMNS)
    rows = run(lambda fd, t: fd.ops.sum(t, [1]), S.REDUCTION, D.Int32, x)[0]
    assert torch.equal(rows, torch.arange(ROWS, device="cuda") * COLUMNS)
    columns = run(lambda fd, t: fd.ops.sum(t, [0]), S.REDUCTION, D.Int32, x)[0]
    assert bool((columns == ROWS * (ROWS - 1) // 2).all())


def test_rows_of_a_large_tensor(wait_for_memory: Callable[[int], None]) -> None:
    wait_for_memory(LARGEST)
    x = torch.zeros(ROWS, COLUMNS, dtype=torch.bfloat16, device="cuda")
    x[-1, -1] = x[ROWS // 2, 17] = x[1, 0] = 9
    (got,) = run(softmax, S.INNER_PERSISTENT, D.BFloat16, x)
    for row in (0, 1, ROWS // 2, ROWS - 2, ROWS - 1):
        torch.testing.assert_close(got[row].float(), torch.softmax(x[row].float(), 0), rtol=1e-2, atol=1e-7)
    largest = run(lambda fd, t: [fd.ops.max(t, [1]), fd.ops.max(t, [0])], S.REDUCTION, D.BFloat16, x)
    for values, places in zip(largest, ([1, ROWS // 2, ROWS - 1], [0, 17, COLUMNS - 1]), strict=True):
        assert torch.nonzero(values).flatten().tolist() == places


def test_a_large_transpose(wait_for_memory: Callable[[int], None]) -> None:
    wait_for_memory(LARGEST)
    x = torch.zeros(46_342, 46_344, dtype=torch.bool, device="cuda")
    x[::1013, ::997] = True
    x[-1, -1] = True
    assert x.numel() > 1 << 31
    turned, same = run(
        lambda fd, t: (fd.ops.permute(fd.ops.logical_not(t), [1, 0]), fd.ops.logical_not(t)), S.TRANSPOSE, D.Bool, x,
    )
    assert torch.equal(same, ~x)
    assert torch.equal(turned, ~x.t())
