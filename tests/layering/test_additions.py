"""The counts of CONTRIBUTING: an addition touches as many files as stated there, and then works.

A toy of each kind is added to a copy of the packages, which links to all unchanged files.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]

# For each kind of addition: the files that it creates, and the lines that it adds to others, by the line after them.
ADDITIONS: dict[str, tuple[dict[str, str], dict[str, dict[str, str]]]] = {
    "an op": (
        {},
        {
            "fuser_lab/ops/pointwise.py": {
                'pointwise("add", _binary("add"), np.add, "lhs + rhs.", arity=2)': """pointwise(
    "toy_op",
    lambda x: x / (1 + t.apply("abs", x)),
    lambda x: x / (1 + np.abs(x)),
    "x / (1 + |x|).",
    FLOAT,
)

""",
            },
        },
    ),
    "a pass": (
        {
            "fuser_lab/passes/toy.py": '''from dataclasses import dataclass
from typing import ClassVar

from fuser_lab.ir import Fusion
from fuser_lab.passes.annotations import with_segment_set
from fuser_lab.passes.base import Pass


@dataclass(frozen=True, slots=True, kw_only=True)
class ToyPass(Pass):
    """Puts segment_set behind each toy op."""

    name: ClassVar[str] = "toy_pass"
    example: ClassVar[str] = """
        x = fd.define_tensor([4, 6])
        fd.add_output(fd.ops.sin(fd.ops.toy_op(x)))
    """

    def run(self, fusion: Fusion) -> Fusion:
        for expr in fusion.exprs:
            readers = fusion.users.get(expr.out, ())
            if expr.op.name == "toy_op" and any(reader.op.name != "segment_set" for reader in readers):
                fusion = with_segment_set(fusion, expr.name)
        return fusion
''',
        },
        {
            "fuser_lab/passes/__init__.py": {
                "PRESEGMENTATION = PassPipeline(": "from fuser_lab.passes.toy import ToyPass\n",
                "        ExplicitSeeds(),": "        ToyPass(),\n",
            },
        },
    ),
    "a rewrite of Kernel IR": (
        {
            "fuser_lab/codegen/toy_notes.py": '''from dataclasses import replace

from fuser_lab.codegen.kernel_ir import Loop, Store

EXAMPLE = "loop(c, 64, serial, let(t0, T0[c]), store(T1, c, t0))"


def noted(body):
    """Puts a note on each store."""
    found = []
    for statement in body:
        if isinstance(statement, Store):
            found.append(replace(statement, note="a toy marks this store"))
        elif isinstance(statement, Loop):
            found.append(replace(statement, body=noted(statement.body)))
        else:
            found.append(statement)
    return tuple(found)
''',
        },
        {
            "fuser_lab/codegen/kernel_passes.py": {
                "from fuser_lab.codegen.kernel_ir import Block": "from fuser_lab.codegen import toy_notes\n",
                '    KernelPass(name="divided_loops", run=long_loops.divide_long_loops, forms=_CORES, '
                'example=long_loops.EXAMPLE),': (
                    '    KernelPass(name="toy_notes", run=toy_notes.noted, forms=_CORES, example=toy_notes.EXAMPLE),\n'
                ),
            },
        },
    ),
    "a scheduler": (
        {
            "fuser_lab/schedule/toy.py": '''from dataclasses import dataclass, replace

from fuser_lab.cost.reasons import ReasonCode
from fuser_lab.cost.verdict import SchedulerType, accept
from fuser_lab.schedule.base import Heuristics, no


@dataclass(frozen=True, slots=True)
class Toy(Heuristics):
    """Takes toy ops that are alone with their copy."""

    type: SchedulerType = SchedulerType.TOY

    def can_schedule(self, facts, device):
        ops = [expr.op.name for expr in facts.candidate.exprs]
        if ops == ["toy_op", "segment_set"]:
            return accept(self.type)
        return no(self.type, ReasonCode.OWN_RULE, *facts.names, text="a toy takes toy ops only")

    def propose(self, space, target):
        loops = Heuristics.propose(self, space, target)
        return replace(loops, unroll=1, reasons=("a toy loads one step at a time",))
''',
        },
        {
            "fuser_lab/cost/scheduler_type.py": {'    GREEDY = "greedy"': '    TOY = "toy"\n'},
            "fuser_lab/schedule/registry.py": {
                "    ExprEval(),": "    Toy(),\n",
                "from fuser_lab.schedule.transpose import Transpose": "from fuser_lab.schedule.toy import Toy\n",
            },
            "tests/backend/fusions.py": {
                '    Case(name="zero-dim", record=lambda fd, x: fd.ops.exp(x), shapes=((),)),': (
                    '    Case(name="toy", record=lambda fd, x: fd.ops.toy_op(x), shapes=((9, 17),), scheduler=S.TOY),\n'
                ),
            },
        },
    ),
    "a kernel parameter": (
        {},
        {
            "fuser_lab/schedule/state.py": {
                "    evict: Evict = Evict.NORMAL": "    toy: int = 0\n",
                '    _row("parallel", "distributed over cores", *frozenset(_K) - _BLOCKS, is_flag=True),': (
                    '    _row("toy", "blocks per multiprocessor, as a toy", _K.BLOCK_ELEMENTS, tried=(1, 2)),\n'
                ),
            },
            "fuser_lab/codegen/gpu_common.py": {
                "    return replace(phase, launch=replace(phase.launch, shared=shared, resident=resident))": (
                    "    resident = plan.schedule.toy or resident\n"
                ),
            },
        },
    ),
    "a target": (
        {
            "toy_target/__init__.py": """from fuser_lab.targets import register
from toy_target.record import TOY

register(TOY)
""",
            "toy_target/record.py": """from fuser_lab.codegen.kernel_eval import evaluate_kernel
from fuser_lab.codegen.numba_cpu import CpuEmitter
from fuser_lab.runtime.clocks import HostClock
from fuser_lab.runtime.cpu.host import HostMemory
from fuser_lab.targets import Form, Target


class ToyMemory(HostMemory):
    target = "toy"

    def __init__(self, number):
        pass

    def calls(self, generated):
        return (lambda env: evaluate_kernel(generated.kernel_ir, env.arguments),)

    def ready_runs(self, outputs, check=None):
        return None


TOY = Target(
    name="toy", form=Form.CORES, on_host=True, emitter=lambda: CpuEmitter, memory=lambda: ToyMemory,
    clock=lambda: HostClock, label="Toys",
)
""",
        },
        {},
    ),
    "a view": (
        {},
        {
            "widgets/fuser_lab_widgets/tabs.py": {
                '    View("segments", "Segments", "Cost"),': """    View(
        "toy", "Toy", "Cost", lambda shown: f"<p>a toy with {len(shown.plan.segments)} segments</p>",
    ),
""",
            },
        },
    ),
}

USED = """
import numpy as np
import fuser_lab as fl
import toy_target
from fuser_lab_widgets.baked import bake

with fl.FusionDefinition() as fd:
    x = fd.define_tensor(shape=[3, 4], contiguity=True, dtype=fl.DataType.Float)
    fd.add_output(fd.ops.sin(fd.ops.toy_op(x)))
assert "fd.ops.toy_op(tv0)" in repr(fd), fd

plan = fl.segment(fd)
assert [one.name for one in plan.decisions.passes] == ["toy_pass"], plan.decisions
assert [[e.op.name for e in s.exprs] for s in plan.segments] == [["toy_op", "segment_set"], ["sin"]]
first, second = plan.segments
assert [v.accepted for v in first.verdicts] == [True], first.verdicts
assert "a toy takes toy ops only" in second.verdicts[0].text, second.verdicts

assert "a toy loads one step at a time" in str(first.schedule)
assert "# a toy marks this store" in second.source("cpu")
assert "a toy" not in second.source("cuda")

x = np.linspace(-3, 3, 12, dtype=np.float32).reshape(3, 4)
for out in (*plan.prepare("toy").run([x]), *fd.reference([x])):
    np.testing.assert_allclose(out, np.sin(x / (1 + np.abs(x))), rtol=1e-5, atol=1e-6)

changed = plan.with_params(1, target="cuda", toy=2)
assert "fd.sched.set_params(toy=2)" in str(changed.segments[1].schedule)
again = plan.with_schedule(1, str(changed.segments[1].schedule))
assert again.segments[1].params("cuda")[0].values["toy"] == 2

assert "generated for toy" in first.source("toy")
page = str(bake([plan], None))
assert "'target': 'toy', 'view': 'source', 'label': 'Toys'" in page
assert "['toy', 'Toy', 'Cost']" in page
assert "a toy with 2 segments" in page
"""


# Tests of whole registries, and the part of them that concerns the additions.
REGISTRY_WIDE = (
    "unit/ops/test_samples.py", "unit/ops/test_misuses.py", "unit/ops/test_against_torch.py",
    "unit/passes/test_rewrites.py", "unit/passes/test_required_orders.py", "unit/report/test_pass_diff.py",
    "unit/schedule/test_own.py", "unit/runtime/test_sanitize.py", "unit/codegen/test_named_constants.py",
    "unit/codegen/test_kernels_in_lock_step.py", "unit/codegen/test_pass_texts.py",
    "unit/schedule/test_parameter_effects.py",
)
CONCERNED = (
    "toy or every_op or every_scheduler or passes_have_names or text_and_json or answers_that_are_none or your_own"
    " or illegal_proposal"
)


def linked(source: Path, target: Path, changed: set[str], here: str = "") -> None:
    """Copies a folder, with links to everything that contains no changed file."""
    target.mkdir()
    for entry in source.iterdir():
        path = f"{here}{entry.name}"
        if any(file.startswith(f"{path}/") for file in changed):
            linked(entry, target / entry.name, changed, f"{path}/")
        elif path not in changed:
            (target / entry.name).symlink_to(entry)


def placed(text: str, additions: dict[str, str]) -> str:
    """A file with added lines, each before the line that it is listed under."""
    for line, added in additions.items():
        assert text.count(f"{line}\n") == 1, line
        text = text.replace(f"{line}\n", f"{added}{line}\n")
    return text


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("additions")
    changed = {file for _, files in ADDITIONS.values() for file in files} | {"tests/conftest.py"}
    touched = changed | {file for files, _ in ADDITIONS.values() for file in files}
    (root / "pyproject.toml").symlink_to(REPOSITORY / "pyproject.toml")
    for package in ("fuser_lab", "widgets", "tests"):
        linked(REPOSITORY / package, root / package, {f for f in touched if f.startswith(package)}, f"{package}/")
    shutil.copy(REPOSITORY / "tests/conftest.py", root / "tests")  # its own path is that of the copy
    for files, changes in ADDITIONS.values():
        for file, text in files.items():
            (root / file).parent.mkdir(exist_ok=True)
            (root / file).write_text(text, encoding="utf-8")
        for file, additions in changes.items():
            text = (REPOSITORY / file).read_text(encoding="utf-8")
            (root / file).write_text(placed(text, additions), encoding="utf-8")
    return root


def run(copy: Path, *arguments: str) -> None:
    """Run Python with the copy of the packages, without the settings of this run of pytest."""
    env = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("FUSER_LAB_", "PYTEST_"))},
        "PYTHONPATH": os.pathsep.join((str(copy), str(copy / "widgets"))), "PYTHONDONTWRITEBYTECODE": "1",
    }
    done = subprocess.run(
        [sys.executable, *arguments], cwd=copy, env=env, capture_output=True, text=True, check=False, timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_toy_of_each_kind_works(copy: Path) -> None:
    run(copy, "-c", USED)


def test_tests_of_whole_registries_pass_with_the_additions(copy: Path) -> None:
    files = [f"tests/{file}" for file in REGISTRY_WIDE]
    run(copy, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-x", "-k", CONCERNED, *files)


def test_contributing_says_what_they_touch() -> None:
    text = (REPOSITORY / "CONTRIBUTING.md").read_text(encoding="utf-8")
    for kind, (created, changed) in ADDITIONS.items():
        section = re.search(rf"^## Add {kind}\b(.*?)^## ", text, re.MULTILINE | re.DOTALL)
        assert section is not None, kind
        for file in changed:
            assert file.removeprefix("widgets/") in section[1], (kind, file)
        folders = {str(Path(file).parent) for file in created if file.startswith(("fuser_lab/", "widgets/"))}
        assert all(folder in section[1] for folder in folders), (kind, folders)
