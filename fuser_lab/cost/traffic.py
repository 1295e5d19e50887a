"""The cost of segments: the bytes that each reads and writes at a device's bandwidth, plus its launch.

Costs are whole numbers of bytes (a launch counts as the bytes that memory moves in that time), so sums are exact and
comparisons need no tolerance. Each segment is charged once for each tensor that it reads and for each that it writes: a
tensor read by three segments costs one write and three reads, however many edges lead to them.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from fuser_lab.cost.device import DEFAULT, Device
from fuser_lab.ir import Expr, Fusion

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
    """

    device: str = DEFAULT.name
    bandwidth: float = DEFAULT.bandwidth * 1e9
    launch: float = LAUNCH_SECONDS

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
    written = 0
    for expr in chosen:
        for tensor in expr.tensor_outputs:
            leaves = tensor in results or any(user not in chosen for user in fusion.users.get(tensor, ()))
            if leaves and expr.name not in recomputed:
                written += tensor.nbytes
    return Traffic(read=sum(tensor.nbytes for tensor in read), written=written)


def model_of(oracle: object) -> CostModel:
    """Return the cost model of an oracle's device, or of the default device."""
    return CostModel.of(getattr(oracle, "device", DEFAULT))
