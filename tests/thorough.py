"""How much of what random tests try is tried: a tenth, and all of it where FUSER_LAB_THOROUGH is set (test-all)."""

import os
from typing import Any

from hypothesis import settings

THOROUGH = bool(os.environ.get("FUSER_LAB_THOROUGH"))


def share(count: int) -> int:
    """Return how many of a number of random cases are tried."""
    return count if THOROUGH else max(count // 10, 5)


def tries(count: int, **options: Any) -> settings:
    """Return hypothesis' settings with a share of a number of examples."""
    return settings(max_examples=share(count), **options)
