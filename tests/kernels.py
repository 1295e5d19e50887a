"""Requests for kernels and plans written in one line, as most tests write them."""

import pkgutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib import import_module
from typing import Any

from fuser_lab import schedule
from fuser_lab.codegen import pipeline
from fuser_lab.codegen.kernel_ir import Kernel
from fuser_lab.codegen.pipeline import GeneratedKernel
from fuser_lab.codegen.request import KernelRequest, Strides
from fuser_lab.cost.verdict import SchedulerType
from fuser_lab.ir import Fusion
from fuser_lab.plan import Segment
from fuser_lab.plan.requests import request_of
from fuser_lab.runtime.plan import executor
from fuser_lab.runtime.plan.executor import PreparedPlan
from fuser_lab.schedule.base import Heuristics, OtherVerdicts, Propose
from fuser_lab.schedule.parameters import LoopChange


def generate(
    fusion: Fusion, scheduler: SchedulerType | None, target: str = "cpu", name: str = "",
    strides: Strides | None = None, alignment: Mapping[str, int] | None = None, **options: Any,
) -> GeneratedKernel:
    """The kernel of a segment; ``options`` are fields of its `KernelRequest`."""
    return pipeline.generate(_request(fusion, scheduler, target, name, strides, alignment, **options))


def lower(
    fusion: Fusion, scheduler: SchedulerType | None, target: str, name: str = "kernel", strides: Strides | None = None,
    alignment: Mapping[str, int] | None = None, **options: Any,
) -> Kernel:
    """The Kernel IR of a segment; ``options`` are fields of its `KernelRequest`."""
    return pipeline.lower(_request(fusion, scheduler, target, name, strides, alignment, **options))


def prepare(
    fusion: Fusion, segments: Iterable[tuple[Fusion, SchedulerType | None]], target: str = "cpu", *,
    changes: Mapping[int, Sequence[LoopChange]] | None = None, **options: Any,
) -> PreparedPlan:
    """A plan of segments with their schedulers, and with parameters set by hand for some of them by number."""
    requests = [_request(part, scheduler, target, "", None, None) for part, scheduler in segments]
    for number, given in (changes or {}).items():
        requests[number] = replace(requests[number], changes=given)
    return executor.prepare(fusion, requests, target, **options)


def kernel_of(segment: Segment, target: str, strides: Strides) -> GeneratedKernel:
    """The kernel of a plan's segment for inputs of these strides."""
    return pipeline.generate(replace(request_of(segment, target), strides=strides))


@cache
def proposers() -> Mapping[SchedulerType, Propose]:
    """What the schedulers of the package propose instead of the default, whether nvFuser has them or not."""
    proposed = dict[SchedulerType, Propose]()
    for module in pkgutil.iter_modules(schedule.__path__, f"{schedule.__name__}."):
        for entry in vars(import_module(module.name)).values():
            if not isinstance(entry, type) or not issubclass(entry, Heuristics):
                continue
            if entry.propose is not Heuristics.propose and not issubclass(entry, OtherVerdicts):
                proposed[entry().type] = entry().propose
    return proposed


def _request(
    fusion: Fusion, scheduler: SchedulerType | None, target: str, name: str, strides: Strides | None,
    alignment: Mapping[str, int] | None, **options: Any,
) -> KernelRequest:
    if scheduler in proposers():
        options = {"propose": proposers()[scheduler], **options}
    return KernelRequest(
        fusion=fusion, scheduler=scheduler, target=target, name=name, strides=strides or {}, alignment=alignment or {},
        **options,
    )
