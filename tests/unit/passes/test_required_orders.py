"""Layouts that users require are preserved by every pass, alone and in sequence."""

from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest

from fuser_lab.errors import InputError, VerificationError
from fuser_lab.interpreter import evaluate
from fuser_lab.passes import PRESEGMENTATION, AllocationDomain, PassPipeline
from tests.pages.passes import example_of

PASSES = {p.name: p for p in PRESEGMENTATION.passes}
EVERYWHERE = PassPipeline(
    tuple(AllocationDomain(every_tensor=True) if name == "allocation_domain" else p for name, p in PASSES.items()),
)


def required(fusion):
    """Yield the fusion with each layout required for each output that may have one."""
    for output in fusion.outputs:
        for order in list(permutations(range(output.ndim)))[:6]:
            try:
                yield output.name, order, fusion.set_output_stride_order(output, order)
            except InputError:
                break


def kept(changed, name, order):
    """Check that the only requirement is the one that was set, and that the tensor has this layout."""
    (tensor, ranks), = changed.stride_orders
    assert (tensor.name, ranks) == (name, order)
    assert changed.get_output_stride_order(name) == order
    memory = sorted(range(len(order)), key=lambda axis: -order[axis])
    assert list(tensor.domain.allocation_order) == memory


@pytest.mark.parametrize("name", PASSES)
def test_a_pass_keeps_what_is_required(name):
    for output, order, fusion in required(example_of(PASSES[name])):
        kept(PASSES[name].run(fusion), output, order)
        kept(PRESEGMENTATION.run(fusion, without_schedulers=["resize"]), output, order)
        kept(EVERYWHERE.run(fusion), output, order)


@pytest.mark.parametrize("name", [name for name, step in PASSES.items() if not step.adds_scalars])
def test_the_meaning_stays(name):
    rng = np.random.default_rng(0)
    for _, _, fusion in required(example_of(PASSES[name])):
        inputs = [
            (rng.integers(0, 2, v.shape) if v.dtype.is_integral else rng.normal(size=v.shape)).astype(v.dtype.numpy)
            for v in fusion.inputs
        ]
        changed = PRESEGMENTATION.run(fusion, disabled=["explicit_seeds"])
        for a, b in zip(evaluate(fusion, inputs), evaluate(changed, inputs), strict=True):
            np.testing.assert_array_equal(a, b)


def test_the_fusion_that_was_asked_first_stays_as_it_is():
    fusion = example_of(PASSES["allocation_domain"])
    placed = fusion.set_output_stride_order(fusion.outputs[0], (3, 2, 1, 0))
    assert fusion.stride_orders == ()
    assert fusion != placed
    assert hash(fusion) != hash(placed)
    assert placed == fusion.set_output_stride_order(fusion.outputs[0].name, [3, 2, 1, 0])
    assert PASSES["allocation_domain"].run(placed) is placed, "a tensor that must be row-major gets no hint"


def test_a_fusion_whose_requirement_is_not_met_is_none():
    fusion = example_of(PASSES["allocation_domain"])
    (output,) = fusion.outputs
    with pytest.raises(VerificationError, match=r"required of T1, whose axes have the order \(0, 1, 2, 3\)"):
        replace(fusion, stride_orders=((output, (3, 0, 2, 1)),))
    with pytest.raises(VerificationError, match="required of T0, which is not an output"):
        replace(fusion, stride_orders=((fusion.inputs[0], (3, 0, 2, 1)),))
