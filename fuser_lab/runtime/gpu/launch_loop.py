"""A loop over launches in machine code, so that Python makes one call for all launches of a run.

A call through ctypes costs about as much as a launch in the driver, mostly for its eleven arguments. The loop takes one
argument: the address of a `Row`, which holds everything else.
"""

import contextlib
import ctypes
import functools
from typing import Any

from fuser_lab.runtime.interrupts import interrupts_deferred


class Record(ctypes.Structure):
    """The launch of one kernel: the driver's arguments except the stream; ``arguments`` are addresses of words."""

    _fields_ = (
        ("function", ctypes.c_void_p), ("arguments", ctypes.c_void_p), ("blocks", ctypes.c_uint), ("x", ctypes.c_uint),
        ("y", ctypes.c_uint), ("shared", ctypes.c_uint),
    )


class Row(ctypes.Structure):
    """Launches on a stream: records from ``next`` to ``count``; ``launch`` is the address of ``cuLaunchKernel``."""

    _fields_ = (
        ("launch", ctypes.c_void_p), ("stream", ctypes.c_void_p), ("records", ctypes.c_void_p),
        ("next", ctypes.c_size_t), ("count", ctypes.c_size_t),
    )


_FUNCTION, _ARGUMENTS, _BLOCKS, _X, _Y, _SHARED = range(6)
_LAUNCH, _STREAM, _RECORDS, _NEXT, _COUNT = range(5)


@functools.cache
def loop() -> Any:
    """Return the loop, a function that takes the address of a row.

    It returns 0 and does not change ``next``, or stops at a launch that the driver refuses: then ``next`` is the index
    of that launch, and the driver's status is returned.
    """
    with interrupts_deferred():
        engine, address = _compile()
    function = ctypes.CFUNCTYPE(ctypes.c_int)(address)
    function.engine = engine  # type: ignore[attr-defined] # keeps the code alive
    return function


def _compile() -> tuple[Any, int]:
    from llvmlite import binding

    with contextlib.suppress(RuntimeError):  # newer versions initialize themselves and raise
        binding.initialize()
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    module = binding.parse_assembly(str(_module()))
    engine = binding.create_mcjit_compiler(module, binding.Target.from_default_triple().create_target_machine())
    engine.finalize_object()
    return engine, engine.get_function_address("launch_all")


def _module() -> Any:
    """Return the loop as LLVM IR."""
    from llvmlite import ir

    status, word, place = ir.IntType(32), ir.IntType(64), ir.IntType(8).as_pointer()
    record = ir.LiteralStructType([place, place.as_pointer(), *[status] * 4])
    driver = ir.FunctionType(status, [place, *[status] * 7, place, place.as_pointer(), place.as_pointer()])
    row = ir.LiteralStructType([driver.as_pointer(), place, record.as_pointer(), word, word])
    module = ir.Module("launches")
    function = ir.Function(module, ir.FunctionType(status, [row.as_pointer()]), "launch_all")
    entry, test, body, after, refused, done = (
        function.append_basic_block(name) for name in ("entry", "test", "body", "after", "refused", "done")
    )
    builder = ir.IRBuilder(entry)

    def field(record: Any, number: int) -> Any:
        return builder.gep(record, [status(0), status(number)])

    def load(record: Any, number: int) -> Any:
        return builder.load(field(record, number))

    whole = function.args[0]
    launch, stream, records, first, count = (load(whole, n) for n in (_LAUNCH, _STREAM, _RECORDS, _NEXT, _COUNT))
    builder.branch(test)
    builder.position_at_end(test)
    number = builder.phi(word)
    number.add_incoming(first, entry)
    builder.cbranch(builder.icmp_unsigned("<", number, count), body, done)
    builder.position_at_end(body)
    here = builder.gep(records, [number])
    kernel, arguments, blocks, x, y, shared = (
        load(here, n) for n in (_FUNCTION, _ARGUMENTS, _BLOCKS, _X, _Y, _SHARED)
    )
    single = status(1)
    extra = place.as_pointer()(None)
    answer = builder.call(launch, [kernel, blocks, single, single, x, y, single, shared, stream, arguments, extra])
    builder.cbranch(builder.icmp_unsigned("==", answer, status(0)), after, refused)
    builder.position_at_end(after)
    number.add_incoming(builder.add(number, word(1)), after)
    builder.branch(test)
    builder.position_at_end(refused)
    builder.store(number, field(whole, _NEXT))
    builder.ret(answer)
    builder.position_at_end(done)
    builder.ret(status(0))
    return module
