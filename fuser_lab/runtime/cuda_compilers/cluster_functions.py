"""Clusters: blocks that run concurrently and write to each other's shared memory, from compute capability 9.0.

A block counts the bytes that arrive in its own barrier object. A barrier of the whole cluster would also wait for
stores to global memory and invalidate the L1 cache.
"""

from typing import Any

from fuser_lab.runtime.cuda_compilers.building import BITS, Builder, Call, Operand, Rule
from fuser_lab.runtime.cuda_compilers.language import Library
from fuser_lab.runtime.cuda_compilers.memory_functions import access_of

_LETTERS = {"i32": "r", "i64": "l", "f32": "f", "f64": "d"}


def define_cluster_functions(library: Library) -> None:
    """Define these functions for a compiler."""
    types = library.types

    @library.instructions(types.void)
    def cluster_arrive(b: Builder) -> None:
        b.assembly("barrier.cluster.arrive.relaxed;", [], "", [], ordered=True)

    @library.instructions(types.void)
    def cluster_wait(b: Builder) -> None:
        b.assembly("barrier.cluster.wait.acquire;", [], "", [], ordered=True)

    @library.instructions(types.int64)
    def cluster_rank(b: Builder) -> Any:
        """Return the rank of this block in its cluster."""
        return b.widened(b.assembly("mov.u32 $0, %cluster_ctarank;", ["i32"], "=r", [])[0], "i64")

    library.intrinsic(_cluster_expect(types))
    library.intrinsic(_cluster_arrived(types))
    library.intrinsic(_send_in_cluster(types))


def _place(register: str, operand: str) -> str:
    """Return PTX that converts a generic address in an operand to a shared-memory address in a register."""
    return f"cvta.to.shared.u64 wide, {operand}; cvt.u32.u64 {register}, wide; "


def _cluster_expect(types: Any) -> Rule:
    def cluster_expect(arrivals: Any, number: Any, nbytes: Any) -> Call:
        """Prepare to wait for a number of bytes; one thread calls it, before blocks announce that they have started."""
        text = (
            f"{{ .reg .b64 wide; .reg .b32 place; {_place('place', '$0')}mbarrier.init.shared::cta.b64 [place], 1; "
            "fence.mbarrier_init.release.cluster; mbarrier.arrive.expect_tx.shared::cta.b64 _, [place], $1; }"
        )

        def generate(b: Builder, barriers: Operand, at: Operand, count: Operand) -> None:
            place = b.address(b.place(barriers, b.int64(at), "i64"))
            b.assembly(text, [], "l,r", [place, b.truncated(b.int64(count), "i32")], ordered=True)

        return Call(result=types.void, arguments=(arrivals, number, nbytes), generate=generate)

    return cluster_expect


def _cluster_arrived(types: Any) -> Rule:
    def cluster_arrived(arrivals: Any, number: Any) -> Call:
        """Return whether all bytes that the block waits for have been sent."""
        text = (
            f"{{ .reg .b64 wide; .reg .b32 place; .reg .pred done; {_place('place', '$1')}"
            "mbarrier.try_wait.parity.shared::cta.b64 done, [place], 0; selp.b32 $0, 1, 0, done; }"
        )

        def generate(b: Builder, barriers: Operand, at: Operand) -> Any:
            place = b.address(b.place(barriers, b.int64(at), "i64"))
            return b.below(b.constant("i32", 0), b.assembly(text, ["i32"], "=r,l", [place], ordered=True)[0])

        return Call(result=types.boolean, arguments=(arrivals, number), generate=generate)

    return cluster_arrived


def _send_in_cluster(types: Any) -> Rule:
    def send_in_cluster(shared: Any, position: Any, words: Any, rank: Any, arrivals: Any, number: Any) -> Call:
        """Set ``shared[position] = words[0]``, at least 4 bytes, in the shared memory of the block with this rank."""
        part, lanes = access_of(shared.dtype, 1)

        def generate(b: Builder, target: Operand, at: Operand, *others: Operand) -> None:
            source, block, barriers, which = others
            peer = b.truncated(b.int64(block), "i32")
            counted = b.address(b.place(barriers, b.int64(which), "i64"))
            first = b.place(target, b.int64(at), part, lanes)
            values = b.load(b.place(source, b.constant("i64", 0), part, lanes))
            for lane, value in enumerate(values):
                place = b.binary("add", b.address(first), lane * BITS[part] // 8)
                text = (
                    f"{{ .reg .b64 wide; .reg .b32 place, counted; {_place('place', '$0')}"
                    f"mapa.shared::cluster.u32 place, place, $2; {_place('counted', '$1')}"
                    "mapa.shared::cluster.u32 counted, counted, $2; st.async.weak.shared::cluster."
                    f"mbarrier::complete_tx::bytes.b{BITS[part]} [place], $3, [counted]; }}"
                )
                letters = f"l,l,r,{_LETTERS[part]}"
                b.assembly(text, [], letters, [place, counted, peer, value], ordered=True)

        return Call(
            result=types.void, arguments=(shared, position, words, rank, arrivals, number), generate=generate,
        )

    return send_in_cluster
