"""``python -m tests.corpus.capture [name ...]`` makes the corpus: examples, the gallery, functions and models.

Functions and models are captured on the device ``"meta"``, forward and backward, at real sizes and at small ones:
nothing runs and no weights are allocated. If names are given, the other entries are left unchanged. Needs torch and
``transformers``.
"""

import argparse
import json
import re
import time
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import fuser_lab as fl
from fuser_lab.definition.binding import bind
from fuser_lab.definition.repro.writing import script_text
from fuser_lab.definition.spec import Fill, TensorSpec
from fuser_lab.lab.corpus import CorpusEntry, corpus, written_corpus
from tests.corpus.functions import FUNCTIONS
from tests.corpus.models import models
from tests.needs import needs

torch = needs("torch")
DATA = Path(__file__).parents[1] / "data"


def canonical(fusion: Any, inputs: Any) -> tuple[Any, str]:
    """Return a fusion with its sizes and its canonical script: the script of the fusion that its own script defines."""
    text = script_text(fusion, [_indices(one, inputs) for one in inputs], library="numpy")
    fd, read = fl.load_repro(text)
    return bind(fd.fusion, tuple(read)).fusion, script_text(fd.fusion, read, library="numpy")


def entry(name: str, kind: str, origin: str, real: tuple[Any, Any], small: tuple[Any, Any] | None) -> CorpusEntry:
    """Return the entry of a fusion and its inputs, at real and at small sizes."""
    fusion, script = canonical(*real)
    tensors = [value for value in (*fusion.inputs, *fusion.outputs) if hasattr(value, "nbytes")]
    return CorpusEntry(
        name=name, kind=kind, origin=origin, ops=len(fusion.exprs), bytes=sum(tensor.nbytes for tensor in tensors),
        script=script, small_script="" if small is None else canonical(*small)[1],
    )


def _indices(given: Any, inputs: Any) -> Any:
    """Return an input; integers without given values get values that are legal indices into any axis."""
    if not isinstance(given, TensorSpec) or given.fill is not None or not given.dtype.is_integral:
        return given
    axes = [n for one in inputs if isinstance(one, TensorSpec) for n in one.shape if n > 1]
    return replace(given, fill=Fill(kind="integers", low=0, high=min(axes, default=2)))


def examples() -> Iterator[CorpusEntry]:
    """Yield the examples of the package."""
    for one in fl.examples.ALL:
        found = []
        for size in ("full", "small"):
            with fl.FusionDefinition() as fd:
                one.define(fd, size)
            found.append((fd.fusion, one.specs(size)))
        yield entry(f"example/{one.name}", "example", one.title, *found)


def gallery() -> Iterator[CorpusEntry]:
    """Yield the gallery of real issues."""
    for case in json.loads((DATA / "gallery.json").read_text()):
        found = [_case(case[f"{size}python"], case[f"{size}inputs"]) for size in ("", "small_")]
        yield entry(f"gallery/{case['id']}", "gallery", f"{case['title']} ({case['source']})", *found)


def _case(python: str, inputs: list[Any]) -> tuple[Any, Any]:
    lines = ["import torch", "from nvfuser import DataType, FusionDefinition", "", "def define(fd):"]
    lines += [f"    {line}" for line in python.split("\n")]
    lines += ["", "with FusionDefinition() as fd:", "    define(fd)", "", "inputs = ["]
    for one in inputs:
        if isinstance(one, dict):
            shape = tuple(one["shape"])
            text = f"torch.testing.make_tensor({shape}, dtype=torch.{one['dtype']}, device='cuda:0')"
            lines.append(f"    {text},")
        else:
            lines.append(f"    {one!r},")
    fd, read = fl.load_repro("\n".join([*lines, "]", "fd.execute(inputs)"]))
    return fd.fusion, read


def captured(name: str, found: list[Any], small: list[Any], origin: str) -> Iterator[CorpusEntry]:
    """Yield the regions of captured graphs; the small form is the region at the same position, if it corresponds."""
    for graph, other in zip(found, small if len(small) == len(found) else [None] * len(found), strict=True):
        likes = other.regions if other is not None and len(other.regions) == len(graph.regions) else ()
        kind = "backward" if graph.kind == "backward" else "forward"
        for place, region in enumerate(graph.regions):
            like = likes[place] if likes else None
            if like is not None and [op.target for op in like.ops] != [op.target for op in region.ops]:
                like = None
            where = ", ".join(region.modules[:3]) + (" ..." if len(region.modules) > 3 else "")
            told = f"{_plain(name)}/{kind}/{place}"
            try:
                yield entry(
                    told, kind, f"{origin}{f': {where}' if where else ''}", (region.definition.fusion, region.specs),
                    None if like is None else (like.definition.fusion, like.specs),
                )
            except fl.FuserLabError as error:
                print(f"{told} is left out: {error}", flush=True)


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "_", name.lower()).strip("_")


def of_functions(chosen: list[str]) -> Iterator[CorpusEntry]:
    """Yield the regions of functions."""
    for one in FUNCTIONS:
        if chosen and one.name not in chosen:
            continue
        graphs = []
        for small in (False, True):
            torch._dynamo.reset()
            with torch.device("meta"):
                inputs = one.inputs(small=small)
            graphs.append(list(fl.from_torch(one.compute, *inputs, backward=one.gradient).graphs))
        yield from captured(one.name, graphs[0], graphs[1], f"{one.name}, a function of tests/corpus/functions.py")


def of_models(chosen: list[str]) -> Iterator[CorpusEntry]:
    """Yield the regions of models, forward and backward."""
    for name, (dtype, make) in models().items():
        if chosen and name not in chosen:
            continue
        began = time.process_time()
        graphs = []
        try:
            graphs.append(_graphs(dtype, make, small=False))
            graphs.append(_graphs(dtype, make, small=True))
        except Exception as error:  # noqa: BLE001 - what torch cannot trace is left out, and said
            print(f"{name}: {type(error).__name__}: {' '.join(str(error).split())[:300]}", flush=True)
            if not graphs:
                continue
            graphs.append([])
        entries = list(captured(name, *graphs, f"{name}, {dtype}"))
        print(f"{name}: {len(entries)} regions in {time.process_time() - began:.0f} s", flush=True)
        yield from entries


def _graphs(dtype: str, make: Any, *, small: bool) -> list[Any]:
    torch._dynamo.reset()
    before = torch.get_default_dtype()
    torch.set_default_dtype(getattr(torch, dtype))
    try:
        with torch.device("meta"):
            model, given = make(small)
        return list(fl.from_torch(model.train(), *given, backward=True).graphs)
    finally:
        torch.set_default_dtype(before)


def different(entries: Iterator[CorpusEntry]) -> Iterator[CorpusEntry]:
    """Yield one entry per script, with the sources of the others."""
    first: dict[str, str] = {}
    also: dict[str, list[str]] = {}
    kept: dict[str, CorpusEntry] = {}
    for one in entries:
        name = first.setdefault(one.script, one.name)
        if name == one.name:
            kept[name] = one
        else:
            also.setdefault(name, []).append(one.name.split("/")[0])
    for name, one in kept.items():
        sources = dict.fromkeys((*one.also, *also.get(name, ())))
        yield replace(one, also=tuple(source for source in sources if source != name.split("/")[0]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="functions and models to capture; all by default")
    parser.add_argument("--output", default=None, help="a file other than the package's")
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    began = time.process_time()
    names = {_plain(name) for name in chosen.names}
    kept = [one for one in corpus() if one.name.split("/")[0] not in names] if names else []
    made = [] if names else [*examples(), *gallery()]
    known = [one.name for one in FUNCTIONS]
    if not names or names & set(map(_plain, known)):
        made += of_functions(chosen.names)
    if not names or names - set(map(_plain, known)):
        made += of_models(chosen.names)
    entries = list(different(iter([*kept, *made])))
    path = written_corpus(entries, chosen.output)
    small = sum(bool(one.small_script) for one in entries)
    size = path.stat().st_size
    told = f"{len(entries)} entries ({len(kept) + len(made)} with those that occur twice), {small} with a small form"
    print(f"{told}: {path}, {size / 1e3:.0f} kB, {time.process_time() - began:.0f} s of processor time")


if __name__ == "__main__":
    main()
