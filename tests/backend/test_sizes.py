"""One compiled kernel for many sizes: right for each of them, and a new size compiles nothing."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fuser_lab as fl
from fuser_lab.runtime import cpu_kernels


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """The names of kernels that are compiled, starting with an empty disk cache."""
    names: list[str] = []
    real = cpu_kernels.compile_kernel

    def counted(definition: cpu_kernels.Definition) -> cpu_kernels.MachineCode:
        names.append(definition.function.__name__)
        return real(definition)

    monkeypatch.setenv("FUSER_LAB_CACHE", str(tmp_path))
    monkeypatch.setattr(cpu_kernels, "compile_kernel", counted)
    return names


def defined(rank: int, record: Callable[[Any, Any], Any]) -> fl.FusionDefinition:
    with fl.FusionDefinition() as fd:
        fd.add_output(record(fd, fd.define_tensor([-1] * rank, contiguity=True, dtype=fl.DataType.Float)))
    return fd


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True, initial=-np.inf))
    return e / e.sum(-1, keepdims=True)


def test_new_batch_sizes_of_a_softmax_compile_nothing(compiled: list[str]) -> None:
    fd = defined(2, lambda fd, x: fd.ops.softmax(x, -1))
    columns = 37  # that no other test has
    numbers = np.random.default_rng(0).standard_normal((60_000, columns), np.float32)
    for rows in (0, 1, 2, 3, 64, 127, 128, 1000, 4096, 8191, 8192, 60_000):
        (got,) = fd.execute([numbers[:rows]])
        np.testing.assert_allclose(got, softmax(numbers[:rows]), rtol=2e-5, atol=1e-7)
    known = len(compiled)
    assert known <= 6
    for rows in (5, 17, 97, 771, 1999, 5003, 9001, 59_999):
        (got,) = fd.execute([numbers[:rows]])
        np.testing.assert_allclose(got, softmax(numbers[:rows]), rtol=2e-5, atol=1e-7)
    assert len(compiled) == known


@pytest.mark.parametrize(("rank", "record", "right"), [
    (2, lambda fd, x: fd.ops.softmax(x, -1), softmax),
    (2, lambda fd, x: fd.ops.sum(x, [0]), lambda x: x.sum(0)),
    (3, lambda fd, x: fd.ops.neg(fd.ops.permute(x, [0, 2, 1])), lambda x: -x.transpose(0, 2, 1)),
    (3, lambda fd, x: fd.ops.sub(x, fd.ops.mean(x, [0], True)), lambda x: x - x.mean(0)),
], ids=["softmax", "column sums", "transpose", "difference from a mean"])
def test_new_lengths_of_every_axis_compile_few_kernels(
    rank: int, record: Callable[[Any, Any], Any], right: Callable[[Any], Any], compiled: list[str],
) -> None:
    fd = defined(rank, record)
    random = np.random.default_rng(0)
    lengths = [int(n) for n in random.choice(np.arange(17, 90), 40, replace=False)]
    for first, last in itertools.pairwise(lengths):
        x = random.standard_normal((first, *([33] * (rank - 2)), last), np.float32)
        (got,) = fd.execute([x])
        np.testing.assert_allclose(got, right(x), rtol=2e-5, atol=1e-5)
    assert len(compiled) <= 20


def test_a_sum_of_all_takes_its_sizes_and_counts_as_arguments(compiled: list[str]) -> None:
    fd = defined(2, lambda fd, x: fd.ops.mean(x, [0, 1]))
    numbers = np.random.default_rng(0).standard_normal((9001, 41), np.float32)
    for rows in (3, 5, 90, 5001, 9001):
        (got,) = fd.execute([numbers[:rows]])
        np.testing.assert_allclose(got, numbers[:rows].mean(dtype=np.float64), rtol=1e-4, atol=1e-6)
    assert len(compiled) <= 6
    known = len(compiled)
    for rows in (4, 7, 80, 8999):
        (got,) = fd.execute([numbers[:rows]])
        np.testing.assert_allclose(got, numbers[:rows].mean(dtype=np.float64), rtol=1e-4, atol=1e-6)
    assert len(compiled) == known


def test_plans_of_two_sizes_keep_their_own_arguments() -> None:
    fd = defined(2, lambda fd, x: fd.ops.relu(x))
    small, large = np.full((301, 39), 2, np.float32), np.full((60_001, 39), 3, np.float32)
    plans = [fl.segment(fd, [x]).prepare("cpu") for x in (small, large)]
    outs = [plan.run([x]) for plan, x in zip(plans, (small, large), strict=True)]
    for _ in range(2):  # the second time from the cache of the first
        for plan, x, out in zip(plans, (small, large), outs, strict=True):
            out[0].fill(0)
            plan.run([x], out)
            assert (out[0] == x).all()
