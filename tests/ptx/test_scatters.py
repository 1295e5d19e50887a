"""Additions at positions compile for Hopper: atomic instructions, without local memory or spilled registers."""

import importlib
import re

import pytest
from bridge.test_gpu_scatters import CASES
from needs import needs

from fuser_lab.bridge.gpu_scatters import add_kernel
from fuser_lab.bridge.scatters import scatter_of
from fuser_lab.cost.device import H200
from fuser_lab.runtime.cuda_compilers.numba_cuda import is_installed
from fuser_lab.runtime.gpu.ptx import compile_phases, machine_code

torch = needs("torch")
pytestmark = [
    pytest.mark.ptx,
    pytest.mark.skipif(not is_installed(), reason="needs numba-cuda: pip install 'fuser_lab[cuda]'"),
]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", CASES)
def test_additions_are_atomic_instructions(name: str) -> None:
    function, make, *_ = CASES[name]
    module = importlib.import_module("torch.fx.experimental.proxy_tensor").make_fx(function)(*make())
    (scatter,) = filter(None, map(scatter_of, module.graph.nodes))
    for phase in compile_phases(add_kernel(scatter, H200)):
        assert ".local" not in phase.ptx
        assert "0 bytes spill stores" in machine_code(phase.ptx, (9, 0))[1]
        kinds = set(re.findall(r"\bred\.(global|shared)\.add\.(\w+)", phase.ptx))
        if not phase.phase.name.endswith("_add") or scatter.combine is None:
            assert not kinds
            continue
        number = {"float64": "f64", "int64": "u64"}.get(scatter.target.dtype, "f32")
        launch = phase.phase.launch
        memory = {"global"} if not launch.shared and launch.threads[0] < 1024 else {"shared", "global"}
        assert kinds == {(kind, number) for kind in (memory if launch.blocks > 1 else {"shared"})}
