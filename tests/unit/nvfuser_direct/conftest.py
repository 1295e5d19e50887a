"""Makes the random inputs of these tests reproducible."""

import pytest
from needs import needs


@pytest.fixture(autouse=True)
def _seeded():
    torch = needs("torch")
    torch.manual_seed(0)
