"""The history of a fusion before it was cut: the passes that changed it and how, those without effect, those off."""

from collections.abc import Callable
from dataclasses import dataclass
from difflib import unified_diff
from typing import Any

from fuser_lab.definition.binding import bind
from fuser_lab.ir import Expr, Fusion
from fuser_lab.passes import PASSES, Pass
from fuser_lab.report.expressions import expr_text
from fuser_lab.report.pass_diff import Rewrite, rewrite_of
from fuser_lab.segmentation.options import run_passes

CONCRETIZE, SEGMENTER = "concretize", "segmenter"  # steps that are not passes, by the names of their views
_WHILE_CUT = "Rewrites made while the fusion was cut: variances from sums of squares, casts where segments meet."
CHANGED, NOTHING, OFF, NOT_NEEDED = "changed", "nothing to do", "switched off", "not needed"


@dataclass(frozen=True, slots=True, kw_only=True)
class PassView:
    """One pass: its purpose, its outcome, and the expressions before and after, one per line.

    ``outcome`` is "changed", "nothing to do", "switched off" (by the options) or "not needed" (it replaces a scheduler
    that is enabled). ``before`` and ``after`` are empty if nothing changed; ``diff`` has only the differing lines, each
    after ``-`` or ``+``. ``rewrite`` is the difference as two graphs, None if nothing changed.
    """

    name: str
    nvfuser: str
    about: str
    outcome: str
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    rewrite: Rewrite | None = None

    @property
    def diff(self) -> tuple[str, ...]:
        """Lines that only one side has, in order."""
        lines = unified_diff(self.before, self.after, n=0, lineterm="")
        return tuple(line for line in lines if line[:1] in "+-" and line[:3] not in {"+++", "---"})


def view_passes(plan: Any) -> tuple[PassView, ...]:
    """Return the passes in order, run again on the plan's definition; none for plans without one."""
    return tuple(step for step in view_steps(plan) if step.name not in {CONCRETIZE, SEGMENTER})


def view_steps(plan: Any) -> tuple[PassView, ...]:
    """Return the passes like `view_passes`, with the preparation before them and the segmenter's own rewrites.

    These two are omitted if they changed no op.
    """
    if not hasattr(plan, "definition"):
        return ()
    changed: dict[str, tuple[Fusion, Fusion]] = {}

    def note(step: Pass, before: Fusion, after: Fusion, _seconds: float) -> None:
        changed[step.name] = before, after

    passes = getattr(plan, "passes", PASSES)
    bound = bind(plan.definition, plan.inputs).fusion
    prepared = run_passes(bound, plan.options, passes, note)
    return (
        *_step(CONCRETIZE, "Sizes become numbers, and ops that only compute sizes go.", plan.definition, bound, _bare),
        *(_view(step, changed.get(step.name), plan.options) for step in passes),
        *_step(SEGMENTER, _WHILE_CUT, prepared, plan.fusion),
    )


def _step(
    name: str, about: str, before: Fusion, after: Fusion, text: Callable[[Expr], str] | None = None,
) -> tuple[PassView, ...]:
    """Return the view of a step that is not a pass, if it changed an op."""
    rewrite = rewrite_of(before, after, text or _line)
    if not (rewrite.removed or rewrite.added or rewrite.rewritten):
        return ()
    lines = (tuple(map(text or _line, fusion.exprs)) for fusion in (before, after))
    first, second = lines
    return (
        PassView(name=name, nvfuser="", about=about, outcome=CHANGED, before=first, after=second, rewrite=rewrite),
    )


def _view(step: Pass, sides: tuple[Fusion, Fusion] | None, options: Any) -> PassView:
    about = next(iter((type(step).__doc__ or "").strip().splitlines()), "").replace("``", "")
    if sides is not None:
        before, after = map(_lines, sides)
        return PassView(
            name=step.name, nvfuser=step.nvfuser, about=about, outcome=CHANGED, before=before, after=after,
            rewrite=rewrite_of(*sides, _line),
        )
    outcome = NOTHING
    if step.name in options.disabled_passes:
        outcome = OFF
    elif step.only_without and step.only_without not in options.disabled_schedulers:
        outcome = NOT_NEEDED
    return PassView(name=step.name, nvfuser=step.nvfuser, about=about, outcome=outcome)


def _bare(expr: Expr) -> str:
    """Return an expression without its attributes, which contain sizes."""
    results, operands = (", ".join(v.name for v in values) for values in (expr.outputs, expr.tensor_inputs))
    return f"{results} = {expr.op.name}({operands})"


def _line(expr: Expr) -> str:
    return f"{expr_text(expr)}{_layouts(expr)}"


def _lines(fusion: Fusion) -> tuple[str, ...]:
    """Return inputs, expressions and outputs, one per line, and any layout that is not the default."""
    ends = [f"inputs {', '.join(v.name for v in fusion.inputs)}"]
    lines = list(map(_line, fusion.exprs))
    aliases = [f"{output.name} is written over {source.name}" for output, source in fusion.aliases]
    return (*ends, *lines, *aliases, f"outputs {', '.join(v.name for v in fusion.outputs)}")


def _layouts(expr: Any) -> str:
    orders = [tv.domain.allocation_order for tv in expr.tensor_outputs if tv.domain.allocation is not None]
    return "".join(f"  # axes in memory: {', '.join(map(str, order))}" for order in orders)
