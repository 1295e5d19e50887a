"""The only place that writes JSON: strict JSON, which browsers and all other readers accept."""

import json
import math
from collections.abc import Mapping
from typing import Any, Final

_PLAIN: Final = frozenset({str, int, bool})  # most of what there is


def json_text(data: Any, *, indent: int | None = None) -> str:
    """Return data as strict JSON; NaN and infinities, which JSON does not have, become null."""
    separators = (",", ":") if indent is None else None
    return json.dumps(plain(data), indent=indent, separators=separators, ensure_ascii=False, allow_nan=False)


def plain(value: Any) -> Any:
    """Return data with lists for tuples, strings as keys of mappings, and None for floats that are not finite."""
    if value is None or type(value) in _PLAIN:
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    return value
