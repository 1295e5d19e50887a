"""fuser_lab: see, edit, run and measure how a fusion is cut into segments."""

import importlib
import os
import sys
import types

# Before anything else, because a fork waits for imports in progress.
import fuser_lab.process.forks as _forks  # noqa: F401
from fuser_lab.version import __version__ as __version__

# GNU OpenMP spins between parallel regions and stalls when cores are shared; it reads this once, before Numba loads. If
# torch was imported first, OpenMP is already loaded; `runtime.numba_compat` then finds this unset and uses another
# method.
if "torch" not in sys.modules:
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
# Numba does not read the number of threads from OpenMP's variable, as other libraries do.
_THREADS = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
if _THREADS.isdecimal() and 0 < int(_THREADS) <= (os.cpu_count() or 1) and "numba" not in sys.modules:
    os.environ.setdefault("NUMBA_NUM_THREADS", _THREADS)

# Each public name and its module; modules load at first use, so that a low rank imports nothing higher.
_PUBLIC = {
    "DataType": "fuser_lab.dtypes",
    "DecisionLog": "fuser_lab.segmentation.events",
    "Device": "fuser_lab.cost.device",
    "FuserLabError": "fuser_lab.errors",
    "FusionCache": "fuser_lab.definition.cache",
    "FusionDefinition": "fuser_lab.api.fusion_definition",
    "FusionContractError": "fuser_lab.errors",
    "Ledger": "fuser_lab.lab.ledger",
    "MemoryType": "fuser_lab.ir.transform",
    "ParallelType": "fuser_lab.ir.transform",
    "OPEN_SCHEDULERS": "fuser_lab.codegen.one_kernel",
    "PASSES": "fuser_lab.passes",
    "Pass": "fuser_lab.passes",
    "Plan": "fuser_lab.plan",
    "PlanDiff": "fuser_lab.report.diff",
    "SCHEDULERS": "fuser_lab.schedule.registry",
    "SegmenterOptions": "fuser_lab.segmentation",
    "Timings": "fuser_lab.lab.timings",
    "at_most": "fuser_lab.contracts.checks",
    "compare": "fuser_lab.api.functions",
    "corpus": "fuser_lab.lab.corpus",
    "diff": "fuser_lab.api.functions",
    "example": "fuser_lab.api.functions",
    "explain": "fuser_lab.api.explaining",
    "explore": "fuser_lab.api.exploring",
    "fastest": "fuser_lab.search.fastest",
    "from_inductor": "fuser_lab.compilers.inductor",
    "from_jax": "fuser_lab.bridge.jax_model",
    "from_torch": "fuser_lab.bridge.model",
    "from_xla": "fuser_lab.compilers.xla",
    "kept_results": "fuser_lab.plan.kept_results",
    "load_dump": "fuser_lab.compilers.nvfuser_dumps",
    "load_recorded": "fuser_lab.compilers.recorded",
    "load_repro": "fuser_lab.api.functions",
    "one_kernel": "fuser_lab.contracts.checks",
    "profile": "fuser_lab.lab.profiling",
    "price": "fuser_lab.pricing.prices",
    "report": "fuser_lab.api.functions",
    "same_kernel": "fuser_lab.contracts.checks",
    "segment": "fuser_lab.plan.planning",
    "shrink": "fuser_lab.search.shrinking",
    "spec": "fuser_lab.definition.spec",
    "sweep": "fuser_lab.lab.sweeps",
    "time": "fuser_lab.api.functions",
    "tune": "fuser_lab.search.tuning",
    "use_tuned": "fuser_lab.plan.kept_results",
    "with_rule": "fuser_lab.schedule.own",
    "without_rules": "fuser_lab.codegen.one_kernel",
}
_MODULES = {
    "errors": "fuser_lab.errors",
    "examples": "fuser_lab.examples",
    "torch": "fuser_lab.torch",
    "views": "fuser_lab.lab.views",
}

__all__ = [  # noqa: PLE0604 - the names are the keys above
    *sorted(_PUBLIC),
    "errors",
    "examples",
    "views",
]


class _Report(types.ModuleType):
    """The package of static views, which is called as the public function that has its name."""

    def __call__(self, *arguments: object, **options: object) -> object:
        """Return the path of the report that was written; see `fuser_lab.api.functions.report`."""
        return importlib.import_module("fuser_lab.api.functions").report(*arguments, **options)


class _Package(types.ModuleType):
    """The type of the module ``fuser_lab``: its ``report`` stays callable after the package ``report`` is imported."""

    def __setattr__(self, name: str, value: object) -> None:
        """Set an attribute."""
        if name == "report" and isinstance(value, types.ModuleType):
            value.__class__ = _Report
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> object:
    """Return a public name, loading its module."""
    module = _PUBLIC.get(name) or _MODULES.get(name)
    if module is not None:
        from fuser_lab.runtime.interrupts import interrupts_deferred

        # Ops register themselves: after a failed import, those already registered would make a second import fail.
        with interrupts_deferred():
            loaded = importlib.import_module(module)
        return loaded if name in _MODULES else getattr(loaded, name)
    raise AttributeError(f"module 'fuser_lab' has no attribute {name!r}")


def load_ipython_extension(ipython: object) -> None:
    """Add ``%%fusion``, ``%fusion_time``, ``%fusion_diff`` and ``%fusion_history``: ``%load_ext fuser_lab``."""
    from fuser_lab.cli.magics import FusionMagics

    ipython.register_magics(FusionMagics)  # type: ignore[attr-defined]


def __dir__() -> list[str]:
    """Return the public names."""
    return sorted(__all__)
