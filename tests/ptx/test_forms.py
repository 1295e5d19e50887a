"""A share of the kernel forms of `tests/forms`, which changes every day: compiled, and evaluated in lock step."""

from datetime import UTC, datetime

import pytest
from thorough import THOROUGH

from tests.forms.corpus import CORPUS, numbered, read

COUNT = len(read())
SHARES = 1 if THOROUGH else 24
DAY = datetime.now(UTC).date().toordinal()


@pytest.mark.parametrize("number", range(DAY % SHARES, COUNT, SHARES))
def test_form(number: int) -> None:
    (result,) = numbered(CORPUS, [number], True)
    assert not result.failure, f"python -m tests.forms --index {number}\n{result.trace or result.failure}"
