from numba.core.cgutils import *
