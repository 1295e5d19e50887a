"""GPU kernels of elements in which both halves of a row need the same elements, in lock step."""

from typing import Any

import pytest
from backend.fusions import D, S, build, numbers
from unit.codegen.test_gpu_reductions import check

from fuser_lab.codegen.kernel_ir import Role, VectorLoad, VectorStore, every_term, walk
from fuser_lab.dtypes import DataType
from fuser_lab.ir.term import Apply


def rotated(fd: Any, x: Any, angles: Any) -> Any:
    """The rotation of an embedding, whose pairs are an element of the first half and one of the second half."""
    rows, n = x.size(0), x.size(1)
    a, b = fd.ops.slice(x, [0, 0], [rows, n // 2]), fd.ops.slice(x, [0, n // 2], [rows, n])
    c, s = fd.ops.cos(angles), fd.ops.sin(angles)
    first = fd.ops.sub(fd.ops.mul(a, c), fd.ops.mul(b, s))
    return fd.ops.cat([first, fd.ops.add(fd.ops.mul(b, c), fd.ops.mul(a, s))], 1)


@pytest.mark.parametrize("shape", [(700, 64), (331, 1000), (260, 100)], ids=str)
@pytest.mark.parametrize("dtype", [D.Float, D.BFloat16], ids=lambda d: d.name)
def test_a_rotation_reads_each_element_and_computes_each_function_once(
    shape: tuple[int, int], dtype: DataType, monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fuser_lab.codegen.gpu_element_facts._CACHED", 0)  # the inputs are small
    inputs = [numbers(shape, dtype), numbers((shape[0], shape[1] // 2), dtype)]
    kernel = check(build(rotated, [x.shape for x in inputs], dtype), S.RESIZE, inputs)
    statements = [s for phase in kernel.phases for s in walk(phase.body)]
    loads = [s for s in statements if isinstance(s, VectorLoad) and s.buffer.role is Role.INPUT]
    functions = [t.fn for s in statements for t in every_term(s) if isinstance(t, Apply) and t.fn in {"cos", "sin"}]
    assert len(loads) == 3  # two of the rows, one of the angles
    assert len([s for s in statements if isinstance(s, VectorStore)]) == 2
    assert sorted(functions) == ["cos", "sin"]


def test_halves_that_need_other_elements_are_computed_by_other_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fuser_lab.codegen.gpu_element_facts._CACHED", 0)
    shape = (300, 64)
    inputs = [numbers(shape, D.Float) for _ in range(2)]

    def joined(fd: Any, x: Any, y: Any) -> Any:
        return fd.ops.cat([fd.ops.neg(x), fd.ops.exp(y)], 1)

    kernel = check(build(joined, [shape, shape], D.Float), S.RESIZE, inputs)
    assert kernel.nests[0].space.halves == 1
