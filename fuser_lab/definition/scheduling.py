"""The schedule by hand of a definition: a list of transforms, their result, and each step before and after."""

import html
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fuser_lab.analysis.domain_map import axis_pairs
from fuser_lab.definition.schedule_arguments import whole
from fuser_lab.errors import ScheduleError
from fuser_lab.ir import Fusion, TensorView
from fuser_lab.ir.printer import math_text
from fuser_lab.ir.replay import apply, replay, texts
from fuser_lab.ir.transform import Argument, Rules, ScheduledFusion, ScheduledTensor, Transform
from fuser_lab.ops import OPS

RULES = Rules(pairs=axis_pairs, copy=OPS["set"])


def scheduled_text(scheduled: ScheduledFusion, *, tensor_transforms: bool = False) -> str:
    """Return a scheduled fusion as IR text: tensors with their loops, memories and compute-at positions.

    ``tensor_transforms`` adds each tensor's domains and the splits and merges between them.
    """
    spelled = texts(scheduled, RULES)
    text = math_text(scheduled.fusion, lambda value: spelled.get(value.name) or str(value))
    if not tensor_transforms:
        return text
    return "\n".join([text, *(transforms_text(tensor, spelled[name]) for name, tensor in scheduled.tensors.items())])


def transforms_text(tensor: ScheduledTensor, head: str) -> str:
    """Return the domains of a tensor and the derivation of its loops, one line each."""
    domain = tensor.tensor.domain
    lines = [head, f" logical domain : ({', '.join(map(str, domain.logical))})"]
    if domain.root is not None:
        lines.append(f" root domain : ({', '.join(map(str, domain.root))})")
    if domain.allocation is not None:
        lines.append(f" allocation domain : ({', '.join(str(domain.axes[i]) for i in domain.allocation)})")
    if domain.contiguity is not None:
        words = {True: "t", False: "f", None: "n"}
        lines.append(f" contiguity: {' '.join(words[flag] for flag in domain.contiguity)}")
    lines += [f"  {step}" for step in (*domain.transforms, *tensor.steps)]
    return "\n".join([*lines, f" loop domain : ({', '.join(map(str, tensor.loop))})", ""])


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One transform, and the tensors that it changed: their IR text before (empty: there was none) and after."""

    number: int
    transform: Transform
    changes: tuple[tuple[str, str, str], ...]  # name, before, after

    @property
    def text(self) -> str:
        """The step as text."""
        lines = [f"{self.number}. {self.transform}"]
        for _, before, after in self.changes:
            lines += [f"   - {before}"] if before else []
            lines.append(f"   + {after}")
        return "\n".join(lines)

    def __str__(self) -> str:
        """Return the step as text."""
        return self.text

    def _repr_html_(self) -> str:
        """Return the step as a table: before on the left, after on the right."""
        rows = "".join(
            f"<tr><td><code>{html.escape(before)}</code></td><td><code>{html.escape(after)}</code></td></tr>"
            for _, before, after in self.changes
        )
        title = html.escape(f"{self.number}. {self.transform}")
        return f"<table><caption><code>{title}</code></caption><tr><th>before</th><th>after</th></tr>{rows}</table>"


@dataclass(frozen=True, slots=True)
class Steps(Sequence[Step]):
    """All steps of a schedule, in order."""

    steps: tuple[Step, ...]

    def __getitem__(self, position: Any) -> Any:
        """Return a step."""
        return self.steps[position]

    def __len__(self) -> int:
        """Return the number of steps."""
        return len(self.steps)

    def __str__(self) -> str:
        """Return all steps as text."""
        return "\n".join(step.text for step in self.steps)

    def _repr_html_(self) -> str:
        """Return a table for each step."""
        return "".join(step._repr_html_() for step in self.steps)


def steps_of(fusion: Fusion, transforms: Iterable[Transform]) -> Steps:
    """Return the changes of each transform."""
    scheduled = ScheduledFusion.start(fusion)
    before = texts(scheduled, RULES)
    steps: list[Step] = []
    for number, transform in enumerate(transforms, 1):
        scheduled = apply(scheduled, transform, RULES)
        after = texts(scheduled, RULES)
        changes = tuple((name, before.get(name, ""), text) for name, text in after.items() if before.get(name) != text)
        steps.append(Step(number=number, transform=transform, changes=changes))
        before = after
    return Steps(tuple(steps))


class HandSchedule:
    """The transforms of one definition; each is checked when it is added, by replaying the list.

    Parameters
    ----------
    definition
        Returns the current fusion.
    new_name
        Returns a name that no tensor of the definition has or will have; if the definition is finished, the next
        number.
    taken
        Returns names that no new tensor may have, such as those of results that no output needs.
    """

    def __init__(
        self, definition: Callable[[], Fusion], new_name: Callable[[], str] | None = None,
        taken: Callable[[], Iterable[str]] = tuple,
    ) -> None:
        self._definition, self._new_name, self._taken = definition, new_name or self._next_name, taken
        self._transforms: tuple[Transform, ...] = ()
        self._known: tuple[Fusion, ScheduledFusion] | None = None

    @property
    def transforms(self) -> tuple[Transform, ...]:
        """The transforms so far."""
        return self._transforms

    @property
    def scheduled(self) -> ScheduledFusion:
        """The current fusion after the transforms."""
        fusion = self._definition()
        if self._known is None or not _same(self._known[0], fusion) or self._known[1].transforms != self._transforms:
            self._known = (fusion, replay(fusion, self._transforms, RULES))
        return self._known[1]

    def _next_name(self) -> str:
        numbers = [
            int(name[1:]) for name in (*self.scheduled.tensors, *self._taken())
            if name.startswith("T") and name[1:].isdigit()
        ]
        return f"T{max(numbers, default=-1) + 1}"

    def replayed(self, fusion: Fusion) -> ScheduledFusion:
        """Return a fusion with the same names, for example with known sizes, after the transforms."""
        return replay(fusion, self._transforms, RULES)

    def add(self, kind: str, tensor: str = "", **args: Argument) -> ScheduledFusion:
        """Add a transform and return the schedule after it; an illegal one raises ScheduleError and changes nothing."""
        transform = Transform(kind=kind, tensor=tensor, args=tuple(args.items()))
        after = apply(self.scheduled, transform, RULES)
        self._transforms = (*self._transforms, transform)
        self._known = (self._definition(), after)
        return after

    def extend(self, transforms: Iterable[Transform]) -> None:
        """Add transforms; if one is illegal, ScheduleError is raised and none is added."""
        after = self.scheduled
        for transform in transforms:
            after = apply(after, transform, RULES)
        self._transforms, self._known = after.transforms, (self._definition(), after)

    def add_made(self, kind: str, tensor: str, **args: Argument) -> TensorView:
        """Add a transform that creates a tensor, and return the tensor."""
        name = self._new_name()
        return self.add(kind, tensor, **args, result=name).tensors[name].tensor

    def undo(self, count: int = 1) -> tuple[Transform, ...]:
        """Remove the last transforms and return them."""
        count = whole("undo", "count", count)
        if not 0 <= count <= len(self._transforms):
            raise ScheduleError(f"undo: {count} transforms cannot be undone; there are {len(self._transforms)}.")
        remaining = len(self._transforms) - count
        taken, self._transforms = self._transforms[remaining:], self._transforms[:remaining]
        return taken

    def steps(self) -> Steps:
        """Return each transform with its changes, before and after."""
        return steps_of(self._definition(), self._transforms)

    def python_text(self, notes: Mapping[int, str] | None = None) -> str:
        """Return Python that adds the same transforms to an equal definition ``fd``; empty if there are none.

        ``notes`` are comments, by the number of the transform.
        """
        made = {str(transform.arg("result")) for transform in self._transforms if "result" in dict(transform.args)}
        used = {name for transform in self._transforms for name in transform.tensors}
        calls = [str(transform) for transform in self._transforms]
        kinds = [kind for kind in ("MemoryType", "ParallelType") if any(kind in call for call in calls)]
        lines = [f"from fuser_lab import {', '.join(kinds)}\n"] if kinds else []
        lines += [f'{name} = fd.sched.tensor("{name}")' for name in self.scheduled.tensors if name in used - made]
        said = {number: f"  # {note}" for number, note in (notes or {}).items()}
        noted = [f"{call}{said.get(number, '')}" for number, call in enumerate(calls)]
        return "".join(f"{line}\n" for line in (*lines, *noted))

    def tensor_text(self, name: str) -> str:
        """Return a tensor with its loops as IR text."""
        return texts(self.scheduled, RULES)[name]

    def text_of(self, tensor: TensorView) -> str:
        """Return a tensor with its loops as IR text; None if there is no schedule, or no output needs it."""
        if not self._transforms or tensor.name not in self.scheduled.tensors:
            return ""
        return self.tensor_text(tensor.name)

    def text(self, *, tensor_transforms: bool = False) -> str:
        """Return the scheduled fusion as IR text."""
        return scheduled_text(self.scheduled, tensor_transforms=tensor_transforms)


def _same(first: Fusion, second: Fusion) -> bool:
    """Whether two fusions have the same values, including names."""
    return first is second or (
        (first.inputs, first.exprs, first.outputs) == (second.inputs, second.exprs, second.outputs)
    )
