"""A plan as a Graphviz file with labels, for tools with their own layout."""


from fuser_lab.ir.tensor_names import full_name
from fuser_lab.report.markup import clean
from fuser_lab.report.units import bytes_label
from fuser_lab.report.view_model import NodeView, ViewModel

_SHAPES = {"input": "oval", "op": "box", "output": "hexagon", "segment": "box"}


def view_dot(view: ViewModel) -> str:
    """Return the DOT text of a view model, one cluster per segment."""
    numbers = {node.id: f"n{n}" for n, node in enumerate(view.nodes)}
    lines = [f"digraph {quote(view.header.title)} {{", "  node [fontname=sans]; edge [fontname=sans];"]
    lines += [f"  {_node(n, numbers[n.id])}" for n in view.nodes if n.segment is None]
    for segment in view.segments:
        label = quote(f"S{segment.index} {segment.scheduler}")
        lines += [f"  subgraph cluster_{segment.index} {{", f"    label={label};"]
        lines += [f"    {_node(n, numbers[n.id])}" for n in view.nodes if n.segment == segment.index]
        lines.append("  }")
    for edge in view.edges:
        text = f"{full_name(edge.tensor, edge.called)} {bytes_label(edge.passed)}"
        label = f" [label={quote(text)}]" if edge.kind == "boundary" else ""
        lines.append(f"  {numbers[edge.source]} -> {numbers[edge.target]}{label};")
    return "\n".join([*lines, "}", ""])


def _node(node: NodeView, number: str) -> str:
    name = ", ".join(map(full_name, node.tensors, node.called or ("",) * len(node.tensors)))
    label = f"{node.label} {name}" if node.kind == "op" else name or node.label
    return f"{number} [label={quote(label)}, shape={_SHAPES[node.kind]}];"


def quote(text: str) -> str:
    """Return a text as a string of DOT."""
    escaped = clean(text).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
