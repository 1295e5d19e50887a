"""The bytes that persistent schedulers keep per row: what is alive at once, in which dtype, and what is recomputed."""

from dataclasses import replace

import pytest
from unit.schedule.asking import ask, fusion_of, tensor

from fuser_lab.cost.device import A100, H200
from fuser_lab.cost.verdict import SchedulerType as Type
from fuser_lab.dtypes import DataType
from fuser_lab.schedule.registry import SchedulerRegistry

FLOAT, HALF = DataType.Float, DataType.Half
ROOM = H200.persistent_bytes * H200.largest_cluster  # bytes of a row that a cluster of blocks keeps


def norm(fd, x):
    return fd.ops.div(x, fd.ops.sum(x, dims=[1], keepdim=True))


def two_norms(fd, n):
    """Two norms whose expressions alternate, so that in their order both operands are needed at once."""
    weight = tensor(fd, 256, n)
    x, y = fd.ops.mul(tensor(fd, 256, n), weight), fd.ops.mul(tensor(fd, 256, n), weight)
    a, b = fd.ops.sum(x, dims=[1], keepdim=True), fd.ops.sum(y, dims=[1], keepdim=True)
    fd.add_output(fd.ops.div(x, a))
    fd.add_output(fd.ops.div(y, b))


def both_alive(fd, n):
    """Two operands that both reductions precede."""
    x, y = tensor(fd, 256, n), tensor(fd, 256, n)
    total = fd.ops.add(fd.ops.sum(x, dims=[1], keepdim=True), fd.ops.sum(y, dims=[1], keepdim=True))
    fd.add_output(fd.ops.add(fd.ops.div(x, total), fd.ops.div(y, total)))


def two_norms_joined(fd, n):
    """Two norms whose results meet: this is also a resolution point, up to which both operands are alive."""
    x, y = tensor(fd, 256, n), tensor(fd, 256, n)
    fd.add_output(fd.ops.add(norm(fd, x), norm(fd, y)))


def widened(fd, n):
    """A buffer that is the Float of a computed Half, of which a reduction and a product need different widths."""
    x = fd.ops.cast(fd.ops.mul(fd.ops.cast(tensor(fd, 256, n, dtype=HALF), FLOAT), tensor(fd, 256, n)), HALF)
    fd.add_output(norm(fd, fd.ops.cast(x, FLOAT)))


def widened_input(fd, n):
    """A buffer that is the Float of an input, with a reshape, so that nothing is computed again from the input."""
    x = fd.ops.cast(tensor(fd, 256, n, dtype=HALF), FLOAT)
    fd.add_output(fd.ops.reshape(norm(fd, x), [16, 16, n]))


def with_random_numbers(fd, n):
    noise = fd.ops.uniform(0.0, 1.0, [256, n], dtype=FLOAT)
    fd.add_output(norm(fd, fd.ops.mul(fd.ops.cast(tensor(fd, 256, n, dtype=HALF), FLOAT), noise)))


def reshaped(fd, n):
    x = fd.ops.mul(fd.ops.cast(tensor(fd, 256, n, dtype=HALF), FLOAT), 2.0)
    fd.add_output(fd.ops.reshape(norm(fd, x), [16, 16, n]))


def not_reshaped(fd, n):
    x = fd.ops.mul(fd.ops.cast(tensor(fd, 256, n, dtype=HALF), FLOAT), 2.0)
    fd.add_output(fd.ops.mul(norm(fd, x), 3.0))


def read_again(fd, n):
    """A buffer that is computed from another one."""
    x = tensor(fd, 256, n)
    y = fd.ops.neg(x)
    total = fd.ops.add(fd.ops.sum(x, dims=[1], keepdim=True), fd.ops.sum(y, dims=[1], keepdim=True))
    fd.add_output(fd.ops.add(fd.ops.div(x, total), fd.ops.div(y, total)))


def said(body, n, device=H200, scheduler=Type.INNER_PERSISTENT):
    """The answer of a scheduler, by default that of inner persistent kernels, about a whole definition."""
    answer = ask(fusion_of(lambda fd: body(fd, n)), registry=SchedulerRegistry(device))
    return next(verdict for verdict in answer.verdicts if verdict.scheduler is scheduler)


@pytest.mark.parametrize(
    ("body", "size"),
    [
        (two_norms, 4), (two_norms_joined, 8), (both_alive, 8), (widened, 2), (widened_input, 4),
        (with_random_numbers, 2), (reshaped, 4), (not_reshaped, 2), (read_again, 4),
    ],
)
def test_rows_are_kept_while_their_buffers_fit_a_cluster(body, size):
    longest = ROOM // size
    fits, refusal = said(body, longest), said(body, longest + 1)
    assert fits.accepted
    assert dict(fits.reason.params)["bytes"] == ROOM
    assert refusal.code == "buffer_too_large"
    assert dict(refusal.reason.params)["bytes"] == ROOM + size


def test_random_numbers_are_drawn_again_only_if_their_product_does_not_fit_one_block():
    kept = H200.persistent_bytes // 4
    assert dict(said(with_random_numbers, kept).reason.params)["bytes"] == 4 * kept
    assert dict(said(with_random_numbers, kept + 1).reason.params)["bytes"] == 2 * (kept + 1)


def one_norm(fd, n):
    fd.add_output(norm(fd, tensor(fd, 256, n)))


def one_welford(fd, n):
    x = tensor(fd, 256, n)
    fd.add_output(fd.ops.sub(x, fd.ops.var_mean(x, dims=[1], correction=0, keepdim=True)[1]))


@pytest.mark.parametrize(
    ("body", "longest", "step"),
    [(one_norm, 36_864, 4), (one_norm, 38_910, 4), (one_norm, 39_935, 2), (one_welford, 34_815, 2)],
)
def test_without_clusters_a_block_keeps_rows_in_shared_memory(body, longest, step):
    # A block has 166,912 bytes, of which 128 are static, and 4,096 hold a Float per thread, or 24,576 three indices.
    # Rows are rounded up to rounds of 1024 accesses of the widest width that divides their length: 4, 2 or 1 Floats.
    # Of 162,688 bytes, 9 rounds of width 4 fit, 19 of width 2 and 39 of width 1; of 142,208, 34 of width 1.
    fits, refusal = (said(body, n, A100) for n in (longest, longest + step))
    assert fits.accepted
    assert dict(fits.reason.params)["where"] == "shared memory"
    assert refusal.code == "buffer_too_large"


def test_no_row_takes_more_than_half_of_a_small_device():
    small = replace(H200, sms=20)
    longest = small.persistent_bytes * 10 // 4
    assert said(one_norm, longest, small).accepted
    assert said(one_norm, longest + 1, small).code == "buffer_too_large"


def test_without_clusters_short_rows_are_kept_in_registers():
    assert dict(said(one_norm, 32_768, A100).reason.params)["where"] == "registers"


def rows_and_sums(fd, n):
    x = tensor(fd, 2048, n)
    fd.add_output(norm(fd, x))
    fd.add_output(fd.ops.sum(x, dims=[0]))


@pytest.mark.parametrize(("n", "accepted"), [(55_296, True), (56_320, False), (57_344, False)])
def test_rows_beside_sums_are_rounded_up_in_shared_memory(n, accepted):
    # 230,272 bytes remain beside a Float for each of 512 threads. 55,296 elements are 13,824 accesses, at most 34 times
    # 416 threads, 226,304 bytes; 56,320 are 14,080, at most 30 times 480 threads, 230,400 bytes. Registers have no room
    # for both a row and the sums.
    verdict = said(rows_and_sums, n, scheduler=Type.INNER_OUTER_PERSISTENT)
    assert verdict.accepted is accepted
    assert verdict.code == ("rows_and_sums_fit" if accepted else "rows_and_sums_too_large")


def weighted_rows_and_sums(fd, n, weight=HALF, x=FLOAT):
    """A row norm of x times a weight of columns, and the sums of both columns in Half."""
    w = fd.ops.broadcast(fd.ops.cast(tensor(fd, n, dtype=weight), FLOAT), [True, False])
    y = fd.ops.mul(fd.ops.cast(tensor(fd, 2048, n, dtype=x), FLOAT), w)
    fd.add_output(norm(fd, y))
    fd.add_output(fd.ops.sum(fd.ops.cast(y, HALF), dims=[0]))


@pytest.mark.parametrize(("dtypes", "accepted"), [((HALF, FLOAT), False), ((FLOAT, HALF), True)])
def test_rows_are_moved_to_registers_before_what_is_broadcast_to_them(dtypes, accepted):
    # Rows of 43,008 elements take 172,032 bytes in Float and 86,016 in Half, which do not both fit shared memory;
    # beside 86,016 bytes of sums, registers have room for the Half.
    verdict = said(lambda fd, n: weighted_rows_and_sums(fd, n, *dtypes), 43_008, scheduler=Type.INNER_OUTER_PERSISTENT)
    assert verdict.accepted is accepted
    assert dict(verdict.reason.params)["bytes"] == 258_048
