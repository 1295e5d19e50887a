"""Hostile texts as dumps: a timely result, nothing executed, no errors other than our own."""

import time
from contextlib import suppress

import pytest
from machine import allowed

import fuser_lab as fl
from fuser_lab import FusionDefinition

HEAD = "Inputs:\n  T0_g[ iS0{i0} ]\n%kernel_math {\n"
CHAIN = "T{b}_l[ iS0{{i0}} ]\n  = T{a}_l[ iS0{{i0}} ]\n  + T{a}_l[ iS0{{i0}} ];\n"
SIZE = 10**7
TEXTS = {
    "parentheses": f"{HEAD}T1_g[ iS0{{i0}} ] = {'(' * SIZE}",
    "braces": f"{HEAD}T1_g[ iS0{{i0}} ] = f( T0, {'{' * SIZE}",
    "minus": f"{HEAD}T1_g[ iS0{{i0}} ] = {'-' * 90_000}T0;\n}}",
    "sums": f"{HEAD}T1_g[ iS0{{i0}} ] = {'T0 + ' * 15_000}T0;\n}}",
    "spaces": " " * SIZE,
    "zeros": "0" * SIZE,
    "words": "a" * (SIZE // 2) + " " * (SIZE // 2),
    "quotes": "> " * (SIZE // 2),
    "values": "T1_l[iS0{i0}]\n" * (SIZE // 14),
    "commas": HEAD + "T1_g[ iS0{i0} ],\n" * (SIZE // 17),
    "calls": f"{HEAD}T1_g[ iS0{{i0}} ] = f(\n" + "T1_g[ iS0{i0} ]\n" * (SIZE // 16),
    "axes": f"Inputs:\nT0_g[ {'iS0{i0},' * (SIZE // 8)} ]\n%kernel_math {{\nT1_g[ iS0{{i0}} ] = -T0;\n}}\n",
    "chain": HEAD + "".join(CHAIN.format(a=i, b=i + 1) for i in range(SIZE // 68)),
    "edges": f"groups:\ne{{ a{{{'1,' * (SIZE // 4)}}} -> b{{1}}(T1) }}\n" + "pointwise{0}\n" * (SIZE // 26),
    "groups": "group details:\n" + "g{(pointwise)\n" * (SIZE // 14),
    "refusals": "Scheduler _a_ ***rejected*** because : x\n" * (SIZE // 41),
    "comment": f"{HEAD}T1_g[ iS0{{i0}} ] = -T0_g[ iS0{{i0}} ];\n}}\n// fuser_lab: T1 {'[' * SIZE}",
    "size": f"{HEAD}T1_g[ iS0{{{'9' * 5000}}} ] = -T0_g[ iS0{{i0}} ];\n}}\n",
    "power": HEAD.replace("i0}", f"{'(' * 30}2{' * 9223372036854775807)' * 30}}}") + "T1_g[ iS0{i0} ] = -T0;\n}",
}


@pytest.mark.parametrize("name", TEXTS)
def test_ten_megabytes_end_in_time(name):
    start = time.process_time()
    with suppress(fl.FuserLabError):
        fl.load_dump(TEXTS[name])
    assert time.process_time() - start < allowed(10)


@pytest.mark.parametrize(
    "comment",
    [
        '// fuser_lab: T1 {"op": "__class__", "attrs": []}',
        '// fuser_lab: T1 {"op": "sum", "attrs": [["dims", "os"]]}',
        '// fuser_lab: T1 {"op": "permute", "attrs": [["dims", [5]]]}',
        '// fuser_lab: T1 {"allocation": [7]}',
        '// fuser_lab: T1 {"repeats": "T1"}',
        '// fuser_lab: fusion {"aliases": [["T1", "T1"]]}',
        '// fuser_lab: fusion {"stride_orders": [["T1", [9]]]}',
        '// fuser_lab: T0 {"contiguity": [null, null]}',
    ],
)
def test_comments_are_data_too(comment):
    text = f"{HEAD}T1_g[ iS1{{i0}} ] = -T0_g[ iS0{{i0}} ];\n}}\n{comment}\n"
    with suppress(fl.FuserLabError):
        assert fl.load_dump(text).fd.fusion.exprs[0].op.name in {"neg", "permute", "sum"}


@pytest.mark.benchmark
def test_five_thousand_expressions_load_in_two_seconds():
    with FusionDefinition() as fd:
        v = fd.define_tensor(shape=[256, 256], contiguity=True)
        for _ in range(1250):
            v = fd.ops.tanh(fd.ops.add(v, fd.ops.broadcast(fd.ops.sum(v, dims=[1]), [False, True])))
        fd.add_output(v)

    def eights(fusion, oracle):
        names = [expr.name for expr in fusion.exprs]
        return [names[i : i + 8] for i in range(0, len(names), 8)]

    text = fl.segment(fd, strategy=eights, passes=()).to_dump()
    start = time.process_time()
    assert len(fl.load_dump(text).fd.fusion.exprs) == 5000
    assert time.process_time() - start < allowed(2)
