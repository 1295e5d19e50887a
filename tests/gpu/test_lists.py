"""Regions of one program are one launch on a GPU, with the values of eager mode."""

import importlib
import warnings
from typing import Any

import pytest
from bridge.test_lists import IN_PLACE, SIZES, adam_in_place, adamw, averages, copies_of
from needs import needs

from fuser_lab.errors import RegionWarning

torch = needs("torch")
bridge = importlib.import_module("fuser_lab.torch")
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

# Sizes of one block, of a few and of many, whose kernels take 4, 2 and 1 elements at a time.
MANY = [*SIZES * 5, (1 << 20,), (3001, 1003)]


def tensors() -> list[Any]:
    return [torch.rand(size, device="cuda") for size in MANY]


@pytest.mark.parametrize("program", [averages, adamw])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_list_has_the_values_of_eager_mode(program: Any, dtype: str) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    groups = 2 if program is averages else 4
    rate = () if program is averages else (torch.tensor(0.01, device="cuda", dtype=getattr(torch, dtype)),)
    compiled = torch.compile(program, backend="fuser_lab", fullgraph=True, options={"precision": "eager"})
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error", RegionWarning)
        for _ in range(4):
            inputs = [[x.to(getattr(torch, dtype)) for x in tensors()] for _ in range(groups)]
            torch.testing.assert_close(compiled(*inputs, *rate), program(*inputs, *rate))
    (graph,) = bridge.last().graphs
    assert graph.lists
    assert sum(len(listed.regions) for listed in graph.lists) == len(MANY)


def test_a_list_runs_on_the_current_stream_and_in_a_captured_graph() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(averages, backend="fuser_lab", fullgraph=True)
    old, new = tensors(), tensors()
    stream = torch.cuda.Stream()
    with torch.no_grad(), torch.cuda.stream(stream):
        for _ in range(3):
            results = compiled(old, new)
        torch.testing.assert_close(results, averages(old, new))
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            results = compiled(old, new)
        for x in old:
            x.mul_(2)
        graph.replay()
        torch.testing.assert_close(results, averages(old, new))


@pytest.mark.parametrize("name", IN_PLACE)
def test_a_result_in_the_memory_of_an_argument_has_the_value_of_eager_mode(name: str) -> None:
    function, sizes, copies = IN_PLACE[name]
    torch._dynamo.reset()
    torch.manual_seed(0)
    arguments = [torch.rand(size, device="cuda") for size in sizes]
    expected = [x.clone() for x in arguments]
    compiled = torch.compile(function, backend="fuser_lab", fullgraph=True)
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(compiled(*arguments), function(*expected))
            torch.testing.assert_close(arguments, expected)
        assert copies_of(lambda: compiled(*arguments)) == copies


def test_steps_of_adam_in_place_have_the_values_of_eager_mode() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    groups = [tensors() for _ in range(4)]
    expected = [[x.clone() for x in group] for group in groups]
    compiled = torch.compile(adam_in_place, backend="fuser_lab", fullgraph=True)
    with torch.no_grad():
        for _ in range(5):
            compiled(*groups)
            adam_in_place(*expected)
    torch.testing.assert_close(groups, expected)
    (graph,) = bridge.last().graphs
    assert sum(len(listed.regions) for listed in graph.lists) == len(MANY)
