"""`explain`: what a model costs as one table, or a plan with the reason for each of its cuts."""

from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from fuser_lab.api.subject import subject_of
from fuser_lab.arguments import FLAG, PATH, number, takes
from fuser_lab.bridge.step_costs import StepCosts
from fuser_lab.cost.device import THIS_CPU
from fuser_lab.errors import InputError
from fuser_lab.files.json_text import json_text
from fuser_lab.plan import Plan
from fuser_lab.report import save
from fuser_lab.report.explain import explain_data, explain_text
from fuser_lab.report.html import document, plan_html
from fuser_lab.report.shown import Shown
from fuser_lab.runtime.cpu.this_cpu import this_cpu


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation(Shown):
    """A plan with its segments and the reason for each boundary between them, as text, HTML and data."""

    plan: Plan

    def to_dict(self) -> dict[str, Any]:
        """Return plan, boundaries and the whole decision log for JSON."""
        return explain_data(self.plan)

    @takes(path=PATH)
    def save(self, path: str | Path) -> Path:
        """Write the explanation as .txt, .html or .json, and return the path.

        Raises
        ------
        InputError
            If the extension is not one of these.
        """
        return save.save("an explanation", path, {
            ".txt": lambda: f"{self}\n", ".html": lambda: document(self.plan.name, self._repr_html_()),
            ".json": lambda: json_text(self.to_dict(), indent=1),
        })

    def __str__(self) -> str:
        """Return the explanation as text."""
        return explain_text(self.plan)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """Return the picture and the tables of the plan, and the reasons."""
        return f"{plan_html(self.plan)}<pre>{escape(str(self))}</pre>"


@takes(measure=FLAG, seconds=number(0))
def explain(
    subject: object, /, *inputs: Any, measure: bool = False, seconds: float = 1.0, **options: Any,
) -> StepCosts | Explanation:
    """Return what a model costs as one table, with the largest gain first; or why the segments of a plan are separate.

    Parameters
    ----------
    subject
        A function or module of torch or JAX, which is captured, or a captured model; or a plan, a definition or a
        fusion, whose plan is explained.
    *inputs
        Arguments of the function; inputs of the definition as for `segment`, also as one list. For a captured model,
        arguments of the measured steps.
    measure
        Whether the steps of a model are also timed: on the host for a CPU, by events for a GPU. Predictions are then
        for this CPU if its rates are known (`python -m fuser_lab fit --this-cpu`) and no target is chosen.
    seconds
        Maximum time for the measured steps, and again for those in which each region and op is timed.
    **options
        For a function, those of `from_torch` or `from_jax`; all others are its keyword arguments, and so is an option
        whose name its signature has. For a definition, those of `segment`.

    Raises
    ------
    ArgumentTypeError
        If the subject is something else, or options are passed for what is already cut.
    InputError
        If the function cannot be captured, inputs do not fit, or a plan is to be measured.
    """
    host_target = THIS_CPU if measure and _knows_this_cpu() else None
    chosen = subject_of("explain", subject, inputs, options, host_target=host_target).without_inputs()
    if chosen.captured is not None:
        return chosen.captured.step(*(chosen.inputs or ()), measure=measure, seconds=seconds)
    if measure:
        raise InputError("explain: only models are measured; fl.time(plan, inputs) measures a plan.")
    if len(chosen.plans) > 1:
        msg = f"explain: one plan is explained, given {len(chosen.plans)}; fl.diff(*plans) compares several."
        raise InputError(msg)
    return Explanation(plan=chosen.plans[0])


def _knows_this_cpu() -> bool:
    """Whether the rates of this CPU were measured, so that times on it can be predicted."""
    try:
        this_cpu()
    except InputError:
        return False
    return True
