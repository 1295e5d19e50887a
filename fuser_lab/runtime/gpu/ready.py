"""Repeated runs on a GPU: the arguments of all launches are in place, and only addresses change.

A repeated run checks the properties of its arrays that kernels were compiled for and outputs were checked for: shape,
strides, dtype, device, alignment, and whether anything that is written overlaps anything else. If all are equal,
addresses are written into the arguments and the kernels are launched. Otherwise the run takes the slow path, which also
reports errors.
"""

import ctypes
import functools
import struct
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from fuser_lab.codegen.kernel_ir import ALIGNED
from fuser_lab.codegen.pipeline import GeneratedKernel
from fuser_lab.ir import TensorView, Val
from fuser_lab.runtime.environment import Environment
from fuser_lab.runtime.evaluate import Seen, detach
from fuser_lab.runtime.gpu.driver import Launch, Launches
from fuser_lab.runtime.guards import GUARDS, LARGEST_WORD, KeptRuns, are_apart, guard_of, span_of

_SEQUENCES = frozenset({list, tuple})
# The Python type of the numbers that a word in memory takes without conversion.
_PLAIN: dict[type, type] = {
    ctypes.c_double: float, ctypes.c_float: float, ctypes.c_int64: int, ctypes.c_int32: int, ctypes.c_uint64: int,
    ctypes.c_uint8: bool,
}

Place = tuple[Any, Any, Any, Any]  # the type of a value and, for a tensor, shape, strides and dtype
Maker = Callable[[], list[Any]]  # makes arrays for all computed results


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """The operands and results of the array library between launches: ``env`` holds arrays and numbers by name.

    ``arrays`` lists those of inputs and results: the position of the value, the name, and the shape, strides and first
    element of the operand, or None for those of the value. ``numbers`` are positions and names.
    """

    env: Environment
    arrays: tuple[tuple[int, str, tuple[Any, Any, int] | None], ...]
    numbers: tuple[tuple[int, str], ...]

    def put(self, values: Sequence[Any]) -> None:
        """Store the values of a run."""
        for place, name, form in self.arrays:
            value = detach(values[place])
            if form is not None:
                shape, strides, first = form
                value = value.as_strided(shape, strides, value.storage_offset() + first)
            self.env.arrays[name] = value
        for place, name in self.numbers:
            self.env.arguments[name] = values[place]

    def drop(self) -> None:
        """Drop the values."""
        for _, name, _ in self.arrays:
            self.env.arrays[name] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Memory for values between the launches of a run: new in each run, because torch reuses it between runs.

    ``word`` holds its address.
    """

    nbytes: int
    word: Any
    new: Callable[[], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectKernel:
    """The kernel of a run that is one launch, and its buffers by the positions of inputs, then results."""

    generated: GeneratedKernel
    buffers: Mapping[int, str]


class DirectRun(Protocol):
    """A run that only needs the addresses of tensors; the caller that takes it guarantees that they fit."""

    @property
    def words(self) -> tuple[tuple[int, Any], ...]:
        """The words that hold addresses, each with the position of its tensor among inputs and results."""

    @property
    def blocks(self) -> tuple[Block, ...]:
        """The memory between kernels that the caller makes for the time of the calls; empty on the CPU."""

    @property
    def calls(self) -> tuple[Callable[[], None], ...]:
        """The calls to make once all addresses are in place."""

    @property
    def strides(self) -> tuple[tuple[int, ...], ...]:
        """The strides of the expected inputs."""

    @property
    def alignments(self) -> tuple[tuple[int, int], ...]:
        """For each input, a mask of the address bits that kernels rely on, and their values; empty on the CPU."""


class ReadyRun:
    """One run as launches; used by one thread at a time, on one stream.

    ``words`` hold addresses, each with the position of its tensor among inputs and results.
    """

    __slots__ = (
        "_aligned", "_are_tensors", "_device", "_evaluated", "_guard", "_guards", "_has_tensors", "_inputs", "_kinds",
        "_launches", "_pack", "_places", "_rests", "_slots", "_spans", "_views", "blocks",
        "given", "stream", "words",
    )

    def __init__(
        self, kinds: frozenset[type], stream: int, inputs: Sequence[Any], outputs: Sequence[Any],
        words: Sequence[tuple[Any, ...]], launches: Sequence[Callable[[int], None]], blocks: Sequence[Block], *,
        alignments: Sequence[int] | None = None, views: Sequence[Seen | None] | None = None,
        evaluated: Evaluated | None = None, block: bytearray | None = None,
    ) -> None:
        """Take launches whose arguments are those of ``inputs`` and ``outputs``, with ``words`` for each of them.

        Parameters
        ----------
        kinds
            Types of tensors.
        stream
            The stream of the launches.
        inputs, outputs
            Values of the run: inputs, and computed results.
        words
            For each of these, the words of memory that hold its address or its number.
        launches
            The launches in order.
        blocks
            Memory that the launches need besides.
        alignments
            The alignment in bytes that kernels were compiled for, for each input; `ALIGNED` by default.
        views
            One entry per result, None for a computed result; None if all are computed.
        evaluated
            The operands of the array library, if it evaluates something.
        block
            Memory that holds the words of all values one after another, if each value is a tensor with one word.
        """
        values = [*inputs, *outputs]
        self.stream, self._launches, self.blocks, self._slots = stream, tuple(launches), tuple(blocks), tuple(words)
        self._views, self._evaluated = None if views is None or not any(views) else tuple(views), evaluated
        self._inputs, self._kinds = len(inputs), kinds
        self._places: list[Place] = []
        self._spans: list[int | None] = []
        self.given: list[Any] = []  # addresses and numbers that the arguments are set to
        self._device = next((value.get_device() for value in values if type(value) in kinds), -1)
        expected = [*(alignments or [ALIGNED] * len(inputs)), *[ALIGNED] * len(outputs)]
        # The address bits that are compared, and their expected values.
        self._rests = [(ALIGNED - 1, 0) if a >= ALIGNED else (2 * a - 1, a) for a in expected]
        self._aligned = all(not rest for _, rest in self._rests)
        for value in values:
            if type(value) in kinds:
                self._places.append((type(value), value.shape, value.stride(), value.dtype))
                self._spans.append(span_of(value))
                self.given.append(value.data_ptr())
            else:
                self._places.append((type(value), None, None, None))
                self._spans.append(None)
                self.given.append(value)
        self.words = tuple((place, word) for place, slot in enumerate(words) for word in slot)
        self._are_tensors = all(type(value) in kinds for value in values)
        # Only launches, and only on tensors: all addresses are written at once.
        is_plain = self._are_tensors and self._views is None and evaluated is None and len(self._launches) == 1
        self._pack: Callable[..., None] | None = None
        if is_plain and block is not None:
            self._pack = functools.partial(struct.Struct(f"={len(values)}Q").pack_into, block, 0)
        self._has_tensors = any(type(value) in kinds for value in inputs)
        self._guard = guard_of(values) if self._are_tensors else None
        self._guards: deque[Callable[..., bool]] = deque(maxlen=GUARDS)  # of the inputs only
        self._add_guard(inputs)

    def is_sound(self, values: Sequence[Any]) -> bool:
        """Whether such a run may be repeated on the fast path: everything is aligned, and no output overlaps."""
        for value, span, slot in zip(values, self._spans, self._slots, strict=True):
            if span is None:
                if any(_PLAIN.get(type(word)) is not type(value) for word in slot):
                    return False
            elif value.is_neg() or value.is_complex() or value.get_device() != self._device:
                return False
        return self._fits(self.given)

    def _add_guard(self, inputs: Sequence[Any]) -> None:
        guard = guard_of(inputs) if self._are_tensors else None
        if guard is not None:
            self._guards.appendleft(guard)

    def fresh(self, inputs: Sequence[Any], made: Maker) -> list[Any] | None:
        """Launch for matching inputs and new outputs, and return the results; None if the inputs do not match.

        New memory is aligned and does not overlap memory in use, so only inputs are checked. Results are made with the
        library of the inputs, so at least one input must be a tensor.
        """
        if len(inputs) != self._inputs or not self._has_tensors:
            return None
        for guard in self._guards:
            if guard(*inputs):
                addresses = [value.data_ptr() for value in inputs]
                if self._pack is not None:
                    return self._quick(addresses, made, self._pack)
                break
        else:
            compared = self._matching_words(inputs)
            if compared is None:
                return None
            addresses = compared
            if not self._are_here(inputs):
                return None
            self._add_guard(inputs)
        if not self._is_aligned(addresses):
            return None
        try:
            outputs = made()
            held = self._with_blocks()
        except RuntimeError:  # the slow path reports what does not fit in memory
            return None
        addresses += [value.data_ptr() for value in outputs]
        self._launch(addresses, inputs, outputs)
        del held
        if self._views is None:
            return outputs
        rest = iter(outputs)
        return [next(rest) if view is None else view(inputs) for view in self._views]

    def _quick(self, addresses: list[int], made: Maker, pack: Callable[..., None]) -> list[Any] | None:
        """Do the rest of `fresh` for kernels whose arguments are only tensors, with addresses in ``addresses``."""
        ends = 0
        for address in addresses:
            ends |= address
        if (ends % ALIGNED or not self._aligned) and not self._is_aligned(addresses):
            return None
        try:
            outputs = made()
            held = self._with_blocks() if self.blocks else None
        except RuntimeError:  # the slow path reports what does not fit in memory
            return None
        for value in outputs:
            addresses.append(value.data_ptr())  # noqa: PERF401 - a second list takes longer
        pack(*addresses)
        self.given = addresses
        self._launches[0](self.stream)
        del held
        return outputs

    def _with_blocks(self) -> list[Any]:
        """Make the memory between launches; the caller holds it until all of them are in the queue of the device."""
        made = [block.new() for block in self.blocks]
        for block, memory in zip(self.blocks, made, strict=True):
            block.word.value = memory.data_ptr()
        return made

    @property
    def is_plain(self) -> bool:
        """Whether the run is only kernels on tensors, and all results are computed."""
        return self._pack is not None

    @property
    def launches(self) -> tuple[Launch, ...]:
        """The launches of a plain run; none of another one."""
        (start, *_) = self._launches if self.is_plain else (None,)
        return start.launches if isinstance(start, Launches) else ()

    @property
    def kernel(self) -> DirectKernel | None:
        """The kernel of a run that is one launch, whose buffers are inputs and results; None for other runs."""
        launches = self.launches
        if len(launches) != 1 or (generated := launches[0].generated) is None or len(generated.kernel_ir.phases) != 1:
            return None
        (launch,), (phase,) = launches, generated.kernel_ir.phases
        place_of = {id(word): place for place, word in self.words}
        words = {buffer.name: id(launch.words[buffer.name][0]) for buffer in phase.buffers}
        if any(word not in place_of for word in words.values()):
            return None
        return DirectKernel(generated=generated, buffers={place_of[word]: name for name, word in words.items()})

    @property
    def calls(self) -> tuple[Callable[[], None], ...]:
        """The calls to make once all addresses are in place."""
        return tuple(functools.partial(launch, self.stream) for launch in self._launches)

    @property
    def strides(self) -> tuple[tuple[int, ...], ...]:
        """The strides of the expected inputs."""
        return tuple(stride for _, _, stride, _ in self._places[: self._inputs])

    @property
    def alignments(self) -> tuple[tuple[int, int], ...]:
        """For each input, a mask of the address bits that kernels rely on, and their values."""
        return tuple(self._rests[: self._inputs])

    def takes(self, inputs: int, outputs: int) -> bool:
        """Whether the run has this many inputs and outputs, and no output is a view of an input."""
        return self._views is None and (inputs, inputs + outputs) == (self._inputs, len(self._places))

    def start(self, values: Sequence[Any]) -> bool:
        """Launch for inputs and outputs if they match the previous ones; return whether they do."""
        guard = self._guard
        here = guard is not None and guard(*values)  # also on the same device
        if here:
            addresses = [value.data_ptr() for value in values]
        else:
            compared = self._matching_words(values)
            if compared is None:
                return False
            addresses = compared
        if addresses != self.given and not ((here or self._are_here(values)) and self._fits(addresses)):
            return False
        try:
            held = self._with_blocks()
        except RuntimeError:  # the slow path reports what does not fit in memory
            return False
        self._launch(addresses, values[: self._inputs], values[self._inputs :])
        del held
        return True

    def _launch(self, addresses: list[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        if addresses != self.given:
            for place, word in self.words:
                word.value = addresses[place]
            self.given = addresses
        if self._evaluated is not None:
            self._evaluated.put([*inputs, *outputs])
        stream = self.stream
        try:
            for launch in self._launches:
                launch(stream)
        finally:
            if self._evaluated is not None:
                self._evaluated.drop()

    def _is_aligned(self, addresses: Sequence[Any]) -> bool:
        """Whether the addresses of inputs have the low bits that kernels were compiled for."""
        if self._aligned and self._are_tensors:
            ends = 0
            for address in addresses:
                ends |= address
            return not ends % ALIGNED
        for number, span, (mask, rest) in zip(addresses, self._spans, self._rests, strict=False):
            if span is not None and number & mask != rest:
                return False
            if span is None and number.__class__ is int and not 0 <= number < LARGEST_WORD:
                return False
        return True

    def _matching_words(self, values: Sequence[Any]) -> list[Any] | None:
        """Return addresses and numbers if values match the previous ones."""
        addresses: list[Any] = []
        for value, (kind, shape, stride, dtype) in zip(values, self._places, strict=False):
            type_of_value: type = value.__class__
            if shape is None:
                if type_of_value is not kind:
                    return None
                addresses.append(value)
                continue
            if type_of_value not in self._kinds or value.shape != shape or value.stride() != stride:
                return None
            if value.dtype is not dtype or value.is_neg():
                return None
            addresses.append(value.data_ptr())
        return addresses

    def _are_here(self, values: Sequence[Any]) -> bool:
        """Whether all arrays are on the device of the run."""
        spans = zip(values, self._spans, strict=False)
        return all(span is None or value.get_device() == self._device for value, span in spans)

    def _fits(self, addresses: Sequence[Any]) -> bool:
        """Whether arrays at these addresses are aligned, and no written array overlaps another."""
        if not self._is_aligned(addresses):
            return False
        spans = [(0, 0) if span is None else (n, n + span) for n, span in zip(addresses, self._spans, strict=True)]
        return are_apart(spans, self._inputs)


class ReadyRuns(KeptRuns):
    """The last runs of a plan on a GPU."""

    __slots__ = ("_made", "_stream", "kinds")

    def __init__(self, kinds: frozenset[type], stream: Callable[[], int], made: Maker) -> None:
        """Store runs on arrays of some types; ``stream`` returns the current stream, ``made`` makes results."""
        super().__init__()
        self.kinds, self._stream, self._made = kinds, stream, made

    def started(self, inputs: Sequence[Any], out: Sequence[Any] | None) -> list[Any] | None:
        """Launch a run that matches a stored run and return its outputs; None if none matches."""
        runs = self._kept
        if inputs.__class__ not in _SEQUENCES or not (out is None or out.__class__ in _SEQUENCES):
            return None
        stream, left = self._stream(), len(runs)
        while left:
            try:
                run: ReadyRun = runs.pop()
            except IndexError:  # another thread took it
                return None
            if run.stream == stream:
                outputs = run.fresh(inputs, self._made) if out is None else self._results_in(run, inputs, out)
                if outputs is not None:
                    runs.append(run)
                    return outputs
            runs.appendleft(run)
            left -= 1
        return None

    @staticmethod
    def _results_in(run: ReadyRun, inputs: Sequence[Any], out: Sequence[Any]) -> list[Any] | None:
        values = [*inputs, *out]
        return [*out] if run.takes(len(inputs), len(out)) and run.start(values) else None

    def taken(self) -> ReadyRun | None:
        """Take out a run on the current stream that only needs new addresses; None if there is none."""
        try:
            run: ReadyRun = self._kept.pop()
        except IndexError:
            return None
        if run.stream == self._stream() and run.is_plain:
            return run
        self._kept.appendleft(run)
        return None


def aligned_to(address: int) -> int:
    """Return the alignment of an address in bytes, at most `ALIGNED`."""
    address |= ALIGNED
    return address & -address


def takes(values: Sequence[Val]) -> bool:
    """Whether inputs are only tensors and numbers that fit in one word of a kernel."""
    return all(isinstance(v, TensorView) or not v.dtype.is_complex for v in values)
