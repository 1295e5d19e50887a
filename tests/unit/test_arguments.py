"""Descriptions of arguments, and the errors for values that do not match them."""

import itertools
import math

import numpy as np
import pytest

from fuser_lab import arguments
from fuser_lab.arguments import (
    FLAG,
    FUNCTION,
    NONE,
    PATH,
    TEXT,
    brief,
    instance,
    list_of,
    listing,
    mapping,
    number,
    one_of,
    optional,
    short_text,
    take_fields,
    takes,
    whole,
)
from fuser_lab.errors import ArgumentTypeError, IllegalEdit, InputError

_LOOP: list[object] = []
_LOOP.append(_LOOP)


class _Unshowable:
    def __repr__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize(
    ("kind", "value", "taken"),
    [
        (TEXT, "softmax λ", "softmax λ"),
        (TEXT, np.str_("a"), "a"),
        (FLAG, np.True_, True),
        (NONE, None, None),
        (PATH, "a/b.svg", "a/b.svg"),
        (whole(0), np.int8(3), 3),
        (whole(1, 3), 3, 3),
        (number(0), np.float32(0.5), 0.5),
        (number(0), 0, 0),
        (optional(number(0)), None, None),
        (one_of("cpu", "cuda"), "cuda", "cuda"),
        (list_of(whole(), "a list of ints"), (1, np.int64(2)), [1, 2]),
        (list_of(whole(), "a list of ints", lazy=True), (n for n in (1, 2)), [1, 2]),
        (mapping(TEXT, FLAG, "a dict of bools"), {"a": np.False_}, {"a": False}),
        (TEXT | whole(), 3, 3),
        (instance(int, str), "a", "a"),
    ],
)  # fmt: skip
def test_what_fits_is_taken_as_a_plain_value(kind, value, taken):
    found = kind.of(value, "f", "x")
    assert found == taken
    assert type(found) is type(taken)


@pytest.mark.parametrize(
    ("kind", "value", "error", "sentence"),
    [
        (TEXT, 3, ArgumentTypeError, "f: x must be a str, given 3."),
        (TEXT, "\udcff", InputError, "f: x must be text without surrogates, which UTF-8 cannot write, given"),
        (FLAG, 1, ArgumentTypeError, "f: x must be True or False, given 1."),
        (FUNCTION, "sum", ArgumentTypeError, "f: x must be a function, given 'sum'."),
        (PATH, b"a", ArgumentTypeError, "f: x must be a path, as str or Path, given b'a'."),
        (PATH, "a\0b", InputError, "f: x must be a path that the file system can name, given 'a\\x00b'."),
        (whole(0), True, ArgumentTypeError, "f: x must be a whole number of at least 0, given True."),
        (whole(0), -1, InputError, "f: x must be a whole number of at least 0, given -1."),
        (whole(1, 3), 4, InputError, "f: x must be a whole number from 1 to 3, given 4."),
        (number(0), math.nan, InputError, "f: x must be a finite number of at least 0, given nan."),
        (number(0), 10**400, InputError, "f: x must be a finite number of at least 0, given an int of 1329 bits."),
        (number(above=0), 0, InputError, "f: x must be a finite number above 0, given 0."),
        (
            optional(number(0), "for no limit"), "1", ArgumentTypeError,
            "f: x must be a finite number of at least 0 or None for no limit, given '1'.",
        ),
        (optional(number(0)), -1, InputError, "f: x must be a finite number of at least 0, given -1."),
        (one_of("a", "b", "c"), "d", InputError, "f: x must be 'a', 'b' or 'c', given 'd'."),
        (one_of("a", "b"), np.array(["a", "b"]), ArgumentTypeError, "f: x must be 'a' or 'b', given array(['a', 'b']"),
        (list_of(TEXT, "a list of names"), "ab", ArgumentTypeError, "f: x must be a list of names, given 'ab'."),
        (list_of(TEXT, "a list of names"), ["a", 1], ArgumentTypeError, "f: x[1] must be a str, given 1."),
        (list_of(TEXT, "a list of names", least=1), [], InputError, "f: x must be a list of names, at least 1"),
        (list_of(TEXT, "a list of names"), _LOOP, ArgumentTypeError, "f: x[0] must be a str, given [[...]]."),
        (
            list_of(whole(), "a list of ints", lazy=True), itertools.repeat(1), InputError,
            "f: x must be a list of ints, at most 1,048,576, given repeat(1).",
        ),
        (list_of(whole(), "a list of ints", lazy=True), np.array(1), ArgumentTypeError, "f: x must be a list of ints"),
        (mapping(TEXT, FLAG, "a dict of bools"), {"a": 1}, ArgumentTypeError, "f: x['a'] must be True or False, given"),
        (TEXT | list_of(TEXT, "a list of names"), [1], ArgumentTypeError, "f: x[0] must be a str, given 1."),
        (TEXT | whole(), 1.5, ArgumentTypeError, "f: x must be a str or a whole number, given 1.5."),
        (whole().but(lambda n: n % 2 == 0, "an even number"), 3, InputError, "f: x must be an even number, given 3."),
        (TEXT, _Unshowable(), ArgumentTypeError, "f: x must be a str, given a value of type _Unshowable."),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_said_in_one_sentence(kind, value, error, sentence):
    with pytest.raises(error) as raised:
        kind.of(value, "f", "x")
    assert str(raised.value).startswith(sentence)
    assert raised.value.__context__ is None


def test_a_caller_may_ask_for_another_exception():
    with pytest.raises(IllegalEdit):
        one_of("a").of("b", "f", "x", IllegalEdit)


@pytest.mark.parametrize("value", [[10**5000], "a" * 100, np.zeros(50), _LOOP, "\udcff", "a\nb", {"a": _LOOP}, 10**100])
def test_what_is_shown_is_short_printable_and_on_one_line(value):
    assert short_text(value).isprintable()
    assert len(short_text(value)) <= 60


def test_a_function_is_called_with_what_its_kinds_take():
    @takes("area", sizes=whole(0), options=FLAG, first=list_of(whole(), "a list of ints"))
    def area(first, *sizes, unit="m", **options):
        """Return all arguments."""
        return first, sizes, unit, options

    assert area((1,), np.int64(2), 3, deep=np.True_) == ([1], (2, 3), "m", {"deep": True})
    assert area(first=[4]) == ([4], (), "m", {})
    assert area.__doc__ == "Return all arguments."
    for call, sentence in (
        (lambda: area([1], 2, -3), r"area: sizes\[1\] must be a whole number of at least 0, given -3\."),
        (lambda: area(1), "area: first must be a list of ints, given 1"),
        (lambda: area([1], deep=2), "area: deep must be True or False, given 2"),
    ):
        with pytest.raises((ArgumentTypeError, InputError), match=sentence):
            call()


def test_missing_and_unknown_arguments_are_pythons_own_errors():
    @takes(x=whole())
    def f(x, *, y=1):
        return x

    with pytest.raises(TypeError, match=r"f\(\) missing 1 required positional argument: 'x'") as missing:
        f()
    with pytest.raises(TypeError, match="unexpected keyword argument 'z'") as unknown:
        f(1, z=2)
    assert not isinstance(missing.value, ArgumentTypeError)
    assert not isinstance(unknown.value, ArgumentTypeError)


def test_a_kind_without_a_parameter_is_found_at_once():
    with pytest.raises(TypeError, match="f has no parameter y"):

        @takes(y=whole())
        def f(x): ...


def test_fields_are_set_to_what_their_kinds_take():
    class Record:
        size = np.int32(3)

    record = Record()
    take_fields(record, size=whole(0))
    assert type(record.size) is int
    record.size = -1
    with pytest.raises(InputError, match="Record: size must be a whole number of at least 0, given -1"):
        take_fields(record, size=whole(0))
    assert arguments.ANYTHING.of(record, "f", "x") is record


def test_an_error_quotes_the_ends_of_a_long_text():
    text = str(InputError("a" * 10_000 + "z" * 10_000))
    assert len(text) < 9000
    assert text.startswith("aaa")
    assert text.endswith("zzz")
    assert "12,000 characters" in text
    assert brief("x" * 1000).count("x") == 200
    assert brief("a\nb") == "a\\nb"
    assert listing(f"T{n}" for n in range(100)).endswith("T38, T39 and 60 more")
