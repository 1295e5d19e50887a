"""What Inductor's scheduler does in a compilation, as plain data: attempts, kernels, buffers and source."""

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from fuser_lab.bridge.input_names import input_names, write_input_names
from fuser_lab.bridge.requirement import torch_for
from fuser_lab.bridge.traced import origin_of, target_of
from fuser_lab.compilers.inductor.lines import SourceLines
from fuser_lab.compilers.inductor.names import INDUCTOR, InductorNames
from fuser_lab.compilers.reasons import OURS, Unsaid
from fuser_lab.compilers.record import LineOp, TracedCall
from fuser_lab.errors import IllegalEdit
from fuser_lab.process.forks import new_lock
from fuser_lab.segmentation.events import Attempt, Kind, Outcome, VerdictRecord
from fuser_lab.targets import is_on_host

CANDIDATE = "candidate"  # the phase in which Inductor collects pairs that may be fused
FUSION = "fusion"  # the phase in which it fuses some of them
_READING = new_lock()  # wrappers of torch's functions are there for one compilation at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class FusedNode:
    """A node of Inductor's scheduler after fusion.

    ``ops`` are Inductor's names of its operations, ``nodes`` names of the FX nodes that it computes, ``kernel`` the
    function that contains it, and ``launch`` the number of that function's call; both are empty for a node without
    code, such as an entry of a tuple.
    """

    ops: tuple[str, ...]
    writes: tuple[str, ...]
    reads: tuple[str, ...]
    nodes: tuple[str, ...]
    loops: tuple[tuple[str, ...], tuple[str, ...]]
    opaque: bool
    fusable: bool
    kernel: str = ""
    launch: int | None = None
    bytes: int = 0


@dataclass(slots=True, kw_only=True)
class GraphRecord:
    """One graph that Inductor scheduled: its FX graph, the attempts, the nodes, and the output code.

    It holds what is there only while Inductor compiles; what follows from this is computed when it is asked for.
    """

    digest: str
    kind: str
    compiled: Any = field(repr=False)  # the FX graph, which is Inductor's
    noted: SourceLines = field(repr=False)
    input_names: tuple[str, ...] = ()  # what the user calls the inputs
    attempts: list[Attempt] = field(default_factory=list)
    nodes: tuple[FusedNode, ...] = ()
    tried: int = 0  # rounds of fusion
    pairwise: int | None = None  # how many kernels that use a buffer are tried with each
    writers: dict[str, str] = field(default_factory=dict)  # the operation that writes each buffer
    read_by: dict[str, frozenset[str]] = field(default_factory=dict)  # the operations that each operation reads
    sizes: dict[str, int] = field(default_factory=dict)  # bytes of each buffer
    in_place: dict[str, str] = field(default_factory=dict)  # the buffer that was written to in place, by its new name
    computes: dict[str, tuple[str, ...]] = field(default_factory=dict)  # the FX nodes that each operation computes
    launches: list[tuple[str, frozenset[str]]] = field(default_factory=list)
    output_code: str = ""

    @property
    def calls(self) -> dict[str, TracedCall]:
        """The calls of the FX graph by name of the node."""
        return {node.name: _call(node) for node in self.compiled.graph.nodes if node.op == "call_function"}

    @property
    def sources(self) -> dict[str, str]:
        """The source of each kernel in the output code."""
        return sources_of(self.output_code)

    @property
    def lines(self) -> dict[str, tuple[LineOp, ...]]:
        """The ops of each source's lines."""
        return {name: self.noted.ops_of(source) for name, source in self.sources.items()}

    def module(self) -> Any:
        """Return a copy of the graph, which our own fusion may modify."""
        fx = torch_for("from_inductor").fx
        graph = fx.Graph()
        copies: dict[Any, Any] = {}
        returned = graph.graph_copy(self.compiled.graph, copies)
        output = next(node for node in self.compiled.graph.nodes if node.op == "output")
        graph.output(returned).meta = dict(output.meta)
        return write_input_names(fx.GraphModule(self.compiled, graph), self.input_names)


def digest_of(graph: Any) -> str:
    """Return the digest of an FX graph's names, as the printed choices handler computes it."""
    return hashlib.sha256(" ".join(node.name for node in graph.nodes).encode()).hexdigest()[:16]


class Reader:
    """Records the graphs that Inductor schedules while it is `reading`.

    ``allows`` says whether an edit allows a pair, None for a graph without one. ``check`` is called with the number and
    record of each graph before its kernels are compiled, and raises ``refusal`` to end the compilation. ``parameters``
    are those of the function.
    """

    def __init__(
        self, names: InductorNames, allows: Callable[[Any, Any], bool | None] | None = None,
        check: Callable[[int, GraphRecord], None] | None = None, *, parameters: Sequence[str] = (),
    ) -> None:
        self.records: list[GraphRecord] = []
        self._parameters, self._input_names = parameters, tuple[str, ...]()
        self.refusal: IllegalEdit | None = None
        self._names, self._allows, self._check = names, allows, check
        self._lines = SourceLines(names)
        self._of: dict[int, GraphRecord] = {}
        self._schedulers: list[Any] = []  # keeps the objects alive whose ids are keys
        self._said: list[list[str]] = []
        self._phase = FUSION
        self._current: GraphRecord | None = None
        self._depth = 0

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Record everything that Inductor compiles in the context."""
        with _READING, ExitStack() as stack:
            wrappers: dict[str, Callable[..., Any]] = {
                "can_fuse": self._can_fuse, "will_fusion_create_cycle": self._cycle,
                "get_possible_fusions": self._candidates, "fuse_nodes_once": self._once,
                "fuse_two_nodes": self._fuse, "codegen": self._codegen, "why_no_fuse": self._why,
                "extern_codegen": self._extern, "launched": self._launch, "launched_cpp": self._launch,
                "launched_triton": self._launch, "output_code": self._output_code, "dynamo_graph": self._name_inputs,
                **self._lines.wrappers,
            }
            for key, wrapper in wrappers.items():
                if key not in self._names.missing:
                    stack.enter_context(_replace(self._names, key, wrapper))
            yield

    def _name_inputs(self, original: Callable[..., Any], backend: Any, module: Any, *args: Any, **more: Any) -> Any:
        self._input_names = input_names(module, self._parameters)
        return original(backend, module, *args, **more)

    def _record(self, scheduler: Any) -> GraphRecord:
        if id(scheduler) not in self._of:
            graph = _graph(self._names)
            kind = "backward" if graph.is_backward else "inference" if graph.is_inference else "forward"
            self._of[id(scheduler)] = GraphRecord(
                digest=digest_of(graph.module.graph), kind=kind, compiled=graph.module, noted=self._lines,
                input_names=self._input_names,
                pairwise=getattr(self._names["inductor_config"], "max_fusion_buffer_group_pairwise_attempts", None),
            )
            self._schedulers.append(scheduler)
        return self._of[id(scheduler)]

    def _can_fuse(self, original: Callable[..., Any], scheduler: Any, a: Any, b: Any, *args: Any, **more: Any) -> Any:
        self._said.append([])
        try:
            verdict = original(scheduler, a, b, *args, **more)
        finally:
            said = self._said.pop()
        if self._said:  # Inductor asks about parts of a pair
            self._said[-1].extend(said)
        else:
            self._note(scheduler, a, b, accepted=bool(verdict), said=said)
        return verdict

    def _note(self, scheduler: Any, a: Any, b: Any, *, accepted: bool, said: Sequence[str]) -> None:
        record = self._record(scheduler)
        subjects = _ops(a), _ops(b)
        code, text, who = "", "", INDUCTOR
        if not accepted and said:
            code, text = INDUCTOR, said[-1]
        elif not accepted:
            reason = self._unsaid(a, b)
            code, text, who = reason.code, reason.text, OURS
        record.attempts.append(Attempt(
            phase=f"round {record.tried}: {self._phase}", kind=Kind.MERGE, subjects=subjects,
            outcome=Outcome.ACCEPTED if accepted else Outcome.REFUSED, code=code, text=text,
            verdicts=(VerdictRecord(scheduler=who, accepted=accepted, code=code, text=text),),
            seq=len(record.attempts),
        ))

    def _unsaid(self, a: Any, b: Any) -> Unsaid:
        """Return why Inductor refused a pair without giving a reason."""
        both = {*_ops(a), *_ops(b)}
        if self._allows is not None and self._allows(a, b) is False:
            return Unsaid.edit()
        limit = getattr(getattr(self._names["inductor_config"], "cpp", None), "max_horizontal_fusion_size", None)
        on_host = is_on_host(getattr(a.get_device(), "type", ""))
        return Unsaid.of_loops(
            _loops(a), _loops(b), follows=bool(set(_ops(a)) & set(b.ancestors)),
            overwrites=a.get_buffer_names().isdisjoint(
                dep.name for dep in b.read_writes.reads if not hasattr(dep, "mutating_buf")  # which is only an order
            ),
            reduces=bool(a.is_reduction()), count=len(both), limit=limit if on_host else None,
            template=a.is_template() or b.is_template(),
        )

    def _cycle(self, original: Callable[..., Any], scheduler: Any, a: Any, b: Any) -> Any:
        closes = original(scheduler, a, b)
        if closes:
            self._note(scheduler, a, b, accepted=False, said=["will create cycle"])
        return closes

    def _candidates(self, original: Callable[..., Any], scheduler: Any, *args: Any, **more: Any) -> Any:
        self._phase = CANDIDATE
        try:
            return original(scheduler, *args, **more)
        finally:
            self._phase = FUSION

    def _once(self, original: Callable[..., Any], scheduler: Any, *args: Any, **more: Any) -> Any:
        self._record(scheduler).tried += 1
        return original(scheduler, *args, **more)

    def _fuse(self, original: Callable[..., Any], scheduler: Any, a: Any, b: Any, *args: Any) -> Any:
        made = original(scheduler, a, b, *args)
        record = self._record(scheduler)
        record.attempts.append(Attempt(
            phase=f"round {record.tried}: fused", kind=Kind.MERGE, subjects=(_ops(a), _ops(b)),
            outcome=Outcome.ACCEPTED, seq=len(record.attempts),
        ))
        return made

    def _why(self, original: Callable[..., Any], why: Any, reason: str, *args: Any) -> Any:
        if self._said:
            self._said[-1].append(reason % args if args else reason)
        return original(why, reason, *args)

    def _launch(self, original: Callable[..., Any], schedule: Any, name: str, *args: Any, **more: Any) -> Any:
        if self._current is not None:
            if isinstance(schedule, list | tuple):
                nodes = frozenset(op for node in schedule if hasattr(node, "get_nodes") for op in _ops(node))
            else:
                nodes = frozenset({schedule.get_operation_name()})
            self._current.launches.append((name, nodes))
        return original(schedule, name, *args, **more)

    def _extern(self, original: Callable[..., Any], scheduler: Any, node: Any, *args: Any, **more: Any) -> Any:
        """Note the call of a library that Inductor writes without noting it, as a scatter."""
        record = self._current
        noted = len(record.launches) if record is not None else 0
        made = original(scheduler, node, *args, **more)
        name = getattr(node.node, "python_kernel_name", None)
        if record is not None and name and len(record.launches) == noted:
            record.launches.append((str(name), frozenset(_ops(node))))
        return made

    def _codegen(self, original: Callable[..., Any], scheduler: Any, *args: Any, **more: Any) -> Any:
        outside = self._current if self._depth else None
        record = self._current = self._record(scheduler)
        extern = self._names["extern_node"]
        parts = [part for node in scheduler.nodes for part in node.get_nodes()]
        record.writers = {output.get_name(): part.get_name() for part in parts for output in part.get_outputs()}
        reads = _reads(scheduler, parts, record.writers)
        final = [
            FusedNode(
                ops=_ops(node), writes=tuple(output.get_name() for output in node.get_outputs()),
                reads=tuple(sorted(
                    {dep.name for dep in node.read_writes.reads}.union(*(reads[name] for name in _ops(node))),
                )),
                nodes=_fx_nodes(node), loops=_loops(node), opaque=isinstance(node, extern) or node.is_template(),
                fusable=not scheduler.unfusable_node(node), bytes=_bytes(node),
            )
            for node in scheduler.nodes
        ]
        record.read_by = {
            part: frozenset(record.writers[name] for name in names if name in record.writers) - {part}
            for part, names in reads.items()
        }
        record.sizes = {dep.name: _size(dep) for part in parts for dep in part.read_writes.writes}
        record.in_place = dict(getattr(scheduler, "mutation_real_name", {}))
        record.computes = {part.get_name(): _fx_nodes(part) for part in parts}
        self._depth += 1
        try:
            made = original(scheduler, *args, **more)
        finally:
            self._depth -= 1
            self._current = outside or record  # Inductor may schedule a graph inside of another one
        record.nodes = _with_launches(final, record.launches)
        self.records.append(record)
        if self._check is not None:
            try:
                self._check(len(self.records) - 1, record)
            except IllegalEdit as error:
                self.refusal = error
                raise
        return made

    def _output_code(self, original: Callable[..., Any] | None, code: str) -> None:
        if self._current is not None:
            self._current.output_code = code
        if original is not None:
            original(code)


def _with_launches(
    nodes: Sequence[FusedNode], launches: Sequence[tuple[str, frozenset[str]]],
) -> tuple[FusedNode, ...]:
    """Return the nodes, each with the first launch of one of its operations."""
    first: dict[str, int] = {}
    for number, (_, ops) in enumerate(launches):
        for op in ops:
            first.setdefault(op, number)
    numbers = [min((first[op] for op in node.ops if op in first), default=None) for node in nodes]
    return tuple(
        node if number is None else replace(node, kernel=launches[number][0], launch=number)
        for node, number in zip(nodes, numbers, strict=True)
    )


def _reads(scheduler: Any, parts: Sequence[Any], writers: Mapping[str, str]) -> dict[str, set[str]]:
    """Return the buffers that each operation reads, also one that an earlier operation wrote to in place.

    Inductor renames a buffer that is written to, and lists the last name for each. An operation before that write reads
    the buffer under its older name only.
    """
    renamed = getattr(scheduler, "mutation_renames", {})
    reads: dict[str, set[str]] = {}
    for part in parts:
        names = {dep.name for dep in part.read_writes.reads}
        later = {renamed[name] for name in names if name in renamed}
        reads[part.get_name()] = names | {name for name in later if writers.get(name) in reads}
    return reads


def _ops(node: Any) -> tuple[str, ...]:
    return tuple(part.get_name() for part in node.get_nodes())


def _loops(node: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the sizes of a node's loops, outside and inside of a reduction; two empty tuples for a library's."""
    group = getattr(node, "group", None)
    if group is None:
        return (), ()
    outer, inner = group[1]
    if isinstance(outer, list | tuple):
        return tuple(map(str, outer)), tuple(map(str, inner))
    return (str(outer),), () if str(inner) == "1" else (str(inner),)  # of Triton: numbers of elements


def _bytes(node: Any) -> int:
    try:
        return int(node.get_read_write_buffers_sizes())
    except (AttributeError, NotImplementedError, TypeError):  # sizes that are symbols, and kinds without sizes
        return 0


def _size(dep: Any) -> int:
    try:
        return int(dep.numbytes_hint())
    except (AttributeError, KeyError, NotImplementedError, TypeError):  # as in `_bytes`
        return 0


def _fx_nodes(node: Any) -> tuple[str, ...]:
    """Return the FX nodes that a node computes; a library's call computes only the one that it is for."""
    names: dict[str, None] = {}
    for part in node.get_nodes():
        origin = getattr(part.node, "origin_node", None)
        is_extern = not hasattr(part, "group")
        origins = [origin] if is_extern and origin is not None else getattr(part.node, "origins", ())
        names.update(dict.fromkeys(each.name for each in origins if each.op == "call_function"))
    return tuple(names)


def _graph(names: InductorNames) -> Any:
    return names.owner("set_choices")[0].graph


def _call(node: Any) -> TracedCall:
    return TracedCall(
        target=target_of(node), original=str(node.meta.get("original_aten") or ""), place=origin_of(node).place,
    )


@contextmanager
def _replace(names: InductorNames, key: str, wrapper: Callable[..., Any]) -> Iterator[None]:
    """Let a function of torch be called through a wrapper, which gets the function first."""
    owner, last = names.owner(key)
    original = getattr(owner, last)
    is_inherited = last not in vars(owner)
    stored = vars(owner).get(last)
    is_static = original is None or isinstance(stored, staticmethod)

    def call(*args: Any, **more: Any) -> Any:
        return wrapper(original, *args, **more)

    setattr(owner, last, staticmethod(call) if is_static else call)
    try:
        yield
    finally:
        if is_inherited:
            delattr(owner, last)
        else:
            setattr(owner, last, stored)


# A kernel in the output code of Inductor: its name, and its source between triple quotes.
_KERNEL = re.compile(r"^(\w+) = async_compile\.\w+\(.*?r?'''\n?(.*?)'''", re.MULTILINE | re.DOTALL)


def sources_of(output_code: str) -> dict[str, str]:
    """Return the source of each kernel in Inductor's output code, by name."""
    return {name: source.strip("\n") for name, source in _KERNEL.findall(output_code)}


