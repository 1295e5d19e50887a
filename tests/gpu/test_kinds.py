"""Every kind of kernel on a GPU: the reference's values, into poisoned outputs, and two runs with the same bits."""

import pytest
from gpu.kinds import Kind, kinds
from needs import needs

torch = needs("torch")
pytestmark = pytest.mark.gpu

# test_reductions.py covers rows, columns and sums in all lengths and dtypes.
CHOSEN = [kind for kind in kinds() if kind.group not in {"rows", "columns", "sums", "backward"}]


@pytest.mark.parametrize("kind", CHOSEN, ids=lambda kind: f"{kind.group}, {kind.name}")
def test_agrees_with_the_reference_twice(kind: Kind) -> None:
    kind.run("cuda")
