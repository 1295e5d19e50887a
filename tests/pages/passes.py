"""The page of all pre-segmentation passes, each run on a small fusion: ``python -m tests.pages.passes``."""

import sys
from collections.abc import Iterator
from inspect import getdoc
from textwrap import dedent
from typing import Any

from fuser_lab.definition.binding import bind, default_inputs
from fuser_lab.definition.builder import FusionBuilder
from fuser_lab.dtypes import DataType
from fuser_lab.errors import UnsupportedError
from fuser_lab.ir import Expr, Fusion
from fuser_lab.passes import PRESEGMENTATION, Pass

COMMAND = "python -m tests.pages.passes > docs/passes.md"


class _OfDtype:
    """A definition whose tensors have a type unless the call names another."""

    def __init__(self, fd: FusionBuilder, dtype: DataType) -> None:
        self._fd, self._dtype = fd, dtype

    def __getattr__(self, name: str) -> Any:
        return getattr(self._fd, name)

    def define_tensor(self, shape: list[int], **how: Any) -> Any:
        return self._fd.define_tensor(shape, **{"dtype": self._dtype, **how})


def example_of(shown: Pass, dtype: DataType = DataType.Float) -> Fusion:
    """Return the fusion on which a pass is shown, or raise UnsupportedError if the pass has no example.

    Tensors whose type the example does not name have ``dtype``.
    """
    if not shown.example:
        msg = f"pass {shown.name!r} has no example: statements that record a fusion, for docs/passes.md."
        raise UnsupportedError(msg)
    with FusionBuilder() as fd:
        exec(dedent(shown.example), {"fd": _OfDtype(fd, dtype), "DataType": DataType})
    return bind(fd.fusion, default_inputs(fd.fusion)).fusion


def fusion_lines(fusion: Fusion) -> Iterator[str]:
    """Yield a line per input and expression, as ``T2 = permute(T1, dims=(1, 0))  Float [3, 2]``, then the outputs."""
    for value in fusion.inputs:
        yield f"{value.name}: {_type(value)}"
    for expr in fusion.exprs:
        names = ", ".join(value.name for value in expr.outputs)
        yield f"{names} = {_call(expr)}  {_type(expr.outputs[0])}"
    overwritten = {output: target.name for output, target in fusion.aliases}
    shown = (f"{tv.name} over {overwritten[tv]}" if tv in overwritten else tv.name for tv in fusion.outputs)
    yield f"outputs: {', '.join(shown)}"


def _call(expr: Expr) -> str:
    operands = [value.name or str(value) for value in expr.inputs]
    return f"{expr.op.name}({', '.join([*operands, *(f'{key}={value}' for key, value in expr.attrs)])})"


def _type(value: object) -> str:
    dtype, shape = getattr(value, "dtype", DataType.Null), getattr(value, "shape", None)
    domain = getattr(value, "domain", None)
    order = "" if domain is None or domain.allocation is None else f", axes in memory {list(domain.allocation)}"
    return f"{dtype.name} scalar" if shape is None else f"{dtype.name} {list(shape)}{order}"


def page() -> str:
    """Return the page as Markdown."""
    lines = [
        "# Passes before the cut",
        "",
        f"<!-- Made by `{COMMAND}`; a test fails when it is stale. -->",
        "",
        "These passes rewrite a fusion before it is segmented, in this order, which is nvFuser's. All sizes are known",
        "at that point. Each pass can be disabled, `SegmenterOptions(disabled_passes=['move_gather'])`, also by",
        "nvFuser's name, `SegmenterOptions.from_nvfuser(disable_preseg=['MoveGatherPass'])`. The decision log lists",
        "the passes that changed something: `plan.decisions.passes`. `plan.pass_diffs()` shows what each",
        "removed, added and rewrote, side by side.",
        "",
    ]
    for rewrite in PRESEGMENTATION.passes:
        lines += _section(rewrite)
    lines += [*_LEFT_OUT]
    return "\n".join(lines)


def _section(rewrite: Pass) -> list[str]:
    before = example_of(rewrite)
    text = " ".join((getdoc(rewrite) or "").split()).replace("``", "`")
    upstream = f"nvFuser: `{rewrite.nvfuser}Pass`." if rewrite.nvfuser else "Not in nvFuser."
    only = f" Runs only if the scheduler `{rewrite.only_without}` is disabled." if rewrite.only_without else ""
    shown = [
        "```", *fusion_lines(before), "```", "", "becomes", "", "```", *fusion_lines(rewrite.run(before)), "```", "",
    ]
    return [f"## {rewrite.name}", "", text, "", upstream + only, "", *shown]


_LEFT_OUT = (
    "## nvFuser's other passes",
    "",
    "| pass | why fuser_lab does not have it |",
    "|---|---|",
    "| `AddAxiomsPass` | states that sizes are positive; in fuser_lab they are numbers |",
    "| `ExactMappedExtentSubstitutionPass` | gives equal sizes one symbol; in fuser_lab they are numbers |",
    "| `PropagateShardingsPass`, `DecomposeReshardingsPass`, `ReorderShardedAxisPass` | for several GPUs |",
    "| `FinalizeMultideviceDomainsPass` | for several GPUs |",
    "",
)


if __name__ == "__main__":
    sys.stdout.write(page())
