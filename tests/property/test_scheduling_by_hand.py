"""Random schedules by hand: legal ones preserve the values, and any prefix of a schedule is a schedule."""

import contextlib
import random

import pytest
from hand_schedules import arrays, bound, check_scheduled
from hypothesis import HealthCheck, given, target
from hypothesis import strategies as st
from thorough import tries

from fuser_lab.api.functions import FusionDefinition
from fuser_lab.definition.scheduling import RULES
from fuser_lab.errors import ScheduleError, UnsupportedError
from fuser_lab.interpreter import evaluate
from fuser_lab.ir.replay import replay
from fuser_lab.ir.transform import MemoryType
from fuser_lab.ir.transform import ParallelType as P

pytestmark = pytest.mark.property

TYPES = (P.serial, P.grid_x, P.grid_y, P.block_x, P.block_y, P.block_z, P.unroll, P.unswitch, P.vectorize)
LIKE = ("transform_like", "parallelize_like", "inline_most")
KINDS = (
    "split", "split", "merge", "reorder", "parallelize", "parallelize", "cache_after", "cache_before", "rfactor",
    "set_memory_type", "inline_at", "compute_at", *LIKE,
)


def pointwise():
    """A bias, a factor per row, and a value that is read twice and returned."""
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1, -1], contiguity=True)
        b = fd.define_tensor(shape=[-1], contiguity=True)
        r = fd.define_tensor(shape=[-1, 1], contiguity=[True, None])
        y = fd.ops.add(x, fd.ops.broadcast(b, [True, False]))
        fd.add_output(fd.ops.mul(fd.ops.relu(y), fd.ops.neg(r)))
        fd.add_output(fd.ops.sub(y, x))
    return fd, ((5, 12), (12,), (5, 1))


def reduction():
    """Two reductions of three axes, the second over the axes that the first leaves."""
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1, -1, -1], contiguity=True)
        y = fd.ops.exp(x)
        s = fd.ops.sum(y, [1, 2])
        fd.add_output(fd.ops.mul(s, 2.0))
        fd.add_output(fd.ops.max(s, [0]))
    return fd, ((4, 3, 7),)


def normalization():
    """x minus the mean of its row."""
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1, -1], contiguity=True)
        s = fd.ops.broadcast(fd.ops.sum(x, [1]), [False, True])
        fd.add_output(fd.ops.sub(x, fd.ops.mul(s, 0.1)))
    return fd, ((3, 10),)


def softmax():
    """A softmax that is returned transposed, and summed over its rows."""
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1, -1, -1], contiguity=True)
        power = fd.ops.exp(fd.ops.sub(x, fd.ops.broadcast(fd.ops.max(x, [2]), [False, False, True])))
        out = fd.ops.truediv(power, fd.ops.broadcast(fd.ops.sum(power, [2]), [False, False, True]))
        fd.add_output(fd.ops.permute(out, [0, 2, 1]))
        fd.add_output(fd.ops.sum(out, [0, 1]))
    return fd, ((3, 4, 7),)


BUILDS = (pointwise, reduction, normalization, softmax)


@st.composite
def actions(draw):
    """A kind of transform, a tensor and two numbers, interpreted by the kind."""
    return draw(st.sampled_from(KINDS)), draw(st.integers(0, 20)), draw(st.integers(0, 5)), draw(st.integers(1, 9))


def do(fd, tensors, action):
    kind, which, axis, number = action
    tv = tensors[which % len(tensors)]
    if kind == "split":
        tv.split(axis, number, inner_split=which % 3 != 0)
    elif kind == "merge":
        tv.merge(axis)
    elif kind == "reorder":
        tv.reorder({axis: number % 4})
    elif kind == "parallelize":
        tv.parallelize(axis, TYPES[(which + number) % len(TYPES)])
    elif kind in {"cache_after", "cache_before"}:
        tensors.append(getattr(tv, kind)())
    elif kind == "rfactor":
        tensors.append(tv.rfactor([axis]))
    elif kind == "set_memory_type":
        tv.set_memory_type(MemoryType.shared if number % 2 else MemoryType.local)
    elif kind == "inline_at":
        tv.inline_at(axis, best_effort=number % 2 == 0)
    elif kind == "compute_at":
        tv.compute_at(tensors[number % len(tensors)], axis, "best_effort")
    elif kind == "transform_like":
        tv.transform_like()
    elif kind == "parallelize_like":
        tv.parallelize_like()
    else:
        fd.sched.inline_most()


@pytest.mark.parametrize("build", BUILDS)
@tries(30, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps=st.lists(actions(), min_size=1, max_size=14))
def test_random_schedules_keep_the_values(build, steps):
    fd, shapes = build()
    inputs = arrays(shapes)
    fusion = bound(fd, inputs)
    wanted = evaluate(fusion, inputs, exact=False)
    tensors = fd.sched.tensors()
    for step in steps:
        before = fd.sched.transforms
        try:
            do(fd, tensors, step)
        except (ScheduleError, UnsupportedError):
            assert fd.sched.transforms == before
    transforms = fd.sched.transforms
    for count in range(len(transforms) + 1):
        scheduled = replay(fusion, transforms[:count], RULES)
        assert set(fusion.tensors) <= set(scheduled.tensors)
    target(float(len(transforms)))
    # Threads may hold values that others need, or loops may wait for each other: this is refused, not computed wrongly.
    with contextlib.suppress(ScheduleError):
        check_scheduled(scheduled, inputs, wanted)


def spread(build, factors, merges, order, types, sizes, memory, inline):
    """Schedule an output, propagate it to all tensors, and check the values; returns whether a kernel follows it."""
    fd, shapes = build()
    smaller = dict(zip(sorted({n for s in shapes for n in s} - {1}), sizes, strict=False))
    inputs = arrays([tuple(smaller.get(n, n) for n in shape) for shape in shapes])
    tensors = {tv.name: tv for tv in fd.sched.tensors()}
    reference = tensors[fd.definition.outputs[0].name]
    for tv in [t for t in tensors.values() if t.val in fd.definition.tensor_inputs]:
        tv.cache_after().set_memory_type(memory)

    def attempt(act, *args):
        with contextlib.suppress(ScheduleError):
            act(*args)

    for _ in range(merges):
        attempt(reference.merge, 0)
    for axis, factor, inner in factors:
        attempt(reference.split, axis, factor, inner)
    count = len(reference.scheduled.loop)
    reference.reorder([i for i in order if i < count])
    for axis, kind in enumerate(types):
        attempt(reference.parallelize, axis, kind)
    attempt(reference.transform_like)
    attempt(reference.parallelize_like)
    if inline:
        fd.sched.inline_most()
    fusion = bound(fd, inputs)
    try:
        check_scheduled(fd.hand.replayed(fusion), inputs, evaluate(fusion, inputs, exact=False))
    except ScheduleError:
        return False
    return True


@pytest.mark.parametrize("build", BUILDS)
@tries(30, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    factors=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 9), st.booleans()), max_size=3),
    merges=st.integers(0, 2), order=st.permutations(range(6)),
    types=st.lists(st.sampled_from(TYPES[:-1]), max_size=4), sizes=st.tuples(*[st.integers(1, 11)] * 3),
    memory=st.sampled_from([MemoryType.local, MemoryType.shared]), inline=st.booleans(),
)
def test_schedules_that_spread_from_one_output_keep_the_values(
    build, factors, merges, order, types, sizes, memory, inline,
):
    spread(build, factors, merges, order, types, sizes, memory, inline)


@pytest.mark.parametrize("build", BUILDS)
def test_kernels_follow_many_schedules_that_spread_from_one_output(build):
    rng = random.Random(7)
    followed = 0
    for _ in range(20):
        factors = [(rng.randrange(3), rng.randrange(2, 6), True) for _ in range(2)]
        types = rng.sample([P.grid_x, P.grid_y, P.block_x, P.block_y, P.serial, P.unroll], 3)
        followed += spread(
            build, factors, rng.randrange(2), rng.sample(range(6), 6), types, (3, 5, 8), MemoryType.shared, True,
        )
    assert followed >= 6
