"""What each rule of nvFuser costs: the plan of a fusion compared with the plan without the rule."""

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

from fuser_lab.api.functions import time
from fuser_lab.api.subject import FusionPart, subject_of
from fuser_lab.arguments import FLAG, FUNCTION, TEXT, optional, short_text, takes, whole
from fuser_lab.codegen.one_kernel import OPEN_SCHEDULERS, with_lifted
from fuser_lab.cost.amounts import bytes_label, seconds_label
from fuser_lab.cost.reasons import OTHER_KIND
from fuser_lab.definition.repro import script_text
from fuser_lab.definition.spec import TensorSpec
from fuser_lab.errors import InputError
from fuser_lab.lab.corpus import CorpusEntry
from fuser_lab.plan import Plan
from fuser_lab.plan.planning import segment
from fuser_lab.pricing.rule_lifting import LIFTABLE, moved_bytes, predicted_seconds, segmented_by
from fuser_lab.report.records import Records
from fuser_lab.report.tables import Table
from fuser_lab.report.units import plural
from fuser_lab.report.view import View
from fuser_lab.search.shrinking import shrink
from fuser_lab.segmentation.events import DecisionLog
from fuser_lab.version import __version__

ALL = "all together"
_OTHER_KIND = frozenset(code.value for code in OTHER_KIND)
_NOT_LIFTED = "every kernel of fuser_lab needs this rule"


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedExample:
    """A fusion that gains if a rule is lifted: its plan under nvFuser's rules, and the plan without this rule.

    ``name`` is that of the corpus entry, or empty for a fusion that the user passed. ``given`` are its inputs.
    ``sentence`` is the refusal by nvFuser's scheduler.
    """

    name: str
    before: Plan
    after: Plan
    given: tuple[Any, ...]
    sentence: str

    @property
    def bytes(self) -> int:
        """Bytes that the plan without the rule saves."""
        return moved_bytes(self.before) - moved_bytes(self.after)

    @property
    def seconds(self) -> float:
        """Predicted seconds that it saves on the plans' target."""
        return predicted_seconds(self.before) - predicted_seconds(self.after)


@dataclass(frozen=True, slots=True, kw_only=True)
class RulePrice:
    """What lifting one rule alone would save, summed over fusions.

    Attributes
    ----------
    rule
        Code of the reason (docs/reasons.md), or ``"all together"``.
    fusions
        Number of fusions in which it refused a merge.
    gaining
        Number of those whose plan is predicted to be faster without it.
    refusals
        Number of attempts that it refused.
    bytes
        Bytes that the plans without it save; negative if they move more.
    seconds
        Predicted seconds that they save.
    example
        The fusion that gains most; None if none does.
    measured
        Seconds that the example's plan saves when both are timed on this machine; NaN if they were not.
    note
        Why the rule has no price, or on which device the example was timed.
    """

    rule: str
    fusions: int
    gaining: int
    refusals: int
    bytes: int = 0
    seconds: float = 0.0
    example: PricedExample | None = None
    measured: float = math.nan
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Prices(View):
    """The rules that refused a merge in some fusions, the most expensive first.

    Attributes
    ----------
    rows
        One per rule.
    together
        What all rules together cost; not the sum of the rows, because one merge can need two rules to be lifted.
    fusions
        Number of fusions.
    seconds
        Predicted seconds of all of them under nvFuser's rules.
    target
        Name of the device that the predictions are for.
    """

    what: ClassVar[str] = "prices"

    rows: tuple[RulePrice, ...]
    together: RulePrice
    fusions: int
    seconds: float
    target: str

    def __iter__(self) -> Iterator[RulePrice]:
        """Iterate over the rules."""
        return iter(self.rows)

    def __len__(self) -> int:
        """Return the number of rules."""
        return len(self.rows)

    @takes(rule=TEXT)
    def row(self, rule: str) -> RulePrice:
        """Return the row of a rule.

        Raises
        ------
        InputError
            If the rule refused nothing.
        """
        row = next((row for row in (*self.rows, self.together) if row.rule == rule), None)
        if row is None:
            names = ", ".join(row.rule for row in self.rows)
            remedy = f"choose from {names}" if names else "no rule did"
            raise InputError(f"Prices: the rule {short_text(rule)} refused no merge here; {remedy}.")
        return row

    @takes(rule=TEXT, most_plans=whole(0))
    def issue(self, rule: str, *, most_plans: int = 60) -> str:
        """Return the text of an issue about a rule for nvFuser's developers, in Markdown, with the example's script.

        Parameters
        ----------
        rule
            Code of a reason that has an example.
        most_plans
            Maximum number of plans to make while the example is reduced to a smaller fusion that still gains; 0 keeps
            the example as it is.

        Raises
        ------
        InputError
            If the rule refused nothing, or no fusion gains from lifting it.
        """
        row = self.row(rule)
        if row.example is None or rule == ALL:
            raise InputError(f"Prices.issue: {rule!r} has no example that gains from lifting this rule alone.")
        return _issue(row, row.example, self, most_plans)

    def _data(self) -> dict[str, Any]:
        return self.to_dict()

    def to_dict(self) -> dict[str, Any]:
        """Return the table for JSON; times in microseconds, None if not measured."""
        return {
            "schema": "fuser_lab.prices", "version": 1, "target": self.target, "fusions": self.fusions,
            "seconds": self.seconds, "rules": self._records().to_dicts(),
        }

    @property
    def note(self) -> str:
        """The model behind the predictions."""
        return (
            f"{plural(self.fusions, 'fusion')}, predicted at {seconds_label(self.seconds)} under nvFuser's rules. The "
            f"gain of lifting one rule alone is predicted for {self.target}."
        )

    def _table(self) -> Table:
        columns = ["rule", "fusions", "gaining", "refusals", "bytes", "time", "example", "measured", "note"]
        rows = [
            (
                row.rule, str(row.fusions), str(row.gaining), str(row.refusals), _sign(bytes_label, row.bytes),
                _sign(seconds_label, row.seconds), _name_of(row.example),
                "" if math.isnan(row.measured) else _sign(seconds_label, row.measured), row.note,
            )
            for row in (*self.rows, self.together)
        ]
        may_be_empty = {"measured", "note"}
        places = [n for n, name in enumerate(columns) if name not in may_be_empty or any(row[n] for row in rows)]
        return Table(
            columns=tuple(columns[n] for n in places), rows=tuple(tuple(row[n] for n in places) for row in rows),
            numeric=frozenset({"fusions", "gaining", "refusals", "bytes", "time", "measured"}),
            strong=frozenset({len(rows) - 1}),
        )

    def _records(self) -> Records:
        columns = (
            "rule", "fusions", "gaining", "refusals", "saved [bytes]", "saved [us]", "example", "example [bytes]",
            "example [us]", "measured [us]", "note",
        )
        rows = tuple(
            (
                row.rule, row.fusions, row.gaining, row.refusals, row.bytes, row.seconds * 1e6, _name_of(row.example),
                0 if row.example is None else row.example.bytes,
                0.0 if row.example is None else row.example.seconds * 1e6, row.measured * 1e6, row.note,
            )
            for row in (*self.rows, self.together)
        )
        return Records(columns=columns, rows=rows)


@takes(measure=FLAG, progress=optional(FUNCTION))
def price(
    subject: object,
    /,
    *inputs: Any,
    measure: bool = False,
    progress: Callable[[int, int, str], None] | None = None,
    **options: Any,
) -> Prices:
    """Return the cost of each rule of nvFuser that refused a merge: the gain if this rule alone were lifted.

    A scheduler without a rule accepts everything that passes its other rules and that fuser_lab lowers to one kernel
    (`OPEN_SCHEDULERS`). The fusion is segmented with all rules, and again without each of them.

    Parameters
    ----------
    subject
        A definition, a fusion or a plan; or entries of `corpus`, or a model or function as for `explain`, whose prices
        are added up: those of each distinct region, as often as it occurs.
    *inputs
        As for `segment`, also as one list; arguments of a function. Entries of the corpus have their own.
    measure
        Whether the plans of each rule's example are also timed on this machine: with the given arrays, or arrays as
        described; for entries of the corpus in their small form, if there is one.
    progress
        Called as ``progress(done, total, name)`` after each entry of the corpus or region.
    **options
        ``strategy``, ``target`` and ``options`` as for `segment`; for a function all that `explain` accepts.

    Raises
    ------
    InputError
        If inputs do not fit, or are given for entries of the corpus.
    """
    chosen = subject_of("price", subject, inputs, options)
    make = partial(segment, **chosen.options)
    parts, sums = list(chosen.parts()), _Sums()
    for done, part in enumerate(parts, start=1):
        sums.add(part, make)
        if progress is not None and part.name:
            progress(done, len(parts), part.name)
    prices = sums.prices()
    if not measure:
        return prices
    small = {part.name: part.entry for part in parts if part.entry is not None and part.entry.small_script}
    timed = [_measure(row, small, make) for row in (*prices.rows, prices.together)]
    return replace(prices, rows=tuple(timed[:-1]), together=timed[-1])


class _Sums:
    """Prices of rules, added up fusion by fusion."""

    def __init__(self) -> None:
        self._rows: dict[str, RulePrice] = {}
        self._together = RulePrice(rule=ALL, fusions=0, gaining=0, refusals=0)
        self._fusions, self._seconds, self._target = 0, 0.0, ""

    def add(self, part: FusionPart, make: Callable[..., Plan]) -> None:
        """Add the prices of one fusion, as often as it occurs."""
        arguments, times = part.inputs, part.count
        before = make(part.definition, arguments)
        self._fusions += times
        self._seconds += times * predicted_seconds(before)
        self._target = before.target
        refusals, sentences = _refusals(before.decisions)
        if len(before.segments) < 2:  # refusals that separate nothing in the final plan do not count
            return
        inputs = tuple(before.inputs if arguments is None else arguments)

        def without(schedulers: Any, sentence: str) -> PricedExample:
            after = segmented_by(before, schedulers)
            return PricedExample(name=part.name, before=before, after=after, given=inputs, sentence=sentence)

        for code, count in refusals.items():
            row = self._rows.get(code, RulePrice(rule=code, fusions=0, gaining=0, refusals=0))
            rule = LIFTABLE.get(code)
            if rule is None:
                self._rows[code] = replace(
                    row, fusions=row.fusions + times, refusals=row.refusals + times * count, note=_NOT_LIFTED,
                )
                continue
            self._rows[code] = _add(row, without(with_lifted(rule), sentences[code]), count, times)
        if any(code in LIFTABLE for code in refusals):
            self._together = _add(self._together, without(OPEN_SCHEDULERS, ""), sum(refusals.values()), times)

    def prices(self) -> Prices:
        """Return the table of all added prices."""
        rows = sorted(self._rows.values(), key=lambda row: (-row.seconds, -row.refusals, row.rule))
        return Prices(
            rows=tuple(rows), together=self._together, fusions=self._fusions, seconds=self._seconds,
            target=self._target,
        )


def _add(row: RulePrice, example: PricedExample, refusals: int, times: int) -> RulePrice:
    """Return a row with one more fusion, which occurs several times."""
    gain = example.seconds
    best = row.example
    if gain > 0 and (best is None or gain > best.seconds):
        best = example
    return replace(
        row, fusions=row.fusions + times, gaining=row.gaining + times * (gain > 0),
        refusals=row.refusals + times * refusals, bytes=row.bytes + times * example.bytes,
        seconds=row.seconds + times * gain, example=best,
    )


def _refusals(log: DecisionLog) -> tuple[Counter[str], dict[str, str]]:
    """Return how many attempts each rule refused, and the first refusal's sentence."""
    counts: Counter[str] = Counter()
    sentences: dict[str, str] = {}
    for attempt in log:
        if attempt.accepted or len(attempt.names) < 2:
            continue
        refused = [v for v in attempt.verdicts if not v.accepted and v.code not in _OTHER_KIND]
        counts.update({v.code for v in refused})
        for verdict in refused:
            sentences.setdefault(verdict.code, f"{verdict.scheduler}: {verdict.text}")
    return counts, sentences


def _measure(row: RulePrice, small: dict[str, CorpusEntry], make: Callable[..., Plan]) -> RulePrice:
    """Return a row with the measured times of its example's plans on this machine."""
    example = row.example
    if example is None:
        return row
    plans, arrays = [example.before, example.after], list(example.given)
    if example.name in small:
        fd, arrays = small[example.name].load(small=True)
        plans = [make(fd, arrays), make(fd, arrays, schedulers=example.after.oracle.schedulers)]
    arrays = [value.materialize() if isinstance(value, TensorSpec) else value for value in arrays]
    before, after = time([plan.renamed(n) for plan, n in zip(plans, ("with", "without"), strict=True)], arrays,
                         progress=False).totals
    form = "small form on " if example.name in small else ""
    return replace(row, measured=before.median - after.median, note=f"{form}{before.device}")


def _issue(row: RulePrice, example: PricedExample, prices: Prices, most_plans: int) -> str:
    """Return the text of an issue."""
    before, after = example.before, example.after
    script = script_text(before.definition, before.inputs)
    smaller = ""
    if most_plans:
        code = LIFTABLE[row.rule]
        make = partial(segment, strategy=before.method, target=before.oracle.device, options=before.options)

        def gains(plan: Plan) -> bool:
            other = make(plan.definition, list(plan.inputs), schedulers=with_lifted(code))
            return predicted_seconds(plan) > predicted_seconds(other)

        small = shrink(
            before.definition, list(before.inputs), keep=gains, most_plans=most_plans, strategy=before.method,
            target=before.oracle.device, options=before.options,
        )
        script = small.script
        smaller = f" The script below is a smaller form of it ({small.ops[1]} of {small.ops[0]} ops)."
    source = f"`{example.name}` of fuser_lab's corpus" if example.name else "the fusion below"
    over = (
        "" if prices.fusions == 1 else
        f"\n\nOver {prices.fusions} fusions, the rule refuses merges in {row.fusions}; {row.gaining} gain without it, "
        f"{_sign(bytes_label, row.bytes)} and {_sign(seconds_label, row.seconds)} together (predicted)."
    )
    kernels = [
        ", ".join(s.scheduler.value if s.scheduler else "none" for s in plan.segments) for plan in (before, after)
    ]
    return f"""# Segmenter: `{row.rule}` separates ops that one kernel could compute

{example.sentence}.

With this rule, {source} has {plural(len(before.segments), 'segment')} ({kernels[0]}); without it, \
{len(after.segments)} ({kernels[1]}). That saves {_sign(bytes_label, example.bytes)} of \
{bytes_label(moved_bytes(before))} and a predicted {_sign(seconds_label, example.seconds)} of \
{seconds_label(predicted_seconds(before))} on an {before.target}. fuser_lab lowers what is merged to one kernel, so \
correctness does not need the rule.{smaller}{over}

```python
{script.strip()}
```

Found by fuser_lab {__version__}: `fl.price(fd, inputs).issue({row.rule!r})`. Times are predicted, not measured.
"""


def _name_of(example: PricedExample | None) -> str:
    """Return the name of an example, or for a fusion without a name its segments before and after."""
    if example is None:
        return ""
    return example.name or f"{len(example.before.segments)} to {plural(len(example.after.segments), 'segment')}"


def _sign(label: Callable[[Any], str], amount: float) -> str:
    return f"-{label(-amount)}" if amount < 0 else label(amount)
