"""The ways to compute a workload, each as a call without arguments that writes to its own outputs."""

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import numpy as np

from tests.benchmarks import written
from tests.benchmarks.cpu import workloads
from tests.benchmarks.cpu.workloads import Workload
from tests.benchmarks.gpu.workloads import WORKLOADS
from tests.benchmarks.second import SECOND
from tests.benchmarks.third import THIRD
from tests.benchmarks.written import Written, several

OURS = "fuser_lab"
BASE = "bottom_up"
PEERS = ("numpy", "eager", "compile", "jax")
THREADS = 2
SHARE = 16  # workloads that are written for a GPU have a sixteenth of the elements here

Load = Workload | Written
Call = Callable[[], None]

SETS: dict[str, tuple[Load, ...]] = {
    "float": workloads.WORKLOADS,
    "first": tuple(load.at(SHARE) for load in WORKLOADS),
    "second": tuple(load.at(SHARE) for load in SECOND),
    "third": tuple(load.at(SHARE) for load in THIRD),
}
SETS["all"] = tuple(load for name in ("first", "second", "third", "float") for load in SETS[name])


def limit_threads(count: int = THREADS) -> None:
    """Limit the threads of libraries; call before any of them has run something parallel. JAX uses all cores."""
    import numba
    import torch

    torch.set_num_threads(count)
    numba.set_num_threads(count)


def missing(name: str, load: Load) -> str:
    """Why a variant cannot run here, empty if it can."""
    if name in {"numpy", "jax"} and getattr(load, name, None) is None:
        return "not written"
    module = {"numpy": "numpy", "eager": "torch", "compile": "torch", "jax": "jax"}.get(name, "fuser_lab")
    return "" if importlib.util.find_spec(module) else "not installed"


def error(load: Load, outs: list[Any], expected: list[Any]) -> float:
    """The largest deviation as a share of what is allowed."""
    return written.error(load, outs, expected) if isinstance(load, Written) else workloads.error(outs, expected)


def variant(name: str, load: Load, inputs: list[Any], outs: list[Any], strategy: str = BASE) -> Call:
    """Return the call of a variant; compilation happens in the first call at the latest."""
    return _ours(load, inputs, outs, strategy) if name == OURS else _MAKERS[name](load, inputs, outs)


@dataclass(frozen=True, slots=True)
class Run:
    """A run of a plan."""

    prepared: Any
    inputs: list[Any]
    outs: list[Any]
    segments: int

    def __call__(self) -> None:
        self.prepared.run(self.inputs, self.outs)


def _ours(load: Load, inputs: list[Any], outs: list[Any], strategy: str = BASE) -> Run:
    import fuser_lab as fl

    target = "this CPU" if strategy == "fastest" else None
    plan = fl.segment(load.definition(), inputs, strategy=strategy, target=target)
    return Run(plan.prepare("cpu"), inputs, outs, len(plan.segments))


def _numpy(load: Workload, inputs: list[Any], outs: list[Any]) -> Call:
    arrays = [*inputs, *outs, *_temporaries(inputs, load.temporaries[1])]
    return lambda: load.numpy(*arrays)


def _temporaries(inputs: list[Any], count: int) -> list[Any]:
    return [np.full_like(inputs[0], np.nan) for _ in range(count)]


def _tensors(arrays: list[Any]) -> list[Any]:
    import torch

    return [torch.from_numpy(a) if isinstance(a, np.ndarray) else a for a in arrays]


def _eager(load: Load, inputs: list[Any], outs: list[Any]) -> Call:
    if isinstance(load, Written):
        return lambda: _copied(load.results(inputs), outs)
    given = _tensors([*inputs, *outs, *_temporaries(inputs, load.temporaries[0])])
    return lambda: load.eager(*given)


def _copied(results: list[Any], outs: list[Any]) -> None:
    for out, result in zip(outs, results, strict=True):
        out.copy_(result)


def _compile(load: Load, inputs: list[Any], outs: list[Any]) -> Call:
    import torch

    def into(inputs: list[Any], outs: list[Any]) -> None:
        _copied(several(load.torch(*inputs)), outs)

    # TorchDynamo keeps what it compiles with the code of a function, up to eight times, and then runs it op by op. So
    # each workload has its own code.
    torch._dynamo.config.fail_on_recompile_limit_hit = True
    own = FunctionType(into.__code__.replace(co_name=load.name), globals(), closure=into.__closure__)
    function, given, results = torch.compile(own, dynamic=False), _tensors(inputs), _tensors(outs)

    def call() -> None:
        with torch.no_grad():
            function(given, results)

    return call


def _jax(load: Load, inputs: list[Any], outs: list[Any]) -> Call:
    import jax
    import torch

    jax.config.update("jax_platforms", "cpu")  # even on a machine with a GPU
    # The results of one call are the memory of the next: XLA reuses donated arrays.
    function = jax.jit(lambda given, _: several(load.jax(*given)), donate_argnums=1, keep_unused=True)
    given, results = ([jax.numpy.array(jax.numpy.from_dlpack(a)) for a in arrays] for arrays in (inputs, outs))
    checked = False

    def call() -> None:
        nonlocal checked, results
        results = jax.block_until_ready(function(given, results))
        if not checked:
            checked = True
            for out, result in zip(_tensors(outs), results, strict=True):
                out.copy_(torch.from_dlpack(result))

    return call


_MAKERS: dict[str, Callable[[Any, list[Any], list[Any]], Call]] = {
    BASE: _ours, "numpy": _numpy, "eager": _eager, "compile": _compile, "jax": _jax,
}
