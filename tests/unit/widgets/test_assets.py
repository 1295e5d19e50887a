import re
import subprocess
import sys

import pytest
from fuser_lab_widgets import assets


def test_the_script_is_one_small_module_that_asks_nothing_of_the_network():
    script = assets.script()
    assert len(script.encode()) < 54_000
    assert "export default" in script
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


@pytest.mark.parametrize(
    ("line", "short"),
    [
        ("const a = b ? c : d;", "let a=b?c:d;"),
        ('f("a = b ? c", x => y)', 'f("a = b ? c",x=>y)'),
        ('f("say \\"a = b\\" ?", a, b)', 'f("say \\"a = b\\" ?",a,b)'),
        ("f(`a = ${b} ? c`, d)", "f(`a = ${b} ? c`,d)"),
        ("f(`a = ${b ? `c = d` : e}`, g)", "f(`a = ${b ? `c = d` : e}`, g)"),
        ("return x - -1 + y++ + z;", "return x- -1+y++ +z;"),
    ],
)
def test_spaces_go_from_code_and_stay_in_text(line, short):
    assert assets._squeezed(line) == short
