"""All ops with their arguments, result dtypes and targets, determined by running the library.

Dtypes come from the ops' samples. To find the kernels, samples of different dtypes are recorded with one more op after
them, cut as nvFuser would, and lowered for both targets: an op is in a kernel if its segment has one.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from fuser_lab.codegen.pipeline import evaluated_because, generate
from fuser_lab.codegen.request import KernelRequest
from fuser_lab.definition.binding import bind
from fuser_lab.definition.builder import FusionBuilder
from fuser_lab.definition.handles import Handle, Tensor
from fuser_lab.definition.spec import TensorSpec, spec
from fuser_lab.dtypes import DataType
from fuser_lab.errors import CodegenError
from fuser_lab.ir import Fusion, OpKind, Val
from fuser_lab.ops import COMPOSITES, OPS, Composite, OpDef
from fuser_lab.ops.registry import Sample
from fuser_lab.ops.unsupported import UNSUPPORTED
from fuser_lab.passes import PRESEGMENTATION
from fuser_lab.schedule.registry import SchedulerRegistry
from fuser_lab.segmentation import SegmentedGroup, segment
from fuser_lab.targets import CPU, CUDA

TARGETS = {target.name: target.label for target in (CPU, CUDA)}
FAMILIES: tuple[tuple[str, frozenset[OpKind] | None], ...] = (
    ("Pointwise", frozenset({OpKind.POINTWISE})),
    ("Reductions", frozenset({OpKind.REDUCTION})),
    ("Scans and sorts", frozenset({OpKind.SCAN, OpKind.SORT})),
    ("Copies and shapes", frozenset({OpKind.COPY, OpKind.BROADCAST, OpKind.SQUEEZE, OpKind.EXPAND, OpKind.RESHAPE})),
    ("Slices, pads and concatenations", frozenset({OpKind.RESIZE})),
    ("Factories and random numbers", frozenset({OpKind.FACTORY, OpKind.RANDOM})),
    ("Indexing", frozenset({OpKind.INDEXING, OpKind.SCATTER})),
    ("Matrix products and attention", frozenset({OpKind.MATMUL, OpKind.ATTENTION})),
    ("Scalars", frozenset({OpKind.SCALAR})),
    ("Written with other ops", None),
    ("Written with other ops, and without a name in nvFuser", None),
)
_FOREIGN = FAMILIES[-1][0]
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_ASKED = 3  # samples per op: cutting and lowering a segment takes some milliseconds


@dataclass(frozen=True, slots=True, kw_only=True)
class OpRow:
    """One op: ``dtypes`` are pairs of operands and results as its samples have them.

    ``reference`` says whether NumPy evaluates the op itself or the ops that compose it; ``kernels`` is, for each
    target, ``"kernel"``, ``"library"`` (the array library of the inputs evaluates it), or both.
    """

    name: str
    family: str
    signature: str
    doc: str
    dtypes: tuple[tuple[str, str], ...]
    reference: str
    kernels: dict[str, str]
    library: str


def op_rows() -> tuple[OpRow, ...]:
    """Return all ops of ``fd.ops`` by family, in alphabetical order."""
    entries: list[OpDef | Composite] = [*OPS.values(), *COMPOSITES.values()]
    ordered = {title: place for place, (title, _) in enumerate(FAMILIES)}
    rows = (_row(entry) for entry in entries)
    return tuple(sorted(rows, key=lambda row: (ordered[row.family], row.name)))


def _row(entry: OpDef | Composite) -> OpRow:
    recorded = [_record(sample) for sample in entry.samples]
    first: dict[tuple[str, str], _Recorded] = {}
    for sample in recorded:
        if not sample.is_empty:
            first.setdefault(sample.dtypes, sample)
    answers = [_computed_by(entry, sample) for sample in list(first.values())[:_ASKED]]
    return OpRow(
        name=entry.name,
        family=_family(entry),
        signature=f"{entry.name}{entry.signature}",
        doc=entry.doc,
        dtypes=tuple(dict.fromkeys(sample.dtypes for sample in recorded)),
        reference="NumPy" if isinstance(entry, OpDef) else "its parts",
        kernels={target: " or ".join(sorted(set().union(*(a[target] for a in answers)))) for target in TARGETS},
        library=_library(entry),
    )


def _family(entry: OpDef | Composite) -> str:
    if isinstance(entry, Composite) and entry.is_foreign:
        return _FOREIGN
    kind = entry.kind if isinstance(entry, OpDef) else None
    return next(title for title, kinds in FAMILIES if kinds is None or kind in kinds)


def _library(entry: OpDef | Composite) -> str:
    """Return the library that evaluates the op on torch tensors outside kernels."""
    if isinstance(entry, Composite):
        return "its parts"
    return "torch" if entry.library is not None or entry.kind.is_view else "NumPy"


def _computed_by(entry: OpDef | Composite, recorded: "_Recorded") -> dict[str, set[str]]:
    """Return for each target what computes an op in a sample."""
    fusion = PRESEGMENTATION.run(bind(recorded.fusion, recorded.inputs).fusion)
    groups = segment(fusion, SchedulerRegistry()).groups
    status: dict[str, set[str]] = {target: set() for target in TARGETS}
    for group in groups:
        if not any(expr.name in recorded.computing and _is_meant(entry, expr.op.name) for expr in group.exprs):
            continue
        for target in TARGETS:
            status[target].add("kernel" if _has_kernel(group, target) else "library")
    return status


def _is_meant(entry: OpDef | Composite, name: str) -> bool:
    return isinstance(entry, Composite) or entry.name == name


def _has_kernel(group: SegmentedGroup, target: str) -> bool:
    if group.scheduler is None or evaluated_because(group.candidate.narrowed, group.scheduler):
        return False
    try:
        generate(KernelRequest(fusion=group.candidate.narrowed, scheduler=group.scheduler, target=target))
    except CodegenError:
        return False
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class _Recorded:
    """A sample as a fusion, the names of the expressions that its call made, and dtypes of operands and results."""

    fusion: Fusion
    inputs: tuple[TensorSpec, ...]
    computing: frozenset[str]
    dtypes: tuple[str, str]

    @property
    def is_empty(self) -> bool:
        """Whether some tensor has no elements, so that nothing may remain to compute."""
        return any(extent == 0 for tv in self.fusion.tensors.values() for extent in tv.extents)


def _record(sample: Sample) -> _Recorded:
    with FusionBuilder() as fd:
        names: dict[str, Any] = {"fd": fd, "DataType": DataType}
        for letter, arg in zip(_LETTERS, sample.args, strict=False):
            names[letter] = fd.define_tensor(list(arg.shape), True, arg.dtype)
        made = list(_flat(eval(sample.call, names)))  # noqa: S307 - calls of the registry, written by us
        for value in made:
            fd.add_output(_behind(fd, value))
    operands = ", ".join(arg.dtype.name for arg in sample.args)
    results = ", ".join(DataType.Int.name if isinstance(value, int) else value.dtype.name for value in made)
    inputs = tuple(spec(arg.shape, arg.dtype) for arg in sample.args)
    computing = _computing(fd.fusion, [value.val for value in made if isinstance(value, Handle)])
    return _Recorded(fusion=fd.fusion, inputs=inputs, computing=computing, dtypes=(operands or "none", results))


def _computing(fusion: Fusion, values: Sequence[Val]) -> frozenset[str]:
    """Return the names of the expressions that compute values."""
    names: dict[str, None] = {}
    pending = list(values)
    while pending:
        expr = fusion.producers.get(pending.pop())
        if expr is not None and expr.name not in names:
            names[expr.name] = None
            pending += expr.inputs
    return frozenset(names)


def _behind(fd: FusionBuilder, value: Any) -> Any:
    """Record one more op on a result, so that the op itself is not just a view of an input."""
    if not isinstance(value, Tensor):
        dtype = DataType.Int if isinstance(value, int) else value.dtype
        return fd.ops.full([2], value, dtype)
    return fd.ops.logical_not(value) if value.dtype is DataType.Bool else fd.ops.add(value, 1)


def _flat(result: Any) -> Iterator[Any]:
    if isinstance(result, list | tuple):
        for part in result:
            yield from _flat(part)
    else:
        yield result


def unsupported_rows() -> tuple[tuple[str, str], ...]:
    """Return the ops that nvFuser has and fuser_lab lacks, with the reason."""
    return tuple(sorted(UNSUPPORTED.items()))


def op_data() -> dict[str, Any]:
    """Return all ops, supported and not, JSON-ready."""
    return {
        "schema": "fuser_lab.ops",
        "version": 1,
        "ops": [asdict(row) for row in op_rows()],
        "unsupported": [{"name": name, "reason": reason} for name, reason in unsupported_rows()],
    }


def op_text(rows: Sequence[OpRow]) -> str:
    """Return one line per op."""
    lines = []
    for row in rows:
        status = ", ".join(f"{target}: {row.kernels[target]}" for target in TARGETS)
        lines.append(f"{row.signature:<60} {status}\n    {row.doc}")
    return "\n".join(lines)
