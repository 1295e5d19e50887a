"""Every pre-segmentation pass, and the sequence of all passes, preserves the meaning of random fusions."""

import warnings
from functools import partial

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given
from hypothesis import strategies as st
from thorough import tries

from fuser_lab.cost.verdict import SchedulerType
from fuser_lab.interpreter import evaluate
from fuser_lab.passes import PRESEGMENTATION
from tests.agreement import bound, seeded
from tests.fuzz.check import defined
from tests.fuzz.choices import Seeded
from tests.fuzz.generator import generate

pytestmark = [pytest.mark.property, pytest.mark.filterwarnings("ignore::numpy.exceptions.ComplexWarning")]

EVERY_SCHEDULER = [kind.value for kind in SchedulerType]
PASSES = {p.name: p for p in PRESEGMENTATION.passes}


class Drawn:
    """Choices drawn by hypothesis."""

    def __init__(self, data):
        self._data = data

    def integer(self, low, high):
        return self._data.draw(st.integers(low, high))

    def pick(self, options):
        return options[self.integer(0, len(options) - 1)]

    def chance(self, percent):
        return self.integer(0, 99) >= 100 - percent


def agrees(before, after, inputs):
    """Assert that two forms of a fusion have the same inputs, outputs of the same names, and the same values."""
    assert after.inputs == before.inputs
    for a, b in zip(before.outputs, after.outputs, strict=True):
        assert (a.dtype, a.shape, a in before.hidden) == (b.dtype, b.shape, b in after.hidden)
        assert a.name == b.name or a in before.hidden
    old, new = evaluate(before, inputs), evaluate(after, inputs)
    for tv, a, b in zip(before.outputs, old, new, strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b), err_msg=tv.name)


def check(program):
    """Check each pass alone, then the whole pipeline with and without the passes for disabled schedulers."""
    program, fd = defined(program)
    inputs = program.arrays()
    fusion = bound(fd, inputs)
    forms = {name: one.run for name, one in PASSES.items()}
    forms["all passes"] = PRESEGMENTATION.run
    forms["all passes without schedulers"] = partial(PRESEGMENTATION.run, without_schedulers=EVERY_SCHEDULER)
    for name, form in forms.items():
        try:
            agrees(fusion, form(fusion), seeded(fusion, inputs))
        except Exception as error:
            error.add_note(f"{name} of\n{fd!r}")
            raise


@tries(60, phases=[Phase.generate], suppress_health_check=list(HealthCheck), deadline=None)
@given(st.data())
def test_the_meaning_stays(data):
    with warnings.catch_warnings(action="ignore"):
        check(generate(Drawn(data), 12))


@pytest.mark.parametrize("batch", range(4))
def test_a_fixed_batch(batch):
    for index in range(batch * 25, batch * 25 + 25):
        with warnings.catch_warnings(action="ignore"):
            check(generate(Seeded(17, index), 16))
