"""CPU kernels from source to machine code, on disk and in memory.

Numba types and lowers a kernel, and LLVM compiles it to an object file (`fuser_lab.runtime.cpu.pipelines`). Only that
file is cached, with the names of its symbols in JSON: on disk (`fuser_lab.runtime.store`), and in memory, loaded by a
separate execution engine. Kernels are not registered with Numba, because its dispatchers and shared engine hold machine
code for the life of a process. A kernel's memory is freed with the last reference to its function, held by a plan or by
a thread that runs it.
"""

import contextlib
import ctypes
import functools
import hashlib
import importlib.metadata
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir
from numba import _dynfunc  # type: ignore[attr-defined]
from numba.core import base, errors, sigutils
from numba.core import compiler as numba_compiler
from numba.core import config as numba_config
from numba.core import types as numba_types
from numba.core.codegen import JITCPUCodegen
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import cpu_target
from numba.core.runtime.nrt import rtsys
from numba.core.types import functions
from numba.np.arrayobj import populate_array

from fuser_lab.files.json_text import json_text
from fuser_lab.process.collector import collecting_rarely
from fuser_lab.process.forks import new_lock
from fuser_lab.runtime import store
from fuser_lab.runtime.called_loops import CalledLoop, callable_in_block, called_by
from fuser_lab.runtime.compile import content_key, defined_in
from fuser_lab.runtime.cpu.llvm_process import LlvmError
from fuser_lab.runtime.cpu.pipelines import KernelCompiler, Library
from fuser_lab.runtime.cpu.tensor_words import BLOCK
from fuser_lab.runtime.known_calls import known_calls, known_parameters, plain_messages
from fuser_lab.runtime.numba_compat import launch_threads
from fuser_lab.runtime.recent import Recent
from fuser_lab.runtime.waiting import WAITING

compiler: Any = numba_compiler  # its names are not exported for type checkers
types: Any = numba_types
config: Any = numba_config

_HALF_CONVERSIONS = ("__extendhfsf2", "__truncsfhf2", "__truncdfhf2")
MOST_KERNELS = 256  # in memory, in addition to those in use; about 100 KB each

# By name: the function of NumPy arrays, and that of tensors.
Functions = Mapping[str, tuple[Callable[..., None], Callable[..., None] | None]]

_LOADED: Recent[str, Functions] = Recent(MOST_KERNELS)
_LOCK = new_lock()  # Numba compiles only one kernel at a time anyway


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """A Python function to compile, with Numba's signature and options.

    An array that it writes to overlaps no other argument in memory: LLVM relies on it. Arrays that it only reads may
    overlap. The option ``rolled`` is for LLVM; see `fuser_lab.runtime.cpu.llvm_process.Pipeline`.
    """

    function: Callable[..., None]
    signature: str
    options: Mapping[str, Any]


def kernel(signature: str, **options: Any) -> Callable[[Callable[..., None]], Definition]:
    """Return a decorator that marks a function as a kernel; options are those of Numba's ``njit``."""
    return lambda function: Definition(function=function, signature=signature, options=options)


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineCode:
    """A kernel as an object file: its entry point, and the symbol for the address of its `Environment`.

    ``tensors`` is the entry point that takes tensors of torch, empty if there is none. ``threaded`` means that it calls
    Numba's thread pool, ``relocatable`` that another process may load it.
    """

    name: str
    entry: str
    tensors: str
    environment: str
    threaded: bool
    relocatable: bool
    code: bytes


class KernelLibrary(Library):
    """A library of functions that is compiled but not loaded."""

    has_entry_of_tensors = False

    def _finalize_specific(self) -> None:
        """Load nothing."""


class _Codegen(JITCPUCodegen):
    """Numba's code generator for this processor, whose modules are not added to Numba's engine."""

    _library_class = KernelLibrary

    def _add_module(self, module: Any) -> None:
        """Do nothing: the library keeps the module."""


@functools.cache
def _codegen() -> Any:
    return _Codegen("fuser_lab")


class _CalledLibrary(KernelLibrary):
    """A library of a function that LLVM compiles as a part of its caller's module."""

    def _optimize_final_module(self) -> None:
        """Leave this to the caller's library, whose module takes all functions, also those that attributes name."""
        for function in self._final_module.functions:
            if not function.is_declaration and function.linkage == llvm.Linkage.external:
                function.linkage = "weak_odr"


def compiled_library(definition: Definition) -> tuple[KernelLibrary, Any]:
    """Return a kernel as a library with readable assembly, and Numba's description of the function."""
    _unknown_symbols()  # Numba loads the functions that kernels call, and LLVM aborts on unknown symbols
    with global_compiler_lock:
        options = dict(definition.options)
        pipeline, rolled = options.pop("pipeline_class", KernelCompiler), options.pop("rolled", False)
        library = _codegen().create_library(definition.function.__qualname__)
        library.rolled = rolled
        loops = {loop: _typed_loop(loop) for loop in called_by(definition.function)}
        with callable_in_block(loops):
            described = _add_function(definition, options, pipeline, library)
        if pipeline is KernelCompiler and takes_tensors(described.argtypes):
            _add_entry_of_tensors(library, described)
            library.has_entry_of_tensors = True
        library.finalize()
        return library, described


def takes_tensors(parameters: Sequence[Any]) -> bool:
    """Whether a kernel with parameters of these types has an entry point that takes tensors."""
    return all(isinstance(parameter, types.Array | types.Integer | types.Float) for parameter in parameters)


def _add_entry_of_tensors(library: KernelLibrary, described: Any) -> None:
    """Add a function of Python that takes tensors of torch, or addresses as integers, where the kernel takes arrays.

    Numbers are those of the kernel.

    It reads the addresses where `tensor_words` says. Numba's entry point takes NumPy arrays, whose addresses Python has
    to set, one at a time: for ten arrays that takes longer than many a kernel.
    """
    context = cpu_target.target_context
    module = context.create_module(_of_tensors(described.llvm_func_name))
    callee = ir.Function(
        module, context.call_conv.get_function_type(described.restype, described.argtypes), described.llvm_func_name,
    )
    pyobject = context.get_argument_type(types.pyobject)
    entry = ir.Function(module, ir.FunctionType(pyobject, [pyobject] * 3), _of_tensors(described.llvm_func_name))
    word, builder = ir.IntType(64), ir.IRBuilder(entry.append_basic_block("entry"))
    api = context.get_python_api(builder)
    block = ir.GlobalVariable(module, word.as_pointer(), _of_layout(described.llvm_func_name))
    block.linkage, block.initializer = "common", ir.Constant(word.as_pointer(), None)
    integer = ir.GlobalVariable(module, ir.IntType(8), "PyLong_Type")
    start = builder.load(block)
    offsets = [builder.load(builder.gep(start, [ir.Constant(word, place)])) for place in range(len(BLOCK))]

    def word_at(address: Any, offset: Any) -> Any:
        return builder.load(builder.inttoptr(builder.add(address, offset), word.as_pointer()))

    values = []
    for place, parameter in enumerate(described.argtypes):
        value = api.tuple_getitem(entry.args[1], place)
        if isinstance(parameter, types.Integer):
            values.append(context.cast(builder, api.long_as_longlong(value), types.int64, parameter))
            continue
        if isinstance(parameter, types.Float):
            values.append(context.cast(builder, api.float_as_double(value), types.float64, parameter))
            continue
        itemsize = context.get_abi_sizeof(context.get_data_type(parameter.dtype))
        is_integer = builder.icmp_unsigned("==", builder.bitcast(api.get_type(value), integer.type), integer)
        address = builder.alloca(word)
        with builder.if_else(is_integer) as (then, otherwise):
            with then:
                builder.store(builder.ptrtoint(api.long_as_voidptr(value), word), address)
            with otherwise:
                tensor, storage, memory, first = offsets
                held = word_at(builder.ptrtoint(value, word), tensor)
                elements = builder.mul(word_at(held, first), ir.Constant(word, itemsize))
                builder.store(builder.add(word_at(word_at(held, storage), memory), elements), address)
        array = context.make_array(parameter)(context, builder)
        data = builder.inttoptr(builder.load(address), array.data.type)
        populate_array(  # type: ignore[no-untyped-call]
            array, data, [ir.Constant(word, _LENGTH)], [ir.Constant(word, itemsize)], itemsize, None,
        )
        values.append(array._getvalue())  # noqa: SLF001 - Numba's own name for the value of a structure
    state = api.save_thread()
    status, _ = context.call_conv.call_function(
        builder, callee, described.restype, described.argtypes, values, attrs=("noinline",),
    )
    api.restore_thread(state)
    with builder.if_then(status.is_error, likely=False):
        context.call_conv.raise_error(builder, api, status)
        builder.ret(api.get_null_object())
    api.return_none()
    library.add_ir_module(module)


_LENGTH = 1 << 40  # of arrays whose lengths kernels do not read


def _of_tensors(name: str) -> str:
    return f"{name}.tensors"


def _of_layout(name: str) -> str:
    return f"{name}.layout"


def _typed_loop(loop: CalledLoop) -> tuple[KernelLibrary, Any]:
    """Return a function that a kernel calls as LLVM IR, and Numba's description of it."""
    library = _CalledLibrary(_codegen(), loop.function.__qualname__)
    return library, _add_function(loop, {**loop.options, "no_cpython_wrapper": True}, KernelCompiler, library)


def _add_function(definition: Definition | CalledLoop, options: dict[str, Any], pipeline: Any, library: Any) -> Any:
    """Add the LLVM IR of a function to a library, and return Numba's description of it."""
    flags = compiler.Flags()
    options |= {"nopython": True, "boundscheck": None}
    cpu_target.options.parse_as_flags(flags, options)  # type: ignore[no-untyped-call]
    flags.no_compile = True  # stop at LLVM IR: nothing is loaded or registered
    flags.no_cfunc_wrapper = True
    # Without this flag, LLVM tests at run time whether arrays overlap, and does not vectorize a loop with so many
    # arrays that it would need more than a few such tests.
    flags.noalias = True
    flags.no_rewrites = True  # of array expressions and constants, which kernels do not have
    arguments, result = sigutils.normalize_signature(definition.signature)  # type: ignore[no-untyped-call]
    with known_calls(functions.BaseFunction), known_parameters(base), plain_messages(errors):
        return compiler.compile_extra(
            cpu_target.typing_context, cpu_target.target_context, definition.function, arguments, result, flags, {},
            library=library, pipeline_class=pipeline,
        ).fndesc


def compile_kernel(definition: Definition) -> MachineCode:
    """Return a kernel as machine code for this processor; let exceptions of Numba and LLVM propagate."""
    library, described = compiled_library(definition)
    return MachineCode(
        name=definition.function.__name__, entry=described.llvm_cpython_wrapper_name,
        tensors=described.llvm_func_name if library.has_entry_of_tensors else "",
        environment=cpu_target.target_context.get_env_name(described),
        threaded="pipeline_class" in definition.options, relocatable=not library.has_dynamic_globals,
        code=library.machine_code,
    )


def load_kernel(kernel: MachineCode) -> tuple[Callable[..., None], Callable[..., None] | None]:
    """Return a kernel as a function that Python calls; its memory is freed with the function.

    The second function is the one that takes tensors of torch, or None.

    Raises
    ------
    LlvmError
        If the kernel converts Half on a processor without instructions for it, and libgcc is older than GCC 12.
    """
    missing = [name for name in _unknown_symbols() if name.encode() in kernel.code]
    if missing:
        msg = f"{kernel.name} needs {', '.join(missing)} of libgcc (GCC 12 or newer): this processor has no F16C."
        raise LlvmError(msg)
    if kernel.threaded:
        launch_threads()
    machine = llvm.Target.from_triple(llvm.get_process_triple()).create_target_machine(jit=True)
    # In LLVM's global context, which is never freed: garbage collection may free another context before its engine.
    engine = llvm.create_mcjit_compiler(
        llvm.parse_assembly(""), machine, use_lmm=config.USE_LLVMLITE_MEMORY_MANAGER,
    )
    engine.add_object_file(llvm.ObjectFileRef.from_data(kernel.code))
    engine.finalize_object()
    environment = _dynfunc.Environment({})
    place = ctypes.c_void_p.from_address(engine.get_global_value_address(kernel.environment))
    place.value = id(environment)

    def function_at(symbol: str) -> Callable[..., None]:
        made: Callable[..., None] = _dynfunc.make_function(
            sys.modules[__name__], kernel.name, f"the kernel {kernel.name}", engine.get_function_address(symbol),
            environment, (engine,),
        )
        return made

    if not kernel.tensors:
        return function_at(kernel.entry), None
    block = ctypes.c_void_p.from_address(engine.get_global_value_address(_of_layout(kernel.tensors)))
    block.value = ctypes.addressof(BLOCK)
    return function_at(kernel.entry), function_at(_of_tensors(kernel.tensors))


@functools.cache
def _unknown_symbols() -> tuple[str, ...]:
    """Register the functions that machine code calls with LLVM, and return those that this system lacks.

    The functions are Numba's, and libgcc's conversions of Half for a processor without F16C. A missing one gets the
    address of another function, because LLVM would abort the process otherwise; kernels that call it are not loaded.
    """
    with global_compiler_lock:
        rtsys.initialize(cpu_target.target_context)
        compiler_runtime = None
        with contextlib.suppress(OSError):
            compiler_runtime = ctypes.CDLL("libgcc_s.so.1")
        absent = [name for name in _HALF_CONVERSIONS if llvm.address_of_symbol(name) is None]
        unknown = tuple(name for name in absent if not hasattr(compiler_runtime, name))
        for name in absent:
            function = ctypes.pythonapi.Py_FatalError if name in unknown else getattr(compiler_runtime, name)
            llvm.add_symbol(name, ctypes.cast(function, ctypes.c_void_p).value)
    return unknown


def functions_of(source: str, names: Sequence[str]) -> tuple[Callable[..., None], ...]:
    """Return the kernels of generated source by name, from memory, from disk, or newly compiled."""
    return tuple(function for function, _ in entries_of(source, names))


def entries_of(
    source: str, names: Sequence[str],
) -> tuple[tuple[Callable[..., None], Callable[..., None] | None], ...]:
    """Return the same, each with its function that takes tensors of torch, or None.

    That function also takes addresses as integers. `fuser_lab.runtime.cpu.tensor_words.can_read_tensors` must hold.
    """
    key = content_key(source)
    kernels = _LOADED.get(key)
    if kernels is None:
        WAITING.claim(source)
        with _LOCK:
            kernels = _LOADED.get(key) or _LOADED.keep(key, _make(source))
    return tuple(kernels[name] for name in names)


def _make(source: str) -> Functions:
    place = _place(source)
    content = store.read(place)
    if content is not None:
        kernels = _unpack(content)
    else:
        with collecting_rarely():
            definitions = [value for value in defined_in(source).values() if isinstance(value, Definition)]
            kernels = tuple(compile_kernel(definition) for definition in definitions)
        if all(kernel.relocatable for kernel in kernels):
            store.write(place, _pack(kernels))
    return {kernel.name: load_kernel(kernel) for kernel in kernels}


def is_compiled(source: str) -> bool:
    """Whether kernels are loaded, or their machine code on disk."""
    return content_key(source) in _LOADED or store.has(_place(source))


def _place(source: str) -> str:
    return f"cpu_{content_key(source)}.{_processor()}.bin"


_FORMAT = "entries of tensors"  # of the files; those of other formats have other names


def cpu_has(feature: str) -> bool:
    """Return whether kernels may use an extension of the processor, given LLVM's name for it, such as ``fma``."""
    *_, features = _codegen().magic_tuple()
    return f"+{feature}" in features.split(",")


@functools.cache
def _processor() -> str:
    """Return a hash of the properties of the processor that machine code depends on."""
    settings = (config.OPT, config.LOOP_VECTORIZE, config.SLP_VECTORIZE, config.BOUNDSCHECK)
    versions = (_FORMAT, importlib.metadata.version("llvmlite"), sys.implementation.cache_tag)
    properties = (*versions, *map(str, settings), *_codegen().magic_tuple())
    return hashlib.sha256("\n".join(properties).encode()).hexdigest()[:12]


def _pack(kernels: Sequence[MachineCode]) -> bytes:
    """Return kernels as a line of JSON and their object files."""
    head = [
        {
            "name": k.name, "entry": k.entry, "tensors": k.tensors, "environment": k.environment,
            "threaded": k.threaded, "size": len(k.code),
        }
        for k in kernels
    ]
    return b"".join((json_text(head).encode(), b"\n", *(k.code for k in kernels)))


def _unpack(content: bytes) -> tuple[MachineCode, ...]:
    """Return the kernels in content made by `_pack`."""
    head, _, codes = content.partition(b"\n")
    kernels, start = [], 0
    for record in json.loads(head):
        end = start + record.pop("size")
        kernels.append(MachineCode(**record, relocatable=True, code=codes[start:end]))
        start = end
    return tuple(kernels)
