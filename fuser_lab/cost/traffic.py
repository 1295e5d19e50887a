"""The cost of segments: the bytes that each reads and writes at a device's bandwidth, plus its launch.

Costs are whole numbers of bytes (a launch counts as the bytes that memory moves in that time), so sums are exact and
comparisons need no tolerance. Each segment is charged once for each element that it reads and for each that it writes:
a tensor read by three segments costs one write and three reads, however many edges lead to them. Of a tensor that a
segment only slices, or looks up at some positions, it reads only these elements (`fuser_lab.analysis.parts_read`). A
segment that only makes views costs nothing.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

from fuser_lab.analysis.parts_read import Part, chooses, parts_read
from fuser_lab.cost.device import DEFAULT, Device
from fuser_lab.ir import Expr, Fusion, TensorView, needed_exprs

LAUNCH_SECONDS = 4e-6  # per kernel, in sequence on a stream without CUDA graphs


@dataclass(frozen=True, slots=True, kw_only=True)
class CostModel:
    """Seconds per byte and per launch.

    Attributes
    ----------
    device
        Name of the device.
    bandwidth
        Bytes per second that memory moves.
    launch
        Seconds that each segment costs beyond its bytes.
    note
        Where the bandwidth comes from, if it is neither a data sheet's nor the calibrated one.
    """

    device: str = DEFAULT.name
    bandwidth: float = DEFAULT.bandwidth * 1e9
    launch: float = LAUNCH_SECONDS
    note: str = ""

    @classmethod
    def of(cls, device: Device) -> "CostModel":
        """Return the model of a device: a CPU's measured rates, or a GPU's data sheet."""
        launch = LAUNCH_SECONDS if device.host is None else device.host.call
        return cls(device=device.name, bandwidth=device.bandwidth * 1e9, launch=launch)

    @property
    def launch_bytes(self) -> int:
        """Bytes that memory moves in the time of one launch."""
        return round(self.launch * self.bandwidth)

    def seconds(self, cost: float) -> float:
        """Return a cost in seconds."""
        return cost / self.bandwidth


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Bytes that a segment reads and writes."""

    read: int
    written: int

    @property
    def total(self) -> int:
        """Bytes of both."""
        return self.read + self.written


def bytes_read(
    exprs: Sequence[Expr], inputs: Iterable[TensorView], outputs: Iterable[TensorView],
) -> dict[TensorView, int]:
    """Return the bytes of each input that expressions, in order, read as one segment, each element once.

    Look-ups at positions that are data count as the most that they may read: an element for each of their results.
    """
    if not chooses(exprs):
        return {tensor: tensor.nbytes for tensor in inputs}
    reads = parts_read(exprs, outputs)
    return {tensor: part_bytes(tensor, reads.get(tensor, {}).values()) for tensor in inputs}


def bytes_written(outputs: Iterable[TensorView]) -> int:
    """Return the bytes that a segment with these outputs writes."""
    return sum([tensor.nbytes for tensor in outputs])


def traffic_of(exprs: Sequence[Expr], inputs: Iterable[TensorView], outputs: Iterable[TensorView]) -> Traffic:
    """Return the bytes that expressions, in order, read and write as one segment with these inputs and outputs."""
    results = list(outputs)
    return Traffic(read=sum(bytes_read(exprs, inputs, results).values()), written=bytes_written(results))


def one_kernel_traffic(fusion: Fusion, views: Iterable[Expr] = ()) -> Traffic:
    """Return the bytes that a fusion reads and writes as one segment.

    ``views``, in order, make tensors in the memory of others: a view of an input or of another output moves nothing.
    """
    base = bases_of(views)
    ends = {*fusion.tensor_inputs, *fusion.outputs}
    results = [t for t in dict.fromkeys(fusion.outputs) if t in fusion.producers and base.get(t) not in ends]
    exprs = needed_exprs(fusion.tensor_exprs, results)
    needed = {*results, *(tensor for expr in exprs for tensor in expr.tensor_inputs)}
    return traffic_of(exprs, [tensor for tensor in fusion.tensor_inputs if tensor in needed], results)


def bases_of(views: Iterable[Expr]) -> dict[TensorView, TensorView]:
    """Return the tensor in whose memory each result of views, in order, is."""
    base: dict[TensorView, TensorView] = {}
    for expr in views:
        for source in expr.tensor_inputs[:1]:
            base.update((tensor, base.get(source, source)) for tensor in expr.tensor_outputs)
    return base


def may_view(expr: Expr) -> bool:
    """Whether a segment of nothing but such expressions may launch nothing, because its results are views."""
    return expr.op.name == "select" or (expr.kind.is_view and expr.op.name not in {"pad", "cat"})


def seen_as(fusion: Fusion, tensor: TensorView, views: Collection[Expr]) -> tuple[list[TensorView], list[Expr]]:
    """Return a tensor with the tensors that only view it, and the other expressions that read any of these."""
    tensors, readers = [tensor], dict[Expr, None]()
    for seen in tensors:
        for user in fusion.users.get(seen, ()):
            if user in views:
                tensors += user.tensor_outputs
            else:
                readers[user] = None
    return tensors, list(readers)


def root_of_view(fusion: Fusion, view: Expr, views: Collection[Expr]) -> TensorView:
    """Return the tensor that a view is of, directly or through other views."""
    tensor = view.tensor_inputs[0]
    while tensor in fusion.producers and fusion.producers[tensor] in views:
        tensor = fusion.producers[tensor].tensor_inputs[0]
    return tensor


def part_bytes(tensor: TensorView, parts: Iterable[Part]) -> int:
    """Return the most bytes that parts of a tensor have together."""
    several = list(parts)
    return reduce(Part.joined, several).stored(tensor) if several else 0


def least_reads(fusion: Fusion) -> Mapping[TensorView, Mapping[str, Part]]:
    """Return the parts of tensors that every segment with some reader reads at least, by tensor and reader.

    It has the tensors that some reader does not read completely. A segment reads no less for a reader than the whole
    fusion in one segment does, because what leaves the segment is computed completely.
    """
    if not chooses(fusion.tensor_exprs):
        return {}
    reads = parts_read(fusion.tensor_exprs, fusion.outputs)
    return {
        tensor: by_reader for tensor, by_reader in reads.items()
        if any(part_bytes(tensor, [part]) < tensor.nbytes for part in by_reader.values())
    }


def traffic(fusion: Fusion, exprs: Iterable[Expr], recomputed: frozenset[str] = frozenset()) -> Traffic:
    """Return the bytes that expressions of a fusion, as one segment, read and write.

    ``recomputed`` names expressions that each reader computes for itself: their results are not written unless the
    segment consists only of such expressions.
    """
    chosen = set(exprs)
    if all(expr.name in recomputed for expr in chosen if expr.tensor_outputs):
        recomputed = frozenset()
    made = {tensor for expr in chosen for tensor in expr.tensor_outputs}
    read = {tensor for expr in chosen for tensor in expr.tensor_inputs} - made
    results = set(fusion.outputs)
    written = [
        tensor for expr in chosen if expr.name not in recomputed for tensor in expr.tensor_outputs
        if tensor in results or any(user not in chosen for user in fusion.users.get(tensor, ()))
    ]
    ordered = sorted(chosen, key=lambda expr: fusion.positions[expr.name]) if chooses(chosen) else list(chosen)
    return traffic_of(ordered, read, written)


def model_of(oracle: object) -> CostModel:
    """Return the cost model of an oracle's device, or of the default device."""
    return CostModel.of(getattr(oracle, "device", DEFAULT))
