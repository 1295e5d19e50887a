"""`fuser_lab.from_jax`: a function of JAX arrays as regions, each of which has a plan."""

import functools
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import PurePath
from typing import Any, ClassVar

from fuser_lab.arguments import short_text
from fuser_lab.bridge.capture import CapturedGraph, order_nodes, recordable
from fuser_lab.bridge.captured import Captured
from fuser_lab.bridge.decompositions import is_named
from fuser_lab.bridge.graph_walk import Around
from fuser_lab.bridge.jax_graph import Graph, Known, Step, graph_of
from fuser_lab.bridge.jax_region import JaxRegion, evaluate
from fuser_lab.bridge.lowerings import LOWERINGS, refusal
from fuser_lab.bridge.model_view import LeftOver, left_rows
from fuser_lab.bridge.options import COMMON, chosen_of, cutting_of
from fuser_lab.bridge.partition import Left, Partition, Wishes, chunks, is_worth_it, proposed_groups, why_outside
from fuser_lab.bridge.region import Region
from fuser_lab.bridge.requirement import jax_for
from fuser_lab.bridge.step_timing import MeasuredStep, measured_on_host
from fuser_lab.bridge.traced import origin_of, target_of
from fuser_lab.errors import ArgumentTypeError, InputError
from fuser_lab.process.collector import collecting_rarely
from fuser_lab.runtime.processors import threads_here

JAX_OPTIONS: Mapping[str, Any] = {**COMMON, "left_to_jax": ()}  # with defaults
_RANDOM = ("random_", "threefry", "rng_")
_CONTROL_FLOW = frozenset({"lax.scan", "lax.while", "lax.cond"})
_PRODUCTS = frozenset({"lax.dot_general", "lax.ragged_dot", "lax.ragged_dot_general"})


class CapturedFunction(Captured):
    """A function of JAX arrays with its regions as fusions; made by `fuser_lab.from_jax`."""

    library: ClassVar[str] = "JAX"
    made_by: ClassVar[str] = "from_jax"

    def __init__(
        self, graph: CapturedGraph, signature: "_Signature", inputs: Sequence[Any], keywords: Mapping[str, Any],
    ) -> None:
        self._graph, self._signature = graph, signature
        self._inputs, self._keywords = tuple(inputs), dict(keywords)

    @property
    def graphs(self) -> tuple[CapturedGraph, ...]:
        """The one graph that JAX traces."""
        return (self._graph,)

    @property
    def left_to_jax(self) -> tuple[LeftOver, ...]:
        """The primitives that JAX runs: how often, why, and the source line of the first one."""
        return left_rows(self.graphs)

    def run(self, *inputs: Any, **keywords: Any) -> Any:
        """Return what the function returns, computed by regions and by JAX.

        Raises
        ------
        InputError
            If the inputs differ in shape or dtype from those of the capture, or are traced.
        """
        results = self._graph.run(*self._signature.flat(inputs, keywords))
        return jax_for("from_jax").tree_util.tree_unflatten(self._signature.results, results)

    def measure_step(self, inputs: Sequence[Any] | None, seconds: float) -> MeasuredStep:
        """Return measured seconds of a step and of its units."""
        jax = jax_for("explain")
        arguments, keywords = (self._inputs, self._keywords) if inputs is None else (tuple(inputs), {})
        if any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree_util.tree_leaves((arguments, keywords))):
            msg = "explain: abstract inputs cannot run; give arrays: fl.explain(captured, *inputs, measure=True)."
            raise InputError(msg)
        run = functools.partial(self.run, *arguments, **keywords)
        return measured_on_host(self.graphs, (), lambda: jax.block_until_ready(run()), seconds, threads_here())


class _Signature:
    """The arguments of a capture: their structure, shapes and dtypes; and the structure of the results."""

    def __init__(self, inputs: Sequence[Any], keywords: Mapping[str, Any], avals: Sequence[Any], results: Any) -> None:
        jax = jax_for("from_jax")
        self._structure, self._avals = jax.tree_util.tree_structure((tuple(inputs), dict(keywords))), avals
        self.results = jax.tree_util.tree_structure(results)

    def flat(self, inputs: Sequence[Any], keywords: Mapping[str, Any]) -> list[Any]:
        """Return the arguments of a run as arrays, after checking them."""
        jax = jax_for("from_jax")
        leaves, structure = jax.tree_util.tree_flatten((tuple(inputs), dict(keywords)))
        if structure != self._structure:
            msg = f"run: the arguments are {structure}; the function was captured with {self._structure}."
            raise InputError(msg)
        arrays = []
        for place, (leaf, aval) in enumerate(zip(leaves, self._avals, strict=True)):
            if isinstance(leaf, jax.core.Tracer):
                msg = "run: inside jax.jit or jax.grad there are no values; transform the function, then capture it."
                raise InputError(msg)
            array = jax.numpy.asarray(leaf)
            if (array.shape, array.dtype) != (aval.shape, aval.dtype):
                msg = (
                    f"run: input {place} is {array.dtype}{list(array.shape)}; the function was captured with "
                    f"{aval.dtype}{list(aval.shape)}."
                )
                raise InputError(msg)
            arrays.append(array)
        return arrays


def from_jax(
    function: Callable[..., Any], *inputs: Any, keywords: Mapping[str, Any] | None = None, **options: Any,
) -> CapturedFunction:
    """Return the regions of a JAX function that fusions can compute, and the primitives left to JAX.

    The function is traced by ``jax.make_jaxpr``; nothing runs. For gradients, give ``jax.grad(function)`` or
    ``jax.value_and_grad(function)``. Inputs may be abstract (``jax.ShapeDtypeStruct``).

    Parameters
    ----------
    function
        A function of arrays or pytrees of arrays, as for ``jax.jit``.
    *inputs
        Its arguments.
    keywords
        Its keyword arguments.
    **options
        ``strategy``, ``target`` and ``options`` as for `fuser_lab.segment`; ``min_region_ops`` and ``max_region_ops``,
        the minimum and maximum number of ops in a region (1 and 1024); ``left_to_jax``, primitives that JAX runs, such
        as ``["tanh"]``; ``check``, whether each run is compared with JAX.

    Raises
    ------
    InputError
        If the function's control flow depends on values, if it computes nothing, or if there is no such option.
    ArgumentTypeError
        If ``function`` cannot be called, or an option is of another type.
    UnsupportedError
        If JAX is not installed, or is older than 0.10.
    """
    with collecting_rarely():
        return _capture(function, inputs, dict(keywords or {}), options)


def _capture(
    function: Callable[..., Any], inputs: tuple[Any, ...], keywords: dict[str, Any], options: Mapping[str, Any],
) -> CapturedFunction:
    jax = jax_for("from_jax")
    if not callable(function):
        msg = f"from_jax: function must be a function of arrays, given {short_text(function)}."
        raise ArgumentTypeError(msg)
    chosen = chosen_of("from_jax", JAX_OPTIONS, options)
    wishes = Wishes(
        min_region_ops=chosen["min_region_ops"], max_region_ops=chosen["max_region_ops"],
        left=_primitive_names(jax, chosen["left_to_jax"]),
    )
    try:
        traced, results = jax.make_jaxpr(function, return_shape=True)(*inputs, **keywords)
    except jax.errors.ConcretizationTypeError as error:
        msg = (
            f"from_jax: the function needs the value of an array{_line_of(error)}, which has none during "
            "tracing; use jax.lax.cond, jnp.where or a static argument."
        )
        raise InputError(msg) from None
    graph = graph_of(traced)
    partition = partition_graph(graph, wishes)
    regions, left = recordable(
        partition, lambda index, number: JaxRegion(
            index, partition.regions[number], cutting_of(chosen), checked=chosen["check"],
        ),
    )
    calls = sum(node.equation is not None for node in graph.nodes)
    if not calls:
        name = getattr(function, "__qualname__", type(function).__name__)
        msg = f"from_jax: {name} does not compute anything from its arguments."
        raise InputError(msg)
    captured = CapturedGraph(
        kind="function", library="JAX", regions=tuple(regions), left=tuple(left), nodes=calls, traced=graph,
        run=_Run(graph, regions), most=wishes.max_region_ops,
    )
    return CapturedFunction(captured, _Signature(inputs, keywords, traced.in_avals, results), inputs, keywords)


def _primitive_names(jax: Any, primitives: Any) -> frozenset[str]:
    if isinstance(primitives, str) or not isinstance(primitives, Iterable):
        msg = f"from_jax: left_to_jax must be a list of primitives or their names, given {short_text(primitives)}."
        raise ArgumentTypeError(msg)
    names = set()
    for primitive in primitives:
        name = (
            primitive if isinstance(primitive, str) else str(getattr(primitive, "__name__", ""))
        ).removeprefix("lax.")
        if f"lax.{name}" not in LOWERINGS and not hasattr(jax.lax, f"{name}_p"):
            msg = f"from_jax: left_to_jax has {short_text(primitive)}, which is not a JAX primitive, such as 'tanh'."
            raise InputError(msg)
        names.add(name)
    return frozenset(names)


def _line_of(error: BaseException) -> str:
    """Return the innermost line of the user's code in an error's traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    user_frames = [f for f in frames if not {"jax", "fuser_lab"} & set(PurePath(f.filename).parts[-4:-1])]
    if not user_frames:
        return ""
    innermost = user_frames[-1]
    return f" ({innermost.line}, {PurePath(innermost.filename).name}:{innermost.lineno})"


def reason_for(node: Step, wishes: Wishes) -> str | None:
    """Return why a node is left to JAX, or None if it can be in a region."""
    target = target_of(node)
    if target == "getitem":
        return reason_for(node.args[0], wishes)
    bare = target.removeprefix("lax.")
    if is_named(target, wishes.left):
        return "left to JAX on request"
    if bare.startswith(_RANDOM):
        return "it draws random numbers"
    if target in _CONTROL_FLOW:
        return "control flow is JAX's"
    if target in _PRODUCTS:
        return "matrix products are JAX's"
    if node.equation.effects:
        return "it has an effect"
    return refusal(node.meta["call"])


def partition_graph(graph: Graph, wishes: Wishes) -> Partition:
    """Return the regions of a graph, which are convex and acyclic, and the nodes left to JAX."""
    reasons = {node: reason_for(node, wishes) for node in graph.nodes if node.op == "call_function"}
    position = {node: place for place, node in enumerate(graph.nodes)}
    groups = [
        sorted(group, key=position.__getitem__)
        for group in proposed_groups(graph.nodes, reasons, dict.fromkeys(graph.nodes, 0))
    ]
    parts = [tuple(part) for group in groups for part in chunks(group, wishes.max_region_ops)]
    regions = sorted((part for part in parts if is_worth_it(part, wishes)), key=lambda part: position[part[0]])
    inside = {node for part in regions for node in part}
    left = tuple(
        Left(node, target_of(node), reason or why_outside(node, wishes), origin_of(node))
        for node, reason in reasons.items() if node not in inside and target_of(node) != "getitem"
    )
    return Partition(tuple(regions), left)


class _Run:
    """An executable graph: regions and nodes left to JAX, in dependency order."""

    def __init__(self, graph: Graph, regions: Sequence[Region]) -> None:
        self._graph = graph
        of: dict[Step, Region] = {node: region for region in regions for node in region.nodes}
        self._units: tuple[Step | Region, ...] = order_nodes(graph.nodes, of)
        self.around: Around | None = None  # what is entered around each unit of a run, if it is timed

    def __call__(self, *inputs: Any) -> list[Any]:
        """Return the results, one array for each variable that the jaxpr returns."""
        values: dict[Step, Any] = dict(zip(self._graph.inputs, inputs, strict=True))
        for unit in self._units:
            if self.around is None:
                self._run(unit, values)
            else:
                with self.around(unit):
                    self._run(unit, values)
                    if not isinstance(unit, Region):  # whose results are complete
                        jax_for("from_jax").block_until_ready(values.get(unit))
        asarray = jax_for("from_jax").numpy.asarray
        return [asarray(node.value) if isinstance(node, Known) else values[node] for node in self._graph.results]

    def _run(self, unit: Step | Region, values: dict[Step, Any]) -> None:
        """Compute a unit and add its results to the values."""
        if isinstance(unit, Region):
            results = unit(*(values[node] for node in unit.input_nodes))
            values.update(zip(unit.output_nodes, results, strict=True))
        elif unit.op == "get_attr":
            values[unit] = jax_for("from_jax").numpy.asarray(unit.value)
        elif unit.op == "call_function":
            evaluate(unit, values)
