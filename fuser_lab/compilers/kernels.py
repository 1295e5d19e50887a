"""The kernels of a plan that another compiler made, why two are separate, and how a user names them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeAlias

from fuser_lab.arguments import TEXT, having, instance, listing, short_text, whole
from fuser_lab.compilers.record import KernelRecord, LineOp, PlanRecord, bare
from fuser_lab.errors import InputError
from fuser_lab.segmentation.events import Attempt

if TYPE_CHECKING:
    from fuser_lab.bridge.region import RegionOp


class PlanOfKernels(Protocol):
    """What a kernel reads of its plan."""

    @property
    def record(self) -> PlanRecord:
        """What the compiler says about its kernels."""

    @property
    def ops(self) -> "Mapping[str, RegionOp]":
        """The ops of our own fusions, by name of the node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledKernel(KernelRecord):
    """One kernel of a compiled plan: what the compiler fused into it, and the function that contains its code.

    ``names`` are the compiler's names of its operations, ``writes`` and ``reads`` names of buffers, ``nodes`` names of
    the captured graph's nodes. ``opaque`` says that the kernel is taken from elsewhere, as a matrix product. On a CPU
    several kernels may be in one ``function``; ``launch`` is the number of its call. ``bytes`` are what it reads and
    writes, as the compiler counts them; 0 if a size is not known.
    """

    index: int
    plan: PlanOfKernels = field(repr=False, compare=False)

    @property
    def ops(self) -> "tuple[RegionOp, ...]":
        """The ops of our own fusion of the graph that the kernel computes."""
        computed = set(self.nodes)
        return tuple(op for name, op in self.plan.ops.items() if name in computed)

    @property
    def lines(self) -> tuple[str, ...]:
        """The lines of the user's code that it computes, such as ``model.py:12``."""
        return tuple(dict.fromkeys(place for name in self.nodes if (place := self.plan.record.calls[name].place)))

    def source(self) -> str:
        """Return the source of the function that contains the kernel.

        Raises
        ------
        InputError
            If the kernel is taken from elsewhere, so that the compiler wrote no source for it.
        """
        text = self.plan.record.sources.get(self.function)
        if text is None:
            msg = f"source: the compiler wrote no source for kernel {self.index}, which calls {self.function}."
            raise InputError(msg)
        return text

    def source_lines(self) -> "tuple[SourceLine, ...]":
        """Return the lines of `source`, each with the op that it computes.

        Raises
        ------
        InputError
            If the kernel is taken from elsewhere, so that the compiler wrote no source for it.
        """
        by_line = {op.line: op for op in self.plan.record.lines.get(self.function, ())}
        return tuple(
            self._source_line(text, by_line.get(number)) for number, text in enumerate(self.source().splitlines())
        )

    def _source_line(self, text: str, op: LineOp | None) -> "SourceLine":
        call = self.plan.record.calls.get(op.node) if op is not None else None
        return SourceLine(
            text=text, node=op.node if op is not None else "", op=bare(call.target) if call is not None else "",
            place=call.place if call is not None else "", inside=op is not None and op.operation in self.names,
        )

    def __str__(self) -> str:
        """Return one line: what it computes, and from which lines."""
        calls = (self.plan.record.calls[name] for name in self.nodes)
        ops = ", ".join(dict.fromkeys(bare(call.target) for call in calls)) or "nothing"
        where = f"  ({', '.join(self.lines)})" if self.lines else ""
        kind = f"  from elsewhere: {self.function}" if self.opaque else f"  loops {self.loops}"
        return f"{self.index:>3}  {'+'.join(self.writes)}: {ops}{kind}{where}"


WHERE = TEXT | whole(0) | instance(CompiledKernel, accepted="a kernel") | having("target", "tensors", accepted="an op")
Where: TypeAlias = "str | int | CompiledKernel | RegionOp"  # what selects kernels


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceLine:
    """A line of a source: its text, and the op that it computes, with the node of the graph and the user's line.

    ``op``, ``node`` and ``place`` are empty for a line that computes none, such as the head of a loop. ``inside`` says
    whether the line is of the kernel that was asked, because several kernels may be in one function.
    """

    text: str
    op: str
    node: str
    place: str
    inside: bool

    def __str__(self) -> str:
        """Return the op, the user's line and the text, in columns."""
        return f"{self.op:>12} {self.place:>16} {'|' if self.inside else ' '} {self.text}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledWhy:
    """Why two kernels of a compiled plan are separate or one.

    ``by`` is who states the reason: the compiler's name, or ``"fuser_lab"`` where the compiler gives none. ``attempts``
    are all attempts to fuse parts of both.
    """

    kernels: tuple[int, int]
    code: str
    text: str
    by: str
    attempts: tuple[Attempt, ...] = field(default=(), repr=False)

    @property
    def together(self) -> bool:
        """Whether both are one kernel."""
        return self.kernels[0] == self.kernels[1]

    def __str__(self) -> str:
        """Return one sentence, with who states the reason."""
        if self.together:
            return f"kernel {self.kernels[0]} computes both"
        return f"kernels {self.kernels[0]} and {self.kernels[1]} are separate: {self.text} [{self.by}]"


def select_kernels(
    where: "Where", kernels: Sequence[CompiledKernel], plan: PlanOfKernels, *, who: str,
) -> list[int]:
    """Return the numbers of the kernels of a plan that a value names, in order; ``who`` is the function that is called.

    Raises
    ------
    InputError
        If no kernel has the value; the message lists the choices.
    """
    if not kernels:
        raise InputError(f"{who}: the plan has no kernels.")
    if isinstance(where, int):
        if where < len(kernels):
            return [where]
        raise InputError(f"{who}: kernel must be from 0 to {len(kernels) - 1}, given {short_text(where)}.")
    for selects in _selections(where, plan):
        numbers = [kernel.index for kernel in kernels if selects(kernel)]
        if numbers:
            return numbers
    buffers = [buffer for kernel in kernels for buffer in kernel.writes]
    lines = dict.fromkeys(line for kernel in kernels for line in kernel.lines)
    raise InputError(
        f"{who}: no kernel has {short_text(where)}; choose from kernels 0 to {len(kernels) - 1}, "
        f"{listing((*buffers, *lines))}."
    )


def _selections(
    where: "CompiledKernel | RegionOp | str", plan: PlanOfKernels,
) -> tuple[Callable[[CompiledKernel], bool], ...]:
    """Return tests of kernels, of which the first that holds for some selects them."""
    if isinstance(where, CompiledKernel):  # also one of the plan before an edit
        return (lambda kernel: not set(where.names).isdisjoint(kernel.names),)
    if not isinstance(where, str):
        nodes = {node for node, op in plan.ops.items() if op == where}
        return (lambda kernel: not nodes.isdisjoint(kernel.nodes),)
    calls = plan.record.calls.items()
    named = {node for node, call in calls if _is_op(call.target, where) or _is_op(call.original, where)}
    return (
        lambda kernel: where in kernel.writes or where in kernel.names or where in kernel.nodes,
        lambda kernel: any(f":{line}".endswith(f":{where}") or where.endswith(f"/{line}") for line in kernel.lines),
        lambda kernel: not named.isdisjoint(kernel.nodes),
    )


def _is_op(target: str, name: str) -> bool:
    """Whether the name of an op, such as ``exp`` or ``aten.exp``, is that of a target such as ``aten.exp.default``."""
    short = bare(target)
    return name in {target, ".".join(target.split(".")[:2]), short, short.lstrip("_")}
