"""The loops of GPU kernels: one style per kind of nest."""

from fuser_lab.codegen.gpu_elements import ElementNest
from fuser_lab.codegen.gpu_kept_columns import KeptColumnNest
from fuser_lab.codegen.gpu_staged_rows import StagedRowNest
from fuser_lab.codegen.gpu_tile_sums import TileSumNest


class GpuNest(ElementNest, TileSumNest, StagedRowNest, KeptColumnNest):
    """Writes nests for a GPU."""
