"""Every illegal call of `misuses.py`: the exception's class, and a sentence that names op, argument and value."""

import re

import pytest

from fuser_lab.definition.builder import FusionBuilder
from fuser_lab.dtypes import DataType
from fuser_lab.errors import ArgumentTypeError, DefinitionError, FuserLabError, UnsupportedError
from tests.unit.ops.misuses import MISUSES

CALLS = [(name, number) for name, misuses in MISUSES.items() for number in range(len(misuses))]


@pytest.mark.parametrize(("name", "number"), CALLS, ids=[f"{n}-{k}" for n, k in CALLS])
def test_illegal_calls(name: str, number: int) -> None:
    misuse = MISUSES[name][number]
    with FusionBuilder() as fd:
        names = {
            "x": fd.define_tensor([3, 4], True),
            "y": fd.define_tensor([3, 5], True),
            "v": fd.define_tensor([4], True),
            "s": fd.define_tensor([], True),
            "n": fd.define_tensor([3, 4], True, DataType.Int),
            "m": fd.define_tensor([3, 4], True, DataType.Bool),
            "h": fd.define_tensor([3, 4], True, DataType.Half),
            "z": fd.define_tensor([3, 4], True, DataType.ComplexFloat),
            "d": fd.define_scalar(DataType.Double),
            "i": fd.define_scalar(DataType.Int),
        }
        with pytest.raises(FuserLabError, match=re.escape(misuse.says)) as raised:
            eval(misuse.call, {"fd": fd, "DataType": DataType, **names})
    assert type(raised.value) is misuse.error, raised.value
    text = str(raised.value)
    assert name in text, f"the sentence does not name the op: {text}"
    assert "\n" not in text
    assert text.endswith("."), f"not a sentence: {text}"
    # The types that nvFuser's users catch; unsupported calls raise other types.
    builtin = {DefinitionError: RuntimeError, ArgumentTypeError: TypeError, UnsupportedError: FuserLabError}
    assert isinstance(raised.value, builtin[misuse.error])


def test_misuses_call_the_op_that_they_belong_to() -> None:
    for name, misuses in MISUSES.items():
        assert misuses, f"{name} has no illegal call"
        for misuse in misuses:
            assert f"fd.ops.{name}(" in misuse.call, f"{name}: {misuse.call}"
