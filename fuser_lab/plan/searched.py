"""Plans that were searched for, on disk by what was asked, so that other processes do not search again.

They are files of `fuser_lab.runtime.store`, which returns only what this user has written: plans are pickles.
"""

import functools
import hashlib
import pickle
from collections.abc import Callable
from pathlib import Path

from fuser_lab.plan.plan import Plan
from fuser_lab.runtime import store

SEARCHED = frozenset({"optimal", "fastest"})  # the strategies that search


def searched_plan(asked: str, make: Callable[[], Plan]) -> Plan:
    """Return the plan on disk for a text that determines it, or else the one that ``make`` returns."""
    name = f"plans/{hashlib.sha256(f'{files_digest()} {asked}'.encode()).hexdigest()}"
    content = store.read(name)
    if content is not None:
        plan = pickle.loads(content)  # noqa: S301 - written by this user and sealed
        if isinstance(plan, Plan):
            return plan
    plan = make()
    store.write(name, pickle.dumps(plan))
    return plan


@functools.cache
def files_digest() -> str:
    """Return a digest of the package's files, on which plans, graphs and their pickles depend."""
    digest = hashlib.sha256()
    package = Path(__file__).parents[1]
    for place in sorted(package.rglob("*")):
        if place.suffix in {".py", ".json", ".toml"}:
            digest.update(f"{place.relative_to(package)} {place.stat().st_size} ".encode() + place.read_bytes())
    return digest.hexdigest()
