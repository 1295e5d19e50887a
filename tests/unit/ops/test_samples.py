"""Every legal call of the registry, computed in every way and by torch, in several layouts."""

import re

import numpy as np
import pytest
from needs import needs
from thorough import THOROUGH

from fuser_lab.dtypes import DataType
from fuser_lab.errors import FuserLabError
from fuser_lab.interpreter import evaluate
from fuser_lab.ir import OpKind
from fuser_lab.ops.registry import Sample
from tests import agreement
from tests.unit.ops.sampling import ENTRIES, LETTERS, PLAIN, Built, build, results, special, variants

CALLS = [(name, number) for name, entry in ENTRIES.items() for number in range(len(entry.samples))]


def in_layouts() -> list[tuple[str, int]]:
    """Calls to try in all layouts: one of each pointwise op, three of any other, no two with equal shapes."""
    found = []
    for name, entry in ENTRIES.items():
        shapes: dict[object, int] = {}
        for number, sample in enumerate(entry.samples):
            if sample.args:
                shapes.setdefault((sample.call, *(arg.shape for arg in sample.args)), number)
        count = 1 if getattr(entry, "kind", None) is OpKind.POINTWISE else 3
        found += [(name, number) for number in list(shapes.values())[:count]]
    return found


LAID_OUT = in_layouts()
# Ops whose results depend on the dtype in which torch computes them.
OF_OTHER_DTYPES = frozenset({"nextafter"})
by_pointwise = pytest.mark.parametrize("name", [name for name in ENTRIES if special(name)])
by_call = pytest.mark.parametrize(("name", "number"), CALLS, ids=[f"{n}-{k}" for n, k in CALLS])


def check(built: Built, targets: tuple[str, ...] = agreement.TARGETS) -> None:
    """The printed definition, float64, and the kernels of targets agree with the reference."""
    fusion = agreement.bound(built.fd, built.inputs)
    tolerance = agreement.tolerance_of(fusion)
    wanted = agreement.check_reference(fusion, built.inputs, tolerance)
    agreement.check_text(built.fd, built.inputs)
    agreement.check_kernels(built.fd, built.inputs, wanted, tolerance, targets=targets)


@pytest.mark.sampled(4)
@pytest.mark.filterwarnings("ignore::numpy.exceptions.ComplexWarning")
@by_call
def test_agrees_with_itself(name: str, number: int) -> None:
    """One call of each op is checked on both targets; `make test` checks every second one, and on one of the two."""
    both = THOROUGH or number < 2  # one of these is in the sample
    check(build(ENTRIES[name].samples[number]), agreement.TARGETS if both else (agreement.TARGETS[number // 2 % 2],))


@pytest.mark.filterwarnings("ignore::numpy.exceptions.ComplexWarning")
@pytest.mark.sampled(4)
@pytest.mark.parametrize(("name", "number"), LAID_OUT, ids=[f"{n}-{k}" for n, k in LAID_OUT])
def test_layouts_and_sizes(name: str, number: int) -> None:
    """`make test` tries a third of a call's variants, another third for the next call; `make test-all` tries all."""
    entry = ENTRIES[name]
    sample = entry.samples[number]
    legal, turn = 0, LAID_OUT.index((name, number))
    known = list(variants(entry, sample))
    tried = known if THOROUGH else [v for first in range(3) for v in known[(turn + first) % 3 :: 3]]
    enough = len(known) if THOROUGH else -(-len(known) // 3)
    for place, variant in enumerate(tried):
        if place >= enough and legal:
            break
        try:
            built = build(sample, variant)
            agreement.bound(built.fd, built.inputs)
        except FuserLabError:
            continue
        legal += 1
        try:
            check(built, (agreement.TARGETS[(legal + turn // 3) % 2],))
        except Exception as error:
            raise AssertionError(f"{sample.call} with {variant.name} operands: {error}") from error
    assert legal or not known, f"no variant of {sample} is legal"


@pytest.mark.filterwarnings("ignore::numpy.exceptions.ComplexWarning")
@by_call
def test_agrees_with_torch(name: str, number: int) -> None:
    needs("torch")
    sample = ENTRIES[name].samples[number]
    check_against_torch(sample, build(sample))


def check_against_torch(sample: Sample, built: Built) -> None:
    """The reference has the values of torch's functions in float64, where torch has them."""
    torch = needs("torch")
    from tests.unit.ops.torch_meaning import TorchDefinition, has_meaning, wide

    if not all(map(has_meaning, re.findall(r"fd\.ops\.(\w+)\(", sample.call))):
        return
    fusion = agreement.bound(built.fd, built.inputs)
    tolerance = agreement.tolerance_of(fusion)
    kinds = {"u": np.int64}
    tensors = [
        torch.from_numpy(np.array(x, dtype=kinds.get(x.dtype.kind, x.dtype if x.dtype.kind in "bic" else np.float64)))
        for x in built.inputs
    ]
    names = dict(zip(LETTERS, map(wide, tensors), strict=False))
    wanted = results(eval(sample.call, {"fd": TorchDefinition(), "DataType": DataType, **names}))
    got = evaluate(fusion, built.inputs)
    assert len(got) == len(wanted)
    for tv, a, b in zip(fusion.outputs, got, wanted, strict=True):
        other = b.resolve_conj().numpy() if isinstance(b, torch.Tensor) else np.full(2, b)
        agreement.close(a, other, tolerance, f"{sample.call}: {tv.name} against torch", dtype=False)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@by_pointwise
def test_special_values_agree_with_the_reference(name: str) -> None:
    for sample, built in special(name):
        fusion = agreement.bound(built.fd, built.inputs)
        wanted = evaluate(fusion, built.inputs)
        try:
            agreement.check_kernels(built.fd, built.inputs, wanted, agreement.tolerance_of(fusion))
        except agreement.Disagreement as problem:
            msg = (
                f"{sample.call}: the op's term, which kernels compute, and its NumPy meaning, which is wanted, differ: "
                f"{problem}; the inputs are {', '.join(map(str, built.inputs))}."
            )
            raise agreement.Disagreement(msg) from problem


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@by_pointwise
def test_special_values_agree_with_torch(name: str) -> None:
    needs("torch")
    for sample, built in special(name) if name not in OF_OTHER_DTYPES else ():
        check_against_torch(sample, built)


def test_a_torch_meaning_is_by_name_or_by_hand() -> None:
    needs("torch")
    from tests.unit.ops.torch_meaning import WITHOUT, Torch, has_meaning

    assert all(WITHOUT.values())
    assert set(WITHOUT) <= set(ENTRIES), "reasons for names that are not ops"
    assert {name for name in vars(Torch) if not name.startswith("_")} <= set(ENTRIES), "meanings that no op has"
    names = ("sin", "silu", "softsign", "sum", "uniform", "name_of_no_function")
    assert list(map(has_meaning, names)) == [True, True, True, True, False, False]


def test_every_op_is_documented_and_sampled() -> None:
    for name, entry in ENTRIES.items():
        assert entry.doc.endswith("."), f"{name}: the documentation is a sentence"
    assert not [name for name, entry in ENTRIES.items() if not entry.samples], "ops without a legal call"


def test_samples_call_the_op_that_they_belong_to() -> None:
    for name, entry in ENTRIES.items():
        for sample in entry.samples:
            assert f"fd.ops.{name}(" in sample.call, f"{name}: {sample.call}"


def test_an_op_with_a_wrong_kernel_would_be_found() -> None:
    built = build(ENTRIES["add"].samples[0], PLAIN)
    fusion = agreement.bound(built.fd, built.inputs)
    wrong = [x + 1 for x in agreement.check_reference(fusion, built.inputs, 1e-4)]
    with pytest.raises(agreement.Disagreement, match="cpu kernels of bottom_up"):
        agreement.check_kernels(built.fd, built.inputs, wrong, 1e-4)
