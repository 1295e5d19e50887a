"""Requests for kernels and plans written in one line, as most tests write them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

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
    requests = [KernelRequest(fusion=part, scheduler=scheduler) for part, scheduler in segments]
    for number, given in (changes or {}).items():
        requests[number] = replace(requests[number], changes=given)
    return executor.prepare(fusion, requests, target, **options)


def kernel_of(segment: Segment, target: str, strides: Strides) -> GeneratedKernel:
    """The kernel of a plan's segment for inputs of these strides."""
    return pipeline.generate(replace(request_of(segment, target), strides=strides))


def _request(
    fusion: Fusion, scheduler: SchedulerType | None, target: str, name: str, strides: Strides | None,
    alignment: Mapping[str, int] | None, **options: Any,
) -> KernelRequest:
    return KernelRequest(
        fusion=fusion, scheduler=scheduler, target=target, name=name, strides=strides or {}, alignment=alignment or {},
        **options,
    )
