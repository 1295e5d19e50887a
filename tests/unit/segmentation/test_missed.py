"""The advantages of a cheaper plan, limits of a search, better plans by small changes, and merges by bytes saved."""

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from thorough import tries

import fuser_lab as fl
from fuser_lab import DataType, FusionDefinition, SegmenterOptions, examples
from fuser_lab.cli import commands as cli
from fuser_lab.cost.traffic import CostModel, model_of
from fuser_lab.definition.builder import FusionBuilder
from fuser_lab.errors import ArgumentTypeError, InputError
from fuser_lab.report.certificates import certificate_html
from fuser_lab.segmentation import certify, replay, segment, verify
from fuser_lab.segmentation.certificate import TermKind
from fuser_lab.segmentation.events import DecisionLog, Kind
from fuser_lab.segmentation.local_search import Partition, anneal, merges
from fuser_lab.segmentation.optimal import plan_cost
from fuser_lab.segmentation.space import Conflicts, Space, in_order
from tests.benchmarks.optimal import irregular
from tests.unit.segmentation.exhaustive import PLAIN, least_cost
from tests.unit.segmentation.toy import chance, everything, random_dag

BYTES = 4096 * 4096 * 4
CASES = json.loads((Path(__file__).parents[2] / "data" / "segmentation_cases.json").read_text())


def known_case(name):
    """Return the fusion and the inputs of a case of nvFuser's tests."""
    case = next(case for case in CASES if case["id"] == name)
    with FusionBuilder() as fd:
        exec(case["python"], {"fd": fd, "DataType": DataType})
    inputs = [fl.spec(x["shape"], x["dtype"], x.get("strides")) for x in case["inputs"]]
    return fd.fusion, inputs


@pytest.fixture(scope="module")
def both_ways():
    """Return a fusion whose last two ops nvFuser does not merge with other readers of the same tensors."""
    with FusionDefinition() as fd:
        x, y = (fd.define_tensor([4096, 4096], contiguity=True, dtype=DataType.Float) for _ in range(2))
        a = fd.ops.exp(x)
        rows = fd.ops.broadcast(fd.ops.sum(a, dims=[1]), is_broadcast_dim=[False, True])
        b = fd.ops.mul(a, rows)
        columns = fd.ops.broadcast(fd.ops.sum(a, dims=[0]), is_broadcast_dim=[True, False])
        fd.add_output(fd.ops.add(fd.ops.mul(b, columns), y))
        fd.add_output(fd.ops.sum(fd.ops.mul(y, columns), dims=[1]))
    return fl.segment(fd)


def test_a_merge_that_bottom_up_never_tried(both_ways):
    certificate = both_ways.certificate()
    assert len(both_ways.segments) == 3
    first, *others = certificate.missed
    assert first.cost == BYTES
    assert first.tensor == "T1"
    assert len(first.together) == 2
    assert first.segments == (1, 2)
    assert first.relation == "never tried"
    assert "is read or written twice here and once there" in first.text
    assert "The inner_persistent scheduler would accept both segments as one; glue merges them" in first.text
    assert any(entry.text == "1 launch fewer" for entry in others)
    assert sum(entry.cost for entry in certificate.missed) == certificate.cost - certificate.known
    assert "a cheaper plan, which saves\n     14.0 µs  T1 is read or written twice" in str(certificate)
    glued = both_ways.glue(*first.segments)
    assert glued.certificate().is_optimal
    assert glued.certificate().missed == ()


def test_it_is_shown_as_html_and_json(both_ways):
    certificate = both_ways.certificate()
    shown = certificate._repr_mimebundle_()
    assert shown["text/plain"] == str(certificate)
    assert shown["text/html"] == certificate_html(certificate)
    assert "what a cheaper plan saves" in shown["text/html"]
    data = json.loads(certificate.to_json())
    assert data["status"] == certificate.status
    assert data["bound"] == min(proof["bound"] for proof in data["proofs"])
    assert data["missed"][0]["relation"] == "never tried"
    assert sum(term["cost"] for term in data["proofs"][0]["terms"]) == data["proofs"][0]["bound"]


def test_what_was_refused_at_that_time_is_told():
    certificate = fl.segment(irregular(1, 25)).certificate()
    refused = [entry for entry in certificate.missed if entry.relation == "refused"]
    assert refused
    assert any("The refusal then: reduction: " in entry.text for entry in refused)


def test_tampering_with_paths_and_with_what_is_saved_is_found_out(both_ways):
    good = both_ways.certificate()
    proof = good.proofs[0]
    place = next(i for i, term in enumerate(proof.terms) if term.kind is TermKind.PATH and term.cost >= BYTES)
    path = proof.terms[place]

    def with_term(*terms):
        changed = (*proof.terms[:place], *terms, *proof.terms[place + 1 :])
        return replace(good, proofs=(replace(proof, terms=changed), *good.proofs[1:]))

    (tensors,) = path.through
    wrong = {
        "paths charge": with_term(replace(path, cost=path.cost + 1)),
        "or charges it twice": with_term(path, path),
        "do not share such a tensor": with_term(replace(path, through=(tensors[::-1],))),
        "not every two neighbours have a tensor between": with_term(replace(path, through=(tensors[1:],))),
        "may share a kernel": with_term(replace(path, members=path.members[:2], through=(tensors[:1],))),
        "names a tensor that it may not charge": with_term(replace(path, members=(*path.members[:-1], "T99"))),
        "does not add up": replace(good, missed=good.missed[1:]),
    }
    assert verify(good, both_ways.segmented, both_ways.oracle).holds
    for text, certificate in wrong.items():
        told = verify(certificate, both_ways.segmented, both_ways.oracle)
        assert not told.holds
        assert any(text in problem for problem in told.problems), (text, told)


def test_a_path_beside_a_search_of_the_same_expressions_is_found_out():
    plan = fl.segment(irregular(0, 25))
    full, simple = plan.certificate(), plan.certificate(states=0)
    searched = next(term for term in full.proofs[0].terms if term.kind is TermKind.SEARCH)
    assert any(term.kind is TermKind.PATH for term in simple.proofs[0].terms)
    mixed = replace(simple.proofs[0], terms=(*simple.proofs[0].terms, searched))
    told = verify(replace(full, proofs=(mixed, *full.proofs[1:])), plan.segmented, plan.oracle)
    assert any("paths charge" in problem for problem in told.problems)


@pytest.mark.parametrize("name", [
    pytest.param(name, marks=[pytest.mark.matrix] if name == "llama3_rope_backward" else [])  # its plans take seconds
    for name in examples.names()
])
def test_every_example_is_certified_and_no_bound_is_above_a_known_plan(name):
    fd, specs = fl.example(name, "full")
    plans = [fl.segment(fd, specs, strategy=s) for s in ("bottom_up", "top_down", "saving", "optimal")]
    costs = [plan_cost(plan.segmented, model_of(plan.oracle)) for plan in plans]
    assert costs[-1] == min(costs)
    for plan in plans:
        certificate = plan.certificate(states=2000)
        assert certificate.bound <= min(costs)
        assert verify(certificate, plan.segmented, plan.oracle, seconds=2).problems == ()


def test_states_limit_a_search_alike_each_time():
    plan = fl.segment(irregular(5, 25))
    short = [plan.certificate(states=500) for _ in range(2)]
    assert short[0] == short[1]
    assert not short[0].is_optimal
    assert plan.certificate(states=0).bound <= short[0].bound <= plan.certificate().bound
    options = SegmenterOptions(search_states=500)
    assert fl.segment(irregular(5, 25), options=options).certificate() == short[0]


def test_no_time_is_enough_for_a_plan_and_a_bound():
    plan = fl.segment(irregular(2, 25), strategy="optimal", options=SegmenterOptions(search_seconds=0))
    certificate = plan.certificate()
    assert 0 < certificate.bound <= certificate.cost


@pytest.mark.parametrize(
    ("limits", "error", "text"),
    [
        ({"search_states": -1}, InputError, "search_states must be a whole number of at least 0, given -1"),
        ({"search_states": 1.5}, ArgumentTypeError, "search_states must be a whole number"),
        ({"search_states": True}, ArgumentTypeError, "search_states must be a whole number"),
        ({"search_seconds": -1.0}, InputError, "search_seconds must be a finite number of at least 0"),
        ({"search_seconds": float("nan")}, InputError, "search_seconds must be a finite number of at least 0"),
        ({"search_seconds": "10"}, ArgumentTypeError, "search_seconds must be a finite number of at least 0 or None"),
    ],
)
def test_limits_that_are_none(limits, error, text):
    with pytest.raises(error, match=text):
        SegmenterOptions(**limits)


DAGS = st.builds(
    random_dag,
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 30), st.integers(0, 30)), min_size=1, max_size=5),
    st.integers(1, 3),
).filter(lambda fusion: len(fusion.tensor_exprs) <= 8)


@tries(60, deadline=None)
@given(DAGS, st.integers(0, 1000), st.integers(0, 100))
def test_small_changes_keep_a_partition_legal_and_never_make_it_dearer(fusion, seed, percent):
    oracle = chance(seed, percent)
    space = Space(fusion, oracle, PLAIN, CostModel())
    partition = Partition.single(space)
    costs = [partition.cost, *(partition.cost for _ in merges(partition)), partition.cost]
    assert all(after <= before for before, after in pairwise(costs))
    found = anneal(partition, Conflicts(space).of, 300, lambda: False)
    assert found.cost <= costs[-1]
    assert sum(found.segments) == space.all
    assert in_order(space, list(found.segments)) is not None
    assert all(space.is_legal(mask, 0) and cost == space.price(mask) for mask, cost in found.segments.items())
    assert found.cost >= least_cost(fusion, oracle, PLAIN, CostModel())


@tries(60, deadline=None)
@given(DAGS, st.integers(0, 1000), st.integers(0, 100), st.booleans())
def test_saving_gives_a_legal_plan_whose_log_makes_it_again(fusion, seed, percent, forward):
    oracle, log = chance(seed, percent), DecisionLog()
    options = SegmenterOptions() if forward else PLAIN
    segmented = segment(fusion, oracle, strategy="saving", options=options, log=log)
    assert replay(fusion, log, oracle) == segmented
    assert certify(segmented, oracle, options).obstacle == ""


def test_saving_merges_what_saves_most_first():
    fusion = random_dag([(0, 0, 1), (1, 2, 0), (0, 3, 2)], 1)
    log = DecisionLog()
    segmented = segment(fusion, everything(), strategy="saving", options=PLAIN, log=log)
    assert len(segmented.groups) == 1
    assert {attempt.phase for attempt in log} == {"saving"}
    assert all(attempt.accepted for attempt in log)


def test_saving_copies_a_chain_where_storing_it_costs_a_launch_more(both_ways):
    plan = fl.segment(both_ways.definition, strategy="saving")
    assert [attempt.subjects[0] for attempt in plan.decisions.filter(kind=Kind.FORWARD)] == [("T2",)]
    assert not len(plan.decisions.filter(kind=Kind.STORE))
    assert plan_cost(plan.segmented, model_of(plan.oracle)) == plan.certificate().bound


def test_saving_says_why_pairs_are_apart_and_is_written_as_python():
    plan = fl.segment(*fl.example("sum_broadcast_add", "full"), strategy="saving")
    refused = plan.decisions.filter(phase="saving", accepted=False)
    assert refused
    assert all(attempt.text for attempt in refused)
    assert "strategy='saving'" in plan.to_python()


def test_explain_carries_the_certificate(both_ways, tmp_path, capsys):
    script = tmp_path / "repro.py"
    script.write_text(both_ways.to_python())
    assert cli.main(["explain", str(script), "--json", "--certificate"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["certificate"]["missed"][0]["tensor"] == "T1"
    assert {one["name"]: one["outcome"] for one in data["passes"]}["move_pad"] == "not needed"
    assert cli.main(["explain", str(script), "--certificate", "--states", "100"]) == 0
    assert "Certificate: at most " in capsys.readouterr().out
    assert cli.main(["explain", str(script), "--json"]) == 0
    assert "certificate" not in json.loads(capsys.readouterr().out)
    assert cli.main(["explain", str(script), "--states", "-1"]) == 2
    assert "search_states must be a whole number of at least 0" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["privatize_upcast", "privatize_upcast_and_squeeze"])
def test_plans_with_replicas_are_compared_with_those_that_have_none(name):
    fusion, inputs = known_case(name)
    plan = fl.segment(fusion, inputs)
    assert plan.segmented.replicas
    certificate = plan.certificate()
    assert certificate.is_optimal
    assert {bool(proof.merged) for proof in certificate.proofs} == {True, False}
    assert certificate.bound == min(proof.bound for proof in certificate.proofs)
    assert verify(certificate, plan.segmented, plan.oracle).holds
    own = tuple(proof for proof in certificate.proofs if not proof.merged)
    told = verify(replace(certificate, proofs=own), plan.segmented, plan.oracle)
    assert any("replicas being one" in problem for problem in told.problems)
    wrong = tuple(replace(proof, merged=proof.merged and (("T1", "T0"),)) for proof in certificate.proofs)
    told = verify(replace(certificate, proofs=wrong), plan.segmented, plan.oracle)
    assert any("merges expressions other" in problem for problem in told.problems)
    plain = fl.segment(fusion, inputs, options=SegmenterOptions(privatize=False))
    assert certificate.bound <= plan_cost(plain.segmented, model_of(plain.oracle))
    best = fl.segment(fusion, inputs, strategy="optimal")
    assert best.certificate().cost == certificate.cost


@pytest.mark.parametrize("strategy", ["saving", "optimal"])
def test_an_expression_that_reads_many_chains_from_memory(strategy):
    with FusionDefinition() as fd:
        parts = [fd.define_tensor([8, 8], contiguity=True, dtype=DataType.BFloat16) for _ in range(7)]
        wide = [fd.ops.neg(fd.ops.cast(part, dtype=DataType.Float)) for part in parts]
        fd.add_output(fd.ops.cat(wide, dim=0))
    plan = fl.segment(fd, strategy=strategy)
    assert all(s.scheduler for s in plan.segments)
    certificate = plan.certificate()
    assert certificate.bound <= certificate.cost
    assert verify(certificate, plan.segmented, plan.oracle).problems == ()
