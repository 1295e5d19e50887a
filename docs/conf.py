"""Settings of the documentation site, which Sphinx builds from ``docs``, ``notebooks`` and CONTRIBUTING.md."""

import gc
import importlib.util
import sys
from pathlib import Path

_DOCS = Path(__file__).parent
sys.path.insert(0, str(_DOCS))
gc.disable()  # nodes of pages stay until the end; searching them for garbage takes a quarter of the time of a build

project = "fuser_lab"
copyright = "The fuser_lab authors"
html_title = "fuser_lab"
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "site_pages"]

# The root of the sources is the root of the repository, so that links between its files are links between pages.
root_doc = "docs/index"
include_patterns = ["docs/*.md", "notebooks/*.ipynb", "CONTRIBUTING.md"]
exclude_patterns = [".*", "binder", "fuser_lab", "site", "test-output", "tests", "typings", "widgets"]

html_theme = "furo"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_js_files = ["site.js"]
html_show_sphinx = html_show_copyright = False
html_copy_source = html_show_sourcelink = False
html_show_search_summary = False  # a page from disk may not read the other pages
html_use_index = html_domain_indices = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#0b6bb0", "color-brand-content": "#0b6bb0"},
    "dark_css_variables": {"color-brand-primary": "#5fb0ee", "color-brand-content": "#5fb0ee"},
}
pygments_style = "tango"
pygments_dark_style = "github-dark"

myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]
suppress_warnings = ["mystnb.mime_priority"]
highlight_language = "none"
smartquotes = False

# `make pages` executes the lessons. Without torch, the lessons that need torch have no results.
nb_execution_mode = "force"
nb_execution_timeout = 180  # seconds for one cell
nb_execution_raise_on_error = True
nb_execution_excludepatterns = [] if importlib.util.find_spec("torch") else [
    f"**/{path.name}" for path in sorted((_DOCS.parent / "notebooks").glob("*.ipynb"))
    if '"import torch\\n"' in path.read_text(encoding="utf-8")
]
nb_merge_streams = True
nb_ipywidgets_js = {}  # explorers are shown as they are saved
nb_mime_priority_overrides = [("html", "application/vnd.jupyter.widget-view+json", 35)]  # after HTML, before text

default_role = "literal"
add_module_names = False
python_use_unqualified_type_names = True
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
napoleon_google_docstring = False
toc_object_entries = False  # the sidebar of each page copies them, which doubles the time of a build
maximum_signature_line_length = 100
