"""A region: nodes of a graph as one fusion, with its plan, and its execution beside the library of the graph."""

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from fuser_lab.api.fusion_definition import FusionDefinition
from fuser_lab.bridge.annotations import Home
from fuser_lab.bridge.lowerings import TracedTensor
from fuser_lab.bridge.lowerings.views import ALIASES, VIEWS
from fuser_lab.bridge.signature import Cutting, Recorded, Signature, record_definition, signature_of
from fuser_lab.bridge.traced import Node, Origin, origin_of, target_of, variable_of
from fuser_lab.definition.spec import TensorSpec
from fuser_lab.errors import FuserLabError, OutOfMemoryError, RegionWarning, ValidationError, warn
from fuser_lab.execution.validation import check_outputs
from fuser_lab.ir import TensorView
from fuser_lab.ir.tensor_names import OF_GRAPH
from fuser_lab.plan import Plan
from fuser_lab.process.forks import new_lock
from fuser_lab.segmentation.origins import source_lines

if TYPE_CHECKING:
    from fuser_lab.codegen.varying import SharedKernels


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionOp:
    """One op of a region: its name in the graph, its origin, and its tensors in the definition."""

    target: str
    origin: Origin
    tensors: tuple[str, ...]


T = TypeVar("T")


class Watched(Generic[T]):
    """An attribute of a region that affects its execution: its ``watchers`` are notified when it is set."""

    def __set_name__(self, owner: type, name: str) -> None:
        """Store the attribute's name."""
        self._name = f"_{name}"

    def __get__(self, region: "Region", owner: type | None = None) -> T:
        """Return the value."""
        value: T = getattr(region, self._name)
        return value

    def __set__(self, region: "Region", value: T) -> None:
        """Store the value, and notify the watchers."""
        setattr(region, self._name, value)
        for watcher in region.watchers:
            watcher()


class Region(ABC):
    """Nodes of a captured graph that run as one fusion.

    Attributes
    ----------
    index
        Index in the graph.
    failed
        Why the captured library runs it instead, or None.
    checked
        Whether each run is compared with what that library computes.
    idle
        Whether that library currently runs it, for example during a capture.
    watchers
        Called when ``checked``, ``failed`` or ``idle`` is set.
    """

    library: ClassVar[str]  # the user's name of the captured library
    checked = Watched[bool]()
    failed = Watched[str | None]()
    idle = Watched[bool]()

    def __init__(
        self, index: int, nodes: Sequence[Node], cutting: Cutting, *, checked: bool = False, idle: bool = False,
        homes: Mapping[Node, frozenset[Home]] | None = None, shared: "SharedKernels | None" = None,
        signature: Signature | None = None,
    ) -> None:
        """Take nodes of a graph; the signature follows from the others if it is not given."""
        self.watchers: list[Callable[[], None]] = []
        self.index, self._nodes = index, tuple(nodes)
        self.checked, self.failed, self.idle = checked, None, idle
        inside = set(nodes)
        self.input_nodes = _inputs(nodes, inside)
        self.output_nodes, self.view_nodes = _outputs(nodes, inside)
        self.signature = signature or signature_of(
            nodes, self.input_nodes, self.output_nodes, cutting, homes or {}, shared,
        )
        self.call_nodes = tuple(node for node in nodes if target_of(node) != "getitem")
        results = [call.results for call in self.signature.calls]
        self.traced = tuple(_static_tensor(results[ref.call or 0][ref.place]) for ref in self.signature.outputs)
        self._lock = new_lock()

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The nodes, in the order of the graph."""
        return self._nodes

    @functools.cached_property
    def recorded(self) -> Recorded:
        """The definition, shared with equal regions."""
        return record_definition(self.signature)

    @property
    def definition(self) -> FusionDefinition:
        """The region as a definition."""
        return self.recorded.definition

    @property
    def rounds(self) -> bool:
        """Whether some values are of float16 or bfloat16."""
        results = (traced for call in self.signature.calls for traced in call.results if traced is not None)
        return any(traced.dtype in {"float16", "bfloat16"} for traced in results)

    @property
    def specs(self) -> tuple[TensorSpec, ...]:
        """Abstract inputs of the definition."""
        return self.recorded.specs

    @property
    def evaluated(self) -> tuple[Node, ...]:
        """The calls that the array library evaluates, because no kernel computes them."""
        return tuple(self.call_nodes[place] for place in sorted(self.recorded.evaluated))

    @functools.cached_property
    def ops(self) -> tuple[RegionOp, ...]:
        """The ops with their origins and tensors, in order."""
        return tuple(
            RegionOp(target=target_of(node), origin=origin_of(node), tensors=names)
            for node, names in zip(self.call_nodes, self.recorded.made, strict=True)
        )

    @functools.cached_property
    def plan(self) -> Plan:
        """The plan, which knows the user's line and the module of each tensor; equal regions share compiled kernels."""
        modules = tuple((name, op.origin.module) for op in self.ops for name in op.tensors if op.origin.module)
        return replace(self.recorded.plan, sources=self.sources, modules=modules, names=self.names)

    @functools.cached_property
    def sources(self) -> tuple[tuple[str, str], ...]:
        """The tensors of the definition with their lines in the user's code."""
        return tuple((name, str(op.origin)) for op in self.ops for name in op.tensors if str(op.origin))

    @functools.cached_property
    def names(self) -> tuple[tuple[str, str], ...]:
        """What the user's code calls tensors, and ``%mul_1`` of the graph, with their names in the definition."""
        inputs = zip(self.input_nodes, self.definition.fusion.inputs, strict=False)
        read = [(node, value.name) for node, value in inputs if isinstance(value, TensorView)]
        users = [(node.meta.get("called", ""), name) for node, name in read]
        pairs = [(f"{OF_GRAPH}{node.name}", name) for node, name in read]
        lines: dict[tuple[str, str], str] = {}  # an assignment names what its last op computes
        for node, op in zip(self.call_nodes, self.ops, strict=True):
            if op.tensors:
                pairs.append((f"{OF_GRAPH}{node.name}", op.tensors[-1]))
                lines |= {(name, op.origin.place): op.tensors[-1] for name in variable_of(op.origin.code)}
        users += [(name, tensor) for (name, _), tensor in lines.items()]
        return tuple(dict.fromkeys((name, tensor) for name, tensor in (*users, *pairs) if name))

    @functools.cached_property
    def modules(self) -> tuple[str, ...]:
        """Paths of its ops' modules, without duplicates."""
        return tuple(dict.fromkeys(origin.module for origin in map(origin_of, self.call_nodes) if origin.module))

    @functools.cached_property
    def places(self) -> tuple[str, ...]:
        """The modules as labels name them: ops outside of all of them are in the code of the model itself."""
        is_outside = any(not origin_of(node).module for node in self.call_nodes)
        return ("the model", *self.modules) if is_outside and self.modules else self.modules

    def __len__(self) -> int:
        """Return the number of ops."""
        return len(self.call_nodes)

    def __repr__(self) -> str:
        """Return one line: ops, origin, and why another library runs it, if one does."""
        names = [target_of(node).split(".")[1] for node in self.call_nodes]
        shown = ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
        where = f" of {self.places[0]}" if len(self.places) == 1 else ""
        failure = f"; {self.library} runs it: {self.failed}" if self.failed else ""
        return f"<Region {self.index}{where}: {shown}{failure}>"

    # Running

    @abstractmethod
    def _run(self, inputs: Sequence[Any]) -> list[Any]:
        """Return the results computed by the plan, as arrays of the library."""

    @abstractmethod
    def _by_library(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """Return the results computed by the library."""

    def __call__(self, *inputs: Any) -> Sequence[Any]:
        """Return the results of the region's nodes, computed by kernels, or by the library if these fail."""
        if self.idle or self.failed is not None:
            return self._by_library(inputs)
        try:
            outputs = self._run(inputs)
        except OutOfMemoryError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, the library can still run the region
            self.fail(error)
            return self._by_library(inputs)
        if self.checked:
            self.check(inputs, outputs)
        return outputs

    @property
    def _where(self) -> str:
        """The first line of the user's code that is known, in brackets."""
        first = next((str(op) for op in map(origin_of, self.call_nodes) if str(op)), "")
        return f" ({first})" if first else ""

    def fail(self, error: Exception) -> None:
        """Leave the region to its library from now on, and warn once."""
        with self._lock:
            if self.failed is not None:
                return
            self.failed = str(error) if isinstance(error, FuserLabError) else f"{type(error).__name__}: {error}"
        lines = source_lines([self.failed], dict(self.sources))
        message = "\n".join((f"{self.library} runs region {self.index}{self._where}: {self.failed}", *lines))
        warn(message, RegionWarning)

    def inexactness(self, inputs: Sequence[Any], outputs: Sequence[Any], expected: Sequence[Any]) -> float:
        """Return the distance of results from the library's (``expected``), relative to what roundings explain.

        At most 1 is acceptable; the result is infinite if it is not known what roundings explain.
        """
        return math.inf

    def check(self, inputs: Sequence[Any], outputs: Sequence[Any] | None = None) -> None:
        """Raise ValidationError unless the region's results agree with its library's, up to rounding.

        Ops such as a norm of a nearly constant row amplify rounding errors. Results that differ by more than the usual
        tolerance are correct if other roundings of the library's ops change its results as much.
        """
        results = self._run(inputs) if outputs is None else outputs
        expected = list(self._by_library(inputs))
        try:
            check_outputs(self.definition.fusion, list(inputs), list(results), expected)
        except ValidationError as error:
            if self.inexactness(inputs, results, expected) <= 1:
                return
            raise ValidationError(f"region {self.index}{self._where}: {error}") from None


def _static_tensor(traced: TracedTensor | None) -> TracedTensor:
    assert traced is not None  # results missing from a list are never read
    return traced


def _inputs(nodes: Sequence[Node], inside: set[Node]) -> tuple[Node, ...]:
    inputs: dict[Node, None] = {}
    for node in nodes:
        inputs.update(dict.fromkeys(operand for operand in node.all_input_nodes if operand not in inside))
    return tuple(inputs)


def _outputs(nodes: Sequence[Node], inside: set[Node]) -> tuple[tuple[Node, ...], tuple[Node, ...]]:
    """Return the values that are computed here and read elsewhere, and torch's views of them, in order.

    A view that is read elsewhere is not an output: torch creates it from its base, so memory is shared as in the traced
    graph. So is any view of an input: as an output, it would be a copy.
    """
    read_values: dict[Node, None] = {}
    views: dict[Node, None] = {}
    for node in reversed(nodes):
        read = node in read_values or any(user not in inside for user in node.users)
        target = target_of(node)
        if read and (target in ALIASES or (target in VIEWS and node.args[0] not in inside)):
            views[node] = None
            read_values.pop(node, None)
            read_values.update(dict.fromkeys(operand for operand in node.all_input_nodes if operand in inside))
        elif read:
            read_values[node] = None
    ordered = [node for node in nodes if node in read_values]
    return tuple(ordered), tuple(node for node in nodes if node in views)
