"""A plan that another compiler made: its kernels in order, why two are separate, and our fusion of the same graph."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn

from fuser_lab.arguments import TEXT, listing, short_text, takes, whole
from fuser_lab.compilers.kernels import WHERE, CompiledKernel, CompiledWhy, Where, select_kernels
from fuser_lab.compilers.picture import kernel_map
from fuser_lab.compilers.reasons import OURS, Unsaid
from fuser_lab.compilers.record import KernelRecord, PlanRecord, RegionCost
from fuser_lab.cost.amounts import seconds_label
from fuser_lab.errors import IllegalEdit, InputError, UnsupportedError
from fuser_lab.plan.accepted import PLACE
from fuser_lab.report.html import table_html
from fuser_lab.report.module_map import ModuleBox
from fuser_lab.report.module_picture import map_svg
from fuser_lab.report.tables import Table
from fuser_lab.segmentation.events import Attempt, DecisionLog

if TYPE_CHECKING:
    from fuser_lab.bridge.capture import CapturedGraph
    from fuser_lab.bridge.region import Region, RegionOp
    from fuser_lab.ir import Fusion
    from fuser_lab.plan import Plan
    from fuser_lab.report.diff import PlanComparison


@dataclass(frozen=True, slots=True, kw_only=True)
class Editing:
    """What a compiler can change of its plan.

    ``apply`` compiles again, so that each kernel is within one of some parts, and there are as many kernels as a number
    says; a part has groups of operations that are fused first. ``code`` returns the lines with which a user does that;
    ``run`` is the function under the plan, and ``measure`` returns the seconds of a call under each of some plans or
    strategies, in turns.
    """

    apply: "Callable[[CompiledPlan, Sequence[Sequence[Sequence[str]]], int], CompiledPlan]"
    code: "Callable[[CompiledPlan], str]"
    run: Any
    measure: "Callable[[Sequence[CompiledPlan | Plan | str]], tuple[float, ...]]"


@dataclass(frozen=True, slots=True, kw_only=True)
class EditTimes:
    """Seconds of one call before and after an edit, measured in turns, and the largest difference of a result.

    ``before`` and ``after`` are the least times; ``ratios`` are, for each turn, the time after by the time before.
    """

    before: float
    after: float
    difference: float
    ratios: tuple[float, ...] = ()

    def __str__(self) -> str:
        """Return the times and the difference."""
        times = f"{seconds_label(self.before)} before the edit, {seconds_label(self.after)} after"
        return f"{times}; largest difference of a result {self.difference:.2g}"


@dataclass(frozen=True, kw_only=True, eq=False)
class CompiledPlan:
    """The kernels that a compiler made of one graph, with its attempts; `Captured` graphs and ops are our own.

    ``graph`` is our own capture of the same graph; its regions have plans, bounds and prices. ``edited`` holds the
    times of the last edit, None for the compiler's own plan; ``grouped`` for each kernel of an edited plan the groups
    of operations that the compiler fused first.
    """

    record: PlanRecord = field(repr=False)
    graph: "CapturedGraph | None" = field(default=None, repr=False)
    costs: tuple[RegionCost, ...] = ()  # of a recorded plan
    editing: Editing | None = field(default=None, repr=False)
    edited: EditTimes | None = None
    grouped: tuple[tuple[tuple[str, ...], ...], ...] = ()

    @property
    def compiler(self) -> str:
        """The compiler's name."""
        return self.record.compiler

    @property
    def name(self) -> str:
        """The compiler's name, and whether the plan is edited."""
        return self.compiler if self.edited is None else f"{self.compiler}, edited"

    @property
    def output_code(self) -> str:
        """The code that calls the kernels."""
        return self.record.output_code

    @property
    def groups(self) -> tuple[tuple[str, ...], ...]:
        """The compiler's names of operations, by kernel; also those without code."""
        return self.record.groups

    @property
    def kernel_groups(self) -> tuple[tuple[tuple[str, ...], ...], ...]:
        """For each of `groups`, the groups of operations that the compiler fuses first, and then with one another."""
        return self.grouped or tuple((group,) for group in self.groups)

    @cached_property
    def segments(self) -> tuple[CompiledKernel, ...]:
        """The kernels, in order of launch."""
        names = [item.name for item in fields(KernelRecord)]
        return tuple(
            CompiledKernel(index=index, plan=self, **{name: getattr(kernel, name) for name in names})
            for index, kernel in enumerate(self.record.kernels)
        )

    @property
    def functions(self) -> tuple[tuple[str, tuple[CompiledKernel, ...]], ...]:
        """Each call of a function in the output code with its kernels, in order."""
        calls: dict[int, list[CompiledKernel]] = {}
        for kernel in self.segments:
            calls.setdefault(kernel.launch, []).append(kernel)
        return tuple((kernels[0].function, tuple(kernels)) for _, kernels in sorted(calls.items()))

    @cached_property
    def decisions(self) -> DecisionLog:
        """The compiler's attempts to fuse, with who states each reason."""
        return DecisionLog(self.record.attempts)

    @cached_property
    def ops(self) -> "dict[str, RegionOp]":
        """The ops of our own fusions, by name of the node."""
        return {
            node.name: op for region in self._graph_for("ops").regions
            for node, op in zip(region.call_nodes, region.ops, strict=True)
        }

    @cached_property
    def successors(self) -> tuple[frozenset[int], ...]:
        """For each kernel, those that read what it writes."""
        writers = {name: kernel.index for kernel in self.segments for name in kernel.writes}
        after: list[set[int]] = [set() for _ in self.segments]
        for kernel in self.segments:
            for name in kernel.reads:
                for base in self.record.bases(name):
                    if base in writers and writers[base] != kernel.index:
                        after[writers[base]].add(kernel.index)
        return tuple(map(frozenset, after))

    @property
    def bytes_crossing(self) -> int:
        """The bytes of the buffers that one kernel writes and another reads, as far as their sizes are known."""
        read = {base for kernel in self.segments for name in kernel.reads for base in self.record.bases(name)}
        return sum(
            self.record.sizes.get(name, 0) for kernel in self.segments for name in kernel.writes if name in read
        )

    # Why

    @takes(a=WHERE, b=WHERE)
    def why(self, a: "Where", b: "Where") -> CompiledWhy:
        """Return why two kernels are separate or one.

        Parameters
        ----------
        a, b
            A kernel or its number; a buffer or operation (``"buf3"``), a node of the graph (``"exp_1"``), an op
            (``"aten.exp"``, ``"exp"``, or an entry of `ops`), or a line of the user's code (``"model.py:12"``). If
            several kernels compute it, the nearest two are compared.

        Raises
        ------
        InputError
            If no kernel has it; the message lists the choices.
        """
        pairs = itertools.product(self._kernels(a, who="why"), self._kernels(b, who="why"))
        return self._why(*min(pairs, key=lambda pair: (abs(pair[0] - pair[1]), pair)))

    def boundaries(self) -> tuple[CompiledWhy, ...]:
        """Return, for each two kernels of which one reads the other, why they are separate."""
        return tuple(self._why(a, b) for a, readers in enumerate(self.successors) for b in sorted(readers))

    def siblings(self) -> tuple[CompiledWhy, ...]:
        """Return, for each two kernels that read a buffer in common and not each other, why they are separate."""
        readers: dict[str, list[int]] = {}
        for kernel in self.segments:
            for name in dict.fromkeys(kernel.reads):
                readers.setdefault(name, []).append(kernel.index)
        pairs = {pair for numbers in readers.values() for pair in itertools.combinations(numbers, 2)}
        return tuple(self._why(a, b) for a, b in sorted(pairs) if b not in self.successors[a])

    def reasons(self) -> Table:
        """Return a table of the pairs of `boundaries` and `siblings`: why each is separate, and who states it."""
        whys = (*self.boundaries(), *self.siblings())
        rows = tuple((f"{why.kernels[0]} and {why.kernels[1]}", why.text, why.by) for why in whys)
        return Table(columns=("kernels", "separate because", "stated by"), rows=rows, numeric=frozenset())

    def map(self) -> ModuleBox:
        """Return the kernels as boxes of a map."""
        title = f"{self.name}, graph {self.record.number} ({self.record.kind})"
        return kernel_map(title, self.record, self.successors)

    def _why(self, a: int, b: int) -> CompiledWhy:
        first, second = self.segments[a], self.segments[b]
        names = set(first.names), set(second.names)
        attempts = self._attempts(*names)
        if a == b:
            return CompiledWhy(kernels=(a, b), code="together", text="", by=self.compiler, attempts=attempts)
        last = next((each for each in reversed(attempts) if _is_between(each, *names)), None)
        if last is not None and not last.accepted:
            by = last.verdicts[0].scheduler
            return CompiledWhy(kernels=(a, b), code=last.code, text=last.text, by=by, attempts=attempts)
        if last is not None:
            reason = Unsaid.priority()
        else:
            unfusable = set(self.record.unfusable)
            outside = next((k for k in (first, second) if not unfusable.isdisjoint(k.names)), None)
            reason = Unsaid.opaque(outside.function) if outside is not None else self._never_tried(first, second)
        return CompiledWhy(kernels=(a, b), code=reason.code, text=reason.text, by=OURS, attempts=attempts)

    @cached_property
    def _attempts_by_name(self) -> Mapping[str, Sequence[int]]:
        """The numbers of the attempts that concern each operation, because most pairs have few of all attempts."""
        numbers: dict[str, list[int]] = {}
        for number, attempt in enumerate(self.record.attempts):
            for name in attempt.names:
                numbers.setdefault(name, []).append(number)
        return numbers

    def _attempts(self, first: set[str], second: set[str]) -> tuple[Attempt, ...]:
        """Return the attempts that concern operations of both groups."""
        by_group = [
            {number for name in names for number in self._attempts_by_name.get(name, ())} for names in (first, second)
        ]
        return tuple(self.record.attempts[number] for number in sorted(set.intersection(*by_group)))

    def _never_tried(self, a: CompiledKernel, b: CompiledKernel) -> Unsaid:
        """Return why two kernels that could be tried were not."""
        used = ({*a.reads, *a.writes}, {*b.reads, *b.writes})
        if used[0] & used[1]:
            return Unsaid.never_tried(shares=True, limit=self.record.pairwise)
        memory = [{base for name in names for base in self.record.bases(name)} for names in used]
        through = sorted(name for names in used for name in names if name in self.record.through)
        if memory[0] & memory[1] and through:
            return Unsaid.without_code(through[0])
        return Unsaid.never_tried(shares=False, limit=None)

    def _kernels(self, where: "Where", *, who: str) -> list[int]:
        """Return the numbers of the kernels that a value selects."""
        return select_kernels(where, self.segments, self, who=who)

    # Our own fusion

    @cached_property
    def fusions(self) -> "tuple[Plan, ...]":
        """A plan of each region of our own capture, cut where the compiler cuts, with bytes, bounds and prices.

        An op that several kernels compute is in the first of them.
        """
        return tuple(self._fusion(region) for region in self._graph_for("fusions").regions)

    def _graph_for(self, who: str) -> "CapturedGraph":
        if self.graph is None:
            msg = f"{who}: the plan was read without a capture of its graph, so it has no definitions of our own."
            raise UnsupportedError(msg)
        return self.graph

    def region_costs(self) -> tuple[RegionCost, ...]:
        """Return the cost of each region of our own capture, cut as the compiler cuts, and its lower bound."""
        if self.graph is None:
            return self.costs
        bounds = [fusion.time_bound() for fusion in self.fusions]
        return tuple(
            RegionCost(
                region=number, ops=len(region), segments=len(fusion.segments), bytes_crossing=fusion.bytes_crossing,
                seconds=bound.seconds, bound=bound.bound,
            )
            for number, (region, fusion, bound) in enumerate(
                zip(self.graph.regions, self.fusions, bounds, strict=True),
            )
        )

    @takes(strategy=TEXT, region=whole(0))
    def resegmented(self, strategy: str, region: int = 0) -> "Plan":
        """Return a plan of our own for a region, cut by a strategy of `segment`, without presegmentation passes.

        Raises
        ------
        InputError
            If there is no such region or strategy.
        UnsupportedError
            If the plan was read without a capture of its graph.
        """
        from fuser_lab.plan.planning import segment

        regions = self._graph_for("resegmented").regions
        if region >= len(regions):
            raise InputError(f"region must be below {len(regions)}, given {short_text(region)}.")
        chosen = regions[region]
        # Passes are left out, so that all strategies cut the compiler's ops.
        return segment(
            chosen.definition, list(chosen.specs), strategy=strategy, passes=(), target=chosen.plan.oracle.device,
            name=strategy, tuned=False,
        )

    def comparison(self, region: int = 0) -> "PlanComparison":
        """Return a region cut as the compiler does, beside nvFuser's cut and the best one that our search finds.

        Raises
        ------
        InputError
            If there is no such region.
        UnsupportedError
            If the plan was read without a capture of its graph.
        """
        from fuser_lab.report.diff import plan_comparison

        ours = [self.resegmented(strategy, region) for strategy in ("bottom_up", "optimal")]
        return plan_comparison((self.fusions[region], *ours))

    def measure(self, plans: "Sequence[CompiledPlan | Plan | str]") -> tuple[float, ...]:
        """Return the seconds of one call of the function under each plan, measured in turns, in one run.

        A strategy stands for our own backend of the compiler's library.

        Raises
        ------
        UnsupportedError
            If a plan cannot be called: it is of a file, or of one region.
        """
        if self.editing is None:
            msg = f"measure: a plan of {self.compiler} that was read from a file or a dump cannot be called."
            raise UnsupportedError(msg)
        return self.editing.measure(plans)

    def _fusion(self, region: "Region") -> "Plan":
        from fuser_lab.codegen.one_kernel import OPEN_SCHEDULERS
        from fuser_lab.plan.planning import segment

        kernels: dict[str, list[int]] = {}
        for kernel in self.segments:
            for name in kernel.nodes:
                kernels.setdefault(name, []).append(kernel.index)
        of = {
            tensor: kernels[node.name] for node, op in zip(region.call_nodes, region.ops, strict=True)
            for tensor in op.tensors if node.name in kernels
        }

        def as_compiled(fusion: "Fusion", _: object) -> list[list[str]]:
            return _groups(fusion, of)

        made = segment(
            region.definition, list(region.specs), strategy=as_compiled, schedulers=OPEN_SCHEDULERS, passes=(),
            target=region.plan.oracle.device, name=self.name, tuned=False,
        )
        return replace(made, sources=region.sources, modules=region.plan.modules, names=region.names)

    # Edits

    @takes(where=PLACE)
    def cut(self, where: str | tuple[str, str]) -> "CompiledPlan":
        """Return the plan compiled again with the kernel that computes a buffer cut after it.

        The values are compared with those of the compiler's own plan, and both are timed in turns: see ``edited``.

        Parameters
        ----------
        where
            Name of a buffer (``"buf3"``), or two buffers of one kernel to separate (``("buf3", "buf5")``).

        Raises
        ------
        IllegalEdit
            If there is nothing to cut there, or the compiler emits other kernels than those asked for.
        """
        pair = (where,) if isinstance(where, str) else where
        position = self._group_of(pair[0], "cut")
        names = self.groups[position]
        first, last = self._operation(pair[0]), self._operation(pair[-1])
        after = self._readers_in(last, names)
        if len(pair) > 1:
            if self._group_of(pair[1], "cut") != position or first == last:
                raise IllegalEdit(f"cut: {pair[0]} and {pair[1]} are not two operations of one kernel.")
            if first in after:
                first, last = last, first
            after = {last, *self._readers_in(last, names)}
        if not after:
            raise IllegalEdit(
                f"cut: no operation in the kernel of {where} reads it; cut(({where!r}, b)) separates it from buffer b."
            )
        # What neither half needs may be in either, as the compiler chooses.
        needed = {first, *(name for name in names if first in self._readers_in(name, names))}
        kernels = self.kernel_groups
        halves = (
            tuple(part for group in kernels[position] if (part := tuple(n for n in group if n not in others)))
            for others in (after, needed)
        )
        return self._edit("cut").apply(
            self, (*kernels[:position], *halves, *kernels[position + 1 :]), len(self.groups) + 1,
        )

    @takes(buffer=TEXT)
    def can_cut(self, buffer: str) -> bool:
        """Whether `cut` accepts a buffer: another operation of its kernel reads it."""
        name = self._operation(buffer)
        return any(bool(self._readers_in(name, names)) for names in self.groups if name in names)

    @takes(a=WHERE, b=WHERE)
    def glue(self, a: "Where", b: "Where") -> "CompiledPlan":
        """Return the plan compiled again with two kernels fused that the compiler declined to fuse.

        The kernels are selected as `why` selects them, the nearest two that are separate.

        Raises
        ------
        IllegalEdit
            If the compiler cannot fuse them; the message has its reason.
        """
        pairs = list(itertools.product(self._kernels(a, who="glue"), self._kernels(b, who="glue")))
        first, second = min(pairs, key=lambda pair: (pair[0] == pair[1], abs(pair[0] - pair[1]), pair))
        if first == second:
            raise IllegalEdit(f"glue: {short_text(a)} and {short_text(b)} are in kernel {first} already.")
        both = {self.segments[first].names, self.segments[second].names}
        union = tuple(
            group for names, groups in zip(self.groups, self.kernel_groups, strict=True) if names in both
            for group in groups
        )
        apart = (
            groups for names, groups in zip(self.groups, self.kernel_groups, strict=True) if names not in both
        )
        return self._edit("glue").apply(self, (*apart, union), len(self.groups) - 1)

    def to_code(self) -> str:
        """Return the lines that make the compiler emit this plan in a user's program.

        Raises
        ------
        IllegalEdit
            If the compiler's plans cannot be changed.
        """
        return self._edit("to_code").code(self)

    @property
    def is_editable(self) -> bool:
        """Whether the compiler can be told how to fuse."""
        return self.editing is not None

    def _edit(self, who: str) -> Editing:
        if self.editing is None:
            raise IllegalEdit(f"{who}: a plan of {self.compiler} is read-only.")
        return self.editing

    def _operation(self, buffer: str) -> str:
        return self.record.writers.get(buffer, buffer)

    def _group_of(self, buffer: str, who: str) -> int:
        name = self._operation(buffer)
        position = next((n for n, group in enumerate(self.groups) if name in group), None)
        if position is None:
            msg = f"{who}: no kernel computes {short_text(buffer)}; choose from {listing(self.record.writers)}."
            raise IllegalEdit(msg)
        return position

    def _readers_in(self, producer: str, names: Sequence[str]) -> set[str]:
        """Return the operations among names that depend on an operation."""
        after: set[str] = set()
        inside = set(names)
        waiting = [producer]
        while waiting:
            source = waiting.pop()
            for name in inside - after - {producer}:
                if source in self.record.read_by.get(name, ()):
                    after.add(name)
                    waiting.append(name)
        return after

    def _repr_html_(self) -> str:
        """Return the picture of the kernels, and why neighbours are separate."""
        return map_svg([self.map()]) + table_html(self.reasons())

    def __reduce__(self) -> NoReturn:
        """Refuse to be copied or pickled: compiled functions can be neither."""
        raise InputError(f"a plan of {self.compiler} cannot be copied or pickled.")

    def __str__(self) -> str:
        """Return the kernels, and why neighbours are separate."""
        head = f"{self.compiler}, graph {self.record.number} ({self.record.kind}): {len(self.segments)} kernels"
        edit = self.edited
        lines = [head, *map(str, self.segments), *(f"  {why}" for why in self.boundaries())]
        if edit is not None:
            lines.append(f"edited: {edit}")
        return "\n".join(lines)

    def __repr__(self) -> str:
        """Return the text."""
        return str(self)


def compiled_plans(value: object) -> tuple[CompiledPlan, ...]:
    """Return the plans that a value is or has, such as the result of `from_inductor`; none if it is something else."""
    plans = (value,) if isinstance(value, CompiledPlan) else getattr(value, "plans", ())
    if not isinstance(plans, tuple) or not all(isinstance(plan, CompiledPlan) for plan in plans):
        return ()
    return plans


def _is_between(attempt: Attempt, first: set[str], second: set[str]) -> bool:
    """Whether an attempt is about exactly two kernels, in either order."""
    a, b = (set(group) for group in attempt.subjects)
    return (a == first and b == second) or (a == second and b == first)


def _groups(fusion: "Fusion", of: Mapping[str, Sequence[int]]) -> list[list[str]]:
    """Return names of expressions in groups, as tensors are in kernels, whose numbers ``of`` lists in order.

    An expression is in the first of its kernels that is not before an operand's, so groups form no cycle; one of no
    kernel is in that of its operands or, if it has none, of its first reader.
    """
    kernels: dict[str, Sequence[int]] = {}
    readers = fusion.users
    for expr in reversed(fusion.tensor_exprs):
        tensors = expr.tensor_outputs
        named = next((of[tensor.name] for tensor in tensors if tensor.name in of), None)
        after = [reader.name for tensor in tensors for reader in readers.get(tensor, ()) if reader.name in kernels]
        kernels[expr.name] = named or ([min(kernels[name][0] for name in after)] if after else [0])
    home: dict[str, int] = {}
    groups: dict[int, list[str]] = {}
    for expr in fusion.tensor_exprs:
        producers = (fusion.producers[value] for value in expr.inputs if value in fusion.producers)
        least = max((home[producer.name] for producer in producers if producer.name in home), default=0)
        home[expr.name] = next((number for number in kernels[expr.name] if number >= least), least)
        groups.setdefault(home[expr.name], []).append(expr.name)
    return list(groups.values())
