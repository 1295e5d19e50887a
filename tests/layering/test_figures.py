"""The figures of `python -m tests.figures`, of a small package."""

import ast

from tests.figures import Figures, bare_comparisons, bare_constants, classes
from tests.layering.test_imports import REPOSITORY
from tests.layering.test_vague_names import files_of_package

WRITER = """
# Bytes of a line.
LINE = 64
WIDTH = 4  # lanes
LIMIT = 7
NAMES = ("a", "b")


class A:
    def __init__(self):
        self.first = 0

    def begin(self, found, *, own=1):
        self.second, self.first = 1, 2


class B(A):
    pass


class C(A):
    def end(self):
        self.third = LIMIT


class D(B, C):
    pass
"""


def test_figures_of_a_package(tmp_path):
    path = tmp_path / "fuser_lab" / "codegen" / "writer.py"
    path.parent.mkdir(parents=True)
    path.write_text(WRITER)
    (tmp_path / "fuser_lab" / "api.py").write_text("one = 1\n" * 601)
    figures = Figures(tmp_path)
    assert figures.lines() == {"codegen": WRITER.count("\n"), "(top)": 601}
    assert figures.long_files() == ["fuser_lab/api.py (601)"]
    assert figures.vague_names() == {"codegen": 2, "(top)": 1}
    assert figures.bare_constants()["codegen"] == 1
    assert figures.late_attributes()["codegen"] == 3
    assert figures.writers() == ["D: 4 classes, 3 methods, 3 late attributes"]
    assert figures.signatures()[0] == "2 codegen/writer.py::begin"


def test_numbers_without_a_comment():
    assert bare_constants(WRITER) == ["LIMIT"]
    source = "A: int = 1 << 20\nB = (3, 4)\nC = True\nD = frozenset({1})\nlower = 5\n"
    assert bare_constants(source) == ["A", "B"]


def test_limits_of_comparisons():
    source = """
def loops(depth, cc, item):
    if depth > 300 or item < 0.5 * depth or cc >= (9, 0) or depth > LIMIT or item == 8:
        return depth < 1 << 20
"""
    assert bare_comparisons(source) == [
        f"line {line}: {text}" for line, text in ((3, "depth > 300"), (3, "item < 0.5 * depth"), (4, "depth < 1 << 20"))
    ]


def test_no_choice_of_a_kernel_compares_with_a_bare_number():
    bare = [
        f"{path.relative_to(REPOSITORY)}, {text}" for path in files_of_package()
        if path.parent.name in {"schedule", "codegen"} for text in bare_comparisons(path.read_text("utf-8"))
    ]
    assert not bare, (
        "a number that decides is a row of fuser_lab/cost/crossovers.py with its unit and source, or is computed from "
        "the device, bytes or lanes; a mere limit is a constant of the module with a comment"
    )


def test_every_number_names_its_unit():
    sources = {path: path.read_text("utf-8") for path in files_of_package()}
    bare = [
        f"{path.relative_to(REPOSITORY)}: {name}" for path, source in sources.items()
        for name in bare_constants(source)
    ]
    assert not bare, "a comment on the line of a constant, or above it, says what it counts and where it is from"


def test_writers_are_functions_of_frozen_records_without_inheritance():
    paths = [path for path in (REPOSITORY / "fuser_lab" / "codegen").glob("[cg]pu_*.py") if "facts" not in path.stem]
    defined = [node for path in paths for node in classes(ast.parse(path.read_text("utf-8")))]
    assert len(defined) > 20
    assert [node.name for node in defined if "frozen=True" not in "".join(map(ast.unparse, node.decorator_list))] == []
    names = {node.name for node in defined}
    assert [node.name for node in defined if names & {ast.unparse(base) for base in node.bases}] == []
