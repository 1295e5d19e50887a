from numba.types import *
