"""One run of a definition, measured segment by segment; NaN and empty text mark values that were not measured."""

import importlib
import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

from fuser_lab.codegen.kernel_ir import Kernel
from fuser_lab.cost.device import DEVICES
from fuser_lab.cost.traffic import traffic_of
from fuser_lab.plan import Plan, Segment
from fuser_lab.runtime.plan.by_hand import ScheduledKernel
from fuser_lab.runtime.plan.executor import PreparedPlan
from fuser_lab.runtime.plan.steps import Step
from fuser_lab.targets import target_of

USER = "user"  # nvFuser's name for a kernel run by manual_execute
CPU = -1  # device number of the CPU in profiles


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelProfile:
    """One segment of a measured run.

    ``device`` is -1 for the CPU, where there is no grid. ``registers``, shared memory and the ``compile_time_ms`` of
    single kernels are not measured.
    """

    name: str
    segment_id: int
    device: int
    device_name: str
    scheduler: str
    time_ms: float
    input_bytes: int
    output_bytes: int
    effective_bandwidth_gbs: float
    percentage_peak_bandwidth: float
    grid_str: str
    block_str: str
    shared_mem_str: str = ""
    registers: float = math.nan
    compile_time_ms: float = math.nan


@dataclass(frozen=True, slots=True, kw_only=True)
class FusionProfile:
    """A measured run: ``host_time_ms`` is the call without compilation, ``kernel_time_ms`` the sum over segments."""

    fusion_id: int
    segments: int
    host_time_ms: float
    kernel_time_ms: float
    compile_time_ms: float
    input_bytes: int
    output_bytes: int
    effective_bandwidth_gbs: float
    percentage_peak_bandwidth: float
    kernel_profiles: tuple[KernelProfile, ...]

    def __str__(self) -> str:
        """Return a table, one line per segment."""
        lines = [f"{'segment':>7} {'scheduler':<22} {'ms':>10} {'GB/s':>10} {'grid':<14} {'block':<14} name"]
        lines += [
            f"{k.segment_id:>7} {k.scheduler:<22} {k.time_ms:>10.4f} {k.effective_bandwidth_gbs:>10.1f} "
            f"{k.grid_str:<14} {k.block_str:<14} {k.name}"
            for k in self.kernel_profiles
        ]
        total = f"host {self.host_time_ms:.4f} ms, kernels {self.kernel_time_ms:.4f} ms"
        return "\n".join([*lines, f"{total}, compiled in {self.compile_time_ms:.1f} ms"])


Receive = Callable[[FusionProfile], None]
_RECEIVER: ContextVar[Receive | None] = ContextVar("fuser_lab_profile", default=None)


@contextmanager
def receiving(receive: Receive) -> Iterator[None]:
    """Pass the profile of every run in this thread to ``receive``."""
    token = _RECEIVER.set(receive)
    try:
        yield
    finally:
        _RECEIVER.reset(token)


def receiver() -> Receive | None:
    """Return the receiver of this thread's profiles, or None."""
    return _RECEIVER.get()


@contextmanager
def as_user() -> Iterator[None]:
    """Report ``user`` as the scheduler of the kernels run inside: they are scheduled by hand."""
    receive = receiver()
    if receive is None:
        yield
        return

    def named(profile: FusionProfile) -> None:
        kernels = tuple(replace(kernel, scheduler=USER) for kernel in profile.kernel_profiles)
        receive(replace(profile, kernel_profiles=kernels))

    with receiving(named):
        yield


def measured_kernel(
    kernel: ScheduledKernel, inputs: Sequence[Any], *, fusion_id: int = 0,
) -> tuple[list[Any], FusionProfile]:
    """Return the outputs of a kernel scheduled by hand, and the profile of the run.

    On the CPU, its threads are evaluated in lock step to compute the values; that time says nothing about a GPU.
    """
    on_gpu = not target_of(kernel.target).on_host
    begin = time.perf_counter()
    outputs = kernel.run(inputs)
    if on_gpu:
        importlib.import_module("torch").cuda.synchronize()
    seconds = time.perf_counter() - begin
    fusion, generated = kernel.scheduled.fusion, kernel.generated.kernel_ir
    moved = traffic_of(fusion.tensor_exprs, fusion.tensor_inputs, fusion.outputs)
    rate = _rate(moved.total, seconds)
    profile = KernelProfile(
        name=generated.name, segment_id=0, device=_current_device() if on_gpu else CPU, device_name=kernel.device_label,
        scheduler=USER, time_ms=seconds * 1e3, input_bytes=moved.read, output_bytes=moved.written,
        effective_bandwidth_gbs=rate,
        percentage_peak_bandwidth=_share(rate, kernel.device_label), grid_str=_shape(generated, "grid"),
        block_str=_shape(generated, "block"),
    )
    return outputs, joined_one(profile, fusion_id)


def joined_one(kernel: KernelProfile, fusion_id: int) -> FusionProfile:
    """Return the profile of a run of one kernel."""
    return FusionProfile(
        fusion_id=fusion_id, segments=1, host_time_ms=kernel.time_ms, kernel_time_ms=kernel.time_ms,
        compile_time_ms=0.0, input_bytes=kernel.input_bytes, output_bytes=kernel.output_bytes,
        effective_bandwidth_gbs=kernel.effective_bandwidth_gbs,
        percentage_peak_bandwidth=kernel.percentage_peak_bandwidth, kernel_profiles=(kernel,),
    )


def measured_run(
    plan: Plan, target: str, inputs: Sequence[Any], *, fusion_id: int = 0,
) -> tuple[list[Any], FusionProfile]:
    """Return a plan's outputs and the profile of the run; the plan is compiled first if necessary."""
    begin = time.perf_counter()
    prepared = plan.prepare(target)
    steps = prepared.steps(inputs)
    compiled = time.perf_counter() - begin
    begin = time.perf_counter()
    bound = prepared.bind(inputs)
    clock = _device_clock() if not target_of(prepared.target).on_host else _host_clock
    seconds = clock(bound.steps)
    bound.finish()
    prepared.memory.synchronize()
    host = time.perf_counter() - begin
    kernels = tuple(
        _kernel(segment, step, spent, prepared)
        for segment, step, spent in zip(plan.segments, steps, seconds, strict=True)
    )
    read = sum(tv.nbytes for tv in plan.fusion.tensor_inputs)
    written = sum(tv.nbytes for tv in plan.fusion.outputs)
    total = sum(seconds)
    rate = _rate(sum(k.input_bytes + k.output_bytes for k in kernels), total)
    profile = FusionProfile(
        fusion_id=fusion_id, segments=len(kernels), host_time_ms=host * 1e3, kernel_time_ms=total * 1e3,
        compile_time_ms=compiled * 1e3, input_bytes=read, output_bytes=written, effective_bandwidth_gbs=rate,
        percentage_peak_bandwidth=_share(rate, prepared.memory.label()), kernel_profiles=kernels,
    )
    return bound.outputs, profile


def join_profiles(
    profiles: Sequence[FusionProfile], fusion_id: int, input_bytes: int, output_bytes: int,
) -> FusionProfile:
    """Return the profiles of a definition's segments, which run one after another, as one profile."""
    kernels = [kernel for profile in profiles for kernel in profile.kernel_profiles]
    milliseconds = sum(profile.kernel_time_ms for profile in profiles)
    rate = _rate(sum(k.input_bytes + k.output_bytes for k in kernels), milliseconds * 1e-3)
    return FusionProfile(
        fusion_id=fusion_id,
        segments=len(kernels),
        host_time_ms=sum(profile.host_time_ms for profile in profiles),
        kernel_time_ms=milliseconds,
        compile_time_ms=sum(profile.compile_time_ms for profile in profiles),
        input_bytes=input_bytes,
        output_bytes=output_bytes,
        effective_bandwidth_gbs=rate,
        percentage_peak_bandwidth=_share(rate, kernels[0].device_name if kernels else ""),
        kernel_profiles=tuple(replace(kernel, segment_id=number) for number, kernel in enumerate(kernels)),
    )


def _host_clock(steps: Sequence[Callable[[], None]]) -> list[float]:
    seconds: list[float] = []
    for step in steps:
        begin = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - begin)
    return seconds


def _device_clock() -> Callable[[Sequence[Callable[[], None]]], list[float]]:
    torch: Any = importlib.import_module("torch")

    def clock(steps: Sequence[Callable[[], None]]) -> list[float]:
        events = [torch.cuda.Event(enable_timing=True) for _ in range(len(steps) + 1)]
        events[0].record()
        for step, event in zip(steps, events[1:], strict=True):
            step()
            event.record()
        torch.cuda.synchronize()
        return [a.elapsed_time(b) * 1e-3 for a, b in itertools.pairwise(events)]

    return clock


def _kernel(segment: Segment, step: Step, seconds: float, prepared: PreparedPlan) -> KernelProfile:
    kernel = step.generated.kernel_ir if step.generated is not None else None
    scheduler = segment.scheduler.value if segment.scheduler is not None else ""
    read, written = (segment.bytes_in, segment.bytes_out) if step.runs else (0, 0)
    rate = _rate(read + written, seconds)
    on_gpu = not target_of(prepared.target).on_host
    return KernelProfile(
        name=kernel.name if kernel else f"{scheduler}_{segment.outputs[0].name if segment.outputs else 'nothing'}",
        segment_id=segment.index,
        device=_current_device() if on_gpu else CPU,
        device_name=prepared.memory.label(),
        scheduler=scheduler,
        time_ms=seconds * 1e3,
        input_bytes=read,
        output_bytes=written,
        effective_bandwidth_gbs=rate,
        percentage_peak_bandwidth=_share(rate, prepared.memory.label()),
        grid_str=_shape(kernel, "grid") if on_gpu else "",
        block_str=_shape(kernel, "block") if on_gpu else "",
    )


def _current_device() -> int:
    torch: Any = importlib.import_module("torch")
    return int(torch.cuda.current_device())


def _shape(kernel: Kernel | None, which: str) -> str:
    """Return the grid or block of each launch of a kernel, in nvFuser's notation."""
    launches = [phase.launch for phase in kernel.phases] if kernel else []
    shapes = [(x.blocks, 1, 1) if which == "grid" else (*x.threads, 1) for x in launches]
    return " + ".join(f"[{a}, {b}, {c}]" for a, b, c in shapes)


def _rate(nbytes: int, seconds: float) -> float:
    return nbytes / seconds * 1e-9 if seconds > 0 else math.nan


def _share(rate: float, device_name: str) -> float:
    """Return a rate in percent of the peak of a known GPU; NaN for other devices."""
    peak = next((d.bandwidth for d in DEVICES if d.name in device_name), math.nan)
    return 100.0 * rate / peak
