"""Facts that compiled kernels report, and their cache on disk."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from backend.fusions import D, S, build
from backend.reductions import softmax

import fuser_lab as fl
from fuser_lab.cost.device import A100, H200
from fuser_lab.errors import CompilationError, UnsupportedError
from fuser_lab.runtime.gpu import cubins, ptx
from fuser_lab.runtime.gpu.cubins import is_cached, machine_code_of
from fuser_lab.runtime.gpu.facts import facts_of, launch_facts, occupancy
from tests.kernels import generate

pytestmark = pytest.mark.ptx


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FUSER_LAB_CACHE", str(tmp_path))


def plan() -> fl.Plan:
    with fl.FusionDefinition() as fd:
        fd.add_output(softmax(fd, fd.define_tensor([-1, -1], contiguity=True, dtype=fl.DataType.BFloat16)))
    return fl.segment(fd, [fl.spec((64, 8192), "bfloat16")])


def test_a_segment_says_what_its_launches_are() -> None:
    (facts,) = plan().segments[0].launches()
    assert ".entry" in facts.ptx
    assert facts.cubin[:4] == b"\x7fELF"
    assert 16 <= facts.registers <= 255
    assert facts.spilled == 0
    assert facts.shared == 2 * 4 * facts.threads[0] // 32, "one number per warp for the maximum and for the sum"
    warps = facts.threads[0] * facts.threads[1] // 32
    assert facts.occupancy == facts.resident * warps / 64
    assert facts.stack == 0
    assert "no spills" in str(facts)
    assert "stack" not in str(facts)
    assert "of the H200" in str(facts)
    if shutil.which("nvdisasm") or shutil.which("cuobjdump"):
        assert "EXIT" in facts.sass()
    else:
        with pytest.raises(UnsupportedError, match="nvdisasm or cuobjdump"):
            facts.sass()


def test_a_stack_frame_is_told() -> None:
    code = machine_code_of(plan().segments[0].kernel("cuda"), (9, 0))[0]
    # As ptxas reports for an array of 16 words with an index that is known only at run time.
    log = "ptxas         .     64 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\nUsed 122 registers"
    found = facts_of(replace(code, log=log), H200)
    assert (found.stack, found.spilled, found.registers) == (64, 0, 122)
    assert "122 registers" in str(found)
    assert "no spills, 64 bytes of a stack frame in memory;" in str(found)


# According to NVIDIA's occupancy calculator for compute capabilities 8.0 and 9.0.
@pytest.mark.parametrize(
    ("threads", "registers", "shared", "device", "resident", "limit"),
    [
        (256, 32, 0, H200, 8, "warps"), (32, 32, 0, H200, 32, "blocks"), (256, 64, 0, H200, 4, "registers"),
        (256, 72, 0, H200, 3, "registers"), (1024, 64, 0, H200, 1, "registers"), (1024, 65, 0, H200, 0, "registers"),
        (128, 32, 48 << 10, H200, 4, "bytes of shared memory"), (128, 32, 48 << 10, A100, 3, "bytes of shared memory"),
        (512, 32, 100 << 10, H200, 2, "bytes of shared memory"),
    ],
)
def test_occupancy(threads: int, registers: int, shared: int, device: fl.Device, resident: int, limit: str) -> None:
    assert occupancy(threads, registers, shared, device) == (resident, limit)


def test_machine_code_is_read_from_disk_and_made_again_where_that_is_broken(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
) -> None:
    generated = generate(build(lambda fd, x: fd.ops.tanh(x), [(513,)], D.Float), S.POINTWISE, "cuda")
    assert not is_cached(generated, (9, 0))
    first = machine_code_of(generated, (9, 0))
    assert is_cached(generated, (9, 0))
    assert not is_cached(generated, (8, 0))
    compiled: list[object] = []
    original = cubins.compile_phases
    monkeypatch.setattr(cubins, "compile_phases", lambda *given: compiled.append(given) or original(*given))
    assert machine_code_of(generated, (9, 0)) == first
    assert not compiled
    (place,) = tmp_path.glob("kernels/gpu_*.json")
    for broken in ("", "[{}]", json.dumps([{"entry": "e", "ptx": "", "log": "", "cubin": "%%"}]), "[]"):
        place.write_text(broken)
        (made,) = machine_code_of(generated, (9, 0))
        assert made.entry in made.ptx
        assert made.cubin[:4] == b"\x7fELF"
        assert machine_code_of(generated, (9, 0)) == (made,)
    assert len(compiled) == 4
    other = generate(build(lambda fd, x: fd.ops.exp(x), [(513,)], D.Float), S.POINTWISE, "cuda")
    machine_code_of(other, (9, 0))
    (foreign,) = (file for file in tmp_path.glob("kernels/gpu_*.json") if file != place)
    for damage in (
        lambda kept: kept[:-30], lambda kept: bytes(len(kept)), lambda kept: kept.replace(b"mov", b"add", 1),
        lambda _: foreign.read_bytes(),
    ):
        kept, count = place.read_bytes(), len(compiled)
        place.write_bytes(damage(kept))
        assert place.read_bytes() != kept
        (made,) = machine_code_of(generated, (9, 0))
        assert len(compiled) == count + 1
        assert made.entry in made.ptx
    monkeypatch.setattr(cubins, "_compilers", lambda compiler: f"{compiler} 99")
    assert not is_cached(generated, (9, 0))


@pytest.mark.parametrize("stage", ["numba", "linker"])
def test_a_refused_kernel_is_named_and_its_source_kept(monkeypatch: pytest.MonkeyPatch, stage: str) -> None:
    def refuse(*_: object, **__: object) -> object:
        msg = f"{stage} says no\nand much more"
        raise RuntimeError(msg)

    monkeypatch.setattr(*((ptx, "_compile") if stage == "numba" else (cubins, "machine_code")), refuse)
    generated = generate(build(lambda fd, x: fd.ops.tanh(x), [(77,)], D.Float), S.POINTWISE, "cuda")
    with pytest.raises(CompilationError) as caught:
        launch_facts(generated)
    said = str(caught.value)
    target = "cc 9.0" if stage == "numba" else "sm_90"
    assert f"the kernel pointwise_T1 does not compile for {target}: {stage} says no" in said
    assert "\n" not in said
    place = Path(said.partition("source is in ")[2].rstrip(").").removesuffix(".py") + ".py")
    assert place.read_text() == generated.source
    assert not is_cached(generated, (9, 0))
