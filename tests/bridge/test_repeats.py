"""Rewrites of a captured graph: of equal calls, of splits, of parts of concatenations, and of gathers."""

from collections import Counter

from bridge.samples import graph_of
from needs import needs

from fuser_lab.bridge.gathers import gather_operands
from fuser_lab.bridge.lowerings.views import ALIASES
from fuser_lab.bridge.partition import prepare
from fuser_lab.bridge.parts import read_operands_of_cats
from fuser_lab.bridge.repeats import merge_calls
from fuser_lab.bridge.traced import target_of

torch = needs("torch")


def counted(function, **given):
    """Whether a graph was changed, and its op counts afterwards; its values must not change."""
    gm = graph_of(torch, function, given)
    expected = gm(*given.values())
    done = merge_calls(gm.graph)
    gm.recompile()
    for ours, theirs in zip(gm(*given.values()), expected, strict=True):
        assert torch.equal(ours, theirs)
    return done, Counter(target_of(node).split(".")[1] for node in gm.graph.nodes if node.op == "call_function")


def test_equal_calls_become_one():
    def function(v):
        x = v["x"]
        return [(x.sin() + 1) * (x.sin() + 1).cos(), x.t().sin().sum(0) + x.t().sin().sum(1)]

    done, counts = counted(function, x=torch.randn(3, 3))
    assert done
    assert counts == {"sin": 2, "add": 2, "mul": 1, "cos": 1, "t": 1, "sum": 2}


def test_numbers_may_stay_apart_while_what_they_scale_is_merged():
    def function(v):
        return [(v["x"] * (v["rate"] * 2)).cos(), (v["x"] * (v["rate"] * 2)).sin()]

    gm = graph_of(torch, function, {"x": torch.randn(3), "rate": torch.tensor(0.1)})
    assert merge_calls(gm.graph, numbers=False)
    gm.graph.eliminate_dead_code()
    assert sum(target_of(node) == "aten.mul.Tensor" for node in gm.graph.nodes) == 2
    gm = graph_of(torch, lambda v: [v["rate"] * 2 * v["x"], (v["rate"] * 2 - v["y"])],
                  {"x": torch.randn(3), "y": torch.randn(4), "rate": torch.tensor(0.1)})
    assert merge_calls(gm.graph, numbers=False)
    assert sum(target_of(node) == "aten.mul.Tensor" for node in gm.graph.nodes) == 3


def test_numbers_that_only_merged_calls_read_are_gone():
    def function(v):
        x = v["x"]
        zeros = [torch.where(x > 0, torch.full((), 0.0), x) for _ in range(3)]
        return [zeros[0] + zeros[1] * zeros[2]]

    gm = graph_of(torch, function, {"x": torch.randn(3)})
    assert merge_calls(gm.graph, numbers=False)
    counts = Counter(target_of(node) for node in gm.graph.nodes)
    assert (counts["aten.full.default"], counts["aten.where.self"]) == (1, 1)


def test_numbers_that_are_written_into_a_tensor_are_no_tensors_that_regions_read():
    def function(v):
        x = torch.full_like(v["x"], -torch.inf)
        x[:, 2] = 0.5
        return [torch.where(v["x"] > 0, x, v["x"]), v["x"] + torch.tensor(2.5)]

    given = {"x": torch.randn(3, 4)}
    gm = graph_of(torch, function, given)
    expected = gm(*given.values())
    prepare(gm)
    gm.recompile()
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(gm(*given.values()), expected, strict=True))
    numbers = [node.args[1] for node in gm.graph.nodes if target_of(node) == "aten.full.default"]
    assert sorted(numbers) == [0.5, 2.5]
    assert not gm.graph.find_nodes(op="get_attr")


def test_what_differs_stays():
    def function(v):
        x, y = v["x"], v["y"]
        kinds = [x.sum(1, True), x.sum(1), (y * 2).float(), (y * 2.0).float(), (x + 0.0).neg(), (x + -0.0).neg()]
        return [part.exp() for part in kinds]

    done, counts = counted(function, x=torch.randn(3, 3), y=torch.arange(3))
    assert done
    assert (counts["sum"], counts["mul"], counts["add"], counts["exp"]) == (2, 2, 2, 6)


def test_results_keep_memory_of_their_own_and_draws_their_numbers():
    done, counts = counted(lambda v: [v["x"].sin(), v["x"].sin(), v["x"].sin().cos()], x=torch.randn(3))
    assert done
    assert counts["sin"] == 3
    gm = graph_of(torch, lambda v: [torch.rand_like(v["x"]) - torch.rand_like(v["x"])], {"x": torch.randn(3)})
    assert merge_calls(gm.graph)
    assert sum(target_of(node) == "aten.rand_like.default" for node in gm.graph.nodes) == 2


def test_a_graph_that_writes_is_left_as_it_is():
    def function(v):
        y = v["x"].sin()
        v["x"].copy_(y)
        return [v["x"].sin() + 1]

    gm = graph_of(torch, function, {"x": torch.randn(3)})
    before = len(gm.graph.nodes)
    assert not merge_calls(gm.graph)
    assert len(gm.graph.nodes) == before


def test_equal_calls_beside_a_write_over_an_argument_are_merged_unless_they_read_it_before_and_after() -> None:
    def function(v):
        x, y = v["x"], v["y"]
        before = x.sin() * y.cos() + x.sin()
        x.copy_(before + 1)
        return [before, x.sin() + y.cos()]

    given = {"x": torch.randn(3), "y": torch.randn(3)}
    gm = graph_of(torch, function, {name: x.clone() for name, x in given.items()})
    expected = function({name: x.clone() for name, x in given.items()})
    (write,) = (node for node in gm.graph.nodes if target_of(node) == "aten.copy_.default")
    write.replace_all_uses_with(write.args[0])  # as in a graph that torch has made free of other writes
    assert merge_calls(gm.graph)
    gm.recompile()
    counts = Counter(target_of(node).split(".")[1] for node in gm.graph.nodes if node.op == "call_function")
    assert (counts["sin"], counts["cos"]) == (2, 1)
    for ours, theirs in zip(gm(*given.values()), expected, strict=True):
        assert torch.equal(ours, theirs)


def test_parts_of_a_split_become_slices():
    def function(v):
        x = v["x"]
        return [*x.split([1, 3], 1), *x.split(3), *x.chunk(2, -1), *x.unbind(1), *x.unbind()]

    given = {"x": torch.randn(4, 4)}
    gm = graph_of(torch, function, given)
    expected = gm(*given.values())
    prepare(gm)
    gm.recompile()
    for ours, theirs in zip(gm(*given.values()), expected, strict=True):
        assert torch.equal(ours, theirs)
        assert ours.data_ptr() == theirs.data_ptr()
    assert {target_of(node) for node in gm.graph.nodes if node.op == "call_function"} <= ALIASES


def parts_of_cats(function, results=None, **given):
    """The op counts of a graph with parts of operands for parts of concatenations; its values must not change."""
    gm = graph_of(torch, function, given)
    expected = gm(*given.values())
    read_operands_of_cats(gm.graph, results)
    gm.recompile()
    for ours, theirs in zip(gm(*given.values()), expected, strict=True):
        assert torch.equal(ours, theirs)
    return Counter(target_of(node).split(".")[1] for node in gm.graph.nodes if node.op == "call_function")


def test_parts_of_a_concatenation_are_parts_of_its_operands() -> None:
    def halves(v):
        first, second = torch.cat([v["x"], v["y"]], -1).chunk(2, -1)
        return [first.sin() * second]

    def inside(v):
        joined = torch.cat([v["x"], v["y"]])
        return [joined[1:3].sin(), joined[-2:].cos(), joined[:4].exp()]

    x, y = torch.randn(4, 4), torch.randn(4, 4)
    assert parts_of_cats(halves, x=x, y=y) == {"sin": 1, "mul": 1}
    assert parts_of_cats(halves, x=x, y=y.t()) == {"sin": 1, "mul": 1, "clone": 1}
    assert parts_of_cats(inside, x=x, y=y) == {"slice": 2, "sin": 1, "cos": 1, "exp": 1}


def test_a_concatenation_stays_if_a_part_has_two_operands_or_is_a_result() -> None:
    def across(v):
        return [torch.cat([v["x"], v["y"]])[3:5].sin()]

    def returned(v):
        joined = torch.cat([v["x"], v["y"]])
        return [joined[:4].sin(), joined[4:]]

    def promoted(v):
        return [torch.cat([v["x"], v["y"].double()])[:4].sin()]

    x, y = torch.randn(4, 4), torch.randn(4, 4)
    for function in (across, returned, promoted):
        assert parts_of_cats(function, x=x, y=y)["cat"] == 1
    assert parts_of_cats(returned, results=1, x=x, y=y) == {"sin": 1}  # gradients may have any memory


def test_a_part_is_not_read_from_an_argument_that_is_written() -> None:
    def function(v):
        joined = torch.cat([v["x"], v["y"]])
        v["x"].copy_(joined[4:] + 1)
        return [joined[:4].sin()]

    given = {"x": torch.randn(4, 4), "y": torch.randn(4, 4)}
    gm = graph_of(torch, function, {name: x.clone() for name, x in given.items()})
    read_operands_of_cats(gm.graph)
    assert "aten.cat.default" in map(target_of, gm.graph.nodes)


def gathered_from(function, **given):
    """The op of each tensor from which a graph gathers, after the rewrite; its values must not change."""
    gm = graph_of(torch, function, given)
    expected = gm(*given.values())
    gather_operands(gm.graph)
    gm.recompile()
    for ours, theirs in zip(gm(*given.values()), expected, strict=True):
        assert torch.equal(ours, theirs)
    for node in gm.graph.nodes:
        if hasattr(value := node.meta.get("val"), "shape") and target_of(node).startswith("aten.gather"):
            assert value.shape == node.args[2].meta["val"].shape
    return [target_of(node.args[0]) for node in gm.graph.nodes if target_of(node) == "aten.gather.default"]


def loss(x, i):
    return (x - x.amax(1, True) - (x - x.amax(1, True)).exp().sum(1, True).log()).gather(1, i)


def turned(x):
    return x.permute(2, 0, 1).exp().transpose(1, -1).neg().transpose(1, 2)


def test_a_gather_reads_what_is_in_memory() -> None:
    x, w, i = torch.randn(6, 8).half(), torch.randn(8, 8), torch.arange(6)[:, None]
    columns = (torch.arange(8) % 6).expand(3, 2, 8)
    for found, op in (
        (gathered_from(lambda v: [loss(v["x"].float() * 2, v["i"])], x=x, i=i), "placeholder"),
        (gathered_from(lambda v: [loss(v["x"].float().t().contiguous(), v["i"])], x=x[:, :6], i=i), "placeholder"),
        (gathered_from(lambda v: [turned(v["x"]).gather(-2, v["i"])],
                       x=torch.randn(6, 8, 3), i=columns), "aten.permute.default"),
        (gathered_from(lambda v: [loss(v["x"].float() @ v["w"], v["i"])], x=x, w=w, i=i), "aten.mm.default"),
    ):
        assert found == [op]


def test_a_gather_stays_if_it_would_read_or_compute_more() -> None:
    x, y, i = torch.randn(6, 8), torch.randn(6, 8), torch.arange(6)[:, None]
    assert gathered_from(lambda v: [(v["x"] * v["y"]).gather(1, v["i"])], x=x, y=y, i=i) == ["aten.mul.Tensor"]
    assert gathered_from(lambda v: [v["x"].cumsum(1).sin().gather(1, v["i"])], x=x, i=i) == ["aten.sin.default"]
    assert gathered_from(lambda v: [v["x"].sin().gather(1, v["i"])], x=x, i=i[:4]) == ["aten.sin.default"]
    assert gathered_from(lambda v: [v["x"].sin().gather(1, v["i"])], x=x, i=i.expand(6, 9) % 5) == ["aten.sin.default"]
