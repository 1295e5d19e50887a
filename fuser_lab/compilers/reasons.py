"""Reasons for which another compiler does not fuse a pair, where that compiler gives none."""

from dataclasses import dataclass

OURS = "fuser_lab"  # who states a reason that the compiler does not
Loops = tuple[tuple[str, ...], tuple[str, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsaid:
    """A reason that we state because the compiler states none: its code, and a sentence."""

    code: str
    text: str

    @classmethod
    def edit(cls) -> "Unsaid":
        """Return the reason of a pair that an edit of the plan separates."""
        return cls(code="edit", text="an edit of the plan keeps them apart")

    @classmethod
    def opaque(cls, kernel: str) -> "Unsaid":
        """Return the reason of a pair with a kernel of a library."""
        return cls(code="opaque", text=f"{kernel} is a kernel from elsewhere, and is not offered for fusion")

    @classmethod
    def without_code(cls, buffer: str) -> "Unsaid":
        """Return the reason of a pair that uses memory in common under different names only."""
        return cls(
            code="without_code",
            text=f"the pair was never tried: both use {buffer}, which is made without code, but no buffer in common",
        )

    @classmethod
    def never_tried(cls, *, shares: bool, limit: int | None) -> "Unsaid":
        """Return the reason of a pair that was never tried."""
        if not shares:
            return cls(code="not_in_one_group", text="the pair was never tried: they use no buffer in common")
        if limit is None:
            return cls(code="never_tried", text="the pair was never tried")
        return cls(
            code="never_tried",
            text=f"the pair was never tried: a kernel is tried with the next {limit} that use the same buffer",
        )

    @classmethod
    def priority(cls) -> "Unsaid":
        """Return the reason of a pair that may be fused, and never was."""
        return cls(code="priority", text="the pair may be fused, but fusions of a higher priority were done instead")

    @classmethod
    def of_loops(
        cls, a: Loops, b: Loops, *, follows: bool, overwrites: bool, reduces: bool, count: int, limit: int | None,
        template: bool,
    ) -> "Unsaid":
        """Return the reason of a pair that the writer of kernels refused, from the loops of both.

        The second follows the first if it reads a result, or ``overwrites`` what the first reads.
        """
        if template:
            return cls(code="template", text="the template of one of them does not accept the other")
        if limit is not None and not follows and count > limit:
            return cls(code="node_limit", text=f"together they have {count} operations, and a kernel at most {limit}")
        loops = f"{loops_text(a)} and {loops_text(b)}"
        if a == b and not (follows and reduces):
            return cls(
                code="outer_loops",
                text=f"both have loops {loops_text(a)}, but one already has several loops under a common one",
            )
        if follows and reduces:
            why = "writes in place what the first reads" if overwrites else "needs the first's complete reduction"
            return cls(
                code="overwrites" if overwrites else "reduction",
                text=f"the second {why}, and loops {loops} have no common outer loop",
            )
        if sorted(a[0] + a[1]) == sorted(b[0] + b[1]):
            return cls(code="loop_order", text=f"their loops {loops} differ in order")
        return cls(code="loop_sizes", text=f"their loops {loops} differ in size")


def loops_text(loops: Loops) -> str:
    """Return the sizes of loops as text, those of a reduction last: ``[64] over [128]``."""
    outer, inner = (" x ".join(sizes) for sizes in loops)
    return f"[{outer}]" if not inner else f"[{outer}] over [{inner}]"
