"""Positions given as data: loads at them are unconditional, and stay within the tensor."""

from typing import Any

import numpy as np
import pytest
from backend.fusions import D, S, build, numbers
from backend.lookups import LOOKUPS, Lookup

from fuser_lab.codegen.kernel_ir import If, Let, Load, Role, VectorLoad, terms_of, walk
from fuser_lab.codegen.rewrites import depends_on, made_of_data, unconditional
from tests.kernels import generate
from tests.unit.codegen.test_kernels_in_lock_step import run

POINTWISE = [lookup for lookup in LOOKUPS if lookup.scheduler is S.POINTWISE]


@pytest.mark.parametrize("target", ["cpu", "cuda"])
@pytest.mark.parametrize("lookup", POINTWISE, ids=lambda lookup: lookup.name)
def test_no_branch_is_on_a_position_that_is_data(lookup: Lookup, target: str) -> None:
    for phase in generate(lookup.fusion(), S.POINTWISE, target).kernel_ir.phases:
        data = made_of_data(phase.body)
        assert data
        assert not any(isinstance(s, If) and depends_on(s.condition, data) for s in walk(phase.body))
        assert unconditional(phase.body) == phase.body


@pytest.mark.parametrize(("record", "axis", "places"), [
    (lambda fd, x, i: fd.ops.neg(fd.ops.index_select(x, i, 0)), 0, (40,)),
    (lambda fd, x, i: fd.ops.neg(fd.ops.gather(x, i, 1)), 1, (9, 32)),
    (lambda fd, x, i: fd.ops.neg(fd.ops.index_select(x, i, 1)), 1, (33,)),
], ids=["rows", "elements", "columns"])
def test_nothing_is_read_where_positions_are_out_of_range(record: Any, axis: int, places: tuple[int, ...]) -> None:
    """The evaluator refuses every access outside a tensor; such elements are 0."""
    shape = (9, 64)
    fusion, x = build(record, [shape, places], [D.Float, D.Int]), numbers(shape, D.Float)
    wild = np.random.default_rng(0).integers(-200, 200, places)
    wild.flat[:2] = 2**62, -(2**62)
    _, (got,) = run(fusion, S.POINTWISE, "cuda", [x, wild])
    inside = (wild >= 0) & (wild < shape[axis])
    near = np.where(inside, wild, 0)
    taken = np.take(x, near, axis) if len(places) == 1 else np.take_along_axis(x, near, axis)
    if len(places) == 1:
        inside = inside[:, None] if axis == 0 else inside[None]
    np.testing.assert_array_equal(got, np.where(inside, -taken, 0.0))


def test_what_is_read_at_a_position_and_elsewhere_has_two_names() -> None:
    def record(fd: Any, x: Any, i: Any) -> Any:
        return fd.ops.sub(fd.ops.gather(x, i, 1), fd.ops.exp(x))

    fusion = build(record, [(9, 32), (9, 32)], [D.Float, D.Int])
    x, places = numbers((9, 32), D.Float), np.random.default_rng(0).integers(0, 32, (9, 32))
    kernel, (got,) = run(fusion, S.POINTWISE, "cuda", [x, places])
    names = [s.name for phase in kernel.phases for s in walk(phase.body) if isinstance(s, Let)]
    assert len(names) == len(set(names))
    np.testing.assert_allclose(got, np.take_along_axis(x, places, 1) - np.exp(x), rtol=1e-5, atol=1e-5)


def test_branches_on_places_of_the_kernel_itself_stay() -> None:
    fusion = build(lambda fd, x: fd.ops.pad(fd.ops.exp(x), [1, 1]), [(9, 33)], D.Float)
    (phase,) = generate(fusion, S.POINTWISE, "cuda").kernel_ir.phases
    inside = [s for s in walk(phase.body) if isinstance(s, If) and s.otherwise]
    assert inside
    assert unconditional(phase.body) == phase.body


def test_a_row_that_is_looked_up_is_read_with_whole_accesses() -> None:
    shapes = [(500, 768), (600,)]
    fusion = build(lambda fd, x, i: fd.ops.neg(fd.ops.index_select(x, i, 0)), shapes, [D.Float, D.Int])
    (phase,) = generate(fusion, S.POINTWISE, "cuda").kernel_ir.phases
    table = [s for s in walk(phase.body) if isinstance(s, VectorLoad) and s.buffer.name == "T0"]
    assert [s.width for s in table] == [4]
    single = (t for s in walk(phase.body) for root in terms_of(s) for t in root.walk() if isinstance(t, Load))
    assert {t.buffer.name for t in single if t.buffer.role is Role.INPUT} == {"T1"}
