"""The documentation site builds without a warning, documents every public name and makes no requests."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import fuser_lab as fl


@pytest.fixture(scope="module")
def site(tmp_path_factory, repository):
    """The site without the lessons' results, whose execution is tested with the notebooks, and without a search."""
    built = tmp_path_factory.mktemp("site")
    settings = {"FUSER_LAB_PAGES": "unexecuted", "FUSER_LAB_SEARCH": "false", "NO_MKDOCS_2_WARNING": "1"}
    environment = {**os.environ, **settings}
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(built)]
    done = subprocess.run(command, cwd=repository, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    return built


def test_every_public_name_is_documented(site):
    page = (site / "api.html").read_text(encoding="utf-8")
    # Documented with their owners: the kinds of data, the diff that `diff` returns, the package of views.
    elsewhere = {"DataType", "PlanDiff", "errors", "examples", "views"}
    missing = [
        name for name in fl.__all__
        if name not in elsewhere and not re.search(rf'id="fuser_lab\.[\w.]*\b{name}"', page)
    ]
    assert not missing


def test_every_lesson_is_a_page(site, repository):
    lessons = {path.stem for path in (repository / "notebooks").glob("*.ipynb")}
    assert lessons == {path.stem for path in (site / "lessons").glob("*.html")}
    start = (site / "index.html").read_text(encoding="utf-8")
    assert all(f'href="lessons/{name}.html"' in start for name in lessons)


def test_every_page_is_in_the_navigation(site, repository):
    pages = {path.stem for path in (repository / "docs").glob("*.md")}
    links_none = (site / "ops.html").read_text(encoding="utf-8")  # but for the navigation
    assert not [name for name in pages if f'href="{name}.html"' not in links_none]


def test_answers_are_folded_away(site, repository):
    asked = 0
    for path in sorted((repository / "notebooks" / "text").glob("*.py")):
        page = (site / "lessons" / f"{path.stem}.html").read_text(encoding="utf-8")
        cells = path.read_text(encoding="utf-8").split("\n# %%")
        asked += (answers := sum(".reveal(" in cell and "[markdown]" not in cell.partition("\n")[0] for cell in cells))
        assert page.count("<summary>The answer</summary>") == answers, path.stem
        open_cells = re.sub(r"<details.*?</details>", "", page, flags=re.DOTALL)
        assert '<span class="n">reveal</span>' not in open_cells, path.stem
    assert asked > 50


def test_results_of_cells(repository):
    spec = importlib.util.spec_from_file_location("hooks", repository / "docs" / "hooks.py")
    hooks = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hooks)
    stream = {"output_type": "stream", "name": "stdout"}
    bar = {"output_type": "display_data", "data": {hooks._WIDGET: {}, "text/plain": "timing:  0%|   |"}}
    explorer = {"output_type": "display_data", "data": {hooks._WIDGET: {}, "text/html": "<p>a\n\n\nb</p>"}}
    picture = {"output_type": "display_data", "data": {"image/svg+xml": "<svg/>", "text/plain": "<SVG object>"}}
    outputs = [{**stream, "text": "1 < 2\n"}, {**stream, "text": "and\n"}, bar, explorer, picture]
    assert hooks._outputs(outputs) == [
        "<pre><code>1 &lt; 2\nand\n</code></pre>",
        '<div class="fl-out">\n<p>a\nb</p>\n</div>',
        '<div class="fl-out">\n<svg/>\n</div>',
    ]


def test_no_page_loads_anything_from_elsewhere(site):
    loading = re.compile(
        r"<(?:script|img|iframe|source)\b[^>]*\bsrc=[\"'](?:https?:)?//|<link\b(?=[^>]*stylesheet)[^>]*href=[\"'](?:https?:)?//",
    )
    pages = list(Path(site).rglob("*.html"))
    assert len(pages) > 10
    for page in pages:
        assert not loading.search(page.read_text(encoding="utf-8")), page.name
    for sheet in site.rglob("*.css"):
        assert not re.search(r"(?:@import|url\()\s*[\"']?(?:https?:)?//", sheet.read_text(encoding="utf-8")), sheet.name
