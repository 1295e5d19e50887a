"""Kernels of a GPU: PTX and machine code, launches by the driver, and arrays in device memory."""
