from types import ModuleType

import pytest
from unit.report import stub_plan


@pytest.fixture(scope="session")
def stubs() -> ModuleType:
    """The stand-ins for plans."""
    return stub_plan
