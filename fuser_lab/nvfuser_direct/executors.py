"""Executors of fusions with nvFuser's methods, and caches of them."""

import functools
import importlib
import importlib.util
from collections.abc import Callable, Iterable, Sequence
from typing import Any, overload

from fuser_lab.bindings.enums import SchedulerType, own_scheduler
from fuser_lab.execution import executors
from fuser_lab.nvfuser_direct.recording import RecordedFusion
from fuser_lab.plan.planning import flatten, has_arrays
from fuser_lab.runtime.arrays import from_numpy_as
from fuser_lab.runtime.plan.executor_cache import LruCache
from fuser_lab.targets import CPU, CUDA


class FusionExecutorCache(executors.FusionExecutorCache):
    """A fusion with its plans; outputs are torch tensors if no input is an array and torch is installed."""

    def execute(
        self, inputs: Iterable[Any], *, device: object = None, _enable_options: Iterable[str] = (),
        _disable_options: Iterable[str] = (),
    ) -> list[Any]:
        """Return the outputs."""
        flat = flatten(inputs)
        like = self.like(flat, executors.device_name(device))
        if like and device is None:
            device = str(like[0].device)
        outputs = super().execute(
            flat, device=device, _enable_options=_enable_options, _disable_options=_disable_options,
        )
        return [from_numpy_as("torch", array).to(like[0].device) for array in outputs] if like else outputs

    def like(self, flat: Sequence[Any], device: str | None = None) -> tuple[Any, ...]:
        """Return a torch tensor if no input is an array: on the named device, or on a GPU if there is one."""
        return torch_like(flat, device)

    def fusion(self) -> RecordedFusion:
        """Return a copy of the fusion."""
        return RecordedFusion(self.definition)


def torch_like(flat: Sequence[Any], device: str | None = None) -> tuple[Any, ...]:
    """Return a torch tensor if no input is an array: on the named device, or on a GPU if there is one."""
    if has_arrays(flat) or importlib.util.find_spec("torch") is None:
        return ()
    torch: Any = importlib.import_module("torch")
    return (torch.empty(0, device=device or (CUDA.name if torch.cuda.is_available() else CPU.name)),)


class KernelExecutor(executors.KernelExecutor):
    """A fusion that one scheduler accepts whole."""

    def compile(
        self, fusion: object, args: Iterable[Any] = (), launch_constraints: object = None,
        compile_params: object = None, scheduler_type: object = SchedulerType.none,
    ) -> None:
        """Plan a fusion as one kernel; the schedule is this package's own."""
        marked = fusion.scheduler if isinstance(fusion, RecordedFusion) else None
        super().compile(fusion, args, launch_constraints, compile_params, own_scheduler(scheduler_type) or marked)


class LRUCache:
    """Executors of fusions by structure: equal definitions share one, with its compiled kernels."""

    def __init__(self, max_fusions: int) -> None:
        self._cache: LruCache[FusionExecutorCache] = LruCache(max_fusions, FusionExecutorCache)

    def cache_compile(self, fusion: RecordedFusion) -> FusionExecutorCache:
        """Return the executor of an equal fusion, created if there is none."""
        from fuser_lab.plan.planning import definition_of

        return self._cache.cached(definition_of(fusion))

    def num_fusions(self) -> int:
        """Return the number of stored fusions."""
        return self._cache.num_fusions()

    def stats(self) -> str:
        """Return counts of lookups and hits as text."""
        return self._cache.stats()


Defines = Callable[..., Any]


@overload
def LruFusionCache(func: Defines) -> Defines: ...
@overload
def LruFusionCache(func: None = None, *, max_fusions: int = 16384) -> Callable[[Defines], Defines]: ...
def LruFusionCache(  # noqa: N802 - nvFuser's name
    func: Defines | None = None, *, max_fusions: int = 16384,
) -> Defines | Callable[[Defines], Defines]:
    """Decorate a function that returns a FusionDefinition, so that equal definitions share one executor.

    The decorated function has ``stats()`` and ``num_fusions()``.

    Parameters
    ----------
    func
        The function, or None for ``@LruFusionCache(max_fusions=...)``.
    max_fusions
        Maximum number of stored fusions.
    """

    def decorate(define: Defines) -> Defines:
        cache = LRUCache(max_fusions)

        @functools.wraps(define)
        def cached(*args: Any, **kwargs: Any) -> Any:
            fd = define(*args, **kwargs)
            fd.adopt(cache.cache_compile(fd.fusion))
            return fd

        cached.stats = cache.stats  # type: ignore[attr-defined]
        cached.num_fusions = cache.num_fusions  # type: ignore[attr-defined]
        return cached

    if isinstance(func, int):
        max_fusions, func = func, None
    return decorate if func is None else decorate(func)


def described_tensor(sizes: Sequence[int], strides: Sequence[int]) -> tuple[list[bool | None], list[int]]:
    """Return (contiguity, stride order) of a tensor of these sizes and strides, both in nvFuser's convention."""
    from fuser_lab.definition.strides import describe_strides

    contiguity, order = describe_strides(sizes, strides, "compute_tensor_descriptor")
    return list(contiguity), list(order)
