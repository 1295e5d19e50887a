"""Every op can be read: the legal and illegal calls of the registry, inside a script."""

import pytest

import fuser_lab as fl
from fuser_lab import DataType, FusionDefinition
from fuser_lab.definition.handles import Tensor
from fuser_lab.errors import FuserLabError, UnsupportedError
from fuser_lab.ops import COMPOSITES, OPS
from tests.unit.ops.misuses import MISUSES

ENTRIES = {**OPS, **COMPOSITES}
NAMED = {
    "x": "[3, 4], dtype=DataType.Float", "y": "[3, 5], dtype=DataType.Float", "v": "[4], dtype=DataType.Float",
    "s": "[], dtype=DataType.Float", "n": "[3, 4], dtype=DataType.Int", "m": "[3, 4], dtype=DataType.Bool",
    "h": "[3, 4], dtype=DataType.Half", "z": "[3, 4], dtype=DataType.ComplexFloat",
}  # fmt: skip


def lines_of(sample):
    for letter, arg in zip("abcdefghijkl", sample.args, strict=False):
        yield f"{letter} = fd.define_tensor({list(arg.shape)}, dtype={arg.dtype!r})"
    yield f"result = {sample.call}"


@pytest.mark.parametrize("name", [name for name, entry in ENTRIES.items() if entry.samples])
def test_legal_calls_are_read(name):
    for sample in ENTRIES[name].samples:
        lines = list(lines_of(sample))
        names = {"DataType": DataType}
        with FusionDefinition() as fd:
            names["fd"] = fd
            exec("\n".join(lines), names)
            results = names["result"]
            several = list(results) if isinstance(results, list | tuple) else [results]
            places = [f"result[{i}]" for i in range(len(several))] if several[0] is not results else ["result"]
            kept = [place for place, value in zip(places, several, strict=True) if isinstance(value, Tensor)]
            for place in kept:
                exec(f"fd.add_output({place})", names)
        if not kept:
            continue
        body = [*lines, *(f"fd.add_output({place})" for place in kept)]
        script = "\n".join(["with FusionDefinition() as fd:", *(f"    {line}" for line in body)])
        assert fl.load_repro(script)[0].fusion == fd.fusion, sample


@pytest.mark.parametrize("name", MISUSES)
def test_illegal_calls_are_told_with_their_line(name):
    for misuse in MISUSES[name]:
        lines = [f"{letter} = fd.define_tensor({of})" for letter, of in NAMED.items()]
        lines += ["d = fd.define_scalar(DataType.Double)", "i = fd.define_scalar(DataType.Int)", misuse.call]
        script = "\n".join(["with FusionDefinition() as fd:", *(f"    {line}" for line in lines)])
        with pytest.raises(FuserLabError) as caught:
            fl.load_repro(script)
        assert str(caught.value).startswith(f"line {len(lines) + 1}: "), misuse
        assert isinstance(caught.value, UnsupportedError) is issubclass(misuse.error, UnsupportedError), misuse


@pytest.mark.parametrize("name", fl.examples.names())
def test_what_repr_prints_is_read(name):
    fd, inputs = fl.example(name)
    assert fl.load_repro(repr(fd))[0].fusion == fd.fusion
    again, found = fl.load_repro(fd.repro_script_for(inputs))
    assert again.fusion == fd.fusion
    assert [getattr(x, "shape", x) for x in found] == [getattr(x, "shape", x) for x in inputs]
