"""Tasks on a dask.distributed cluster: which workers may do them, and their rows as they come.

Queues, retries after the loss of a worker and the movement of data are dask's. A worker that measures has one thread
and one of the resource that is measured, ``GPU=1`` or ``CPU=1``, so that nothing runs beside a measurement.
"""

import contextlib
import importlib
import pkgutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from fuser_lab.arguments import brief, named
from fuser_lab.errors import InputError, SweepWarning, UnsupportedError, warn
from fuser_lab.lab.performing import Peers, capability, compiled_ahead, failed, performed
from fuser_lab.lab.schema import Row
from fuser_lab.lab.tasks import Task, Work
from fuser_lab.version import __version__

_PATIENCE: Final = 10.0  # seconds until an address is known not to answer, or a cluster to have no workers
_RESOURCES: Final = {"cpu": "CPU", "cuda": "GPU"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Workers:
    """Addresses of workers: those that measure, and the others; ``left_out`` says that the cluster has more."""

    measuring: tuple[str, ...]
    others: tuple[str, ...]
    left_out: bool


@contextlib.contextmanager
def connected(client: Any) -> Iterator[Any]:
    """Return a context with a client: the one given, or one for an address, closed at the end.

    Raises
    ------
    ArgumentTypeError
        If a client is asynchronous, or the argument neither a client nor an address.
    InputError
        If nothing answers at the address.
    UnsupportedError
        If dask.distributed is not installed.
    """
    distributed = _distributed()
    if isinstance(client, distributed.Client):
        if client.asynchronous:
            msg = "Sweep.run: client must not be asynchronous; use distributed.Client(address)."
            raise InputError(msg)
        yield client
        return
    try:
        made = distributed.Client(client, timeout=_PATIENCE, set_as_default=False)
    except (OSError, ValueError, RuntimeError, ImportError) as error:  # TimeoutError is an OSError
        is_late = isinstance(error, OSError)
        why = f"no scheduler answers there within {_PATIENCE:g} s" if is_late else str(error).partition("\n")[0]
        msg = f"Sweep.run: cannot connect to {brief(client)}: {why}; `dask scheduler` prints the address it listens at."
        raise InputError(msg) from None
    with contextlib.closing(made):
        yield made


def rows_from(
    client: Any, tasks: Sequence[Task], peers: Mapping[str, Peers], run: str,
) -> Iterator[tuple[Task, list[Row]]]:
    """Yield each task with its rows, as workers finish them; where the caller stops early, the others are cancelled.

    Raises
    ------
    InputError
        If no worker of the cluster can do the tasks, or the scheduler is lost.
    """
    distributed = _distributed()
    works_alone = tasks[0].work is Work.TIME
    resource = _RESOURCES[tasks[0].device] if works_alone else ""
    workers = workers_of(client, resource)
    options: dict[str, Any] = {"pure": False, "run": run, "version": __version__}
    lists: list[list[Any]] = [list(tasks), [peers.get(task.subject, {}) for task in tasks]]
    if works_alone:
        options["resources"] = {resource: 1}
        if workers.left_out:
            options["workers"] = list(workers.measuring)
        if resource == "GPU" and workers.others:
            lists.append(_compiled_beside(client, tasks, workers))
    else:
        # dask may choose others when these are gone, unless some must not be used.
        options |= {"workers": list(workers.others), "allow_other_workers": not workers.left_out}
    futures = client.map(performed, *lists, key=[f"{task.key}-{run}" for task in tasks], **options)
    left = {future.key: (task, future) for task, future in zip(tasks, futures, strict=True)}
    del futures, lists
    try:
        completed = distributed.as_completed(
            [future for _, future in left.values()], loop=client.loop, with_results=True, raise_errors=False,
        )
        for future, result in completed:
            task, _ = left.pop(future.key)
            if future.status == "finished":
                yield task, result
            elif future.status == "error":
                yield task, failed(task, _sentence(result))
            else:
                msg = f"Sweep.run: the scheduler is lost with {len(left) + 1} tasks left; run the sweep again to go on."
                raise InputError(msg)
    finally:
        if left:
            with contextlib.suppress(Exception):  # of a scheduler that is gone
                client.cancel([future for _, future in left.values()], force=True)


def workers_of(client: Any, resource: str) -> Workers:
    """Return the workers of a cluster that have this version of fuser_lab, sorted by whether they have a resource.

    Raises
    ------
    InputError
        If there are none for the work.
    """
    try:
        client.wait_for_workers(1, timeout=_PATIENCE)
    except TimeoutError:
        msg = f"Sweep.run: the cluster has no workers after {_PATIENCE:g} s; start some with `dask worker`."
        raise InputError(msg) from None
    known = client.scheduler_info(n_workers=-1)["workers"]
    # A function of the standard library: one of ours could not be read where fuser_lab is missing.
    found = client.run(pkgutil.resolve_name, "fuser_lab:__version__", on_error="return")
    refused = {address: why for address in known if (why := _refusal(found.get(address)))}
    for address, why in refused.items():
        warn(f"Sweep.run: the worker {address} is left out: {why}.", SweepWarning)
    good = [address for address in known if address not in refused]
    if not good:
        msg = f"Sweep.run: none of the {len(known)} workers can do the tasks: {next(iter(refused.values()))}."
        raise InputError(msg)
    measuring = tuple(address for address in good if resource and known[address]["resources"].get(resource))
    if resource:
        _check_measuring(known, measuring, resource)
    reserved = {a for a in good if any(known[a]["resources"].get(name) for name in _RESOURCES.values())}
    others = tuple(address for address in good if address not in reserved)
    return Workers(measuring=measuring, others=others if resource else others or tuple(good), left_out=bool(refused))


def _check_measuring(known: dict[str, Any], measuring: Sequence[str], resource: str) -> None:
    if not measuring:
        what = "GPU" if resource == "GPU" else "host"
        msg = (
            f"Sweep.run: no worker has the resource {resource}, which measurements need; start one per {what} with "
            f"`dask worker ADDRESS --nthreads 1 --resources {resource}=1`."
        )
        raise InputError(msg)
    wide = [address for address in measuring if known[address]["nthreads"] != 1]
    if wide:
        msg = (
            f"Sweep.run: workers that measure have one thread, so that nothing runs beside a measurement; start "
            f"{named(wide)} with --nthreads 1."
        )
        raise InputError(msg)


def _refusal(found: Any) -> str:
    """Return why a worker cannot take part; ``found`` is its version, or the exception that looking for it raised."""
    if found == __version__:
        return ""
    if isinstance(found, str):
        return f"it has fuser_lab {found}, and this process has {__version__}"
    return "it has no fuser_lab" if isinstance(found, ImportError) else f"it does not answer ({found})"


def _compiled_beside(client: Any, tasks: Sequence[Task], workers: Workers) -> list[Any]:
    """Return futures of the tasks' kernels, compiled by workers that do not measure, for all GPUs of the cluster."""
    asked = [
        client.submit(capability, workers=[address], resources={"GPU": 1}, pure=False) for address in workers.measuring
    ]
    capabilities = tuple(sorted(set(client.gather(asked))))
    futures: list[Any] = client.map(
        compiled_ahead, tasks, capabilities=capabilities, pure=False, workers=list(workers.others),
        allow_other_workers=not workers.left_out,
    )
    return futures


def _sentence(raised: Any) -> str:
    """Return why no worker could finish a task: dask raised an exception, or gives its type, value and traceback."""
    parts = raised if isinstance(raised, tuple) else (raised,)
    error: Any = next((part for part in parts if isinstance(part, BaseException)), raised)
    if type(error).__name__ == "KilledWorker":
        return f"{error.allowed_failures + 1} workers died while they ran the task."
    if isinstance(error, ImportError):
        return f"a worker that joined later cannot import the package: {error}."
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def _distributed() -> Any:
    try:
        return importlib.import_module("distributed")
    except ImportError:
        msg = "Sweep.run: clusters need dask.distributed: pip install 'fuser_lab[lab]'."
        raise UnsupportedError(msg) from None
