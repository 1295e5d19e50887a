"""Parallel loops of CPU kernels: each part of the range is computed once, for any number of threads."""

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
import pytest

from fuser_lab.codegen.kernel_ir import Buffer, Kernel, Loop, Phase, Role, Store
from fuser_lab.codegen.numba_cpu import CpuEmitter
from fuser_lab.cost.verdict import SchedulerType
from fuser_lab.dtypes import DataType
from fuser_lab.errors import CodegenError
from fuser_lab.ir.term import Const, Var
from fuser_lab.ir.transform import ParallelType
from fuser_lab.runtime.threads import Threaded, prange


@pytest.fixture(scope="module")
def count() -> Callable[[Any, Any, float], None]:
    """A compiled function that counts the calls for each place and writes thrice its number there."""

    @numba.njit("void(int64[::1], int64[::1], float64)", pipeline_class=Threaded, error_model="numpy", nogil=True)
    def counted(calls: Any, places: Any, factor: Any) -> None:
        twice = factor + factor
        for i in prange(calls.size):
            calls[i] += 1
            places[i] = i * twice

    return counted


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("size", [0, 1, 2, 3, 7, 1001])
def test_each_place_is_computed_once(count: Callable[[Any, Any, float], None], size: int, threads: int) -> None:
    threads = min(threads, numba.config.NUMBA_NUM_THREADS)
    before = numba.get_num_threads()
    calls, places = np.zeros(size, np.int64), np.full(size, -1)
    numba.set_num_threads(threads)
    try:
        count(calls, places, 1.5)
    finally:
        numba.set_num_threads(before)
    np.testing.assert_array_equal(calls, np.ones(size, np.int64))
    np.testing.assert_array_equal(places, 3 * np.arange(size))


def test_what_is_written_outside_of_the_shared_loop_is_refused() -> None:
    out = Buffer(name="T0", dtype=DataType.Int, size=8, role=Role.OUTPUT)
    zero = Const(DataType.Int, 0)
    store = Store(buffer=out, position=zero, value=zero)
    inside = Store(buffer=out, position=Var(DataType.Int, "i"), value=zero)
    loop = Loop(var="i", start=zero, stop=Const(DataType.Int, 8), parallel=ParallelType.grid_x, body=(inside,))
    for body, fits in (((loop,), True), ((store, loop), False), ((loop, loop), False)):
        phase = Phase(name="f", buffers=(out,), scalars=(), body=body)
        kernel = Kernel(
            name="f", target="cpu", scheduler=SchedulerType.POINTWISE, inputs=(), scalars=(), outputs=(out,),
            workspace=(), phases=(phase,), ops=(),
        )
        if fits:
            assert "prange(8)" in CpuEmitter(kernel).source().text
            continue
        with pytest.raises(CodegenError, match="a parallel phase must have a single outermost loop"):
            CpuEmitter(kernel).source()
