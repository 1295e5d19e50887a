"""The CPU that loops are chosen for; kernels are the same on every machine, so these numbers are not the host's."""

from math import isqrt

from fuser_lab.cost.device import KIB, WORD_BYTES

CORES = 16  # cores that share a loop; machines with fewer run several iterations on each
L1_BYTES = 32 * KIB  # bytes of a core's first cache, the smallest of x86-64 servers since 2017
L2_BYTES = 512 * KIB  # bytes of a core's second cache, as in AMD Zen
LINE_BYTES = 64  # bytes of a line of a cache
STACK_BYTES = 512 * KIB  # bytes of the stack of a thread, the smallest default of macOS and Linux

LINE = LINE_BYTES // WORD_BYTES  # elements of Float in a line
HALF_L1 = L1_BYTES // 2 // WORD_BYTES  # elements of Float in half of the first cache; the rest holds what is read
SIDE = isqrt(HALF_L1)  # rows and columns of Float of a square tile that takes half of the first cache
