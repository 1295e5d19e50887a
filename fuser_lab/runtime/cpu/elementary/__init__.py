"""Rules of mathematical functions: the LLVM instructions of one number or of a vector of numbers."""
