"""Timing in the background: one run at a time, rows as they come, cancellable."""

import importlib
import inspect
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from fuser_lab.definition.spec import TensorSpec
from fuser_lab.errors import FuserLabError
from fuser_lab.process.forks import renew_in_forks
from fuser_lab_widgets.starting import Postponed, start_work


class Timer(Protocol):
    """Times plans; ``progress(done, total, timings)`` is called after each step with the measurements so far.

    A timer that can also time other functions has ``peers``, like `fuser_lab.time`.
    """

    def __call__(
        self,
        plans: Sequence[Any],
        inputs: Sequence[Any],
        *,
        progress: Callable[[int, int, Any], None],
        cancelled: Callable[[], bool],
    ) -> Any:
        """Return the timings; once ``cancelled()`` is true, those measured so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The progress of a run; ``timings`` are the measurements so far, ``problem`` the sentence of a failure.

    ``model`` is the cost model of the device that ran, once it is known.
    """

    done: int = 0
    total: int = 0
    running: bool = False
    cancelled: bool = False
    timings: Any = None
    problem: str = ""
    model: Any = None


class Runner:
    """Runs a timer beside the kernel's loop and reports each step."""

    def __init__(
        self, timer: Timer, report: Callable[[Progress], None], model: Callable[[Any, Any], Any] | None = None,
    ) -> None:
        self._timer: Any = timer
        self._model = model
        self._report = report
        self._stop = renew_in_forks(threading.Event())
        self._thread: threading.Thread | Postponed | None = None
        self._running = self._closed = False
        self._last = Progress()

    @property
    def times_peers(self) -> bool:
        """Whether the timer can time functions that are not plans."""
        accepted = inspect.signature(self._timer).parameters.values()
        return any(parameter.name == "peers" or parameter.kind is parameter.VAR_KEYWORD for parameter in accepted)

    @property
    def running(self) -> bool:
        """Whether a run is in progress."""
        return self._running

    def start(
        self, plans: Sequence[Any], inputs: Sequence[Any], peers: Mapping[str, Callable[..., Any]] | None = None,
    ) -> bool:
        """Start a run and return True, or return False while one is in progress or once closed.

        Abstract inputs become arrays.
        """
        if self.running or self._closed:
            return False
        self._running = True
        self._stop = stop = renew_in_forks(threading.Event())
        self._last = Progress(running=True)
        self._thread = start_work(lambda: self._run(tuple(plans), inputs, peers, stop))
        return True

    def cancel(self) -> None:
        """Request the run to end after the current measurement."""
        self._stop.set()

    def close(self) -> None:
        """Request the run to end, and start no other."""
        self._closed = True
        self.cancel()

    def wait(self, timeout: float | None = None) -> None:
        """Wait for the run to end."""
        if self._thread is not None:
            self._thread.join(timeout)

    def _run(
        self, plans: Sequence[Any], inputs: Sequence[Any], peers: Mapping[str, Callable[..., Any]] | None,
        stop: threading.Event,
    ) -> None:
        def progress(done: int, total: int, timings: Any) -> None:
            self._last = Progress(done=done, total=total, running=True, timings=timings)
            self._report(self._last)

        problem, timings, model = "", None, None
        try:
            arrays = [v.materialize(seed) if isinstance(v, TensorSpec) else v for seed, v in enumerate(inputs)]
            beside = {"peers": peers} if peers else {}
            timings = self._timer(plans, arrays, progress=progress, cancelled=stop.is_set, **beside)
            if self._model is not None and not stop.is_set():
                model = self._model(timings, plans[0])
        except FuserLabError as error:
            problem = str(error)
        except Exception as error:  # noqa: BLE001 - whatever a kernel raises is shown, not lost in a thread
            problem = f"The run failed: {type(error).__name__}: {error}"
        done, total = self._last.done, self._last.total
        self._running = False
        self._report(
            Progress(
                done=done if stop.is_set() or problem else total,
                total=total,
                cancelled=stop.is_set(),
                timings=self._last.timings if timings is None else timings,
                problem=problem,
                model=model,
            ),
        )


def default_timer(
    plans: Sequence[Any],
    inputs: Sequence[Any],
    *,
    progress: Callable[[int, int, Any], None],
    cancelled: Callable[[], bool],
    peers: Mapping[str, Callable[..., Any]] | None = None,
) -> Any:
    """Return ``fuser_lab.time`` of the plans."""
    api: Any = importlib.import_module("fuser_lab.api.functions")  # loads the runtime, which only a run needs
    return api.time(plans, inputs, peers=peers, progress=progress, cancelled=cancelled)


def default_model(timings: Any, plan: Any) -> Any:
    """Return the cost model of the device on which a plan was timed."""
    calibration: Any = importlib.import_module("fuser_lab.lab.calibration")
    return calibration.model_that_ran(timings, plan)


def one_by_one(plan: Any, inputs: Sequence[Any]) -> dict[str, Callable[..., Any]]:
    """Return a peer, by name, that evaluates each op of a plan's fusion with the array library of the inputs."""
    if not hasattr(plan, "segmented"):
        return {}
    evaluate: Any = importlib.import_module("fuser_lab.runtime.evaluate")
    library = "torch" if any(type(value).__module__.partition(".")[0] == "torch" for value in inputs) else "NumPy"
    with_seeds: Any = importlib.import_module("fuser_lab.runtime.plan.generator").with_seeds
    names = [value.name for value in plan.fusion.inputs]
    outputs = [value.name for value in plan.fusion.outputs if value not in plan.fusion.hidden]

    def run(*values: Any) -> list[Any]:
        results = evaluate.evaluate_segment(plan.fusion, dict(zip(names, with_seeds(plan.fusion, values), strict=True)))
        return [results[name] for name in outputs]

    return {f"{library}, op by op": run}
