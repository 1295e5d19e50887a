"""Types of calls that are looked up, with a class of functions that counts its type inferences."""

from types import SimpleNamespace
from typing import Any

import pytest

from fuser_lab.runtime import known_calls as module
from fuser_lab.runtime.known_calls import known_calls, known_parameters, plain_messages
from fuser_lab.runtime.replacing import replace_attribute


class Signature:
    def __init__(self, args: tuple[Any, ...]) -> None:
        self.args = args


class Function:
    """Like Numba's `BaseFunction`: candidates are tried, and the key of the matching one is stored."""

    def __init__(self) -> None:
        self.tried: list[Any] = []
        self._impl_keys: dict[Any, Any] = {}

    def get_call_type(self, context: Any, args: tuple[Any, ...], kws: dict[str, Any]) -> Signature:
        self.tried.append(args)
        if "refused" in args:
            raise TypeError
        signature = Signature(tuple(str(arg) for arg in args))
        self._impl_keys[signature.args] = f"the implementation for {args}"
        return signature

    def get_impl_key(self, signature: Signature) -> Any:
        return self._impl_keys[signature.args]


@pytest.fixture(autouse=True)
def _forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_KNOWN", {})


def test_a_call_is_worked_out_once() -> None:
    add, other = Function(), Function()
    for _ in range(2):
        with known_calls(Function):
            found = [add.get_call_type("context", ("f", "f"), {}) for _ in range(3)]
            assert len(set(found)) == 1
    add.get_call_type("context", ("f", "f"), {})
    assert len(add.tried) == 2  # once inside the blocks and once after them
    with known_calls(Function):
        other.get_call_type("context", ("f", "f"), {})
        add.get_call_type("context", ("i", "i"), {})
        add.get_call_type("another context", ("f", "f"), {})
    assert (len(add.tried), len(other.tried)) == (4, 1)


def test_refusals_and_named_arguments_are_worked_out_each_time() -> None:
    add = Function()
    with known_calls(Function):
        for _ in range(2):
            with pytest.raises(TypeError):
                add.get_call_type("context", ("refused",), {})
            add.get_call_type("context", ("f",), {"axis": "i"})
    assert len(add.tried) == 4


def test_the_implementation_is_that_of_the_last_call() -> None:
    """Results for a literal and for its type may differ, although the types of their operands do not."""
    add = Function()
    with known_calls(Function):
        literal = add.get_call_type("context", ("1",), {})
        add.get_call_type("context", (1,), {})
        assert add.get_impl_key(literal) == "the implementation for (1,)"
        assert add.get_call_type("context", ("1",), {}) is literal
        assert add.get_impl_key(literal) == "the implementation for ('1',)"


def test_it_ends_with_the_block_and_keeps_a_number_of_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST", 10)
    add, resolve = Function(), Function.get_call_type
    with known_calls(Function):
        for number in range(25):
            add.get_call_type("context", (number,), {})
        assert len(module._KNOWN[Function]) <= 10
    with pytest.raises(TypeError), known_calls(Function):
        add.get_call_type("context", ("refused",), {})
    assert Function.get_call_type is resolve


def test_messages_are_plain_in_a_block() -> None:
    class Scheme:
        def _markup(self, message: str, color: str | None = None) -> str:
            return f"<{color}>{message}"

    with plain_messages(SimpleNamespace(HighlightColorScheme=Scheme)):
        assert Scheme()._markup("text", "red") == "text"
    assert Scheme()._markup("text", "red") == "<red>text"
    with plain_messages(SimpleNamespace()):  # without colorama, they are plain
        pass


def test_parameters_are_inspected_once_in_a_block() -> None:
    asked: list[str] = []

    def has_loc(function: str) -> bool:
        asked.append(function)
        return function == "f"

    base = SimpleNamespace(_has_loc=has_loc)
    for _ in range(2):
        with known_parameters(base):
            assert [base._has_loc(one) for one in "ffgf"] == [True, True, False, True]
    assert asked == ["f", "g"] * 2
    assert base._has_loc is has_loc
    with known_parameters(SimpleNamespace()):  # a Numba that asks in another way
        pass


def test_blocks_of_several_threads_may_end_in_any_order() -> None:
    owner = SimpleNamespace(value=1)
    first, second = (replace_attribute(owner, "value", lambda former, n=n: former + n) for n in (10, 20))
    first.__enter__()
    second.__enter__()
    assert owner.value == 11
    first.__exit__(None, None, None)
    assert owner.value == 11
    second.__exit__(None, None, None)
    assert owner.value == 1
    with replace_attribute(owner, "value", lambda former: former + 30):
        assert owner.value == 31
