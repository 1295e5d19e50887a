"""A target is one record: all code except the modules listed here asks the record and names no target."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.layering.test_imports import REPOSITORY, Module, modules_under

RECORDS = {"CPU": "cpu", "CUDA": "cuda"}  # the records in fuser_lab.targets, and their names
MENTIONED = re.compile(r"\b(?:cpu|cuda)\b", re.IGNORECASE)  # in every module that names one; the others are not parsed

# Modules that may name a target, as text or by its record.
ALLOWED = {
    "the records": {"fuser_lab.targets", "fuser_lab.targets.cpu", "fuser_lab.targets.cuda"},
    "parts of a target: what prints, holds, launches and times": {
        "fuser_lab.codegen.numba_cuda", "fuser_lab.runtime.clocks", "fuser_lab.runtime.gpu.device",
        "fuser_lab.runtime.cpu.host",
    },
    "defaults of arguments": {
        "fuser_lab.codegen.request", "fuser_lab.definition.spec", "fuser_lab.nvfuser_direct.executors",
        "fuser_lab.plan.editable", "fuser_lab.plan.plan",
        "fuser_lab.plan.segment", "fuser_lab.plan.segment_edit", "fuser_lab.runtime.plan.executor",
        "fuser_lab.runtime.plan.timing", "fuser_lab.teaching.questions", "fuser_lab.lab.sweeps",
    },
    "where arrays of a library are: NumPy's and JAX's on the host, CuPy's on a GPU": {
        "fuser_lab.bridge.jax_graph", "fuser_lab.bridge.jax_region", "fuser_lab.bridge.on_meta",
        "fuser_lab.bridge.signature", "fuser_lab.bridge.timing", "fuser_lab.bridge.torch_region",
        "fuser_lab.lab.retime", "fuser_lab.lab.tasks", "fuser_lab.runtime.arrays", "fuser_lab.runtime.binding",
    },
    "scripts for torch, read without running them": {
        "fuser_lab.definition.repro.arguments", "fuser_lab.definition.repro.calls",
        "fuser_lab.definition.repro.layouts",
    },
    "measurements of this machine's processor, profiles by a GPU's counters, and a table for each": {
        "fuser_lab.lab.calibration", "fuser_lab.lab.profiling.profile",
        "fuser_lab.report.op_page",
    },
    "nvFuser's function that returns CUDA source": {"fuser_lab.execution.executors"},
    "other meanings of the words: a processor's model, a module and a version of CUDA": {
        "fuser_lab.api.executable", "fuser_lab.lab.records", "fuser_lab.lab.schema", "fuser_lab.runtime.cpu.pipelines",
        "fuser_lab.runtime.cuda_compilers.numba_cuda_mlir",
    },
}


def named_in(module: Module) -> Iterator[tuple[int, str]]:
    """The lines of a module that name a target, and how; docstrings are not counted."""
    text = module.path.read_text(encoding="utf-8")
    if not MENTIONED.search(text):
        return
    nodes = list(ast.walk(ast.parse(text)))
    texts = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        match node:
            case ast.Constant(value=str(text)) if id(node) not in texts:
                if text.partition(":")[0] in RECORDS.values() and " " not in text:
                    yield node.lineno, text
            case ast.ImportFrom(module="fuser_lab.targets", names=names):
                yield from ((node.lineno, one.name) for one in names if one.name in RECORDS)
            case ast.ImportFrom(module=str(source)) if source.removeprefix("fuser_lab.targets.") in RECORDS.values():
                yield node.lineno, source
            case ast.Attribute(value=ast.Name(id="targets"), attr=attr) if attr in RECORDS:
                yield node.lineno, attr


def naming(root: Path) -> dict[str, tuple[int, str]]:
    """The modules that name a target, with the first place."""
    found = {module.name: sorted(named_in(module)) for module in modules_under(root)}
    return {name: places[0] for name, places in found.items() if places}


def test_only_modules_that_are_listed_name_a_target() -> None:
    allowed = set().union(*ALLOWED.values())
    found = naming(REPOSITORY)
    assert {name: found[name] for name in found.keys() - allowed} == {}
    assert sorted(allowed - found.keys()) == [], "listed, but they name no target"


@pytest.mark.parametrize(
    "source",
    [
        "def f(target):\n    return target == 'cuda'",
        "def f(device):\n    return device.startswith('cuda:')",
        "KINDS = {'cpu': 1}",
        "from fuser_lab.targets import CUDA, names",
        "from fuser_lab.targets.cuda import CUDA as GPU",
        "from fuser_lab import targets\nFIRST = targets.CPU",
    ],
)
def test_a_module_that_names_a_target_is_found(tmp_path: Path, source: str) -> None:
    folder = tmp_path / "fuser_lab" / "codegen"
    folder.mkdir(parents=True)
    (folder / "lower.py").write_text(f'"""Kernels for "cuda"."""\n{source}\n', encoding="utf-8")
    assert list(naming(tmp_path)) == ["fuser_lab.codegen.lower"]


def test_questions_to_the_record_name_no_target(tmp_path: Path) -> None:
    folder = tmp_path / "fuser_lab" / "codegen"
    folder.mkdir(parents=True)
    lines = ("from fuser_lab.targets import target_of", "def f(name):", "    'cuda'", "    return target_of(name)")
    (folder / "lower.py").write_text("\n".join(lines), encoding="utf-8")
    assert naming(tmp_path) == {}
