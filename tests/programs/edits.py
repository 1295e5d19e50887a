"""Random edits of plans, and options of plans that are edited; needs no torch."""

from random import Random
from typing import Any

import fuser_lab as fl
from fuser_lab.errors import IllegalEdit

OPTIONS = fl.SegmenterOptions(search_states=200)  # for "optimal", which may search for seconds
NOT_BROADCAST = "an axis declared -1 does not broadcast"


def edited(plan: Any, rng: Random) -> tuple[Any, list[str]]:
    """Return a plan after some random cuts, glues and moves, and those that were legal."""
    done: list[str] = []
    for _ in range(rng.randint(2, 6)):
        tensors = list(plan.fusion.tensors)
        kind = rng.choice(("cut", "cut", "glue", "move"))
        number = rng.randrange(len(plan.segments))
        try:
            if kind == "cut":
                arguments: tuple[Any, ...] = (rng.choice(tensors),)
            elif kind == "glue":
                arguments = (number, rng.randrange(len(plan.segments)))
            else:
                arguments = (rng.choice(tensors), number)
            plan = getattr(plan, kind)(*arguments)
        except IllegalEdit:
            continue
        done.append(f"{kind}{arguments}")
    return plan, done
