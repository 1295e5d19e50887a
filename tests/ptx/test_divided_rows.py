"""Accesses of machine code to rows with any alignment: 16 bytes at a time except at the ends."""

import re
from typing import Any

import pytest
from backend.fusions import D, S, build
from backend.reductions import add_norm, softmax

from fuser_lab.codegen.generate import generate
from fuser_lab.runtime.cuda_compilers.numba_cuda import is_installed
from fuser_lab.runtime.ptx import compile_phases, machine_code

pytestmark = [
    pytest.mark.ptx,
    pytest.mark.skipif(not is_installed(), reason="needs numba-cuda: pip install 'fuser_lab[cuda]'"),
]


@pytest.mark.parametrize("length", [1021, 4099, 32_003, 50_257])
@pytest.mark.parametrize("record", [softmax, add_norm], ids=["softmax", "add_norm"])
def test_whole_accesses(length: int, record: Any) -> None:
    shapes = [(4096, length)] if record is softmax else [(4096, length), (4096, length), (length,)]
    (phase,) = compile_phases(generate(build(record, shapes, D.BFloat16), S.INNER_PERSISTENT, "cuda"))
    assert re.search(r"ld\.global\S*\.v4", phase.ptx)
    assert "st.global.v4.u32" in phase.ptx
    assert ".local" not in phase.ptx
    _, log = machine_code(phase.ptx, (9, 0))
    assert "0 bytes spill stores, 0 bytes spill loads" in log
