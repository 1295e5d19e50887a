"""For every scheduling method, a wrong type gives one sentence that names the method, and changes nothing."""

import inspect
import re

import numpy as np
import pytest

from fuser_lab import nvfuser_direct
from fuser_lab.api.functions import FusionDefinition
from fuser_lab.definition.schedulable import Schedulable
from fuser_lab.errors import ArgumentTypeError, DefinitionError, ScheduleError
from fuser_lab.ir.transform import MemoryType
from fuser_lab.ir.transform import ParallelType as P
from fuser_lab.nvfuser_direct.schedule import Sched

REFUSED_AT_ALL = {"swizzle", "swizzle1d", "set_allocation_domain", "set_device_mesh", "circular_buffer"}


class Scene:
    """x [i0, i1] -> y = exp(x) -> s = sum(y, 1) -> r = sum(s, 0), with s reduced in two loops."""

    def __init__(self):
        with FusionDefinition() as self.fd:
            self.x = self.fd.define_tensor(shape=[-1, -1], contiguity=True)
            self.n = self.fd.define_scalar(2.0)
            self.y = self.fd.ops.exp(self.x)
            self.s = self.fd.ops.sum(self.y, [1])
            self.fd.add_output(self.s)
        self.s.split(1, 4)


# The arguments of each method, with the legal values passed beside the wrong one.
METHODS = {
    "axis": lambda _: {"position": 0},
    "split": lambda _: {"axis": 0, "factor": 2, "inner_split": True},
    "inner_split": lambda _: {"axis": 0, "factor": 2},
    "outer_split": lambda _: {"axis": 0, "factor": 2},
    "merge": lambda _: {"axis_o": 1, "axis_i": 2},
    "reorder": lambda _: {"order": {0: 1}},
    "parallelize": lambda _: {"axis": 0, "ptype": P.grid_x},
    "vectorize": lambda _: {"axis": 0},
    "cache_before": lambda _: {"op_type": None},
    "cache_after": lambda scene: {
        "op_type": None, "cache_op": None, "propagate_allocation_domain": True, "cached_uses": [scene.s],
    },
    "cache_fork": lambda _: {},
    "set_memory_type": lambda _: {"memory_type": MemoryType.shared},
    "rfactor": lambda _: {"axes": [1]},
    "inline_at": lambda _: {"pos": 0, "best_effort": False},
    "inline_most": lambda _: {},
    "compute_at": lambda scene: {"consumer": scene.s, "pos": 0, "mode": "standard"},
    "transform_like": lambda scene: {"selected_tensors": [scene.y]},
    "parallelize_like": lambda scene: {"pos": 1, "selected_tensors": [scene.y], "selected_parallel_types": [P.grid_x]},
    "bounded_transform_backward": lambda scene: {"pos": 1, "to": [scene.y], "propagate_parallel_type": False},
}
# Functions of fd.sched with parameters that the method lacks, or without a method.
ALSO = {
    "inline_at": lambda scene: {"pos": 0, "best_effort": False, "selected_tensors": [scene.y]},
    "parallelize_like": lambda scene: {**METHODS["parallelize_like"](scene), "propagate_padding": True},
    "cache_after": lambda _: {"op_type": None, "cache_op": None},
    "is_reduction": lambda _: {},
    "to_string": lambda _: {},
    "reduction_factor": METHODS["rfactor"],
}
WITHOUT_TENSOR = {
    "undo": lambda _: {"count": 1},
    "user_schedule_ir": lambda _: {"tensor_transforms": False},
    "inline_most": lambda scene: {"selected_tensors": [scene.y]},
    "tensor": lambda _: {"name": "T0"},
    "launch_bounds": lambda _: {"blocks": 2},
    "grid": lambda _: {"blocks": 2},
    "cluster": lambda _: {"blocks": 2},
    "read_again": lambda _: {},
    "set_params": lambda _: {},
    "specialize": lambda _: {"sizes": True},
    "on_blocks": lambda _: {"style": "rows", "nest": 0},
    "on_cores": lambda _: {"style": "rows", "nest": 0},
}
OTHERS = {"transforms", "steps", "to_python", "tensors", "warp_specialize", "can_schedule",
          "find_compatible_schedulers", "compute_heuristics", "schedule"}

WRONG = {
    "None": lambda _: None, "text": lambda _: "a", "float": lambda _: 2.5, "bool": lambda _: True,
    "list": lambda _: ["a"], "tensor": lambda scene: scene.x, "tensors": lambda scene: [scene.x],
    "scalar": lambda scene: scene.n, "array": lambda _: np.ones((2, 2)), "enum": lambda _: MemoryType.tensor,
}
FLAGS = ("inner_split", "best_effort", "propagate_parallel_type", "propagate_allocation_domain", "propagate_padding",
         "tensor_transforms", "sizes")
RIGHT = {
    **dict.fromkeys(FLAGS, ("bool",)),
    **dict.fromkeys(("op_type", "cache_op", "axis_i"), ("None",)),
    **dict.fromkeys(("cached_uses", "selected_tensors", "to"), ("tensor", "tensors")),
    **dict.fromkeys(("tensor", "reference_tv", "from_tv", "consumer"), ("tensor",)),
    "memory_type": ("enum",), "mode": ("text",), "name": ("text",), "style": ("text",),
}


def test_every_method_and_function_is_tried():
    methods = {name for name in vars(Schedulable) if not name.startswith("_")} - {"builder", "val", "scheduled"}
    assert methods - REFUSED_AT_ALL == set(METHODS)
    functions = {name for name in dir(Sched) if not name.startswith("_")}
    assert functions == {*METHODS, *ALSO, *WITHOUT_TENSOR} | OTHERS
    for name, given in METHODS.items():
        assert set(inspect.signature(getattr(Schedulable, name)).parameters) == {"self", *given(Scene())}, name


def first_parameter(name):
    return list(inspect.signature(getattr(Sched, name)).parameters)[1]


def cases():
    """(form, name, parameter, kind of error)."""
    scene = Scene()
    forms = [("method", n, g) for n, g in METHODS.items()] + [("bare", n, g) for n, g in WITHOUT_TENSOR.items()]
    forms += [("function", n, g) for n, g in ({**METHODS, **ALSO}).items() if n not in WITHOUT_TENSOR]
    for form, name, given in forms:
        parameters = [*given(scene), *([first_parameter(name)] if form == "function" else [])]
        for parameter in parameters:
            for kind in WRONG:
                if kind not in RIGHT.get(parameter, ()):
                    yield form, name, parameter, kind


def called(scene, form, name, changed):
    given = (WITHOUT_TENSOR[name] if form == "bare" else ALSO.get(name, METHODS.get(name)))(scene)
    if form == "method":
        return getattr(scene.s, name)(**METHODS[name](scene) | changed)
    if form == "function":
        given[first_parameter(name)] = scene.s
    return getattr(scene.fd.sched, name)(**given | changed)


@pytest.mark.parametrize(("form", "name", "parameter", "kind"), list(cases()))
def test_a_wrong_type_is_one_sentence(form, name, parameter, kind):
    scene = Scene()
    before = scene.fd.sched.transforms
    with pytest.raises(ArgumentTypeError) as raised:
        called(scene, form, name, {parameter: WRONG[kind](scene)})
    sentence = str(raised.value)
    # inner_split and outer_split are splits, vectorize is a form of parallelize.
    owner = {"inner_split": "split", "outer_split": "split", "vectorize": "parallelize", "reduction_factor": "rfactor"}
    assert re.match(rf"({name}|{owner.get(name, name)}): .*, given .*\.$", sentence), sentence
    assert scene.fd.sched.transforms == before


@pytest.mark.parametrize(
    ("name", "given"),
    [("schedule", (3,)), ("schedule", ()), ("schedule", (1, 2, 3)), ("schedule", (None, None, None)),
     ("can_schedule", (1, 2, 3)), ("compute_heuristics", (1, 2, 3)), ("find_compatible_schedulers", (1, 2))],
)
def test_questions_to_schedulers_of_a_wrong_type(name, given):
    with pytest.raises(ArgumentTypeError, match=r"^[^\n]*\.$"):
        getattr(Scene().fd.sched, name)(*given)


FOREIGN = [
    *[(f"fd.sched.{name}", lambda c, o, name=name: called(c, "function", name, {first_parameter(name): o.y}))
      for name in ({**METHODS, **ALSO}) if name not in WITHOUT_TENSOR],
    ("compute_at", lambda c, o: c.y.compute_at(o.s)),
    ("transform_like", lambda c, o: c.s.transform_like([o.y])),
    ("parallelize_like", lambda c, o: c.s.parallelize_like(-1, [c.y, o.y])),
    ("bounded_transform_backward", lambda c, o: c.s.bounded_transform_backward(1, [o.y])),
    ("cache_after", lambda c, o: c.y.cache_after(cached_uses=[o.s])),
    ("inline_most", lambda c, o: c.fd.sched.inline_most([o.s])),
    ("inline_at", lambda c, o: c.fd.sched.inline_at(c.s, 1, selected_tensors=[o.s])),
]


@pytest.mark.parametrize(("name", "act"), FOREIGN, ids=[name for name, _ in FOREIGN])
def test_tensors_of_another_definition_are_refused(name, act):
    scene, other = Scene(), Scene()
    before = scene.fd.sched.transforms, other.fd.sched.transforms
    says = rf"^{name.rpartition('.')[2]}: .* \(T\d_.*\) belongs to another definition\.$"
    with pytest.raises(DefinitionError, match=says.replace("reduction_factor", "rfactor")):
        act(scene, other)
    assert (scene.fd.sched.transforms, other.fd.sched.transforms) == before


def test_undo_takes_a_number():
    sched = Scene().fd.sched
    with pytest.raises(ArgumentTypeError, match="^undo: count must be a whole number, given 'a'.$"):
        sched.undo("a")
    with pytest.raises(ScheduleError, match="^undo: -1 transforms cannot be undone; there are 1.$"):
        sched.undo(-1)
    sched.undo(np.int64(1))
    assert sched.transforms == ()


def test_tensors_are_found_by_name():
    scene = Scene()
    assert str(scene.fd.sched.tensor("T2")) == str(scene.s)
    with pytest.raises(ScheduleError, match="^tensor: 'T9' is not a tensor of the scheduled fusion; there are T0, T1"):
        scene.fd.sched.tensor("T9")


def test_a_result_that_no_output_needs_is_not_taken_for_a_copy():
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[8, 8], contiguity=True)
        y = fd.ops.exp(x)
        dead = fd.ops.neg(x)
        fd.add_output(y)
    copy = x.cache_after()
    assert copy.name == "T3"
    with pytest.raises(ScheduleError, match="^T2 is not a tensor that any output of this fusion needs.$|^split: T2"):
        dead.split(0, 2)


def test_a_loop_can_be_asked_and_run_in_parallel():
    scene = Scene()
    loop = scene.s.axis(0)
    assert (loop.is_reduction(), scene.s.axis(-1).is_reduction(), loop.is_broadcast()) == (False, True, False)
    assert scene.s.axis(2).extent() == 4
    scene.s.reorder({0: 2})
    loop.parallelize(P.block_x)
    assert scene.s.scheduled.parallel_type(2) is P.block_x
    assert str(loop) == str(scene.fd.sched.axis(scene.s, 2)) == "ithreadIdx.x4{i0}"
    gone = scene.s.axis(0)
    scene.s.merge(0)
    with pytest.raises(ScheduleError, match=r"^parallelize: rS6\{.*\} is not, or is no longer, a loop of T2\.$"):
        gone.parallelize(P.block_x)
    with pytest.raises(ScheduleError, match="^axis: axis 2 is out of range; T2 has 2 loops.$"):
        scene.s.axis(2)


def test_splits_and_inlining_have_both_forms():
    by_method, by_function = Scene(), Scene()
    y, sched = by_function.y, by_function.fd.sched
    by_method.y.inner_split(0, 2)
    by_method.y.outer_split(2, 8)
    by_method.y.transform_like([by_method.s])
    sched.inner_split(y, 0, 2)
    sched.outer_split(y, 2, 8)
    sched.transform_like(y, [by_function.s])
    assert by_method.fd.sched.transforms == sched.transforms
    assert str(by_function.y).startswith("T1_l_float[iS8{( ceilDiv(i0, 2) )}, iS9{2}, iS10{8}, iS11{")


def test_one_tensor_is_inlined_as_far_as_is_legal():
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[8, 8], contiguity=True)
        a = fd.ops.exp(x)
        b = fd.ops.neg(a)
        fd.add_output(fd.ops.relu(b))
    a.inline_most()
    assert [t.scheduled.compute_at for t in (a, b)] == [2, 0]


def test_nvfuser_direct_refuses_foreign_tensors_too():
    def made():
        with nvfuser_direct.FusionDefinition() as fd:
            x = fd.define_tensor(shape=[-1, -1], contiguity=True)
            y = fd.ops.exp(x)
            fd.add_output(y)
        return fd, y

    (first, y), (_, other) = made(), made()
    first.sched.split(y, 0, 4)
    with pytest.raises(DefinitionError, match="^split: tensor .* belongs to another definition.$"):
        first.sched.split(other, 0, 4)
