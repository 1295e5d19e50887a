"""The content that determines a region's fusion, and the definition and plan that equal regions share.

Regions whose calls, sizes, strides and dtypes are equal share one recorded definition and its compiled kernels, so a
model of many equal layers compiles one.
"""

import contextlib
import functools
import pickle
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from fuser_lab.api.fusion_definition import FusionDefinition
from fuser_lab.bridge.annotations import Home
from fuser_lab.bridge.lowerings import DTYPES, Call, TracedTensor, record
from fuser_lab.bridge.traced import Node, call_of, is_node, plain, target_of, tensor_of
from fuser_lab.codegen.pipeline import evaluated_because
from fuser_lab.codegen.request import KernelRequest
from fuser_lab.cost.verdict import SchedulerType
from fuser_lab.definition.binding import bind
from fuser_lab.definition.spec import TensorSpec
from fuser_lab.definition.strides import describe_strides
from fuser_lab.errors import FuserLabError
from fuser_lab.ir import Fusion, OpKind
from fuser_lab.passes import AllocationDomain, MarkAliases
from fuser_lab.plan import Plan
from fuser_lab.plan.kept_results import tuned_state
from fuser_lab.plan.planning import device_of, segment
from fuser_lab.plan.requests import prepared_once, request_of
from fuser_lab.process.forks import new_lock
from fuser_lab.runtime.cpu.this_cpu import cpu_of_regions
from fuser_lab.runtime.object_files import read_object, write_object
from fuser_lab.segmentation import SegmenterOptions, Strategy
from fuser_lab.segmentation.layouts import negotiate
from fuser_lab.targets import CPU, has_own_memory, is_on_host

if TYPE_CHECKING:
    from fuser_lab.codegen.varying import SharedKernels
    from fuser_lab.cost.device import Device
    from fuser_lab.runtime.plan.executor import PreparedPlan

_KEPT = 1024  # recorded definitions that a process caches
_FOLDER = "regions"  # of files with definitions and their plans
_SEARCHED = frozenset({"optimal", "fastest"})  # the strategies that search
_NEVER_IN_KERNELS = frozenset({OpKind.SCATTER, OpKind.SORT, OpKind.MATMUL, OpKind.ATTENTION})
# Whether reads at positions and scans are in a kernel depends on their neighbours.
_ALWAYS_IN_KERNELS = frozenset(OpKind) - _NEVER_IN_KERNELS - {OpKind.INDEXING, OpKind.SCAN}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cutting:
    """How regions are segmented: arguments of `fuser_lab.segment`.

    With ``on_inputs``, plans that are searched for tensors on the host are for its CPU, unless there is a target.
    """

    strategy: Strategy = "bottom_up"
    target: "str | Device | None" = None
    options: SegmenterOptions | None = None
    on_inputs: bool = False

    @property
    def precision(self) -> str:
        """Where kernels round values of Half and BFloat16: ``"eager"`` or ``"fused"``."""
        return (self.options or SegmenterOptions()).precision


    def device_for(self, tensors: Iterable[TracedTensor]) -> "Device":
        """Return the device that a plan for some tensors is made for."""
        is_free = self.on_inputs and self.target is None and self.strategy in _SEARCHED
        if is_free and all(is_on_host(tensor.device) for tensor in tensors):
            return cpu_of_regions()
        return device_of(self.target)


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
    """The content that determines a region's fusion: calls with references in place of tensors, inputs, and results.

    Signatures are compared by ``text``, because the values 1, 1.0 and True are equal, and so are 0.0 and -0.0.
    """

    inputs: tuple[TracedTensor, ...] = field(compare=False)
    calls: tuple[Call, ...] = field(compare=False)
    operands: tuple[Any, ...] = field(compare=False)  # for each call: its args and kwargs, tensors as Ref
    outputs: tuple[Ref, ...] = field(compare=False)
    cutting: Cutting
    shared: "SharedKernels | None" = None  # with the same region at other sizes
    text: str = field(init=False)

    def __post_init__(self) -> None:
        """Compute the text for comparison."""
        object.__setattr__(self, "text", repr((self.inputs, self.calls, self.operands, self.outputs)))

    @property
    def device(self) -> "Device":
        """The device that the plan is made for."""
        results = [tensor for call in self.calls for tensor in call.results if tensor is not None]
        return self.cutting.device_for((*self.inputs, *results))


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """The definition of a signature, its abstract inputs, and the tensors that each call creates, by name."""

    definition: FusionDefinition
    specs: tuple[TensorSpec, ...]
    made: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """What another process has recorded: what a run needs, and a pickle of the recording and its plan, for the rest."""

    fusion: Fusion
    requests: tuple[KernelRequest, ...]
    whole: bytes


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """The definition of a signature and its plan, shared by all regions with this signature."""

    signature: Signature
    stored: Stored | None = None
    _prepared: "dict[str, PreparedPlan]" = field(default_factory=dict, repr=False)
    _lock: threading.Lock = field(default_factory=new_lock, repr=False)

    @functools.cached_property
    def _whole(self) -> tuple[Recording, Plan | None]:
        if self.stored is not None:
            with contextlib.suppress(Exception):  # another version of a library may have written it
                recording, plan = pickle.loads(self.stored.whole)  # noqa: S301 - written by this user and sealed
                return recording, plan
        return _record(self.signature), None

    @property
    def definition(self) -> FusionDefinition:
        """The definition."""
        return self._whole[0].definition

    @property
    def specs(self) -> tuple[TensorSpec, ...]:
        """Its abstract inputs."""
        return self._whole[0].specs

    @property
    def made(self) -> tuple[tuple[str, ...], ...]:
        """The tensors that each call creates, by name."""
        return self._whole[0].made

    @functools.cached_property
    def plan(self) -> Plan:
        """The plan, made at first use; other processes find what a search has found."""
        cutting, device = self.signature.cutting, self.signature.device

        def cut() -> Plan:
            options = cutting.options or SegmenterOptions()
            if cutting.strategy == "fastest" and options.layout_mode == "outputs" and self._has_other_orders():
                return _with_agreed_orders(faster_plan(options))
            return cut_by(options)

        def cut_by(options: SegmenterOptions) -> Plan:
            return segment(self.definition, self.specs, strategy=cutting.strategy, target=device, options=options)

        def faster_plan(options: SegmenterOptions) -> Plan:
            """Return the faster of two plans, whose tensors between segments have the order of inputs or are row-major.

            Whether writers or readers should transpose is known only then. Neither does if the first plan has only
            row-major tensors between its segments. The first search therefore has the time of both; the second takes no
            longer.
            """
            began = time.perf_counter()
            calls = None if options.search_calls is None else 2 * options.search_calls
            first = cut_by(replace(options, layout_mode="propagate", search_calls=calls))
            orders = (tensor.domain.allocation_order for tensor in first.segmented.crossing)
            if all(order == tuple(sorted(order)) for order in orders):
                return first
            if options.search_seconds is not None:
                options = replace(options, search_seconds=min(options.search_seconds, time.perf_counter() - began))
            return min(first, cut_by(options), key=lambda plan: plan.predicted_time().seconds)

        with self._lock:
            recording, plan = self._whole
            if plan is None:
                plan = cut()
                _store(self.signature, recording, plan)
            return replace(plan, shared=self.signature.shared, _cache=self._prepared)

    def _has_other_orders(self) -> bool:
        """Whether tensors between segments are not row-major if they have the memory order of inputs."""
        fusion = bind(self.definition.fusion, self.specs).fusion
        placed = (AllocationDomain(every_tensor=each).run(fusion).tensors for each in (False, True))
        as_rows, as_inputs = ([tv.domain.allocation_order for tv in tensors.values()] for tensors in placed)
        return as_rows != as_inputs

    @functools.cached_property
    def evaluated(self) -> frozenset[int]:
        """The indices of the calls that the array library evaluates, because no kernel computes them."""
        tensors = self._evaluated_tensors()
        return frozenset(place for place, names in enumerate(self.made) if not tensors.isdisjoint(names))

    def _evaluated_tensors(self) -> frozenset[str]:
        """Return the tensors that segments without kernels compute, of each only those that keep it from having one."""
        if all(expr.kind in _ALWAYS_IN_KERNELS for expr in self.definition.fusion.exprs):
            return frozenset()  # without a plan
        try:
            segments = self.plan.segments
        except FuserLabError:  # it is raised again, and reported, where the region runs
            return frozenset()
        names: set[str] = set()
        for part in segments:
            # The library makes views, which cost it nothing.
            exprs = [expr for expr in part.fusion.exprs if not (expr.kind.is_view or expr.op.name == "select")]
            if not exprs or part.scheduler is SchedulerType.NO_OP:
                continue
            if not evaluated_because(part.fusion, part.scheduler):
                continue
            alone = [expr for expr in exprs if expr.kind in _NEVER_IN_KERNELS] or exprs
            names.update(tensor.name for expr in alone for tensor in expr.tensor_outputs)
        return frozenset(names)

    def prepare(self, target: str) -> "PreparedPlan":
        """Return the plan compiled for a target; an error says if a segment has no kernel, and torch runs the region.

        The array library would evaluate the segment on the host, 3,000 times slower than a GPU.
        """
        stored = self.stored
        if stored is None:
            return self.plan.prepare(target, allow_fallback=False, keeps_kernels=True)
        shared = self.signature.shared
        return prepared_once(
            self._prepared, self._lock, stored.fusion,
            lambda kind: [replace(request, target=kind, shared=shared) for request in stored.requests], target,
            allow_fallback=False, keeps_kernels=True,
        )


def _with_agreed_orders(plan: Plan) -> Plan:
    """Return a plan with the memory orders on which its segments agree if it is faster, otherwise the plan.

    The orders of inputs end at a reshape: group norm of channels-last tensors then writes row-major between segments.
    """
    segmented, agreed = negotiate(plan.segmented, plan.oracle)
    if segmented is plan.segmented:
        return plan
    options = replace(plan.options, layout_mode="negotiate")
    alternative = replace(plan, segmented=segmented, agreed=agreed, options=options, _cache={}, _lock=new_lock())
    return min(plan, alternative, key=lambda plan: plan.predicted_time().seconds)


_RECORDED: OrderedDict[tuple[Signature, int], Recorded] = OrderedDict()  # also by the kept parameters in use
_LOCK = new_lock()


def record_definition(signature: Signature) -> Recorded:
    """Return the definition of a signature; the last 1,024 are cached.

    Raises
    ------
    FuserLabError
        If a call cannot be recorded.
    """
    key = (signature, tuned_state())
    with _LOCK:
        cached = _RECORDED.get(key)
        if cached is not None:
            _RECORDED.move_to_end(key)
            return cached
    made = Recorded(signature=signature, stored=_stored_definition(signature))
    if made.stored is None:
        _ = made.definition
    with _LOCK:
        cached = _RECORDED.setdefault(key, made)
        while len(_RECORDED) > _KEPT:
            _RECORDED.popitem(last=False)
    return cached


def _key_of(signature: Signature) -> str:
    """Return the text that determines a definition and its plan; an empty text if they are not on disk."""
    cutting = signature.cutting
    if cutting.strategy not in _SEARCHED or tuned_state() >= 0:
        return ""
    return repr((cutting.strategy, signature.device, cutting.options, signature.text))


def _stored_definition(signature: Signature) -> Stored | None:
    """Return what another process has recorded."""
    key = _key_of(signature)
    stored = read_object(_FOLDER, key) if key else None
    return stored if isinstance(stored, Stored) else None


def _store(signature: Signature, recording: Recording, plan: Plan) -> None:
    """Store a recording and its plan for other processes; one with a segment that cannot run is made in each."""
    key = _key_of(signature)
    if not key or any(segment.scheduler is None for segment in plan.segments):
        return
    requests = tuple(request_of(segment, CPU.name) for segment in plan.segments)
    with contextlib.suppress(Exception):  # what cannot be pickled is made in each process
        write_object(
            _FOLDER, key, Stored(fusion=plan.fusion, requests=requests, whole=pickle.dumps((recording, plan))),
        )


def _record(signature: Signature) -> Recording:
    recording = _recorded_as(signature)
    laid_otherwise = _laid_otherwise(recording, signature)
    return _recorded_as(signature, laid_otherwise) if laid_otherwise else recording


def _laid_otherwise(recording: Recording, signature: Signature) -> frozenset[int]:
    """Return the indices of row-major outputs to which allocation order inference would give another order.

    torch returns them row-major, so a kernel that wrote another order would be followed by a copy.
    """
    fusion = bind(recording.definition.fusion, recording.specs).fusion
    marked = MarkAliases().run(fusion)
    placed = [AllocationDomain(every_tensor=each).run(marked).outputs for each in (False, True)]  # see `Recorded.plan`
    return frozenset(
        place for place, (before, *after) in enumerate(zip(fusion.outputs, *placed, strict=True))
        if any(tv.domain.allocation != before.domain.allocation for tv in after)
        and (traced := _traced_tensor(signature, signature.outputs[place])) is not None and _is_row_major(traced)
    )


def _recorded_as(signature: Signature, as_traced: frozenset[int] = frozenset()) -> Recording:
    """Return the definition; outputs at the indices ``as_traced`` have torch's order even if it is row-major."""
    specs = tuple(map(spec_of, signature.inputs))
    on_gpu = any(has_own_memory(spec.device) for spec in specs)
    made: list[tuple[str, ...]] = []
    with FusionDefinition() as fd:
        inputs = [
            fd.define_from_spec(spec, static_sizes=True, is_cpu=on_gpu and is_on_host(spec.device) and not spec.shape)
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
            operands, named = _fill(args, handle), dict(_fill(kwargs, handle))
            before = len(fd.recorded_exprs)
            results.append(record(fd, call, operands, named))
            made.append(tuple(tv.name for expr in fd.recorded_exprs[before:] for tv in expr.tensor_outputs))
        returned: set[str] = {tensor.name for tensor in inputs}
        written = {
            tv.name for expr in fd.recorded_exprs if expr.kind in _ALWAYS_IN_KERNELS and not expr.kind.is_view
            for tv in expr.tensor_outputs
        }
        for place, ref in enumerate(signature.outputs):
            traced = _traced_tensor(signature, ref)
            tensor = handle(ref)
            if tensor.name in returned:
                # Recorded as no op, or already returned: it gets its own memory.
                tensor = fd.ops.set(tensor)
            returned.add(tensor.name)
            has_order = traced is not None and (place in as_traced or not _is_row_major(traced))
            order = _order_of(traced) if traced is not None and has_order else ()
            if order and tensor.name in written:
                # Readers in other segments then read the result itself, rather than the original of a copy.
                fd.add_output(tensor)
                fd.set_output_stride_order(tensor, order)
            else:
                fd.add_output(tensor, stride_order=order)
    return Recording(definition=fd, specs=specs, made=tuple(made))


def spec_of(traced: TracedTensor) -> TensorSpec:
    """Return a traced tensor as an abstract input."""
    kind = traced.device.partition(":")[0]
    device = kind if has_own_memory(kind) else CPU.name
    return TensorSpec(shape=traced.shape, dtype=DTYPES[traced.dtype], strides=traced.strides, device=device)


def _traced_tensor(signature: Signature, ref: Ref) -> TracedTensor | None:
    return signature.calls[ref.call or 0].results[ref.place]


def _is_row_major(traced: TracedTensor) -> bool:
    return list(describe_strides(traced.shape, traced.strides)[1]) == list(range(traced.ndim))[::-1]


def _order_of(traced: TracedTensor) -> Sequence[int]:
    """Return the order of strides of a dense output; None for others."""
    contiguity, ranks = describe_strides(traced.shape, traced.strides)
    return () if any(flag is False for flag in contiguity) else list(ranks)


def _fill(value: Any, handle: Callable[[Ref], Any]) -> Any:
    if isinstance(value, Ref):
        return handle(value)
    if isinstance(value, tuple):
        return [_fill(part, handle) for part in value]
    return value


def signature_of(
    nodes: Sequence[Node], inputs: Sequence[Node], outputs: Sequence[Node], cutting: Cutting,
    homes: Mapping[Node, frozenset[Home]], shared: "SharedKernels | None" = None,
) -> Signature:
    """Return the signature of nodes; tensors are annotated where they leave their home."""
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
            operand: replace(refs[operand], marked=True) for operand in node.all_input_nodes
            if refs[operand].call is not None and operand.all_input_nodes and homes.get(operand) != homes.get(node)
        }}
        operands.append((
            tuple(_references(value, seen) for value in node.args),
            tuple((name, _references(value, seen)) for name, value in node.kwargs.items()),
        ))
        refs[node] = Ref(len(calls), 0)
        calls.append(call)
    traced = tuple(tensor_of(node) for node in inputs)
    return Signature(
        inputs=traced, calls=tuple(calls), operands=tuple(operands), outputs=tuple(refs[node] for node in outputs),
        cutting=cutting, shared=shared,
    )


def _references(value: Any, refs: Mapping[Node, Ref]) -> Any:
    if isinstance(value, list | tuple):
        return tuple(_references(part, refs) for part in value)
    return refs[value] if is_node(value) else plain(value)
