"""nvFuser's ``NVFUSER_DUMP=segmented_fusion``: read without executing anything."""

from fuser_lab.definition.dump.building import SCALAR_DTYPES, Sized, built
from fuser_lab.definition.dump.sections import DumpedGroup, DumpText, Refusal, dumps_in

__all__ = ["SCALAR_DTYPES", "DumpText", "DumpedGroup", "Refusal", "Sized", "built", "dumps_in"]
