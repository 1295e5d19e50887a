"""The CPU of this machine as a device for predictions, with rates that are measured once and kept on disk."""

import contextlib
import functools
import json
import platform
from dataclasses import asdict
from pathlib import Path

from fuser_lab.cost.device import THIS_CPU, Device, HostRates, host_device
from fuser_lab.errors import InputError
from fuser_lab.json_text import json_text
from fuser_lab.runtime.store import configured

COMMAND = "python -m fuser_lab fit --this-cpu"


@functools.cache
def processor_name() -> str:
    """Return the processor's model name as reported by the system."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()


def rates_file() -> Path:
    """Return the file of this CPU's rates in the cache directory; it need not exist."""
    return configured() / "rates" / f"{THIS_CPU}.json"


def keep(rates: HostRates) -> Path:
    """Store the rates of this CPU, and return the file."""
    place = rates_file()
    place.parent.mkdir(parents=True, exist_ok=True)
    record = {"schema": "fuser_lab.rates", "version": 1, **_machine(), "rates": asdict(rates)}
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
        record = json.loads(rates_file().read_text(encoding="utf-8"))
        rates = HostRates(**record["rates"])
        machine = {name: record[name] for name in _machine()}
    except FileNotFoundError:
        msg = f"target {THIS_CPU!r}: its rates have not been measured; {how}."
        raise InputError(msg) from None
    except (OSError, ValueError, TypeError, KeyError) as error:
        msg = f"target {THIS_CPU!r}: {rates_file()} cannot be read ({error}); {how}."
        raise InputError(msg) from None
    if machine != _machine():
        was, now = (f"{one['processor']} with {one['threads']} threads" for one in (machine, _machine()))
        msg = f"target {THIS_CPU!r}: the stored rates are for {was}, but this CPU is {now}; {how}."
        raise InputError(msg)
    return host_device(rates)


def _machine() -> dict[str, str | int]:
    from fuser_lab.runtime.ahead import processors

    return {"processor": processor_name(), "threads": processors()}
