"""Measures a captured model beside torch: the whole model, and each region beside torch's version of the same calls."""

import importlib
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from fuser_lab.arguments import short_text
from fuser_lab.bridge.graph_walk import while_set
from fuser_lab.bridge.model import CapturedModel
from fuser_lab.bridge.model_step import copies, leaves, state_kept, step_arguments, step_of
from fuser_lab.bridge.model_view import RegionRow, region_rows
from fuser_lab.bridge.region import Region
from fuser_lab.bridge.requirement import torch_for
from fuser_lab.bridge.torch_region import TorchRegion
from fuser_lab.cost.measured_times import TimingRow, Timings
from fuser_lab.errors import InputError
from fuser_lab.report.units import plural
from fuser_lab.runtime.plan.timing import Measurement, Progress, distance, with_progress
from fuser_lab.targets import CPU, has_own_memory, is_on_host

PEERS = ("eager", "inductor", "aot_eager")
OURS = "fuser_lab"


def measure_model(
    model: CapturedModel, inputs: Sequence[Any] | None, *, peers: Sequence[str], progress: Progress | bool | None,
    cancelled: Callable[[], bool] | None, seconds: float,
) -> Timings:
    """Return measured times of a captured model and of its regions, each followed by those of its peers.

    Rows are measured round-robin. Equal regions are measured once, with the inputs of the first of them in a run of the
    model; the name of the row has its index in ``found.regions`` and their number. Results of regions are compared with
    eager's. A captured backward graph is run after the forward one. A peer that cannot be compiled has a row with the
    reason.

    Parameters
    ----------
    found
        The result of `fuser_lab.from_torch`.
    inputs
        Arguments of the model; by default those of the capture.
    peers
        ``"eager"``, or backends of ``torch.compile``.
    progress, cancelled, seconds
        As for `fuser_lab.time`.

    Raises
    ------
    InputError
        If torch has no backend of a peer's name, if the inputs are meta tensors, or if there is no function to call.
    """
    torch = torch_for("time")
    _check_peers(torch, peers)
    arguments, keywords = step_arguments(model.source, inputs, "time")
    assert model.source is not None
    tensors = [x for x in leaves((arguments, keywords)) if isinstance(x, torch.Tensor)]
    run = _ModelMeasurement(torch, model, arguments, peers, cancelled or (lambda: False), seconds)
    total = (1 + len(region_rows(model.regions))) * (1 + len(peers)) + 1
    with state_kept(torch, model.source.function, tensors):
        return with_progress(partial(run.measure, total), total, progress)


def _check_peers(torch: Any, peers: Sequence[str]) -> None:
    backends = dict.fromkeys((*PEERS, *torch._dynamo.list_backends()))  # noqa: SLF001 - where torch.compile looks
    backends.pop(OURS, None)
    for name in peers:
        if name not in backends:
            msg = f"time: unknown peer {short_text(name)}; choose from {', '.join(backends)}."
            raise InputError(msg)


class _ModelMeasurement(Measurement):
    def __init__(
        self, torch: Any, model: CapturedModel, inputs: Sequence[Any], peers: Sequence[str],
        cancelled: Callable[[], bool], seconds: float,
    ) -> None:
        super().__init__(cancelled, seconds)
        assert model.source is not None
        self._torch, self._model, self._peers, self._source = torch, model, tuple(peers), model.source
        self._regions = tuple(region for region in model.regions if isinstance(region, TorchRegion))
        self._inputs, self._keywords = copies(torch, (tuple(inputs), dict(model.source.keywords)))
        self._backward = any(graph.kind == "backward" for graph in model.graphs)
        devices = (x.device.type for x in leaves(self._inputs) if isinstance(x, torch.Tensor))
        self._target = next(filter(has_own_memory, devices), CPU.name)

    def measure(self, total: int, progress: Progress) -> Timings:
        done = 0
        region_inputs = self._seen_inputs()
        rows = region_rows(self._regions)
        places: dict[Region, int] = {region: place for place, region in enumerate(self._regions)}
        ops = sum(len(row.region) * row.count for row in rows)
        empty = TimingRow(plan="", segment=None, scheduler="", ops=ops, bytes_in=0, bytes_out=0, bytes_crossing=0)
        mark = replace(empty, group="model", device=self._label(rows))
        for name in (OURS, *self._peers):
            if self._cancelled():
                break
            self._add_or_say(name, replace(mark, plan=f"model: {name}"), partial(self._model_call, name))
            progress(done := done + 1, total, self._so_far)
        for row in rows:
            region = self._regions[places[row.region]]
            count = f" × {row.count}" if row.count > 1 else ""
            group = f"regions[{places[region]}]{count}"
            ours = replace(mark, group=group, ops=len(region), bytes_in=_nbytes(region.signature.inputs),
                          bytes_out=_nbytes(region.traced))
            for name in (OURS, *self._peers):
                if self._cancelled():
                    break
                there = replace(ours, plan=f"{group}: {name}")
                self._add_or_say(name, there, partial(self._region_call, name, region, region_inputs.get(region)))
                progress(done := done + 1, total, self._so_far)
        self._take_turns(done, total, progress)
        return replace(self._so_far, preallocated=False)

    def _label(self, rows: Sequence[RegionRow]) -> str:
        if is_on_host(self._target):
            return f"CPU ({plural(self._torch.get_num_threads(), 'thread')})"
        return str(self._torch.cuda.get_device_name())

    def _seen_inputs(self) -> dict[TorchRegion, tuple[Any, ...]]:
        """Return the inputs of the model's regions in a run, for those that run."""
        inputs_of: dict[TorchRegion, tuple[Any, ...]] = {}

        def note(region: TorchRegion, inputs: Sequence[Any]) -> None:
            inputs_of.setdefault(region, tuple(x.detach() for x in inputs))

        with while_set(self._regions, "observer", note):
            self._step(self._model.run)()
        return inputs_of

    def _step(self, function: Callable[..., Any]) -> Callable[[], object]:
        """Return one step of the model: a call, and all required gradients."""
        return step_of(function, self._inputs, self._keywords, backward=self._backward)

    def _model_call(self, name: str) -> tuple[Callable[[], object], float, str]:
        """Return the measurement of the whole model, without a deviation, because only regions are compared."""
        function = self._model.run if name == OURS else self._source.function
        if name not in {OURS, "eager"}:
            function = _compile(self._torch, function, name)
        call = self._step(function)
        call()
        return call, math.nan, ""

    def _region_call(
        self, name: str, region: TorchRegion, inputs: Sequence[Any] | None,
    ) -> tuple[Callable[[], object], float, str]:
        """Return the measurement of a region, and the deviation of its results from eager's."""
        torch = self._torch
        if inputs is None:
            msg = "this run did not execute it"
            raise InputError(msg)
        function: Callable[..., Any] = region.fallback
        if name == OURS:
            function = region
        elif name == "inductor":
            # Without Dynamo, whose guards take longer than a small kernel.
            function = importlib.import_module("torch._inductor").compile(region.fallback, list(inputs))
        elif name != "eager":
            function = _compile(torch, region.fallback, name)

        def call() -> Any:
            with torch.no_grad():
                return function(*inputs)

        results = call()
        if name == OURS and region.failed is not None:
            msg = f"torch runs it: {region.failed}"
            raise InputError(msg)
        with torch.no_grad():
            expected = region.fallback(*inputs)
            error = max(map(distance, results, expected), default=0.0)
            if error >= 1:  # for example if a sum cancels, so that only rounding errors remain
                error = min(error, region.inexactness(inputs, results, expected))
        return call, error, ""

    def _add_or_say(
        self, name: str, row: TimingRow, make: Callable[[], tuple[Callable[[], object], float, str]],
    ) -> None:
        try:
            call, error, note = make()
        except Exception as raised:  # noqa: BLE001 - a peer may fail in any way, and the others are still measured
            self._say(replace(row, note=f"not measured: {_why(name, raised)}"))
            return
        self._add(replace(row, error=error, note=note), call, self._clock(self._target))


def _nbytes(tensors: Sequence[Any]) -> int:
    torch = torch_for("time")
    return sum(t.size * int(getattr(torch, t.dtype).itemsize) for t in tensors)


def _compile(torch: Any, function: Callable[..., Any], backend: str) -> Callable[..., Any]:
    """Return a function compiled by torch for a backend, in a separate code object."""
    def enter(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    enter.__code__ = enter.__code__.replace(co_name=f"timed_{backend}_{id(enter):x}")
    traced = torch.compile(enter, backend=backend, dynamic=False)
    config = importlib.import_module("torch._dynamo.config")
    state = {"compiled": False}

    def run(*args: Any, **kwargs: Any) -> Any:
        if state["compiled"]:
            return traced(*args, **kwargs)
        with config.patch(suppress_errors=False):
            results = traced(*args, **kwargs)
        state["compiled"] = True
        return results

    return run


def _why(name: str, error: Exception) -> str:
    """Return one sentence on why a peer was not measured, with the name of a missing compiler."""
    text = f"{type(error).__name__} {error}"
    if "InvalidCxxCompiler" in text or "C++ compiler" in text:
        return f"{name} needs a C++ compiler, and torch found none (the environment variable CXX selects one)"
    if "TritonMissing" in text or "working Triton" in text or "working triton" in text:
        return f"{name} needs Triton, which is not installed"
    said = str(error).strip().partition("\n")[0]
    return said if isinstance(error, InputError) else f"{type(error).__name__}: {said}"
