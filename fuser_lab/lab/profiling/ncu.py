"""Nsight Compute: the requested metrics, the parser of its CSV, and what bounds a kernel by its counters."""

import csv
import io
import math
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fuser_lab.errors import UnsupportedError
from fuser_lab.report.units import bytes_label, seconds_label

_STALL: Final = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
STALLS: Final = {
    "long_scoreboard": "memory", "short_scoreboard": "shared memory", "mio_throttle": "the queue of shared memory",
    "lg_throttle": "the queue of memory", "barrier": "barriers", "math_pipe_throttle": "the arithmetic units",
    "wait": "the latency of arithmetic", "not_selected": "other warps", "no_instruction": "instructions",
    "branch_resolving": "branches", "drain": "stores at the end", "membar": "memory fences",
    "imc_miss": "constants", "dispatch_stall": "the dispatcher", "tex_throttle": "the queue of textures",
    "sleeping": "sleep", "misc": "other things",
}
METRICS: Final = {
    "seconds": "gpu__time_duration.sum",
    "dram_read": "dram__bytes_read.sum",
    "dram_written": "dram__bytes_write.sum",
    "l2_bytes": "lts__t_bytes.sum",
    "dram_share": "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "l2_share": "lts__throughput.avg.pct_of_peak_sustained_elapsed",
    "sm_share": "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "occupancy": "sm__warps_active.avg.pct_of_peak_sustained_active",
    "registers": "launch__registers_per_thread",
    "bank_conflicts": "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum",
    "shared_wavefronts": "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum",
}
# Units of Nsight Compute, as factors of seconds, bytes and shares of 1.
_UNITS: Final = {
    "nsecond": 1e-9, "ns": 1e-9, "usecond": 1e-6, "us": 1e-6, "msecond": 1e-3, "ms": 1e-3, "second": 1.0, "s": 1.0,
    "byte": 1.0, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9, "%": 0.01,
}
_ENDING: Final = "from fuser_lab.lab.profiling.child import run\n\nrun(plan, inputs)\n"
_HIGH: Final = 0.6  # minimum share of a peak for a unit to count as the bound, as in Nsight Compute's speed of light
_SHORT: Final = 5e-6  # seconds below which launch overhead takes most of the time
_CONFLICTS: Final = 0.2  # share of shared memory wavefronts above which conflicts are reported


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelCounters:
    """Counters of one launch: seconds, bytes, shares from 0 to 1; NaN for what was not reported.

    ``stalls`` are the waiting warps per issued instruction, by reason.
    """

    name: str
    seconds: float = math.nan
    dram_read: float = math.nan
    dram_written: float = math.nan
    l2_bytes: float = math.nan
    dram_share: float = math.nan
    l2_share: float = math.nan
    sm_share: float = math.nan
    occupancy: float = math.nan
    registers: float = math.nan
    bank_conflicts: float = math.nan
    shared_wavefronts: float = math.nan
    stalls: tuple[tuple[str, float], ...] = ()

    @property
    def dram_bytes(self) -> float:
        """Bytes between memory and the chip, in both directions."""
        return self.dram_read + self.dram_written

    @property
    def top_stall(self) -> tuple[str, float] | None:
        """The most frequent reason for which warps wait, and its share."""
        waiting = [(name, value) for name, value in self.stalls if value > 0]
        if not waiting:
            return None
        name, most = max(waiting, key=lambda item: item[1])
        return name, most / sum(value for _, value in waiting)

    @property
    def bound(self) -> str:
        """``"memory"``, ``"L2"``, ``"arithmetic"``, ``"launches"`` or ``"latency"``; ``""`` if nothing is known."""
        shares = {"memory": self.dram_share, "L2": self.l2_share, "arithmetic": self.sm_share}
        finite = {name: share for name, share in shares.items() if not math.isnan(share)}
        if not finite:
            return ""
        name, most = max(finite.items(), key=lambda item: item[1])
        if most >= _HIGH:
            return name
        return "launches" if self.seconds < _SHORT else "latency"

    def sentence(self, counted_bytes: int) -> str:
        """Return what bounds the kernel, with the counters as evidence."""
        if not self.bound:
            return "Nsight Compute reported no rates."
        shares = f"memory at {_percent(self.dram_share)}, L2 at {_percent(self.l2_share)}, multiprocessors at "
        shares += f"{_percent(self.sm_share)} of their peaks"
        said = {
            "memory": f"Bound by memory: {shares}.",
            "L2": f"Bound by the L2 cache: {shares}.",
            "arithmetic": f"Bound by arithmetic and issue: {shares}.",
            "launches": f"Bound by launch overhead: it takes {seconds_label(self.seconds)}, {shares}.",
            "latency": f"Bound by latency: {shares}, with {_percent(self.occupancy)} of the warps active.",
        }[self.bound]
        if self.dram_bytes > 0 and counted_bytes:
            ratio = self.dram_bytes / counted_bytes
            said += f" It moved {bytes_label(round(self.dram_bytes))}, {ratio:.2f} times the bytes counted."
        stall = self.top_stall
        if stall is not None and self.bound in {"latency", "L2", "arithmetic"}:
            said += f" Warps wait most for {STALLS.get(stall[0], stall[0])} ({_percent(stall[1])} of the waiting)."
        if self.shared_wavefronts > 0 and self.bank_conflicts / self.shared_wavefronts > _CONFLICTS:
            share = _percent(self.bank_conflicts / self.shared_wavefronts)
            said += f" Bank conflicts are {share} of the accesses to shared memory."
        return said


def parse_counters(text: str) -> tuple[KernelCounters, ...]:
    """Return the kernels of ``ncu --csv --page raw``, in the order of their launches.

    Lines before the table, printed by programs and Nsight Compute, are skipped. Numbers may have separators.

    Raises
    ------
    UnsupportedError
        If there is no such table; the message contains Nsight Compute's output.
    """
    lines = text.splitlines()
    start = next((n for n, line in enumerate(lines) if line.startswith('"ID"')), None)
    if start is None:
        said = next((line for line in lines if line.startswith("==ERROR==")), lines[-1] if lines else "nothing")
        hint = " Counters need permission: https://developer.nvidia.com/ERR_NVGPUCTRPERM." if "PERM" in said else ""
        msg = f"profile: ncu measured no kernel; it said: {said.removeprefix('==ERROR==').strip()[:200]}.{hint}"
        raise UnsupportedError(msg)
    table = list(csv.reader(io.StringIO("\n".join(lines[start:]))))
    names, units = table[0], dict(zip(table[0], table[1], strict=False))
    counters = []
    for row in table[2:]:
        if len(row) != len(names):
            break
        values = dict(zip(names, row, strict=True))
        stalls = ((name, _value(values, units, _STALL.format(name))) for name in STALLS)
        counters.append(KernelCounters(
            name=values.get("Kernel Name", ""),
            stalls=tuple((name, value) for name, value in stalls if not math.isnan(value)),
            **{field: _value(values, units, metric) for field, metric in METRICS.items()},
        ))
    return tuple(counters)


def _value(values: Mapping[str, str], units: Mapping[str, str], metric: str) -> float:
    try:
        number = float(values.get(metric, "").replace(",", ""))
    except ValueError:
        return math.nan
    return number * _UNITS.get(units.get(metric, ""), 1.0)


def ncu_path() -> str | None:
    """Return the path of ``ncu``: on PATH, or in the CUDA toolkit's folder."""
    usual = Path("/usr/local/cuda/bin/ncu")
    return shutil.which("ncu") or (str(usual) if usual.exists() else None)


def measure_launches(script: str, *, seconds: float = 600.0) -> tuple[KernelCounters, ...]:
    """Return the counters of each launch of one run of a plan, in another process under ``ncu``.

    Parameters
    ----------
    script
        What `Plan.to_python` returns; arrays are made of its inputs there.
    seconds
        When to give up.

    Raises
    ------
    UnsupportedError
        If ncu is not installed, may not read counters, or does not finish in time.
    """
    ncu = ncu_path()
    if ncu is None:
        raise UnsupportedError("profile: ncu (Nsight Compute) is not on the PATH.")
    metrics = ",".join((*METRICS.values(), *map(_STALL.format, STALLS)))
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "plan.py"
        place.write_text(f"{script}\n{_ENDING}", encoding="utf-8")
        command = [
            ncu, "--csv", "--page", "raw", "--print-units", "base", "--profile-from-start", "off", "--metrics", metrics,
            sys.executable, str(place),
        ]
        try:
            done = subprocess.run(  # noqa: S603 - a program of this machine on a file of ours
                command, capture_output=True, text=True, check=False, timeout=seconds,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise UnsupportedError(f"profile: ncu did not finish: {error}.") from None
    return parse_counters(done.stdout or done.stderr)


def _percent(share: float) -> str:
    return "an unknown share" if math.isnan(share) else f"{100 * share:.0f} %"
