"""Bounds under the real schedulers: every case of nvFuser's tests, and every plan of small random fusions."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

import fuser_lab as fl
from fuser_lab.cost.traffic import CostModel
from fuser_lab.definition.builder import FusionBuilder
from fuser_lab.definition.spec import spec
from fuser_lab.dtypes import DataType
from fuser_lab.segmentation import SegmenterOptions, certify, segment, verify
from fuser_lab.segmentation.ideals import Budget
from tests.benchmarks.optimal import irregular, transformer
from tests.unit.segmentation.exhaustive import least_cost

CASES = json.loads((Path(__file__).parents[2] / "data" / "segmentation_cases.json").read_text())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_the_bound_of_a_known_answer_is_never_above_its_cost(case):
    with FusionBuilder() as fd:
        exec(case["python"], {"fd": fd, "DataType": DataType})
    inputs = [spec(x["shape"], x["dtype"], x.get("strides")) if "shape" in x else x["scalar"] for x in case["inputs"]]
    plan = fl.segment(fd.fusion, inputs)
    certificate = certify(plan.segmented, plan.oracle, plan.options, Budget(states=3000, seconds=3))
    assert not certificate.obstacle
    assert certificate.bound <= certificate.known <= certificate.cost
    assert verify(certificate, plan.segmented, plan.oracle, seconds=3).problems == ()


@pytest.mark.sampled(4)
@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("size", [4096, 64, 1])
def test_the_real_schedulers_against_every_plan(seed, size):
    plan = fl.segment(irregular(seed, 7, size, size), strategy="optimal")
    model = CostModel.of(plan.oracle.device)
    options = plan.options
    plain = replace(options, forward_inputs=False, forward_factories=frozenset())
    best = min(least_cost(plan.fusion, plan.oracle, chosen, model) for chosen in (options, plain))
    certificate = plan.certificate()
    assert certificate.bound <= best <= certificate.cost
    assert certificate.is_optimal
    assert verify(certificate, plan.segmented, plan.oracle).holds


def test_transformer_layers_are_almost_certified_without_search():
    plan = fl.segment(transformer(1), strategy="optimal")
    certificate = plan.certificate(states=0)
    # The heads are joined in a copy, of which each op alone may be a view.
    assert certificate.cost - certificate.bound == 2 * 33_554_432 + certificate.model.launch_bytes
    assert verify(certificate, plan.segmented, plan.oracle).holds
    handed_on = [term for term in certificate.terms if any(term.through)]
    assert any("or a value computed from it" in term.text for term in handed_on)
    for term in handed_on:
        index = certificate.proofs[0].terms.index(term)
        terms = list(certificate.proofs[0].terms)
        for wrong in (replace(term, cost=term.cost + 1), replace(term, through=term.through[1:])):
            terms[index] = wrong
            proof = replace(certificate.proofs[0], terms=tuple(terms))
            changed = replace(certificate, proofs=(proof, *certificate.proofs[1:]))
            assert not verify(changed, plan.segmented, plan.oracle).holds


def test_more_certificates_than_one_may_be_asked_of_a_plan():
    plan = fl.segment(irregular(4, 25))
    first, second = plan.certificate(), plan.certificate()
    assert first == second
    assert first.known < first.cost
    assert segment(plan.fusion, plan.oracle, strategy="optimal", options=SegmenterOptions()).groups
