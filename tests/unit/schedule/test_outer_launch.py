"""The search for a launch configuration that keeps columns across blocks, against values from nvFuser's source."""

from dataclasses import replace

import pytest

from fuser_lab.cost.device import A100, H100
from fuser_lab.schedule.outer_persistent import NoLaunch, OuterLaunch, block_grids, outer_launch

TURING = replace(H100, cc=(7, 5))


def launch(vector, threads, blocks, buffer):
    return OuterLaunch(vector=vector, threads=threads, blocks=blocks, buffer=buffer)


def test_grids_fill_the_device_once():
    # The list for an A100 stands in a comment of nvFuser (normalization_utils.cpp:67-73).
    assert block_grids(108) == [
        (54, 2), (36, 3), (27, 4), (21, 5), (18, 6), (15, 7), (13, 8), (12, 9), (10, 10), (9, 12), (8, 13), (7, 15),
        (6, 18), (5, 21), (4, 27), (3, 36), (2, 54),
    ]
    assert block_grids(4) == [(2, 2)]
    assert block_grids(3) == []


@pytest.mark.parametrize(
    ("numel", "expected"),
    [(66 * 32 * 44, launch(4, (8, 32), (2, 66), 44)), (66 * 32 * 44 + 1, NoLaunch(spilled=40))],
)
def test_kept_values_and_their_predicates_need_at_most_220_registers(numel, expected):
    # 64 columns are 2 groups of 8 threads of width 4, so only the grid of 2 x 66 blocks of 8 x 32 threads has no idle
    # blocks. A thread keeps 44 elements of 4 columns: 176 registers, and 44 for predicates. One row more needs 177 and
    # 45.
    assert outer_launch(numel, 64, 4 * numel, 4, H100) == expected


@pytest.mark.parametrize(
    ("groups", "expected"), [(66, ((66, 2), 20)), (67, ((2, 66), 1)), (132, ((66, 2), 20)), (88, ((44, 3), 18))],
)
def test_blocks_divide_the_columns_evenly_except_in_the_last_grid(groups, expected):
    # Blocks have 16 x 16 threads of width 4. 67 is a multiple of no number of blocks, 88 not of 66 but of 44. 640 rows
    # are 40 steps: 3 blocks take 14 each, which leaves 12 to the last one, up to 18, which leaves 4 (22 %).
    assert outer_launch(640, groups * 64, 4 * 640, 4, H100) == launch(4, (16, 16), *expected)


@pytest.mark.parametrize(("rows", "threads", "blocks"), [(128, (16, 16), (2, 66)), (124, (8, 32), (4, 33))])
def test_narrow_blocks_avoid_idle_threads(rows, threads, blocks):
    # 128 columns occupy 2 blocks of 16 threads of width 4; 124 leave one of them idle, and occupy 4 blocks of 8.
    numel = 66 * 16 * 20
    assert outer_launch(numel, rows, 4 * numel, 4, H100) == launch(4, threads, blocks, 20)


@pytest.mark.parametrize(("rows", "tried"), [(28, 0), (29, 20), (60, 20), (61, 40)])
def test_blocks_have_at_least_eight_threads_along_the_columns(rows, tried):
    # 29 columns are 8 accesses of width 4, the last one narrower; 61 are 16, for which blocks of 16 threads are tried.
    found = outer_launch(92929, rows, 4 * 92929, 4, H100)
    assert isinstance(found, NoLaunch)
    assert found.tried == tried


@pytest.mark.parametrize(("device", "blocks", "buffer"), [(H100, 59, 27), (TURING, 66, 24)], ids=["H100", "Turing"])
def test_fewer_blocks_leave_less_work_to_the_last(device, blocks, buffer):
    # 50,176 rows are 1,568 steps of 32 threads: 66 blocks take 24 each, and the last one 8, a third. 25 and 26 leave 18
    # and 8 to it, 27 leave 2 of 59 blocks, which are nine tenths of 66.
    assert outer_launch(50176, 512, 2 * 50176, 8, device) == launch(8, (8, 32), (2, blocks), buffer)


@pytest.mark.parametrize(("rows", "blocks", "buffer"), [(1024, (16, 8), 7), (1025, (4, 33), 2)])
def test_the_search_goes_on_if_that_needs_no_more_rounds(rows, blocks, buffer):
    # 816 rows are 51 steps of 16 threads: 8 blocks take 7 each, and the last one 2 (29 %), which is too much. 1024
    # columns are 16 groups, one for each of 16 blocks and two for each of 14; 1025 are 17, two for each of both. Then
    # 16 blocks leave 3 of 4, and 33 leave 1 of 2, but 3 blocks along the columns would need a round more.
    assert outer_launch(816, rows, 4 * 816, 4, H100) == launch(4, (16, 16), blocks, buffer)


# Batch norms of (images, side, channels) with accesses of 16 bytes; the values are those of nvFuser's function
# itself, compiled from its source.
ANSWERS = [
    (H100, 32, 7, 512, 8, ((4, 33), (16, 16), 3)),
    (H100, 64, 14, 1024, 8, ((4, 31), (16, 16), 26)),
    (H100, 32, 28, 128, 4, ((2, 59), (16, 16), 27)),
    (H100, 256, 28, 128, 4, None),
    (H100, 32, 56, 64, 8, None),
    (A100, 256, 14, 256, 4, ((2, 49), (8, 32), 32)),
    (A100, 128, 7, 2048, 4, ((8, 12), (16, 16), 35)),
    (A100, 64, 56, 256, 8, None),
]


@pytest.mark.parametrize(("device", "images", "side", "channels", "width", "expected"), ANSWERS)
def test_batch_norms(device, images, side, channels, width, expected):
    numel = images * side * side
    found = outer_launch(numel, channels, numel * 16 // width, width, device)
    answer = (found.blocks, found.threads, found.buffer) if isinstance(found, OuterLaunch) else None
    assert answer == expected
