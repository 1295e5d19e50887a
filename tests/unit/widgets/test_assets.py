import hashlib
import re
import subprocess
import sys
from pathlib import Path

import pytest
from fuser_lab_widgets import assets

MODULES = Path(__file__).parents[3] / "widgets" / "js"


@pytest.mark.parametrize("script", [assets.script, assets.report_script, assets.map_script])
def test_a_script_is_made_from_the_modules_that_are_there(script):
    digest = hashlib.sha256()
    names = {path.relative_to(MODULES).as_posix() for pattern in ("*.js", "*.mjs") for path in MODULES.rglob(pattern)}
    names = {name for name in names if not name.startswith("node_modules/")} | {"package-lock.json"}
    for name in sorted(names):
        digest.update(f"{name}\0".encode() + (MODULES / name).read_bytes() + b"\0")
    made_from = script().partition("\n")[0].removeprefix("// sources ")
    assert made_from == digest.hexdigest(), "the modules have changed since they were bundled: run make scripts"


def test_the_script_is_one_small_module_that_asks_nothing_of_the_network():
    script = assets.script()
    assert len(script.encode()) < 80_000
    assert re.search(r"export ?\{ ?[\w$]+ as default ?\}", script)
    assert not re.findall(r"https?://|\bimport\b|\bfetch\(|\beval\(|XMLHttpRequest|new Function", script)


def test_the_style_sheet_is_scoped_and_local():
    style = re.sub(r"/\*.*?\*/", "", assets.style(), flags=re.DOTALL)
    assert not re.findall(r"https?://|@import|url\(", style)
    for rule in re.findall(r"([^{}]+)\{", style):
        if not rule.strip().startswith("@"):
            assert re.search(r"\.fl-", rule), rule


def test_both_themes_are_told_by_the_notebook_or_the_system():
    style = assets.style()
    for mark in ("data-jp-theme-light", "data-vscode-theme-kind", "prefers-color-scheme", "prefers-reduced-motion"):
        assert mark in style


def test_assets_need_no_third_party_package():
    code = (
        "import sys\n"
        "for name in ('anywidget', 'traitlets', 'ipywidgets', 'IPython', 'graphviz', 'pandas', 'numpy'):\n"
        "    sys.modules[name] = None\n"
        "from fuser_lab_widgets import assets\n"
        "assert assets.script() and assets.style()\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
