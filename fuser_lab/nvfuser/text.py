"""A definition as the frontend printed it: one record per line, values named by the numbers of their states."""

from collections.abc import Iterator, Sequence

from fuser_lab.definition.canonical import Step
from fuser_lab.definition.python_text import definition_text, number_text
from fuser_lab.definition.record import EMIT, Encoded, decoded_number, values_in
from fuser_lab.dtypes import DataType
from fuser_lab.ir import Fusion, Number, Scalar, TensorView, Val

# Parameters that accept sizes: a list passed for one becomes a vector with its own record.
SIZES = frozenset({"shape", "new_shape", "start_indices", "end_indices", "pad_widths"})
STRIDED = "slice"  # whose strides are sizes, too


def takes_sizes(op: str, parameter: str) -> bool:
    """Whether a parameter of an op accepts a vector."""
    return parameter in SIZES or (op == STRIDED and parameter == "strides")


def function_text(steps: Sequence[Step], name: str, fusion: Fusion | None) -> str:
    """Return a function that records a definition again: a blank line, then one line per record.

    Parameters
    ----------
    steps
        The canonical records.
    name
        Name of the function.
    fusion
        Their result, whose expressions are written out if they were appended without a call, as in a segment.
    """
    if fusion is not None and any(step.record.name == EMIT for step in steps):
        return "\n" + definition_text(fusion, name, ("T", "S"))
    lines = "".join(f"    {line}\n" for line in _Writer().lines(steps))
    return f"\ndef {name}(fd : FusionDefinition) -> None :\n{lines}"


class _Writer:
    """Names values in the order in which they become states (`fuser_lab.definition.state.fusion_state`)."""

    def __init__(self) -> None:
        self._states = 0
        self._labels: dict[object, str] = {}
        self._vectors: dict[object, str] = {}

    def lines(self, steps: Sequence[Step]) -> Iterator[str]:
        """Yield one line per record."""
        for step in steps:
            # The arguments first, because earlier records name them.
            call = self._call(step)
            results = ", ".join(self._result_names(step))
            yield f"{results} = {call}" if results else call

    def _result_names(self, step: Step) -> list[str]:
        """Return the names of what a record returns."""
        result, record = step.result, step.record
        if record.name == "add_output" and step.effect[-1]:
            # The copied result has a number, but no name in the text.
            self._states += 1
        if isinstance(result, list):
            made = [_key(value) for value in values_in(result)]
            # A vector of existing values has a number; for others, the elements have numbers, too.
            inner = 0 if record.name == "define_vector" and isinstance(record.args[0], tuple) else len(made)
            label = f"V{self._states + inner}"
            self._states += inner + 1
            if inner:
                self._labels.update((key, f"{label}[{place}]") for place, key in enumerate(made))
            self._vectors[tuple(made)] = label
            return [label]
        return [self._next(value) for value in values_in(result)]

    def _next(self, value: Val) -> str:
        label = f"{'T' if isinstance(value, TensorView) else 'S'}{self._states}"
        self._states += 1
        if isinstance(value, Scalar):
            # Later references to a number mean its latest definition.
            self._labels[_key(value)] = label
        return self._labels.setdefault(_key(value), label) if label[0] == "T" else label

    def _call(self, step: Step) -> str:
        name, args, kwargs = step.record
        if name == "define_scalar":
            return f"fd.define_scalar({_constant(args[0], kwargs[0][1])}, dtype={kwargs[0][1]!r})"
        if name == "define_vector":
            inner = args[0]
            text = self._text(inner)
            return f"fd.define_vector({text}, dtype=DataType.Int)" if isinstance(inner, tuple) else f"fd.{name}({text})"
        prefix = "fd." if name.startswith(("define_", "add_", "set_output_")) else "fd.ops."
        shown = [*map(self._text, args), *(f"{key}={self._argument(name, key, value)}" for key, value in kwargs)]
        return f"{prefix}{name}({', '.join(shown)})"

    def _argument(self, op: str, parameter: str, entry: Encoded) -> str:
        if takes_sizes(op, parameter) and isinstance(entry, tuple):
            vector = self._vectors.get(tuple(_entry_key(part) for part in entry[1:]))
            if vector is not None:
                return vector
        return self._text(entry)

    def _text(self, entry: Encoded) -> str:
        match entry:
            case ("list", *rest):
                return f"[{', '.join(map(self._text, rest))}]"
            case ("tuple", *rest):
                return f"({', '.join(map(self._text, rest))}{',' if len(rest) == 1 else ''})"
            case ("value" | "constant", *_):
                return self._labels[_entry_key(entry)]
            case tuple():
                return number_text(decoded_number(entry))
        return repr(entry)


def _key(value: Val) -> object:
    """Return a key of a value: its name, or the dtype and number of a constant."""
    if isinstance(value, Scalar) and value.value is not None:
        return (value.dtype, repr(value.value))
    return value.name


def _entry_key(entry: Encoded) -> object:
    match entry:
        case ("value", name):
            return name
        case ("constant", dtype, number):
            return (dtype, repr(decoded_number(number)))
        case int():
            return (DataType.Int, repr(entry))
    return entry


def _constant(entry: Encoded, dtype: object) -> str:
    """Return a number as the frontend printed it, with six digits where those are enough."""
    if entry is None:
        return "None"
    number: Number = decoded_number(entry)
    if isinstance(number, float):
        short = f"{number:#.6g}"
        if short.lstrip("-") not in {"inf", "nan"} and repr(float(short)) == repr(number):
            return short
    return number_text(number)
