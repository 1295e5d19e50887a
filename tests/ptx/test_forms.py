"""A share of the kernel forms of `tests/forms`, another one every day: compiled, and evaluated in lock step."""

from datetime import UTC, datetime

import pytest
from thorough import THOROUGH

from tests.forms.corpus import CORPUS, numbered, read

COUNT = len(read())
SHARES = 1 if THOROUGH else 24


@pytest.mark.parametrize("place", range(-(-COUNT // SHARES)))
def test_form(place: int) -> None:
    # Processes that collect tests before and after midnight agree on their names.
    number = (place * SHARES + datetime.now(UTC).date().toordinal() % SHARES) % COUNT
    (result,) = numbered(CORPUS, [number], is_verified=True)
    assert not result.failure, f"python -m tests.forms --index {number}\n{result.trace or result.failure}"
