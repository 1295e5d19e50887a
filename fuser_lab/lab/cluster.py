"""Tasks on a dask.distributed cluster: which workers may run them, and their rows as they arrive.

dask manages queues, retries after the loss of a worker and data movement. A worker that measures has one thread and one
unit of the measured resource, ``GPU=1`` or ``CPU=1``, so nothing else runs during a measurement.
"""

import contextlib
import importlib
import pkgutil
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from fuser_lab.arguments import brief, listing
from fuser_lab.errors import InputError, SweepWarning, UnsupportedError, warn
from fuser_lab.lab.performing import Peers, capability, compiled_ahead, failure_rows, perform
from fuser_lab.lab.schema import Row
from fuser_lab.lab.tasks import Task, Work
from fuser_lab.targets import is_on_host
from fuser_lab.version import __version__

_PATIENCE: Final = 10.0  # seconds after which an address counts as not answering, or a cluster as having no workers
_FIRST: Final = 4  # tasks per thread that show how long tasks take
_PART: Final = 0.25  # seconds of tasks that are sent together
_LARGEST: Final = 32  # tasks that are sent together
_ON_HOST, _ELSEWHERE = "CPU", "GPU"  # what measurements on a device take


Part = tuple[Task, ...]  # tasks that a worker gets together


@dataclass(frozen=True, slots=True, kw_only=True)
class Workers:
    """Addresses of workers: those that measure, and the others; ``left_out`` says whether the cluster has more."""

    measuring: tuple[str, ...]
    others: tuple[str, ...]
    left_out: bool


@contextlib.contextmanager
def connect(client: Any) -> Iterator[Any]:
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
    distributed = _import_distributed()
    if isinstance(client, distributed.Client):
        if client.asynchronous:
            raise InputError("Sweep.run: client must not be asynchronous; use distributed.Client(address).")
        yield client
        return
    try:
        if isinstance(client, str):  # a client whose construction failed waits for itself when it is collected
            importlib.import_module("distributed.comm.addressing").resolve_address(client)
        made = distributed.Client(client, timeout=_PATIENCE, set_as_default=False)
    except (OSError, ValueError, RuntimeError, ImportError) as error:
        why = str(error).partition("\n")[0]
        if isinstance(error, socket.gaierror):
            why = error.strerror or why
        elif isinstance(error, OSError):  # TimeoutError is one
            why = f"no scheduler answers there within {_PATIENCE:g} s"
        msg = f"Sweep.run: cannot connect to {brief(client)}: {why}; `dask scheduler` prints the address it listens at."
        raise InputError(msg) from None
    with contextlib.closing(made):
        yield made


def rows_from(
    client: Any, tasks: Sequence[Task], peers: Mapping[str, Peers], run: str,
) -> Iterator[tuple[Task, list[Row]]]:
    """Yield each task with its rows as workers finish; if the caller stops early, the others are cancelled.

    Measurements are sent one by one. Other tasks that take milliseconds, as the first ones show, are sent in batches,
    because the scheduler's work per task would take as long.

    Raises
    ------
    InputError
        If no worker of the cluster can run the tasks, or the scheduler is lost.
    """
    distributed = _import_distributed()
    works_alone = tasks[0].work is Work.TIME
    resource = (_ON_HOST if is_on_host(tasks[0].device) else _ELSEWHERE) if works_alone else ""
    workers = workers_of(client, resource)
    options: dict[str, Any] = {"pure": False, "perform": perform, "run": run, "version": __version__}
    if works_alone:
        options["resources"] = {resource: 1}
        if workers.left_out:
            options["workers"] = list(workers.measuring)
    else:
        # dask may choose other workers if these are lost, unless some must not be used.
        options |= {"workers": list(workers.others), "allow_other_workers": not workers.left_out}
    compiles = resource == "GPU" and bool(workers.others)

    def submit(parts: Sequence[Part]) -> dict[str, tuple[Part, Any]]:
        peers_of_parts = [[peers.get(task.subject, {}) for task in part] for part in parts]
        ahead = [_compiled_beside(client, [task for (task,) in parts], workers)] if compiles else []
        names = [f"{part[0].key}-{len(part)}-{run}" for part in parts]
        futures = client.map(_each, [list(part) for part in parts], peers_of_parts, *ahead, key=names, **options)
        return {future.key: (part, future) for part, future in zip(parts, futures, strict=True)}

    threads = sum(count for address, count in client.nthreads().items() if address in workers.others) or 1
    alone = len(tasks) if works_alone else _FIRST * threads
    left: dict[str, tuple[Part, Any]] = {}
    spent: list[float] = []
    try:
        for several in (False, True):
            parts = _parts(tasks[alone:], threads, spent) if several else [(task,) for task in tasks[:alone]]
            left = submit(parts) if parts else {}
            completed = distributed.as_completed(
                [future for _, future in left.values()], loop=client.loop, with_results=True, raise_errors=False,
            )
            for future, result in completed:
                part, _ = left.pop(future.key)
                if future.status == "finished":
                    yield from zip(part, result, strict=True)
                    spent += [rows[-1]["elapsed"] for rows in result]
                elif future.status == "error" and len(part) > 1:
                    # One of them kills its workers; if it is sent alone, the others are completed.
                    again = submit([(task,) for task in part])
                    left |= again
                    completed.update([entry for _, entry in again.values()])
                elif future.status == "error":
                    yield part[0], failure_rows(part[0], _sentence(result))
                else:
                    count = sum(len(waiting) for waiting, _ in left.values()) + len(part)
                    count += 0 if several else len(tasks[alone:])
                    msg = f"Sweep.run: the scheduler is lost with {count} tasks left; run the sweep again to continue."
                    raise InputError(msg)
    finally:
        if left:
            with contextlib.suppress(Exception):  # of a scheduler that is lost
                client.cancel([future for _, future in left.values()], force=True)


def _each(
    tasks: Sequence[Task], peers: Sequence[Peers], _ahead: None = None, *, perform: Callable[..., list[Row]], run: str,
    version: str,
) -> list[list[Row]]:
    """Return the rows of several tasks that a worker runs in sequence."""
    return [perform(task, task_peers, run=run, version=version) for task, task_peers in zip(tasks, peers, strict=True)]


def _parts(tasks: Sequence[Task], threads: int, spent: Sequence[float]) -> list[Part]:
    """Return tasks in batches of about 0.25 s, shorter towards the end, so that workers finish together."""
    most = max(1, min(_LARGEST, int(_PART * len(spent) / max(sum(spent), 1e-9)))) if spent else 1
    parts: list[Part] = []
    place = 0
    while place < len(tasks):
        size = max(1, min(most, (len(tasks) - place) // (2 * threads)))
        parts.append(tuple(tasks[place : place + size]))
        place += size
    return parts


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
    workers = client.scheduler_info(n_workers=-1)["workers"]
    # A function of the standard library, because ours could not be unpickled on workers without fuser_lab.
    versions = client.run(pkgutil.resolve_name, "fuser_lab:__version__", on_error="return")
    refused = {address: why for address in workers if (why := _refusal(versions.get(address)))}
    for address, why in refused.items():
        warn(f"Sweep.run: the worker {address} is left out: {why}.", SweepWarning)
    good = [address for address in workers if address not in refused]
    if not good:
        msg = f"Sweep.run: none of the {len(workers)} workers can run the tasks: {next(iter(refused.values()))}."
        raise InputError(msg)
    measuring = tuple(address for address in good if resource and workers[address]["resources"].get(resource))
    if resource:
        _check_measuring(workers, measuring, resource)
    reserved = {a for a in good if any(workers[a]["resources"].get(name) for name in (_ON_HOST, _ELSEWHERE))}
    others = tuple(address for address in good if address not in reserved)
    return Workers(measuring=measuring, others=others if resource else others or tuple(good), left_out=bool(refused))


def _check_measuring(workers: dict[str, Any], measuring: Sequence[str], resource: str) -> None:
    if not measuring:
        place = "GPU" if resource == "GPU" else "host"
        raise InputError(
            f"Sweep.run: no worker has the resource {resource}, which measurements need; start one per {place} with "
            f"`dask worker ADDRESS --nthreads 1 --resources {resource}=1`."
        )
    wide = [address for address in measuring if workers[address]["nthreads"] != 1]
    if wide:
        raise InputError(
            f"Sweep.run: workers that measure need one thread, so that nothing else runs during a measurement; start "
            f"{listing(wide)} with --nthreads 1."
        )


def _refusal(version: Any) -> str:
    """Return why a worker is excluded; ``version`` is its version, or the exception that the query raised."""
    if version == __version__:
        return ""
    if isinstance(version, str):
        return f"it has fuser_lab {version}, and this process has {__version__}"
    return "fuser_lab is not installed" if isinstance(version, ImportError) else f"it does not answer ({version})"


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
        return f"{error.allowed_failures + 1} workers died while running the task."
    if isinstance(error, ImportError):
        return f"a worker that joined later cannot import the package: {error}."
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def _import_distributed() -> Any:
    try:
        return importlib.import_module("distributed")
    except ImportError:
        raise UnsupportedError("Sweep.run: clusters need dask.distributed: pip install 'fuser_lab[lab]'.") from None
