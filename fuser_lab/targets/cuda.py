"""NVIDIA GPUs: kernels compiled by numba-cuda or numba-cuda-mlir, on tensors of torch."""

from fuser_lab.targets.record import Assembly, Form, Later, Target

CUDA = Target(
    name="cuda",
    label="CUDA",
    form=Form.BLOCKS,
    on_host=False,
    emitter=Later(module="fuser_lab.codegen.numba_cuda", name="CudaEmitter"),
    memory=Later(module="fuser_lab.runtime.gpu.device", name="DeviceMemory"),
    clock=Later(module="fuser_lab.runtime.clocks", name="DeviceClock"),
    current=Later(module="fuser_lab.runtime.gpu.device", name="current_device"),
    device=Later(module="fuser_lab.runtime.gpu.this_gpu", name="this_gpu"),
    assembly=Assembly(name="PTX", listing=Later(module="fuser_lab.runtime.gpu.ptx", name="listing")),
)
