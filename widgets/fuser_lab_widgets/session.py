"""One exploration: a plan, the edits made to it, and the way back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from fuser_lab.report.subject import PlanLike

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


MINE: Final = "mine"  # stands beside the strategies for the plan with the user's edits


class EditablePlan(PlanLike, Protocol):
    """A plan that can be edited and asked; every edit gives a new plan or raises IllegalEdit."""

    def cut(self, edge_or_tensor: Any, /) -> EditablePlan:
        """Return the plan with a cut behind a tensor, or on one edge: a pair of the tensor and its consumer."""

    def glue(self, a: int, b: int, /) -> EditablePlan:
        """Return the plan with two segments made one."""

    def move(self, tensor: str, segment: int, /) -> EditablePlan:
        """Return the plan with an expression in another segment."""

    def annotate(self, tensor: str, readers: Any = None, /) -> EditablePlan:
        """Return the plan of the definition with a segment_set of a tensor, for all of its readers or for some."""

    def without_annotation(self, tensor: str, readers: Any = None, /) -> EditablePlan:
        """Return the plan of the definition without the segment_sets of a tensor."""

    def why(self, a: str, b: str, /) -> Any:
        """Return why two expressions are together or apart."""

    def to_python(self) -> str:
        """Return code that makes this plan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """A plan, the strategy it began with, and the edits since."""

    plan: EditablePlan
    strategy: str
    edits: tuple[str, ...] = ()


class Session:
    """States in order and the current one; a new edit drops what was undone."""

    def __init__(self, plan: EditablePlan, strategies: Mapping[str, Callable[[], EditablePlan]] | None = None) -> None:
        self.baseline = plan
        self._strategies = dict(strategies or {})
        self._made: dict[str, EditablePlan] = {plan.strategy: plan}
        self._states = [State(plan=plan, strategy=plan.strategy)]
        self._at = 0

    @property
    def state(self) -> State:
        """The current state."""
        return self._states[self._at]

    @property
    def plan(self) -> EditablePlan:
        """The current plan."""
        return self.state.plan

    @property
    def strategies(self) -> tuple[str, ...]:
        """The strategies that can be switched to, the baseline's first."""
        return tuple(dict.fromkeys((self.baseline.strategy, *self._strategies)))

    @property
    def mine(self) -> State | None:
        """The edited state that was shown last, or nothing while there are no edits to go back to."""
        return next((state for state in reversed(self._states[: self._at + 1]) if state.edits), None)

    @property
    def can_undo(self) -> bool:
        """Whether there is a state to go back to."""
        return self._at > 0

    @property
    def can_redo(self) -> bool:
        """Whether a state was undone."""
        return self._at + 1 < len(self._states)

    def cut(self, tensor: str, consumer: str | None = None) -> None:
        """Cut behind a tensor, or only on its way to one consumer."""
        if consumer is None:
            self._push(self.plan.cut(tensor), f"cut({tensor})")
        else:
            self._push(self.plan.cut((tensor, consumer)), f"cut({tensor} → {consumer})")

    def glue(self, a: int, b: int) -> None:
        """Glue two segments."""
        self._push(self.plan.glue(a, b), f"glue(S{a}, S{b})")

    def move(self, tensor: str, segment: int) -> None:
        """Move the expression that computes a tensor to another segment."""
        self._push(self.plan.move(tensor, segment), f"move({tensor}, S{segment})")

    def annotate(self, tensor: str, reader: str | None = None) -> None:
        """Insert a segment_set behind a tensor, or only on its way to one reader."""
        where = tensor if reader is None else f"{tensor} → {reader}"
        self._push(self.plan.annotate(tensor, reader), f"segment_set({where})")

    def without_annotation(self, tensor: str, reader: str | None = None) -> None:
        """Take the segment_sets of a tensor out, or only on its way to one reader."""
        where = tensor if reader is None else f"{tensor} → {reader}"
        self._push(self.plan.without_annotation(tensor, reader), f"without segment_set({where})")

    @property
    def start(self) -> EditablePlan:
        """The plan of the current strategy without edits."""
        return self._made[self.state.strategy]

    def get(self, strategy: str) -> EditablePlan:
        """Return the plan of a strategy, made now if it was not yet."""
        if strategy not in self._made:
            self._made[strategy] = self.make(strategy)
        return self._made[strategy]

    def has(self, strategy: str) -> bool:
        """Whether the plan of a strategy was made already."""
        return strategy in self._made

    def make(self, strategy: str) -> EditablePlan:
        """Return the plan of a strategy, made anew; the session does not know it yet."""
        return self._strategies[strategy]()

    def keep(self, strategy: str, plan: EditablePlan) -> None:
        """Take note of the plan of a strategy."""
        self._made[strategy] = plan

    def switch(self, strategy: str) -> None:
        """Go to the plan of a strategy; edits stay behind in the history."""
        self._append(State(plan=self.get(strategy), strategy=strategy))

    def switch_to_mine(self) -> None:
        """Go to the plan with the edits that were made last."""
        if self.mine is not None and not self.state.edits:
            self._append(self.mine)

    def reset(self) -> None:
        """Return to the plan of the current strategy without edits; this can be undone too."""
        if self.state.edits:
            self._append(State(plan=self._made[self.state.strategy], strategy=self.state.strategy))

    def undo(self) -> str:
        """Go back one state and return what was undone, or nothing where there is none."""
        if not self.can_undo:
            return ""
        undone = self._step_name(self._at)
        self._at -= 1
        return undone

    def redo(self) -> str:
        """Go forward one state and return what was redone, or nothing where there is none."""
        if not self.can_redo:
            return ""
        self._at += 1
        return self._step_name(self._at)

    def _step_name(self, at: int) -> str:
        before, after = self._states[at - 1], self._states[at]
        if after.edits[:-1] == before.edits and after.edits and after.strategy == before.strategy:
            return after.edits[-1]
        if after.edits:
            return f"switch to {MINE}"
        return "reset" if after.strategy == before.strategy else f"switch to {after.strategy.replace('_', '-')}"

    def _push(self, plan: EditablePlan, edit: str) -> None:
        self._append(State(plan=plan, strategy=self.state.strategy, edits=(*self.state.edits, edit)))

    def _append(self, state: State) -> None:
        self._states[self._at + 1 :] = [state]
        self._at += 1
