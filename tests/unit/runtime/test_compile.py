"""The cache of generated kernels: one file per content, reused by other processes, safe against concurrent writers."""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from backend.fusions import D, S, build

from fuser_lab.codegen.generate import generate
from fuser_lab.runtime import compile as kernels
from fuser_lab.runtime.storage import Lifetime, plan_storage

PROGRAM = """
import json, sys, time
begin = time.perf_counter()
import numpy as np
from backend.fusions import D, S, build
from fuser_lab.runtime.compile import load_source
from fuser_lab.runtime.executor import prepare
fusion = build(lambda fd, x: fd.ops.sum(fd.ops.exp(x), [1]), [(700, 300)], D.Float)
plan = prepare(fusion, [(fusion, S.REDUCTION)], allow_fallback=False)
(got,) = plan.run([np.zeros((700, 300), np.float32)])
assert (got == 300).all()
(step,) = plan.steps()
function = getattr(load_source(step.generated.source), step.generated.kernel_ir.phases[0].name)
hits = sum(function.stats.cache_hits.values())
print(json.dumps({"hits": hits, "seconds": time.perf_counter() - begin}))
"""


def start(cache: Path) -> "subprocess.Popen[str]":
    environment = {**os.environ, "FUSER_LAB_CACHE": str(cache), "PYTHONPATH": ":".join(p for p in sys.path if p)}
    return subprocess.Popen(
        [sys.executable, "-W", "error::UserWarning", "-c", PROGRAM], env=environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )


def result(process: "subprocess.Popen[str]") -> dict[str, float]:
    out, error = process.communicate(timeout=120)
    assert process.returncode == 0, error
    found: dict[str, float] = json.loads(out)
    return found


def test_concurrent_writers_then_a_process_that_compiles_nothing(tmp_path: Path) -> None:
    for process in [start(tmp_path), start(tmp_path)]:
        result(process)
    files = sorted(p.name for p in (tmp_path / "kernels").iterdir())
    assert sum(name.endswith(".py") for name in files) == 1
    assert not any(name.endswith(".tmp") for name in files)
    assert result(start(tmp_path))["hits"] == 1


def test_processes_that_find_damaged_files_together(tmp_path: Path) -> None:
    result(start(tmp_path))
    for file in (tmp_path / "kernels").rglob("*.nb[ci]"):
        file.write_bytes(file.read_bytes()[:100])
    for process in [start(tmp_path), start(tmp_path)]:
        result(process)
    assert result(start(tmp_path))["hits"] == 1


@pytest.mark.benchmark
def test_first_result_of_a_new_fusion_comes_within_three_seconds(tmp_path: Path) -> None:
    seconds = [result(start(tmp_path / str(n)))["seconds"] for n in range(2)]
    assert min(seconds) < 3


def test_a_directory_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("no directory")
    monkeypatch.setenv("FUSER_LAB_CACHE", str(blocked))
    place = kernels.cache_directory()
    assert place.is_dir()
    assert blocked not in place.parents
    assert kernels.cache_directory() == place


def test_the_key_is_the_content() -> None:
    fusion = build(lambda fd, x: fd.ops.exp(x), [(7,)], D.Float)
    source = generate(fusion, S.POINTWISE).source
    assert kernels.content_key(source) == kernels.content_key("# another comment\n" + source)
    assert kernels.content_key(source) != kernels.content_key(source.replace("range(7)", "range(6)"))
    assert kernels.load_source(source) is kernels.load_source(source)


def test_a_broken_source_leaves_no_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSER_LAB_CACHE", str(tmp_path))
    before = set(sys.modules)
    with pytest.raises(ZeroDivisionError):
        kernels.load_source("1 / 0\n")
    assert not [name for name in set(sys.modules) - before if name.startswith("fuser_lab_kernel_")]


def test_the_cache_directory_is_the_users(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("FUSER_LAB_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    if sys.platform == "linux":
        assert kernels.cache_directory() == tmp_path / "fuser_lab" / "kernels"


def test_values_alive_together_have_different_blocks() -> None:
    values = [
        Lifetime(name="a", nbytes=100, first=0, last=1), Lifetime(name="b", nbytes=50, first=1, last=2),
        Lifetime(name="c", nbytes=80, first=2, last=3), Lifetime(name="d", nbytes=200, first=3, last=4),
    ]
    plan = plan_storage(values)
    for x in values:
        assert plan.blocks[plan.block_of[x.name]] >= x.nbytes
        for y in values:
            if x is not y and x.first <= y.last and y.first <= x.last:
                assert plan.block_of[x.name] != plan.block_of[y.name]
    assert len(plan.blocks) == 2


@pytest.mark.benchmark
def test_time_is_not_spent_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSER_LAB_CACHE", str(tmp_path))
    source = generate(build(lambda fd, x: fd.ops.tanh(x), [(11,)], D.Float), S.POINTWISE).source
    kernels.load_source(source)
    begin = time.perf_counter()
    kernels.load_source(source)
    assert time.perf_counter() - begin < 0.01


def filled(place: Path, count: int) -> None:
    """Make kernels of 300 bytes in three files each, the first the oldest."""
    (place / "__pycache__").mkdir(parents=True)
    for number in range(count):
        for name in (f"seg_{number}.py", f"__pycache__/seg_{number}.f-1.nbi", f"__pycache__/seg_{number}.f-1.1.nbc"):
            (place / name).write_bytes(bytes(100))
            os.utime(place / name, (1e9 + number, 1e9 + number))


@pytest.mark.parametrize("limits", [{"most_bytes": 3000}, {"most_files": 30}])
def test_the_oldest_kernels_go_when_there_are_too_many(tmp_path: Path, limits: dict[str, int]) -> None:
    filled(tmp_path, 10)
    kernels.remove_oldest(tmp_path, **limits)
    assert len(list(tmp_path.rglob("seg_*"))) == 30, "nothing goes within the limits"
    young = tmp_path / "seg_young.py"
    young.write_bytes(bytes(100))
    kernels.remove_oldest(tmp_path, **limits)
    assert sorted(p.name for p in tmp_path.glob("*.py")) == [*(f"seg_{n}.py" for n in range(3, 10)), young.name]
    assert len(list(tmp_path.rglob("seg_*"))) == 22
    kernels.remove_oldest(tmp_path, most_bytes=0)
    assert [p.name for p in tmp_path.rglob("seg_*")] == [young.name], "what is young stays"
    kernels.remove_oldest(tmp_path / "missing")


def test_the_first_kernel_of_a_process_bounds_the_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSER_LAB_CACHE", str(tmp_path))
    seen: list[Path] = []
    monkeypatch.setattr(kernels, "remove_oldest", seen.append)
    for number in range(3):
        kernels.load_source(f"NUMBER = 'bounded {number}'")
    assert seen == [tmp_path / "kernels"]


def test_a_kernel_that_is_removed_while_it_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSER_LAB_CACHE", str(tmp_path))
    written, removed = kernels._written, []

    def once_removed(key: str, source: str) -> Path:
        path = written(key, source)
        if not removed:
            path.unlink()
            removed.append(path)
        return path

    monkeypatch.setattr(kernels, "_written", once_removed)
    assert kernels.load_source("NUMBER = 'removed'").NUMBER == "removed"
    assert removed[0].exists()


def damaged(file: Path, kind: str) -> None:
    """Do to a file what a crash, a full disk or a user does."""
    content = file.read_bytes()
    if kind == "a directory":
        file.unlink()
        file.mkdir()
        return
    middle = len(content) // 2
    file.write_bytes({
        "empty": b"", "cut short": content[:-20], "half": content[:middle], "random": os.urandom(len(content)),
        "null": bytes(len(content)), "longer": content + b"\nx = ",
        "another byte": content[:middle] + bytes([content[middle] ^ 255]) + content[middle + 1 :],
    }[kind])


KINDS = ["empty", "cut short", "half", "random", "null", "longer", "another byte", "a directory"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("suffix", [".py", ".nbi", ".nbc", ".sums"])
def test_a_damaged_file_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str, kind: str) -> None:
    monkeypatch.setenv("FUSER_LAB_CACHE", str(tmp_path))
    source = "from numba import njit\n\n@njit('int64(int64)', cache=True)\ndef f(x):\n    return x + 1234567\n"

    def again() -> Any:
        monkeypatch.setattr(kernels, "_MODULES", {})
        return kernels.load_source(source)

    again()
    assert again().f.stats.cache_hits, "what is sound is read"
    (file,) = tmp_path.rglob(f"*{suffix}")
    damaged(file, kind)
    module = again()
    assert module.f(1) == 1234568
    if kind != "a directory":
        assert again().f.stats.cache_hits, "what was made again is read"
        assert not list(tmp_path.rglob("*.tmp*"))


def test_an_edited_source_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSER_LAB_CACHE", str(tmp_path))
    source = "NUMBER = 15\n"
    place = kernels.source_path(source)
    place.write_text("NUMBER = 25\n")
    assert kernels.load_source(source).NUMBER == 15
    assert place.read_text() == source
    place.write_text("# a comment more\nNUMBER = 15\n")
    assert kernels.source_path(source).read_text().startswith("# a comment more"), "comments are no other kernel"


def test_a_source_that_the_compiler_refuses_is_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSER_LAB_CACHE", str(tmp_path))
    tried: list[Path] = []
    loading = kernels._import

    def counted(key: str, path: Path, compiled: tuple[Path, ...]) -> object:
        tried.append(path)
        return loading(key, path, compiled)

    monkeypatch.setattr(kernels, "_import", counted)
    with pytest.raises(ZeroDivisionError):
        kernels.load_source("2 / 0\n")
    assert len(tried) == 1


def test_a_full_disk_does_not_stop_a_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSER_LAB_CACHE", str(tmp_path))
    kernels.cache_directory()
    making = tempfile.mkstemp

    def full(**given: Any) -> tuple[int, str]:
        if tmp_path in Path(given["dir"]).parents:
            raise OSError(28, "No space left on device")
        return making(**given)

    monkeypatch.setattr(tempfile, "mkstemp", full)
    module = kernels.load_source("NUMBER = 'full'\n")
    assert module.NUMBER == "full"
    assert tmp_path not in Path(str(module.__file__)).parents
