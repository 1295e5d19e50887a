"""The corpus: its contents, the selection of entries, and that each matches its description."""

import gzip
from importlib.resources import files

import numpy as np
import pytest

import fuser_lab as fl
from fuser_lab.bridge.costs import deciding_rule
from fuser_lab.definition.binding import bind
from fuser_lab.definition.repro.writing import script_text
from fuser_lab.errors import InputError
from fuser_lab.lab.corpus import KINDS, read_entries, written_corpus, written_entries
from tests.needs import needs

WHOLE = fl.corpus()
FEW = list(WHOLE[:: len(WHOLE) // 12])


def test_it_is_large_and_small():
    assert len(WHOLE) >= 300
    assert {entry.kind for entry in WHOLE} == set(KINDS)
    assert len({entry.name for entry in WHOLE}) == len({entry.script for entry in WHOLE}) == len(WHOLE)
    assert len(files("fuser_lab.lab").joinpath("corpus.txt.gz").read_bytes()) < 1_000_000
    assert sum(bool(entry.small_script) for entry in WHOLE) > 0.8 * len(WHOLE)


@pytest.mark.parametrize("entry", FEW, ids=lambda entry: entry.name)
def test_an_entry_is_canonical_and_its_small_form_has_the_same_ops(entry):
    fd, inputs = entry.load()
    assert script_text(fd.fusion, inputs, library="numpy") == entry.script
    fusion = bind(fd.fusion, tuple(inputs)).fusion
    assert len(fusion.exprs) == entry.ops
    tensors = [value for value in (*fusion.inputs, *fusion.outputs) if hasattr(value, "nbytes")]
    assert sum(tensor.nbytes for tensor in tensors) == entry.bytes
    if entry.small_script:
        recorded, examples = entry.load(small=True)
        small = bind(recorded.fusion, tuple(examples)).fusion
        if entry.kind in {"forward", "backward"}:
            names = {e.op.name for e in fusion.exprs} ^ {e.op.name for e in small.exprs}
            assert names <= {"squeeze", "expand", "broadcast", "set", "reshape"}


def test_equal_entries_are_equal_bytes_and_are_read_again(tmp_path):
    assert read_entries(written_entries(reversed(FEW))) == tuple(FEW)
    first, second = (written_corpus(FEW, tmp_path / name).read_bytes() for name in "ab")
    assert first == second
    assert gzip.decompress(first).decode().startswith("%% entry ")


def test_entries_are_chosen_by_name_kind_and_origin():
    assert fl.corpus(kind="example").entries == tuple(e for e in WHOLE if e.kind == "example")
    assert {entry.name for entry in fl.corpus("example/softmax*")} == {"example/softmax", "example/softmax_backward"}
    found = fl.corpus("*/backward/*", origin="GPT-2 xl")
    assert found.entries
    assert all(entry.kind == "backward" for entry in found)
    assert len(fl.corpus()[3:5]) == 2
    with pytest.raises(InputError, match="matches name=no_such, kind=gallery; kinds are example, gallery"):
        fl.corpus("no_such", kind="gallery")
    with pytest.raises(InputError, match="no entry is called softmax; "):
        fl.corpus()["softmax"]
    gallery = next(entry for entry in WHOLE if not entry.small_script)
    with pytest.raises(InputError, match="has no small form"):
        gallery.load(small=True)
    assert len(fl.corpus(kind="example").to_pandas()) == 12
    assert "12 entries (12 example)." in fl.corpus(kind="example")._repr_html_()


def test_a_small_form_runs():
    entry = WHOLE["momentum/forward/0"]
    fd, inputs = entry.load(small=True)
    p, g, m = (np.asarray(one.materialize()) for one in inputs)
    step, moved = fd.execute([p, g, m])
    kept = 0.9 * m + g + 1e-4 * p
    places = {np.allclose(one, kept, rtol=1e-4, atol=1e-5): one for one in (step, moved)}
    assert True in places
    np.testing.assert_allclose(places[False], p - 0.1 * (g + 0.9 * kept), rtol=1e-3, atol=1e-4)


def with_a_hint(fd, x):
    return fd.ops.neg(fd.ops.segment_set(fd.ops.exp(x)))


def with_a_cycle(fd, x):
    a = fd.ops.add(x, 1.0)
    return fd.ops.add(a, fd.ops.sum(fd.ops.sum(a, dims=[0]), dims=[0]))


@pytest.mark.parametrize(("compute", "rules"), [
    (with_a_hint, {"segmenter: T2 is made by segment_set, which separates it from the expressions that read it; "
     "the candidate contains both": "segment_set_inside"}),
    (with_a_cycle, {
        "segmenter: segment 0 and segment 2 are separate; one segment for both would close a cycle through segment 1.":
            "cycle",
    }),
])
def test_the_rule_that_keeps_segments_apart_has_a_name(compute, rules):
    with fl.FusionDefinition() as fd:
        fd.add_output(compute(fd, fd.define_tensor([64, 32], contiguity=True)))
    plan = fl.segment(fd)
    found = {str(rule): rule.code for rule in (deciding_rule(why, plan.decisions) for why in plan.boundaries())}
    assert found.items() >= rules.items(), found


def test_the_command_captures_functions_again():
    needs("torch")
    from tests.corpus.capture import different, of_functions

    (made,) = different(of_functions(["momentum"]))
    kept = WHOLE["momentum/forward/0"]
    assert (made.name, made.ops, made.bytes) == (kept.name, kept.ops, kept.bytes)
    assert made.load(small=True)[1] == kept.load(small=True)[1]
