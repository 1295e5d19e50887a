"""From a scheduled segment to Kernel IR, and from there to Numba source for CPU and GPU."""
