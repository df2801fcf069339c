"""Whole numbers: JAX's, and the distributions' moments."""

from __future__ import annotations

import numpy as np
import pytest

import volta_fn as vf
from volta_fn import random
from volta_fn.errors import DTypeError

N = (500,)
RATES = np.array([[0.0], [0.5], [5.0], [20.0], [50.0]], np.float32)
TRIALS = np.array([[0], [10], [100], [1000], [7]], np.float32)
CHANCES = np.array([[0.5], [0.3], [0.4], [0.7], [1.0]], np.float32)
CALLS = {
    "poisson": lambda r, k: r.poisson(k, RATES, (5, 200)),
    "poisson int16": lambda r, k: r.poisson(k, 3.0, N, "int16"),
    "geometric": lambda r, k: r.geometric(k, 0.2, N),
    "binomial": lambda r, k: r.binomial(k, TRIALS, CHANCES, (5, 100)),
    "binomial invalid": lambda r, k: r.binomial(k, np.float32([-1, 5, np.nan, np.inf, 5]), np.float32([0.5, -0.1, 0.5, 0.5, np.nan])),
    "multinomial": lambda r, k: r.multinomial(k, np.float32(30), np.float32([0.2, 0.3, 0.5]), shape=(100, 3)),
    "multinomial float16": lambda r, k: r.multinomial(k, np.float16(30), np.float16([0.25, 0.25, 0.5]), shape=(100, 3)),
}


@pytest.mark.parametrize("name", CALLS)
def test_matches_jax(name):
    jax = pytest.importorskip("jax")
    theirs = np.asarray(CALLS[name](jax.random, jax.random.key(5)))
    ours = np.asarray(CALLS[name](random, random.key(5)))
    assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
    np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("rate", [3.0, 40.0])
def test_the_moments_of_poisson_numbers(rate):
    numbers = np.asarray(random.poisson(random.key(0), rate, (20_000,)))
    assert abs(numbers.mean() / rate - 1) < 0.02 and abs(numbers.var() / rate - 1) < 0.04


@pytest.mark.parametrize("n, p", [(10, 0.2), (200, 0.7)])
def test_the_moments_of_binomial_numbers(n, p):
    numbers = np.asarray(random.binomial(random.key(0), n, p, (20_000,)))
    assert abs(numbers.mean() / (n * p) - 1) < 0.02 and abs(numbers.var() / (n * p * (1 - p)) - 1) < 0.04


def test_multinomial_numbers_add_up():
    counts = np.asarray(random.multinomial(random.key(0), 50.0, vf.numpy.array([[0.1, 0.9, 0.0], [0.3, 0.3, 0.4]])))
    assert counts.sum(-1).tolist() == [50, 50] and counts[0, 2] == 0


def test_dtypes():
    assert random.poisson(random.key(0), 2.0, (), "uint8").dtype == np.uint8
    with pytest.raises(DTypeError, match="integer"):
        random.poisson(random.key(0), 2.0, (), "float32")
