"""Generation of kernels: a scheduled segment is lowered to Kernel IR, which is printed as Numba source."""
