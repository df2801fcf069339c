"""Activations against JAX's, with their derivatives, in every floating dtype, and where careless formulas give NaN."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import volta_fn as vf
from tests.narrow_devices import has
from tests.nn.torch_oracle import DTYPES, compare, numbers, torch
from volta_fn import nn
from volta_fn.core.devices.device import current_default_device
from volta_fn.errors import ArgumentError, DTypeError, ShapeError

NAMES = """celu elu gelu hard_sigmoid hard_silu hard_swish hard_tanh identity leaky_relu log_sigmoid mish relu relu6 selu sigmoid silu
    soft_sign softplus sparse_plus sparse_sigmoid squareplus swish tanh""".split()
CALLS = [(name, {}) for name in NAMES]
CALLS += [("gelu", {"approximate": False}), ("leaky_relu", {"negative_slope": 0.3}), ("elu", {"alpha": 2.0}), ("celu", {"alpha": 2.0})]
#: With the kinks of piecewise functions; but not ±1 of hard_tanh, sparse_plus and the like, where conventions are many.
X = np.array([-30.0, -5.0, -3.5, -1.25, -0.5, -1e-3, 0.0, 1e-3, 0.5, 1.25, 2.5, 3.5, 6.5, 30.0])
OF_REAL_NUMBERS = {"gelu", "sparse_plus", "sparse_sigmoid", "squareplus"}
LARGE = [-1e4, -100.0, 100.0, 1e4]


@pytest.mark.parametrize("name, options", CALLS, ids=str)
def test_values_and_slopes_match_jax(name, options):
    jax = pytest.importorskip("jax")
    x = X.astype(np.float32)
    theirs = jax.jit(jax.vmap(jax.value_and_grad(lambda v: getattr(jax.nn, name)(v, **options))))(x)
    ours = vf.vmap(vf.value_and_grad(lambda v: getattr(nn, name)(v, **options)))(x)
    for mine, other in zip(ours, theirs, strict=True):
        assert (mine.dtype, mine.shape) == (other.dtype, other.shape)
        np.testing.assert_allclose(mine, other, rtol=5e-6, atol=5e-6)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32])
@pytest.mark.parametrize("name, options", CALLS, ids=str)
def test_every_dtype_computes_in_itself(name, options, dtype):
    function = vf.vmap(vf.value_and_grad(lambda v: getattr(nn, name)(v, **options)))
    x = X.astype(dtype)
    with vf.default_device(current_default_device() if has("float64") else "cpu"):
        exact = function(x.astype(float))
    tolerance = 12 * float(ml_dtypes.finfo(dtype).eps)  # a dozen roundings
    for mine, other in zip(function(x), exact, strict=True):
        assert (mine.dtype, other.dtype) == (dtype, np.float64)
        np.testing.assert_allclose(np.asarray(mine).astype(float), other, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", NAMES)
def test_integers_become_floats_where_they_must(name):
    x = np.array([-2, 0, 7], np.int32)
    result = getattr(nn, name)(x)
    assert result.dtype == (np.int32 if name in ("identity", "relu", "hard_tanh") else np.float32)
    np.testing.assert_allclose(result, getattr(nn, name)(x.astype(np.float32)), rtol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_large_arguments_keep_values_and_slopes_finite(name):
    values, slopes = vf.vmap(vf.value_and_grad(getattr(nn, name)))(np.array(LARGE, np.float32))
    assert np.isfinite(values).all() and np.isfinite(slopes).all()


@pytest.mark.parametrize("name", NAMES)
def test_shapes(name):
    f = getattr(nn, name)
    assert f(np.zeros((2, 0, 3), np.float32)).shape == (2, 0, 3)
    assert f(np.zeros((2, 3), np.float32)).shape == (2, 3)
    assert f(1.0).shape == ()


@pytest.mark.wide
@pytest.mark.parametrize("name", ["gelu", "silu", "softplus", "mish", "log_sigmoid", "squareplus", "log1mexp", "elu"])
def test_second_derivatives_match_differences(name):
    x, step = np.array([0.3, 1.4, 2.2]), 1e-5
    slope = vf.vmap(vf.grad(getattr(nn, name)))
    curvature = vf.vmap(vf.grad(vf.grad(getattr(nn, name))))(x)
    np.testing.assert_allclose(curvature, (slope(x + step) - slope(x - step)) / (2 * step), rtol=1e-7, atol=1e-8)


@pytest.mark.wide
@pytest.mark.parametrize("name", sorted({*NAMES, "log1mexp", "softmin", "tanhshrink"} - OF_REAL_NUMBERS))
def test_derivatives_of_complex_numbers_match_differences(name: str) -> None:
    """Along the axes and between, as many of these functions are not holomorphic."""
    z, h = np.array([-4.8 - 7.5j, 0.3 + 0.2j, 2.0 - 1.0j, -0.1 + 3.0j]), 1e-6
    function = getattr(nn, name)
    for direction in (1.0, 1j, 0.6 - 0.8j):
        step = np.full(z.shape, direction, np.complex128)
        tangent = vf.jvp(function, (z,), (step,))[1]
        difference = (np.asarray(function(z + h * step)) - np.asarray(function(z - h * step))) / (2 * h)
        np.testing.assert_allclose(np.asarray(tangent), difference, rtol=1e-6, atol=1e-7)


def test_the_slope_of_relu_at_zero_is_zero():
    assert float(vf.grad(nn.relu)(0.0)) == float(vf.grad(nn.relu6)(0.0)) == float(vf.grad(nn.relu6)(6.0)) == 0.0


def test_gelu_keeps_its_left_tail():
    x = np.array([-10.0, -6.0], np.float32)
    scipy_special = pytest.importorskip("scipy.special")
    np.testing.assert_allclose(nn.gelu(x, approximate=False), x * scipy_special.ndtr(x.astype(float)), rtol=1e-6)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_glu(axis):
    x = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)
    first, second = np.split(x, 2, axis)
    np.testing.assert_allclose(nn.glu(x, axis), first / (1 + np.exp(-second)), rtol=1e-6)


def test_glu_needs_an_even_size():
    with pytest.raises(ShapeError, match="odd"):
        nn.glu(np.zeros((2, 3), np.float32))


@pytest.mark.wide
def test_log1mexp():
    x = np.array([1e-8, 1e-3, 0.5, 0.69, 0.7, 2.0, 30.0, 800.0])
    np.testing.assert_allclose(nn.log1mexp(x), np.log(-np.expm1(-x)), rtol=1e-12, atol=1e-16)
    slopes = vf.vmap(vf.grad(nn.log1mexp))(x)
    np.testing.assert_allclose(slopes, 1 / np.expm1(np.minimum(x, 700)), rtol=1e-12, atol=1e-300)


@pytest.mark.parametrize("dtype, size", [(np.float16, 600), (np.float32, 1e30)])
def test_squares_that_overflow(dtype, size):
    x = np.array([-size, size], dtype)
    for function in (nn.gelu, nn.squareplus):  # squareplus of -600 is about 1/600
        np.testing.assert_allclose(np.asarray(function(x)).astype(float), [0, x[1]], atol=2e-3)
        np.testing.assert_allclose(np.asarray(vf.vmap(vf.grad(function))(x)).astype(float), [0, 1], atol=2e-3)


def test_squareplus_left_of_zero():
    x = np.array([-1e5, -30.0, -1.0, 0.0, 2.0], np.float32)
    wide = x.astype(float)
    root = np.hypot(wide, 1.5)
    values = np.where(wide < 0, 2.25 / (2 * (root - wide)), (wide + root) / 2)
    np.testing.assert_allclose(nn.squareplus(x, 2.25), values, rtol=1e-6)
    slopes = [vf.vmap(vf.grad(nn.squareplus, i), (0, None))(x, 2.25) for i in (0, 1)]
    np.testing.assert_allclose(slopes[0], values / root, rtol=1e-6)
    np.testing.assert_allclose(slopes[1], 0.25 / root, rtol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("shape", "count"), [((4,), 1), ((), 1), ((5, 3), 1), ((5, 3), 3), ((2, 3, 4), 3), ((2, 3, 4, 2), 3), ((0, 3, 4), 3)]
)
def test_agrees_with_torch(shape, count, dtype):
    layer = nn.PReLU(vf.numpy.asarray(numbers((count,), dtype, seed=2)))
    x = np.asarray(numbers(shape, dtype))
    x[x > 1] = 0  # where the slope is the negative side's
    compare(layer, lambda x, weight: torch.nn.functional.prelu(x, weight), x)


def test_infinities_and_nan():
    x = vf.numpy.array([np.inf, -np.inf, np.nan])
    np.testing.assert_array_equal(nn.PReLU.init()(x), [np.inf, -np.inf, np.nan])
    gradient = vf.grad(lambda layer: layer(vf.numpy.array([np.inf, -2.0])).sum())(nn.PReLU.init())
    np.testing.assert_array_equal(gradient.weight, [-2.0])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision(dtype):
    out = nn.PReLU.init(2, 0.5, dtype=dtype)(vf.numpy.array([[-3.0, 2.0]], dtype))
    assert out.dtype == dtype
    assert out.tolist() == [[-1.5, 2.0]]


def test_under_transforms():
    layer, x = nn.PReLU.init(3), numbers((3, 3, 3), "float32")
    expected = np.where(x > 0, x, x / 4)
    np.testing.assert_array_equal(vf.jit(lambda layer, x: layer(x))(layer, x), expected)
    np.testing.assert_array_equal(vf.vmap(layer)(x), expected)
    assert nn.summary(nn.Sequential(layer), x[0]).parameters == 3


@pytest.mark.parametrize("count", [0, -1, True, 1.0])
def test_bad_counts(count):
    with pytest.raises(ArgumentError, match="num_parameters is an integer, 1 or more"):
        nn.PReLU.init(count)


def test_bad_inputs():
    with pytest.raises(ShapeError, match=r"3 slopes need size 3 along axis 1, got shape \(3,\)"):
        nn.PReLU.init(3)(vf.numpy.ones(3))
    with pytest.raises(DTypeError, match="PReLU"):
        nn.PReLU.init()(vf.numpy.arange(3))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("b", [4.0, 0.0, 1e-37, 3e38])
def test_squareplus_of_all_sizes(dtype, b):
    rng, most = np.random.default_rng(0), np.finfo(dtype).maxexp
    x = (rng.normal(size=2000) * 2.0 ** rng.integers(-most + 4, most - 3, 2000)).astype(dtype)
    wide, exact = np.longdouble(x), np.longdouble(np.dtype(dtype).type(b))
    root = np.sqrt(wide**2 + exact)
    with np.errstate(divide="ignore", invalid="ignore"):  # in the half that is not taken
        left = np.where(x < 0, exact / 2 / (root - wide), 0)
    wanted = np.where(x < 0, left, (wide + root) / 2).astype(dtype)
    for actual in (nn.squareplus(x, b), vf.jit(nn.squareplus)(x, np.dtype(dtype).type(b))):
        np.testing.assert_allclose(actual, wanted, rtol=4 * np.finfo(dtype).eps, atol=float(np.finfo(dtype).tiny))
    assert b == 0 or np.isfinite(vf.grad(vf.grad(nn.squareplus))(0.0, b))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_slopes_far_from_zero(dtype: str) -> None:
    """Neither is a square that is not chosen infinite, nor a difference of almost equal numbers the slope."""
    kind = vf.dtypes.as_dtype(dtype)
    info = vf.numpy.finfo(kind)
    x = np.array([s * size for size in (0.5, 3.0, 200.0, 2.0 ** (info.maxexp // 2), float(info.max)) for s in (1, -1)]).astype(kind)
    wide = np.asarray(x, np.float64)
    exact = {"soft_sign": (1 / (1 + np.abs(wide))) ** 2, "sparse_plus": np.clip((wide + 1) / 2, 0, 1)}
    for name, slopes in exact.items():
        for compute in (vf.vmap(vf.grad(getattr(nn, name))), vf.jit(vf.vmap(vf.grad(getattr(nn, name))))):
            actual = np.asarray(compute(vf.numpy.asarray(x)))
            assert actual.dtype == kind
            allowed = {"rtol": 4 * float(info.eps), "atol": 2 * float(info.smallest_subnormal)}
            np.testing.assert_allclose(actual.astype(np.float64), slopes.astype(kind).astype(np.float64), **allowed)


def test_squareplus_of_a_number_of_64_bits() -> None:
    """With 64-bit numbers the tangent of the number b is wider than the result."""
    with vf.config.enable_x64(True):
        slope = vf.grad(nn.squareplus)(np.float32(1.5))
    assert slope.dtype == "float32"
    np.testing.assert_allclose(slope, 0.5 * (1 + 1.5 / np.hypot(1.5, 2)), rtol=1e-6)
