"""The lines by which the threads of a GPU combine values: of lanes of a warp, of warps, and of blocks of a cluster."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from fuser_lab.codegen.cuda_scans import FULL_MASK, INDENT, Spelling
from fuser_lab.codegen.emitter import TYPE_NAMES
from fuser_lab.codegen.kernel_ir import Await, Loop, Phase, Reduce, Scope, walk
from fuser_lab.cost.device import WARP
from fuser_lab.dtypes import DataType
from fuser_lab.errors import CodegenError
from fuser_lab.ir.term import Apply, Var
from fuser_lab.ir.transform import ParallelType

_ARRIVALS = "arrivals"  # counts the data that blocks of a cluster send to each other
_LEAST_SENT = 4  # bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Threads:
    """The threads of a phase that combine values.

    Attributes
    ----------
    count, cluster
        Threads in x of a block, and blocks of a cluster.
    lane
        The variable that is the number of a thread in its row.
    awaited
        The data that each block of a cluster waits for, numbered, with bytes: reduction results and buffers.
    spelling
        Spells the terms of the kernel.
    """

    count: int
    cluster: int
    lane: str
    awaited: Mapping[str, tuple[int, int]]
    spelling: Spelling

    def reduced(self, statement: Reduce, *, repeats: bool) -> Iterator[str]:
        """Yield shuffles among the lanes of a warp, then shared memory and shuffles among the warps of a block.

        ``repeats`` says whether a loop is around the reduction.
        """
        dtype, name = statement.value.dtype, statement.name
        yield f"{name} = {self.spelling.term(statement.value)}"
        lanes, mask = min(self.count, WARP), FULL_MASK
        if lanes < WARP:
            # Several rows share a warp, and some may be beyond the last, so the mask has only the lanes of this row.
            mask = f"{name}_lanes"
            yield f"{mask} = {(1 << lanes) - 1:#x} << (cuda.threadIdx.y * {lanes} % {WARP})"
        yield from self._shuffled(statement, lanes, mask)
        if statement.scope is Scope.WARP:
            return
        warps, shared = self.count // WARP, f"{name}_shared"
        if statement.scope is Scope.CLUSTER:
            if repeats:
                msg = f"{name} is reduced over a cluster inside a loop, whose iterations would overwrite its memory."
                raise CodegenError(msg)
            yield from self._in_cluster(statement, shared, warps)
            return
        yield f"{shared} = cuda.shared.array({warps}, {TYPE_NAMES[dtype]})"
        yield f"if {self.lane} % {WARP} == 0:"
        yield f"{INDENT}{shared}[{self.lane} // {WARP}] = {name}"
        yield "cuda.syncthreads()"
        if warps & (warps - 1) == 0:
            yield f"{name} = {shared}[{self.lane} % {warps}]"
            yield from self._shuffled(statement, warps, FULL_MASK)
            return
        yield f"{name} = {self.spelling.constant(dtype, statement.identity)}"
        yield f"for warp in range({warps}):"
        yield from self._combined(statement, f"{shared}[warp]")

    def _in_cluster(self, statement: Reduce, shared: str, warps: int) -> Iterator[str]:
        """Yield the lines by which each warp sends its result to all blocks of a cluster, and each block combines them.

        All blocks combine them in the same order, so that they get equal results.
        """
        dtype, name, lane = statement.value.dtype, statement.name, f"{self.lane} % {WARP}"
        total, sent_dtype = warps * self.cluster, DataType.Int32 if dtype is DataType.Bool else dtype
        yield f"{shared} = cuda.shared.array({total}, {TYPE_NAMES[sent_dtype]})"
        yield f"if {lane} < {self.cluster}:"
        place = f"cluster_rank() * {warps} + {self.lane} // {WARP}"
        yield from map(INDENT.__add__, self.sent(name, (shared, TYPE_NAMES[sent_dtype]), place, name, lane))
        yield from self.arrived(name)
        ending = "" if sent_dtype is dtype else " != 0"
        if total & (total - 1) == 0:
            lanes, place = min(total, WARP), f"{self.lane} % {min(total, WARP)}"
            yield f"{name} = {shared}[{place}]{ending}"
            if total > WARP:
                yield f"for step in range(1, {total // WARP}):"
                yield from self._combined(statement, f"{shared}[step * {WARP} + {place}]{ending}")
            yield from self._shuffled(statement, lanes, FULL_MASK)
            return
        yield f"{name} = {self.spelling.constant(dtype, statement.identity)}"
        yield f"for warp in range({lane}, {total}, {WARP}):"
        yield from self._combined(statement, f"{shared}[warp]{ending}")
        yield from self._shuffled(statement, WARP, FULL_MASK)

    def _shuffled(self, statement: Reduce, lanes: int, mask: str) -> Iterator[str]:
        """Yield the exchange among ``lanes`` adjacent lanes, halving the distance each time; all get the result."""
        if lanes > 1:
            value = Var(statement.value.dtype, statement.name)
            yield f"for step in range({lanes.bit_length() - 1}):"
            received = self.spelling.exchange(f"shfl_xor_sync({mask}, {{}}, {lanes // 2} >> step)", value)
            yield from self._combined(statement, received)

    def _combined(self, statement: Reduce, value: str) -> Iterator[str]:
        """Yield the body of a loop that combines the result with another value."""
        dtype, name, other = statement.value.dtype, statement.name, f"{statement.name}_other"
        yield f"{INDENT}{other} = {value}"
        term = Apply(dtype, statement.fn, (Var(dtype, name), Var(dtype, other)))
        yield f"{INDENT}{name} = {self.spelling.term(term)}"

    def expected(self) -> Iterator[str]:
        """Yield the signal that a block of a cluster has started, and the number of bytes that it will wait for."""
        if self.awaited:
            yield f"{_ARRIVALS} = cuda.shared.array({len(self.awaited)}, uint64)"
            yield "if cuda.threadIdx.x == 0 and cuda.threadIdx.y == 0:"
            for number, nbytes in self.awaited.values():
                yield f"{INDENT}cluster_expect({_ARRIVALS}, {number}, {nbytes})"
        yield "cluster_arrive()"

    def sent(self, key: str, shared: tuple[str, str], place: str, value: str, rank: str) -> Iterator[str]:
        """Yield a remote store, awaited under a name, to a buffer given by its name and type."""
        (name, kind), words, (number, _) = shared, f"{shared[0]}_sent", self.awaited[key]
        yield f"{words} = cuda.local.array(1, {kind})"
        yield f"{words}[0] = {value}"
        yield f"send_in_cluster({name}, {place}, {words}, {rank}, {_ARRIVALS}, {number})"

    def arrived(self, key: str) -> Iterator[str]:
        """Yield the wait for data that other blocks of the cluster send."""
        yield f"while not cluster_arrived({_ARRIVALS}, {self.awaited[key][0]}):"
        yield f"{INDENT}pass"


def threads_of(phase: Phase, spelling: Spelling) -> Threads:
    """Return the threads of a phase."""
    count, cluster = phase.launch.threads[0], phase.launch.cluster
    sent_bytes: dict[str, int] = {}
    lane = ""
    for statement in walk(phase.body):
        match statement:
            case Reduce(name=name, scope=Scope.CLUSTER, value=value):
                sent_bytes[name] = count // WARP * cluster * max(value.dtype.compute.itemsize, _LEAST_SENT)
            case Await(buffer=buffer):
                sent_bytes[buffer.name] = buffer.nbytes
            case Loop(var=var, parallel=ParallelType.block_x):
                lane = lane or var
            case _:
                pass
    awaited = {name: (number, nbytes) for number, (name, nbytes) in enumerate(sent_bytes.items())}
    return Threads(
        count=count, cluster=cluster, lane=lane or "cuda.threadIdx.x", awaited=awaited, spelling=spelling,
    )
