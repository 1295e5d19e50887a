"""Which ops of a function share a kernel, as plain data with names that survive renames: what contracts compare."""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from fuser_lab.report.units import bytes_label, conjunction, plural, seconds_label

T = TypeVar("T", bound=Hashable)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """One decision of a compiler: groups of ops, each named by its first op, were fused or kept apart.

    ``by`` is who states the reason.
    """

    groups: tuple[str, ...]
    fused: bool
    by: str = ""
    code: str = ""
    text: str = ""

    def __str__(self) -> str:
        """Return one line."""
        who = f" [{self.by}]" if self.by and not self.fused else ""
        names = conjunction(self.groups)
        return f"fused {names}" if self.fused else f"{names} stay apart: {self.text or self.code}{who}"


@dataclass(frozen=True, slots=True, kw_only=True)
class OpNote:
    """What is said about an op beside its name: the user's line, and the arguments that decide its loops."""

    place: str = ""
    arguments: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FusedOps:
    """The ops of one kernel, in the order of data flow; ``library`` names the function of a library, if it is one."""

    ops: tuple[str, ...]
    library: str = ""
    bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphPartition:
    """The kernels of one graph.

    ``ops`` are the names of its ops in the order of data flow, with a note on each; ``decisions`` are in the compiler's
    order; ``ends`` is the reason why the library ended the graph early, or an empty text.
    """

    kind: str
    ops: Mapping[str, OpNote]
    kernels: tuple[FusedOps, ...]
    decisions: tuple[Decision, ...] = ()
    ends: str = ""

    def kernels_of(self, op: str) -> tuple[int, ...]:
        """Return the numbers of the kernels that compute an op; several, if they compute it again."""
        return tuple(number for number, kernel in enumerate(self.kernels) if op in kernel.ops)


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """Which ops of a function share a kernel, under one compiler.

    Attributes
    ----------
    compiler
        The compiler's name.
    device
        The device that runs the kernels, or that the plan is for.
    model
        The device for which ``seconds`` and ``bound_seconds`` are predicted.
    versions
        Versions of the libraries that decide.
    options
        Options that differ from the defaults, one text each.
    inputs
        Tensors of the call: dtype, sizes, and strides where these are not dense.
    parameters
        How many parameters and buffers a module has of each dtype.
    graphs
        The graphs, in the order of their compilation.
    bytes, bound_bytes
        Bytes that the kernels move, and those that one kernel for each fusion would.
    seconds, bound_seconds
        Predicted seconds of the kernels, and the least of any cut.
    """

    compiler: str
    device: str
    model: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    options: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    parameters: Mapping[str, int] = field(default_factory=dict)
    graphs: tuple[GraphPartition, ...]
    bytes: int = 0
    bound_bytes: int = 0
    seconds: float = 0.0
    bound_seconds: float = 0.0

    @property
    def kernels(self) -> int:
        """The number of kernels of all graphs."""
        return sum(len(graph.kernels) for graph in self.graphs)

    @property
    def bytes_over_bound(self) -> float:
        """The ratio of the bytes moved to those that one kernel for each fusion would move."""
        return self.bytes / self.bound_bytes if self.bound_bytes else 1.0

    def together(self, *ops: str) -> bool:
        """Whether one kernel computes all of some ops, given by their names."""
        return any(set(ops) <= set(kernel.ops) for graph in self.graphs for kernel in graph.kernels)

    def cost_text(self) -> str:
        """Return kernels, bytes and predicted time as one clause."""
        parts = [plural(self.kernels, "kernel")]
        if self.bytes:
            parts.append(f"{bytes_label(self.bytes)} moved (bound {bytes_label(self.bound_bytes)})")
        if self.seconds:
            parts.append(f"{seconds_label(self.seconds)} predicted on {self.model}")
        return ", ".join(parts)

    def __str__(self) -> str:
        """Return the kernels, with why neighbours are separate."""
        lines = [f"{self.compiler} on {self.device}: {self.cost_text()}"]
        for graph in self.graphs:
            lines.append(f"{graph.kind}:")
            for number, kernel in enumerate(graph.kernels):
                library = f"  from a library: {kernel.library}" if kernel.library else ""
                lines.append(f"{number:>3}  {ops_text(kernel.ops, graph.ops)}{library}")
            lines += [f"  {decision}" for decision in graph.decisions if not decision.fused]
            lines += [f"  the graph ends: {graph.ends}"] if graph.ends else []
        return "\n".join(lines)

    def __repr__(self) -> str:
        """Return the text, so that a notebook shows it."""
        return str(self)


def ops_text(ops: Sequence[str], notes: Mapping[str, OpNote], most: int = 8) -> str:
    """Return names of ops with the lines that they are from, shortened if there are many."""
    few = list(ops) if len(ops) <= most else [*ops[: most - 2], f"... {len(ops) - most + 1} more ...", ops[-1]]
    lines = list(dict.fromkeys(notes[op].place for op in ops if notes[op].place))
    where = f" ({', '.join(lines[:4])}{', ...' if len(lines) > 4 else ''})" if lines else ""
    return f"{', '.join(few)}{where}"


# Names

@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """What names an op: the path of its module, the op that the user called, and the part of it that this one is."""

    module: str = ""
    called: str
    part: str
    note: OpNote = field(default_factory=OpNote)

    @property
    def name(self) -> str:
        """Return ``layers.0.norm/layer_norm.rsqrt``."""
        head = f"{self.module}/" if self.module else ""
        return f"{head}{self.called}" if self.called == self.part else f"{head}{self.called}.{self.part}"


def bare_op(target: str) -> str:
    """Return the name of an op without namespace and overload: ``softmax`` for ``aten._softmax.default``."""
    parts = target.split(".")
    return (parts[1] if len(parts) > 1 else target).lstrip("_").removeprefix("native_")


def stable_names(ordered: Iterable[T], origins: Mapping[T, Origin]) -> dict[T, str]:
    """Return a name for each op, in an order of data flow: equal ones are numbered from the second on."""
    counts: dict[str, int] = {}
    names: dict[T, str] = {}
    for op in ordered:
        if op in origins:
            name = origins[op].name
            counts[name] = counts.get(name, 0) + 1
            names[op] = name if counts[name] == 1 else f"{name}#{counts[name]}"
    return names


def bare_name(name: str) -> str:
    """Return the name of an op without its number among equals."""
    return name.rpartition("#")[0] or name


def data_flow_order(ends: Iterable[T], operands: Callable[[T], Sequence[T]]) -> Iterator[T]:
    """Yield what results depend on, each after its operands.

    The order follows from results and operands alone, so it is the same for every order of independent lines.
    """
    visited: set[T] = set()
    for end in ends:
        waiting = [(end, False)]
        while waiting:
            value, is_ready = waiting.pop()
            if is_ready:
                yield value
            elif value not in visited:
                visited.add(value)
                waiting.append((value, True))
                waiting += [(operand, False) for operand in reversed(operands(value))]


def kernels_in_order(
    groups: Sequence[tuple[Sequence[T], str, int]], names: Mapping[T, str],
) -> tuple[FusedOps, ...]:
    """Return kernels with their ops named and in the order of ``names``; a group has ops, a library and bytes."""
    position = {name: number for number, name in enumerate(names.values())}
    return tuple(
        FusedOps(
            ops=tuple(sorted({names[op] for op in ops if op in names}, key=position.__getitem__)), library=library,
            bytes=moved,
        )
        for ops, library, moved in groups
    )


def heads_of(kernels: Sequence[FusedOps]) -> tuple[str, ...]:
    """Return the op by which decisions name each kernel: its first one that no other kernel computes."""
    counts = Counter(op for kernel in kernels for op in kernel.ops)
    return tuple(
        next((op for op in kernel.ops if counts[op] == 1), kernel.ops[0] if kernel.ops else "") for kernel in kernels
    )
