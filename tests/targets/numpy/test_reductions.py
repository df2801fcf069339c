"""Cumulative kernels against loops, mathematics and JAX."""

import itertools
import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import volta_fn as vf
from tests.compiler.passes.common import special
from volta_fn import lax
from volta_fn.core.aval import ShapedArray
from volta_fn.core.primitive import evaluation_rules
from volta_fn.primitives.reduction import reduce_sum_p
from volta_fn.targets.numpy.backend import TYPED

DTYPES = ["int8", "uint8", "int32", "int64", "float16", "float32", "float64", "complex64", ml_dtypes.bfloat16]
FUNCTIONS = {primitive.name: rule for primitive, rule in evaluation_rules.items()}
KERNELS = {"cumsum": np.add, "cumprod": np.multiply, "cummax": np.maximum, "cummin": np.minimum}


def naive(ufunc, x, axis, reverse):
    """Compute the definition, element by element."""
    out, n = x.copy(), x.shape[axis]
    rows = np.moveaxis(out, axis, 0)
    for i in range(n - 2, -1, -1) if reverse else range(1, n):
        rows[i] = ufunc(rows[i + 1 if reverse else i - 1], rows[i])
    return out


def make(shape, dtype):
    values = np.random.default_rng(0).integers(0, 3, shape)
    return np.asarray(values).astype(dtype)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(list(KERNELS)),
    st.lists(st.sampled_from([0, 1, 2, 3, 9, 70]), min_size=1, max_size=3).map(tuple),
    st.sampled_from(DTYPES),
    st.booleans(),
    st.booleans(),
    st.data(),
)
def test_accumulates_along_the_axis(name, shape, dtype, reverse, ordered, data):
    axis = data.draw(st.integers(0, len(shape) - 1))
    x = np.array(make(shape, dtype), order="C" if ordered else "F")
    wide = "float32" if dtype == "float16" or dtype is ml_dtypes.bfloat16 else dtype
    got = FUNCTIONS[name](x, axis=axis, reverse=reverse)
    assert got.dtype == x.dtype
    with np.errstate(all="ignore"):  # 3^70 overflows, and inf * 0 is NaN, in both.
        expected = naive(KERNELS[name], x.astype(wide), axis, reverse).astype(dtype)
    np.testing.assert_array_equal(got.astype(wide), expected.astype(wide))


def test_half_precision_sums_keep_small_addends():
    for dtype in ("float16", ml_dtypes.bfloat16):
        assert float(FUNCTIONS["cumsum"](np.ones(4096, dtype), axis=0, reverse=False)[-1]) == 4096


@pytest.mark.filterwarnings("ignore:invalid value")
def test_nan_stays_once_met():
    x = np.array([1.0, np.nan, 2.0])
    for kernel in (FUNCTIONS["cummax"], FUNCTIONS["cummin"], FUNCTIONS["cumsum"], FUNCTIONS["cumlogsumexp"]):
        np.testing.assert_array_equal(np.isnan(kernel(x, axis=0, reverse=False)), [False, True, True])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(-1e4, 1e4) | st.sampled_from([-math.inf]), min_size=1, max_size=30), st.booleans())
def test_log_sum_exp_of_everything_so_far(values, reverse):
    got = FUNCTIONS["cumlogsumexp"](np.array(values), axis=0, reverse=reverse)
    for i in range(len(values)):
        part = values[i:] if reverse else values[: i + 1]
        top = max(part)
        expected = top if top == -math.inf else top + math.log(math.fsum(math.exp(v - top) for v in part))
        assert got[i] == expected or math.isclose(got[i], expected, rel_tol=1e-13, abs_tol=1e-13)


def test_log_sum_exp_at_the_infinities():
    x = np.array([-np.inf, -np.inf, 0.0, 1e30, np.inf, np.inf, -np.inf])
    expected = [-np.inf, -np.inf, 0, 1e30, np.inf, np.inf, np.inf]
    np.testing.assert_array_equal(FUNCTIONS["cumlogsumexp"](x, axis=0, reverse=False), expected)


@pytest.mark.parametrize("dtype", ["float32", "float16", ml_dtypes.bfloat16])
@pytest.mark.parametrize("name", [*KERNELS, "cumlogsumexp"])
def test_agrees_with_jax(name, dtype):
    lax = pytest.importorskip("jax").lax
    x = np.random.default_rng(0).standard_normal((6, 5)).astype(dtype)
    eps = float(ml_dtypes.finfo(dtype).eps)
    for axis, reverse in ((0, False), (1, True)):
        got = FUNCTIONS[name](x, axis=axis, reverse=reverse)
        expected = np.asarray(getattr(lax, name)(x, axis=axis, reverse=reverse))
        # JAX adds pairwise, here elements add in their order: six roundings at most.
        np.testing.assert_allclose(got.astype("float64"), expected.astype("float64"), rtol=6 * eps, atol=6 * eps)


@pytest.mark.parametrize(
    "shape, axes",
    [
        ((5000, 3), (0,)),
        ((130, 90, 2), (0, 1)),
        ((16, 33, 2), (0, 1)),
        ((64, 64, 3, 2), (0, 1, 3)),
        ((4, 3000, 5, 2), (1, 3)),
        ((60, 70), (0, 1)),
    ],
)
def test_sums_of_many_rows_do_not_add_up_rounding_errors(shape, axes):
    x = (np.random.default_rng(0).standard_normal(shape) + 3).astype(np.float32)
    got = TYPED[reduce_sum_p](ShapedArray(x.shape, x.dtype), axes=axes)(x)
    np.testing.assert_allclose(got, x.astype(np.float64).sum(axes), rtol=4e-7)
    assert got.dtype == x.dtype


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.complex64, np.int8])
@pytest.mark.parametrize("reduce", [lax.reduce_sum, lax.reduce_prod, lax.reduce_max, lax.reduce_min])
def test_the_reduction_of_one_element_is_that_element(reduce, dtype):
    x = special(dtype)[:, None]  # -0.0 and, in complex numbers, infinities
    for function in (reduce, vf.jit(reduce, static_argnums=1)):
        np.testing.assert_array_equal(np.asarray(function(x, (1,))).view(np.uint8), x[:, 0].view(np.uint8))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.complex64])
def test_sums_of_negative_zeros_begin_with_zero(dtype):
    x = np.full((3, 100), -np.zeros((), dtype))
    sums = [
        lambda x: lax.cumsum(x, 0),
        lambda x: lax.cumsum(x, 1, reverse=True),
        lambda x: lax.reduce_window(x, x.dtype.type(0), lax.add, (1, 2)),
        lambda x: lax.reduce_sum(x, (1,)),
    ]
    for function in sums:
        for result in (function(x), vf.jit(function)(x)):
            assert not np.asarray(result).copy().view(np.uint8).any()


LAYOUTS = {
    "rows": lambda x: x,
    "columns": lambda x: np.asfortranarray(x),
    "every second": lambda x: np.repeat(np.repeat(x, 2, 0), 2, 1)[::2, ::2],
    "reversed": lambda x: x[::-1, ::-1].copy()[::-1, ::-1],
}


@pytest.mark.parametrize("dtype", ["float16", "float32", "complex64", ml_dtypes.bfloat16])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_long_sums_lose_a_few_roundings(layout, dtype):
    """Half a million equal terms added one after another lose a hundred times as many."""
    x = LAYOUTS[layout](np.random.default_rng(0).random((500_000, 3)).astype(dtype) / 32)
    wide = x.astype("complex128" if dtype == "complex64" else "float64")
    limit = {"float32": 4e-7, "complex64": 4e-7, "float16": 5e-4}.get(dtype, 4e-3)
    for axes in ((0,), (0, 1)):
        rule = TYPED[reduce_sum_p](ShapedArray(x.shape, x.dtype), axes=axes)
        np.testing.assert_allclose(rule(x).astype(wide.dtype), wide.sum(axes), rtol=limit)
        rule = TYPED[reduce_sum_p](ShapedArray(x.T.shape, x.dtype), axes=tuple([1 - axis for axis in axes]))
        np.testing.assert_allclose(rule(x.T).astype(wide.dtype), wide.sum(axes), rtol=limit)


def test_sums_along_axes_in_any_order_of_memory():
    x = np.random.default_rng(0).random((3, 300, 2, 40))
    for order in ((0, 1, 2, 3), (3, 2, 1, 0), (1, 3, 0, 2)):
        view = np.ascontiguousarray(x.transpose(order)).transpose(np.argsort(order))
        for axes in ((1,), (0, 1), (1, 3), (1, 2), (0, 1, 3), (0, 1, 2, 3)):
            rule = TYPED[reduce_sum_p](ShapedArray(x.shape, x.dtype), axes=axes)
            np.testing.assert_allclose(rule(view), x.sum(axes), rtol=1e-13)


@pytest.mark.parametrize("shape", [(40, 3, 0), (0, 40), (40, 0, 100), (0,), (33, 1, 0), (100, 2, 3)])
@pytest.mark.parametrize("transposed", [False, True])
def test_sums_of_many_rows_without_elements(shape, transposed):
    x = np.ones(shape, np.float32)
    x = x.T if transposed else x
    for count in range(1, x.ndim + 1):
        for axes in itertools.combinations(range(x.ndim), count):
            actual = TYPED[reduce_sum_p](ShapedArray(x.shape, x.dtype), axes=axes)(x)
            assert actual.dtype == x.dtype
            np.testing.assert_array_equal(actual, x.sum(axes))
