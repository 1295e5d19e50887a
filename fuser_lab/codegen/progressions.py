"""Positions of accesses as progressions: how far an access advances with each iteration of a loop."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import gcd

from fuser_lab.codegen.index_math import Linear, linear, simplify, substitute, variables
from fuser_lab.codegen.kernel_ir import Buffer
from fuser_lab.cost import device
from fuser_lab.ir.term import Apply, Const, Term, Var

ACCESS_BYTES = device.ACCESS_BYTES  # bytes of the widest memory access of a thread


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """The progression of a load or store through memory with a loop's variable.

    ``step`` is the number of elements between iterations, None if it varies; ``divisor`` divides the position of the
    first iteration.
    """

    buffer: Buffer
    step: int | None
    divisor: int

    def width(self, count: int) -> int:
        """Return how many of ``count`` adjacent elements one memory access may move; 0 if they are not adjacent."""
        if self.step != 1:
            return 0
        size = self.buffer.dtype.itemsize
        width = gcd(count, self.divisor, max(ACCESS_BYTES // size, 1))
        while width > 1 and self.buffer.alignment % (width * size):
            width //= 2
        return width


def access_of(buffer: Buffer, position: Term, name: str, values: Mapping[str, Term] | None = None) -> Access:
    """Return the progression of an access with variable ``name``; ``values`` are those of other index variables."""
    form = linear(resolve(position, values or {}), {})
    step: int | None = 0
    parts = []
    for atom, coefficient in form.parts:
        if isinstance(atom, Var) and atom.name == name:
            step = coefficient
        elif name in variables(atom):
            return Access(buffer=buffer, step=None, divisor=1)
        else:
            parts.append((atom, coefficient))
    return Access(buffer=buffer, step=step, divisor=divisor(Linear(form.constant, tuple(parts))))


def resolve(position: Term, values: Mapping[str, Term]) -> Term:
    """Return a position with the values of other index variables, simplified."""
    return simplify(substitute(position, values), {})


def divisor(form: Linear) -> int:
    """Return a number that divides every value of a form; 0 for the form 0."""
    return gcd(form.constant, *(c * _atom_divisor(atom) for atom, c in form.parts))


def _atom_divisor(atom: Term) -> int:
    match atom:
        case Apply(_, "mod", (x, Const(_, size))):
            return gcd(divisor(linear(x, {})), int(size.real))
        case _:
            return 1
