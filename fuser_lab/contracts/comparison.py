"""The difference of two partitions: what changed, the decision that differs first, and what it costs."""

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

from fuser_lab.contracts.partition import Decision, GraphPartition, Partition, bare_name, ops_text
from fuser_lab.report.units import bytes_label, conjunction, plural

UNCHANGED, IMPROVED, REGRESSED = "unchanged", "improved", "regressed"
# Share of all bytes that may differ without being reported: what allocators round up is less.
TOLERANCE = 0.01
Id = tuple[int, str]  # of an op: the number of its graph among those of its kind, and its name


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One change: its kind, a sentence, the ops that it is about, the decisions of both sides, and what it costs.

    ``kind`` is ``"break"``, ``"gradient"``, ``"option"``, ``"new op"``, ``"op gone"``, ``"input"``, ``"parted"``,
    ``"joined"``, ``"argument"``, ``"split"``, ``"library"`` or ``"bytes"``. ``moved`` are the bytes of the cost,
    ``graph`` is the kind of the graph, and ``worse`` says that the change makes a regression alone.
    """

    kind: str
    text: str
    ops: tuple[str, ...] = ()
    before: Decision | None = None
    after: Decision | None = None
    cost: str = ""
    moved: int = 0
    graph: str = ""
    worse: bool = False

    def __str__(self) -> str:
        """Return the sentence, the decisions and the cost, one line each."""
        lines = [self.text]
        lines += [f"  before: {self.before}"] if self.before is not None else []
        lines += [f"  now:    {self.after}"] if self.after is not None else []
        lines += [f"  costs {self.cost}"] if self.cost else []
        return "\n".join(lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Two partitions of one function: a verdict, and the changes, that of the culprit first.

    ``verdict`` is ``"unchanged"``, ``"improved"`` or ``"regressed"``; ``notes`` are differences of the circumstances,
    as versions and sizes, that need not have an effect.
    """

    before: Partition
    after: Partition
    verdict: str
    changes: tuple[Change, ...]
    notes: tuple[str, ...] = ()

    @property
    def decision(self) -> Change | None:
        """The change with the decision that differs first, or None if no decision differs."""
        return next((change for change in self.changes if change.before or change.after), None)

    def to_dict(self) -> dict[str, Any]:
        """Return the verdict, the changes and the notes, JSON-ready, with the version of their schema first."""
        return {
            "schema": "fuser_lab.fusion_comparison", "version": 1, "verdict": self.verdict,
            "kernels": {"before": self.before.kernels, "after": self.after.kernels},
            "bytes": {"before": self.before.bytes, "after": self.after.bytes},
            "changes": [asdict(change) for change in self.changes], "notes": list(self.notes),
        }

    def __bool__(self) -> bool:
        """Whether anything changed."""
        return self.verdict != UNCHANGED

    def __str__(self) -> str:
        """Return the verdict with the costs of both sides, the changes and the notes."""
        lines = [self.verdict]
        if self:
            indent = " " * len(self.verdict)
            lines = [f"{self.verdict}: {self.after.cost_text()}", f"{indent}  was {self.before.cost_text()}"]
        for number, change in enumerate(self.changes, 1):
            first, *rest = str(change).splitlines()
            lines += [f"{number}. {first}", *(f"   {line}" for line in rest)]
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])

    def __repr__(self) -> str:
        """Return the text, so that a notebook shows it."""
        return str(self)


def compare_partitions(before: Partition, after: Partition) -> Comparison:
    """Return the difference of two partitions of one function."""
    changes: list[Change] = []
    for kind in dict.fromkeys(graph.kind for graph in (*before.graphs, *after.graphs)):
        sides = tuple(_Side([graph for graph in each.graphs if graph.kind == kind]) for each in (before, after))
        made = _Differences(kind, *sides).changes()
        # A backward graph without an op of which the forward graph is as before lacks a gradient.
        if kind == "backward" and not any(change.kind == "op gone" for change in changes):
            made = [_of_gradient(change) if change.kind == "op gone" else change for change in made]
        changes += [replace(change, graph=kind) for change in made]
    # Whether a reduction is split into two kernels depends on the sizes and on the device, as bytes do.
    is_alike = _sizes(before.inputs) == _sizes(after.inputs) and before.device == after.device
    more = after.kernels - before.kernels if is_alike else _whole_kernels(after) - _whole_kernels(before)
    grown = after.bytes - before.bytes if is_alike and before.compiler == after.compiler else 0
    if abs(grown) <= TOLERANCE * before.bytes:
        grown = 0
    verdict = _verdict(changes, grown, more)
    notes = list(_notes(before, after))
    if verdict == UNCHANGED and before.kernels != after.kernels:
        notes.append(f"{plural(after.kernels, 'kernel')}, were {before.kernels}: an op is split into several kernels")
    if verdict != UNCHANGED:
        changes += _circumstances(before, after)
        if not changes:
            text = f"the kernels move {bytes_label(after.bytes)}, and moved {bytes_label(before.bytes)}"
            changes.append(Change(kind="bytes", text=text, cost=_cost(grown)))
    changes.sort(key=_likelihood)
    return Comparison(before=before, after=after, verdict=verdict, changes=tuple(changes), notes=tuple(notes))


def _likelihood(change: Change) -> tuple[int, bool, int]:
    """Return a key that sorts likely causes first; changes with equal keys stay in the order of decisions.

    Of new ops, those of the forward graph and those that move most are likely causes of the others.
    """
    is_new = change.kind == "new op"
    return _ORDER.index(change.kind), is_new and change.graph == "backward", -change.moved if is_new else 0


def _of_gradient(change: Change) -> Change:
    text = f"{change.text}, from the backward graph alone: a gradient is cut off, or a value is saved instead"
    return replace(change, kind="gradient", text=text, worse=True)


# What is most likely the cause comes first.
_ORDER = (
    "break", "gradient", "option", "new op", "argument", "input", "op gone", "parted", "library", "split", "joined",
    "bytes",
)


def _whole_kernels(partition: Partition) -> int:
    """Return the number of kernels without those that compute only what another one computes as well."""
    count = 0
    for graph in partition.graphs:
        numbers = {op: graph.kernels_of(op) for op in graph.ops}
        for number, kernel in enumerate(graph.kernels):
            elsewhere = [set(numbers[op]) - {number} for op in kernel.ops]
            repeats = set.intersection(*elsewhere) if elsewhere else set()
            # Of several equal kernels, the first one counts.
            count += not any(number > copy or set(graph.kernels[copy].ops) > set(kernel.ops) for copy in repeats)
    return count


def _verdict(changes: Sequence[Change], grown: int, more: int) -> str:
    parted = any(change.kind == "parted" for change in changes)
    joined = any(change.kind == "joined" for change in changes)
    if any(change.worse for change in changes) or (parted and not joined) or more > 0 or (grown > 0 and more == 0):
        return REGRESSED
    if more < 0 or joined:
        return REGRESSED if grown > 0 else IMPROVED
    if parted:
        return REGRESSED
    return IMPROVED if grown < 0 else UNCHANGED


def _sizes(inputs: Sequence[str]) -> list[str]:
    """Return the sizes of described tensors, without their dtypes and strides."""
    return [text.partition("[")[2].partition("]")[0] for text in inputs]


def _cost(moved: int, kernels: int = 0) -> str:
    parts = [f"{'+' if kernels > 0 else '-'}{plural(abs(kernels), 'kernel')}"] if kernels else []
    if moved:
        parts.append(f"{'+' if moved > 0 else '-'}{bytes_label(abs(moved))}")
    return ", ".join(parts)


def _notes(before: Partition, after: Partition) -> Iterator[str]:
    for name in sorted({*before.versions, *after.versions}):
        old, new = before.versions.get(name), after.versions.get(name)
        if old != new:
            yield f"{name} is {new or 'not used'}, was {old or 'not used'}"
    for label, was, now in (("compiler", before.compiler, after.compiler), ("device", before.device, after.device)):
        if was != now:
            yield f"{label} is {now}, was {was}"
    if before.inputs != after.inputs:
        yield f"inputs are {', '.join(after.inputs) or 'none'}, were {', '.join(before.inputs) or 'none'}"
    if before.parameters != after.parameters:
        yield f"parameters are {_counts(after.parameters)}, were {_counts(before.parameters)}"
    if before.options != after.options:
        now, was = (", ".join(each.options) or "the defaults" for each in (after, before))
        yield f"options are {now}, were {was}"


def _counts(parameters: Mapping[str, int]) -> str:
    return ", ".join(f"{count} of {dtype}" for dtype, count in parameters.items()) or "none"


def _circumstances(before: Partition, after: Partition) -> Iterator[Change]:
    """Yield differences of options and inputs, which count as causes if the partition differs."""
    old, new = set(before.options), set(after.options)
    total = _cost(after.bytes - before.bytes, after.kernels - before.kernels)
    for option in sorted(new - old):
        yield Change(kind="option", text=f"the option {option} is set", cost=total)
    for option in sorted(old - new):
        if option.partition(" = ")[0] not in {each.partition(" = ")[0] for each in new}:
            yield Change(kind="option", text=f"the option {option} is no longer set", cost=total)
    for number, (was, now) in enumerate(zip(before.inputs, after.inputs, strict=False)):
        if was != now:
            yield Change(kind="input", text=f"input {number} is {now}, was {was}", cost=total)
    if len(before.inputs) != len(after.inputs):
        text = f"the call has {plural(len(after.inputs), 'tensor')}, and had {len(before.inputs)}"
        yield Change(kind="input", text=text, cost=total)
    if before.parameters != after.parameters:
        text = f"the parameters are {_counts(after.parameters)}, were {_counts(before.parameters)}"
        yield Change(kind="input", text=text, cost=total)


class _Side:
    """The graphs of one kind of a partition as one list of ops and kernels."""

    def __init__(self, graphs: Sequence[GraphPartition]) -> None:
        self.graphs = graphs
        self.ops: list[Id] = [(number, op) for number, graph in enumerate(graphs) for op in graph.ops]
        self.kernels = [
            (frozenset((number, op) for op in kernel.ops), kernel)
            for number, graph in enumerate(graphs) for kernel in graph.kernels
        ]
        self.homes: dict[Id, list[int]] = {op: [] for op in self.ops}
        for number, (ops, _) in enumerate(self.kernels):
            for op in ops:
                self.homes[op].append(number)
        self.decisions = [
            (tuple((number, op) for op in decision.groups), decision)
            for number, graph in enumerate(graphs) for decision in graph.decisions
        ]

    def text(self, op: Id) -> str:
        """Return the name of an op with the user's line."""
        return ops_text((op[1],), self.graphs[op[0]].ops)

    def bytes_of(self, kernels: Sequence[int]) -> int:
        """Return the bytes that some kernels move."""
        return sum(self.kernels[number][1].bytes for number in kernels)


class _Differences:
    """The differences of the graphs of one kind."""

    def __init__(self, kind: str, before: _Side, after: _Side) -> None:
        self.kind, self.before, self.after = kind, before, after
        self.forward = _align(before.ops, after.ops)
        self.backward = {new: old for old, new in self.forward.items()}

    def changes(self) -> list[Change]:
        """Return the changes, those with the earliest decision first."""
        return [
            *self._breaks(), *self._ops(), *self._arguments(),
            *self._kernel_splits(self.before, self.after, self.forward, "parted"),
            *self._kernel_splits(self.after, self.before, self.backward, "joined"), *self._libraries(), *self._splits(),
        ]

    @cached_property
    def new(self) -> list[Id]:
        """The ops that only the later side has."""
        return [op for op in self.after.ops if op not in self.backward]

    @cached_property
    def gone(self) -> list[Id]:
        """The ops that only the earlier side has."""
        return [op for op in self.before.ops if op not in self.forward]

    def _breaks(self) -> Iterator[Change]:
        more = len(self.after.graphs) - len(self.before.graphs)
        if more > 0 and self.before.graphs:
            old = {graph.ends for graph in self.before.graphs}
            ends = [graph.ends for graph in self.after.graphs if graph.ends and graph.ends not in old]
            why = f": {'; '.join(ends)}" if ends else ""
            kind = "break" if self.kind != "backward" else "gradient"
            text = f"{self.kind} has {len(self.after.graphs)} graphs, and had {len(self.before.graphs)}{why}"
            kernels = len(self.after.kernels) - len(self.before.kernels)
            yield Change(kind=kind, text=text, cost=_cost(0, kernels), worse=True)
        if self.kind == "backward" and not self.after.graphs:
            text = "the function has no backward graph any more, so that no gradient is computed"
            yield Change(kind="gradient", text=text, worse=True)

    def _ops(self) -> Iterator[Change]:
        """Yield ops that only one side has, by line of the user's code and kernel."""
        for side, ops, kind in ((self.after, self.new, "new op"), (self.before, self.gone, "op gone")):
            groups: dict[tuple[str, str], list[Id]] = {}
            for op in ops:
                module, _, part = bare_name(op[1]).rpartition("/")
                head = f"{module}/{part.partition('.')[0]}"  # parts of one op of the user's
                groups.setdefault((head, side.graphs[op[0]].ops[op[1]].place), []).append(op)
            for members in groups.values():
                yield self._of_ops(side, members, kind)

    def _arguments(self) -> Iterator[Change]:
        """Yield ops whose loops another argument decides, such as the axis of a sum."""
        for old, new in self.forward.items():
            was, now = (side.graphs[op[0]].ops[op[1]].arguments for side, op in ((self.before, old), (self.after, new)))
            if was != now:
                text = f"{self.after.text(new)} has {now or 'no arguments'}, and had {was or 'none'}"
                yield Change(kind="argument", text=text, ops=(new[1],))

    def _of_ops(self, side: _Side, ops: Sequence[Id], kind: str) -> Change:
        mapped = self.backward if side is self.after else self.forward
        homes = sorted({number for op in ops for number in side.homes[op]})
        alone = [number for number in homes if mapped.keys().isdisjoint(side.kernels[number][0])]
        names = ", ".join(side.text(op) for op in ops[:4]) + (f" and {len(ops) - 4} more" if len(ops) > 4 else "")
        sign = 1 if side is self.after else -1
        verb = ("is" if len(ops) == 1 else "are") + (" new" if side is self.after else " gone")
        where = ""
        if alone:
            where = f", in {'a separate kernel' if len(alone) == 1 else f'{len(alone)} separate kernels'}"
            library = next((side.kernels[n][1].library for n in alone if side.kernels[n][1].library), "")
            where += f" of a library ({library})" if library else ""
        elif homes:
            near = next((op for op in side.kernels[homes[0]][1].ops if (ops[0][0], op) in mapped), "")
            where = f", in the kernel of {near}" if near else ""
        decision = self._decision_about(side, homes)
        return Change(
            kind=kind, text=f"{names} {verb}{where}", ops=tuple(op[1] for op in ops),
            cost=_cost(sign * side.bytes_of(alone), sign * len(alone)) if alone else "", moved=side.bytes_of(alone),
            before=decision if decision and side is self.before else None,
            after=decision if decision and side is self.after else None,
        )

    def _decision_about(self, side: _Side, kernels: Sequence[int]) -> Decision | None:
        """Return why one of some kernels is separate from a neighbour."""
        chosen = set(kernels)
        for groups, decision in side.decisions:
            if not decision.fused and any(not chosen.isdisjoint(side.homes.get(op, ())) for op in groups):
                return decision
        return None

    def _kernel_splits(self, first: _Side, second: _Side, mapping: Mapping[Id, Id], kind: str) -> list[Change]:
        """Return the kernels of one side whose ops are in several kernels of the other."""
        changes: list[tuple[int, Change]] = []
        for ops, kernel in first.kernels:
            classes = _classes([mapping[op] for op in ops if op in mapping], second)
            if len(classes) < 2:
                continue
            inverse = self.backward if kind == "parted" else self.forward
            number = {inverse[op]: place for place, members in enumerate(classes) for op in members}
            seq, before = next(
                ((seq, decision) for seq, (groups, decision) in enumerate(first.decisions)
                 if decision.fused and len({number[op] for op in groups if op in number}) > 1),
                (len(first.decisions), None),
            )
            homes = [sorted({n for op in members for n in second.homes[op]}) for members in classes]
            after = next(
                (decision for groups, decision in second.decisions
                 if not decision.fused and _spans(groups, second, homes)), None,
            )
            texts = [second.text(min(members, key=second.ops.index)) for members in classes]
            flat = sorted({n for home in homes for n in home})
            moved = second.bytes_of(flat) - kernel.bytes
            if kind == "parted":
                text = f"{conjunction(texts)} were in one kernel, and are in {len(classes)}"
                change = Change(
                    kind=kind, text=text, ops=tuple(op[1] for members in classes for op in sorted(members)[:1]),
                    before=before, after=after, cost=_cost(max(moved, 0), len(classes) - 1),
                )
            else:
                text = f"{conjunction(texts)} were in {len(classes)} kernels, and are in one"
                change = Change(kind=kind, text=text, before=after, after=before, cost=_cost(0, 1 - len(classes)))
            changes.append((seq, change))
        return [change for _, change in sorted(changes, key=lambda pair: pair[0])]

    def _libraries(self) -> Iterator[Change]:
        """Yield ops that a library computes on one side only."""
        for old, new in self.forward.items():
            was, now = (_libraries_of(side, op) for side, op in ((self.before, old), (self.after, new)))
            if bool(was) != bool(now):
                where = f"by {', '.join(sorted(now))} of a library" if now else "by a kernel of the compiler"
                yield Change(
                    kind="library", text=f"{self.after.text(new)} is now computed {where}", ops=(new[1],),
                    worse=bool(now),
                )


    def _splits(self) -> Iterator[Change]:
        """Yield ops that more kernels compute than before, if one of these computes nothing else."""
        for old, new in self.forward.items():
            was, now = len(self.before.homes[old]), self.after.homes[new]
            alone = [number for number in now if len(self.after.kernels[number][0]) == 1]
            if len(now) > was > 0 and alone:
                text = f"{self.after.text(new)} is computed in {len(now)} kernels, and was in {was}"
                yield Change(
                    kind="split", text=text, ops=(new[1],), cost=_cost(self.after.bytes_of(alone), len(now) - was),
                )


def _libraries_of(side: _Side, op: Id) -> set[str]:
    return {side.kernels[number][1].library for number in side.homes[op]} - {""}


def _spans(groups: Sequence[Id], side: _Side, homes: Sequence[Sequence[int]]) -> bool:
    """Whether a decision is about kernels of two different lists."""
    touched = {
        place for op in groups for place, numbers in enumerate(homes)
        if not set(numbers).isdisjoint(side.homes.get(op, ()))
    }
    return len(touched) > 1


def _classes(ops: Sequence[Id], side: _Side) -> list[list[Id]]:
    """Return ops in groups by kernel, or one group if a kernel computes all; what several kernels compute is left out.

    Those are ops that are computed again where they are read, which parts nothing.
    """
    place = {op: number for number, op in enumerate(side.ops)}
    ordered = sorted((op for op in ops if side.homes[op]), key=place.__getitem__)
    if not ordered or set.intersection(*(set(side.homes[op]) for op in ordered)):
        return [ordered]
    groups: dict[int, list[Id]] = {}
    for op in ordered:
        if len(side.homes[op]) == 1:
            groups.setdefault(side.homes[op][0], []).append(op)
    return list(groups.values())


def _align(before: Sequence[Id], after: Sequence[Id]) -> dict[Id, Id]:
    """Return for each earlier op the equal later one: the same name, or the same place among equal ones in order."""
    if sorted(before) == sorted(after):
        return {op: op for op in before}
    old, new = ([bare_name(op[1]) for op in ops] for ops in (before, after))
    matching = difflib.SequenceMatcher(None, old, new, autojunk=False).get_matching_blocks()
    pairs = {before[a + k]: after[b + k] for a, b, size in matching for k in range(size)}
    taken = set(pairs.values())
    waiting: dict[str, list[Id]] = {}
    for op in after:
        if op not in taken:
            waiting.setdefault(bare_name(op[1]), []).append(op)
    for op in before:
        if op not in pairs and waiting.get(bare_name(op[1])):
            pairs[op] = waiting[bare_name(op[1])].pop(0)
    return pairs


__all__ = ["IMPROVED", "REGRESSED", "UNCHANGED", "Change", "Comparison", "compare_partitions"]
