"""The first piece of code of a page runs as it stands there."""

import re

import pytest


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
