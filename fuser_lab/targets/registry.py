"""The registered targets, by name, and what devices of arrays say about them."""

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
        raise DefinitionError(f"register: a target named {target.name!r} already exists.")
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


def with_blocks() -> Target:
    """Return the target that loops over blocks and threads are lowered for where no other one is named.

    It is the first one registered that has blocks. Needs no device: a CPU evaluates its kernels in lock step.
    """
    return next(target for target in _TARGETS.values() if target.has_blocks)


def on_this_cpu() -> Target:
    """Return the target whose kernels a CPU's times are predicted for: the first one registered that has no blocks."""
    return next(target for target in _TARGETS.values() if not target.has_blocks)


# Devices of arrays


def is_on_host(device: str) -> bool:
    """Whether arrays of a device, such as ``"cpu"`` or ``"cuda:0"``, are in host memory; False for unknown devices."""
    target = find(device)
    return target is not None and target.on_host


def has_own_memory(device: str) -> bool:
    """Whether a device of a target has memory of its own, as a GPU has; False for unknown devices."""
    target = find(device)
    return target is not None and not target.on_host


def holders() -> tuple[str, ...]:
    """Return the types of devices whose arrays kernels can read: the host, and each target with memory of its own."""
    host = next(target for target in _TARGETS.values() if target.on_host)
    return tuple(target.name for target in _TARGETS.values() if target is host or not target.on_host)


def target_of_label(label: str) -> Target:
    """Return the target of a device as tables name it: ``"CPU (2 threads)"``, or the name of a GPU."""
    host = next(target for target in _TARGETS.values() if target.on_host)
    devices = (target for target in _TARGETS.values() if not target.on_host)
    return host if label.startswith(host.label) else next(devices, host)
