"""Searches: the fastest plan, the parameters of kernels, the smallest fusion with a property."""
