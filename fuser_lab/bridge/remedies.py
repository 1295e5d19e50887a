"""What an op that is left to its library would take to be in a region: an option, or a change of the function."""

import re
from dataclasses import dataclass

from fuser_lab.bridge.partition import ADDED, NO_KERNEL

_COMPLEX = "compute with the real and imaginary parts, as torch.view_as_real(x) returns them"


@dataclass(frozen=True, slots=True)
class _Remedy:
    """A sentence for reasons and ops that match; ``{made_by}`` and ``{library}`` stand for those of the capture."""

    reason: str
    text: str
    op: str = ""

    def fits(self, op: str, reason: str) -> bool:
        """Whether the sentence is about an op that is left for a reason."""
        return bool(re.search(self.reason, reason) and re.search(self.op, op))


# The first that fits. Reasons are those of `partition`, `jax_model` and the lowerings.
_REMEDIES = (
    _Remedy("^matrix products are torch's", "{made_by}(..., matmuls='record') records matrix products in regions"),
    _Remedy("^matrix products are JAX's", "no option of {made_by} records matrix products"),
    _Remedy("^left to ", "{made_by} without this op in left_to_{option} records it"),
    _Remedy("^a region would hold fewer", "{made_by}(..., min_region_ops=1) makes a region of it"),
    _Remedy("dtype complex", _COMPLEX),
    _Remedy("", _COMPLEX, op=r"complex|polar|_real$|_imag$|fft"),
    _Remedy("dtype ", "cast the tensor to a dtype of docs/ops.md before this op"),
    _Remedy(
        "", "with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH): {made_by}(...) captures "
        "attention as two matrix products and a softmax, which is a region", op="scaled_dot_product",
    ),
    _Remedy("", "no region contains a convolution; only the ops around it are fused", op="convolution"),
    _Remedy(
        "", "no region contains it, because which of several equal elements it returns is the library's choice",
        op="topk|kthvalue",
    ),
    _Remedy("^it draws", "draw the numbers before the function, and pass them as an input"),
    _Remedy("random numbers", "draw the numbers before the function, and pass them as an input"),
    _Remedy("^it writes", "return the new value instead of writing to the argument"),
    _Remedy("axes; ", "reshape the tensor to fewer axes before this op"),
    _Remedy("symbol", "{made_by} with inputs of fixed sizes, without dynamic=True"),
    _Remedy("^it moves data", "move all operands to one device before this op"),
    _Remedy("size depends on data|nonzero|unique", "a mask (torch.where) instead of a selection keeps the size fixed"),
    _Remedy("empty|nothing to count", "inputs with at least one element have a kernel"),
    _Remedy("divides an integer by 0", "a divisor that is a number other than 0 has a kernel"),
    _Remedy("^control flow", "an unrolled loop, or jax.numpy.where instead of a branch, is captured op by op"),
    _Remedy(r"\.item\(\)", "keep the value a tensor, without .item(), float() or int()"),
    _Remedy("depends on the value of a tensor", "torch.where or torch.cond instead of the branch keeps one graph"),
    _Remedy("between two graphs", "remove what ends the graph there, as the reason says"),
    _Remedy("use_deterministic", "a kernel adds at the positions without torch.use_deterministic_algorithms(True)"),
    _Remedy(
        re.escape(NO_KERNEL),
        "by nvFuser's rules, gathers and scans need neighbours that share a kernel; sorts and scatters have none",
    ),
    _Remedy("^it could not be recorded", "its error says what a definition does not express"),
    _Remedy("^it only copies", "an operand in the layout that its reader takes needs no copy"),
    _Remedy("no lowering", "a lowering of the op, one function in fuser_lab/bridge/lowerings"),
)


def remedy(library: str, op: str, reason: str) -> str:
    """Return what an op would take that is left to a library for a reason; an empty text if it costs nothing."""
    if reason.startswith(("a view at the edge", "a region would hold views", ADDED)):
        return ""
    names = {"made_by": f"from_{library.lower()}", "library": library, "option": library.lower()}
    texts = (each.text for each in _REMEDIES if each.fits(op, reason))
    text = next(texts, "another form of the call, as the reason says")
    return text.format(**names)


def remedy_option(library: str, op: str, reason: str) -> str:
    """Return the sentence of a remedy that is an option of the capture, such as ``matmuls='record'``, or nothing."""
    text = remedy(library, op, reason)
    return text if text.startswith(f"from_{library.lower()}") else ""

