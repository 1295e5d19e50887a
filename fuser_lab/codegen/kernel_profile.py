"""Counts of a kernel's instructions, memory accesses and sectors, from a sample of its warps.

A few warps of a few blocks walk the Kernel IR of a phase. Each warp walks the body of a long loop once, in a different
iteration, so that a condition that holds in some iterations holds for the same share of the warps; counts of the body
are multiplied by the number of iterations. Index arithmetic is evaluated, so that the 32-byte sectors that the lanes of
a warp access together are known; values that depend on data are not evaluated. The average counts per warp are
multiplied by the number of warps of the phase. `kernel_features` gives the features that the model of its time uses.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from fuser_lab.codegen import kernel_ir as ir
from fuser_lab.codegen.index_math import is_index
from fuser_lab.codegen.samples import GLOBAL, Samples, Value, Whole
from fuser_lab.cost.device import LINE_BYTES, SECTOR_BYTES, WARP
from fuser_lab.cost.kernel_time import KernelFeatures
from fuser_lab.cost.traffic import traffic
from fuser_lab.cost.work import function_class, work_of
from fuser_lab.dtypes import DataType
from fuser_lab.ir import Fusion
from fuser_lab.ir.term import Apply, Const, Term
from fuser_lab.ir.transform import ParallelType
from fuser_lab.schedule.parameters import NestChoice
from fuser_lab.schedule.state import Style
from fuser_lab.targets import target_of

SMALL = 128 << 10  # bytes of a buffer that stays in that cache
_BLOCKS = 4  # sampled blocks per phase
_WARPS = 7  # sampled warps per block
_WALKS = 4  # iterations, over nested loops, up to which short loops are walked completely
_SPREAD = {ParallelType.grid_x, ParallelType.block_x, ParallelType.block_y}
_MEETING = {ir.Scope.BLOCK, ir.Scope.CLUSTER}
_PRODUCT = 3  # instructions of a division by a constant: a product, a shift, a correction
_DIVISION = 20  # instructions of a division by a variable
_EXACT_QUOTIENTS = {"div", "rounded_quotient"}
_EXACT = 10  # instructions of an exactly rounded division of float32 beside the reciprocal
_SOFTWARE = 40  # instructions of a conversion to eight bits
_WIDENED = 10  # instructions of a conversion from eight bits, as `float8_functions` writes it for one element
# Issue slots of a function of float64 in machine code for compute capability 9.0, without branches for rare numbers:
# its instructions, or two for each of float64 if those are more, because a multiprocessor has 64 units for float64.
_OF_DOUBLE = {
    "acos": 92, "acosh": 130, "asin": 84, "asinh": 133, "atan": 56, "atan2": 89, "atanh": 130, "cos": 45, "cosh": 42,
    "div": 27, "erf": 84, "erfc": 126, "erfcinv": 322, "erfinv": 192, "exp": 37, "exp2": 38, "expm1": 49, "fmod": 259,
    "lgamma": 434, "log": 63, "log10": 65, "log1p": 106, "log2": 65, "logaddexp": 150, "pow": 182, "remainder": 270,
    "rounded_quotient": 27, "rounded_sqrt": 26, "rsqrt": 19, "sigmoid": 66, "sin": 43, "sinh": 88, "sqrt": 26,
    "tan": 64, "tanh": 68,
}
_ROUNDING = 3  # instructions of a conversion to 16 bits and back; conversions are issued at half the rate
_WIDE = 2  # instructions of 64-bit integer arithmetic
# Functions that take many instructions, as multiples of one instruction of the special function unit.
_LONG = {
    "acos": 6, "acosh": 8, "asin": 6, "asinh": 8, "atan": 5, "atan2": 8, "atanh": 6, "cos": 6, "erf": 6, "erfc": 8,
    "erfcinv": 12, "erfinv": 8, "lgamma": 20, "philox_uniform": 20, "pow": 24, "sin": 6, "sinh": 5, "tan": 8,
}
# Functions that no unit computes: their instructions for an element in machine code for compute capability 9.0.
_POLYNOMIALS = {"expm1": 21, "log": 24, "log10": 26, "log1p": 28, "log2": 26, "logaddexp": 40}
# Instructions of 64-bit integers: two comparisons and two selections; the same after a negation.
_WIDE_FUNCTIONS = {"abs": 5, "max": 4, "min": 4}
_ROUND = 12  # instructions per number of the random generator, which makes four at a time
_SHIFTED = 8  # instructions per word of a shifted access, which combines two accesses
_SHUFFLES = 5  # per reduction over a warp
_CLUSTER = 65  # more instructions to send a warp's result to the blocks of a cluster, await theirs and combine all
_GOLDEN = (5**0.5 - 1) / 2  # fraction, whose multiples modulo 1 are spread evenly
_STEPS = (_GOLDEN, 0.7548776662466927, 0.5698402909980532)  # for nested loops; no ratio is near a simple fraction
_UNROLLED = 64  # iterations up to which a compiler unrolls a loop
_PARTLY = 4  # unroll factor of a longer loop


# Names of counts: those of the longest phase, and those that are sums over phases.
_LONGEST = ("rounds", "unrolled", "meetings", "scratch", "between")
_SUMMED = (
    "fetched", "stored", "partial", "gathered", "near", "again", "lines", "shared_accesses", "simple", "dividing",
    "special", "warps", "moves",
)


def kernel_profile(kernel: ir.Kernel, main: int) -> dict[str, float]:
    """Return counts of a kernel for a target with blocks over all its warps, by the names of `KernelFeatures`.

    ``main`` is the number of the longest phase. The compiler unrolls short loops with a constant number of iterations,
    and hoists loads over everything but stores: they count in ``unrolled`` per iteration, and in ``rounds`` per loop.
    """
    walkers = [_Walk(phase) for phase in kernel.phases]
    for walker in walkers:
        walker.run()
    total = {name: sum(walker.counts[name] for walker in walkers) for name in _SUMMED}
    total |= {name: walkers[main].counts[name] for name in _LONGEST}
    read, written = (sum(walker.touched[name] for walker in walkers) for name in ("fetched", "stored"))
    return {**total, "read": read, "written": written}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Touch:
    """The sectors of each sampled warp in one access, -1 for none, and the number of accesses; ``used`` are bytes.

    ``turns`` are the iterations of the outermost loop around it of which one is walked.
    """

    sectors: Whole
    times: float
    turns: float
    used: float
    gathered: bool


class _Walk(Samples):
    """The sampled warps of a phase; arrays have axes for warps, lanes, and adjacent elements of a lane.

    ``shift`` is added to the iterations of the outermost loop of which one is walked.
    """

    def __init__(self, phase: ir.Phase, shift: int = 0) -> None:
        self._phase, self._shift = phase, shift
        x, y = phase.launch.threads
        self._threads = x * y
        per_block = -(-self._threads // WARP)
        blocks, warps = _scattered_numbers(phase.launch.blocks, _BLOCKS), [0, *_middles(1, per_block, _WARPS - 1)]
        block, warp = (part.reshape(-1, 1, 1) for part in np.meshgrid(blocks, warps, indexing="ij"))
        of_warp = np.full(len(warps), (per_block - 1) / max(len(warps) - 1, 1))
        of_warp[0] = 1.0  # the first warp often does work that the others do not
        self._weights = np.tile(of_warp / per_block / len(blocks), len(blocks))
        thread = warp * WARP + np.arange(WARP).reshape(1, -1, 1)
        self._places = {
            ParallelType.grid_x: block, ParallelType.block_x: thread % x, ParallelType.block_y: thread // x,
        }
        super().__init__(phase, (1, 1, 1), (thread < self._threads) & (block >= 0))
        self._times = 1.0  # number of times that a warp that reaches the current statement executes it
        self._turns = 1.0  # iterations of enclosing loops that the compiler unrolls, with hoisted loads
        self._walks = 1  # of the current statement
        self._sampled = 0  # enclosing loops of which one iteration is walked
        self._outermost = 1.0  # iterations of the outermost of these
        self._neighbours = 1  # elements of a lane in a VECTORIZE loop
        self._reaching: tuple[Any, float] = (None, 0.0)  # a mask, and the share of all warps that it leaves
        self._waits: dict[int, bool] = {}  # by the id of a statement of the phase, which is walked repeatedly
        self._per_block, self._all_warps = per_block, float(phase.launch.blocks * per_block)
        self.counts: dict[str, float] = dict.fromkeys((*_SUMMED, *_LONGEST), 0.0)
        self.touched = {"fetched": 0.0, "stored": 0.0}
        self._sectors: dict[tuple[str, ir.Buffer], list[_Touch]] = {}

    def run(self) -> None:
        """Walk the phase."""
        self._block(self._phase.body)
        walked = chain.from_iterable(self._sectors.values())
        turns = max((touch.turns for touch in walked if touch.turns > 1 and self._is_sparse(touch)), default=1.0)
        if turns > 1:
            self._count_returns(turns)
        for (name, buffer), touches in self._sectors.items():
            moved = SECTOR_BYTES * sum(times * self._average(access) for times, access in _distinct(touches))
            size = buffer.size * buffer.dtype.itemsize
            self._count(name, moved)
            self.touched[name] += min(moved * self._all_warps, size)
            if name == "stored":
                self._count("partial", max(moved - sum(touch.used for touch in touches), 0.0))
            elif size <= SMALL:
                self._count("near", moved)
            if name == "fetched" and any(touch.gathered for touch in touches):
                self._count("gathered", moved)
        for name in _SUMMED:
            self.counts[name] *= self._all_warps
        self.counts["warps"] = self._all_warps

    def _is_sparse(self, touch: _Touch) -> bool:
        """Whether a warp uses at most half of the bytes of the sectors that it accesses."""
        distinct = self._average((np.diff(touch.sectors, axis=1, prepend=-1) != 0).sum(axis=1)) * touch.times
        return not touch.gathered and SECTOR_BYTES * distinct >= 2 * touch.used > 0

    def _count_returns(self, turns: float) -> None:
        """Count what a block accesses in a round, and the sectors to which sparse accesses return in the next round.

        If all blocks together access more than the buffer in a round, they share its sectors, and one of them finds
        in the L2 cache what another one has just fetched.
        """
        following = _Walk(self._phase, shift=1)
        following._block(self._phase.body)
        blocks = self._phase.launch.blocks
        for (name, buffer), touches in self._sectors.items():
            size, later = buffer.size * buffer.dtype.itemsize, following._sectors.get((name, buffer), [])
            inside = [touch for touch in touches if touch.turns == turns]
            moved = SECTOR_BYTES * sum(times * self._average(access) for times, access in _distinct(inside))
            a_round = moved * self._per_block / turns
            self._count("between", min(a_round, size))
            if name != "fetched" or a_round * blocks > size or len(later) != len(touches):
                continue
            for touch, next_touch in zip(touches, later, strict=True):
                if touch.turns == turns and self._is_sparse(touch):
                    count = self._average(_common_counts(touch.sectors, next_touch.sectors))
                    self._count("again", SECTOR_BYTES * touch.times * count)

    @property
    def _inside(self) -> float:
        return self._times

    def _count(self, name: str, times: float) -> None:
        self.counts[name] += times

    def _block(self, statements: tuple[ir.Statement, ...]) -> None:
        waiting = False
        for statement in statements:
            loads = self._loads(statement)
            if loads and not waiting:
                self._count("unrolled", self._executions())
                self._count("rounds", self._executions() / self._turns)
            waiting = loads
            self._statement(statement)

    def _loads(self, statement: ir.Statement) -> bool:
        """Whether a statement waits for global memory; a loop or a guard that only loads counts as one wait."""
        is_wait = self._waits.get(id(statement))
        if is_wait is None:
            is_wait = self._waits[id(statement)] = self._is_load(statement)
        return is_wait

    def _is_load(self, statement: ir.Statement) -> bool:
        if isinstance(statement, ir.Loop):
            return statement.parallel not in _SPREAD and self._only_loads(statement.body)
        if isinstance(statement, ir.If):
            return not statement.otherwise and self._only_loads(statement.then)
        if isinstance(statement, ir.VectorLoad):
            return statement.buffer.role in GLOBAL
        return any(
            isinstance(term, ir.Load) and term.buffer.role in GLOBAL
            for term in ir.every_term(statement)
        )

    def _only_loads(self, body: tuple[ir.Statement, ...]) -> bool:
        inner = [statement for statement in body if not isinstance(statement, ir.Let) or self._loads(statement)]
        return bool(inner) and all(self._loads(statement) for statement in inner)

    def _executions(self) -> float:
        """Return the average number of times that a warp executes the current statement."""
        return self._times * self._active()

    def _active(self) -> float:
        """Return the share of all warps that reach the current statement, of adjacent elements the average share."""
        mask, share = self._reaching
        if mask is not self._mask:
            share = self._average(self._mask.any(axis=1).mean(axis=1))
            self._reaching = self._mask, share
        return share

    def _average(self, of_warps: Any) -> float:
        return float((of_warps * self._weights).sum())

    def _other(self, statement: ir.Statement) -> None:
        match statement:
            case ir.VectorLoad(count=count, width=width) | ir.VectorStore(count=count, width=width):
                each = _SHIFTED if isinstance(statement, ir.VectorLoad) and statement.shifted else 1
                self._count("moves", self._executions() * (count // width) * each)
            case ir.Reduce(scope=scope):
                met = _CLUSTER if scope is ir.Scope.CLUSTER else 0
                self._count("simple", (2 * _SHUFFLES + met) * self._executions())
                if scope in _MEETING:
                    self._count("meetings", self._executions())
            case ir.Scan(parts=parts, each=each, scope=scope):
                self._count("simple", parts * (2 * each + 2 * _SHUFFLES) * self._executions())
                if scope in _MEETING:
                    self._count("meetings", self._executions())
            case ir.Barrier():
                self._count("meetings", self._executions())
            case ir.Alloc(buffer=buffer) if buffer.role is not ir.Role.SHARED:
                self._count("scratch", buffer.size * buffer.dtype.itemsize)
            case ir.Uniforms(count=count):
                self._count("simple", _ROUND * count * self._executions())
            case _:
                pass

    def _loop(self, loop: ir.Loop) -> None:
        outside = dict(self._env), self._mask, self._times, self._neighbours, self._turns, self._walks, self._sampled
        outermost = self._outermost
        first, turns, _ = self._ends(loop)
        place = self._places.get(loop.parallel)
        if place is not None:
            self._round(loop, place, 0.0)
        else:
            self._serial(loop, first, turns)
        self._env, self._mask, self._times, self._neighbours, self._turns, self._walks, self._sampled = outside
        self._outermost = outermost

    def _serial(self, loop: ir.Loop, first: Whole, turns: Whole) -> None:
        most, together = int(turns.max()), self._turns * max(float(turns.max()), 1.0)
        if _stores(loop.body):
            self._turns = 1.0
        else:
            self._turns = together if isinstance(loop.stop, Const) and together <= _UNROLLED else _PARTLY
        if loop.parallel is ParallelType.vectorize and self._neighbours == 1 and turns.size == 1:
            self._neighbours = most
            self._times *= most
            self._round(loop, first + np.arange(most).reshape(1, 1, -1), self._times)
        elif turns.size == 1 and self._walks * most <= _WALKS:
            self._walks *= max(most, 1)
            for turn in range(most):
                self._round(loop, first + turn, self._times)
        else:
            self._mask = self._mask & (turns > 0)
            often = np.where(self._mask, turns, 0).max(axis=(1, 2), initial=0)
            mean = float(often[often > 0].mean()) if often.any() else 0.0
            self._times *= mean
            if not self._sampled:
                self._outermost = mean
            self._round(loop, first + self._chosen_rounds(turns), self._times)

    def _chosen_rounds(self, turns: Whole) -> Whole:
        """Return an iteration of a loop for each warp, evenly spread and independent of enclosing loops."""
        step = _STEPS[min(self._sampled, len(_STEPS) - 1)]
        shift = 0 if self._sampled else self._shift
        self._sampled += 1
        parts = (np.arange(len(self._weights)) * step + 0.5) % 1
        return np.asarray(((turns * parts.reshape(-1, 1, 1)).astype(np.int64) + shift) % np.maximum(turns, 1))

    def _round(self, loop: ir.Loop, place: Whole, times: float) -> None:
        self._env[loop.var] = Value(place, times)
        self._seen.clear()
        if self._times and self._mask.any():
            self._block(loop.body)
        self._seen.clear()

    def _if(self, statement: ir.If) -> None:
        value, then, otherwise = self._term(statement.condition), statement.then, statement.otherwise
        condition = None if value.gathered else value.numbers
        outer, turns = self._mask, self._turns
        # Loads are not hoisted out of a branch, unless it holds nothing else. In an unrolled loop, a condition that
        # neither threads nor blocks change is not a branch.
        is_branch = condition is None or condition.shape[:2] != (1, 1)
        if is_branch and not self._loads(statement):
            self._turns = 1.0
        holds = np.ones((1, 1, 1), bool) if condition is None else condition.astype(bool)
        for chosen, body in ((holds, then), (~holds if condition is not None else holds, otherwise)):
            self._mask = outer & chosen
            if body and self._mask.any():
                self._block(body)
        self._mask, self._turns = outer, turns

    def _load_value(self, load: ir.Load) -> Value:
        place = self._access(load.buffer, load.position, 1, 1, stored=False)
        if load.buffer.dtype.is_float and load.buffer.dtype.itemsize == 1:
            self._count("simple", _WIDENED * self._executions())
        return self._element(load, place)._replace(inside=self._times)

    def _count_operation(self, term: Apply, inside: float) -> None:
        name, cost = _cost(term)
        # Positions of adjacent elements differ by constants, which are part of the accesses.
        times = self._times / self._neighbours if is_index(term) else self._times
        executions = min(inside, times) * self._active()
        self._count(name, cost * executions)
        if term.fn in _EXACT_QUOTIENTS and term.dtype is DataType.Float and not isinstance(term.args[1], Const):
            self._count("simple", _EXACT * executions)

    def _chose(self, term: Apply, condition: Value, chosen: Value) -> None:
        self._count("simple", min(condition.inside, self._times))

    def _access(self, buffer: ir.Buffer, position: Term, count: int, width: int, *, stored: bool) -> Value:
        """Count an access of the active lanes to ``count`` elements from a position, ``width`` at a time."""
        place = self._term(position)
        reached = self._executions() * (count // width)
        if buffer.role not in GLOBAL:
            self._count("shared_accesses" if buffer.role is ir.Role.SHARED else "moves", reached)
            return place
        size, times = buffer.dtype.itemsize, self._times / self._neighbours
        # Without a known position, each lane accesses a different sector.
        first = np.arange(WARP).reshape(1, -1, 1) * LINE_BYTES if place.numbers is None else place.numbers
        starts = np.broadcast_to(first * size, np.broadcast_shapes(first.shape, self._mask.shape))
        mask = np.broadcast_to(self._mask, starts.shape)
        nbytes = count * size
        steps = np.arange(0, nbytes, min(SECTOR_BYTES, nbytes)).reshape(1, 1, 1, -1)
        touched_sectors = np.where(mask[..., None], (starts[..., None] + steps) // SECTOR_BYTES, -1)
        sectors = np.sort(touched_sectors.reshape(len(starts), -1), axis=1)
        for piece in range(0, nbytes, width * size):
            self._count("lines", self._average(_lines(starts + piece, min(width * size, LINE_BYTES), mask)) * times)
        used = self._average(mask.sum(axis=(1, 2))) * nbytes * times
        touch = _Touch(
            sectors=sectors, times=times, turns=self._outermost, used=used,
            gathered=place.gathered or place.numbers is None,
        )
        self._sectors.setdefault(("stored" if stored else "fetched", buffer), []).append(touch)
        return place


def _lines(starts: Whole, nbytes: int, mask: npt.NDArray[np.bool_]) -> Whole:
    """Return the number of cache lines that the active lanes of each sampled warp meet in one instruction."""
    ends = np.stack((starts, starts + nbytes - 1), axis=-1) // LINE_BYTES
    lines = np.sort(np.where(mask[..., None], ends, -1).reshape(len(starts), -1), axis=1)
    counts: Whole = (np.diff(lines, axis=1, prepend=-1) != 0).sum(axis=1)
    return counts


def _scattered_numbers(count: int, most: int) -> list[int]:
    """Return numbers of a range by the golden ratio, because the positions of blocks are often periodic."""
    return sorted({int(count * (n * _GOLDEN % 1)) for n in range(1, most + 1)})


def _middles(start: int, stop: int, most: int) -> list[int]:
    """Return the midpoints of at most ``most`` equal parts of a range."""
    parts = min(stop - start, most)
    return [start + (2 * n + 1) * (stop - start) // (2 * parts) for n in range(parts)]


def _distinct(touches: list[_Touch]) -> Iterator[tuple[float, Whole]]:
    """Yield multiplicity and number of distinct sectors of each sampled warp, per iteration of a loop."""
    for times in {touch.times for touch in touches}:
        together = np.concatenate([touch.sectors for touch in touches if touch.times == times], axis=1)
        together.sort(axis=1)
        yield times, (np.diff(together, axis=1, prepend=-1) != 0).sum(axis=1)


def _common_counts(first: Whole, second: Whole) -> Whole:
    """Return the number of sectors that each sampled warp accesses in both of two accesses."""
    counts = [len(np.setdiff1d(np.intersect1d(a, b), [-1])) for a, b in zip(first, second, strict=True)]
    return np.array(counts, np.int64)


def _stores(statements: tuple[ir.Statement, ...]) -> bool:
    """Whether any of the statements writes to global memory."""
    return any(isinstance(s, ir.Store | ir.VectorStore) and s.buffer.role in GLOBAL for s in ir.walk(statements))


def _cost(term: Apply) -> tuple[str, float]:
    """Return the class of an instruction, and the number of instructions of that class."""
    if term.fn in {"floordiv", "mod"} and term.dtype.is_integral:
        divisor = term.args[1]
        if not isinstance(divisor, Const):
            return "simple", _DIVISION
        value = int(divisor.value.real)
        return "simple", 1 if value > 0 and value & (value - 1) == 0 else _PRODUCT
    if term.fn in {"div", "quotient"} and term.dtype.is_integral:
        return "simple", _DIVISION
    if term.fn == "cast":
        source_dtype = term.args[0].dtype
        if not term.dtype.is_narrow and term.dtype.is_integral == source_dtype.is_integral:
            return "simple", 0
        if term.dtype.is_float and term.dtype.itemsize <= 2:
            return "simple", _SOFTWARE if term.dtype.itemsize == 1 else _ROUNDING
        # The unit of special functions converts between floats and 64-bit integers.
        return ("special" if DataType.Int in {term.dtype, source_dtype} else "simple"), 1
    if term.fn == "bitcast" and not term.dtype.is_narrow and not term.args[0].dtype.is_narrow:
        return "simple", 0
    if term.dtype is DataType.Double:
        return "simple", _OF_DOUBLE.get(term.fn, 2)
    of_class = function_class(term.fn)
    if any(arg.dtype in {DataType.Int, DataType.UInt64} for arg in term.args):
        return of_class, _WIDE_FUNCTIONS.get(term.fn, _WIDE)
    if term.fn in _POLYNOMIALS:
        return "simple", _POLYNOMIALS[term.fn]
    return of_class, _LONG.get(term.fn, 1)


def kernel_features(
    fusion: Fusion, kernel: ir.Kernel, *, registers: int = 0, spilled: int = 0, shared: int = 0, resident: int = 0,
) -> KernelFeatures:
    """Return the features of the kernel of a segment.

    For targets without blocks, instructions are counted per element, and bytes are those of whole tensors.

    Parameters
    ----------
    fusion
        The segment.
    kernel
        Its Kernel IR.
    registers, spilled, shared, resident
        Properties of the largest phase as compiled, if known; see `fuser_lab.runtime.gpu.facts.LaunchFacts`.
    """
    main = largest_phase(kernel)
    launch = kernel.phases[main].launch
    nest = max(kernel.nests, key=_points, default=None)
    profile = kernel_profile(kernel, main) if target_of(kernel.target).has_blocks else _whole(fusion)
    return KernelFeatures(
        style=Style.ELEMENTS.value if nest is None else nest.schedule.style.value, launches=len(kernel.phases),
        started=sum(phase.launch.blocks for phase in kernel.phases), blocks=launch.blocks,
        threads=prod(launch.threads), shared=shared or launch.shared, registers=registers, spilled=spilled,
        resident=resident, **profile,
    )


def largest_phase(kernel: ir.Kernel) -> int:
    """Return the number of the phase that moves the most bytes; among equals, the one with the most threads.

    The number of threads alone is not enough: a phase whose blocks each iterate over many rows may have fewer threads
    than the phase that adds up their column sums.
    """
    return max(range(len(kernel.phases)), key=lambda n: (kernel.phases[n].nbytes, _threads(kernel.phases[n])))


def _whole(fusion: Fusion) -> dict[str, float]:
    moved, work = traffic(fusion, fusion.tensor_exprs), work_of(fusion.tensor_exprs)
    return {
        **dict.fromkeys((*_SUMMED, *_LONGEST), 0.0), "read": moved.read, "written": moved.written,
        "fetched": moved.read, "stored": moved.written, "simple": work.simple + work.reducing,
        "dividing": work.dividing, "special": work.special,
    }


def _threads(phase: ir.Phase) -> int:
    return phase.launch.blocks * prod(phase.launch.threads)


def _points(nest: NestChoice | None) -> int:
    return 0 if nest is None else max(nest.space.rows, 1) * max(nest.space.depth, 1)
