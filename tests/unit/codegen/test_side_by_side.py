"""Independent nests whose blocks run side by side in one launch, in lock step; and elements of long functions."""

from typing import Any

import numpy as np
import pytest
from backend.fusions import D, S, build, numbers
from unit.codegen.test_gpu_reductions import check

import fuser_lab as fl
from fuser_lab.bridge.in_place import may_overwrite
from fuser_lab.codegen.pipeline import without_comments
from fuser_lab.codegen.side_by_side import nests_in
from fuser_lab.cost.device import H200
from tests.agreement import lock_step
from tests.kernels import generate, lower


def of_three_shapes(fd: Any, x: Any, y: Any) -> tuple[Any, ...]:
    """Results of three shapes that share an input."""
    row = fd.ops.slice(x, [0, 0], [1, 31])
    return fd.ops.add(x, y), fd.ops.exp(row), fd.ops.cat([x, x], 1)


@pytest.mark.parametrize("rows", [1, 7, 300])
def test_results_of_several_shapes_are_one_launch(rows: int) -> None:
    inputs = [numbers((rows, 31), D.Float), numbers((rows, 31), D.Float)]
    kernel = check(build(of_three_shapes, [x.shape for x in inputs], D.Float), S.RESIZE, inputs)
    (phase,) = kernel.phases
    assert phase.launch.blocks == sum(nest.schedule.blocks for nest in kernel.nests)
    assert len(kernel.nests) == 3 - (rows == 1)
    assert phase.nbytes == sum(buffer.nbytes for buffer in (*kernel.inputs, *kernel.outputs)), "x is read once"


def test_more_threads_than_the_device_holds_are_launches_of_their_own() -> None:
    fusion = build(of_three_shapes, [(H200.sms * H200.threads_per_sm, 31)] * 2, D.Float)
    assert len(lower(fusion, S.RESIZE, "cuda", "kernel").phases) == 3


def test_the_first_blocks_of_nests_are_arguments() -> None:
    fusions = (build(of_three_shapes, [(rows, 31)] * 2, D.Float) for rows in (300, 304, 400))
    assert len({without_comments(generate(fusion, S.RESIZE, "cuda").source) for fusion in fusions}) == 1


def test_a_kernel_that_reads_an_input_side_by_side_replaces_two() -> None:
    with fl.FusionDefinition() as fd:
        x, table = fd.define_tensor([3001], contiguity=True), fd.define_tensor([3, 3001], contiguity=True)
        y = fd.ops.sin(x)
        fd.add_output(fd.ops.mul(fd.ops.broadcast(y, [True, False]), table))
        fd.add_output(fd.ops.exp(y))
    assert len(fl.segment(fd, schedulers=fl.OPEN_SCHEDULERS).segments) == 1


@pytest.mark.parametrize(("op", "dtype", "width"), [
    ("sin", D.Double, 1), ("sin", D.Float, 4), ("neg", D.Double, 2),
], ids=str)
def test_a_thread_computes_one_element_of_long_functions_if_others_are_free(op: str, dtype: Any, width: int) -> None:
    def apply(fd: Any, x: Any) -> Any:
        return getattr(fd.ops, op)(x)

    fusions = (build(apply, [(rows, 64)], dtype) for rows in (64, 1 << 15))
    few, many = (lower(fusion, S.POINTWISE, "cuda", "kernel").nests for fusion in fusions)
    assert few[0].schedule.vector == width
    assert many[0].schedule.vector == np.dtype("f8").itemsize * 2 // dtype.itemsize


def test_each_nest_computes_the_scalars_that_it_reads() -> None:
    def scaled(fd: Any, x: Any, s: Any) -> tuple[Any, ...]:
        root = fd.ops.sqrt(s)
        return fd.ops.mul(x, root), fd.ops.mul(fd.ops.slice(x, [0, 0], [1, 31]), fd.ops.add(root, 1.0))

    with fl.FusionDefinition() as fd:
        outs = scaled(fd, fd.define_tensor([7, 31], contiguity=True), fd.define_scalar(None))
        for out in outs:
            fd.add_output(out)
    x = numbers((7, 31), D.Float)
    plan = fl.segment(fd, [x, 2.0], schedulers=fl.OPEN_SCHEDULERS)
    for got, expected in zip(lock_step(plan, [x, 2.0], "cuda"), (x * 2**0.5, x[:1] * (2**0.5 + 1)), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5)


@pytest.mark.parametrize("together", [False, True])
def test_a_result_overwrites_an_argument_that_only_its_own_nest_reads(together: bool) -> None:
    def updated(fd: Any, x: Any, y: Any) -> tuple[Any, ...]:
        return fd.ops.add(x, y), fd.ops.exp(fd.ops.slice(x if together else y, [0, 0], [1, 31]))

    (phase,) = lower(build(updated, [(7, 31)] * 2, D.Float), S.RESIZE, "cuda", "kernel").phases
    assert len(nests_in(phase)) == 2
    assert may_overwrite(phase, "T0", "T2") is not together
