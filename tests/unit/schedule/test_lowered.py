"""The code generator lowers everything that a scheduler accepts, and every single expression has a scheduler."""

import random

import pytest
from unit.schedule.asking import case_fusion, example, known_cases

from fuser_lab import examples
from fuser_lab.codegen.pipeline import evaluated_because
from fuser_lab.errors import FuserLabError
from fuser_lab.ir import Expr, Fusion
from fuser_lab.schedule.registry import SchedulerRegistry
from fuser_lab.segmentation.oracle import candidate
from tests.kernels import generate


def _fusions() -> dict[str, Fusion]:
    found = {item.name: example(item.name, "small") for item in examples.ALL}
    for case in known_cases():
        try:
            found[case["id"]] = case_fusion(case)
        except FuserLabError:  # ops that do not exist
            continue
    return found


FUSIONS = _fusions()


def convex_pieces(fusion: Fusion, count: int, largest: int = 12) -> list[tuple[Expr, ...]]:
    """Random connected sets of expressions with everything between them."""
    rng = random.Random(fusion.digest)
    place = {expr: number for number, expr in enumerate(fusion.exprs)}
    above: dict[Expr, set[Expr]] = {}
    beside: dict[Expr, set[Expr]] = {expr: set() for expr in fusion.exprs}
    for expr in fusion.exprs:
        makers = {fusion.producers[v] for v in expr.inputs if v in fusion.producers}
        above[expr] = makers.union(*(above[m] for m in makers))
        for maker in makers:
            beside[expr].add(maker)
            beside[maker].add(expr)
    pieces = []
    for _ in range(count):
        chosen = {rng.choice(fusion.exprs)}
        for _ in range(rng.randrange(largest)):
            near = sorted(set().union(*(beside[e] for e in chosen)) - chosen, key=place.__getitem__)
            if near:
                chosen.add(rng.choice(near))
        hull = {e for e in fusion.exprs if e in chosen or (above[e] & chosen and any(e in above[c] for c in chosen))}
        pieces.append(tuple(e for e in fusion.exprs if e in hull))
    return pieces


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", sorted(FUSIONS))
def test_accepted_pieces_have_kernels(name):
    fusion = FUSIONS[name]
    registry = SchedulerRegistry()
    if not fusion.exprs:
        return
    for exprs in [fusion.exprs, *convex_pieces(fusion, 10)]:
        piece = candidate(fusion, exprs)
        scheduler = registry.ask(piece).chosen
        if scheduler is not None and not evaluated_because(piece.narrowed, scheduler):
            assert generate(piece.narrowed, scheduler, "cpu").source


@pytest.mark.parametrize("name", sorted(FUSIONS))
def test_every_expression_alone_is_taken(name):
    fusion = FUSIONS[name]
    registry = SchedulerRegistry()
    for expr in fusion.exprs:
        assert registry.ask(candidate(fusion, [expr])).chosen is not None


@pytest.mark.parametrize("name", sorted(FUSIONS))
def test_what_is_refused_for_good_stays_refused(name):
    fusion = FUSIONS[name]
    registry = SchedulerRegistry()
    for exprs in convex_pieces(fusion, 5, largest=4) if fusion.exprs else ():
        answer = registry.ask(candidate(fusion, exprs))
        if answer.chosen is None and all(verdict.monotone for verdict in answer.verdicts):
            assert registry.ask(candidate(fusion, fusion.exprs)).chosen is None
