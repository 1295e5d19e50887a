"""``python -m tests.bridge.inductor_plans`` compares plans of fifty functions with what Inductor emits, and edits them.

The partition is read independently: the nodes from Inductor's own hook after fusion, and the calls with their buffers
from the text of its output code.
"""

import argparse
import random
import re
from collections import Counter
from typing import Any

import fuser_lab as fl
from fuser_lab.compilers.plan import CompiledPlan
from fuser_lab.errors import IllegalEdit
from tests.bridge.inductor_functions import FUNCTIONS, inputs_of
from tests.needs import needs

torch = needs("torch")

_CALL = re.compile(r"^\s+(?:\w+ = )?(cpp_fused\w*|triton_\w+|extern_kernels\.\w+|(?:torch\.ops|aten)\.[\w.]+)\((.*)\)$")


def calls_of(output_code: str) -> list[tuple[str, set[str]]]:
    """The calls in Inductor's output code in order, each with the buffers among its arguments."""
    body = output_code.partition("def call(")[2].partition("\nrunner =")[0]
    matches = [(line, match) for line in body.splitlines() if (match := _CALL.match(line))]
    return [(match[1], set(re.findall(r"\bbuf\d+\b", line))) for line, match in matches]


def original_ops(plan: CompiledPlan, nodes: set[str]) -> list[str]:
    """The names of torch's ops that nodes come from, sorted."""
    originals = {call.original for name, call in plan.record.calls.items() if name in nodes and call.original}
    return sorted({original.split(".")[1] for original in originals})


def disagreements(plan: CompiledPlan) -> list[str]:
    """How a plan differs from the output code: calls, their buffers, and torch's ops in the names of functions."""
    wrong = []
    calls = calls_of(plan.output_code)
    functions = [name for name, _ in plan.functions]
    if [name for name, _ in calls] != functions:
        return [f"calls {[name for name, _ in calls]}, plan {functions}"]
    for (name, buffers), (_, kernels) in zip(calls, plan.functions, strict=True):
        used = {buffer for kernel in kernels for buffer in (*kernel.reads, *kernel.writes)}
        if not buffers <= used:
            wrong.append(f"{name} has buffers {sorted(buffers - used)} of no kernel")
        after = {b for k in plan.segments if k.launch > kernels[0].launch for b in k.reads}
        missing = {b for kernel in kernels for b in kernel.writes if b in after} - buffers
        if missing and not kernels[0].opaque:
            wrong.append(f"{name} does not write {sorted(missing)}")
        ops = original_ops(plan, {node for kernel in kernels for node in kernel.nodes})
        if name.startswith("cpp_fused") and len(ops) <= 10 and name.rpartition("_")[0] != f"cpp_fused_{'_'.join(ops)}":
            wrong.append(f"{name} has ops {ops}")
    return wrong


class Partitions:
    """The partitions that Inductor reports to its hook after fusion, in order."""

    def __init__(self) -> None:
        self.groups: list[set[frozenset[str]]] = []

    def __call__(self, nodes: Any) -> Any:
        self.groups.append({frozenset(part.get_name() for part in node.get_nodes()) for node in nodes})
        return nodes

    def uuid(self) -> str:
        return "partitions"


def with_partitions(call: Any) -> tuple[Any, list[set[frozenset[str]]]]:
    """What a call returns, and the partitions of the graphs that Inductor scheduled meanwhile."""
    from torch._inductor import config

    partitions = Partitions()
    with config.patch(_post_fusion_custom_pass=partitions):
        return call(), partitions.groups


def pasted(plan: CompiledPlan, function: Any, inputs: list[Any]) -> set[frozenset[str]]:
    """The partition that torch.compile emits after the lines of a plan have run, as in a user's program."""
    import torch._functorch.config
    import torch._inductor.config
    from torch._inductor.choices import InductorChoices
    from torch._inductor.virtualized import V

    def called(*args: Any) -> Any:
        return function(*args)

    with torch._inductor.config.patch(), torch._functorch.config.patch(), V.set_choices_handler(InductorChoices()):
        exec(plan.to_code(), {})
        torch._dynamo.reset()
        with torch.no_grad():
            _, groups = with_partitions(lambda: torch.compile(called)(*inputs))
    return groups[plan.record.number]


def main() -> None:
    """Print what agrees."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cuts", type=int, default=30, help="random cuts of all functions together")
    parser.add_argument("--glues", type=int, default=10, help="random glues")
    parser.add_argument("--only", default="", help="part of the names of functions")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    chosen = {name: entry for name, entry in FUNCTIONS.items() if options.only in name}
    count, reasons, pairs = Counter[str](), Counter[str](), 0
    cuttable, gluable = [], []
    for name, (function, shapes) in chosen.items():
        captured, groups = with_partitions(lambda f=function, s=shapes: fl.from_inductor(f, *inputs_of(s)))
        count["functions"] += 1
        for plan, emitted in zip(captured.plans, groups, strict=True):
            wrong = disagreements(plan)
            if {frozenset(group) for group in plan.groups} != emitted:
                wrong.append("another partition than Inductor's hook reports")
            count["graphs"] += 1
            count["kernels"] += len(plan.segments)
            count["graphs that agree"] += not wrong
            for why in (*plan.boundaries(), *plan.siblings()):
                pairs += 1
                reasons[f"{why.by}: {why.code if why.by != 'inductor' else why.text}" if why.text else "none"] += 1
            for fusion in plan.fusions:
                count["fusions with Inductor's cuts"] += fusion.bytes_crossing >= 0
            cuttable += [
                (name, plan, buffer) for kernel in plan.segments for buffer in kernel.writes
                if any(plan.record.writers[buffer] in plan.record.read_by[other] for other in kernel.names)
            ]
            gluable += [(name, plan, why) for why in (*plan.boundaries(), *plan.siblings())]
            print(f"{name}: {len(plan.segments)} kernels; {'; '.join(wrong) or 'agrees'}", flush=True)
    shuffled = random.Random(options.seed)
    for name, plan, buffer in shuffled.sample(cuttable, min(options.cuts, len(cuttable))):
        function, shapes = chosen[name]
        try:
            edited = plan.cut(buffer)
        except IllegalEdit as error:
            count["cuts refused"] += 1
            print(f"cut {name} {buffer}: {error}", flush=True)
            continue
        emitted = pasted(edited, function, inputs_of(shapes))
        obeyed = emitted == {frozenset(group) for group in edited.groups}
        count["cuts obeyed"] += 1
        count["pasted lines obeyed"] += obeyed
        print(f"cut {name} {buffer}: {edited.edited}, pasted {'obeyed' if obeyed else 'NOT OBEYED'}", flush=True)
    for name, plan, why in shuffled.sample(gluable, min(options.glues, len(gluable))):
        try:
            plan.glue(*why.kernels)
            count["glues done"] += 1
            print(f"glue {name} {why.kernels}: done; was {why.text}", flush=True)
        except IllegalEdit as error:
            count["glues refused"] += 1
            print(f"glue {name} {why.kernels}: {error}", flush=True)
    for key, number in count.items():
        print(f"{number:>6} {key}")
    print(f"{pairs:>6} pairs that are not fused, {reasons['none']} without a reason")
    for reason, number in reasons.most_common():
        print(f"{number:>6}   {reason}")


if __name__ == "__main__":
    main()
