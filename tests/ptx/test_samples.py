"""Samples of ops that are not pointwise compile for Hopper; test_ptx.py covers the pointwise ones in all dtypes."""

import pytest

from fuser_lab.api.functions import FusionDefinition, segment
from fuser_lab.codegen.pipeline import evaluated_because
from fuser_lab.dtypes import DataType
from fuser_lab.ir import OpKind
from fuser_lab.ops.registry import Sample
from fuser_lab.runtime.cuda_compilers.numba_cuda import is_installed
from fuser_lab.runtime.gpu.ptx import compile_phases
from tests.kernels import generate
from tests.unit.ops.sampling import ENTRIES, build

pytestmark = [
    pytest.mark.ptx,
    pytest.mark.skipif(not is_installed(), reason="needs numba-cuda: pip install 'fuser_lab[cuda]'"),
]


def sample_of(name: str) -> Sample:
    """The sample with the most elements; floats before other dtypes."""
    return max(
        ENTRIES[name].samples,
        key=lambda s: (all(a.dtype is DataType.Float for a in s.args), sum(len(a.shape) for a in s.args)),
    )


OTHERS = [name for name, entry in ENTRIES.items() if getattr(entry, "kind", None) is not OpKind.POINTWISE]


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", OTHERS)
def test_a_sample_compiles(name: str) -> None:
    built = build(sample_of(name))
    assert isinstance(built.fd, FusionDefinition)
    for part in segment(built.fd, list(built.inputs)).segments:
        if part.scheduler is not None and not evaluated_because(part.fusion, part.scheduler):
            for phase in compile_phases(generate(part.fusion, part.scheduler, "cuda")):
                assert ".target sm_90" in phase.ptx
                assert "trap" not in phase.ptx
