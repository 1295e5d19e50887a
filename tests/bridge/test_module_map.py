"""The map of a captured model: boxes by module path, the bytes between them, and saved files."""

import json
import time

import pytest
from machine import allowed
from needs import needs

import fuser_lab as fl
from fuser_lab.errors import InputError
from fuser_lab.report.module_map import Call, CallGraph, Flow, depth_for, module_boxes, parts_of
from fuser_lab.report.module_picture import describe, map_svg


def _chain(*calls):
    """A graph of (path, op, region) in a chain, each passing 4 bytes to the next."""
    made = tuple(Call(module=parts_of(path), op=op, region=region, bytes=4) for path, op, region in calls)
    flows = tuple(Flow(source=n, target=n + 1, tensor=f"v{n}", bytes=4) for n in range(len(made) - 1))
    return CallGraph(title="forward", calls=made, flows=flows)


def _names(box):
    return [one.name for one in box.inside.boxes]


def test_boxes_are_modules_and_equal_neighbours_are_one():
    layers = [(f"model.layers.{n}{path}", op, n) for n in range(9) for path, op in ((".norm", "mul"), (".mlp", "silu"))]
    graph = _chain(("model.embed", "index", 9), *layers, ("head", "mm", None))
    whole = module_boxes(graph)
    assert _names(whole) == ["model", "head"]
    model = module_boxes(graph, depth=2).inside.boxes[0]
    assert _names(model) == ["embed", "layers.0\u20138"]
    layer = model.inside.boxes[1]
    assert (layer.times, len(layer.calls), layer.regions) == (9, 18, (*range(9),))
    assert (layer.bytes_in, layer.bytes_out) == (4, 4)
    apart = module_boxes(graph, depth=2, folded=False).inside.boxes[0]
    assert _names(apart) == ["embed", *(f"layers.{n}" for n in range(9))]
    opened = module_boxes(graph, opened={"model", "model.layers.0"}).inside.boxes[0].inside.boxes[1]
    assert _names(opened) == ["norm", "mlp"]
    assert [(link.bytes, link.back) for link in opened.inside.links] == [(4, False)]
    assert [depth_for(graph, most) for most in (5, 6)] == [1, 2]


def test_modules_that_take_turns_are_one_box_that_opens_into_the_first_of_each():
    kinds = ["local", "local", "wide"] * 3 + ["local"]
    ops = [(n, op) for n, kind in enumerate(kinds) for op in (("norm", "mul"), ("", kind))]
    layers = [(f"layers.{n}.{path}".rstrip("."), op, n) for n, (path, op) in ops]
    graph = _chain(*layers, ("head", "mm", None))
    whole = module_boxes(graph)
    assert _names(whole) == ["layers.0\u20138", "layers.9", "head"]
    box = whole.inside.boxes[0]
    assert (box.turns, box.times, box.modules, len(box.calls), box.inside) == (3, 3, 9, 18, None)
    assert describe(box).startswith("layers.0\u20138: 9 modules, 3 that take turns 3 times, together 18 ops, ")
    opened = module_boxes(graph, opened={box.id}).inside.boxes[0]
    assert [(one.name, one.times) for one in opened.inside.boxes] == [("layers.0\u20131", 2), ("layers.2", 1)]
    deeper = module_boxes(graph, opened={box.id, "layers.2"}).inside.boxes[0].inside.boxes[1]
    assert _names(deeper) == ["norm", "2"]
    drawn = map_svg([module_boxes(graph, opened={box.id})])
    assert "layers.0\u20138: 3 in turn, \u00d7 3" in drawn
    assert "the first 3 are shown" in drawn
    assert _names(module_boxes(graph, folded=False)) == [*(f"layers.{n}" for n in range(10)), "head"]


def test_calls_of_a_module_itself_are_parted_where_a_way_leads_out_and_back():
    graph = _chain(("", "add", 0), ("", "mul", 0), ("block", "mm", None), ("", "add", 0), ("block", "mm", None))
    whole = module_boxes(graph)
    assert _names(whole) == ["0", "block", "0"]
    assert [len(box.calls) for box in whole.inside.boxes] == [2, 2, 1]
    assert [(a.source, a.target) for a in whole.inside.links if a.back] == [(2, 1)]
    assert "which is called again" in map_svg([whole])


def test_large_graphs_are_drawn_at_once():
    calls = [(f"blocks.{n // 30}.part{n % 30 // 6}", f"op{n % 5}", n // 3) for n in range(3000)]
    graph = _chain(*calls, *((("", f"op{n % 7}", 2000 + n // 4)) for n in range(300)))
    start = time.process_time()
    svg = map_svg([module_boxes(graph, folded=False)])
    assert time.process_time() - start < allowed(10)
    assert svg.count("data-box") > 100
    assert "blocks.0\u2013" in map_svg([module_boxes(graph)])


def test_a_models_map_holds_every_op_and_is_saved_to_any_depth(tmp_path):
    torch = needs("torch")

    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.up = torch.nn.LayerNorm(8), torch.nn.Linear(8, 8)

        def forward(self, x):
            return x + torch.nn.functional.gelu(self.up(self.norm(x)))

    model = torch.nn.ModuleDict({"layers": torch.nn.ModuleList(Layer() for _ in range(4))})
    model.forward = lambda x: model.layers[3](model.layers[2](model.layers[1](model.layers[0](x))))
    found = fl.from_torch(model, torch.randn(4, 8), backward=True)
    for one, graph in zip(found.maps(), found.graphs, strict=True):
        left = sum(row.op != "getitem" and not row.reason.startswith("a view") for row in graph.left)
        assert len(one.graph.calls) == sum(map(len, graph.regions)) + left
        whole = module_boxes(one.graph, depth=9)
        leaves = [box for box in whole.each() if box.inside is None]
        assert {number for box in leaves for number in box.calls} <= set(range(len(one.graph.calls)))
    forward = module_boxes(found.maps()[0].graph)
    assert sum(box.times for box in forward.inside.boxes if box.kind == "module") == 4
    sizes = [len(found.save(tmp_path / "m.svg", depth=depth).read_text()) for depth in (1, 2)]
    assert sizes[0] < sizes[1]
    assert "norm" not in found.save(tmp_path / "m.svg", depth=1).read_text().replace("LayerNorm", "")
    rows = found.save(tmp_path / "m.csv", depth=2).read_text().splitlines()
    assert any("norm,module,LayerNorm" in row for row in rows)
    assert json.loads(found.save(tmp_path / "m.json").read_text())[0]["name"] == "forward"
    assert "<svg" in found.save(tmp_path / "m.html").read_text()
    assert "<svg" in found._repr_html_()
    places = {op.origin.place.partition(":")[0] for region in found.graphs[0].regions for op in region.ops}
    assert places == {"test_module_map.py"}
    of_torch = fl.from_torch(torch.nn.Sequential(torch.nn.Tanh(), torch.nn.GELU()), torch.randn(4, 8))
    assert [str(op.origin) for op in of_torch.regions[0].ops] == ["0: Tanh", "1: GELU"]
    assert "region 0" in found.save(tmp_path / "m.txt").read_text()
    with pytest.raises(InputError, match="a model cannot be saved as 'm.doc'"):
        found.save(tmp_path / "m.doc")
