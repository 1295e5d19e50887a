"""The general lowering compared with the writers of nests: ``python -m tests.two_lowerings [--style elements]``.

Each kernel of the examples and of the benchmark's workloads that is one nest is compiled to PTX at full size twice: as
its writer emits it, and with its schedule lowered loop by loop, as if no scheduler had written it. The table counts, by
the style of the nest, the kernels whose schedule is loops, those that the general lowering follows, and those that
access memory in the same way (equally many accesses of each width), with at most 1.1 times as many instructions.
"""

import argparse
import re
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import fuser_lab as fl
from fuser_lab import examples
from fuser_lab.codegen.pipeline import GeneratedKernel, evaluated_because
from fuser_lab.errors import ScheduleError, UnsupportedError
from fuser_lab.ir.kernel_transforms import is_hint, is_template
from fuser_lab.plan import Plan, Segment
from fuser_lab.report.tables import Table, table_text
from fuser_lab.runtime.gpu.ptx import compile_phases
from fuser_lab.targets import with_blocks
from tests.accesses import accesses_of
from tests.benchmarks.gpu.compilers import ALL
from tests.kernels import generate

MOST = 1.1  # times as many instructions
COLUMNS = ("kernels", "as loops", "lowered", "same accesses", "and instructions")
_INSTRUCTION = re.compile(r"\s+(?:@!?%p\d+\s+)?[a-z]\w*[\w.]*\s+[^:]*;")


@dataclass(frozen=True, slots=True, kw_only=True)
class Code:
    """Facts about PTX: its accesses to global memory by kind and bytes, and its number of instructions."""

    accesses: Counter[tuple[str, int]]
    instructions: int


def code_of(generated: GeneratedKernel) -> Code:
    """Return the facts about a kernel's PTX."""
    text = "\n".join(phase.ptx for phase in compile_phases(generated))
    lines = (line for line in text.splitlines() if not line.lstrip().startswith((".", "//")))
    return Code(accesses=accesses_of(text), instructions=sum(_INSTRUCTION.match(line) is not None for line in lines))


def plans() -> Iterator[tuple[str, Plan]]:
    """Yield name and bottom-up plan of each example and workload."""
    for name in examples.names():
        example = examples.get(name)
        with fl.FusionDefinition() as fd:
            example.define(fd, "full")
        yield name, fl.segment(fd, example.specs("full"))
    for load in ALL:
        yield load.name, fl.segment(load.definition(), load.specs())


def compared(segment: Segment, target: str) -> tuple[str, Counter[str], str] | None:
    """Return style, counts and differences for a segment whose kernel is one nest; None for others."""
    if segment.scheduler is None or evaluated_because(segment.fusion, segment.scheduler):
        return None
    kernel = segment.kernel(target)
    if len(kernel.kernel_ir.nests) != 1:
        return None
    style, counts = kernel.kernel_ir.nests[0].schedule.style.value, Counter({"kernels": 1})
    transforms = segment.schedule_for(target).transforms
    if any(map(is_template, transforms)):
        return style, counts, "a template"
    counts["as loops"] = 1
    loops = tuple(one for one in transforms if not is_hint(one))
    try:
        lowered = generate(segment.fusion, segment.scheduler, target, loops=loops)
    except (ScheduleError, UnsupportedError) as error:
        return style, counts, str(error)
    counts["lowered"] = 1
    own, other = code_of(kernel), code_of(lowered)
    if own.accesses != other.accesses:
        return style, counts, f"accesses {_shown(own)} and {_shown(other)}"
    counts["same accesses"] = 1
    if other.instructions > MOST * own.instructions:
        return style, counts, f"{own.instructions} and {other.instructions} instructions"
    counts["and instructions"] = 1
    return style, counts, ""


def _shown(code: Code) -> str:
    return ", ".join(f"{count} {kind} of {nbytes}" for (kind, nbytes), count in sorted(code.accesses.items()))


def main() -> None:
    """Print one line for each kernel that differs, then the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0])
    parser.add_argument("--style", default="", help="only nests of this style, such as elements")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    table: dict[str, Counter[str]] = {}
    for name, plan in plans():
        for segment in plan.segments:
            found = compared(segment, with_blocks().name)
            if found is None or (options.style and found[0] != options.style):
                continue
            style, counts, differs = found
            table.setdefault(style, Counter()).update(counts)
            if differs:
                print(f"{name}, segment {segment.index} ({style}): {differs}", flush=True)
    rows = tuple((style, *(str(counts[column]) for column in COLUMNS)) for style, counts in sorted(table.items()))
    print(table_text(Table(columns=("style", *COLUMNS), rows=rows)))


if __name__ == "__main__":
    main()
