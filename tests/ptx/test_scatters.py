"""Additions at positions compile for Hopper: atomic instructions, without local memory or spilled registers."""

import importlib
import re
from dataclasses import replace

import pytest
from bridge.test_gpu_scatters import CASES
from needs import needs

import fuser_lab as fl
from fuser_lab.bridge.gpu_scatters import add_kernel
from fuser_lab.bridge.gpu_scatters_in_regions import adding_kernel
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


def test_a_kernel_adds_four_products_by_one_instruction() -> None:
    with fl.FusionDefinition() as fd:
        x, y = (fd.define_tensor([600, 64], dtype=fl.DataType.Float) for _ in range(2))
        fd.add_output(fd.ops.mul(x, y))
    (segment,) = fl.segment(fd, target="H200").segments
    given = torch.zeros(500, 64), torch.zeros(600, dtype=torch.int64), torch.zeros(600, 64)
    module = importlib.import_module("torch.fx.experimental.proxy_tensor").make_fx(
        lambda x, i, v: x.index_add(0, i, v))(*given)
    (scatter,) = filter(None, map(scatter_of, module.graph.nodes))
    kernel = adding_kernel(scatter, segment.kernel("cuda"), fd.fusion.outputs[0].name, H200)
    assert kernel is not None
    assert adding_kernel(scatter, segment.kernel("cuda"), fd.fusion.outputs[0].name, replace(H200, cc=(8, 0))) is None
    fill, products = compile_phases(kernel)
    assert "red." not in fill.ptx
    assert products.ptx.count("red.global.add.v4.f32") >= 1
    assert not re.findall(r"\bst\.global|red\.global\.add\.f32|\.local", products.ptx)
