"""Lines of source, schedule and PTX that correspond to the same statements of a kernel."""

import re

import pytest

import fuser_lab as fl
from fuser_lab.codegen.links import machine_lines, schedule_lines, source_lines

LOOP = re.compile(r"\s*for (\w+) in range\((.*)\):  # (\S+)$")


def kernels(target):
    for name in ("softmax", "sum_broadcast_add", "layer_norm_backward"):
        plan = fl.segment(*fl.example(name))
        for segment in plan.segments:
            yield plan, segment, segment.kernel(target)


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_a_loop_of_the_schedule_has_the_lines_of_its_body(target):
    for _, _, generated in kernels(target):
        source = source_lines(generated)
        assert "\n".join(line.text for line in source) == generated.source
        loops = [line for line in schedule_lines(generated) if LOOP.match(line.text)]
        assert loops
        for loop in loops:
            name = LOOP.match(loop.text)[1]
            numbers = [n for n, line in enumerate(source) if line.places & loop.places]
            head = rf"\s*(for {name} in (?:p?range|unrolled)\(|{name} = index32\(cuda\.)"
            assert re.match(head, source[numbers[0]].text)
            assert all(source[n].places <= loop.places for n in range(numbers[0], numbers[-1] + 1))
            behind = source[numbers[-1] + 1].text
            if target == "cpu":
                assert len(behind) - len(behind.lstrip()) <= len(source[numbers[0]].text) - len(
                    source[numbers[0]].text.lstrip(),
                )


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_the_schedule_is_a_call_that_makes_the_same_kernel(target):
    for plan, segment, generated in kernels(target):
        text = "\n".join(line.text for line in schedule_lines(generated, segment.index))
        names = {"plan": plan}
        exec(text.partition("\n\n# loops of")[0], names)
        assert names["plan"].segments[segment.index].source(target) == segment.source(target)
        assert names["plan"] is not plan


def test_parameters_have_the_lines_that_they_decide():
    (segment,) = fl.segment(*fl.example("softmax")).segments
    generated = segment.kernel("cuda")
    source = source_lines(generated)

    def lines(parameter):
        (line,) = (one for one in schedule_lines(generated) if one.text.strip().startswith(f"{parameter}="))
        return [one.text.strip() for one in source if one.places & line.places and "#" not in one.text]

    assert any(text.startswith("load_vector(") for text in lines("vector"))
    assert any("cuda.threadIdx.x" in text for text in lines("threads"))
    assert any("shfl_xor_sync" in text for text in lines("threads"))
    assert any(text.startswith("T5_row[") for text in lines("persistent"))
    assert lines("specialized") == []


def test_machine_code_is_linked_by_its_line_numbers():
    (segment,) = fl.segment(*fl.example("softmax")).segments
    generated = segment.kernel("cuda")
    number = next(n for n, text in enumerate(generated.source.split("\n"), 1) if "store_vector(T9" in text)
    text = f".visible .entry k(\n)\n{{\n\t.loc\t1 {number} 1\n\tst.global.v4.u32 \t[%rd1], x;\n$L__BB0_1:\n\tret;"
    text += "\n\t.loc\t1 9999 1\n\tmov.u32 \t%r1, 0;"
    found = machine_lines(text, generated)
    assert [bool(line.places) for line in found] == [False, False, False, False, True, False, False, False, False]
    assert found[4].places == source_lines(generated)[number - 1].places
