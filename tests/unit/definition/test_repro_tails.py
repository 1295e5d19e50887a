"""Code after a script's execution is skipped; code before it is reported without internal names."""

import ast
import contextlib
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from thorough import tries

import fuser_lab as fl
from fuser_lab import DataType, FusionDefinition, spec
from fuser_lab.errors import DefinitionError, FuserLabError, UnsupportedError

HEAD = """\
import torch
from nvfuser_direct import DataType, FusionDefinition
def fusion(fd):
    T0 = fd.define_tensor([4, 6], dtype=DataType.Float)
    fd.add_output(fd.ops.neg(T0))
idx = torch.randint(0, 4, (3,))
x = torch.randn(4, 6, device="cuda:0")
"""
BLOCK = "with FusionDefinition() as fd:\n    fusion(fd)\n"
RUN = "out = fd.execute([x])\n"
SCRIPT = HEAD + BLOCK + RUN
TAILS = (
    "ref = x[idx]", "ref = x[..., 1:].sum()", "ref = x[x > 0]", "ref[:, 1:] += 1", "out[0][0, 0] = 3", "del out",
    "d = {'a': lambda: 1}", "if out[0].isnan().any():\n    print('nan')", "l = [a for a in x if a > 0]",
    "torch.einsum('..', x, *[x])", "import time, requests", "with torch.no_grad():\n    y = x @ x.T",
    "with s:\n    pass",
    "try:\n    pass\nexcept E:\n    raise", "assert (lambda: 1)() == {1}", "while True:\n    pass", "fd.execute([y])",
    "__import__('os').system('x')", "def g(fd):\n    fd.ops.neg(3)", "async def g():\n    await x", "fd.sched.split(1)",
    "global fd\nfd = 3", "x.zero_()", "@torch.compile\ndef fusion(a): pass",
)  # fmt: skip
INTERNAL = re.compile(r"Unread|TensorSpec|Recording|Unopened|FusionBuilder|TensorView|Function\(|Path\(|Candidate")


def read(text, name=None):
    fd, inputs = fl.load_repro(text, name=name)
    return fd.fusion, inputs, [getattr(value, "fill", None) for value in inputs]


@pytest.mark.parametrize("tail", TAILS)
def test_what_follows_the_execution_is_passed_over(tail):
    expected = read(SCRIPT)
    assert expected[1][0].shape == (4, 6)
    assert read(SCRIPT + tail) == expected
    inner = "".join(f"    {line}\n" for line in (BLOCK + RUN + tail).split("\n"))
    assert read(f"{HEAD}def main():\n{inner}main()\n") == expected
    assert read(f"{HEAD}with torch.no_grad():\n{inner}{tail}") == expected
    assert read(f"{HEAD}for i in range(3):\n{inner}{tail}") == expected
    assert read(f"{HEAD}try:\n{inner}except ValueError:\n    raise\n{tail}") == expected
    assert read(f"{HEAD}@pytest.mark.parametrize('a', [lambda: 1])\ndef test_it(a):\n{inner}") == expected


def test_bare_statements_and_functions_end_with_their_execution_too():
    body = "T0 = fd.define_tensor([4, 6])\nfd.add_output(fd.ops.neg(T0))\n"
    bare = f"{body}fd.execute([torch.randn(4, 6)])\nd = {{}}\n"
    assert read(bare)[1] == [spec((4, 6))]
    # Statements that record are still read, and reported.
    assert len(read(f"{bare}fd.add_output(fd.ops.sin(T0))")[0].outputs) == 2
    with pytest.raises(DefinitionError, match=r"line 5: sum: dims=7 is outside"):
        read(f"{bare}fd.add_output(fd.ops.sum(T0, dims=[7]))")
    assert read(f"{HEAD}exec_nvfuser(fusion, [x])\nd = {{}}\nN = lambda: 1") == read(SCRIPT)
    other = HEAD.replace("fusion", "other").replace("(4, 6", "(5, 6").replace("[4, 6]", "[5, 6]")
    both = f"{other}exec_nvfuser(other, [x])\n{HEAD}exec_nvfuser(fusion, [x])\nd = {{}}"
    assert read(both, "fusion") == read(SCRIPT)


def test_what_records_after_the_execution_is_no_tail():
    for tail in ("fd.ops.neg(3)", "print(fd.ops.neg(x))", "fd.define_scalar(1.0)", "fusion(fd)"):
        with pytest.raises(DefinitionError, match=r"^line (11|4): "):
            read(SCRIPT + tail)
    two = f"{SCRIPT}with FusionDefinition() as other:\n    other.add_output({{}})\n"
    with pytest.raises(DefinitionError, match="the text has 2 definitions"):
        read(two)
    assert read(two, "fd") == read(SCRIPT)


def test_without_an_execution_every_line_is_read():
    with pytest.raises(DefinitionError, match=r"^line 11: the statement match is not read"):
        read(f"{HEAD}{BLOCK}\nmatch 1:\n  case _: pass\n")


def test_long_tails_are_passed_over():
    assert read(SCRIPT + "y = [a for a in x if a]\n" * 20_000) == read(SCRIPT)


LIBRARY = Path(contextlib.__file__).parent
STATEMENTS = [
    ast.unparse(statement)
    for name in ("contextlib.py", "textwrap.py", "bisect.py", "asyncio/tasks.py")
    for statement in ast.walk(ast.parse((LIBRARY / name).read_text()))
    if isinstance(statement, ast.stmt) and not isinstance(statement, ast.ImportFrom)
]  # fmt: skip


@tries(80, deadline=None)
@given(st.lists(st.one_of(st.sampled_from(STATEMENTS), st.sampled_from(TAILS), st.text(max_size=12)), max_size=6))
def test_no_tail_changes_the_result(parts):
    tail = "\n".join(parts)
    try:
        ast.parse(SCRIPT + tail)
    except (SyntaxError, ValueError):
        return
    assert read(SCRIPT + tail) == read(SCRIPT)


@pytest.mark.parametrize(
    "line",
    [
        "torch.backends.cuda.matmul.allow_tf32 = False", "torch.manual_seed(0)",
        "torch.set_default_dtype(torch.float32)",
        "import os, sys, time, copy, functools, itertools, random",
        "import os; os.environ['A'] = '1'; n = os.environ['N']",
        "ref = x[idx]", "ref = x[..., 1:].sum()", "ref = x[x > 0]", "ref = x[:idx]", "ref = x[[0, 1]]",
        "x.requires_grad = True",
        "import time; begin = time.time() - 1", "@torch.no_grad()\ndef f(a):\n    return a",
        "try:\n    import nvfuser\nexcept ImportError:\n    pass", "y = torch.einsum('..', *x, *[x])",
    ],
)  # fmt: skip
def test_common_lines_before_the_definition(line):
    assert read(f"{HEAD}{line}\n{BLOCK}{RUN}") == read(SCRIPT)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("torch.set_default_dtype(torch.float64)", "changes the dtype of tensors created after it"),
        ("torch.randn = torch.rand", "an assignment to torch.randn would change tensors that the script creates"),
        ("torch.testing = 3", "an assignment to torch.testing would change"),
        ("ref = x[torch]", "an input must be indexed with whole numbers and slices, given torch"),
        ("import random; x = torch.randn(random.randint(1, 4), 6)", "the value of random.randint (line 8) is not read"),
        ("import copy; x = copy.deepcopy(x)", "the value of copy.deepcopy (line 8) is not read as an input"),
        ("x = x[idx]", "the value of an index with tensors or lists (line 8) is not read as an input"),
        ("x = torch.empty(4, 6).normal_(0, 2)", "only mean 0 and std 1"),
        ("x = torch.randn([torch, 3])", "torch cannot be an argument of torch.randn"),
        ("k = x[0, 0, 0, ...]", "fewer than the index"), ("k = x[..., ...]", "may contain ... only once"),
    ],
)  # fmt: skip
def test_lines_before_the_definition_that_change_its_meaning(line, says):
    with pytest.raises(DefinitionError) as caught:
        read(f"{HEAD}{line}\n{BLOCK}{RUN}")
    assert says in str(caught.value)
    assert not INTERNAL.search(str(caught.value))


VALUES = st.sampled_from([
    "fusion", "torch", "x", "idx", "torch.foo()", "None", "'a'", "[x]", "[[1], fusion]", "...", "x > 0", "DataType",
    "1j",
    "torch.device", "(torch.foo(),)", "torch.half", "-1", "2 ** 70", "FusionDefinition()",
])  # fmt: skip
CALLS = st.sampled_from([
    "x[{}]", "x[{}, {}]", "x[{}:]", "torch.randn({})", "torch.full((2,), {})", "torch.arange({})", "torch.tensor([{}])",
    "torch.randint(0, {}, {})", "x.view({})", "x.to({})", "x.fill_({})", "x.expand({}, {})", "torch.eye({})", "len({})",
    "float({})", "[1, 2][{}]", "torch.zeros(2, device={})", "torch.zeros(2, dtype={})", "-{}", "{} + {}", "x.size({})",
    "torch.empty_like({})", "x.repeat({})", "torch.set_default_device({})", "{}({})", "{}.foo", "x.as_strided({}, {})",
])  # fmt: skip


@tries(200, deadline=None)
@given(CALLS, VALUES, VALUES)
def test_no_internal_name_stands_in_a_message(call, first, second):
    line = call.format(first, second)
    for text in (f"{HEAD}k = {line}\n{BLOCK}{RUN}", f"{HEAD}{BLOCK}fd.execute([{line}])",
                 f"{HEAD}k = {line}\n{BLOCK}fd.execute(k)"):  # fmt: skip
        try:
            fl.load_repro(text)
        except FuserLabError as error:
            assert not INTERNAL.search(str(error).split("\n")[0])  # noqa: PT017 - most of them are no errors


def test_default_devices_and_known_shapes():
    for line in ("torch.set_default_device('cuda')\nx = torch.randn(4, 6)",
                 "shape = [4, 6]\nx = torch.randn(*shape, device=0)",
                 "with torch.device('cuda'):\n    x = torch.randn(4, 6)"):  # fmt: skip
        assert read(f"{HEAD}{line}\n{BLOCK}{RUN}") == read(SCRIPT)


def test_prompts_are_stripped():
    lines = [line for line in SCRIPT.split("\n") if line]
    typed = "\n".join(f"... {line}" if line.startswith(" ") else f">>> {line}" for line in lines)
    assert read(f"{typed}\n[array([1.])]\n>>> d = {{}}") == read(SCRIPT)
    with pytest.raises(UnsupportedError, match=r"line 5: fd.ops.nge is not implemented") as caught:
        fl.load_repro(typed.replace("ops.neg", "ops.nge"))
    assert "fd.add_output(fd.ops.nge(T0))" in str(caught.value)


def test_a_tensor_filled_in_place_changes_under_all_its_names():
    text = HEAD + "x = torch.empty(4, 6)\ny = [x]\nx.fill_(3)\n" + BLOCK + "fd.execute(y)\nx.zero_()"
    assert (fl.load_repro(text)[1][0].materialize() == 3).all()


def test_written_indices_stay_in_range():
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1])
        places = fd.define_tensor([-1], dtype=DataType.Int)
        fd.add_output(fd.ops.index_select(x, places, 0))
    given = [np.ones((100, 4), np.float32), np.array([70, 99, 95])]
    text = fd.repro_script_for(given)
    _, inputs = fl.load_repro(text)
    assert (inputs[1].fill.low, inputs[1].fill.high) == (70, 100)
    namespace = {}
    exec(text, namespace)
    assert 70 <= namespace["inputs"][1].min() <= namespace["inputs"][1].max() < 100
    assert "Fill" not in fd.repro_script_for([spec((100, 4)), spec((3,), "int64")])
    fd.execute(given, save_repro_inputs=True)
    assert fd.last_repro_script() == text
