"""NVIDIA GPUs: kernels compiled by numba-cuda or numba-cuda-mlir, on tensors of torch."""

from fuser_lab.targets.record import Form, Later, Target

CUDA = Target(
    name="cuda",
    form=Form.BLOCKS,
    on_host=False,
    emitter=Later(module="fuser_lab.codegen.numba_cuda", name="CudaEmitter"),
    memory=Later(module="fuser_lab.runtime.device", name="DeviceMemory"),
    clock=Later(module="fuser_lab.runtime.clocks", name="DeviceClock"),
    current=Later(module="fuser_lab.runtime.device", name="current_device"),
)
