"""Rows that the blocks of a cluster share, in lock step: values, the order of waits, and legal parameters."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from backend.fusions import D, S, build, close, numbers
from backend.reductions import add_norm, softmax, totals

from fuser_lab.codegen.kernel_eval import evaluate_kernel
from fuser_lab.codegen.kernel_ir import (
    Arrive,
    Await,
    Barrier,
    If,
    Kernel,
    Loop,
    Reduce,
    Scope,
    Send,
    Statement,
    layout_of,
    walk,
)
from fuser_lab.cost.device import A100, H200
from fuser_lab.dtypes import DataType
from fuser_lab.errors import CodegenError, ScheduleError
from fuser_lab.interpreter import evaluate
from fuser_lab.ir import Fusion
from fuser_lab.ir.term import index
from fuser_lab.ir.transform import ParallelType
from fuser_lab.runtime.arrays import flat_view, storage_dtype
from fuser_lab.schedule import gpu_row_loops
from fuser_lab.schedule.parameters import LoopChange
from tests.kernels import generate


def norm_of_images(fd: Any, x: Any) -> Any:
    """Each channel of a batch normalized: rows in several pieces of memory."""
    f = fd.ops.cast(x, D.Float)
    variance, mean = fd.ops.var_mean(f, [0, 2], correction=0, keepdim=True)
    return fd.ops.cast(fd.ops.mul(fd.ops.sub(f, mean), fd.ops.rsqrt(fd.ops.add(variance, 1e-5))), x.dtype)


def extremes(fd: Any, x: Any) -> Any:
    """Several kinds of results per row, and elements that need one of them."""
    highest = fd.ops.max(x, [1], keepdim=True)
    return fd.ops.min(x, [1]), fd.ops.ge(x, highest), fd.ops.sum(fd.ops.sub(x, highest), [1])


def in_clusters(fusion: Fusion, **values: Any) -> Kernel:
    change = LoopChange(target="cuda", nest=0, values=tuple(sorted(values.items())))
    scheduler = S.INNER_PERSISTENT if any(expr.op.name == "broadcast" for expr in fusion.exprs) else S.REDUCTION
    return generate(fusion, scheduler, "cuda", changes=(change,)).kernel_ir


def computed(kernel: Kernel, fusion: Fusion, inputs: list[np.ndarray]) -> list[np.ndarray]:
    memory: dict[str, Any] = {}
    for tv, x in zip(fusion.tensor_inputs, inputs, strict=True):
        memory[tv.name] = flat_view(x, tv.dtype, layout_of(tv).size, 0)
    for tv in fusion.outputs:
        memory[tv.name] = np.full(layout_of(tv).size, 77).astype(storage_dtype(tv.dtype))
    writes = evaluate_kernel(kernel, memory).writes
    for tv in fusion.outputs:
        assert (writes[tv.name] == 1).all(), f"{tv.name} is not written exactly once"
    return [np.ndarray(tv.shape, tv.dtype.numpy, buffer=memory[tv.name]) for tv in fusion.outputs]


def check(kernel: Kernel, fusion: Fusion, inputs: list[np.ndarray]) -> None:
    wanted = evaluate(fusion, inputs, exact=False)
    for tv, a, b in zip(fusion.outputs, computed(kernel, fusion, inputs), wanted, strict=True):
        close(a, np.asarray(b).astype(tv.dtype.numpy), tv.dtype)


@pytest.mark.parametrize("cluster", [2, 4, 8])
@pytest.mark.parametrize(
    ("columns", "dtype"),
    [(4096, D.BFloat16), (40, D.Float), (8197, D.BFloat16), (20_001, D.Float), (33_000, D.Half), (3001, D.Double)],
    ids=str,
)
def test_rows_of_every_kind(columns: int, dtype: DataType, cluster: int) -> None:
    fusion = build(softmax, [(3, columns)], dtype)
    kernel = in_clusters(fusion, cluster=cluster, threads=32 if columns < 100 else 256)
    (phase,) = kernel.phases
    assert (phase.launch.cluster, phase.launch.blocks) == (cluster, 3 * cluster)
    check(kernel, fusion, [numbers((3, columns), dtype)])


@pytest.mark.parametrize("online", [False, True])
@pytest.mark.parametrize("threads", [32, 96, 256])
def test_maximum_and_sum_of_a_row_are_exchanged_at_once(
    threads: int, online: bool, monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = gpu_row_loops._small_parts
    monkeypatch.setattr(gpu_row_loops, "_small_parts", lambda *given: replace(before(*given), online=online))
    x = numbers((5, 33_000), D.Half)
    x[0, :20_000] = -np.inf
    x[1] = -np.inf
    x[2, 7] = np.inf
    x[3, 32_999] = np.nan
    fusion = build(softmax, [x.shape], D.Half)
    kernel = in_clusters(fusion, cluster=4, threads=threads)
    (phase,) = kernel.phases
    assert phase.schedule.online is online
    body = list(walk(phase.body))
    assert [type(s) for s in body if isinstance(s, Send | Await)] == [Send, Send, Await, Await]
    assert not [s for s in body if isinstance(s, Reduce) and s.scope is Scope.CLUSTER]
    check(kernel, fusion, [x])


@pytest.mark.parametrize(
    "values", [{"threads": 96}, {"threads": 1024}, {"vector": 1, "unroll": 3}, {"resident": 2}], ids=str,
)
def test_with_other_parameters(values: dict[str, Any]) -> None:
    shapes = [(2, 9000), (2, 9000), (9000,)]
    fusion = build(add_norm, shapes, D.BFloat16)
    inputs = [numbers(shape, D.BFloat16, n) for n, shape in enumerate(shapes)]
    check(in_clusters(fusion, cluster=4, **values), fusion, inputs)


@pytest.mark.parametrize("dtype", [D.Float, D.Int, D.Int32, D.Half], ids=lambda d: d.name)
def test_results_of_rows_are_stored_once(dtype: DataType) -> None:
    fusion = build(extremes, [(5, 300)], dtype)
    check(in_clusters(fusion, cluster=2, threads=64), fusion, [numbers((5, 300), dtype)])


def test_rows_in_pieces() -> None:
    for shape in ((8, 6, 260), (5, 3, 131)):
        fusion = build(norm_of_images, [shape], D.BFloat16)
        check(in_clusters(fusion, cluster=4, threads=64), fusion, [numbers(shape, D.BFloat16)])
    fusion = build(norm_of_images, [(64, 256, 4096)], D.BFloat16)
    (phase,) = generate(fusion, S.INNER_PERSISTENT, "cuda").kernel_ir.phases
    assert (phase.launch.cluster, phase.launch.blocks) == (4, 4 * 256)


@pytest.mark.parametrize(("rows", "phases", "cluster"), [(6, 3, 1), (40, 1, 16), (256, 1, 16)])
def test_few_long_rows_are_shared_by_clusters_where_these_keep_a_gpu_busy(rows: int, phases: int, cluster: int) -> None:
    kernel = generate(build(softmax, [(rows, 262_144)], D.BFloat16), S.INNER_PERSISTENT, "cuda").kernel_ir
    assert (len(kernel.phases), kernel.phases[0].launch.cluster) == (phases, cluster)


@pytest.mark.parametrize(("shape", "record"), [((3, 9000), totals(1)), ((2, 40_000), softmax)], ids=["sums", "softmax"])
def test_few_rows_in_clusters_are_one_launch(shape: tuple[int, int], record: Any) -> None:
    fusion = build(record, [shape], D.Float)
    kernel = in_clusters(fusion, cluster=8)
    assert len(kernel.phases) == 1
    check(kernel, fusion, [numbers(shape, D.Float)])


@pytest.mark.parametrize(
    ("columns", "cluster"),
    [(32_768, 1), (65_536, 4), (131_072, 8), (131_071, 2), (262_144, 16), (524_288, 8)],
)
def test_heuristics_let_clusters_share_long_rows(columns: int, cluster: int) -> None:
    fusion = build(softmax, [(1024, columns)], D.BFloat16)
    (nest,) = generate(fusion, S.INNER_PERSISTENT, "cuda").kernel_ir.nests
    assert nest.schedule.cluster == cluster
    assert any("cluster" in reason for reason in nest.schedule.reasons) is (cluster > 1)
    (nest,) = generate(fusion, S.INNER_PERSISTENT, "cuda", device=A100).kernel_ir.nests
    assert nest.schedule.cluster == 1


def test_sums_that_nothing_needs_are_not_kept_by_clusters() -> None:
    fusion = build(totals(1), [(1024, 131_072)], D.BFloat16)
    (nest,) = generate(fusion, S.REDUCTION, "cuda").kernel_ir.nests
    assert nest.schedule.cluster == 1


def without(kernel: Kernel, kind: type[Statement]) -> Kernel:
    """The kernel without the statements of a kind."""
    return repeated(kernel, kind, 0)


def repeated(kernel: Kernel, kind: type[Statement], times: int = 2) -> Kernel:
    """The kernel with each statement of a kind repeated."""

    def rest(statements: tuple[Statement, ...]) -> tuple[Statement, ...]:
        found: list[Statement] = []
        for statement in statements:
            if isinstance(statement, Loop):
                found.append(replace(statement, body=rest(statement.body)))
            elif isinstance(statement, If):
                found.append(replace(statement, then=rest(statement.then), otherwise=rest(statement.otherwise)))
            else:
                found += [statement] * (times if isinstance(statement, kind) else 1)
        return tuple(found)

    return replace(kernel, phases=tuple(replace(phase, body=rest(phase.body)) for phase in kernel.phases))


def test_a_missing_barrier_is_reported() -> None:
    fusion = build(softmax, [(3, 512)], D.Float)
    kernel, inputs = in_clusters(fusion, cluster=2, threads=64), [numbers((3, 512), D.Float)]
    body = list(walk(kernel.phases[0].body))
    assert [type(s) for s in body if isinstance(s, Arrive | Barrier | Reduce)] == [Arrive, Barrier, Reduce, Reduce]
    assert {s.scope for s in body if isinstance(s, Barrier | Reduce)} == {Scope.CLUSTER}
    with pytest.raises(IndexError, match="blocks of a cluster that may not have started: a barrier of the cluster is"):
        computed(without(kernel, Barrier), fusion, inputs)
    with pytest.raises(CodegenError, match="waits for blocks of a cluster that never announce that they have started"):
        computed(without(kernel, Arrive), fusion, inputs)


def test_what_is_sent_is_waited_for_and_sent_once() -> None:
    fusion = build(column_softmax, [(512, 64)], D.BFloat16)
    kernel, inputs = columns_in_clusters(fusion, 2), [numbers((512, 64), D.BFloat16)]
    with pytest.raises(IndexError, match="without a barrier after its write"):
        computed(without(kernel, Await), fusion, inputs)
    with pytest.raises(CodegenError, match="but an element of it is sent 0 times"):
        computed(without(kernel, Send), fusion, inputs)
    with pytest.raises(CodegenError, match="is sent 2 times"):
        computed(repeated(kernel, Send), fusion, inputs)


def test_a_cluster_reduces_each_value_once() -> None:
    fusion = build(softmax, [(3, 512)], D.Float)
    kernel = in_clusters(fusion, cluster=2, threads=64)
    with pytest.raises(CodegenError, match="defines t2_max_all, which already exists there"):
        computed(repeated(kernel, Reduce), fusion, [numbers((3, 512), D.Float)])
    (phase,) = kernel.phases
    (block,) = phase.body
    assert isinstance(block, Loop)
    rounds = Loop(var="again", start=index(0), stop=index(2), body=block.body, parallel=ParallelType.serial)
    again = replace(kernel, phases=(replace(phase, body=(replace(block, body=(rounds,)),)),))
    with pytest.raises(CodegenError, match="among the blocks of a cluster a second time"):
        computed(again, fusion, [numbers((3, 512), D.Float)])


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"cluster": 3}, "cluster = 3 must be a power of two, at most 16"),
        ({"cluster": 32}, "cluster = 32 must be a power of two, at most 16"),
        ({"cluster": 2, "threads": 16}, "cluster = 2: blocks share only rows that are not split"),
    ],
    ids=str,
)
def test_what_no_cluster_can_do_is_refused(values: dict[str, Any], text: str) -> None:
    with pytest.raises(ScheduleError, match=text):
        in_clusters(build(softmax, [(3, 4096)], D.Float), **values)


def test_devices_without_clusters_say_so() -> None:
    change = LoopChange(target="cuda", nest=0, values=(("cluster", 2),))
    with pytest.raises(ScheduleError, match="cluster = 2: the A100 has compute capability 8.0 and no clusters"):
        generate(build(softmax, [(3, 4096)], D.Float), S.INNER_PERSISTENT, "cuda", changes=(change,), device=A100)


def column_softmax(fd: Any, x: Any) -> Any:
    f = fd.ops.cast(x, D.Float)
    e = fd.ops.exp(fd.ops.sub(f, fd.ops.max(f, [0], keepdim=True)))
    return fd.ops.cast(fd.ops.div(e, fd.ops.sum(e, [0], keepdim=True)), x.dtype)


def column_norm(fd: Any, x: Any, y: Any) -> Any:
    """Two inputs per column, and a result per column in addition to those of its elements."""
    f = fd.ops.add(fd.ops.cast(x, D.Float), fd.ops.cast(y, D.Float))
    variance, mean = fd.ops.var_mean(f, [0], correction=0)
    return fd.ops.cast(fd.ops.mul(fd.ops.sub(f, mean), fd.ops.rsqrt(fd.ops.add(variance, 1e-5))), x.dtype), mean


SMALL = replace(H200, name="a small GPU", sms=2)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("record", [column_softmax, column_norm])
@pytest.mark.parametrize(
    ("shape", "dtype"), [((512, 64), D.BFloat16), ((301, 40), D.Half), ((500, 33), D.Float)], ids=str,
)
def test_columns_of_every_kind(shape: tuple[int, int], dtype: DataType, record: Any) -> None:
    shapes = [shape] * (2 if record is column_norm else 1)
    fusion = build(record, shapes, dtype)
    inputs = [numbers(shape, dtype, n) for n in range(len(shapes))]
    for given in (1, 2, 4, 8):
        kernel = columns_in_clusters(fusion, given)
        assert kernel.phases[0].launch.cluster == given
        check(kernel, fusion, inputs)


def columns_in_clusters(fusion: Fusion, cluster: int) -> Kernel:
    change = LoopChange(target="cuda", nest=0, values=(("cluster", cluster),))
    return generate(fusion, S.OUTER_PERSISTENT, "cuda", device=SMALL, changes=(change,)).kernel_ir
