"""How far roundings move the results of a torch graph: the graph runs a few times, each op with other roundings.

The idea is that of stochastic arithmetic (Vignes, *A stochastic arithmetic for reliable scientific computation*, 1993):
the digits of a result that random roundings change are not significant.
"""

import math
from collections.abc import Sequence
from typing import Any

from fuser_lab.bridge.requirement import torch_for

# With normally distributed changes, their mean square in 32 runs is below a sixth of the variance for one in a hundred
# million elements, and a number half way between two whole ones is rounded the same way in all runs for none.
LEAST_RUNS, MOST_RUNS = 8, 32
_ROUNDING = 2.0  # units in the last place that an op's result is moved by, at most; four times the usual rounding
_EXACT = 0.125  # whole numbers up to this part of those that a dtype has are taken to be exact
# Part of the elements that other roundings may change as much as any element: such as one where a condition turns over.
_RARE = 1e-5
_ALLOWED = 8.0  # times the root of the mean square of changes that another order of rounding may explain


def rounding_errors(graph: Any, inputs: Sequence[Any], results: Sequence[Any], expected: Sequence[Any]) -> float:
    """Return the distance of results from torch's, relative to what roundings explain; at most 1 is acceptable.

    Parameters
    ----------
    graph
        A ``torch.fx.GraphModule`` that returns a tuple of tensors.
    inputs
        Its inputs.
    results, expected
        The results to judge, and the graph's own. An integer that differs is acceptable if roundings change it too, as
        those of a number that is then rounded to a whole one.
    """
    torch = torch_for("fuser_lab.bridge")
    squares = [torch.zeros(x.shape, dtype=torch.float64, device=x.device) for x in expected]
    worst = math.inf
    for run in range(MOST_RUNS):
        moved = _results_rounded(torch, graph, inputs, run)
        squares = [s + _distance(torch, a, b).square() for s, a, b in zip(squares, moved, expected, strict=True)]
        if run + 1 >= LEAST_RUNS:
            changes = [(square / (run + 1)).sqrt() for square in squares]
            worst = max(map(_unexplained_distance, results, expected, changes), default=0.0)
            if worst <= 1:
                break
    return worst


def _unexplained_distance(ours: Any, theirs: Any, change: Any) -> float:
    """Return the largest distance of an element, relative to what its usual change explains."""
    torch = torch_for("fuser_lab.bridge")
    if not theirs.numel():
        return 0.0
    apart, allowed = _distance(torch, ours, theirs), _ALLOWED * change
    if theirs.is_floating_point() or theirs.is_complex():
        allowed = allowed + _ALLOWED * torch.finfo(theirs.dtype).eps * theirs.abs().double().nan_to_num()
    ratio = torch.where(apart > 0, apart / allowed, 0.0)
    rare = ~(ratio <= 1)
    if int(rare.sum()) <= _RARE * theirs.numel():
        ratio = torch.where(rare, apart / (_ALLOWED * change.max()), ratio)
    return float(ratio.nan_to_num(math.inf, math.inf).max())


def _results_rounded(torch: Any, graph: Any, inputs: Sequence[Any], run: int) -> Sequence[Any]:
    """Return a graph's results if its inputs, and the floating-point result of each op, are rounded differently."""
    generators: dict[Any, Any] = {}

    def move(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or not value.is_floating_point():
            return value
        device = value.device
        if device not in generators:
            generators[device] = torch.Generator(device).manual_seed(run)
        noise = torch.rand(value.shape, generator=generators[device], device=device, dtype=torch.float64)
        wide, unit = value.double(), torch.finfo(value.dtype).eps
        # Tensors of small whole numbers are counts, masks or results of round, which have no rounding errors.
        if torch.equal(wide, wide.round()) and not (wide.abs() >= _EXACT / unit).any():
            return value
        return (wide * (1 + _ROUNDING * unit * (2 * noise - 1))).to(value.dtype)

    interpreter = torch.fx.Interpreter(graph)
    run_node = interpreter.run_node

    def run_rounded(node: Any) -> Any:
        result = run_node(node)
        return result if node.op == "output" else torch.utils._pytree.tree_map(move, result)  # noqa: SLF001

    interpreter.run_node = run_rounded
    with torch.no_grad():
        outputs: Sequence[Any] = interpreter.run(*inputs)
    return outputs


def _distance(torch: Any, a: Any, b: Any) -> Any:
    """Return the magnitude of the difference of each element, 0 for two equal infinities or two NaN."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return torch.full(b.shape, torch.inf, dtype=torch.float64, device=b.device)
    wide = torch.complex128 if b.is_complex() else torch.float64
    same = (a == b) | ((a != a) & (b != b))  # noqa: PLR0124 - a NaN differs from itself
    apart = (a.to(wide) - b.to(wide)).abs()
    return torch.where(same, 0.0, apart.nan_to_num(torch.inf, torch.inf))
