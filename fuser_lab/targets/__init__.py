"""Targets: one record per target, registered once; all other code uses the record."""

from fuser_lab.targets.cpu import CPU
from fuser_lab.targets.cuda import CUDA
from fuser_lab.targets.record import Form, Later, Target
from fuser_lab.targets.registry import find, names, register, target_of

register(CPU)
register(CUDA)

__all__ = ["CPU", "CUDA", "Form", "Later", "Target", "find", "names", "register", "target_of"]
