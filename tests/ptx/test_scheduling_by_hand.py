"""Kernels of schedules by hand compile for Hopper without a device, with the promised accesses."""

import re

import pytest
from hand_schedules import CASES, MemoryType, arrays, kernel_of, pointwise, row_sum, softmax

from fuser_lab.dtypes import DataType
from fuser_lab.runtime.cuda_compilers.numba_cuda import is_installed
from fuser_lab.runtime.gpu.ptx import compile_phases, machine_code

pytestmark = [
    pytest.mark.ptx,
    pytest.mark.skipif(not is_installed(), reason="needs numba-cuda: pip install 'fuser_lab[cuda]'"),
]


@pytest.mark.sampled(5)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_compiles_for_hopper(case):
    (phase,) = compile_phases(kernel_of(case.build(), arrays(case.shapes[1], case.dtype)))
    assert ".target sm_90" in phase.ptx
    assert re.search(rf"\.visible \.entry {re.escape(phase.entry)}\(", phase.ptx)
    assert "trap" not in phase.ptx
    if case.dtype is not DataType.Double:
        assert ".f64" not in phase.ptx, "double arithmetic in a kernel of floats"


@pytest.mark.parametrize(
    ("build", "shapes", "words"),
    [
        (pointwise, [(64, 64), (64,)], ("ld.global.v4", "st.global.v4")),
        (row_sum, [(8, 1024)], ("ld.global.v4",)),
        (lambda: pointwise(DataType.Half, 8), [(64, 64), (64,)], ("ld.global.v4", "st.global.v4")),
    ],
)
def test_vectorized_loops_are_accesses_of_16_bytes(build, shapes, words):
    fd = build()
    dtype = fd.definition.inputs[0].dtype
    (phase,) = compile_phases(kernel_of(fd, arrays(shapes, dtype)))
    for word in words:
        assert word in phase.ptx


def test_values_between_passes_lie_where_the_schedule_says():
    inputs = arrays([(8, 256)])
    (local,) = compile_phases(kernel_of(softmax(), inputs))
    (shared,) = compile_phases(kernel_of(softmax(MemoryType.shared), inputs))
    assert "ld.shared" in shared.ptx
    sizes = [sum(int(n) for n in re.findall(r"\.shared [^;]*\[(\d+)\]", phase.ptx)) for phase in (local, shared)]
    # Two rows of 256 floats, and the tree of 32 threads of each reduction.
    assert sizes[1] - sizes[0] == 2 * 256 * 4
    _, log = machine_code(local.ptx, (9, 0))
    assert "0 bytes spill stores" in log
