"""Copies in host memory between arrays whose fastest axes differ, which kernels make."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from needs import needs

import fuser_lab as fl
from fuser_lab import DataType, FusionDefinition
from fuser_lab.runtime.cpu import copies, host
from fuser_lab.runtime.cpu.copies import copy_transposed
from fuser_lab.runtime.cpu.host import HostMemory

DTYPES = [np.bool_, np.int8, np.float16, np.float32, np.float64, np.complex64, np.complex128]


def bits(shape: tuple[int, ...], dtype: Any) -> Any:
    """An array whose elements have random bits, those of NaN among them."""
    kind = np.dtype(dtype)
    words = np.random.default_rng(3).integers(0, 256, (*shape[:-1], shape[-1] * kind.itemsize), np.uint8)
    return (words % 2 if kind == np.bool_ else words).view(kind)


# Sources and targets of equal shapes.
CROSSED: dict[str, Callable[[Any], tuple[Any, Any]]] = {
    "transposed": lambda t: (bits((307, 401), t).T, bits((401, 307), t)),
    "into transposed": lambda t: (bits((307, 401), t), bits((401, 307), t).T),
    "channels last": lambda t: (bits((5, 9, 31, 64), t), bits((5, 31, 64, 9), t).transpose(0, 3, 1, 2)),
    "reversed axes": lambda t: (bits((40, 3, 50, 20), t), bits((20, 50, 3, 40), t).T),
    "slices": lambda t: (bits((300, 810), t)[3:-4, ::2].T, bits((405, 400), t)[:, 5:298]),
    "ones": lambda t: (bits((307, 1, 401), t).T, bits((401, 1, 307), t)),
    "expanded": lambda t: (np.broadcast_to(bits((90, 95), t).T, (9, 95, 90)), bits((9, 95, 90), t)),
}


@pytest.mark.parametrize("name", CROSSED)
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.__name__)
def test_kernels_copy_every_bit(name: str, dtype: Any) -> None:
    source, target = CROSSED[name](dtype)
    whole = target if target.base is None else target.base
    before = whole.copy()
    assert copy_transposed(target, source)
    inside = np.ascontiguousarray(target)
    np.testing.assert_array_equal(inside.view(np.uint8), np.ascontiguousarray(source).view(np.uint8))
    if name == "slices":
        for beside in (slice(5), slice(298, None)):
            same = (np.ascontiguousarray(a[:, beside]).view(np.uint8) for a in (whole.view(dtype), before.view(dtype)))
            np.testing.assert_array_equal(*same)


# Copies that are not faster with a kernel, or that kernels cannot make.
LEFT: dict[str, Callable[[], tuple[Any, Any]]] = {
    "the same fastest axis": lambda: (bits((30, 40, 50), "f4").transpose(1, 0, 2), bits((40, 30, 50), "f4")),
    "few bytes": lambda: (bits((90, 90), "f4").T, bits((90, 90), "f4")),
    "one repeated element": lambda: (np.broadcast_to(bits((400,), "f4")[:, None], (400, 300)), bits((400, 300), "f4")),
    "backward steps": lambda: (bits((307, 401), "f4").T[::-1], bits((401, 307), "f4")),
    "elements in common": lambda: (
        bits((301, 300), "f4").T, np.lib.stride_tricks.as_strided(bits((300, 310), "f4"), (300, 301), (1200, 4)),
    ),
    "elements of another size": lambda: (bits((307, 401), "V12").T, bits((401, 307), "V12")),
    "no elements": lambda: (bits((0, 401), "f4").T, bits((401, 0), "f4")),
}


@pytest.mark.parametrize("name", LEFT)
def test_the_array_library_makes_the_others(name: str) -> None:
    source, target = LEFT[name]()
    before = target.copy()
    assert not copy_transposed(target, source)
    assert target.tobytes() == before.tobytes()


@pytest.fixture
def by_kernel(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each copy between arrays that share no memory, whether a kernel made it."""
    made: list[bool] = []

    def recorded(target: Any, source: Any) -> bool:
        assert not np.shares_memory(target, source)
        made.append(copy_transposed(target, source))
        return made[-1]

    monkeypatch.setattr(host, "copy_transposed", recorded)
    return made


def test_the_library_copies_if_the_kernel_does_not_compile(
    monkeypatch: pytest.MonkeyPatch, by_kernel: list[bool],
) -> None:
    def refuse(_: object) -> None:
        msg = "cannot type this"
        raise ValueError(msg)

    monkeypatch.setattr(copies, "host_calls", refuse)
    source, target = bits((211, 409), np.int32), bits((409, 211), np.int32)
    HostMemory().copy(target, source.T)
    np.testing.assert_array_equal(target, source.T)
    assert by_kernel == [False]


def test_memory_that_overlaps_or_is_read_only_is_left_to_the_library(by_kernel: list[bool]) -> None:
    x = bits((300, 300), np.int32)
    wanted = x.T.copy()
    HostMemory().copy(x, x.T)
    np.testing.assert_array_equal(x, wanted)
    x.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        HostMemory().copy(x, wanted.T.copy().T)
    assert not by_kernel


def views(fd: FusionDefinition, x: Any) -> None:
    """A result, and a view of it."""
    y = fd.ops.mul(x, 2.0)
    fd.add_output(y)
    fd.add_output(fd.ops.permute(y, [1, 0]))


def test_a_view_of_a_result_is_copied_into_a_given_array_by_a_kernel(by_kernel: list[bool]) -> None:
    x = np.random.default_rng(0).normal(size=(301, 407)).astype(np.float32)
    with FusionDefinition() as fd:
        views(fd, fd.define_tensor([-1, -1], contiguity=True))
    prepared = fl.segment(fd, [x]).prepare("cpu")
    outs = [np.empty_like(x), np.empty((407, 301), np.float32)]
    for given in (x, 0.5 * x):
        prepared.run([given], outs)
        np.testing.assert_array_equal(outs[0], 2 * given)
        np.testing.assert_array_equal(outs[1], 2 * given.T)
    assert by_kernel == [True, True]
    first, second = prepared.run([x])
    assert first.flags.c_contiguous
    assert second.T.flags.c_contiguous  # in the order in which a copy is fast
    assert by_kernel == [True, True, False]


def test_a_view_of_an_input_is_copied_once_unless_its_memory_is_written(
    monkeypatch: pytest.MonkeyPatch, by_kernel: list[bool],
) -> None:
    copied: list[Any] = []
    copy = HostMemory.copy

    def counted(memory: HostMemory, target: Any, source: Any) -> None:
        copied.append(target)
        copy(memory, target, source)

    monkeypatch.setattr(HostMemory, "copy", counted)
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True, dtype=DataType.Float)
        fd.add_output(fd.ops.permute(x, [1, 0]))
    x = np.random.default_rng(0).normal(size=(350, 350)).astype(np.float32)
    prepared, wanted, out = fl.segment(fd, [x]).prepare("cpu"), x.T.copy(), np.empty_like(x)
    assert np.shares_memory(prepared.run([x])[0], x)
    assert not copied
    assert prepared.run([x], [out])[0] is out
    np.testing.assert_array_equal(out, wanted)
    assert by_kernel == [True]
    assert len(copied) == 1
    prepared.run([x], [x])
    np.testing.assert_array_equal(x, wanted)
    assert len(copied) == 3


def test_copies_into_tensors_of_torch_are_made_by_kernels_where_copy_would_do_the_same(by_kernel: list[bool]) -> None:
    torch = needs("torch")
    x = torch.randn(300, 310).bfloat16()
    with FusionDefinition() as fd:
        y = fd.define_tensor([-1, -1], contiguity=True, dtype=DataType.BFloat16)
        fd.add_output(fd.ops.permute(y, [1, 0]))
    prepared = fl.segment(fd, [x]).prepare("cpu")
    out = torch.zeros(310, 300, dtype=torch.bfloat16)
    version = out._version
    assert prepared.run([x], [out])[0] is out
    assert torch.equal(out, x.T)
    assert out._version == version + 1
    assert by_kernel == [True]
    leaf = torch.zeros(310, 300, dtype=torch.bfloat16, requires_grad=True)
    with pytest.raises(RuntimeError, match="leaf"):
        prepared.run([x], [leaf])
    with torch.inference_mode():
        inference = torch.zeros(310, 300, dtype=torch.bfloat16)
    with pytest.raises(RuntimeError, match="[Ii]nference"):
        prepared.run([x], [inference])
    negative = torch._neg_view(torch.zeros(310, 300, dtype=torch.bfloat16))
    prepared.run([x], [negative])
    assert torch.equal(negative.resolve_neg(), x.T)
    assert by_kernel == [True]


def test_what_an_expanded_array_has_once_in_memory_is_copied_once(monkeypatch: pytest.MonkeyPatch) -> None:
    copied = []
    copyto = np.copyto

    def counted(target: Any, source: Any, **options: Any) -> None:
        copied.append(target.size)
        copyto(target, source, **options)

    monkeypatch.setattr(np, "copyto", counted)
    source, memory = np.arange(3, dtype=np.float32), np.zeros(3, np.float32)
    HostMemory().copy(np.lib.stride_tricks.as_strided(memory, (500, 3), (0, 4)), np.broadcast_to(source, (500, 3)))
    assert copied == [3]
    np.testing.assert_array_equal(memory, source)
