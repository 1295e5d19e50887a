"""Plans of other compilers: their kernels and reasons beside our own fusion of the same graph."""
