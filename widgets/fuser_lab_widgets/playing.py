"""The player of a kernel's steps in a saved notebook: a separate page that needs no Python."""

from html import escape
from typing import TYPE_CHECKING, Final

from fuser_lab.report.page import packed_page
from fuser_lab_widgets import assets
from fuser_lab_widgets.lines import page_form

if TYPE_CHECKING:
    from fuser_lab.codegen.kernel_steps import KernelSteps

# Sanitizers remove the frame and the style sheet, and leave the text.
_STYLE: Final = ".fl-play>pre{display:none}.fl-play>iframe{width:100%;height:560px;border:0;resize:vertical}"


def player_html(steps: "KernelSteps", title: str) -> str:
    """Return HTML with the player in a frame; if no script may run, the first steps are shown as text."""
    page = packed_page(page_form(steps), script=assets.play_script(), style=assets.style(), title=title)
    frame = (
        f'<iframe title="{escape(title)}" sandbox="allow-scripts" loading="lazy" srcdoc="{escape(page)}"></iframe>'
    )
    return f'<div class="fl-play"><style>{_STYLE}</style><pre>{escape(str(steps))}</pre>{frame}</div>'
