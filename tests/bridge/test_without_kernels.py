"""Ops that no kernel computes stay with torch, and what is not in a kernel is reported as such."""

import importlib

import pytest
from needs import needs

import fuser_lab as fl
from fuser_lab.bridge.lowerings import LOWERINGS
from fuser_lab.bridge.partition import NO_KERNEL
from fuser_lab.errors import CodegenError, CompilationError, RegionWarning
from fuser_lab.runtime.plan import variants

torch = needs("torch")
F = torch.nn.functional
bridge = importlib.import_module("fuser_lab.torch")

X, PLACES, VALUES = torch.zeros(5, 4), torch.tensor([0, 2, 2, 4, 1, 1]), torch.randn(6, 4)


def names(rows):
    return {row.op.split(".")[1] for row in rows}


@pytest.mark.parametrize(("function", "op"), [
    (lambda x, i, v: (x + 1).index_reduce(0, i, v * 2, "amax") * 3, "index_reduce"),
    (lambda x, i, v: (x + 1).index_put((i,), v * 2, accumulate=True) * 3, "index_put"),
    (lambda x, i, v: (x + 1).index_add(0, i, v * 2) * 3, "index_add"),
    (lambda x, i, v: (x + 1).index_copy(0, i[:1], v[:1] * 2) * 3, "index_copy"),
    (lambda x, i, v: (x + 1).scatter_add(0, i[:, None].expand(6, 4), v * 2) * 3, "scatter_add"),
    (lambda x, i, v: (v * 2).repeat(2, 1).view(-1).sort().values + 1, "sort"),
    (lambda x, i, v: torch.histc(v * 2, 8, -3, 3) * 3, "histc"),
    (lambda x, i, v: F.embedding_bag(i[None], x + 1) * 3, "_embedding_bag_forward_only"),
    (lambda x, i, v: torch.gather(v[:, 0], 0, i), "gather"),
    (lambda x, i, v: v.cumsum(1), "cumsum"),
])
def test_an_op_that_the_array_library_would_evaluate_stays_with_torch(function, op):
    found = fl.from_torch(function, X, PLACES, VALUES)
    (row,) = [row for row in found.left_to_torch if not row.is_free]
    assert row.op.startswith(f"aten.{op}.")
    assert row.reason == (NO_KERNEL if row.op in LOWERINGS else "it has no lowering")
    assert not [node for region in found.regions for node in region.evaluated]
    assert found.shares.others == 1
    assert found.shares.evaluated == 0
    torch.testing.assert_close(found.run(X, PLACES, VALUES), function(X, PLACES, VALUES))


@pytest.mark.parametrize("function", [
    lambda x, i, v: v.exp().cumsum(1) * 2,  # neighbours of a scan share its kernel
    lambda x, i, v: x[i] * 2,
    lambda x, i, v: x[i, i % 4],
    lambda x, i, v: torch.gather(v * 2, 0, i[:, None].expand(6, 4)) + 1,
    lambda x, i, v: (v * 2).sort(1).values + v,  # of short rows
])
def test_reads_at_positions_and_scans_that_have_kernels_are_in_regions(function):
    found = fl.from_torch(function, X, PLACES, VALUES)
    assert found.shares.fused == 1
    assert not [row for row in found.left_to_torch if not row.is_free]


@pytest.mark.parametrize("function", [
    lambda x, i, v: torch.gather(v[:, 0], 0, i),
    lambda x, i, v: torch.gather(v, 1, i[:3, None] % 4),  # fewer rows than the operand has
    lambda x, i, v: torch.take_along_dim(v, i[:, None] % 4, 1),
    lambda x, i, v: F.embedding(i, v),
    lambda x, i, v: v[i],
    lambda x, i, v: v.cumsum(1),
])
def test_a_read_at_positions_or_a_scan_alone_is_a_region_of_the_fastest_plan(function):
    found = fl.from_torch(function, X, PLACES, VALUES, strategy="fastest")
    assert found.shares.fused == 1
    assert not [row for row in found.left_to_torch if not row.is_free]
    torch.testing.assert_close(found.run(X, PLACES, VALUES), function(X, PLACES, VALUES))


def test_the_rule_holds_at_all_sizes_of_a_graph():
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: (x * 2).sort(0).values + x, backend="fuser_lab", dynamic=True)
    for rows in (35, 37, 39):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(compiled(x), (x * 2).sort(0).values + x)
    assert names(bridge.last().left_to_torch) >= {"sort"}


def test_products_in_regions_count_as_evaluated():
    found = fl.from_torch(lambda x, w: (x @ w).sin(), torch.ones(4, 4), torch.ones(4, 4), matmuls="record")
    assert (found.shares.in_regions, found.shares.evaluated) == (1, 1)
    assert found.shares.fused == 0.5
    assert "the array library evaluates 1 of these" in str(found)


def test_a_region_that_failed_counts_as_torchs(monkeypatch):
    monkeypatch.setattr("fuser_lab.plan.Plan.prepare", lambda *_, **__: pytest.fail("no compiler"))
    found = fl.from_torch(lambda x: torch.sin(x) * 3, torch.ones(3))
    (region,) = found.regions
    assert found.shares.fused == 1
    region.failed = "no compiler"
    assert (found.shares.in_regions, found.shares.others, found.shares.fused) == (0, 2, 0)
    assert "torch runs 2 ops of regions that failed" in str(found)


@pytest.mark.parametrize("error", [CodegenError, CompilationError])
def test_torch_runs_a_region_whose_kernel_is_refused(monkeypatch, error):
    def refused(*_: object, **__: object):
        raise error("the kernel is refused.")

    torch._dynamo.reset()
    monkeypatch.setattr(variants, "generate", refused)
    with pytest.warns(RegionWarning, match="the kernel is refused") as told:
        result = torch.compile(lambda x: (x + 1).exp(), backend="fuser_lab")(X)
    torch.testing.assert_close(result, (X + 1).exp())
    assert len(told) == 1
    assert bridge.last().regions[0].failed


def test_an_op_between_two_graphs_is_reported():
    found = fl.from_torch(lambda x: torch.unique(x * 2) + 1, torch.tensor([1.0, 2.0, 1.0]))
    (row,) = found.left_to_torch
    assert row.op.startswith("aten._unique2")
    assert row.reason.startswith("torch runs it between two graphs: ")
    assert "test_without_kernels.py" in row.origin
    assert found.shares.outside == 1
    assert found.shares.fused == pytest.approx(2 / 3)
    assert "torch runs 1 op between graphs" in str(found).splitlines()[0]
    assert "aten._unique2" in found._repr_html_()


def columns(*shape):
    """A tensor whose first axis has the smallest stride."""
    order = range(len(shape))[::-1]
    return torch.randn(shape[::-1]).permute(*order)


@pytest.mark.parametrize(("function", "shapes"), [
    (lambda x, y: torch.select_scatter(x, y, 0, 1), ((3, 4, 5), (4, 5))),
    (F.gelu, ((3, 4, 5),)),
])
def test_a_decomposed_op_keeps_the_strides_that_torch_gives_it(function, shapes):
    def run(called):
        given = [columns(*shape).requires_grad_() for shape in shapes]
        with torch.no_grad():
            for place, x in enumerate(given):
                x.copy_(torch.linspace(-1, 1, x.numel()).view(x.shape) * (place + 1))
        y = called(*given)
        return [y, *torch.autograd.grad(y, given, torch.ones_like(y))]

    torch._dynamo.reset()
    compiled = torch.compile(function, backend="fuser_lab", dynamic=False)
    for ours, theirs in zip(run(compiled), run(function), strict=True):
        assert ours.stride() == theirs.stride()
        torch.testing.assert_close(ours, theirs)
