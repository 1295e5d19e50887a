"""A program, computed by the reference and by plans, and compared with torch."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import numpy as np

import fuser_lab as fl
from fuser_lab.errors import InputError
from tests import agreement
from tests.programs.edits import NOT_BROADCAST, OPTIONS, edited
from tests.programs.oracle import evaluated
from tests.programs.program import NUMPY, Input, Program
from tests.programs.values import FLOATS, Value

SLACK = 4.0


class Wrong(AssertionError):  # noqa: N818 - reads as the finding that it is
    """A result that differs from torch's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """The way to run a program: a strategy, a target, edits of the plan from a seed, and whether it is compiled."""

    strategy: str = "bottom_up"
    target: str = "cpu"
    edits: int | None = None
    compiled: bool = False


def suited(program: Program) -> Program:
    """Return the program with static sizes where fuser_lab must know that an axis of size 1 broadcasts."""
    try:
        fd = program.define()
        fd.reference(program.arrays())
    except InputError as error:
        if NOT_BROADCAST not in str(error):
            raise
    else:
        return program
    return replace(program, inputs=tuple(x.fixed() if isinstance(x, Input) else x for x in program.inputs))


def check(program: Program, way: Way) -> tuple[int, int]:
    """Check everything about a program; return the numbers of plans that were run, and of those that were edited.

    Raises
    ------
    Wrong
        If something differs from torch's results. All other exceptions are failures as well.
    """
    values = evaluated(program)
    wanted = [values[k] for k in program.outputs]
    program = suited(program)
    fd, inputs = program.define(), program.arrays()
    kept = [x.copy() if isinstance(x, np.ndarray) else x for x in inputs]
    compare(fd.reference(inputs), wanted, "reference")
    agreement.check_same(fd)
    plan = fl.segment(fd, inputs, strategy=way.strategy, options=OPTIONS)
    plans = [(plan, way.strategy)]
    if way.edits is not None:
        changed, done = edited(plan, Random(way.edits))
        if done:
            plans.append((changed, f"{way.strategy}, edited: {', '.join(done)}"))
    for one, name in plans:
        found = agreement.lock_step(one, inputs, way.target)
        compare(agreement.visible(one.fusion, found), wanted, f"{way.target} kernels of {name}")
        if way.compiled:
            compare(one.run(inputs), wanted, f"compiled kernels of {name}")
    for before, after in zip(kept, inputs, strict=True):
        if isinstance(before, np.ndarray) and before.tobytes() != np.ascontiguousarray(after).tobytes():
            raise Wrong("an input was changed")
    return len(plans), len(plans) - 1


def compare(got: Sequence[Any], wanted: Sequence[Value], what: str) -> None:
    """Raise Wrong unless results have torch's shapes, the dtypes of the rules, and values within their error bounds."""
    if len(got) != len(wanted):
        msg = f"{what}: {len(got)} outputs, not {len(wanted)}"
        raise Wrong(msg)
    for number, (given, value) in enumerate(zip(got, wanted, strict=True)):
        array = np.asarray(given)
        name = f"{what}, output {number}"
        if array.shape != value.shape:
            msg = f"{name}: shape {array.shape}, wanted {value.shape}"
            raise Wrong(msg)
        if array.dtype != NUMPY[value.dtype]:
            msg = f"{name}: dtype {array.dtype}, wanted {value.dtype}"
            raise Wrong(msg)
        v, e, u = (x.numpy() for x in (value.v, value.e, value.u))
        with np.errstate(all="ignore"):
            if value.dtype in FLOATS:
                array = array.astype(np.float64)
                right = (array == v) | (np.isnan(array) & np.isnan(v)) | (np.abs(array - v) <= SLACK * e)
            else:
                right = array == v
        wrong = ~(right | u)
        if wrong.any():
            place = tuple(int(k) for k in np.argwhere(wrong)[0])
            msg = (
                f"{name}: {array[place]!r} at {list(place)}, wanted {v[place]!r} within {SLACK * e[place]:.3g} "
                f"({int(wrong.sum())} of {wrong.size} differ)"
            )
            raise Wrong(msg)


