"""The source tab's contents besides plain source: linked columns, and the steps of a kernel."""

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, Final

from fuser_lab import targets
from fuser_lab.codegen.links import machine_lines, schedule_lines, source_lines
from fuser_lab.errors import FuserLabError
from fuser_lab_widgets.sources import highlight

if TYPE_CHECKING:
    from fuser_lab.codegen.emitter import Place
    from fuser_lab.codegen.kernel_steps import KernelStep, KernelSteps
from fuser_lab.codegen.links import LinkedLine

_MOST_NAMED: Final = 6  # elements of one access


def beside(segment: Any, target: str, *, compiled: bool = True) -> dict[str, Any]:
    """Return source and schedule of a segment as linked columns, and its machine code if requested and shown.

    Each column is a pair of a title and HTML. If there is no kernel, ``problem`` says why; ``note`` says why machine
    code is missing.
    """
    try:
        generated = segment.kernel(target)
    except FuserLabError as error:
        return {"problem": str(error)}
    columns = [
        ["Source", line_options("s", source_lines(generated))],
        ["Schedule", line_options("p", schedule_lines(generated, segment.index))],
    ]
    note = ""
    assembly = targets.target_of(target).assembly
    if assembly is not None and compiled:
        try:
            text = "\n\n".join(assembly.listing()(generated))
            columns.append([assembly.name, line_options("m", machine_lines(text, generated), "assembly")])
        except FuserLabError as error:
            note = str(error)
    return {"columns": columns, "note": note}


def steps(segment: Any, target: str) -> dict[str, Any]:
    """Return the steps of a segment's kernel for the page, or a sentence that says why there are none."""
    try:
        return {"steps": page_form(segment.steps(target))}
    except FuserLabError as error:
        return {"problem": str(error)}


def page_form(kernel: "KernelSteps") -> dict[str, Any]:
    """Return the steps of a kernel in the form of the page's player; all text in ``html`` is escaped."""
    coloured = highlight(kernel.source).rstrip("\n").split("\n")
    lines = (f'<span data-line="{n}">{text or " "}</span>' for n, text in enumerate(coloured, 1))
    return {
        "note": kernel.note,
        "html": "\n".join(lines),
        "grids": [[grid.name, grid.role, grid.shape, grid.cells] for grid in kernel.grids],
        "steps": [_step(kernel, step) for step in kernel.steps],
    }


def _step(kernel: "KernelSteps", step: "KernelStep") -> dict[str, Any]:
    said = [f"{'writes' if t.write else 'reads'} {t.buffer}{_in_brackets(t.elements)}" for t in step.touches]
    text = ", ".join(said) or {"reduce": "the threads combine their values", "barrier": "the threads wait"}[step.kind]
    rounds = ", ".join(f"{name} = {value}" for name, value in step.loops if isinstance(value, int))
    return {
        "lines": kernel.lines_of(step),
        "text": text,
        "rounds": rounds,
        "axes": step.axes,
        "threads": step.threads,
        "touches": [[t.buffer, t.write, t.threads, t.elements] for t in step.touches],
    }


def _in_brackets(elements: Sequence[int]) -> str:
    """Return elements in brackets: all of them if there are few, otherwise their number."""
    distinct = sorted(set(elements))
    if len(distinct) > 1 and distinct == list(range(distinct[0], distinct[-1] + 1)):
        return f"[{distinct[0]}..{distinct[-1]}]"
    named = ", ".join(map(str, distinct[:_MOST_NAMED]))
    return f"[{named}]" if len(distinct) <= _MOST_NAMED else f" ({len(distinct)} elements)"


def line_options(
    key: str, lines: Sequence[LinkedLine], language: str = "python", before: Callable[[int], str] | None = None,
) -> str:
    """Return the lines as the options of a list, each with the statements that it implements.

    ``before`` returns the HTML before the text of a line, by its number from 0.
    """
    coloured = highlight("\n".join(line.text for line in lines), language).split("\n")
    return "".join(
        f'<div role="option" aria-selected="false" id="fx-{key}{n}"'
        + (f' data-links="{ranges(line.places)}"' if line.places else "")
        + ("" if text.strip() else ' aria-label="empty line"')
        + f">{before(n) if before else ''}{text if text.strip() else ' '}</div>"
        for n, (text, line) in enumerate(zip(coloured, lines, strict=False))
    )


def ranges(places: "Collection[Place]") -> str:
    """Return positions as ``phase.first-last``, with a range for each run of neighbours."""
    runs: list[list[int]] = []
    for phase, place in sorted(places):
        if runs and runs[-1][0] == phase and runs[-1][2] == place - 1:
            runs[-1][2] = place
        else:
            runs.append([phase, place, place])
    return " ".join(f"{phase}.{first}-{last}" for phase, first, last in runs)
