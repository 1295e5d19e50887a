"""Random graphs cut by random schedulers: ``python -m tests.fuzz_segmentation --count 100000 --seed 17``.

Checked for every plan: segments form no cycle, no expression is lost, none is in two segments unless it is recomputed
on purpose, replaying the log reproduces the plan, replicas repeat a cast or a squeeze, and each ``segment_set``
separates what its documentation states.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

from fuser_lab.dtypes import DataType
from fuser_lab.ir import Expr, Fusion
from fuser_lab.segmentation import SegmentedFusion, SegmenterOptions, SegmentSetMeaning, replay, segment
from fuser_lab.segmentation.events import DecisionLog
from tests.agreement import Disagreement
from tests.campaign import Campaign, Trial
from tests.unit.builders import record
from tests.unit.segmentation.toy import Rule, chance


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A graph, the probability that schedulers accept a set of its expressions, and how it is cut."""

    fusion: Fusion
    oracle: Rule
    options: SegmenterOptions
    strategy: str


def graph(rng: Random, ops: int) -> Fusion:
    """Return a random fusion over tensors of four elements; any of its values may be outputs."""

    def body(fd: Any) -> None:
        values = [fd.define_tensor([4], contiguity=True) for _ in range(rng.randint(1, 3))]
        made: list[Any] = []
        while len(made) < ops:
            x, y = rng.choice(values[-6:]), rng.choice(values)
            kind = rng.randrange(15)
            if kind < 4:
                new = fd.ops.add(x, y)
            elif kind < 6:
                new = fd.ops.neg(x)
            elif kind == 6:
                new = fd.ops.segment_set(x)
            elif kind == 7:
                new = fd.ops.cast(fd.ops.cast(x, dtype=DataType.BFloat16), dtype=DataType.Float)
            elif kind == 8:
                new = fd.ops.add(x, fd.ops.full([4], 1.0, DataType.Float))
            elif kind == 9:
                new = fd.ops.add(x, fd.ops.sum(y, [0], keepdim=True))
            elif kind == 10:
                new = fd.ops.pad(fd.ops.slice(x, [1], [3]), [1, 1])
            elif kind == 11:
                new = fd.ops.squeeze(fd.ops.broadcast(x, [True, False]), [0])
            elif kind in {12, 13}:
                wide = fd.ops.cast(fd.ops.cast(x, dtype=DataType.BFloat16), dtype=DataType.Float)
                total = fd.ops.sum(fd.ops.mul(wide, wide), [0], keepdim=True)
                values += [wide, fd.ops.sin(wide), fd.ops.add(total, y)]
                new = fd.ops.add(wide, x)
            else:
                var, mean = fd.ops.var_mean(x, dims=[0], correction=0, keepdim=True)
                new = fd.ops.add(fd.ops.mul(var, y), mean)
            values.append(new)
            made.append(new)
        for value in made:
            if value is made[-1] or rng.random() < 0.2:
                fd.add_output(value)

    return record(body)


def crossed(rng: Random) -> Fusion:
    """Return a fusion of statistics, two results each, and adds; with many outputs, pairs of these can close a cycle.

    nvFuser overlooks edges that carry outputs when it separates the pairs of one round (cross_pair_cycle_trap).
    """

    def body(fd: Any) -> None:
        values: list[Any] = []
        for _ in range(rng.randint(2, 3)):
            values += fd.ops.welford(fd.define_tensor([4, 4], contiguity=True), [1])[:2]
        out = [value for value in values if rng.random() < 0.5]
        rng.shuffle(values)
        values += [fd.ops.add(x, y) for x, y in zip(values[::2], values[1::2], strict=True)]
        for _ in range(rng.randint(0, 2)):
            values.append(fd.ops.add(rng.choice(values), rng.choice(values)))
        out += [value for value in values[4:] if rng.random() < 0.6]
        for value in {id(v): v for v in (*out, values[-1])}.values():
            fd.add_output(value)

    return record(body)


def case_of(seed: int, index: int) -> Case:
    """Return a case by number."""
    rng = Random(f"{seed} {index}")
    strategy = rng.choice(("bottom_up", "bottom_up", "top_down"))
    options = SegmenterOptions(
        segment_set=rng.choice(("hint", "cut", "ignore")),
        forward_inputs=rng.random() < 0.7,
        privatize=rng.random() < 0.8,
        whole_fusion=rng.random() < 0.5,
        combine_reductions=rng.random() < 0.8,
        level_merge=rng.random() < 0.9,
        final_merge=rng.random() < 0.8,
        connect_through_inputs=rng.random() < 0.7,
        cut_resize_inputs=rng.random() < 0.2,
        pieces_by_depth=rng.random() < 0.3,
    )
    return Case(
        fusion=crossed(rng) if rng.random() < 0.2 else graph(rng, rng.randint(1, 12)),
        oracle=chance(rng.randrange(10**6), rng.choice((0, 20, 50, 70, 80, 90, 95, 100))),
        options=options.for_strategy(strategy),
        strategy=strategy,
    )


def problems(given: Fusion, segmented: SegmentedFusion, replayed: SegmentedFusion) -> Iterator[str]:
    """Yield the defects of a segmentation, determined from the fusions alone.

    ``given`` is the original fusion; the segmentation's fusion may have replicas, and Welfords replaced.
    """
    fusion = segmented.fusion
    names, replicas = {expr.name for expr in fusion.tensor_exprs}, segmented.replicas
    for expr in given.tensor_exprs:
        if expr.name not in names and expr.op.name != "welford":
            yield f"{expr.name} is lost"
    for name, original in replicas.items():
        ops = {e.name: e.op.name for e in (*given.exprs, *fusion.exprs)}
        if name not in names or ops.get(original) not in {"cast", "squeeze"} or ops[name] != ops[original]:
            yield f"{name} is no replica of {original}"
    homes: dict[str, list[int]] = {}
    for index, group in enumerate(segmented.groups):
        for expr in group.exprs:
            homes.setdefault(expr.name, []).append(index)
    for expr in fusion.tensor_exprs:
        places = homes.get(expr.name, [])
        if not places:
            yield f"{expr.name} is lost"
        if len(places) > 1 and expr.name not in segmented.recomputed:
            yield f"{expr.name} is in the segments {places} and not recomputed on purpose"
    written: set[str] = {tv.name for tv in fusion.tensor_inputs}
    for index, group in enumerate(segmented.groups):
        made = {value.name for expr in group.exprs for value in expr.tensor_outputs}
        for expr in group.exprs:
            for value in expr.tensor_inputs:
                if value.name not in made and value.name not in written:
                    yield f"segment {index} reads {value.name}, which no earlier segment writes: a cycle"
        written |= {tv.name for tv in group.outputs}
    for tv in fusion.outputs:
        if tv.name not in written:
            yield f"output {tv.name} is never written"
    if [group.names for group in replayed.groups] != [group.names for group in segmented.groups]:
        yield "replaying the log gives another plan"


def hint_problems(segmented: SegmentedFusion, options: SegmenterOptions) -> Iterator[str]:
    """Yield each ``segment_set`` that does not separate what its documentation states."""
    if options.segment_set is SegmentSetMeaning.IGNORE:
        return
    fusion = segmented.fusion
    for hint in (expr for expr in fusion.exprs if expr.op.name == "segment_set"):
        before, behind = reached(fusion, hint, "inputs"), reached(fusion, hint, "outputs") - {hint.name}
        for index, group in enumerate(segmented.groups):
            names = set(group.names)
            if hint.name in names and not names.isdisjoint(user.name for user in fusion.users.get(hint.out, ())):
                yield f"segment {index} holds {hint.name} and what reads it"
            if options.segment_set is SegmentSetMeaning.CUT and names & before and names & behind:
                yield f"segment {index} holds expressions on both sides of {hint.name}"


def reached(fusion: Fusion, start: Expr, side: str) -> set[str]:
    """Return the names of an expression and of all that it needs ("inputs") or that need it ("outputs")."""
    found: dict[Expr, None] = {start: None}
    waiting = [start]
    while waiting:
        here = waiting.pop()
        near = (
            [fusion.producers[v] for v in here.inputs if v in fusion.producers]
            if side == "inputs"
            else [user for v in here.outputs for user in fusion.users.get(v, ())]
        )
        new = [expr for expr in near if expr not in found]
        found |= dict.fromkeys(new)
        waiting += new
    return {expr.name for expr in found}


def check(case: Case) -> list[str]:
    """Return the defects of a case's segmentation."""
    log = DecisionLog()
    segmented = segment(case.fusion, case.oracle, strategy=case.strategy, options=case.options, log=log)
    replayed = replay(case.fusion, log, case.oracle)
    found = [*problems(case.fusion, segmented, replayed), *hint_problems(segmented, case.options)]
    return found + list(piece_problems(log)) if case.strategy == "top_down" else found


def piece_problems(log: DecisionLog) -> Iterator[str]:
    """Yield repeated questions about a piece that top-down presegmentation accepted, alone or with another piece."""
    accepted: dict[str, int] = {}
    for attempt in log:
        if attempt.phase == "top-down" and attempt.accepted:
            accepted |= dict.fromkeys(attempt.names, attempt.seq)
        elif not attempt.phase.startswith("top-down"):
            asked = {accepted[name] for name in attempt.names if name in accepted}
            if len(asked) > 1 or attempt.names <= accepted.keys():
                yield f"{attempt.phase} asks about {', '.join(sorted(attempt.names))} again"


def draw(trial: Trial) -> Case:
    """Return the case of a trial."""
    return case_of(trial.seed, trial.number)


def check_segmentation(case: Case, trial: Trial) -> None:
    """Raise Disagreement if a case's segmentation has a defect."""
    trial.counts["strategies", case.strategy] += 1
    defects = check(case)
    if defects:
        raise Disagreement("; ".join(defects))


CAMPAIGN = Campaign(
    module="tests.fuzz_segmentation", noun="graphs", draw=draw, check=check_segmentation, chunk=250,
)

if __name__ == "__main__":
    sys.exit(CAMPAIGN.main())
