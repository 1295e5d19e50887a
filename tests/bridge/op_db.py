"""``python -m tests.bridge.op_db`` prints which ops of torch's op database lower, and which are wrong.

An op lowers forward if each call in some sample's graph has a lowering; backward, if the same is true of its gradient.
Regions are evaluated without kernels, by the NumPy reference; ``--compiled`` runs the kernels.
"""

import argparse
import importlib.util
import itertools
import sys
import unittest
import warnings
from collections import Counter
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from tests.bridge.samples import by_reference
from tests.needs import needs

torch = needs("torch")


@dataclass
class Found:
    """The outcomes of the samples of one op, in one direction."""

    samples: int = 0
    lowered: int = 0
    wrong: list[str] = field(default_factory=list)
    reasons: Counter[str] = field(default_factory=Counter)


class NotLoweredError(Exception):
    """Some call of a graph has no lowering."""


def flat(value: Any) -> list[Any]:
    return [x for x in torch.utils._pytree.tree_leaves(value) if isinstance(x, torch.Tensor)]


def evaluated(function: Any, inputs: list[Any], *, compiled: bool) -> tuple[list[Any], str]:
    """The results of a function by regions, and the failed regions; NotLoweredError if torch would run part of it."""
    from functorch.compile import aot_function, make_boxed_func

    from fuser_lab.bridge.capture import Capture, CaptureOptions, capture_graph
    from fuser_lab.bridge.decompositions import table
    from fuser_lab.bridge.partition import Wishes, reason_for
    from fuser_lab.bridge.torch_region import TorchRegion
    from fuser_lab.bridge.traced import target_of

    options = CaptureOptions(wishes=Wishes(records_matmuls=True))
    graphs = []

    def compiler(gm: Any, _: Any) -> Any:
        for node in gm.graph.nodes:
            why = reason_for(node, options.wishes) if node.op == "call_function" else None
            if why is not None:
                raise NotLoweredError(f"{target_of(node)}: {why}")
        graph = capture_graph(gm, "inference", Capture(options))
        for left in graph.left:
            if "could not be recorded" in left.reason:
                raise NotLoweredError(left.reason)
        graphs.append(graph)
        return make_boxed_func(graph.run)

    before = TorchRegion._run, TorchRegion.kernels
    try:
        if not compiled:
            TorchRegion._run = by_reference
            TorchRegion.kernels = lambda _: ()  # which other processes would otherwise compile in the background
        with torch.no_grad():
            results = aot_function(function, fw_compiler=compiler, decompositions=table())(*inputs)
    finally:
        TorchRegion._run, TorchRegion.kernels = before
    return flat(results), "; ".join(region.failed for graph in graphs for region in graph.regions if region.failed)


def compare(ours: list[Any], theirs: list[Any], rtol: float, atol: float) -> str:
    """The defect of some results; empty if there is none."""
    if len(ours) != len(theirs):
        return f"{len(ours)} results for {len(theirs)}"
    for a, b in zip(ours, theirs, strict=True):
        try:
            torch.testing.assert_close(a, b, rtol=rtol, atol=atol, equal_nan=True)
        except AssertionError as error:
            return " ".join(str(error).split())[:160]
    return ""


def tried(op: Any, sample: Any, forward: Found, backward: Found, *, compiled: bool) -> None:
    """Run one sample of an op forward and, if it has gradients, backward."""
    leaves, spec = torch.utils._pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
    places = [place for place, x in enumerate(leaves) if isinstance(x, torch.Tensor)]
    tensors = [leaves[place].detach() for place in places]

    def called(*given: Any) -> Any:
        values = list(leaves)
        for place, x in zip(places, given, strict=True):
            values[place] = x
        first, args, kwargs = torch.utils._pytree.tree_unflatten(values, spec)
        result = op(first, *args, **kwargs)
        return sample.output_process_fn_grad(result) if sample.output_process_fn_grad else result

    rtol, atol = 1.3e-6 * 8, 1e-5
    torch.manual_seed(0)
    expected = flat(called(*(x.clone() for x in tensors)))
    _one(lambda *given: flat(called(*given)), tensors, expected, forward, (rtol, atol), compiled=compiled)
    needed = [leaves[place].requires_grad for place in places]
    wanting = [place for place, x in enumerate(tensors) if x.is_floating_point() and needed[place]]
    if not (op.supports_autograd and wanting):
        return

    def gradients(*given: Any) -> Any:
        def of_wanting(*some: Any) -> Any:
            values = list(given)
            for place, x in zip(wanting, some, strict=True):
                values[place] = x
            return [y for y in flat(called(*values)) if y.is_floating_point()]

        results, pull = torch.func.vjp(of_wanting, *(given[place] for place in wanting))
        return list(pull([torch.ones_like(y) for y in results]))

    try:
        expected = gradients(*tensors)
    except RuntimeError:
        return
    if expected:
        _one(gradients, tensors, expected, backward, (rtol, 5e-5), compiled=compiled)


def _one(function: Any, tensors: list[Any], expected: list[Any], found: Found, near: Any, *, compiled: bool) -> None:
    found.samples += 1
    try:
        ours, why = evaluated(function, [x.clone() for x in tensors], compiled=compiled)
    except NotLoweredError as error:
        found.reasons[str(error)] += 1
        return
    except Exception as error:  # noqa: BLE001 - one op must not end the table
        found.reasons[f"{type(error).__name__}: {str(error)[:100]}"] += 1
        return
    found.lowered += 1
    wrong = compare(ours, expected, *near) or why
    if wrong:
        found.wrong.append(wrong)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="names of ops; all by default")
    parser.add_argument("--samples", type=int, default=3, help="samples per op")
    parser.add_argument("--compiled", action="store_true")
    parser.add_argument("--reasons", action="store_true", help="list the reasons why ops are left to torch, by count")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    if importlib.util.find_spec("expecttest") is None:
        # Torch's own tests need it; the op database does not.
        sys.modules["expecttest"] = ModuleType("expecttest")
        sys.modules["expecttest"].TestCase = unittest.TestCase
    from torch.testing._internal.common_methods_invocations import op_db

    rows: dict[str, tuple[Found, Found]] = {}
    for op in op_db:
        # An empty tensor has no wrong values.
        if (chosen.names and op.name not in chosen.names) or torch.float32 not in op.dtypes or "empty" in op.name:
            continue
        name = f"{op.name}.{op.variant_test_name}".rstrip(".")
        forward, backward = rows.setdefault(name, (Found(), Found()))
        try:
            samples = list(itertools.islice(op.sample_inputs("cpu", torch.float32, requires_grad=True), chosen.samples))
        except Exception as error:  # noqa: BLE001 - some ops need libraries that are not here
            forward.reasons[f"no samples: {type(error).__name__}"] += 1
            continue
        for sample in samples:
            try:
                tried(op, sample, forward, backward, compiled=chosen.compiled)
            except Exception as error:  # noqa: BLE001
                forward.reasons[f"not run: {type(error).__name__}: {str(error)[:80]}"] += 1
    for label, number in (("forward", 0), ("backward", 1)):
        found = {name: both[number] for name, both in rows.items() if both[number].samples}
        lowered = [name for name, one in found.items() if one.lowered]
        samples = sum(one.lowered for one in found.values())
        wrong = {name: one.wrong for name, one in found.items() if one.wrong}
        right = samples - sum(map(len, wrong.values()))
        print(f"{label}: {len(lowered)} of {len(found)} ops lower ({len(lowered) / max(1, len(found)):.0%}); "
              f"{right} of {samples} lowered samples are right ({right / max(1, samples):.1%})")
        for name, texts in wrong.items():
            print(f"  wrong: {name}: {texts[0]}")
        if chosen.reasons:
            causes: Counter[str] = Counter()
            for one in found.values():
                if not one.lowered and one.reasons:
                    causes[one.reasons.most_common(1)[0][0]] += 1
            for why, count in causes.most_common(70):
                print(f"  {count} × {why}")


if __name__ == "__main__":
    main()
