"""`fuser_lab.from_jax`: what is captured, what is left to JAX, agreement of lowerings with JAX, and refusals."""

import sys
from dataclasses import dataclass, replace

import numpy as np
import pytest
from needs import needs

import fuser_lab as fl
from fuser_lab.bridge.lowerings import LOWERINGS
from fuser_lab.errors import ArgumentTypeError, InputError, UnsupportedError
from tests.bridge import calls

jax = needs("jax")
jnp, lax = jax.numpy, jax.lax

SAMPLES = [(f"lax.{name}", sample) for name, samples in calls.LAX.items() for sample in samples]


def operands():
    """Arrays by the letters that samples use."""
    draw = np.random.default_rng(5)
    a = draw.standard_normal((3, 4), dtype=np.float32)
    w = a.copy()
    w[0, 0], w[1, 1], w[2, 2], w[2, 3], w[0, 2] = np.nan, np.inf, -np.inf, -0.0, np.nan
    values = {
        "a": a, "b": draw.standard_normal((2, 3, 4), dtype=np.float32), "c": draw.standard_normal(4, dtype=np.float32),
        "e": np.array([[0, 2], [1, 0]], np.int32), "h": draw.standard_normal((3, 4)).astype(np.float16),
        "i": np.array([2, 0, 3], np.int32),
        "k": np.array([[3, -3, 0, -1], [1, 5, -5, 0], [-1, 2, 3, 4]], np.int32),
        "m": draw.random((3, 4)) > 0.5,
        "n": np.array([[7, -7, 5, -(2**31)], [-8, 9, -1, 2], [0, 5, 6, -4]], np.int32),
        "o": np.array([[200, 3, 0, 255], [7, 100, 50, 1], [128, 127, 2, 9]], np.uint8),
        "p": draw.random((3, 4), dtype=np.float32) + 0.25,
        "t": np.array([[0, 1, 31, 32], [40, -1, 2, 3], [5, 30, 1, 0]], np.int32),
        "u": draw.random((3, 4), dtype=np.float32) * 1.8 - 0.9,
        "v": np.array([0.5, 1.5, -0.5, -2.5, 0.49999997, 8388609.0, -0.0, np.nan], np.float32), "w": w,
    }
    return {name: jnp.asarray(value) for name, value in values.items()}


def by_reference(region, inputs):
    """The results of a region, evaluated by NumPy; replaces `JaxRegion._run`."""
    return [jnp.asarray(y) for y in region.definition.reference([np.asarray(x) for x in inputs])]


def check_results(ours, theirs):
    for mine, wanted in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert (mine.shape, mine.dtype) == (wanted.shape, wanted.dtype)
        half = mine.dtype in {jnp.float16, jnp.bfloat16}
        np.testing.assert_allclose(
            np.asarray(mine, np.float64), np.asarray(wanted, np.float64), rtol=1e-2 if half else 1e-5, atol=1e-6,
        )


@dataclass(frozen=True)
class Outcomes:
    """The results of all samples by the bridge and by JAX, by number, and the primitives in regions."""

    ours: list
    theirs: list
    held: list


@pytest.fixture(scope="module")
def outcomes():
    """All samples in one function, so that JAX compiles once."""
    values = operands()

    def compute(values):
        found = []
        for place, (_, sample) in enumerate(SAMPLES):
            with jax.named_scope(f"sample{place}"):
                found.append(eval(sample, {"jax": jax, "lax": lax, "jnp": jnp, **values}))
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fuser_lab.bridge.jax_region.JaxRegion._run", by_reference)
        patch.setattr("fuser_lab.bridge.jax_model.is_worth_it", lambda region, wishes: True)
        found = fl.from_jax(compute, values)
        ours = found.run(values)
    assert not found.left_to_jax
    assert all(region.failed is None for region in found.regions)
    ops = [op for region in found.regions for op in region.ops]
    held = [{op.target for op in ops if op.origin.module == f"sample{place}"} for place in range(len(SAMPLES))]
    return Outcomes(ours, jax.jit(compute)(values), held)


@pytest.mark.parametrize("place", range(len(SAMPLES)), ids=[sample for _, sample in SAMPLES])
def test_a_lowering_computes_what_jax_does(outcomes, place):
    assert SAMPLES[place][0] in outcomes.held[place]
    check_results(outcomes.ours[place], outcomes.theirs[place])


def test_every_lowering_has_samples():
    assert {target for target, _ in SAMPLES} == {target for target in LOWERINGS if target.startswith("lax.")}


def block(x, w, gain):
    with jax.named_scope("norm"):
        y = x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * gain
    return jax.nn.gelu(y @ w) + x


@pytest.fixture(scope="module")
def arrays():
    draw = jax.random.split(jax.random.key(0), 2)
    return jax.random.normal(draw[0], (6, 8)), jax.random.normal(draw[1], (8, 8)), jnp.ones(8)


def test_a_function_and_its_gradients_run_through_kernels(arrays):
    loss = jax.value_and_grad(lambda *given: (block(*given) ** 2).mean(), argnums=(0, 1, 2))
    found = fl.from_jax(loss, *arrays)
    assert [row.op for row in found.left_to_jax if not row.is_free] == ["lax.dot_general"]
    assert found.shares.fused == 1
    for ours, theirs in zip(jax.tree.leaves(found.check(*arrays)), jax.tree.leaves(loss(*arrays)), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def test_what_is_left_and_every_op_know_scope_and_line(arrays):
    found = fl.from_jax(block, *arrays)
    (product,) = found.left_to_jax
    assert (product.count, product.reason) == (1, "matrix products are JAX's")
    assert "gelu(y @ w)" in product.origin
    assert "test_jax.py:" in product.origin
    (norm,) = [op for op in found.regions[0].ops if op.target == "lax.rsqrt"]
    assert norm.origin.module == "norm"
    assert str(norm.origin).startswith("norm: y = x * lax.rsqrt(")
    assert "left to JAX:" in repr(found)
    assert found.costs().bytes_crossing >= 0
    with pytest.raises(InputError, match="not one fusion: JAX runs 1 × lax.dot_general"):
        _ = found.plan


def test_a_function_that_is_one_fusion_gives_its_definition():
    x = jnp.linspace(-2, 2, 24).reshape(4, 6)
    found = fl.from_jax(jax.jit(lambda x: {"y": jax.nn.softmax(x, axis=-1)}), jax.ShapeDtypeStruct(x.shape, x.dtype))
    (ours,) = found.definition.reference([np.asarray(x)])
    np.testing.assert_allclose(ours, jax.nn.softmax(x, axis=-1), rtol=1e-5)
    assert [segment.scheduler.value for segment in found.plan.segments] == ["inner_persistent"]


def test_random_numbers_loops_and_unsigned_words_stay_with_jax(monkeypatch):
    monkeypatch.setattr("fuser_lab.bridge.jax_region.JaxRegion._run", by_reference)

    def noisy(x, key):
        kept = jax.random.bernoulli(key, 0.5, x.shape)
        y = lax.fori_loop(0, 3, lambda _, y: y * 2, jnp.tanh(x))
        return jnp.where(kept, y, 0.0), key

    x, key = jnp.arange(12.0).reshape(3, 4) / 12, jax.random.key(3)
    found = fl.from_jax(noisy, x, key)
    reasons = {row.op: row.reason for row in found.left_to_jax}
    assert reasons["lax.random_bits"] == "it draws random numbers"
    assert reasons["lax.scan"] == "control flow is JAX's"
    np.testing.assert_allclose(found.run(x, key)[0], noisy(x, key)[0], rtol=1e-6)


ROWS = np.linspace(-1, 1, 24, dtype=np.float32).reshape(4, 6)
LINE = np.array([1, -2, 3, 0.5, np.inf, np.nan], np.float32)
PLACES = np.array([2, 0, 1])
TRUTHS = np.array([True, False] * 3)
KEY = jax.random.key(3)

CONSTANTS = {
    "numpy": lambda x: x - ROWS,
    "jax": lambda x: jnp.exp(x) * jnp.asarray(LINE),
    "list": lambda x: x * jnp.array([1, 2, 3, 4, 5, 6.0]),
    "numbers": lambda x: 2 * x + np.float32(0.1) - True + np.float64(0.1) * jnp.array(1.5),
    "0-d array of NumPy": lambda x: x * np.array(1.5, np.float32) + np.array(2),
    "linspace": lambda x: x + jnp.linspace(0, 1, 6),
    "arange": lambda x: x + jnp.arange(6),
    "eye": lambda x: x[:, :4] + jnp.eye(4),
    "tril": lambda x: jnp.tril(x) * jnp.tri(4, 6),
    "one_hot": lambda x: x * jax.nn.one_hot(np.array([0, 3, 1, 2]), 6),
    "meshgrid": lambda x: sum(part * x for part in jnp.meshgrid(jnp.arange(6.0), np.arange(4.0, dtype=np.float32))),
    "mask": lambda x: jnp.where(TRUTHS, x * TRUTHS, -jnp.inf),
    "where of numbers": lambda x: jnp.where(True, x[0, 0], 2.0) + jnp.where(x[0, 0] > 0, 1.0, 2.0),
    "integers": lambda x: (x * 9).astype(np.int32) // np.array([1, 2, -3, 4, 5, 6]),
    "uint8": lambda x: (x > 0).astype(np.uint8) + np.array([1, 2, 3, 4, 5, 255], np.uint8),
    "bfloat16": lambda x: x.astype(jnp.bfloat16) * jnp.array(LINE, jnp.bfloat16) + jnp.bfloat16(0.1),
    "empty": lambda x: jnp.concatenate([x, np.zeros((0, 6), np.float32)]),
    "complex": lambda x: jnp.abs(x * 1j) + jnp.real(x * np.array([1j] * 6, np.complex64)),
    "product": lambda x: jnp.tanh(x @ ROWS.T) + np.arange(4, dtype=np.float32),
    "index": lambda x: x[PLACES] + x[:, jnp.array([0, -1, 2])][1:, :1],
    "table": lambda x: jnp.asarray(ROWS)[(x[0, :4] > 0).astype(np.int32)],
    "update": lambda x: x.at[PLACES].set(0.0).at[1].add(np.arange(6, dtype=np.float32)),
    "stack of numbers": lambda x: x[0, 0] * jnp.stack([1.0, 2.0]) + jnp.stack([x[0, 0], jnp.float32(1)]),
    "numbers with axes": lambda x: x + jnp.tile(1.5, 6) + jnp.repeat(2.0, 6) + jnp.reshape(3.0, (1, 1)),
    "appended number": lambda x: jnp.append(x[0], 3.0),
    "barrier": lambda x: sum(lax.optimization_barrier((x, 2.5, jnp.arange(6)))),
    "scan": lambda x: lax.scan(lambda carry, row: (carry + row * LINE[:1], carry), np.zeros(6, np.float32), x),
    "cond": lambda x: lax.cond(x.sum() > 0, lambda y: y * ROWS, lambda y: y - ROWS, x),
    "custom_jvp": jax.grad(lambda y: jnp.sum(jax.nn.relu(y) * ROWS)),
    "calls in calls": lambda x: jax.jit(lambda y: jax.jit(lambda z: z * ROWS + np.float32(0.5))(y) * ROWS)(x) + ROWS,
    "number to a call": lambda x: jax.jit(jnp.multiply)(x, 2.0) + jax.jit(jnp.multiply)(x, LINE[:1]),
    "number from a call": lambda x: x * jax.jit(lambda y: (y, 2.0))(x)[1],
    "vmap": lambda x: jax.vmap(lambda row, at: 2 * row[at])(x, np.array([0, 1, 2, 5])),
    "checkpoint": jax.grad(lambda y: jnp.sum(jax.checkpoint(lambda z: jnp.sin(z * ROWS))(y))),
    "key": lambda x: jnp.where(jax.random.bernoulli(KEY, 0.5, x.shape), x / 0.5, 0.0),
    "results": lambda x: (x, jnp.arange(3), jnp.asarray(ROWS), 3.0, np.float16(2), TRUTHS),
}  # fmt: skip


def results_of(functions, patch):
    """Results of functions with constants, by the bridge and by JAX."""
    x = jnp.asarray(np.random.default_rng(3).standard_normal((4, 6), dtype=np.float32))

    def compute(x):
        return {name: function(x) for name, function in functions.items()}

    patch.setattr("fuser_lab.bridge.jax_region.JaxRegion._run", by_reference)
    found = fl.from_jax(compute, x)
    ours = found.run(x)
    assert [region.failed for region in found.regions if region.failed] == []
    return ours, jax.jit(compute)(x)


@pytest.fixture(scope="module")
def with_constants():
    """All functions with constants in one, so that JAX compiles once."""
    with pytest.MonkeyPatch.context() as patch:
        return results_of(CONSTANTS, patch)


@pytest.mark.parametrize("name", CONSTANTS)
def test_constants_of_every_kind_have_the_values_of_jax(with_constants, name):
    ours, theirs = with_constants
    check_results(ours[name], theirs[name])


def test_arrays_among_the_literals_of_a_jaxpr_are_constants(monkeypatch):
    setting = "jax_use_simplified_jaxpr_constants"
    before = getattr(jax.config, setting)
    try:
        jax.config.update(setting, True)
        check_results(*results_of({name: CONSTANTS[name] for name in ("numpy", "mask", "calls in calls")}, monkeypatch))
    finally:
        jax.config.update(setting, before)


def test_an_array_that_is_used_twice_is_one_input_and_is_not_printed():
    found = fl.from_jax(lambda x: x * ROWS + jax.jit(lambda y: jnp.sin(y) * ROWS)(x), jnp.asarray(ROWS))
    assert len(found.specs) == 2
    assert "0.9130" not in found.plan.to_python()


def test_what_cannot_be_recorded_is_left_to_jax_with_the_reason(monkeypatch):
    def refused(*_):
        msg = "tanh: this number is not supported."
        raise InputError(msg)

    monkeypatch.setitem(LOWERINGS, "lax.tanh", replace(LOWERINGS["lax.tanh"], lower=refused))
    found = fl.from_jax(jnp.tanh, jnp.ones((3, 5)))
    (row,) = found.left_to_jax
    assert row.reason == "it could not be recorded: tanh: this number is not supported."
    np.testing.assert_allclose(found.run(jnp.ones((3, 5))), np.tanh(np.ones((3, 5))), rtol=1e-6)


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda x: fl.from_jax(3, x), ArgumentTypeError, "must be a function of arrays, given 3"),
        (lambda x: fl.from_jax(lambda x: x, x), InputError, "does not compute anything from its arguments"),
        (lambda x: fl.from_jax(lambda x: x if x.sum() > 0 else -x, x), InputError, "if x.sum() > 0 else -x"),
        (lambda x: fl.from_jax(jnp.sin, x, speed=3), InputError, "unknown option 'speed'; choose from strategy"),
        (lambda x: fl.from_jax(jnp.sin, x, left_to_jax="sin"), ArgumentTypeError, "must be a list of primitives"),
        (lambda x: fl.from_jax(jnp.sin, x, left_to_jax=["sinn"]), InputError, "'sinn', which is not a JAX primitive"),
        (lambda x: fl.from_jax(jnp.sin, x).run(x[:2]), InputError, "input 0 is float32[2]; the function was captured"),
        (lambda x: fl.from_jax(jnp.sin, x).run(x, x), InputError, "run: the arguments are"),
        (lambda x: jax.jit(fl.from_jax(jnp.sin, x).run)(x), InputError, "inside jax.jit or jax.grad"),
    ],
)  # fmt: skip
def test_bad_input_is_answered_with_one_sentence(call, error, says):
    with pytest.raises(error) as raised:
        call(jnp.arange(3.0))
    assert says in str(raised.value)
    assert "\n" not in str(raised.value)


def test_primitives_stay_with_jax_where_asked_for():
    found = fl.from_jax(lambda x: jnp.tanh(x) * 2, jnp.arange(4.0), left_to_jax=["tanh"])
    assert [(row.op, row.reason) for row in found.left_to_jax] == [("lax.tanh", "left to JAX on request")]


def test_a_missing_and_an_old_jax_are_refused(monkeypatch):
    monkeypatch.setattr(jax, "__version__", "0.9.2")
    with pytest.raises(UnsupportedError, match=r"from_jax needs jax 0\.10 or newer; jax 0\.9\.2 is installed"):
        fl.from_jax(jnp.sin, jnp.ones(3))
    monkeypatch.setitem(sys.modules, "jax", None)
    with pytest.raises(UnsupportedError, match=r"from_jax needs jax: pip install 'fuser_lab\[jax\]'"):
        fl.from_jax(jnp.sin, jnp.ones(3))


def test_arguments_and_entries_of_trees_name_the_inputs():
    def scaled(weights, x, *rest):
        total = x.sum(-1, keepdims=True)
        return total * weights["scale"] + rest[0]

    row = jnp.ones((4, 8), jnp.float32)
    (region,) = fl.from_jax(scaled, {"scale": row}, row, row).regions
    assert {name for name, _ in region.names if "%" not in name} == {"weights.scale", "x", "rest.0", "total"}
