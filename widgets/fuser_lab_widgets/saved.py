"""The saved form of an explorer in a notebook: a report of the plan shown last, which needs no kernel."""

import base64
from collections.abc import Sequence
from dataclasses import replace
from html import escape
from typing import Any, Final

from fuser_lab.cost.traffic import CostModel
from fuser_lab.report.collapse import collapse, is_large
from fuser_lab.report.markup import to_html
from fuser_lab.report.page import packed_page
from fuser_lab.report.repeats import blocks
from fuser_lab.report.svg import view_svg
from fuser_lab.report.tables import segment_table, table_element
from fuser_lab.report.view_model import ViewModel, view_plan
from fuser_lab_widgets import assets
from fuser_lab_widgets.baked import bake
from fuser_lab_widgets.session import EditablePlan

MOST_CHARACTERS: Final = 300_000  # characters of a picture that is stored in a notebook
_MOST_FOLLOWED: Final = 1  # segments of a plan whose steps are saved; more would delay the explorer
_MOST_DRAWN: Final = 60_000  # characters of a picture of ops; a larger one has one box per segment or run of them
_MOST_LISTED: Final = 40  # segments in the table
# While the live explorer is in the page, it hides this (`hidden_by`). It waits a moment, so that running a cell does
# not show it first. JupyterLab shows a sentence in place of a widget without a kernel; the report replaces it.
_STYLE: Final = """
.fl-saved{animation:fl-saved .01s 1.2s backwards}
.fl-saved>table{display:none}
.fl-saved>img{max-width:100%}
.fl-saved:has(iframe)>img{display:none}
.fl-saved>iframe{width:100%;height:780px;border:0;resize:vertical}
@keyframes fl-saved{from{max-height:0;overflow:hidden;visibility:hidden}}
.jp-OutputArea:has(.fl-saved) .jupyter-widgets:not(:has(*)){display:none}
"""


def hidden_by(key: str) -> str:
    """Return the style sheet with which the live explorer of this key hides its saved form."""
    return f'.fl-saved[data-explorer="{key}"]{{display:none!important}}'


def saved_html(
    plans: Sequence[EditablePlan], key: str, *, timings: Any = None, title: str | None = None,
    machine: CostModel | None = None, profile: Any = None, opens: str = "",
) -> str:
    """Return HTML of the first plan, at most 300,000 characters unless the picture alone is larger.

    A page in an ``iframe`` shows the plans, as `fuser_lab.report` does. In a notebook that is not trusted, and on pages
    that run no script, sanitizers remove the frame and the style sheet and leave the picture of the first plan and the
    table of its segments; some remove pictures that are data, too, and leave the table. Large fusions, and plans that
    would not fit, have no frame.

    Parameters
    ----------
    plans
        The plan on show, then others to compare with it; those that do not fit are omitted, the last first.
    key
        The key of the live explorer (`hidden_by`).
    timings
        Measurements of these plans, or None.
    title
        The title in the header.
    machine
        The cost model of the device on which the plans were timed.
    profile
        The result of `fuser_lab.profile` for the first plan; omitted if it does not fit.
    opens
        The name of the view that is open at first, or ``""``.
    """
    view = view_plan(plans[0], title=title, decisions=False)
    drawing = view_svg(view)
    if len(drawing) > _MOST_DRAWN:
        drawing = view_svg(collapse(view, blocks=blocks(view)))
    picture = base64.b64encode(drawing.encode()).decode()
    name = escape(title or plans[0].name)
    still = f'<img alt="{name}: the segments of the plan" src="data:image/svg+xml;base64,{picture}">{_table(view)}'
    if not is_large(view):
        counts = range(len(plans), 0, -1)
        for count, counted in (
            *((n, profile) for n in counts if profile is not None), *((n, None) for n in counts),
        ):
            page = packed_page(
                bake(plans[:count], timings, title=title, machine=machine, followed=_MOST_FOLLOWED, profile=counted,
                     opens=opens),
                script=assets.report_script(), style=assets.style(), title=title or plans[0].name,
            )
            frame = f'<iframe title="{name}" sandbox="allow-scripts" loading="lazy" srcdoc="{escape(page)}"></iframe>'
            whole = _frame(key, still + frame)
            if len(whole) < MOST_CHARACTERS:
                return whole
    return _frame(key, still)


def _table(view: ViewModel) -> str:
    """Return the table of the segments, without columns that may be wide."""
    table, more = segment_table(view.segments[:_MOST_LISTED]).with_names(view.called), len(view.segments) - _MOST_LISTED
    short = replace(table, columns=table.columns[:-2], rows=tuple(row[:-2] for row in table.rows))
    said = f"{view.header.title}: the segments of the plan" + (f"; {more} more are not listed" if more > 0 else "")
    return to_html(table_element(short, caption=said))


def _frame(key: str, content: str) -> str:
    return f'<div class="fl-saved" data-explorer="{key}"><style>{_STYLE}</style>{content}</div>'
