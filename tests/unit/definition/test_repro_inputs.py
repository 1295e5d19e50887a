"""Inputs of scripts against torch itself: shapes, dtypes, strides and values."""

import itertools
import math

import numpy as np
import pytest
from needs import needs

import fuser_lab as fl
from fuser_lab import spec
from fuser_lab.definition.spec import Fill
from fuser_lab.dtypes import DataType
from fuser_lab.errors import ArgumentTypeError, FuserLabError, InputError
from fuser_lab.runtime.arrays import describe, to_numpy

torch = needs("torch")

SCRIPT = """
with FusionDefinition() as fd:
    x = fd.define_tensor([4])
    fd.add_output(fd.ops.neg(x))
N, M = 6, 4 * 2
"""


def read(text):
    return fl.load_repro(f"{SCRIPT}\nfd.execute([{text}])")[1][0]


def made(text):
    return eval(text, {"torch": torch, "math": math, "N": 6, "M": 8, "make_tensor": torch.testing.make_tensor})


RANDOM = [
    "torch.randn(2, 4)", "torch.randn((2, 4))", "torch.randn([N, M], dtype=torch.bfloat16)", "torch.randn(())",
    "torch.randn(size=(N, 2), dtype=torch.complex64, requires_grad=True)", "torch.randn(N * M - 1)",
    "torch.randn((0, 4))", "torch.randn(torch.Size([2, 3]))", "torch.randn(4, 5, device='cpu', dtype=torch.half)",
    "torch.randn(60, dtype=torch.float16).as_strided((3, 4), (20, 1))",
    "torch.randn(60).as_strided((3, 4), (0, 1))", "torch.randn(60).as_strided((3, 4), (1, 3), 5)",
    "torch.randn(60).as_strided(size=(3, 4), stride=(20, 2)).to(torch.float16)",
    "torch.randn(2, 3, 4).transpose(0, -1)", "torch.randn(2, 3).t()", "torch.randn(2, 3).T", "torch.randn(7, 2, 3).mT",
    "torch.randn(2, 3, 4).permute(2, 0, 1)", "torch.randn(2, 3, 4).permute((1, 0, 2)).contiguous()",
    "torch.randn(2, 3, 4).permute((1, 0, 2)).clone()", "torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)",
    "torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)",
    "torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last).half()",
    "torch.randn(4, 1).expand(4, 6)", "torch.randn(4, 1).expand(3, -1, 6)", "torch.randn(3, 4).unsqueeze(1)",
    "torch.randn(3, 4).unsqueeze(-1)", "torch.randn(3, 1, 4).squeeze(1)", "torch.randn(1, 3, 1).squeeze()",
    "torch.randn(3, 4).reshape(-1, 6)", "torch.randn(3, 4).view([2, 6])", "torch.randn(3, 4).t().reshape(12)",
    "torch.randn(3, 4)[:, 1:3]", "torch.randn(8, 4)[::2, 0]", "torch.randn(8, 4)[1][None]", "torch.randn(8)[-1]",
    "torch.randn(3, 4).double()", "torch.randn(3, 4).to('cpu', torch.float64).detach()", "torch.randn(3, 4).cpu()",
    "torch.randn(4, 1).expand(4, 6).to(torch.float64)", "torch.randn_like(torch.zeros(3, 4).t())",
    "torch.rand(3, 4, dtype=torch.float64)", "torch.empty(3, 4)", "torch.empty((3, 4), dtype=torch.float16)",
    "torch.empty_strided((3, 4), (1, 3))", "torch.empty_strided((3, 4), (8, 2), dtype=torch.float64)",
    "torch.randint(0, 10, (3, 4))", "torch.randint(10, (3, 4), dtype=torch.int32)",
    "torch.randint(low=3, high=5, size=(40,))", "torch.randint(-3, -1, (N,), dtype=torch.float32)",
    "torch.randint(0, 2, (9,), dtype=torch.bool)", "torch.randint(0, 10, (24,)).as_strided((2, 3), (1, 5))",
    "torch.testing.make_tensor((3, 4), dtype=torch.float32, device='cpu')",
    "torch.testing.make_tensor(3, 4, dtype=torch.int64, device='cpu', low=2, high=5)",
    "make_tensor((50,), dtype=torch.float16, device='cpu', low=-1, high=0.5)",
    "torch.testing.make_tensor((30,), dtype=torch.bool, device='cpu')",
    "torch.testing.make_tensor((30,), dtype=torch.int32, device='cpu', requires_grad=False)",
    "torch.testing.make_tensor((30,), dtype=torch.complex128, device='cpu')",
    "torch.lt(torch.rand(3, 4), 0.5)", "torch.randn(3, 4).t() * torch.randn(4, 1) > 0", "torch.randn(3, 4).ge(0.5)",
    "torch.randn(3, 4) * (torch.rand(3, 4) < 0.5)", "torch.randn(3, 4) ** 2", "torch.randn(3, 4).mean(dim=-1)",
    "torch.randn(3, 4).var(dim=-1, unbiased=False)", "torch.sum(torch.randn(3, 4, 5), (0, -1), keepdim=True)",
    "torch.randn(3, 4).sum()", "torch.randn(3, 4).half().mean(0, dtype=torch.float32)", "torch.std(torch.randn(9))",
    "torch.randn(3, 4).broadcast_to(2, 3, 4)", "torch.sqrt(torch.rand(3, 4).mean(1, keepdim=True) + 1e-5)",
    "torch.randn(4, 4).masked_fill(torch.ones(4, 4).tril() == 0, float('-inf'))",
]  # fmt: skip
FIXED = [
    "torch.zeros(3, 4)", "torch.ones((3, 4), dtype=torch.bfloat16)", "torch.zeros_like(torch.randn(3, 4).t())",
    "torch.ones((2,), dtype=torch.bool)", "torch.full((2, 3), 7)", "torch.full([2, 3], 7.5, dtype=torch.float16)",
    "torch.full((), True)", "torch.full(size=(2,), fill_value=-math.inf)", "torch.full((2,), 1 + 2j)",
    "torch.arange(5)", "torch.arange(2, 9, 3)", "torch.arange(2, 9, step=3)", "torch.arange(5, 0, -2)",
    "torch.arange(0.0, 1.0, 0.25)", "torch.arange(24).reshape(2, 3, 4).permute(2, 0, 1)",
    "torch.arange(24, dtype=torch.float32).view(4, 6)[1:, 2]", "torch.arange(20).as_strided((3, 3), (5, 1), 2)",
    "torch.arange(end=4, dtype=torch.int32)", "torch.tensor(3.0)", "torch.tensor(3)", "torch.tensor([1, 5, 9])",
    "torch.tensor([[True, False], [False, True]])", "torch.tensor([[1.5, 2], [3, 4]], dtype=torch.float16)",
    "torch.eye(4)", "torch.eye(3, 5)", "torch.eye(5, 3)", "torch.eye(7, 2, dtype=torch.int64)", "torch.eye(0)",
    "torch.eye(n=3).t()", "torch.eye(300)", "torch.empty(3, 4).fill_(2.5)", "torch.empty(3, 4).t().zero_()",
    "torch.tensor([1, 2, 3]).repeat(4)", "torch.ones(3).repeat(2, 2)", "torch.arange(24).view(2, 3, 4)[..., 1]",
    *(f"torch.arange(60).view(3, 4, 5).permute(1, 0, 2)[{', '.join(entries)}]"
      for count in (1, 2, 3) for entries in itertools.product(("None", "0", "1:3", "::2", "..."), repeat=count)
      if entries.count("...") < 2),
    "torch.tensor([1, 2.5])[1:]", "torch.tensor([])", "torch.ones(3, 4).t().contiguous().int()",
    "torch.arange(3).float().unsqueeze(0).expand(2, 3)", "torch.tensor(2 ** 40)",
]  # fmt: skip


@pytest.mark.parametrize("text", [*RANDOM, *FIXED])
def test_layouts_are_torchs(text):
    expected, found = describe(made(text)), read(text)
    assert found == expected
    array = found.materialize()
    assert array.shape == expected.shape
    assert array.dtype == expected.dtype.numpy
    if array.size:
        assert tuple(s // array.itemsize for s in array.strides) == expected.strides


@pytest.mark.parametrize("text", FIXED)
def test_values_are_torchs(text):
    np.testing.assert_array_equal(read(text).materialize(), to_numpy(made(text)))


@pytest.mark.parametrize(
    ("text", "low", "high"),
    [
        ("torch.rand(4000)", 0, 1),
        ("torch.rand(4000, dtype=torch.bfloat16)", 0, 1),
        ("torch.randint(3, 6, (4000,))", 3, 6),
        ("torch.randint(0, 2 ** 62, (9,))", 0, 2**62),
        ("torch.randint(4, (4000,), dtype=torch.float16)", 0, 4),
        ("make_tensor((4000,), dtype=torch.int64, device='cpu', low=0, high=3)", 0, 3),
        ("make_tensor((4000,), dtype=torch.float32, device='cpu', low=2, high=2.5)", 2, 2.5),
        ("make_tensor((4000,), dtype=torch.float32, device='cpu')", -9, 9),
        ("make_tensor((4000,), dtype=torch.int64, device='cpu')", -9, 10),
        ("torch.empty(4000, dtype=torch.int64)", 0, 1),
        ("torch.empty(4000).uniform_(2, 3)", 2, 3),
        ("torch.empty(4000, dtype=torch.int64).random_(7, 9)", 7, 9),
        ("torch.empty(4000).random_(5)", 0, 5),
    ],
)
def test_values_stay_in_their_range(text, low, high):
    values = read(text).materialize().astype(np.float64)
    assert values.min() >= low
    assert values.max() < high
    if high - low <= 20 and "empty" not in text:
        assert values.min() < low + 0.05 * (high - low) or values.min() == low
        theirs = to_numpy(made(text).to(torch.float64))
        assert theirs.min() >= low
        assert theirs.max() <= high


def test_normal_numbers_are_normal():
    values = read("torch.randn(200_000)").materialize()
    assert abs(values.mean()) < 0.02
    assert abs(values.std() - 1) < 0.02


@pytest.mark.parametrize(
    ("text", "device"),
    [
        ("torch.randn(3)", "cpu"),
        ("torch.randn(3, device='cuda')", "cuda:0"),
        ("torch.randn(3, device='cuda:1')", "cuda:1"),
        ("torch.randn(3, device=1)", "cuda:1"),
        ("torch.randn(3, device=torch.device('cuda', 1))", "cuda:1"),
        ("torch.randn(3, device=torch.device('cuda'))", "cuda:0"),
        ("torch.randn(3).cuda()", "cuda:0"),
        ("torch.randn(3).to('cuda:2')", "cuda:2"),
        ("torch.randn(3, device='cuda').to(torch.float16)", "cuda:0"),
        ("torch.randn(3, device='cuda').cpu()", "cpu"),
    ],
)
def test_devices(text, device):
    assert read(text).device == device


@pytest.mark.parametrize(
    ("text", "value"),
    [("3", 3), ("-2.5", -2.5), ("True", True), ("1 + 2j", 1 + 2j), ('float("inf")', math.inf), ("2 ** 5", 32),
     ("math.pi", math.pi)],
)  # fmt: skip
def test_numbers(text, value):
    assert read(text) == value
    assert type(read(text)) is type(value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("torch.randn(3, dtype=torch.int64)", "dtype must be a float type"),
        ("torch.randn(3, dtype=torch.uint16)", "torch.uint16 is not a supported tensor type"),
        ("torch.randn(3, dtype='float32')", "dtype must be a dtype of torch"),
        ("torch.randn(2.5)", "must be an int"),
        ("torch.arange()", "must be end, or start and end"),
        ("torch.arange(0, 5, 0)", "there is no range from 0 to 5 in steps of 0"),
        ("torch.arange(0, 5, -1)", "no range"),
        ("torch.tensor([[1], [2, 3]])", "different lengths"),
        ("torch.tensor('a')", "data must be a number"),
        ("torch.testing.make_tensor((3,), dtype=torch.float32)", "needs both dtype and device"),
        ("torch.testing.make_tensor((3,), dtype=torch.float32, device='cpu', noncontiguous=True)", "use as_strided"),
        ("torch.testing.make_tensor((3,), dtype=torch.float32, device='cpu', low=3, high=2)", "low must be below high"),
        ("torch.testing.make_tensor((3,), dtype=torch.int64, device='cpu', low=0, high=math.inf)", "must be finite"),
        ("torch.testing.make_tensor((3,), dtype=torch.int32, device='cpu', low=0, high=2 ** 40)", "does not fit"),
        ("torch.randn(3, 4).view(5)", "does not have the 12 elements"),
        ("torch.randn(3, 4).t().view(12)", "must be contiguous"),
        ("torch.randn(3, 4).expand(5, 4)", "only axes of size 1 grow"),
        ("torch.randn(3, 4).expand(4)", "fewer axes"),
        ("torch.randn(3, 4).permute(0, 0)", "is not a permutation of 2 axes"),
        ("torch.randn(3, 4).transpose(0, 2)", "outside"),
        ("torch.randn(2, 3, 4).t()", "at most two axes"),
        ("torch.randn(3, 4)[5]", "outside"),
        ("torch.randn(3, 4)[0, 0, 0]", "fewer than the index"),
        ("torch.randn(3, 4)[::-1]", "does not support slices with negative steps"),
        ("torch.randn(3, 4)['a']", "must be an int"),
        ("torch.randn(3, 4).as_strided((2,), (-1,))", "0 or more"),
        ("torch.randn(3, 4).contiguous(memory_format=torch.channels_last)", "is not read for a tensor with 2 axes"),
        ("torch.arange(6).view(2, 3).t().contiguous()", "only for random and constant tensors"),
        ("torch.randn(3, 4).cumsum(0)", "is not read as an input"),
            ("torch.arange(6).sum()", "only statistics of floats are read"),
            ("torch.arange(6) < 3", "is not read as an input"),
        ("torch.nn.Linear(3, 4).weight", "is not read as an input"),
        ("torch.randn_like(3)", "must be a tensor that the script creates"),
        ("torch.eye(20_000)", "more than 10000 numbers"),
        ("torch.ones(3, dtype=torch.int64).normal_()", "on tensors of floats, are read"),
        ("torch.ones(3, dtype=torch.int64).uniform_()", "only tensors of floats"),
        ("torch.ones(3).random_()", "only with an upper bound of the values"),
        ("torch.ones(3).fill_('a')", "value must be a number"),
        ("torch.arange(3).repeat(2)", "random and constant tensors"),
        ("torch.ones(3, 2).repeat(2)", "for each axis"),
        ("torch.full((2,), 'a')", "fill_value must be a number"),
        ("torch", "torch is not an input"),
    ],
)
def test_what_is_no_input(text, says):
    with pytest.raises(fl.FuserLabError, match="line 7") as caught:
        read(text)
    assert says in str(caught.value)


def test_a_fill_takes_no_part_in_equality():
    plain, filled = spec((3,), "int64"), spec((3,), "int64", fill=Fill(kind="integers", low=4, high=6))
    assert plain == filled
    assert hash(plain) == hash(filled)
    assert set(filled.materialize()) <= {4, 5}


@pytest.mark.parametrize(
    ("given", "says"),
    [({"kind": "uniform", "low": 1, "high": 1}, "low must be below high"), ({"kind": "values"}, "needs some"),
     ({"kind": "range", "values": (1,)}, "needs two"), ({"kind": "integers", "low": math.nan}, "low must be a finite")],
)  # fmt: skip
def test_fills_that_are_none(given, says):
    with pytest.raises(InputError, match=says):
        Fill(**given)
    for wrong in ({"kind": "zeros"}, {"kind": "values", "values": ("a",)}, {"kind": "uniform", "low": None}):
        with pytest.raises(FuserLabError, match=r"Fill: (kind|values\[0\]|low) must be "):
            Fill(**wrong)
    with pytest.raises(ArgumentTypeError, match="fill must be a Fill"):
        spec((2,), fill="normal")


FILLS = (
    Fill(kind="normal"), Fill(kind="uniform", low=1, high=2), Fill(kind="values", values=(1, 2)),
    Fill(kind="integers", low=1, high=3), Fill(kind="range", values=(1, 1)),
)  # fmt: skip


@pytest.mark.parametrize("dtype", [d for d in DataType if d is not DataType.Null and not d.name.startswith("Float4")])
@pytest.mark.parametrize("fill", FILLS, ids=lambda fill: fill.kind)
def test_every_dtype_can_be_filled(dtype, fill):
    array = spec((2,), dtype, fill=fill).materialize()
    assert array.dtype == dtype.numpy
    if fill.kind in {"values", "range"}:
        assert array.astype(np.complex128).tolist() == [1, 1 if dtype is DataType.Bool else 2]
