"""Each lowering's samples: recorded, and evaluated without kernels, they agree with torch."""

import re

import numpy as np
import pytest
from needs import needs

import fuser_lab as fl
from fuser_lab.bridge.lowerings import LOWERINGS, can_lower, record, refusal
from fuser_lab.bridge.lowerings.registry import Call, TracedTensor
from tests.bridge import calls

ATEN = {target: entry for target, entry in LOWERINGS.items() if not target.startswith("lax.")}
OF_OFFSETS = ("prims._low_memory", "fuser_lab.")  # ops that older releases of torch lack


def evaluated(torch, sample):
    """The results of a definition of all nodes of a sample's graph, and torch's results."""
    from bridge.samples import graph_of, operands

    from fuser_lab.api.fusion_definition import FusionDefinition
    from fuser_lab.bridge.signature import spec_of
    from fuser_lab.bridge.traced import call_of, target_of

    given = {name: x for name, x in operands(torch).items() if re.search(rf"\b{name}\b", sample)}
    from fuser_lab.bridge.pools import ops_of_offsets

    if ops_of_offsets() is None and sample.startswith(OF_OFFSETS):
        pytest.skip("this torch has no such op")
    names = {"torch": torch} | {name: getattr(torch.ops, name) for name in ("aten", "prims", "fuser_lab")}

    def compute(tensors):
        return eval(sample, {**names, **tensors})

    expected = compute(given)
    expected = list(expected) if isinstance(expected, list | tuple) else [expected]
    gm = graph_of(torch, compute, given)
    values, inputs, made = {}, [], {}
    with FusionDefinition() as fd:
        for node in gm.graph.nodes:
            if node.op in {"placeholder", "get_attr"}:
                tensor = given[list(given)[len(inputs)]] if node.op == "placeholder" else getattr(gm, node.target)
                node.meta["val"] = tensor
                call = call_of(node)
                values[node] = fd.define_from_spec(spec_of(call.results[0]), static_sizes=True)
                inputs.append(tensor)
            elif node.op == "call_function" and target_of(node) == "getitem":
                values[node] = made[node.args[0]][node.args[1]]
            elif node.op == "call_function":
                call = call_of(node)
                assert can_lower(call), f"{call.target}: {refusal(call)}"
                args, kwargs = torch.fx.map_arg((node.args, node.kwargs), values.__getitem__)
                made[node] = record(fd, call, args, kwargs)
                values[node] = made[node][0]
            else:
                (returned,) = node.args
                for result in returned if isinstance(returned, list | tuple) else (returned,):
                    fd.add_output(fd.ops.set(values[result]))
    return fd.reference(inputs), expected


@pytest.mark.parametrize("sample", calls.ATEN)
def test_a_lowering_computes_what_torch_does(sample):
    torch = needs("torch")
    found, expected = evaluated(torch, sample)
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        half = theirs.dtype in {torch.float16, torch.bfloat16}
        assert tuple(ours.shape) == tuple(theirs.shape)
        np.testing.assert_allclose(
            np.asarray(ours, np.float64), theirs.to(torch.float64).numpy(), rtol=1e-2 if half else 1e-5, atol=1e-6,
        )


# Ops that are decomposed although they have a lowering, which other graphs use: into the op of the same lowering, into
# a product and a sum (of products of matrices, those with vectors), or into ops that older releases of torch lack.
DECOMPOSED_FIRST = frozenset({
    *("max_pool2d_with_indices", "max_pool3d_with_indices"),  # into offsets, if the windows are small
    *("bmm", "dot", "vdot", "empty_like", "expand_copy", "floor_divide", "new_full", "new_ones", "new_zeros", "ones"),
})


def test_a_lowering_is_used_instead_of_a_decomposition():
    needs("torch")
    from fuser_lab.bridge.decompositions import table

    both = {str(op) for op in table()} & set(ATEN)
    assert both == {f"aten.{name}.default" for name in DECOMPOSED_FIRST}, "remove the name in bridge/decompositions.py"


def test_most_lowerings_have_samples():
    called = {call.partition("(")[0] for call in calls.ATEN}
    assert called <= set(ATEN)
    assert len(ATEN) - len(called) < 40, "a lowering shared by several ops needs samples of one of them"
    lowered = {LOWERINGS[target].lower for target in called}
    assert {entry.lower for entry in ATEN.values()} - lowered <= {LOWERINGS["prims.fma.default"].lower}


X = TracedTensor((3, 4), (4, 1), "float32", "cpu")
BYTES = TracedTensor((3, 4), (4, 1), "uint8", "cpu")
POOLED = TracedTensor((1, 2, 2, 3), (12, 6, 3, 1), "float32", "cpu")
GROWN = TracedTensor((1, 4, 2, 3), (24, 6, 3, 1), "float32", "cpu")


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (Call("aten.nothing.default", (X,), (), (X,)), "it has no lowering"),
        (Call("aten.abs.default", (TracedTensor((3,), (1,), "complex64", "cpu"),), (), (X,)), "the dtype complex64"),
        (Call("aten.add.Tensor", (X, TracedTensor((3, 4), (4, 1), "float32", "cuda:0")), (), (X,)), "between"),
        (Call("aten.abs.default", (TracedTensor((1,) * 17, (1,) * 17, "float32", "cpu"),), (), (X,)), "17 axes"),
        (Call("aten._adaptive_avg_pool3d.default", (POOLED, (4, 2, 3)), (), (GROWN,)),
         "[2, 2, 3] is not a multiple of [4, 2, 3]"),
        (Call("aten.remainder.Tensor", (BYTES, BYTES), (), (BYTES,)), "an integer by 0"),
        (Call("aten.floor_divide.default", (BYTES, 256), (), (BYTES,)), "an integer by 0"),
        (Call("aten.amax.default", (TracedTensor((0,), (1,), "float32", "cpu"),), (), (X,)), "empty tensor"),
    ],
)
def test_a_refusal_says_why_and_needs_no_torch(call, says):
    assert says in refusal(call)
    assert not can_lower(call)


IMAGE = TracedTensor((1, 1, 20, 20), (400, 400, 20, 1), "float32", "cpu")
MEANS = TracedTensor((1, 1, 14, 7), (98, 98, 7, 1), "float32", "cpu")
PADDED = TracedTensor((1, 1, 22, 22), (484, 484, 22, 1), "float32", "cpu")


@pytest.mark.parametrize(("call", "gradient", "most_adds"), [
    (Call("aten.avg_pool2d_backward.default", (MEANS, IMAGE, (7, 7), (1, 2), (0, 0), False, True, None), (), (IMAGE,)),
     MEANS, 9),
    (Call("aten.reflection_pad2d_backward.default", (PADDED, IMAGE, (1, 1, 1, 1)), (), (IMAGE,)), PADDED, 4),
])
def test_a_gradient_of_windows_adds_slices_along_each_axis(call, gradient, most_adds):
    with fl.FusionDefinition() as fd:
        x, like = (fd.define_tensor(list(shape), contiguity=True) for shape in (gradient.shape, IMAGE.shape))
        (y,) = record(fd, call, [x, like, *call.args[2:]], {})
        fd.add_output(y)
    names = [expr.op.name for expr in fd.fusion.exprs]
    assert not {"index_select", "gather", "sum"} & set(names)
    assert names.count("add") <= most_adds


@pytest.mark.parametrize(("device", "dtype", "divisor", "op"), [
    ("cpu", "float32", 448.0, "truediv"), ("cuda:0", "float32", 448.0, "mul"), ("cuda:0", "bfloat16", 3, "mul"),
    ("cuda:0", "float64", 3.0, "mul"), ("cuda:0", "float32", 0.0, "mul"),
])
def test_a_gpu_multiplies_by_the_reciprocal_of_a_number_as_eager_does(device, dtype, divisor, op):
    kind = getattr(fl.DataType, {"float32": "Float", "bfloat16": "BFloat16", "float64": "Double"}[dtype])
    like = TracedTensor((3, 4), (4, 1), dtype, device)
    with fl.FusionDefinition() as fd:
        x = fd.define_tensor([3, 4], contiguity=True, dtype=kind)
        (y,) = record(fd, Call("aten.div.Tensor", (like, divisor), (), (like,)), [x, divisor], {})
        fd.add_output(y)
    assert op in {expr.op.name for expr in fd.fusion.exprs}
    given = np.linspace(-3, 3, 12).reshape(3, 4).astype(kind.numpy)
    wide = np.float64 if dtype == "float64" else np.float32
    with np.errstate(all="ignore"):
        inverse = wide(1) / wide(divisor)
        wanted = given.astype(wide) / wide(divisor) if op == "truediv" else given.astype(wide) * inverse
    np.testing.assert_array_equal(fd.reference([given])[0], wanted.astype(kind.numpy))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("op", ["scatter_add.default", "scatter.src"])
def test_a_gpu_compares_a_few_positions_of_each_row_with_its_elements(op, count, dtype):
    kind = {"float32": fl.DataType.Float, "bfloat16": fl.DataType.BFloat16}[dtype]
    like = TracedTensor((3, 7), (7, 1), dtype, "cuda:0")
    index, source = (TracedTensor((3, count), (count, 1), name, "cuda:0") for name in ("int64", dtype))
    with fl.FusionDefinition() as fd:
        x, i, v = (
            fd.define_tensor(list(each.shape), contiguity=True, dtype=of)
            for each, of in ((like, kind), (index, fl.DataType.Int), (source, kind))
        )
        (y,) = record(fd, Call(f"aten.{op}", (like, 1, index, source), (), (like,)), [x, 1, i, v], {})
        fd.add_output(y)
    assert ({"scatter_add", "scatter"} & {expr.op.name for expr in fd.fusion.exprs} == set()) == (count < 5)
    given = np.arange(21.0).reshape(3, 7).astype(kind.numpy)
    places = np.array([[5, 5, 0, 1, 2], [0, 6, 1, 2, 3], [3, 2, 1, 4, 5]])[:, :count].copy()
    added = np.arange(3.0 * count).reshape(3, count)
    wanted = given.astype(float)
    for row in range(3):
        for place, value in zip(places[row], added[row], strict=True):
            wanted[row, place] = value + (wanted[row, place] if "add" in op else 0)
    (result,) = fd.reference([given, places, added.astype(kind.numpy)])
    np.testing.assert_array_equal(result.astype(float), wanted)


@pytest.mark.parametrize(("count", "by_comparisons"), [(2, True), (7, True), (16, True), (17, False)])
def test_the_values_of_a_short_axis_are_ranked_by_comparisons(count, by_comparisons):
    shape = (5, count)
    like = TracedTensor(shape, (count, 1), "float32", "cpu")
    order = TracedTensor(shape, (count, 1), "int64", "cpu")
    middle = TracedTensor((5,), (1,), "float32", "cpu")
    with fl.FusionDefinition() as fd:
        x = fd.define_tensor(list(shape), contiguity=True)
        values, _ = record(fd, Call("aten.sort.default", (like,), (), (like, order)), [x], {})
        (y,) = record(fd, Call("aten.select.int", (like, 1, count // 2), (), (middle,)), [values, 1, count // 2], {})
        fd.add_output(y)
    names = {expr.op.name for expr in fd.fusion.exprs}
    assert ("argsort" not in names) == ("lt" in names) == by_comparisons
    assert "cat" not in names, "the element is read from the part of it"
    given = np.random.default_rng(count).integers(-3, 4, shape).astype(np.float32)
    given[2, 0], given[3], given[4, ::2] = np.nan, np.nan, -np.inf
    np.testing.assert_array_equal(fd.reference([given])[0], np.sort(given, axis=1)[:, count // 2])


def test_a_few_positions_are_compared_on_a_gpu(monkeypatch):
    torch = needs("torch")
    monkeypatch.setattr("fuser_lab.bridge.lowerings.indexing.has_own_memory", lambda device: True)

    def write(x, index, source):
        return torch.index_copy(x, 1, index, source) * 2, torch.index_copy(x, -2, index[:1], source[:, :1]).sin()

    inputs = torch.randn(3, 9, 4), torch.tensor([7, 2]), torch.randn(3, 2, 4)
    captured = fl.from_torch(write, *inputs)
    assert len(captured.regions) == 1
    for value, expected in zip(captured.run(*inputs), write(*inputs), strict=True):
        assert torch.allclose(value, expected, rtol=1e-6, atol=1e-7)
