"""Each pass over Kernel IR on its example: the page is current, the pass changes it, and the results are the same."""

import numpy as np
import pytest

from fuser_lab.codegen.kernel_eval import evaluate_kernel
from fuser_lab.codegen.kernel_ir import Statement
from fuser_lab.codegen.kernel_passes import KERNEL_PASSES, KernelPass
from tests.pages.kernel_passes import COMMAND, SIZE, body_of, changed, kernel, page, target_for, text_of

SPECIAL = (np.nan, np.inf, -np.inf, -0.0)


def results(body: tuple[Statement, ...], target: str, x: np.ndarray) -> np.ndarray:
    memory = {"T0": x.copy(), "T1": np.zeros(SIZE, np.float32)}
    evaluate_kernel(kernel(body, target), memory)
    return memory["T1"]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("step", KERNEL_PASSES, ids=lambda step: step.name)
def test_a_pass_rewrites_its_example_and_keeps_results(step: KernelPass) -> None:
    target, body = target_for(step), body_of(step)
    rewritten = changed(step, body)
    before, after = text_of(body, target), text_of(rewritten, target)
    assert before != after, f"{step.name} does not change its example:\n{before}"
    plain = np.linspace(-2, 2, SIZE, dtype=np.float32)
    special = plain.copy()
    special[: len(SPECIAL)] = SPECIAL
    for kind, x in {"finite elements": plain, "NaN, infinities and -0.0": special}.items():
        np.testing.assert_allclose(
            results(rewritten, target, x), results(body, target, x), rtol=1e-6,
            err_msg=f"{step.name} changes results for {kind}.\nbefore:\n{before}\nafter:\n{after}",
        )


def test_an_example_names_only_what_the_page_has() -> None:
    wrong = KernelPass(name="wrong", run=lambda body: body, forms=KERNEL_PASSES[0].forms, example="loop(k, 4)")
    with pytest.raises(ValueError, match="pass 'wrong': its example is no expression with the names of .*: name 'k'"):
        body_of(wrong)


def test_the_page_is_current(repository) -> None:
    path = repository / "docs" / "kernel_passes.md"
    assert path.read_text("utf-8") == page(), f"docs/kernel_passes.md is stale; run {COMMAND}"
