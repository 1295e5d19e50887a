"""A captured graph as one generated Python function, which does only the work that depends on the call.

Through FX, each view is a call of torch's dispatcher, and each region checks its inputs again. Here one guard on the
graph's inputs (`guard_of`) determines the layout of everything computed from them, and `flat_function` writes the
function for it.

A function is generated after a run unit by unit has prepared all regions. If that fails, an FX module, which takes
longer to make and less to run, handles inputs with other layouts, regions that are checked or observed, and everything
else that a function does not support.
"""

import functools
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from fuser_lab.bridge.add_calls import AddCalls
from fuser_lab.bridge.flat_function import Frame, FunctionWriter, NotFlatError
from fuser_lab.bridge.graph_walk import Around, unit_results
from fuser_lab.bridge.lists import RegionList
from fuser_lab.bridge.region import Region
from fuser_lab.bridge.requirement import torch_for
from fuser_lab.bridge.tensor_forms import Unit
from fuser_lab.bridge.torch_region import TorchRegion
from fuser_lab.bridge.traced import target_of, traced_tensor, writes
from fuser_lab.errors import OutOfMemoryError
from fuser_lab.process.collector import collecting_rarely
from fuser_lab.process.forks import new_lock
from fuser_lab.runtime.gpu.ready import DirectRun
from fuser_lab.runtime.guards import GUARDS, guard_of
from fuser_lab.targets import has_own_memory, is_on_host

_TRIES = 3  # runs after which a function may be generated
_MOST_FRAMES = 4  # threads that may run a graph at a time; others use the FX module


class FlatGraph:
    """A graph that runs by a generated function if possible, otherwise unit by unit or by an FX module."""

    def __init__(self, gm: Any, units: Sequence[Unit], assembled: Callable[[], Any], adds: AddCalls) -> None:
        """Set up a graph as nodes and regions in the order of execution; ``assembled`` makes an FX module of them.

        ``gm`` has the graph and its constants, and ``adds`` are what is called in place of nodes.
        """
        self._gm, self._units, self._assembled, self._adds = gm, tuple(units), assembled, adds
        self.around: Around | None = None  # what is entered around each unit of a run, if it is timed
        self.runs = 0
        self.lists: tuple[RegionList, ...] = ()  # of the regions that one launch computes
        self._inputs = [node for node in gm.graph.nodes if node.op == "placeholder"]
        self._traced = [traced_tensor(node.meta.get("val")) for node in self._inputs]
        self._tensors = [place for place, traced in enumerate(self._traced) if traced is not None]
        self._regions = [unit for unit in self._units if isinstance(unit, Region)]
        self._frames: dict[int, deque[Frame]] = {}  # by the queue of their device that they run on
        self._queue: Callable[[], int] = _no_queue
        self._guards: deque[Callable[..., bool]] = deque(maxlen=GUARDS)
        self._lock = new_lock()
        self._tries = 0 if _may_be_flat(gm.graph) else _TRIES
        self._made = 0
        for region in self._regions:
            region.watchers.append(self._forget)

    def __call__(self, *args: Any) -> Any:
        """Return the results of the graph."""
        return self.boxed(list(args))

    def boxed(self, args: list[Any]) -> Any:
        """Return the results of the graph; the list of arguments is emptied, so that they can be freed in between."""
        self.runs += 1
        if self.around is not None:
            return unit_results(self._units, self._gm, args, self.around, self._adds)
        if self._frames:
            tensors = args if len(self._tensors) == len(args) else [args[place] for place in self._tensors]
            for guard in self._guards:
                if guard(*tensors):
                    return self._run(args)
            if self._lie_as_traced(args):
                made = guard_of(tensors)
                if made is not None:
                    self._guards.appendleft(made)
                return self._run(args)
        return self._long_way(args)

    def _run(self, args: list[Any]) -> Any:
        frames = self._frames.get(self._queue(), _NO_FRAMES)  # others, once regions run in another way
        for _ in range(len(frames)):
            try:
                frame = frames.pop()
            except IndexError:  # other threads are using them
                break
            results = None
            try:
                results = frame(args)
            except RuntimeError as error:
                # On a GPU, torch's own error says so.
                if type(error) is RuntimeError and "alloc" in str(error):
                    msg = f"not enough memory for a result of a region: {str(error).splitlines()[0]}"
                    raise OutOfMemoryError(msg) from error
                raise
            finally:
                (frames.appendleft if results is None else frames.append)(frame)
            if results is not None:
                return results
            # Nothing has run: an argument does not have the alignment that kernels need.
        return self._long_way(args)

    def _long_way(self, args: list[Any]) -> Any:
        arguments = list(args)
        args.clear()
        if self.runs > _TRIES:
            return self._results(self._module, arguments)
        with collecting_rarely():  # kernels are compiled or loaded
            return self._results(self._unit_by_unit, arguments)

    def _unit_by_unit(self, *arguments: Any) -> Any:
        return unit_results(self._units, self._gm, arguments, _no_context, self._adds)

    def _results(self, run: Callable[..., Any], arguments: Sequence[Any]) -> Any:
        """Return the results of a run, and write a function if the run has prepared it."""
        results = run(*arguments)
        if self._tries < _TRIES and self._made < _MOST_FRAMES and self._is_plain() and self._lie_as_traced(arguments):
            with self._lock:
                self._write(arguments)
        return results

    @functools.cached_property
    def _module(self) -> Any:
        return self._assembled()

    def _write(self, arguments: Sequence[Any]) -> None:
        guard = guard_of([arguments[place] for place in self._tensors])
        runs = self._take_runs()
        if guard is None or runs is None:
            self._tries += 1
            return
        try:
            writer = FunctionWriter(self._inputs, self._units, runs, arguments, self._adds)
            written = writer.function(self._gm)
        except NotFlatError:
            self._tries = _TRIES
            return
        self.lists = writer.lists
        self._guards.appendleft(guard)
        self._made += 1
        memories = (region.prepared.memory for region in runs if isinstance(region, TorchRegion))
        self._queue = next((memory.queue for memory in memories), _no_queue)
        self._frames.setdefault(self._queue(), deque()).append(written)

    def _take_runs(self) -> dict[Region, DirectRun] | None:
        """Return a run for each region that a function may run itself; None if another thread is using it.

        Equal regions share one, because they run in sequence.
        """
        runs: dict[Region, DirectRun] = {}
        run_of: dict[int, DirectRun] = {}
        for region in self._regions:
            if not isinstance(region, TorchRegion) or not region.is_direct:
                continue
            plan = region.prepared
            run = run_of.get(id(plan)) or plan.taken_run()
            if run is None or run.strides != region.input_strides:
                if self._tries < _TRIES - 1:
                    return None
                continue
            run_of[id(plan)] = runs[region] = run
        return runs

    def _is_plain(self) -> bool:
        return all(
            isinstance(region, TorchRegion) and not (region.idle or region.checked or region.observer)
            for region in self._regions
        )

    def _forget(self) -> None:
        """Use the FX module until functions are generated again, because a region will run in another way."""
        with self._lock:
            self._frames, self._made, self.lists = {}, 0, ()

    def _lie_as_traced(self, args: Sequence[Any]) -> bool:
        torch = torch_for("fuser_lab.bridge")
        wrapped = torch._C._functorch.is_functorch_wrapped_tensor  # noqa: SLF001 - as vmap and grad hand tensors on
        for place in self._tensors:
            x, traced = args[place], self._traced[place]
            assert traced is not None
            if type(x) not in {torch.Tensor, torch.nn.Parameter} or x.layout is not torch.strided or wrapped(x):
                return False
            if (tuple(x.shape), x.stride(), str(x.device)) != (traced.shape, traced.strides, traced.device):
                return False
            if str(x.dtype) != f"torch.{traced.dtype}" or x.is_neg() or x.is_conj():
                return False
        return True


def _may_be_flat(graph: Any) -> bool:
    """Whether a graph writes only by ``copy_``, and its tensors are on the CPU and at most one GPU."""
    devices: set[str] = set()
    for node in graph.nodes:
        if writes(node) and target_of(node) != "aten.copy_.default":
            return False
        values = node.meta.get("val")
        for value in values if isinstance(values, list | tuple) else (values,):
            if hasattr(value, "device"):
                devices.add(str(value.device))
    gpus = {device for device in devices if not is_on_host(device)}
    return not gpus or (len(gpus) == 1 and has_own_memory(gpu := gpus.pop()) and ":" in gpu)


_NO_FRAMES: deque[Frame] = deque()


def _no_queue() -> int:
    return 0


def _no_context(_: Unit) -> AbstractContextManager[object]:
    return nullcontext()
