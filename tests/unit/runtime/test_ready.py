"""Repeated runs: what must be unchanged, and what is written into the arguments."""

import ctypes
from typing import Any

import pytest
from needs import needs

from fuser_lab.runtime.gpu.ready import ReadyRun, ReadyRuns

torch = needs("torch")
KINDS = frozenset({torch.Tensor, torch.nn.Parameter})


class Launch:
    """Records the arguments of launches instead of launching."""

    def __init__(self, names: list[str]) -> None:
        self.words = {name: (ctypes.c_void_p(0) if name != "s" else ctypes.c_double(0),) for name in names}
        self.seen: list[list[Any]] = []

    def __call__(self, stream: int) -> None:
        self.seen.append([stream, *(word.value for (word,) in self.words.values())])


def ready(inputs: list[Any], out: list[Any], stream: int = 7) -> tuple[ReadyRuns, Launch]:
    names = [f"a{n}" if isinstance(v, torch.Tensor) else "s" for n, v in enumerate([*inputs, *out])]
    launch = Launch(names)
    for (word,), value in zip(launch.words.values(), [*inputs, *out], strict=True):
        word.value = value.data_ptr() if isinstance(value, torch.Tensor) else value
    runs = ReadyRuns(KINDS, lambda: stream, lambda: [torch.empty_like(inputs[0])])
    run = ReadyRun(KINDS, 7, inputs, out, [launch.words[n] for n in names], [launch], ())  # type: ignore[list-item]
    if run.is_sound([*inputs, *out]):
        runs.keep(run)
    return runs, launch


def tensors(count: int = 3) -> list[Any]:
    return [torch.arange(12.0).view(3, 4) + n for n in range(count)]


def test_arrays_that_lie_elsewhere_are_put_in_place() -> None:
    x, out, y, other = tensors(4)
    runs, launch = ready([x, 2.0], [out])
    assert runs.started([x, 2.0], [out]) == [out]
    (got,) = runs.started([y, 3.0], [other]) or [None]
    assert got is other
    (new,) = runs.started([y, 3.0], None) or [None]
    assert new is not None
    assert launch.seen == [
        [7, x.data_ptr(), 2.0, out.data_ptr()], [7, y.data_ptr(), 3.0, other.data_ptr()],
        [7, y.data_ptr(), 3.0, new.data_ptr()],
    ]


@pytest.mark.parametrize(
    "change",
    [
        lambda x, out: ([x.t().contiguous().t()], [out]),
        lambda x, out: ([x[:2]], [out]),
        lambda x, out: ([x.double()], [out]),
        lambda x, out: ([x.numpy()], [out]),
        lambda x, out: ([torch._neg_view(x)], [out]),
        lambda x, out: ([x], [out, out]),
        lambda x, out: ([x], [x]),
        lambda x, out: ([torch.arange(14.0)[1:13].view(3, 4)], [out]),
        lambda x, out: ([torch.arange(99.0)[:12].view(3, 4)], [torch.arange(99.0)[4:16].view(3, 4).double()]),
        lambda x, out: ([x, x], None),
        lambda x, out: ([x.double()], None),
        lambda x, out: ([torch.arange(14.0)[1:13].view(3, 4)], None),
    ],
    ids=["strides", "shape", "dtype", "library", "negated", "count", "overlap", "alignment", "dtype of out",
         "count, new outputs", "dtype, new outputs", "alignment, new outputs"],
)
def test_anything_else_goes_the_long_way(change: Any) -> None:
    x, out, _ = tensors()
    runs, launch = ready([x], [out])
    assert runs.started(*change(x, out)) is None
    assert not launch.seen
    assert runs.started([x], [out]) == [out], "the kept run is still there"


def test_whether_gradients_are_wanted_does_not_matter() -> None:
    x, out, y = tensors()
    runs, launch = ready([x], [out])
    assert runs.started([y.requires_grad_()], [out]) == [out]
    assert runs.started([torch.nn.Parameter(y)], [out]) == [out]
    assert launch.seen == [[7, y.data_ptr(), out.data_ptr()]] * 2


def test_without_what_compares_all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fuser_lab.runtime.guards._guards", lambda: None)
    x, out, y = tensors()
    runs, launch = ready([x], [out])
    assert runs.started([y], [out]) == [out]
    assert runs.started([y.double()], [out]) is None
    assert launch.seen == [[7, y.data_ptr(), out.data_ptr()]]


def test_parts_of_one_array_that_overlap_are_seen() -> None:
    base = torch.arange(64.0)
    runs, launch = ready([base[:12].view(3, 4)], [base[16:28].view(3, 4)])
    assert runs.started([base[:12].view(3, 4)], [base[8:20].view(3, 4)]) is None
    assert runs.started([base[:12].view(3, 4)], [base[12:24].view(3, 4)]) is not None
    assert len(launch.seen) == 1


def test_another_stream_has_storage_of_its_own() -> None:
    x, out, _ = tensors()
    runs, launch = ready([x], [out], stream=8)
    assert runs.started([x], [out]) is None
    assert not launch.seen


def test_numbers_of_another_kind_are_converted_on_the_long_way() -> None:
    x, out, _ = tensors()
    runs, _ = ready([x, 2.0], [out])
    assert runs.started([x, 2], [out]) is None
    assert runs.started([x, True], [out]) is None
    runs, _ = ready([x, 2], [out])
    assert runs.started([x, 2], [out]) is None, "a run with an int for a Double is never repeated"


def test_a_run_takes_place_on_one_gpu() -> None:
    from fuser_lab.definition.spec import TensorSpec
    from fuser_lab.dtypes import DataType
    from fuser_lab.errors import InputError
    from fuser_lab.runtime.binding import device_of

    def on(device: str) -> TensorSpec:
        return TensorSpec(shape=(2,), dtype=DataType.Float, strides=(1,), device=device)

    assert device_of([on("cpu"), 2.0]) == "cpu"
    assert device_of([on("cpu"), on("cuda:1"), on("cuda:1")]) == "cuda:1"
    with pytest.raises(InputError, match="are on cuda:0 and cuda:1; a run uses one GPU"):
        device_of([on("cuda:0"), on("cuda:1")])
