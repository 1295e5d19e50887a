"""The arguments that the CUDA driver receives for a launch, recorded by a function in its place."""

import ctypes
from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest

from fuser_lab.codegen.kernel_ir import Buffer, Phase, Role, Size
from fuser_lab.codegen.kernel_ir import Launch as LaunchShape
from fuser_lab.dtypes import DataType
from fuser_lab.runtime.environment import Environment
from fuser_lab.runtime.gpu import device, driver
from fuser_lab.runtime.recent import Recent

_UINT, _PLACE = ctypes.c_uint, ctypes.c_void_p
_SIGNATURE = ctypes.CFUNCTYPE(ctypes.c_int, _PLACE, *(_UINT,) * 7, _PLACE, ctypes.POINTER(_PLACE), _PLACE)
_HUGE = (1 << 47) + 1  # an address that does not fit in 32 bits


@pytest.fixture
def handed(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The driver's arguments, call by call; its results are taken from the last element, a list."""
    seen: list[Any] = [[]]

    def receive(*given: Any) -> int:
        *head, stream, places, extra = given
        numbers = ctypes.cast(places[0], ctypes.POINTER(ctypes.c_void_p)).contents.value
        factor = ctypes.cast(places[1], ctypes.POINTER(ctypes.c_double)).contents.value
        seen.insert(-1, (*head, stream, numbers, factor, extra))
        return seen[-1].pop(0) if seen[-1] else 0

    callback = _SIGNATURE(receive)
    address = ctypes.cast(callback, ctypes.c_void_p).value
    function: Any = ctypes.CDLL(None)._FuncPtr(address)
    contexts: list[str] = []
    library = SimpleNamespace(
        kept=callback, cuCtxPushCurrent_v2=lambda _: contexts.append("push"),
        cuCtxPopCurrent_v2=lambda _: contexts.append("pop"),
    )
    monkeypatch.setattr(driver, "_launcher", lambda: function)
    monkeypatch.setattr(driver, "_library", lambda: library)
    monkeypatch.setattr(driver, "failure", lambda status, what: f"{what} failed: {status}")
    seen.insert(0, contexts)
    return seen


def launch() -> driver.Launch:
    function: Any = SimpleNamespace(handle=_HUGE, context=5, device=0, reserve=lambda _: None)
    phase = Phase(
        name="kernel", buffers=(), scalars=(), body=(), launch=LaunchShape(blocks=7, threads=(32, 4), shared=50_000),
    )
    words = {"x": (ctypes.c_void_p(_HUGE + 1),), "s": (ctypes.c_double(0.5),)}
    return driver.Launch(function, phase, words)


def test_arguments_are_whole_and_read_when_it_is_launched(handed: list[Any]) -> None:
    one = launch()
    one(_HUGE + 2)
    (word,) = one.words["x"]
    word.value = _HUGE + 9
    one(_HUGE + 2)
    one(0)
    expected = (_HUGE, 7, 1, 1, 32, 4, 1, 50_000)
    assert handed[1:-1] == [
        (*expected, _HUGE + 2, _HUGE + 1, 0.5, None), (*expected, _HUGE + 2, _HUGE + 9, 0.5, None),
        (*expected, None, _HUGE + 9, 0.5, None),
    ]


@pytest.mark.parametrize("status", [201, 400])
def test_where_another_context_is_current_the_kernels_own_is_for_the_launch(handed: list[Any], status: int) -> None:
    handed[-1].append(status)
    launch()(3)
    assert handed[0] == ["push", "pop"]
    assert len(handed[1:-1]) == 2


def test_a_row_of_launches_goes_on_where_it_was_refused(handed: list[Any]) -> None:
    row = driver.Launches([launch(), launch(), launch()])
    handed[-1].extend([0, 201])
    row(3)
    assert handed[0] == ["push", "pop"]
    assert len(handed[1:-1]) == 4
    row(3)
    assert len(handed[1:-1]) == 7, "from the first again"
    handed[-1].extend([0, 700])
    with pytest.raises(RuntimeError, match="launching kernel failed: 700"):
        row(3)
    assert len(handed[1:-1]) == 9
    row(3)
    assert len(handed[1:-1]) == 12


def test_what_the_driver_refuses_is_raised(handed: list[Any]) -> None:
    handed[-1].append(700)
    with pytest.raises(RuntimeError, match="launching kernel failed: 700"):
        launch()(3)
    handed[-1].append(2)
    with pytest.raises(MemoryError, match="launching kernel failed: 2"):
        launch()(3)


def test_a_module_is_unloaded_in_its_context_once_nobody_holds_its_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[Any] = []
    alive = [True]

    def noted(name: str) -> Any:
        return lambda *given: done.append((name, *given)) or (0 if alive[0] else 201,)

    monkeypatch.setattr(driver, "_UNUSED", deque())
    monkeypatch.setattr(driver, "bindings", lambda: SimpleNamespace(
        cuModuleLoadData=lambda cubin: (0, cubin.decode()), cuModuleGetFunction=lambda *_: (0, 7),
        cuCtxGetCurrent=lambda: (0, 5), CUcontext=int, cuCtxPushCurrent=noted("push"), cuCtxSynchronize=noted("wait"),
        cuModuleUnload=noted("unload"), cuCtxPopCurrent=noted("pop"),
    ))
    phase = Phase(name="kernel", buffers=(), scalars=(), body=(), launch=LaunchShape(blocks=1, threads=(32, 1)))
    kept = Recent[str, driver.Function](1)
    held = kept.keep("a", driver.Function(b"a", "entry", phase, 0))
    kept.keep("b", driver.Function(b"b", "entry", phase, 0))
    driver.unload_unused()
    assert not done, "evicted kernels are still referenced, by a plan or a launch"
    kept.keep("c", driver.Function(b"c", "entry", phase, 0))
    assert not done, "nothing is unloaded where the last reference disappears"
    driver.unload_unused()
    assert done == [("push", 5), ("wait",), ("unload", "b"), ("pop",)]
    del held
    alive[0] = False
    driver.unload_unused()
    assert done[4:] == [("push", 5)], "a destroyed context has already unloaded its modules"


def test_a_function_reserves_the_most_shared_memory_of_its_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[Any] = []
    attribute = SimpleNamespace(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES="bytes")
    monkeypatch.setattr(driver, "_UNUSED", deque())
    monkeypatch.setattr(driver, "bindings", lambda: SimpleNamespace(
        cuModuleLoadData=lambda _: (0, 1), cuModuleGetFunction=lambda *_: (0, 7), cuCtxGetCurrent=lambda: (0, 5),
        CUcontext=int, CUfunction=int, CUfunction_attribute=attribute, cuCtxPopCurrent=lambda: done.append("pop"),
        cuCtxPushCurrent=lambda context: done.append(("push", context)) or (0,),
        cuFuncSetAttribute=lambda *given: done.append(given) or (0,),
    ))

    def phase(nbytes: int) -> Phase:
        shape = LaunchShape(blocks=1, threads=(32, 1), shared=nbytes)
        return Phase(name="kernel", buffers=(), scalars=(), body=(), launch=shape)

    function = driver.Function(b"a", "entry", phase(0), 0)
    launches = [driver.Launch(function, phase(nbytes), {}) for nbytes in (0, 60_000, 50_000, 60_000, 70_000)]
    assert [one.shape[-1] for one in launches] == [0, 60_000, 50_000, 60_000, 70_000]
    assert done == [("push", 5), (7, "bytes", 60_000), "pop", ("push", 5), (7, "bytes", 70_000), "pop"]


def test_sizes_are_words_behind_the_buffers() -> None:
    phase = Phase(
        name="kernel", buffers=(Buffer(name="T0", dtype=DataType.Float, size=8, role=Role.INPUT),), scalars=(), body=(),
        sizes=(Size(name="n0", dtype=DataType.Index, value=1 << 40), Size(name="n1", dtype=DataType.Float, value=3)),
    )
    function: Any = SimpleNamespace(handle=1, context=2, device=0, reserve=lambda _: None)
    generated: Any = SimpleNamespace()
    call = device.DeviceCall(
        function=function, phase=phase, generated=generated, parameters=(("T0", (ctypes.c_void_p,)),),
    )
    words = call.launch(Environment(arguments={"T0": 4096})).words
    assert list(words) == ["T0", "n0", "n1"]
    assert [(type(word), word.value) for group in words.values() for word in group] == [
        (ctypes.c_void_p, 4096), (ctypes.c_int64, 1 << 40), (ctypes.c_float, 3.0),
    ]


def test_the_least_recently_used_modules_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[str] = []

    def function(cubin: str, *_: Any) -> SimpleNamespace:
        loaded.append(cubin)
        return SimpleNamespace()

    stream = SimpleNamespace(synchronize=lambda: None)
    here = SimpleNamespace(get_device_capability=lambda _: (9, 0), current_stream=lambda: stream)
    monkeypatch.setattr(device, "_torch", lambda: SimpleNamespace(cuda=here, empty=lambda *_, **__: None))
    monkeypatch.setattr(device, "kernel_key", lambda generated: generated)
    monkeypatch.setattr(
        device, "machine_code_of", lambda generated, _: [SimpleNamespace(cubin=generated, entry="", phase=None)],
    )
    monkeypatch.setattr(device, "Function", function)
    monkeypatch.setattr(device, "_FUNCTIONS", Recent(2))
    kernels: Any = ["a", "b", "a", "c", "a", "b"]
    for kernel in kernels:
        device._load(kernel, 0)
    assert loaded == ["a", "b", "c", "b"]
