"""Facts about a candidate for schedulers, each computed when it is first needed."""

from bisect import insort
from collections.abc import Collection, Iterable, Iterator
from functools import cached_property
from math import prod
from operator import attrgetter

from fuser_lab.analysis.aliasing import first_not_view
from fuser_lab.analysis.coverage import (
    Coverage,
    Neighbourhoods,
    conflicting_reshapes,
    cyclic_reshape,
    unconnected_pair,
)
from fuser_lab.analysis.domain_map import ExactMap, FusionLinks, Link, exact_map, extended_map
from fuser_lab.analysis.reductions import PersistentBuffer, ReductionFlow, ReductionPattern, patterns
from fuser_lab.analysis.spanning_tree import Tree, lost_axis, may_lose_axes
from fuser_lab.analysis.symbolic_axes import SymbolicAxes
from fuser_lab.cost.reasons import ReasonCode
from fuser_lab.cost.rules import follows
from fuser_lab.cost.verdict import Reason, reason
from fuser_lab.ir import Expr, OpKind, TensorView
from fuser_lab.ops.positions import indexed_axis
from fuser_lab.schedule.innermost_axes import InnermostAxes, Transposed
from fuser_lab.segmentation.oracle import Candidate

Refusal = tuple[Reason, tuple[str, ...]]

_IS_SPECIAL, _NAME = attrgetter("special"), attrgetter("name")

# Facts that do not depend on rules and are the same whichever rules are lifted.
_INDEPENDENT = (
    "inputs", "exact", "patterns", "flow", "buffers", "not_view", "inexact_gather", "gather", "index_input",
    "indexed_before_reduction", "indexed_innermost", "unique_broadcasts", "reference", "lost_axis", "pattern_mismatch",
    "expanded_after", "inner_groups", "innermost", "transposed", "neighbourhoods",
)


class CandidateFacts:
    """A candidate with facts about it; a refusal is a reason with the names of expressions that alone cause it.

    ``part`` has the facts about an accepted candidate of the same fusion whose expressions this one contains. Where the
    other expressions only read its results, facts begin with the part's facts. Results are the same without it.
    """

    def __init__(
        self, candidate: Candidate, fusion_links: FusionLinks, *, memory_promotion: bool = False,
        fuse_matmul: bool = False, lifted: frozenset[ReasonCode] = frozenset(), symbolic: SymbolicAxes | None = None,
        part: "CandidateFacts | None" = None,
    ) -> None:
        self.candidate = candidate
        self._part = part
        self._fusion_links = fusion_links
        self.lifted = lifted
        self.exceeded: dict[ReasonCode, None] = {}
        self.memory_promotion = memory_promotion
        self.fuse_matmul = fuse_matmul
        self._symbolic = symbolic
        self.links: list[Link]
        self._special: list[Link]
        if part is None:
            self.links = fusion_links.of(candidate.exprs)
            self._special = list(filter(_IS_SPECIAL, self.links))
        else:
            self.links = self._links_in_order(part.links, self._further)
            self._special = self._links_in_order(part._special, list(filter(_IS_SPECIAL, self._further)))  # noqa: SLF001 - same
        first: dict[OpKind, Link] = {}
        for link in self._special:
            if link.kind not in first:
                first[link.kind] = link
        self.reduction = first.get(OpKind.REDUCTION)
        self.resize = first.get(OpKind.RESIZE)
        self.reshape = first.get(OpKind.RESHAPE)
        self.matmul = first.get(OpKind.MATMUL)
        self.indexing = first.get(OpKind.INDEXING)
        self.reserved = next((link for kind, link in first.items() if kind.is_reserved), None)
        self.scatter = first.get(OpKind.SCATTER)
        self.attention = first.get(OpKind.ATTENTION)

    def lifting(self, rules: frozenset[ReasonCode]) -> "CandidateFacts":
        """Return the facts about the same candidate for schedulers that ignore some rules, with its own ``exceeded``.

        Of the ops that only the array library evaluates, a kernel can contain only gathers: sorts and scatters have no
        rule for a single element, scans need kernels of their own, and the first operand of an embedding is its index,
        which the other rules do not expect.
        """
        if self.reserved is not None or any(link.op == "embedding_fwd" for link in self.links):
            rules -= {ReasonCode.EVALUATED_ONLY}
        other = CandidateFacts(
            self.candidate, self._fusion_links, memory_promotion=self.memory_promotion, fuse_matmul=self.fuse_matmul,
            lifted=rules, symbolic=self._symbolic,
        )
        for name in _INDEPENDENT:
            if name in self.__dict__:
                other.__dict__[name] = self.__dict__[name]
        return other

    def first_broken(self, rules: Iterable[Refusal | None]) -> Refusal | None:
        """Return the first refusal whose rule is not lifted; ``exceeded`` collects lifted rules that are broken."""
        for refusal in rules:
            if refusal is None:
                continue
            if refusal[0].code not in self.lifted:
                return refusal
            self.exceeded[refusal[0].code] = None
        return None

    def is_symbolic(self, tensor: TensorView, axis: int) -> bool:
        """Return whether the definition leaves the size of an axis open."""
        return self._symbolic is not None and self._symbolic.has(tensor, axis, self.exact)

    @property
    def outputs(self) -> tuple[TensorView, ...]:
        """Outputs of the candidate."""
        return self.candidate.outputs

    @cached_property
    def inputs(self) -> tuple[TensorView, ...]:
        """Tensor inputs of the candidate."""
        return self.candidate.tensor_inputs

    @cached_property
    def exact(self) -> ExactMap:
        """Classes of all axes."""
        if self._part is not None:
            extended = extended_map(self._part.exact, self._further)
            if extended is not None:
                return extended
            self._part = None
        return exact_map(self.links)

    @cached_property
    def _further(self) -> list[Link]:
        """Links of the expressions that are not in the part, in order."""
        if self._part is None:
            return self.links
        fusion = self.candidate.fusion
        names = sorted(self.candidate.key - self._part.candidate.key, key=fusion.positions.__getitem__)
        return self._fusion_links.of([fusion.exprs[fusion.positions[name]] for name in names])

    def _links_in_order(self, links: list[Link], further: list[Link]) -> list[Link]:
        """Return links of the part and further ones in order."""
        places, links = self.candidate.fusion.positions, links.copy() if further else links
        for link in further:
            insort(links, link, key=lambda link: places[link.expr.name])
        return links

    @property
    def _start(self) -> "CandidateFacts | None":
        """The part, if it has all reductions and its classes are classes here, otherwise None."""
        _ = self.exact
        return None if any(link.kind is OpKind.REDUCTION for link in self._further) else self._part

    @cached_property
    def _further_outputs(self) -> list[TensorView]:
        """Outputs that are not outputs of the part."""
        names = set(map(_NAME, self._part.outputs if self._part is not None else ()))
        return [tensor for tensor in self.outputs if tensor.name not in names]

    def forget_part(self) -> None:
        """Compute facts from now on without the part's facts, which may then be released."""
        self._part = None

    @property
    def reductions(self) -> tuple[Link, ...]:
        """All results of reductions in order; a Welford reduction has several."""
        return tuple(link for link in self.links if link.kind is OpKind.REDUCTION)

    @cached_property
    def patterns(self) -> tuple[ReductionPattern, ...]:
        """Patterns of all reductions in order."""
        part = self._start
        return patterns(self.exact, self.links) if part is None else part.patterns

    @cached_property
    def flow(self) -> ReductionFlow:
        """How values flow around the reductions."""
        part = self._start
        if part is not None:
            return part.flow.followed_by(self.exact, self.links, self._further)
        return ReductionFlow.of(self.exact, self.links, self.patterns)

    @cached_property
    def buffers(self) -> tuple[PersistentBuffer, ...]:
        """Tensors needed both before and after a reduction."""
        part = self._start
        return self.flow.buffers() if part is None or self.flow.needed_by(self._further) else part.buffers

    @cached_property
    def not_view(self) -> Expr | None:
        """An expression that is not a view of an input; preferably one that computes rather than moves elements."""
        for link in self.links:
            if not link.is_view:
                return link.expr
        aliased = frozenset(output.name for output, _ in self.candidate.fusion.aliases)
        return first_not_view(self.candidate.exprs, aliased)

    @cached_property
    def inexact_gather(self) -> Link | None:
        """An indexed read that no nvFuser kernel supports: embedding, or gather of other sizes than its operand."""
        return self._read_by({"gather", "embedding_fwd"})

    @cached_property
    def gather(self) -> Link | None:
        """An indexed read of one element per element of the result."""
        return self._read_by({"gather", "take_along_axis"})

    def _read_by(self, ops: Collection[str]) -> Link | None:
        links = self._special if self.indexing is not None else ()
        return next((link for link in links if link.op in ops), None)

    @cached_property
    @follows("scheduler/registry", "checkCanSchedule", 79, 86, ReasonCode.MATMUL_INSIDE)
    @follows("scheduler/registry", "checkCanSchedule", 42, 77, ReasonCode.EVALUATED_ONLY)
    def gate(self) -> Refusal | None:
        """Why no kernel may contain these expressions, or None."""
        matmul = self.matmul
        if matmul is not None:
            return reason(ReasonCode.MATMUL_INSIDE, tensor=matmul.name, op=matmul.op), (matmul.name,)
        alone = self.reserved or self.inexact_gather
        if alone is None:
            return self.shape_gate
        why = reason(ReasonCode.EVALUATED_ONLY, tensor=alone.name, op=alone.op), (alone.name,)
        return self.first_broken((why, self.shape_gate))

    @cached_property
    @follows("scheduler/greedy", "CompileTimeChecker::dispatch", 315, 344, ReasonCode.EVALUATED_ONLY)
    def greedy_gate(self) -> Refusal | None:
        """Why not even a kernel with sorts, scans and scatters may contain these expressions, or None."""
        if self.matmul is not None:
            return self.gate
        alone = self.attention or self.inexact_gather
        if alone is not None:
            return reason(ReasonCode.EVALUATED_ONLY, tensor=alone.name, op=alone.op), (alone.name,)
        return self.shape_gate

    @cached_property
    def shape_gate(self) -> Refusal | None:
        """Why no loops fit these expressions, whatever their ops compute, or None."""
        return self.first_broken(self._shape_gates())

    @follows("scheduler/registry_utils", "isConnectedFusionGraph", 225, 264, ReasonCode.NOT_CONNECTED)
    @follows("scheduler/registry", "checkCanSchedule", 94, 98, ReasonCode.SELF_MAPPED)
    @follows("scheduler/registry_utils", "hasResizeAndIndexOps", 1056, 1073, ReasonCode.RESIZE_AND_INDEXING)
    def _shape_gates(self) -> Iterator[Refusal | None]:
        exact = self.exact
        if exact.components > 1:
            first, second = unconnected_pair(self.links)
            parts = exact.components
            yield reason(ReasonCode.NOT_CONNECTED, parts=parts, first=first, second=second), self.names
        if exact.self_mapped is not None:
            name, a, b = exact.self_mapped
            yield reason(ReasonCode.SELF_MAPPED, tensor=name, a=a, b=b), self.names
        resize, indexed = self.resize, self.indexing or self.scatter
        if resize is not None and indexed is not None:
            why = reason(
                ReasonCode.RESIZE_AND_INDEXING, resize=resize.name, resize_op=resize.op, indexed=indexed.name,
                indexed_op=indexed.op,
            )
            yield why, (resize.name, indexed.name)

    @cached_property
    @follows("scheduler/registry_utils", "hasCyclicReshape", 1147, 1206, ReasonCode.CYCLIC_RESHAPE)
    @follows("scheduler/registry_utils", "hasIncompatibleTransforms", 1216, 1305, ReasonCode.CONFLICTING_RESHAPES)
    def reshapes(self) -> Refusal | None:
        """Why reshapes conflict, or None."""
        if self.reshape is None:
            return None
        cyclic = cyclic_reshape(self.exact)
        if cyclic is not None:
            return reason(ReasonCode.CYCLIC_RESHAPE, tensor=cyclic), self.names
        conflict = conflicting_reshapes(self.exact)
        if conflict is None:
            return None
        return reason(ReasonCode.CONFLICTING_RESHAPES, first=conflict[0], second=conflict[1]), self.names

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all expressions."""
        return self.candidate.names

    @cached_property
    @follows("scheduler/registry_utils", "rejectScheduleForMemoryPromotion", 188, 223, ReasonCode.INDEX_INPUT)
    def index_input(self) -> Refusal | None:
        """Why a slice, a pad or an indexed read cannot read its operand from memory, or None."""
        if self.resize is None and self.indexing is None:
            return None
        read = {tensor.name for tensor in self.inputs}
        makers = self.candidate.fusion.producers
        constant = {t.name for t in self.inputs if t in makers and makers[t].op.name == "full"}
        for link in self.links:
            if link.op == "full" or (link.kind.is_view and constant.issuperset(link.operands)):
                # An operand with the same value at every index need not be in memory; nvFuser refuses this too.
                constant.add(link.name)
            elif self._reads_memory(link) and link.operands[0] not in read | constant:
                why = reason(ReasonCode.INDEX_INPUT, tensor=link.name, op=link.op, operand=link.operands[0])
                return why, (link.name,)
        return None

    def _reads_memory(self, link: Link) -> bool:
        """Whether nvFuser requires an expression's operand in memory.

        A cat does not resize; its pads do. With memory promotion, nvFuser stores the operand of a take_along_axis, a
        slice or a pad in the middle of a kernel; fuser_lab computes the element again instead.
        """
        if self.memory_promotion and (link.kind is OpKind.RESIZE or link.op == "take_along_axis"):
            return False
        return link.kind is OpKind.INDEXING or (link.kind is OpKind.RESIZE and link.op != "cat")

    @follows("scheduler/tools/domain_map", "canIgnoreIndexedInputDomainID", 26, 87, ReasonCode.INPUT_NOT_COVERED)
    def _only_looked_up(self, tensor: TensorView) -> set[int]:
        """Return the classes of an input's axes that need no loop: every user selects along them.

        A user selects if its result lacks the axis or has a broadcast axis there that meets no other axis.
        """
        exact, left = self.exact, set(self.exact.classes[tensor.name])
        for link in self.links if self.indexing is not None else ():
            if tensor.name not in link.operands:
                continue
            if link.kind is not OpKind.INDEXING or link.operands[0] != tensor.name:
                return set()
            axis = indexed_axis(dict(link.expr.attrs))
            result = None if link.op == "select" else exact.classes[link.name][axis]
            stays = result is not None and (not exact.broadcast[result] or result in exact.concretized)
            left &= set() if stays else {exact.classes[tensor.name][axis]}
        return left if self.indexing is not None else set()

    def _missing_input(self, loops: Iterable[int]) -> tuple[TensorView, int] | None:
        """Return an input with an axis that loops over some classes do not reach, or None.

        Loops over what an indexed read leaves of an axis stand for loops over the axis.
        """
        reads = [link for link in self.links if link.kind is OpKind.INDEXING and link.op != "select"]
        reached = set(loops)
        while True:
            coverage = Coverage(self.exact, reached, through_resize=True)
            size = len(reached)
            for link in reads:
                axis = indexed_axis(dict(link.expr.attrs))
                if self.exact.classes[link.name][axis] in coverage.covered:
                    reached.add(self.exact.classes[link.operands[0]][axis])
            if len(reached) == size:
                break
        for tensor in self.inputs:
            missing = coverage.missing(self.exact.concrete(tensor))
            if missing is not None:
                looked_up = self._only_looked_up(tensor)
                required = (number for number in self.exact.concrete(tensor) if number not in looked_up)
                missing = coverage.missing(required)
            if missing is not None:
                return tensor, missing
        return None

    @cached_property
    @follows(
        "scheduler/registry_utils", "hasGatherToBroadcastBeforeReduction", 994, 1054,
        ReasonCode.INDEXED_BEFORE_REDUCTION,
    )
    def indexed_before_reduction(self) -> Refusal | None:
        """Why an indexed read leaves too few axes for the loops of a reduction behind it, or None.

        Reading a single element is not an obstacle if the tensor is an input, or if its axis is an axis of the first
        reduction's operand or is mapped to one.
        """
        if self.indexing is None or self.reduction is None:
            return None
        root = self.exact.classes[self.reduction.operands[0]]
        for link in self.links:
            if link.kind is not OpKind.INDEXING or link.op == "select" or link.tensors[0] in self.inputs:
                continue
            axis = indexed_axis(dict(link.expr.attrs))
            operand = self.exact.classes[link.operands[0]][axis]
            feeds = self.flow.feeds.get(link.name, 0)
            left = self.exact.classes[link.name][axis]
            if left in root or not self.exact.concretized.get(left, {}).keys().isdisjoint(root):
                continue
            if link.out.domain.axes[axis].is_broadcast and not self.exact.broadcast[operand] and feeds:
                first = self.flow.names[(feeds & -feeds).bit_length() - 1]
                why = reason(
                    ReasonCode.INDEXED_BEFORE_REDUCTION, tensor=link.name, op=link.op, axis=axis, reduction=first,
                    operand=link.operands[0],
                )
                return why, (link.name, first)
        return None

    @cached_property
    @follows("scheduler/transpose", "canScheduleCompileTime", 47, 83, ReasonCode.INDEXED_INNERMOST)
    def indexed_innermost(self) -> Refusal | None:
        """Why an indexed read prevents tiles of its operand from being transposed, or None."""
        for link in self.links if self.indexing is not None else ():
            if link.kind is not OpKind.INDEXING:
                continue
            axis, operand = indexed_axis(dict(link.expr.attrs)), link.tensors[0]
            if axis == operand.domain.allocation_order[-1]:
                why = reason(
                    ReasonCode.INDEXED_INNERMOST, tensor=link.name, op=link.op, axis=axis, operand=operand.name,
                )
                return why, (link.name,)
        return None

    @cached_property
    @follows("scheduler/registry_utils", "hasNonUniqueBcast", 65, 76, ReasonCode.BROADCAST_NOT_UNIQUE)
    def unique_broadcasts(self) -> Refusal | None:
        """Why a broadcast axis would need two extents at once, or None."""
        for source, targets in self.exact.concretized.items():
            if len(targets) > 1:
                (first, a), (second, b) = list(targets.items())[:2]
                tensor, axis = self.exact.origin[source]
                why = reason(
                    ReasonCode.BROADCAST_NOT_UNIQUE, axis=axis, tensor=tensor, a=a, b=b,
                    first=self.exact.extent[first], second=self.exact.extent[second],
                )
                return why, self.names
        return None

    @cached_property
    def reference(self) -> TensorView | Refusal:
        """The output whose loops cover every axis of all inputs and outputs, or why there is none."""
        concrete = {tv.name: self.exact.concrete(tv) for tv in (*self.outputs, *self.inputs)}
        sizes = {tv.name: prod(self.exact.extent[n] for n in concrete[tv.name]) for tv in self.outputs}
        why: Refusal | None = None
        for output in sorted(self.outputs, key=lambda tv: -sizes[tv.name]):
            refused = self._cannot_lead(output, concrete)
            if refused is None:
                return output
            why = why or refused
        return why or (reason(ReasonCode.NO_OUTPUT), self.names)

    @follows("scheduler/tools/domain_map", "areAllTargetIdsCoveredBy", 197, 303, ReasonCode.OUTPUT_NOT_COVERED)
    @follows("scheduler/tools/domain_map", "areAllInputIdsMappedTo", 132, 157, ReasonCode.INPUT_NOT_COVERED)
    def _cannot_lead(self, reference: TensorView, concrete: dict[str, tuple[int, ...]]) -> Refusal | None:
        coverage = Coverage(self.exact, self.exact.classes.get(reference.name, ()), through_resize=True)
        for output in self.outputs:
            missing = coverage.missing(concrete[output.name])
            if missing is not None:
                return self._not_covered(ReasonCode.OUTPUT_NOT_COVERED, output, missing, reference.name), self.names
        lost = self._missing_input(self.exact.classes.get(reference.name, ()))
        if lost is None:
            return None
        return self._not_covered(ReasonCode.INPUT_NOT_COVERED, *lost, reference.name), self.names

    @cached_property
    @follows("scheduler/pointwise", "hasReferenceTensorView", 213, 228, ReasonCode.AXIS_LOST)
    def lost_axis(self) -> Refusal | None:
        """Why the loops of the reference do not arrive at all axes, or None.

        The reference is the first of the outputs that can lead with the most axes, broadcast axes included. An axis is
        lost only behind a broadcast that the loops may enter from its operand, so most fusions need no walk.
        """
        reference = self.reference
        if not isinstance(reference, TensorView) or not may_lose_axes(self.links, self.exact):
            return None
        concrete = {tv.name: self.exact.concrete(tv) for tv in (*self.outputs, *self.inputs)}
        for output in self.outputs:
            if output.ndim > reference.ndim and self._cannot_lead(output, concrete) is None:
                reference = output
        lost = lost_axis(self.links, Tree(self.links, reference))
        if lost is None:
            return None
        why = reason(
            ReasonCode.AXIS_LOST, reference=reference.name, tensor=lost.tensor, through=lost.through,
            extent=lost.extent,
        )
        return why, self.names

    @follows("scheduler/resize", "canScheduleCompileTime", 160, 196, ReasonCode.RESIZE_BETWEEN_OUTPUTS)
    def resize_between_outputs(self, reference: TensorView) -> Refusal | None:
        """Return why a slice, pad or cat between the reference and another output rules out common loops, or None."""
        coverage = Coverage(self.exact, self.exact.concrete(reference), through_resize=False)
        for output in self.outputs:
            if coverage.missing(self.exact.concrete(output)) is not None:
                why = reason(ReasonCode.RESIZE_BETWEEN_OUTPUTS, tensor=output.name, reference=reference.name)
                return why, self.names
        return None

    def _not_covered(self, code: ReasonCode, tensor: TensorView, missing: int, reference: str) -> Reason:
        axis = self.exact.classes[tensor.name].index(missing)
        return reason(code, axis=axis, tensor=tensor.name, extent=self.exact.extent[missing], reference=reference)

    @follows(
        "scheduler/tools/domain_map", "isValidReference", 400, 448,
        ReasonCode.OUTPUT_NOT_COVERED, ReasonCode.INPUT_NOT_COVERED,
    )
    def covered_by_reduction(self, *, inputs: bool) -> Refusal | None:
        """Return why the loops of the first reduction miss an axis of an output (or input), or None."""
        return self._outputs_covered or (self._inputs_covered if inputs else None)

    @cached_property
    def _outputs_covered(self) -> Refusal | None:
        pattern, exact, part = self.patterns[0], self.exact, self._start
        coverage = Coverage(exact, self._reduction_axes, through_resize=True)
        is_checked = part is not None and part._outputs_covered is None  # noqa: SLF001 - of the same class
        for output in self._further_outputs if is_checked else self.outputs:
            missing = coverage.missing(exact.concrete(output))
            if missing is not None:
                return self._not_covered(ReasonCode.OUTPUT_NOT_COVERED, output, missing, pattern.name), self.names
        return None

    @cached_property
    def _inputs_covered(self) -> Refusal | None:
        lost = self._missing_input(self._reduction_axes)
        if lost is None:
            return None
        return self._not_covered(ReasonCode.INPUT_NOT_COVERED, *lost, self.patterns[0].name), self.names

    @cached_property
    @follows("scheduler/registry_utils", "checkPatternEquivalence", 22, 57, ReasonCode.PATTERN_MISMATCH)
    def pattern_mismatch(self) -> Refusal | None:
        """Why two reductions do not reduce the same axes, or None."""
        part = self._start
        if part is not None and part.pattern_mismatch is None:
            return None
        first = self.patterns[0]
        for other in self.patterns[1:]:
            if other.axes != first.axes:
                return mismatch(first, other), (first.name, other.name)
        return None

    @cached_property
    def expanded_after(self) -> Refusal | None:
        """Why an output behind a reduction has an axis that only repeats elements, or None.

        nvFuser stores such an axis with stride 0; fuser_lab makes the expansion a view of the stored result.
        """
        after, part = self.flow.after, self._start
        is_checked = part is not None and part.expanded_after is None
        for output in self._further_outputs if is_checked else self.outputs:
            if not after[output.name]:
                continue
            for place, axis in enumerate(output.domain.axes):
                number = self.exact.classes[output.name][place]
                if axis.expanded is not None and number not in self._reduction_axes:
                    why = reason(
                        ReasonCode.EXPANDED_AFTER_REDUCTION, tensor=output.name, axis=place,
                        extent=axis.visible_extent if isinstance(axis.visible_extent, int) else 0,
                    )
                    return why, self.names
        return None

    @cached_property
    def _reduction_axes(self) -> frozenset[int]:
        """Classes of the operand of the first reduction."""
        first = self.reduction
        return frozenset(self.exact.classes[first.operands[0]]) if first is not None else frozenset()

    @cached_property
    @follows("scheduler/tools/domain_map", "groupInputsOutputsByInnerDim", 645, 698, ReasonCode.TRANSPOSE_LIKE)
    @follows("scheduler/utils", "getInputsOutputsWithInnerDim", 1838, 1883, ReasonCode.TRANSPOSE_LIKE)
    def inner_groups(self) -> tuple[tuple[TensorView, ...], ...]:
        """Inputs and outputs grouped by innermost axis, the largest group first; empty if there is no such grouping.

        Axes are classes joined through views. A tensor without an axis that is not a broadcast axis, such as a scalar
        tensor, voids the grouping. So does the operand of a gather, which joins no group, unless it begins a group.
        """
        return self.innermost.groups(self.inputs, self.outputs)

    @cached_property
    def lookups(self) -> frozenset[str]:
        """Names of the inputs that are read at data-dependent positions only (nvFuser: isAndOnlyIsGatherLookupTv)."""
        if self.indexing is None:
            return frozenset()
        read = {name for link in self.links for name in (link.operands[1:] if _is_gather(link) else link.operands)}
        return frozenset(link.operands[0] for link in self.links if _is_gather(link)) - read

    @cached_property
    @follows("scheduler/tools/domain_map", "hasAtLeastTwoValidGroups", 508, 587, ReasonCode.ONE_INNERMOST_AXIS)
    def transposed(self) -> Transposed | None:
        """Tensors with all axes from the two largest groups, if tiles of both are transposed into each other, or None.

        The first has the innermost axis of the second, and its axes are not those of the second in the same order,
        apart from broadcast axes.
        """
        if len(self.inner_groups) < 2 or not isinstance(self.reference, TensorView):
            return None
        return self.innermost.transposed(self.inner_groups, self.exact.concrete(self.reference))

    @cached_property
    def innermost(self) -> InnermostAxes:
        """The innermost axes of the candidate's tensors in memory."""
        return InnermostAxes(exact=self.exact, near=self.neighbourhoods, lookups=self.lookups)

    @cached_property
    def neighbourhoods(self) -> Neighbourhoods:
        """Classes joined through views."""
        return Neighbourhoods(self.exact)


def mismatch(first: ReductionPattern, second: ReductionPattern) -> Reason:
    """Return the reason that these two reductions, of different axes, are no part of one kernel."""
    return reason(
        ReasonCode.PATTERN_MISMATCH, first=first.name, second=second.name, first_numel=first.numel,
        first_rows=first.rows, second_numel=second.numel, second_rows=second.rows, contrast=first.contrast(second),
    )


def _is_gather(link: Link) -> bool:
    return link.op in {"gather", "take_along_axis"}
