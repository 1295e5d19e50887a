"""The drawn parts of a plan: nodes, edges and segments, as plain data."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal

from fuser_lab.report.identity_cache import cached_by_identity

NodeKind = Literal["input", "op", "output", "segment"]
EdgeKind = Literal["input", "inside", "boundary", "output"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    """A fusion input, an op in a segment, a fusion output, or (collapsed) a whole segment, which ``detail`` describes.

    A replica stands in several segments. ``line`` is the line of the user's code that an op came from, if it is known;
    ``text`` ends with it. ``module`` is the path of the module that called it; ``called`` are the user's names of its
    tensors, ``""`` for those without one.
    """

    id: str
    kind: NodeKind
    label: str
    tensor: str = ""
    tensors: tuple[str, ...] = ()
    dtype: str = ""
    shape: tuple[str, ...] = ()
    bytes: int
    segment: int | None
    replica: bool = False
    copies: int = 1
    text: str
    detail: str = ""
    line: str = ""
    module: str = ""
    called: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeView:
    """A tensor that one node passes to another.

    ``segments`` holds both ends, None outside all segments; ``labelled`` marks the first edge that takes a tensor into
    another segment and carries the label with its bytes. ``is_free`` says that no kernel writes these bytes for another
    kernel, because the tensor is a view, or only a view is made of it. ``called`` is what the tensor is called beside
    its own name: the user's name, or that of its op.
    """

    id: str
    source: str
    target: str
    tensor: str
    bytes: int
    kind: EdgeKind
    segments: tuple[int | None, int | None]
    labelled: bool = False
    called: str = ""
    is_free: bool = False

    @property
    def passed(self) -> int:
        """The bytes that pass along the edge: 0 if the tensor shares the memory of another one."""
        return 0 if self.is_free else self.bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictView:
    """One scheduler's answer, with the code of its reason and the sentence with the numbers."""

    scheduler: str
    accepted: bool
    code: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentView:
    """A segment; ``ok`` is False if no scheduler accepts it, and ``verdicts`` then give the reasons."""

    index: int
    scheduler: str
    ok: bool
    ops: tuple[str, ...]
    nodes: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    bytes_in: int
    bytes_out: int
    bytes_crossing: int
    verdicts: tuple[VerdictView, ...]


def view_verdicts(verdicts: Iterable[Any] | None) -> tuple[VerdictView, ...]:
    """Return the schedulers' verdicts in the order in which they were tried."""
    return tuple(_verdict(v) for v in (verdicts or ()))


def word(value: object) -> str:
    """Return the short name of an enum member, a named thing or a string."""
    if value is None:
        return ""
    if isinstance(value, Enum):
        return str(value.value)
    return str(getattr(value, "name", value))


@cached_by_identity
def _verdict(verdict: Any) -> VerdictView:
    return VerdictView(
        scheduler=word(verdict.scheduler),
        accepted=verdict.accepted,
        code=verdict.code,
        text=verdict.text,
    )
