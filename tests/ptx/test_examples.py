"""Every CUDA kernel of the examples as PTX and machine code for compute capabilities 8.0 and 9.0.

The default plans are compiled here. The parts of the unfused ones are single ops, which `test_ptx.py` and
`test_samples.py` cover.
"""

import re

import pytest
from needs import with_numba_only

import fuser_lab as fl
from fuser_lab.codegen.pipeline import GeneratedKernel, evaluated_because
from fuser_lab.cost.device import DEVICES
from fuser_lab.dtypes import DataType
from fuser_lab.runtime.cuda_compilers.numba_cuda import is_installed
from fuser_lab.runtime.gpu.ptx import compile_phases, kernel_key, machine_code, spills

pytestmark = [
    pytest.mark.ptx,
    pytest.mark.skipif(not is_installed(), reason="needs numba-cuda: pip install 'fuser_lab[cuda]'"),
]


def kernels(name: str) -> list[GeneratedKernel]:
    fd, arrays = fl.example(name)
    found: dict[object, GeneratedKernel] = {}
    for strategy in ("bottom_up", "top_down", "saving"):
        for segment in fl.segment(fd, arrays, strategy=strategy).segments:
            if not evaluated_because(segment.fusion, segment.scheduler):
                kernel = segment.kernel("cuda")
                found.setdefault(kernel_key(kernel), kernel)
    return list(found.values())


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    "cc", [pytest.param((8, 0), marks=pytest.mark.matrix), (9, 0)], ids=["cc 8.0", "cc 9.0"],
)
@pytest.mark.parametrize("name", fl.examples.names())
def test_every_kernel(name: str, cc: tuple[int, int]) -> None:
    read_wide = written_wide = 0
    found = kernels(name)
    assert found
    for kernel in found:
        for phase in compile_phases(kernel, cc):
            where = f"{phase.phase.name} for cc {cc[0]}.{cc[1]}"
            assert f".target sm_{cc[0]}{cc[1]}" in phase.ptx
            assert "trap" not in phase.ptx, where
            assert ".local" not in phase.ptx, f"{where} uses local memory"
            assert len(double_instructions(phase.ptx)) <= doubles(phase), f"{where} computes in float64"
            _, log = machine_code(phase.ptx, cc)
            assert not spills(log), where
            assert "0 bytes stack frame" in log, where
            used = re.search(r"Used (\d+) registers", log)
            assert used is not None
            x, y = phase.phase.launch.threads
            assert int(used[1]) * x * y <= 65536, where
            read_wide += len(re.findall(r"ld\.global\S*\.v[24]", phase.ptx))
            written_wide += len(re.findall(r"st\.global\S*\.v[24]", phase.ptx))
    # Their rows are whole vectors: loads and stores are at least 8 bytes wide.
    assert read_wide
    assert written_wide


def double_instructions(ptx: str) -> list[str]:
    """The float64 instructions, without moves of parameters."""
    lines = [line.strip() for line in ptx.splitlines()]
    return [line for line in lines if ".f64" in line and not re.match(r"\.|ld\.param|mov", line)]


def doubles(phase: object) -> int:
    """The number of conversions that a kernel may make: one per scalar input of type Double."""
    return sum(scalar.dtype is DataType.Double for scalar in phase.phase.scalars)  # type: ignore[attr-defined]


def test_a_double_scalar_is_converted_once() -> None:
    with fl.FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True, dtype=DataType.Float)
        scale = fd.define_scalar(None, DataType.Double)
        fd.add_output(fd.ops.add(fd.ops.mul(x, scale), scale))
    (segment,) = fl.segment(fd, [fl.spec((64, 256), "float32"), 2.0]).segments
    for cc in ((8, 0), (9, 0)):
        (phase,) = compile_phases(segment.kernel("cuda"), cc)
        (line,) = double_instructions(phase.ptx)
        assert line.startswith("cvt.rn.f32.f64")


@pytest.mark.parametrize("device", ["A100", "H100", "H200"])
@pytest.mark.parametrize("columns", [65_536, 131_072])
def test_launches_of_long_rows_keep_the_limits_of_the_device(columns: int, device: str) -> None:
    with fl.FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True, dtype=DataType.BFloat16)
        f = fd.ops.cast(x, DataType.Float)
        e = fd.ops.exp(fd.ops.sub(f, fd.ops.max(f, [1], keepdim=True)))
        fd.add_output(fd.ops.cast(fd.ops.div(e, fd.ops.sum(e, [1], keepdim=True)), DataType.BFloat16))
    limits = next(d for d in DEVICES if d.name == device)
    plan = fl.segment(fd, [fl.spec((4096, columns), "bfloat16")], target=device)
    for segment in plan.segments:
        for launch in segment.launches():
            assert launch.device == device
            assert f".target sm_{limits.cc[0]}{limits.cc[1]}" in launch.ptx
            assert launch.shared <= limits.shared_per_block
            assert launch.resident >= 1, f"no block of {launch.name} fits a multiprocessor"
            assert not launch.spilled


@with_numba_only("16 bytes of registers are spilled")
def test_an_a100_runs_what_was_cut_for_an_h200() -> None:
    """Rows that a block on an H200 keeps in 192 KiB: a kernel for the A100 keeps less and reads the rest again."""
    from backend.fusions import D, S, build
    from backend.reductions import softmax

    from fuser_lab.cost.device import A100
    from fuser_lab.runtime.gpu.facts import launch_facts
    from fuser_lab.schedule.parameters import LoopChange
    from tests.kernels import generate

    fusion = build(softmax, [(4096, 131_072)], D.BFloat16)
    (launch,) = launch_facts(generate(fusion, S.INNER_PERSISTENT, "cuda", device=A100), A100)
    assert 64 << 10 < launch.shared <= A100.shared_per_block
    assert launch.resident == 1
    assert not launch.spilled
    alone = LoopChange(target="cuda", nest=0, values=(("cluster", 1),))
    (kept,) = launch_facts(generate(fusion, S.INNER_PERSISTENT, "cuda", changes=(alone,)))
    assert kept.shared > A100.shared_per_block
