"""Everything that pages and lessons name exists: functions, methods, arguments, commands, files and other pages."""

import ast
import importlib
import importlib.util
import inspect
import json
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import fuser_lab as fl
from fuser_lab import DataType, FusionDefinition, nvfuser
from fuser_lab.api.functions import report
from fuser_lab.cli import commands as cli
from fuser_lab.compilers.plan import CompiledPlan
from fuser_lab.contracts.pytest_plugin import Fusion

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
LESSONS = sorted((ROOT / "notebooks").glob("*.ipynb"))
TOP = ("fuser_lab/", "tests/", "docs/", "notebooks/", "binder/", "widgets/", ".ci/")


def text_of(path):
    """Return a page, or the text cells of a lesson."""
    if path.suffix == ".md":
        return path.read_text(encoding="utf-8")
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")


def code_of(text):
    """Return the Python code blocks and the code in backticks."""
    fences = re.findall(r"^```(?:python)?\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    return fences, re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL))


@pytest.fixture(scope="module")
def objects():
    """The objects that pages refer to by these names."""
    with FusionDefinition() as fd:
        x, y = (fd.define_tensor(shape=[8, 8], contiguity=True, dtype=DataType.Float) for _ in range(2))
        fd.add_output(fd.ops.add(y, fd.ops.sum(x, dims=[1], keepdim=True)))
    inputs = [np.ones((8, 8), np.float32)] * 2
    plan = fl.segment(fd, inputs)
    certificate = plan.certificate(states=10)
    return SimpleNamespace(
        fl=fl, fd=fd, plan=plan, plan_segment=plan.segments[0], fusion=plan.fusion, certificate=certificate,
        times=fl.Timings, cache=fl.FusionCache(), decisions=plan.decisions,
    )


def missing_names(code, objects):
    """Return dotted names that begin with a known object and do not resolve."""
    code = re.sub(r"\bplan\.segments\[\w+\]", "plan_segment", re.sub(r"#.*", "", code))
    for root, rest in re.findall(rf"(?<![\w.])({'|'.join(vars(objects))})((?:\.[A-Za-z]\w*\b(?!\*))+)", code):
        found = getattr(objects, root)
        for name in rest[1:].split("."):
            if name in {"svg", "html", "py", "json", "txt", "lock"}:  # plan.svg is a file
                break
            if not hasattr(found, name) and name not in getattr(found, "__dataclass_fields__", {}):
                yield f"{root}{rest}"
                break
            found = getattr(found, name, None)
            if found is None or callable(found) or isinstance(found, property):
                break


@pytest.mark.parametrize("path", [*PAGES, *LESSONS], ids=lambda p: p.stem)
def test_names_exist(path, objects):
    fences, inline = code_of(text_of(path))
    if path.stem == "nvfuser":
        # The page of another frontend, whose definitions have other members.
        objects = SimpleNamespace(**{**vars(objects), "fd": nvfuser.FusionDefinition()})
    if path.stem == "inductor":
        objects = SimpleNamespace(**{**vars(objects), "plan": CompiledPlan})
    if "contracts" in path.stem:  # the fixture of pytest
        objects = SimpleNamespace(**{**vars(objects), "fusion": Fusion})
    missing = {name for code in (*fences, *inline) for name in missing_names(code, objects)}
    assert not missing - {"fd.ops.softsign"}  # the op that CONTRIBUTING adds


def test_a_name_that_does_not_exist_is_found(objects):
    code = 'fl.segmnt(fd); plan.glu(0, 1); plan.segments[0].src("cuda"); fd.ops.silu(x); plan.save("plan.svg"); fl.time'
    assert list(missing_names(code, objects)) == ["fl.segmnt", "plan.glu", "plan_segment.src"]


def wrong_calls(code):
    """Return imports that fail, and calls of public functions with arguments that they do not have."""
    try:
        tree = ast.parse(code)
    except SyntaxError:
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "fuser_lab":
            module = importlib.import_module(node.module)
            for name in node.names:
                if not hasattr(module, name.name) and not importlib.util.find_spec(f"{node.module}.{name.name}"):
                    yield f"from {node.module} import {name.name}"
        if isinstance(node, ast.Call) and ast.unparse(node.func).removeprefix("fl.") in fl.__all__:
            name = ast.unparse(node.func).removeprefix("fl.")
            accepted = inspect.signature(report if name == "report" else getattr(fl, name)).parameters
            if not any(p.kind is p.VAR_KEYWORD for p in accepted.values()):
                yield from (f"fl.{name}({k.arg}=)" for k in node.keywords if k.arg not in (None, *accepted))


@pytest.mark.parametrize("path", [*PAGES, *LESSONS], ids=lambda p: p.stem)
def test_calls_are_accepted(path):
    fences, inline = code_of(text_of(path))
    assert not [wrong for code in (*fences, *inline) for wrong in wrong_calls(code)]


def test_a_call_that_is_not_accepted_is_found():
    code = "from fuser_lab import Plann\nfl.segment(fd, stratgy='optimal')\nfl.SegmenterOptions(forward=1, welford=0)"
    wrong = ["from fuser_lab import Plann", "fl.segment(stratgy=)", "fl.SegmenterOptions(forward=)"]
    assert list(wrong_calls(code)) == wrong


@pytest.mark.parametrize("path", [*PAGES, *LESSONS], ids=lambda p: p.stem)
def test_commands_files_and_links_exist(path):
    text = text_of(path)
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE))
    fences, inline = code_of(text)
    spans = "\n".join((*fences, *inline))
    assert not set(re.findall(r"^make ([a-z]+)", spans, flags=re.MULTILINE)) - targets
    modules = set(re.findall(r"python3? -m ((?:fuser_lab|tests)[\w.]*)", spans))
    assert not [name for name in modules if importlib.util.find_spec(name) is None]
    commands = set(re.findall(r"-m fuser_lab ([a-z]+)", spans))
    assert not [name for name in commands if name not in cli._parser().format_help()]
    named = {span.split(" ")[0].split("::")[0].rstrip(".") for span in inline if span.startswith(TOP)}
    assert not [name for name in named if "*" not in name and not (ROOT / name).exists()]
    lessons = {path.stem for path in LESSONS}
    assert not [span for span in inline if re.fullmatch(r"\d\d_\w+", span) and span not in lessons]
    links = re.findall(r"\]\((?!https?:|#)([^)#\s]+)", text)
    assert not [link for link in links if not (path.parent / link).exists()]
