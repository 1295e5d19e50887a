"""The registered targets, by name."""

from fuser_lab.errors import DefinitionError
from fuser_lab.targets.record import Target

_TARGETS: dict[str, Target] = {}


def register(target: Target) -> Target:
    """Add a target, and return it.

    Raises
    ------
    DefinitionError
        If the name is already registered.
    """
    if _TARGETS.setdefault(target.name, target) is not target:
        msg = f"register: a target named {target.name!r} already exists."
        raise DefinitionError(msg)
    return target


def names() -> tuple[str, ...]:
    """Return the names of all targets, in the order in which they were registered."""
    return tuple(_TARGETS)


def find(name: str) -> Target | None:
    """Return a target by its name, or by the name of one of its devices; None if there is none."""
    target = _TARGETS.get(name.partition(":")[0])
    try:
        return None if target is None or (target.number(name) is None and target.name != name) else target
    except ValueError:
        return None


def target_of(name: str) -> Target:
    """Return a target by its name, or by the name of one of its devices.

    Raises
    ------
    KeyError
        If there is none; callers that take the name from users ask `find` first.
    """
    target = find(name)
    if target is None:
        raise KeyError(name)
    return target
