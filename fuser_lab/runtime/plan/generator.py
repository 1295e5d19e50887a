"""Default seeds and offsets for random numbers, drawn from the generator of the inputs' library.

One run draws one seed, and one offset per random expression, in steps of four as in nvFuser. With torch, the seed is
that of torch's generator and offsets continue from run to run, so that after ``torch.manual_seed(s)`` the runs of a
definition equal those with seed s and offsets 0, 4, 8, ... With NumPy, the seed is drawn from ``np.random``, so that
``np.random.seed(s)`` repeats everything after it.
"""

from collections import OrderedDict
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

import numpy as np

from fuser_lab.ir import Fusion
from fuser_lab.passes import ExplicitSeeds, offsets_drawn
from fuser_lab.process.forks import new_lock
from fuser_lab.runtime.arrays import inputs_to_numpy, is_torch, torch_module

STEP = 4  # offsets per expression: the words of one Philox counter
_KEPT_STATES = 256  # generators whose offsets are kept
_lock = new_lock()
_offsets: OrderedDict[bytes, int] = OrderedDict()  # by the state of torch's CPU generator after a run


def with_seeds(fusion: Fusion, inputs: Sequence[Any], *, ahead: bool = False, like: Sequence[Any] = ()) -> list[Any]:
    """Return inputs followed by the seed and offsets that the fusion needs and the caller omitted.

    With ``ahead``, they are those of the next run, and the generator does not advance. The arrays ``like`` select the
    generator if the inputs do not.
    """
    count = offsets_drawn(fusion, len(inputs))
    if not count:
        return list(inputs)
    with _lock:
        seed, first = _draw([*inputs, *like], count, ahead=ahead)
    return [*inputs, seed, *(first + STEP * number for number in range(count))]


def reference_form(
    fusion: Fusion, inputs: Sequence[Any], *, ahead: bool = False, like: Sequence[Any] = (),
) -> tuple[Fusion, list[Any]]:
    """Return a concretized fusion and its inputs for the reference evaluation: NumPy arrays, seeds and offsets."""
    explicit = ExplicitSeeds().run(fusion)
    return explicit, inputs_to_numpy(with_seeds(explicit, inputs, ahead=ahead, like=like))


def _draw(inputs: Sequence[Any], count: int, *, ahead: bool) -> tuple[int, int]:
    """Return a seed and the first of ``count`` offsets, and advance the generator unless looking ahead."""
    tensors = [value for value in inputs if is_torch(value)]
    if not tensors:
        state = np.random.get_state()  # noqa: NPY002 - the generator that users seed
        seed = int(np.random.randint(0, 1 << 62, dtype=np.int64))  # noqa: NPY002
        if ahead:
            np.random.set_state(state)  # noqa: NPY002
        return seed, 0
    torch = torch_module()
    device = next((tensor.device for tensor in tensors if tensor.is_cuda), None)
    if device is not None:
        generator = torch.cuda.default_generators[device.index]
        offset = int(generator.get_offset())
        if not ahead:
            generator.set_offset(offset + STEP * count)
        return _as_int(generator.initial_seed()), offset
    if ahead:
        state = torch.get_rng_state()
        try:
            return _as_int(torch.initial_seed()), _next_offset(torch, count)
        finally:
            torch.set_rng_state(state)
    return _as_int(torch.initial_seed()), _next_offset(torch, count)


def _next_offset(torch: Any, count: int) -> int:
    """Return the offset of torch's CPU generator, which has no counter, from its state."""
    generator = torch.default_generator
    before = _state(generator)
    offset = _offsets.get(before)
    if offset is None:
        fresh = torch.Generator().manual_seed(generator.initial_seed())
        # It depends on all draws since the generator was seeded, as with torch's own numbers.
        offset = 0 if _state(fresh) == before else STEP * int(torch.randint(1 << 40, ()))
    torch.rand(())
    _offsets[_state(generator)] = offset + STEP * count
    if len(_offsets) > _KEPT_STATES:
        _offsets.popitem(last=False)
    return offset


def _state(generator: Any) -> bytes:
    return blake2b(generator.get_state().numpy().tobytes(), digest_size=16).digest()


def _as_int(seed: int) -> int:
    """Return a 64-bit seed as an Int."""
    return seed - (1 << 64) if seed >> 63 else seed
