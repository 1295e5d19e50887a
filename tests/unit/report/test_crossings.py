"""What passes between segments: a view counts as the memory that it shares."""

import pytest
from fuser_lab_widgets import answers, panels

import fuser_lab as fl
from fuser_lab import FusionDefinition
from fuser_lab.report.crossings import passage_table, passages
from fuser_lab.report.memory_plot import memory_steps
from fuser_lab.report.tables import segment_table
from fuser_lab.report.view_model import view_plan

BYTES = 64 * 128 * 4


@pytest.fixture(scope="module")
def plan():
    """Return a plan that passes on y = exp(x) as a reshape of it, and x transposed."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([64, 128])
        y = fd.ops.segment_set(fd.ops.exp(x))
        fd.add_output(fd.ops.sin(fd.ops.segment_set(fd.ops.reshape(y, [64 * 128]))))
        fd.add_output(fd.ops.cos(fd.ops.segment_set(fd.ops.permute(x, [1, 0]))))
    return fl.segment(fd)


def test_only_the_memory_that_kernels_pass_on_crosses(plan):
    views = [s for s in plan.segments if s.is_view]
    assert len(views) == 2
    assert len(plan.segmented.crossing) == 3
    assert sorted(plan.crossing_bytes.values()) == [0, 0, BYTES]
    assert plan.bytes_crossing == BYTES
    assert [s.bytes_crossing for s in views] == [0, 0]
    # S0 writes exp(x), and the kernel behind the reshape reads it; the cosine reads x.
    assert sorted(s.bytes_crossing for s in plan.segments if not s.is_view) == [0, BYTES, BYTES]


def test_header_labels_and_tables_agree(plan):
    view = view_plan(plan)
    assert view.header.bytes_crossing == BYTES
    boundaries = {edge.tensor: edge for edge in view.edges if edge.kind == "boundary"}
    assert {name: edge.passed for name, edge in boundaries.items()} == plan.crossing_bytes
    assert {edge.bytes for edge in boundaries.values()} == {BYTES}
    assert sorted(row[5] for row in segment_table(view.segments).rows) == ["0 B", "0 B", "0 B", "32.8 kB", "32.8 kB"]
    for edge in boundaries.values():
        note = answers.answer(plan, view, edge.id)["note"]
        assert ("as a view" in note) is (plan.crossing_bytes[edge.tensor] == 0)


def test_memory_holds_a_view_once_and_as_long_as_it_is_read(plan):
    steps = memory_steps(plan)
    assert max(step.between for step in steps) == BYTES
    reader = next(s.index for s in plan.segments if s.exprs[-1].op.name == "sin")
    assert steps[reader].between == BYTES
    assert steps[-1].total == BYTES + 2 * BYTES + (BYTES if reader == len(steps) - 1 else 0)


def test_the_tensors_that_cross_are_sorted_by_what_they_cost():
    with FusionDefinition() as fd:
        x = fd.define_tensor([64, 128])
        small = fd.ops.segment_set(fd.ops.sum(x, [1]))
        large = fd.ops.segment_set(fd.ops.exp(x))
        fd.add_output(fd.ops.sin(small))
        fd.add_output(fd.ops.cos(large))
        fd.add_output(fd.ops.neg(large))
    plan = fl.segment(fd, strategy="unfused")
    rows = passages(plan)
    assert [row.moved for row in rows] == sorted((row.moved for row in rows), reverse=True)
    assert rows[0].written == BYTES
    assert rows[0].read == BYTES * len(rows[0].readers)
    assert sum(row.written for row in rows) == plan.bytes_crossing
    table = passage_table(plan)
    assert table.columns[-1].endswith(f"({plan.target})")
    assert table.rows[0][0] in panels.memory(plan, view_plan(plan))
