"""The page of all pre-segmentation passes: what each does, shown by running it on a small fusion.

``python -m fuser_lab.passes.page > docs/passes.md`` writes it.
"""

import sys
from collections.abc import Iterator
from inspect import getdoc

from fuser_lab.definition.binding import bind, default_inputs
from fuser_lab.definition.builder import FusionBuilder
from fuser_lab.dtypes import DataType
from fuser_lab.ir import Expr, Fusion
from fuser_lab.passes import PRESEGMENTATION, Pass

EXAMPLES: dict[str, str] = {
    "remove_empty": """
x = fd.define_tensor([0, 4])
y = fd.define_tensor([3, 4])
fd.add_output(fd.ops.cat([x, y]))
fd.add_output(fd.ops.sum(x, [0]))
""",
    "translate_no_reduction_matmul": """
x = fd.define_tensor([8, 1])
y = fd.define_tensor([1, 16])
fd.add_output(fd.ops.matmul(x, y))
""",
    "translate_repeat_to_expand": """
x = fd.define_tensor([2, 3])
fd.add_output(fd.ops.cat([x, x, x], dim=0))
""",
    "consecutive_casts": """
x = fd.define_tensor([4, 6], dtype=DataType.BFloat16)
wide = fd.ops.cast(x, dtype=DataType.Float)
flat = fd.ops.reshape(wide, [24])
fd.add_output(fd.ops.cast(flat, dtype=DataType.BFloat16))
""",
    "fmin_fmax_promotion": """
x = fd.define_tensor([4, 6])
most = fd.ops.max(x, [1], keepdim=True)
exp = fd.ops.exp(fd.ops.sub(x, most))
fd.add_output(fd.ops.truediv(exp, fd.ops.sum(exp, [1], keepdim=True)))
""",
    "move_split_cat": """
x = fd.define_tensor([4, 6])
left = fd.ops.permute(fd.ops.slice(x, [0, 0], [4, 2]), [1, 0])
right = fd.ops.permute(fd.ops.slice(x, [0, 2], [4, 6]), [1, 0])
fd.add_output(fd.ops.exp(fd.ops.cat([left, right], dim=0)))
""",
    "move_pad": """
x = fd.define_tensor([4, 6])
y = fd.define_tensor([4, 6])
fd.add_output(fd.ops.pad(fd.ops.mul(x, fd.ops.relu(y)), [1, 1]))
""",
    "remove_broadcast_squeeze": """
x = fd.define_tensor([4])
column = fd.ops.broadcast(x, [False, True])
fd.add_output(fd.ops.exp(fd.ops.squeeze(column, [1])))
""",
    "segment_inplace_update": """
x = fd.define_tensor([4, 6])
row = fd.define_tensor([6])
fd.add_output(fd.ops.add(x, row), x)
""",
    "move_repeat_forward": """
x = fd.define_tensor([4, 6])
row = fd.ops.expand(fd.ops.broadcast(x, [True, False, False]), [3, 4, 6])
fd.add_output(fd.ops.neg(fd.ops.exp(fd.ops.reshape(row, [12, 6]))))
""",
    "move_gather": """
x = fd.define_tensor([4, 100])
label = fd.define_tensor([4, 1], dtype=DataType.Int)
fd.add_output(fd.ops.take_along_axis(fd.ops.neg(fd.ops.exp(x)), label, 1))
""",
    "translate_scatter_accumulate": """
expert = fd.define_tensor([100, 1], dtype=DataType.Int)
zeros = fd.ops.full([100, 8], 0, DataType.Int)
chosen = fd.ops.scatter(zeros, expert, fd.define_scalar(1, DataType.Int), 1)
fd.add_output(fd.ops.sum(chosen, [0]))
""",
    "mark_aliases_prepare": """
x = fd.define_tensor([2, 3])
y = fd.ops.mul(x, x)
fd.add_output(fd.ops.permute(y, [1, 0]))
""",
    "allocation_domain": """
x = fd.define_tensor([2, 3, 4, 4], contiguity=True, stride_order=[3, 0, 2, 1])
fd.add_output(fd.ops.relu(x))
""",
    "explicit_seeds": """
fd.add_output(fd.ops.uniform(0.0, 1.0, [4, 6], dtype=DataType.Float))
""",
}


def example(name: str) -> Fusion:
    """Return the fusion on which a pass is shown."""
    with FusionBuilder() as fd:
        exec(EXAMPLES[name], {"fd": fd, "DataType": DataType})  # noqa: S102 - the texts above
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


def pass_markdown() -> str:
    """Return the page as Markdown."""
    lines = [
        "# Passes before the cut",
        "",
        "<!-- Made by `python -m fuser_lab.passes.page > docs/passes.md`; a test fails when it is stale. -->",
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
    before = example(rewrite.name)
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
    sys.stdout.write(pass_markdown())
