"""The public FusionDefinition after its definition: runs, checks, profiles, scripts, options."""

import math
import re

import numpy as np
import pytest
from needs import needs

import fuser_lab as fl
from fuser_lab import DataType, FusionDefinition
from fuser_lab.errors import (
    EmptyDefinitionError,
    InputError,
    StateError,
    UnsupportedDeviceError,
    UnsupportedDtypeError,
    UnsupportedError,
    ValidationError,
)
from fuser_lab.execution.validation import get_val_tolerances, tolerances
from fuser_lab.runtime.plan.executor_cache import LruCache

RNG = np.random.default_rng(0)
X = RNG.standard_normal((6, 8), dtype=np.float32)


def rows_divided():
    with FusionDefinition() as fd:
        t0 = fd.define_tensor(shape=[-1, -1], contiguity=True)
        total = fd.ops.sum(t0, dims=[1], keepdim=True)
        fd.add_output(fd.ops.truediv(t0, total))
    return fd


def test_inputs_may_be_any_iterable_and_nested():
    fd = rows_divided()
    expected = X / X.sum(1, keepdims=True)
    for inputs in ([X], (X,), iter([X]), [[X]], ([(X,)],), (x for x in [X])):
        np.testing.assert_allclose(fd.execute(inputs)[0], expected, rtol=1e-5)


def test_validate_returns_outputs_of_the_inputs_library():
    fd = rows_divided()
    (result,) = fd.validate([X])
    assert isinstance(result, np.ndarray)
    fd.validate([X], [X / X.sum(1, keepdims=True)])
    with pytest.raises(ValidationError, match="output 0, T3.*is wrong in 48 of 48 elements"):
        fd.validate([X], [X])


def test_validate_reads_inputs_before_a_run_overwrites_them():
    x = np.ones((3, 4), np.float32)
    with FusionDefinition() as fd:
        t0 = fd.from_array(x)
        t1 = fd.ops.add(t0, 1.0)
        fd.add_output(t1, t0)
        fd.add_output(fd.ops.mul(t1, 3.0))
    fd.validate([x])
    assert (x == 2).all()


def test_validate_sees_nan_and_infinity():
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.log(fd.define_tensor(shape=[-1], contiguity=True)))
    x = np.array([1.0, 0.0, -1.0], np.float32)
    (result,) = fd.validate([x])
    for place, value in ((1, 3.0), (2, 3.0), (1, np.inf), (0, np.nan)):
        wrong = result.copy()
        wrong[place] = value
        with pytest.raises(ValidationError, match=rf"the worst is at \[{place}\]"):
            fd.validate([x], [wrong])


def test_exact_dtypes_are_compared_exactly():
    x = np.arange(5)
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.mul(fd.from_array(x), 2))
    fd.validate([x])
    with pytest.raises(ValidationError, match=re.escape("at [4]: expected 9, got 8; int64 is exact")):
        fd.validate([x], [np.array([0, 2, 4, 6, 9])])


def test_the_coarsest_dtype_on_the_way_decides_the_tolerance():
    with FusionDefinition() as fd:
        t0 = fd.define_tensor(shape=[4, 4096], contiguity=True)
        half = fd.ops.cast(fd.ops.exp(t0), DataType.Half)
        fd.add_output(fd.ops.sum(fd.ops.cast(half, DataType.Float), [1]))
        fd.add_output(fd.ops.sum(t0, [0, 1]))
        fd.add_output(fd.ops.sum(fd.ops.sum(t0, [1]), [0]))
    coarse, fine, twice = tolerances(fd.fusion)
    assert (coarse.bits, fine.bits) == (11, 24)
    assert coarse.reduction_size == 4096
    assert fine.reduction_size == twice.reduction_size == 4 * 4096
    assert get_val_tolerances(fd, [np.ones((4, 4096), np.float32)])[1] == (2.5e-4, 2.5e-6)


def test_profile():
    fd = rows_divided()
    profile = fd.profile([X])
    assert profile.segments == len(profile.kernel_profiles) == len(fd.plan_for([X]).segments)
    assert profile.kernel_profiles[0].input_bytes == X.nbytes
    assert math.isfinite(profile.host_time_ms)


def test_one_way_of_running():
    fd = rows_divided()
    np.testing.assert_allclose(fd.manual_validate([X])[0], X / X.sum(1, keepdims=True), rtol=1e-5)
    with pytest.raises(StateError):
        fd.execute([X])
    assert fd.fec is None
    fd = rows_divided()
    fd.execute([X])
    with pytest.raises(StateError):
        fd.manual_execute([X])
    assert fd.ke is None
    assert fd.fec.is_compiled([X])


def test_nothing_to_run():
    fd = FusionDefinition()
    assert fd.validate_definition()[0] is False
    for call in (fd.execute, fd.validate, fd.manual_execute, fd.plan_for, fd.reference):
        with pytest.raises(EmptyDefinitionError, match="Fusion does not exist!"):
            call([])
    with FusionDefinition() as fd, pytest.raises(StateError, match="still open"):
        fd.execute([])
    assert fd.validate_definition()[1].startswith("Fusion is empty!")
    assert rows_divided().validate_definition() == (True, "")


def test_options_disable_schedulers():
    with FusionDefinition() as fd:
        t0 = fd.define_tensor(shape=[-1, -1], contiguity=True)
        fd.add_output(fd.ops.pad(fd.ops.neg(t0), [1, 1]))
    expected = np.pad(-X, ((0, 0), (1, 1)))
    np.testing.assert_array_equal(fd.execute([X])[0], expected)
    np.testing.assert_array_equal(fd.execute([X], _disable_options=["resize_scheduler"])[0], expected)
    plan = fl.segment(fd, [X], options=fl.SegmenterOptions(disabled_schedulers=["resize"]))
    assert all(s.scheduler.value != "resize" for s in plan.segments)
    assert plan.hash != fd.plan_for([X]).hash
    names = {}
    exec(plan.to_python(), names)
    assert names["plan"].hash == plan.hash


def test_validate_returns_torch_tensors_for_torch_tensors():
    torch = needs("torch")
    (result,) = rows_divided().validate([torch.from_numpy(X)])
    assert isinstance(result, torch.Tensor)


def test_from_array_of_any_library():
    torch = needs("torch")

    def text(array, **options):
        with FusionDefinition() as fd:
            fd.add_output(fd.ops.neg(fd.from_array(array, **options)))
        return repr(fd).splitlines()[1]

    assert "shape=[-1, -1], contiguity=[True, True], dtype=DataType.Float, is_cpu=False)" in text(X)
    assert "shape=[6, 8]" in text(X, static_sizes=True)
    assert "stride_order=[0, 1]" in text(X.T)
    assert "shape=[-1, 1], contiguity=[True, None]" in text(X[:, :1].copy())
    assert text(torch.from_numpy(X)) == text(X) == text(fl.spec((6, 8)))
    assert "shape=[], contiguity=[], dtype=DataType.Double, is_cpu=True" in text(np.array(1.0))
    with FusionDefinition() as fd:
        with pytest.raises(UnsupportedDeviceError) as raised:
            fd.from_pytorch(torch.ones(3, device="meta"))
        assert isinstance(raised.value, ValueError)
        with pytest.raises(UnsupportedDtypeError) as raised:
            fd.from_array(np.ones(3, np.uint16))
        assert isinstance(raised.value, KeyError)
        assert str(raised.value).startswith("dtype uint16 is not a tensor type of a fusion")
        with pytest.raises(TypeError):
            fd.from_array(3.0)


def test_repro_script_for_numpy_runs_again():
    fd = rows_divided()
    script = fd.repro_script_for([X.T.copy().T])
    names = {}
    exec(script, names)
    assert names["fd"].fusion == fd.fusion
    (again,) = names["inputs"]
    assert (again.shape, again.strides, again.dtype) == (X.shape, X.T.copy().T.strides, X.dtype)
    with pytest.raises(StateError, match="save_repro_inputs"):
        fd.last_repro_script()
    fd.execute([X], save_repro_inputs=True)
    assert fd.last_repro_script() == fd.repro_script_for([X])
    with pytest.raises(InputError):
        fd.repro_script_for([X[0]])


def test_questions_to_schedulers():
    fd = rows_divided()
    names = [s.name for s in fd.sched.find_compatible_schedulers(fd.fusion, [X])]
    assert names == ["inner_persistent"]
    scheduler = fd.plan_for([X]).segments[0].scheduler
    assert fd.sched.can_schedule(fd, scheduler, [fl.spec((6, 8))]) == (True, "")


def test_plans_of_a_definition_are_bounded_and_reused():
    fd = rows_divided()
    assert fd.plan_for([X]) is fd.plan_for([X + 1])
    assert fd.plan_for([X]) is not fd.plan_for([X[:3]])


def test_lru_cache_makes_each_payload_once():
    made = []

    def make(fusion):
        made.append(fusion)
        return object()

    cache = LruCache(1, make)
    first = cache.cached(rows_divided().fusion)
    assert cache.cached(rows_divided().fusion) is first
    with FusionDefinition() as other:
        other.add_output(other.ops.neg(other.define_tensor(shape=[3])))
    cache.cached(other.fusion)
    assert cache.cached(rows_divided().fusion) is not first
    assert len(made) == 3
    assert cache.num_fusions() == 1


def test_what_a_manual_execution_cannot_do():
    fd = rows_divided()
    with pytest.raises(UnsupportedError, match="warps of one block"):
        fd.sched.warp_specialize()
    with pytest.raises(TypeError, match="heuristic_params"):
        fd.manual_execute([X], heuristic_params="pointwise")
