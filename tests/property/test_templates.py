"""Realistic programs with random dtypes, layouts, sizes and readers: plans, edited plans and their kernels agree."""

import pytest

from tests.templates.case import case_of
from tests.templates.runner import failure_of, way_of
from tests.templates.templates import TEMPLATES
from tests.thorough import share

SEED = 33


@pytest.mark.parametrize("index", range(0, share(len(TEMPLATES) * 3) * 7, 7))
def test_a_mutated_template_agrees_with_its_reference(index: int) -> None:
    error = failure_of(case_of(SEED, index), way_of(index, 0))
    if error is not None:
        raise error
