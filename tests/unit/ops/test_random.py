"""Philox numbers: known answers, range and independence of shape."""

import numpy as np

from fuser_lab.ops.factory import philox, uniform_numbers
from tests.unit.builders import apply


def test_philox_matches_the_published_vectors():
    # Random123's kat_vectors for philox4x32-10: counter and key all zero, and all ones.
    assert [hex(w) for w in philox(0, 0, np.array([0]))[0]] == ["0x6627e8d5", "0xe169c58d", "0xbc57ac4c", "0x9b00dbd8"]
    ones = (1 << 64) - 1
    words = philox(ones, ones, np.array([ones], np.uint64))[0]
    assert [hex(w) for w in words] == ["0x408f276d", "0x41c83b0e", "0xa20bc7c6", "0x6d5451fd"]


def test_uniform_depends_on_position_only():
    flat = uniform_numbers(7, 3, (24,))
    assert np.array_equal(uniform_numbers(7, 3, (4, 6)).ravel(), flat)
    assert not np.array_equal(uniform_numbers(8, 3, (24,)), flat)
    assert not np.array_equal(uniform_numbers(7, 4, (24,)), flat)


def test_uniform_covers_its_range():
    x = apply("uniform", -1.0, 3.0, [200, 50], rng_seed=1, rng_offset=0)
    assert x.dtype == np.float32
    assert x.min() >= -1
    assert x.max() < 3
    assert abs(x.mean() - 1) < 0.05
    assert uniform_numbers(1, 0, (0, 3)).shape == (0, 3)
