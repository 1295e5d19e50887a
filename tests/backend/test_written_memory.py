"""What CPU kernels write overlaps nothing else that they are given: LLVM relies on it (`cpu_kernels.Definition`)."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from backend.fusions import CASES, D, S, build
from needs import needs

import fuser_lab as fl
from fuser_lab import FusionDefinition
from fuser_lab.codegen.kernel_ir import Phase, Scan, Store, walk
from fuser_lab.codegen.pipeline import GeneratedKernel
from fuser_lab.runtime.compile import defined_in
from fuser_lab.runtime.cpu import host
from fuser_lab.runtime.cpu.launcher import HostCall, host_calls
from fuser_lab.runtime.cpu_kernels import compiled_library
from tests.kernels import generate, prepare
from tests.processor import vector_instructions


def written_by(phase: Phase) -> list[int]:
    """The places of the buffers that a kernel writes to among its arguments."""
    stores = [s.buffer.name for s in walk(phase.body) if isinstance(s, Store | Scan)]
    return [place for place, buffer in enumerate(phase.buffers) if buffer.name in stores]


@pytest.fixture(autouse=True)
def checked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Check the arguments of each call of a kernel; the list has the number of checked arrays of each call."""
    seen: list[int] = []

    def checking(call: HostCall, phase: Phase) -> HostCall:
        written, count = written_by(phase), len(phase.buffers)

        def function(*values: Any) -> None:
            for place in written:
                for other in (*range(place), *range(place + 1, count)):
                    assert not np.shares_memory(values[place], values[other]), (phase.name, place, other)
            seen.append(len(written))
            call.function(*values)

        return replace(call, function=function)

    def calls(generated: GeneratedKernel) -> tuple[HostCall, ...]:
        found = zip(host_calls(generated), generated.kernel_ir.phases, strict=True)
        return tuple(checking(call, phase) for call, phase in found)

    monkeypatch.setattr(host, "host_calls", calls)
    return seen


def definition(record: Callable[..., Any], *arrays: Any) -> FusionDefinition:
    """A definition of matrices with any strides."""
    with FusionDefinition() as fd:
        contiguity = [[None if n == 1 else False for n in x.shape] for x in arrays]
        record(fd, *(fd.define_tensor(list(x.shape), contiguity=c) for x, c in zip(arrays, contiguity, strict=True)))
    return fd


def in_place(fd: FusionDefinition, x: Any, y: Any) -> None:
    """A value written over an input, one that is also returned, and one computed from both."""
    o = fd.ops
    total = o.add(x, y)
    fd.add_output(total, x)
    fd.add_output(o.mul(total, o.sum(x, dims=[1], keepdim=True)))


def averages(fd: FusionDefinition, x: Any, mean: Any) -> None:
    """Running statistics: those of a batch, mixed into an input."""
    o = fd.ops
    fd.add_output(o.add(o.mul(mean, 0.9), o.mul(o.mean(x, dims=[0], keepdim=True), 0.1)), mean)
    fd.add_output(o.sub(x, mean))


def several(fd: FusionDefinition, x: Any, y: Any) -> None:
    """Several segments, whose intermediates have memory in common at different times, and shapes of one of them."""
    o = fd.ops
    square = o.matmul(x, y)
    first = o.neg(o.reshape(o.neg(square), [4, 16]))
    total = o.sum(o.exp(square), dims=[0], keepdim=True)
    fd.add_output(o.reshape(first, [8, 8]))
    fd.add_output(o.sum(o.matmul(o.add(square, total), y), dims=[1]))
    fd.add_output(o.reshape(o.permute(square, dims=[1, 0]), [64]))


def simple(fd: FusionDefinition, x: Any, y: Any) -> None:
    fd.add_output(fd.ops.add(x, fd.ops.mul(y, 2.0)))


V = np.linspace(-1, 1, 1000, dtype=np.float32)
GIVEN: dict[str, Callable[[Any], tuple[list[Any], list[Any]]]] = {  # inputs and outputs in one array
    "apart": lambda v: ([at(v, 0), at(v, 100)], [at(v, 200)]),
    "one input twice": lambda v: ([at(v, 0), at(v, 0)], [at(v, 100)]),
    "inputs overlap": lambda v: ([at(v, 0), at(v, 24)], [at(v, 100)]),
    "over an input": lambda v: ([at(v, 0), at(v, 100)], [at(v, 0)]),
    "behind an input": lambda v: ([at(v, 8), at(v, 100)], [at(v, 0)]),
    "ahead of an input": lambda v: ([at(v, 0), at(v, 100)], [at(v, 8)]),
    "between the rows of an input": lambda v: ([v[:128].reshape(8, 16)[:, :8], at(v, 200)],
                                               [v[:128].reshape(8, 16)[:, 8:]]),
    "over a transposed input": lambda v: ([at(v, 0).T, at(v, 100)], [at(v, 0)]),
}


def at(v: Any, start: int) -> Any:
    return v[start : start + 64].reshape(8, 8)


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("name", GIVEN)
def test_arrays_of_the_caller(name: str, library: str, checked: list[int]) -> None:
    v = needs("torch").from_numpy(V.copy()) if library == "torch" else V.copy()
    apart, names = GIVEN["apart"](v), (name, "apart", name, name)
    prepared = fl.segment(definition(simple, *apart[0]), apart[0]).prepare("cpu")
    for one in names:  # the arrays of a run replace those of the last one, if they are as far apart
        inputs, out = GIVEN[one](v)
        x, y = (np.asarray(value).copy() for value in inputs)
        prepared.run(inputs, out)
        np.testing.assert_allclose(np.asarray(out[0]), x + 2 * y, rtol=1e-6)
    assert len(checked) >= len(names)


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("record", [in_place, averages], ids=lambda record: record.__name__)
def test_inputs_that_are_written_over(record: Callable[..., None], library: str, checked: list[int]) -> None:
    x, second = at(V, 0), V[64:72].reshape(1, 8) if record is averages else at(V, 64)
    fd = definition(record, x, second)
    wanted = fd.reference([x.copy(), second.copy()])
    given = [x.copy(), second.copy()]
    if library == "torch":
        given = [needs("torch").from_numpy(value) for value in given]
    got = fl.segment(fd, given).prepare("cpu").run(given)
    for a, b in zip(got, wanted, strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-5, atol=1e-6)
    changed = given[0] if record is in_place else given[1]
    assert not np.array_equal(np.asarray(changed), x if record is in_place else second)
    assert checked


def test_memory_between_segments(checked: list[int]) -> None:
    fd = definition(several, at(V, 0), at(V, 0))
    prepared = fl.segment(fd).prepare("cpu")
    for start in (0, 64, 128, 64):
        inputs = [at(V, start), at(V, start + 8)]
        for a, b in zip(prepared.run(inputs), fd.reference(inputs), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)
    assert len(checked) >= 12


@pytest.mark.parametrize("scheduler", dict.fromkeys(case.scheduler for case in CASES), ids=lambda s: s.name)
def test_workspace_and_results_of_kernels(scheduler: S, checked: list[int]) -> None:
    own = [case for case in CASES if case.scheduler is scheduler and 0 not in case.shapes[0]]
    case = min(own, key=lambda case: np.prod(case.shapes[0]))
    prepare(case.fusion(), [(case.fusion(), case.scheduler)]).run(case.inputs())
    assert checked


def test_small_kernels_with_many_arrays_are_vectorized() -> None:
    def many(fd: Any, *given: Any) -> Any:
        return tuple(fd.ops.mul(x, fd.ops.add(given[0], given[3])) for x in given)

    generated = generate(build(many, [(32, 32)] * 12, D.Float), S.POINTWISE, "cpu")
    (phase,) = generated.kernel_ir.phases
    assert "prange" not in generated.source
    text = compiled_library(defined_in(generated.source)[phase.name])[0].get_asm_str()
    assert any(re.search("mulps", op) for op in vector_instructions(text))
