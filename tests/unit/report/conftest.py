import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="session")
def stubs() -> ModuleType:
    """The stand-ins for plans."""
    if "stub_plan" not in sys.modules:
        spec = importlib.util.spec_from_file_location("stub_plan", Path(__file__).with_name("stub_plan.py"))
        module = importlib.util.module_from_spec(spec)
        sys.modules["stub_plan"] = module
        spec.loader.exec_module(module)
    return sys.modules["stub_plan"]
