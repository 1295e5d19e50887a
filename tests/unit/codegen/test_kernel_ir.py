"""Rewrites of terms and buffers reach those of every kind of statement."""

from dataclasses import replace
from typing import get_type_hints

import pytest

from fuser_lab.codegen import kernel_ir
from fuser_lab.codegen.kernel_ir import (
    BUFFERS,
    TERMS,
    Buffer,
    Load,
    Role,
    Statement,
    VectorLoad,
    rewrite_statements,
    terms_of,
)
from fuser_lab.dtypes import DataType
from fuser_lab.ir.term import Term, Var, index
from fuser_lab.ir.transform import ParallelType
from tests.unit.codegen.test_vectorize import T0, c, loop

KINDS = [kind for kind in vars(kernel_ir).values() if isinstance(kind, type) and issubclass(kind, Statement)]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_term_and_buffer_of_a_statement_is_listed(kind: type[Statement]) -> None:
    fields = get_type_hints(kind)
    assert {name for name, held in fields.items() if held in (Term, Var)} == set(TERMS.get(kind, ()))
    assert {name for name, held in fields.items() if held is Buffer} == set(BUFFERS.get(kind, ()))


def test_a_rewrite_reaches_vector_accesses_in_loops() -> None:
    words = Buffer(name="words", dtype=DataType.Float, size=4, role=Role.WORDS)
    access = VectorLoad(buffer=T0, position=Load(DataType.Index, T0, c), words=words, slot=index(0), count=4, width=4)
    body = (loop(c, 64, ParallelType.block_x, access),)
    other = replace(T0, name="T9")
    (changed,) = rewrite_statements(
        body, lambda term: index(7) if term == c else None, lambda buffer: other if buffer == T0 else buffer,
    )
    (moved,) = changed.body
    assert (moved.buffer, moved.words) == (other, words)
    assert terms_of(moved) == (Load(DataType.Index, other, index(7)), index(0))
