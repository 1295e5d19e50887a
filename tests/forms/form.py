"""A form as data: a program, the layouts of its inputs, and everything else that decides which kernels it becomes."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from math import prod
from typing import Any

import numpy as np

from fuser_lab.cost.device import DEVICES, Device
from fuser_lab.dtypes import DataType
from tests.fuzz.program import Program, ScalarInput, Step, TensorInput

Values = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """A tensor input: shape, dtype and layout as in `TensorInput`; integers are positions below ``below`` if it is set.

    ``alignment`` is that of its memory, in bytes; ``symbolic`` declares all sizes above 1 as -1.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    below: int = 0
    alignment: int = 16
    symbolic: bool = False
    order: tuple[int, ...] = ()
    step: int = 1
    backwards: tuple[int, ...] = ()
    expanded: tuple[int, ...] = ()

    def tensor(self, seed: int, *, is_filled: bool = True) -> TensorInput:
        """Return the input with random values, or with zeros that take no memory."""
        dtype, shape = getattr(DataType, self.dtype), self.shape
        rng = np.random.default_rng(seed)
        values: Any
        if not is_filled:
            values = np.broadcast_to(np.zeros((), np.int8), shape)
        elif dtype is DataType.Bool:
            values = rng.integers(0, 2, shape)
        elif dtype.is_integral:
            values = rng.integers(0, self.below or 5, shape)
        elif dtype.is_complex:
            values = rng.uniform(-1, 1, shape) + 1j * rng.uniform(-1, 1, shape)
        else:
            values = rng.uniform(-1, 1, shape)
        for axis in self.expanded:
            if shape[axis]:
                values = np.broadcast_to(np.take(values, [0], axis), shape)
        if is_filled:
            values = np.asarray(values).astype(dtype.numpy)
        symbolic = frozenset(k for k, n in enumerate(shape) if n > 1) if self.symbolic else frozenset[int]()
        return TensorInput(
            name=self.name, values=values, dtype=dtype, symbolic=symbolic,
            order=self.order, step=self.step, backwards=frozenset(self.backwards), expanded=frozenset(self.expanded),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """A scalar input and its value."""

    name: str
    value: float
    dtype: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Parameters set by hand for a nest of the first segment that has it."""

    segment: int
    nest: int
    values: tuple[tuple[str, Any], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """A program with what else decides its kernels.

    Attributes
    ----------
    inputs, calls, outputs
        The program: tensors and scalars, pairs of results and text of a call, and names of values; an output "a = b"
        overwrites the input b.
    device, limits
        A device by name, and fields of it that have other values.
    target, strategy, is_open, options
        Whose kernels are made, how the program is cut, whether fuser_lab's own schedulers are asked, and options of the
        segmenter.
    changes
        Parameters set by hand.
    edits
        Changes of the text of the first kernel's schedule: regular expressions and what replaces them.
    real
        Shapes of the inputs at which the loops are chosen; the kernels of the form's own sizes have these loops.
    actions
        A schedule by hand: statements over ``fd``, its ``tensors`` and the names of transforms.
    questions
        What else is asked about the kernels.
    refusal
        The error with which the package refuses the form; empty if it has kernels.
    """

    inputs: tuple[Given | Number, ...]
    calls: tuple[tuple[tuple[str, ...], str], ...]
    outputs: tuple[str, ...]
    target: str = "cuda"
    device: str = "H200"
    limits: tuple[tuple[str, Any], ...] = ()
    strategy: str = "bottom_up"
    is_open: bool = False
    options: tuple[tuple[str, bool], ...] = ()
    changes: tuple[Change, ...] = ()
    edits: tuple[tuple[str, str], ...] = ()
    real: tuple[tuple[int, ...], ...] = ()
    actions: tuple[str, ...] = ()
    questions: tuple[str, ...] = ()
    refusal: str = ""

    def program(self, *, is_filled: bool = True) -> Program:
        """Return the program with values of its inputs, or with zeros that take no memory."""
        inputs = tuple(
            one.tensor(number, is_filled=is_filled) if isinstance(one, Given)
            else ScalarInput(name=one.name, value=one.value, dtype=getattr(DataType, one.dtype))
            for number, one in enumerate(self.inputs)
        )
        steps = tuple(Step(results=names, call=text, unpacks=len(names) > 1) for names, text in self.calls)
        pairs = (tuple(name.split(" = ")) for name in self.outputs)
        outputs = tuple(pair if len(pair) == 2 else pair[0] for pair in pairs)
        return Program(inputs=inputs, steps=steps, outputs=outputs)

    def live(self) -> "Form":
        """Return the form without inputs and calls that no output depends on."""
        program = self.program().live()
        names = {one.name for one in program.inputs}
        return replace(
            self, inputs=tuple(one for one in self.inputs if one.name in names),
            calls=tuple((step.results, step.call) for step in program.steps),
        )

    def sized(self, shapes: tuple[tuple[int, ...], ...]) -> "Form":
        """Return the form with tensor inputs of other shapes."""
        sizes = iter(shapes)
        inputs = tuple(replace(x, shape=next(sizes)) if isinstance(x, Given) else x for x in self.inputs)
        return replace(self, inputs=inputs, real=())

    def gpu(self) -> Device:
        """Return the device."""
        return replace(next(one for one in DEVICES if one.name == self.device), **dict(self.limits))

    @property
    def elements(self) -> int:
        """Elements of all inputs."""
        return sum(prod(one.shape) for one in self.inputs if isinstance(one, Given))

    def text(self) -> str:
        """Return the form as one line of JSON, without fields that have their defaults."""
        plain = Form(inputs=(), calls=(), outputs=())
        fields: dict[str, Any] = {
            name: value for name, value in asdict(self).items()
            if value != getattr(plain, name) or name in {"calls", "outputs"}
        }
        fields["inputs"] = [_changed_fields(one) for one in self.inputs]
        return json.dumps(fields)


def _changed_fields(one: Given | Number) -> dict[str, Any]:
    if isinstance(one, Number):
        return asdict(one)
    plain = Given(name="", shape=(), dtype="")
    return {k: v for k, v in asdict(one).items() if v != getattr(plain, k) or k in {"name", "shape", "dtype"}}


def form_of(text: str) -> Form:
    """Return the form that a line of JSON describes."""
    fields = _tuples(json.loads(text))
    inputs = tuple(Number(**one) if "value" in one else Given(**one) for one in fields.pop("inputs"))
    changes = tuple(Change(**one) for one in fields.pop("changes", ()))
    return Form(inputs=inputs, changes=changes, **fields)


def _tuples(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(_tuples, value))
    return {k: _tuples(v) for k, v in value.items()} if isinstance(value, dict) else value
