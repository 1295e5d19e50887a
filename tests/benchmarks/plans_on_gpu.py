"""Predicted and measured times of a fusion's plans on a GPU: python -m tests.benchmarks.plans_on_gpu.

Entries of the corpus are measured in a random order that is the same in every run, as `tests.benchmarks.plans`
describes, each plan as a CUDA graph that starts with a cold L2 cache. ``--out`` also writes each plan with the features
of its kernels and with the tensors that they read and write.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

import fuser_lab as fl
from fuser_lab.runtime.gpu.this_gpu import this_gpu
from fuser_lab.runtime.plan.ahead import compile_kernel
from tests.benchmarks.measure_kernels import Gpu
from tests.benchmarks.plans import OPS, WAYS, in_order, parsed, run

MOST: Final = 3 << 30  # bytes of the inputs and outputs of a fusion
WAYS_HERE: Final = tuple(way for way in WAYS if way[0] not in {"saving", "top_down"})


class OnGpu:
    """Plans on the first GPU of this machine."""

    waits = False

    def __init__(self) -> None:
        self.target = this_gpu()
        self.name = self.target.name
        self._gpu = Gpu()
        self._capability = self._gpu.torch.cuda.get_device_capability()

    def entries(self, pattern: str) -> list[str]:
        return [e.name for e in fl.corpus(pattern) if e.bytes <= MOST and e.ops <= OPS]

    def load(self, name: str) -> tuple[Any, list[Any]]:
        return fl.corpus()[name].load()

    def compile(self, plan: fl.Plan) -> None:
        strides = [one.strides for one in plan.inputs if hasattr(one, "strides")]
        for kernel in plan.prepare("cuda").generated(strides):
            compile_kernel(kernel, self._capability)

    def arrays(self, inputs: Sequence[Any]) -> list[Any]:
        return [self._array(one) if hasattr(one, "strides") else one for one in inputs]

    def _array(self, spec: Any) -> Any:
        below = int(spec.fill.high) if spec.fill is not None and spec.fill.kind == "integers" else 10
        return self._gpu.array(spec.dtype, spec.shape, spec.strides, below)

    def measured(self, plan: fl.Plan, arrays: Sequence[Any]) -> Callable[[], float]:
        captured = plan.prepare("cuda").captured(arrays)
        measured = self._gpu.measured(captured.replay)
        return lambda captured=captured: measured()  # type: ignore[misc]

    def parts(self, plan: fl.Plan, arrays: Sequence[Any]) -> list[float]:
        bound = plan.prepare("cuda").bind(arrays)
        return in_order(self._gpu.clock.measured_in_order(bound.steps))

    def free(self) -> None:
        self._gpu.free()


if __name__ == "__main__":
    run(OnGpu, OnGpu(), parsed(__doc__, "*"), WAYS_HERE)
