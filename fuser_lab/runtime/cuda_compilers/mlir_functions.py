"""The functions that kernels compiled with numba-cuda-mlir import."""

from fuser_lab.runtime.cuda_compilers.definitions import functions_for
from fuser_lab.runtime.cuda_compilers.numba_cuda_mlir import NumbaCudaMlir

globals().update(functions_for(NumbaCudaMlir()))
