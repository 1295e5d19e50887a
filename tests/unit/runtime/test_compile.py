"""Kernels on disk and in memory: one file per content, reused by other processes, safe against concurrent writers."""

import gc
import json
import os
import re
import subprocess
import sys
import weakref
from pathlib import Path

import numpy as np
import pytest
from backend.fusions import D, S, build
from machine import allowed
from numba.core.registry import cpu_target

from fuser_lab.runtime import cpu_kernels, store
from fuser_lab.runtime.compile import _MACHINE_CODE, content_key, defined_in, functions_of, source_path
from fuser_lab.runtime.plan.storage import Lifetime, plan_storage
from fuser_lab.runtime.recent import Recent
from tests.kernels import generate
from tests.memory_bound import resident

PROGRAM = """
import json, sys, time
begin = time.perf_counter()
import numpy as np
from backend.fusions import D, S, build
from numba.core.registry import cpu_target
from fuser_lab.codegen.request import KernelRequest
from fuser_lab.runtime import cpu_kernels
from fuser_lab.runtime.plan.executor import prepare
made, compiled = [], cpu_kernels.compile_kernel
cpu_kernels.compile_kernel = lambda definition: made.append(definition) or compiled(definition)
fusion = build(lambda fd, x: fd.ops.sum(fd.ops.exp(x), [1]), [(700, 300)], D.Float)
plan = prepare(fusion, [KernelRequest(fusion=fusion, scheduler=S.REDUCTION)], allow_fallback=False)
(got,) = plan.run([np.zeros((700, 300), np.float32)])
assert (got == 300).all()
print(json.dumps({"compiled": len(made), "seconds": time.perf_counter() - begin}))
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


def test_processes_write_and_replace_damaged_files_together_and_another_compiles_nothing(tmp_path: Path) -> None:
    for process in [start(tmp_path), start(tmp_path)]:
        result(process)
    (file,) = (tmp_path / "kernels").iterdir()
    assert file.suffix == ".bin"
    file.write_bytes(file.read_bytes()[:100])
    assert {result(process)["compiled"] for process in [start(tmp_path), start(tmp_path)]} <= {0, 1}
    assert result(start(tmp_path))["compiled"] == 0


@pytest.mark.benchmark
def test_first_result_of_a_new_fusion_comes_within_three_seconds(tmp_path: Path) -> None:
    seconds = [result(start(tmp_path / str(n)))["seconds"] for n in range(2)]
    assert min(seconds) < allowed(3)


def test_the_key_is_the_content() -> None:
    fusion = build(lambda fd, x: fd.ops.exp(x), [(7,)], D.Float)
    source = generate(fusion, S.POINTWISE).source
    assert content_key(source) == content_key("# another comment\n" + source)
    assert content_key(source) != content_key(source.replace("range(n0)", "range(n0 - 1)"))
    assert functions_of("def f(): ...\n", ("f",)) == functions_of("def f(): ...  \n# f\n".replace("  \n", "\n"), ("f",))


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


SOURCE = """
from fuser_lab.runtime.cpu_kernels import kernel

@kernel("void(int64[::1])", nogil=True)
def add(x):
    x[0] += 1234567

@kernel("void(int64[::1])")
def fail(x):
    raise MemoryError("no room")
"""


@pytest.fixture
def compilations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of compiled kernels, starting with an empty cache and nothing in memory."""
    monkeypatch.setenv("FUSER_LAB_CACHE", str(tmp_path))
    monkeypatch.setattr(cpu_kernels, "_LOADED", Recent(4))
    names: list[str] = []
    compiled = cpu_kernels.compile_kernel

    def counted(definition: cpu_kernels.Definition) -> cpu_kernels.MachineCode:
        names.append(definition.function.__name__)
        return compiled(definition)

    monkeypatch.setattr(cpu_kernels, "compile_kernel", counted)
    return names


def added() -> int:
    add, fail = cpu_kernels.functions_of(SOURCE, ("add", "fail"))
    array = np.array([1])
    add(array)
    with pytest.raises(MemoryError, match="no room"):
        fail(array)
    return int(array[0])


def damaged(file: Path, kind: str) -> None:
    """Damage a file as a crash, a full disk, a user or an attacker would."""
    content = file.read_bytes()
    file.unlink()
    if kind == "a directory":
        file.mkdir()
    elif kind == "a FIFO":
        os.mkfifo(file)
    else:
        middle = len(content) // 2
        file.write_bytes({
            "cut short": content[:-20],
            "another byte": content[:middle] + bytes([content[middle] ^ 255]) + content[middle + 1 :],
        }[kind])


@pytest.mark.parametrize("kind", ["cut short", "another byte", "a directory", "a FIFO"])
def test_a_damaged_file_is_made_again(tmp_path: Path, compilations: list[str], kind: str) -> None:
    if kind == "a FIFO" and not hasattr(os, "mkfifo"):
        pytest.skip("there are no FIFOs here")
    assert not cpu_kernels.is_compiled(SOURCE)
    assert added() == 1234568
    cpu_kernels._LOADED.clear()
    assert cpu_kernels.is_compiled(SOURCE)
    assert added() == 1234568
    assert compilations == ["add", "fail"], "intact files are read"
    (file,) = (tmp_path / "kernels").iterdir()
    damaged(file, kind)
    cpu_kernels._LOADED.clear()
    assert added() == 1234568
    assert len(compilations) == 4
    if kind != "a directory":
        cpu_kernels._LOADED.clear()
        assert added() == 1234568
        assert len(compilations) == 4, "recompiled files are read"


def test_without_a_directory_kernels_are_compiled_in_memory(
    tmp_path: Path, compilations: list[str], monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "file").write_text("no directory")
    monkeypatch.setenv("FUSER_LAB_CACHE", str(tmp_path / "file"))
    assert added() == added() == 1234568
    assert compilations == ["add", "fail"]
    written = source_path(SOURCE)
    assert written is not None
    assert written.read_text() == SOURCE, "the readable source is a separate file"


def test_a_kernel_lives_as_long_as_someone_holds_it(compilations: list[str]) -> None:
    (add,) = cpu_kernels.functions_of(SOURCE, ("add",))
    engine = next(x for held in gc.get_referents(add) for x in gc.get_referents(held) if type(x) is tuple)[0]
    ended = weakref.ref(engine)
    del engine
    cpu_kernels._LOADED.clear()
    gc.collect()
    array = np.array([1])
    add(array)
    assert array[0] == 1234568
    assert ended() is not None
    del add
    gc.collect()
    assert ended() is None


_CYCLES = """
import gc
from fuser_lab.runtime import cpu_kernels
source = {source!r}
for number in range(8):
    cycle = [cpu_kernels.functions_of(source.replace("1234567", str(number)), ("add", "fail"))]
    cycle.append(cycle)
    cpu_kernels._LOADED.clear()
    del cycle
    gc.collect()
print("done")
"""


def test_a_cycle_of_references_may_end_kernels_in_any_order(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _CYCLES.format(source=SOURCE)], env={**os.environ, "FUSER_LAB_CACHE": str(tmp_path)},
        capture_output=True, text=True, check=False,
    )
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


_HALVES = """
import numpy as np
from backend.fusions import D, S, build
from tests.kernels import prepare
fusion = build(lambda fd, x: fd.ops.cast(fd.ops.exp(x), D.Half), [(5,)], D.Half)
(got,) = prepare(fusion, [(fusion, S.POINTWISE)], allow_fallback=False).run([np.zeros(5, np.float16)])
print(got.dtype, *got)
"""


def test_halves_are_converted_where_the_processor_has_no_instruction_for_it(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _HALVES], text=True, capture_output=True, check=False,
        env={
            **os.environ, "FUSER_LAB_CACHE": str(tmp_path), "NUMBA_CPU_NAME": "generic",
            "PYTHONPATH": os.pathsep.join(sys.path),
        },
    )
    assert (done.returncode, done.stdout) == (0, "float16 1.0 1.0 1.0 1.0 1.0\n"), done.stderr


def test_nothing_of_a_kernel_stays_in_numba(compilations: list[str]) -> None:
    added()
    context = cpu_target.target_context
    before = len(context.codegen()._engine._defined_symbols), len(context._defns)
    for number in range(2):
        cpu_kernels.functions_of(SOURCE.replace("1234567", str(number)), ("add",))
    assert len(compilations) == 6
    assert (len(context.codegen()._engine._defined_symbols), len(context._defns)) == before


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read in /proc")
def test_the_memory_of_forgotten_kernels_is_used_again(compilations: list[str]) -> None:
    machine = cpu_kernels.compile_kernel(defined_in(SOURCE)["add"])

    def loaded(count: int) -> int:
        for _ in range(count):
            cpu_kernels.load_kernel(machine)
        return resident()

    before = loaded(50)
    assert loaded(300) - before < 10 << 20, "each one is about 100 KB"


def test_the_least_recently_used_is_forgotten() -> None:
    kept = Recent[str, int](2)
    assert kept.keep("a", 1) == 1
    assert kept.keep("a", 2) == 1, "the first stays"
    kept.keep("b", 2)
    assert kept.get("a") == 1
    kept.keep("c", 3)
    assert kept.get("b") is None
    assert "a" in kept
    assert len(kept) == 2
    kept.clear()
    assert kept.get("c") is None


def test_a_source_that_is_refused_is_tried_once_and_said(compilations: list[str]) -> None:
    refused = SOURCE.replace("x[0] += 1234567", "x.nothing()")
    for _ in range(2):
        with pytest.raises(Exception, match="nothing"):
            cpu_kernels.functions_of(refused, ("add",))
    assert compilations == ["add", "add"]
    assert store.read(cpu_kernels._place(refused)) is None


def test_a_file_of_a_source_is_not_what_is_executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSER_LAB_CACHE", str(tmp_path))
    source = "def answer():\n    return 15\n"
    place = source_path(source)
    assert place is not None
    place.write_text("def answer():\n    return 25\n")
    assert functions_of(source, ("answer",))[0]() == 15
    assert place.read_text() == source


def test_the_key_of_a_kernel_covers_every_module_whose_functions_it_inlines() -> None:
    folder = Path(store.__file__).parent
    waiting, inlined = ["intrinsics_cpu", "narrow_floats_cpu", "polynomials"], set[str]()
    while waiting:
        name = waiting.pop()
        inlined.add(f"{name}.py")
        text = (folder / f"{name}.py").read_text(encoding="utf-8")
        imported = re.findall(r"^from fuser_lab\.runtime\.([\w.]+) import", text, re.MULTILINE)
        modules = {module.replace(".", "/") for module in imported} - {"cpu_kernels", "cpu/pipelines"}
        waiting += [module for module in modules if f"{module}.py" not in inlined]
    assert {"cpu/bits.py", "complex_functions.py"} < inlined <= set(_MACHINE_CODE)
    assert all(list(folder.glob(pattern)) for pattern in _MACHINE_CODE)
