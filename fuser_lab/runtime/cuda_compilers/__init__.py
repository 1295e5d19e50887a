"""The compilers of CUDA kernels; all that knows one of them is here, but for the names that the emitter prints.

Importing this package loads neither of them.
"""

from fuser_lab.runtime.cuda_compilers.selection import compiler_named, distributions_of, function_sources

__all__ = ["compiler_named", "distributions_of", "function_sources"]
