from numba.extending import *
