"""Kernels of the CPU: compiled by Numba and LLVM, launched on threads, with arrays in host memory."""
