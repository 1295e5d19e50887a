"""A program that reads LLVM modules, one after another, and answers each with its machine code.

It is a program because a failed assertion in LLVM ends its process, which Python code cannot prevent. It imports only
llvmlite and the standard library, so that it starts in a tenth of a second, and ends by itself after a minute without
requests. `fuser_lab.runtime.cpu.llvm_process` is the other end.

A message is a line of JSON followed by bytes, whose counts are in that line.
"""

import json
import os
import sys
from typing import IO, Any

IDLE = 60.0  # seconds
# Highest speed level of the last run: at level 3, LLVM fully unrolls loops of up to 300 instructions after it has
# vectorized them, and their values no longer fit in registers.
_LAST_LEVEL = 2


def send(stream: IO[bytes], head: dict[str, Any], *parts: bytes) -> None:
    """Write a message."""
    head = {**head, "sizes": [len(part) for part in parts]}
    stream.write(b"".join((json.dumps(head).encode(), b"\n", *parts)))
    stream.flush()


def receive(stream: IO[bytes]) -> tuple[dict[str, Any], list[bytes]] | None:
    """Return the next message and its bytes; None if the other end has closed."""
    line = stream.readline()
    if not line.endswith(b"\n"):
        return None
    head = json.loads(line)
    parts = [stream.read(size) for size in head["sizes"]]
    return (head, parts) if [len(part) for part in parts] == head["sizes"] else None


def compile_module(bitcode: bytes, head: dict[str, Any]) -> tuple[bytes, bytes]:
    """Return a module after Numba's passes, as bitcode, and its machine code as an object file.

    Parameters
    ----------
    bitcode
        A module that defines or declares everything it calls.
    head
        ``machine``: arguments of llvmlite's ``create_target_machine``. ``steps``: speed level, loop and SLP
        vectorization of the two runs over the module, as in Numba's ``CPUCodeLibrary``. ``rolled``: whether these two
        do not unroll loops, and a third run, like the second, unrolls them. Otherwise LLVM unrolls short loops first
        and can then vectorize only the loops around them, with gathers. ``layout``: the data layout. ``refprune``: the
        passes that remove pairs of reference counts, 0 for none.
    """
    import llvmlite.binding as llvm

    # A separate context, so that its memory is freed.
    module = llvm.parse_bitcode(bitcode, llvm.create_context())
    module.data_layout = head["layout"]
    machine = llvm.Target.from_triple(module.triple).create_target_machine(**head["machine"])
    cheap, full = head["steps"]
    rolled = head["rolled"]
    functions = _builder(llvm, machine, full, unroll=not rolled)
    for function in module.functions:
        passes = functions.getFunctionPassManager()
        _add_refprune(llvm, passes, head)
        passes.run(function, functions)
    builder = _builder(llvm, machine, cheap, unroll=not rolled)
    passes = builder.getModulePassManager()
    if full[0]:
        passes.add_loop_rotate_pass()
        passes.add_instruction_combine_pass()
        passes.add_jump_threading_pass()
    _add_refprune(llvm, passes, head)
    passes.run(module, builder)
    for unroll in (False, True) if rolled else (True,):
        builder = _builder(llvm, machine, [min(full[0], _LAST_LEVEL), *full[1:]], unroll=unroll)
        passes = builder.getModulePassManager()
        _add_refprune(llvm, passes, head)
        passes.run(module, builder)
    module.verify()
    return module.as_bitcode(), machine.emit_object(module)


def _builder(llvm: Any, machine: Any, step: list[int], *, unroll: bool) -> Any:
    options = llvm.create_pipeline_tuning_options()
    options.loop_unrolling = unroll
    options.speed_level, options.loop_vectorization, options.slp_vectorization = step
    return llvm.create_pass_builder(machine, options)


def _add_refprune(llvm: Any, passes: Any, head: dict[str, Any]) -> None:
    if head["refprune"]:
        passes.add_refprune_pass(llvm.RefPruneSubpasses(head["refprune"]))


def main(questions: IO[bytes], answers: IO[bytes], arguments: list[str]) -> None:
    """Answer requests until the other end closes or is idle.

    Parameters
    ----------
    questions, answers
        The source of messages, unbuffered or not read before, and their destination.
    arguments
        The directory of llvmlite, then options of LLVM.
    """
    sys.path.append(arguments[0])
    _leave_no_core()
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    for option in arguments[1:]:
        llvm.set_option("fuser_lab", option)
    while _is_asked(questions) and (message := receive(questions)) is not None:
        head, parts = message
        try:
            bitcode, machine_code = compile_module(parts[0], head)
        except Exception as error:  # noqa: BLE001 - it is raised where it was asked
            send(answers, {"error": str(error)})
        else:
            send(answers, {"error": None}, bitcode, machine_code)


def _is_asked(questions: IO[bytes]) -> bool:
    """Wait for a request; return False if none comes. If pipes cannot be polled, return True, and reading waits."""
    if sys.platform == "win32":
        return True
    import select

    return bool(select.select([questions], [], [], IDLE)[0])


def _leave_no_core() -> None:
    """Prevent the system from writing a core dump when LLVM ends this process."""
    try:
        import resource
    except ImportError:
        return
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))


if __name__ == "__main__":
    # Output of LLVM must not be mistaken for answers.
    with os.fdopen(os.dup(1), "wb") as answers:
        os.dup2(2, 1)
        main(sys.stdin.buffer, answers, sys.argv[1:])
