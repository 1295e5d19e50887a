"""The names that users give to tensors are accepted wherever a tensor's name is, in plans and in the explorer."""

import json

import numpy as np
import pytest
from fuser_lab_widgets import Explorer

import fuser_lab as fl
from fuser_lab.errors import IllegalEdit, InputError
from fuser_lab.report.svg import view_svg
from fuser_lab.report.view_model import view_plan

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
    assert set(plan.names) == {("rows", "T0"), ("total", "T1"), ("total", "T2"), ("total", "T3")}
    with pytest.raises(IllegalEdit, match="total is the name of several tensors: T3, T1, T2"):
        plan.cut("total")


def test_a_tensor_that_an_edit_derives_from_another_inherits_its_name(plan):
    hinted = plan.annotate("total")
    nodes = [node for node in view_plan(hinted).nodes if node.kind == "op"]
    called = {name: word for node in nodes for name, word in zip(node.tensors, node.called, strict=True)}
    (hint,) = {expr.name for expr in hinted.fusion.tensor_exprs if expr.op.name == "segment_set"}
    assert hint not in dict(hinted.names).values()
    assert called[hint] == hinted.name_of(hint) == "total"
    assert f"total {hint}" in str(hinted)


def test_a_note_says_which_tensors_have_other_numbers_than_in_the_script():
    script = """
with FusionDefinition() as fd:
    T0 = fd.define_tensor(shape=[8, 4], contiguity=True)
    S1 = fd.define_scalar(2.0)
    T2 = fd.ops.mul(T0, S1)
    T3 = fd.ops.exp(T2)
    fd.add_output(T3)
"""
    fd, _ = fl.load_repro(script)
    note = "tensors have numbers of their own, as in nvFuser's output: T2 of the script is T1, T3 of the script is T2"
    assert note in fd.notes
    assert not any("numbers" in note for note in fl.load_repro(SCRIPT)[0].notes)


def test_the_parts_of_a_composite_op_are_told_apart():
    with fl.FusionDefinition() as fd:
        x = fd.define_tensor([64, 32], contiguity=True)
        var, mean = fd.ops.var_mean(x, dims=[1])
        column = fd.ops.broadcast(fd.ops.add(var, mean), [False, True])
        fd.add_output(fd.ops.sub(x, column))
    called = [name for node in view_plan(fl.segment(fd)).nodes if node.kind == "op" for name in node.called if name]
    assert {"mean", "mean_total", "mean_deviation", "mean_square", "var", "column"} <= set(called)
    assert len(set(called)) == len(called)


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


def _mean(fd, rows, count):
    total = fd.ops.sum(rows, dims=[1], keepdim=True)
    return total / count


def _recorded(*, named=True):
    """Return a definition, with variables or in a single expression without any."""
    with fl.FusionDefinition() as fd:
        if not named:
            fd.add_output(fd.ops.neg(fd.ops.exp(fd.define_tensor([64, 32], contiguity=True))))
            return fd
        rows = fd.define_tensor([64, 32], contiguity=True)
        mean = _mean(fd, rows, 32.0)
        spread, centre = fd.ops.var_mean(rows, dims=[1], keepdim=True)
        cell = rows - mean
        product = lambda: cell * spread  # noqa: E731 - the value is returned to the assignment
        again = last = product()
        fd.ops.neg(walrus := again + centre)
        _ = fd.ops.neg(walrus)
        fd.add_output(fd.ops.neg(fd.ops.exp(walrus)))
        fd.add_output(last)
    return fd


def test_variables_of_functions_name_the_tensors_that_they_are_assigned():
    plan = fl.segment(_recorded())
    ops = {expr.out.name: expr.op.name for expr in plan.definition.tensor_exprs}
    tensors = dict(plan.names)
    assert list(tensors) == ["rows", "total", "mean", "spread", "centre", "cell", "again", "walrus"]
    assert [ops.get(tensors[name]) for name in ("rows", "total", "mean", "cell", "again", "walrus")] == [
        None, "broadcast", "truediv", "sub", "mul", "add",
    ]
    moments = plan.definition.producers[plan.definition.tensors[tensors["again"]]].inputs
    assert moments[1].name == tensors["spread"] != tensors["centre"]
    assert fl.segment(_recorded(named=False)).names == ()


def test_a_tensor_is_called_by_its_variable_else_by_its_op(plan, own):
    assert plan.name_of(own["total"]) == "total"
    alone = fl.segment(_recorded(named=False))
    assert [alone.name_of(tensor) for tensor in ("T0", "T1", "T2")] == ["", "exp", "neg"]
    with pytest.raises(InputError, match="no tensor called 'T77'"):
        plan.name_of("T77")


def test_names_change_no_plan_and_no_code(plan):
    again = fl.segment(*fl.load_repro(SCRIPT.replace("total", "quite_another_name")))
    assert "quite_another_name" in dict(again.names)
    assert again.hash == plan.hash
    assert again.to_python() == plan.to_python()
    assert list(again.decisions) == list(plan.decisions)
    code = [
        [line.partition("  <- ")[0] for line in p.segments[0].source(target).splitlines()]
        for p in (again, plan) for target in ("cpu", "cuda")
    ]
    assert code[:2] == code[2:]  # but for lines of the script in comments


def test_a_definition_under_other_names_is_the_one_in_the_cache():
    cache = fl.FusionCache()
    for name in ("total", "other"):
        names = {"__name__": "__main__", "fl": fl, "cache": cache}
        exec(f"""
with fl.FusionDefinition(cache) as fd:
    rows = fd.define_tensor([64, 32], contiguity=True)
    {name} = fd.ops.sum(rows, dims=[1])
    fd.add_output({name})
""", names)
        assert dict(names["fd"].names) == {"rows": "T0", name: "T1"}
    assert cache.num_fusions() == 1


def test_pictures_tables_and_sentences_have_the_names(plan, own, tmp_path):
    total = own["total"]
    dot, mermaid = (plan.save(tmp_path / f"x.{kind}").read_text() for kind in ("dot", "mmd"))
    picture = view_svg(view_plan(plan))
    assert f"broadcast total {total}" in dot
    assert f"broadcast total {total}" in mermaid
    assert ">\u2002total</tspan><tspan" in picture
    why = plan.why("ratio", "columns")
    assert str(why).startswith(f"ratio {own['ratio']} (div) and columns {own['columns']} (sum)")
    assert why.text.startswith(f"{own['ratio']} (div) and {own['columns']} (sum)")
    assert f"columns {own['columns']}\n" in str(plan)


def test_names_are_escaped_and_long_ones_are_whole_in_the_tooltip():
    plan = fl.segment(*fl.load_repro(SCRIPT))
    long = "a_name_that_is_far_longer_than_a_box"
    hostile = '<img src=x onerror="alert(1)">'
    renamed = {"total": long, "ratio": hostile}
    plan = type(plan)(**{
        **{name: getattr(plan, name) for name in plan.__dataclass_fields__ if name not in {"_cache", "_lock"}},
        "names": tuple((renamed.get(name, name), tensor) for name, tensor in plan.names),
    })
    picture = view_svg(view_plan(plan))
    assert "<img" not in picture + plan._repr_html_()
    assert f"\u2002{long[:17]}…<" in picture
    assert f"{long} {dict(plan.names)[long]}</title>" in picture


def test_the_explorer_sends_names_once_and_answers_with_the_fusions_own(plan, own):
    explorer = Explorer(plan, [np.zeros((64, 32), np.float32)])
    assert explorer.called[own["total"]] == "total"
    explorer.selection = own["ratio"]
    assert "total" not in json.dumps(explorer.answer["actions"])
    explorer.close()


@pytest.mark.parametrize(("shapes", "says"), [
    (((4, 3),), "the fusion takes 2 inputs (x T0, scale T1), given 1."),
    (((4, 3), (3,)), "Expected input 1, scale T1_g_float"),
])
@pytest.mark.parametrize("call", [fl.segment, lambda fd, inputs: fd.execute(inputs)])
def test_an_error_about_inputs_has_the_users_names(call, shapes, says):
    with fl.FusionDefinition() as fd:
        x = fd.define_tensor([4, 3], contiguity=True)
        scale = fd.define_tensor([4, 3], contiguity=True)
        fd.add_output(fd.ops.mul(x, scale))
    with pytest.raises(InputError) as raised:
        call(fd, [np.ones(shape, np.float32) for shape in shapes])
    assert str(raised.value).startswith(says)
