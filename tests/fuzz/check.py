"""A program computed in every way, and the results compared up to rounding."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from fuser_lab.api.functions import FusionDefinition, segment
from fuser_lab.errors import DefinitionError, InputError, UnsupportedError
from fuser_lab.interpreter import evaluate
from fuser_lab.plan import Plan
from tests import agreement
from tests.fuzz.analysis import EPSILON, Analysis
from tests.fuzz.program import Program, TensorInput

SLACK = 8.0


class Checked:
    """The definition of a program, with its inputs, the expected results and their tolerances."""

    def __init__(self, program: Program, analysis: Analysis | None = None) -> None:
        if analysis is None:
            analysis = Analysis.of(program)
        self.program, self.fd = defined(program)
        self.inputs = self.program.arrays()
        self.fusion = agreement.bound(self.fd, self.inputs)
        self.allowed = [SLACK * self._error(analysis, name) for name in program.results]
        self.wide = evaluate(self.fusion, self.inputs, exact=False)
        self.wanted = evaluate(self.fusion, self.inputs)
        self._compare(self.wanted, self.wide, "reference against float64", dtype=False)

    def _error(self, analysis: Analysis, name: str) -> float:
        """The uncertainty of an output. If a size is symbolic, data that the analysis only moves may be computed.

        An input that is overwritten and returned has the values that are written.
        """
        pairs = [output for output in self.program.outputs if isinstance(output, tuple)]
        written = {analysis.tensor(target): source for source, target in pairs}
        known = analysis.known(written.get(analysis.tensor(name), name))
        if not any(isinstance(x, TensorInput) and x.symbolic for x in self.program.inputs):
            return known.error
        return max(known.error, EPSILON.get(analysis.tensor(name).dtype.name, 0.0) * max(known.size, 1.0))

    def _compare(self, got: Sequence[Any], wanted: Sequence[Any], what: str, *, dtype: bool = True) -> None:
        for tv, allowed, a, b in zip(self.fusion.outputs, self.allowed, got, wanted, strict=True):
            agreement.near(a, b, allowed, f"{tv.name}, {what}", dtype=dtype)

    def text(self) -> None:
        """Check the printed definition."""
        agreement.check_same(self.fd)

    def kernels(self, strategy: str, targets: Sequence[str]) -> None:
        """Check the kernels of targets, in lock step, cut by a strategy."""
        self.plan(segment(self.fd, list(self.inputs), strategy=strategy), targets)

    def plan(self, plan: Plan, targets: Sequence[str]) -> None:
        """Check the kernels of a plan for targets, in lock step."""
        for target in targets:
            got = agreement.lock_step(plan, self.inputs, target)
            self._compare(got, self.wanted, f"{target} kernels of {plan.name}")

    def compiled(self) -> None:
        """Check compiled CPU kernels."""
        outputs, wanted, allowed = self.fusion.outputs, self.wanted, self.allowed
        agreement.check_compiled(
            self.fd, self.inputs, wanted,
            lambda k, got: agreement.near(got, wanted[k], allowed[k], f"{outputs[k].name}, compiled CPU kernels"),
        )


def defined(program: Program) -> tuple[Program, FusionDefinition]:
    """The definition; with static sizes if symbolic ones are not supported or leave something undecided."""
    try:
        fd = program.define()
        agreement.bound(fd, program.arrays())
    except (UnsupportedError, DefinitionError, InputError):
        if not any(isinstance(x, TensorInput) and x.symbolic for x in program.inputs):
            raise
        return defined(static(program))
    return program, fd


def static(program: Program) -> Program:
    """The program with static sizes."""
    inputs = [replace(x, symbolic=frozenset()) if isinstance(x, TensorInput) else x for x in program.inputs]
    return replace(program, inputs=tuple(inputs))


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """How a program is cut, for which targets its kernels run in lock step, and whether CPU kernels are compiled."""

    strategy: str = "bottom_up"
    targets: tuple[str, ...] = agreement.TARGETS
    compiled: bool = False


def check(program: Program, way: Way, analysis: Analysis | None = None) -> None:
    """Raise any failure of a program; Disagreement if results differ."""
    checked = Checked(program, analysis)
    checked.text()
    checked.kernels(way.strategy, way.targets)
    if way.compiled:
        checked.compiled()
