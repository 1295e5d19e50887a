"""Generated code as coloured lines, each linked to the tensor that it computes."""

from __future__ import annotations

import importlib
import re
from html import escape
from typing import TYPE_CHECKING, Any, Final

from fuser_lab.errors import FuserLabError

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

_ORIGIN: Final = re.compile(r"\s*#\s+(\w+(?:, \w+)*) = ")
_ASSIGNED: Final = re.compile(r"\s*(\w+)(?:\[.*?\])? = ")
_CARRIED: Final = re.compile(r"\s*(?:load|store)_\w+\((\w+),")
_LOCATION: Final = re.compile(r"\s*\.loc\s+\d+\s+(\d+)")


def highlighted(source: str, language: str = "python") -> str:
    """Return the source as HTML spans with Pygments' short class names, or only escaped without Pygments."""
    if language != "python":
        return escape(source)
    try:
        from pygments import highlight
        from pygments.formatters import HtmlFormatter
        from pygments.lexers import PythonLexer
    except ImportError:
        return escape(source)
    return str(highlight(source, PythonLexer(stripnl=False), HtmlFormatter(nowrap=True)))


def origins(source: str, names: Collection[str]) -> list[str]:
    """Return for each line of a generated kernel the tensor that it computes or loads, or an empty text.

    The generator writes the expression above the lines that compute it; a variable is named after its tensor.
    """
    lower = {name.lower(): name for name in names}
    found: list[str] = []
    current, depth, inside = "", 0, False
    for line in source.split("\n"):
        inside = inside or line.startswith("def ")
        if not inside:  # the summary at the head, imports, declarations
            found.append("")
            continue
        indent = len(line) - len(line.lstrip())
        if line.strip() and indent < depth:
            current = ""
        said = _ORIGIN.match(line)
        if said:
            current, depth = next((n for n in said.group(1).split(", ") if n in lower.values()), ""), indent
            found.append(current)
            continue
        assigned = _ASSIGNED.match(line) or _CARRIED.match(line)
        own = lower.get(assigned.group(1).partition("_")[0].lower(), "") if assigned else ""
        found.append(own or (current if line.strip() else ""))
    return found


def machine_origins(ptx: str, lines: Sequence[str]) -> list[str]:
    """Return for each line of PTX the tensor that its source line computes; its ``.loc`` lines name source lines.

    Functions that were inlined, such as a fast exponential, have their own line numbers; their lines have no tensor.
    """
    found, current = [], ""
    for line in ptx.split("\n"):
        said = _LOCATION.match(line)
        if said:
            number = int(said.group(1))
            current = lines[number - 1] if 0 < number <= len(lines) else ""
        found.append(current if line.startswith("\t") and not said else "")
    return found


def linked(source: str, lines: Sequence[str], language: str = "python") -> str:
    """Return the coloured source, each line with an origin as an element that names it in ``data-name``."""
    coloured = highlighted(source, language).split("\n")
    return "\n".join(
        f'<span class="fx-at" data-name="{escape(name)}">{text or " "}</span>' if name else text
        for text, name in zip(coloured, [*lines, *[""] * len(coloured)], strict=False)
    )


def source(segment: Any, target: str) -> dict[str, str]:
    """Return a segment's generated kernel as text and as linked HTML, or a sentence that says why there is none."""
    try:
        text = segment.source(target)
    except FuserLabError as error:
        return {"problem": str(error)}
    return {"text": text, "html": linked(text, origins(text, _names(segment)))}


def machine(segment: Any) -> dict[str, str]:
    """Return the PTX of a segment for the device of numba-cuda's default target, linked like the source.

    Raises
    ------
    FuserLabError
        If the segment has no kernel, or numba-cuda is not installed.
    """
    ptx: Any = importlib.import_module("fuser_lab.runtime.ptx")  # loads numba
    generate: Any = importlib.import_module("fuser_lab.codegen.generate").generate
    if segment.scheduler is None:
        return {"problem": f"segment {segment.index} has no kernel: no scheduler accepts it."}
    generated = generate(segment.fusion, segment.scheduler, "cuda")
    lines = origins(generated.source, _names(segment))
    phases = ptx.compile_phases(generated, lineinfo=True)
    texts = [shortened(phase.ptx) for phase in phases]
    html = "\n\n".join(linked(text, machine_origins(text, lines), "ptx") for text in texts)
    return {"text": "\n\n".join(texts), "html": html}


def shortened(text: str) -> str:
    """Return PTX without its header comment and its tables for debuggers."""
    start = text.find(".visible")
    end = text.find(".section\t.debug")
    return text[max(start, 0): end if end > 0 else len(text)].rstrip()


def _names(segment: Any) -> frozenset[str]:
    made = (tensor.name for expr in segment.exprs for tensor in expr.tensor_outputs)
    return frozenset((*made, *(value.name for value in segment.inputs)))
