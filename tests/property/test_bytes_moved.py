"""The bytes that segments of random plans say they move are those that their kernels access, each element once."""

import pytest

import fuser_lab as fl
from fuser_lab import DataType, FusionDefinition
from fuser_lab.report.view_model import view_plan
from tests.bytes_moved import CAMPAIGN
from tests.thorough import share


def test_what_segments_of_random_plans_say_is_what_their_kernels_access():
    tally = CAMPAIGN.run(seed=1, numbers=range(share(200)))
    assert not tally.findings, "\n".join(finding.text for finding in tally.findings)
    assert tally.counts["reads", "equal"] > 9 * tally.counts["reads", "below"]


@pytest.mark.parametrize("strategy", ["bottom_up", "optimal"])
def test_a_look_up_moves_the_rows_that_it_reads(strategy):
    with FusionDefinition() as fd:
        tokens = fd.define_tensor([128], contiguity=True, dtype=DataType.Int)
        table = fd.define_tensor([50257, 768], contiguity=True)
        fd.add_output(fd.ops.mul(fd.ops.index_select(table, tokens, 0), 2.0))
    plan = fl.segment(fd, strategy=strategy)
    (segment,) = plan.segments
    rows, positions = 4 * 128 * 768, 8 * 128
    assert (segment.bytes_in, segment.bytes_out) == (rows + positions, rows)
    certificate = plan.certificate()
    assert certificate.cost == certificate.bound == segment.bytes + certificate.model.launch_bytes
    header = view_plan(plan).header
    assert (header.bytes_moved, header.bytes_ideal) == (segment.bytes, segment.bytes)


def test_views_move_nothing():
    with FusionDefinition() as fd:
        x = fd.define_tensor([64, 32], contiguity=True)
        fd.add_output(fd.ops.permute(x, [1, 0]))
        fd.add_output(fd.ops.exp(x))
    plan = fl.segment(fd)
    views = [segment for segment in plan.segments if segment.is_view]
    assert views
    assert sum(segment.bytes for segment in views) == 0
    assert sum(segment.bytes for segment in plan.segments) == plan.bytes_ideal == 2 * 4 * 64 * 32


def test_elements_that_two_slices_share_are_read_once():
    with FusionDefinition() as fd:
        x = fd.define_tensor([5, 5], contiguity=True)
        corners = fd.ops.slice(x, [2, 0], [5, 3]), fd.ops.slice(x, [0, 2], [3, 5])
        fd.add_output(fd.ops.add(*corners))
    (segment,) = fl.segment(fd).segments
    assert segment.bytes_in == 4 * (9 + 9 - 1)
