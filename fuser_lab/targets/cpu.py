"""The CPU of this machine: kernels compiled by Numba and LLVM, on arrays of NumPy."""

from fuser_lab.targets.record import Form, Later, Target

CPU = Target(
    name="cpu",
    label="CPU",
    form=Form.CORES,
    on_host=True,
    emitter=Later(module="fuser_lab.codegen.numba_cpu", name="CpuEmitter"),
    memory=Later(module="fuser_lab.runtime.cpu.host", name="host_memory"),
    clock=Later(module="fuser_lab.runtime.clocks", name="HostClock"),
)
