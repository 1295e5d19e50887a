"""The environment of measurements: machine, processor, driver, versions and commit."""

import contextlib
import functools
import importlib.metadata
import os
import platform
import subprocess
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from fuser_lab.files.json_text import json_text
from fuser_lab.runtime.processors import processor_name

_PACKAGES: Final = ("fuser_lab", "numba", "llvmlite", "numba-cuda", "numba-cuda-mlir", "numpy", "torch", "jax")


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """Everything that may change between two measurements of the same plan.

    Attributes
    ----------
    host, cpu, cores
        Name of the machine, model of its processor and number of cores.
    driver
        Version of the CUDA driver, "" without one.
    versions
        Versions of Python and of packages, as JSON.
    commit
        Git commit of the working directory, with "+" at the end if files differ from it; "" outside a repository.
    """

    host: str = ""
    cpu: str = ""
    cores: int = 0
    driver: str = ""
    versions: str = "{}"
    commit: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the values by name."""
        return asdict(self)


def now() -> str:
    """Return the time, UTC, as text that sorts."""
    return datetime.now(UTC).replace(tzinfo=None).isoformat(timespec="microseconds")


def environment() -> Environment:
    """Return the environment of this process; the commit is that of the working directory at this moment."""
    return Environment(
        host=platform.node(), cpu=processor_name(), cores=os.cpu_count() or 0, driver=_driver(), versions=_versions(),
        commit=_commit(str(Path.cwd())),
    )


@functools.cache
def _driver() -> str:
    with contextlib.suppress(OSError):
        first = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8").partition("\n")[0]
        return next((word for word in first.split() if word[0].isdigit() and "." in word), "")
    return ""


@functools.cache
def _versions() -> str:
    versions = {"python": platform.python_version()}
    for name in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return json_text(versions)


def _commit(folder: str) -> str:
    head = _git(folder, "rev-parse", "HEAD")
    return f"{head}{'+' if _git(folder, 'status', '--porcelain', '--untracked-files=no') else ''}" if head else ""


def _git(folder: str, *arguments: str) -> str:
    try:
        done = subprocess.run(  # noqa: S603 - the user's git, with arguments of our own
            ("git", "-C", folder, *arguments), capture_output=True, text=True, check=False, timeout=10,  # noqa: S607
            stdin=subprocess.DEVNULL, env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
