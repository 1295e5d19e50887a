"""Values that some branches of a block need, and the block itself after them: they are computed once, before them.

The channels of an image are normalized before a window that reads beyond its edges, so that each element of the window
is in a branch, and the factors of its channel with it. The element in the middle is inside every image.
"""

from collections import defaultdict

from fuser_lab.codegen.kernel_ir import Block, If, Let, Load, Role, map_blocks, walk
from fuser_lab.codegen.rewrites import name_set_by, without
from fuser_lab.ir.term import Term, variables_in

EXAMPLE = """
loop(
    c, 16, block_x,
    choose(
        c < 4, then=[let(t0, T0[c]), let(t1, t0 * t0), let(t2, t1 * 2.0)], otherwise=[let(t2, number(0.0))],
    ),
    let(t0, T0[c]), let(t1, t0 * t0), store(T1, c, t2 + t1),
)
"""


def with_early_values(body: Block) -> Block:
    """Return statements in which values that a block needs in any case come before the branches that need them."""
    block = tuple(map_blocks(statement, with_early_values) for statement in body)
    first = next((place for place, statement in enumerate(block) if isinstance(statement, If)), None)
    if first is None:
        return block
    early = _early(block[first:])
    return (*block[:first], *early, *without(block[first:], {let.name for let in early})) if early else block


def _early(block: Block) -> tuple[Let, ...]:
    """Return the values of a block that it assigns after branches in which they are assigned as well."""
    assigned = defaultdict[str, list[Term | None]](list)  # None for what is not a value
    for statement in walk(block):
        if (name := name_set_by(statement)) is not None:
            assigned[name].append(statement.value if isinstance(statement, Let) and not statement.update else None)
    early = dict[str, Let]()
    in_branches = set[str]()
    for statement in block:
        match statement:
            case If():
                in_branches |= {s.name for s in walk((statement,)) if isinstance(s, Let)}
            case Let(name=name, value=value) if name in in_branches and name not in early:
                read = variables_in([value])
                has_operands = _is_of_inputs(value) and read.isdisjoint(assigned.keys() - early.keys())
                if has_operands and set(assigned[name]) == {value}:
                    early[name] = statement
    return tuple(early.values())


def _is_of_inputs(value: Term) -> bool:
    """Whether a value reads no memory that the kernel writes."""
    return all(term.buffer.role is Role.INPUT for term in value.walk() if isinstance(term, Load))
