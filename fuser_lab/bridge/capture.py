"""From a captured graph to a callable: regions and torch's ops, in dependency order."""

import contextlib
import importlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from fuser_lab.bridge.add_calls import AddCalls, add_calls
from fuser_lab.bridge.annotations import Names, Pattern, homes_of
from fuser_lab.bridge.decompositions import table
from fuser_lab.bridge.flat import FlatGraph
from fuser_lab.bridge.gathers import gather_operands
from fuser_lab.bridge.graph_bytes import Lines, lines_of
from fuser_lab.bridge.graph_cache import (
    graph_of,
    graphs_kept,
    has_cache,
    kept_compiler,
    kept_graph,
    read_parts,
    write_parts,
)
from fuser_lab.bridge.input_names import input_names, write_input_names
from fuser_lab.bridge.lists import RegionList
from fuser_lab.bridge.lowerings.matmul import MATMULS
from fuser_lab.bridge.padded_products import pad_products
from fuser_lab.bridge.partition import Left, Partition, Wishes, partition_graph, prepare
from fuser_lab.bridge.parts import read_operands_of_cats
from fuser_lab.bridge.pools import use_offsets
from fuser_lab.bridge.recomputed import compute_again
from fuser_lab.bridge.region import Region
from fuser_lab.bridge.repeated_elements import views_for_repeats
from fuser_lab.bridge.repeats import merge_calls
from fuser_lab.bridge.requirement import torch_for
from fuser_lab.bridge.row_gaps import (
    copy_spread_views,
    may_change_results,
    result_strides,
    take_strides,
    tell_strides,
)
from fuser_lab.bridge.signature import Cutting
from fuser_lab.bridge.symbolic import SymbolicGraph, is_symbolic
from fuser_lab.bridge.torch_region import TorchRegion
from fuser_lab.bridge.traced import Node, Origin, is_write_back, origin_of, target_of
from fuser_lab.plan.kept_results import tuned_state
from fuser_lab.plan.planning import device_of
from fuser_lab.process.collector import collecting_rarely
from fuser_lab.process.forks import new_lock
from fuser_lab.segmentation.components import topological
from fuser_lab.targets import has_own_memory

if TYPE_CHECKING:
    from fuser_lab.codegen.varying import SharedKernels

R = TypeVar("R", bound=Region)

_KEPT_SIZES = 64  # combinations of sizes whose code is cached
_OP = re.compile(r"\baten\.\w+(?:\.\w+)?")
_KINDS_OF_BREAKS = ("Failed to trace builtin operator", "Dynamic shape operator")


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureOptions:
    """How graphs are captured and run: which nodes become regions, how regions are cut, whether results are compared.

    ``annotate`` names the modules and calls at whose boundaries regions get a ``segment_set``. ``at_new_sizes`` is how
    regions of symbolic sizes are cut, if in another way, because that is done while the program runs.
    """

    wishes: Wishes = field(default_factory=Wishes)
    cutting: Cutting = field(default_factory=Cutting)
    at_new_sizes: Cutting | None = None
    annotate: tuple[Pattern, ...] = ()
    check: bool = False


@dataclass(frozen=True, kw_only=True)
class CapturedGraph:
    """One graph that a library captured: regions, and the nodes left to that library.

    ``kind`` is ``"inference"``, ``"forward"`` or ``"backward"``. ``nodes`` counts the calls of the graph,
    ``traced`` is torch's graph, with dropouts rewritten, or that of a jaxpr, ``most`` is the maximum number of ops
    in a region, and ``runs`` is how often the captured call ran the graph.
    """

    kind: str
    library: str = "torch"
    regions: tuple[Region, ...]
    left: tuple[Left, ...]
    nodes: int
    traced: Any = field(repr=False)
    run: Callable[..., Any] = field(repr=False)
    most: int = Wishes().max_region_ops
    runs: int = 1

    @property
    def lists(self) -> tuple[RegionList, ...]:
        """The regions that one launch on a GPU computes together, once the graph has run there twice."""
        return self.run.lists if isinstance(self.run, FlatGraph) else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphBreak:
    """Where torch ended a graph, and why; ``op`` is the op that it runs there, in no graph, if it names one."""

    reason: str
    place: str
    code: str = ""  # the text of that line
    graph: int = 0  # the number of the graph that ends
    op: str = ""

    @property
    def origin(self) -> Origin:
        """The line in the user's code."""
        return Origin(code=self.code, place=self.place)

    @property
    def why_outside(self) -> str:
        """Why the op is in no graph."""
        return f"torch runs it between two graphs: {self.reason}"

    def __str__(self) -> str:
        """Return one sentence."""
        where = f" at {self.place}" if self.place else ""
        between = f"torch runs {self.op or 'what is'} between them"
        return f"the graph ends{where}, and another graph follows; {between}: {self.reason}"


class Capture:
    """The captures so far of one call of `fuser_lab.from_torch`, or of one compilation by torch."""

    def __init__(
        self, options: CaptureOptions, names: Names | None = None, arguments: Sequence[str] = (),
    ) -> None:
        self.options = options
        self.arguments = tuple(arguments)  # the parameters of the captured function
        self.idle = False  # whether torch currently runs the regions
        self.graphs: list[CapturedGraph] = []
        self.breaks: list[GraphBreak] = []
        self.names = names or Names()
        self._lock = new_lock()

    def add(self, graph: CapturedGraph) -> None:
        """Add a graph."""
        with self._lock:
            self.graphs.append(graph)

    def note_break(self, graph_module: Any) -> bool:
        """Record why Dynamo ended a graph; return whether that was a break."""
        reason = getattr(graph_module, "compile_subgraph_reason", None)
        if reason is None or not reason.graph_break:
            return False
        frames = [frame for frame in reason.user_stack or () if frame is not None]
        place = f"{frames[-1].filename.rpartition('/')[2]}:{frames[-1].lineno}" if frames else ""
        code = (frames[-1].line or "").strip() if frames else ""
        clause = _clause(str(reason.reason))
        named = _OP.search(clause)
        self.names.is_whole = False
        with self._lock:
            self.breaks.append(GraphBreak(
                reason=clause, place=place, code=code, graph=len(self.graphs), op=named[0] if named else "",
            ))
        return True

    def note_runs(self) -> None:
        """Note how often each graph ran; a backward graph that did not run runs as often as the graph before it."""
        graphs: list[CapturedGraph] = []
        for graph in self.graphs:
            follows = graph.kind == "backward" and graphs
            runs = getattr(graph.run, "runs", 0) or (graphs[-1].runs if follows else 1)
            graphs.append(replace(graph, runs=runs))
        self.graphs = graphs


def _clause(reason: str) -> str:
    """Return Dynamo's reason as one clause."""
    if reason.startswith(("generic_jump", "Data-dependent branching")):
        return "control flow depends on the value of a tensor"
    if reason.startswith("step_unsupported"):
        return "torch does not capture the function called there, and runs the rest of this function in eager mode"
    first = " ".join(reason.split("\n", 1)[0].split()).rstrip(".")
    # The first line names the kind of break; the explanation gives the details.
    explained = re.search(r"^ *Explanation: (.*)", reason, re.MULTILINE)
    return explained[1].strip().rstrip(".") if explained and first in _KINDS_OF_BREAKS else first


def compile_graph(
    gm: Any, example_inputs: Sequence[Any], capture: Capture, *, keeps: bool = False,
) -> Callable[..., Any]:
    """Return a callable for a graph that Dynamo captured; AOTAutograd creates its forward and backward graphs.

    With ``keeps``, another process finds them on disk. Where ``annotate`` names calls, they are made again, because
    what is kept does not have the names of all calls.
    """
    common = importlib.import_module("torch._dynamo.backends.common")

    names = input_names(gm, capture.arguments)
    keeps = keeps and has_cache() and not capture.options.annotate

    lines = lines_of(gm) if keeps else ()

    def run_of(graph_module: Any, kind: str, content: bytes = b"") -> Any:
        return graph_callable(graph_module, kind, capture, content, lines)

    def compiler(kind: str) -> Any:
        def compile_kind(graph_module: Any, inputs: Sequence[Any]) -> Any:
            described = write_input_names(graph_module, names)
            _pad(described, kind, capture, inputs)
            return kept_graph(described, kind, run_of, lines) if keeps else run_of(described, kind)

        return kept_compiler(compile_kind) if keeps else compile_kind

    backend = common.aot_autograd(
        fw_compiler=compiler("forward"), bw_compiler=compiler("backward"), inference_compiler=compiler("inference"),
        decompositions=table(capture.options.wishes.left),
        partition_fn=_partition, keep_inference_input_mutations=True,
    )
    with graphs_kept(gm, names, capture.options, run_of) if keeps else contextlib.nullcontext(), collecting_rarely():
        made: Callable[..., Any] = backend(gm, example_inputs)
    return made


def _partition(joint_module: Any, joint_inputs: Any, **options: Any) -> Any:
    """Return forward and backward graphs in which values that are compared for equality are computed once.

    The gradient of an extreme selects the elements that equal it; if another kernel recomputed them, rounding might
    leave none.
    """
    policies = importlib.import_module("torch.utils.checkpoint").CheckpointPolicy
    partitioners = importlib.import_module("torch._functorch.partitioners")
    use_offsets(joint_module.graph)
    # The partitioner would merge equal calls and lose the metadata of one of them.
    if not merge_calls(joint_module.graph):
        joint_module.graph = importlib.import_module("torch._functorch.compile_utils").fx_graph_cse(joint_module.graph)
    views_for_repeats(joint_module.graph)
    gather_operands(joint_module.graph)
    read_operands_of_cats(joint_module.graph, options.get("num_fwd_outputs"))
    _attach(joint_module.graph)
    for node in joint_module.graph.nodes:
        if target_of(node) == "aten.eq.Tensor":
            for operand in node.all_input_nodes:
                held = operand.meta.get("val")
                if operand.op == "call_function" and getattr(held, "is_floating_point", bool)():
                    operand.meta.setdefault("recompute", policies.MUST_SAVE)
    with importlib.import_module("torch._functorch.config").patch(cse=False):
        return partitioners.min_cut_rematerialization_partition(joint_module, joint_inputs, **options)


def _attach(graph: Any) -> None:
    """Let ops on a GPU read values rather than these detached.

    The partitioner would take that for a kernel of its own, before which a value is stored rather than computed again.
    """
    for node in graph.find_nodes(op="call_function", target=torch_for("fuser_lab.bridge").ops.aten.detach.default):
        if not has_own_memory(node.meta["val"].device.type):
            continue  # a core computes exponentials more slowly than it reads them
        # A result that is detached stays another tensor than the result with a gradient.
        node.replace_all_uses_with(node.args[0], delete_user_cb=lambda user: user.op != "output")
        if not node.users:
            graph.erase_node(node)


def _pad(gm: Any, kind: str, capture: Capture, inputs: Sequence[Any]) -> None:
    """Pad the products of a graph with known sizes and save dense views; ``inputs`` are fakes of its arguments."""
    if is_symbolic(gm) or capture.options.wishes.records_matmuls:
        return
    if kind == "backward":
        take_strides(gm.graph, inputs)
    traced = result_strides(gm.graph)
    may_change = may_change_results(kind)
    if kind == "forward" and may_change:
        copy_spread_views(gm.graph)
    pad_products(gm, changes_results=may_change)
    tell_strides(traced, result_strides(gm.graph))


def graph_callable(gm: Any, kind: str, capture: Capture, content: bytes = b"", lines: Lines = ()) -> Any:
    """Return a boxed callable for a graph of ATen ops; ``gm`` may be None if ``content``, its bytes, is not empty.

    ``lines`` are those of Dynamo's graph, if there are bytes.
    A graph with symbolic sizes, which has no bytes, is captured when it first runs, for all sizes.
    """
    if capture.options.annotate:
        capture.names.note(gm.graph.nodes, capture.options.annotate)
    if not content and is_symbolic(gm):
        return _box(_Sizes(gm, kind, capture).run)
    with collecting_rarely():  # possibly of a backward graph, which torch may trace at its first run
        graph = _stored_graph(kind, capture, content, lines) if content else None
        graph = graph or capture_graph(gm or graph_of(content, lines), kind, capture, content, lines)
    capture.add(graph)
    assert isinstance(graph.run, FlatGraph)  # of a graph with known sizes
    return _box(graph.run.boxed)


def _box(run_boxed: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
    """Return a function of a list of arguments, which it empties; an attribute tells AOTAutograd."""
    def run(args: list[Any]) -> Any:
        return run_boxed(args)

    run._boxed_call = True  # type: ignore[attr-defined]  # noqa: SLF001 - the name is torch's
    return run


def capture_graph(
    gm: Any, kind: str, capture: Capture, content: bytes = b"", lines: Lines = (),
) -> CapturedGraph:
    """Return a graph of ATen ops with known sizes, with its regions; the graph module is modified.

    Another process finds the regions by ``content``, the bytes of the graph as it was.
    """
    values = (node.meta.get("val") for node in gm.graph.nodes)
    on_gpu = any(has_own_memory(value.device.type) for value in values if hasattr(value, "device"))
    _, regions, left = _with_kernels(gm, prepare(gm), capture, capture.options.cutting, adds_calls=on_gpu)
    if content and tuned_state() < 0:
        equal = {region.signature: region.signature for region in regions}  # equal regions share one
        parts = [(region.nodes, equal[region.signature]) for region in regions]
        write_parts(content, _key_options(capture), gm, lines, (parts, left))
    return _with_regions(gm, kind, regions, left, capture.options.wishes)


def _stored_graph(kind: str, capture: Capture, content: bytes, lines: Lines) -> CapturedGraph | None:
    """Return the graph that had these bytes before another process found its regions."""
    stored = read_parts(content, _key_options(capture), lines) if tuned_state() < 0 else None
    if stored is None:
        return None
    options, (gm, (parts, left)) = capture.options, stored
    regions = [
        TorchRegion(
            index, nodes, options.cutting, checked=options.check, idle=capture.idle, signature=signature,
        ) for index, (nodes, signature) in enumerate(parts)
    ]
    return _with_regions(gm, kind, regions, left, options.wishes)


def _key_options(capture: Capture) -> tuple[object, ...]:
    """Return what decides the regions of a graph besides the graph: options, and devices that plans may be for."""
    cutting = capture.options.cutting
    return capture.options, cutting.device_for(()), device_of(cutting.target)


def _with_kernels(
    gm: Any, begins: Sequence[Node], capture: Capture, cutting: Cutting, *, adds_calls: bool = False,
) -> tuple[Partition, list[TorchRegion], list[Left]]:
    """Return the parts of a graph after `prepare` whose ops have kernels, as regions too, and the nodes left to torch.

    Whether a scan or a read at positions has a kernel depends on its neighbours, so the plans of regions say it. Matrix
    products are in regions only if the user wishes it. If the graph may be changed, ``adds_calls``, regions compute
    again what others would store for them.
    """
    evaluated: set[Node] = set()
    while True:
        partition = partition_graph(gm, capture.options.wishes, begins, evaluated)
        if adds_calls and compute_again(gm.graph, partition.regions, begins, device_of(cutting.target)):
            partition = partition_graph(gm, capture.options.wishes, begins, evaluated)
        regions, left = _regions_of(gm, partition, capture, cutting)
        more = {node for region in regions for node in region.evaluated if target_of(node) not in MATMULS} - evaluated
        if not more:
            return partition, regions, left
        evaluated |= more


def _regions_of(
    gm: Any, partition: Partition, capture: Capture, cutting: Cutting, shared: Sequence["SharedKernels"] = (),
) -> tuple[list[TorchRegion], list[Left]]:
    """Return a graph's parts as regions, and the nodes left to torch; ``shared`` is empty or has one entry per part."""
    options = capture.options
    homes = homes_of(gm.graph.nodes, options.annotate)

    def region_of(index: int, number: int) -> TorchRegion:
        return TorchRegion(
            index, partition.regions[number], cutting, checked=options.check, idle=capture.idle, homes=homes,
            shared=shared[number] if shared else None,
        )

    return recordable(partition, region_of)


def recordable(partition: Partition, region_of: Callable[[int, int], R]) -> tuple[list[R], list[Left]]:
    """Return the parts of a graph as regions, and the nodes left to the library, among them what cannot be recorded.

    ``region_of`` returns a region from its index and the number of its part.
    """
    regions: list[R] = []
    left = list(partition.left)
    for number, nodes in enumerate(partition.regions):
        if not nodes:
            continue
        region = region_of(len(regions), number)
        try:
            _ = region.recorded
        except Exception as error:  # noqa: BLE001 - the library can run what no definition expresses
            why = f"it could not be recorded: {error}"
            left += [Left(node, target_of(node), why, origin_of(node)) for node in nodes]
            continue
        regions.append(region)
    return regions, left


def _with_regions(
    gm: Any, kind: str, regions: Sequence[TorchRegion], left: Sequence[Left], wishes: Wishes,
) -> CapturedGraph:
    _compile_in_background(regions)
    count = sum(map(_is_call, gm.graph.nodes))
    adds, told = add_calls(left, wishes.left)
    return CapturedGraph(
        kind=kind, regions=tuple(regions), left=tuple(told), nodes=count, traced=gm.graph,
        run=assemble(gm, regions, adds), most=wishes.max_region_ops,
    )


def _is_call(node: Node) -> bool:
    """Whether a node is an op that the user's code calls; writes of new values over arguments are part of others."""
    return node.op == "call_function" and target_of(node) != "getitem" and not is_write_back(node)


def _compile_in_background(regions: Sequence[TorchRegion]) -> None:
    """Let other processes compile kernels of regions while this one generates others and continues."""
    if not all(region.idle for region in regions):
        background = importlib.import_module("fuser_lab.runtime.plan.background")
        distinct = {region.signature: region for region in regions}.values()
        background.IN_BACKGROUND.add(kernel for region in distinct for kernel in region.kernels())


def assemble(gm: Any, regions: Sequence[Region], adds: AddCalls) -> FlatGraph:
    """Return a function of the graph's inputs that calls regions, and kernels that add, in place of nodes."""
    of: dict[Node, Region] = {node: region for region in regions for node in region.nodes}
    units = order_nodes(tuple(gm.graph.nodes), of)
    return FlatGraph(gm, units, partial(_module_of, gm, units, adds), adds)


def _module_of(gm: Any, units: Sequence[Region | Node], adds: AddCalls) -> Any:
    """Return an FX module of nodes and regions in the order of execution; ``gm`` has its constants."""
    torch = torch_for("fuser_lab.bridge")
    graph = torch.fx.Graph()
    env: dict[Node, Any] = {}
    for unit in units:
        if not isinstance(unit, Region):
            if unit in adds.of:
                operands = tuple(env[node] for node in adds.of[unit].scatter.operands)
                env[unit] = graph.call_function(_function(adds.of[unit], f"add_{unit.name}"), operands)
            elif unit not in adds.filled:
                env[unit] = graph.node_copy(unit, env.__getitem__)
            continue
        called = graph.call_function(
            _function(unit, f"region_{unit.index}"), tuple(env[node] for node in unit.input_nodes))
        for place, node in enumerate(unit.output_nodes):
            env[node] = graph.call_function(_item, (called, place))
        for node in unit.view_nodes:
            env[node] = graph.node_copy(node, env.__getitem__)
    made = torch.fx.GraphModule(gm, graph)
    return made.eval()


def _item(values: Sequence[Any], place: int) -> Any:
    return values[place]


def _function(run: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Return a function that runs a region or a kernel, under a name, which FX writes into generated code."""

    def call(*inputs: Any) -> Any:
        return run(*inputs)

    call.__name__ = call.__qualname__ = name
    return call


def order_nodes(nodes: Sequence[Node], of: Mapping[Node, Region]) -> tuple[Node | Region, ...]:
    """Return nodes and regions, each after its operands, otherwise in the order of their first nodes.

    The first node of a section comes after all earlier sections, since no region spans two; random draws without
    operands keep the graph's order.
    """
    units = tuple(dict.fromkeys(of.get(node, node) for node in nodes))
    number = {unit: place for place, unit in enumerate(units)}
    readers: list[set[int]] = [set() for _ in units]
    for node in nodes:
        reader = number[of.get(node, node)]
        for operand in node.all_input_nodes:
            readers[number[of.get(operand, operand)]].add(reader)
    after = [others - {place} for place, others in enumerate(readers)]
    return tuple(units[place] for place in topological(range(len(units)), after))


# Symbolic sizes

def _left_whole(gm: Any, kind: str, why: str) -> CapturedGraph:
    """Return a graph that torch runs unchanged."""
    calls = [node for node in gm.graph.nodes if _is_call(node)]
    left = tuple(Left(node, target_of(node), why, origin_of(node)) for node in calls)
    return CapturedGraph(kind=kind, regions=(), left=left, nodes=len(calls), traced=gm.graph, run=gm)


class _Sizes:
    """A graph with symbolic sizes: captured once, with runs for the last 64 sizes."""

    def __init__(self, gm: Any, kind: str, capture: Capture) -> None:
        self._gm, self._kind, self._capture = gm, kind, capture
        self._cutting = capture.options.at_new_sizes or capture.options.cutting
        self._symbolic: SymbolicGraph | None = None
        self._whole: CapturedGraph | None = None  # the fallback if sizes cannot be computed from those of the inputs
        self._known: dict[str, Callable[..., Any]] = {}  # by values as text, because the numbers 0.0 and -0.0 are equal
        self._lock = new_lock()

    def run(self, args: list[Any]) -> Any:
        """Run the graph for the sizes of a list of arguments, which is emptied, as in `FlatGraph.boxed`."""
        run = self._run_of(args)
        if isinstance(run, FlatGraph):
            return run.boxed(args)
        return run(*args)

    def _run_of(self, args: Sequence[Any]) -> Callable[..., Any]:
        if self._symbolic is None:
            with self._lock:
                self._begin(args)
        if self._symbolic is None:
            whole: Callable[..., Any] = self._gm
            return whole
        values = self._symbolic.values_of(args)
        key = repr(values)
        run = self._known.get(key)
        if run is None:
            with self._lock:
                run = self._known.get(key) or self._run_for(self._symbolic, values, args)
                while len(self._known) >= _KEPT_SIZES:
                    del self._known[next(iter(self._known))]
                self._known[key] = run
        return run

    def _begin(self, args: Sequence[Any]) -> None:
        """Capture the graph, unless that was already done or tried."""
        if self._symbolic is not None or self._whole is not None:
            return
        try:
            symbolic = SymbolicGraph(self._gm, args, self._partition)
        except Exception:  # noqa: BLE001 - torch says in many ways that a size is not known
            self._whole = _left_whole(self._gm, self._kind, "some sizes remain symbolic, as in nested tensors")
            self._capture.add(self._whole)
            return
        values = symbolic.values_of(args)
        # Lowering kernels for other sizes as well shows which of their numbers have to be arguments.
        for other in symbolic.other_values(values):
            with contextlib.suppress(Exception):  # possibly sizes that torch's guards exclude
                for region in self._regions(symbolic, other)[1]:
                    _ = region.is_on_host and region.kernels()
        graph = self._capture_at(symbolic, values)
        self._capture.add(graph)
        self._known[repr(values)] = graph.run
        self._symbolic = symbolic

    def _run_for(self, symbolic: SymbolicGraph, values: tuple[Any, ...], args: Sequence[Any]) -> Callable[..., Any]:
        return self._capture_at(symbolic, values).run if symbolic.fits(args, values) else self._gm

    def _capture_at(self, symbolic: SymbolicGraph, values: tuple[Any, ...]) -> CapturedGraph:
        sized, regions, left = self._regions(symbolic, values)
        return _with_regions(sized, self._kind, regions, left, self._capture.options.wishes)

    def _regions(
        self, symbolic: SymbolicGraph, values: tuple[Any, ...],
    ) -> tuple[Any, list[TorchRegion], list[Left]]:
        sized, partition = symbolic.at(values)
        return sized, *_regions_of(sized, partition, self._capture, self._cutting, symbolic.shared)

    def _partition(self, gm: Any, begins: Sequence[Node]) -> Partition:
        return _with_kernels(gm, begins, self._capture, self._cutting)[0]
