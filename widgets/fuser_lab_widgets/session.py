"""One exploration: a plan, its annotations and edits, how it is segmented, and the history."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol, cast

from fuser_lab.dtypes import DataType
from fuser_lab.passes.annotations import bare
from fuser_lab.plan import Plan
from fuser_lab.pricing.rule_lifting import without_rule
from fuser_lab.report.subject import PlanLike

MINE: Final = "mine"  # the entry beside the strategies for the plan with the user's edits
SWITCHES: Final = ("segment_set", "whole_fusion", "cut_reshape_inputs", "cut_resize_inputs")
TOP_DOWN: Final = "top_down"
TOP_DOWN_ONLY: Final = frozenset({"cut_reshape_inputs", "cut_resize_inputs"})


class EditablePlan(PlanLike, Protocol):
    """A plan that can be edited and queried; every edit returns a new plan or raises IllegalEdit."""

    def cut(self, edge_or_tensor: Any, /) -> "EditablePlan":
        """Return the plan with a cut after a tensor, or on one edge: a pair of the tensor and its consumer."""

    def glue(self, a: int, b: int, /) -> "EditablePlan":
        """Return the plan with two segments merged."""

    def move(self, tensor: str, segment: int, /) -> "EditablePlan":
        """Return the plan with an expression in another segment."""

    def with_schedule(self, segment: int, schedule: Any, /) -> "EditablePlan":
        """Return the plan with a segment that follows a schedule by hand; None for the automatic kernel."""

    def annotate(self, tensor: str, readers: Any = None, /) -> "EditablePlan":
        """Return the plan of the definition with a segment_set of a tensor, for all of its readers or for some."""

    def without_annotation(self, tensor: str, readers: Any = None, /) -> "EditablePlan":
        """Return the plan of the definition without the segment_sets of a tensor."""

    def resegmented(self, strategy: Any = None, /, **switches: Any) -> "EditablePlan":
        """Return the plan of the same definition by another strategy, or with other switches of the segmenter."""

    def renamed(self, name: str, /) -> "EditablePlan":
        """Return the plan under another name."""

    def why(self, a: str, b: str, /) -> Any:
        """Return why two expressions are together or apart."""

    def to_python(self, form: str = "fuser_lab", /) -> str:
        """Return code that makes this plan, or a script for nvFuser with its definition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """A plan, the strategy and switches by which it was segmented, and the edits of its partition since.

    ``origin`` is the plan that was passed, ``annotated`` whether the definition has other annotations now, ``lifted``
    the code of a rule of nvFuser that the schedulers ignore, and ``baseline`` the plan with which timings are compared.
    ``switches`` are as the user set them; those that the strategy does not accept are off in the plan. ``step`` is the
    action that led to the state, and ``because`` says why it changed more than it names.
    """

    plan: EditablePlan
    strategy: str
    origin: EditablePlan
    baseline: EditablePlan
    switches: tuple[tuple[str, Any], ...] = ()
    edits: tuple[str, ...] = ()
    annotated: bool = False
    lifted: str = ""
    step: str = ""
    because: tuple[str, ...] = ()

    @property
    def in_force(self) -> dict[str, Any]:
        """The switches that the strategy accepts."""
        return {
            name: value for name, value in self.switches
            if self.strategy == TOP_DOWN or name not in TOP_DOWN_ONLY
        }


class Session:
    """States in order and the current one; a new edit drops what was undone.

    Every strategy starts from the definition of the plan on show, with its annotations and the current switches.
    """

    def __init__(self, plan: EditablePlan, offered: Sequence[str] = ()) -> None:
        self._offered = tuple(offered)
        self._made: dict[object, EditablePlan] = {}
        self._states: list[State] = []
        self._at = -1
        self.go(_beginning(plan))

    @property
    def state(self) -> State:
        """The current state."""
        return self._states[self._at]

    @property
    def plan(self) -> EditablePlan:
        """The current plan."""
        return self.state.plan

    @property
    def baseline(self) -> EditablePlan:
        """The plan with which timings are compared."""
        return self.state.baseline

    @property
    def strategies(self) -> tuple[str, ...]:
        """The available strategies, that of the given plan first."""
        return tuple(dict.fromkeys((self.state.origin.strategy, *self._offered)))

    @property
    def mine(self) -> State | None:
        """The edited state that was shown last, or None if there are no edits."""
        return next((state for state in reversed(self._states[: self._at + 1]) if state.edits), None)

    @property
    def can_undo(self) -> bool:
        """Whether there is a state to go back to."""
        return self._at > 0

    @property
    def can_redo(self) -> bool:
        """Whether a state was undone."""
        return self._at + 1 < len(self._states)

    # ---- edits of the partition

    def cut(self, tensor: str, consumer: str | None = None) -> None:
        """Cut after a tensor, or only on the edge to one consumer."""
        where = tensor if consumer is None else (tensor, consumer)
        self._edit(self.plan.cut(where), f"cut({_way(tensor, consumer)})")

    def glue(self, a: int, b: int) -> None:
        """Glue two segments."""
        self._edit(self.plan.glue(a, b), f"glue(S{a}, S{b})")

    def move(self, tensor: str, segment: int) -> None:
        """Move the expression that computes a tensor to another segment."""
        self._edit(self.plan.move(tensor, segment), f"move({tensor}, S{segment})")

    # ---- edits of computations

    def recompute(self, tensor: str, segment: int) -> None:
        """Compute a tensor again in a segment that reads it from memory."""
        plan = cast("Plan", self.plan).recompute(tensor, segments=segment)
        self._edit(plan, f"recompute({tensor}, S{segment})")

    def narrow(self, tensor: str, dtype: str) -> None:
        """Pass a tensor between segments in a dtype of 16 bits, by its name."""
        self._edit(cast("Plan", self.plan).narrow(tensor, DataType[dtype]), f"narrow({tensor}, {dtype})")

    # ---- edits of the definition, and how it is segmented

    def annotate_at(self, tensor: str, reader: str | None = None) -> State:
        """Return the state with a segment_set after a tensor, or only on the edge to one reader."""
        return self._define(self.plan.annotate(tensor, reader), f"segment_set({_way(tensor, reader)})")

    def without_annotation(self, tensor: str) -> State:
        """Return the state without the segment_sets of a tensor, or without the one whose result it is."""
        return self._define(self.plan.without_annotation(tensor), f"without segment_set({tensor})")

    def set_switches(self, changes: Mapping[str, Any], step: str) -> State:
        """Return the state with other switches of the segmenter; edits of the partition remain in the history."""
        switches = tuple((dict(self.state.switches) | dict(changes)).items())
        state = replace(self.state, switches=switches, edits=(), because=(), step=step)
        asked = {name: value for name, value in changes.items() if value}  # refused by a strategy without it
        return replace(state, plan=self._made_by(state, **state.in_force | asked))

    def without_rule(self, code: str) -> State:
        """Return the state without one rule of nvFuser; edits of the partition remain in the history."""
        plan = without_rule(cast("Plan", self.plan), code)
        shown = plan.renamed(f"{plan.name} without {code}")
        return replace(self.state, plan=shown, edits=(), because=(), lifted=code, step=f"lift {code}")

    def alternative(self, plan: EditablePlan, switches: Mapping[str, Any], step: str) -> State:
        """Return the state of a top-down plan of the same definition with other switches."""
        cuts = dict.fromkeys(TOP_DOWN_ONLY, False) | dict(switches)
        settings = tuple((name, cuts.get(name, value)) for name, value in self.state.switches)
        shown = plan.renamed(f"{plan.name}*")
        return replace(
            self.state, plan=shown, strategy=TOP_DOWN, switches=settings, edits=(), because=(),
            step=f"switch to {step}",
        )

    def go(self, state: State) -> None:
        """Go to a state; undone states are dropped."""
        self._states[self._at + 1 :] = [state]
        self._at += 1
        if not state.edits:
            self._made[self._key(state)] = state.plan

    def switch(self, strategy: str) -> None:
        """Go to the plan of a strategy; edits remain in the history."""
        step = f"switch to {strategy.replace('_', '-')}"
        state = replace(self.state, strategy=strategy, edits=(), because=(), step=step)
        self.go(replace(state, plan=self.get(strategy)))

    # ---- the plans of the strategies

    @property
    def start(self) -> EditablePlan:
        """The plan of the current strategy without edits of the partition."""
        return self.get(self.state.strategy)

    @property
    def unannotated(self) -> EditablePlan:
        """The plan of the current strategy and switches for the given definition."""
        return self._plan_of(replace(self.state, plan=self.state.origin, annotated=False, lifted=""))

    @property
    def has_unannotated(self) -> bool:
        """Whether the plan for the given definition is already made."""
        return self._key(replace(self.state, plan=self.state.origin, lifted="")) in self._made

    @property
    def ruled(self) -> EditablePlan | None:
        """The plan under the lifted rule, if a rule is lifted and this plan is made."""
        return self._made.get(self._key(replace(self.state, lifted=""))) if self.state.lifted else None

    def get(self, strategy: str) -> EditablePlan:
        """Return the plan of a strategy, made now if necessary."""
        return self._plan_of(replace(self.state, strategy=strategy))

    def has(self, strategy: str) -> bool:
        """Whether the plan of a strategy is already made."""
        return self._key(replace(self.state, strategy=strategy)) in self._made

    @property
    def same(self) -> tuple[str, ...]:
        """The strategies whose plan is the one on show, among those that are made."""
        shown = self.plan.hash
        return tuple(name for name in self.strategies if self.has(name) and self.get(name).hash == shown)

    @property
    def title(self) -> str:
        """The name of the plan on show, and the strategies that make the same plan."""
        name, same = self.plan.name, self.same
        if self.state.strategy in same and self.state.edits:
            name = self.get(self.state.strategy).name
        equals = [strategy.replace("_", "-") for strategy in same if strategy != self.state.strategy]
        return f"{name} (the same plan as {', '.join(equals)})" if equals else name

    def make(self, strategy: str, state: State | None = None) -> EditablePlan:
        """Return a new plan of a strategy, which the session does not store yet."""
        next_state = replace(state or self.state, strategy=strategy)
        return self._made_by(next_state, **next_state.in_force)

    def keep(self, strategy: str, plan: EditablePlan, state: State | None = None) -> None:
        """Store the plan of a strategy, made for a state."""
        self._made[self._key(replace(state or self.state, strategy=strategy))] = plan

    def _plan_of(self, state: State) -> EditablePlan:
        key = self._key(state)
        if key not in self._made:
            self._made[key] = self.make(state.strategy, state)
        return self._made[key]

    def _key(self, state: State) -> object:
        definition = getattr(state.plan, "definition", None)
        return state.origin.hash, definition, state.strategy, tuple(sorted(state.in_force.items())), state.lifted

    def _made_by(self, state: State, **switches: Any) -> EditablePlan:
        """Return the definition of a state's plan segmented by its strategy, which may be the user's function."""
        origin, method = state.origin, state.strategy
        if method == origin.strategy:
            method = getattr(origin, "method", method)
        plan = state.plan.resegmented(method, **switches)
        changed = state.annotated or state.switches != _switches(origin)
        return plan.renamed(f"{plan.name}*") if changed and not plan.name.endswith("*") else plan

    # ---- history

    def show(self, plan: EditablePlan) -> None:
        """Go to a plan that was made elsewhere; with another definition or other sizes it becomes the baseline."""
        now = replace(_beginning(plan), step="another plan")
        if _of_one_fusion(plan, self.baseline):
            now = replace(now, baseline=self.baseline)
        self.go(now)

    def switch_to_mine(self) -> None:
        """Go to the plan with the latest edits."""
        if self.mine is not None and not self.state.edits:
            self.go(replace(self.mine, step=f"switch to {MINE}"))

    def reset(self) -> None:
        """Return to the plan of the current strategy without annotations and edits; this can be undone, too."""
        state = self.state
        if state.edits or state.annotated or state.lifted:
            plan = self.unannotated
            self.go(replace(state, plan=plan, edits=(), because=(), annotated=False, lifted="", step="reset"))

    def undo(self) -> str:
        """Go back one state and return what was undone, or an empty text if there is none."""
        if not self.can_undo:
            return ""
        undone = self.state.step
        self._at -= 1
        return undone

    def redo(self) -> str:
        """Go forward one state and return what was redone, or an empty text if there is none."""
        if not self.can_redo:
            return ""
        self._at += 1
        return self.state.step

    def schedule(self, segment: int, schedule: Any) -> None:
        """Go to the plan with a segment that follows a schedule by hand; None for the automatic kernel."""
        self._edit(self.plan.with_schedule(segment, schedule), f"schedule of S{segment}")

    def parameters(self, segment: int, nest: int, values: Mapping[str, Any]) -> None:
        """Go to the plan with parameters of a nest of a segment's CUDA kernel set by hand."""
        plan: Any = self.plan
        self._edit(plan.with_params(segment, nest=nest, **values), f"parameters of S{segment}")

    def explain(self, because: Sequence[str]) -> None:
        """Say why the current state's edit changed more than it names."""
        self._states[self._at] = replace(self.state, because=tuple(because))

    def _edit(self, plan: EditablePlan, edit: str) -> None:
        self.go(replace(self.state, plan=plan, edits=(*self.state.edits, edit), step=edit, because=()))

    def _define(self, plan: EditablePlan, step: str) -> State:
        annotated = getattr(plan, "annotations", ()) != getattr(self.state.origin, "annotations", ())
        return replace(self.state, plan=plan, edits=(), because=(), annotated=annotated, step=step)


def _beginning(plan: EditablePlan) -> State:
    return State(plan=plan, strategy=plan.strategy, origin=plan, baseline=plan, switches=_switches(plan))


def _switches(plan: EditablePlan) -> tuple[tuple[str, Any], ...]:
    options = getattr(plan, "options", None)
    return () if options is None else tuple((name, _plain(getattr(options, name))) for name in SWITCHES)


def _plain(value: Any) -> Any:
    """Return an option as text or a flag."""
    return getattr(value, "value", value)


def _of_one_fusion(a: Any, b: Any) -> bool:
    """Whether two plans are of one definition, ignoring ``segment_set``, and of the same sizes."""
    if not hasattr(a, "definition") or a.inputs != b.inputs:
        return False
    return a.definition == b.definition or bare(a.definition) == bare(b.definition)


def _way(tensor: str, reader: str | None) -> str:
    return tensor if reader is None else f"{tensor} → {reader}"
