"""The CPU of this machine as a device for predictions, with rates that are measured once and kept on disk."""

import contextlib
import functools
from dataclasses import asdict
from pathlib import Path

from fuser_lab.cost.device import KIB, THIS_CPU, TYPICAL_CPU, Device, host_device
from fuser_lab.cost.host_fitting import typical_rates
from fuser_lab.cost.host_time import HostCaches, HostRates
from fuser_lab.errors import InputError
from fuser_lab.files.json_text import json_text
from fuser_lab.files.reading import MissingFileError, UnreadableError, json_of, record_of
from fuser_lab.runtime.processors import processor_name, processors, threads_here
from fuser_lab.runtime.store import configured_folder

COMMAND = "python -m fuser_lab fit --this-cpu"


def rates_file() -> Path:
    """Return the file of this CPU's rates, with the current number of threads, in the cache directory."""
    return configured_folder() / "rates" / f"{THIS_CPU}, {threads_here()} threads.json"


def keep(rates: HostRates) -> Path:
    """Store the rates of this CPU, and return the file."""
    place = rates_file()
    place.parent.mkdir(parents=True, exist_ok=True)
    record = {"schema": "fuser_lab.rates", "version": 2, **_machine(), "rates": asdict(rates)}
    place.write_text(json_text(record, indent=1) + "\n", encoding="utf-8")
    return place


def this_cpu() -> Device:
    """Return the CPU of this machine with its stored rates.

    Raises
    ------
    InputError
        If its rates have not been measured, or the stored rates cannot be read or belong to another processor.
    """
    how = f"{COMMAND!r} measures them in 20 s"
    try:
        record = json_of(rates_file())
        rates = record_of(HostRates, record["rates"], "rates")
        machine = {name: record[name] for name in _machine()}
        _check(rates)
    except MissingFileError:
        raise InputError(f"target {THIS_CPU!r}: its rates have not been measured; {how}.") from None
    except (UnreadableError, TypeError, KeyError) as error:
        raise InputError(f"target {THIS_CPU!r}: {rates_file()} cannot be read ({error}); {how}.") from None
    if machine != _machine():
        was, now = (f"{facts['processor']} with {facts['threads']} threads" for facts in (machine, _machine()))
        raise InputError(f"target {THIS_CPU!r}: the stored rates are for {was}, but this CPU is {now}; {how}.")
    return host_device(rates)


def typical_cpu() -> Device:
    """Return the CPU of this machine with typical rates, and its own caches and number of threads."""
    return host_device(typical_rates(caches_here()), TYPICAL_CPU)


def cpu_of_regions() -> Device:
    """Return the CPU of this machine with its stored rates, or with typical ones if none have been measured."""
    return this_cpu() if rates_file().exists() else typical_cpu()


def _check(rates: HostRates) -> None:
    for name, value in {**asdict(rates), **asdict(rates.caches)}.items():
        if isinstance(value, float | int) and not value >= 0:
            raise UnreadableError(f"{name} is {value}")


def caches_here() -> HostCaches:
    """Return the threads that kernels use here, and the caches as reported by the system, or typical ones."""
    first, second, last = _caches()
    return HostCaches(threads=threads_here(), first=first, second=second, last=max(last, 2 * second))


@functools.cache
def _caches() -> tuple[int, int, int]:
    """Return the bytes of the caches at three levels; 0 for one that is neither reported nor typical."""
    sizes = {1: 32 * KIB, 2: 1024 * KIB, 3: 0}
    for place in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*"):
        with contextlib.suppress(OSError, ValueError):
            kind, level, size, cores = (
                (place / name).read_text(encoding="utf-8").strip()
                for name in ("type", "level", "size", "shared_cpu_list")
            )
            if kind != "Instruction":
                several = -(-processors() // _count(cores)) if level == "3" else 1  # a cache for each group of cores
                sizes[int(level)] = int(size.removesuffix("K")) * KIB * several
    return sizes[1], sizes[2], sizes[3]


def _count(cores: str) -> int:
    """Return the number of cores in a list such as ``0-3,8-11``."""
    ends = [part.partition("-") for part in cores.split(",")]
    return sum(int(last or first) - int(first) + 1 for first, _, last in ends)


def _machine() -> dict[str, str | int]:
    return {"processor": processor_name(), "threads": threads_here()}
