"""numba-cuda: kernels compiled through LLVM IR, built by llvmlite, and NVVM; one of the files that import it."""

import contextlib
import functools
import importlib
import types as python_types
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from fuser_lab.errors import UnsupportedError
from fuser_lab.process.forks import fork_waits_for, new_lock
from fuser_lab.runtime import numba_compat as _numba_compat  # noqa: F401 - before Numba is imported
from fuser_lab.runtime.cuda_compilers.building import Builder, Kind, Operand, Pointer, Rule
from fuser_lab.runtime.cuda_compilers.language import entry_of, signature_of, with_clusters
from fuser_lab.runtime.known_calls import known_calls, plain_messages
from fuser_lab.runtime.replacing import replace_attribute

if not hasattr(np, "row_stack"):  # numba-cuda 0.30 uses a name that NumPy 2.5 removed
    setattr(np, "row_stack", np.vstack)  # noqa: B010 - no such name for type checkers

_LOCK = new_lock()
fork_waits_for(_LOCK)
_PURE = "nounwind", "readnone"
_ORDERED = ("convergent",)
_ALL_MEMORY = "~{memory}"
# Passes that find nothing in kernels, which define no functions and have no array expressions.
_UNUSED = frozenset({"InlineClosureLikes", "InlineOverloads", "NopythonRewrites"})
_GLOBAL = 1  # the address space of global memory


@functools.cache
def _cuda() -> Any:
    """Return numba-cuda's module, or None; with NumPy 2.5, importing it raises warnings about its own code."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            from numba import cuda
        except ImportError:
            return None
    # Numba's built-in numba.cuda is different, older code.
    return cuda if "numba_cuda" in str(cuda.__file__) else None


def is_installed() -> bool:
    """Whether numba-cuda is installed."""
    return _cuda() is not None


class NumbaCuda:
    """Compiles with numba-cuda."""

    def require(self) -> Any:
        """Return numba-cuda's module.

        Raises
        ------
        UnsupportedError
            If it is not installed.
        """
        cuda = _cuda()
        if cuda is None:
            raise UnsupportedError("compiling for CUDA needs numba-cuda: pip install 'fuser_lab[cuda]'.")
        return cuda

    @property
    def types(self) -> Any:
        """Its types."""
        self.require()
        return importlib.import_module("numba.cuda.types")

    def device(self, function: Callable[..., Any], *, inline: bool) -> Any:
        """Return a device function."""
        cuda = self.require()
        # Inlined by LLVM: the time of Numba's inlining in its IR grows quadratically with the number of calls.
        return cuda.jit(device=True, forceinline=inline)(function)

    def intrinsic(self, rule: Rule) -> Any:
        """Return a device function whose instructions a rule writes."""
        self.require()
        extending: Any = importlib.import_module("numba.cuda.extending")

        def typed(_context: Any, *kinds: Any) -> Any:
            call = rule(*kinds)
            if call is None:
                return None

            def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
                operands = [Operand(value=value, type=kind) for value, kind in zip(args, signature.args, strict=True)]
                result = call.generate(LlvmBuilder(context, builder), *operands)
                if result is None:
                    return context.get_dummy_value()
                if isinstance(result, tuple):
                    return context.make_tuple(builder, signature.return_type, result)
                return result

            return call.result(*call.arguments), generate

        setattr(typed, "__signature__", signature_of(rule))  # noqa: B010 - functions have it, type checkers do not know it

        return extending.intrinsic(typed)

    def compile_ptx(
        self, function: Callable[..., None], pointers: Sequence[str], scalars: Sequence[str], *, cc: tuple[int, int],
        threads: int, resident: int = 0, cluster: int = 1, lineinfo: bool = False,
    ) -> tuple[str, str]:
        """Return PTX and the name of its entry."""
        cuda, types = self.require(), self.types
        signature = types.void(
            *(types.CPointer(getattr(types, name)) for name in pointers), *(getattr(types, name) for name in scalars),
        )
        errors = importlib.import_module("numba.cuda.core.errors")
        with _LOCK, warnings.catch_warnings(), contextlib.ExitStack() as stack:
            warnings.simplefilter("ignore", DeprecationWarning)
            for replacement in (*_replacements(function, cc), known_calls(types.BaseFunction), plain_messages(errors)):
                stack.enter_context(replacement)
            bounds = (threads, resident) if resident else threads
            text, _ = cuda.compile_ptx(function, signature, cc=cc, launch_bounds=bounds, lineinfo=lineinfo)
        ptx = text.decode() if isinstance(text, bytes) else text
        return with_clusters(ptx, cluster), entry_of(ptx, function.__name__)


def _replacements(
    function: Callable[..., Any], cc: tuple[int, int],
) -> Iterator[contextlib.AbstractContextManager[None]]:
    """Yield what replaces parts of numba-cuda while it compiles a kernel."""
    # Device functions query the current device's capability, which needs a driver; answer with the target's instead.
    device = python_types.SimpleNamespace(compute_capability=cc)
    dispatcher = importlib.import_module("numba.cuda.dispatcher")
    yield replace_attribute(dispatcher, "get_current_device", lambda _: lambda: device)
    lowering: Any = importlib.import_module("numba.cuda.lowering").Lower
    yield replace_attribute(lowering, "_find_singly_assigned_variable", lambda _: _find_singly_assigned_variables)

    def without_unused(define: Callable[..., Any]) -> Callable[..., Any]:
        def define_pipelines(self: Any) -> Any:
            pipelines = define(self)
            if self.state.func_id.func is function:
                for pipeline in pipelines:
                    pipeline.passes = [entry for entry in pipeline.passes if entry[0].__name__ not in _UNUSED]
            return pipelines

        return define_pipelines

    compiler = importlib.import_module("numba.cuda.compiler").CUDACompiler
    yield replace_attribute(compiler, "define_pipelines", without_unused)
    yield replace_attribute(lowering, "lower_inst", _with_unrolled_loops)


def _with_unrolled_loops(lower_inst: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
    """Return a method that lowers a statement, and asks NVVM to unroll the loop that a jump back to `unrolled` ends.

    NVVM by itself unrolls loops of up to about a thousand instructions; the arrays of longer ones stay in local memory.
    """
    ir: Any = importlib.import_module("numba.cuda.core.ir")

    def lower(self: Any, statement: Any) -> None:
        lower_inst(self, statement)
        if isinstance(statement, ir.Jump) and _heads_unrolled_loop(ir, self.func_ir, statement.target):
            jump, module = self.builder.block.terminator, self.module
            blocks = self.function.blocks
            if blocks.index(self.blkmap[statement.target]) <= blocks.index(self.builder.block):
                jump.set_metadata("llvm.loop", _unrolling(module))

    return lower


def _heads_unrolled_loop(ir: Any, function: Any, label: int) -> bool:
    """Whether a block, or the block that it only jumps to, asks for the next number of ``unrolled(...)``."""
    statements = function.blocks[label].body
    if isinstance(statements[0], ir.Jump):
        return _heads_unrolled_loop(ir, function, statements[0].target)
    for statement in statements:
        step = statement.value if isinstance(statement, ir.Assign) else None
        if isinstance(step, ir.Expr) and step.op == "iternext":
            call = function.get_definition(function.get_definition(step.value).value)
            return bool(function.get_definition(call.func).name == "unrolled")
    return False


def _unrolling(module: Any) -> Any:
    """Return the metadata of a loop that is to be unrolled completely: a node whose first operand is itself."""
    request = module.add_metadata([_llvm().MetaDataString(module, "llvm.loop.unroll.full")])
    node = _llvm().MDValue(module, (), name=str(len(module.metadata)))
    node.operands = node, request
    return node


def _find_singly_assigned_variables(lower: Any) -> None:
    """Find the variables that need no memory: assigned once, and used only in the block of the assignment.

    numba-cuda's method searches all statements of a block for each variable.
    """
    analysis: Any = importlib.import_module("numba.cuda.lowering")
    assignments = importlib.import_module("numba.cuda.core.ir").assign_types
    blocks, single = lower.func_ir.blocks, set[str]()
    if not lower.func_ir.func_id.is_generator:
        reach = analysis.compute_use_defs(blocks)
        times = Counter(s.target.name for block in blocks.values() for s in block.body if isinstance(s, assignments))
        elsewhere = set[str]().union(*reach.usemap.values(), analysis.must_use_alloca(blocks))
        single = {name for name, count in times.items() if count == 1} - elsewhere
    lower._singly_assigned_vars, lower._blk_local_varmap = single, {}  # noqa: SLF001 - what the method sets


@functools.cache
def _llvm() -> Any:
    return importlib.import_module("llvmlite.ir")


@functools.cache
def _kinds() -> dict[Kind, Any]:
    ir = _llvm()
    integers: tuple[Kind, ...] = ("i1", "i8", "i16", "i32", "i64")
    return {**{kind: ir.IntType(int(kind[1:])) for kind in integers}, "f32": ir.FloatType(), "f64": ir.DoubleType()}


class LlvmBuilder(Builder):
    """Builds LLVM IR."""

    def __init__(self, context: Any, builder: Any) -> None:
        self._context, self._builder, self._kinds = context, builder, _kinds()

    @property
    def capability(self) -> tuple[int, int]:
        """The target of the kernel being lowered; a device function is compiled once, for the first device."""
        config: Any = importlib.import_module("numba.cuda.core.targetconfig")
        major, minor = config.ConfigStack().top().compute_capability
        return major, minor

    def constant(self, kind: Kind, value: float) -> Any:
        """Return a number."""
        return _llvm().Constant(self._kinds[kind], value)

    def int64(self, operand: Operand) -> Any:
        """Return an integer as an int64."""
        wide: Any = importlib.import_module("numba.cuda.types").int64
        return self._context.cast(self._builder, operand.value, operand.type, wide)

    def assembly(
        self, text: str, results: Sequence[Kind], constraints: str, operands: Sequence[Any], *, pure: bool = False,
        ordered: bool = False,
    ) -> list[Any]:
        """Return the results of PTX."""
        ir, kinds = _llvm(), [self._kinds[kind] for kind in results]
        result = kinds[0] if len(kinds) == 1 else ir.LiteralStructType(kinds) if kinds else ir.VoidType()
        function = ir.FunctionType(result, [operand.type for operand in operands])
        if ordered:
            constraints = ",".join(filter(None, (constraints, _ALL_MEMORY)))
        attributes = _PURE if pure else _ORDERED if ordered else ()
        code = ir.InlineAsm(function, text, constraints, side_effect=ordered)
        value = self._builder.call(code, operands, attrs=attributes)
        if len(kinds) == 1:
            return [value]
        return [self._builder.extract_value(value, k) for k in range(len(kinds))]

    def widened(self, value: Any, kind: Kind) -> Any:
        """Return an integer extended with zeros."""
        return self._builder.zext(value, self._kinds[kind])

    def truncated(self, value: Any, kind: Kind) -> Any:
        """Return the lower bits of an integer."""
        return self._builder.trunc(value, self._kinds[kind])

    def reinterpreted(self, value: Any, kind: Kind) -> Any:
        """Return the number with the same bits."""
        return self._builder.bitcast(value, self._kinds[kind])

    def binary(self, op: str, a: Any, b: Any) -> Any:
        """Return the result of an operation."""
        written = getattr(self._builder, f"{op}_" if op in {"and", "or"} else op)
        return written(a, self._like(a, b))

    def compared(self, sign: str, a: Any, b: Any) -> Any:
        """Return whether a comparison of floats holds."""
        compare = self._builder.fcmp_unordered if sign == "!=" else self._builder.fcmp_ordered
        return compare(sign, a, self._like(a, b))

    def below(self, a: Any, b: Any) -> Any:
        """Return whether one unsigned integer is less than another."""
        return self._builder.icmp_unsigned("<", a, self._like(a, b))

    def equal(self, a: Any, b: Any) -> Any:
        """Return whether two integers are equal."""
        return self._builder.icmp_unsigned("==", a, self._like(a, b))

    def select(self, condition: Any, a: Any, b: Any) -> Any:
        """Return one value or the other."""
        return self._builder.select(condition, self._like(b, a), self._like(a, b))

    def place(self, memory: Operand, position: Any, kind: Kind, lanes: int = 1) -> Pointer:
        """Return the address of an element."""
        vector = _llvm().VectorType(self._kinds[kind], lanes) if lanes > 1 else self._kinds[kind]
        if hasattr(memory.type, "ndim"):
            array = self._context.make_array(memory.type)(self._context, self._builder, value=memory.value)
            start = self._builder.gep(array.data, [position])
            return Pointer(value=self._builder.bitcast(start, vector.as_pointer()), kind=kind, lanes=lanes)
        start = self._builder.bitcast(self._builder.gep(memory.value, [position]), vector.as_pointer())
        outside = self._builder.addrspacecast(start, vector.as_pointer(addrspace=_GLOBAL))
        return Pointer(value=outside, kind=kind, lanes=lanes)

    def moved(self, memory: Operand, position: Any) -> Any:
        """Return a pointer that begins at an element."""
        return self._builder.gep(memory.value, [position])

    def step(self, pointer: Pointer, count: int) -> Pointer:
        """Return the address some vectors further on."""
        moved = self._builder.gep(pointer.value, [self.constant("i64", count)])
        return Pointer(value=moved, kind=pointer.kind, lanes=pointer.lanes)

    def address(self, pointer: Pointer) -> Any:
        """Return an address as an int64."""
        return self._builder.ptrtoint(pointer.value, self._kinds["i64"])

    def load(self, pointer: Pointer, align: int | None = None) -> list[Any]:
        """Return the numbers of a vector in memory."""
        value = self._builder.load(pointer.value, align=align)
        if pointer.lanes == 1:
            return [value]
        return [self._builder.extract_element(value, self.constant("i32", k)) for k in range(pointer.lanes)]

    def store(self, pointer: Pointer, values: Sequence[Any], align: int | None = None) -> None:
        """Write the numbers of a vector to memory."""
        whole: Any = values[0]
        if pointer.lanes > 1:
            ir = _llvm()
            whole = ir.Constant(ir.VectorType(self._kinds[pointer.kind], pointer.lanes), ir.Undefined)
            for k, value in enumerate(values):
                whole = self._builder.insert_element(whole, value, self.constant("i32", k))
        self._builder.store(whole, pointer.value, align=align)

    def _like(self, like: Any, value: Any) -> Any:
        """Return a Python number as a constant of the type of another value."""
        return _llvm().Constant(like.type, value) if isinstance(value, int | float) else value
