"""The functions imported by kernels that numba-cuda compiles."""

from fuser_lab.runtime.cuda_compilers.definitions import functions_for
from fuser_lab.runtime.cuda_compilers.numba_cuda import NumbaCuda

globals().update(functions_for(NumbaCuda()))
