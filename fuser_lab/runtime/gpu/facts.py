"""Properties of a compiled kernel: PTX, machine code, registers, shared memory, spills, occupancy; needs no GPU."""

import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from fuser_lab.codegen.pipeline import GeneratedKernel
from fuser_lab.cost.device import DEFAULT, WARP, Device
from fuser_lab.errors import UnsupportedError
from fuser_lab.runtime.gpu.cubins import LoadablePhase, machine_code_of

_WARPS = 64  # per multiprocessor, for the compute capabilities of `DEVICES`
_BLOCKS = 32  # per multiprocessor
_REGISTER_UNIT = 256  # granularity of a warp's registers
_WARP_UNIT = 4  # granularity of warps: one per warp scheduler
_RESERVED_SHARED = 1 << 10  # bytes of each block's shared memory that the system reserves from compute capability 8
_DISASSEMBLERS = (("nvdisasm", "-c"), ("cuobjdump", "-sass"))


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchFacts:
    """One launch of a kernel as compiled for a device.

    ``registers`` is per thread, ``shared`` the bytes per block (static and dynamic), ``spilled`` the spilled bytes per
    thread (stored and loaded), and ``stack`` the bytes of a thread's frame in memory: spills, and arrays with dynamic
    indices. ``resident`` blocks fit on a multiprocessor at a time, ``limit`` is the resource that limits them, and
    ``occupancy`` is their share of the multiprocessor's warps.
    """

    name: str
    blocks: int
    threads: tuple[int, int]
    registers: int
    shared: int
    spilled: int
    stack: int
    resident: int
    limit: str
    occupancy: float
    ptx: str
    cubin: bytes
    device: str

    def sass(self) -> str:
        """Return the machine code as text.

        Raises
        ------
        UnsupportedError
            If neither nvdisasm nor cuobjdump is installed.
        """
        for tool, option in _DISASSEMBLERS:
            program = shutil.which(tool)
            if program is not None:
                with tempfile.TemporaryDirectory() as folder:
                    place = Path(folder) / "kernel.cubin"
                    place.write_bytes(self.cubin)
                    command = [program, option, str(place)]
                    said = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603 - no shell
                    return said.stdout
        msg = "showing machine code needs nvdisasm or cuobjdump of the CUDA toolkit; neither is on the PATH."
        raise UnsupportedError(msg)

    def __str__(self) -> str:
        """Return the figures in one line."""
        x, y = self.threads
        spilled = f", {self.spilled} bytes spilled" if self.spilled else ", no spills"
        spilled += f", {self.stack} bytes of a stack frame in memory" if self.stack else ""
        return (
            f"{self.name}: {self.blocks} blocks of {x} x {y} threads, {self.registers} registers, {self.shared} bytes "
            f"of shared memory{spilled}; {self.resident} blocks fit on a multiprocessor of the {self.device} "
            f"({self.limit} are the limit), occupancy {self.occupancy:.0%}"
        )


def launch_facts(generated: GeneratedKernel, device: Device = DEFAULT) -> tuple[LaunchFacts, ...]:
    """Return the facts of each launch of a CUDA kernel, compiled for a device or read from disk.

    Raises
    ------
    CompilationError
        If a compiler refuses the source.
    UnsupportedError
        If it has to be compiled and the source's compiler is not installed.
    """
    return tuple(facts_of(phase, device) for phase in machine_code_of(generated, device.cc))


def facts_of(code: LoadablePhase, device: Device) -> LaunchFacts:
    """Return the facts of one launch, from its PTX and the linker's report."""
    launch = code.phase.launch
    threads = launch.threads[0] * launch.threads[1]
    registers = max(map(int, re.findall(r"Used (\d+) registers", code.log)), default=0)
    # The linker does not count arrays of the module, such as Numba's shared arrays.
    arrays = re.findall(r"\.shared \.align \d+ \.b8 \w+\[(\d+)\]", code.ptx)
    shared = sum(map(int, arrays)) + launch.shared
    resident, limit = occupancy(threads, registers, shared, device)
    return LaunchFacts(
        name=code.phase.name, blocks=launch.blocks, threads=launch.threads, registers=registers, shared=shared,
        spilled=sum(map(int, re.findall(r"(\d+) bytes spill", code.log))),
        stack=max(map(int, re.findall(r"(\d+) bytes stack frame", code.log)), default=0), resident=resident,
        limit=limit, occupancy=resident * -(-threads // WARP) / _WARPS, ptx=code.ptx, cubin=code.cubin,
        device=device.name,
    )


def occupancy(threads: int, registers: int, shared: int, device: Device) -> tuple[int, str]:
    """Return how many blocks fit on a multiprocessor, and the resource that limits them.

    The rules are those of NVIDIA's occupancy calculator for compute capabilities 8.0, 9.0 and 10.0.
    """
    warps = max(-(-threads // WARP), 1)
    limits = {"warps": _WARPS // warps, "blocks": _BLOCKS}
    if registers:
        of_warp = -(-registers * WARP // _REGISTER_UNIT) * _REGISTER_UNIT
        limits["registers"] = device.registers // of_warp // _WARP_UNIT * _WARP_UNIT // warps
    of_block = shared + (_RESERVED_SHARED if device.cc >= (8, 0) else 0)
    if shared:
        limits["bytes of shared memory"] = device.shared_per_sm // of_block
    limit = min(limits, key=lambda name: limits[name])
    return limits[limit], limit

