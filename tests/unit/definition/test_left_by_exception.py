"""A definition whose block ended with an exception is not a fusion: it is not run, segmented or scheduled."""

import numpy as np
import pytest

from fuser_lab import FusionCache, FusionDefinition
from fuser_lab.errors import StateError

X = np.ones((4, 4), np.float32)


def left(error=ValueError, cache=None):
    fd, tensors = FusionDefinition(cache=cache), []

    def fail():
        with fd:
            tensors.append(fd.define_tensor(shape=[-1, -1], contiguity=True))
            fd.add_output(fd.ops.neg(tensors[0]))
            raise error

    with pytest.raises(error):
        fail()
    return fd, tensors[0]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize(
    "use",
    [
        lambda fd, _: fd.execute([X]),
        lambda fd, _: fd.manual_execute([X]),
        lambda fd, _: fd.validate([X]),
        lambda fd, _: fd.plan_for([X]),
        lambda fd, _: fd.segment([X]),
        lambda fd, _: fd.fusion,
        lambda fd, _: fd.state,
        lambda fd, _: fd.print_math(),
        lambda _, x: x.split(0, 4),
    ],
)
def test_it_is_refused(use, error):
    fd, x = left(error)
    says = f"the definition was left by an exception ({error.__name__}) before it was complete; define it again."
    with pytest.raises(StateError) as raised:
        use(fd, x)
    assert str(raised.value) == says
    assert repr(fd) == f"<FusionDefinition: {says}>"


def test_an_exception_that_is_caught_inside_does_no_harm():
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1, -1], contiguity=True)
        with pytest.raises(TypeError):
            fd.ops.neg(None)
        fd.add_output(fd.ops.neg(x))
    np.testing.assert_array_equal(fd.execute([X])[0], -X)


def test_a_cache_gives_it_nothing_and_keeps_nothing_of_it():
    cache = FusionCache()
    assert left(cache=cache)[0].fusion_id is None
    assert cache.num_fusions() == 0
    with FusionDefinition(cache=cache) as fd:
        fd.add_output(fd.ops.neg(fd.define_tensor(shape=[-1, -1], contiguity=True)))
    with pytest.raises(StateError, match="was left by an exception"):
        left(cache=cache)[0].execute([X])
    assert cache.num_fusions() == 1
    assert fd.fusion_id == 0
