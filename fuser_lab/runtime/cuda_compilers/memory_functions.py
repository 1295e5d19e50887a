"""Vector accesses to memory, atomic additions, and indices computed with 32 bits."""

from itertools import pairwise
from typing import Any

from fuser_lab.runtime.cuda_compilers.building import BITS, Builder, Call, Kind, Operand, Rule
from fuser_lab.runtime.cuda_compilers.language import Library

_WORD_BYTES = 4  # bytes of a word: wider accesses are vectors of words
_ALIKE: dict[str, Kind] = {"float32": "f32", "float64": "f64", "complex64": "f32", "complex128": "f64"}
_INTEGERS: dict[int, Kind] = {1: "i8", 2: "i16", 4: "i32", 8: "i64"}  # by number of bytes
# The types of atomic additions, and the letters of their registers in constraints.
_ADDED: dict[Kind, tuple[str, str]] = {
    "f32": ("f32", "f"), "f64": ("f64", "d"), "i32": ("u32", "r"), "i64": ("u64", "l"),
}
_STREAMED = "L2::evict_first", ".L1::no_allocate"
_RETAINED = "L2::evict_last", ""


def define_memory_functions(library: Library) -> None:
    """Define these functions for a compiler."""
    library.intrinsic(_index32(library.types))
    # load_vector(memory, position, words, slot, count, width): words[slot + k] = memory[position + k] for k < count,
    # with ``width`` elements per memory access; store_vector is the inverse. ``position`` is a multiple of ``width``,
    # the address of an access is a multiple of its size (at most 16 bytes), and count and width are literals.
    library.named("load_vector", _vector(library.types, storing=False))
    library.named("store_vector", _vector(library.types, storing=True))
    # load_streamed is load_vector for data that is read once: the L2 cache evicts it first.
    library.named("load_streamed", _vector(library.types, storing=False, hint=_STREAMED))
    # load_retained is load_vector for inputs of kernels that write more than the L2 cache holds: the cache evicts these
    # inputs last.
    library.named("load_retained", _vector(library.types, storing=False, hint=_RETAINED))
    library.intrinsic(_load_shifted(library.types))
    library.intrinsic(_atomic_add(library.types))
    library.intrinsic(_add_vector(library.types))
    library.named("beginning_at", _beginning_at)

    @library.instructions(library.types.void)
    def keep_loads_apart(b: Builder) -> None:
        """Keep the compiler from merging what the sides of a branch do last, if this ends one of the sides.

        NVVM merges stores of both sides into one store whose address is selected. If these are loaded words in two
        arrays, both arrays are then in local memory instead of registers.
        """
        b.assembly("", [], "", [], ordered=True)


def access_of(element: Any, width: int) -> tuple[Kind, int]:
    """Return the kind and number of the parts in which a vector access moves ``width`` elements of a type.

    Small elements are moved as whole words, complex numbers in halves, so that they fit the hardware's vector types.
    """
    nbytes = element.bitwidth // 8
    name = str(element)
    if name.startswith("complex"):
        return _ALIKE[name], 2 * width
    if nbytes >= _WORD_BYTES:
        return _ALIKE.get(name, _INTEGERS[nbytes]), width
    return _INTEGERS[min(nbytes * width, _WORD_BYTES)], max(nbytes * width // _WORD_BYTES, 1)


def _index32(types: Any) -> Rule:
    def index32(x: Any) -> Call:
        """Return an index that is known to be less than 2**32, so that the compiler can divide with 32 bits."""

        def generate(b: Builder, number: Operand) -> Any:
            return b.widened(b.truncated(b.int64(number), "i32"), "i64")

        return Call(result=types.int64, arguments=(x,), generate=generate)

    return index32


def _atomic_add(types: Any) -> Rule:
    def atomic_add(memory: Any, position: Any, value: Any, condition: Any) -> Call:
        """Add to an element of 4 or 8 bytes in global memory, or in an array of shared memory, if a condition holds."""
        part, _ = access_of(memory.dtype, 1)
        kind, letter = _ADDED[part]
        # The address of an array is generic, and an instruction on generic addresses first finds the kind of memory.
        is_shared = hasattr(memory, "ndim")
        space, converted = ("shared", "cvta.to.shared.u64 at, $0;") if is_shared else ("global", "mov.b64 at, $0;")
        text = (
            f"{{ .reg .b64 at; .reg .pred holds; {converted} setp.ne.b32 holds, $2, 0; "
            f"@holds red.{space}.add.{kind} [at], $1; }}"
        )

        def generate(b: Builder, target: Operand, at: Operand, number: Operand, holds: Operand) -> None:
            place = b.address(b.place(target, b.int64(at), part))
            operands = [place, number.value, b.widened(holds.value, "i32")]
            b.assembly(text, [], f"l,{letter},r", operands, ordered=True)

        arguments = (memory, position, memory.dtype, types.boolean)
        return Call(result=types.void, arguments=arguments, generate=generate)

    return atomic_add


def _add_vector(types: Any) -> Rule:
    def add_vector(memory: Any, position: Any, words: Any, slot: Any, count: Any, condition: Any) -> Call | None:
        """Add 2 or 4 adjacent floats to global memory by one instruction of sm_90, if a condition holds."""
        if not hasattr(count, "literal_value"):
            return None  # called again with literal types
        lanes = count.literal_value
        added = ", ".join(f"${k + 1}" for k in range(lanes))
        text = (
            f"{{ .reg .pred holds; setp.ne.b32 holds, ${lanes + 1}, 0; "
            f"@holds red.global.add.v{lanes}.f32 [$0], {{{added}}}; }}"
        )

        def generate(b: Builder, *operands: Operand) -> None:
            place = b.address(b.place(operands[0], b.int64(operands[1]), "f32"))
            inside = b.place(operands[2], b.int64(operands[3]), "f32")
            values = [b.load(b.step(inside, k))[0] for k in range(lanes)]
            holds = b.widened(operands[5].value, "i32")
            b.assembly(text, [], ",".join(["l", *"f" * lanes, "r"]), [place, *values, holds], ordered=True)

        arguments = (memory, position, words, slot, count, types.boolean)
        return Call(result=types.void, arguments=arguments, generate=generate)

    return add_vector


def _load_with(hint: tuple[str, str], lanes: int) -> str:
    """Return PTX that loads 2 or 4 words from the address in the next operand, with an L2 eviction priority."""
    priority, first_level = hint
    words, address = ", ".join(f"${k}" for k in range(lanes)), f"${lanes}"
    return (
        f"{{ .reg .b64 kept; createpolicy.fractional.{priority}.b64 kept, 1.0; "
        f"ld.global{first_level}.L2::cache_hint.v{lanes}.b32 {{{words}}}, [{address}], kept; }}"
    )


def _vector(types: Any, *, storing: bool, hint: tuple[str, str] | None = None) -> Rule:
    """Return `load_vector` or `store_vector`: a loop over accesses that move parts from and to registers.

    Compilers do not merge scalar accesses into vector accesses: four loads stay four (numba-cuda 0.30).
    """

    def rule(memory: Any, position: Any, words: Any, slot: Any, count: Any, width: Any) -> Call | None:
        if not hasattr(count, "literal_value"):
            return None  # called again with literal types
        per_access = width.literal_value
        part, lanes = access_of(memory.dtype, per_access)
        nbytes = per_access * (memory.dtype.bitwidth // 8)
        hinted = hint is not None and lanes in {2, 4} and nbytes == _WORD_BYTES * lanes and BITS[part] == 32

        def generate(b: Builder, *operands: Operand) -> None:
            outside = b.place(operands[0], b.int64(operands[1]), part, lanes)
            inside = b.place(operands[2], b.int64(operands[3]), part)
            for access in range(count.literal_value // per_access):
                place = b.step(outside, access)
                registers = [b.step(inside, access * lanes + k) for k in range(lanes)]
                if storing:
                    b.store(place, [b.load(register)[0] for register in registers], align=nbytes)
                    continue
                if hint is not None and hinted:
                    letter = "=f" if part == "f32" else "=r"
                    constraints = ",".join([letter] * lanes + ["l"])
                    moved = b.assembly(_load_with(hint, lanes), [part] * lanes, constraints, [b.address(place)])
                else:
                    moved = b.load(place, align=nbytes)
                for register, value in zip(registers, moved, strict=True):
                    b.store(register, [value])

        return Call(result=types.void, arguments=(memory, position, words, slot, count, width), generate=generate)

    return rule


def _beginning_at(memory: Any, position: Any) -> Call:
    """Return a pointer to global memory that begins at an element; the element may be outside if nothing is read."""

    def generate(b: Builder, pointer: Operand, at: Operand) -> Any:
        return b.moved(pointer, b.int64(at))

    return Call(result=memory, arguments=(memory, position), generate=generate)


def _load_shifted(types: Any) -> Rule:
    def load_shifted(
        memory: Any, position: Any, shift: Any, words: Any, slot: Any, count: Any, width: Any,
    ) -> Call | None:
        """Load like `load_vector` with a single access of 16 bytes, but from any position, that of an access + shift.

        The aligned access that holds the first element is loaded, and the next one if it holds elements; of their eight
        words, those from the first element on are selected and, if elements are half words, shifted.
        """
        if not hasattr(count, "literal_value"):
            return None  # called again with literal types
        elements, nbytes = count.literal_value, memory.dtype.bitwidth // 8
        lanes = elements * nbytes // _WORD_BYTES

        def generate(b: Builder, *operands: Operand) -> None:
            at = b.int64(operands[1])
            within = b.binary("and", b.int64(operands[2]), elements - 1)
            first = b.binary("sub", at, within)
            step = b.select(b.equal(within, 0), b.constant("i64", 0), b.constant("i64", elements))
            words: list[Any] = []
            for start in (first, b.binary("add", first, step)):
                words += b.load(b.place(operands[0], start, "i32", lanes), align=lanes * _WORD_BYTES)
            shift = b.moved_left(b.truncated(within, "i32"), nbytes.bit_length() - 1)
            for words_on in (2, 1):
                stays = b.equal(b.binary("and", shift, words_on * _WORD_BYTES), 0)
                pairs = zip(words, words[words_on:], strict=False)
                words = [b.select(stays, earlier, later) for earlier, later in pairs]
            if nbytes < _WORD_BYTES:
                bits = b.moved_left(b.binary("and", shift, _WORD_BYTES - 1), 3)
                text, letters = "shf.r.wrap.b32 $0, $1, $2, $3;", "=r,r,r,r"
                words = [
                    b.assembly(text, ["i32"], letters, [low, high, bits], pure=True)[0] for low, high in pairwise(words)
                ]
            inside = b.place(operands[3], b.int64(operands[4]), "i32")
            for number, word in enumerate(words[:lanes]):
                b.store(b.step(inside, number), [word])

        arguments = (memory, position, shift, words, slot, count, width)
        return Call(result=types.void, arguments=arguments, generate=generate)

    return load_shifted
