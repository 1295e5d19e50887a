"""What nvFuser's tests assert about segments and schedulers, as fusions recorded with the Python API.

Lines are those of NVIDIA/Fuser at 81c4b22f. Each file of nvFuser's tests has a module in ``cpp`` or ``python``.
"""

import importlib
import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from fuser_lab.analysis.symbolic_axes import SymbolicAxes
from fuser_lab.cost.verdict import SchedulerType
from fuser_lab.definition.binding import bind, default_inputs
from fuser_lab.definition.builder import FusionBuilder
from fuser_lab.definition.spec import TensorSpec, spec
from fuser_lab.dtypes import DataType
from fuser_lab.ir import Fusion
from fuser_lab.plan.planning import device_of, registry, segment
from fuser_lab.segmentation import SegmenterOptions
from fuser_lab.segmentation.oracle import Candidate

HERE = Path(__file__).parent
KNOWN = HERE.parent / "data" / "segmentation_cases.json"
MOST = 1 << 16  # segments: more than any fusion here has


def described(value: Any) -> Any:
    """Return an input: a shape or the arguments of `spec` as a description, a number unchanged."""
    if isinstance(value, list):
        return spec(value)
    return spec(*value) if isinstance(value, tuple) else value


@dataclass(frozen=True, slots=True, kw_only=True)
class Assertion:
    """One assertion of nvFuser: numbers of segments, their schedulers, or what one scheduler says of the whole fusion.

    ``schedulers`` are those of all segments in any order; ``times`` says how often a scheduler occurs among them.
    ``can`` and ``cannot`` name schedulers that accept and refuse the fusion as defined, before any pass. ``differs`` is
    the reason why fuser_lab intends another answer, with nvFuser's lines.
    """

    file: str
    line: int
    name: str
    define: Callable[..., None]
    values: tuple[Any, ...]
    inputs: tuple[Any, ...] | None
    segments: range
    schedulers: tuple[str, ...] | None
    times: dict[str, int]
    can: tuple[str, ...]
    cannot: tuple[str, ...]
    options: dict[str, Any]
    target: str
    differs: str | None

    @property
    def source(self) -> str:
        """The file and line of nvFuser."""
        return f"{self.file}:{self.line}"

    @property
    def expected(self) -> str:
        """What nvFuser asserts."""
        least, most = self.segments[0], self.segments[-1]
        parts = [f"can be {name}" for name in self.can] + [f"cannot be {name}" for name in self.cannot]
        if self.schedulers is not None:
            parts.append(counted(self.schedulers))
        elif len(self.segments) < MOST:
            count = f"{least}" if least == most else f"at least {least}" if most == MOST else f"{least} to {most}"
            parts.append(f"segments: {count}")
        return ", ".join(parts + [f"{count} x {name}" for name, count in self.times.items()])

    def fusion(self) -> Fusion:
        """Return the definition."""
        with FusionBuilder() as fd:
            self.define(fd, fd.ops, *self.values)
        return fd.fusion

    def described(self, fusion: Fusion) -> tuple[TensorSpec | Any, ...]:
        """Return the inputs; those of a definition with constant sizes by default."""
        return default_inputs(fusion) if self.inputs is None else tuple(map(described, self.inputs))

    def answer(self) -> tuple[bool, str]:
        """Return whether fuser_lab gives the asserted answer, and its answer."""
        fusion = self.fusion()
        inputs = self.described(fusion)
        options = SegmenterOptions.from_nvfuser(**self.options)
        parts, agrees = [], True
        for name in self.can + self.cannot:
            accepted = accepts(name, fusion, inputs, options, self.target)
            agrees &= accepted is (name in self.can)
            parts.append(f"can{'' if accepted else 'not'} be {name}")
        if self.schedulers is not None or self.times or len(self.segments) < MOST:
            plan = segment(fusion, inputs, options=options, target=self.target)
            got = [s.scheduler.value if s.scheduler else "none" for s in plan.segments]
            agrees &= len(got) in self.segments and all(got.count(n) == count for n, count in self.times.items())
            agrees &= self.schedulers is None or sorted(got) == sorted(self.schedulers)
            parts.append(counted(got))
        return agrees, ", ".join(parts)


def counted(names: tuple[str, ...] | list[str]) -> str:
    """Return names of schedulers with their numbers."""
    return ", ".join(f"{n} x {name}" if n > 1 else name for name, n in sorted(Counter(names).items()))


def accepts(name: str, fusion: Fusion, inputs: tuple[Any, ...], options: SegmenterOptions, target: str) -> bool:
    """Return whether a scheduler accepts a complete fusion as it is defined."""
    bound = bind(fusion, inputs).fusion
    oracle = registry(device_of(target), options, symbolic=SymbolicAxes(definition=fusion, bound=bound))
    needed = set(bound.outputs)
    exprs = []
    for expr in reversed(bound.exprs):  # nvFuser's fusion has no others
        if not needed.isdisjoint(expr.outputs):
            needed.update(expr.inputs)
            exprs.append(expr)
    inputs = tuple(value for value in bound.inputs if value in needed)
    facts = oracle.facts(Candidate(bound, tuple(reversed(exprs)), inputs, bound.outputs))
    scheduler = next(s for s in oracle.schedulers if s.type is SchedulerType(name))
    return scheduler.can_schedule(facts, oracle.device).accepted


@dataclass(slots=True)
class Assertions:
    """The assertions of one file of nvFuser's tests, and the lines of those that the Python API cannot express."""

    file: str
    cases: list[Assertion] = field(default_factory=list)
    left: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def asserts(
        self,
        line: int,
        *,
        segments: int | None = None,
        least: int = 1,
        most: int = MOST,
        schedulers: str | None = None,
        times: dict[str, int] | None = None,
        can: str = "",
        cannot: str = "",
        inputs: list[Any] | None = None,
        values: tuple[Any, ...] = (),
        options: dict[str, Any] | None = None,
        target: str = "H200",
        differs: str | None = None,
    ) -> Callable[[Callable[..., None]], Callable[..., None]]:
        """Return a decorator of the function ``define(fd, ops, *values)``; names of schedulers stand in one text."""
        stated = range(least, most + 1) if segments is None else range(segments, segments + 1)

        def add(define: Callable[..., None]) -> Callable[..., None]:
            self.cases.append(
                Assertion(
                    file=self.file,
                    line=line,
                    name=define.__name__,
                    define=define,
                    values=values,
                    inputs=None if inputs is None else tuple(inputs),
                    segments=stated,
                    schedulers=None if schedulers is None else tuple(schedulers.split()),
                    times=times or {},
                    can=tuple(can.split()),
                    cannot=tuple(cannot.split()),
                    options=options or {},
                    target=target,
                    differs=differs,
                ),
            )
            return define

        return add

    def known_answer(self, line: int, name: str, **stated: Any) -> None:
        """Add an assertion about a fusion of tests/data/segmentation_cases.json, which also states the answer."""
        case = known_cases()[name]
        counts = {"==": "segments", "<=": "most", ">=": "least"}
        kinds = {kind.value.replace("_", ""): kind.value for kind in SchedulerType}
        listed = case.get("schedulers")
        stated = {
            counts[case["relation"]]: case["segments"],
            "schedulers": None if listed is None else " ".join(kinds[n.lower()] for n in listed),
            "inputs": [
                x["scalar"] if "scalar" in x else (x["shape"], x["dtype"], x.get("strides")) for x in case["inputs"]
            ],
            "options": {
                key: [n.partition(" (")[0] for n in value] if isinstance(value, list) else value
                for key, value in case.get("options", {}).items()
            },
        } | stated

        def define(fd: FusionBuilder, _: Any) -> None:
            exec(case["python"], {"fd": fd, "DataType": DataType})

        define.__name__ = name
        self.asserts(line, **stated)(define)

    def inexpressible(self, reason: str, *lines: int) -> None:
        """Add the lines of assertions about fusions that the Python API cannot express."""
        self.left[reason] = self.left.get(reason, ()) + lines


@cache
def known_cases() -> dict[str, dict[str, Any]]:
    """Return the cases of tests/data/segmentation_cases.json by name."""
    return {case["id"]: case for case in json.loads(KNOWN.read_text(encoding="utf-8"))}


def files() -> Iterator[Assertions]:
    """Yield the assertions of each file."""
    for path in sorted(HERE.glob("*/*.py")):
        yield importlib.import_module(f"tests.{HERE.name}.{path.parent.name}.{path.stem}").FILE
