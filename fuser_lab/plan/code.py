"""Plans as code that recreates them: Python for fuser_lab, and scripts for nvFuser."""

import re
from dataclasses import dataclass

from fuser_lab.cost.device import DEFAULT, DEVICES
from fuser_lab.definition.binding import Described
from fuser_lab.definition.python_text import definition_text, number_text, recorded_names
from fuser_lab.definition.repro.writing import script_text
from fuser_lab.definition.spec import TensorSpec
from fuser_lab.errors import UnsupportedError
from fuser_lab.ir import Fusion
from fuser_lab.passes import PASSES, Pass
from fuser_lab.schedule.open import rules_lifted
from fuser_lab.schedule.own import schedulers_text
from fuser_lab.schedule.registry import SCHEDULERS, SchedulerRegistry
from fuser_lab.schedule.sets import known_set
from fuser_lab.segmentation import STRATEGIES, SegmenterOptions

Edit = tuple[str, tuple[str | int, ...]]

REWRITINGS = ("recompute", "narrow")  # edits that rewrite the fusion: a tensor, then arguments as written
OF_KERNELS = ("with_params", "with_schedule")  # edits that do not change the partition
FORMS = ("fuser_lab", "nvfuser_direct", "nvfuser")
_LOOKED_UP = re.compile(r'fd\.sched\.tensor\("(\w+)"\)')


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanCode:
    """The origin of a plan: its definition, the arguments of `fuser_lab.segment`, and the edits.

    ``segments`` holds the names of each segment's expressions. ``returned`` holds those that a user-defined strategy
    returned, which are written in place of the function.
    """

    definition: Fusion
    inputs: tuple[Described, ...]
    strategy: str
    options: SegmenterOptions
    oracle: SchedulerRegistry
    passes: tuple[Pass, ...]
    edits: tuple[Edit, ...]
    segments: tuple[tuple[str, ...], ...]
    returned: tuple[tuple[str, ...], ...]

    def text(self, form: str) -> str:
        """Return the code in one of `FORMS`.

        Raises
        ------
        UnsupportedError
            If a script for nvFuser is requested and an input has negative strides, which torch does not support.
        """
        if form != "fuser_lab":
            return self._script(form)
        lines = ["import fuser_lab as fl", "from fuser_lab import DataType, FusionDefinition", ""]
        lines += ["", definition_text(self.definition), ""]
        lines += ["with FusionDefinition() as fd:", "    nvfuser_fusion(fd)", ""]
        lines += ["inputs = [", *(f"    {_describe(d)}," for d in self.inputs), "]"]
        lines += self._segmentation()
        return "\n".join([*lines, ""])

    def _script(self, form: str) -> str:
        specs = [value for value in self.inputs if isinstance(value, TensorSpec)]
        if any(stride < 0 for spec in specs for stride in spec.strides):
            msg = f"to_python: form {form!r} creates inputs with torch, which does not support their negative strides."
            raise UnsupportedError(msg)
        arguments = f"{self._strategy()}{self._options()}"
        comments = []
        if arguments:
            comments.append(f"# fl.segment(fd, inputs{arguments}); nvFuser does not accept these options.")
        edits = [f"{method}({', '.join(map(str, values))})" for method, values in self.edits]
        if edits:
            comments.append(f"# Edits of the partition are omitted: {', '.join(edits)}.")
        return "\n".join([*comments, script_text(self.definition, self.inputs, frontend=form)])

    def _segmentation(self) -> list[str]:
        """Return the lines that segment and edit; a strategy that is a function is written as its result."""
        names = recorded_names(self.definition)
        if self.strategy not in STRATEGIES:
            repeated = any(method in REWRITINGS for method, _ in self.edits)
            exprs = self.returned if repeated else self.segments
            groups = [[_recorded_name(name, names) for name in group] for group in exprs]
            strategy = f"strategy=lambda fusion, oracle: {groups}"
            lines = [*self._needs(), f"plan = fl.segment(fd, inputs, {strategy}{self._options()})"]
            if not repeated and {method for method, _ in self.edits} - set(OF_KERNELS):
                return lines
        else:
            lines = [*self._needs(), f"plan = fl.segment(fd, inputs{self._strategy()}{self._options()})"]
        for method, values in self.edits:
            if method == "with_params":
                lines.append(f"plan = plan.with_params({', '.join(map(str, values))})")
                continue
            if method == "with_schedule":
                lines.append(f"plan = plan.with_schedule({values[0]}, {_schedule_literal(str(values[1]), names)})")
                continue
            if method in REWRITINGS:
                arguments = (repr(_recorded_name(str(values[0]), names)), *map(str, values[1:]))
                lines.append(f"plan = plan.{method}({', '.join(arguments)})")
                continue
            shown = ", ".join(repr(_recorded_name(a, names) if isinstance(a, str) else a) for a in values)
            lines.append(f"plan = plan.{method}({f'({shown})' if method == 'cut' and len(values) > 1 else shown})")
        return lines

    def _needs(self) -> list[str]:
        """Return comments that list the schedulers and passes that the code needs."""
        needed = []
        if self.oracle.schedulers != SCHEDULERS and not self._schedulers:
            needed += [
                "# User-defined schedulers cannot be written as code. The next line needs those of the plan:",
                f"# schedulers = {schedulers_text(self.oracle.schedulers)}",
            ]
        if self.passes != PASSES:
            added = [f"{type(p).__name__}()" for p in self.passes if p not in PASSES]
            ours = self.passes[: len(PASSES)] == PASSES
            shown = ", ".join(["*fl.PASSES", *added] if ours else [f"{type(p).__name__}()" for p in self.passes])
            needed += [
                "# User-defined passes cannot be written as code. The next line needs those of the plan:",
                f"# passes = [{shown}]",
            ]
        return needed

    @property
    def _schedulers(self) -> str:
        """The schedulers as an expression; empty if they are user-defined."""
        expression = known_set(self.oracle.schedulers)
        if expression is not None:
            return repr(expression)
        lifted = rules_lifted(self.oracle.schedulers, SCHEDULERS)
        return f"fl.without_rules({', '.join(repr(code.value) for code in lifted)})" if lifted else ""

    def _strategy(self) -> str:
        return "" if self.strategy == "bottom_up" else f", strategy={self.strategy!r}"

    def _options(self) -> str:
        options = ""
        device = self.oracle.device
        if device != DEFAULT:
            is_named = device in DEVICES or device.host is not None
            options += f", target={device.name!r}" if is_named else f", target=fl.{device!r}"
        default = SegmenterOptions()
        changed = [n for n in default.__dataclass_fields__ if getattr(default, n) != getattr(self.options, n)]
        if changed:
            shown = ", ".join(f"{n}={_option(getattr(self.options, n))}" for n in changed)
            options += f", options=fl.SegmenterOptions({shown})"
        if self.oracle.schedulers != SCHEDULERS:
            options += f", schedulers={self._schedulers or 'schedulers'}"
        elif self.strategy == "fastest":
            options += ", schedulers=fl.SCHEDULERS"
        if self.passes != PASSES:
            options += ", passes=passes"
        if self.oracle.kept is not None:
            options += ", tuned=True"
        return options


def _recorded_name(name: str, names: dict[str, str]) -> str:
    """Return the name of a tensor in the fusion of the printed definition.

    Tensors created by passes are named after others.
    """
    if name in names:
        return names[name]
    base, mark, rest = name.partition("_")
    return f"{names.get(base, base)}{mark}{rest}"


def _schedule_literal(text: str, names: dict[str, str]) -> str:
    """Return a schedule as a literal in which tensors are looked up by the names of the printed definition."""
    if not text:
        return "None"
    code = _LOOKED_UP.sub(lambda match: f'fd.sched.tensor("{_recorded_name(match.group(1), names)}")', text)
    return f"'''\n{code}'''"


def _describe(value: Described) -> str:
    if not isinstance(value, TensorSpec):
        return number_text(value)
    return f"fl.spec({value.shape}, {value.dtype!r}, {value.strides})"


def _option(value: object) -> str:
    plain = getattr(value, "value", value)
    return f"frozenset({sorted(plain)})" if isinstance(plain, frozenset) else repr(plain)
