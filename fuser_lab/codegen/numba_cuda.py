"""The CUDA printer."""
from fuser_lab.codegen.emitter import Emitter


class CudaEmitter(Emitter):
    """Prints Numba CUDA kernels."""
    target = "cuda"
