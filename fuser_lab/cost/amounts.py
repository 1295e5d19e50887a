"""Bytes and seconds as text: three significant digits, decimal units."""

import math
from collections.abc import Callable
from functools import lru_cache

_STEP = 1000.0  # factor between adjacent decimal units
_NANOSECONDS = 1e-7  # seconds, below which a time is given in nanoseconds


def bytes_label(count: float) -> str:
    """Return bytes with a decimal unit: ``8.39 MB``."""
    return _bytes_label(count)


@lru_cache(maxsize=1 << 12)  # pictures of large plans have thousands of labels with few distinct sizes
def _bytes_label(count: float) -> str:
    names = ("B", "kB", "MB", "GB", "TB")
    size = abs(count)
    power = 0 if size < _STEP else min(int(math.log(size, _STEP) + 1e-9), len(names) - 1)
    value = count / _STEP**power
    return f"{value:.0f} B" if power == 0 else f"{three_digits(value)} {names[power]}"


def seconds_label(seconds: float) -> str:
    """Return a duration with a suitable unit, or ``not measured`` for NaN."""
    if math.isnan(seconds):
        return "not measured"
    size = abs(seconds)
    if 0.0 < size < _NANOSECONDS:
        return f"{three_digits(seconds * 1e9)} ns"
    unit, factor = next(((u, f) for u, f in (("s", 1.0), ("ms", 1e3)) if size * f >= 1.0), ("µs", 1e6))
    return f"{three_digits(seconds * factor)} {unit}"


def three_digits(value: float) -> str:
    """Return a number with three significant digits, and never in exponent form."""
    digits = next((d for d, limit in ((2, 9.995), (1, 99.95)) if abs(value) < limit), 0)
    return f"{value:.{digits}f}"


def change_label(amount: float, label: Callable[[float], str]) -> str:
    """Return a change with its sign."""
    return f"{'+' if amount > 0 else '−' if amount < 0 else '±'}{label(abs(amount))}"
