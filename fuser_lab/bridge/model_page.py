"""A captured model as one static page: the costs of its step, its map, and the plan of each distinct region."""

from html import escape

from fuser_lab.bridge.captured import Captured
from fuser_lab.bridge.model_view import RegionRow, headline, region_rows
from fuser_lab.bridge.module_files import map_html
from fuser_lab.bridge.step_costs import StepCosts
from fuser_lab.errors import FuserLabError
from fuser_lab.report.explain import explain_text
from fuser_lab.report.html import document


def model_page(captured: Captured, costs: StepCosts | None = None, title: str | None = None) -> str:
    """Return the page; ``costs`` are predicted unless they are passed."""
    shown_costs = captured.step() if costs is None else costs
    name = title or headline(captured.graphs, captured.graph_breaks)
    parts = [f"<h2>{escape(name)}</h2>", shown_costs._repr_html_(), "<h3>Map</h3>", map_html(captured.maps())]
    parts += ["<h3>Regions and other ops</h3>", captured.tables_html(), "<h3>Plans of the regions</h3>"]
    parts += [_region(graph.kind, row) for graph in captured.graphs for row in region_rows(graph.regions)]
    return document(name, "".join(parts))


def _region(kind: str, row: RegionRow) -> str:
    try:
        plan = row.region.plan
        body = f"{plan._repr_html_()}<pre>{escape(explain_text(plan))}</pre>"
    except FuserLabError as error:
        body = f"<p>{escape(str(error))}</p>"
    return f"<details><summary>{escape(f'{kind} {row.label}')}</summary>{body}</details>"
