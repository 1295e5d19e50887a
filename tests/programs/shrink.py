"""Simpler programs than one that fails."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from tests.programs.oracle import evaluated
from tests.programs.program import NUMPY, Input, Program, Ref
from tests.programs.values import Unsupported, Value


def smaller(program: Program) -> Iterator[Program]:
    """Yield simpler programs, those with the largest changes first."""
    outputs = program.outputs
    if len(outputs) > 1:
        yield from (replace(program, outputs=(k,)).live() for k in outputs)
        yield from (replace(program, outputs=tuple(o for o in outputs if o != k)).live() for k in outputs)
    yield from _with_given(program)
    yield from _with_other(program)
    for k, given in enumerate(program.inputs):
        if isinstance(given, Input):
            for simpler in (given.dense(), given.fixed(), replace(given, contiguity=False)):
                if simpler.declaration != given.declaration:
                    yield replace(program, inputs=(*program.inputs[:k], simpler, *program.inputs[k + 1 :]))
            if given.base.dtype.kind != "b" and given.base.size and np.any(given.base != 1):
                ones = replace(given, base=np.ones_like(given.base))
                yield replace(program, inputs=(*program.inputs[:k], ones, *program.inputs[k + 1 :]))


def _with_given(program: Program) -> Iterator[Program]:
    """Yield programs in which a result becomes an input, the last results first."""
    try:
        values = evaluated(program)
    except Unsupported:
        return
    number = len(program.inputs)
    places = []
    for k, call in enumerate(program.calls):
        places.append((k, number, call.results))
        number += call.results
    for k, first, count in reversed(places):
        if count > 1:
            continue
        value: Value = values[first]
        if value.scalar:
            continue
        base = value.v.contiguous().numpy().astype(NUMPY[value.dtype])
        given = Input(base=base, dtype=value.dtype, declared=value.shape)
        inputs = (*program.inputs, given)
        numbers = {n: Ref(n if n < len(program.inputs) else n + 1 - (n > first)) for n in range(number)}
        numbers[first] = Ref(len(program.inputs))
        calls = [call.renumbered(numbers) for n, call in enumerate(program.calls) if n != k]
        kept = tuple(numbers[o].number for o in program.outputs if o != first)
        if kept:
            yield Program(inputs=inputs, calls=tuple(calls), outputs=kept).live()


def _with_other(program: Program) -> Iterator[Program]:
    """Yield programs in which a result is replaced by an operand, or is the output itself."""
    number = len(program.inputs)
    firsts = []
    for call in program.calls:
        firsts.append(number)
        number += call.results
    for k, call in enumerate(program.calls):
        if call.results == 1 and program.outputs != (firsts[k],):
            yield replace(program, outputs=(firsts[k],)).live()
    for k, call in enumerate(program.calls):
        for operand in sorted(call.refs()):
            numbers = {n: Ref(n) for n in range(number)} | {firsts[k]: Ref(operand)}
            calls = [c if n <= k else c.renumbered(numbers) for n, c in enumerate(program.calls)]
            outputs = tuple(dict.fromkeys(numbers[o].number for o in program.outputs))
            if all(o >= len(program.inputs) for o in outputs):
                yield replace(program, calls=tuple(calls), outputs=outputs).live()
