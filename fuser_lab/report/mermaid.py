"""A plan as a Mermaid flowchart, which issue trackers render."""


from fuser_lab.ir.tensor_names import full_name
from fuser_lab.report.units import bytes_label
from fuser_lab.report.view_model import NodeView, ViewModel

_SHAPES = {"segment": ('["', '"]'), "input": ('(["', '"])'), "op": ('["', '"]'), "output": ('{{"', '"}}')}


def view_mermaid(view: ViewModel) -> str:
    """Return the flowchart of a view model, one subgraph per segment."""
    numbers = {node.id: f"n{n}" for n, node in enumerate(view.nodes)}
    lines = ["flowchart TB", *(f"  {_node(n, numbers[n.id])}" for n in view.nodes if n.segment is None)]
    for segment in view.segments:
        lines.append(f'  subgraph s{segment.index}["{quote_text(f"S{segment.index} {segment.scheduler}")}"]')
        lines += [f"    {_node(n, numbers[n.id])}" for n in view.nodes if n.segment == segment.index]
        lines.append("  end")
    for edge in view.edges:
        name = quote_text(full_name(edge.tensor, edge.called))
        arrow = f'== "{name} {bytes_label(edge.passed)}" ==>' if edge.kind == "boundary" else "-->"
        lines.append(f"  {numbers[edge.source]} {arrow} {numbers[edge.target]}")
    return "\n".join(lines) + "\n"


def _node(node: NodeView, number: str) -> str:
    before, after = _SHAPES[node.kind]
    name = ", ".join(map(full_name, node.tensors, node.called or ("",) * len(node.tensors)))
    label = f"{node.label} {name}" if node.kind == "op" else name or node.label
    return f"{number}{before}{quote_text(label)}{after}"


def quote_text(text: str) -> str:
    """Return the text with the markup of Mermaid and HTML escaped as entities."""
    return "".join(c if c.isalnum() or c in " _.,:-+/()" else f"#{ord(c)};" for c in text)
