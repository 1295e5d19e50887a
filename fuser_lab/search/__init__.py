"""What is found by trying: the fastest plan, the parameters of kernels, the smallest fusion with a property."""
