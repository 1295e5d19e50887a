"""Features that determine a CPU kernel's time: loops, memory accesses, operations by class, contents of caches."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

import fuser_lab as fl
from fuser_lab import DataType, FusionDefinition
from fuser_lab.codegen.cache_lines import LINE, CacheLines, Runs
from fuser_lab.codegen.host_features import host_features
from fuser_lab.codegen.kernel_ir import Buffer, Role
from fuser_lab.codegen.loop_tree import Access, Rounds, loop_tree
from fuser_lab.cost.host_plan import begun_phases, host_seconds
from fuser_lab.cost.host_time import HostCaches, HostFeatures, HostPhase, Moved
from fuser_lab.cost.plan_time import KernelInPlan
from tests.unit.test_this_cpu import PLANTED

CACHES = HostCaches(threads=2, first=32 << 10, second=1 << 20, last=32 << 20)
MB = 10**6
Record = Callable[..., Any]


def phases_of(record: Record, shapes: Sequence[Sequence[int]], dtype: DataType = DataType.Float) -> tuple[Any, ...]:
    """The phases of the only kernel of a computation."""
    with FusionDefinition() as fd:
        given = [fd.define_tensor(list(shape), contiguity=True, dtype=dtype) for shape in shapes]
        found = record(fd.ops, *given)
        for output in found if isinstance(found, tuple) else (found,):
            fd.add_output(output)
    (segment,) = (one for one in fl.segment(fd).segments if one.bytes)
    return segment.kernel("cpu").kernel_ir.phases  # type: ignore[no-any-return]


def features_of(record: Record, *shapes: Sequence[int], dtype: DataType = DataType.Float) -> HostFeatures:
    with FusionDefinition() as fd:
        given = [fd.define_tensor(list(shape), contiguity=True, dtype=dtype) for shape in shapes]
        found = record(fd.ops, *given)
        for output in found if isinstance(found, tuple) else (found,):
            fd.add_output(output)
    (segment,) = fl.segment(fd).segments
    return host_features(segment.kernel("cpu").kernel_ir, CACHES)


def softmax(o: Any, x: Any) -> Any:
    powers = o.exp(o.sub(x, o.max(x, [1], keepdim=True)))
    return o.div(powers, o.sum(powers, [1], keepdim=True))


def innermost(rounds: Rounds) -> list[Rounds]:
    return [rounds] if not rounds.inner else [leaf for inner in rounds.inner for leaf in innermost(inner)]


def test_the_work_of_a_shared_loop_is_that_of_the_busiest_core():
    rows = 1024
    (phase,) = features_of(lambda o, x, y: o.add(o.mul(x, y), 1.0), (rows, 512), (rows, 512)).phases
    points = rows * 512 // 2
    assert phase.is_shared
    assert phase.cores == 2
    assert phase.simple == pytest.approx(2 * 4 * points)
    assert phase.vectors == pytest.approx(3 * 4 * points)
    assert phase.function == phase.called == phase.whole == phase.apart == 0
    assert phase.single < 0.001 * points
    assert {one.name: (one.nbytes, one.is_stored) for one in phase.moved} == {
        "T0": (pytest.approx(4 * rows * 512, rel=0.01), False), "T1": (pytest.approx(4 * rows * 512, rel=0.01), False),
        "T3": (pytest.approx(4 * rows * 512, rel=0.01), True),
    }


def test_a_small_kernel_is_not_shared():
    (phase,) = features_of(lambda o, x: o.exp(x), (64, 64)).phases
    assert not phase.is_shared
    assert (phase.cores, phase.function) == (1, 4096)


def test_rows_are_read_again_from_the_first_cache_and_passes_wait_for_each_other():
    rows, columns = 1024, 1000
    (phase,) = features_of(softmax, (rows, columns)).phases
    slower = 1 + 4 * (columns % 16) / columns
    assert phase.function == pytest.approx(slower * rows * columns / 2)
    assert phase.dividing == pytest.approx(slower * 4 * rows * columns / 2)
    assert phase.wait == pytest.approx(2 * rows / 2), "the sum waits for the maximum, and the quotient for the sum"
    assert phase.start == pytest.approx(3 * rows / 2)
    assert phase.near < 1.2 * sum(one.nbytes for one in phase.moved) / 2
    (long,) = features_of(softmax, (16, 1 << 18)).phases
    assert long.near > 3 * 4 * 16 * (1 << 18) / 2, "a row of 1 MiB does not fit in the L1 cache"


@pytest.mark.parametrize(("record", "name", "count"), [
    (lambda o, x: o.tan(x), "called", 4096),
    (lambda o, x: o.log(x), "function", 2 * 4096),
    (lambda o, x: o.div(x, 3.0), "dividing", 4 * 4096),
    (lambda o, x: o.cast(o.cast(x, dtype=DataType.Half), dtype=DataType.Float), "converted", 4 * 4096),
])
def test_operations_have_classes(record, name, count):
    (phase,) = features_of(record, (4096,)).phases
    assert getattr(phase, name) == count


def test_a_loop_with_a_call_is_no_vector_loop():
    (phase,) = features_of(lambda o, x: o.mul(o.tan(x), 2.0), (4096,)).phases
    assert (phase.called, phase.simple, phase.vectors) == (4096, 0, 0)
    assert phase.single == 3 * 4096


@pytest.mark.parametrize("data", [False, True])
def test_a_read_at_rounded_positions_is_in_the_loop_and_apart(data):
    def resized(o: Any, x: Any, y: Any) -> Any:
        numbers = y if data else o.cast(o.iota(640, dtype=DataType.Int), dtype=DataType.Float)
        return o.exp(o.index_select(x, o.cast(o.mul(numbers, 0.01), dtype=DataType.Int), 1))

    (phase,) = features_of(resized, (512, 64), (640,)).phases
    assert phase.function == pytest.approx(512 * 640 / 2)
    assert phase.apart == pytest.approx(512 * 640 / 2)
    (moved,) = [traffic for traffic in phase.moved if traffic.name == "T0"]
    assert (moved.nbytes >= 512 * 64 * 4) == data, "the first positions of each row are read, or scattered ones"


def test_a_reshape_between_transposes_reads_elements_apart_and_divides_indices():
    def moved(o: Any, x: Any) -> Any:
        rows = o.reshape(o.permute(x, [0, 2, 1]), [16 * 49, 192])
        return rows, o.sum(rows, [0])

    (phase,) = features_of(moved, (16, 192, 49)).phases
    points = 16 * 192 * 49 / 2
    assert phase.apart == pytest.approx(2 * points)
    assert phase.whole == pytest.approx(2 * points)


def test_a_transposed_tensor_is_moved_through_registers_and_touched_once():
    (phase,) = features_of(lambda o, x, y: o.add(x, o.permute(y, [1, 0])), (512, 512), (512, 512)).phases
    assert phase.turned == pytest.approx(4 * 512 * 512 / 2)
    assert all(one.far == pytest.approx(4 * 512 * 512, rel=0.02) for one in phase.moved)


def test_loops_that_chunks_cut_touch_whole_tensors():
    first, _ = features_of(lambda o, x: o.sum(x, [0]), (4096, 1024)).phases
    (read, parts) = first.moved
    assert read.nbytes == pytest.approx(4 * 4096 * 1024, rel=0.01)
    assert parts.nbytes == pytest.approx(4 * 16 * 1024, rel=0.01)


def test_conditions_that_some_rounds_fulfil_count_as_often():
    def padded(o: Any, x: Any) -> Any:
        return o.exp(o.pad(x, [0, 0, 0, 1024]))

    (phase,) = features_of(padded, (1024, 256)).phases
    read = next(one for one in phase.moved if one.name == "T0")
    assert read.nbytes == pytest.approx(4 * 1024 * 256, rel=0.01)
    assert phase.function == pytest.approx(2048 * 256 / 2)
    assert phase.vectors == pytest.approx(4 * (1024 + 2048) * 256 / 2, rel=0.1)


def test_digits_of_a_loop_are_walked_one_by_one():
    (phase,) = phases_of(lambda o, x, y: o.add(x, o.permute(y, [1, 0])), [(256, 640), (640, 256)])
    (units,) = loop_tree(phase).inner
    reads = [access for leaf in innermost(units) for access in leaf.accesses if access.buffer.name == "T0"]
    assert [access.step(1) for access in reads] == [((64, 10), (64 * 640, 4))], "4 rows of 10 tiles"


def test_runs_become_longer_or_more():
    line = Runs(1.0, 4).over(((1, 16),), 4)
    assert (line.count, line.length) == (1, 64)
    rows = line.over(((1024, 8),), 4)
    assert (rows.count, rows.length, rows.nbytes) == (8, 64, 512)
    assert rows.over(((16, 4),), 4).length == 256
    assert rows.crowding == 64, "lines 4 KiB apart share one of 64 sets"
    assert Runs(1.0, 4096).over(((1024, 8),), 4).crowding == 1


@pytest.mark.parametrize(("apart", "cache", "times"), [
    (65, 512 << 10, 1), (65, 128 << 10, 64), (64, 512 << 10, 64), (64, 2 << 20, 1),
])
def test_a_cache_that_holds_one_round_fetches_what_is_new_and_a_smaller_one_everything(apart, cache, times):
    columns, rows = 64, 4096
    buffer = Buffer(name="x", dtype=DataType.Float, size=apart * rows, role=Role.INPUT)
    inner = Rounds(depth=2, turns=rows, accesses=[Access(
        buffer=buffer, stored=False, steps={1: ((1, columns),), 2: ((apart, rows),)}, times=1.0, chosen=False, place=0,
    )])
    found = CacheLines(Rounds(depth=0, inner=[Rounds(depth=1, turns=columns, inner=[inner])])).fetched(cache)
    once = 4 * apart * rows
    assert found[buffer].nbytes == pytest.approx(once if times == 1 else times * LINE * rows, rel=0.3)


def test_neighbouring_runs_of_one_tensor_are_one():
    def halves(o: Any, x: Any) -> Any:
        low, high = (o.slice(x, [0, start], [4096, start + 64]) for start in (0, 64))
        return o.cat([o.neg(high), low], dim=1)

    (phase,) = features_of(halves, (4096, 128)).phases
    (read,) = (one for one in phase.moved if one.name == "T0")
    assert read.length > 10 * 4 * 128
    assert read.nbytes == pytest.approx(4 * 4096 * 128, rel=0.01)


def phase_on(*names: str, nbytes: float = MB) -> HostPhase:
    return HostPhase(
        cores=1.0, is_shared=False, near=nbytes,
        moved=tuple(
            Moved(name=one, nbytes=nbytes, far=nbytes, memory=nbytes, length=nbytes, is_stored=False) for one in names
        ),
    )


def test_a_kernel_finds_what_was_touched_since_the_cache_was_last_full():
    def found(kernels: list[Any], last: float) -> list[dict[str, float]]:
        begun = begun_phases(kernels, 1, 0.0, last)
        return [{name: held.last for name, held in one.in_caches.items()} for one in begun]

    a, b = [phase_on("x", "y")], [phase_on("y", "z")]
    assert found([a, b], 20 * MB) == [{"x": 1.0, "y": 1.0}, {"y": 1.0, "z": 1.0}], "from the previous run, too"
    assert found([a, b], 4 * MB) == [{"x": 0.0, "y": 1.0}, {"y": 1.0, "z": 0.0}]
    assert found([a, 30.0 * MB, b], 20 * MB) == [{"x": 0.0, "y": 1.0}, {"y": 0.0, "z": 0.0}], "something else displaces"
    assert found([[phase_on("w", nbytes=MB)]], 0.0) == [{"w": 0.0}]


def test_times_of_a_plan_depend_on_what_its_kernels_find():
    def kernel(*names: str) -> KernelInPlan:
        features = HostFeatures(phases=(phase_on(*names, nbytes=10 * MB),))
        return KernelInPlan(features=features, reads=tuple((one, 10 * MB) for one in names), writes=())

    library = KernelInPlan(features=None, reads=(("u", 200 * MB),), writes=())
    first, second = host_seconds([kernel("x"), kernel("x")], PLANTED)
    assert first == second
    warm, other, cold = host_seconds([kernel("x"), library, kernel("x")], PLANTED)
    assert other != other, "not a kernel of fuser_lab"
    assert cold > 1.5 * second
    assert warm == pytest.approx(second + PLANTED.cold, rel=0.2)


def test_views_are_found_under_the_name_of_their_base():
    features = HostFeatures(phases=(phase_on("v", "w"),)).over({"v": "x"})
    assert [one.name for one in features.phases[0].moved] == ["x", "w"]


def test_lines_are_counted_whole():
    (phase,) = features_of(lambda o, x: o.sum(x, [1]), (8, 3)).phases
    assert min(one.nbytes for one in phase.moved) == LINE
