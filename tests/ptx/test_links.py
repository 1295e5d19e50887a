"""PTX beside its source: the instructions of each line."""

import re

import fuser_lab as fl
from fuser_lab import FusionDefinition


def expanded(links):
    """The statements of ranges as ``0.3-7 1.2-2``."""
    for phase, first, last in re.findall(r"(\d+)\.(\d+)-(\d+)", links):
        yield from ((int(phase), place) for place in range(int(first), int(last) + 1))


def test_accesses_of_memory_are_linked_with_the_lines_that_make_them():
    from fuser_lab_widgets import lines

    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1, -1], contiguity=True)
        fd.add_output(fd.ops.add(fd.ops.neg(x), 2.0))
    (segment,) = fl.segment(fd, [fl.spec((256, 1024))]).segments
    found = lines.beside(segment, "cuda")
    assert found["note"] == ""
    columns = dict(found["columns"])
    assert list(columns) == ["Source", "Schedule", "PTX"]

    def options(title):
        pairs = re.findall(r'<div role="option"[^>]*?(?:data-links="([^"]*)")?>(.*?)</div>', columns[title], re.DOTALL)
        return [(set(expanded(links)), re.sub("<[^>]+>", "", text)) for links, text in pairs]

    source = {name: next(links for links, text in options("Source") if name in text.lstrip()[:20])
              for name in ("load_vector(", "store_vector(")}
    machine = options("PTX")
    for instruction, line in (("ld.global", "load_vector("), ("st.global", "store_vector(")):
        made = [links for links, text in machine if text.strip().startswith(instruction)]
        assert made
        assert all(links <= source[line] or not links for links in made)
        assert any(links for links in made)
    vector = next(links for links, text in options("Schedule") if text.strip().startswith("vector="))
    assert source["load_vector("] <= vector
