"""Repro scripts are read as nvFuser printed them, and nothing in them is executed."""

import ast
import json
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from machine import allowed
from thorough import tries

import fuser_lab as fl
from fuser_lab import DataType, FusionDefinition, spec
from fuser_lab.definition.repro import reading
from fuser_lab.errors import ArgumentTypeError, DefinitionError, FuserLabError, InputError, UnsupportedError

DATA = Path(__file__).parents[2] / "data"
SCRIPTS = DATA / "repros"
CASES = [
    (f"{case['id']}-{key}", case[key])
    for name in ("gallery.json", "segmentation_cases.json")
    for case in json.loads((DATA / name).read_text())
    for key in ("python", "small_python")
    if case.get(key)
]


def script(name):
    return (SCRIPTS / name).read_text()


def recorded(define):
    with FusionDefinition() as fd:
        define(fd)
    return fd.fusion


def old_frontend(fd):
    x = fd.define_tensor(shape=[-1, -1, -1], contiguity=[True, None, True], dtype=DataType.BFloat16,
                         stride_order=[2, 1, 0])
    b = fd.define_tensor(shape=[-1], contiguity=[True], dtype=DataType.BFloat16)
    s = fd.define_scalar(None, DataType.Double)
    xf = fd.ops.cast(x, DataType.Float)
    _, mean = fd.ops.var_mean(xf, [2], 0)
    centered = fd.ops.sub(xf, fd.ops.broadcast_in_dim(mean, [8, 4, 1], [0, 1]))
    total = fd.ops.sum(fd.ops.mul(centered, s), [1], keepdim=True)
    rows = fd.ops.cast(fd.ops.broadcast_in_dim(b, [8, 1, 32], [2]), DataType.Float)
    part = fd.ops.slice(fd.ops.add(total, rows), [0, 0, 0], [8, 1, 16])
    flat = fd.ops.permute(fd.ops.reshape(part, [8, 16]), [1, 0])
    fd.add_output(fd.ops.stride_order(flat, [0, 1]))


def oldest_class(fd):
    x = fd.define_tensor(shape=[-1, -1], contiguity=True, dtype=DataType.Float)
    row = fd.define_tensor(shape=[1, -1], contiguity=[None, True], dtype=DataType.Float)
    h = fd.define_tensor(shape=[-1, -1], contiguity=False, dtype=DataType.Half)
    total = fd.ops.broadcast_in_dim(fd.ops.sum(x, [1], keepdim=True), [16, 32], [0, 1])
    y = fd.ops.mul(fd.ops.add(total, 1e-05), row)
    y = fd.ops.reshape(fd.ops.reshape(y, [16, 4, 8]), [16, 32])
    fd.add_output(fd.ops.add(y, h))


def direct(fd):
    x = fd.define_tensor(shape=[-1, 4], contiguity=True)
    n = fd.define_tensor(shape=[-1, 1], contiguity=[True, None], dtype=DataType.Int)
    s = fd.define_scalar(None, DataType.Double)
    y = fd.ops.mul(x, s)
    low = fd.ops.full([fd.ops.size(x, 0), 4], float("-inf"), DataType.Float)
    fd.add_output(fd.ops.max(fd.ops.where(fd.ops.eq(n, 3), y, low), [1]))
    fd.add_output(y, x)


def issue(fd):
    x = fd.define_tensor(shape=[-1, -1], contiguity=True)
    rows, columns = fd.ops.shape(x)
    top = fd.ops.broadcast_in_dim(fd.ops.max(x, [1]), [rows, 1], [0])
    fd.add_output(fd.ops.exp(fd.ops.sub(x, fd.ops.broadcast_in_dim(top, [rows, columns], [0, 1]))))


@pytest.mark.parametrize(
    ("name", "define", "inputs"),
    [
        ("old_frontend.py.txt", old_frontend,
         [spec((8, 4, 32), "bfloat16", (32, 0, 1)), spec((32,), "bfloat16"), 0.25]),
        ("oldest_class.py.txt", oldest_class,
         [spec((16, 32)), spec((1, 32)), spec((16, 32), "float16", (1, 16))]),
        ("direct.py.txt", direct, [spec((2, 4)), spec((2, 1), "int64"), 2.5]),
        ("issue.md.txt", issue, [spec((16, 32))]),
    ],
)  # fmt: skip
def test_forms_of_scripts(name, define, inputs):
    fd, found = fl.load_repro(script(name))
    assert isinstance(fd, FusionDefinition)
    assert fd.fusion == recorded(define)
    assert all(x.device == "cuda:0" for x in found if not isinstance(x, float))
    shapes = [x if isinstance(x, float) else (x.shape, x.dtype, x.strides) for x in found]
    assert shapes == [x if isinstance(x, float) else (x.shape, x.dtype, x.strides) for x in inputs]
    fl.segment(fd, found)


def test_a_test_function():
    fd, inputs = fl.load_repro(script("test_function.py.txt"))
    assert [x.shape for x in inputs] == [(8, 16), (6,)]
    assert [expr.op.name for expr in fd.fusion.exprs] == ["index_select", "cast", "neg", "add"]
    assert inputs[1].materialize().max() < 8


FORMS = (
    "{0}",
    "with FusionDefinition() as fd:\n{4}",
    "def fusion(fd):\n{4}",
    "def test():\n    with FusionDefinition() as fd:\n{8}",
    "Look:\n\n```python\nimport torch\nfd = FusionDefinition()\nwith fd:\n{4}\n```\n",
)


@pytest.mark.parametrize("text", [text for _, text in CASES], ids=[name for name, _ in CASES])
def test_corpus(text):
    scripts = [form.replace("{0}", text).replace("{4}", indented(text, 4)).replace("{8}", indented(text, 8))
               for form in FORMS]  # fmt: skip
    try:
        expected = recorded(lambda fd: exec(text, {"DataType": DataType, "fd": fd}))
    except UnsupportedError:
        for wrapped in scripts:
            with pytest.raises(UnsupportedError, match="line"):
                fl.load_repro(wrapped)
        return
    for wrapped in scripts:
        assert fl.load_repro(wrapped)[0].fusion == expected


def indented(text, columns):
    return "\n".join(" " * columns + line for line in text.split("\n"))


def define(*lines, before=(), after=()):
    return "\n".join([*before, "with FusionDefinition() as fd:", *(f"    {line}" for line in lines), *after])


X = "x = fd.define_tensor(shape=[4, 6], contiguity=[True, True], dtype=DataType.Float)"
OUT = "fd.add_output(fd.ops.neg(x))"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("fd.define_tensor(symbolic_sizes=[4, 6], contiguity=[True, True])", X[4:]),
        ("fd.define_tensor([4, 6], [True, True], DataType.Float)", X[4:]),
        ("fd.define_tensor(shape=[4, 6], contiguity='tt')", X[4:]),
        ("fd.define_tensor(shape=[4, 1, 6], contiguity='tnf')",
         "fd.define_tensor(shape=[4, 1, 6], contiguity=[True, None, False])"),
        ("fd.define_tensor(symbolic_sizes=[4, 1, 6], contiguity=[True, False])",
         "fd.define_tensor(shape=[4, 1, 6], contiguity=[True, None, False])"),
        ("fd.define_tensor(symbolic_sizes=[4, 1], contiguous=[True, False])",
         "fd.define_tensor(shape=[4, 1], contiguity=[True, None])"),
        ("fd.define_tensor(2, DataType.Half)",
         "fd.define_tensor(shape=[-1, -1], contiguity=[False, False], dtype=DataType.Half)"),
        ("fd.define_tensor(ndims=3)", "fd.define_tensor(shape=[-1, -1, -1])"),
        ("fd.define_tensor([2, 4], [1, 2], DataType.Half)",
         "fd.define_tensor(shape=[-1, -1], contiguity=True, stride_order=[0, 1], dtype=DataType.Half)"),
        ("fd.define_tensor(sizes=[2, 4], strides=[1, 2])",
         "fd.define_tensor(shape=[-1, -1], contiguity=True, stride_order=[0, 1])"),
    ],
)  # fmt: skip
def test_old_tensors(old, new):
    assert fl.load_repro(define(f"x = {old}", OUT))[0].fusion == fl.load_repro(define(f"x = {new}", OUT))[0].fusion


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("fd.ops.sum(x, axes=[1], keepdim=False)", "fd.ops.sum(x, dims=[1])"),
        ("fd.ops.sum(x, dims=[1], keepdim=0, dtype=DataType.Null)", "fd.ops.sum(x, dims=[1])"),
        ("fd.ops.max(x, axes=[0], keepdim=True, dtype=DataType.Null)", "fd.ops.max(x, [0], True)"),
        ("fd.ops.var_mean(x, axes=[1], correction=0, keepdim=False)[1]", "fd.ops.var_mean(x, [1], 0)[1]"),
        ("fd.ops.view(x, original_shape=[4, 6], new_shape=[24])", "fd.ops.reshape(x, new_shape=[24])"),
        ("fd.ops.reshape(x, [4, 6], [24])", "fd.ops.reshape(x, [24])"),
        ("fd.ops.squeeze(fd.ops.broadcast(x, [True, False, False]), [1, 4, 6], [0])",
         "fd.ops.squeeze(fd.ops.broadcast(x, [True, False, False]), [0])"),
        ("fd.ops.broadcast_in_dim(x, output_shape=[2, 4, 6], broadcast_dims=[1, 2])",
         "fd.ops.broadcast_in_dim(x, [2, 4, 6], [1, 2])"),
        ("fd.ops.full(size=[2], arg=1.0, dtype=DataType.Float)", "fd.ops.full([2], 1.0, DataType.Float)"),
        ("fd.ops.mul(x, fd.define_constant(3.0))", "fd.ops.mul(x, 3.0)"),
        ("fd.ops.mul(x, fd.define_scalar(3.0, dtype=DataType.Double))", "fd.ops.mul(x, 3.0)"),
        ("fd.ops.reshape(x, new_shape=fd.define_vector([24], dtype=DataType.Int))", "fd.ops.reshape(x, [24])"),
        ("fd.ops.reshape(x, fd.define_vector([fd.define_scalar(8, dtype=DataType.Int), 3]))",
         "fd.ops.reshape(x, [8, 3])"),
        ("fd.ops.reshape(x, fd.ops.tensor_sizes(x))", "fd.ops.reshape(x, fd.ops.shape(x))"),
        ("fd.ops.reshape(x, [fd.ops.at(fd.ops.shape(x), index=1), -1])", "fd.ops.reshape(x, [x.size(1), -1])"),
        ("fd.ops.reshape(x, x.shape()[:1] + [x.shape()[-1]])", "fd.ops.reshape(x, [4, 6])"),
        ("nvfuser_direct.ops.relu(x)", "fd.ops.relu(x)"),
        ("-x * 2.0 + x / 3.0", "fd.ops.add(fd.ops.mul(fd.ops.neg(x), 2.0), fd.ops.truediv(x, 3.0))"),
    ],
)  # fmt: skip
def test_old_ops(old, new):
    scripts = (define(X, f"y = {text}", "fd.add_output(y)") for text in (old, new))
    first, second = (fl.load_repro(text)[0].fusion for text in scripts)
    assert first == second


def test_outputs_with_stride_order_and_alias():
    want = recorded(lambda fd: exec(f"{X}\ny = fd.ops.neg(x)\n"
                                    "fd.add_output(fd.ops.stride_order(y, [0, 1]))\nfd.add_output(y, x)",
                                    {"fd": fd, "DataType": DataType}))
    for order in ("stride_order=[0, 1]", "[0, 1]"):
        text = define(X, "y = fd.ops.neg(x)", f"fd.add_output(y, {order})", "fd.add_output(y, alias_input=x)")
        assert fl.load_repro(text)[0].fusion == want


def test_scalars_and_vectors_are_inputs():
    text = define(
        "s = fd.define_scalar(DataType.Float)", "t = fd.define_scalar(dtype=DataType.Int)",
        "v = fd.define_vector(2)", "x = fd.define_tensor([-1])", "y = fd.ops.mul(x, fd.ops.add(s, t))",
        "fd.add_output(fd.ops.reshape(y, v))",
        after=["fd.execute([1.5, 2, [3, 4], torch.randn(12)])"],
    )  # fmt: skip
    fd, inputs = fl.load_repro(text)
    assert len(fd.fusion.inputs) == len(inputs) == 5
    assert inputs[:4] == [1.5, 2, 3, 4]
    fl.segment(fd, inputs)


def test_constants_functions_and_loops():
    text = define(
        "for i in range(3):", "    x = fd.ops.add(x, scale(i + 1.0))", "fd.add_output(x)",
        before=["import math", "N = 2 ** 3", "HALF: int = N // 2", "N += 1 - 1", "def scale(k, by=2.0):",
                "    return k * by / math.sqrt(16.0)", "with FusionDefinition() as other:", "    pass"],
    )  # fmt: skip
    text = text.replace("with FusionDefinition() as fd:", f"with FusionDefinition() as fd:\n    {X}").replace(
        "[4, 6]", "[HALF, N - 2]")
    fd, inputs = fl.load_repro(text, name="fd")
    assert [e.inputs[1].value for e in fd.fusion.exprs] == [0.5, 1.0, 1.5]
    assert inputs == [spec((4, 6))]


def test_without_inputs_static_sizes_give_them():
    text = define("x = fd.define_tensor([4, 6, 3], [True, None, True], stride_order=[2, 1, 0])",
                  "y = fd.define_tensor([2, 3], True, stride_order=[0, 1])",
                  "fd.add_output(fd.ops.neg(x))", "fd.add_output(fd.ops.neg(y))")  # fmt: skip
    assert fl.load_repro(text)[1] == [spec((4, 6, 3), strides=(3, 0, 1)), spec((2, 3), strides=(1, 2))]
    assert not fl.load_repro(text)[0].notes


@pytest.mark.parametrize(
    ("lines", "shapes"),
    [
        (["x = fd.define_tensor([2, -1])", "fd.add_output(fd.ops.neg(x))"], [(2, 256)]),
        (
            [
                "x = fd.define_tensor([-1, -1])", "y = fd.define_tensor([48])",
                "z = fd.ops.mul(x, fd.ops.broadcast_in_dim(y, [16, 48], [1]))", "fd.add_output(z)",
            ],
            [(16, 48), (48,)],
        ),
        (
            [
                "x = fd.define_tensor([-1, -1])", "y = fd.define_tensor([-1, -1])", "w = fd.define_tensor([-1, 7])",
                "fd.add_output(fd.ops.add(fd.ops.exp(fd.ops.add(x, y)), w))",
            ],
            [(256, 7), (256, 7), (256, 7)],
        ),
        (
            ["x = fd.define_tensor([-1, -1])", "fd.add_output(fd.ops.reshape(x, [-1, 12, 8]))"], [(96, 96)],
        ),
        (["x = fd.define_tensor([-1])", "fd.add_output(fd.ops.slice(x, [100], [200]))"], [(256,)]),
        (["x = fd.define_tensor([-1])", "fd.add_output(fd.ops.slice(x, [300], [400]))"], [(1024,)]),
    ],
)
def test_open_sizes_are_those_of_constants_or_assumed(lines, shapes):
    fd, inputs = fl.load_repro(define(*lines))
    assert [each.shape for each in inputs] == shapes
    assert fl.segment(fd, inputs).segments
    assert "open sizes are assumed to be" in fd.notes[-1]
    required = f"constants of the definition require: T0 {list(shapes[0])}" in fd.notes[-1]
    assert required == any({16, 7} & set(shape) for shape in shapes)


def test_definitions_that_no_assumed_size_fits_have_no_inputs():
    text = define("x = fd.define_tensor([-1])", "fd.add_output(fd.ops.reshape(x, [5, 1009]))")
    assert fl.load_repro(text)[1] == []


def test_a_script_without_inputs_is_told_a_line_that_gives_them():
    text = define("x = fd.define_tensor([-1, 6], True, dtype=DataType.BFloat16)",
                  "s = fd.define_scalar(DataType.Double)",
                  "n = fd.define_scalar(DataType.Int)", "b = fd.define_scalar(DataType.Bool)",
                  "y = fd.define_tensor([1, 8], True, dtype=DataType.Bool)",
                  "z = fd.ops.where(b, fd.ops.mul(x, s), fd.ops.add(x, n))",
                  "fd.add_output(z)", "fd.add_output(fd.ops.logical_not(y))")  # fmt: skip
    fd, inputs = fl.load_repro(text)
    assert inputs == []
    for nothing in ([], None):
        with pytest.raises(FuserLabError) as failed:
            fl.segment(fd, nothing)
        line = str(failed.value).partition("your own sizes: ")[2].removesuffix(".")
        assert line == (
            "inputs = [fl.spec((64, 6), DataType.BFloat16), 1.0, 1, True, fl.spec((1, 8), DataType.Bool)]"
        )
    again, inputs = fl.load_repro(f"{text}\n{line}\n")
    assert inputs == [spec((64, 6), "bfloat16"), 1.0, 1, True, spec((1, 8), "bool")]
    assert fl.segment(again, inputs).segments


def test_the_first_frontends_fusion_object():
    text = define(
        "x = fd.define_tensor(2)", "s = fd.define_scalar(DataType.Double)",
        "fd.add_output(fd.ops.sum(fd.ops.mul(x, s), [-1], False, DataType.Float))",
        before=["from nvfuser import Fusion, FusionDefinition, DataType", "fs = Fusion()"],
        after=["for _ in range(5):", "    o = fs.execute([torch.ones(2, 4, device='cuda'), 2.0])[0]",
               "torch.cuda.synchronize()", "print(o.shape, f'{o.sum():.3f}')",
               "if __name__ == '__main__':", "    fd.validate([torch.ones(3)])"],
    ).replace("FusionDefinition() as", "FusionDefinition(fs) as")  # fmt: skip
    fd, inputs = fl.load_repro(text)
    assert [expr.op.name for expr in fd.fusion.exprs][-1] == "sum"
    assert [inputs[0].shape, inputs[1]] == [(2, 4), 2.0]


def test_the_page_says_what_happens(capsys):
    page = (DATA.parents[1] / "docs" / "repro_scripts.md").read_text()
    begin = page.index("```python\n") + len("```python\n")
    code, _, rest = page[begin:].partition("\n```\n")
    exec(code, {})
    assert capsys.readouterr().out == rest.partition("```text\n")[2].partition("```")[0]


def test_several_definitions_are_chosen_by_name():
    one, two = (define(X, f"fd.add_output(fd.ops.{op}(x))").replace("as fd", f"as {op}_fd").replace("fd.", f"{op}_fd.")
                for op in ("sin", "cos"))  # fmt: skip
    says = r"2 definitions: sin_fd \(line 1\), cos_fd \(line 4\); choose one, such as name='sin_fd'"
    with pytest.raises(DefinitionError, match=says):
        fl.load_repro(f"{one}\n{two}")
    fenced = f"```\n{one}\n```\nand\n```\n{two}\n```"
    for text in (f"{one}\n{two}", fenced):
        fd, _ = fl.load_repro(text, name="cos_fd")
        assert fd.fusion.exprs[0].op.name == "cos"
    with pytest.raises(DefinitionError, match=r"no definition called 'tan'; it has sin_fd \(line 2\), cos_fd \(line 8"):
        fl.load_repro(fenced, name="tan")


def test_blocks_of_the_same_name_are_chosen_by_line():
    one, two = (define(X, f"fd.add_output(fd.ops.{op}(x))") for op in ("sin", "cos"))
    with pytest.raises(DefinitionError, match=r"2 definitions: fd \(line 1\), fd \(line 4\); .* or name='line 1'"):
        fl.load_repro(f"{one}\n{two}")
    with pytest.raises(DefinitionError, match="the text has 2 definitions called 'fd'"):
        fl.load_repro(f"{one}\n{two}", name="fd")
    assert fl.load_repro(f"{one}\n{two}", name="line 4")[0].fusion.exprs[0].op.name == "cos"


def test_blocks_that_call_one_function_are_one_definition():
    block = "with FusionDefinition() as fd:\n    f(fd)\n"
    text = f"def f(fd):\n    {X}\n    {OUT}\n{block}fd.execute([torch.randn(4, 6)])\n{block}"
    fd, inputs = fl.load_repro(text)
    assert len(fd.fusion.exprs) == len(inputs) == 1


def test_inputs_belong_to_the_chosen_definition():
    a, b = (define(X, OUT, after=[f"fd.execute([torch.randn(4, {n})])"]).replace("fd", name)
            for name, n in (("one", 6), ("two", 7)))  # fmt: skip
    assert fl.load_repro(f"{a}\n{b}", name="two")[1][0].shape == (4, 7)


BAD = [
    (define("__import__('os').system('touch {path}')", OUT), 2, "__import__ is not read"),
    (define(X, OUT, after=["__import__('os').system('touch {path}')"]), 4, "__import__ is not read"),
    (define(X, OUT, after=["eval('1')"]), 4, "eval is not read"),
    (define(X, OUT, before=["import requests"], after=["fd.execute([requests.get('x')])"]), 5, "the value of .get()"),
    (define(X, "fd.add_output(join(x))", before=["from mine.path import join"]), 4, "the value of mine.path.join"),
    (define(X, "fd.add_output(join(x))", before=["from . import join"]), 4, "the value of"),
    (define("k = [await f for f in [1]]", X, OUT), 2, "await is not read"),
    (define(X, "f = lambda a: f(a)", "f(1)", OUT), 3, "functions call each other more than 12 deep"),
    (define("k = fd.__class__", X, OUT), 2, "the attribute __class__ is not read"),
    (define("k = fd._builder()", X, OUT), 2, "the attribute _builder is not read"),
    (define("k = DataType.__mro__", X, OUT), 2, "the attribute __mro__ is not read"),
    (define("k = ().__class__.__bases__", X, OUT), 2, "the attribute"),
    (define(X, "y = fd.ops.__getattribute__('neg')", OUT), 3, "the attribute __getattribute__ is not read"),
    (define(X, "fd.add_output(fd.ops.cast(x, f'{x}'))"), 3, "the value of an f-string"),
    (define(X, "k = 'ab' * 3", OUT), 3, "Mult is not read between a str and the int 3"),
    (define(X, "k = 'abcdefgh'", *["k = k + k"] * 20, OUT), 14, "a text of more than 10000 characters"),
    (define(X, "y = fd.ops.add(*3)", OUT), 3, "a star is read only before lists, given the int 3"),
    (define(X, "y = fd.ops.add(**{1: x})", OUT), 3, "** is read only before dicts with names as keys"),
    (define(X, "k = {x: 2}", OUT), 3, "keys of a dict must be numbers, strings or dtypes"),
    (define(X, "k = {1: 2}", "k[1] = k", OUT), 4, "a list that contains itself is not read"),
    (define(X, "k = {n: [1] * 999 for n in range(99)}", OUT), 3, "more than 10000 entries"),
    (define(X, "k = [[0] * 99 for n in range(9999)]", OUT), 3, "more than 10000 entries"),
    (define(X, "k = [1 for a in range(999) for b in range(999)]", OUT), 3, "too many steps"),
    (define(X, "import itertools", "k = itertools.product(*[range(9)] * 6)", OUT), 4, "more than 10000 entries"),
    (define(X, "k = {a for a in range(3)}", OUT), 3, "a set comprehension is not read"),
    (define(X, "k = {1: 2}", "y = fd.ops.add(x, k[3])", OUT), 4, "the value of an entry of a dict (line 4)"),
    (define(X, "y = getattr(fd, 'builder')", "z = fd.ops.neg(y)", OUT), 4, "the value of getattr"),
    (define(X, "k = (y := T5)", OUT), 3, "T5 is used before it is assigned"),
    (define(X, "k = 1 if x else 2", OUT), 3, "a conditional expression is not read"),
    (define(X, "while True:", "    pass", OUT), 4, "too many steps"),
    (define(X, "while x:", "    pass", OUT), 3, "the loop's condition depends on a value that is not read"),
    (define(X, "break", OUT), 3, "the statement break is not read"),
    (define(X, "try:", "    pass", "except: pass", OUT), 3, "the statement try is not read"),
    (define(X, "return x", OUT), 3, "the statement return is not read"),
    (define(X, "del x", OUT), 3, "the statement del is not read"),
    (define(X, "x[0] = 1", OUT), 3, "only assignments to names and tuples of names are read"),
    (define(X, "a, b = fd.ops.neg(x)", OUT), 3, "2 names are assigned 1 values"),
    (define(X, "fd.add_output(fd.ops.neg(T5))"), 3, "T5 is used before it is assigned"),
    (define(X, "y = fd.ops.neg(x, x)", OUT), 3, "neg(x, /): too many positional arguments"),
    (define(X, "y = fd.ops.sum()", OUT), 3, "sum("),
    (define(X, "y = fd.ops.sum(x, dims=[7])", OUT), 3, "is outside"),
    (define(X, "y = fd.ops.add(x, 'a')", OUT), 3, "must be a tensor, scalar or number"),
    (define(X, "y = fd.ops.add(x, torch)", OUT), 3, "torch cannot be an argument of a definition"),
    (define(X, "y = fd.ops.add(x, fd)", OUT), 3, "a definition cannot be an argument"),
    (define(X, f"k = {'9' * 60}", OUT), 3, "more than 128 bits"),
    (define(X, "k = 10 ** 10 ** 10", OUT), 3, "an exponent or shift above 128"),
    (define(X, "k = 2.0 ** 100 ** 1.5 ** 9", OUT), 3, "cannot be evaluated"),
    (define(X, "k = 1 / 0", OUT), 3, "cannot be evaluated (ZeroDivisionError"),
    (define(X, "k = [0] * 10 ** 9", OUT), 3, "more than 10000 entries"),
    (define(X, "k = [1, 1]", *["k = [k, k]"] * 40, OUT), 16, "more than 10000 entries"),
    (define(X, "for i in range(10 ** 9):", "    pass", OUT), 3, "more than 10000 entries"),
    (define(X, *[" " * i + f"for i{i} in range(9000):" for i in range(4)], " " * 5 + "pass", OUT), 7, "too many steps"),
    (define(X, f"k = {'-' * 500}1", OUT), 3, "nested more than 100 deep"),
    (define(X, f"k = {'1 + ' * 300}1", OUT), 3, "nested more than 100 deep"),
    ("def f(k):\n    return f(k)\n" + define(X, "f(1)", OUT), 2, "functions call each other more than 12 deep"),
    ("def f(a):\n    return a\n" + define(X, "f(1, 2)", OUT), 5, "f takes a."),
    ("def f(a):\n    return a\n" + define(X, "f()", OUT), 5, "f is called without a."),
    ("def f(a):\n    pass\ndef f(a):\n    pass\n" + define(X, OUT), 3, "f is defined a second time; the first one is"),
    (define(X, OUT, "x.val", "x.builder"), 4, "val of T0 of the definition is not read"),
    (define(X, OUT, after=["fd.execute([lambda: 1])"]), 4, "lambda, which the script defines is not an input"),
    (define(X, OUT, after=["fd.execute([torch.nn.functional.pad(torch.randn(4, 6), [1])])"]), 4,
     "the value of torch.nn.functional.pad (line 4) is not read as an input"),
    (define(X, OUT, after=["y = torch.randint(0, 3, (4, 6)) * 2", "fd.execute([y])"]), 4, "the value of an operator"),
    (define(X, "if x.dtype.is_foo:", "    x = 1", OUT), 3, "is not read"),
    (define(X, OUT, after=["fd.execute(torch.load('x'))"]), 4, "the value of torch.load (line 4) is not read as"),
    (define(X, OUT, after=["fd.execute(['a'])"]), 4, "a str is not an input"),
    (define(X, OUT, after=["fd.execute([torch.randn(4, 6).as_strided((4, 6), (7, 1))])"]), 4,
     "span 27 elements, but the tensor has 24"),
    (define(X, OUT, after=["fd.execute([torch.randint(5, 5, (4, 6))])"]), 4, "integers from 5 to 5 is empty"),
    (define(X, OUT, after=["fd.execute([torch.randn(4, 6, names=['a'])])"]), 4, "the argument names is not read"),
    (define(X, OUT, after=["fd.execute([torch.randn(4, 6, device='xpu')])"]), 4, "device must be 'cpu'"),
    (define(X, OUT, after=["fd.execute([torch.randn(4, -6)])"]), 4, "negative size"),
    (define(X, "fd.ops.neg(x)"), 1, "Fusion is empty!"),
    ("class A(FusionDefinition):\n  def definition(self):\n    self.add_output(1)\n  def schedule(self):\n    pass", 3,
     "output must be a tensor, given the scalar 1"),
    ("x = (1,\nfd.add_output(x", 2, "this is not Python ('(' was never closed)"),
    (define(X, OUT, "  fd.add_output(x)"), 4, "this is not Python (unexpected indent)"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "line", "says"), BAD, ids=range(len(BAD)))
def test_what_is_refused(text, line, says, tmp_path):
    target = tmp_path / "touched"
    text = text.replace("{path}", str(target))
    with pytest.raises(DefinitionError) as caught:
        fl.load_repro(text)
    first, *rest = str(caught.value).split("\n")
    assert first.startswith(f"line {line}: ")
    assert says in first
    shown = text.split("\n")[line - 1].strip()
    assert rest
    assert rest[0].strip().startswith(shown[:100])
    assert not target.exists()


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("fd.ops.nv_block_quantize(x)", "nv_block_quantize"),
        ("fd.ops.rsqr(x)", "rsqrt"),
        ("getattr(fd.ops, '__class__')(x)", "fd.ops.__class__ is not implemented"),
        ("fd.ops.cast(x, dtype=DataType.Float4)", "unknown DataType.Float4"),
    ],
)
def test_what_nvfuser_has_and_we_have_not(line, says):
    with pytest.raises(UnsupportedError, match=says) as caught:
        fl.load_repro(define(X, f"y = {line}", OUT))
    assert str(caught.value).startswith("line 3: ")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "the text defines no fusion"),
        ("   \n", "the text defines no fusion"),
        ("print(1)", "the text defines no fusion"),
        ("```\nprint(1)\n```", "not Python"),
        ("with FusionDefinition() as fd:\n  fd.add_output(\x00)", "null bytes"),
        ("(" * 100_000 + "fd.add_output", "not Python"),
        ("x = " + "-" * 100_000 + "1\nfd.add_output", "cannot be parsed"),
        ("x = 1" + "+ 1" * 100_000 + "\nfd.add_output(x)", "cannot be parsed|nested"),
        ("x = 1\n" * 1_000_000, "the text has 6000000 characters"),
        ("x = " + "9" * 5000, "not Python"),
        ("if False:\n  with FusionDefinition() as fd:\n    pass", "the definition that begins here is never reached"),
        ("Hello, look at fd.add_output", "paste an issue whole, with its ```python fence"),
    ],
)
def test_texts_that_are_no_scripts(text, says):
    begin = time.process_time()
    with pytest.raises(DefinitionError, match=says):
        fl.load_repro(text)
    assert time.process_time() - begin < allowed(20)


def test_text_has_no_surrogates():
    with pytest.raises(InputError, match="text must be text without surrogates"):
        fl.load_repro("x = '\ud800'\nwith FusionDefinition() as fd: pass")


@pytest.mark.parametrize("text", [None, 3, b"fd", ["fd"], Path("x")])
def test_text_must_be_a_str(text):
    with pytest.raises(ArgumentTypeError, match="text must be a str, given"):
        fl.load_repro(text)
    with pytest.raises(ArgumentTypeError, match="name must be a str or None, given"):
        fl.load_repro(define(X, OUT), name=3)


def test_line_numbers_are_those_of_the_whole_text():
    text = "Hi\n\n> ```python\n> import torch\n> with FusionDefinition() as fd:\n>     fd.add_output(y)\n> ```\n"
    with pytest.raises(DefinitionError) as caught:
        fl.load_repro(text)
    assert str(caught.value) == (
        "line 6: y is used before it is assigned.\n    fd.add_output(y)\n                  ^"
    )


def test_carriage_returns_marks_and_tabs():
    text = "\ufeff" + define(X, OUT).replace("    ", "\t").replace("\n", "\r\n")
    assert fl.load_repro(text)[0].fusion == fl.load_repro(define(X, OUT))[0].fusion


def test_a_long_script_is_read_quickly():
    lines = [f"T{i + 1} = fd.ops.add(T{i}, 1.0)" for i in range(3000)]
    text = define(X.replace("x =", "T0 ="), *lines, "fd.add_output(T3000)")
    begin = time.process_time()
    assert len(fl.load_repro(text)[0].fusion.exprs) == 3000
    assert time.process_time() - begin < allowed(10)


def test_the_reader_calls_nothing_that_executes_text():
    for path in Path(reading.__file__).parent.glob("*.py"):
        names = {node.id for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Name)}
        assert names.isdisjoint({"exec", "eval", "compile", "__import__", "importlib", "open"}), path


def is_read_or_refused(text):
    """Return whether a text gives a definition or one of our errors; other exceptions propagate."""
    try:
        fd, _ = fl.load_repro(text)
    except FuserLabError as error:
        return bool(str(error))
    return isinstance(fd, FusionDefinition)


WORDS = st.sampled_from([
    "fd", ".", "ops", "add", "(", ")", "[", "]", ",", "=", "1", "-1", "2.0", "x", "T0", "\n", "\n    ",
    "DataType", "Float", "define_tensor", "shape", "torch", "randn", "with", "as", ":", "def", "f",
    "FusionDefinition()", "add_output", "lambda", "*", "**", "{", "}", "'a'", "f'{x}'", "for", "in", "range",
    "import", "os", "__class__", "inputs", "return", "-", "+", "/", "%", "neg", "sum", "cast", "dims", "None",
    "True", "[0]", "execute", "if", "else", "not", "and", "is", "await", "yield", "@", ";", ":=", "float",
    "len", "size", "append", "print", "as_strided", "...", "0x1", "1e999", "\t", "while", "break", "class", "self",
    "super()", "__init__", "getattr", "dict", "items()", "sorted", "partial", "os.environ", "schedule", "namedtuple",
    "[rank0]: ", "+", "Traceback", "# CUDA devices", "inputs = [", "\u00a0", "\u2019",
])  # fmt: skip
TEXTS = st.one_of(st.text(), st.lists(WORDS, max_size=60).map(" ".join), st.lists(WORDS, max_size=30).map("".join))


@tries(300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(TEXTS)
def test_any_text_is_read_or_refused(text):
    assert is_read_or_refused(text)
    assert is_read_or_refused(define(X, text.replace("\n", "\n    "), OUT))
    assert is_read_or_refused(define(X, OUT, after=[f"fd.execute({text})"]))


@tries(200, deadline=None)
@given(st.data())
def test_a_damaged_script_is_read_or_refused(data):
    text = script(data.draw(st.sampled_from(sorted(path.name for path in SCRIPTS.iterdir()))))
    begin = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(begin, min(len(text), begin + 40)))
    other = data.draw(st.one_of(st.just(""), WORDS, st.text(max_size=5)))
    assert is_read_or_refused(text[:begin] + other + text[end:])


def test_an_explanation_quotes_the_lines_that_name_tensors_otherwise():
    text = """
with FusionDefinition() as fd:
    x = fd.define_tensor(shape=[-1, -1], contiguity=True)
    T2 = fd.ops.sum(x, dims=[1])
    everything = fd.ops.sum(x, dims=[0])
    T3 = fd.ops.relu(x)
    for value in (T2, everything, T3):
        fd.add_output(value)
"""
    fd, _ = fl.load_repro(text)
    plan = fl.segment(fd, [fl.spec((64, 32))])
    said = str(plan.why("T1", "T2"))
    assert "\n  T1 comes from line 4: T2 = fd.ops.sum(x, dims=[1])\n" in said
    assert said.endswith("\n  T2 comes from line 5: everything = fd.ops.sum(x, dims=[0])")
    assert "T3 comes from" not in said  # T3 in the script as well
    assert "T1 comes from" not in str(fl.segment(fd.fusion, [fl.spec((64, 32))]).why("T1", "T2"))
