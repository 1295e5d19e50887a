"""Cheaper forms of values for GPUs, which combine consecutive expressions.

``1 + tanh(x)``, as in the tanh form of GELU, is ``2 / (1 + exp(-2 x))``, with half the instructions and without
cancellation where tanh is near -1. ``1 / (1 + exp(-x))``, the logistic function, multiplies by an approximate
reciprocal, which is as accurate as the exponential; ``x / (1 + exp(-x))``, SiLU, is x times that. ``cos(2 pi x)``, as
in normal numbers by Box and Muller, needs no reduction by an inexact pi. A bound at or beyond the largest ``e4m3``
number has no effect before a conversion to e4m3, which saturates anyway.
"""

import math
from collections.abc import Mapping
from dataclasses import replace

from fuser_lab.codegen.kernel_ir import If, Let, Loop, Statement, terms_of, walk
from fuser_lab.dtypes import DataType
from fuser_lab.ir.term import Apply, Const, Term, Var

_LARGEST_E4M3 = 448.0  # largest number of Float8_e4m3fn (OCP 8-bit floating point, E4M3)

Block = tuple[Statement, ...]


def rewrite(body: Block) -> Block:
    """Return statements with cheaper values, and without values that are no longer used."""
    replaced = _block(body, {})
    if replaced == body:
        return body
    gone = _names(body) - _names(replaced)
    return _without(replaced, gone)


def _names(body: Block) -> set[str]:
    terms = (term for statement in walk(body) for root in terms_of(statement) for term in root.walk())
    return {term.name for term in terms if isinstance(term, Var)}


def _block(body: Block, definitions: Mapping[str, Term]) -> Block:
    inner = dict(definitions)
    result: list[Statement] = []
    for statement in body:
        match statement:
            case Let(name=name, value=value) if not statement.update:
                inner[name] = value
                result.append(replace(statement, value=_cheaper(value, inner)))
            case Loop(body=block):
                result.append(replace(statement, body=_block(block, inner)))
            case If(then=then, otherwise=otherwise):
                result.append(replace(statement, then=_block(then, inner), otherwise=_block(otherwise, inner)))
            case _:
                result.append(statement)
    return tuple(result)


def _cheaper(value: Term, definitions: Mapping[str, Term]) -> Term:
    match value:
        case (
            Apply(DataType.Float, "add", (Const(_, number), Var(_, name)))
            | Apply(DataType.Float, "add", (Var(_, name), Const(_, number)))
        ) if number == 1:
            inner = definitions.get(name)
            if isinstance(inner, Apply) and inner.fn == "tanh" and inner.dtype is DataType.Float:
                return Apply(DataType.Float, "one_plus_tanh", inner.args)
        case Apply(
            DataType.Float, "div",
            (Const(_, unit), Apply(_, "add", (Const(_, other), Apply(_, "exp", (Apply(_, "neg", (x,)),))))),
        ) if unit == other == 1:
            return Apply(DataType.Float, "sigmoid", (_cheaper(x, definitions),))
        case Apply(
            DataType.Float, "div",
            (x, Apply(_, "add", (Const(_, unit), Apply(_, "exp", (Apply(_, "neg", (other,)),))))),
        ) if unit == 1 and x == other:
            argument = _cheaper(x, definitions)
            return Apply(DataType.Float, "mul", (argument, Apply(DataType.Float, "sigmoid", (argument,))))
        case Apply(dtype, "cos", (Apply(_, "mul", (turns, Const(_, number))),)) if number == 2 * math.pi:
            return Apply(dtype, "cos_turns", (_cheaper(turns, definitions),))
        case Apply(DataType.Float8_e4m3fn as dtype, "cast", (x,)):
            return Apply(dtype, "cast", (_without_bounds(_cheaper(x, definitions), definitions),))
        case Apply(dtype, fn, args):
            return Apply(dtype, fn, tuple(_cheaper(arg, definitions) for arg in args))
        case _:
            pass
    return value


def _without_bounds(value: Term, definitions: Mapping[str, Term]) -> Term:
    """Return a value to be converted to e4m3 without bounds that the conversion applies anyway; both preserve NaN."""
    form = definitions.get(value.name) if isinstance(value, Var) else value
    match form:
        case Apply(DataType.Float, "select", (Apply(_, "lt", (x, Const(_, bound))), Const(_, end), other)) if (
            x == other and bound == end and bound.real <= -_LARGEST_E4M3
        ):
            return _without_bounds(x, definitions)
        case Apply(DataType.Float, "select", (Apply(_, "gt", (x, Const(_, bound))), Const(_, end), other)) if (
            x == other and bound == end and bound.real >= _LARGEST_E4M3
        ):
            return _without_bounds(x, definitions)
        case _:
            return value


def _without(body: Block, names: set[str]) -> Block:
    result: list[Statement] = []
    for statement in body:
        match statement:
            case Let(name=name) if name in names:
                continue
            case Loop(body=block):
                result.append(replace(statement, body=_without(block, names)))
            case If(then=then, otherwise=otherwise):
                result.append(replace(statement, then=_without(then, names), otherwise=_without(otherwise, names)))
            case _:
                result.append(statement)
    return tuple(result)
