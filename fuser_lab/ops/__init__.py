"""Every op of ``fd.ops``, one record each: each module of the package registers a family."""

import sys
from importlib import import_module
from pkgutil import iter_modules

# All families or none: if an import is interrupted, ops that are already registered would make the next one fail.
try:
    for _module in iter_modules(__path__, f"{__name__}."):
        import_module(_module.name)
    from fuser_lab.ops.registry import COMPOSITES, OPS, Composite, OpDef, Recorder
    from fuser_lab.ops.rules import Element, Result
except BaseException:
    for _name in [name for name in sys.modules if name.startswith(f"{__name__}.")]:
        del sys.modules[_name]
    raise

__all__ = ["COMPOSITES", "OPS", "Composite", "Element", "OpDef", "Recorder", "Result"]
