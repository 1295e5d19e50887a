"""The time of a CPU kernel, from its features and the rates of a processor.

A kernel takes a call and, if cores share its loops, the time to start their threads, plus a smooth maximum of three
times: that of the operations of the busiest core, that of moving lines between its caches, and that of moving them from
and to memory. The form is the roofline model (Williams, Waterman and Patterson, CACM 2009) with a roof for each level,
as in the execution-cache-memory model (Stengel, Treibig, Hager and Wellein, ICS 2015), where these partly overlap.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.float64]
HostColumns = Mapping[str, npt.NDArray[Any]]
_LONG: Final = 4096  # bytes of a run from which on prefetching hides its latency


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCaches:
    """The threads that share a kernel's loops, and bytes of caches: two of each core, and one of all cores."""

    threads: int
    first: int
    second: int
    last: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRates:
    """Rates of a CPU that were fitted to measurements. Times are seconds, or seconds per unit, of one core.

    Attributes
    ----------
    caches
        What the rates were measured with.
    call, cold, fork
        Seconds of a call that does nothing; more than that if other kernels have filled the caches since the last run;
        and to let other threads share a loop.
    simple, dividing, converted, vectors
        Per byte of the elements that a vector loop adds or multiplies, divides, converts from or to Half, and loads or
        stores.
    function, called
        Per function of an element in a vector loop, in exponentials, and per function of the library.
    single, whole, apart
        Per operation or access of a loop that is no vector loop, per division of integers, and per element that a
        vector loop loads or stores by itself.
    turned, scanned
        Per byte that is transposed in registers, and per element of a scan.
    start, wait
        To start an innermost loop, and for a loop to wait for the sums of a loop before it.
    near, far, loaded, stored
        Per byte of lines from the second to the first cache, from the last to the second, from memory, and to memory.
    together
        Per byte from or to memory for all cores together.
    jump, memory_jump
        Per run of neighbouring bytes, in the last cache and in memory.
    sharpness
        Exponent of the smooth maximum.
    second, last
        Bytes of a core's second cache and of the last one in which a kernel finds what those before it have touched.
    product
        Floating-point operations of matrix products per second.
    low, high
        Factors on a prediction between which 80 % of measured times are expected.
    source
        Their source, such as ``"95 measurements"``.
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


UNSURE: Final = tuple(
    field.name for field in fields(HostRates)
    if field.type is float and field.name not in {"sharpness", "product", "low", "high"}
)  # of which each may be wrong for some kernel


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """What a phase moves of a buffer.

    Attributes
    ----------
    name
        The buffer, or the tensor whose memory it is.
    nbytes
        Bytes of the lines that are touched at least once.
    far, memory
        Bytes of lines that come from beyond a core's second cache, and beyond the last cache, if both are empty at the
        beginning: at least ``nbytes``.
    length
        Mean bytes of the runs of neighbours that the former are in.
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
    """What the time of a phase depends on.

    Attributes
    ----------
    cores
        Cores that compute it; ``is_shared`` if its outermost loop is for several.
    near
        Bytes of lines from the second to the first cache of the busiest core.
    moved
        The tensors in memory.
    simple, ..., wait
        What the busiest core does, in the units of `HostRates`; ``start`` counts innermost loops.
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
        """Bytes of all lines that it touches in memory."""
        return sum(one.nbytes for one in self.moved)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFeatures:
    """What the time of a kernel depends on: its phases, which run one after another."""

    phases: tuple[HostPhase, ...]

    @property
    def moved(self) -> tuple[Moved, ...]:
        """What its phases move."""
        return tuple(one for phase in self.phases for one in phase.moved)

    def over(self, base: Mapping[str, str]) -> "HostFeatures":
        """Return the same with tensors under the names of those whose memory they are, if ``base`` has them."""
        return HostFeatures(phases=tuple(
            replace(phase, moved=tuple(replace(one, name=base.get(one.name, one.name)) for one in phase.moved))
            for phase in self.phases
        ))


COUNTS: Final = tuple(
    field.name for field in fields(HostPhase) if field.name not in {"cores", "is_shared", "near", "moved"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class InCaches:
    """Part of a tensor that is in the second caches when a phase begins, and part that is in these or the last one."""

    second: float = 0.0
    last: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """A phase with what it finds in caches, by tensor, and how much of its code has left them, 0 to 1."""

    phase: HostPhase
    found: Mapping[str, InCaches]
    cold: float


def host_columns(phases: Sequence[Begun]) -> HostColumns:
    """Return the features of phases as arrays by name; bytes are those that caches do not hold at the beginning."""
    found: dict[str, list[float]] = {
        name: [getattr(one.phase, name) for one in phases] for name in (*COUNTS, "near", "cores", "is_shared")
    }
    found["cold"] = [one.cold for one in phases]
    rows = [_beyond(one) for one in phases]
    found |= {name: [row[name] for row in rows] for name in ("far", "loaded", "stored", "jump", "memory_jump")}
    return {name: np.array(values, np.float64) for name, values in found.items()}


def _beyond(begun: Begun) -> dict[str, float]:
    """Return the bytes and runs that a core moves from and to the last cache and memory."""
    total = dict.fromkeys(("far", "loaded", "stored", "jump", "memory_jump"), 0.0)
    for one in begun.phase.moved:
        held = begun.found.get(one.name, InCaches())
        far = (one.far - held.second * one.nbytes) / begun.phase.cores
        memory = (one.memory - held.last * one.nbytes) / begun.phase.cores
        total["far"] += far
        total["stored" if one.is_stored else "loaded"] += memory
        if one.length < _LONG:
            total["jump"] += far / one.length
            total["memory_jump"] += memory / one.length
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
    found: Numbers = rates.call + c["cold"] * rates.cold + c["is_shared"] * rates.fork + busy
    return found
