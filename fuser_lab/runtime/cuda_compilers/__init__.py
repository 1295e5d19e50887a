"""The compilers of CUDA kernels; all code specific to one of them is here, except for names that the emitter prints.

Importing this package loads no compiler.
"""

from fuser_lab.runtime.cuda_compilers.selection import compiler_named, distributions_of, function_sources

__all__ = ["compiler_named", "distributions_of", "function_sources"]
