"""The names that a repro script may use without defining them, and the constructs that are not read."""

import ast
from collections.abc import Mapping

from fuser_lab.definition.repro.arguments import FORMATS, TORCH_DTYPES
from fuser_lab.definition.repro.makers import MAKERS
from fuser_lab.definition.repro.values import CONSTANTS, FUNCTIONS, Path
from fuser_lab.definition.schedulable import Schedulable

# Libraries whose names may occur. All of nvFuser's frontends, including ours, count as one.
LIBRARIES = frozenset({
    "torch", "numpy", "math", "thunder", "typing", "__future__", "ml_dtypes", "pytest", "os", "sys", "time", "copy",
    "functools", "itertools", "random", "types",
})  # fmt: skip
FRONTENDS = frozenset({"nvfuser", "nvfuser_direct", "fuser_lab"})
# Names that a snippet may use without importing them.
COMMON = {
    "torch": Path(("torch",)), "np": Path(("numpy",)), "numpy": Path(("numpy",)), "math": Path(("math",)),
    "nvfuser": Path(("nvfuser",)), "nvfuser_direct": Path(("nvfuser",)), "fl": Path(("nvfuser",)),
    "FusionDefinition": Path(("nvfuser", "FusionDefinition")), "DataType": Path(("nvfuser", "DataType")),
    "make_tensor": Path(("torch", "testing", "make_tensor")), "exec_nvfuser": Path(("nvfuser", "exec_nvfuser")),
}  # fmt: skip
# Methods of a definition that take its inputs.
RUNS = ("execute", "validate", "manual_execute", "manual_validate")
# Attributes of a definition through which scripts schedule by hand.
SCHEDULES = ("sched", "schedule")
# Methods that change a tensor's loops, and those that describe them.
SCHEDULED = frozenset(name for name in dir(Schedulable) if not name.startswith("_")) | {
    "get_loop_domain", "get_logical_domain", "get_root_domain", "domain", "definition", "uses", "set_loop_domain",
}  # fmt: skip
# Names with a meaning here besides tensor functions, dtypes and formats.
_MEANT = frozenset({
    "torch.device", "torch.Size", "torch.Tensor", "torch.set_default_dtype", "torch.set_default_tensor_type",
})  # fmt: skip
HARMLESS = frozenset({"print", "repr", "type", "isinstance", "getattr", "hasattr", "dir", "id", "super", "dict"})

# Constructs that are not read, as errors name them.
FORBIDDEN: Mapping[type[ast.AST], str] = {
    ast.SetComp: "a set comprehension",
    ast.Await: "await",
    ast.Yield: "yield",
    ast.YieldFrom: "yield",
    ast.IfExp: "a conditional expression",
    ast.Starred: "a starred expression",
}
# The end of errors about all other expressions.
ACCEPTED = (
    "supported are names, numbers, lists, DataType.X, fd.define_*, fd.ops.*, fd.add_output, torch functions that "
    "create inputs, and functions that the script defines"
)


def has_meaning(name: str) -> bool:
    """Whether a library's name is read here, so a script must not assign to it."""
    library, _, rest = name.partition(".")
    names = _MEANT | CONSTANTS.keys() | FUNCTIONS.keys() | {
        f"torch.{each}" for each in (*MAKERS, *TORCH_DTYPES, *FORMATS)
    }  # fmt: skip
    return library == "nvfuser" or not rest or any(
        name == each or name.startswith(f"{each}.") or each.startswith(f"{name}.") for each in names
    )
