"""Compilation of fuser_lab's CPU code by Numba: Numba types and lowers it, but LLVM runs in another process.

All CPU code of fuser_lab is compiled in this way. `njit` is for functions that kernels call, which Numba loads and
keeps; generated kernels take the same path up to their machine code, which `fuser_lab.runtime.cpu_kernels` loads.
"""

import contextlib
from collections.abc import Callable
from typing import Any, TypeVar, overload

import llvmlite.binding as llvm
import numba
from llvmlite.binding import ffi
from numba.core import config
from numba.core.codegen import JITCodeLibrary, _parse_refprune_flags
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_lock import global_compiler_lock
from numba.core.compiler_machinery import PassManager, register_pass
from numba.core.lowering import Lower
from numba.core.typed_passes import BaseNativeLowering, InlineOverloads, NativeLowering
from numba.core.untyped_passes import InlineClosureLikes
from numba.np.ufunc import parallel

from fuser_lab.process.forks import fork_waits_for
from fuser_lab.runtime.cpu.llvm_process import LLVM, Pipeline, Request

# While another thread holds one of these, Numba's tables or its threads are incomplete, or LLVM holds locks of its own.
for _lock in (global_compiler_lock._lock, parallel._backend_init_thread_lock, ffi.lib._lock._lock):  # noqa: SLF001
    fork_waits_for(_lock)


class Library(JITCodeLibrary):
    """Numba's library of functions, whose module is optimized and compiled by `LLVM`."""

    machine_code = b""  # an object file, once the library is final
    rolled = False  # whether LLVM vectorizes loops of a few iterations before it unrolls them

    def add_ir_module(self, ir_module: Any) -> None:
        """Add functions, whose stacks are aligned as vectors are.

        LLVM does so by itself only if it knows before it assigns registers that it will store vectors there. Those of
        which one crosses the border of two cache lines take twice the time.
        """
        for function in ir_module.functions:
            if not function.is_declaration and "noinline" not in function.attributes:
                set.add(function.attributes, '"stackrealign"')  # llvmlite does not know it
        super().add_ir_module(ir_module)

    def _optimize_functions(self, ll_module: Any) -> None:
        ll_module.data_layout = self._codegen._data_layout  # noqa: SLF001 - as the method that this one replaces

    def _optimize_final_module(self) -> None:
        result = LLVM.compile(request_of(self.name, self._final_module, self._codegen, rolled=self.rolled))
        self._final_module = llvm.parse_bitcode(result.bitcode)
        self._final_module.name = self.name
        self.machine_code = self._compiled_object = result.machine_code

    def _get_compiled_object(self) -> Any:
        # Numba drops it once it is loaded.
        return self.machine_code or super()._get_compiled_object()


def request_of(name: str, module: Any, codegen: Any, *, rolled: bool = False) -> Request:
    """Return a module with the settings by which a code generator of Numba compiles it; `Pipeline` has ``rolled``."""
    machine: dict[str, Any] = {"opt": int(config.OPT)}
    codegen._customize_tm_options(machine)  # noqa: SLF001 - how Numba makes its own
    machine["features"] = features_of(machine["cpu"], machine["features"])
    level, vectorize = codegen._opt_level, codegen._loopvect  # noqa: SLF001
    return Request(
        name=name, bitcode=module.as_bitcode(), layout=codegen._data_layout, machine=machine,  # noqa: SLF001
        pipeline=Pipeline(
            cheap=(level, vectorize, False),
            full=(int(config.OPT), bool(config.LOOP_VECTORIZE), bool(config.SLP_VECTORIZE)),
            rolled=rolled,
        ),
        refprune=int(_parse_refprune_flags()) if config.LLVM_REFPRUNE_PASS else 0,
    )


def features_of(cpu: str, features: str) -> str:
    """Return the features of a processor for LLVM, without gathers on processors by AMD.

    There, a gather takes longer than a load per element, but LLVM's cost model assumes less. LLVM uses half of each
    vector register of Intel's servers, and with whole ones, most kernels take longer (docs/benchmarks.md).
    """
    return ",".join(filter(None, (features, "+prefer-no-gather"))) if cpu.startswith("znver") else features


class WorkerLowering(BaseNativeLowering):
    """Numba's lowering into a `Library`: the given one, or one for Numba to load."""

    def run_pass(self, state: Any) -> bool:
        """Lower to LLVM IR."""
        if state.library is None:
            state.library = Library(state.targetctx.codegen(), state.func_id.func_qualname)
            state.library.enable_object_caching()
        return super().run_pass(state)


@register_pass(mutates_CFG=True, analysis_only=False)
class _Lowering(WorkerLowering):
    _name = "fuser_lab_lowering"

    @property
    def lowering_class(self) -> Any:
        return Lower


class Serial(CompilerBase):
    """Numba's compiler for a function that runs in one thread."""

    lowering: Any = _Lowering
    without: tuple[Any, ...] = (NativeLowering,)  # passes

    def define_pipelines(self) -> list[PassManager]:
        """Return Numba's passes without some, and with the last one replaced."""
        # It is ready by the time that Numba has typed the function.
        with contextlib.suppress(OSError):
            LLVM.start()
        passes = DefaultPassBuilder.define_nopython_pipeline(self.state, self.lowering.name())
        passes.add_pass_after(self.lowering, NativeLowering)
        passes.passes = [made for made in passes.passes if made[0] not in self.without]
        passes.finalize()
        return [passes]


class KernelCompiler(Serial):
    """Numba's compiler for generated kernels, which define no functions and call none that Numba itself inlines.

    The passes that look for these take a sixth of Numba's time.
    """

    without = (*Serial.without, InlineClosureLikes, InlineOverloads)


F = TypeVar("F", bound=Callable[..., Any])


@overload
def njit(func: F, /) -> F: ...
@overload
def njit(*signatures: Any, **options: Any) -> Callable[[F], F]: ...
def njit(*signatures: Any, **options: Any) -> Any:
    """Return Numba's ``njit`` of a function, or a decorator; the compiler is `Serial` unless another one is named."""
    return numba.njit(*signatures, **{"pipeline_class": Serial, **options})
