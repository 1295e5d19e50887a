"""Connected components are those of SciPy, numbered by their first vertices."""

import random

import numpy as np
import pytest
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from fuser_lab.segmentation.components import components


def of_scipy(count: int, pairs: list[tuple[int, int]], *, strongly: bool) -> list[int]:
    ends = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    graph = coo_array((np.ones(len(ends)), (ends[:, 0], ends[:, 1])), shape=(count, count))
    label = connected_components(graph.tocsr(), directed=True, connection="strong" if strongly else "weak")[1]
    number: dict[int, int] = {}
    return [number.setdefault(component, len(number)) for component in label.tolist()]


@pytest.mark.parametrize("strongly", [False, True])
def test_random_graphs(strongly: bool) -> None:
    rng = random.Random(17)
    for _ in range(500):
        count = rng.randint(1, 14)
        pairs = [(rng.randrange(count), rng.randrange(count)) for _ in range(rng.randint(0, 24))]
        assert components(count, pairs, strongly=strongly) == of_scipy(count, pairs, strongly=strongly), pairs


@pytest.mark.parametrize("strongly", [False, True])
def test_long_chains_and_nothing(strongly: bool, few_frames: None) -> None:
    del few_frames
    chain = [(n, n + 1) for n in range(5000)]
    assert components(5001, chain, strongly=strongly) == (list(range(5001)) if strongly else [0] * 5001)
    assert components(5001, [*chain, (5000, 0)], strongly=strongly) == [0] * 5001
    assert components(0, [], strongly=strongly) == []
