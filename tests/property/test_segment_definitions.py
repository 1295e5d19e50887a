"""Definitions of random plans, edited at random, evaluate to the fusion's values, for other sizes too."""

import numpy as np
import pytest

import fuser_lab as fl
from fuser_lab import SegmenterOptions
from fuser_lab.errors import IllegalEdit, InputError
from fuser_lab.ir import Scalar
from fuser_lab.passes import offsets_of
from tests.fuzz.choices import Seeded
from tests.fuzz.generator import generate

pytestmark = [
    pytest.mark.property,
    pytest.mark.filterwarnings("ignore::numpy.exceptions.ComplexWarning"),
]
STRATEGIES = ("bottom_up", "top_down", "saving", "optimal", "unfused")
SEEDS = range(40)


def program_of(seed):
    """Return a random definition, and a function that makes its inputs; None if it has random ops or changes them.

    The arrays of all calls share memory.
    """
    program = generate(Seeded(9000 + seed), 25)
    with fl.FusionDefinition() as fd:
        exec("\n".join(program.lines()), {"fd": fd, "DataType": fl.DataType})
    plan = fl.segment(fd, program.arrays(), strategy="unfused")
    return None if offsets_of(plan.fusion) or fd.fusion.aliases else (fd, program.arrays)


def edited(plan, choose):
    """Return a plan after the legal ones of a few random cuts, merges and moves."""
    for _ in range(4):
        name = str(choose.choice([tv.name for tv in plan.fusion.tensors.values()]))
        a, b = (int(n) for n in choose.integers(len(plan.segments), size=2))
        edit = [
            lambda: plan.cut(name), lambda: plan.glue(a, b), lambda: plan.move(name, a),  # noqa: B023
            lambda: plan.recompute(name, reductions=True),  # noqa: B023
        ][choose.integers(4)]
        try:
            plan = edit()
        except IllegalEdit:
            continue
    return plan


def same(got, wanted):
    for a, b in zip(got, wanted, strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        exact = a.dtype.kind in "biu"
        numbers = (a, b) if exact else (a.astype(np.complex128), b.astype(np.complex128))
        assert np.array_equal(*numbers, equal_nan=not exact)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("seed", SEEDS)
def test_index_maps_of_edited_plans_evaluate_as_the_fusion_does(seed):
    if (found := program_of(seed)) is None:
        return
    fd, arrays = found
    wanted = [np.array(x) for x in fd.reference(arrays())]
    options = SegmenterOptions(search_states=2000)
    plan = fl.segment(fd, arrays(), strategy=STRATEGIES[seed % len(STRATEGIES)], options=options)
    for one in (plan, edited(plan, np.random.default_rng(seed))):
        definitions = one.definitions()
        assert len(definitions) == len(one.segments)
        for part, numbers, segment in zip(one.segments, definitions.maps, definitions, strict=True):
            # Everything that a segment writes has a number in the fusion, which leads to the tensor of the plan.
            assert len({numbers[fid] for fid in segment.state.outputs}) == len(part.outputs)
            assert len(segment.fusion.tensor_inputs) == len(part.inputs)
        if definitions:
            same(definitions.reference(arrays()), wanted)
            if len(definitions) > 1:
                assert fd.segment(plan=one)
                same(fd.segments_reference(arrays()), wanted)


def scaled(value, array, by):
    """Return an array like another one, ``by`` times as long on each axis of symbolic size."""
    if not isinstance(array, np.ndarray):
        return array
    shape = [n * by if n > 1 and isinstance(e, Scalar) else n for n, e in zip(array.shape, value.extents, strict=True)]
    return np.resize(array, shape)


def test_segments_run_for_other_sizes_or_say_that_they_cannot():
    ran = refused = 0
    for seed in SEEDS:
        if (found := program_of(seed)) is None:
            continue
        fd, arrays = found

        def larger(fd=fd, arrays=arrays):
            return [scaled(value, array, 2) for value, array in zip(fd.fusion.inputs, arrays(), strict=True)]

        try:
            wanted = [np.array(x) for x in fd.reference(larger())]
        except (InputError, IndexError):
            continue
        plan = fl.segment(fd, arrays())
        for definitions in (plan.definitions(), fl.segment(fd, arrays(), passes=()).definitions()):
            if not definitions:
                continue
            try:
                got = definitions.reference(larger())
            except InputError as error:
                assert "call segment again with these inputs" in str(error)  # noqa: PT017
                refused += 1
            else:
                same(got, wanted)
                ran += 1
    assert ran > 3 * refused
