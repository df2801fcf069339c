"""Samplers give JAX's numbers for the same key, where exact to the last bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import volta_fn as vf
from volta_fn import random
from volta_fn.errors import ArgumentError, DTypeError, ShapeError

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
FLOATS = [np.dtype(t) for t in (np.float16, BFLOAT16, np.float32, np.float64)]
N = (5000,)

#: Samplers of floats: (module, key, dtype) -> numbers.
EXACT: dict[str, Callable[..., Any]] = {
    "uniform": lambda r, k, d: r.uniform(k, N, d),
    "bernoulli": lambda r, k, d: r.bernoulli(k, np.asarray(0.3, d), N),
    "bernoulli of many": lambda r, k, d: r.bernoulli(k, np.linspace(0, 1, 7).astype(d)),
    "bernoulli high": lambda r, k, d: r.bernoulli(k, np.asarray(0.3, d), N, mode="high"),
    "rademacher": lambda r, k, d: r.rademacher(k, N, d),
}
#: Those through logarithms and the like: equal up to rounding.
CLOSE: dict[str, Callable[..., Any]] = {
    "normal": lambda r, k, d: r.normal(k, N, d),
    "truncated_normal": lambda r, k, d: r.truncated_normal(k, -1.5, 2.5, N, d),
    "truncated_normal of many": lambda r, k, d: r.truncated_normal(k, np.zeros((3, 1), d), np.ones(4, d), None, d),
    "lognormal": lambda r, k, d: r.lognormal(k, np.asarray(0.5, d), N, d),
    "maxwell": lambda r, k, d: r.maxwell(k, N, d),
    "double_sided_maxwell": lambda r, k, d: r.double_sided_maxwell(k, 1.0, 2.0, N, d),
    "exponential": lambda r, k, d: r.exponential(k, N, d),
    "gumbel": lambda r, k, d: r.gumbel(k, N, d),
    "gumbel high": lambda r, k, d: r.gumbel(k, N, d, mode="high"),
    "laplace": lambda r, k, d: r.laplace(k, N, d),
    "logistic": lambda r, k, d: r.logistic(k, N, d),
    "cauchy": lambda r, k, d: r.cauchy(k, N, d),
    "pareto": lambda r, k, d: r.pareto(k, np.asarray(2.0, d), N, d),
    "rayleigh": lambda r, k, d: r.rayleigh(k, np.asarray(2.0, d), N, d),
    "triangular": lambda r, k, d: r.triangular(k, *np.asarray([0.0, 0.25, 1.0], d), N, d),
    "wald": lambda r, k, d: r.wald(k, np.asarray(2.0, d), N, d),
    "weibull_min": lambda r, k, d: r.weibull_min(k, 2.0, 3.0, N, d),
}
#: Rounding errors of a few units; where a result cancels (Gumbel, Laplace, logistic, Wald), of a few units of what it cancels from.
#: XLA keeps more than half precision between the steps of a half precision program.
TOLERANCE = {"float16": 1e-2, "bfloat16": 4e-2, "float32": 1e-5, "float64": 1e-13}


def compare(function: Callable[..., Any], dtype: np.dtype, x64: bool) -> tuple[np.ndarray, np.ndarray]:
    """Our numbers and JAX's, of equal dtype and shape."""
    jax = pytest.importorskip("jax")
    with jax.enable_x64(x64), jax.threefry_partitionable(True):
        theirs = np.asarray(function(jax.random, jax.random.key(11), dtype))
    ours = np.asarray(function(random, random.key(11), dtype))
    assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
    return ours, theirs


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", EXACT)
def test_equal_to_jax(name, dtype):
    if dtype == np.float64 and name == "rademacher":
        return  # with 64 bits enabled JAX tosses coins of float64, which are others
    np.testing.assert_array_equal(*compare(EXACT[name], dtype, dtype == np.float64))


@pytest.fixture
def optimising_jax():
    """JAX as its users have it, which fuses multiplications with additions."""
    jax = pytest.importorskip("jax")
    before = jax.config.values["jax_disable_most_optimizations"]
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


@pytest.mark.usefixtures("optimising_jax")
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_uniform_between_bounds_equals_jax(dtype):
    ours, theirs = compare(lambda r, k, d: r.uniform(k, (3001,), d, -2.3, 7.1), dtype, dtype == np.float64)
    # By the processor XLA rounds a product of float16 or not: those below 9.4 by up to 2^-8 (seen: 2^-8), the sums by 2^-9 each.
    atol = 2.0**-7 if dtype == np.float16 else 0.0
    np.testing.assert_allclose(ours.astype(float), theirs.astype(float), rtol=0, atol=atol)
    low, high = np.zeros(3, dtype), np.full((2, 1), 3, dtype)
    np.testing.assert_array_equal(*compare(lambda r, k, d: r.uniform(k, (2, 3), d, low, high), dtype, dtype == np.float64))


#: Half and double precision are shown by those of which the others are made.
ROWS = [(name, FLOATS[2]) for name in CLOSE]
ROWS += [(name, dtype) for name in ("normal", "truncated_normal", "gumbel", "exponential") for dtype in FLOATS if dtype != np.float32]


@pytest.mark.parametrize("name, dtype", ROWS, ids=str)
def test_close_to_jax(name, dtype):
    ours, theirs = compare(CLOSE[name], dtype, dtype == np.float64)
    tolerance = TOLERANCE[dtype.name] * (3 if name == "wald" else 1)  # whose smaller root JAX has as a difference, which cancels
    np.testing.assert_allclose(ours.astype(float), theirs.astype(float), rtol=tolerance, atol=tolerance)


#: The error of XLA's own erf_inv of float64, whose polynomial it evaluates otherwise, is up to 22 units.
UNITS = {"float32": 4, "complex64": 4, "float64": 32}


@pytest.mark.parametrize("dtype", UNITS)
def test_normal_numbers_are_within_some_ulps(dtype):
    ours, theirs = compare(lambda r, k, d: r.normal(k, (100_000,), d), np.dtype(dtype), dtype == "float64")
    pairs = [(ours.real, theirs.real), (ours.imag, theirs.imag)] if dtype == "complex64" else [(ours, theirs)]
    for mine, other in pairs:
        assert (np.abs(mine - other) / np.spacing(np.abs(other))).max() <= UNITS[dtype]
        assert (mine == other).mean() > 0.8


def test_golden_numbers():
    key = random.key(1701)
    assert random.bits(key, (3,)).tolist() == [1111271205, 2679469115, 974515252]
    assert random.uniform(key, (2,)).tolist() == [0.2587379217147827, 0.6238625049591064]
    assert random.randint(key, (5,), -3, 9).tolist() == [1, -1, 6, -1, 1]
    assert random.permutation(key, 6).tolist() == [1, 5, 4, 0, 2, 3]
    assert random.bernoulli(key, 0.5, (6,)).tolist() == [True, False, True, True, True, False]
    np.testing.assert_allclose(random.normal(key, (2,)), [-0.64724112, 0.31564111], rtol=3e-7)


INT_DTYPES = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]


@pytest.mark.parametrize("dtype", INT_DTYPES)
def test_randint_equals_jax(dtype):
    info = np.iinfo(dtype)
    pairs = [(0, 10), (3, 120), (5, 2), (0, min(int(info.max), 2**63 - 1)), (int(info.min), 7)]
    low, high = np.split(np.array(pairs, dtype if info.bits == 64 else np.int64), 2, axis=1)
    np.testing.assert_array_equal(*compare(lambda r, k, d: r.randint(k, (5, 1000), low, high, d), np.dtype(dtype), True))


def test_randint_may_include_the_greatest_integer():
    for dtype in INT_DTYPES[:6]:
        numbers = np.asarray(random.randint(random.key(0), (20_000,), np.iinfo(dtype).max - 3, int(np.iinfo(dtype).max) + 1, dtype))
        assert np.unique(numbers).tolist() == [np.iinfo(dtype).max - i for i in (3, 2, 1, 0)]


def test_randint_with_arrays_of_bounds():
    low, high = np.arange(3, dtype=np.int32), np.array([[10], [7], [2]], np.int32)
    np.testing.assert_array_equal(*compare(lambda r, k, d: r.randint(k, (4, 3, 3), low, high), np.dtype(np.int32), False))


@pytest.mark.parametrize("function", [random.uniform, random.normal, random.exponential, random.gumbel, random.truncated_normal])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_shapes_and_dtypes(function, dtype):
    for shape in ((), (0,), (2, 0, 3), (2, 3)):
        bounds = (-1.0, 1.0) if function is random.truncated_normal else ()
        result = function(random.key(0), *bounds, shape, dtype)
        assert (result.shape, result.dtype, result.weak_type) == (shape, dtype, False)


def test_the_default_dtypes_are_32_bits_wide():
    key = random.key(0)
    assert random.normal(key).dtype == random.uniform(key).dtype == np.float32
    assert random.randint(key, (), 0, 5).dtype == random.rademacher(key).dtype == np.int32
    assert random.bits(key).dtype == np.uint32


@pytest.mark.wide
def test_float64_bounds_are_not_rounded_to_float32():
    low = 0.1
    numbers = np.asarray(random.uniform(random.key(0), (1000,), np.float64, low, low + 1e-12))
    assert low <= numbers.min() and numbers.max() < low + 1e-12 and len(set(numbers.tolist())) > 900


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_truncated_normal_stays_strictly_between_its_bounds(dtype):
    numbers = random.truncated_normal(random.key(0), 2.0, 2.5, (20_000,), dtype)
    assert bool((numbers > 2).all()) and bool((numbers < 2.5).all())


def test_moments():
    key = random.key(2)
    numbers = np.asarray(random.normal(key, (200_000,)), float)
    assert abs(numbers.mean()) < 0.01 and abs(numbers.std() - 1) < 0.01 and abs((numbers**4).mean() - 3) < 0.1
    assert abs(np.asarray(random.exponential(key, (200_000,))).mean() - 1) < 0.01
    assert abs(np.asarray(random.bernoulli(key, 0.2, (200_000,))).mean() - 0.2) < 0.005


def test_samples_under_transforms_are_the_same():
    keys = random.split(random.key(4), 3)
    for draw in (
        lambda k: random.randint(k, (4,), 0, 100),
        lambda k: random.truncated_normal(k, -1.0, 1.0, (4,)),
        lambda k: random.uniform(k, (4,), minval=0.5, maxval=2.0),
        lambda k: random.permutation(k, 7),
        lambda k: random.categorical(k, vf.numpy.zeros((2, 5))),
        lambda k: random.choice(k, 9, (3,), replace=False),
    ):
        looped = np.stack([draw(k) for k in keys])
        np.testing.assert_array_equal(vf.vmap(draw)(keys), looped)
        np.testing.assert_array_equal(vf.jit(vf.vmap(draw))(keys), looped)


def test_samples_are_differentiable_by_their_parameters():
    key = random.key(0)
    slopes = vf.grad(lambda bounds: random.uniform(key, (), minval=bounds[0], maxval=bounds[1]))(vf.numpy.array([0.0, 2.0]))
    share = float(random.uniform(key))
    np.testing.assert_allclose(slopes, [1 - share, share], rtol=1e-6)
    assert float(vf.grad(lambda s: random.lognormal(key, s))(1.0)) == pytest.approx(float(random.normal(key) * random.lognormal(key, 1.0)))


@pytest.mark.parametrize(
    "call, error, words",
    [
        (lambda k: random.normal(k, (2,), "int32"), DTypeError, "floating or complex"),
        (lambda k: random.uniform(k, (2,), "complex64"), DTypeError, "real floating"),
        (lambda k: random.bits(k, (2,), "int32"), DTypeError, "unsigned"),
        (lambda k: random.uniform(k, (2,), minval=np.zeros(3, np.float32)), ShapeError, r"minval of shape \(3,\)"),
        (lambda k: random.randint(k, (2,), 0.5, 3), DTypeError, "minval must be an integer"),
        (lambda k: random.randint(k, (2,), 0, 3, "float32"), DTypeError, "integer dtype"),
        (lambda k: random.bernoulli(k, 1), DTypeError, "p must be a float"),
        (lambda k: random.bernoulli(k, np.zeros(2, np.float32), (3,)), ShapeError, r"p of shape \(2,\)"),
        (lambda k: random.bernoulli(k, mode="medium"), ArgumentError, "'low' or 'high'"),
        (lambda k: random.gumbel(k, mode="medium"), ArgumentError, "'low' or 'high'"),
        (lambda k: random.normal(k, (-1,)), ShapeError, "-1"),
    ],
)
def test_wrong_arguments_are_named(call, error, words):
    with pytest.raises(error, match=words):
        call(random.key(0))


def test_no_sample_is_infinite_or_cancelled_away():
    """Check float16, whose uniform numbers are often 0, and roots that would cancel."""
    assert np.isfinite(np.asarray(vf.random.rayleigh(vf.random.key(0), 2.0, (20000,), "float16")).astype(float)).all()
    sample = np.asarray(vf.random.wald(vf.random.key(0), 1e5, (20000,)))
    assert (sample > 0).all() and np.isfinite(sample).all()
    # 1 / x has the mean 1 / mean + 1, and its logarithm is near that of a squared normal number.
    assert np.mean(1 / sample) == pytest.approx(1, abs=0.05)
