"""The numbers of a definition's values are those of nvFuser's frontend."""

import pytest

from fuser_lab import DataType, FusionDefinition
from fuser_lab.definition.state import StateKind
from fuser_lab.errors import EmptyDefinitionError, StateError


def two_iotas(fd, *, spelled=True):
    """Two ranges; their numbers are defined by the user, or passed to the op."""
    def number(value, dtype):
        return fd.define_scalar(value, dtype=dtype) if spelled else value

    first = fd.ops.iota(*(number(n, DataType.Int) for n in (2, 0, 2)), dtype=DataType.Int)
    rest = (number(3, DataType.Int), number(100, DataType.Int32), number(1, DataType.Int32))
    second = fd.ops.iota(*rest, dtype=DataType.Int32)
    fd.add_output(first)
    fd.add_output(second)


def rows_added(fd, *, keepdim):
    x, y = (fd.define_tensor(shape=[-1, -1], contiguity=True) for _ in range(2))
    if keepdim:
        total = fd.ops.sum(x, dims=[1], keepdim=True)
    else:
        total = fd.ops.broadcast(fd.ops.sum(x, dims=[1]), is_broadcast_dim=[False, True])
    fd.add_output(fd.ops.add(y, total))


def state_of(define, **how):
    with FusionDefinition() as fd:
        define(fd, **how)
    return fd.state


def kinds(state):
    return "".join(s.kind.value[0] for s in state.states)


@pytest.mark.parametrize("spelled", [True, False])
def test_numbers_of_operands_are_states(spelled):
    state = state_of(two_iotas, spelled=spelled)
    assert kinds(state) == "ssstssst"
    assert [s.values[0].value for s in state.states if s.kind is StateKind.SCALAR] == [2, 0, 2, 3, 100, 1]
    assert (state.inputs, state.outputs, state.extents) == ((), (3, 7), ())
    assert state.fid_of == {"T0": 3, "T1": 7}


def test_reduction_broadcast_and_pointwise():
    state = state_of(rows_added, keepdim=False)
    assert kinds(state) == "ttttt"
    assert (state.inputs, state.outputs) == ((0, 1), (4,))
    assert state.extent_fids == (-1, -2, -3, -4)
    assert [str(extent) for extent in state.extents] == ["i0", "i1", "i2", "i3"]
    assert state.fid_of["i0"] == -1
    assert state.fid_of["i3"] == -4


def test_what_an_op_makes_inside_is_numbered_behind_all_states():
    state = state_of(rows_added, keepdim=True)
    assert kinds(state) == "tttt"
    assert state.outputs == (3,)
    # The sum without the broadcast axis.
    assert state.fid_of["T2"] == 4
    assert state.name_of[4] == "T2"


def test_extents_are_overriding_states():
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1, 1, 5], contiguity=[True, None, True])
        n = fd.define_scalar(None, dtype=DataType.Int)
        rows = fd.ops.size(x, 0)
        twice = fd.ops.mul(rows, 2)
        fd.add_output(fd.ops.mul(x, twice))
        fd.add_output(fd.ops.mul(x, n))
    state = fd.state
    # 0: x, 1: n, 2: rows, 3: the number 2, 4: twice
    assert kinds(state)[:5] == "tssss"
    assert state.states[2].values[0].name == rows.name
    assert state.fid_of[rows.name] == -1
    assert state.fid_of[n.name] == 1
    assert state.fid_of[twice.name] == 4
    assert list(state.extents) == [rows.val, 1, 5]
    assert state.inputs == (0, 1)


def test_expanded_inputs_have_the_size_that_is_seen():
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[7, -1], contiguity=[None, True])
        fd.add_output(fd.ops.neg(x))
    assert fd.state.extents[0] == 7


def test_vectors_stand_behind_their_elements():
    with FusionDefinition() as fd:
        v = fd.define_vector(2)
        x = fd.define_tensor(shape=[-1, -1], contiguity=True)
        fd.ops.shape(x)
        fd.add_output(fd.ops.mul(fd.ops.mul(x, v[0]), v[1]))
    assert kinds(fd.state)[:8] == "ssvtssvt"
    assert [value.name for value in fd.state.states[2].values] == [v[0].name, v[1].name]
    assert fd.state.inputs == (0, 1, 3)


def test_attributes_are_no_states_and_unused_values_are():
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1, 4], contiguity=True)
        fd.ops.exp(x)
        fd.define_scalar(3.0)
        average, spread = fd.ops.var_mean(x, dims=[1], correction=1, keepdim=False)
        fd.add_output(fd.ops.where(fd.ops.gt(average, 0.5), spread, 1.0))
    # x, exp, 3.0, two results, 0.5, gt, 1.0, where
    assert kinds(fd.state)[:9] == "ttsttstst"
    assert len(fd.state.states) == 9


def test_copies_that_outputs_need_are_states():
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1, -1], contiguity=True)
        y = fd.ops.neg(x)
        fd.add_output(y)
        fd.add_output(y)
        fd.add_output(y, stride_order=[0, 1])
    assert kinds(fd.state) == "ttt"
    assert fd.state.outputs == (1, 1, 2)


def test_a_tensor_that_an_op_hands_back_keeps_its_number():
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[3], contiguity=True)
        same = fd.ops.expand(x, [3])
        fd.add_output(same)
    assert fd.state.inputs == fd.state.outputs == (0,)


def test_there_is_no_state_before_there_is_a_fusion():
    fd = FusionDefinition()
    with pytest.raises(EmptyDefinitionError):
        _ = fd.state
    with fd:
        fd.add_output(fd.ops.neg(fd.define_tensor(shape=[3])))
        with pytest.raises(StateError, match="still open"):
            _ = fd.state
    assert len(fd.state.states) == 2


def test_text_and_html():
    state = state_of(rows_added, keepdim=True)
    lines = str(state).splitlines()
    assert lines[0].split() == ["fid", "kind", "value", "part"]
    assert lines[1].split() == ["0", "tensor", "T0_g_float[iS0{i0},", "iS1{i1}]", "input"]
    assert lines[4].split()[-1] == "output"
    assert lines[-1].split() == ["-4", "extent", "i3", "size"]
    html = state._repr_html_()
    assert html.count("<tr>") == len(lines)
    assert "<td>output</td>" in html
