"""The fusion cache: definitions that follow known calls, eviction, and the file."""

import json
import math
import threading
from html.parser import HTMLParser

import numpy as np
import pytest

import fuser_lab as fl
from fuser_lab import DataType, FusionCache, FusionDefinition
from fuser_lab.definition import builder
from fuser_lab.definition.canonical import Step
from fuser_lab.definition.spec import spec
from fuser_lab.errors import ArgumentTypeError, DefinitionError, InputError, StateError, UnknownNameError


def rows(fd, dim=1, scale=2.0):
    x = fd.define_tensor(shape=[-1, -1], contiguity=True)
    fd.add_output(fd.ops.mul(fd.ops.sum(x, dims=[dim]), scale))


def defined(cache, define=rows, *args, **kwargs):
    with FusionDefinition(cache=cache) as fd:
        define(fd, *args, **kwargs)
    return fd


def same_state(a, b):
    return (a.states, a.inputs, a.outputs, a.extents, a.fid_of) == (b.states, b.inputs, b.outputs, b.extents, b.fid_of)


def test_the_same_calls_find_the_same_fusion():
    cache = FusionCache()
    first, second, other = defined(cache), defined(cache), defined(cache, rows, 0)
    assert second.fusion is first.fusion
    assert second.fusion_id == first.fusion_id == 0
    assert other.fusion_id == 1
    assert repr(second) == repr(first)
    stats = cache.stats()
    assert (stats.fusions, stats.lookups, stats.hits, stats.evictions) == (2, 3, 1, 0)
    # The tensor is shared: 4 calls and the number passed to one of them, and 4 more.
    assert stats.records == 9


def test_a_known_definition_builds_nothing(monkeypatch):
    cache = FusionCache()
    first = defined(cache)
    for name in ("_emit_all", "_tensor_input", "_add_output"):
        monkeypatch.setattr(builder.FusionBuilder, name, None)
    second = defined(cache)
    assert second.fusion is first.fusion
    assert same_state(second.state, first.state)


def test_states_are_those_of_a_definition_that_was_built():
    cache = FusionCache()
    defined(cache)
    with FusionDefinition() as plain:
        rows(plain)
    assert same_state(defined(cache).state, plain.state)


def test_where_ways_part_what_was_walked_along_is_built():
    cache = FusionCache()
    defined(cache)

    def longer(fd):
        x = fd.define_tensor(shape=[-1, -1], contiguity=True)
        total = fd.ops.sum(x, dims=[1])
        assert bool(fd._exprs) is (fd.cache is None)
        # A size that no call returned.
        fd.add_output(fd.ops.mul(fd.ops.exp(total), x.size(0)))

    fd = defined(cache, longer)
    with FusionDefinition() as plain:
        longer(plain)
    assert fd.fusion == plain.fusion
    assert same_state(fd.state, plain.state)
    assert defined(cache, longer).fusion is fd.fusion


def test_a_definition_that_is_the_beginning_of_another():
    cache = FusionCache()

    def two(fd):
        x = fd.define_tensor(shape=[3])
        fd.add_output(fd.ops.neg(x))
        fd.add_output(fd.ops.exp(x))

    def one(fd):
        fd.add_output(fd.ops.neg(fd.define_tensor(shape=[3])))

    long, short = defined(cache, two), defined(cache, one)
    assert len(short.fusion.outputs) == 1
    assert defined(cache, one).fusion is short.fusion
    assert defined(cache, two).fusion is long.fusion


@pytest.mark.parametrize(
    ("a", "b"),
    [(1, 1.0), (0, False), (0.0, -0.0), (1, True), (2.0, np.float32(2.5)), (1.0, 1 + 0j), (math.inf, -math.inf)],
    ids=repr,
)
def test_numbers_that_python_calls_equal_are_told_apart(a, b):
    cache = FusionCache()

    def define(fd, number):
        fd.add_output(fd.ops.mul(fd.define_tensor(shape=[3]), number))

    first, second = defined(cache, define, a), defined(cache, define, b)
    one, other = (s.states[1].values[0] for s in (first.state, second.state))
    assert (repr(one.value), one.dtype) != (repr(other.value), other.dtype)
    # As factors of floats, 1, 1.0 and True are one number.
    assert (first.fusion_id == second.fusion_id) is (first.fusion == second.fusion)
    assert defined(cache, define, a).state is first.state
    assert defined(cache, define, b).state is second.state


def test_nan_is_found_again():
    cache = FusionCache()

    def define(fd):
        fd.add_output(fd.ops.mul(fd.define_tensor(shape=[3]), float("nan")))

    assert defined(cache, define).fusion is defined(cache, define).fusion


def test_lists_that_change_afterwards_do_not_change_what_was_recorded():
    cache = FusionCache()
    dims = [1]

    def define(fd):
        x = fd.define_tensor(shape=[-1, -1], contiguity=True)
        y = fd.ops.sum(x, dims=dims)
        dims[0] = 0
        fd.add_output(fd.ops.exp(y))
        dims[0] = 1

    first = defined(cache, define)

    def other(fd):
        x = fd.define_tensor(shape=[-1, -1], contiguity=True)
        y = fd.ops.sum(x, dims=dims)
        dims[0] = 0
        fd.add_output(fd.ops.sin(y))
        dims[0] = 1

    second = defined(cache, other)
    assert [expr.attr("dims") for expr in second.fusion.exprs if expr.op.name == "sum"] == [(1,)]
    assert defined(cache, define).fusion is first.fusion


def test_a_refused_call_takes_the_definition_out_of_the_cache():
    cache = FusionCache()

    def define(fd):
        x = fd.define_tensor(shape=[3])
        with pytest.raises(DefinitionError):
            fd.ops.sum(x, dims=[4])
        fd.add_output(fd.ops.neg(x))

    fd = defined(cache, define)
    assert fd.fusion_id is None
    assert cache.num_fusions() == 0
    np.testing.assert_array_equal(fd.execute([np.ones(3, np.float32)])[0], -np.ones(3))


def test_an_exception_leaves_nothing_behind():
    cache = FusionCache()

    def interrupted(fd):
        rows(fd)
        raise KeyError

    with pytest.raises(KeyError):
        defined(cache, interrupted)
    with pytest.raises(UnknownNameError), FusionDefinition(cache=cache) as fd:
        _ = fd.ops.no_such_op
    assert cache.stats().fusions == cache.stats().records == cache.stats().lookups == 0


def test_values_of_another_definition_are_refused():
    cache = FusionCache()
    first = FusionDefinition(cache=cache)
    with first:
        x = first.define_tensor(shape=[3])
        first.add_output(first.ops.neg(x))
    with FusionDefinition(cache=cache) as fd:
        fd.define_tensor(shape=[3])
        with pytest.raises(DefinitionError, match="another definition"):
            fd.ops.neg(x)


def test_what_is_compiled_is_shared():
    cache = FusionCache()
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    first, second = defined(cache), defined(cache)
    first.execute([x])
    assert second.plan_for([x]) is first.plan_for([x])
    assert cache.schedules(0).payload is first.fec is second.fec
    np.testing.assert_allclose(second.execute([x])[0], 2 * x.sum(axis=1))


def test_arrays_may_describe_inputs():
    cache = FusionCache()

    def define(fd):
        fd.add_output(fd.ops.neg(fd.from_array(spec((4, 5)))))

    assert defined(cache, define).fusion is defined(cache, define).fusion


def test_required_layouts_are_part_of_a_definition():
    cache = FusionCache()

    def define(fd, order):
        x = fd.define_tensor(shape=[-1, -1], contiguity=True)
        y = fd.ops.neg(x)
        fd.add_output(y)
        assert fd.get_output_stride_order(y) is None
        fd.set_output_stride_order(y, order)

    first = defined(cache, define, [0, 1])
    again = defined(cache, define, [0, 1])
    assert again.fusion is first.fusion
    assert defined(cache, define, [1, 0]).fusion_id != first.fusion_id
    assert again.fusion.get_output_stride_order(again.fusion.outputs[0]) == (0, 1)


def test_the_least_recently_used_fusion_goes():
    cache = FusionCache(max_fusions=2)
    kept = defined(cache, rows, 0)
    defined(cache, rows, 1)
    defined(cache, rows, 0)
    defined(cache, rows, 1, 3.0)
    assert cache.num_fusions() == 2
    assert defined(cache, rows, 0).fusion is kept.fusion
    stats = cache.stats()
    assert stats.evictions == 1
    # The tensor, four records for one dim, and four for the other: records that led only to the evicted one are gone.
    assert stats.records == 9
    fresh = defined(cache, rows, 1)
    assert fresh.fusion_id == 3


def test_a_definition_survives_that_its_path_is_forgotten_meanwhile():
    cache = FusionCache(max_fusions=1)
    defined(cache)
    with FusionDefinition(cache=cache) as fd:
        x = fd.define_tensor(shape=[-1, -1], contiguity=True)
        total = fd.ops.sum(x, dims=[1])
        defined(cache, rows, 0)
        fd.add_output(fd.ops.mul(total, 2.0))
    with FusionDefinition() as plain:
        rows(plain)
    assert fd.fusion == plain.fusion
    assert cache.num_fusions() == 1
    cache.reset()
    assert cache.stats().records == cache.num_fusions() == 0


@pytest.mark.parametrize("room", [0, -3])
def test_a_cache_needs_room(room):
    with pytest.raises(DefinitionError, match=f"max_fusions is {room}"):
        FusionCache(max_fusions=room)


@pytest.mark.parametrize("room", [2.0, True, "many"])
def test_the_number_of_fusions_is_an_int(room):
    with pytest.raises(TypeError, match="max_fusions must be an int"):
        FusionCache(max_fusions=room)


def test_a_cache_is_a_fusion_cache():
    with pytest.raises(TypeError, match="cache must be a FusionCache, given dict"):
        FusionDefinition(cache={})


def test_unknown_numbers():
    with pytest.raises(DefinitionError, match="no fusion has the number 5; there are 0"):
        FusionCache().schedules(5)


def test_many_threads_define_at_once():
    cache = FusionCache(max_fusions=8)
    wrong = []

    def work(first):
        for turn in range(40):
            scale = float((first * 7 + turn) % 12)
            fd = defined(cache, rows, turn % 2, scale)
            with FusionDefinition() as plain:
                rows(plain, turn % 2, scale)
            if fd.fusion != plain.fusion or not same_state(fd.state, plain.state):
                wrong.append((first, turn))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    stats = cache.stats()
    assert stats.fusions == 8
    assert stats.lookups == 240
    assert sum(1 for _ in cache) == 8
    # Every remaining call leads to a fusion.
    assert stats.records == 1 + len({(s.fusion.exprs[0].attr("dims")) for s in cache}) + 3 * 8


def test_a_payload_is_made_once():
    cache = FusionCache()
    kept = cache.schedules(defined(cache).fusion_id)
    made = []
    threads = [threading.Thread(target=lambda: kept.made(lambda f: made.append(f) or object())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == [kept.fusion]


# Showing


def test_text_of_the_tree():
    cache = FusionCache()
    defined(cache)
    defined(cache)
    defined(cache, rows, 0)
    layout = "shape=[-1, -1], contiguity=[True, True], dtype=DataType.Float, is_cpu=False"
    assert str(cache).splitlines() == [
        "FusionCache: 2 fusions in 9 records, 3 lookups, 1 hit",
        f"  T0 = define_tensor({layout}, stride_order=[1, 0])",
        "  - T1 = ops.sum(T0, dims=[1], keepdim=False, dtype=DataType.Null)",
        "    double(2) = define_scalar(2.0, dtype=DataType.Double)",
        "    T2 = ops.mul(T1, double(2))",
        "    add_output(T2)",
        "    fusion 0: 1 hit, has not run",
        "  - T1 = ops.sum(T0, dims=[0], keepdim=False, dtype=DataType.Null)",
        "    double(2) = define_scalar(2.0, dtype=DataType.Double)",
        "    T2 = ops.mul(T1, double(2))",
        "    add_output(T2)",
        "    fusion 1: 0 hits, has not run",
    ]
    assert "Cache Hits: 1\nHit Rate: 33.3333%" in str(cache.stats())
    assert str(FusionCache(3).stats()) == "Max Fusions Allowed: 3\nThe fusion cache is empty.\n"


class Tags(HTMLParser):
    """Counts open elements."""

    def __init__(self):
        super().__init__()
        self.depth = 0
        self.seen = set()

    def handle_starttag(self, tag, attrs):
        self.depth += 1
        self.seen.add(tag)

    def handle_endtag(self, tag):
        self.depth -= 1


def test_html_of_the_tree_is_escaped():
    cache = FusionCache()

    def define(fd):
        fd.add_output(fd.ops.topk(fd.define_tensor(shape=[8]), fd.define_scalar(2), -1)[0])

    defined(cache, define)
    defined(cache)
    step = next(iter(cache.paths())).steps[0]
    hostile = step.record._replace(name="<script>alert(1)</script>")
    other = Step(("hostile",), hostile, None)
    cache.insert([(hostile, (other,))], next(iter(cache)).fusion, next(iter(cache)).state)
    html = cache._repr_html_()
    assert "<script" not in html
    assert "&lt;script&gt;" in html
    tags = Tags()
    tags.feed(html)
    assert tags.depth == 0
    assert tags.seen <= {"details", "summary", "div", "b"}


def test_large_trees_are_cut_short():
    cache = FusionCache()
    for n in range(200):
        defined(cache, rows, 0, float(n))
    text = str(cache)
    assert len(text.splitlines()) < 420
    assert text.splitlines()[-1].endswith("more lines")


# The file


def everything(fd):
    x = fd.define_tensor(shape=[-1, 4, 1], contiguity=[True, True, None], dtype=DataType.Half, stride_order=[2, 1, 0])
    n = fd.define_scalar(None, dtype=DataType.Int)
    a, b = fd.define_vector(2)
    z = fd.ops.mul(fd.ops.cast(x, DataType.ComplexFloat), fd.define_scalar(1.5 - 0.0j))
    y = fd.ops.mul(fd.ops.mul(x, float("inf")), fd.ops.mul(fd.ops.size(x, 0), n))
    w = fd.ops.where(fd.ops.gt(y, -0.0), y, fd.define_scalar(float("nan")))
    fd.add_output(fd.ops.reshape(w, [fd.ops.mul(a, b)]))
    fd.add_output(fd.ops.real(z))
    fd.add_output(fd.ops.neg(x), x)


def test_save_and_load(tmp_path):
    cache = FusionCache(max_fusions=77)
    for define in (everything, rows):
        defined(cache, define)
    defined(cache)
    saved = cache.save(tmp_path / "cache.json")
    loaded = FusionCache.load(saved)
    assert loaded.max_fusions == 77
    assert [kept.fusion for kept in loaded] == [kept.fusion for kept in cache]
    assert [kept.hits for kept in loaded] == [0, 1]
    assert all(same_state(a.state, b.state) for a, b in zip(loaded, cache, strict=True))
    assert str(loaded).splitlines()[1:] == str(cache).splitlines()[1:]
    fd = defined(loaded)
    assert fd.fusion is loaded.schedules(fd.fusion_id).fusion
    assert loaded.stats().hits == 1
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.testing.assert_allclose(fd.execute([x])[0], 2 * x.sum(axis=1))
    assert FusionCache.load(saved, max_fusions=1).num_fusions() == 1


def test_a_cache_that_exists_is_not_loaded_into(tmp_path):
    cache = FusionCache()
    defined(cache)
    saved = cache.save(tmp_path / "cache.json")
    for existing in (FusionCache(), FusionCache.load(saved)):
        with pytest.raises(StateError, match=r"cannot be filled from a file"):
            existing.load(saved)
    assert FusionCache.load(saved).num_fusions() == 1


def test_segments_are_saved_too(tmp_path):
    cache = FusionCache()
    x = [spec((2, 32)), spec((2, 128))]

    def define(fd):
        a, b = (fd.define_tensor(shape=[-1, -1], contiguity=True) for _ in range(2))
        fd.add_output(fd.ops.add(b, fd.ops.sum(a, dims=[1], keepdim=True)))

    defined(cache, define).segment(x)
    loaded = FusionCache.load(cache.save(tmp_path / "c.json"))
    assert [kept.fusion for kept in loaded] == [kept.fusion for kept in cache]
    before = loaded.num_fusions()
    defined(loaded, define).segment(x)
    assert loaded.num_fusions() == before == 3


def damaged(content, change):
    data = json.loads(content)
    change(data)
    return json.dumps(data)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda d: d.update(format="other"), "its format is not"),
        (lambda d: d.update(version=1), "its version is 1; this one reads 2"),
        (lambda d: d.pop("records"), "records, fusions or max_fusions are missing"),
        (lambda d: d["records"].append([99, ["neg", [], []]]), "has no predecessor"),
        (lambda d: d["records"].append([0, "neg"]), "is not a recorded call"),
        (lambda d: d["records"][1].__setitem__(1, ["__class__", [], []]), "'__class__' is not a call of a definition"),
        (lambda d: d["records"][1].__setitem__(1, ["execute", [], []]), "'execute' is not a call of a definition"),
        (lambda d: d["records"][1].__setitem__(1, ["exp", [["value", "T9"]], []]), "'T9') is not an argument"),
        (lambda d: d["records"][1].__setitem__(1, ["exp", [["pickle", "x"]], []]), "not an argument of a recorded"),
        (lambda d: d["records"][1].__setitem__(1, ["exp", [], []]), "missing a required argument"),
        (lambda d: d["records"][1].__setitem__(1, ["emit", ["open", ["list"]], []]), "'open' is not an op"),
        (lambda d: d["fusions"].append([0, 0, 0]), "does not end a definition: Fusion is empty!"),
        (lambda d: d["fusions"].append(["x", 0]), "is not the end of a fusion"),
    ],
)
def test_files_that_are_no_cache(tmp_path, change, says):
    cache = FusionCache()
    defined(cache)
    path = cache.save(tmp_path / "cache.json")
    path.write_text(damaged(path.read_text(), change))
    with pytest.raises(InputError) as caught:
        FusionCache.load(path)
    assert says in str(caught.value)
    assert str(caught.value).startswith(f"FusionCache.load: {path} is not a readable cache: ")


@pytest.mark.parametrize("content", ["", "{", "[]", "[" * 100_000, "\x80abc"])
def test_files_that_are_something_else(tmp_path, content):
    path = tmp_path / "cache.json"
    path.write_text(content, encoding="latin-1")
    with pytest.raises(InputError, match="is not a readable cache"):
        FusionCache.load(path)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(InputError, match="is not a readable cache"):
        FusionCache.load(tmp_path / "nothing.json")


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda at: FusionCache().save(None), ArgumentTypeError, "FusionCache.save: path must be a path, as str or "),
        (lambda at: FusionCache.load(None), ArgumentTypeError, "FusionCache.load: path must be a path, as str or "),
        (
            lambda at: FusionCache().save(at / "no" / "x.json"), InputError,
            r"^FusionCache.save: \S+/no/x\.json cannot be written: No such file or directory\.$",
        ),
        (lambda at: FusionCache().save(at), InputError, "is a directory; give the path of a file"),
    ],
)
def test_paths_that_are_none(tmp_path, call, error, says):
    with pytest.raises(error, match=says):
        call(tmp_path)
    assert not list(tmp_path.iterdir())


def test_the_public_name():
    assert fl.FusionCache is FusionCache
