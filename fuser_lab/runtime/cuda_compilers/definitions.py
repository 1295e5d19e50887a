"""All functions that generated CUDA kernels call, the counterparts of `intrinsics_cpu`, defined for a compiler."""

from collections.abc import Mapping
from typing import Any

from fuser_lab.runtime.cuda_compilers.cluster_functions import define_cluster_functions
from fuser_lab.runtime.cuda_compilers.complex_functions import define_complex_functions
from fuser_lab.runtime.cuda_compilers.float8_functions import define_float8_functions
from fuser_lab.runtime.cuda_compilers.language import Language, Library
from fuser_lab.runtime.cuda_compilers.memory_functions import define_memory_functions
from fuser_lab.runtime.cuda_compilers.number_functions import define_number_functions
from fuser_lab.runtime.cuda_compilers.random_functions import define_random_functions
from fuser_lab.runtime.cuda_compilers.shuffle_functions import define_shuffle_functions
from fuser_lab.runtime.integer_functions import integer_functions


def functions_for(language: Language) -> Mapping[str, Any]:
    """Return the functions by the names that kernels use."""
    library = Library(language)
    define_memory_functions(library)
    define_number_functions(library)
    define_float8_functions(library)
    define_complex_functions(library)
    library.functions.update(integer_functions(library.helper, library.types.uint64))
    define_random_functions(library)
    define_cluster_functions(library)
    define_shuffle_functions(library)
    # A compiler sees the builtin; the name tells it that all iterations are to be written out.
    library.functions["unrolled"] = range
    return library.functions
