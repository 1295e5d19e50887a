"""A fusion that is not cut: its graph without boxes, as SVG and HTML."""

from dataclasses import dataclass, replace

from fuser_lab.ir import Expr, Fusion, TensorView, Val
from fuser_lab.report.html import fragment
from fuser_lab.report.markup import element
from fuser_lab.report.svg import view_element
from fuser_lab.report.units import bytes_label, plural
from fuser_lab.report.view_model import ViewModel, view_plan


@dataclass(frozen=True, slots=True, kw_only=True)
class _Whole:
    """All expressions of a fusion as one segment, without asking any scheduler."""

    exprs: tuple[Expr, ...]
    inputs: tuple[Val, ...]
    outputs: tuple[TensorView, ...]
    index: int = 0
    scheduler: str = "not cut"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Uncut:
    fusion: Fusion
    segments: tuple[_Whole, ...]
    name: str
    strategy: str = "not cut"
    hash: str = ""


def fusion_view(fusion: Fusion, *, title: str = "fusion") -> ViewModel:
    """Return the view model of a fusion before any cut: ops in no segment."""
    whole = _Whole(exprs=fusion.exprs, inputs=fusion.inputs, outputs=fusion.outputs)
    view = view_plan(_Uncut(fusion=fusion, segments=(whole,), name=title))
    return replace(
        view,
        header=replace(view.header, segments=0),
        nodes=tuple(replace(node, segment=None) for node in view.nodes),
        edges=tuple(replace(edge, segments=(None, None)) for edge in view.edges),
        segments=(),
    )


def fusion_html(fusion: Fusion, code: str) -> str:
    """Return a fusion for a notebook's output: how much it computes on what, the picture, the code folded away."""
    view = fusion_view(fusion, title="fusion")
    ends = f"{plural(len(fusion.inputs), 'input')}, {plural(len(fusion.outputs), 'output')}"
    head = f"fusion: {plural(view.header.ops, 'op')}, {ends}, {bytes_label(view.header.bytes_ideal)} of tensors"
    return fragment(
        element("p", head),
        element("div", view_element(view), css="fl-picture"),
        element("details", element("summary", "definition"), element("pre", code)),
    )
