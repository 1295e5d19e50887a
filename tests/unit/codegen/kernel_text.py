"""Kernel IR as text, for tests of what a pass reads and returns."""

from dataclasses import replace
from textwrap import dedent

from fuser_lab.codegen.kernel_ir import Statement
from fuser_lab.codegen.kernel_passes import KERNEL_PASSES
from fuser_lab.targets import target_of
from tests.unit.codegen.test_vectorize import kernel


def text_of(body: tuple[Statement, ...], target: str) -> str:
    """The statements of a phase as the target prints them."""
    source = target_of(target).emitter()(replace(kernel(*body), target=target)).source().text
    return dedent(source.rpartition("\ndef ")[2].partition(":\n")[2])


def texts_of(name: str, body: tuple[Statement, ...], target: str) -> tuple[str, str]:
    """The statements before and after the pass of a name."""
    run = next(step.run for step in KERNEL_PASSES if step.name == name)
    return text_of(body, target), text_of(run(body), target)
