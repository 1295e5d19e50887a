"""The names that users give to tensors are accepted wherever a tensor's name is, in plans and in the explorer."""

import pytest

import fuser_lab as fl
from fuser_lab.errors import IllegalEdit, InputError

SCRIPT = """
with FusionDefinition() as fd:
    x = fd.define_tensor(shape=[-1, -1], contiguity=True, dtype=DataType.Float)
    scale = fd.ops.exp(x)
    total = fd.ops.sum(scale, dims=[1], keepdim=True)
    ratio = fd.ops.div(scale, total)
    shifted = fd.ops.mul(ratio, ratio)
    columns = fd.ops.sum(shifted, dims=[0])
    fd.add_output(columns)
inputs = [torch.randn(64, 32)]
fd.execute(inputs)
"""


@pytest.fixture(scope="module")
def plan():
    return fl.segment(*fl.load_repro(SCRIPT))


@pytest.fixture(scope="module")
def own(plan):
    return dict(plan.names)


def test_the_variables_of_a_script_name_its_tensors(plan, own):
    assert list(own) == ["x", "scale", "total", "ratio", "shifted", "columns"]
    ops = {expr.name: expr.op.name for expr in plan.definition.tensor_exprs}
    assert [ops[own[name]] for name in ("scale", "ratio", "columns")] == ["exp", "div", "sum"]


def test_every_method_accepts_the_users_name(plan, own):
    assert plan.why("ratio", "columns").text == plan.why(own["ratio"], own["columns"]).text
    cut = plan.cut("shifted")
    assert cut.edits == plan.cut(own["shifted"]).edits
    assert plan.preview_cut("shifted") == plan.preview_cut(own["shifted"])
    assert plan.cut(("shifted", "columns")).hash == plan.cut((own["shifted"], own["columns"])).hash
    assert plan.annotate("shifted").hash == plan.annotate(own["shifted"]).hash
    assert plan.annotate("shifted", "columns").hash == plan.annotate(own["shifted"], own["columns"]).hash
    assert plan.annotate("shifted").without_annotation("shifted").hash == plan.hash
    again = cut.recompute("shifted", reductions=True)
    assert again.hash == cut.recompute(own["shifted"], reductions=True).hash
    narrowed = fl.DataType.BFloat16
    assert cut.narrow("shifted", narrowed).hash == cut.narrow(own["shifted"], narrowed).hash
    home = next(s.index for s in cut.segments if own["columns"] in {t.name for t in s.outputs})
    assert cut.preview_move("shifted", home) == cut.preview_move(own["shifted"], home)


@pytest.mark.parametrize(("ask", "kind"), [
    (lambda plan: plan.why("totel", "columns"), InputError),
    (lambda plan: plan.cut("totel"), IllegalEdit),
    (lambda plan: plan.cut(("scale", "totel")), IllegalEdit),
    (lambda plan: plan.annotate("totel"), IllegalEdit),
    (lambda plan: plan.recompute("totel"), IllegalEdit),
    (lambda plan: plan.narrow("totel"), IllegalEdit),
    (lambda plan: plan.move("totel", 0), IllegalEdit),
    (lambda plan: plan.preview_cut("totel"), IllegalEdit),
])  # fmt: skip
def test_a_name_that_is_not_quite_right_is_answered_with_close_matches(plan, own, ask, kind):
    with pytest.raises(kind, match=rf"no tensor called 'totel'; close matches are total \({own['total']}\)"):
        ask(plan)


def test_a_name_of_several_tensors_is_not_guessed():
    script = SCRIPT.replace("ratio", "scale")
    plan = fl.segment(*fl.load_repro(script))
    with pytest.raises(IllegalEdit, match="scale is the name of several tensors: T1, T"):
        plan.cut("scale")


def test_a_tensor_that_has_the_name_comes_before_what_the_user_calls_so(own):
    plan = fl.segment(*fl.load_repro(SCRIPT.replace("columns", own["shifted"])))
    assert plan.cut(own["shifted"]).edits == (("cut", (own["shifted"],)),)


def test_variables_of_a_notebook_name_the_tensors_of_a_definition():
    cell = """
import fuser_lab as fl
with fl.FusionDefinition() as fd:
    rows = fd.define_tensor([64, 32], contiguity=True)
    total = fd.ops.sum(rows, dims=[1])
    for step in range(2):
        total = fd.ops.neg(total)
    fd.add_output(total)
"""
    names = {"__name__": "__main__"}
    exec(cell, names)
    plan = fl.segment(names["fd"])
    assert dict(plan.names) == {"rows": "T0", "total": names["total"].name}
    assert plan.why("total", "T1").text == plan.why(names["total"].name, "T1").text


def test_names_of_a_captured_graph_and_of_its_lines():
    torch = pytest.importorskip("torch")

    def model(x):
        total = x.sum(-1, keepdim=True)
        ratio = x.exp() / total
        return ratio * 2

    found = fl.from_torch(model, torch.randn(64, 32))
    names = dict(found.plan.names)
    made = {expr.name: expr.op.name for expr in found.plan.definition.tensor_exprs}
    assert made[names["ratio"]] == "truediv"
    assert found.plan.why("ratio", "total").text == found.plan.why(names["ratio"], names["total"]).text
