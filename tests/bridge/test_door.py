"""The door for users of torch: one call for any subject, one table of a step, one command for a file."""

import io
import json
import math
import re
import subprocess
from dataclasses import replace

import pytest
from needs import needs

import fuser_lab as fl
from fuser_lab.bridge.op_costs import op_bytes, op_flops, region_cost
from fuser_lab.bridge.traced import target_of
from fuser_lab.cli import user_file
from fuser_lab.cli.commands import main
from fuser_lab.cli.user_file import advice_for, place_of
from fuser_lab.cost.device import DEFAULT
from fuser_lab.cost.predicted_times import TimeModel
from fuser_lab.errors import ArgumentTypeError, InputError

torch = needs("torch")
from tests.bridge.door import followed, named_call  # noqa: E402 - both need torch
from tests.bridge.further_users import USERS  # noqa: E402
from tests.bridge.users import Block  # noqa: E402


@pytest.fixture(scope="module")
def captured():
    torch.manual_seed(0)
    return fl.from_torch(Block(64, 2), torch.randn(2, 24, 64), backward=True)


@pytest.mark.parametrize("name", [
    "focal_loss", "keyword_with_the_name_of_an_option", "a_class_instead_of_a_module", "sparse_input",
    "without_an_argument_that_it_needs", "shapes_that_do_not_fit",
    "lazily_initialised", "models_in_a_list", "data_loader_batch_as_a_tuple", "nested_tensor_input",
])
def test_a_call_works_or_names_a_call_that_works(name, tmp_path):
    errors = followed(USERS[name](), "explain", tmp_path)
    assert all(map(named_call, errors))
    works = {"focal_loss", "keyword_with_the_name_of_an_option", "nested_tensor_input"}
    assert bool(errors) == (name not in works)


@pytest.mark.filterwarnings("ignore")  # torch deprecates the functions that quantise
@pytest.mark.parametrize(("name", "said"), [
    ("quantized_dynamic", r"single calls of a library.*fl\.from_torch\(torch\.nn\.Linear\(8, 8\), torch\.randn"),
    ("message_passing_with_sparse_adjacency", "torch.compile does not support sparse Tensors"),
])
def test_an_error_says_why_torch_captures_nothing(name, said, tmp_path):
    assert re.search(said, followed(USERS[name](), "explain", tmp_path)[0])


def test_functions_in_which_the_tracer_of_torch_fails_run_uncaptured():
    class State:
        def __init__(self, x):
            torch._dynamo.mark_static_address(x)
            self.x = x

    def block(x):
        return (x.relu() + 1).tanh()

    x = torch.randn(4, 8)
    captured = fl.from_torch(lambda x: block(State(x).x), x)
    torch.testing.assert_close(captured.run(x), block(x))
    assert len(captured.plan.fusion.tensor_exprs) == 3
    with pytest.raises(InputError, match="captured no op of .*; its tracer fails: Attempt to trace"):
        fl.from_torch(lambda x: State(x).x.tanh(), x)


def test_an_option_that_the_function_has_as_a_parameter_is_its_argument():
    def scaled(x, strategy=1.0):
        return torch.tanh(x) * strategy

    costs = fl.explain(scaled, torch.randn(8, 4), strategy=3.0)
    assert [row.ops for row in costs.rows] == [2]
    unfused = fl.explain(lambda x: (x.tanh() * 2).sum(0), torch.randn(8, 4), strategy="unfused")
    assert len(unfused.rows[0].units[0].part.plan.segments) > 1


def test_an_error_of_a_function_is_a_sentence_with_its_line():
    def images(x):
        if x.dim() != 3:
            raise KeyError("images have three axes")
        return x.relu()

    with pytest.raises(InputError, match=r"raises KeyError at test_door.py:\d+ \(raise .*\): .*; model\(\*in"):
        fl.explain(images, torch.randn(4, 4))
    with pytest.raises(InputError, match=r"fl\.from_torch\(model, \*inputs, backward=True\) records gradients"):
        fl.explain(lambda x: x.square().sum().backward(), torch.randn(4))
    linear = torch.nn.Linear(8, 8).to(torch.bfloat16)
    with pytest.raises(InputError, match=r"fl\.from_torch\(model, torch\.randn\(64, 8, dtype=torch\.bfloat16\)\)"):
        fl.explain(linear, torch.randn(2, 8))


def test_every_function_takes_the_same_subjects(captured, tmp_path):
    fd, inputs = fl.example("softmax")
    plan = fl.segment(fd, inputs)
    assert str(fl.explain(fd, inputs)) == str(fl.explain(plan)) == str(fl.explain(fd, *inputs))
    assert fl.report(fd, inputs, tmp_path / "a.html") == tmp_path / "a.html"
    assert fl.time(fd, inputs, seconds=0.0, progress=False).totals[0].plan_hash == plan.hash
    assert fl.price(plan).to_dict() == fl.price(fd, inputs).to_dict()
    assert fl.price(captured).fusions == len(captured.regions)
    page = fl.report(captured, path=tmp_path / "b.html").read_text()
    assert captured.latest_step.headline.split(";")[0].replace("'", "&#x27;")[:40] in page
    for wrong in (3, "model.py", [plan, 3]):
        with pytest.raises(ArgumentTypeError, match=r"fl\.\w+\("):
            fl.explain(wrong)
    again = r"backward is an option .* fl\.explain\(model, \*inputs, backward=\.\.\.\)"
    with pytest.raises(ArgumentTypeError, match=again):
        fl.explain(captured, backward=True)
    with pytest.raises(InputError, match=r"this is not one fusion: .*fl\.explain\(captured\)"):
        _ = captured.plan


def test_the_table_has_each_region_and_each_op_of_torch_once(captured):
    costs = fl.explain(captured)
    units = [unit for row in costs.rows for unit in row.units]
    products = [unit for unit in units if "mm" in unit.name]
    assert len({id(unit.part) for unit in units}) == len(units)
    assert {unit.part for unit in units} >= set(captured.regions)
    assert len(products) == sum(row.count for row in captured.left_to_torch if "mm" in row.op) == 12
    # A forward product of [48, 64] by [64, 192] and its sum with a bias.
    first = next(unit for unit in units if unit.kind == "forward" and unit.modules == ("qkv",) and "mm" in unit.name)
    assert (first.cost.flops, first.cost.bytes) == (2 * 48 * 64 * 192, 4 * (48 * 64 + 64 * 192 + 192 + 48 * 192))
    assert costs.step == pytest.approx(sum(row.seconds for row in costs.rows))
    gains = [row.gain for row in costs.rows]
    assert gains == sorted(gains, reverse=True)
    assert all(row.gain <= row.seconds for row in costs.rows)
    assert costs.to_dict()["headline"] in str(costs)
    assert json.loads(json.dumps(costs.to_dict()))["rows"][0]["what"] == costs.rows[0].what


def test_measured_rows_and_the_host_add_up_to_the_step(captured):
    costs = fl.explain(captured, measure=True, seconds=0.0)
    assert all(row.seconds >= 0 for row in costs.rows)
    assert sum(row.seconds for row in costs.rows) >= 0.99 * costs.step
    assert [row.what for row in costs.rows].count("host") == 1
    assert captured.latest_step is costs
    assert "CPU" in costs.note


class Gated(torch.nn.Module):
    """A layer that keeps a number, which ends the graph."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)

    def forward(self, x):
        y = self.linear(x).relu() * 2
        self.largest = y.max().item()
        return torch.softmax(y, -1)


def test_graph_breaks_are_rows_and_a_graph_that_runs_several_times_counts_as_often():
    model = fl.from_torch(torch.nn.Sequential(*(Gated() for _ in range(3))), torch.randn(4, 8))
    assert [graph.runs for graph in model.graphs] == [3, 1, 1, 1]  # the other graphs are compiled for the number
    planned = fl.explain(model)
    rows = {row.what: row for row in planned}
    at, product = rows["inference 0 graph break"], rows["inference 0 aten.addmm"]
    assert (at.count, product.count) == (3, 3)
    assert at.line.endswith("self.largest = y.max().item()")
    assert product.bytes == 3 * product.units[0].cost.bytes == 3 * 4 * (4 * 8 + 8 * 8 + 8 + 4 * 8)
    assert math.isnan(at.seconds)
    measured = fl.explain(model, measure=True, seconds=0.0)
    row = next(row for row in measured if row.what == at.what)
    assert 0 < row.gain == row.measured
    assert sum(each.seconds for each in measured) >= 0.99 * measured.step
    only = replace(measured, rows=(replace(row, gain=measured.step),))
    assert "graph ends there: Unsupported Tensor.item()" in only.headline
    assert "keep the value a tensor" in only.headline
    assert fl.price(model).fusions == 6


def test_memory_holds_what_a_later_op_reads():
    def chain(x):
        y = torch.mm(x, x)
        z = torch.mm(y, y)
        return torch.mm(z, y)

    memory = fl.explain(chain, torch.randn(16, 16)).memory
    one = 16 * 16 * 4
    assert [(alive.held, alive.computed) for alive in memory] == [(one, one), (one, 2 * one), (one, 3 * one)]


def test_look_ups_read_rows_and_views_nothing():
    table, rows = torch.randn(1000, 8), torch.arange(4)
    look_up = fl.from_torch(torch.nn.functional.embedding, rows, table, left_to_torch=["aten.embedding"])
    (left,) = look_up.graphs[0].left
    assert op_bytes(left.node) == 2 * 4 * 8 * 4 + 4 * 8
    (region,) = fl.from_torch(lambda rows, table: table[rows].tanh(), rows, table).regions
    cost, model = region_cost(region, DEFAULT), TimeModel.of(DEFAULT)
    assert cost.bytes == op_bytes(left.node)
    assert cost.bound == min(model.launch + model.memory(cost.bytes), cost.predicted)
    transposed = fl.from_torch(lambda x: torch.mm(x.t(), x), table).graphs[0].traced.nodes
    moved = {target_of(node): op_bytes(node) for node in transposed if node.op == "call_function"}
    assert moved == {"aten.t.default": 0, "aten.mm.default": 2 * 1000 * 8 * 4 + 8 * 8 * 4}
    square = torch.randn(4, 4, 8, 8)
    conv = fl.from_torch(torch.nn.Conv2d(4, 6, 3, bias=False), square)
    flops = [op_flops(n) for n in conv.graphs[0].traced.nodes if target_of(n).startswith("aten.convolution")]
    assert flops == [2 * 4 * 6 * 6 * 6 * 4 * 9]


def test_ops_that_are_left_say_what_they_would_take():
    def route(x):
        shares, chosen = torch.topk(x @ x.t(), 2)
        return torch.view_as_complex(shares).abs() * chosen.sum(1)

    takes = {row.op.split(".")[1]: row.takes for row in fl.from_torch(route, torch.randn(4, 4)).left_to_torch}
    assert takes["mm"] == "from_torch(..., matmuls='record') records matrix products in regions"
    assert "library's choice" in takes["topk"]
    assert "real and imaginary parts" in takes["view_as_complex"]


def test_attention_is_a_region_with_the_remedy_that_is_named():
    q = torch.randn(2, 2, 8, 4)
    attend = lambda: fl.from_torch(torch.nn.functional.scaled_dot_product_attention, q, q, q)  # noqa: E731 - twice
    (row,) = [row for row in attend().left_to_torch if not row.is_free]
    assert "sdpa_kernel(torch.nn.attention.SDPBackend.MATH)" in row.takes
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        assert len(attend().regions) > 0


def as_child(command, *, input, **_):
    """Run the child of the command in this process, which has imported torch."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdin", io.StringIO(input))
        return subprocess.CompletedProcess(command, user_file.main())


@pytest.mark.parametrize("run", [as_child, pytest.param(subprocess.run, marks=pytest.mark.matrix)])
def test_the_command_explains_a_class_in_a_file(run, tmp_path, capfd, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(user_file.subprocess, "run", run)
    (tmp_path / "model.py").write_text(
        "import torch\nprint('imported')\nclass Gate(torch.nn.Module):\n    def __init__(self, width):\n"
        "        super().__init__()\n        self.norm = torch.nn.LayerNorm(width)\n"
        "    def forward(self, x, y):\n        return self.norm(x).tanh() * y\n",
    )
    inputs = ["--inputs", "f32[8,32]", "--inputs", "y=f32[8,32]"]
    status = main(["explain", "model.py:Gate", "--init", "32", *inputs, "--json"])
    printed = capfd.readouterr()
    assert status == 0, printed.err
    assert "imported" in printed.err
    assert "Warning" not in printed.err
    table = json.loads(printed.out)
    assert table["rows"][0]["line"].startswith("model.py:")
    assert (tmp_path / table["report"]).exists()
    assert main(["explain", "model.py:Gate", "--init", "32", "--inputs", "f32[8,31], y=f32[8,32]"]) == 2
    assert 'explain model.py:Gate --init "32" --inputs "f32[64,32]"' in capfd.readouterr().err
    assert main(["explain", "model.py:Gate", "--inputs", "f32[8,32]", "f32[8,32]"]) == 2
    assert '--inputs takes one string, "f32[8], f32[8]"' in capfd.readouterr().err
    assert main(["explain", "model.py:Gats", "--inputs", "f32[8,32]"]) == 2
    assert "For example: python -m fuser_lab explain model.py:Gate --inputs" in capfd.readouterr().err


def test_errors_about_files_name_the_command(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.py").write_text("import torch\ndef gate(x, y):\n    return torch.tanh(x) * y\n")
    assert main(["explain", "model.py"]) == 2
    assert "python -m fuser_lab explain model.py:gate --inputs" in capsys.readouterr().err
    assert main(["report", "model.py:gate"]) == 2
    assert "python -m fuser_lab explain model.py:gate" in capsys.readouterr().err
    assert place_of("a b/model.py:Net.forward") == ("a b/model.py", "Net.forward")
    assert place_of("issue.md") is place_of("model.py") is None
    assert advice_for("a.py", "import numpy\ndef f(x): ...") == ""
