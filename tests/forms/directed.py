"""Forms written for branches that drawn forms rarely take: edited schedules, limits, large sizes."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from tests.forms.form import Change, Form, Given, Number

Call = str | tuple[tuple[str, ...], str]


def _t(name: str, *shape: int, dtype: str = "Float", **layout: Any) -> Given:
    return Given(name=name, shape=shape, dtype=dtype, **layout)


def _form(inputs: Sequence[Given | Number], calls: Sequence[Call], outputs: Sequence[str], **choices: Any) -> Form:
    """Return a form whose calls without names have the names t1, t2, ... in order, after those of the inputs."""
    named: list[tuple[tuple[str, ...], str]] = []
    for number, call in enumerate(calls, len(inputs)):
        named.append(((f"t{number}",), call) if isinstance(call, str) else call)
    return Form(inputs=tuple(inputs), calls=tuple(named), outputs=tuple(outputs), **choices)


def _with(form: Form, nest: int = 0, **values: Any) -> Form:
    return replace(form, changes=(Change(segment=0, nest=nest, values=tuple(sorted(values.items()))),))


def rows_of(*shape: int, dtype: str = "Float") -> Form:
    """Return sums of rows."""
    return _form([_t("t0", *shape, dtype=dtype)], ["fd.ops.exp(t0)", "fd.ops.sum(t1, [1])"], ["t2"])


def centred(*shape: int, dtype: str = "Float", dim: int = 1) -> Form:
    """Return rows or columns minus their sum."""
    return _form([_t("t0", *shape, dtype=dtype)], [f"fd.ops.sum(t0, [{dim}], True)", "fd.ops.sub(t0, t1)"], ["t2"])


def softmax(*shape: int, dtype: str = "Float", dim: int = 1) -> Form:
    """Return a softmax."""
    calls = (
        f"fd.ops.max(t0, [{dim}], True)",
        "fd.ops.sub(t0, t1)",
        "fd.ops.exp(t2)",
        f"fd.ops.sum(t3, [{dim}], True)",
        "fd.ops.truediv(t3, t4)",
    )
    return _form([_t("t0", *shape, dtype=dtype)], calls, ["t5"])


def log_sum(*shape: int, dtype: str = "Float", dim: int = 1) -> Form:
    """Return logarithms of sums of exponentials, relative to the maximum."""
    calls = (
        f"fd.ops.max(t0, [{dim}], True)",
        "fd.ops.sub(t0, t1)",
        "fd.ops.exp(t2)",
        f"fd.ops.sum(t3, [{dim}])",
        "fd.ops.log(t4)",
        f"fd.ops.squeeze(t1, [{dim}])",
        "fd.ops.add(t5, t6)",
    )
    return _form([_t("t0", *shape, dtype=dtype)], calls, ["t7"])


def norm(*shape: int, dtype: str = "Float", dim: int = 1) -> Form:
    """Return rows or columns normalized by their mean and variance."""
    calls = (
        (("t1", "t2"), f"fd.ops.var_mean(t0, [{dim}], 0, True)"),
        "fd.ops.sub(t0, t2)",
        "fd.ops.add(t1, 0.001)",
        "fd.ops.rsqrt(t4)",
        "fd.ops.mul(t3, t5)",
    )
    named = [calls[0], *(((f"t{n}",), call) for n, call in enumerate(calls[1:], 3))]
    return _form([_t("t0", *shape, dtype=dtype)], named, ["t6"])  # type: ignore[arg-type]


def backward(*shape: int, dtype: str = "Float") -> Form:
    """Return the gradients of rows divided by their root mean square, and of their weights."""
    rows, length = shape
    inputs = [
        _t("t0", rows, length, dtype=dtype),
        _t("t1", rows, length, dtype=dtype),
        _t("t2", length),
        _t("t3", rows, 1),
    ]
    calls = (
        "fd.ops.mul(t1, t3)",
        "fd.ops.mul(t0, t2)",
        "fd.ops.mul(t4, t5)",
        "fd.ops.sum(t6, [1], True)",
        "fd.ops.mul(t4, t7)",
        "fd.ops.sub(t5, t8)",
        "fd.ops.mul(t0, t4)",
        "fd.ops.sum(t10, [0])",
    )
    return _form(inputs, calls, ["t9", "t11"])


def columns(*shape: int, dtype: str = "Float") -> Form:
    """Return sums of columns."""
    return _form([_t("t0", *shape, dtype=dtype)], ["fd.ops.exp(t0)", "fd.ops.sum(t1, [0])"], ["t2"])


def elements(*shape: int, dtype: str = "Float") -> Form:
    """Return an elementwise kernel."""
    return _form([_t("t0", *shape, dtype=dtype)], ["fd.ops.exp(t0)", "fd.ops.mul(t1, 2.0)"], ["t2"])


def tiles(*shape: int, dtype: str = "Float") -> Form:
    """Return a sum of a matrix and a transposed one."""
    inputs = [_t("t0", *shape, dtype=dtype), _t("t1", *shape[::-1], dtype=dtype)]
    return _form(inputs, ["fd.ops.permute(t1, [1, 0])", "fd.ops.add(t0, t2)"], ["t3"])


def tile_sums(*shape: int, dtype: str = "Float") -> Form:
    """Return sums of rows of a matrix and a transposed one."""
    form = tiles(*shape, dtype=dtype)
    return replace(form, calls=(*form.calls, (("t4",), "fd.ops.sum(t3, [1])")), outputs=("t4",))


def scan(*shape: int, dim: int = 1, dtype: str = "Float") -> Form:
    """Return running sums, of which each is doubled: a scan alone has no kernel."""
    return _form([_t("t0", *shape, dtype=dtype)], [f"fd.ops.cumsum(t0, {dim})", "fd.ops.mul(t1, 2.0)"], ["t2"])


def looked_up(rows: int = 64, count: int = 300) -> Form:
    """Return rows of a table at given positions."""
    inputs = [_t("t0", rows, 16), _t("t1", count, dtype="Int", below=rows)]
    return _form(inputs, ["fd.ops.index_select(t0, t1, 0)", "fd.ops.mul(t2, 2.0)"], ["t3"])


def random(*shape: int, dtype: str = "Float") -> Form:
    """Return random numbers."""
    return _form([_t("t0", *shape, dtype=dtype)], ["fd.ops.rand_like(t0)", "fd.ops.mul(t0, t1)"], ["t2"])


def _edited() -> Iterator[Form]:
    """Yield forms whose schedule is edited: other numbers, hints, templates, and illegal ones."""
    last = r"(?s)\Z"
    hints = (
        "launch_bounds(blocks=2)",
        "grid(blocks=7)",
        "cluster(blocks=2)",
        "read_again()",
        "specialize(sizes=True)",
        "cluster(blocks=3)",
        "launch_bounds(blocks=999)",
        "specialize(sizes=False)",
    )
    forms = (elements(64, 40), rows_of(40, 256), centred(40, 256), columns(300, 40), centred(300, 40, dim=0))
    for form, hint in product(forms, hints):
        yield replace(form, edits=((last, f"\nfd.sched.{hint}\n"),))
    for form in forms:
        for pattern, instead in (
            (r"factor=4, (.*vector)", r"factor=2, \1"),
            (r"factor=4, (.*vector)", r"factor=1, \1"),
            (r"factor=\d+, (.*in x)", r"factor=64, \1"),
            (r"factor=\d+, (.*in x)", r"factor=33, \1"),
            (r"factor=\d+, (.*unroll)", r"factor=2, \1"),
            (r"factor=\d+, (.*split)", r"factor=2, \1"),
            (r"\n.*vectorize\)", ""),
            (r"\n.*unroll: steps.*", ""),
            (r"\n.*ptype=ParallelType.unroll.*", ""),
            (r"\n.*inline_most.*", ""),
            (r"\n.*rfactor.*", ""),
            (r"\n.*parallelize_like.*", ""),
            (r"ParallelType.block_x", "ParallelType.block_y"),
            (r"ParallelType.grid_x", "ParallelType.grid_z"),
            (r"(\w+) = (T0.cache_after\(\))", r"\1 = \2\n\1.set_memory_type(MemoryType.shared)"),
            (last, "\nfd.sched.on_blocks('rows', nest=0)\n"),
            (last, "\nfd.sched.on_cores('rows', nest=0, grain=2)\n"),
        ):
            yield replace(form, edits=((pattern, instead), (r"import ParallelType", "import MemoryType, ParallelType")))
    template = r"on_(blocks|cores)\((.*)\)"
    forms = (tiles(128, 256), scan(3, 900), scan(70, 33, dim=0), backward(300, 64), tile_sums(512, 256), looked_up())
    for form, target in product((*forms, rows_of(40, 256), columns(300, 40)), ("cuda", "cpu")):
        for edits in (
            ((r"threads=\(\d+", "threads=(64"),),
            ((r"vector=\d", "vector=1"),),
            ((r"tile=\d+", "tile=16"),),
            ((r"nest=0", "nest=7"),),
            ((r"on_(blocks|cores)\('\w+'", r"on_\1('reduce'"),),
            ((r"on_(blocks|cores)\('\w+'", r"on_\1('tiles'"),),
            ((r"threads=\(\d+", "threads=(5000"),),
            ((template, r"on_\1(\2, target='cpu')"),),
            ((template, r"on_\1(\2, target='cuda')"),),
            ((template, r"on_\1(\2, target='none')"),),
            ((template, r"on_\1(\2, specialized=True)"),),
            ((template, r"on_\1(\2, resident=2)"),),
            ((template, r"on_\1(\2, blocks=5)"),),
            ((template, r"on_\1(\2, unroll='x')"),),
            ((last, "\nfd.sched.on_cores('rows', nest=0, grain=2)\n"),),
            ((r"grain=\d+", "grain=3"),),
            ((r"split=\d+", "split=3"),),
            ((r"parallel=\w+", "parallel=True"),),
            ((last, "\nfd.sched.on_blocks('elements', nest=0)\n"),),
            ((last, "\nfd.sched.inline_most()\n"),),
        ):
            yield replace(form, target=target, edits=edits)


def _parameters() -> Iterator[Form]:
    """Yield forms with parameters at and beyond their limits."""
    grid: dict[str, tuple[Any, ...]] = {
        "threads": (
            (32, 1),
            (64, 1),
            (1024, 1),
            (32, 8),
            (32, 32),
            (8, 8),
            (48, 1),
            (24, 1),
            (3, 1),
            (2, 2),
            (64, 4),
            (1, 64),
        ),
        "vector": (1, 2, 3),
        "unroll": (1, 2, 3, 16, 1 << 40),
        "split": (2, 7, 0, 1 << 20),
        "blocks": (1, 64, 1 << 40),
        "cluster": (2, 8, 3, 16),
        "persistent": (False, True),
        "resident": (1, 2, 64),
        "tile": (8, 16, 24, 64),
        "shared": (0, 1, 2, 3, 9),
        "constants": (True, False),
        "specialized": (True,),
    }
    forms = (
        centred(6, 2048),
        centred(5, 20001),
        softmax(3, 40000),
        columns(600, 64),
        centred(600, 64, dim=0),
        norm(20, 4096, dtype="Double"),
        centred(300, 1024, dim=0, dtype="Double"),
        backward(140, 256),
        backward(20, 4096),
        scan(3, 9001),
        scan(70, 33, dim=0),
        tiles(256, 256),
        tile_sums(256, 256),
        tile_sums(256, 256, dtype="Double"),
        looked_up(),
        softmax(40, 1000),
        rows_of(2, 33000),
        norm(600, 64, dim=0),
        softmax(500, 64, dim=0),
        norm(2, 60000),
        log_sum(2, 40000),
        log_sum(400, 500),
        norm(1, 131072),
        softmax(1, 131072),
        log_sum(3, 1000, dim=0),
    )
    for form in forms:
        for name, values in grid.items():
            for value in values:
                yield _with(form, **{name: value})
    for form in (centred(6, 2048), softmax(3, 40000), norm(2, 60000), log_sum(2, 40000), centred(600, 64, dim=0)):
        for pair in (
            {"threads": (64, 8), "vector": 1},
            {"threads": (256, 4)},
            {"cluster": 2, "persistent": False},
            {"cluster": 4, "threads": (128, 1)},
            {"cluster": 2, "split": 2},
            {"persistent": False, "split": 4},
            {"cluster": 2, "threads": (16, 1)},
            {"persistent": False, "vector": 1},
            {"threads": (32, 32), "vector": 1},
            {"cluster": 8, "threads": (32, 1)},
            {"cluster": 2, "vector": 1},
            {"threads": (8, 128)},
            {"threads": (512, 2)},
        ):
            yield _with(form, **pair)
    for form in (
        rows_of(2, 33000),
        columns(600, 64),
        columns(5000, 3),
        tiles(100, 70),
        scan(9, 70, dim=0),
        elements(9, 9),
    ):
        for values in (
            {"grain": 0},
            {"grain": 2},
            {"split": 4, "parallel": True},
            {"split": 4, "parallel": False},
            {"partial": 0},
            {"split": 1 << 20, "parallel": True},
            {"tile": 0},
            {"tile": 16},
            {"partial": 64},
            {"split": 0, "parallel": True},
        ):
            yield _with(replace(form, target="cpu"), **values)


def _limits() -> Iterator[Form]:
    """Yield forms on small devices, on which small sizes are as large ones elsewhere."""
    limits: tuple[dict[str, int], ...] = (
        {"sms": 1},
        {"sms": 2},
        {"sms": 16},
        {"sms": 1, "registers": 16384},
        {"shared_per_block": 2048},
        {"registers": 8192, "shared_per_block": 8192, "sms": 1},
        {"shared_per_block": 16384},
        {"registers": 4096},
        {"sms": 1, "shared_per_block": 0},
    )
    forms = (
        centred(6, 2048),
        softmax(3, 40000),
        columns(600, 64),
        columns(7, 9000),
        centred(600, 64, dim=0),
        norm(20, 4096),
        backward(140, 256),
        backward(20, 4096),
        tiles(256, 256),
        tile_sums(256, 256),
        looked_up(64, 4096),
        norm(600, 64, dim=0),
        softmax(500, 64, dim=0),
        log_sum(2, 40000),
        log_sum(9, 60000),
        norm(2, 60000),
        scan(3, 9001),
        scan(70, 33, dim=0),
        softmax(4, 65536),
        softmax(1, 131072),
        softmax(3, 20001),
        norm(3, 20001),
        centred(8, 32768),
        log_sum(500, 64, dim=0),
        columns(2048, 16),
        random(33, 64),
        softmax(2, 120000, dtype="Half"),
        norm(2, 120000, dtype="Half"),
    )
    devices = ("H200", "A100")
    for form, chosen, device in product(forms, ({}, *limits), devices):
        yield replace(form, limits=tuple(sorted(chosen.items())), device=device)


def _large() -> Iterator[Form]:
    """Yield small forms with the loops of large ones: the reduced axis is the same."""
    for form, several in (
        (softmax(2, 32768), ((1000, 32768), (100, 32768))),
        (softmax(1, 131072), ((500, 131072),)),
        (norm(2, 60000), ((4096, 60000),)),
        (centred(3, 2048), ((100000, 2048),)),
        (rows_of(3, 300), ((1 << 20, 300),)),
        (columns(12, 64), ((12, 1 << 22),)),
        (columns(3000, 64), ((3000, 1 << 16),)),
        (log_sum(2, 40000), ((3000, 40000),)),
        (log_sum(100, 64, dim=0), ((100, 1 << 20),)),
        (centred(40, 64, dim=0), ((40, 1 << 20),)),
        (centred(400, 64, dim=0), ((400, 1 << 18),)),
        (norm(1000, 64, dim=0), ((1000, 1 << 16),)),
        (softmax(1000, 64, dim=0, dtype="Half"), ((1000, 1 << 18),)),
        (backward(40, 1024), ((1 << 16, 1024),)),
        (backward(12, 8192), ((1 << 14, 8192),)),
        (scan(4, 3000), ((1 << 14, 3000),)),
        (scan(100, 40, dim=0), ((100, 1 << 20),)),
        (elements(5000), ((1 << 26,),)),
        (softmax(8, 100), ((1 << 20, 100),)),
        (softmax(4, 1000, dtype="Half"), ((1 << 16, 1000),)),
        (norm(3, 20001), ((4096, 20001),)),
        (softmax(3, 20001), ((4096, 20001),)),
        (centred(3, 33), ((1 << 20, 33),)),
        (columns(12, 64, dtype="Double"), ((12, 1 << 22),)),
        (centred(2, 32768, dtype="Half"), ((8192, 32768),)),
        (norm(2, 65536, dtype="Double"), ((300, 65536),)),
        (log_sum(4, 20001), ((4096, 20001),)),
        (tiles(128, 128), ((8192, 8192),) * 1),
    ):
        for shape in several:
            real = (shape, shape[::-1]) if len(form.inputs) == 2 else (shape,)
            for device in ("H200", "A100"):
                yield replace(form, real=real, device=device)


def _products() -> Iterator[Form]:
    """Yield matrix products with what is around them, and sorts and scatters with what Greedy refuses."""
    ways = {"options": (("fuse_matmul", True),)}
    a, b = _t("t0", 32, 64, dtype="Half"), _t("t1", 64, 48, dtype="Half")
    product_of = "fd.ops.matmul(t0, t1)"
    for device, after in product(
        ("H200", "A100"),
        (
            "relu(t2)",
            "sum(t2, [1])",
            "permute(t2, [1, 0])",
            "pad(t2, [1, 1])",
            "cumsum(t2, 0)",
            "cast(t2, dtype=DataType.Float)",
        ),
    ):
        yield _form([a, b], [product_of, f"fd.ops.{after}"], ["t3"], device=device, **ways)
    for device, before in product(
        ("H200", "A100"), ("neg(t0)", "cast(t0, dtype=DataType.Half)", "permute(t0, [0, 1])", "sum(t2, [0])")
    ):
        if before.startswith("sum"):
            extra = replace(a, shape=(3, 32, 64))
            yield _form(
                [extra, b],
                ["fd.ops.sum(t0, [0])", "fd.ops.matmul(t2, t1)", "fd.ops.neg(t3)"],
                ["t4"],
                device=device,
                **ways,
            )
        else:
            yield _form(
                [a, b], [f"fd.ops.{before}", "fd.ops.matmul(t2, t1)", "fd.ops.neg(t3)"], ["t4"], device=device, **ways
            )
    square = [_t("t0", 32, 32, dtype="Half"), _t("t1", 32, 32, dtype="Half")]
    yield _form(square, [product_of, "fd.ops.matmul(t2, t1)", "fd.ops.neg(t3)"], ["t4"], **ways)
    yield _form(square, [product_of, "fd.ops.matmul(t1, t0)", "fd.ops.add(t2, t3)"], ["t4"], **ways)
    yield _form(square, ["fd.ops.linear(t0, t1)", "fd.ops.mul(t2, 2.0)"], ["t3"], **ways)
    yield _form([a, replace(b, shape=(64,))], [product_of, "fd.ops.neg(t2)"], ["t3"], **ways)
    yield _form([replace(a, dtype="Float"), replace(b, dtype="Float")], [product_of, "fd.ops.neg(t2)"], ["t3"], **ways)
    yield _form([a, b], [product_of, "fd.ops.reshape(t2, [48, 32])", "fd.ops.neg(t3)"], ["t4"], **ways)
    yield _form(
        [a, b, _t("t2", 8, dtype="Int", below=8)], [product_of, "fd.ops.index_select(t3, t2, 0)"], ["t4"], **ways
    )
    yield _form([a, b], [product_of, (("t3", "t4"), "fd.ops.topk(t2, 3, 1)")], ["t3"], **ways)
    x, places = _t("t0", 8, 40), _t("t1", 8, 40, dtype="Int", below=40)
    source = _t("t2", 8, 40)
    for limits in ({}, {"shared_per_block": 64}, {"registers": 512}):
        found = tuple(sorted(limits.items()))
        for call, others in (
            ("fd.ops.scatter(t0, t1, t2, 1)", ("fd.ops.neg(t3)",)),
            ("fd.ops.scatter(t0, t1, t2, 1)", ("fd.ops.add(t3, t0)",)),
            ("fd.ops.cumsum(t0, 1)", ("fd.ops.pad(t3, [1, 2])",)),
            ("fd.ops.cumsum(t0, 1)", ("fd.ops.cumsum(t3, 0)",)),
            ("fd.ops.cumsum(t0, 1)", ("fd.ops.reshape(t3, [320])", "fd.ops.neg(t4)")),
            ("fd.ops.argsort(t0, 1)", ("fd.ops.add(t3, 1)",)),
            ("fd.ops.cumsum(t0, 1)", ("fd.ops.sum(t3, [0])",)),
            ("fd.ops.cumsum(t0, 0)", ("fd.ops.neg(t3)", "fd.ops.cumsum(t4, 0)")),
        ):
            names = [f"t{n}" for n in range(3, 4 + len(others))]
            yield _form([x, places, source], [call, *others], names[-1:], limits=found)
            yield _form([x, places, source], [call, *others], names[-1:], limits=found, is_open=True)
    yield _form(
        [x, replace(places, shape=(5, 40)), replace(source, shape=(5, 40))],
        ["fd.ops.scatter(t0, t1, t2, 1)", "fd.ops.neg(t3)"],
        ["t4"],
    )
    yield _form(
        [x, replace(places, shape=(5, 40)), replace(source, shape=(5, 40))],
        ["fd.ops.neg(t0)", "fd.ops.scatter(t3, t1, t2, 1)"],
        ["t4"],
    )
    yield _form([x, places, source], ["fd.ops.scatter(t0, t1, t2, 1)", "fd.ops.neg(t0)", "fd.ops.add(t3, t4)"], ["t5"])


def _asked() -> Iterator[Form]:
    """Yield forms about which every question is asked."""
    forms = (
        scan(4, 40),
        scan(3, 2000),
        scan(30, 40, dim=0),
        looked_up(16, 40),
        random(16, 40),
        tiles(40, 40),
        tiles(256, 256),
        tile_sums(256, 256),
        backward(40, 64),
        backward(300, 64),
        centred(8, 100),
        softmax(3, 40000),
        columns(300, 40),
        elements(9, 9),
        rows_of(2, 33000),
        norm(20, 200),
        centred(300, 40, dim=0),
        norm(2, 60000),
        log_sum(3, 4000),
        _form(
            [_t("t0", 40, 30, dtype="Int"), _t("t1", 40, 30, dtype="Int")],
            ["fd.ops.add(t1, 7)", "fd.ops.div(t0, t2)", "fd.ops.fmod(t3, t2)"],
            ["t3", "t4"],
        ),
        _form([_t("t0", 40, 30, dtype="ComplexFloat")], ["fd.ops.mul(t0, t0)", "fd.ops.sum(t1, [1])"], ["t1", "t2"]),
        _form([_t("t0", 40, 30, dtype="Half")], ["fd.ops.gelu(t0)", "fd.ops.sum(t1, [1])"], ["t1", "t2"]),
        _form([_t("t0", 40, 30)], ["fd.ops.pad(t0, [1, 2])", "fd.ops.where(fd.ops.gt(t1, 0.5), t1, 2.0)"], ["t2"]),
        _form(
            [_t("t0", 40, 30)],
            ["fd.ops.reshape(t0, [30, 40])", "fd.ops.permute(t1, [1, 0])", "fd.ops.mul(t2, 2.0)"],
            ["t3"],
        ),
    )
    questions = (
        "features",
        "steps",
        "traffic",
        "predicted",
        "host",
        "links",
        "candidates",
        "suggested",
        "schedule",
        "schedule_for",
        "shared",
        "rule",
        "proposed",
        "lifted",
    )
    for form, target, question in product(forms, ("cuda", "cpu"), questions):
        yield replace(form, target=target, questions=(question,))
    for form, target, is_open in product(forms[:16:2], ("cuda", "cpu"), (False, True)):
        for values in (
            ({"threads": (64, 1)}, {"unroll": 2}) if target == "cuda" else ({"parallel": False}, {"grain": 2})
        ):
            yield replace(_with(form, **values), target=target, questions=("kept",), is_open=is_open)


def _precise() -> Iterator[Form]:
    """Yield forms for single branches: a parameter that is just illegal, an op that few kernels have."""
    kept = replace(centred(300, 512, dim=0), limits=(("sms", 16),))
    wide = replace(centred(300, 512, dim=0, dtype="Double"), limits=(("sms", 16),))
    for form, several in (
        (
            kept,
            ({"cluster": 2}, {"cluster": 8}, {"cluster": 3}, {"threads": (32, 1)}, {"threads": (4, 64), "cluster": 2}),
        ),
        (wide, ({"threads": (32, 32)}, {"threads": (64, 16)}, {"cluster": 4})),
        (replace(softmax(300, 512, dim=0), limits=(("sms", 16),)), ({"cluster": 2}, {"cluster": 4})),
        (replace(norm(300, 512, dim=0), limits=(("sms", 16),)), ({"cluster": 2}, {"cluster": 8}, {"threads": (32, 1)})),
        (columns(600, 64, dtype="Double"), ({"threads": (32, 32)}, {"threads": (64, 16)}, {"cluster": 3})),
        (tile_sums(256, 256, dtype="Double"), ({"threads": (1024, 1)}, {"threads": (512, 1)}, {"threads": (48, 1)})),
        (backward(140, 256), ({"unroll": 3}, {"shared": 9}, {"blocks": 141}, {"shared": 1}, {"threads": (48, 1)})),
        (backward(20, 4096), ({"threads": (32, 1)}, {"unroll": 2}, {"shared": 1, "threads": (1024, 1)})),
        (replace(backward(20, 8192), limits=(("shared_per_block", 4096),)), ({"shared": 1},)),
        (
            scan(3, 9001),
            ({"threads": (48, 1)}, {"threads": (24, 1)}, {"threads": (64, 2)}, {"threads": (1024, 1), "unroll": 16}),
        ),
        (scan(70, 33, dim=0), ({"threads": (24, 1)}, {"threads": (32, 32), "vector": 1}, {"threads": (512, 2)})),
        (
            centred(2, 60000),
            ({"vector": 1}, {"threads": (512, 1)}, {"persistent": False}, {"cluster": 2}, {"cluster": 8}),
        ),
        (
            replace(centred(2, 60000), device="A100"),
            ({"threads": (512, 1)}, {"vector": 1}, {"resident": 1}, {"cluster": 2}),
        ),
        (rows_of(2, 33000), ({"split": 1 << 20}, {"vector": True}, {"cluster": 2}, {"threads": (16, 2)})),
        (
            replace(rows_of(2, 33000), target="cpu"),
            ({"partial": 0}, {"split": 1 << 20, "parallel": True}, {"split": 4, "parallel": True}),
        ),
        (replace(rows_of(9, 900), target="cpu"), ({"grain": 3}, {"grain": 1})),
        (replace(columns(5000, 9), target="cpu"), ({"tile": 4}, {"parallel": True, "split": 3})),
    ):
        for values in several:
            changed = _with(form, **values)
            yield changed
    for form in (rows_of(40, 256), centred(40, 256), elements(64, 40), columns(300, 40)):
        for values in ({"resident": 2}, {"persistent": False}, {"specialized": True}, {"blocks": 3}, {"cluster": 2}):
            yield replace(_with(form, **values), questions=("schedule",))
    for form in (scan(3, 900), backward(300, 64), tiles(256, 256), norm(40, 30)):
        yield replace(form, edits=(("fd.sched.on_blocks.*", "fd.sched.inline_most()"),))
        yield replace(form, edits=(("(?s).*", "fd.sched.inline_most()"),))
    for form, real in (
        (norm(100, 64, dim=0), (60000, 64)),
        (norm(100, 64, dim=0), (20000, 4096)),
        (norm(100, 64, dim=0), (200000, 32)),
        (norm(100, 63, dim=0), (30000, 8191)),
        (norm(100, 64, dim=0, dtype="Half"), (30000, 8192)),
        (centred(100, 64, dim=0), (30000, 8192)),
        (norm(100, 64, dim=0), (3000, 65536)),
        (norm(100, 64, dim=0), (40000, 1024)),
        (norm(4, 64), (4, 1 << 22)),
        (norm(4, 64), (200, 100000)),
        (norm(4, 64), (200, 300000)),
        (tiles(64, 4), (1 << 20, 4)),
        (tiles(64, 8), (1 << 16, 8)),
        (tiles(64, 64), (1 << 14, 1 << 10)),
        (scan(3, 40), (3, 1 << 20)),
        (scan(3, 40), (300, 40000)),
        (scan(40, 3, dim=0), (1 << 12, 300)),
    ):
        yield replace(form, real=(real, real[::-1])[: len(form.inputs)])
    x, w, n = _t("t0", 40, 300), _t("t1", 300), _t("t0", 40, 30, dtype="Int")
    for shape in ((40, 300), (40, 1000), (3, 20001), (2, 33001), (2, 60000)):
        inputs = [replace(x, shape=shape), replace(w, shape=shape[1:])]
        calls = ["fd.ops.sum(t0, [1], True)", "fd.ops.sub(t0, t2)", "fd.ops.mul(t3, t1)"]
        yield _form(inputs, calls, ["t4"])
        yield _form([replace(one, dtype="Half") for one in inputs], calls, ["t4"])
        yield rows_of(*shape, dtype="Half")
        yield softmax(*shape, dtype="Double")
    for target in ("cuda", "cpu"):
        one = {"target": target}
        for questions in ((), ("features", "traffic", "predicted"), ("steps",)):
            two = {"target": target, "questions": questions}
            yield _form(
                [n, replace(n, name="t1")],
                ["fd.ops.abs(t1)", "fd.ops.add(t2, 7)", "fd.ops.div(t0, t3)", "fd.ops.remainder(t0, t3)"],
                ["t4", "t5"],
                **two,
            )
            yield _form(
                [_t("t0", 40, 30)],
                ["fd.ops.pad(t0, [1, 2, 3, 0])", "fd.ops.cat([t1, t1], 1)", "fd.ops.exp(t2)"],
                ["t3"],
                **two,
            )
            yield _form(
                [_t("t0", 400, 300)],
                ["fd.ops.reshape(t0, [300, 400])", "fd.ops.permute(t1, [1, 0])", "fd.ops.exp(t2)"],
                ["t3"],
                **two,
            )
            yield replace(scan(3, 300), **two)
            yield replace(scan(33, 30, dim=0), **two)
            yield replace(random(16, 40), **two)
            yield replace(looked_up(16, 40), **two)
            yield replace(tiles(256, 256), **two)
        both = ["fd.ops.max(t0, [2])", "fd.ops.sum(t0, [0, 2])", "fd.ops.neg(t2)"]
        yield _form([_t("t0", 20, 30, 40)], both, ["t1", "t3"], **one)
        yield _form([_t("t0", 20, 300)], ["fd.ops.max(t0, [1])", "fd.ops.sum(t0, [0, 1])"], ["t1", "t2"], **one)
        yield _form([_t("t0", 20, 300)], ["fd.ops.prod(t0, [1])"], ["t1"], **one)
        yield _form([_t("t0", 20, 300)], ["fd.ops.cumprod(t0, 1)"], ["t1"], **one)
        yield _form(
            [_t("t0", 20, 300, dtype="Half")], ["fd.ops.var(fd.ops.cast(t0, dtype=DataType.Float), [1])"], ["t1"], **one
        )
        yield _form([_t("t0", 20, 300)], ["fd.ops.var(fd.ops.reshape(t0, [300, 20]), [1])"], ["t1"], **one)
        yield _form([_t("t0", 20, 300)], ["fd.ops.var(t0, [1])"], ["t1"], strategy="unfused", **one)
        places = "fd.ops.iota(20, 5, 2, dtype=DataType.Int)"
        for start, step, kind in ((5, 2, "Int"), (39, -2, "Int"), (0, 1, "Int32"), (0, 1, "Float")):
            places = f"fd.ops.iota(20, {start}, {step}, dtype=DataType.{kind})"
            yield _form([_t("t0", 45, 30)], [places, "fd.ops.index_select(t0, t1, 0)", "fd.ops.exp(t2)"], ["t3"], **one)
        yield _form(
            [_t("t0", 45, 30), _t("t1", 20, dtype="Int", below=20)],
            ["fd.ops.add(t1, 3)", "fd.ops.index_select(t0, t2, 0)", "fd.ops.exp(t3)"],
            ["t4"],
            **one,
        )
        yield _form(
            [_t("t0", 64, 64)],
            ["fd.ops.permute(t0, [1, 0])", "fd.ops.add(t0, t1)"],
            ["t2"],
            limits=(("sms", 1),),
            **one,
        )
        yield _form(
            [_t("t0", 512, 512)],
            ["fd.ops.permute(t0, [1, 0])", "fd.ops.add(t0, t1)"],
            ["t2"],
            limits=(("sms", 8),),
            **one,
        )
        yield _form(
            [_t("t0", 512, 512)],
            ["fd.ops.permute(t0, [1, 0])", "fd.ops.add(t0, t1)", "fd.ops.sum(t2, [1])"],
            ["t3"],
            limits=(("sms", 8),),
            **one,
        )
        yield _form([_t("t0", 64, 40, 4)], ["fd.ops.sum(t0, [0, 2])"], ["t1"], **one)
        yield _form([_t("t0", 4096, 4, 16, order=(0, 2, 1))], ["fd.ops.sum(t0, [0, 1])"], ["t1"], **one)
        yield _form(
            [_t("t0", 1 << 17, dtype="Half"), _t("t1", 1)],
            ["fd.ops.exp(t1)", "fd.ops.mul(t0, t2)"],
            ["t3"],
            limits=(("sms", 1),),
            **one,
        )
        yield _form([_t("t0", 0, 30)], ["fd.ops.exp(t0)"], ["t1"], **one)
        yield _form([_t("t0", 30, 0)], ["fd.ops.sum(t0, [1])"], ["t1"], **one)
        yield _form(
            [_t("t0", 300, dtype="ComplexFloat")],
            ["fd.ops.real(t0)", "fd.ops.imag(t0)", "fd.ops.complex(t1, t2)"],
            ["t3"],
            **one,
        )
        yield _form(
            [_t("t0", 300, dtype="BFloat16")],
            ["fd.ops.floor(t0)", "fd.ops.ceil(t0)", "fd.ops.round(t0)", "fd.ops.add(t1, t2)", "fd.ops.add(t3, t4)"],
            ["t5"],
            **one,
        )
        for kind in ("Byte", "UInt64", "UInt32", "UInt16"):
            yield _form(
                [_t("t0", 30, 300, dtype=kind)],
                ["fd.ops.max(t0, [1])", "fd.ops.max(t0, [0])", "fd.ops.cummax(t0, 1)"],
                ["t1", "t2"],
                **one,
            )
        yield _form(
            [_t("t0", 300)],
            [
                "fd.ops.minimum(t0, 0.5)",
                "fd.ops.maximum(t1, -0.5)",
                "fd.ops.clamp(t0, -0.25, 0.25)",
                "fd.ops.where(fd.ops.lt(t0, 0.5), t0, 0.5)",
                "fd.ops.where(fd.ops.gt(t0, -0.5), t0, -0.5)",
            ],
            ["t2", "t3", "t4", "t5"],
            **one,
        )
    for form in (
        _with(softmax(3, 40000), cluster=2),
        _with(replace(columns(5000, 9), target="cpu"), parallel=True, tile=4),
    ):
        yield replace(form, questions=("suggested",))
    square = [_t("t0", 32, 32, dtype="Half"), _t("t1", 32, 32, dtype="Half")]
    calls = ["fd.ops.matmul(t0, t1)", "fd.ops.matmul(t2, t1)"]
    yield _form(square, calls, ["t3"], options=(("fuse_matmul", True),), limits=(("cc", (7, 0)),))
    for form in (elements(9, 9), scan(3, 40), softmax(4, 40)):
        changed = _with(form, threads=(64, 1))
        yield replace(changed, questions=("kept",), is_open=True)
        yield replace(
            changed,
            calls=(*form.calls, (("t9",), "fd.ops.neg(t2)")),
            outputs=("t9",),
            questions=("kept",),
            is_open=True,
        )
    by_hand = "apply_schedule(fd.hand, SchedulerType.{})"
    for form, kind in (
        (_form([_t("t0", 5, 7)], ["fd.ops.pad(t0, [1, 2])", "fd.ops.neg(t1)"], ["t2"]), "RESIZE"),
        (_form([_t("t0", 5, 7)], ["fd.ops.neg(t0)", "fd.ops.pad(t1, [1, 2])", "fd.ops.exp(t2)"], ["t3"]), "RESIZE"),
        (_form([_t("t0", 5, 7)], ["fd.ops.neg(t0)", "fd.ops.slice(t1, [1, 1], [4, 6])"], ["t2"]), "RESIZE"),
        (_form([_t("t0")], ["fd.ops.neg(t0)", "fd.ops.exp(t1)"], ["t2"]), "POINTWISE"),
        (tiles(64, 32), "TRANSPOSE"),
        (centred(30, 8, dim=0), "OUTER_PERSISTENT"),
        (norm(8, 30), "INNER_PERSISTENT"),
    ):
        yield replace(form, actions=(by_hand.format(kind),))
    for inputs in (
        [_t("t0", 40, 30), _t("t1", 40, 1)],
        [_t("t0", 4, 5, 30), _t("t1", 4, 1, 30)],
        [_t("t0", 4, 5, 30), _t("t1", 5, 1)],
    ):
        yield _form(inputs, ["fd.ops.add(t0, t1)"], ["t2"], questions=("schedule",))
        yield _form(
            inputs,
            ["fd.ops.add(t0, t1)", f"fd.ops.sum(t2, [{len(inputs[0].shape) - 1}])"],
            ["t3"],
            questions=("schedule",),
        )
        yield _form(inputs, ["fd.ops.add(t0, t1)", "fd.ops.sum(t2, [0])"], ["t3"], questions=("schedule",))
    for cc in ((7, 5),):
        a, b = _t("t0", 32, 64, dtype="Half"), _t("t1", 64, 48, dtype="Half")
        yield _form(
            [a, b],
            ["fd.ops.matmul(t0, t1)", "fd.ops.neg(t2)"],
            ["t3"],
            options=(("fuse_matmul", True),),
            limits=(("cc", cc),),
        )
        yield replace(softmax(3, 40000), limits=(("cc", cc),))
    for form in (centred(8, 100), elements(9, 9), norm(8, 30), tiles(256, 256)):
        yield replace(form, questions=("written",))
    for option in ("memory_promotion", "level_merge", "welford"):
        for form in (
            norm(8, 30),
            tile_sums(32, 32),
            _form([_t("t0", 5, 8)], ["fd.ops.pad(t0, [1, 2])", "fd.ops.neg(t1)", "fd.ops.sum(t2, [1])"], ["t3"]),
        ):
            yield replace(form, options=((option, True),))


def _across_blocks() -> Iterator[Form]:
    """Yield forms whose columns are, at real sizes, too long for one block, and rows of several blocks."""
    for cc, real in (
        ((9, 0), (92929, 64)),
        ((9, 0), (50176, 512)),
        ((9, 0), (66 * 16 * 20, 124)),
        ((9, 0), (1 << 20, 512)),
        ((9, 0), (30000, 2056)),
        ((7, 5), (50176, 512)),
        ((7, 5), (20480, 8200)),
    ):
        yield replace(norm(100, 64, dim=0), real=(real,), limits=(("cc", cc),))
    for shape in ((4, 1 << 22), (2, 1 << 18), (400, 1 << 17), (400, 1 << 18), (400, 1 << 20)):
        yield replace(log_sum(4, 64), real=(shape,))
        yield replace(softmax(4, 64), real=(shape,))
    yield _form([_t("t0", 30, 300)], ["fd.ops.abs(t0)", "fd.ops.max(t1, [1])"], ["t2"], target="cpu")


def _refused_by_schedulers() -> Iterator[Form]:
    """Yield forms of which single schedulers refuse a part: products of a matrix with itself, squeezed axes."""
    fused = {"options": (("fuse_matmul", True),)}
    a, b = _t("t0", 32, 32, dtype="Half"), _t("t1", 32, 32, dtype="Half")
    yield _form([a], ["fd.ops.matmul(t0, t0)", "fd.ops.neg(t1)"], ["t2"], **fused)
    yield _form([a], ["fd.ops.matmul(t0, t0)"], ["t1"], **fused)
    yield _form([a, replace(b, shape=(3, 32, 32))], ["fd.ops.matmul(t0, t1)", "fd.ops.neg(t2)"], ["t3"], **fused)
    yield _form([a, b], ["fd.ops.matmul(t0, t1)", "fd.ops.permute(t2, [1, 0])"], ["t3"], **fused)
    yield _form([a, b], ["fd.ops.matmul(t0, t1)", "fd.ops.set(t2)", "fd.ops.stride_order(t3, [0, 1])"], ["t4"], **fused)
    small = [replace(a, shape=(2, 2)), replace(b, shape=(2, 2))]
    yield _form(small, ["fd.ops.matmul(t0, t1)", "fd.ops.neg(t2)"], ["t3"], real=((1 << 31, 2), (2, 2)), **fused)
    yield _form(
        [_t("t0", 5, 1), _t("t1", 5, 7)],
        ["fd.ops.neg(t0)", "fd.ops.squeeze(t2, [1])", "fd.ops.exp(t2)", "fd.ops.add(t4, t1)", "fd.ops.neg(t3)"],
        ["t5", "t6"],
    )
    for calls in (
        ["fd.ops.sum(t3, [1])", "fd.ops.sub(t0, t4)"],
        ["fd.ops.sum(t3, [1, 2])", "fd.ops.broadcast(t4, [False, True])", "fd.ops.sub(t0, t5)"],
    ):
        added = ["fd.ops.broadcast(t0, [False, True, False])", "fd.ops.add(t1, t2)", *calls]
        yield _form([_t("t0", 4, 6), _t("t1", 4, 5, 6)], added, [f"t{len(added) + 1}"])


def _evaluated() -> Iterator[Form]:
    """Yield forms for branches that the drawn forms lack, many of them of the evaluation of kernels."""
    alone = (("sms", 1),)
    # Rows that a cluster shares, alone or with the maximum and the sum of exponentials in one exchange.
    yield _with(replace(softmax(2, 20000), limits=alone), cluster=2)
    yield _with(centred(2, 2048), cluster=2, threads=(32, 1))
    # Rows in shared memory without vectors, and weights that begin elsewhere in an access than the rows.
    yield _with(replace(softmax(2, 30000), limits=alone), vector=1)
    yield _form(
        [_t("t0", 40, 1001), _t("t1", 1001)],
        ["fd.ops.sum(t0, [1], True)", "fd.ops.sub(t0, t2)", "fd.ops.mul(t3, t1)"],
        ["t4"],
    )
    # Columns of Half with sums of Double, which take much shared memory, and columns without vectors.
    wide = _form(
        [_t("t0", 300, 512, dtype="Half")],
        ["fd.ops.cast(t0, dtype=DataType.Double)", "fd.ops.sum(t1, [0], True)", "fd.ops.sub(t1, t2)"],
        ["t3"],
        limits=alone,
    )
    yield wide
    yield _with(wide, threads=(32, 32))
    yield _with(wide, threads=(32, 16))
    yield _with(replace(centred(40, 512, dim=0), limits=(("sms", 16),)), threads=(32, 8), vector=1)
    # Slow scalars at a real size, a search without open schedulers, look-ups by conditions, distant parts of an input.
    yield _form(
        [_t("t0", 64), Number(name="t1", value=0.5, dtype="Double")],
        ["fd.ops.pow(t1, 2.5)", "fd.ops.mul(t0, t2)"],
        ["t3"],
        real=((1 << 26,),),
    )
    yield replace(centred(16, 64), strategy="fastest", questions=("proposed",))
    yield _form(
        [_t("t0", 30, 40)],
        [
            "fd.ops.iota(40, 0, 1, dtype=DataType.Int)",
            "fd.ops.where(fd.ops.lt(t1, 20), t1, fd.ops.sub(39, t1))",
            "fd.ops.index_select(t0, t2, 1)",
            "fd.ops.exp(t3)",
        ],
        ["t4"],
        target="cpu",
        questions=("host",),
    )
    yield _form(
        [_t("t0", 20000)],
        ["fd.ops.slice(t0, [0], [900])", "fd.ops.slice(t0, [12000], [12900])", "fd.ops.add(t1, t2)"],
        ["t3"],
        target="cpu",
        questions=("host",),
    )
    yield replace(elements(9, 9), questions=("links",))
    yield _form([_t("t0", 5)], [], ["t0"], questions=("reversed",))
    # Conversions, and a branch inside the opposite one.
    yield _form([_t("t0", 300, dtype="ComplexFloat")], ["fd.ops.cast(t0, dtype=DataType.Float)"], ["t1"])
    yield _form([_t("t0", 300)], ["fd.ops.cast(t0, dtype=DataType.Float8_e4m3fn)"], ["t1"])
    yield _form(
        [_t("t0", 5, 30), _t("t1", 7, 30), _t("t2", 5, 30)],
        [
            "fd.ops.cat([t0, t1], 0)",
            "fd.ops.slice(t3, [5, 0], [12, 30])",
            "fd.ops.cat([t2, t4], 0)",
            "fd.ops.exp(t5)",
            "fd.ops.mul(t6, t3)",
        ],
        ["t7"],
    )
    # Many values of columns, an input that blocks of looked-up rows share, one that is repeated, one read transposed.
    factors = [_t(f"w{n}", 64, dtype="Double") for n in range(9)]
    products = [((f"p{n}",), f"fd.ops.mul({f'p{n - 1}' if n else 't0'}, w{n})") for n in range(9)]
    yield _form([_t("t0", 600, 64, dtype="Double"), *factors], [*products, (("t1",), "fd.ops.sum(p8, [0])")], ["t1"])
    yield _form(
        [_t("t0", 4, 32768), _t("t1", 8, dtype="Int", below=4), _t("t2", 32768, dtype="Double")],
        ["fd.ops.index_select(t0, t1, 0)", "fd.ops.mul(t3, t2)"],
        ["t4"],
    )
    yield _form(
        [_t("t0", 10), _t("t1", 40)],
        [
            "fd.ops.broadcast_in_dim(t0, [10, 4], [0])",
            "fd.ops.reshape(t2, [40])",
            "fd.ops.add(t3, t1)",
            "fd.ops.sum(t4, [0])",
            "fd.ops.exp(t0)",
        ],
        ["t5", "t6"],
    )
    yield _form(
        [_t("t0", 64, 64)],
        ["fd.ops.exp(t0)", "fd.ops.permute(t1, [1, 0])", "fd.ops.add(t0, t2)", "fd.ops.sum(t3, [1])"],
        ["t4"],
        is_open=True,
    )
    # Rows in shared memory of an input without accesses of several elements, and a chain that begins with a known part.
    yield replace(softmax(2, 30000), inputs=(_t("t0", 2, 30000, step=2),), limits=alone)
    scaled = [f"fd.ops.mul(t{n}, 1.01)" for n in range(38)]
    yield _form([_t("t0", 16, 16)], scaled[:28], ["t28"], strategy="fastest")
    yield _form([_t("t0", 16, 64)], ["fd.ops.sum(t0, [1])", *scaled[1:]], ["t38"], strategy="fastest")
    # So many random numbers that a loop of a CPU kernel is divided into functions, one of them with a branch.
    numbers = [
        call
        for n in range(36)
        for call in (
            ((f"r{n}",), "fd.ops.rand_like(t0)"),
            ((f"m{n}",), f"fd.ops.mul({f'a{n - 1}' if n else 't3'}, 1.5)"),
            ((f"a{n}",), f"fd.ops.add(m{n}, r{n})"),
        )
    ]
    padded = (("t2",), "fd.ops.pad(t1, [1, 1])"), (("t3",), "fd.ops.add(t0, t2)")
    yield _form([_t("t0", 200), _t("t1", 198)], [*padded, *numbers], ["a35"], target="cpu", questions=("links",))
    # Rows that one block computes in turn with two reductions.
    small = (("registers", 4096), ("shared_per_block", 0), ("sms", 1))
    yield replace(softmax(2, 40000), is_open=True, limits=small)
    # Axes that are broadcast twice, rows that are loaded ahead of their turn, many inputs that are transposed alike.
    meeting = (
        "fd.ops.broadcast(t0, [False, True])",
        "fd.ops.mul(t2, fd.ops.broadcast(t1, [True, False]))",
        "fd.ops.broadcast(t0, [False, True])",
        "fd.ops.add(t4, fd.ops.broadcast(t1, [True, False]))",
    )
    yield _form([_t("t0", 8), _t("t1", 16)], meeting, ["t3", "t5"])
    ahead = backward(300, 64)
    yield _with(replace(ahead, inputs=(_t("t0", 300, 64, step=2), *ahead.inputs[1:])), unroll=2)
    turned = [((f"p{n}",), f"fd.ops.permute(t{n}, [1, 0])") for n in range(6)]
    terms = [*(f"p{n}" for n in range(6)), *(f"t{n}" for n in range(6, 12))]
    added = [((f"a{n}",), f"fd.ops.add({f'a{n - 1}' if n > 1 else terms[0]}, {terms[n]})") for n in range(1, 12)]
    matrices = [_t(f"t{n}", 64, 64) for n in range(12)]
    yield _form(matrices, [*turned, *added, (("s",), "fd.ops.sum(a11, [1])")], ["s"])
    # Positions that are data: values behind them that are expensive or constant, and loads along windows.
    table, places = _t("t0", 8, 40), _t("t1", 8, 3, dtype="Int", below=40)
    calls = ["fd.ops.exp(t0)", "fd.ops.pad(t2, [2, 1])", "fd.ops.exp(t3)", "fd.ops.take_along_axis(t4, t1, 1)"]
    yield _form([table, places], calls, ["t5"], is_open=True)
    yield _form(
        [table, replace(places, shape=(8, 1))],
        [
            "fd.ops.full([8, 40], 2.0, DataType.Float)",
            "fd.ops.take_along_axis(t2, t1, 1)",
            "fd.ops.sum(t0, [1], True)",
            "fd.ops.add(t3, t4)",
            "fd.ops.sub(t0, t5)",
        ],
        ["t6"],
    )
    yield _form(
        [_t("t0", 64, 40), _t("t1", 64, 40, dtype="Int", below=40)],
        ["fd.ops.gather(t0, t1, 1)", "fd.ops.pad(t1, [3, 2])", "fd.ops.pad(t2, [3, 2])", "fd.ops.add(t3, t4)"],
        ["t5"],
        is_open=True,
    )
    yield from _scheduled_by_hand()


def _layouts() -> Iterator[Form]:
    """Yield forms for branches that depend on layouts, dtypes and sizes: other orders of memory, complex tiles."""
    # Complex rows that a CPU reads in bands, and short columns whose units share a group.
    complex_rows = _t("t0", 64, 64, order=(1, 0), dtype="ComplexFloat"), _t("t1", 64, 64, dtype="ComplexFloat")
    yield _form(complex_rows, ["fd.ops.add(t0, t1)", "fd.ops.sum(t2, [1])"], ["t3"], target="cpu")
    yield _form([_t("t0", 400, 40, 16)], ["fd.ops.abs(t0)", "fd.ops.max(t1, [1])"], ["t2"], target="cpu")
    # Bounds that the conversion to e4m3 applies anyway, and digits of an index that do not divide each other.
    yield _form(
        [_t("t0", 300)],
        ["fd.ops.mul(t0, 900.0)", "fd.ops.clamp(t1, -448.0, 448.0)", "fd.ops.cast(t2, dtype=DataType.Float8_e4m3fn)"],
        ["t3"],
    )
    yield _form(
        [_t("t0", 5, 2, 4)],
        [
            "fd.ops.reshape(t0, [5, 8])",
            "fd.ops.slice(t1, [0, 0], [5, 6])",
            "fd.ops.reshape(t2, [30])",
            "fd.ops.exp(t3)",
        ],
        ["t4"],
    )
    # Rows in parts with a result per element and another per row, backward rows, and rows with other orders of memory.
    rows = softmax(4, 64)
    results = (("l",), "fd.ops.log(t4)"), (("m",), "fd.ops.add(l, t1)"), (("n",), "fd.ops.squeeze(m, [1])")
    yield replace(rows, calls=(*rows.calls, *results), outputs=("t5", "n"), real=((2, 1 << 18),))
    yield replace(rows_of(8, 4096), inputs=(_t("t0", 8, 4096, backwards=(0,)),))
    yield _form(
        [_t("t0", 4, 6, 8), _t("t1", 4, 6, 8, order=(1, 0, 2))],
        ["fd.ops.add(t0, t1)", "fd.ops.sum(t2, [0], True)", "fd.ops.sub(t2, t3)"],
        ["t4"],
    )
    yield _form(
        [_t("t0", 64, 64)],
        ["fd.ops.sum(t0, [1], True)", "fd.ops.sub(t0, t1)", "fd.ops.stride_order(t2, [0, 1])"],
        ["t3"],
    )
    # Sums over axes of different lengths, and so many values of two dtypes that a loop is divided.
    two = _t("t0", 8, 16), _t("t1", 8, 32)
    yield _form(two, ["fd.ops.sum(t0, [1])", "fd.ops.sum(t1, [1])", "fd.ops.add(t2, t3)"], ["t4"], is_open=True)
    numbers = [
        call
        for n in range(40)
        for call in (
            ((f"r{n}",), f"fd.ops.rand_like({'t0' if n < 20 else 'd'})"),
            ((f"m{n}",), f"fd.ops.mul({'t0' if n == 0 else 'd' if n == 20 else f'a{n - 1}'}, 1.5)"),
            ((f"a{n}",), f"fd.ops.add(m{n}, r{n})"),
        )
    ]
    numbers.insert(60, (("d",), "fd.ops.cast(a19, dtype=DataType.Double)"))
    yield _form([_t("t0", 200)], numbers, ["a39"], target="cpu")
    # A complex result that is transposed, sums too wide to combine more than one line of threads, parts of complex
    # numbers, and all steps of a kernel as text.
    transposed = _t("t0", 160, 48, dtype="ComplexFloat"), _t("t1", 48, 160, dtype="ComplexFloat")
    yield _form(transposed, ["fd.ops.permute(t0, [1, 0])", "fd.ops.add(t2, t1)"], ["t2", "t3"], target="cpu")
    scaled = [((f"a{n}",), f"fd.ops.mul(t0, {n}.5)") for n in range(44)]
    sums = [((f"s{n}",), f"fd.ops.sum(a{n}, [0])") for n in range(44)]
    wide = _form([_t("t0", 600, 64, dtype="ComplexDouble")], [*scaled, *sums], [f"s{n}" for n in range(44)])
    yield _with(replace(wide, limits=(("sms", 1),)), split=2)
    parts = ["fd.ops.real(t0)", "fd.ops.imag(t0)", "fd.ops.add(t1, t2)"]
    yield _form([_t("t0", 300, dtype="ComplexFloat")], parts, ["t3"], target="cpu", questions=("host",))
    yield replace(elements(9, 9), questions=("lowered",))
    # What schedulers refuse: an input's axis outside the loops, a scan behind a pad to one element, a scatter into
    # another order of memory, matrices on an old device.
    yield _form(
        [_t("t0", 8, 40), _t("t1", 8, 1, dtype="Int", below=40), _t("t2", 8, 6)],
        ["fd.ops.exp(t0)", "fd.ops.take_along_axis(t3, t1, 1)", "fd.ops.add(t4, t2)", "fd.ops.sum(t5, [1])"],
        ["t6"],
    )
    yield _form([_t("t0", 5, 8)], ["fd.ops.pad(t0, [0, 0, -2, -2])", "fd.ops.cumsum(t1, 1)"], ["t2"])
    yield _form(
        [_t("t0", 8, 12, order=(1, 0)), _t("t1", 8, 5, dtype="Int", below=12), _t("t2", 8, 5)],
        ["fd.ops.scatter(t0, t1, t2, 1)", "fd.ops.exp(t3)"],
        ["t4"],
    )
    yield _form(
        [_t("t0", 32, 32, dtype="Half"), _t("t1", 32, 32, dtype="Half")],
        ["fd.ops.matmul(t0, t1)", "fd.ops.neg(t2)"],
        ["t3"],
        options=(("fuse_matmul", True),),
        limits=(("cc", (7, 0)),),
        target="cpu",
    )


def _rare() -> Iterator[Form]:
    """Yield forms for branches that few programs take: values chosen by unusual conditions, refusals of one rule."""
    # Kernels for CPUs of several sizes: a branch in a unit of columns, and a quotient and its remainder by a size.
    shared: dict[str, Any] = {"target": "cpu", "questions": ("shared",)}
    parts, joined = [_t("t0", 6, 40), _t("t1", 6, 30)], ["fd.ops.exp(t0)", "fd.ops.sin(t1)", "fd.ops.cat([t2, t3], 1)"]
    yield _form(parts, [*joined, "fd.ops.sum(t4, [0])"], ["t5"], **shared)
    turned = ["fd.ops.permute(t0, [1, 0, 2])", "fd.ops.reshape(t1, [60, 16])", "fd.ops.slice(t2, [1, 0], [60, 16])"]
    yield _form([_t("t0", 6, 10, 16)], [*turned, "fd.ops.sum(t3, [1])"], ["t4"], **shared)
    # Column sums of rows that are not contiguous, and columns that an open scheduler's kernel reads again.
    sums = backward(64, 64)
    matrices = [_t(name, 64, 64, order=(1, 0)) for name in ("t0", "t1")]
    yield replace(sums, inputs=(*matrices, *sums.inputs[2:]), target="cpu")
    small = (("registers", 4096), ("shared_per_block", 0), ("sms", 1))
    yield replace(centred(300, 64, dim=0), is_open=True, limits=small)
    # Columns of merged axes, whose values need a sum of other columns; integers divided by numbers of a tensor.
    groups = [
        "fd.ops.reshape(t0, [48, 8, 8])", "fd.ops.sum(t1, [0], True)", "fd.ops.sub(t1, t2)",
        "fd.ops.reshape(t3, [48, 64])", "fd.ops.exp(t4)", "fd.ops.sum(t0, [0])",
    ]
    yield _form([_t("t0", 48, 64)], groups, ["t5", "t6"])
    whole = [_t("t0", 40, 30, dtype="Int"), _t("t1", 40, 30, dtype="Int", below=9)]
    yield _form(whole, ["fd.ops.add(t1, 1)", "fd.ops.mod(t0, t2)"], ["t3"], questions=("features",))
    # Sums of a value that is expanded where other reductions of the rows read elements: no nest stores both.
    expanded = [
        "fd.ops.broadcast(t1, [True, False])", "fd.ops.expand(t2, [2, 7])", "fd.ops.add(t0, t3)",
        "fd.ops.max(t4, [1], True)", "fd.ops.sub(t4, t5)", "fd.ops.sum(t3, [1])",
    ]
    yield _form([_t("t0", 2, 7), _t("t1", 7)], expanded, ["t6", "t7"], is_open=True)
    # Long columns that are too few, an output with more axes than the reference, and elements that are looked up among
    # equal ones, before a reduction and beside it.
    yield centred(8192, 9, dim=0)
    calls = [
        "fd.ops.neg(t0)", "fd.ops.squeeze(t2, [1])", "fd.ops.exp(t2)", "fd.ops.add(t4, t1)", "fd.ops.neg(t3)",
        "fd.ops.broadcast(t5, [False, False, True])", "fd.ops.exp(t7)",
    ]
    yield _form([_t("t0", 5, 1), _t("t1", 5, 7)], calls, ["t5", "t6", "t8"])
    place, equal = _t("t0", 1, dtype="Int", below=40), "fd.ops.full([8, 40], 2.0, DataType.Float)"
    looked = [equal, "fd.ops.index_select(t2, t0, 1)", "fd.ops.squeeze(t3, [1])"]
    yield _form([place, _t("t1", 8)], [*looked, "fd.ops.mul(t4, t1)", "fd.ops.sum(t5, [0])"], ["t6"])
    beside = ["fd.ops.exp(t4)", "fd.ops.mul(t5, t1)", "fd.ops.sum(t1, [0])", "fd.ops.add(t6, t7)"]
    yield _form([place, _t("t1", 8)], [*looked, *beside], ["t8"])
    # A column's result with an axis of size 1, beside rows that are padded.
    rows = backward(300, 64)
    widened = (("z",), "fd.ops.broadcast(t11, [True, False])"), (("y",), "fd.ops.exp(z)")
    padded = (("w",), "fd.ops.pad(t9, [1, 1])")
    yield replace(rows, calls=(*rows.calls, *widened, padded), outputs=("w", "y"))
    # Constants in a branch of a loop, and a branch before a long loop.
    chains = [
        ((f"{name}{n}",), f"fd.ops.mul({f'{name}{n - 1}' if n else first}, {1 + n / 1000})")
        for name, first in (("a", "t0"), ("b", "t1")) for n in range(60)
    ]
    ends = (("c",), "fd.ops.cat([a59, b59], 1)"), (("r",), "fd.ops.reshape(c, [10, 42])"), (("e",), "fd.ops.exp(r)")
    yield _form(parts, [*chains, *ends], ["e"], target="cpu")
    numbers = [
        call
        for n in range(9)
        for call in (
            ((f"r{n}",), "fd.ops.rand_like(t2)"),
            ((f"m{n}",), f"fd.ops.mul({f'a{n - 1}' if n else 'f'}, 1.5)"),
            ((f"u{n}",), f"fd.ops.add(m{n}, r{n})"),
            ((f"a{n}",), f"fd.ops.sin(u{n})"),
        )
    ]
    factors = (
        (("a",), "fd.ops.cat([t0, t1], 1)"), (("d",), "fd.ops.reshape(a, [21])"),
        (("e",), "fd.ops.broadcast(d, [False, True])"), (("f",), "fd.ops.mul(t2, e)"),
    )
    centre = (("g",), "fd.ops.sum(a8, [1], True)"), (("h",), "fd.ops.sub(t2, g)")
    yield _form([_t("t0", 3, 4), _t("t1", 3, 3), _t("t2", 21, 40)], [*factors, *numbers, *centre], ["h"], target="cpu")
    # Vectors of two dtypes in the branches of a cat, and a part without elements in a schedule by hand.
    halves = [_t("t0", 8, 64, dtype="Half"), _t("t1", 8, 64)]
    cast = ["fd.ops.cast(t0, dtype=DataType.Float)", "fd.ops.exp(t1)", "fd.ops.sin(t2)", "fd.ops.cat([t4, t3], 1)"]
    yield _form(halves, cast, ["t5"])
    none = [_t("t0", 5, 4), _t("t1", 5, 0)]
    yield _form(none, ["fd.ops.cat([t0, t1], 1)", "fd.ops.neg(t2)"], ["t3"], actions=("fd.sched.inline_most()",))


def _scheduled_by_hand() -> Iterator[Form]:
    """Yield forms with schedules by hand: sums in shared memory, repeated sums, reads of other elements."""
    rows = (
        "tensors[1].parallelize(0, ParallelType.grid_x)",
        "tensors[1].parallelize(1, ParallelType.block_x)",
        "tensors[2].parallelize(0, ParallelType.grid_x)",
        "tensors[3].parallelize(0, ParallelType.grid_x)",
        "tensors[3].parallelize(1, ParallelType.block_x)",
    )
    yield replace(centred(8, 96), actions=(*rows, "tensors[1].set_memory_type(MemoryType.shared)"))
    yield replace(centred(8, 96), actions=(rows[1], rows[4], "fd.sched.inline_most()"))
    yield replace(
        _form([_t("t0", 8, 96)], ["fd.ops.sum(t0, [1])"], ["t1"]),
        actions=(
            "tensors[1].split(1, 32)",
            "tensors.append(tensors[1].rfactor([1]))",
            "tensors[2].set_memory_type(MemoryType.shared)",
            "tensors[2].parallelize(1, ParallelType.block_x)",
            "tensors[1].parallelize(1, ParallelType.block_x)",
        ),
    )
    yield replace(
        _form([_t("t0", 4, 6)], ["fd.ops.exp(t0)", "fd.ops.permute(t1, [1, 0])"], ["t2"]),
        actions=(
            "tensors[1].merge(0)",
            "tensors[2].merge(0)",
            "tensors[1].parallelize(0, ParallelType.block_x)",
            "tensors[2].parallelize(0, ParallelType.block_x)",
            "tensors[1].set_memory_type(MemoryType.shared)",
        ),
    )
    yield replace(
        _form([_t("t0", 8, 4, 6)], ["fd.ops.sum(t0, [1, 2])", "fd.ops.pad(t1, [1, 1])"], ["t2"]),
        actions=(
            "tensors[1].merge(1)",
            "tensors[1].split(1, 4)",
            "tensors[1].parallelize(0, ParallelType.block_x)",
            "tensors[2].parallelize(0, ParallelType.block_x)",
            "tensors[1].set_memory_type(MemoryType.shared)",
        ),
    )
    yield replace(
        _form(
            [_t("t0", 5, 1)],
            ["fd.ops.exp(t0)", "fd.ops.pad(t1, [1, 1])", "fd.ops.slice(t2, [0, 1], [5, 2])", "fd.ops.neg(t3)"],
            ["t4"],
        ),
        actions=("fd.sched.inline_most()",),
    )


_GROUPS = (
    _products,
    _precise,
    _across_blocks,
    _refused_by_schedulers,
    _large,
    _asked,
    _edited,
    _limits,
    _parameters,
    _evaluated,
    _layouts,
    _rare,
)


def directed(group: str = "") -> Iterator[Form]:
    """Yield the forms of a group, or of all groups, the most different ones first."""
    for forms in _GROUPS:
        if group in {"", forms.__name__.removeprefix("_")}:
            yield from forms()
