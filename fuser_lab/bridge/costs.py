"""The cost of the cuts of a whole model: the bytes that pass between segments, by module and by reason."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fuser_lab.arguments import PATH, takes
from fuser_lab.bridge.model_view import region_rows
from fuser_lab.cost.verdict import Answer
from fuser_lab.files.json_text import json_text
from fuser_lab.report.html import document, fragment
from fuser_lab.report.markup import element
from fuser_lab.report.records import Records, records_csv, words
from fuser_lab.report.save import save
from fuser_lab.report.tables import Table, table_element
from fuser_lab.report.units import bytes_label
from fuser_lab.segmentation.events import DecisionLog
from fuser_lab.segmentation.hints import BY_HINT
from fuser_lab.segmentation.why import Relation

if TYPE_CHECKING:
    import pandas as pd

    from fuser_lab.bridge.capture import CapturedGraph
    from fuser_lab.bridge.model_view import RegionRow
    from fuser_lab.segmentation import Why

MOST_BOUNDARIES = 10  # boundaries that a page and a text list


@dataclass(frozen=True, slots=True, kw_only=True)
class Boundary:
    """Two segments of a region between which tensors pass, in all regions that are equal.

    ``bytes`` counts crossing tensors once, in each of the ``count`` regions; ``module`` has ``*`` where their paths
    differ. ``rule`` is the decisive refusal, ``reason`` its code, and ``why`` the whole answer.
    """

    kind: str
    region: int
    count: int
    segments: tuple[int, int]
    tensors: tuple[str, ...]
    bytes: int
    module: str
    line: str
    reason: str
    rule: str
    why: str

    @property
    def place(self) -> str:
        """Where it is, such as ``3 × forward region 1, S0 to S2``."""
        times = f"{self.count} × " if self.count > 1 else ""
        return f"{times}{self.kind} region {self.region}, S{self.segments[0]} to S{self.segments[1]}"

    def __str__(self) -> str:
        """Return one line."""
        where = f"; {self.line}" if self.line else ""
        return f"{bytes_label(self.bytes)}: {self.place} ({', '.join(self.tensors)}): {self.reason}: {self.rule}{where}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCosts:
    """The boundaries of all regions, the most expensive first, and the bytes that cross them."""

    boundaries: tuple[Boundary, ...]

    @property
    def bytes_crossing(self) -> int:
        """Bytes that pass between segments of regions."""
        return sum(boundary.bytes for boundary in self.boundaries)

    @property
    def by_module(self) -> dict[str, int]:
        """Bytes by the path of the module that makes the tensor, largest first; ``*`` for equal regions."""
        return _totals((boundary.module, boundary.bytes) for boundary in self.boundaries)

    @property
    def by_reason(self) -> dict[str, int]:
        """Bytes by the reason code that keeps two segments apart, the largest first."""
        return _totals((boundary.reason, boundary.bytes) for boundary in self.boundaries)

    def tables(self) -> tuple[tuple[str, Table], ...]:
        """Return bytes by module and by reason, and the ten most expensive boundaries, each with its caption."""
        sums = (("module", self.by_module), ("reason", self.by_reason))
        tables = [
            (
                f"Bytes by {title}",
                Table(
                    columns=(title, "bytes"), numeric=frozenset({"bytes"}),
                    rows=tuple((name or "(no module)", bytes_label(count)) for name, count in by.items()),
                ),
            )
            for title, by in sums
        ]
        most_expensive = Table(
            columns=("bytes", "where", "tensors", "module", "rule", "line"), numeric=frozenset({"bytes"}),
            rows=tuple(
                (
                    bytes_label(boundary.bytes), boundary.place, ", ".join(boundary.tensors), boundary.module,
                    boundary.rule, boundary.line,
                )
                for boundary in self.boundaries[:MOST_BOUNDARIES]
            ),
        )
        return (*tables, ("Most expensive boundaries", most_expensive))

    def to_pandas(self) -> "pd.DataFrame":
        """Return one row per boundary, the most expensive first."""
        import pandas as pd

        records = self._records()
        return pd.DataFrame.from_records(list(records.rows), columns=list(records.columns))

    def to_json(self) -> str:
        """Return the sums and all boundaries as JSON."""
        boundaries = [asdict(boundary) for boundary in self.boundaries]
        return json_text({
            "bytes_crossing": self.bytes_crossing, "by_module": self.by_module, "by_reason": self.by_reason,
            "boundaries": boundaries,
        }, indent=1)

    @takes(path=PATH)
    def save(self, path: str | Path) -> Path:
        """Write the boundaries as .csv, or sums and boundaries as .json, .html or .txt, and return the path.

        Raises
        ------
        InputError
            If the extension is not one of these.
        """
        return save("costs", path, {
            ".csv": lambda: records_csv(self._records()), ".json": self.to_json,
            ".html": lambda: document("What the cuts cost", self._repr_html_()), ".txt": lambda: f"{self}\n",
        })

    def _records(self) -> Records:
        columns = (
            "graph", "region", "equal regions", "from segment", "to segment", "tensors", "crossing [bytes]", "module",
            "reason", "rule", "line",
        )
        rows = tuple(
            (
                b.kind, b.region, b.count, *b.segments, words(b.tensors), b.bytes, b.module, b.reason, b.rule, b.line,
            )
            for b in self.boundaries
        )
        return Records(columns=columns, rows=rows)

    @property
    def headline(self) -> str:
        """What the cuts cost in one sentence."""
        return f"{bytes_label(self.bytes_crossing)} pass between segments of regions"

    def __repr__(self) -> str:
        """Return the sums and the ten most expensive boundaries as text."""
        lines = [self.headline]
        if not self.boundaries:
            return self.headline
        for title, sums in (("by module", self.by_module), ("by reason", self.by_reason)):
            lines += [f"{title}:", *(f"  {bytes_label(n)}: {name or '(no module)'}" for name, n in sums.items())]
        lines += ["most expensive boundaries:", *(f"  {boundary}" for boundary in self.boundaries[:MOST_BOUNDARIES])]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """Return the same as static HTML."""
        tables = (table_element(table, caption=caption) for caption, table in self.tables())
        return fragment(element("p", element("b", self.headline)), *tables)


def _totals(pairs: Iterable[tuple[str, int]]) -> dict[str, int]:
    sums: Counter[str] = Counter()
    for name, count in pairs:
        sums[name] += count
    return dict(sums.most_common())


def model_costs(graphs: Sequence["CapturedGraph"]) -> ModelCosts:
    """Return the cost of the cuts of captured graphs; equal regions are analysed once."""
    boundaries = [
        boundary for graph in graphs for row in region_rows(graph.regions) for boundary in _boundaries(graph, row)
    ]
    return ModelCosts(boundaries=tuple(sorted(boundaries, key=lambda boundary: -boundary.bytes)))


def _boundaries(graph: "CapturedGraph", row: "RegionRow") -> Iterable[Boundary]:
    plan, count = row.region.plan, row.count
    makers = {name: number for number, op in enumerate(row.region.ops) for name in op.tensors}
    for why in plan.boundaries():
        first, second = why.segments
        read = set(plan.segments[second].inputs)
        crossing = [tensor for tensor in plan.segments[first].outputs if tensor in read]
        maker = next((makers[tensor.name] for tensor in crossing if tensor.name in makers), None)
        module = "" if maker is None else common_path([region.ops[maker].origin.module for region in row.regions])
        rule = deciding_rule(why, plan.decisions)
        yield Boundary(
            kind=graph.kind, region=row.region.index, count=count, segments=why.segments,
            tensors=tuple(tensor.name for tensor in crossing), bytes=count * sum(tensor.nbytes for tensor in crossing),
            module=module, line="" if maker is None else str(row.region.ops[maker].origin), reason=rule.code,
            rule=str(rule), why=str(why),
        )


def common_path(paths: Sequence[str]) -> str:
    """Return ``layers.*.norm`` for modules of several layers, and the first path if they differ in another way."""
    parts = [path.split(".") for path in dict.fromkeys(paths)]
    if any(len(other) != len(parts[0]) for other in parts):
        return paths[0]
    return ".".join(level[0] if len(set(level)) == 1 else "*" for level in zip(*parts, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class DecidingRule:
    """The refusal that keeps two segments apart: its code, the scheduler that refuses or ``"segmenter"``, its text.

    If nothing refused them, the code is the relation of the two segments, such as ``"never tried"``.
    """

    code: str
    by: str
    text: str

    def __str__(self) -> str:
        """Return one line."""
        return f"{self.by}: {self.text}"


def deciding_rule(why: "Why", log: DecisionLog) -> DecidingRule:
    """Return the decisive refusal that keeps two segments of a plan apart; ``log`` is the plan's decisions."""
    refusals = [verdict for verdict in Answer(why.verdicts).decisive if not verdict.accepted]
    last = log[why.attempts[-1]] if why.attempts else None
    if refusals:
        code, by, text = refusals[0].code, refusals[0].scheduler.value, refusals[0].text
        return DecidingRule(code=code, by="segmenter" if code in BY_HINT else by, text=text)
    if why.relation is Relation.REFUSED and last is not None and last.code:
        # A scheduler would accept both: a hint forbids it, or the segments were different at the time.
        return DecidingRule(code=last.code, by="segmenter", text=last.text.removeprefix("every scheduler: "))
    return DecidingRule(code=why.relation.value, by="segmenter", text=why.text.partition("\n")[0])
