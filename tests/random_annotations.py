"""Random plans expressed as annotations: ``python -m tests.random_annotations --count 1000 --seed 17``.

A random fusion is cut by a random strategy, and the plan is edited at random. The result of `Plan.to_annotations` is
checked by segmenting the text of the annotated definition and comparing the segments; if there is no result, it must
give a reason for each attempted form. Failures are printed with their number, which ``--index`` repeats.
"""

import argparse
import sys
import time
from collections import Counter
from random import Random

import fuser_lab as fl
from fuser_lab.errors import IllegalEdit
from fuser_lab.plan.annotating import WAYS
from tests.fuzz_segmentation import graph

LISTED = 20


def random_plan(seed, index):
    """Return a plan by number."""
    rng = Random(f"annotations {seed} {index}")
    fusion = graph(rng, rng.randint(3, 10))
    options = fl.SegmenterOptions(segment_set=rng.choice(("hint", "cut", "ignore")))
    plan = fl.segment(fusion, strategy=rng.choice(("bottom_up", "top_down", "optimal", "saving")), options=options)
    for _ in range(rng.randint(0, 3)):
        try:
            if rng.random() < 0.7:
                plan = plan.cut(rng.choice(list(plan.fusion.tensors)))
            elif len(plan.segments) > 1:
                plan = plan.glue(*rng.sample(range(len(plan.segments)), 2))
        except IllegalEdit:
            continue
    return plan


def company(plan, kept=frozenset()):
    """Return the segments as sets of names; replicas have the names of the expressions that they repeat.

    Annotations are omitted, except those whose result is an output of the fusion and those to be kept.
    """
    outputs = set(plan.definition.outputs)
    hints = {e.name for e in plan.definition.exprs if e.op.name == "segment_set" and e.out not in outputs} - kept
    same = plan.segmented.replicas
    return Counter(
        frozenset(same.get(e.name, e.name) for e in s.exprs if e.tensor_outputs and e.name not in hints)
        for s in plan.segments
    )


def read_again(plan):
    """Return the plan that the text of another one creates."""
    names = {}
    exec(plan.to_python(), names)
    return names["plan"]


def problem(plan, tries=60):
    """Return the defect of a plan's annotations, or None; and the form of the annotations."""
    told = plan.to_annotations(tries=tries)
    if not told:
        unscheduled = any(segment.scheduler is None for segment in plan.segments)
        if len(told.reasons) != (1 if unscheduled else len(WAYS)) or not all(told.reasons):
            return f"nothing found, and the reasons are {told.reasons}", "reason"
        return None, "reason"
    how = str(told.way) if told.annotations else "no annotation"
    # Annotations that both definitions have stay in place.
    both = {one.hint for one in told.annotations} & {one.hint for one in plan.annotations}
    if company(told.plan, both) != company(plan, both):
        return f"{told} gives {company(told.plan)}, not {company(plan)}", how
    if read_again(told.plan).hash != told.plan.hash:
        return f"{told}: its text gives another plan", how
    return None, how


def main():
    """Check the requested plans; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.random_annotations", description=__doc__)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=17)
    parser.add_argument("--index", type=int, help="only this plan")
    arguments = parser.parse_args()
    chosen = range(arguments.count) if arguments.index is None else [arguments.index]
    start, found, how = time.perf_counter(), [], Counter()
    for index in chosen:
        text, way = problem(random_plan(arguments.seed, index))
        how[way] += 1
        if text is not None:
            found.append(f"{index}: {text}")
    for line in found[:LISTED]:
        sys.stdout.write(f"{line}\n")
    told = ", ".join(f"{count} by {way}" for way, count in how.most_common())
    seconds = time.perf_counter() - start
    sys.stdout.write(f"{len(chosen)} plans in {seconds:.0f} s ({told}): {len(found)} failures\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
