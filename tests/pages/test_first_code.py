"""The first code block of a page runs unchanged."""

import re

import pytest
from bridge.uncompiled import compile_nothing
from needs import needs


@pytest.mark.parametrize("page", ["README.md", "docs/pytorch.md"])
def test_the_first_code_for_torch_can_be_pasted(page, repository, capsys, monkeypatch):
    needs("torch")
    compile_nothing(monkeypatch)
    pytest.importorskip("anywidget", reason="needs the notebook packages")
    text = (repository / page).read_text(encoding="utf-8")
    names = {}
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    for code in blocks[: next(n for n, code in enumerate(blocks, 1) if "fl.explain" in code)]:
        exec(code, names)
    assert names["captured"].regions
    assert "The largest gain: " in capsys.readouterr().out


@pytest.mark.parametrize("page", ["scheduling_by_hand", "segments_as_definitions"])
def test_the_first_code_of_a_page_can_be_pasted(page, repository, capsys):
    text = (repository / "docs" / f"{page}.md").read_text(encoding="utf-8")
    code = re.search(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE).group(1)
    names = {}
    exec(code, names)
    fd = names["fd"]
    assert fd.definition.outputs
    if page == "segments_as_definitions":
        assert len(names["segments"]) > 1
    else:
        assert "split" in capsys.readouterr().out
