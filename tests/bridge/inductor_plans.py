"""``python -m tests.bridge.inductor_plans`` compares plans of fifty functions with what Inductor emits, and edits them.

``--random N`` adds random functions, ``--models`` takes tiny models instead, and ``--overhead N`` times what the
record adds to a compilation. ``--cuts N --glues N`` set the numbers of edits, which are drawn from as many functions as
possible (``--seed`` draws others) and take some seconds each; kernels of cut plans are glued as well. Each edit that is
not obeyed has a line, and a table at the end counts the reasons for which others were refused.

The partition is read independently: the operations from Inductor's own hook after fusion, and the calls with their
buffers and nodes of the graph from the text of its output code.
"""

import argparse
import gc
import itertools
import random
import re
import statistics
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

import fuser_lab as fl
from fuser_lab.bridge.model_step import copies
from fuser_lab.compilers.plan import CompiledPlan
from fuser_lab.errors import IllegalEdit
from tests.bridge import random_functions
from tests.bridge.inductor_functions import FUNCTIONS, MODELS, inputs_of, model_of
from tests.bridge.inductor_programs import PROGRAMS
from tests.bridge.uncompiled import compile_nothing
from tests.needs import needs

torch = needs("torch")
NONE = "none"  # instead of a reason


@dataclass(frozen=True)
class Case:
    """A function or model with its inputs, compiled forward or also backward."""

    name: str
    function: Callable[..., Any]
    inputs: list[Any]
    backward: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)


_CALL = re.compile(r"^\s+(?:\w+ = )?(cpp_fused\w*|triton_\w+|extern_kernels\.\w+|(?:torch\.ops|aten)\.[\w.]+)\((.*)\)$")


def calls_of(output_code: str) -> list[tuple[str, set[str]]]:
    """The calls in Inductor's output code in order, each with the buffers among its arguments."""
    body = output_code.partition("def call(")[2].partition("\nrunner =")[0]
    matches = [(line, match) for line in body.splitlines() if (match := _CALL.match(line))]
    return [(match[1], set(re.findall(r"\bbuf\d+\b", line))) for line, match in matches]


def words(names: Iterable[str]) -> Counter[str]:
    """The parts of names between underscores, with how often each occurs."""
    return Counter("_".join(names).split("_"))


def disagreements(plan: CompiledPlan) -> list[str]:
    """How a plan differs from the output code: calls, their buffers, and the nodes in the names of functions."""
    wrong, seen = [], set[str]()
    memory = plan.record.in_place  # the output code has the name of the first
    calls = calls_of(plan.output_code)
    functions = [name for name, _ in plan.functions]
    if [name for name, _ in calls] != functions:
        return [f"calls {[name for name, _ in calls]}, plan {functions}"]
    for (name, buffers), (_, kernels) in zip(calls, plan.functions, strict=True):
        used = {memory.get(buffer, buffer) for kernel in kernels for buffer in (*kernel.reads, *kernel.writes)}
        if not buffers <= used:
            wrong.append(f"{name} has buffers {sorted(buffers - used)} of no kernel")
        after = {b for k in plan.segments if k.launch > kernels[0].launch for b in k.reads}
        missing = {memory.get(b, b) for kernel in kernels for b in kernel.writes if b in after} - buffers
        if missing and not kernels[0].opaque:
            wrong.append(f"{name} does not write {sorted(missing)}")
        nodes = {node for kernel in kernels for node in kernel.nodes}
        stem, _, rest = name.partition("_fused_")
        # A kernel with equal code, called again, has the name of the first.
        if stem in {"cpp", "triton"} and name not in seen and words([rest.rpartition("_")[0]]) != words(nodes):
            wrong.append(f"{name} has nodes {sorted(nodes)}")
        seen.add(name)
    return wrong


class Partitions:
    """The partitions that Inductor reports to its hook after fusion, in order."""

    def __init__(self, before: Callable[[Any], Any] | None) -> None:
        self.groups: list[set[frozenset[str]]] = []
        self._before = before

    def __call__(self, nodes: Any) -> Any:
        nodes = self._before(nodes) if self._before is not None else nodes
        self.groups.append({frozenset(part.get_name() for part in node.get_nodes()) for node in nodes})
        return nodes

    def uuid(self) -> str:
        return "partitions"


def with_partitions(call: Any) -> tuple[Any, list[set[frozenset[str]]]]:
    """What a call returns, and the partitions of the graphs that Inductor scheduled meanwhile."""
    from torch._inductor import config

    partitions = Partitions(config._post_fusion_custom_pass)
    # The names of kernels list the nodes of the graph.
    with config.patch({"_post_fusion_custom_pass": partitions, "cpp.descriptive_names": "inductor_node"}):
        return call(), partitions.groups


def pasted(plan: CompiledPlan, case: Case) -> set[frozenset[str]]:
    """The partition that torch.compile emits after the lines of a plan have run, as in a user's program."""
    import torch._functorch.config
    import torch._inductor.config
    from torch._inductor.choices import InductorChoices
    from torch._inductor.virtualized import V

    def called(*args: Any) -> Any:
        return case.function(*args)

    inputs = copies(torch, case.inputs)  # the function may write to them
    set_by_lines = ("fx_graph_cache", "_post_fusion_custom_pass", "inductor_choices_class")
    with (
        torch._inductor.config.patch({name: getattr(torch._inductor.config, name) for name in set_by_lines}),
        torch._functorch.config.patch(enable_autograd_cache=False), V.set_choices_handler(InductorChoices()),
    ):
        exec(plan.to_code(), {})
        torch._dynamo.reset()
        with torch.no_grad():
            _, groups = with_partitions(lambda: torch.compile(called, **case.options)(*inputs))
    return groups[plan.record.number]


def reason_in(error: IllegalEdit) -> str:
    """The reason in the message of a refused edit, with who states it; loops and names are left out."""
    message = re.sub(r"\[[^\]a-z]*\]( over \[[^\]]*\])?|\b(op|buf)\d+\b", "...", str(error))
    stated = re.search(r"are separate: (.*) \[(\w+)\]\.$", message)
    return f"{stated[2]}: {stated[1]}" if stated is not None else re.sub(r"[\d.]+e?[-+]?\d*|'[^']*'", "...", message)


@dataclass(frozen=True)
class Edit:
    """An edit of a plan: a buffer or two operations to cut, or two kernels to glue."""

    case: Case
    plan: CompiledPlan
    where: Any

    @property
    def kind(self) -> str:
        return "glue" if isinstance(self.where, tuple) and isinstance(self.where[0], int) else "cut"

    @property
    def asked(self) -> set[frozenset[str]]:
        """The groups of operations that a glue asks for; for a cut, those of the kernels that it leaves alone."""
        kernels = self.plan.segments
        if self.kind == "glue":
            touched = [set(kernels[number].names) for number in self.where]
            union = {frozenset(set().union(*touched))}
        else:
            first = self.where if isinstance(self.where, str) else self.where[0]
            name = self.plan.record.writers.get(first, first)
            touched, union = [set(group) for group in self.plan.groups if name in group], set()
        return {frozenset(group) for group in self.plan.groups if set(group) not in touched} | union

    def applied(self) -> CompiledPlan:
        return self.plan.cut(self.where) if self.kind == "cut" else self.plan.glue(*self.where)

    def wrong(self, edited: CompiledPlan, emitted: set[frozenset[str]]) -> list[str]:
        """How the emitted kernels differ from those that the edit asks for, and from the plan."""
        wrong = disagreements(edited)
        if {frozenset(group) for group in edited.groups} != emitted:
            wrong.append("another partition than Inductor's hook reports")
        others = emitted - self.asked
        if not self.asked <= emitted or len(others) != (2 if self.kind == "cut" else 0):
            wrong.append(f"the kernels {sorted(map(sorted, emitted))} are not those asked for")
        first, last = (self.where, "") if isinstance(self.where, str) else self.where
        if last and self.kind == "cut" and not all(len({first, last} & group) == 1 for group in others):
            wrong.append("both operations are in one kernel")
        return wrong

    def __str__(self) -> str:
        edited = " of an edited plan" if self.plan.edited is not None else ""
        return f"{self.kind} {self.where}{edited} of {self.case.name}, graph {self.plan.record.number}"


class Run:
    """Plans of cases, with counts of what agrees, and what can be edited."""

    def __init__(self, seed: int, *, pastes: int) -> None:
        self.count, self.reasons, self.refusals = Counter[str](), Counter[str](), Counter[str]()
        self.cuttable: list[Edit] = []
        self.gluable: list[Edit] = []
        self._draw = random.Random(seed)
        self._pastes = pastes

    def compile(self, case: Case) -> None:
        """Compile a case, and compare its plans with what Inductor emits."""
        captured, groups = with_partitions(
            lambda: fl.from_inductor(case.function, *case.inputs, backward=case.backward, **case.options),
        )
        self.count["functions"] += 1
        for plan, emitted in zip(captured.plans, groups, strict=True):
            wrong = disagreements(plan)
            if {frozenset(group) for group in plan.groups} != emitted:
                wrong.append("another partition than Inductor's hook reports")
            pairs = [*plan.boundaries(), *plan.siblings()]
            for why in pairs:
                self.reasons[f"{why.by}: {why.code if why.by != 'inductor' else why.text}" if why.text else NONE] += 1
            self.count += Counter({
                "graphs": 1, "kernels": len(plan.segments), "graphs that agree": int(not wrong), "pairs": len(pairs),
                "fusions with Inductor's cuts": sum(fusion.bytes_crossing >= 0 for fusion in plan.fusions),
            })
            self.cuttable += [
                Edit(case, plan, where) for kernel in plan.segments
                for where in (*filter(plan.can_cut, kernel.writes), *itertools.combinations(kernel.names, 2))
            ]
            self._offer_glues(case, plan, [why.kernels for why in pairs])
            kernels = f"{plan.record.kind}, {len(plan.segments)} kernels, {len(pairs)} pairs"
            print(f"{case.name}: {kernels}; {'; '.join(wrong) or 'agrees'}", flush=True)

    def _offer_glues(self, case: Case, plan: CompiledPlan, pairs: Iterable[tuple[int, int]]) -> None:
        """Offer neighbours, and pairs of kernels that are not a library's."""
        written = [kernel.index for kernel in plan.segments if not kernel.opaque]
        self.gluable += [Edit(case, plan, pair) for pair in {*pairs, *itertools.combinations(written, 2)}]

    def cut(self, number: int, seconds: float) -> None:
        """Cut plans at random for a time; kernels of some cut plans may be glued later."""
        ends = time.monotonic() + seconds
        for edit in self._sample(self.cuttable, number):
            edited = self._edit(edit) if time.monotonic() < ends else None
            if edited is not None:
                self._offer_glues(edit.case, edited, ())

    def glue(self, number: int, seconds: float) -> None:
        """Glue separate kernels at random for a time."""
        ends = time.monotonic() + seconds
        for edit in self._sample(self.gluable, number):
            if time.monotonic() < ends:
                self._edit(edit)

    def _sample(self, edits: list[Edit], number: int) -> list[Edit]:
        """A number of edits, of as many cases as possible."""
        by_case: dict[str, list[Edit]] = {}
        for edit in self._draw.sample(edits, len(edits)):
            by_case.setdefault(edit.case.name, []).append(edit)
        turns = itertools.chain.from_iterable(itertools.zip_longest(*by_case.values()))
        return list(itertools.islice((edit for edit in turns if edit is not None), number))

    def _edit(self, edit: Edit) -> CompiledPlan | None:
        """Apply an edit and check what Inductor emits; paste the lines of the first ones into a program."""
        self.count[f"{edit.kind}s asked"] += 1
        try:
            edited, groups = with_partitions(edit.applied)
        except IllegalEdit as error:
            self.count[f"{edit.kind}s refused"] += 1
            self.refusals[f"{edit.kind}: {reason_in(error)}"] += 1
            if edit.kind == "cut" or "[" not in str(error):
                print(f"REFUSED {edit}: {error}", flush=True)
            return None
        except Exception:  # noqa: BLE001 - the other edits are of interest all the same
            self.count[f"{edit.kind}s that FAIL"] += 1
            print(f"FAILED {edit}: {traceback.format_exc()}", flush=True)
            return None
        partition = {frozenset(group) for group in edited.groups}
        # Torch may also compile Inductor's own plan again, or try a partition that it then refuses.
        wrong = edit.wrong(edited, partition if partition in groups else groups[-1])
        if self.count[f"{edit.kind}s pasted"] < self._pastes and not edit.case.backward:
            self.count[f"{edit.kind}s pasted"] += 1
            if pasted(edited, edit.case) != partition:
                wrong.append("the pasted lines are not obeyed")
        self.count[f"{edit.kind}s obeyed" if not wrong else f"{edit.kind}s NOT OBEYED"] += 1
        if wrong:
            print(f"NOT OBEYED {edit}: {'; '.join(wrong)}", flush=True)
        return edited

    def report(self) -> None:
        """Print the counts."""
        for key, number in self.count.items():
            print(f"{number:>6} {key}")
        print(f"{self.reasons[NONE]:>6} of the pairs without a reason")
        for title, counts in (("pairs are separate", self.reasons), ("edits were refused", self.refusals)):
            print(f"Reasons for which {title}:")
            for reason, number in counts.most_common():
                print(f"{number:>6}   {reason}")


def overhead(case: Case, pairs: int) -> list[tuple[float, float]]:
    """The processor seconds of compilations without and with the record, in pairs, whose order alternates.

    Kernels come from the cache of compiled C++, so that the times are those of torch's Python alone: beside a
    compilation with its C++ compiler the record takes a smaller part.
    """
    from fuser_lab.compilers.inductor.model import Source
    from fuser_lab.compilers.inductor.names import names_for

    source = Source(
        function=case.function, inputs=tuple(case.inputs), keywords={}, backward=case.backward, options=case.options,
        names=names_for("overhead"),
    )

    def seconds(*, is_recorded: bool) -> float:
        torch._dynamo.reset()
        gc.collect()
        start = time.process_time()
        source.compile(is_recorded=is_recorded)
        return time.process_time() - start

    seconds(is_recorded=True)
    seconds(is_recorded=False)
    measured = []
    for pair in range(pairs):
        order = (False, True) if pair % 2 else (True, False)
        times = {is_recorded: seconds(is_recorded=is_recorded) for is_recorded in order}
        measured.append((times[False], times[True]))
    return measured


def overhead_text(pairs: list[tuple[float, float]]) -> str:
    """The median of what the record adds, with the quartiles of the pairs, and the least time of each kind."""
    low, median, high = (
        statistics.quantiles([recorded / plain - 1 for plain, recorded in pairs], n=4) if len(pairs) > 1
        else [pairs[0][1] / pairs[0][0] - 1] * 3
    )
    least = [min(each) for each in zip(*pairs, strict=True)]
    return (
        f"{median:+.1%} by the median of {len(pairs)} pairs (quartiles {low:+.1%} and {high:+.1%}); at least "
        f"{least[0]:.3f} s without and {least[1]:.3f} s with the record"
    )


def cases_of(options: argparse.Namespace) -> Iterator[Case]:
    """The cases that a command line asks for."""
    if options.programs:
        for name, program in PROGRAMS.items():
            yield Case(name, program.function, program.inputs(), program.backward, program.options)
    elif not options.models:
        for name, (function, shapes) in FUNCTIONS.items():
            yield Case(name, function, inputs_of(shapes))
    for seed in range(options.first, options.first + options.random):
        yield Case(f"random {seed}", random_functions.program(seed)[0], random_functions.inputs_of(seed))
    for name in MODELS if options.models else ():
        for backward in (False, True):
            model, inputs = model_of(name)
            yield Case(f"{name}, {'a step' if backward else 'forward'}", model, [*inputs], backward)


def main() -> None:
    """Print what agrees."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cuts", type=int, default=30, help="random cuts of all functions together")
    parser.add_argument("--glues", type=int, default=10, help="random glues")
    parser.add_argument("--pastes", type=int, default=10, help="edits of each kind whose lines run in a program")
    parser.add_argument("--random", type=int, default=0, help="number of random functions beside the fifty")
    parser.add_argument("--first", type=int, default=0, help="the seed of the first random function")
    parser.add_argument("--programs", action="store_true", help="the programs of inductor_programs instead")
    parser.add_argument("--models", action="store_true", help="models instead of functions, forward and a step")
    parser.add_argument("--overhead", type=int, default=0, help="only time this many pairs of compilations")
    parser.add_argument("--minutes", type=float, default=1e9, help="the most for the cuts, and again for the glues")
    parser.add_argument("--uncompiled", action="store_true", help="do not compile kernels; they fill tensors with 0")
    parser.add_argument("--only", default="", help="pattern of names of functions or models")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    with pytest.MonkeyPatch.context() as patch:
        if options.uncompiled:
            compile_nothing(patch, vectorized=True)
        _compare(options)


def _compare(options: argparse.Namespace) -> None:
    run, times = Run(options.seed, pastes=options.pastes), []
    for case in cases_of(options):
        if re.search(options.only, case.name) and options.overhead:
            pairs = overhead(case, options.overhead)
            times += pairs
            print(f"{case.name}: {overhead_text(pairs)}", flush=True)
        elif re.search(options.only, case.name):
            try:
                run.compile(case)
            except Exception:  # noqa: BLE001 - the other cases are of interest all the same
                run.count["functions that FAIL"] += 1
                print(f"{case.name}: {traceback.format_exc()}", flush=True)
    if times:
        print(f"all: {overhead_text(times)}")
        return
    run.cut(options.cuts, options.minutes * 60)
    run.glue(options.glues, options.minutes * 60)
    run.report()


if __name__ == "__main__":
    main()
