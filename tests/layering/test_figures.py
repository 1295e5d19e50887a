"""The figures of `python -m tests.figures`, of a small package."""

from tests.figures import Figures, bare_constants
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


def test_every_number_names_its_unit():
    sources = {path: path.read_text("utf-8") for path in files_of_package()}
    bare = [
        f"{path.relative_to(REPOSITORY)}: {name}" for path, source in sources.items()
        for name in bare_constants(source)
    ]
    assert not bare, "a comment on the line of a constant, or above it, says what it counts and where it is from"
