"""The documentation site builds without a warning, documents all public names, and opens from disk without requests."""

import html
import os
import re
import subprocess
import sys
import tomllib

import nbformat
import pytest

import fuser_lab as fl
from fuser_lab import teaching
from tests.layering.test_imports import HOUSE
from tests.notebooks.answer_key import bank_of, lessons
from tests.pages import architecture
from tests.unit.public_names import EXCEPTIONS

EXAMPLE = "softmax"  # the only one whose explorer is written here
# Functions of the page that are reached by the name of their module.
BY_MODULE = {
    "api.functions.report",  # whose public name is also that of a package
    "bridge.backend.backend",  # whose public module imports torch
    "lab.calibration.machine_model",
    "search.presegmentation.alternatives",
}


@pytest.fixture(scope="module")
def site(tmp_path_factory, repository):
    """The site without the lessons' results, whose execution is tested with the notebooks."""
    built = tmp_path_factory.mktemp("site")
    settings = ["-D", "nb_execution_mode=off", "-D", f"gallery={EXAMPLE}"]
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-c", "docs", *settings]
    done = subprocess.run(
        [*command, "-d", str(built / "doctrees"), ".", str(built / "site")],
        cwd=repository, capture_output=True, text=True, check=False,
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    return built / "site"


@pytest.fixture(scope="module")
def pages(site):
    """The text of each page of the site, without the static explorers."""
    texts = {path.relative_to(site).as_posix(): path.read_text(encoding="utf-8") for path in site.rglob("*.html")}
    return {name: text for name, text in texts.items() if not name.startswith("gallery/")}


def documented(page):
    """The functions, classes and constants that a page documents, without members, by their names in the package."""
    names = re.findall(r'<dt class="sig sig-object py" id="fuser_lab\.([\w.]+)"', page)
    return {name for name in names if not any(name.startswith(f"{owner}.") for owner in names)}


def test_every_public_name_is_documented(pages):
    # Documented with their owners: the kinds of data, the diff that `diff` returns, the packages of errors and views.
    elsewhere = {"DataType", "PlanDiff", "errors", "examples", "views", "report"}
    errors = {f"errors.{name}" for name in ("FuserLabError", "FusionContractError")}
    names = {name for name in fl.__all__ if name not in elsewhere and not name.endswith("Error")} | errors
    assert names - documented(pages["docs/api.html"]) == set()


def test_the_api_page_lists_public_names_only(pages):
    exported = {"teaching": teaching.__all__, "passes": fl.passes.__all__, "torch": ("backend", "last")}
    public = set(fl.__all__) | {f"{module}.{name}" for module, names in exported.items() for name in names}
    listed = documented(pages["docs/api.html"])
    assert {name for name in listed if not name.startswith(("errors.", "views."))} - public == BY_MODULE
    internal = {name for name, reason in EXCEPTIONS.items() if reason.startswith("called by the package")}
    members = set(re.findall(r'<dt class="sig sig-object py" id="fuser_lab\.([\w.]+)"', pages["docs/api.html"]))
    assert members & internal == {"Pass.run"}  # which users write


def test_every_lesson_is_a_page_and_is_listed_on_the_start_page(pages, repository):
    names = {path.stem for path in (repository / "notebooks").glob("*.ipynb")}
    assert {f"notebooks/{name}.html" for name in names} == {name for name in pages if name.startswith("notebooks/")}
    assert all(f'href="../notebooks/{name}.html"' in pages["docs/index.html"] for name in names)


def test_links_lead_to_places_of_the_site(pages, site):
    places = {name: {*re.findall(r'\bid="([^"]+)"', text), ""} for name, text in pages.items()}
    explorers = {f"gallery/{name}.html" for name in fl.examples.names()}
    wrong = []
    for name, text in pages.items():
        for link in re.findall(r'<(?:a|link|img|script)\b[^>]*?\b(?:href|src)="([^":]*)"', text):
            path, _, place = html.unescape(link).partition("#")
            target = os.path.normpath(os.path.join(os.path.dirname(name), path.partition("?")[0])) if path else name  # noqa: PTH118, PTH120
            if target in explorers or place in places.get(target, ()) or (not place and (site / target).exists()):
                continue
            wrong.append(f"{name}: {link}")
    assert not wrong, "\n".join(wrong)


def test_answers_are_folded_away(pages, repository):
    asked = 0
    for path in sorted((repository / "notebooks").glob("*.ipynb")):
        page = pages[f"notebooks/{path.stem}.html"]
        cells = nbformat.read(path, as_version=4).cells
        asked += (answers := sum(cell.cell_type == "code" and ".reveal(" in cell.source for cell in cells))
        assert page.count('<p class="collapsed admonition-title">The answer</p>') == answers, path.stem
        open_cells = re.sub(r"<details.*?</details>", "", page, flags=re.DOTALL)
        assert '<span class="n">reveal</span>' not in open_cells, path.stem
    assert asked > 50


def test_no_page_loads_anything_from_elsewhere(pages, site):
    loading = re.compile(
        r"<(?:script|img|iframe|source)\b[^>]*\bsrc=[\"'](?:https?:)?//|<link\b(?=[^>]*stylesheet)[^>]*href=[\"'](?:https?:)?//",
    )
    assert len(pages) > 50
    assert not [name for name, text in pages.items() if loading.search(text)]
    for sheet in site.rglob("*.css"):
        assert not re.search(r"(?:@import|url\()\s*[\"']?(?:https?:)?//", sheet.read_text(encoding="utf-8")), sheet.name


def test_the_site_searches_from_disk_and_opens_explorers_without_a_request(site, browser):
    from playwright.sync_api import expect

    requests = []
    page = browser.new_page()
    page.on("request", lambda request: requests.append(request.url))
    page.on("pageerror", lambda error: requests.append(str(error)))
    page.goto((site / "index.html").as_uri())
    page.wait_for_url("**/docs/index.html")
    for words, result in (("segment_set", "04 segment_set"), ("memory traffic", "01 Memory traffic")):
        page.locator("input[name=q]").first.fill(words)
        page.keyboard.press("Enter")
        # The results move down when the search ends; a press and its release would meet two places.
        expect(page.locator("#search-results .search-summary")).to_contain_text("Search finished")
        page.locator("#search-results a", has_text=result).first.click()
        expect(page.locator("h1")).to_contain_text(result)
    page.goto((site / "docs" / "gallery.html").as_uri())
    page.locator(".fl-card").click()
    expect(page.locator(".fl-explorer svg").first).to_be_visible()
    page.close()
    assert not [request for request in requests if not request.startswith(("file:", "data:", "blob:"))]


def test_the_picture_of_the_packages_shows_their_enforced_ranks(repository):
    drawn = [set(rank.packages) for rank in architecture.ranks()]
    assert drawn == [set(names) - {"__main__"} for names in HOUSE] + [{"widgets/fuser_lab_widgets"}]
    picture = (repository / "docs" / "images" / "architecture.svg").read_text(encoding="utf-8")
    assert picture == f"{architecture.picture()}\n", "python -m tests.pages.architecture > docs/images/architecture.svg"


def test_the_course_is_six_lessons_in_ninety_minutes_and_its_key_answers_every_question(repository):
    plan = (repository / "docs" / "course.md").read_text(encoding="utf-8")
    assert sum(map(int, re.findall(r"^\| (\d+) \|", plan, re.MULTILINE))) == 90
    assert len(lessons()) == 6
    key = (repository / "docs" / "course_key.md").read_text(encoding="utf-8")
    questions = [entry.asks for path in lessons() for entry in bank_of(path).entries]
    assert re.findall(r"^\*\*\d+\. (.+)\*\*$", key, re.MULTILINE) == questions


def test_the_search_does_not_lead_to_the_answer_key(site):
    index = (site / "searchindex.js").read_text(encoding="utf-8")
    assert "half the registers" not in index
    assert '"docs/course"' in index


def test_a_citation_names_the_version(repository):
    settings = (repository / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {fl.__version__}\n" in settings
    assert f"Version {fl.__version__}" in (repository / "docs" / "citing.md").read_text(encoding="utf-8")
    project = tomllib.loads((repository / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert f"license: {project['license']}\n" in settings
