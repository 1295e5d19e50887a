"""The command that measures kernels: its selection, its inputs, and its rows, on the CPU."""

import time

import pytest

import fuser_lab as fl
from fuser_lab.cost.device import DEFAULT
from tests.benchmarks import measure_kernels as command


def test_the_names_are_of_fusions_of_every_kind() -> None:
    names = command.names()
    assert len(set(names)) == len(names) > 1000
    kinds = [name.partition("/")[0] for name in names]
    assert kinds[:6] == ["built", "corpus", "second", "small", "first", "example"]
    assert command.names() == names


@pytest.mark.parametrize("name", ["built/softmax/BFloat16/64/512", "second/cross_entropy/256", "first/col_sum"])
def test_candidates_are_the_same_in_every_run(name) -> None:
    for number, segment in command.segments(name, DEFAULT, "cuda"):
        kernel = segment.kernel("cuda")
        first = command.chosen(f"{name}#{number}", kernel, "cuda")
        assert first == command.chosen(f"{name}#{number}", kernel, "cuda")
        assert first[0] == ()
        assert len(set(first)) == len(first) == 1 + command.CANDIDATES


def test_a_segment_is_compiled_and_measured() -> None:
    name = "built/gelu/Float/64/512"
    ((number, segment),) = command.segments(name, DEFAULT, "cpu")
    machine = command.Host()
    work = command.compiled(name, number, segment, DEFAULT, "cpu")
    rows = list(command.timed(command.prepared(work, machine, DEFAULT, "cpu"), time.monotonic() + 30))
    assert len(rows) >= 2
    assert all(row.is_good and row.samples == command.SAMPLES and row.low <= row.median <= row.high for row in rows)
    assert rows[0].features.read == rows[0].features.written == 64 * 512 * 4
    late = list(command.timed(command.prepared(work, machine, DEFAULT, "cpu"), time.monotonic() - 1))
    assert [row.note for row in late] == ["no time left"] * len(rows)


def test_positions_stay_inside_their_table() -> None:
    with fl.FusionDefinition() as fd:
        table = fd.define_tensor([-1, -1], contiguity=True, dtype=fl.DataType.Float)
        places = fd.define_tensor([-1], contiguity=True, dtype=fl.DataType.Int)
        fd.add_output(fd.ops.neg(fd.ops.index_select(table, places, 0)))
    (segment,) = fl.segment(fd, [fl.spec((3, 64)), fl.spec((1000,), "int64")]).segments
    _, found = command.inputs_of(segment.fusion, command.Host())
    assert set(found) == {0, 1, 2}
