"""The ways to compute a workload, each as a call without arguments that writes to outputs of its own."""

import importlib.util
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.benchmarks.cpu.workloads import Workload

OURS = "fuser_lab"
PEERS = ("numpy", "eager", "compile", "jax")
THREADS = 2

Call = Callable[[], None]


def limit_threads() -> None:
    """Let every library use two threads; call before any of them has run something parallel."""
    import numba
    import torch

    torch.set_num_threads(THREADS)
    numba.set_num_threads(THREADS)


def missing(name: str) -> str:
    """Why a variant cannot run here, empty if it can."""
    module = {"numpy": "numpy", "eager": "torch", "compile": "torch", "jax": "jax"}.get(name, "fuser_lab")
    return "" if importlib.util.find_spec(module) else "not installed"


def outputs(load: Workload) -> list[Any]:
    """Memory for the outputs, written once so that no page of it is new, filled with NaN."""
    import torch

    shapes = [tuple(t.shape) for t in load.torch(*(torch.empty(s, device="meta") for s in load.shapes))]
    return [np.full(shape, np.nan, np.float32) for shape in shapes]


def variant(name: str, load: Workload, inputs: list[Any], outs: list[Any]) -> Call:
    """Return the call of a variant; compilation happens in the first call at the latest."""
    return _MAKERS[name](load, inputs, outs)


def _ours(load: Workload, inputs: list[Any], outs: list[Any]) -> Call:
    import fuser_lab as fl

    prepared = fl.segment(load.definition(), inputs).prepared("cpu")
    return lambda: prepared.run(inputs, outs) and None


def _numpy(load: Workload, inputs: list[Any], outs: list[Any]) -> Call:
    arrays = [*inputs, *outs, *_temporaries(inputs, load.temporaries[1])]
    return lambda: load.numpy(*arrays)


def _temporaries(inputs: list[Any], count: int) -> list[Any]:
    return [np.full_like(inputs[0], np.nan) for _ in range(count)]


def _tensors(arrays: list[Any]) -> list[Any]:
    import torch

    return [torch.from_numpy(a) for a in arrays]


def _eager(load: Workload, inputs: list[Any], outs: list[Any]) -> Call:
    given = _tensors([*inputs, *outs, *_temporaries(inputs, load.temporaries[0])])
    return lambda: load.eager(*given)


def _compile(load: Workload, inputs: list[Any], outs: list[Any]) -> Call:
    import torch

    def into(inputs: list[Any], outs: list[Any]) -> None:
        for out, result in zip(outs, load.torch(*inputs), strict=True):
            out.copy_(result)

    torch._dynamo.reset()
    function, given, results = torch.compile(into, dynamic=False), _tensors(inputs), _tensors(outs)

    def call() -> None:
        with torch.no_grad():
            function(given, results)

    return call


def _jax(load: Workload, inputs: list[Any], outs: list[Any]) -> Call:
    import jax

    # The results of one call are the memory of the next: XLA takes arrays that are donated.
    function = jax.jit(lambda given, _: list(load.jax(*given)), donate_argnums=1, keep_unused=True)
    given, results = [jax.device_put(a) for a in inputs], [jax.device_put(a) for a in outs]
    checked = False

    def call() -> None:
        nonlocal checked, results
        results = jax.block_until_ready(function(given, results))
        if not checked:
            checked = True
            for out, result in zip(outs, results, strict=True):
                np.copyto(out, np.asarray(result))

    return call


_MAKERS: dict[str, Callable[[Workload, list[Any], list[Any]], Call]] = {
    OURS: _ours, "numpy": _numpy, "eager": _eager, "compile": _compile, "jax": _jax,
}
