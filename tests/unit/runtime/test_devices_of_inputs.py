"""The device of a run, and the error for inputs on several devices; no GPU is needed."""

import pytest

import fuser_lab as fl
from fuser_lab.definition.binding import bind
from fuser_lab.definition.spec import TensorSpec
from fuser_lab.errors import InputError
from fuser_lab.runtime.binding import device_of


def on(device: str, shape: tuple[int, ...] = (3, 4)) -> TensorSpec:
    return TensorSpec(shape=shape, dtype=fl.DataType.Float, strides=(4, 1)[: len(shape)], device=device)


def test_a_run_takes_place_where_the_tensors_are():
    assert device_of([on("cpu"), 2.0]) == "cpu"
    assert device_of([on("cuda:1"), on("cpu", ()), on("cuda:1")]) == "cuda:1"
    assert device_of([]) == "cpu"


def test_tensors_on_two_gpus_are_refused_with_both_names():
    with pytest.raises(InputError, match="the inputs are on cuda:0 and cuda:1; a run uses one GPU"):
        device_of([on("cuda:0"), on("cuda:1")])


@pytest.mark.parametrize(("first", "second"), [("cuda:0", "cuda:1"), ("cpu", "cuda:0"), ("cuda:2", "cpu")])
def test_a_definition_says_which_inputs_are_apart(first, second):
    with fl.FusionDefinition() as fd:
        x, y = (fd.define_tensor([-1, -1], contiguity=True) for _ in range(2))
        fd.add_output(fd.ops.add(x, y))
    with pytest.raises(InputError, match=f"inputs 0 and 1 are on different devices, {first} and {second}"):
        bind(fd.definition, [on(first), on(second)])
