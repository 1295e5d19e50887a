"""The lines by which the threads of a GPU compute running values: of threads, of the lanes of a warp, and of warps."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from fuser_lab.codegen.emitter import TYPE_NAMES
from fuser_lab.codegen.kernel_ir import Load, Scan, Scope
from fuser_lab.cost.device import WARP
from fuser_lab.dtypes import DataType
from fuser_lab.errors import CodegenError
from fuser_lab.ir.term import Apply, Term, Var, cast, index

FULL_MASK = "0xFFFFFFFF"
INDENT = "    "


class Spelling(Protocol):
    """Spells the terms of a kernel."""

    def term(self, term: Term, /) -> str:
        """Return a term as an expression."""

    def constant(self, dtype: DataType, value: complex, /) -> str:
        """Return a constant of a dtype."""

    def exchange(self, call: str, value: Var, /) -> str:
        """Return another lane's value received by a shuffle; ``call`` has braces in place of the sent value."""


def scan_lines(statement: Scan, threads: int, spelling: Spelling, *, repeats: bool) -> Iterator[str]:
    """Yield the lines of a scan by blocks of ``threads`` threads in x; ``repeats`` says whether a loop is around it."""
    lanes = 1 if statement.scope is Scope.THREAD else min(threads, WARP)
    warps = threads // WARP if statement.scope is Scope.BLOCK else 1
    if statement.parts * warps > WARP:
        msg = f"a scan has {statement.parts * warps} totals of warps and parts; one warp can combine at most {WARP}."
        raise CodegenError(msg)
    name = statement.carry.name
    # As in a reduction, the mask has only the lanes of this row.
    mask = f"{name}_lanes" if 1 < lanes < WARP else FULL_MASK
    yield from _Lines(statement=statement, spelling=spelling, lanes=lanes, warps=warps, mask=mask).all(repeats=repeats)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lines:
    """The lines of a scan whose rows have some lanes of some warps; ``mask`` is that of a row's lanes."""

    statement: Scan
    spelling: Spelling
    lanes: int
    warps: int
    mask: str

    @property
    def _name(self) -> str:
        return self.statement.carry.name

    @property
    def _lane(self) -> str:
        return f"{self._name}_lane"

    @property
    def _part(self) -> Var:
        return Var(DataType.Index, f"{self._name}_part")

    @property
    def _place(self) -> Var:
        return Var(DataType.Index, f"{self._name}_at")

    @property
    def _total(self) -> Var:
        """The total of a thread's elements of a part, and after exchanges of the lanes up to it."""
        return self._var(f"{self._name}_own[{self._part.name}]")

    @property
    def _everything(self) -> Var:
        """The totals of the warps up to one."""
        return self._var(f"{self._name}_all")

    def _var(self, name: str) -> Var:
        return Var(self.statement.buffer.dtype, name)

    def _element(self, at: Term) -> Load:
        buffer = self.statement.buffer
        return Load(buffer.dtype, buffer, self._part * self.statement.each + at)

    def _fold(self, a: Term, b: Term) -> str:
        return self.spelling.term(Apply(a.dtype, self.statement.fn, (a, cast(b, a.dtype))))

    def all(self, *, repeats: bool) -> Iterator[str]:
        """Yield all lines."""
        parts, dtype = self.statement.parts, self.statement.buffer.dtype
        yield f"{self._lane} = cuda.threadIdx.x % {self.lanes}"
        if self.mask != FULL_MASK:
            yield f"{self.mask} = {(1 << self.lanes) - 1:#x} << (cuda.threadIdx.y * {self.lanes} % {WARP})"
        yield f"{self._name}_own = cuda.local.array({parts}, {TYPE_NAMES[dtype]})"
        yield f"for {self._part.name} in range({parts}):"
        yield from map(INDENT.__add__, self._of_thread())
        if self.warps > 1:
            yield from self._of_warps(repeats=repeats)
        yield f"for {self._part.name} in range({parts}):"
        yield from map(INDENT.__add__, self._with_earlier())
        if self.warps > 1:
            last = self.spelling.exchange(f"shfl_sync({self.mask}, {{}}, {parts * self.warps - 1})", self._everything)
            yield f"{self._name} = {self._fold(self.statement.carry, self._var(last))}"

    def _of_thread(self) -> Iterator[str]:
        """Yield the running values of a thread in a part, and the totals of the lanes up to it."""
        each, place = self.statement.each, self._place
        if each > 1:
            yield f"for {place.name} in range(1, {each}):"
            text = self._fold(self._element(place - 1), self._element(place))
            yield f"{INDENT}{self.spelling.term(self._element(place))} = {text}"
        yield f"{self._total.name} = {self.spelling.term(self._element(index(each - 1)))}"
        if self.lanes > 1:
            yield from self._among(self._total, self.lanes)

    def _among(self, value: Var, count: int) -> Iterator[str]:
        """Yield the running values of adjacent lanes, doubling the number of combined lanes each time."""
        step, received = f"{self._name}_step", self._var(f"{self._name}_other")
        yield f"for {step} in range({(count - 1).bit_length()}):"
        text = self.spelling.exchange(f"shfl_up_sync({self.mask}, {{}}, 1 << {step})", value)
        yield f"{INDENT}{received.name} = {text}"
        yield f"{INDENT}if {self._lane} >= 1 << {step}:"
        yield f"{INDENT * 2}{value.name} = {self._fold(received, value)}"

    def _of_warps(self, *, repeats: bool) -> Iterator[str]:
        """Yield the exchange of the warps' totals through shared memory, which each warp combines."""
        dtype, totals = self.statement.buffer.dtype, self.statement.parts * self.warps
        warp, shared = f"{self._name}_warp", f"{self._name}_shared"
        yield f"{warp} = cuda.threadIdx.x // {WARP}"
        yield f"{shared} = cuda.shared.array({totals}, {TYPE_NAMES[dtype]})"
        if repeats:
            yield "cuda.syncthreads()"  # all threads have read the values of the previous round
        yield f"if {self._lane} == {WARP - 1}:"
        yield f"{INDENT}for {self._part.name} in range({self.statement.parts}):"
        yield f"{INDENT * 2}{shared}[{self._part.name} * {self.warps} + {warp}] = {self._total.name}"
        yield "cuda.syncthreads()"
        identity = self.spelling.constant(dtype, self.statement.identity)
        yield f"{self._everything.name} = {shared}[{self._lane}] if {self._lane} < {totals} else {identity}"
        yield from self._among(self._everything, totals)

    def _with_earlier(self) -> Iterator[str]:
        """Yield the combination of a thread's running values in a part with all before them."""
        carry, start = self.statement.carry, self._var(f"{self._name}_start")
        received, spelling = self._var(f"{self._name}_other"), self.spelling
        yield f"{start.name} = {spelling.term(cast(carry, start.dtype))}"
        if self.warps > 1:
            number = f"{self._part.name} * {self.warps} + {self._name}_warp"
            earlier = spelling.exchange(f"shfl_sync({self.mask}, {{}}, {number} - 1)", self._everything)
            yield f"{received.name} = {earlier}"
            yield f"if {number} > 0:"
            yield f"{INDENT}{start.name} = {self._fold(start, received)}"
        if self.lanes > 1:
            yield f"{received.name} = {spelling.exchange(f'shfl_up_sync({self.mask}, {{}}, 1)', self._total)}"
            yield f"if {self._lane} > 0:"
            yield f"{INDENT}{start.name} = {self._fold(start, received)}"
        yield f"for {self._place.name} in range({self.statement.each}):"
        element = self._element(self._place)
        yield f"{INDENT}{spelling.term(element)} = {self._fold(start, element)}"
        if self.warps == 1:
            first = "0" if self.lanes == WARP else f"cuda.threadIdx.y * {self.lanes} % {WARP}"
            end = f"shfl_sync({self.mask}, {{}}, {first} + {self.lanes - 1})"
            last = spelling.exchange(end, self._total) if self.lanes > 1 else self._total.name
            yield f"{self._name} = {self._fold(carry, self._var(last))}"
