"""`found.why`: the relation of two selections of ops, what separates their regions, selections and refusals."""

import re
from pathlib import Path

import pytest
from needs import needs

import fuser_lab as fl
from fuser_lab.bridge.region_why import Relation, Rule
from fuser_lab.bridge.selection import select_ops
from fuser_lab.errors import ArgumentTypeError, InputError

torch = needs("torch")
F = torch.nn.functional


class Gate(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up = torch.nn.LayerNorm(8), torch.nn.Linear(8, 8)

    def forward(self, x):
        shifted = self.norm(x) * 2
        gated = F.silu(shifted)
        wide = self.up(gated)
        return torch.softmax(wide, -1) + x


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList([Gate(), Gate()])

    def forward(self, x):
        return self.layers[1](self.layers[0](x))


FIRST = Gate.forward.__code__.co_firstlineno + 1  # the line of `shifted`


@pytest.fixture(scope="module")
def model():
    return fl.from_torch(Net(), torch.randn(4, 8), backward=True)


def called(found, text):
    """The result of the call that a text names."""
    (call,) = re.findall(r"(?:^|\s)(\.(?:graphs|regions|why)\S*\((?:'[^']*', '[^']*')\))", text)
    return eval(f"found{call}", {"found": found})


def test_ops_of_one_segment_are_together(model):
    why = model.why("forward layers.0 shifted", "forward layers.0 gated")
    (answer,) = why.answers
    assert (why.relation, answer.regions, answer.graphs) == (Relation.TOGETHER, (0, 0), (0, 0))
    assert answer.segments.segments == (0, 0)
    assert called(model, why.text) == answer.segments


def test_an_op_of_the_library_between_two_regions_is_named_with_its_reason_and_line(model):
    why = model.why("forward layers.0 shifted", "forward layers.0 softmax")
    (answer,) = why.answers
    (product,) = answer.between
    assert (why.relation, answer.rule, answer.regions) == (Relation.REGIONS, Rule.CYCLE, (0, 1))
    assert (product.op, product.reason) == ("aten.addmm.default", "matrix products are torch's")
    assert product.origin == f"layers.0.up: wide = self.up(gated) (test_region_why.py:{FIRST + 2})"
    assert "would close a cycle through aten.addmm.default" in str(why)
    assert "from_torch(..., matmuls='record') records matrix products in regions." in str(why)


def test_each_graph_of_a_training_step_has_an_answer_and_no_region_spans_two(model):
    why = model.why("layers.1 shifted", "layers.1 softmax")
    assert [answer.graphs for answer in why.answers] == [(0, 0), (1, 1)]
    assert [text.partition(":")[0] for text in why.text.splitlines()] == ["graph 0 (forward)", "graph 1 (backward)"]
    across = model.why("forward softmax", "backward softmax")
    assert (across.relation, across.answers[0].graphs) == (Relation.GRAPHS, (0, 1))
    assert "no region spans a forward and a backward graph" in across.text


def test_lines_of_repeated_layers_are_compared_in_one_layer(model):
    """The softmax of the first layer and the norm of the second one share a region, which is not the question."""
    (answer,) = model.why("forward shifted", "forward softmax").answers
    assert (answer.relation, answer.rule) == (Relation.REGIONS, Rule.CYCLE)
    assert "forward shifted also has ops in region" in answer.text
    other = re.search(r"'(forward shifted region \d)'", answer.text)[1]
    assert 0 < len(select_ops(model.graphs, other).ops) < len(select_ops(model.graphs, "forward shifted").ops)


def test_what_the_library_runs_is_left_to_it_for_a_reason(model):
    why = model.why("forward addmm", "forward layers.0.norm")
    (answer,) = why.answers
    assert (why.relation, answer.regions) == (Relation.LEFT, (None, 0))
    assert "torch runs forward addmm (aten.addmm.default: matrix products are torch's)" in why.text


@pytest.mark.parametrize(
    "text",
    [str(FIRST), f"test_region_why.py:{FIRST}", f"{Path(__file__)}:{FIRST}", f"{FIRST} layers.*", f"graph 0 {FIRST}",
     "forward shifted"],
)  # fmt: skip
def test_a_line_is_selected_in_several_ways(model, text):
    chosen = {node for number, node in select_ops(model.graphs, text).ops if number == 0}
    assert chosen == {node for number, node in select_ops(model.graphs, "shifted").ops if number == 0}


def test_modules_and_ops_are_selected_by_ends_of_paths_and_plain_names(model):
    def ops(text):
        return select_ops(model.graphs, text).ops

    assert ops("norm") == ops("layers.*.norm") == ops("**.norm")
    assert set(ops("norm")) > set(ops("layers.1.norm"))
    assert ops("aten.addmm") == ops("aten.addmm.default") == ops("addmm")
    _, node = ops("addmm")[1]
    assert ops(f"forward {node.name}") == ((0, node),)
    assert {number for number, _ in ops("region 2")} == {0, 1}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (f"test_region_why.py:{FIRST - 1}", f"lines with ops are test_region_why.py:{FIRST}, test_region_why.py"),
        ("sofmax", "no op of the captured graphs is called 'sofmax'; close names are 'softmax'"),
        ("region 99", "there is no region 99; regions are numbered from 0 to"),
        ("graph 2", "there is no graph 2; graphs are numbered from 0 to 1"),
        ("layers.0 layers.1", "no op is selected by all words of 'layers.0 layers.1': 'layers.0' selects"),
        (" ", "' ' selects nothing; it must be a line such as 'model.py:12'"),
    ],
)
def test_a_selection_of_nothing_lists_the_choices(model, text, says):
    with pytest.raises(InputError) as raised:
        model.why("shifted", text)
    assert says in str(raised.value)
    assert "\n" not in str(raised.value)


def test_selections_are_texts_or_numbers_of_lines(model):
    with pytest.raises(ArgumentTypeError, match="why: b must be a line such as"):
        model.why("shifted", 2.5)
    assert repr(model.why(FIRST, FIRST)) == repr(model.why(str(FIRST), str(FIRST)))


def test_a_variable_of_several_lines_is_ambiguous():
    def twice(x):
        x = torch.sin(x)
        x = torch.cos(x)
        return x * 2

    line = twice.__code__.co_firstlineno
    found = fl.from_torch(twice, torch.ones(3))
    with pytest.raises(InputError, match=rf"x is assigned in several lines; choose from .*:{line + 1}, .*:{line + 2}"):
        found.why("x", "sin")


def test_segments_of_one_region_are_explained_by_its_plan():
    def sums(x):
        rows = x.sum(0)
        columns = x.sum(1)
        return rows, columns

    found = fl.from_torch(sums, torch.ones(64, 48, device="meta"))
    (answer,) = found.why("rows", "columns").answers
    assert answer.relation is Relation.SEGMENTS
    assert answer.segments == found.plan.why("T1", "T2") == called(found, answer.text)
    assert "no scheduler accepts both" in answer.text


def separate(function, *inputs, **options):
    found = fl.from_torch(function, *(torch.ones(shape) for shape in inputs), **options)
    (answer,) = found.why("first", "second").answers
    assert answer.relation is Relation.REGIONS
    return found, answer


def test_regions_without_a_common_value():
    def function(x, y):
        first = torch.sin(x)
        second = torch.cos(y)
        return first, second

    assert separate(function, 3, 4)[1].rule is Rule.NOTHING_SHARED


def test_a_draw_that_reads_data_separates_what_is_before_it():
    def function(x):
        first = torch.sin(x)
        mask = torch.bernoulli(x / 2)
        second = torch.cos(x)
        return first, mask, second

    _, answer = separate(function, 4)
    assert (answer.rule, [one.op for one in answer.between]) == (Rule.SECTION, ["aten.bernoulli.default"])
    assert "because it draws from torch's generator" in answer.text


def test_the_size_of_a_region_and_the_option_for_a_larger_one():
    def function(x):
        first = torch.sin(x) * 2
        second = torch.cos(first) + 1
        return second.exp() - 1

    found, answer = separate(function, 4, max_region_ops=2)
    assert answer.rule is Rule.SIZE
    enough = int(re.search(r"max_region_ops=(\d+) allows one", answer.text)[1])
    larger = fl.from_torch(function, torch.ones(4), max_region_ops=enough)
    assert larger.why("first", "second").answers[0].regions == (0, 0)
    (far,) = found.why("first", "exp").answers
    assert (far.rule, far.between[0].region) == (Rule.CYCLE, 1)
    assert called(found, far.text).answers[0].rule is Rule.SIZE


def test_lines_of_other_graphs_and_between_graphs_name_the_break():
    def function(x):
        before = torch.sin(x) * 2
        count = torch.unique(x)
        after = torch.cos(before)
        print(end="")
        return after.exp(), count

    line = function.__code__.co_firstlineno
    found = fl.from_torch(function, torch.ones(4))
    across = found.why("before", "after")
    assert (across.relation, across.answers[0].graphs) == (Relation.GRAPHS, (0, 1))
    assert f"the graph ends at test_region_why.py:{line + 2}" in across.text
    assert f"the graph ends at test_region_why.py:{line + 4}" not in across.text
    between = found.why(line + 2, "after")
    assert (between.relation, between.answers[0].graphs) == (Relation.OUTSIDE, (None, None))
    assert f"torch runs it between graphs: the graph ends at test_region_why.py:{line + 2}" in between.text
    with pytest.raises(InputError, match=rf"lines with ops are .*; graphs end at test_region_why.py:{line + 2}, "):
        found.why(line + 6, "after")


def test_a_function_of_jax_is_explained_by_scopes_lines_and_primitives():
    jax = needs("jax")
    jnp = jax.numpy

    def function(x, w):
        with jax.named_scope("norm"):
            scaled = x / jnp.sqrt((x * x).mean())
        product = scaled @ w
        return jnp.tanh(product)

    found = fl.from_jax(function, jnp.ones((4, 4)), jnp.ones((4, 4)))
    (answer,) = found.why("norm", "tanh").answers
    assert (answer.relation, answer.rule, answer.between[0].op) == (Relation.REGIONS, Rule.CYCLE, "lax.dot_general")
    assert "matrix products are JAX's." in answer.text
    assert found.why("product", "scaled").relation is Relation.LEFT
    left = fl.from_jax(function, jnp.ones((4, 4)), jnp.ones((4, 4)), left_to_jax=["tanh"]).why("tanh", "norm")
    assert "from_jax without this op in left_to_jax records it." in left.text
