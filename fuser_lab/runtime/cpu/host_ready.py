"""Repeated runs on the CPU: the array objects of the kernels are reused, and only their addresses change.

The slow path makes a NumPy array for each input and output, which costs more than a small kernel. Here, each kernel has
array objects that own no memory, and a run writes addresses into them: NumPy's C API defines where an array stores its
address (``PyArrayObject_fields``), and `can_repoint` verifies it. A run whose inputs have another class, dtype, shape
or strides takes the slow path, which also raises any errors.
"""

import ctypes
import functools
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fuser_lab.codegen.kernel_ir import Phase
from fuser_lab.dtypes import DataType
from fuser_lab.ir import Scalar
from fuser_lab.process.host_memory import keep_freed_memory
from fuser_lab.runtime.arrays import TORCH_OF, Memory, empty_strided, storage_dtype, torch_module
from fuser_lab.runtime.binding import Slot
from fuser_lab.runtime.cpu.launcher import HostCall
from fuser_lab.runtime.cpu.tensor_words import can_read_tensors
from fuser_lab.runtime.environment import Environment
from fuser_lab.runtime.evaluate import Origin, Seen, needs_scalars, view_of
from fuser_lab.runtime.guards import GUARDS, LARGEST_WORD, KeptRuns, are_apart, guard_of, span_of

_ADDRESS = object.__basicsize__  # offset of an array's address, after the object header
_NUMBERS: Mapping[DataType, type] = {
    DataType.Double: float, DataType.Float: float, DataType.Int: int, DataType.Index: int, DataType.Int32: int,
    DataType.UInt64: int, DataType.Bool: bool,
}  # kernels take these Python numbers directly


def _word(array: Any) -> ctypes.c_void_p:
    """Return the word in memory that holds the address of a NumPy array, and keeps the array alive."""
    word = ctypes.c_void_p.from_address(id(array) + _ADDRESS)
    word.array = array  # type: ignore[attr-defined]  # ctypes instances accept any attribute
    return word


@functools.cache
def can_repoint() -> bool:
    """Whether arrays in this version of NumPy and Python store their addresses at the expected offset."""
    probe = np.zeros(3)
    parts = (probe, probe[1:], probe[2:])
    return sys.implementation.name == "cpython" and all(_word(p).value == p.ctypes.data for p in parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """The results of a run: ``makers`` make arrays for the computed results, in order.

    They are None if kernels write into another layout than that of new arrays. ``views`` has one entry per result,
    which is None for a computed result.
    """

    makers: tuple[Callable[[], Any], ...] | None
    views: tuple[Seen | None, ...]

    def of(self, inputs: Sequence[Any], computed: Sequence[Any]) -> list[Any]:
        """Return all results of a run."""
        if len(computed) == len(self.views):
            return list(computed)
        rest = iter(computed)
        return [next(rest) if view is None else view(inputs) for view in self.views]


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorCall:
    """A kernel that takes tensors: each argument is the position of its value, or the array of an intermediate.

    After them it takes the numbers in ``sizes``.
    """

    function: Callable[..., None]
    arguments: tuple[Any, ...]
    sizes: tuple[int | float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedCall:
    """A kernel with its arrays, and the positions of the values that are in them by the names of its arguments."""

    call: HostCall
    arrays: list[Any]
    places: Mapping[str, int]

    @property
    def run(self) -> Callable[[], None]:
        """Run on the memory that the arrays point to."""
        return functools.partial(self.call.on, self.arrays)

    def over(self, memory: Mapping[int, int]) -> "PlacedCall":
        """Return the call whose results are in the memory of other values; ``memory`` has their positions."""
        name_of = {place: name for name, place in self.places.items()}
        names = {
            name: name_of[memory[place]] for name, place in self.places.items()
            if place in memory and memory[place] in name_of
        }
        return replace(self, call=self.call.over(names)) if names else self

    @property
    def on_tensors(self) -> TensorCall | None:
        """The same call on tensors; None if the kernel is not one of tensors alone."""
        call, named = self.call, list(zip(self.call.arguments, self.arrays, strict=True))
        if call.of_tensors is None or call.regions is not None or not can_read_tensors():
            return None
        if not all(name in self.places or isinstance(array, np.ndarray) for name, array in named):
            return None
        arguments = tuple(self.places.get(name, array) for name, array in named)
        return TensorCall(function=call.of_tensors, arguments=arguments, sizes=call.sizes)


class HostRun:
    """One run as calls on separate array objects; used by one thread at a time.

    ``words`` hold addresses, each with the position of its array among inputs and results. ``calls`` are made once all
    addresses are in place.
    """

    __slots__ = (
        "_are_tensors", "_arguments", "_checked", "_guards", "_inputs", "_outputs", "_placed", "_results", "calls",
        "words",
    )
    blocks: tuple[()] = ()  # the memory between kernels is kept, because a process pays for new pages
    alignments: tuple[()] = ()  # any address is valid

    def __init__(
        self, inputs: Sequence[Any], computed: Sequence[Any], results: Results,
        words: Sequence[tuple[int, ctypes.c_void_p]], calls: Sequence[PlacedCall | Callable[[], None]],
        numbers: Sequence[tuple[int, Any, Any]],
    ) -> None:
        """Take calls whose arrays are repointed by ``words``, each with the position of its value.

        ``numbers`` are scalar inputs: the position among the values, a list or mapping, and the position or key there.
        """
        self.words, self._arguments, self._results = tuple(words), tuple(numbers), results
        self.calls = tuple(call.run if isinstance(call, PlacedCall) else call for call in calls)
        self._checked = tuple(
            call.call for call in calls if isinstance(call, PlacedCall) and call.call.missed is not None)
        # The calls whose results are in the memory of inputs, by the positions of both.
        self._placed: dict[tuple[tuple[int, int], ...], tuple[PlacedCall, ...]] = {
            (): tuple(call for call in calls if isinstance(call, PlacedCall))
        }
        self._inputs = tuple(map(_form, inputs))
        self._outputs = tuple(map(_form, computed))
        self._guards: deque[Callable[..., bool]] = deque(maxlen=GUARDS)
        self._are_tensors = bool(inputs) and all(hasattr(value, "data_ptr") for value in inputs)
        self._add_guard(inputs)

    @property
    def phases(self) -> tuple[tuple[Phase, Mapping[int, str]], ...]:
        """The phases in order, each with the names of its buffers by position; none if it calls more than kernels."""
        return tuple((placed.call.phase, {place: name for name, place in placed.places.items()})
                     for placed in self.placed({}))

    def placed(self, memory: Mapping[int, int]) -> tuple[PlacedCall, ...]:
        """Return the calls with results in the memory of inputs, or none if it calls more than kernels.

        ``memory`` has the positions of both.
        """
        plain = self._placed[()]
        if len(plain) < len(self.calls):
            return ()
        key = tuple(sorted(memory.items()))
        if key not in self._placed:
            self._placed[key] = tuple(call.over(memory) for call in plain)
        return self._placed[key]

    def missed(self, placed: Sequence[PlacedCall]) -> list[ctypes.c_int64]:
        """Return the words of its kernels, or of those of some calls, that are not 0 after a position was missed."""
        calls = [each.call for each in placed] or self._checked
        return [call.missed for call in calls if call.missed is not None]

    @property
    def strides(self) -> tuple[tuple[int, ...], ...]:
        """The strides of the expected inputs: in elements for torch tensors, in bytes for NumPy arrays."""
        return tuple(strides for _, _, strides, _ in self._inputs)

    @property
    def is_plain(self) -> bool:
        """Whether inputs are torch tensors, and all results are computed."""
        computed = self._results.makers is not None and all(view is None for view in self._results.views)
        return self._are_tensors and not self._arguments and computed

    def start(self, inputs: Sequence[Any], out: Sequence[Any] | None) -> list[Any] | None:
        """Return the outputs if inputs and ``out`` match the previous ones; otherwise do nothing and return None."""
        makers = self._results.makers
        addresses = None if out is None and makers is None else self._matching_words(inputs)
        if addresses is None:
            return None
        if out is None:
            computed = [make() for make in makers or ()]
            addresses += [_address(value) for value in computed]
        else:
            computed = [*out]
            apart = self._apart(inputs, computed, addresses)
            if apart is None:
                return None
            addresses = apart
        for place, word in self.words:
            word.value = addresses[place]
        for place, holder, key in self._arguments:
            holder[key] = addresses[place]
        for call in self.calls:
            call()
        for checked in self._checked:
            checked.check()
        return self._results.of(inputs, computed)

    def _matching_words(self, inputs: Sequence[Any]) -> list[Any] | None:
        """Return addresses and numbers if inputs match the previous ones."""
        if len(inputs) != len(self._inputs):
            return None
        for guard in self._guards:
            if guard(*inputs):
                return [value.data_ptr() for value in inputs]
        compared = _addresses_of(inputs, self._inputs)
        if compared is not None:
            self._add_guard(inputs)
        return compared

    def _add_guard(self, inputs: Sequence[Any]) -> None:
        guard = guard_of(inputs) if self._are_tensors else None
        if guard is not None:
            self._guards.appendleft(guard)

    def _apart(self, inputs: Sequence[Any], outputs: Sequence[Any], input_addresses: list[Any]) -> list[Any] | None:
        """Return all addresses if the caller's outputs are writable and share no memory with other arrays."""
        if len(outputs) != len(self._outputs) or not all(map(_is_writable, outputs)):
            return None
        written = _addresses_of(outputs, self._outputs)
        if written is None:
            return None
        values, addresses = [*inputs, *outputs], input_addresses + written
        spans = [
            (0, 0) if form[0] is None else (address, address + span_of(value))
            for value, address, form in zip(values, addresses, (*self._inputs, *self._outputs), strict=True)
        ]
        return addresses if are_apart(spans, len(inputs)) else None


Form = tuple[Any, Any, Any, Any]  # class, shape, strides and dtype of an array; for a number, its class and None


def _form(value: Any) -> Form:
    if isinstance(value, np.ndarray):
        return type(value), value.shape, value.strides, value.dtype
    if hasattr(value, "data_ptr"):
        return _kind(value), value.shape, value.stride(), value.dtype
    return None, type(value), None, None


def _kind(value: Any) -> type:
    """Return the class of an array; a parameter counts as a tensor."""
    kind = type(value)
    return kind.__base__ or kind if kind.__name__ == "Parameter" and hasattr(value, "data_ptr") else kind


def _addresses_of(values: Sequence[Any], forms: Sequence[Form]) -> list[Any] | None:
    """Return addresses and numbers of values if they have these forms, otherwise None."""
    numbers: list[Any] = []
    for value, (kind, shape, strides, dtype) in zip(values, forms, strict=True):
        if kind is None:
            if value.__class__ is not shape or (shape is int and not 0 <= value < LARGEST_WORD):
                return None
            numbers.append(value)
        elif _kind(value) is not kind or value.dtype != dtype or value.shape != shape:
            return None
        elif kind is np.ndarray:
            if value.strides != strides or not value.flags.aligned:
                return None
            numbers.append(_address(value))
        elif value.stride() == strides and value.is_cpu and not value.is_neg() and not value.is_conj():
            numbers.append(value.data_ptr())
        else:
            return None
    return numbers


def _address(value: Any) -> Any:
    if value.__class__ is np.ndarray:
        return ctypes.c_void_p.from_address(id(value) + _ADDRESS).value
    return value.data_ptr()


def _is_writable(value: Any) -> bool:
    return bool(value.flags.writeable) if isinstance(value, np.ndarray) else hasattr(value, "data_ptr")


class HostRuns(KeptRuns):
    """The last runs of a plan on the CPU."""

    __slots__ = ()

    def started(self, inputs: Sequence[Any], out: Sequence[Any] | None) -> list[Any] | None:
        """Return the outputs of a run that matches a stored run, or None if none matches."""
        runs = self._kept
        if not runs or inputs.__class__ not in {list, tuple} or not (out is None or out.__class__ in {list, tuple}):
            return None
        for _ in range(len(runs)):
            try:
                run: HostRun = runs.pop()
            except IndexError:  # another thread took it
                return None
            try:
                outputs = run.start(inputs, out)
            except (MemoryError, RuntimeError):  # the slow path handles or reports the error
                return None
            if outputs is not None:
                runs.append(run)
                return outputs
            runs.appendleft(run)
        return None

    def taken(self) -> HostRun | None:
        """Take out a run that only needs new addresses; None if there is none."""
        try:
            run: HostRun = self._kept.pop()
        except IndexError:
            return None
        return run if run.is_plain else None

    def again(
        self, calls: Sequence[Any], env: Environment, slots: Sequence[Slot | Scalar], returned: Sequence[Slot],
        origins: Sequence[Origin | None], inputs: Sequence[Any], outputs: Sequence[Any],
        aliases: Mapping[str, Sequence[str]], *, makes_results: bool = True,
    ) -> HostRun | None:
        """Return a repeatable run; None if the run did more than call kernels on the memory of inputs and outputs.

        Parameters
        ----------
        calls, env
            The calls of the run, and its memory.
        slots, returned, inputs, outputs
            The plan's inputs and results, with their values.
        origins
            For each result, None or the input that it is a view of.
        aliases
            Names of intermediates that share the memory of an input or a result, by the name of that tensor.
        makes_results
            Whether the kernels write results as in new arrays.
        """
        computed = [slot for slot, origin in zip(returned, origins, strict=True) if origin is None]
        made = [value for value, origin in zip(outputs, origins, strict=True) if origin is None]
        makers = _makers(computed, [value for value in inputs if not isinstance(value, bool | int | float)])
        if makers is None or any(needs_scalars(origin) for origin in origins):
            return None
        # Kernels take flat memory; the array library takes arrays.
        flat_only = all(isinstance(call, HostCall) for call in calls)
        names = {s.name: (s.name, *aliases.get(s.name, ())) for s in (*slots, *computed)}
        callers = {name for aliases_of in names.values() for name in aliases_of}
        # An empty array has no address to change; a result that is a view of an input may also be computed into
        # storage.
        tensors = [slot for slot in (*slots, *computed) if isinstance(slot, Slot)]
        empty = {name for s in tensors if not s.layout.size for name in names[s.name]}
        run_env = env.copy()
        for name in callers - empty:
            run_env.drop(name)
        words: list[tuple[int, ctypes.c_void_p]] = []
        scalars: dict[str, int] = {}
        for place, (slot, value) in enumerate(zip((*slots, *computed), (*inputs, *made), strict=True)):
            if not isinstance(slot, Slot):
                if type(value) is not _NUMBERS.get(slot.dtype):
                    return None
                scalars[slot.name] = place
                continue
            if not slot.layout.size:
                continue  # not accessed
            if not _is_direct(value, env.arguments[slot.name]):
                return None
            for name in names[slot.name]:
                run_env.arguments[name] = _pointing(env.arguments[name])
                words.append((place, _word(run_env.arguments[name])))
                if not flat_only:
                    run_env.arrays[name] = _pointing(env.arrays[name])
                    words.append((place, _word(run_env.arrays[name])))
        at = {name: place for place, slot in enumerate((*slots, *computed)) for name in names[slot.name]
              if isinstance(slot, Slot) and slot.layout.size}
        bound: list[PlacedCall | Callable[[], None]] = []
        numbers: list[tuple[int, Any, Any]] = []
        if not flat_only:
            numbers += [(place, run_env.arguments, name) for name, place in scalars.items()]
        for call in calls:
            if not isinstance(call, HostCall):
                bound.append(functools.partial(call, run_env))
                continue
            arguments = [run_env.arguments.get(name) for name in call.arguments]  # each run sets the numbers
            places = {name: at[name] for name in call.arguments if name in at}
            bound.append(PlacedCall(call=call, arrays=arguments, places=places))
            numbers += [(scalars[n], arguments, k) for k, n in enumerate(call.arguments) if n in scalars]
        views = (
            None if origin is None else view_of(origin, inputs, output)
            for origin, output in zip(origins, outputs, strict=True)
        )
        results = Results(makers=tuple(makers) if makes_results else None, views=tuple(views))
        keep_freed_memory()
        return HostRun(inputs, made, results, words, bound, numbers)


def _pointing(array: Any) -> Any:
    """Return an array of the same form that owns no memory and can point anywhere."""
    address, kind = array.__array_interface__["data"][0], f"|V{array.itemsize}"
    return np.asarray(Memory(None, address, array.shape, kind, array.strides)).view(array.dtype)


def movable(dtype: DataType) -> tuple[Any, ctypes.c_void_p]:
    """Return an array of stored elements that can point anywhere, for a kernel, and the word with its address."""
    array = _pointing(np.empty(1, storage_dtype(dtype)))
    return array, _word(array)


def _is_direct(value: Any, flat: Any) -> bool:
    """Whether kernels received the memory of a value directly, starting with its first element."""
    if type(value) is np.ndarray:
        return bool(_address(value) == _address(flat))
    torch = torch_module()
    if torch is None or type(value) not in {torch.Tensor, torch.nn.Parameter} or not value.is_cpu:
        return False
    plain = not value.is_neg() and not value.is_conj()
    return bool(plain and value.data_ptr() == _address(flat))


def _makers(returned: Sequence[Slot], tensors: Sequence[Any]) -> list[Callable[[], Any]] | None:
    """Return functions that make result arrays with the library of all inputs; None if the inputs are mixed."""
    if all(type(value) is np.ndarray for value in tensors):
        return [_numpy_maker(slot) for slot in returned]
    torch = torch_module()
    if torch is None or not all(isinstance(value, torch.Tensor) for value in tensors):
        return None
    make = empty_strided()
    return [
        functools.partial(make, slot.shape, slot.dense, getattr(torch, TORCH_OF[slot.tensor.dtype]))
        for slot in returned
    ]


def _numpy_maker(slot: Slot) -> Callable[[], Any]:
    return lambda: np.ndarray(slot.shape, slot.numpy, strides=slot.dense_bytes)
