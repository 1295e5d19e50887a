"""Inputs with which the explorer runs the result of `load_repro`."""

import pytest

import fuser_lab as fl
from fuser_lab import DataType, FusionDefinition
from fuser_lab.definition.binding import bind
from fuser_lab.definition.spec import Fill
from fuser_lab.errors import InputError
from fuser_lab.execution.runnable import bytes_needed, runnable


def bias(rows=-1):
    with FusionDefinition() as fd:
        x = fd.define_tensor([rows, -1], contiguity=True, dtype=DataType.Float)
        b = fd.define_tensor([-1], contiguity=True, dtype=DataType.Float)
        fd.add_output(fd.ops.sum(fd.ops.exp(fd.ops.add(x, b)), [1]))
    return fd.fusion


def test_inputs_that_fit_stay():
    inputs = [fl.spec((64, 32)), fl.spec((32,))]
    found = runnable(bias(), inputs, free=1 << 20)
    assert found.fits
    assert list(found.inputs) == inputs
    assert runnable(bias(), inputs, free=None).said == found.said == "Run creates inputs of the given sizes"


def test_bytes_needed_counts_what_lives_at_once():
    fusion = bind(bias(), [fl.spec((64, 32)), fl.spec((32,))]).fusion
    # Inputs, and a sum beside its exponential; twice, for the reference and the plan.
    assert bytes_needed(fusion) == 2 * 4 * (64 * 32 + 32 + 2 * 64 * 32)


def test_inputs_that_do_not_fit_become_smaller_and_stay_consistent():
    inputs = [fl.spec((1 << 14, 1 << 10), strides=(1, 1 << 14)), fl.spec((1 << 10,))]
    found = runnable(bias(), inputs, free=1 << 20)
    x, b = found.inputs
    assert found.fits
    assert x.shape[1] == b.shape[0]
    assert x.strides == (1, x.shape[0])
    needed = bytes_needed(bind(bias(), found.inputs).fusion)
    assert (1 << 20) * 0.6 / 2.1 < needed <= (1 << 20) * 0.6
    assert found.said.startswith(f"Smaller inputs ({list(x.shape)} for [16384, 1024]")
    assert "are free" in found.said


def test_fixed_sizes_stay_and_the_rest_shrinks():
    found = runnable(bias(1 << 14), [fl.spec((1 << 14, 256)), fl.spec((256,))], free=1 << 20)
    assert found.inputs[0].shape == (1 << 14, 1)
    least = runnable(bias(1 << 20), [fl.spec((1 << 20, 256)), fl.spec((256,))], free=1 << 20)
    assert not least.fits
    assert least.said.startswith("These inputs cannot be created: the given sizes need")
    given = [fl.spec((1 << 14, 1 << 10)), fl.spec((1 << 10,))]
    assert not runnable(bias(), given, free=1 << 20, is_fixed=True).fits


def test_places_stay_inside_of_what_they_point_into():
    with FusionDefinition() as fd:
        table = fd.define_tensor([-1, 8], contiguity=True, dtype=DataType.Float)
        at = fd.define_tensor([-1], contiguity=True, dtype=DataType.Int)
        fd.add_output(fd.ops.index_select(table, at, 0))
    rows = 1 << 16
    inputs = [fl.spec((rows, 8)), fl.spec((64,), "int64", fill=Fill(kind="integers", low=0, high=rows))]
    found = runnable(fd.fusion, inputs, free=1 << 20)
    assert found.fits
    assert found.inputs[1].materialize().max() < found.inputs[0].shape[0] < rows
    listed = fl.spec((64,), "int64", fill=Fill(kind="values", values=(rows - 1,)))
    assert not runnable(fd.fusion, [inputs[0], listed], free=1 << 20).fits


def test_without_inputs_open_sizes_are_assumed():
    found = runnable(bias(), [], free=1 << 30)
    assert [v.shape for v in found.inputs] == [(256, 256), (256,)]
    assert found.said == "No inputs are given, so open sizes are assumed to be 256"
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, 8], contiguity=True, stride_order=[0, 1])
        fd.add_output(fd.ops.mul(fd.ops.reshape(x, [4, 2, 8]), fd.define_scalar(None, DataType.Double)))
    found = runnable(fd.fusion, [], free=1 << 30)
    assert (found.inputs[0].shape, found.inputs[0].strides, found.inputs[1]) == ((8, 8), (1, 8), 1.0)
    with pytest.raises(InputError, match="given 1"):
        runnable(bias(), [fl.spec((3, 3))], free=1 << 30)
