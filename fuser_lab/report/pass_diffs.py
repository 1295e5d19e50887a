"""The steps between a definition and the fusion that is cut, each with its change, for text and notebooks."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, overload
from xml.etree.ElementTree import Element

from fuser_lab.report.html import fragment
from fuser_lab.report.markup import element
from fuser_lab.report.pass_diff import lines_of
from fuser_lab.report.pass_picture import rewrite_element
from fuser_lab.report.passes import PassView, view_steps
from fuser_lab.report.units import plural


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class PassDiffs(Sequence["PassView"]):
    """The steps that changed a fusion before it was cut, in order; ``ran`` is the number of passes that ran.

    Each entry has a ``name``, ``about`` (the reason for the pass) and a ``rewrite``: the ops removed, added and
    rewritten, and the graphs around them. A notebook shows both graphs side by side.
    """

    steps: tuple[PassView, ...]
    ran: int

    @overload
    def __getitem__(self, index: int) -> PassView: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[PassView, ...]: ...

    def __getitem__(self, index: int | slice) -> PassView | tuple[PassView, ...]:
        """Return a step by its place, or several."""
        return self.steps[index]

    def __len__(self) -> int:
        """Return the number of steps that changed the fusion."""
        return len(self.steps)

    @property
    def headline(self) -> str:
        """The number of steps that changed the fusion."""
        return f"{plural(len(self.steps), 'step')} changed the fusion before it was cut ({self.ran} passes ran)"

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON-ready form, with the version of its schema first."""
        steps = [asdict(step) for step in self.steps]
        return {"schema": "fuser_lab.pass_diffs", "version": 1, "ran": self.ran, "steps": steps}

    def __str__(self) -> str:
        """Return each step with the lines that it removed and added."""
        blocks = ("\n".join([_title(step), *(f"  {line}" for line in _lines(step))]) for step in self.steps)
        return "\n\n".join((self.headline, *blocks))

    def __repr__(self) -> str:
        """Return the text; a notebook shows graphs."""
        return str(self)

    def _repr_html_(self) -> str:
        """Return the graphs of each step side by side, and its collapsed lines."""
        parts = [element("p", element("b", self.headline))]
        for step in self.steps:
            parts += _parts(step)
        return fragment(*parts)


def pass_diffs(plan: Any) -> PassDiffs:
    """Return the steps that changed the fusion of a plan before it was cut; empty for plans without a definition."""
    steps = view_steps(plan)
    return PassDiffs(
        steps=tuple(step for step in steps if step.rewrite is not None), ran=len(getattr(plan, "passes", ())),
    )


def _parts(step: PassView) -> list[Element]:
    """Return a step's name and reason, its two graphs, and its collapsed lines."""
    if step.rewrite is None:
        return []
    counted = element("span", f" {step.rewrite.headline}", css="fl-note")
    head = element("p", element("b", step.name), f" {step.about}", counted)
    lines = element("details", element("summary", "the changed lines"), element("pre", "\n".join(_lines(step))))
    return [head, element("div", rewrite_element(step.rewrite), css="fl-picture"), lines]


def _title(step: PassView) -> str:
    headline = "" if step.rewrite is None else f" ({step.rewrite.headline})"
    return f"{step.name}: {step.about}{headline}"


def _lines(step: PassView) -> Sequence[str]:
    return () if step.rewrite is None else lines_of(step.rewrite)
