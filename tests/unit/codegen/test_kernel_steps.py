"""The steps of a kernel: the elements that each statement accesses, in order, and its source lines."""

import json

import numpy as np
import pytest

import fuser_lab as fl
from fuser_lab import FusionDefinition
from fuser_lab.analysis.smaller import smaller
from fuser_lab.codegen.kernel_ir import walk
from fuser_lab.codegen.kernel_steps import MOST_ELEMENTS, kernel_steps
from fuser_lab.errors import UnsupportedError
from tests.kernels import generate

TARGETS = ("cpu", "cuda")


def softmax(rows=4, columns=8):
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1, -1], contiguity=True)
        e = fd.ops.exp(fd.ops.sub(x, fd.ops.max(x, dims=[1], keepdim=True)))
        fd.add_output(fd.ops.truediv(e, fd.ops.sum(e, dims=[1], keepdim=True)))
    (segment,) = fl.segment(fd, [fl.spec((rows, columns))]).segments
    return segment


def touched(steps, buffer, *, write):
    """The number of accesses to each element of a buffer."""
    found = [n for step in steps.steps for one in step.touches if (one.buffer, one.write) == (buffer, write)
             for n in one.elements]
    return np.bincount(found) if found else np.zeros(0, int)


@pytest.mark.parametrize("target", TARGETS)
def test_a_softmax_reads_its_rows_and_writes_each_element_once(target):
    segment = softmax()
    steps = segment.steps(target)
    (output,) = segment.outputs
    assert (touched(steps, output.name, write=True) == 1).all()
    assert len(touched(steps, output.name, write=True)) == 32
    read = touched(steps, "T0", write=False)
    assert len(read) == 32
    assert len(set(read.tolist())) == 1
    assert steps.shrunk == ()
    # A row is complete before its first result is written.
    first = next(n for n, s in enumerate(steps.steps) if any(t.write and t.buffer == output.name for t in s.touches))
    before = {n for s in steps.steps[:first] for t in s.touches if t.buffer == "T0" for n in t.elements}
    assert set(range(8)) <= before


def test_each_thread_of_a_gpu_kernel_has_its_own_elements():
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1, -1], contiguity=True)
        fd.add_output(fd.ops.neg(x))
    (segment,) = fl.segment(fd, [fl.spec((4, 8))]).segments
    steps = segment.steps("cuda")
    (launch,) = (phase.launch for phase in segment.kernel("cuda").kernel_ir.phases)
    write = next(t for s in steps.steps for t in s.touches if t.write)
    axes = next(s for s in steps.steps).axes
    assert axes == (("block", launch.blocks), ("thread x", launch.threads[0]))
    owners = {element: thread for thread, element in zip(write.threads, write.elements, strict=True)}
    assert [owners[n] for n in range(32)] == [n // 4 for n in range(32)]  # accesses of four floats


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", ["layer_norm_backward", "softmax", "sum_broadcast_add", "reshape_decides"])
def test_the_lines_of_a_step_name_what_it_touches(name, target):
    for segment in fl.segment(*fl.example(name)).segments:
        steps = segment.steps(target)
        lines = steps.source.split("\n")
        for step in steps.steps:
            text = "\n".join(lines[n - 1] for n in steps.lines_of(step))
            assert all(f"{one.buffer}" in text for one in step.touches), (step, text)
            assert step.kind != "barrier" or text.strip() == "cuda.syncthreads()"
            assert all(f"for {variable} in" in steps.source for variable, _ in step.loops)
        for tensor in segment.outputs:
            grid = next(one for one in steps.grids if one.name == tensor.name)
            assert sorted(set(grid.cells)) == np.flatnonzero(touched(steps, tensor.name, write=True)).tolist()
        assert json.loads(json.dumps(steps.to_dict()))["target"] == target


@pytest.mark.parametrize("target", TARGETS)
def test_each_statement_of_kernel_ir_has_its_line(target):
    for example in ("layer_norm_backward", "rms_norm"):
        for segment in fl.segment(*fl.example(example)).segments:
            generated = segment.kernel(target)
            there = {place for place in generated.line_statements if place is not None}
            phases = generated.kernel_ir.phases
            assert there == {(n, k) for n, phase in enumerate(phases) for k, _ in enumerate(walk(phase.body))}
            for line, place, origin in zip(
                generated.source.split("\n"), generated.line_statements, generated.line_origins, strict=False,
            ):
                statement = None if place is None else list(walk(phases[place[0]].body))[place[1]]
                if origin is not None and statement is not None and "#" not in line:
                    assert getattr(statement, "origin", None) is not None


def test_large_segments_are_shown_with_smaller_extents():
    steps = softmax(4096, 1024).steps("cuda")
    assert dict(steps.shrunk) == {4096: 6, 1024: 16}
    assert next(grid.shape for grid in steps.grids if grid.name == "T0") == (6, 16)
    assert "1024 is 16, 4096 is 6" in str(steps)
    assert "reads T0" in repr(steps)


def test_products_and_halves_of_extents_stay_so():
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[64, 2048], contiguity=True)
        halves = [fd.ops.slice(x, [0, at], [64, at + 1024]) for at in (0, 1024)]
        fd.add_output(fd.ops.reshape(fd.ops.mul(*halves), [64 * 1024]))
    fusion = fl.segment(fd).fusion
    small, extents = smaller(fusion, MOST_ELEMENTS)
    assert extents[2048] == 2 * extents[1024]
    assert extents[64 * 1024] == extents[64] * extents[1024]
    assert [expr.op.name for expr in small.exprs] == [expr.op.name for expr in fusion.exprs]
    assert list(small.tensors) == list(fusion.tensors)


def test_what_cannot_be_followed_is_said_in_a_sentence():
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[4099, 4096], contiguity=True)
        fd.add_output(fd.ops.slice(x, [11, 0], [4099, 4096]))
    with pytest.raises(UnsupportedError, match=r"no smaller sizes fit its ops; give inputs of at most 256 elements\.$"):
        smaller(fl.segment(fd).fusion, MOST_ELEMENTS)
    segment = softmax(4, 8)
    generated = generate(segment.fusion, segment.scheduler, "cpu")
    with pytest.raises(UnsupportedError, match=r"^steps: the kernel takes more than 10 steps; use smaller inputs\.$"):
        kernel_steps(generated, segment.fusion, most=10)
    with pytest.raises(UnsupportedError, match=r"tensors must have at most 256 elements, given 512\.$"):
        kernel_steps(generated, softmax(16, 32).fusion)
