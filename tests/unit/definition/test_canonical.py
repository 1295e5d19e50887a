"""Canonical records: spelling does not matter, and a definition, its text and its records are one fusion."""

import numpy as np
import pytest

import fuser_lab as fl
from fuser_lab import DataType, FusionCache, FusionDefinition
from fuser_lab.definition import builder
from fuser_lab.definition.record import named_in
from fuser_lab.errors import DefinitionError
from tests.unit.ops.sampling import ENTRIES, LETTERS

ROWS = [
    lambda fd, x: fd.ops.sum(x, dims=[1]),
    lambda fd, x: fd.ops.sum(x, [1]),
    lambda fd, x: fd.ops.sum(x, (-1,), False, DataType.Null),
    lambda fd, x: fd.ops.sum(arg=x, dims=range(1, 2), keepdim=False),
    lambda fd, x: fd.ops.sum(x, dims=[np.int64(-1)], keepdim=np.bool_(False)),
]
TENSORS = [
    lambda fd: fd.define_tensor(shape=[-1, -1], contiguity=True),
    lambda fd: fd.define_tensor([-1, -1], [True, True], DataType.Float),
    lambda fd: fd.define_tensor(shape=(-1, -1), contiguity=(True, True), stride_order=[1, 0]),
    lambda fd: fd.define_tensor(sizes=[6, 4], strides=[4, 1]),
    lambda fd: fd.define_tensor([3, 7], [7, 1], DataType.Float, False),
    lambda fd: fd.from_array(np.zeros((2, 3), np.float32)),
]
SCALED = [
    lambda fd, x: fd.ops.mul(x, 2.0),
    lambda fd, x: x * 2.0,
    lambda fd, x: fd.ops.mul(x, np.float64(2)),
    lambda fd, x: fd.ops.mul(x, fd.define_scalar(2.0)),
    lambda fd, x: fd.ops.mul(x, fd.define_scalar(2, DataType.Double)),
    lambda fd, x: fd.ops.mul(x, fd.define_scalar(value=2.0, dtype=DataType.Double)),
]


def defined(cache, tensor=TENSORS[0], total=ROWS[0], scaled=SCALED[0]):
    with FusionDefinition(cache=cache) as fd:
        fd.add_output(scaled(fd, total(fd, tensor(fd))))
    return fd


@pytest.mark.parametrize("number", range(6))
def test_spelling_does_not_count(number):
    cache = FusionCache()
    first = defined(cache)
    records = cache.stats().records
    again = defined(cache, *(found[number % len(found)] for found in (TENSORS, ROWS, SCALED)))
    assert again.fusion is first.fusion
    assert again.state is first.state
    assert (cache.num_fusions(), cache.stats().records, cache.stats().hits) == (1, records, 1)


def test_a_spelling_that_was_met_once_builds_nothing(monkeypatch):
    cache = FusionCache()
    ways = {"tensor": TENSORS[3], "total": ROWS[2], "scaled": SCALED[4]}
    first = defined(cache)
    defined(cache, **ways)
    for name in ("_emit_all", "_tensor_input", "_add_output"):
        monkeypatch.setattr(builder.FusionBuilder, name, None)
    assert defined(cache, **ways).fusion is first.fusion
    # Each call occurred before, but never all of them together.
    mixed = defined(cache, tensor=TENSORS[3], scaled=SCALED[4])
    assert mixed.fusion is first.fusion


def test_other_axes_numbers_and_dtypes_are_other_fusions():
    cache = FusionCache()
    defined(cache)
    defined(cache, total=lambda fd, x: fd.ops.sum(x, dims=[0]))
    defined(cache, total=lambda fd, x: fd.ops.sum(x, dims=[1], keepdim=True))
    defined(cache, total=lambda fd, x: fd.ops.max(x, dims=[1]))
    defined(cache, scaled=lambda fd, x: fd.ops.mul(x, 3.0))
    defined(cache, scaled=lambda fd, x: fd.ops.mul(x, fd.define_scalar()))
    defined(cache, tensor=lambda fd: fd.define_tensor([-1, -1], contiguity=[False, True]))
    defined(cache, tensor=lambda fd: fd.define_tensor([-1, -1], True, DataType.Half))
    defined(cache, tensor=lambda fd: fd.define_tensor([-1, 5], True))
    assert cache.num_fusions() == 9


def printed(cache, fd):
    names = {"FusionDefinition": FusionDefinition, "DataType": DataType}
    exec(repr(fd), names)
    with FusionDefinition(cache=cache) as again:
        names["nvfuser_fusion"](again)
    return again


def recorded(cache, fd):
    with FusionDefinition(cache=cache) as again:
        values = {}
        for step in fd.steps:
            result = again.call(step.record, values)
            values.update(named_in(result))
    return again


CALLS = [(name, number) for name, entry in ENTRIES.items() for number in range(len(entry.samples))]


@pytest.mark.parametrize("name", ENTRIES)
def test_every_call_is_one_fusion_with_its_text_and_its_records(name):
    cache = FusionCache()
    for sample in ENTRIES[name].samples:
        with FusionDefinition(cache=cache) as fd:
            names = {letter: fd.define_tensor(list(arg.shape), True, arg.dtype)
                     for letter, arg in zip(LETTERS, sample.args, strict=False)}
            result = eval(sample.call, {"fd": fd, "DataType": DataType, **names})
            for value in result if isinstance(result, list | tuple) else [result]:
                if value is not None and hasattr(value, "ndim"):
                    fd.add_output(value)
        if fd.fusion_id is None:
            continue
        again = recorded(cache, fd)
        assert again.state is fd.state, sample.call
        assert printed(cache, fd).fusion_id == fd.fusion_id, sample.call


def test_printed_forms_are_the_same_fusion():
    cache = FusionCache()
    with FusionDefinition(cache=cache) as fd:
        x = fd.define_tensor(shape=[-1, -1], contiguity=True)
        fd.ops.exp(x)
        _, mean = fd.ops.var_mean(x, dims=[-1], correction=0, keepdim=True)
        fd.add_output(fd.ops.sub(x, mean))
    again = printed(cache, fd)
    assert again.fusion_id == fd.fusion_id == 0
    assert cache.num_fusions() == 1
    # The text has one call per op, so its numbers differ.
    assert len(again.state.states) != len(fd.state.states)
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    for definition in (fd, again):
        np.testing.assert_allclose(definition.execute([x])[0], [[-1, 0, 1], [-1, 0, 1]], atol=1e-6)
    assert again.fec is fd.fec


def test_segments_and_their_texts_are_the_same_fusions():
    cache = FusionCache()
    with FusionDefinition(cache=cache) as fd:
        x, y = (fd.define_tensor(shape=[-1, -1], contiguity=True) for _ in range(2))
        fd.add_output(fd.ops.add(y, fd.ops.sum(fd.ops.mul(x, 0.5), dims=[1], keepdim=True)))
    segments = fd.segment([fl.spec((64, 32)), fl.spec((64, 128))])
    assert len(segments) == 2
    known = cache.num_fusions()
    assert [printed(cache, segment).fusion_id for segment in segments] == [segment.fusion_id for segment in segments]
    assert cache.num_fusions() == known == 3


def test_files_keep_all_paths_of_a_fusion(tmp_path):
    cache = FusionCache()
    with FusionDefinition(cache=cache) as fd:
        x = fd.define_tensor(shape=[-1, -1], contiguity=True)
        fd.add_output(fd.ops.sum(x, dims=[1], keepdim=True))
    printed(cache, fd)
    loaded = FusionCache.load(cache.save(tmp_path / "cache.json"))
    assert str(loaded).splitlines()[1:] == str(cache).splitlines()[1:]
    assert (loaded.num_fusions(), loaded.stats().hits, [kept.hits for kept in loaded]) == (1, 0, [1])
    assert printed(loaded, fd).fusion_id == 0
    assert loaded.stats().hits == 1


def test_equal_fusions_go_together():
    cache = FusionCache(max_fusions=1)
    first = defined(cache)
    printed(cache, first)
    with FusionDefinition(cache=cache) as other:
        other.add_output(other.ops.neg(other.define_tensor(shape=[3])))
    assert (cache.num_fusions(), cache.stats().records) == (1, 3)
    assert defined(cache).fusion_id == 2


def test_a_refused_call_is_refused_again(monkeypatch):
    cache = FusionCache()

    def wrong():
        with FusionDefinition(cache=cache) as fd:
            x = fd.define_tensor(shape=[-1, -1], contiguity=True)
            fd.add_output(fd.ops.sum(x, dims=[2]))

    with pytest.raises(DefinitionError) as first:
        wrong()
    monkeypatch.setattr(builder.FusionBuilder, "_tensor_input", None)
    with pytest.raises(DefinitionError) as second:
        wrong()
    assert str(second.value) == str(first.value)
    assert second.value is not first.value
    assert cache.num_fusions() == 0
    assert "is refused: sum: dims=2 is outside" in str(cache)
    monkeypatch.undo()
    assert defined(cache).fusion_id == 0


def test_few_refusals_are_remembered():
    cache = FusionCache()
    for number in range(300):
        with pytest.raises(DefinitionError), FusionDefinition(cache=cache) as fd:
            fd.ops.sum(fd.define_tensor(shape=[number + 2]), dims=[2])
    assert cache.stats().records == 256
