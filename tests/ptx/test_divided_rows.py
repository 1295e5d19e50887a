"""Accesses of machine code to rows with any alignment: whole ones except at the ends, of 16 bytes if rows are long."""

import re
from typing import Any

import pytest
from backend.fusions import D, S, build
from backend.reductions import add_norm, softmax

from fuser_lab.runtime.cuda_compilers.numba_cuda import is_installed
from fuser_lab.runtime.gpu.ptx import compile_phases, machine_code
from tests.kernels import generate

pytestmark = [
    pytest.mark.ptx,
    pytest.mark.skipif(not is_installed(), reason="needs numba-cuda: pip install 'fuser_lab[cuda]'"),
]


# 8, 4 and 16 bytes, as words or as half words.
_LONG = r"v4\.[bu]32", r"v4\.u32"
WIDTHS = {
    1021: (r"v2\.[bu]32|v4\.u16", r"v2\.u32|v4\.u16"), 4099: (r"[bu]32|v2\.u16", r"u32|v2\.u16"), 32_003: _LONG,
    50_257: _LONG,
}


@pytest.mark.parametrize(("record", "length"), [
    pytest.param(record, length, marks=[pytest.mark.matrix] if record is add_norm and length != min(WIDTHS) else [])
    for record in (softmax, add_norm) for length in WIDTHS
])
def test_whole_accesses(length: int, record: Any) -> None:
    shapes = [(4096, length)] if record is softmax else [(4096, length), (4096, length), (length,)]
    (phase,) = compile_phases(generate(build(record, shapes, D.BFloat16), S.INNER_PERSISTENT, "cuda"))
    loaded, stored = WIDTHS[length]
    assert re.search(rf"ld\.global\S*\.({loaded})\b", phase.ptx)
    assert re.search(rf"st\.global\.({stored})\b", phase.ptx)
    assert ".local" not in phase.ptx
    _, log = machine_code(phase.ptx, (9, 0))
    assert "0 bytes spill stores, 0 bytes spill loads" in log
