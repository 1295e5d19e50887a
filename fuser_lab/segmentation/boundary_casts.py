"""Boundary casts: Float tensors pass between segments in half the bytes if the result has 16 bits anyway.

This is nvFuser's option ``io_to_lower_precision``, which is off by default because it rounds more. The producer's
segment casts down and stores that; each segment that reads it casts back, once. Two rules are narrower than in nvFuser:
a tensor that some reader needs in Float is not stored twice; and views of inputs and results of the array library get
no casts, because their segments have no kernels.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count

from fuser_lab.cost.device import DEFAULT, Device
from fuser_lab.cost.rules import follows
from fuser_lab.cost.verdict import Answer, SchedulerType
from fuser_lab.dtypes import DataType
from fuser_lab.errors import SegmentationError
from fuser_lab.ir import Expr, Fusion, OpKind, TensorView, Val
from fuser_lab.ops import OPS
from fuser_lab.ops.positions import indexed_operands
from fuser_lab.passes.rewriter import Axes, in_memory_order
from fuser_lab.segmentation.events import Attempt, Kind, Names, Outcome
from fuser_lab.segmentation.forwarding import forwarded_chains
from fuser_lab.segmentation.hints import is_hint
from fuser_lab.segmentation.options import SegmenterOptions
from fuser_lab.segmentation.oracle import Candidate, SchedulerOracle, candidate

_HALVES = frozenset({DataType.Half, DataType.BFloat16})
_BY_LIBRARY = frozenset({OpKind.MATMUL, OpKind.ATTENTION, OpKind.SCAN, OpKind.SORT, OpKind.SCATTER})
NO_KERNEL = frozenset({SchedulerType.EXPR_EVAL, SchedulerType.NO_OP})


@dataclass(frozen=True, slots=True, kw_only=True)
class Cast:
    """A tensor that is stored as ``dtype``, and for each segment that reads it the names of the readers there."""

    tensor: str
    dtype: DataType
    readers: tuple[Names, ...]

    @property
    def lower(self) -> str:
        """Name of the stored tensor."""
        return f"{self.tensor}_lower"

    def back(self, place: int) -> str:
        """Return the name of the tensor that the readers in ``readers[place]`` read."""
        return f"{self.tensor}_back{place + 1 if place else ''}"


@follows("fusion_segmenter", "ForceHalfAnnotation", 4957, 5014)
def lower_types(fusion: Fusion, options: SegmenterOptions) -> dict[TensorView, DataType]:
    """Return the Float tensors that may be stored as halves, each with the type: that of the last output it leads to.

    Excluded are inputs, outputs, ends of forwarded chains, results of hints, views of inputs, operands and results of
    the array library, and tensors that are indexed or sliced.
    """
    halves = _halves(fusion)
    ends = {chain.end for chain in forwarded_chains(fusion, options)} if halves else set()
    barred = {*fusion.outputs, *ends}
    return {
        tensor: halves[tensor]
        for expr in fusion.tensor_exprs
        for tensor in expr.tensor_outputs
        if tensor.dtype is DataType.Float
        and tensor in halves
        and tensor not in barred
        and is_computed(tensor, fusion)
        and all(takes_a_cast(user, tensor) for user in fusion.users.get(tensor, ()))
    }


def _halves(fusion: Fusion) -> dict[Val, DataType]:
    """Return the values that lead to an output of 16 bits, with the dtype of the last such output."""
    last: dict[Val, int] = {tv: place for place, tv in enumerate(fusion.outputs) if tv.dtype in _HALVES}
    for expr in reversed(fusion.exprs):
        latest = max((last[v] for v in expr.outputs if v in last), default=-1)
        for value in expr.inputs if latest >= 0 else ():
            last[value] = max(last.get(value, -1), latest)
    return {value: fusion.outputs[place].dtype for value, place in last.items()}


def is_computed(tensor: TensorView, fusion: Fusion) -> bool:
    """Whether a kernel computes a tensor: it is not a view of an input, nor a result of a hint or a library."""
    maker = fusion.producers.get(tensor)
    if maker is None or is_hint(maker) or maker.kind in _BY_LIBRARY:
        return False
    while maker is not None and maker.kind.is_view:
        maker = fusion.producers.get(maker.tensor_inputs[0])
    return maker is not None


def takes_a_cast(user: Expr, tensor: TensorView) -> bool:
    """Whether an expression may read a cast of a tensor: no library computes it, and it does not look elements up."""
    looked_up = indexed_operands(user) is not None or user.op.name == "slice"
    return user.kind not in _BY_LIBRARY and not (looked_up and user.inputs[0] is tensor)


def with_casts(fusion: Fusion, casts: Iterable[Cast]) -> Fusion:
    """Return the fusion in which readers in other segments read ``cast(cast(tensor, half), float)``.

    A cast that the fusion already has is not added again.
    """
    made: dict[str, list[Cast]] = {}
    reads: dict[str, dict[Val, TensorView]] = {}
    for cast in casts:
        if cast.lower not in fusion.positions:
            made.setdefault(fusion.producers[fusion.tensors[cast.tensor]].name, []).append(cast)
    if not made:
        return fusion
    axes = Axes(fusion)
    exprs: list[Expr] = []
    for expr in fusion.exprs:
        instead = reads.get(expr.name, {})
        inputs = tuple(instead.get(value, value) for value in expr.inputs)
        exprs.append(Expr(op=expr.op, inputs=inputs, outputs=expr.outputs, attrs=expr.attrs))
        for cast in made.get(expr.name, ()):
            tensor = fusion.tensors[cast.tensor]
            exprs.append(_cast(cast.lower, tensor, cast.dtype, axes))
            half = exprs[-1].out
            for place, readers in enumerate(cast.readers):
                exprs.append(_cast(cast.back(place), half, tensor.dtype, axes))
                for reader in readers:
                    reads.setdefault(reader, {})[tensor] = exprs[-1].out
    return replace(fusion, exprs=tuple(exprs))


def _cast(name: str, source: TensorView, dtype: DataType, axes: Axes) -> Expr:
    (result,) = OPS["cast"].infer((source,), {"dtype": dtype}, axes)
    domain = result.domain or source.domain
    if source.domain.allocation is not None:
        domain = in_memory_order(domain, source.domain.allocation)
    out = TensorView(name=name, dtype=dtype, domain=domain)
    return Expr(op=OPS["cast"], inputs=(source,), outputs=(out,), attrs=(("dtype", dtype),))


class Lowering:
    """Asks schedulers about candidates with casts at their boundaries, one cast back per tensor."""

    def __init__(self, oracle: SchedulerOracle, options: SegmenterOptions) -> None:
        self._oracle = oracle
        self._options = options
        self._types: dict[int, tuple[Fusion, dict[TensorView, DataType]]] = {}
        self._answers: dict[tuple[int, frozenset[str], tuple[TensorView, ...]], Answer] = {}

    @property
    def device(self) -> Device:
        """Device to plan for."""
        device = getattr(self._oracle, "device", DEFAULT)
        return device if isinstance(device, Device) else DEFAULT

    def ask(self, candidate: Candidate) -> Answer:
        """Return the verdicts about the candidate with casts at its boundaries."""
        fusion = candidate.fusion
        if id(fusion) not in self._types:
            self._types[id(fusion)] = fusion, lower_types(fusion, self._options)
        types = self._types[id(fusion)][1]
        if types.keys().isdisjoint((*candidate.tensor_inputs, *candidate.outputs)):
            return self._oracle.ask(candidate)
        key = (id(fusion), candidate.key, candidate.outputs)
        if key not in self._answers:
            self._answers[key] = self._oracle.ask(_with_lower_ends(candidate, types))
        return self._answers[key]


def _with_lower_ends(group: Candidate, types: dict[TensorView, DataType]) -> Candidate:
    axes = Axes(group.fusion)
    inputs: list[Val] = []
    exprs: list[Expr] = []
    back: dict[Val, TensorView] = {}
    for value in group.inputs:
        dtype = types.get(value) if isinstance(value, TensorView) else None
        if dtype is None or not isinstance(value, TensorView):
            inputs.append(value)
            continue
        half = _cast(f"{value.name}_lower", value, dtype, axes).out
        inputs.append(half)
        exprs.append(_cast(f"{value.name}_back", half, value.dtype, axes))
        back[value] = exprs[-1].out
    outputs: list[TensorView] = []
    for expr in group.exprs:
        read = tuple(back.get(value, value) for value in expr.inputs)
        exprs.append(Expr(op=expr.op, inputs=read, outputs=expr.outputs, attrs=expr.attrs))
        for tensor in expr.tensor_outputs:
            if tensor in group.outputs and tensor in types:
                exprs.append(_cast(f"{tensor.name}_lower", tensor, types[tensor], axes))
                outputs.append(exprs[-1].out)
            elif tensor in group.outputs:
                outputs.append(tensor)
    fusion = Fusion(
        inputs=tuple(inputs), exprs=tuple(exprs), outputs=tuple(outputs), keeps_float=group.fusion.keeps_float,
    )
    return candidate(fusion, fusion.tensor_exprs)


@follows("fusion_segmenter", "SegmentedFusion::castInputOutputToLowerPrecision", 844, 994)
def boundary_casts(
    fusion: Fusion,
    groups: Sequence[Sequence[Expr]],
    recomputed: frozenset[str],
    oracle: SchedulerOracle,
    options: SegmenterOptions,
) -> Iterator[Attempt]:
    """Yield, for each tensor that may pass between groups as a half, whether it does.

    It does not if a segment without a kernel writes or reads it, or if a scheduler accepts a segment without casts but
    refuses it with them.
    """
    plain = [candidate(fusion, exprs, recomputed) for exprs in groups]
    before = [oracle.ask(group) for group in plain]
    casts: list[Cast] = []
    touched: dict[str, list[int]] = {}
    for cast, places in _crossing(fusion, plain, options):
        if all(before[place].chosen not in NO_KERNEL for place in places):
            casts.append(cast)
            touched[cast.tensor] = places
    refused: dict[str, Answer] = {}
    while True:
        after = dict(_answers(fusion, plain, casts, touched, recomputed, oracle))
        bad = {i: a for i, a in after.items() if a.chosen is None and before[i].chosen is not None}
        if not bad:
            break
        refused |= {c.tensor: bad[i] for c in casts for i in touched[c.tensor] if i in bad}
        casts = [cast for cast in casts if cast.tensor not in refused]
    for cast, places in _crossing(fusion, plain, options):
        if cast.tensor in touched:
            yield _attempt(fusion, cast, [plain[i] for i in places[1:]], refused.get(cast.tensor))


def _crossing(
    fusion: Fusion, groups: Sequence[Candidate], options: SegmenterOptions,
) -> Iterator[tuple[Cast, list[int]]]:
    """Yield the casts that boundaries allow, each with the positions of the writing group and of the readers."""
    types = lower_types(fusion, options)
    for tensor, dtype in types.items():
        writers = [i for i, group in enumerate(groups) if tensor in group.outputs]
        places = [i for i, group in enumerate(groups) if tensor in group.tensor_inputs]
        if len(writers) == 1 and places:
            readers = tuple(tuple(e.name for e in groups[i].exprs if tensor in e.tensor_inputs) for i in places)
            yield Cast(tensor=tensor.name, dtype=dtype, readers=readers), [*writers, *places]


def _answers(
    fusion: Fusion, groups: Sequence[Candidate], casts: Sequence[Cast], touched: dict[str, list[int]],
    recomputed: frozenset[str], oracle: SchedulerOracle,
) -> Iterator[tuple[int, Answer]]:
    """Yield the positions of groups that get casts, with the schedulers' answers about them."""
    new = with_casts(fusion, casts)
    names: dict[int, set[str]] = {}
    for cast in casts:
        for number, place in zip(count(-1), touched[cast.tensor]):
            names.setdefault(place, set()).add(cast.lower if number < 0 else cast.back(number))
    for place, cast_names in names.items():
        exprs = (e for e in new.exprs if e.name in groups[place].key or e.name in cast_names)
        yield place, oracle.ask(candidate(new, exprs, recomputed))


def _attempt(fusion: Fusion, cast: Cast, readers: Sequence[Candidate], refusal: Answer | None) -> Attempt:
    tensor = fusion.tensors[cast.tensor]
    size, less = tensor.nbytes, tensor.nbytes * cast.dtype.itemsize // tensor.dtype.itemsize
    text = f"{tensor.name} passes as {cast.dtype.name}: {less:,} bytes instead of {size:,}"
    return Attempt(
        phase="boundary casts",
        kind=Kind.CAST,
        subjects=((tensor.name,), *(tuple(e.name for e in group.exprs if e.tensor_outputs) for group in readers)),
        outcome=Outcome.ACCEPTED if refusal is None else Outcome.REFUSED,
        text=text if refusal is None else f"{tensor.name} stays {tensor.dtype.name}: {refusal.text}",
    )


def cast_of(fusion: Fusion, subjects: Sequence[Names], dtype: DataType | None = None) -> Cast:
    """Return the cast that an attempt's subjects describe: a tensor, then the groups that read it.

    The dtype is that of the last output that the tensor leads to, unless an edit has chosen one.

    Raises
    ------
    SegmentationError
        If the fusion has no such tensor, or none that leads to an output of 16 bits.
    """
    (name,), *groups = subjects
    tensor = fusion.tensors.get(name)
    dtype = dtype or (None if tensor is None else _halves(fusion).get(tensor))
    if tensor is None or dtype is None:
        msg = f"the log stores {name} in 16 bits, but it does not lead to an output of 16 bits."
        raise SegmentationError(msg)
    users = {expr.name for expr in fusion.users.get(tensor, ())}
    return Cast(tensor=name, dtype=dtype, readers=tuple(tuple(n for n in group if n in users) for group in groups))


def chosen_dtype(attempt: Attempt) -> DataType | None:
    """Return the dtype that an edit has chosen for a cast; None if the option ``io_to_lower_precision`` made it."""
    return DataType[attempt.code] if attempt.code in DataType.__members__ else None
