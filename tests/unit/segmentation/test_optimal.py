"""Best plans and certificates of fusions with known answers."""

from dataclasses import replace

import numpy as np
import pytest

import fuser_lab as fl
from fuser_lab import DataType, FusionDefinition
from fuser_lab.cost.device import DEFAULT
from fuser_lab.cost.traffic import CostModel, traffic
from fuser_lab.segmentation import SegmenterOptions, SegmentSetMeaning, certify, replay, segment, verify
from fuser_lab.segmentation.certificate import TermKind
from fuser_lab.segmentation.events import DecisionLog
from fuser_lab.segmentation.ideals import Budget
from fuser_lab.segmentation.optimal import plan_cost
from tests.benchmarks.optimal import irregular
from tests.unit.segmentation.exhaustive import PLAIN, Pairs, least_cost
from tests.unit.segmentation.toy import chance, everything, random_dag, sum_broadcast_add

ROWS, COLUMNS = 4096, 4096
MATRIX = ROWS * COLUMNS * 4


def sandwich() -> FusionDefinition:
    """Return exp(x) @ w, then tanh: three kernels, since a matrix product does not share a kernel."""
    with FusionDefinition() as fd:
        x, w = (fd.define_tensor([ROWS, COLUMNS], contiguity=True, dtype=DataType.Float) for _ in range(2))
        fd.add_output(fd.ops.tanh(fd.ops.matmul(fd.ops.exp(fd.ops.neg(x)), w)))
    return fd


def test_a_matrix_product_between_two_pointwise_ops():
    plan = fl.segment(sandwich(), strategy="optimal")
    assert [[e.op.name for e in s.exprs] for s in plan.segments] == [["neg", "exp"], ["matmul"], ["tanh"]]
    certificate = plan.certificate()
    assert certificate.status == "certified optimal under this model"
    # x and w are read, the result is written, and two tensors are written and read again.
    assert certificate.cost == 7 * MATRIX + 3 * certificate.model.launch_bytes
    through = [term for term in certificate.terms if term.kind is TermKind.MEMORY]
    assert [term.cost for term in through] == [2 * MATRIX, 2 * MATRIX]
    assert "(exp) (67.1 MB) must go through memory, written once and read once: " in through[0].text
    assert "can never share a kernel, because " in through[0].text
    assert "which only the matmul scheduler fuses" in through[0].text
    assert [term.cost for term in certificate.terms if term.kind is TermKind.LAUNCHES] == [3 * 4800 * 4000]
    assert verify(certificate, plan.segmented, plan.oracle).holds


@pytest.mark.parametrize("name", ["softmax", "layer_norm", "bias_gelu", "rms_norm"])
def test_what_is_one_segment_is_certified_without_search(name):
    plan = fl.segment(*fl.example(name, "full"))
    certificate = plan.certificate()
    assert len(plan.segments) == 1
    assert certificate.status == "certified optimal under this model"
    moved = sum(tv.nbytes for tv in (*plan.fusion.tensor_inputs, *plan.fusion.outputs))
    assert certificate.bound == moved + certificate.model.launch_bytes
    assert verify(certificate, plan.segmented, plan.oracle).holds


def test_a_certificate_names_the_segments_that_only_make_views():
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1, -1], contiguity=True)
        y = fd.ops.mul(x, 2.0)
        fd.add_output(fd.ops.permute(y, [1, 0]))
    plan = fl.segment(fd, [np.zeros((64, 32), np.float32)])
    (number,) = [segment.index for segment in plan.segments if segment.is_view]
    certificate = plan.certificate()
    assert certificate.views == (number,)
    assert f"S{number} only makes views and costs nothing." in certificate.notes
    assert certificate.cost == certificate.bound == plan.bytes_ideal + certificate.model.launch_bytes
    assert certificate.launches == 1
    assert fl.segment(*fl.example("softmax")).certificate().views == ()


def test_a_plan_that_could_be_better_says_by_how_much():
    unfused = fl.segment(sandwich(), strategy="unfused")
    certificate = unfused.certificate()
    assert certificate.cost == 9 * MATRIX + 4 * certificate.model.launch_bytes
    assert certificate.known == certificate.bound == 7 * MATRIX + 3 * certificate.model.launch_bytes
    assert certificate.status == "at most 29.1 % more costly than the cheapest possible plan"
    assert verify(certificate, unfused.segmented, unfused.oracle).holds
    assert str(certificate).startswith(
        "at most 29.1 % more costly than the cheapest possible plan\n"
        "cost   142 µs: 604 MB read and written, 4 launches\n"
        "bound  110 µs: no plan costs less\n",
    )
    edited = fl.segment(sandwich()).cut("T2").certificate()
    assert edited.cost == certificate.cost
    assert edited.bound == certificate.bound


def test_the_rope_example_has_a_bound_that_holds():
    plan = fl.segment(*fl.example("llama3_rope_backward", "full"))
    certificate = plan.certificate(states=2000)
    assert certificate.bound <= certificate.known <= certificate.cost
    assert verify(certificate, plan.segmented, plan.oracle, seconds=2).problems == ()


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("seed", "percent"), [(1, 30), (2, 60), (3, 80)])
@pytest.mark.parametrize("pairs", [0, 15])
def test_nine_expressions_against_every_plan(seed, percent, pairs):
    fusion = random_dag([(0, 0, 1), (5, 2, 2), (1, 3, 0), (5, 4, 4), (0, 5, 3)], 2)
    assert len(fusion.tensor_exprs) == 9
    oracle = Pairs(seed, pairs, percent) if pairs else chance(seed, percent)
    model = CostModel()
    segmented = segment(fusion, oracle, strategy="optimal", options=PLAIN)
    assert plan_cost(segmented, model) == least_cost(fusion, oracle, PLAIN, model)
    certificate = certify(segmented, oracle, PLAIN)
    assert certificate.is_optimal
    assert verify(certificate, segmented, oracle).holds


def test_the_log_makes_the_plan_and_gives_a_reason_for_each_boundary():
    plan = fl.segment(*fl.example("sum_broadcast_add", "full"), strategy="optimal")
    assert len(plan.segments) > 1
    assert replay(plan.fusion, plan.decisions, plan.oracle) == plan.segmented
    assert DecisionLog.from_json(plan.decisions.to_json()) == plan.decisions
    refused = plan.decisions.filter(phase="optimal: neighbours", accepted=False)
    pairs = {(a, b) for a, readers in enumerate(plan.segmented.successors) for b in readers}
    assert len(refused) == len(pairs)
    assert all(attempt.text for attempt in refused)


def test_the_optimal_plan_is_written_as_python():
    plan = fl.segment(sandwich(), strategy="optimal")
    assert "strategy='optimal'" in plan.to_python()


def test_never_dearer_than_the_other_strategies():
    fd, specs = fl.example("rms_norm_backward", "full")
    best = fl.segment(fd, specs, strategy="optimal").certificate()
    for strategy in ("bottom_up", "top_down", "unfused"):
        other = fl.segment(fd, specs, strategy=strategy).certificate()
        assert best.cost <= other.cost
        assert other.bound <= best.cost
    assert best.is_optimal


def test_a_chain_that_no_reader_can_hold_is_stored_and_read():
    with FusionDefinition() as fd:
        x = fd.define_tensor([64, 512], contiguity=True)
        ones = fd.ops.full([512, 256], 1.0, DataType.Float)
        fd.add_output(fd.ops.matmul(fd.ops.mul(fd.ops.neg(x), x), ones))
    plan = fl.segment(fd)
    certificate = plan.certificate(states=0)
    copying = next(proof for proof in certificate.proofs if proof.recomputed)
    size = 512 * 256 * 4
    assert {term.kind: term.cost for term in copying.terms if term.subject == "T1"} == {
        TermKind.STORED: certificate.model.launch_bytes + size, TermKind.INPUT: size,
    }
    assert copying.bound == certificate.cost
    assert verify(certificate, plan.segmented, plan.oracle).holds


def test_a_chain_is_not_read_from_memory_where_storing_it_costs_more_than_copies():
    fusion = random_dag([(1, 2, 17), (5, 23, 9), (1, 21, 17), (1, 8, 25)], 2)
    oracle = chance(547, 59)
    oracle.device = replace(DEFAULT, bandwidth=0.003)  # a launch costs as much as three tensors
    model, options = CostModel.of(oracle.device), SegmenterOptions(segment_set="cut", privatize=False)
    segmented = segment(fusion, oracle, strategy="optimal", options=options)
    assert plan_cost(segmented, model) == least_cost(fusion, oracle, options, model) == 112


def test_segments_that_would_rather_be_one_are_not_searched_on():
    plan = fl.segment(irregular(5, 14))
    budget = Budget()
    assert certify(plan.segmented, plan.oracle, plan.options, budget).cost > plan.certificate().bound
    assert budget.used < 6500  # states, and ten for each question: a third more without it


def test_a_search_without_time_still_gives_a_plan_and_a_bound():
    fusion = random_dag([(5, 0, 1), (5, 2, 1), (0, 3, 5), (5, 4, 2), (0, 6, 2), (5, 3, 7)], 2)
    oracle = chance(5, 50)
    segmented = segment(fusion, oracle, strategy="bottom_up", options=PLAIN)
    certificate = certify(segmented, oracle, PLAIN, Budget(states=0))
    full = certify(segmented, oracle, PLAIN)
    assert certificate.bound <= full.bound <= full.known <= certificate.known <= certificate.cost
    assert full.is_optimal == (full.cost == full.bound)


def test_a_plan_with_a_segment_that_nobody_takes_is_no_legal_plan():
    fd, specs = fl.example("sum_broadcast_add", "full")
    plan = fl.segment(fd, specs, strategy=lambda fusion, oracle: [[e.name for e in fusion.tensor_exprs]])
    assert plan.segments[0].scheduler is None
    certificate = plan.certificate()
    assert certificate.status.startswith("not a legal plan under this model: no scheduler accepts segment 0 (T2, ")
    assert not certificate.is_optimal
    assert verify(certificate, plan.segmented, plan.oracle).holds


def test_a_cut_that_goes_against_a_hint_is_compared_with_plans_that_do():
    with FusionDefinition() as fd:
        x = fd.define_tensor([64, 64], contiguity=True)
        fd.add_output(fd.ops.exp(fd.ops.segment_set(fd.ops.neg(x))))
    hinted = fl.segment(fd)
    assert hinted.certificate().status == "certified optimal under this model, with hints kept"
    assert len(hinted.segments) == 2
    glued = hinted.glue(0, 1)
    certificate = glued.certificate()
    assert certificate.segment_set is SegmentSetMeaning.IGNORE
    assert certificate.is_optimal
    assert verify(certificate, glued.segmented, glued.oracle).holds


def test_traffic_counts_what_candidates_read_and_write():
    plan = fl.segment(*fl.example("llama3_rope_backward", "full"))
    for group in plan.segmented.groups:
        moved = traffic(plan.fusion, group.exprs, plan.segmented.recomputed)
        assert moved.read == sum(tv.nbytes for tv in group.tensor_inputs)
        assert moved.written == sum(tv.nbytes for tv in group.outputs)


def test_an_empty_fusion_costs_nothing():
    with FusionDefinition() as fd:
        fd.add_output(fd.define_tensor([4], contiguity=True))
    plan = fl.segment(fd, strategy="optimal")
    certificate = plan.certificate()
    assert certificate.cost == certificate.bound == 0
    assert certificate.status == "certified optimal under this model"
    assert verify(certificate, plan.segmented, plan.oracle).holds


@pytest.fixture(scope="module")
def certified():
    plan = fl.segment(sandwich())
    return plan, plan.certificate()


def changed(certificate, index, **fields):
    """Return a certificate with one term of its first proof changed."""
    proof = certificate.proofs[0]
    terms = list(proof.terms)
    terms[index] = replace(terms[index], **fields)
    return replace(certificate, proofs=(replace(proof, terms=tuple(terms)), *certificate.proofs[1:]))


def term_of(certificate, kind):
    return next(i for i, term in enumerate(certificate.proofs[0].terms) if term.kind is kind)


def test_tampered_certificates_are_found_out(certified):
    plan, good = certified
    proof = good.proofs[0]
    memory, launches = term_of(good, TermKind.MEMORY), term_of(good, TermKind.LAUNCHES)
    wrong = {
        "bytes are claimed": changed(good, memory, cost=proof.terms[memory].cost + 1),
        "may share a kernel": changed(good, launches, members=("T2", "T3")),
        "a member occurs twice": changed(good, launches, members=("T2", "T2")),
        "names a tensor that it may not charge": changed(good, launches, members=("T2", "T99")),
        "or charges it twice": replace(good, proofs=(replace(proof, terms=(*proof.terms, proof.terms[memory])),)),
        "differs from the certificate": replace(good, segments=(replace(good.segments[0], read=1), *good.segments[1:])),
        "not those of the plan": replace(good, segments=good.segments[1:]),
        "there is no proof": replace(good, proofs=()),
        "cheapest known plan is more expensive": replace(good, known=good.cost + 1),
        "above the cost of a known plan": replace(good, known=good.bound - 1),
        "is not a chain": replace(good, proofs=(*good.proofs, replace(proof, recomputed=(("T3",),)))),
        "the model is not that of": replace(good, model=replace(good.model, bandwidth=1e12)),
    }
    for text, certificate in wrong.items():
        told = verify(certificate, plan.segmented, plan.oracle)
        assert not told.holds
        assert any(text in problem for problem in told.problems), (text, told)


def test_a_search_that_claims_too_much_is_found_out():
    plan = fl.segment(*fl.example("sum_broadcast_add", "full"), strategy="optimal")
    good = plan.certificate()
    index = term_of(good, TermKind.SEARCH)
    told = verify(changed(good, index, cost=good.proofs[0].terms[index].cost + 1), plan.segmented, plan.oracle)
    assert not told.holds
    part = good.proofs[0].terms[index].members
    told = verify(changed(good, index, members=part[1:]), plan.segmented, plan.oracle)
    assert any("so the search does not cover all plans" in problem for problem in told.problems)


def test_a_certificate_of_another_plan_is_found_out(certified):
    _, good = certified
    other = fl.segment(sandwich(), strategy="unfused")
    assert not verify(good, other.segmented, other.oracle).holds


def test_a_smaller_device_costs_more_time_and_other_bytes():
    slow = fl.segment(sandwich(), target="A100").certificate()
    fast = fl.segment(sandwich(), target="B200").certificate()
    assert slow.model.seconds(slow.cost) > fast.model.seconds(fast.cost)
    assert slow.status == fast.status == "certified optimal under this model"


def test_everything_in_one_segment_costs_one_launch():
    fusion = sum_broadcast_add()
    options = SegmenterOptions()
    segmented = segment(fusion, everything(), strategy="optimal", options=options)
    certificate = certify(segmented, everything(), options)
    assert len(segmented.groups) == 1
    assert certificate.status == "certified optimal under this model"
    assert next(row["term"] for row in certificate.rows()) == "launches"
    assert list(certificate.to_pandas().columns) == ["term", "subject", "cost [MB]", "cost [µs]", "because"]
