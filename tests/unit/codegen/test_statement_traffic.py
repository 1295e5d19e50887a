"""The bytes that each statement requests, against the elements that threads access in lock step."""

from collections import Counter

import pytest

import fuser_lab as fl
from fuser_lab import DataType, FusionDefinition
from fuser_lab.codegen.pipeline import EVALUATED
from fuser_lab.codegen.statement_traffic import statement_traffic


def softmax(shape):
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1, -1], contiguity=True)
        e = fd.ops.exp(fd.ops.sub(x, fd.ops.max(x, dims=[1], keepdim=True)))
        fd.add_output(fd.ops.truediv(e, fd.ops.sum(e, dims=[1], keepdim=True)))
    return fl.segment(fd, [fl.spec(shape)])


def transposed(shape):
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1, -1], contiguity=True, dtype=DataType.Half)
        fd.add_output(fd.ops.cast(fd.ops.neg(fd.ops.permute(x, [1, 0])), DataType.Half))
    return fl.segment(fd, [fl.spec(shape, DataType.Half)])


def padded(shape):
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1, -1], contiguity=True)
        fd.add_output(fd.ops.pad(fd.ops.relu(x), [2, 3]))
    return fl.segment(fd, [fl.spec(shape)])


def columns(shape):
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1, -1], contiguity=True)
        fd.add_output(fd.ops.sum(x, dims=[0]))
    return fl.segment(fd, [fl.spec(shape)])


@pytest.mark.parametrize("target", ["cpu", "cuda"])
@pytest.mark.parametrize(("make", "shape"), [
    (softmax, (5, 19)), (softmax, (4, 32)), (transposed, (7, 18)), (padded, (6, 11)), (columns, (15, 8)),
])
def test_bytes_are_those_of_the_elements_that_threads_touch(make, shape, target):
    segment = make(shape).segments[0]
    steps = segment.steps(target)
    assert not steps.shrunk
    shared = {grid.name for grid in steps.grids if grid.role in {"input", "output", "workspace"}}
    touched = Counter()
    for step in steps.steps:
        for touch in step.touches:
            if touch.buffer in shared:
                touched[step.phase, step.statement, touch.buffer, touch.write] += len(touch.elements)
    traffic = statement_traffic(segment.kernel(target).kernel_ir)
    size = {one.buffer.name: one.buffer.dtype.itemsize for one in traffic}
    found = {(*one.place, one.buffer.name, one.write): one.bytes / size[one.buffer.name] for one in traffic}
    # A sample rarely contains accesses of a few elements.
    few = {key for key in {*touched, *found} if max(touched[key], found.get(key, 0)) < 5}
    assert len(few) < len(touched)
    for key in {*touched, *found} - few:
        assert found.get(key, 0) == pytest.approx(touched[key], rel=0.05, abs=2), key


def test_what_depends_on_data_is_said():
    with FusionDefinition() as fd:
        table = fd.define_tensor(shape=[-1, -1], contiguity=True)
        index = fd.define_tensor(shape=[-1], contiguity=True, dtype=DataType.Int)
        fd.add_output(fd.ops.relu(fd.ops.index_select(table, index, 0)))
    segment = fl.segment(fd, [fl.spec((1000, 64)), fl.spec((8,), DataType.Int)]).segments[0]
    found = {one.buffer.name: one for one in statement_traffic(segment.kernel("cpu").kernel_ir)}
    assert found["T0"].bytes == pytest.approx(8 * 64 * 4)  # of the rows that are read, not of the table
    assert not found["T0"].at_most  # a position out of range reads the first row
    assert not found["T1"].at_most


def test_a_large_kernel_is_counted_without_running_it():
    (segment,) = softmax((1 << 20, 1 << 12)).segments
    reads = [one for one in statement_traffic(segment.kernel("cpu").kernel_ir) if one.buffer.name == "T0"]
    assert sum(one.bytes for one in reads) == pytest.approx(2 * 4 << 32, rel=1e-3)  # two passes over the rows


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_what_is_written_are_the_results(target):
    """For every example, at a small size: each element of a result is written once."""
    checked = 0
    for entry in fl.corpus(kind="example"):
        fd, inputs = entry.load(small=True)
        for segment in fl.segment(fd, inputs).segments:
            if segment.scheduler in EVALUATED:
                continue
            results = {value.name for value in segment.outputs}
            traffic = statement_traffic(segment.kernel(target).kernel_ir)
            written = sum(one.bytes for one in traffic if one.write and one.buffer.name in results)
            assert written == pytest.approx(segment.bytes_out, rel=0.1), (entry.name, segment.index)
            checked += 1
    assert checked > 12
