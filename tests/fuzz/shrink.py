"""Simpler programs than one that fails."""

import re
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from fuser_lab.errors import FuserLabError
from fuser_lab.ir import TensorView
from tests.fuzz.analysis import Analysis, Unfit
from tests.fuzz.program import Program, ScalarInput, TensorInput


def smaller(program: Program) -> Iterator[Program]:
    """Yield simpler programs, those with the largest changes first."""
    outputs = program.outputs
    for step in program.steps[:-1]:
        # The error may occur before the end.
        if step.results[0].startswith("t") and outputs != (step.results[0],):
            yield replace(program, outputs=(step.results[0],)).live()
    if len(outputs) > 1:
        for half in (outputs[: len(outputs) // 2], outputs[len(outputs) // 2 :]):
            yield replace(program, outputs=half).live()
        for k in range(len(outputs)):
            yield replace(program, outputs=outputs[:k] + outputs[k + 1 :]).live()
    for k, output in enumerate(outputs):
        if isinstance(output, tuple):
            plain = (*outputs[:k], *([output[0]] if output[0] not in outputs else []), *outputs[k + 1 :])
            yield replace(program, outputs=plain).live()
    # Steps become inputs with the values that they computed, early ones first.
    for k in reversed(range(len(program.steps))):
        given = _given(program, k)
        if given is not None:
            yield given
    for k, step in enumerate(program.steps):
        for name in sorted(step.uses):
            for result in step.results[:1]:
                yield _instead(program, k, result, name)
    for k, given in enumerate(program.inputs):
        if isinstance(given, TensorInput) and repr(given) != repr(given.plain()):
            yield replace(program, inputs=(*program.inputs[:k], given.plain(), *program.inputs[k + 1 :]))


def _given(program: Program, place: int) -> Program | None:
    """The program with the results of a step as inputs."""
    step = program.steps[place]
    try:
        analysis = Analysis.of(program)
    except (FuserLabError, Unfit):
        return None
    inputs = list(program.inputs)
    for name in step.results:
        value = analysis.names[name].val
        if isinstance(value, TensorView):
            values = np.asarray(analysis.known(name).value).astype(value.dtype.numpy)
            inputs.append(TensorInput(name=name, values=values, dtype=value.dtype))
        else:
            inputs.append(ScalarInput(name=name, value=analysis.scalar(name).item(), dtype=value.dtype))
    taken = {name for o in program.outputs for name in ([o[0]] if isinstance(o, tuple) else [o])} & set(step.results)
    outputs = tuple(o for o in program.outputs if (o[0] if isinstance(o, tuple) else o) not in taken)
    if not outputs:
        return None
    steps = program.steps[:place] + program.steps[place + 1 :]
    return replace(program, inputs=tuple(inputs), steps=steps, outputs=outputs).live()


def _instead(program: Program, place: int, result: str, name: str) -> Program:
    """The program without a step, whose first result is replaced by another value."""
    pattern = re.compile(rf"\b{result}\b")
    steps = [replace(s, call=pattern.sub(name, s.call)) for s in program.steps[place + 1 :]]
    named = [tuple(name if n == result else n for n in o) if isinstance(o, tuple) else name if o == result else o
             for o in program.outputs]
    given = {x.name for x in program.inputs}
    outputs = tuple(dict.fromkeys(o for o in named if (o[0] if isinstance(o, tuple) else o) not in given))
    kept = replace(program, steps=(*program.steps[:place], *steps), outputs=outputs or program.outputs)
    return kept.live()
