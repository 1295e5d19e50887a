"""CPU code is compiled in one way: by `fuser_lab.runtime.cpu.pipelines`, which keeps LLVM out of the user's process."""

import re
from pathlib import Path

NUMBAS = re.compile(r"from numba import [^\n]*\b(n?jit|cfunc|g?u?vectorize)\b|numba\.(n?jit|cfunc|g?u?vectorize)\b")


def test_only_one_module_has_numba_compile(repository: Path) -> None:
    files = (repository / "fuser_lab").rglob("*.py")
    users = {file.name for file in files if NUMBAS.search(file.read_text(encoding="utf-8"))}
    assert users == {"pipelines.py"}
