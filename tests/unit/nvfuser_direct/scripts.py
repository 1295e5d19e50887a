"""Functions that the scripts of these tests share: run, print, run the printed text, compare values and strides."""

import copy

from needs import needs

from fuser_lab import nvfuser_direct
from fuser_lab.execution.validation import check_outputs
from fuser_lab.nvfuser_direct import DataType, FusionDefinition

torch = needs("torch")


def flat(inputs):
    """Inputs without nesting."""
    return [x for value in inputs for x in (flat(value) if isinstance(value, list | tuple) else [value])]


def printed_again(fd):
    """The definition that results from executing the text of another one."""
    names = {"FusionDefinition": FusionDefinition, "DataType": DataType, "nvfuser_direct": nvfuser_direct}
    exec(repr(fd), names)
    with FusionDefinition() as again:
        names["nvfuser_fusion"](again)
    return again


def exec_nvfuser(define, inputs, **options):
    """Outputs and definition: valid, and the printed one gives the same values, dtypes and strides on copies."""
    with FusionDefinition() as fd:
        define(fd)
    first, second = copy.deepcopy(inputs), copy.deepcopy(inputs)
    outputs = fd.execute(first, **options)
    check_outputs(fd.definition, flat(inputs), outputs)
    again = printed_again(fd)
    assert again.fusion == fd.fusion
    repeated = again.execute(second, **options)
    assert len(outputs) == len(repeated)
    for got, expected in zip(outputs, repeated, strict=True):
        assert isinstance(got, torch.Tensor)
        torch.testing.assert_close(got, expected, rtol=0, atol=0, equal_nan=True)
        assert got.stride() == expected.stride()
    for a, b in zip(flat(first), flat(second), strict=True):
        if isinstance(a, torch.Tensor):
            torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)
    return outputs, fd


def same(outputs, *expected):
    """Outputs are close to what is expected, of the same dtypes."""
    assert len(outputs) == len(expected)
    for got, wanted in zip(outputs, expected, strict=True):
        torch.testing.assert_close(got, wanted)
