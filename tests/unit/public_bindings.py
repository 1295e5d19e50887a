"""Calls of `fuser_lab.nvfuser_direct` and of `fuser_lab.nvfuser`, by the names of `tests.unit.public_names`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import fuser_lab.nvfuser_direct as nd
from fuser_lab import DataType, ParallelType, nvfuser
from tests.unit.public_call import MORE, TENSOR, Call, X, given


def binding_calls(folder: Path) -> dict[str, Call]:
    """Calls by name; they may write to ``folder``."""
    return _direct_calls() | _removed_calls(folder)


def _direct() -> tuple[nd.FusionDefinition, Any]:
    with nd.FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], True)
        fd.add_output(fd.ops.neg(x))
    return fd, x


def _in_direct(method: str) -> Callable[[], Callable[..., Any]]:
    """A method of nvFuser's definition, called while it is open."""

    def make() -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            with nd.FusionGuard(nd.Fusion()) as _:
                return getattr(nd, method)(*args, **kwargs)

        return call

    return make


def _of_fusion(method: str) -> Callable[[], Callable[..., Any]]:
    """A method of nvFuser's fusion; TENSOR is a placeholder for one of its tensors."""

    def make() -> Callable[..., Any]:
        fusion = nd.Fusion()
        with nd.FusionGuard(fusion):
            tensor = nd.define_tensor([2, 3], True)
        return given(getattr(fusion, method), tensor)

    return make


def _opened(method: str) -> Callable[[], Callable[..., Any]]:
    """A method of an open definition with nvFuser's members; TENSOR is a placeholder for one of its tensors."""

    def make() -> Callable[..., Any]:
        fd = nd.FusionDefinition().__enter__()
        tensor = fd.define_tensor([2, 3], True)
        return given(_closing(fd, getattr(fd, method)), tensor)

    return make


def _closing(fd: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that closes its definition, so that later calls do not find it active."""

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        finally:
            fd.__exit__(None, None, None)

    return call


def _static() -> nd.FusionDefinition:
    with nd.FusionDefinition() as fd:
        x = fd.define_tensor([4, 4], True)
        fd.add_output(fd.ops.broadcast(fd.ops.sum(fd.ops.neg(x), [1]), [False, True]))
    return fd


def _scheduled(name: str) -> Callable[[], Callable[..., Any]]:
    """A function of nvFuser's schedules; TENSOR is a placeholder for a result, MORE for its input."""

    def make() -> Callable[..., Any]:
        fd = _static()
        x, y = fd.fusion.inputs()[0], fd.fusion.outputs()[0]
        return given(getattr(nd.schedule, name), y, x)

    return make


def _merged() -> Any:
    with nd.FusionDefinition() as fd:
        fd.add_output(fd.ops.reshape(fd.define_tensor([4, 4], True), [16]))
    return fd.fusion.outputs()[0].get_logical_domain()[0].definition()


def _axes() -> tuple[Any, Any, Any]:
    """The graph of a fusion's axes, and two of them."""
    fd, _ = _direct()
    graph = nd.idm.IdModel(fd).maybe_build_graph(nd.IdMappingMode.exact)
    return graph, fd.fusion.inputs()[0].axis(0), fd.fusion.outputs()[0].axis(1)


def _by_hand() -> nd.KernelExecutor:
    fd = _static()
    fd.sched.split(fd.fusion.outputs()[0], 0, 2)
    executor = nd.KernelExecutor()
    executor.compile(fd, [])
    return executor


def _direct_calls() -> dict[str, Call]:
    """The entry points of `fuser_lab.nvfuser_direct`."""
    known = lambda function: lambda: function  # noqa: E731
    fd, x = _direct()
    rows = [X]
    kind = nd.SchedulerType.pointwise
    executor = nd.KernelExecutor()
    executor.compile(fd.fusion, rows)
    ran = nd.FusionExecutorCache(fd.fusion)
    ran.execute(rows)
    graph, a, b = _axes()
    found = {
        "define_tensor": Call(_in_direct("define_tensor"), ([2, 3],), {
            "contiguity": True, "dtype": DataType.Float, "is_cpu": False, "stride_order": [1, 0],
        }),
        "define_scalar": Call(_in_direct("define_scalar"), (1.0, DataType.Float)),
        "translate_fusion": Call(known(nd.translate_fusion), (fd.fusion,)),
        "validate_with_auto_inferred_outputs": Call(
            known(nd.validate_with_auto_inferred_outputs), (fd.fusion, [-X], rows),
        ),
        "compute_tensor_descriptor": Call(known(nd.compute_tensor_descriptor), ([2, 3], [3, 1])),
        "FusionGuard": Call(known(lambda fusion: nd.FusionGuard(fusion).release()), (nd.Fusion(),)),
        "Fusion": Call(known(nd.Fusion), (None,)),
        "Fusion.add_input": Call(_of_fusion("add_input"), (TENSOR,)),
        "Fusion.add_output": Call(_of_fusion("add_output"), (TENSOR, None)),
        "FusionExecutorCache": Call(known(nd.FusionExecutorCache), (fd.fusion, 0, True)),
        "FusionExecutorCache.execute": Call(known(nd.FusionExecutorCache(fd.fusion).execute), (rows,), {
            "device": None, "_enable_options": [], "_disable_options": [],
        }),
        "FusionExecutorCache.get_cuda_kernel": Call(
            known(nd.FusionExecutorCache(fd.fusion).get_cuda_kernel), (rows,), {"intrinsic_code": True, "device": 0},
        ),
        "FusionExecutorCache.get_scheduled_ir": Call(
            known(nd.FusionExecutorCache(fd.fusion).get_scheduled_ir), (rows,),
            {"tensor_transforms": True, "device": 0},
        ),
        "FusionExecutorCache.is_compiled": Call(
            known(nd.FusionExecutorCache(fd.fusion).is_compiled), (rows,), {"device": 0},
        ),
        "KernelExecutor.compile": Call(lambda: nd.KernelExecutor().compile, (fd.fusion, rows, None, None, kind)),
        "KernelExecutor.run": Call(known(executor.run), (rows, None, None)),
        "LRUCache": Call(known(nd.LRUCache), (3,)),
        "LRUCache.cache_compile": Call(known(nd.LRUCache(3).cache_compile), (fd.fusion,)),
        "LruFusionCache": Call(known(nd.LruFusionCache), (lambda: fd,), {"max_fusions": 3}),
        "PythonProfiler": Call(known(nd.PythonProfiler), (True,)),
        "idm.IdModel": Call(known(nd.idm.IdModel), (fd,)),
        "idm.IdModel.maybe_build_graph": Call(
            known(nd.idm.IdModel(fd).maybe_build_graph), (nd.IdMappingMode.exact,),
        ),
        "pytorch_utils.torch_dtype_to_nvfuser_dtype": Call(
            known(nd.pytorch_utils.torch_dtype_to_nvfuser_dtype), (float,),
        ),
        "pytorch_utils.python_scalar_to_nvfuser_dtype": Call(
            known(nd.pytorch_utils.python_scalar_to_nvfuser_dtype), (1.0,),
        ),
        "schedule.can_schedule": Call(known(nd.schedule.can_schedule), (fd.fusion, kind, rows)),
        "schedule.find_compatible_schedulers": Call(
            known(nd.schedule.find_compatible_schedulers), (fd.fusion, rows),
        ),
        "schedule.compute_heuristics": Call(known(nd.schedule.compute_heuristics), (fd.fusion, kind, rows)),
        "schedule.schedule": Call(lambda: nd.schedule.schedule, (_direct()[0].fusion, kind, rows)),
        "BroadcastOp.input": Call(known(_static().fusion.exprs()[2].input), (0,)),
        "BroadcastOp.output": Call(known(_static().fusion.exprs()[2].output), (0,)),
        "Merge.input": Call(known(_merged().input), (0,)),
        "Merge.output": Call(known(_merged().output), (0,)),
        "Fusion.print_kernel": Call(known(_static().fusion.print_kernel), (None,)),
        "Fusion.print_math": Call(known(fd.fusion.print_math), (True,)),
        "FusionDefinition.add_output": Call(_opened("add_output"), (TENSOR,), {"alias_input": None}),
        "FusionDefinition.define_scalar": Call(_opened("define_scalar"), (1.0, DataType.Float)),
        "FusionDefinition.define_tensor": Call(_opened("define_tensor"), ([2, 3],), {
            "contiguity": True, "dtype": DataType.Float, "is_cpu": False, "stride_order": [1, 0],
        }),
        "FusionDefinition.define_vector": Call(_opened("define_vector"), (2,)),
        "FusionDefinition.from_pytorch": Call(_opened("from_pytorch"), (X, False)),
        "FusionDefinition.print_math": Call(known(fd.print_math), (True,)),
        "FusionExecutorCache.get_most_recent_scheduled_ir": Call(known(ran.get_most_recent_scheduled_ir), (True,)),
        "FusionExecutorCache.plan_for": Call(known(ran.plan_for), (rows,)),
        "IterDomain.parallelize": Call(lambda: _static().fusion.outputs()[0].axis(0).parallelize, (
            ParallelType.grid_x,
        )),
        "KernelExecutor.get_scheduled_ir": Call(known(_by_hand().get_scheduled_ir), (True,)),
        "idm.DisjointSets.strict_are_mapped": Call(known(graph.disjoint_val_sets().strict_are_mapped), (a, b)),
        "idm.ValGraph.map_vals": Call(known(graph.map_vals), (a, b)),
        "pytorch_utils.retry_on_oom_or_skip_test": Call(
            known(nd.pytorch_utils.retry_on_oom_or_skip_test), (lambda: None,),
        ),
        "schedule.bounded_transform_backward": Call(_scheduled("bounded_transform_backward"), (TENSOR, -1, [MORE]), {
            "propagate_parallel_type": False,
        }),
        "schedule.inline_at": Call(_scheduled("inline_at"), (TENSOR, 0), {
            "best_effort": False, "selected_tensors": [],
        }),
        "schedule.inline_most": Call(
            lambda: _closing(nd.FusionDefinition().__enter__(), nd.schedule.inline_most), ([],),
        ),
        "schedule.parallelize_like": Call(_scheduled("parallelize_like"), (TENSOR, -1), {
            "selected_tensors": [], "selected_parallel_types": [], "propagate_padding": True,
        }),
        "schedule.transform_like": Call(_scheduled("transform_like"), (TENSOR, [])),
        "TensorView.size": Call(known(x.size), (0,)),
        "TensorView.axis": Call(known(x.axis), (0,)),
    }
    return {f"nvfuser_direct.{name}": call for name, call in found.items()}


def _removed() -> nvfuser.FusionDefinition:
    with nvfuser.FusionDefinition() as fd:
        fd.add_output(fd.ops.neg(fd.define_tensor([-1, -1], [True, True])))
    return fd


def _open_removed(method: str) -> Callable[[], Callable[..., Any]]:
    """A method of an open definition of the removed frontend; TENSOR is a placeholder for one of its tensors."""

    def make() -> Callable[..., Any]:
        fd = nvfuser.FusionDefinition().__enter__()
        return given(getattr(fd, method), fd.define_tensor([2, 3], [True, True]))

    return make


def _sized() -> Callable[..., Any]:
    return nvfuser.FusionDefinition().__enter__().define_tensor([2, 3], [True, True]).size  # type: ignore[no-any-return]


def _in_schedule(method: str) -> Callable[[], Callable[..., Any]]:
    """A method of ``fd.sched`` inside ``schedule(self)``; TENSOR is a placeholder for a sum, MORE for its operand."""

    def make() -> Callable[..., Any]:
        with nvfuser.FusionDefinition() as fd:
            x = fd.ops.neg(fd.define_tensor([-1, -1], [True, True]))
            y = fd.ops.sum(x, [0, 1])
            fd.add_output(y)
        fd._scheduled_for = [X]
        return given(getattr(fd.sched, method), y, x)

    return make


def _removed_calls(folder: Path) -> dict[str, Call]:
    """The entry points of `fuser_lab.nvfuser`."""
    known = lambda function: lambda: function  # noqa: E731
    fd = _removed()
    fd.execute([X])
    cache = nvfuser.FusionCache(4)
    cache.serialize(folder / "fusions.json")
    kind = nvfuser.SchedulerType.reduction
    found = {
        "FusionCache": Call(known(nvfuser.FusionCache), (4,)),
        "FusionCache.get": Call(known(nvfuser.FusionCache.get), (4, False)),
        "FusionCache.serialize": Call(known(cache.serialize), (folder / "again.json",)),
        "FusionCache.deserialize": Call(lambda: nvfuser.FusionCache(4).deserialize, (folder / "fusions.json",)),
        "FusionDefinition": Call(known(nvfuser.FusionDefinition), (), {"id": None, "max_length": 9}),
        "FusionDefinition.add_output": Call(_open_removed("add_output"), (TENSOR,), {
            "alias_input": None, "stride_order": [1, 0],
        }),
        "FusionDefinition.define_constant": Call(_open_removed("define_constant"), (1.0, DataType.Float)),
        "FusionDefinition.define_scalar": Call(_open_removed("define_scalar"), (1.0, DataType.Float)),
        "FusionDefinition.execute": Call(known(fd.execute), ([X],), {
            "device": None, "override_user_schedule": False, "capture_debug_output": True, "print_repro": True,
            "profile": True, "save_repro_inputs": True, "_enable_options": [], "_disable_options": [],
        }),
        "FusionDefinition.validate": Call(known(fd.validate), ([X],), {"reference_outputs": [-X], "device": None}),
        "FusionDefinition.segment": Call(lambda: _removed().segment, ([X],), {"target": "A100", "options": None}),
        "FusionDefinition.cuda_code_for": Call(known(fd.cuda_code_for), ([X], True, False)),
        "FusionDefinition.last_cuda_code": Call(known(fd.last_cuda_code), (True, False)),
        "FusionDefinition.scheduled_fusion_ir_for": Call(known(fd.scheduled_fusion_ir_for), ([X], True, False)),
        "FusionDefinition.last_scheduled_fusion_ir": Call(known(fd.last_scheduled_fusion_ir), (True, False)),
        "FusionDefinition.getValTolerances": Call(known(fd.getValTolerances), ([X],)),
        "LaunchParams": Call(known(nvfuser.LaunchParams), (), {
            "gdimx": 1, "gdimy": 1, "gdimz": 1, "bdimx": 32, "bdimy": 1, "bdimz": -1,
        }),
        "Tensor.size": Call(_sized, (0,)),
        "clone": Call(lambda: given(nvfuser.clone, _removed(), nvfuser.FusionDefinition()), (TENSOR, MORE)),
        "compute_contiguity": Call(known(nvfuser.compute_contiguity), ([2, 3], [3, 1])),
        "compute_tensor_descriptor": Call(known(nvfuser.compute_tensor_descriptor), ([2, 3], [3, 1])),
        "nvfuser_version.Version.parse": Call(known(nvfuser.nvfuser_version.Version.parse), ("0.2.31",)),
        "Sched.split": Call(_in_schedule("split"), (TENSOR, 0, 2, True)),
        "Sched.merge": Call(_in_schedule("merge"), (MORE, 0, 1)),
        "Sched.reorder": Call(_in_schedule("reorder"), (TENSOR, [1, 0])),
        "Sched.rfactor": Call(_in_schedule("rfactor"), (TENSOR, [1])),
        "Sched.reduction_factor": Call(_in_schedule("reduction_factor"), (TENSOR, [1])),
        "Sched.can_schedule": Call(_in_schedule("can_schedule"), (kind,)),
        "Sched.compute_heuristics": Call(_in_schedule("compute_heuristics"), (kind,)),
        "Sched.schedule": Call(_in_schedule("schedule"), (kind,)),
    }
    return {f"nvfuser.{name}": call for name, call in found.items()}
