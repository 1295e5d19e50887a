"""The time of a CPU kernel, from its features and the rates of a processor.

A kernel takes a call and, if cores share its loops, the time to start their threads, plus a smooth maximum of three
times: that of the operations of the busiest core, that of moving lines between its caches, and that of moving them from
and to memory. The form is the roofline model (Williams, Waterman and Patterson, CACM 2009) with a roof for each level,
as in the execution-cache-memory model (Stengel, Treibig, Hager and Wellein, ICS 2015), where these partly overlap.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.float64]
HostColumns = Mapping[str, npt.NDArray[Any]]
_LONG: Final = 4096  # bytes: prefetching hides the latency of longer runs of neighbouring lines


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCaches:
    """The number of threads that share a kernel's loops, and the sizes of L1, L2 and last-level cache in bytes.

    Each core has an L1 and an L2 cache; all cores share the last level.
    """

    threads: int
    first: int
    second: int
    last: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRates:
    """Rates of a CPU that were fitted to measurements: seconds, or seconds of one core per unit of work.

    Attributes
    ----------
    caches
        The threads and caches of the measured processor.
    call
        Seconds of a call of an empty kernel.
    cold
        Additional seconds of a call if other kernels have evicted the kernel's code and data from the caches.
    fork
        Seconds to distribute a loop over threads.
    simple, dividing, converted, vectors
        Seconds per byte of the elements of a vector loop: added or multiplied, divided, converted from or to Half,
        loaded or stored.
    function
        Seconds per element of an exponential in a vector loop; other functions count as several exponentials.
    called
        Seconds per call of a library function.
    single
        Seconds per operation or access of a scalar loop.
    whole
        Seconds per division of integers.
    apart
        Seconds per element that a vector loop loads or stores with a separate scalar instruction.
    turned
        Seconds per byte that is transposed in registers.
    scanned
        Seconds per element of a scan.
    start
        Seconds to start an innermost loop.
    wait
        Seconds that a loop waits for the sums of the loop before it.
    near, far, loaded, stored
        Seconds per byte of the lines moved from L2 to L1, from the last-level cache to L2, from memory, and to memory.
    together
        Seconds per byte moved from or to memory when all cores do so at the same time.
    jump, memory_jump
        Seconds per run of neighbouring bytes, in the last-level cache and in memory.
    sharpness
        Exponent of the smooth maximum.
    second, last
        Bytes of L2 and of the last-level cache in which tensors of earlier kernels remain.
    product
        Floating-point operations of matrix products per second.
    low, high
        Factors on a prediction: 80 % of measured times lie between them.
    source
        The data that the rates were fitted to, such as ``"95 measurements"``.
    """

    caches: HostCaches
    call: float
    cold: float
    fork: float
    simple: float
    dividing: float
    converted: float
    vectors: float
    function: float
    called: float
    single: float
    whole: float
    apart: float
    turned: float
    scanned: float
    start: float
    wait: float
    near: float
    far: float
    loaded: float
    stored: float
    together: float
    jump: float
    memory_jump: float
    sharpness: float
    second: float
    last: float
    product: float
    low: float
    high: float
    source: str

    @property
    def bandwidth(self) -> float:
        """Bytes per second that all cores together load from memory."""
        return 1 / max(self.loaded / self.caches.threads, self.together)

    def with_errors(self) -> Iterator["HostRates"]:
        """Yield the rates, and those in which one is halved or doubled."""
        yield self
        for name in _UNSURE:
            for factor in (0.5, 2.0):
                yield replace(self, **{name: factor * getattr(self, name)})


_UNSURE: Final = tuple(
    field.name for field in fields(HostRates)
    if field.type is float and field.name not in {"sharpness", "product", "low", "high"}
)  # rates that may each be wrong for a kernel


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """The traffic between a phase and one buffer.

    Attributes
    ----------
    name
        The buffer, or the tensor whose memory it is.
    nbytes
        Bytes of the distinct lines that the phase touches.
    far, memory
        Bytes of the lines that the phase fetches from beyond L2, and from beyond the last-level cache, if these caches
        are empty at the beginning; both are at least ``nbytes``.
    length
        Mean length in bytes of the runs of neighbouring lines that are fetched.
    is_stored
        Whether the phase writes to it.
    """

    name: str
    nbytes: float
    far: float
    memory: float
    length: float
    is_stored: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPhase:
    """The features that determine the predicted time of a phase.

    Attributes
    ----------
    cores
        Number of cores that compute the phase.
    is_shared
        Whether the outermost loop is distributed over cores.
    near
        Bytes of the lines that move from L2 to L1 of the busiest core.
    moved
        The traffic of the phase, by buffer.
    simple, ..., wait
        The work of the busiest core, in the units of `HostRates`; ``start`` counts innermost loops.
    """

    cores: float
    is_shared: bool
    near: float
    moved: tuple[Moved, ...]
    simple: float = 0.0
    dividing: float = 0.0
    converted: float = 0.0
    vectors: float = 0.0
    function: float = 0.0
    called: float = 0.0
    single: float = 0.0
    whole: float = 0.0
    apart: float = 0.0
    turned: float = 0.0
    scanned: float = 0.0
    start: float = 0.0
    wait: float = 0.0

    @property
    def nbytes(self) -> float:
        """Bytes of all distinct lines that the phase touches."""
        return sum(access.nbytes for access in self.moved)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFeatures:
    """The features that determine the predicted time of a kernel: its phases, which run one after another."""

    phases: tuple[HostPhase, ...]

    @property
    def moved(self) -> tuple[Moved, ...]:
        """The traffic of all phases, by buffer."""
        return tuple(access for phase in self.phases for access in phase.moved)

    def over(self, base: Mapping[str, str]) -> "HostFeatures":
        """Return the features with each tensor in ``base``, a view, replaced by the tensor whose memory it uses."""
        return HostFeatures(phases=tuple(
            replace(
                phase, moved=tuple(replace(access, name=base.get(access.name, access.name)) for access in phase.moved),
            )
            for phase in self.phases
        ))


COUNTS: Final = tuple(
    field.name for field in fields(HostPhase) if field.name not in {"cores", "is_shared", "near", "moved"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class InCaches:
    """The fractions of a tensor that are in L2, and in L2 or the last-level cache, when a phase begins."""

    second: float = 0.0
    last: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """A phase with the state of the caches at its beginning.

    ``in_caches`` has the cached fractions of each tensor; ``cold`` is the evicted fraction of the code, 0 to 1.
    """

    phase: HostPhase
    in_caches: Mapping[str, InCaches]
    cold: float


def host_columns(phases: Sequence[Begun]) -> HostColumns:
    """Return the features of phases as arrays by name; bytes that are cached when a phase begins are not counted."""
    numbers: dict[str, list[float]] = {
        name: [getattr(begun.phase, name) for begun in phases] for name in (*COUNTS, "near", "cores", "is_shared")
    }
    numbers["cold"] = [begun.cold for begun in phases]
    rows = [_beyond(begun) for begun in phases]
    numbers |= {name: [row[name] for row in rows] for name in ("far", "loaded", "stored", "jump", "memory_jump")}
    return {name: np.array(values, np.float64) for name, values in numbers.items()}


def _beyond(begun: Begun) -> dict[str, float]:
    """Return the bytes and runs that a core moves from and to the last-level cache and memory."""
    total = dict.fromkeys(("far", "loaded", "stored", "jump", "memory_jump"), 0.0)
    for access in begun.phase.moved:
        held = begun.in_caches.get(access.name, InCaches())
        far = (access.far - held.second * access.nbytes) / begun.phase.cores
        memory = (access.memory - held.last * access.nbytes) / begun.phase.cores
        total["far"] += far
        total["stored" if access.is_stored else "loaded"] += memory
        if access.length < _LONG:
            total["jump"] += far / access.length
            total["memory_jump"] += memory / access.length
    return total


def phase_seconds(columns: HostColumns, rates: HostRates) -> Numbers:
    """Return the times of phases under the model."""
    c = columns
    operations = sum(c[name] * getattr(rates, name) for name in COUNTS)
    caches = c["near"] * rates.near + c["far"] * rates.far + c["jump"] * rates.jump
    alone = c["loaded"] * rates.loaded + c["stored"] * rates.stored + c["memory_jump"] * rates.memory_jump
    together = (c["loaded"] + c["stored"]) * c["cores"] * rates.together
    terms = np.stack([operations, caches, np.maximum(alone, together)])
    largest = np.maximum(terms.max(axis=0), 1e-12)
    busy = largest * ((terms / largest) ** rates.sharpness).sum(axis=0) ** (1 / rates.sharpness)
    seconds: Numbers = rates.call + c["cold"] * rates.cold + c["is_shared"] * rates.fork + busy
    return seconds
