"""Realistic programs with random dtypes, layouts, sizes and readers: plans, edited plans and their kernels agree."""

import pytest

from tests.templates.runner import CAMPAIGN
from tests.templates.templates import TEMPLATES
from tests.thorough import share

SEED = 33


@pytest.mark.parametrize("index", range(0, share(len(TEMPLATES) * 2) * 7, 7))
def test_a_mutated_template_agrees_with_its_reference(index: int) -> None:
    tally = CAMPAIGN.run(SEED, range(index, index + 1))
    assert not tally.findings, tally.findings[0].trace
