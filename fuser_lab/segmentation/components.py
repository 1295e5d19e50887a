"""Connected components of a graph given by pairs of numbers."""

from collections.abc import Sequence

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components


def components(count: int, pairs: Sequence[tuple[int, int]], *, strongly: bool = False) -> list[int]:
    """Return the component of each of ``count`` vertices; ``strongly`` follows the direction of the pairs."""
    if not count:
        return []
    ends = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    graph = coo_array((np.ones(len(ends)), (ends[:, 0], ends[:, 1])), shape=(count, count))
    label = connected_components(graph.tocsr(), directed=True, connection="strong" if strongly else "weak")[1]
    return [int(component) for component in label]
