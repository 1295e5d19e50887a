"""The functions imported by kernels that numba-cuda-mlir compiles."""

from fuser_lab.runtime.cuda_compilers.definitions import functions_for
from fuser_lab.runtime.cuda_compilers.numba_cuda_mlir import NumbaCudaMlir

globals().update(functions_for(NumbaCudaMlir()))
