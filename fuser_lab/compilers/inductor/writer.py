"""The lines that make torch.compile emit a partition: one text, which edits run and users paste."""

from collections.abc import Mapping, Sequence
from typing import Any

Parts = Mapping[str, Sequence[Sequence[str]]]  # groups of Inductor's operations, by digest of the FX graph

# Limits of Inductor on the pairs that it tries and on the operations of a kernel, lifted to fuse what it declines.
LIFTED = {
    "aggressive_fusion": True, "max_fusion_buffer_group_pairwise_attempts": 1 << 20,
    "cpp.max_horizontal_fusion_size": 1 << 20,
}
_TEXT = """\
import hashlib

import torch._functorch.config
import torch._inductor.config
from torch._inductor.choices import InductorChoices
from torch._inductor.virtualized import V

KERNELS = {  # names of Inductor's operations in each kernel, by digest of the FX graph
%s}


class Fusions(InductorChoices):
    @staticmethod
    def allows(a, b):
        names = " ".join(node.name for node in V.graph.module.graph.nodes)
        kernels = KERNELS.get(hashlib.sha256(names.encode()).hexdigest()[:16])
        both = set(a.get_operation_names()) | set(b.get_operation_names())
        return None if kernels is None else any(both <= kernel for kernel in kernels)

    @staticmethod
    def can_fuse(scheduler, a, b, score):
        allowed = Fusions.allows(a, b)
        return InductorChoices.can_fuse(scheduler, a, b, score) if allowed is None else allowed

    @staticmethod
    def can_fuse_horizontal(scheduler, a, b, score):
        allowed = Fusions.allows(a, b)
        return InductorChoices.can_fuse_horizontal(scheduler, a, b, score) if allowed is None else allowed

    def uuid(self):
        return repr(sorted((digest, sorted(map(sorted, kernels))) for digest, kernels in KERNELS.items()))


torch._functorch.config.enable_autograd_cache = False  # the caches do not depend on the kernels asked for
torch._inductor.config.fx_graph_cache = False
%storch._inductor.config.inductor_choices_class = Fusions  # for threads in which torch compiles a backward graph
V.set_choices_handler(Fusions())  # before the first call of the compiled function
"""


def code_of(parts: Parts, *, tries_all: bool) -> str:
    """Return Python code after which torch.compile emits these kernels; other graphs are fused as usual.

    ``tries_all`` says whether limits on what Inductor tries are lifted, for all graphs of the program.
    """
    lines = "".join(
        f"    {digest!r}: [{', '.join('{' + ', '.join(map(repr, group)) + '}' for group in groups if group)}],\n"
        for digest, groups in parts.items()
    )
    lifted = LIFTED.items() if tries_all else ()
    return _TEXT % (lines, "".join(f"torch._inductor.config.{name} = {value}\n" for name, value in lifted))


def handler_of(parts: Parts) -> tuple[Any, type]:
    """Return a choices handler that forces the partitions, and its class."""
    text, _, _ = code_of(parts, tries_all=False).partition("\n\ntorch._functorch")
    names: dict[str, Any] = {}
    exec(compile(text, "<fusions>", "exec"), names)  # noqa: S102 - our own text, whose names are repr of str
    return names["Fusions"](), names["Fusions"]


