"""The best plan and its proof, against every plan of small random fusions."""

from dataclasses import replace

import pytest
from hypothesis import Phase, given
from hypothesis import strategies as st
from thorough import tries

from fuser_lab.cost.device import DEFAULT
from fuser_lab.cost.traffic import CostModel
from fuser_lab.segmentation import SegmenterOptions, certify, replay, segment, verify
from fuser_lab.segmentation.events import DecisionLog
from fuser_lab.segmentation.optimal import plan_cost
from tests.unit.segmentation.exhaustive import PLAIN, Pairs, least_cost
from tests.unit.segmentation.toy import chance, random_dag

pytestmark = pytest.mark.property

DAGS = st.builds(
    random_dag,
    st.lists(st.tuples(st.integers(0, 6), st.integers(0, 30), st.integers(0, 30)), min_size=1, max_size=4),
    st.integers(1, 3),
).filter(lambda fusion: len(fusion.tensor_exprs) <= 8)
ORACLES = st.one_of(
    st.builds(chance, st.integers(0, 1000), st.integers(0, 100)),
    st.builds(Pairs, st.integers(0, 1000), st.integers(0, 40), st.integers(20, 100)),
)
# Tensors have at most 16 bytes: a launch costs much more, about as much, or nothing.
BANDWIDTHS = st.sampled_from([4800.0, 0.012, 0.003, 1e-6])
# Smaller failures would be easier to read, but computing every plan of every candidate takes minutes.
QUICK = (Phase.explicit, Phase.reuse, Phase.generate)
HINTS = st.sampled_from(["hint", "cut", "ignore"])


def model_of(oracle, bandwidth):
    """Give an oracle a device of some bandwidth and return the cost model that follows."""
    oracle.device = replace(DEFAULT, bandwidth=bandwidth)
    return CostModel.of(oracle.device)


@tries(150, deadline=None, phases=QUICK)
@given(DAGS, ORACLES, BANDWIDTHS, HINTS)
def test_without_copies_the_plan_is_the_best_of_all(fusion, oracle, bandwidth, hints):
    model = model_of(oracle, bandwidth)
    options = replace(PLAIN, segment_set=hints, privatize=False)
    log = DecisionLog()
    segmented = segment(fusion, oracle, strategy="optimal", options=options, log=log)
    assert plan_cost(segmented, model) == least_cost(fusion, oracle, options, model)
    assert replay(fusion, log, oracle) == segmented
    certificate = certify(segmented, oracle, options)
    assert certificate.is_optimal
    assert str(verify(certificate, segmented, oracle)) == "the certificate holds"


@tries(150, deadline=None, phases=QUICK)
@given(
    DAGS, ORACLES, BANDWIDTHS, HINTS, st.booleans(), st.sampled_from(["bottom_up", "top_down", "unfused", "optimal"]),
)
def test_the_bound_is_never_above_the_best_plan(fusion, oracle, bandwidth, hints, anew, strategy):
    model = model_of(oracle, bandwidth)
    options = SegmenterOptions(segment_set=hints, forward_factory_outputs=anew)
    plain = replace(options, forward_inputs=False, forward_factories=frozenset())
    best = min(least_cost(fusion, oracle, chosen, model) for chosen in (options, plain))
    segmented = segment(fusion, oracle, strategy=strategy, options=options)
    certificate = certify(segmented, oracle, options)
    assert certificate.cost == plan_cost(segmented, model)
    assert certificate.bound <= best
    assert verify(certificate, segmented, oracle).problems == ()
    if not certificate.obstacle:
        assert best <= certificate.cost
        assert best <= certificate.known
    if certificate.is_optimal:
        assert certificate.cost == best
