"""The private names of torch that reading and editing Inductor's plans need, by minor version of torch."""

import importlib
from dataclasses import dataclass
from functools import reduce
from typing import Any

from fuser_lab.bridge.requirement import torch_for
from fuser_lab.errors import UnsupportedError

INDUCTOR = "inductor"  # who states a reason
_SCHEDULER = "torch._inductor.scheduler"
_NAMES = {
    "scheduler": (_SCHEDULER, "Scheduler"),
    "can_fuse": (_SCHEDULER, "Scheduler.can_fuse"),
    "fuse_two_nodes": (_SCHEDULER, "Scheduler.fuse_two_nodes"),
    "fuse_nodes_once": (_SCHEDULER, "Scheduler.fuse_nodes_once"),
    "get_possible_fusions": (_SCHEDULER, "Scheduler.get_possible_fusions"),
    "will_fusion_create_cycle": (_SCHEDULER, "Scheduler.will_fusion_create_cycle"),
    "unfusable_node": (_SCHEDULER, "Scheduler.unfusable_node"),
    "codegen": (_SCHEDULER, "Scheduler.codegen"),
    "why_no_fuse": (_SCHEDULER, "WhyNoFuse.__call__"),
    "extern_node": (_SCHEDULER, "ExternKernelSchedulerNode"),
    "extern_codegen": (_SCHEDULER, "Scheduler.codegen_extern_call"),
    "choices": ("torch._inductor.choices", "InductorChoices.can_fuse"),
    "choices_horizontal": ("torch._inductor.choices", "InductorChoices.can_fuse_horizontal"),
    "fusion_pass": ("torch._inductor", "config._post_fusion_custom_pass"),
    "fuse_nodes": (_SCHEDULER, "Scheduler.fuse_nodes"),
    "topological_sort_schedule": (_SCHEDULER, "Scheduler.topological_sort_schedule"),
    "set_choices": ("torch._inductor.virtualized", "V.set_choices_handler"),
    "launched": ("torch._inductor.debug", "set_kernel_post_grad_provenance_tracing"),
    "launched_cpp": ("torch._inductor.codegen.cpp", "set_kernel_post_grad_provenance_tracing"),
    "launched_triton": ("torch._inductor.codegen.triton", "set_kernel_post_grad_provenance_tracing"),
    "output_code": ("torch._inductor.graph", "GraphLowering.save_output_code"),
    "loops_made": ("torch._inductor.ir", "IRNode.__post_init__"),
    "body_node": ("torch._inductor.loop_body", "LightTracer.create_node"),
    "body_run": ("torch._inductor.loop_body", "InterpreterShim.run"),
    "line_written": ("torch._inductor.utils", "IndentedBuffer.writeline"),
    "accumulator_renamed": ("torch._inductor.codegen.cpp", "replace_acc_name"),
    "sum_replaced": ("torch._inductor.codegen.cpp", "replace_cascade_sum_with_add"),
    "text": ("torch._inductor.utils", "IndentedBuffer.getvalue"),
    "backend": ("torch", "_TorchCompileInductorWrapper"),
    "dynamo_graph": ("torch", "_TorchCompileInductorWrapper.__call__"),
    "inductor_config": ("torch._inductor", "config"),
    "dynamo_config": ("torch._dynamo", "config"),
    "functorch_config": ("torch._functorch", "config"),
}  # module, and name in it
NAMES = dict.fromkeys(((2, 11), (2, 13), (2, 14), (2, 15)), _NAMES)
_LINES = "the ops of a source's lines"
# Names without which a plan is read-only.
EDITING = frozenset({
    "choices", "choices_horizontal", "fusion_pass", "fuse_nodes", "fuse_two_nodes", "topological_sort_schedule",
    "will_fusion_create_cycle",
})
# Names without which plans can be read all the same, with what is then missing.
DISPENSABLE = dict.fromkeys(EDITING, "edits") | {
    "why_no_fuse": "reasons that Inductor states",
    "will_fusion_create_cycle": "edits and pairs that are refused because of a cycle",
    "get_possible_fusions": "the phases of attempts", "fuse_nodes_once": "the rounds of attempts",
    "fuse_two_nodes": "edits and the fusions that follow from attempts",
    "extern_codegen": "calls of libraries that Inductor does not note",
    "launched_cpp": "kernels in C++", "launched_triton": "kernels of Triton",
    "loops_made": _LINES, "body_node": _LINES, "body_run": _LINES, "line_written": _LINES,
    "text": _LINES, "accumulator_renamed": _LINES, "sum_replaced": _LINES,
    "backend": "edits of functions with several graphs", "dynamo_graph": "the names of inputs",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class InductorNames:
    """The names of one torch, those that it does not have, and sentences about both; an empty text if all is well."""

    places: dict[str, tuple[str, str]]
    note: str = ""
    missing: frozenset[str] = frozenset()

    def __getitem__(self, key: str) -> Any:
        """Return the object with a name."""
        module, path = self.places[key]
        return reduce(getattr, path.split("."), importlib.import_module(module))

    def owner(self, key: str) -> tuple[Any, str]:
        """Return the object that has a name, and the last part of the name."""
        module, path = self.places[key]
        *outer, last = path.split(".")
        return reduce(getattr, outer, importlib.import_module(module)), last


def names_for(caller: str) -> InductorNames:
    """Return the names of the installed torch, those of the nearest version in the table for another one.

    What works without a missing name works.

    Raises
    ------
    UnsupportedError
        If torch is not installed, or a name that is always needed does not exist in it.
    """
    torch = torch_for(caller)
    major, minor = (int(part) for part in str(torch.__version__).split(".")[:2])
    nearest = min(NAMES, key=lambda known_version: abs(known_version[0] * 100 + known_version[1] - major * 100 - minor))
    versions = ", ".join(f"{a}.{b}" for a, b in NAMES)
    notes = []
    if (major, minor) not in NAMES:
        notes.append(
            f"torch {major}.{minor} is not among the versions whose names of Inductor were tested ({versions}); those "
            f"of {nearest[0]}.{nearest[1]} are used."
        )
    names = InductorNames(places=NAMES[nearest])
    missing = set()
    for key, (module, path) in names.places.items():
        try:
            _ = names[key]
        except (ImportError, AttributeError):
            if key not in DISPENSABLE:
                raise UnsupportedError(
                    f"{caller}: torch {torch.__version__} has no {module}.{path}, which it needs; it was tested with "
                    f"torch {versions}."
                ) from None
            missing.add(key)
            notes.append(f"torch {torch.__version__} has no {module}.{path}, so {DISPENSABLE[key]} are missing.")
    return InductorNames(places=names.places, note=" ".join(notes), missing=frozenset(missing))
