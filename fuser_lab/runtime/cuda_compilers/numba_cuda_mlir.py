"""numba-cuda-mlir, the successor of numba-cuda: kernels compiled through MLIR and NVVM; the only file to import it."""

import functools
import importlib
import importlib.util
import re
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from fuser_lab.errors import UnsupportedError
from fuser_lab.process.forks import fork_waits_for, renew_in_forks
from fuser_lab.runtime.cuda_compilers.building import BITS, Builder, Kind, Operand, Pointer, Rule
from fuser_lab.runtime.cuda_compilers.language import entry_of, signature_of, with_clusters

_LOCK = renew_in_forks(threading.RLock())
fork_waits_for(_LOCK)
_DYNAMIC = -2147483648  # in a list of indices, stands for the next operand
_GLOBAL = 1  # the address space of global memory
_ONE_BYTE = re.compile(r"^[ \t]*\.shared \.align (?P<align>\d+) \.b8 (?P<name>__dynamic_shmem__\w+);\n", re.MULTILINE)
_BINARY = {
    "add": "addi", "sub": "subi", "and": "andi", "or": "ori", "xor": "xori", "shl": "shli", "lshr": "shrui",
    "fadd": "addf", "fsub": "subf", "fmul": "mulf",
}
_COMPARISONS = {"<": "OLT", "<=": "OLE", ">": "OGT", ">=": "OGE", "==": "OEQ", "!=": "UNE"}


def is_installed() -> bool:
    """Whether numba-cuda-mlir is installed."""
    return importlib.util.find_spec("numba_cuda_mlir") is not None


@functools.cache
def _part(name: str) -> Any:
    """Return a module of numba-cuda-mlir; some modules are renamed in each release."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            return importlib.import_module(f"numba_cuda_mlir.{name}" if name else "numba_cuda_mlir")
    except ImportError as error:
        if is_installed():
            msg = f"this release of numba-cuda-mlir is not supported ({error}); install 0.6."
            raise UnsupportedError(msg) from error
        msg = "FUSER_LAB_CUDA_COMPILER=mlir needs numba-cuda-mlir: pip install 'fuser_lab[cuda-mlir]'."
        raise UnsupportedError(msg) from error


class NumbaCudaMlir:
    """Compiles with numba-cuda-mlir."""

    def require(self) -> Any:
        """Return numba-cuda-mlir's module.

        Raises
        ------
        UnsupportedError
            If it is not installed, or its release is not supported.
        """
        return _part("cuda")

    @property
    def types(self) -> Any:
        """Its types."""
        self.require()
        return _part("numba_cuda.types")

    def device(self, function: Callable[..., Any], *, inline: bool) -> Any:
        """Return a device function."""
        cuda = self.require()
        return cuda.jit(device=True)(function)

    def intrinsic(self, rule: Rule) -> Any:
        """Return a device function whose instructions a rule writes."""

        def typed(_context: Any, *kinds: Any) -> Any:
            call = rule(*kinds)
            if call is None:
                return None

            def generate(lowering: Any, target: Any, args: Any, _keywords: Any) -> None:
                operands = []
                for argument, expected in zip(args, call.arguments, strict=True):
                    value, kind = lowering.load_var(argument), lowering.get_numba_type(argument.name)
                    if isinstance(expected, _part("numba_cuda.types").Number) and expected != kind:
                        value, kind = lowering.mlir_convert(value, lowering.get_mlir_type(expected)), expected
                    operands.append(Operand(value=value, type=kind))
                lowering.store_var(target, call.generate(MlirBuilder(lowering), *operands))

            return call.result(*call.arguments), generate

        setattr(typed, "__signature__", signature_of(rule))  # noqa: B010 - functions have it, type checkers do not know it

        self.require()
        return _part("extending").intrinsic(typed)

    def compile_ptx(
        self, function: Callable[..., None], pointers: Sequence[str], scalars: Sequence[str], *, cc: tuple[int, int],
        threads: int, resident: int = 0, cluster: int = 1, lineinfo: bool = False,
    ) -> tuple[str, str]:
        """Return PTX and the name of its entry."""
        cuda, types = self.require(), self.types
        arguments = (
            *(types.CPointer(getattr(types, name)) for name in pointers), *(getattr(types, name) for name in scalars),
        )
        options = {
            "chip": f"sm_{cc[0]}{cc[1]}", "launch_bounds": (threads, resident) if resident else threads,
            "lineinfo": lineinfo,
        }
        with _LOCK, _no_device_but(cc), warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            dispatcher = cuda.jit(function, **options)
            _part("descriptor").mlir_target.ensure_initialized()
            compiled = _part("mlir_compiler").compile_mlir(
                function, types.void, arguments, targetoptions=dispatcher.targetoptions,
            )
            compiled.metadata["linker"] = _NoLinker()
            _part("mlir_optimization").optimize(compiled)
        ptx = _with_memory_of_the_launch(str(compiled.metadata["ptx"]))
        return with_clusters(ptx, cluster), entry_of(ptx, function.__name__)


@contextmanager
def _no_device_but(cc: tuple[int, int]) -> Iterator[None]:
    """Answer the compiler's query for the current device's capability, which needs a driver, with the target's."""
    tools = _part("tools")
    cached_query = tools._cached_cc  # noqa: SLF001 - there is no other place to say it
    tools._cached_cc = cc  # noqa: SLF001
    try:
        yield
    finally:
        tools._cached_cc = cached_query  # noqa: SLF001


def _with_memory_of_the_launch(ptx: str) -> str:
    """Return PTX whose dynamic shared memory is sized by the launch; numba-cuda-mlir 0.6 declares one byte."""
    match = _ONE_BYTE.search(ptx)
    if match is None:
        return ptx
    declared = f".extern .shared .align {match.group('align')} .b8 {match.group('name')}[];\n"
    rest = ptx[: match.start()] + ptx[match.end() :]
    entry = rest.index(".visible .entry")
    return _with_memory_of_the_launch(f"{rest[:entry]}{declared}{rest[entry:]}")


class _NoLinker:
    """Replaces the compiler's linker: machine code is linked later, from PTX, in the same way for both compilers."""

    code = b""

    def recreate_with_lto(self, **_options: Any) -> "_NoLinker":
        """Return this linker."""
        return self

    def add_ptx(self, ptx: bytes) -> None:
        """Ignore the kernel."""

    def complete(self) -> "_NoLinker":
        """Return empty machine code."""
        return self


class MlirBuilder(Builder):
    """Builds MLIR, in the dialects arith and llvm."""

    def __init__(self, lowering: Any) -> None:
        self._lowering = lowering
        self._arith, self._llvm = _part("_mlir.dialects.arith"), _part("_mlir.dialects.llvm")

    @property
    def capability(self) -> tuple[int, int]:
        """The target of the kernel being lowered."""
        major, minor = _part("tools").parse_compute_capability(self._lowering.metadata["targetoptions"]["chip"])
        return major, minor

    def constant(self, kind: Kind, value: float) -> Any:
        """Return a number."""
        return self._constant(self._kind(kind), value)

    def int64(self, operand: Operand) -> Any:
        """Return an integer as an int64."""
        if isinstance(operand.value, int):
            return self.constant("i64", operand.value)
        width = operand.value.type.width if hasattr(operand.value.type, "width") else BITS["i64"]
        if width < BITS["i64"] and not operand.type.signed:
            return self.widened(operand.value, "i64")
        return self._lowering.mlir_convert(operand.value, self._kind("i64"))

    def assembly(
        self, text: str, results: Sequence[Kind], constraints: str, operands: Sequence[Any], *,
        pure: bool = False, ordered: bool = False,
    ) -> list[Any]:
        """Return the results of PTX."""
        kinds = [self._kind(kind) for kind in results]
        result = kinds[0] if len(kinds) == 1 else self._llvm.StructType.get_literal(kinds) if kinds else None
        if ordered:
            constraints = ",".join(filter(None, (constraints, "~{memory}")))
        value = self._llvm.inline_asm(result, list(operands), text, constraints, has_side_effects=ordered)
        if len(kinds) == 1:
            return [value]
        return [self._llvm.extractvalue(kind, value, [k]) for k, kind in enumerate(kinds)]

    def widened(self, value: Any, kind: Kind) -> Any:
        """Return an integer extended with zeros."""
        return self._arith.extui(self._kind(kind), value)

    def truncated(self, value: Any, kind: Kind) -> Any:
        """Return the lower bits of an integer."""
        return self._arith.trunci(self._kind(kind), value)

    def reinterpreted(self, value: Any, kind: Kind) -> Any:
        """Return the number with the same bits."""
        return self._arith.bitcast(self._kind(kind), value)

    def binary(self, op: str, a: Any, b: Any) -> Any:
        """Return the result of an operation."""
        return getattr(self._arith, _BINARY[op])(a, self._like(a, b))

    def compared(self, sign: str, a: Any, b: Any) -> Any:
        """Return whether a comparison of floats holds."""
        predicate = getattr(self._arith.CmpFPredicate, _COMPARISONS[sign])
        return self._arith.cmpf(predicate, a, self._like(a, b))

    def below(self, a: Any, b: Any) -> Any:
        """Return whether one unsigned integer is less than another."""
        return self._arith.cmpi(self._arith.CmpIPredicate.ult, a, self._like(a, b))

    def equal(self, a: Any, b: Any) -> Any:
        """Return whether two integers are equal."""
        return self._arith.cmpi(self._arith.CmpIPredicate.eq, a, self._like(a, b))

    def select(self, condition: Any, a: Any, b: Any) -> Any:
        """Return one value or the other."""
        return self._arith.select(condition, self._like(b, a), self._like(a, b))

    def place(self, memory: Operand, position: Any, kind: Kind, lanes: int = 1) -> Pointer:
        """Return the address of an element."""
        utilities = _part("lowering_utilities")
        start = memory.value
        if hasattr(memory.type, "ndim"):
            start = utilities.memref_data_pointer(start)
        else:
            start = self._llvm.addrspacecast(self._llvm.PointerType.get(_GLOBAL), start)
        return Pointer(value=self._element(start, memory, position), kind=kind, lanes=lanes)

    def moved(self, memory: Operand, position: Any) -> Any:
        """Return a pointer that begins at an element."""
        return self._element(memory.value, memory, position)

    def _element(self, start: Any, memory: Operand, position: Any) -> Any:
        stored = self._lowering.get_storage_type(memory.type.dtype)
        element = _part("lowering_utilities").to_llvm_storable_type(stored)
        return self._llvm.getelementptr(start.type, start, [position], [_DYNAMIC], element, None)

    def step(self, pointer: Pointer, count: int) -> Pointer:
        """Return the address some vectors further on."""
        if count == 0:
            return pointer
        where = self._llvm.getelementptr(
            pointer.value.type, pointer.value, [], [count * pointer.lanes], self._kind(pointer.kind), None,
        )
        return Pointer(value=where, kind=pointer.kind, lanes=pointer.lanes)

    def address(self, pointer: Pointer) -> Any:
        """Return an address as an int64."""
        return self._llvm.ptrtoint(self._kind("i64"), pointer.value)

    def load(self, pointer: Pointer, align: int | None = None) -> list[Any]:
        """Return the numbers of a vector in memory."""
        element = self._kind(pointer.kind)
        if pointer.lanes == 1:
            return [self._llvm.load(element, pointer.value, alignment=align)]
        vector = _part("_mlir.ir").VectorType.get([pointer.lanes], element)
        whole = self._llvm.load(vector, pointer.value, alignment=align)
        return [self._llvm.extractelement(whole, self.constant("i32", k)) for k in range(pointer.lanes)]

    def store(self, pointer: Pointer, values: Sequence[Any], align: int | None = None) -> None:
        """Write the numbers of a vector to memory."""
        whole = values[0]
        if pointer.lanes > 1:
            whole = self._llvm.mlir_undef(_part("_mlir.ir").VectorType.get([pointer.lanes], self._kind(pointer.kind)))
            for k, value in enumerate(values):
                whole = self._llvm.insertelement(whole, value, self.constant("i32", k))
        self._llvm.store(whole, pointer.value, alignment=align)

    def _kind(self, kind: Kind) -> Any:
        ir = _part("_mlir.ir")
        if kind == "f32":
            return ir.F32Type.get()
        return ir.F64Type.get() if kind == "f64" else ir.IntegerType.get_signless(BITS[kind])

    def _constant(self, kind: Any, value: float) -> Any:
        ir = _part("_mlir.ir")
        if isinstance(kind, ir.IntegerType):
            bits = int(value) & ((1 << kind.width) - 1)
            signed = bits - (1 << kind.width) if kind.width > 1 and bits >> (kind.width - 1) else bits
            return self._arith.constant(kind, ir.IntegerAttr.get(kind, signed))
        return self._arith.constant(kind, ir.FloatAttr.get(kind, value))

    def _like(self, like: Any, value: Any) -> Any:
        """Return a Python number as a constant of the type of another value."""
        return self._constant(like.type, value) if isinstance(value, int | float) else value
