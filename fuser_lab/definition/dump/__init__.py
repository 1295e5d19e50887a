"""nvFuser's ``NVFUSER_DUMP=segmented_fusion``: read without executing anything."""

from fuser_lab.definition.dump.building import SCALAR_DTYPES, Sized, build_fusion
from fuser_lab.definition.dump.sections import DumpedGroup, DumpText, Refusal, dumps_in

__all__ = ["SCALAR_DTYPES", "DumpText", "DumpedGroup", "Refusal", "Sized", "build_fusion", "dumps_in"]
