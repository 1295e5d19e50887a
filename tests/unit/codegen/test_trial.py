"""The accesses of a nest of pointwise ops are those of its inputs and outputs: no value between them is needed."""

from typing import Any

import pytest
from backend.fusions import CASES, Case, D, S, build

from fuser_lab.codegen import nests
from fuser_lab.ir import Fusion
from tests.kernels import lower

READ_IN_PLACE = nests._read_in_place


def shared_values(fd: Any, x: Any, row: Any, y: Any) -> Any:
    """Outputs that are operands of others, read inputs of others first, and read one input twice."""
    o = fd.ops
    first = o.mul(x, row)
    second = o.where(o.gt(first, y), o.exp(first), o.sub(y, x))
    return o.add(second, y), first, o.neg(second), o.cast(o.gt(x, 0.5), D.Bool)


CHOSEN = [case for case in CASES if case.scheduler in {S.POINTWISE, S.TRANSPOSE, S.RESIZE}]


@pytest.mark.parametrize("target", ["cpu", "cuda"])
@pytest.mark.parametrize("case", CHOSEN, ids=lambda case: case.name)
def test_kernels_are_the_same_if_all_values_are_computed(
    case: Case, target: str, monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert lowered(case.fusion(), case.scheduler, target, monkeypatch, None) == lower(
        case.fusion(), case.scheduler, target, "kernel", {},
    )


@pytest.mark.parametrize("target", ["cpu", "cuda"])
@pytest.mark.parametrize("shape", [(7, 33), (64, 1024)], ids=str)
def test_outputs_that_other_outputs_use(
    shape: tuple[int, int], target: str, monkeypatch: pytest.MonkeyPatch,
) -> None:
    fusion = build(shared_values, [shape, (1, shape[1]), shape], D.BFloat16)
    found: list[Any] = []
    short = lowered(fusion, S.POINTWISE, target, monkeypatch, found)
    assert short == lowered(fusion, S.POINTWISE, target, monkeypatch, None)
    assert [[tv.name for tv in read] for read in found[0].values()] == [["T0", "T1", "T2"], [], [], []]


def test_views_and_reductions_are_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    for record, scheduler in (
        (lambda fd, x: fd.ops.add(fd.ops.permute(x, [1, 0]), 1.0), S.POINTWISE),
        (lambda fd, x: fd.ops.sum(x, [1]), S.REDUCTION),
    ):
        found: list[Any] = []
        lowered(build(record, [(6, 10)], D.Float), scheduler, "cpu", monkeypatch, found)
        assert found
        assert not any(found)


def lowered(
    fusion: Fusion, scheduler: S, target: str, monkeypatch: pytest.MonkeyPatch, found: list[Any] | None,
) -> Any:
    """A kernel; ``found`` gets what is read in place, and is None for kernels whose nests compute all values."""
    def read(*given: Any) -> Any:
        if found is None:
            return None
        found.append(READ_IN_PLACE(*given))
        return found[-1]

    with monkeypatch.context() as patch:
        patch.setattr(nests, "_read_in_place", read)
        return lower(fusion, scheduler, target, "kernel", {})
