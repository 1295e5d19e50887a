"""Devices to plan for: the few numbers that schedulers use."""

from dataclasses import dataclass, replace

from fuser_lab.arguments import TEXT, instance, is_whole, number, optional, take_fields, whole
from fuser_lab.cost.host_time import HostRates

KIB = 1024  # bytes
WARP = 32  # threads that execute one instruction together, on every NVIDIA GPU
WORD_BYTES = 4  # bytes of a register
ACCESS_BYTES = 16  # bytes of the widest memory access of a thread (CUDA C++ Programming Guide, device memory accesses)
SECTOR_BYTES = 32  # bytes of the smallest transaction with memory (CUDA C++ Best Practices Guide, coalesced access)
CLOCK = 1.7e9  # cycles per second of a multiprocessor: near the boost clock of data-center GPUs (data sheets)
LINE_BYTES = 128  # bytes of a line of a multiprocessor's cache, of four sectors
BLOCK_THREADS = 1024  # threads per block at most (CUDA C++ Programming Guide, technical specifications)
MOST_BLOCKS = (1 << 31) - 1  # blocks per launch at most along x (ibid.)
STATIC_SHARED = 48 * KIB  # bytes of shared memory that a block has without a request for more (ibid.)
STATIC_BUFFER = STATIC_SHARED // 3  # bytes of the largest buffer of a static size: a block may have three
MEETING_BYTES = STATIC_SHARED - STATIC_BUFFER // 2  # bytes through which threads combine results, besides other buffers
THREAD_WORDS = 64  # registers of each thread of the largest block: its 1,024 threads share 65,536
THREAD_REGISTERS = 255  # of one thread at most, with compute capability 3.5 or higher (CUDA programming guide)
SHARED_ALIGNMENT = 128  # bytes between buffers in shared memory (nvFuser: csrc/base.h:63, kSharedMemoryAlignmentBytes)
PORTABLE_CLUSTER = 8  # blocks, supported by every GPU with clusters
_MOST = 10**12  # largest count or number of bytes of a device, which no device reaches
_PAIR = "two whole numbers such as (9, 0)"
CAPABILITY = instance(tuple, accepted=_PAIR).but(
    lambda cc: len(cc) == 2 and all(is_whole(part) and 0 <= part < 1000 for part in cc), _PAIR,
)
_COUNT = whole(1, _MOST)
_BYTES = whole(0, _MOST)
_RATE = number(above=0)


_FIELDS = {
    "name": TEXT,
    "cc": CAPABILITY,
    "sms": _COUNT,
    "registers": _COUNT,
    "max_threads_per_block": _COUNT,
    "shared_per_sm": _BYTES,
    "shared_per_block": _BYTES,
    "l2": _BYTES,
    "bandwidth": _RATE,
    "fp32": _RATE,
    "bf16": number(0),
    "host": optional(instance(HostRates)),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A GPU as described by its data sheet.

    Bandwidth is in GB/s, peak rates in TFLOP/s (dense), shared memory and L2 in bytes. If ``host`` has the rates of a
    CPU, kernel times are predicted for that CPU; the other fields are the limits of the GPU that schedulers plan for.

    Raises
    ------
    ArgumentTypeError
        If a field has the wrong type.
    InputError
        If a number is not finite or too small: ``bf16``, ``l2`` and shared memory may be 0, others may not.
    """

    name: str
    cc: tuple[int, int]
    sms: int
    shared_per_sm: int
    shared_per_block: int
    l2: int
    bandwidth: float
    fp32: float
    bf16: float
    registers: int = 65536  # of 4 bytes, per SM
    max_threads_per_block: int = BLOCK_THREADS
    host: HostRates | None = None

    def __post_init__(self) -> None:
        """Raise for values that no GPU has."""
        take_fields(self, **_FIELDS)

    @property
    def register_file(self) -> int:
        """Bytes of registers of one SM."""
        return self.registers * 4

    @property
    def persistent_bytes(self) -> int:
        """Bytes that one SM keeps across a reduction: half the register file."""
        return self.register_file // 2

    @property
    def threads_per_sm(self) -> int:
        """Most threads that one SM runs at once (CUDA C++ Programming Guide, technical specifications)."""
        if self.cc == (7, 5):
            return 1024
        return 1536 if self.cc[0] == 12 or (self.cc[0] == 8 and self.cc[1] > 0) else 2048

    @property
    def large_reduction(self) -> int:
        """Elements from which a reduction is so long that few rows leave most SMs idle: four for each thread of one."""
        return 4 * self.threads_per_sm

    @property
    def max_cluster(self) -> int:
        """Blocks that can reduce together through each other's shared memory; 1 before compute capability 9."""
        return PORTABLE_CLUSTER if self.cc >= (9, 0) else 1

    @property
    def largest_cluster(self) -> int:
        """Most blocks of a cluster for a kernel that requests a non-portable size: 16 on data-center GPUs."""
        return 2 * self.max_cluster if (9, 0) <= self.cc < (12, 0) else self.max_cluster

    @property
    def bytes_per_cycle(self) -> float:
        """Bytes that memory moves for each multiprocessor during one of its cycles."""
        return self.bandwidth * 1e9 / (CLOCK * self.sms)

    @property
    def is_high_bandwidth(self) -> bool:
        """Whether memory is so fast that recomputing an exponential costs more than keeping it."""
        return self.bandwidth / (self.fp32 * 1000) > 0.07


def _gpu(
    name: str, cc: tuple[int, int], sms: int, shared: tuple[int, int], l2: int, rates: tuple[float, float, float],
) -> Device:
    return Device(
        name=name, cc=cc, sms=sms, shared_per_sm=shared[0] * KIB, shared_per_block=shared[1] * KIB, l2=l2 * 10**6,
        bandwidth=rates[0], fp32=rates[1], bf16=rates[2],
    )


A100 = _gpu("A100", (8, 0), 108, (164, 163), 40, (2039, 19.5, 312))
H100 = _gpu("H100", (9, 0), 132, (228, 227), 50, (3350, 67, 989))
H200 = _gpu("H200", (9, 0), 132, (228, 227), 50, (4800, 67, 989))
B200 = _gpu("B200", (10, 0), 148, (228, 227), 126, (7670, 75, 2250))

DEVICES: tuple[Device, ...] = (A100, H100, H200, B200)
DEFAULT = H200
THIS_CPU = "this CPU"
TYPICAL_CPU = "typical CPU"


def host_device(rates: HostRates, name: str = THIS_CPU) -> Device:
    """Return a device that predicts times for a CPU, by default this one; schedulers decide as for the default GPU."""
    vectors = rates.caches.threads / (4 * rates.simple)
    return replace(
        DEFAULT, name=name, bandwidth=rates.bandwidth / 1e9, fp32=2 * vectors / 1e12, bf16=rates.product / 1e12,
        host=rates,
    )
