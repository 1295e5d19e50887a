"""Compiles programs of `tests.contracts.programs`, plants regressions and harmless edits, and compares."""

import contextlib
import io
import itertools
import linecache
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from fuser_lab.contracts.call import Call
from fuser_lab.contracts.comparison import REGRESSED, Comparison, compare_partitions
from fuser_lab.contracts.compiled import compile_call
from fuser_lab.contracts.partition import Partition
from tests.contracts.programs import HEAD, PLANTED, PROGRAMS, Planted, Program, harmless
from tests.needs import needs

_INPUT = re.compile(r"([a-z]+\d+)\[([\dB,]+)\](\.t)?")
_NUMBERS = itertools.count()
_DTYPES = {"f32": "float32", "f64": "float64", "bf16": "bfloat16"}


class _Zeros:
    """In place of a compiler of C++: kernels leave zeros, because only the partition is compared."""

    def __call__(self, *args: Any, **options: Any) -> Any:
        return lambda *tensors: [x.data.zero_() for x in tensors if hasattr(x, "data")]


@contextlib.contextmanager
def without_kernels() -> Iterator[None]:
    """Let Inductor schedule without compiling C++."""
    import pytest

    needs("torch")
    from torch._inductor import async_compile, cpu_vec_isa

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(async_compile.AsyncCompile, "cpp_pybinding", _Zeros())
        patch.setattr(cpu_vec_isa, "valid_vec_isa_list", list)
        yield


def partition_of(program: Program, folder: Path) -> Partition:
    """The partition of a program, whose source is written to a file so that ops have lines."""
    torch = needs("torch")
    import torch._inductor.config as inductor

    torch._dynamo.reset()
    torch.manual_seed(0)
    path = folder / "model.py"
    path.write_text(HEAD + program.source, encoding="utf-8")
    linecache.checkcache(str(path))
    module = ModuleType(f"planted_{next(_NUMBERS)}")
    sys.modules[module.__name__] = module  # torch imports the modules of functions by name, once for each name
    exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), vars(module))
    step = module.step
    inputs = tuple(_tensor(torch, text, program) for text in program.inputs)
    backward = {"backward": True} if program.backward else {}
    with inductor.patch(**program.config), contextlib.redirect_stdout(io.StringIO()):
        return compile_call(Call(
            who="lock", function=step, inputs=inputs, compiler=program.compiler, device=program.device,
            options=program.options, **backward,
        )).partition


def _tensor(torch: Any, text: str, program: Program) -> Any:
    dtype, sizes, transposed = _INPUT.fullmatch(text).groups()
    shape = [program.batch if size == "B" else int(size) for size in sizes.split(",")]
    made = torch.zeros(shape, dtype=getattr(torch, _DTYPES[dtype]))
    return made.t() if transposed else made


@dataclass(frozen=True, kw_only=True)
class Result:
    """A planted regression, or a harmless edit, with the comparison."""

    name: str
    comparison: Comparison
    planted: Planted | None = None

    @property
    def is_reported(self) -> bool:
        return self.comparison.verdict == REGRESSED

    @property
    def names_culprit(self) -> bool:
        """Whether the first change names the culprit."""
        first = str(self.comparison.changes[0]) if self.comparison.changes else ""
        return self.planted is not None and self.planted.culprit in first.partition("\n")[0]


def planted_results(folder: Path, chosen: slice = slice(None), only: str = "") -> Iterator[Result]:
    """Each planted regression, compared with its program."""
    before: dict[str, Partition] = {}
    for planted in PLANTED[chosen]:
        if only in f"{planted.program}: {planted.name}":
            program = PROGRAMS[planted.program]
            if planted.program not in before:
                before[planted.program] = partition_of(program, folder)
            after = partition_of(planted.of(program), folder)
            comparison = compare_partitions(before[planted.program], after)
            yield Result(name=f"{planted.program}: {planted.name}", comparison=comparison, planted=planted)


def harmless_results(folder: Path, count: int, first: int = 0, only: str = "") -> Iterator[Result]:
    """Harmless edits of the programs in turn."""
    programs = [program for program in PROGRAMS.values() if only in program.name]
    before = {program.name: partition_of(program, folder) for program in programs}
    for number in range(first, first + count):
        program = programs[number % len(programs)]
        after = partition_of(harmless(program, number), folder)
        yield Result(name=f"{program.name} {number}", comparison=compare_partitions(before[program.name], after))
