"""Independent nests whose blocks run side by side in one launch, in lock step; and elements of long functions."""

from typing import Any

import numpy as np
import pytest
from backend.fusions import D, S, build, numbers
from unit.codegen.test_gpu_reductions import check

import fuser_lab as fl
from fuser_lab.codegen.pipeline import without_comments
from fuser_lab.cost.device import H200
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
