"""Schedules by hand as data: frozen transforms of loop domains, and their result.

A `Transform` names what is done, to which tensor, with which arguments. A `ScheduledFusion` is the result of
transforms: copies and partial reductions are added, and each tensor has a loop domain, parallel types, a memory type
and a compute-at position. The original fusion never changes: a schedule is replayed from its beginning
(`fuser_lab.ir.replay`), so any prefix of the list is a schedule, too, and undo drops the last transform.
"""

import enum
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from fuser_lab.dtypes import DataType
from fuser_lab.errors import UnsupportedNameError
from fuser_lab.ir.domain import IterDomain, IterType, Merge, Split
from fuser_lab.ir.expr import Expr, Op
from fuser_lab.ir.fusion import Fusion
from fuser_lab.ir.scalar import Extent, Scalar
from fuser_lab.ir.val import TensorView


class _Types(enum.EnumMeta):
    """The metaclass that says that schedules by hand have no clusters."""

    def __getattr__(cls, name: str) -> object:
        """Raise UnsupportedNameError for a name of clusters of blocks, and AttributeError for others."""
        if "cluster" in name.lower():
            msg = f"{cls.__name__}.{name} is not supported: schedules by hand have no clusters of blocks."
            raise UnsupportedNameError(msg)
        raise AttributeError(name)


class ParallelType(enum.Enum, metaclass=_Types):
    """What runs the iterations of an axis, by nvFuser's names in Python and C++; values are the words of IR text.

    A target's emitter decides what each kind of loop becomes: on the CPU, threads share the iterations of ``grid_x``.
    """

    mesh_x = "deviceIdx.x"
    mesh_y = "deviceIdx.y"
    mesh_z = "deviceIdx.z"
    grid_x = "blockIdx.x"
    grid_y = "blockIdx.y"
    grid_z = "blockIdx.z"
    block_x = "threadIdx.x"
    block_y = "threadIdx.y"
    block_z = "threadIdx.z"
    mma = "MMA"
    serial = "S"
    tma = "B"
    unroll = "UR"
    unswitch = "US"
    vectorize = "V"
    stream = "streamIdx"

    BIDx = "blockIdx.x"  # noqa: PIE796 - the C++ name of the same
    BIDy = "blockIdx.y"  # noqa: PIE796 - the C++ name of the same
    BIDz = "blockIdx.z"  # noqa: PIE796 - the C++ name of the same
    TIDx = "threadIdx.x"  # noqa: PIE796 - the C++ name of the same
    TIDy = "threadIdx.y"  # noqa: PIE796 - the C++ name of the same
    TIDz = "threadIdx.z"  # noqa: PIE796 - the C++ name of the same
    Serial = "S"  # noqa: PIE796 - the C++ name of the same
    Vectorize = "V"  # noqa: PIE796 - the C++ name of the same
    Unroll = "UR"  # noqa: PIE796 - the C++ name of the same
    Unswitch = "US"  # noqa: PIE796 - the C++ name of the same

    @property
    def is_block(self) -> bool:
        """Whether each block of the grid runs one iteration."""
        return self.value.startswith("blockIdx")

    @property
    def is_thread(self) -> bool:
        """Whether each thread of a block runs one iteration."""
        return self.value.startswith("threadIdx")


# Features that Numba cannot express, and why.
REFUSED_TYPES: Mapping[ParallelType, str] = {
    ParallelType.mma: "Numba has no tensor core instructions",
    ParallelType.tma: "Numba has no bulk copies (TMA)",
    ParallelType.stream: "kernels of a schedule by hand run on one stream",
    **dict.fromkeys(
        (ParallelType.mesh_x, ParallelType.mesh_y, ParallelType.mesh_z), "fuser_lab runs on one device",
    ),
}

MemoryType = enum.Enum("MemoryType", ["tensor", "local", "shared", "global", "symmetric"], module=__name__)
GLOBAL = MemoryType["global"]
_LETTERS = {
    MemoryType.tensor: "t", MemoryType.local: "l", MemoryType.shared: "s", GLOBAL: "g", MemoryType.symmetric: "sym",
}

Argument = int | bool | str | None | enum.Enum | tuple["Argument", ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Transform:
    """One change of a schedule: ``kind`` is the method's name, the tensor is given by name (empty: all of them)."""

    kind: str
    tensor: str = ""
    args: tuple[tuple[str, Argument], ...] = ()

    def arg(self, name: str) -> Argument:
        """Return an argument by name; KeyError if there is none."""
        return dict(self.args)[name]

    @property
    def tensors(self) -> tuple[str, ...]:
        """Names of the tensors that the call transforms or has as arguments, without those that it creates."""
        lists = [value for key, value in self.args if key in {"cached_uses", "selected_tensors", "to"}]
        listed = [str(name) for value in lists if isinstance(value, tuple) for name in value]
        single = [self.tensor, *(str(value) for key, value in self.args if key == "consumer")]
        return tuple(dict.fromkeys(name for name in (*single, *listed) if name))

    def __str__(self) -> str:
        """Return the call as Python, ``T2.split(axis=0, factor=128, inner_split=True)``; tensors are variables."""
        left_out = {"result", "style"}
        inside = [
            f"{key}={_argument(key, value)}" for key, value in self.args
            if key not in left_out and value != () and (self.kind, key, value) != ("parallelize_like", "pos", -1)
        ]
        inside = [*(repr(value) for key, value in self.args if key == "style"), *inside]
        owner = self.tensor or "fd.sched"
        if self.kind == "inline_at":
            owner, inside = "fd.sched", [self.tensor, *inside]
        call = f"{owner}.{self.kind}({', '.join(inside)})"
        return "".join([*(f"{value} = " for key, value in self.args if key == "result"), call])


def _argument(key: str, value: Argument) -> str:
    if key == "order" and isinstance(value, tuple):
        return "{" + ", ".join(f"{pair[0]}: {pair[1]}" for pair in value if isinstance(pair, tuple)) + "}"
    if key == "threads":
        return str(value)
    if isinstance(value, tuple):
        return f"[{', '.join(_argument(key, entry) for entry in value)}]"
    if value is GLOBAL:
        # "global" is a keyword of Python and cannot be an attribute in code.
        return 'MemoryType["global"]'
    return repr(value) if key in {"mode", "target"} else str(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledTensor:
    """A tensor with its loops.

    ``steps`` lead from the tensor's logical domain to ``loop``; ``parallel`` holds the types of loop axes by number,
    serial ones left out; the first ``compute_at`` loops are shared with the consumers.
    """

    tensor: TensorView
    loop: tuple[IterDomain, ...]
    memory: MemoryType
    steps: tuple[Split | Merge, ...] = ()
    parallel: Mapping[int, ParallelType] = field(default_factory=dict)
    compute_at: int = 0

    @property
    def name(self) -> str:
        """The tensor's name."""
        return self.tensor.name

    def parallel_type(self, position: int) -> ParallelType:
        """Return the parallel type of the loop at a position."""
        return self.parallel.get(self.loop[position].id, ParallelType.serial)

    def text(self, produce_at: int = 0) -> str:
        """Return IR text, ``T1_l_float[iblockIdx.x4{8}, ithreadIdx.x5{128}] ca_pos( 2 ) produce_pos( 1 )``."""
        root = self.tensor.domain.root
        made = set() if root is None else {a.id for a in self.tensor.domain.logical} - {a.id for a in root}
        axes = ", ".join(
            axis_text(axis, self.parallel.get(axis.id, ParallelType.serial)) + ("rf" if axis.id in made else "")
            for axis in self.loop
        )
        tail = f" ca_pos( {self.compute_at} )" if self.compute_at else ""
        tail += f" produce_pos( {produce_at} )" if produce_at else ""
        return f"{self.name}_{_LETTERS[self.memory]}_{self.tensor.dtype.ir_name}[{axes}]{tail}"


def axis_text(axis: IterDomain, parallel: ParallelType) -> str:
    """Return an axis as IR text with what runs it."""
    return str(axis).replace("S", parallel.value, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What replaying needs to know about ops: how axes of operands become axes of results, and which ops copy."""

    pairs: Callable[[Expr], Iterable[tuple[int, IterDomain, IterDomain]]]
    copy: Op


@dataclass(frozen=True, kw_only=True, eq=False)
class ScheduledFusion:
    """A fusion with copies and partial reductions of a schedule, and the schedule of each of its tensors."""

    fusion: Fusion
    tensors: Mapping[str, ScheduledTensor]
    next_axis: int
    transforms: tuple[Transform, ...] = ()

    @classmethod
    def start(cls, fusion: Fusion) -> "ScheduledFusion":
        """Return a fusion before any transform: one serial loop per logical axis, nothing shared."""
        outside = {*fusion.tensor_inputs, *fusion.outputs}
        tensors = {
            tv.name: ScheduledTensor(
                tensor=tv, loop=tv.domain.logical, memory=GLOBAL if tv in outside else MemoryType.local,
            )
            for tv in fusion.tensors.values()
        }
        numbers = [
            axis.id for tv in fusion.tensors.values() for axis in (*(tv.domain.root or ()), *tv.domain.logical)
        ]
        made = [
            axis.id
            for tv in fusion.tensors.values()
            for step in tv.domain.transforms
            for axis in ((step.outer, step.inner) if isinstance(step, Split) else (step.result,))
        ]
        return cls(fusion=fusion, tensors=tensors, next_axis=max((*numbers, *made), default=-1) + 1)

    def producer(self, name: str) -> Expr | None:
        """Return the expression that computes a tensor, or None."""
        return self.fusion.producers.get(self.tensors[name].tensor)

    def consumers(self, name: str) -> tuple[Expr, ...]:
        """Return the expressions with tensor results that read a tensor."""
        return tuple(e for e in self.fusion.users.get(self.tensors[name].tensor, ()) if e.tensor_outputs)

    def is_output(self, name: str) -> bool:
        """Whether a tensor is returned."""
        return self.tensors[name].tensor in self.fusion.outputs

    def is_input(self, name: str) -> bool:
        """Whether a tensor is an input."""
        return self.tensors[name].tensor in self.fusion.inputs


class AxisMaker:
    """Numbers the axes that transforms create."""

    def __init__(self, first: int) -> None:
        self.next = first

    def axis(self, extent: Extent, kind: IterType, expanded: Extent | None = None) -> IterDomain:
        """Return a new axis; a part of a broadcast axis that is longer than 1 is an iteration axis."""
        if kind is IterType.BROADCAST and extent != 1:
            kind = IterType.ITERATION
        made = IterDomain(id=self.next, extent=extent, kind=kind, expanded=expanded)
        self.next += 1
        return made

    def copy(self, axis: IterDomain, kind: IterType | None = None) -> IterDomain:
        """Return a new axis like another."""
        return self.axis(axis.extent, kind or axis.kind, axis.expanded if kind is None else None)

    def split(self, source: IterDomain, factor: int, *, inner_split: bool) -> Split:
        """Return a split of an axis; the other part has as many iterations as are needed to cover the axis."""
        rest, iterations = ceil_div(source.extent, factor), factor
        sizes = (rest, iterations) if inner_split else (iterations, rest)
        outer, inner = (self.axis(size, source.kind) for size in sizes)
        return Split(source=source, factor=factor, outer=outer, inner=inner, inner_split=inner_split)

    def merge(self, outer: IterDomain, inner: IterDomain) -> Merge:
        """Return a merge of two axes; one with an iteration axis is an iteration axis."""
        kinds = {outer.kind, inner.kind} - {IterType.BROADCAST}
        kind = IterType.REDUCTION if IterType.REDUCTION in kinds else IterType.ITERATION
        kind = kind if kinds else IterType.BROADCAST
        return Merge(outer=outer, inner=inner, result=self.axis(product(outer.extent, inner.extent), kind))


def ceil_div(extent: Extent, factor: int) -> Extent:
    """Return the quotient rounded up; for a symbolic extent, a symbol for it."""
    if isinstance(extent, int):
        return -(-extent // factor)
    return Scalar(name=f"( ceilDiv({extent}, {factor}) )", dtype=DataType.Int)


def product(a: Extent, b: Extent) -> Extent:
    """Return the product; for symbolic extents, a symbol for it."""
    if isinstance(a, int) and isinstance(b, int):
        return a * b
    return a if b == 1 else b if a == 1 else Scalar(name=f"( {a} * {b} )", dtype=DataType.Int)
