"""A share of `tests.sweep_lengths`: the row lengths at which LLVM aborted for AMD processors, compiled for them."""

import platform
from pathlib import Path

import pytest

from fuser_lab.runtime import cpu_kernels
from fuser_lab.runtime.cpu import pipelines
from fuser_lab.runtime.recent import Recent
from tests.sweep_lengths import OWN, RecordingProcess, swept


@pytest.fixture
def process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RecordingProcess:
    recording = RecordingProcess()
    monkeypatch.setattr(pipelines, "LLVM", recording)
    monkeypatch.setattr(cpu_kernels, "_LOADED", Recent(4))
    monkeypatch.setenv("FUSER_LAB_CACHE", str(tmp_path))
    return recording


@pytest.mark.skipif(platform.machine() not in {"x86_64", "AMD64"}, reason="AMD processors have another architecture")
@pytest.mark.parametrize("length", [
    79, 94, 127, *(pytest.param(length, marks=pytest.mark.matrix) for length in (95, 105, 109, 120, 190)),
])
def test_rows_compile_for_processors_by_amd(process: RecordingProcess, length: int) -> None:
    found = swept(process, length, ["float32"], ["softmax"], ["znver4", "znver5"])
    assert not found.aborts
    assert not found.wrong
    assert found.modules["znver4"] == found.modules["znver5"] == found.modules[OWN] > 0
