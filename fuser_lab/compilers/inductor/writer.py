"""The lines that make torch.compile emit a partition: one text, which edits run and users paste."""

from collections.abc import Mapping, Sequence
from typing import Any

# By digest of the FX graph: for each kernel, groups of Inductor's operations, each of which is fused before the kernel.
Kernels = Mapping[str, Sequence[Sequence[Sequence[str]]]]

_TEXT = """\
# Kernels of %s
import hashlib
import itertools

import torch._functorch.config
import torch._inductor.config
from torch._inductor.choices import InductorChoices
from torch._inductor.virtualized import V

KERNELS = {  # by digest of the FX graph: for each kernel, the groups of operations that Inductor fuses, then fused too
%s}
LIFTED = {  # limits of Inductor on the pairs that it tries and on the operations of a kernel
    "aggressive_fusion": True,
    "max_fusion_buffer_group_pairwise_attempts": 1 << 20,
    "cpp.max_horizontal_fusion_size": 1 << 20,
}


class Fusions(InductorChoices):
    groups_first = True  # whether groups are fused; afterwards the groups of each kernel are

    @staticmethod
    def parts():
        names = " ".join(node.name for node in V.graph.module.graph.nodes)
        kernels = KERNELS.get(hashlib.sha256(names.encode()).hexdigest()[:16])
        if kernels is None or Fusions.groups_first:
            return kernels and [set(group) for kernel in kernels for group in kernel]
        return [set().union(*kernel) for kernel in kernels]

    @staticmethod
    def allows(a, b):
        parts = Fusions.parts()
        both = set(a.get_operation_names()) | set(b.get_operation_names())
        return None if parts is None else any(both <= part for part in parts)

    @staticmethod
    def can_fuse(scheduler, a, b, score):
        allowed = Fusions.allows(a, b)
        return InductorChoices.can_fuse(scheduler, a, b, score) if allowed is None else allowed

    @staticmethod
    def can_fuse_horizontal(scheduler, a, b, score):
        allowed = Fusions.allows(a, b)
        return InductorChoices.can_fuse_horizontal(scheduler, a, b, score) if allowed is None else allowed

    def __init__(self, after=None):
        self.after = after

    def __call__(self, nodes):
        # Lines that ran earlier in the program have a handler of their own, which these have replaced.
        if nodes and isinstance(V.choices, Fusions) and Fusions.parts() is not None:
            scheduler = nodes[0].scheduler
            Fusions.groups_first = False
            try:
                with torch._inductor.config.patch(LIFTED):
                    nodes = scheduler.fuse_nodes(nodes)
                    while pair := Fusions.pair(scheduler, nodes):
                        fused = set(nodes)
                        scheduler.fuse_two_nodes(*pair, fused)
                        ordered = sorted(fused, key=lambda node: node.min_order)
                        nodes = scheduler.fuse_nodes(scheduler.topological_sort_schedule(ordered))
            finally:
                Fusions.groups_first = True
        return self.after(nodes) if self.after else nodes

    @staticmethod
    def pair(scheduler, nodes):
        for part in Fusions.parts():
            inside = [node for node in nodes if set(node.get_operation_names()) <= part]
            for a, b in itertools.combinations(inside, 2):
                pair = (b, a) if b.get_operation_names() & a.ancestors else (a, b)
                if scheduler.can_fuse(*pair, True) and not scheduler.will_fusion_create_cycle(*pair):
                    return pair
        return None

    def uuid(self):
        return repr(KERNELS)


fusions = Fusions(torch._inductor.config._post_fusion_custom_pass)

torch._functorch.config.enable_autograd_cache = False  # the caches do not depend on the kernels asked for
torch._inductor.config.fx_graph_cache = False
torch._inductor.config._post_fusion_custom_pass = fusions  # fuses the groups of each kernel
torch._inductor.config.inductor_choices_class = Fusions  # for threads in which torch compiles a backward graph
V.set_choices_handler(fusions)  # before the first call of the compiled function
"""


def code_of(kernels: Kernels, graph: str = "a graph") -> str:
    """Return Python code after which torch.compile emits these kernels of a graph; others are fused as usual."""
    lines = "".join(
        f"    {digest!r}: [\n{''.join(f'        {_groups(groups)},{chr(10)}' for groups in parts)}    ],\n"
        for digest, parts in kernels.items()
    )
    return _TEXT % (graph, lines)


def _groups(groups: Sequence[Sequence[str]]) -> str:
    return repr([list(group) for group in groups])


def fusions_of(kernels: Kernels) -> Any:
    """Return the choices handler that the code defines, which is also the pass after fusion."""
    text, _, _ = code_of(kernels).partition("\n\ntorch._functorch")
    names: dict[str, Any] = {}
    exec(compile(text, "<fusions>", "exec"), names)  # noqa: S102 - our own text, whose names are repr of str
    return names["fusions"]
