"""Kernels that read at positions given as data compile for Hopper without a device."""

import pytest
from backend.lookups import LOOKUPS, Lookup

from fuser_lab.runtime.cuda_compilers.numba_cuda import is_installed
from fuser_lab.runtime.gpu.ptx import compile_phases
from tests.kernels import generate

pytestmark = [
    pytest.mark.ptx,
    pytest.mark.skipif(not is_installed(), reason="needs numba-cuda: pip install 'fuser_lab[cuda]'"),
]


@pytest.mark.sampled(5)
@pytest.mark.parametrize("lookup", LOOKUPS, ids=lambda x: x.name)
def test_compiles_for_hopper(lookup: Lookup) -> None:
    phases = compile_phases(generate(lookup.fusion(), lookup.scheduler, "cuda"))
    assert phases
    for phase in phases:
        assert ".target sm_90" in phase.ptx
        assert "trap" not in phase.ptx
