"""Quotients and remainders by arguments, computed before the loops in which they do not change.

A compiler moves a division by a constant out of a loop. It does not move a division by an argument, because the loop
may never run and the argument may be zero. The loop then divides once per element and is not vectorized.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial

from fuser_lab.codegen.kernel_ir import Let, Load, Loop, Statement, map_blocks, terms_of, walk
from fuser_lab.codegen.rewriter import rewrite_statements
from fuser_lab.ir.term import Apply, Term, Var

Block = tuple[Statement, ...]
Names = frozenset[str]

_DIVISIONS = frozenset({"floordiv", "mod"})


def divisions_before_loops(body: Block, divisors: Names, used: set[str]) -> Block:
    """Return statements that divide by ``divisors``, which are not zero, outside of loops where that is possible.

    The names of the results are added to ``used``, the names that the kernel has.
    """
    return _Divisions(divisors, used).block(body, divisors)


class _Divisions:
    def __init__(self, divisors: Names, used: set[str]) -> None:
        self._divisors, self._used = divisors, used

    def block(self, body: Block, computed: Names) -> Block:
        """Return statements with the divisions before their loops; ``computed`` values are those before them."""
        result: list[Statement] = []
        for statement in body:
            match statement:
                case Loop():
                    fixed = self._movable_divisions(statement, computed)
                    variable_of: dict[Term, Var] = {term: Var(term.dtype, self._name()) for term in fixed}
                    result += [Let(name=variable_of[term].name, value=_value(term, variable_of)) for term in fixed]
                    (loop,) = rewrite_statements((statement,), variable_of.get) if variable_of else (statement,)
                    assert isinstance(loop, Loop)
                    inner = computed | {loop.var} | {name.name for name in variable_of.values()}
                    result.append(replace(loop, body=self.block(loop.body, inner)))
                case Let(name=name, update=False):
                    computed |= {name}
                    result.append(statement)
                case _:
                    result.append(map_blocks(statement, partial(self.block, computed=computed)))
        return tuple(result)

    def _name(self) -> str:
        name = next(n for n in map("q{}".format, range(len(self._used) + 1)) if n not in self._used)
        self._used.add(name)
        return name

    def _movable_divisions(self, loop: Loop, computed: Names) -> list[Apply]:
        """Return the divisions in a loop that only depend on known values, without those in others; quotients first."""
        inside = list(walk((loop,)))
        changed = {s.var if isinstance(s, Loop) else s.name for s in inside if isinstance(s, Let | Loop)}
        terms = (term for statement in inside for term in terms_of(statement))
        divisions = dict.fromkeys(division for term in terms for division in self._divisions(term, computed - changed))
        return sorted(divisions, key=lambda term: term.fn == "mod")

    def _divisions(self, term: Term, computed: Names) -> Iterator[Apply]:
        if isinstance(term, Apply) and self._is_division(term) and all(_is_known(t, computed) for t in term.walk()):
            yield term
            return
        for child in term.children:
            yield from self._divisions(child, computed)

    def _is_division(self, term: Apply) -> bool:
        if term.fn not in _DIVISIONS:
            return False
        return any(t.name in self._divisors for t in term.args[1].walk() if isinstance(t, Var))


def _value(term: Apply, variable_of: Mapping[Term, Var]) -> Term:
    """Return a division, or a remainder as the difference from the quotient if that is known."""
    quotient = variable_of.get(Apply(term.dtype, "floordiv", term.args)) if term.fn == "mod" else None
    if quotient is None:
        return term
    value, divisor = term.args
    return Apply(term.dtype, "sub", (value, Apply(term.dtype, "mul", (quotient, divisor))))


def _is_known(term: Term, computed: Names) -> bool:
    return term.name in computed if isinstance(term, Var) else not isinstance(term, Load)
