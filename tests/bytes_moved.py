"""The bytes that segments say they move, against the loads and stores of their kernels in lock step.

``python -m tests.bytes_moved --count 5000 --seed 1`` draws definitions over all ops, cuts each, and runs its kernels
with all threads in lock step. Each element counts once, however often it is accessed. What is said is what is counted,
with two exceptions. For a look-up it is a bound, because its positions are data, of which several may be equal. Kernels
for a GPU also load what is beside an element in an access of 16 bytes, and where a position is out of range they load
the beginning of the tensor instead.
"""

import sys
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import Any

from fuser_lab.api.functions import segment
from fuser_lab.codegen.index_math import ACCESS_BYTES
from fuser_lab.codegen.kernel_eval import Lanes
from fuser_lab.codegen.kernel_ir import Buffer, Load, Store, VectorLoad, VectorStore
from fuser_lab.ir import OpKind
from fuser_lab.ir.term import Term
from fuser_lab.targets import CPU
from tests import agreement
from tests.agreement import Disagreement
from tests.campaign import Campaign, Trial
from tests.fuzz.check import defined
from tests.fuzz.choices import Seeded
from tests.fuzz.generator import Generator
from tests.fuzz.program import Program
from tests.fuzz.shrink import smaller

MOST_STEPS = 24  # ops of a definition: many small ones have more kinds of segments than a few large ones
STRATEGIES = ("bottom_up", "unfused", "top_down")
TARGETS = ("cpu", "cuda")
Touched = dict[tuple[str, bool], set[int]]  # elements, by buffer and whether they are written


class Counting(Lanes):
    """Threads in lock step whose accesses to inputs and outputs are counted, each element once."""

    def __init__(self, touched: Touched, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._touched = touched

    def _note(self, buffer: Buffer, position: Term, count: int, *, write: bool) -> None:
        if not buffer.role.is_allocated:
            starts = self._spread_out(self._eval(position))[self._mask]
            self._touched[buffer.name, write].update(int(start) + n for start in starts for n in range(count))

    def _load(self, load: Load) -> Any:
        self._note(load.buffer, load.position, 1, write=False)
        return super()._load(load)

    def _store(self, statement: Store) -> None:
        self._note(statement.buffer, statement.position, 1, write=True)
        super()._store(statement)

    def _move(self, move: VectorLoad | VectorStore) -> None:
        self._note(move.buffer, move.position, move.count, write=isinstance(move, VectorStore))
        super()._move(move)


def touched_by(plan: Any, inputs: Any, target: str) -> dict[int, Touched]:
    """Return the elements that the kernel of each segment of a plan accesses."""
    touched: dict[int, Touched] = {}

    def threads(part: Any) -> Callable[..., Lanes]:
        return partial(Counting, touched.setdefault(part.index, defaultdict(set)))

    agreement.lock_step(plan, inputs, target, threads=threads)
    return touched


def check_plan(plan: Any, inputs: Any, target: str, count: Callable[[str], None] = lambda _: None) -> None:
    """Raise Disagreement unless the segments of a plan move the bytes that they say."""
    touched = touched_by(plan, inputs, target)
    needed: dict[int, Touched] = {}  # without wide accesses
    for part in plan.segments:
        if part.index not in touched or part.is_view:
            continue
        seen = touched[part.index]
        for tensor, said in part.group.bytes_read.items():
            size, elements = tensor.dtype.itemsize, seen[tensor.name, False]
            if size * len(elements) > said and target != CPU.name:
                needed = needed or touched_by(plan, inputs, CPU.name)
                least = needed[part.index][tensor.name, False]
                wide = range(1 - ACCESS_BYTES // size, ACCESS_BYTES // size)
                near = {n + k for n in {0, *least} for k in wide}
                count("beside an element")
                if not elements <= near:
                    msg = f"{target}: segment {part.index} reads {tensor.name} at {min(elements - near)}"
                    raise Disagreement(msg)
                elements = least
            read = size * len(elements)
            is_bound = any(expr.kind is OpKind.INDEXING for expr in part.exprs)
            count("equal" if read == said else "below")
            if read > said or (read < said and not is_bound):
                msg = f"{target}: segment {part.index} reads {read} bytes of {tensor.name}, and says {said}"
                raise Disagreement(msg)
        written = sum(tensor.dtype.itemsize * len(seen[tensor.name, True]) for tensor in part.outputs)
        if written != part.bytes_out:
            raise Disagreement(f"{target}: segment {part.index} writes {written} bytes, and says {part.bytes_out}")


def draw(trial: Trial) -> Program:
    """Return the program of a trial."""
    return Generator(Seeded(trial.seed, trial.number)).program(MOST_STEPS)


def check(program: Program, trial: Trial) -> None:
    """Check the plan of a program by the strategy and for the target whose turn it is."""
    program, fd = defined(program)
    inputs = program.arrays()
    plan = segment(fd, list(inputs), strategy=STRATEGIES[trial.number // len(TARGETS) % len(STRATEGIES)])

    def count(name: str) -> None:
        trial.counts["reads", name] += 1

    check_plan(plan, inputs, TARGETS[trial.number % len(TARGETS)], count)


CAMPAIGN = Campaign(module="tests.bytes_moved", noun="plans", draw=draw, check=check, smaller=smaller)

if __name__ == "__main__":
    from tests.bytes_moved import CAMPAIGN as THIS  # the module that worker processes import

    sys.exit(THIS.main())
