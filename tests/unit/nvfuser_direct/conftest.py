"""Random inputs of these tests repeat."""

import pytest
from needs import needs


@pytest.fixture(autouse=True)
def _seeded():
    torch = needs("torch")
    torch.manual_seed(0)
