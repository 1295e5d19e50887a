"""The time of one scheduled kernel, from its features and the rates of a device.

A kernel takes one launch per phase, plus a smooth maximum of the times of everything that the device does concurrently:
moving bytes through memory and its caches, issuing instructions, starting blocks, and waiting, once per wave of blocks,
for a block's sequence of loads and barriers. The more waves, the better these overlap.

The form is the roofline model (Williams, Waterman and Patterson, CACM 2009) with the concurrency terms of Hong and Kim
(ISCA 2009).
"""

import functools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from importlib.resources import files
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from fuser_lab.cost.amounts import seconds_label
from fuser_lab.cost.device import CLOCK, DEFAULT, DEVICES, THREAD_REGISTERS, WARP, WORD_BYTES, Device

Numbers = npt.NDArray[np.float64]
Columns = Mapping[str, npt.NDArray[Any]]
DATA_SHEET: Final = "its data sheet"
STYLES: Final = ("elements", "rows", "columns", "tiles")
# The time of a sector that memory sends alone, as a multiple of that of its bytes in a stream. On 2026-11-30, an H200
# took 2.93 ms for 104 ops of [16777, 1000] with two inputs of Float in column-major order, the only such kernel
# measured: 0.51 ms are predicted without the 940 MB of sectors to which its blocks return, of which the L2 cache holds
# a quarter.
_SCATTERED: Final = 20.0
_LANE_WORD: Final = WARP * WORD_BYTES  # bytes that a warp moves if each lane moves one word
_MOST_BLOCKS: Final = 32  # per multiprocessor
_IN_REGISTERS: Final = 1.5  # words of a thread's arrays per register up to which they fit in registers
# Assumptions for a device that was not measured: seconds, and fractions of a multiprocessor's cycle.
_ISSUED: Final = 4  # instructions per cycle of a multiprocessor
_SPECIAL: Final = 0.5  # functions of a warp per cycle: 16 units for 32 lanes
_SHARPNESS: Final = 1.3  # exponent with which the times of resources add up: 1 is their sum, infinity their maximum


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelFeatures:
    """What the time of a kernel depends on.

    Attributes
    ----------
    style
        The style of the largest loop nest: ``elements``, ``rows``, ``columns`` or ``tiles``.
    launches
        Number of phases.
    started, warps
        Blocks and warps started, over all phases.
    read, written
        Bytes of global memory that are accessed at least once.
    fetched, near, gathered
        Bytes of the sectors that warps request; of these, those of buffers that fit into a multiprocessor's cache; and
        those of buffers read at data-dependent indices.
    stored, partial
        Bytes of the sectors that warps write, and those of sectors that an access writes only partially.
    again, between
        Bytes of ``fetched`` in sectors that a warp uses in part, and of which it needs another part in the next round
        of a loop over rows; bytes of the sectors that a block of the largest phase accesses in such a round.
    lines, shared_accesses, moves
        Lines of 128 bytes that warps access, their accesses to shared memory, and those to per-thread arrays.
    simple, dividing, special
        Warp instructions by class.
    blocks, threads, shared, registers, spilled, resident
        Of the largest phase: blocks, threads per block, bytes of shared memory per block, registers and spilled bytes
        per thread, blocks that fit on a multiprocessor. Registers and resident are 0 if the kernel was not compiled.
    rounds, unrolled, meetings, scratch
        Of the largest phase: loads that a warp waits for one after another, with loops that the compiler unrolls
        counted once, and once per iteration; barriers and reductions of a block; bytes of a thread's arrays.
    """

    style: str
    launches: int
    started: int
    blocks: int
    threads: int
    shared: int
    registers: int
    spilled: int
    resident: int
    warps: float
    read: float
    written: float
    fetched: float
    near: float
    gathered: float
    stored: float
    partial: float
    lines: float
    shared_accesses: float
    moves: float
    simple: float
    dividing: float
    special: float
    rounds: float
    unrolled: float
    meetings: float
    scratch: float
    again: float = 0.0  # measurements of kernels before 2026-11-30 do not have these two
    between: float = 0.0


_NUMBERS: Final = tuple(field.name for field in fields(KernelFeatures) if field.name != "style")


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """Factors on a prediction within which 80 % of measured times are expected."""

    low: float = 1.0
    high: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Predicted seconds of a kernel, with the bounds within which eight of ten measurements are expected.

    ``low`` and ``high`` equal ``seconds`` where nothing was measured. ``launch`` is the part of ``seconds`` before the
    kernel starts: of its launch, or in a plan on a GPU, of the gap after the kernel before it.
    """

    seconds: float
    low: float
    high: float
    source: str
    launch: float = 0.0

    def __str__(self) -> str:
        """Return the time, its interval and its source."""
        bounds = f" ({seconds_label(self.low)} to {seconds_label(self.high)})" if self.low < self.high else ""
        return f"{seconds_label(self.seconds)}{bounds}, from {self.source}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """The parameters of the model, all positive: seconds, bytes or instructions per second, or numbers.

    Attributes
    ----------
    launch, phase
        Seconds of an empty kernel, and of each further phase.
    read, write, kept
        Bytes per second read from and written to memory; the size in bytes of outputs of which half remain in the L2
        cache when the kernel ends.
    cache, stores, partials
        Bytes per second of the L2 cache, for sectors that are read, written, and partially written.
    lines, shared, local
        Per second: cache lines that multiprocessors look up, accesses of warps to shared memory, and bytes of
        per-thread arrays that are not in registers.
    issue, special
        Warp instructions per second: all, and divisions and functions.
    blocks, warps
        Blocks and warps started per second.
    latency, hoisted, step, block, instruction
        Seconds of a block: for a load that a warp waits for, for a load in an unrolled loop, for a barrier, to start
        and end, and for a warp instruction.
    tail
        Fraction of a partial last wave that is lost.
    sharpness, overlap
        Exponent of the smooth maximum with one wave of blocks, and how much larger it is with many.
    """

    launch: float
    phase: float
    read: float
    write: float
    kept: float
    cache: float
    stores: float
    partials: float
    lines: float
    shared: float
    local: float
    issue: float
    special: float
    blocks: float
    warps: float
    latency: float
    hoisted: float
    step: float
    block: float
    instruction: float
    tail: float
    sharpness: float
    overlap: float

    @classmethod
    def of(cls, device: Device) -> "Rates":
        """Return the rates of a device from its data sheet; the remaining rates are assumed equal on all GPUs."""
        memory, cycles = 0.9 * device.bandwidth * 1e9, CLOCK * device.sms
        return cls(
            launch=3e-6, phase=3.5e-6, read=memory, write=memory, kept=device.l2 / 10, cache=40 * cycles,
            stores=40 * cycles, partials=10 * cycles, lines=cycles, shared=cycles, local=50 * cycles,
            issue=_ISSUED * cycles, special=_SPECIAL * cycles, blocks=1.2 * CLOCK, warps=cycles, latency=0.3e-6,
            hoisted=0.02e-6, step=0.3e-6, block=0.5e-6, instruction=2e-9, tail=0.5, sharpness=_SHARPNESS,
            overlap=_SHARPNESS,
        )


NAMES: Final = tuple(field.name for field in fields(Rates))
_UNSURE: Final = tuple(name for name in NAMES if name not in {"tail", "sharpness", "overlap"})  # wrong for a kernel


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRates:
    """How kernels of one plan follow each other; see `fuser_lab.cost.plan_time`. All are positive.

    Attributes
    ----------
    gap, phase
        Seconds between the end of a kernel and the start of the next one, and of each further phase of a kernel.
    held
        Share of the L2 cache that holds recently accessed tensors.
    source
        Where they come from, such as ``"420 plans"``.
    """

    gap: float = 0.5e-6
    phase: float = 2e-6
    held: float = 0.8
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelModel:
    """Times of kernels on one device.

    ``source`` says where the rates come from, such as ``"its data sheet"`` or ``"614 measurements"``; ``intervals`` are
    by style, with ``""`` for styles that were not measured. ``together`` has the rates of kernels that follow each
    other in a plan.
    """

    device: Device
    rates: Rates
    source: str = DATA_SHEET
    intervals: Mapping[str, Interval] | None = None
    together: PlanRates = PlanRates()

    @property
    def is_measured(self) -> bool:
        """Whether the rates were fitted to measurements of this device."""
        return self.source != DATA_SHEET

    def seconds(self, kernel: KernelFeatures) -> float:
        """Return the predicted time of a kernel."""
        return float(predicted_seconds(columns([kernel]), self.rates, self.device)[0])

    def predict(
        self, kernel: KernelFeatures, seconds: float | None = None, *, is_first: bool = True,
    ) -> Prediction:
        """Return the predicted time of a kernel, or the given time of it in a plan, with its bounds."""
        seconds = self.seconds(kernel) if seconds is None else seconds
        intervals = self.intervals or {}
        interval = intervals.get(kernel.style) or intervals.get("") or Interval()
        return Prediction(
            seconds=seconds, low=seconds * interval.low, high=seconds * interval.high, source=self.source,
            launch=self.rates.launch if is_first else self.together.gap,
        )

    def with_errors(self) -> Iterator["KernelModel"]:
        """Yield the model, and those in which one rate is halved or doubled."""
        yield self
        for factor in (0.5, 2.0):
            for name in _UNSURE:
                yield replace(self, rates=replace(self.rates, **{name: factor * getattr(self.rates, name)}))
            together = self.together
            yield replace(self, together=replace(together, gap=factor * together.gap))
            yield replace(self, together=replace(together, phase=factor * together.phase))

    def __str__(self) -> str:
        """Return the source of the rates, and the rates."""
        return f"{self.device.name}, from {self.source}: " + ", ".join(
            f"{name} {value:.3g}" for name, value in asdict(self.rates).items()
        )


def columns(kernels: Sequence[KernelFeatures]) -> Columns:
    """Return the features of kernels as arrays by name; ``style`` has indices into `STYLES`."""
    arrays = {
        name: np.array([getattr(kernel, name) for kernel in kernels], np.float64) for name in _NUMBERS
    }
    return arrays | {"style": np.array([STYLES.index(kernel.style) for kernel in kernels])}


def predicted_seconds(kernels: Columns, rates: Rates, device: Device) -> Numbers:
    """Return the times of kernels under the model."""
    waves = _waves(kernels, device)
    terms = np.stack(list(_busy_times(kernels, rates, device).values()))
    exponent = rates.sharpness + rates.overlap * (1 - 1 / waves)
    largest = np.maximum(terms.max(axis=0), 1e-12)
    busy = largest * ((terms / largest) ** exponent).sum(axis=0) ** (1 / exponent)
    seconds: Numbers = rates.launch + (kernels["launches"] - 1) * rates.phase + busy
    return seconds


def _waves(kernels: Columns, device: Device) -> Numbers:
    slots = device.sms * _resident_blocks(kernels, device)
    waves: Numbers = np.maximum(np.maximum(kernels["blocks"], 1.0) / slots, 1.0)
    return waves


def _busy_times(kernels: Columns, rates: Rates, device: Device) -> dict[str, Numbers]:
    """Return the busy seconds of each resource of a device, such as memory; resources work in parallel."""
    k = kernels
    blocks = np.maximum(k["blocks"], 1.0)
    slots = device.sms * _resident_blocks(k, device)
    waves = _waves(k, device)
    uneven = 1 + rates.tail * np.where(blocks > slots, np.ceil(blocks / slots) * slots / blocks - 1, 0.0)
    idle = 1 / np.minimum(blocks / device.sms, 1.0)  # multiprocessors without a block issue nothing
    moved = k["read"] + _SCATTERED * _bytes_sent_again(k, device)
    memory = moved / rates.read + k["written"] ** 2 / (k["written"] + rates.kept) / rates.write
    cache = (
        np.maximum(k["fetched"] - k["near"], 0.0) / rates.cache + k["stored"] / rates.stores
        + k["partial"] / rates.partials
    )
    costly = k["special"] + 2 * k["dividing"]
    simple = k["simple"] + k["lines"] + k["shared_accesses"]
    each = (simple + 4 * costly) / np.maximum(k["warps"], 1.0)
    chain = (
        rates.block + rates.latency * k["rounds"] + rates.hoisted * k["unrolled"] + rates.step * k["meetings"]
        + rates.instruction * each
    )
    return {
        "memory": memory * np.sqrt(uneven), "sectors of the L2 cache": cache,
        "instructions": idle * simple / rates.issue, "divisions and functions": idle * costly / rates.special,
        "cache lines and shared memory": idle * (k["lines"] / rates.lines + k["shared_accesses"] / rates.shared),
        "arrays outside registers": idle * _outside_registers(k) / rates.local,
        "starting blocks": k["started"] / rates.blocks + k["warps"] / rates.warps,
        "loads and barriers in sequence": waves * uneven * chain,
    }


def _bytes_sent_again(k: Columns, device: Device) -> Numbers:
    """Return the bytes of sectors that leave the caches before a block returns to them, so memory sends them again.

    Between two rounds, the blocks that run move the sectors of one round each. What fits into the cache of their
    multiprocessor stays there. Otherwise the L2 cache has them, as far as they fit into one of its two partitions: each
    caches what its multiprocessors read (NVIDIA A100 Tensor Core GPU Architecture, L2 cache).
    """
    resident = np.minimum(_resident_blocks(k, device), np.maximum(k["blocks"] / device.sms, 1.0))
    near = np.maximum(device.shared_per_sm - resident * k["shared"], 0.0)
    moved = resident * k["between"]
    everywhere = moved * np.minimum(device.sms, np.maximum(k["blocks"], 1.0))
    held = np.where(moved <= near, 1.0, np.minimum(device.l2 / 2 / np.maximum(everywhere, 1.0), 1.0))
    nbytes: Numbers = k["again"] * (1 - held)
    return nbytes


def _outside_registers(k: Columns) -> Numbers:
    """Return the bytes that warps move to and from per-thread arrays that do not fit in registers."""
    registers = np.where(k["registers"] > 0, k["registers"], THREAD_REGISTERS)
    in_memory = k["scratch"] > _IN_REGISTERS * WORD_BYTES * registers
    spilled: Numbers = _LANE_WORD * (np.where(in_memory, k["moves"], 0.0) + k["spilled"] / WORD_BYTES * k["warps"])
    return spilled


def _resident_blocks(k: Columns, device: Device) -> Numbers:
    """Return how many blocks fit on a multiprocessor: as compiled, or as threads and shared memory allow."""
    of_threads = device.threads_per_sm // np.maximum(k["threads"], 1)
    of_shared = np.where(k["shared"] > 0, device.shared_per_sm // np.maximum(k["shared"], 1), _MOST_BLOCKS)
    allowed = np.clip(np.minimum(of_threads, of_shared), 1, _MOST_BLOCKS)
    blocks: Numbers = np.where(k["resident"] > 0, k["resident"], allowed)
    return blocks


def model_from(record: Mapping[str, Any], device: Device) -> KernelModel:
    """Return the model of a device that a file of ``rates`` has."""
    return KernelModel(
        device=device, source=record["source"], rates=Rates(**record["rates"]),
        intervals={name: Interval(**bounds) for name, bounds in record["intervals"].items()},
        together=PlanRates(**record["together"]),
    )


@functools.cache
def kernel_model(device: Device = DEFAULT) -> KernelModel:
    """Return the model of a device: fitted to measurements in the package, or derived from its data sheet."""
    place = files(__package__).joinpath("rates", f"{device.name}.json")
    if device not in DEVICES or not place.is_file():  # a user's device may have any name
        return KernelModel(device=device, rates=Rates.of(device))
    return model_from(json.loads(place.read_text(encoding="utf-8")), device)
