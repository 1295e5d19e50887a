"""Written scripts match nvFuser's, run, and reading them restores the definition."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from needs import needs

import fuser_lab as fl
from fuser_lab import DataType, FusionDefinition, spec
from fuser_lab.definition.repro import script_text
from fuser_lab.definition.spec import Fill
from fuser_lab.runtime.arrays import describe

SCRIPTS = sorted((Path(__file__).parents[2] / "data" / "repros").iterdir())
DTYPES = [d for d in DataType if d not in {DataType.Null, DataType.Index} and not d.name.startswith("Float4")]
FILLS = (
    None, Fill(kind="normal"), Fill(kind="uniform", low=0, high=1), Fill(kind="integers", low=0, high=2),
    Fill(kind="range", values=(1, 1)), Fill(kind="values", values=(1,)), Fill(kind="values", values=(1, 2, 2)),
)  # fmt: skip


def copies(tensors):
    """Return a definition that copies inputs with these descriptions."""
    with FusionDefinition() as fd:
        for tensor in tensors:
            if isinstance(tensor, float | int | complex):
                fd.define_scalar(None, {bool: DataType.Bool, int: DataType.Int, float: DataType.Double,
                                        complex: DataType.ComplexDouble}[type(tensor)])  # fmt: skip
            else:
                x = fd.define_tensor(shape=[-1] * len(tensor.shape), dtype=tensor.dtype)
                fd.add_output(fd.ops.set(x))
    return fd


def test_the_text():
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, 4], [True, True])
        s = fd.define_scalar(None, DataType.Double)
        n = fd.define_tensor([-1, 4], dtype=DataType.Int)
        b = fd.define_tensor([-1, 4], dtype=DataType.Bool)
        y = fd.ops.where(b, fd.ops.mul(x, s), fd.ops.add(n, 1))
        fd.add_output(y)
    inputs = [
        replace(spec((2, 4)), device="cuda:0"), math.inf,
        replace(spec((2, 4), "int64", (1, 2)), device="cuda:0"), replace(spec((2, 4), "bool", (1, 2)), device="cuda:0"),
    ]  # fmt: skip
    text = script_text(fd.fusion, inputs, {"torch": "2.9", "cuda": "13.0"}, devices=["NVIDIA H200"])
    head, rest = text.split("\ndef nvfuser_fusion(fd : FusionDefinition) -> None :\n")
    assert head == (
        "# CUDA devices:\n#  0: NVIDIA H200\n# torch version: 2.9\n# cuda version: 13.0\n"
        "import torch\nfrom nvfuser_direct import FusionDefinition, DataType\n\n"
    )
    assert rest.split("\n\n\n")[1] == """\
with FusionDefinition() as fd:
    nvfuser_fusion(fd)

inputs = [
    torch.testing.make_tensor((2, 4), dtype=torch.float32, device='cuda:0'),
    float("inf"),
    torch.randint(0, 10, (8,), dtype=torch.int64, device='cuda:0').as_strided((2, 4), (1, 2)),
    torch.randint(0, 2, (8,), dtype=torch.bool, device='cuda:0').as_strided((2, 4), (1, 2)),
]
fd.execute(inputs)
"""


def test_without_inputs_it_only_defines():
    fd = copies([spec((2,))])
    text = script_text(fd.fusion, None)
    assert text.endswith("with FusionDefinition() as fd:\n    nvfuser_fusion(fd)\n")
    assert fl.load_repro(text)[0].fusion == fd.fusion
    assert script_text(copies([1.0, spec((2,))]).fusion, []).endswith("inputs = [\n]\nfd.execute(inputs)\n")


@pytest.mark.parametrize("library", ["torch", "numpy"])
@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_scripts_come_back(path, library):
    fd, inputs = fl.load_repro(path.read_text())
    again, found = fl.load_repro(script_text(fd.fusion, inputs, library=library))
    assert again.fusion == fd.fusion
    assert found == [x if library == "torch" or not hasattr(x, "device") else replace(x, device="cpu") for x in inputs]
    assert [getattr(x, "fill", None) for x in found] == [getattr(x, "fill", None) for x in inputs]


@pytest.mark.sampled(5)
@pytest.mark.parametrize("library", ["torch", "numpy"])
@pytest.mark.parametrize("fill", FILLS, ids=lambda fill: "none" if fill is None else f"{fill.kind}{len(fill.values)}")
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_layout_and_fill_comes_back(dtype, fill, library):
    layouts = [((2, 4), None), ((2, 4), (1, 2)), ((2, 4), (0, 1)), ((2, 4), (9, 2)), ((), None), ((0, 3), None),
               ((0, 3), (7, 7)), ((1, 3), (5, 1)), ((3,), (0,))]  # fmt: skip
    inputs = [replace(spec(shape, dtype, strides, fill), device="cuda:1") for shape, strides in layouts]
    fd = copies(inputs)
    text = script_text(fd.fusion, inputs, library=library)
    again, found = fl.load_repro(text)
    assert again.fusion == fd.fusion
    assert found == [replace(x, device="cuda:1" if library == "torch" else "cpu") for x in inputs]
    for before, after in zip(inputs, found, strict=True):
        if fill is not None and math.prod(before.shape):
            assert after.fill == fill or fill.kind in {"range", "values"}
        if fill is not None and fill.kind in {"range", "values"}:
            np.testing.assert_array_equal(before.materialize(), after.materialize())


@pytest.mark.parametrize("fill", FILLS, ids=lambda fill: "none" if fill is None else f"{fill.kind}{len(fill.values)}")
@pytest.mark.parametrize("dtype", DTYPES)
def test_torch_makes_what_is_written(dtype, fill):
    torch = needs("torch")
    inputs = [spec((2, 4), dtype, strides, fill) for strides in (None, (1, 2), (9, 2))]
    text = script_text(copies(inputs).fusion, inputs).partition("inputs = ")[2].rpartition("fd.execute")[0]
    assert [describe(value) for value in eval(text, {"torch": torch})] == inputs


@pytest.mark.parametrize(
    "number", [1.5, -0.0, 1e300, math.inf, -math.inf, 7, -(2**62), True, False, 1 - 2j, complex(math.inf, -0.0)],
)
def test_numbers_come_back(number):
    inputs = [number, spec((2,))]
    _, found = fl.load_repro(script_text(copies(inputs).fusion, inputs))
    assert found == inputs
    assert repr(found[0]) == repr(number)


def test_negative_strides_are_numpys():
    inputs = [spec((3, 2), strides=(-2, 1)), spec((4,), "int64", fill=Fill(kind="integers", low=3, high=5))]
    text = script_text(copies(inputs).fusion, inputs)
    assert "torch" not in text
    assert fl.load_repro(text)[1] == inputs
    namespace = {}
    exec(text.replace("fd.execute(inputs)", "outputs = fd.execute(inputs)"), namespace)
    assert namespace["inputs"][0].strides == (-8, 4)
    assert set(namespace["inputs"][1]) <= {3, 4}
    np.testing.assert_array_equal(namespace["outputs"][0], namespace["inputs"][0])


def test_a_definition_writes_its_script():
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], [True, True])
        fd.add_output(fd.ops.sum(fd.ops.exp(x), [1]))
    text = fd.repro_script_for([np.ones((3, 4), np.float32)])
    again, inputs = fl.load_repro(text)
    assert again.fusion == fd.fusion
    assert inputs == [spec((3, 4))]
    again, inputs = fl.load_repro(fd.repro_script_for())
    assert again.fusion == fd.fusion
    assert inputs == [spec((256, 256))]
