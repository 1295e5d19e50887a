"""The values of kernel parameters that are legal for a nest of loops, and what follows from them.

No legal value can make a result wrong. Parameters that are not set keep the heuristics' choice unless they depend on
one that is set: with a different number of threads, a row takes a different number of steps.
"""

import operator
from collections.abc import Mapping
from dataclasses import replace

from fuser_lab.arguments import short_text
from fuser_lab.errors import ArgumentTypeError, ScheduleError
from fuser_lab.schedule.kinds import Change, rules_of, why_illegal
from fuser_lab.schedule.state import FLAGS, MEANINGS, LoopSchedule, Space, Value, parameters_of

Values = tuple[tuple[str, Value], ...]

_BITS = 63  # bits of an integer, without its sign


def with_values(space: Space, target: str, chosen: LoopSchedule, values: Values) -> tuple[LoopSchedule, str]:
    """Return loops with some values set and an empty text, or the loops unchanged and the reason as a sentence."""
    names, where = parameters_of(chosen.kind), f"a nest of {chosen.style.value} on {target}"
    for name, _ in values:
        if name not in names:
            return chosen, f"{name} is not a parameter of {where}; it has {', '.join(names)}"
    settings = {name: (value, 1) if name == "threads" and isinstance(value, int) else value for name, value in values}
    change = Change.of(space, chosen, settings)
    if problem := why_illegal(change):
        return change.chosen, f"{problem}, for {where}"
    reasons = (*change.chosen.reasons, f"set by hand: {settings_text(settings)}")
    return replace(rules_of(chosen.kind).implied(change), reasons=reasons), ""


def check_values(values: Mapping[str, object]) -> Values:
    """Return values set by hand, sorted by name.

    Raises
    ------
    ArgumentTypeError
        If a name is not that of a parameter, or a value has the wrong type.
    """
    pairs: list[tuple[str, Value]] = []
    for name, value in sorted(values.items()):
        if name not in MEANINGS:
            raise ArgumentTypeError(f"with_params: unknown parameter {name!r}; choose from {', '.join(MEANINGS)}.")
        if name == "threads" and isinstance(value, list | tuple) and len(value) == 2 and all(map(_is_int, value)):
            pairs.append((name, (operator.index(value[0]), operator.index(value[1]))))
        elif (isinstance(value, bool) if name in FLAGS else _is_int(value)):
            pairs.append((name, value if isinstance(value, bool) else operator.index(value)))  # type: ignore[arg-type]
        else:
            if isinstance(value, int) and value.bit_length() > _BITS:
                raise ScheduleError(f"with_params: {name} must fit in {_BITS} bits, given {short_text(value)}.")
            kinds = {"threads": "an int or a pair of ints", **dict.fromkeys(FLAGS, "a bool")}
            msg = f"with_params: {name} must be {kinds.get(name, 'an int')}, given {short_text(value)}."
            raise ArgumentTypeError(msg)
    return tuple(pairs)


def _is_int(value: object) -> bool:
    """Whether a value is an integer that fits: Python's, or one of NumPy or another library."""
    try:
        return not isinstance(value, bool) and operator.index(value).bit_length() <= _BITS  # type: ignore[arg-type]
    except TypeError:
        return False


def settings_text(settings: Mapping[str, Value]) -> str:
    """Return values as text, as in ``split = 8, unroll = 2``."""
    return ", ".join(f"{name} = {value}" for name, value in settings.items())
