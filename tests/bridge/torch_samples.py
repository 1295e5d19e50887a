"""``python -m tests.bridge.torch_samples rows.jsonl`` runs samples of torch's op database through the backend.

Each sample of each op runs in eager mode and through ``torch.compile(backend="fuser_lab")``, forward and, where eager
has gradients, backward. Compared are values, dtypes and strides; a row also says which regions failed and which calls
of regions the array library evaluates. Strides that differ from eager's are compared with those of
``backend="aot_eager"``, because some ops of torch have other strides when they are traced.

The file holds one row per op and is continued by the next run. A worker process takes one op after another; if it
crashes or exceeds ``--limit`` seconds on one op, it is replaced, and the op's row says so. ``--report`` prints the
rows that are not right.
"""

import argparse
import importlib.util
import itertools
import json
import subprocess
import sys
import threading
import time
import unittest
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.needs import needs

torch = needs("torch")

NEAR = {"float32": (1e-4, 2e-5), "bfloat16": (2e-2, 1e-2), "int64": (0.0, 0.0), "bool": (0.0, 0.0)}


def database() -> list[Any]:
    """The ops of torch's own tests."""
    if importlib.util.find_spec("expecttest") is None:
        # Torch's own tests need it; the op database does not.
        sys.modules["expecttest"] = ModuleType("expecttest")
        sys.modules["expecttest"].TestCase = unittest.TestCase
    from torch.testing._internal.common_methods_invocations import op_db

    return list(op_db)


def named(op: Any) -> str:
    return f"{op.name}.{op.variant_test_name}".rstrip(".")


def flat(value: Any) -> list[Any]:
    return [x for x in torch.utils._pytree.tree_leaves(value) if isinstance(x, torch.Tensor)]


def called(op: Any, sample: Any, *, columns: bool) -> tuple[Any, list[Any]]:
    """A sample as a function of its tensors, and the tensors."""
    leaves, spec = torch.utils._pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
    places = [place for place, x in enumerate(leaves) if isinstance(x, torch.Tensor)]

    def function(*given: Any) -> list[Any]:
        values = list(leaves)
        for place, x in zip(places, given, strict=True):
            values[place] = x
        first, args, kwargs = torch.utils._pytree.tree_unflatten(values, spec)
        return flat(op(first, *args, **kwargs))

    return function, [transposed(leaves[place]) if columns else leaves[place] for place in places]


def transposed(x: Any) -> Any:
    """A tensor with the same elements whose first axis has the smallest stride."""
    if x.layout is not torch.strided or x.ndim < 2:
        return x
    order = range(x.ndim)[::-1]
    return x.detach().permute(*order).contiguous().permute(*order).requires_grad_(x.requires_grad)


def results_of(function: Any, tensors: list[Any], *, backward: bool) -> list[Any]:
    """The results of a function, and then the gradients of its inputs."""
    given = [copied(x) for x in tensors]
    torch.manual_seed(0)
    results = function(*given)
    if not backward:
        return results
    wanting = [x for x in given if x.requires_grad]
    computed = [y for y in results if y.requires_grad]
    found = torch.autograd.grad(computed, wanting, [torch.ones_like(y) for y in computed], allow_unused=True)
    return [*results, *(g for g in found if g is not None)]


def copied(x: Any) -> Any:
    """A tensor with the strides of another."""
    if x.layout is not torch.strided:
        return x.detach().clone().requires_grad_(x.requires_grad)
    new = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype) if 0 not in x.stride() else torch.empty_like(x)
    with torch.no_grad():
        new.copy_(x.detach())
    return new.requires_grad_(x.requires_grad)


def strides(tensors: list[Any]) -> list[tuple[int, ...]]:
    """The strides of tensors, without those that mean nothing."""
    return [
        tuple(s for s, n in zip(x.stride(), x.shape, strict=True) if n > 1) if x.numel() and x.layout is torch.strided
        else () for x in tensors
    ]


def defects(function: Any, tensors: list[Any], dtype: str, *, backward: bool) -> dict[str, Any] | None:
    """What is wrong with a sample through the backend; None if eager does not run it."""
    import fuser_lab.torch as bridge

    try:
        expected = results_of(function, tensors, backward=backward)
        again = results_of(function, tensors, backward=backward)
    except Exception:  # noqa: BLE001 - some samples are not differentiable
        return None
    torch._dynamo.reset()
    row: dict[str, Any] = {}
    compiled = torch.compile(function, backend="fuser_lab", dynamic=False)
    try:
        ours = results_of(compiled, tensors, backward=backward)
        ours = results_of(compiled, tensors, backward=backward)  # a repeated call takes another path
    except Exception as error:  # noqa: BLE001
        try:
            torch._dynamo.reset()
            results_of(torch.compile(function, backend="aot_eager", dynamic=False), tensors, backward=backward)
        except Exception:  # noqa: BLE001 - torch does not compile it either
            return {"refused": True}
        return {"crash": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}
    rtol, atol = NEAR.get(dtype, (1e-4, 2e-5))
    if len(ours) != len(expected):
        return {"wrong": f"{len(ours)} results for {len(expected)}"}
    for place, (a, b, c) in enumerate(zip(ours, expected, again, strict=True)):
        if a.dtype is not b.dtype or a.shape != b.shape:
            row["wrong"] = f"{place}: {a.dtype}{list(a.shape)} for {b.dtype}{list(b.shape)}"
            continue
        try:
            torch.testing.assert_close(c, b, rtol=rtol, atol=atol, equal_nan=True)
        except AssertionError:
            continue  # eager's own results differ
        try:
            torch.testing.assert_close(a, b, rtol=rtol, atol=atol, equal_nan=True)
        except AssertionError as error:
            row["wrong"] = f"{place}: {' '.join(str(error).split())[:200]}"
    found = bridge.last()
    if found is not None:
        failed = [region.failed for graph in found.graphs for region in graph.regions if region.failed]
        evaluated = [str(n.target) for graph in found.graphs for region in graph.regions for n in region.evaluated]
        row |= {"failed": failed} if failed else {}
        row |= {"evaluated": evaluated} if evaluated else {}
    if strides(ours) != strides(expected):
        torch._dynamo.reset()
        traced = results_of(torch.compile(function, backend="aot_eager", dynamic=False), tensors, backward=backward)
        if strides(ours) != strides(traced):
            row["strides"] = f"{strides(ours)} for eager's {strides(expected)} and aot_eager's {strides(traced)}"
    return row


def row_of(op: Any, samples: int, dtype: str, *, reference: bool, columns: bool) -> dict[str, Any]:
    """The defects of an op's samples."""
    kind = getattr(torch, dtype)
    row: dict[str, Any] = {"op": named(op), "dtype": dtype, "samples": 0, "defects": []}
    if reference:
        from fuser_lab.bridge.torch_region import TorchRegion
        from tests.bridge.samples import by_reference

        TorchRegion._run = by_reference
        TorchRegion.kernels = lambda _: ()
    graded = kind.is_floating_point and op.supports_autograd
    try:
        chosen = list(itertools.islice(op.sample_inputs("cpu", kind, requires_grad=graded), samples))
    except Exception as error:  # noqa: BLE001 - some ops need libraries that are not here
        return {**row, "defects": [], "none": f"no samples: {type(error).__name__}"}
    for number, sample in enumerate(chosen):
        function, tensors = called(op, sample, columns=columns)
        for backward in (False, True)[: 1 + any(x.requires_grad for x in tensors)]:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found = defects(function, tensors, dtype, backward=backward)
            if found is None:
                continue
            row["samples"] += 1
            if found:
                row["defects"].append({"sample": number, "backward": backward, **found})
    return row


def work(chosen: Any) -> None:
    """Answer each name of an op on standard input by its row."""
    torch.set_num_threads(1)
    ops = {named(op): op for op in database()}
    for line in sys.stdin:
        row = row_of(
            ops[line.strip()], chosen.samples, chosen.dtype, reference=chosen.reference, columns=chosen.columns)
        print("@@" + json.dumps(row), flush=True)


class Worker:
    """A process that answers names by rows."""

    def __init__(self, chosen: Any) -> None:
        words = [sys.executable, "-m", "tests.bridge.torch_samples", "-", "--work", "--samples", str(chosen.samples),
                 "--dtype", chosen.dtype, *["--reference"] * chosen.reference, *["--columns"] * chosen.columns]
        self._process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)

    def ask(self, name: str, limit: float) -> dict[str, Any] | None:
        """The row of an op; None if the process ended, or was ended after ``limit`` seconds."""
        given, answers = self._process.stdin, self._process.stdout
        assert given is not None
        assert answers is not None
        timer = threading.Timer(limit, self._process.kill)
        timer.start()
        try:
            given.write(f"{name}\n")
            given.flush()
            found = next((line for line in answers if line.startswith("@@")), None)
        except BrokenPipeError:
            found = None
        finally:
            timer.cancel()
        return None if found is None else json.loads(found[2:])

    def end(self) -> None:
        self._process.kill()
        self._process.wait()


def rows_in(path: Path) -> Iterator[dict[str, Any]]:
    if path.exists():
        for line in path.read_text("utf-8").splitlines():
            yield json.loads(line)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=Path, help="the file of rows")
    parser.add_argument("names", nargs="*", help="parts of names of ops; all by default")
    parser.add_argument("--samples", type=int, default=2, help="samples per op")
    parser.add_argument("--dtype", default="float32", choices=list(NEAR))
    parser.add_argument("--reference", action="store_true", help="NumPy evaluates regions, so that nothing is compiled")
    parser.add_argument("--columns", action="store_true", help="tensors whose first axis has the smallest stride")
    parser.add_argument("--seconds", type=float, default=500, help="budget of this run")
    parser.add_argument("--limit", type=float, default=120, help="seconds for one op")
    parser.add_argument("--share", default="0/1", help="k/n: every n-th op, from the k-th")
    parser.add_argument("--report", action="store_true")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.work:
        work(chosen)
        return
    if chosen.report:
        for row in rows_in(chosen.rows):
            for one in row["defects"]:
                if set(one) - {"sample", "backward", "refused"}:
                    print(row["op"], json.dumps(one))
        return
    done = {row["op"] for row in rows_in(chosen.rows)}
    kind, (first, step) = getattr(torch, chosen.dtype), map(int, chosen.share.split("/"))
    names = [named(op) for op in database() if kind in op.dtypes][first::step]
    names = [n for n in names if n not in done and (not chosen.names or any(part in n for part in chosen.names))]
    ends, worker = time.monotonic() + chosen.seconds, Worker(chosen)
    with chosen.rows.open("a", encoding="utf-8") as file:
        for name in names:
            if time.monotonic() > ends:
                break
            row = worker.ask(name, chosen.limit)
            if row is None:
                worker.end()
                worker = Worker(chosen)
                row = {"op": name, "samples": 0, "defects": [{"ended": "the process ended, or took too long"}]}
            file.write(json.dumps(row) + "\n")
            file.flush()
    worker.end()
    rows = list(rows_in(chosen.rows))
    bad = sum(any(set(one) - {"sample", "backward", "refused"} for one in row["defects"]) for row in rows)
    print(f"{len(rows)} ops, {sum(row['samples'] for row in rows)} runs; {bad} ops with defects; {len(names)} asked")


if __name__ == "__main__":
    main()
