"""A region: nodes of a graph as one fusion, with its plan, and how it runs inside torch.

Regions whose calls, sizes, strides and dtypes are equal share one recorded definition and its compiled kernels, so that
a model of many equal layers compiles one.
"""

import functools
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from fuser_lab.bridge.annotations import Home
from fuser_lab.bridge.lowerings import DTYPES, Call, TracedTensor, record
from fuser_lab.bridge.lowerings.views import ALIASES
from fuser_lab.bridge.requirement import torch_for
from fuser_lab.bridge.traced import Node, Origin, call_of, origin_of, plain, target_of
from fuser_lab.definition.builder import describe_strides
from fuser_lab.definition.spec import TensorSpec
from fuser_lab.errors import FuserLabError, OutOfMemoryError, RegionWarning, ValidationError, warn
from fuser_lab.fusion_definition import FusionDefinition
from fuser_lab.plan import Plan
from fuser_lab.planning import segment
from fuser_lab.segmentation import SegmenterOptions, Strategy
from fuser_lab.segmentation.origins import sources_told
from fuser_lab.validation import check_outputs

if TYPE_CHECKING:
    from fuser_lab.cost.device import Device
    from fuser_lab.runtime.executor import PreparedPlan

_KEPT = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Cutting:
    """How regions are segmented: arguments of `fuser_lab.segment`."""

    strategy: Strategy = "bottom_up"
    target: "str | Device | None" = None
    options: SegmenterOptions | None = None


@dataclass(frozen=True, slots=True)
class Ref:
    """An operand of a recorded call: an input of the region, or a result of an earlier call.

    ``marked`` says that the call reads a ``segment_set`` of it.
    """

    call: int | None
    place: int
    marked: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """All that decides a region's fusion: calls with references in place of tensors, inputs, and what is returned.

    Signatures are compared by ``text``: as values 1, 1.0 and True are equal, and so are 0.0 and -0.0.
    """

    inputs: tuple[TracedTensor, ...] = field(compare=False)
    calls: tuple[Call, ...] = field(compare=False)
    operands: tuple[Any, ...] = field(compare=False)  # for each call: its args and kwargs, tensors as Ref
    outputs: tuple[Ref, ...] = field(compare=False)
    cutting: Cutting
    text: str = field(init=False)

    def __post_init__(self) -> None:
        """Write down what is compared."""
        object.__setattr__(self, "text", repr((self.inputs, self.calls, self.operands, self.outputs)))


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """The definition of a signature and its plan, shared by all regions that have it."""

    definition: FusionDefinition
    specs: tuple[TensorSpec, ...]
    made: tuple[tuple[str, ...], ...]  # the tensors that each call has made, by name
    cutting: Cutting
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @functools.cached_property
    def plan(self) -> Plan:
        """The plan, made at first use."""
        with self._lock:
            cutting = self.cutting
            return segment(
                self.definition, self.specs, strategy=cutting.strategy, target=cutting.target, options=cutting.options,
            )


_RECORDED: OrderedDict[Signature, Recorded] = OrderedDict()
_LOCK = threading.Lock()


def recorded(signature: Signature) -> Recorded:
    """Return the definition of a signature; the last 1,024 are kept.

    Raises
    ------
    FuserLabError
        If a call cannot be recorded.
    """
    with _LOCK:
        found = _RECORDED.get(signature)
        if found is not None:
            _RECORDED.move_to_end(signature)
            return found
    made = _recorded(signature)
    with _LOCK:
        found = _RECORDED.setdefault(signature, made)
        while len(_RECORDED) > _KEPT:
            _RECORDED.popitem(last=False)
    return found


def _recorded(signature: Signature) -> Recorded:
    specs = tuple(map(spec_of, signature.inputs))
    on_gpu = any(spec.device == "cuda" for spec in specs)
    made: list[tuple[str, ...]] = []
    with FusionDefinition() as fd:
        inputs = [
            fd.define_from_spec(spec, static_sizes=True, is_cpu=on_gpu and spec.device == "cpu" and not spec.shape)
            for spec in specs
        ]
        results: list[list[Any]] = []

        copies: dict[Ref, Any] = {}

        def handle(ref: Ref) -> Any:
            tensor = inputs[ref.place] if ref.call is None else results[ref.call][ref.place]
            if not ref.marked:
                return tensor
            if ref not in copies:
                copies[ref] = fd.ops.segment_set(tensor)
                made[ref.call or 0] += (copies[ref].name,)
            return copies[ref]

        for call, (args, kwargs) in zip(signature.calls, signature.operands, strict=True):
            operands, named = _filled(args, handle), dict(_filled(kwargs, handle))
            before = len(fd.recorded_exprs)
            results.append(record(fd, call, operands, named))
            made.append(tuple(expr.name for expr in fd.recorded_exprs[before:]))
        returned: set[str] = {tensor.name for tensor in inputs}
        for ref in signature.outputs:
            traced = signature.calls[ref.call or 0].results[ref.place]
            tensor = handle(ref)
            if tensor.name in returned:
                # Recorded as nothing, or returned already: it gets memory of its own.
                tensor = fd.ops.set(tensor)
            returned.add(tensor.name)
            fd.add_output(tensor, stride_order=_order_of(traced) if traced is not None else ())
    return Recorded(definition=fd, specs=specs, made=tuple(made), cutting=signature.cutting)


def spec_of(traced: TracedTensor) -> TensorSpec:
    """Return a traced tensor as an abstract input."""
    device = "cuda" if traced.device.startswith("cuda") else "cpu"
    return TensorSpec(shape=traced.shape, dtype=DTYPES[traced.dtype], strides=traced.strides, device=device)


def _order_of(traced: TracedTensor) -> Sequence[int]:
    """Return the order of strides of an output that is dense, but not row-major; nothing for all others."""
    contiguity, ranks = describe_strides(traced.shape, traced.strides)
    if any(known is False for known in contiguity) or list(ranks) == list(range(traced.ndim))[::-1]:
        return ()
    return list(ranks)


def _filled(value: Any, handle: Callable[[Ref], Any]) -> Any:
    if isinstance(value, Ref):
        return handle(value)
    if isinstance(value, tuple):
        return [_filled(part, handle) for part in value]
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionOp:
    """One op of a region: what torch calls it, where it came from, and the tensors of the definition that it became."""

    target: str
    origin: Origin
    tensors: tuple[str, ...]


class Region:
    """Nodes of a captured graph that run as one fusion.

    Attributes
    ----------
    index
        Place in the graph.
    failed
        Why torch runs it instead, or None.
    checked
        Whether each run is compared with torch.
    idle
        Whether torch runs it for now, as while a model is captured.
    """

    def __init__(
        self, index: int, nodes: Sequence[Node], cutting: Cutting, *, checked: bool = False, idle: bool = False,
        homes: Mapping[Node, frozenset[Home]] | None = None,
    ) -> None:
        self.index, self._nodes, self.checked = index, tuple(nodes), checked
        self.failed: str | None = None
        self.idle = idle
        inside = set(nodes)
        self.input_nodes = _inputs(nodes, inside)
        self.output_nodes, self.view_nodes = _outputs(nodes, inside)
        self.signature = _signature(nodes, self.input_nodes, self.output_nodes, cutting, homes or {})
        self.call_nodes = tuple(node for node in nodes if target_of(node) != "getitem")
        results = [call.results for call in self.signature.calls]
        self.traced = tuple(_known(results[ref.call or 0][ref.place]) for ref in self.signature.outputs)
        self._strides = tuple(traced.strides for traced in self.signature.inputs)
        self._out_strides = tuple(traced.strides for traced in self.traced)
        self._prepared: PreparedPlan | None = None
        self._again: Callable[[Sequence[Any], None], list[Any] | None] | None = None  # a run like one before
        self._apart: tuple[int, ...] = ()  # outputs that the plan returns in memory that is not theirs
        self._relaid: tuple[int, ...] = ()  # outputs that the plan returns with other strides than torch traced
        self._lock = threading.Lock()

    @functools.cached_property
    def recorded(self) -> Recorded:
        """The definition, shared with equal regions."""
        return recorded(self.signature)

    @property
    def definition(self) -> FusionDefinition:
        """The region as a definition."""
        return self.recorded.definition

    @property
    def specs(self) -> tuple[TensorSpec, ...]:
        """Abstract inputs of the definition."""
        return self.recorded.specs

    @functools.cached_property
    def ops(self) -> tuple[RegionOp, ...]:
        """The ops with their origins and tensors, in order."""
        return tuple(
            RegionOp(target=target_of(node), origin=origin_of(node), tensors=names)
            for node, names in zip(self.call_nodes, self.recorded.made, strict=True)
        )

    @functools.cached_property
    def plan(self) -> Plan:
        """The plan, which knows the user's line of each tensor; it shares compiled kernels with equal regions."""
        return replace(self.recorded.plan, sources=self.sources)

    @functools.cached_property
    def sources(self) -> tuple[tuple[str, str], ...]:
        """The tensors of the definition with the lines of the user's code that they came from."""
        return tuple((name, str(op.origin)) for op in self.ops for name in op.tensors if str(op.origin))

    @functools.cached_property
    def modules(self) -> tuple[str, ...]:
        """Paths of the modules that its ops came from, each once."""
        return tuple(dict.fromkeys(origin.module for origin in map(origin_of, self.call_nodes) if origin.module))

    def __len__(self) -> int:
        """Return the number of ops."""
        return len(self.call_nodes)

    def __repr__(self) -> str:
        """Return one line: ops, where from, and why torch runs it if it does."""
        names = [target_of(node).split(".")[1] for node in self.call_nodes]
        shown = ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
        where = f" of {self.modules[0]}" if len(self.modules) == 1 else ""
        told = f"; torch runs it: {self.failed}" if self.failed else ""
        return f"<Region {self.index}{where}: {shown}{told}>"

    # Running

    @functools.cached_property
    def fallback(self) -> Any:
        """The same nodes as a torch GraphModule; it takes the region's inputs and returns a tuple."""
        torch = torch_for("fuser_lab.bridge")
        graph = torch.fx.Graph()
        env = {node: graph.placeholder(f"input_{place}") for place, node in enumerate(self.input_nodes)}
        for node in self._nodes:
            env[node] = graph.node_copy(node, env.__getitem__)
        graph.output(tuple(env[node] for node in self.output_nodes))
        return torch.fx.GraphModule(torch.nn.Module(), graph)

    def __call__(self, *inputs: Any) -> Sequence[Any]:
        """Return the results of the region's nodes, with the strides that torch traced."""
        again = self._again
        if again is not None and not (self.checked or self.idle):
            outputs = again(inputs, None)
            if outputs is not None:
                return self._finished(outputs) if self._apart or self._relaid else outputs
        if self.idle or self.failed is not None:
            return self._by_torch(inputs)
        try:
            outputs = self._run(inputs)
        except OutOfMemoryError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, torch can still run the region
            self.fail(error)
            return self._by_torch(inputs)
        if self.checked:
            self.check(inputs, outputs)
        return outputs

    def _by_torch(self, inputs: Sequence[Any]) -> Sequence[Any]:
        results: Sequence[Any] = self.fallback(*inputs)
        return results

    def fail(self, error: Exception) -> None:
        """Leave the region to torch from now on, and warn once."""
        with self._lock:
            if self.failed is not None:
                return
            self._again = None
            self.failed = str(error) if isinstance(error, FuserLabError) else f"{type(error).__name__}: {error}"
        first = next((str(op) for op in map(origin_of, self.call_nodes) if str(op)), "")
        where = f" ({first})" if first else ""
        lines = sources_told([self.failed], dict(self.sources))
        told = "\n".join((f"torch runs region {self.index}{where}: {self.failed}", *lines))
        warn(told, RegionWarning)

    def _run(self, inputs: Sequence[Any]) -> list[Any]:
        prepared = self._prepared
        if prepared is None:
            if any(x.device.type == "meta" for x in inputs):
                return list(self._by_torch(inputs))
            device = next((x.device for x in inputs if x.device.type == "cuda"), None)
            target = "cpu" if device is None else f"cuda:{device.index}"
            prepared = self.recorded.plan.prepared(target, evaluate_refused=True)
        # A tensor may lie otherwise than traced where autograd or another compiler made it.
        given = [x if x.stride() == s else laid(x, s) for x, s in zip(inputs, self._strides, strict=True)]
        outputs = prepared.run(given)
        if self._prepared is None:
            made = prepared.output_strides
            self._apart = self._shared(given, outputs)
            self._relaid = tuple(n for n, (a, b) in enumerate(zip(made, self._out_strides, strict=True)) if a != b)
            self._again, self._prepared = prepared.repeat, prepared
        return [laid(x, strides) for x, strides in zip(self._finished(outputs), self._out_strides, strict=True)]

    def _finished(self, outputs: list[Any]) -> list[Any]:
        """Return outputs of the plan in memory of their own, with the strides that torch traced."""
        for place in self._apart:
            outputs[place] = copied(outputs[place], self._out_strides[place])
        for place in self._relaid:
            outputs[place] = laid(outputs[place], self._out_strides[place])
        return outputs

    def _shared(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> tuple[int, ...]:
        """Return the outputs that lie in memory of an input or of an earlier one; a region's outputs are no views."""
        taken = {_memory(x) for x in inputs}
        found = []
        for place, output in enumerate(outputs):
            memory = _memory(output)
            if memory in taken and output.numel():
                found.append(place)
            taken.add(memory)
        return tuple(found)

    def check(self, inputs: Sequence[Any], outputs: Sequence[Any] | None = None) -> None:
        """Raise ValidationError unless the region's results are what torch computes, up to rounding."""
        found = self._run(inputs) if outputs is None else outputs
        expected = list(self.fallback(*inputs))
        try:
            check_outputs(self.definition.fusion, list(inputs), list(found), expected)
        except ValidationError as error:
            first = next((str(op) for op in map(origin_of, self.call_nodes) if str(op)), "")
            msg = f"region {self.index}{f' ({first})' if first else ''}: {error}"
            raise ValidationError(msg) from None


def _known(traced: TracedTensor | None) -> TracedTensor:
    assert traced is not None  # what is left out of a list of results, nothing reads
    return traced


def _memory(tensor: Any) -> int:
    return int(tensor.untyped_storage().data_ptr())


def laid(tensor: Any, strides: tuple[int, ...]) -> Any:
    """Return a tensor with these strides: itself, seen anew where only axes of size 1 differ, else a copy."""
    if tensor.stride() == strides:
        return tensor
    shape = tuple(tensor.shape)
    if all(n <= 1 or a == b for n, a, b in zip(shape, tensor.stride(), strides, strict=True)) or not tensor.numel():
        return tensor.as_strided(shape, strides)
    return copied(tensor, strides)


def copied(tensor: Any, strides: tuple[int, ...]) -> Any:
    """Return a copy of a tensor with these strides."""
    shape = tuple(tensor.shape)
    # An expanded axis holds one element for all.
    for axis, (size, stride) in enumerate(zip(shape, strides, strict=True)):
        if stride == 0 and size > 1:
            tensor = tensor.narrow(axis, 0, 1)
    torch = torch_for("fuser_lab.bridge")
    copy = torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=tensor.device)
    copy.copy_(tensor)
    return copy.as_strided(shape, strides)


def _inputs(nodes: Sequence[Node], inside: set[Node]) -> tuple[Node, ...]:
    found: dict[Node, None] = {}
    for node in nodes:
        found.update(dict.fromkeys(given for given in node.all_input_nodes if given not in inside))
    return tuple(found)


def _outputs(nodes: Sequence[Node], inside: set[Node]) -> tuple[tuple[Node, ...], tuple[Node, ...]]:
    """Return what is computed here and read elsewhere, and the views that torch makes of it again, in order.

    A view that is read elsewhere is no output: torch makes it of what it is a view of, so that memory is shared as in
    the traced graph.
    """
    wanted: dict[Node, None] = {}
    views: dict[Node, None] = {}
    for node in reversed(nodes):
        read = node in wanted or any(user not in inside for user in node.users)
        if read and target_of(node) in ALIASES:
            views[node] = None
            wanted.pop(node, None)
            wanted.update(dict.fromkeys(given for given in node.all_input_nodes if given in inside))
        elif read:
            wanted[node] = None
    ordered = [node for node in nodes if node in wanted]
    return tuple(ordered), tuple(node for node in nodes if node in views)


def _signature(
    nodes: Sequence[Node], inputs: Sequence[Node], outputs: Sequence[Node], cutting: Cutting,
    homes: Mapping[Node, frozenset[Home]],
) -> Signature:
    """Return what decides the fusion of some nodes; tensors are annotated where they leave their home."""
    refs: dict[Node, Ref] = {node: Ref(None, place) for place, node in enumerate(inputs)}
    calls: list[Call] = []
    operands: list[Any] = []
    for node in nodes:
        if target_of(node) == "getitem":
            source, place = node.args
            refs[node] = Ref(refs[source].call, place)
            continue
        call = call_of(node)
        assert call is not None
        seen = {**refs, **{
            given: replace(refs[given], marked=True) for given in node.all_input_nodes
            if refs[given].call is not None and given.all_input_nodes and homes.get(given) != homes.get(node)
        }}
        operands.append((
            tuple(_referred(value, seen) for value in node.args),
            tuple((name, _referred(value, seen)) for name, value in node.kwargs.items()),
        ))
        refs[node] = Ref(len(calls), 0)
        calls.append(call)
    traced = tuple(plain(node) for node in inputs)
    return Signature(
        inputs=traced, calls=tuple(calls), operands=tuple(operands), outputs=tuple(refs[node] for node in outputs),
        cutting=cutting,
    )


def _referred(value: Any, refs: Mapping[Node, Ref]) -> Any:
    if isinstance(value, list | tuple):
        return tuple(_referred(part, refs) for part in value)
    return refs[value] if isinstance(value, torch_for("fuser_lab.bridge").fx.Node) else plain(value)
