"""Generated code as coloured lines, each linked to the tensor that it computes."""

import importlib
import re
from collections.abc import Collection, Sequence
from html import escape
from typing import Any, Final

from fuser_lab import targets
from fuser_lab.errors import FuserLabError

_ORIGIN: Final = re.compile(r"\s*#\s+(\w+(?:, \w+)*) = ")
_ASSIGNED: Final = re.compile(r"\s*(\w+)(?:\[.*?\])? = ")
_CARRIED: Final = re.compile(r"\s*(?:load|store)_\w+\((\w+),")
_LOCATION: Final = re.compile(r"\s*\.loc\s+\d+\s+(\d+)")


def highlight(source: str, language: str = "python") -> str:
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
    tensors: list[str] = []
    current, depth, inside = "", 0, False
    for line in source.split("\n"):
        inside = inside or line.startswith("def ")
        if not inside:  # the summary at the head, imports, declarations
            tensors.append("")
            continue
        indent = len(line) - len(line.lstrip())
        if line.strip() and indent < depth:
            current = ""
        said = _ORIGIN.match(line)
        if said:
            current, depth = next((n for n in said.group(1).split(", ") if n in lower.values()), ""), indent
            tensors.append(current)
            continue
        assigned = _ASSIGNED.match(line) or _CARRIED.match(line)
        assigned_tensor = lower.get(assigned.group(1).partition("_")[0].lower(), "") if assigned else ""
        tensors.append(assigned_tensor or (current if line.strip() else ""))
    return tensors


def offers() -> list[dict[str, str]]:
    """Return what the source tab offers, for the page: each target's source, and its machine code if that is shown.

    An entry has the target's name, the view that messages name, a label, and what a profile does.
    """
    views = []
    for name in targets.names():
        target = targets.target_of(name)
        profile = (
            f"Runs the plan on this {target.label} and compares it with the roofline." if target.on_host else
            f"Compiles the kernels for {target.label}; with inputs on a GPU it also runs them and reads counters."
        )
        views.append({"target": name, "view": "source", "label": target.label, "profile": profile})
        if target.assembly is not None:
            views.append({"target": name, "view": "assembly", "label": target.assembly.name, "profile": profile})
    return views


def machine_origins(ptx: str, lines: Sequence[str]) -> list[str]:
    """Return for each line of PTX the tensor that its source line computes; its ``.loc`` lines name source lines.

    Functions that were inlined, such as a fast exponential, have their own line numbers; their lines have no tensor.
    """
    tensors, current = [], ""
    for line in ptx.split("\n"):
        said = _LOCATION.match(line)
        if said:
            number = int(said.group(1))
            current = lines[number - 1] if 0 < number <= len(lines) else ""
        tensors.append(current if line.startswith("\t") and not said else "")
    return tensors


def link_lines(source: str, lines: Sequence[str], language: str = "python") -> str:
    """Return the coloured source, each line with an origin as an element that names it in ``data-name``."""
    coloured = highlight(source, language).split("\n")
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
    return {"text": text, "html": link_lines(text, origins(text, _names(segment)))}


def machine(segment: Any, target: str) -> dict[str, str]:
    """Return the machine code of a segment's kernel as text, linked like the source.

    Raises
    ------
    FuserLabError
        If the segment has no kernel, the target has no such text, or its compiler is not installed.
    """
    assembly = targets.target_of(target).assembly
    if assembly is None:
        return {"problem": f"The machine code of kernels for {target!r} is not shown."}
    if segment.scheduler is None:
        return {"problem": f"segment {segment.index} has no kernel: no scheduler accepts it."}
    code: Any = importlib.import_module("fuser_lab.codegen.pipeline")
    generated = code.generate(code.KernelRequest(fusion=segment.fusion, scheduler=segment.scheduler, target=target))
    lines = origins(generated.source, _names(segment))
    texts = assembly.listing()(generated)
    html = "\n\n".join(link_lines(text, machine_origins(text, lines), "assembly") for text in texts)
    return {"text": "\n\n".join(texts), "html": html}


def _names(segment: Any) -> frozenset[str]:
    made = (tensor.name for expr in segment.exprs for tensor in expr.tensor_outputs)
    return frozenset((*made, *(value.name for value in segment.inputs)))
