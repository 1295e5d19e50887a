"""Parallel loops of CPU kernels: a kernel is compiled once, and each thread of Numba's pool runs its part.

``njit(parallel=True)`` makes one function of the body of a parallel loop, one that lets the pool call it, and one
around both, and types and optimizes the loop two or three times. Here, threads call the kernel itself, whose `prange`
returns a thread's part of the range: a first call takes half as long, and later calls take the same time.

Code outside the loop runs in each thread, so it must not write to shared memory.
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.callwrapper import PyCallWrapper
from numba.core.compiler_machinery import register_pass
from numba.core.lowering import Lower
from numba.extending import intrinsic

from fuser_lab.runtime.cpu.pipelines import KernelCompiler, WorkerLowering
from fuser_lab.runtime.numba_compat import launch_threads

_BYTES, _SIZE = ir.IntType(8).as_pointer(), ir.IntType(64)
# Numba's functions return a status and take, before their arguments, a pointer for the result, here None, and one for
# an exception. The pointer for the result points to this: result, number of the part, count of parts.
_PART = ir.LiteralStructType([_BYTES, _SIZE, _SIZE])
_NUMBER, _COUNT = 1, 2
_POOL = ir.FunctionType(ir.VoidType(), [_BYTES] * 5 + [_SIZE] * 3)
_CALLED_BY_POOL = ir.FunctionType(ir.VoidType(), [_BYTES.as_pointer(), _SIZE.as_pointer(), _SIZE.as_pointer(), _BYTES])


@intrinsic
def prange(context: Any, count: Any) -> Any:
    """Return the part of ``range(count)`` that this thread computes."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        part = builder.bitcast(builder.function.args[0], _PART.as_pointer())
        number, parts = (builder.load(_place(builder, part, field)) for field in (_NUMBER, _COUNT))
        iterations = context.make_helper(builder, types.range_state64_type)
        iterations.start = builder.udiv(builder.mul(args[0], number), parts)
        iterations.stop = builder.udiv(builder.mul(args[0], builder.add(number, _SIZE(1))), parts)
        iterations.step = _SIZE(1)
        return iterations._getvalue()  # noqa: SLF001 - how Numba's own code does it

    return types.range_state64_type(types.int64), generate


def _place(builder: Any, record: Any, field: int) -> Any:
    return cgutils.gep_inbounds(builder, record, 0, field)


def _sharing_function(module: Any, kernel: Any) -> Any:
    """Return a function with the parameters of a kernel that lets all threads call it and waits for them."""
    # The count of parts precedes the arguments, so that threads of the pool need not know their number.
    frame = ir.LiteralStructType([_SIZE, *(arg.type for arg in kernel.args[1:])])
    shared = ir.Function(module, kernel.function_type, f"shared.{kernel.name}")
    shared.linkage = "internal"
    builder = ir.IRBuilder(shared.append_basic_block())
    threads = ir.Function(module, ir.FunctionType(_SIZE, []), "get_num_threads")
    count = builder.call(threads, [])
    frame_memory = builder.alloca(frame)
    for field, value in enumerate([count, *shared.args[1:]]):
        builder.store(value, _place(builder, frame_memory, field))
    is_serial = builder.icmp_unsigned("<=", count, _SIZE(1))
    with builder.if_then(is_serial):
        # The pool is not used here, because in a fork of a process with threads it would end the process.
        part = builder.alloca(_PART)
        for value, field in ((_SIZE(0), _NUMBER), (_SIZE(1), _COUNT)):
            builder.store(value, _place(builder, part, field))
        # Called, not inlined: a second copy of the kernel would take as long to compile as the first.
        arguments = [builder.bitcast(part, kernel.args[0].type), *shared.args[1:]]
        status = builder.call(kernel, arguments, attrs=("noinline",))
        builder.store(shared.args[0].type.pointee(None), shared.args[0])
        builder.ret(status)
    # The pool distributes ``count`` elements of an array over its threads. The elements are bytes of an array that
    # begins at address 0, so that the address of an element is its number.
    arrays, counts, steps = (builder.alloca(kind) for kind in (_BYTES, _SIZE, _SIZE))
    for value, place in ((_BYTES(None), arrays), (count, counts), (_SIZE(1), steps)):
        builder.store(value, place)
    pointers = [_called_by_pool(module, kernel, frame), arrays, counts, steps, frame_memory]
    pool = ir.Function(module, _POOL, "numba_parallel_for")
    builder.call(pool, [*(builder.bitcast(p, _BYTES) for p in pointers), _SIZE(0), _SIZE(1), count])
    result = shared.args[0]
    builder.store(result.type.pointee(None), result)
    builder.ret(kernel.function_type.return_type(0))
    return shared


def _called_by_pool(module: Any, kernel: Any, frame: Any) -> Any:
    """Return a function that calls a kernel for each part that the pool assigns to a thread."""
    worker = ir.Function(module, _CALLED_BY_POOL, f"worker.{kernel.name}")
    worker.linkage = "internal"
    array, parts, _, data = worker.args
    builder = ir.IRBuilder(worker.append_basic_block())
    frame_memory = builder.bitcast(data, frame.as_pointer())
    count, *arguments = (builder.load(_place(builder, frame_memory, field)) for field in range(len(frame.elements)))
    first = builder.ptrtoint(builder.load(array), _SIZE)
    part = builder.alloca(_PART)
    builder.store(count, _place(builder, part, _COUNT))
    with cgutils.for_range(builder, builder.load(parts)) as loop:
        builder.store(builder.add(first, loop.index), _place(builder, part, _NUMBER))
        builder.call(kernel, [builder.bitcast(part, kernel.args[0].type), *arguments])
    builder.ret_void()
    return worker


class _Lower(Lower):
    """Numba's last pass before LLVM, with a different function for Python to call."""

    def create_cpython_wrapper(self, release_gil: bool = False) -> None:
        """Make the function for Python, which unpacks the arguments once and lets all threads call the kernel."""
        context, fndesc = self.context, self.fndesc
        module = context.create_module("wrapper")
        kind = context.call_conv.get_function_type(fndesc.restype, fndesc.argtypes)
        callee = _sharing_function(module, ir.Function(module, kind, fndesc.llvm_func_name))
        PyCallWrapper(context, module, callee, fndesc, self.env, self.call_helper, release_gil).build()
        self.library.add_ir_module(module)


@register_pass(mutates_CFG=True, analysis_only=False)
class _Lowering(WorkerLowering):
    _name = "fuser_lab_threaded_lowering"

    @property
    def lowering_class(self) -> Any:
        return _Lower

    def run_pass(self, state: Any) -> bool:
        """Lower after starting the pool, which a kernel read from disk also starts."""
        launch_threads()
        state.reload_init.append(launch_threads)
        state.flags.no_cfunc_wrapper = True  # it is not called from C
        return super().run_pass(state)


class Threaded(KernelCompiler):
    """Numba's compiler for kernels with a loop over `prange`."""

    lowering = _Lowering
